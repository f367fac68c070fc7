//! Paths that are URLs.

use std::path::{Path, PathBuf};

/// The beginnings of URLs that are read.
const SCHEMES: [&str; 8] = ["s3", "s3a", "gs", "az", "abfs", "abfss", "http", "https"];
/// A URL, divided. `s3://bucket/a/b` has the host `bucket` and the key `a/b`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Url<'a> {
    pub(crate) scheme: &'a str,
    pub(crate) host: &'a str,
    /// Without slashes at its ends.
    pub(crate) key: &'a str,
}

impl<'a> Url<'a> {
    /// `None` for a path of the file system.
    pub(crate) fn of(path: &'a Path) -> Option<Self> {
        let (scheme, rest) = path.to_str()?.split_once("://")?;
        let (host, key) = rest.split_once('/').unwrap_or((rest, ""));
        SCHEMES.contains(&scheme).then_some(Self { scheme, host, key: key.trim_matches('/') })
    }

    /// Whether it is of a web server, which lists no names.
    pub(crate) fn is_web(self) -> bool {
        matches!(self.scheme, "http" | "https")
    }
}

/// Whether a path is a URL.
pub fn is_url(path: &Path) -> bool {
    Url::of(path).is_some()
}

/// The path without links. A URL has none.
///
/// # Errors
/// The error of the file system.
pub fn canonical(path: &Path) -> std::io::Result<PathBuf> {
    if is_url(path) { Ok(path.into()) } else { std::fs::canonicalize(path) }
}

/// A URL without its secrets, if it has some: a password, or a query, which may hold a signature.
pub fn without_secrets(path: &Path) -> Option<PathBuf> {
    let url = Url::of(path)?;
    let key = if url.is_web() { url.key.split_once('?').map_or(url.key, |(key, _)| key) } else { url.key };
    // In `abfss://container@account`, the part before the sign is no user.
    let host = match url.host.rsplit_once('@') {
        Some((user, host)) if url.is_web() || user.contains(':') => host,
        _ => url.host,
    };
    let is_without = key.len() == url.key.len() && host.len() == url.host.len();
    (!is_without).then(|| format!("{}://{host}/{key}", url.scheme).into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn urls_are_divided() {
        let url = |scheme, host, key| Some(Url { scheme, host, key });
        for (text, expected) in [
            ("s3://bucket/a/b.json", url("s3", "bucket", "a/b.json")),
            ("s3://bucket", url("s3", "bucket", "")),
            ("gs://bucket/run/", url("gs", "bucket", "run")),
            ("https://host:8000/a", url("https", "host:8000", "a")),
            ("file://host/a", None),
            ("a/b", None),
            ("s3:/bucket/a", None),
        ] {
            assert_eq!(Url::of(Path::new(text)), expected, "{text}");
        }
    }

    #[test]
    fn secrets_are_left_out() {
        let shown = |text: &str| without_secrets(Path::new(text)).map(|path| path.display().to_string());
        assert_eq!(shown("https://h/a.json?X-Amz-Signature=1"), Some("https://h/a.json".into()));
        assert_eq!(shown("https://me:secret@h/a"), Some("https://h/a".into()));
        assert_eq!(shown("s3://key:secret@bucket/a"), Some("s3://bucket/a".into()));
        for text in ["s3://bucket/rank?.json", "abfss://container@account/a", "https://h/a", "/a?b"] {
            assert_eq!(shown(text), None, "{text}");
        }
    }
}
