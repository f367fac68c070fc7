//! Formats of other tools: recognised to say what to do, but not read.

use std::path::Path;

use trace::place;

/// A format that is not read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OtherFormat {
    /// Its name, with an article.
    pub name: &'static str,
    /// What to do instead.
    pub instead: &'static str,
}

/// Bytes that decide a format.
const HEAD_BYTES: u64 = 16;
/// The name of SQLite exports.
pub(crate) const SQLITE_EXPORT: &str = "an SQLite export of Nsight Systems";
const RECORD: &str = "record with torch.profiler or `rankscope exec` instead";

/// The format of a file, by its first bytes, else by its name; `None` if it is none of the known ones. Exports get
/// renamed, so the content comes first. A file that cannot be opened is reported by its reader.
pub fn other_format(path: &Path) -> Option<OtherFormat> {
    // Of a file that cannot be read, the name decides.
    let head = place::first_bytes(path, HEAD_BYTES).unwrap_or_default();
    other_format_of(&path.to_string_lossy(), &head)
}

/// The format of a file with this name and these first bytes.
pub(crate) fn other_format_of(name: &str, head: &[u8]) -> Option<OtherFormat> {
    let name = name.to_ascii_lowercase();
    let ends = |suffix: &str| name.ends_with(suffix);
    let format = |name, instead| Some(OtherFormat { name, instead });
    if head.starts_with(b"SQLite format 3\0") || ends(".sqlite") {
        return format(SQLITE_EXPORT, "`rankscope analyze` reads it as a file of this machine");
    }
    if head.starts_with(b"PAR1") {
        return format("a Parquet file", "name the directory of its run, the one with run.json");
    }
    if ends(".nsys-rep") {
        return format(
            "a report of Nsight Systems",
            "write it as SQLite, which is read: `nsys export --type sqlite FILE`",
        );
    }
    if ends(".qdrep") {
        return format("a report of an old Nsight Systems", RECORD);
    }
    if ends(".xplane.pb") {
        return format("an XPlane of XLA", "export it as Chrome JSON from XProf, or record with torch.profiler");
    }
    if ends(".pftrace") || ends(".perfetto-trace") {
        return format("a Perfetto trace", "have torch.profiler export Chrome JSON (export_chrome_trace)");
    }
    None
}

/// Whether a name is one that torch gives to traces, or users do.
pub(crate) fn is_trace_name(name: &str) -> bool {
    let name = name.to_ascii_lowercase();
    [".json", ".json.gz", ".json.zst"].iter().any(|end| name.ends_with(end))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_content_decides_before_the_name() {
        let name = |name: &str, head: &[u8]| other_format_of(name, head).map(|format| format.name);
        assert_eq!(name("rank0.json", b"SQLite format 3\0 and more"), Some("an SQLite export of Nsight Systems"));
        assert_eq!(name("A.NSYS-REP", b""), Some("a report of Nsight Systems"));
        assert_eq!(name("x.sqlite", b"PAR1"), Some("an SQLite export of Nsight Systems"));
        assert_eq!(name("rank0.json", b"{"), None);
    }
}
