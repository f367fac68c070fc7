//! Decides by the content of paths whether they are a run or files of ranks.

use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use kineto::OtherFormat;
use model::Error;
use trace::MANIFEST_FILE;
use trace::place::{self, Entry};

use crate::job_files::JobFiles;
use crate::paths::{is_directory, is_run};
use crate::registry::other_format_of;
use crate::snapshot::is_pickle;

/// Paths that a pattern may match.
const MAX_MATCHES: usize = 1 << 16;
/// The characters that make a path a pattern.
const PATTERN_CHARS: [char; 3] = ['*', '?', '['];

/// The input of a command.
#[derive(Debug, PartialEq, Eq)]
pub enum Input {
    /// A run.
    Run(PathBuf),
    /// Files of ranks.
    Files(JobFiles),
}

/// Decides by the content of the paths: a directory with a manifest is a run. A pattern that is no path is expanded.
///
/// # Errors
/// [`Error::NoInput`] or [`Error::UnreadFormat`]; their messages name a way out.
pub fn resolve(paths: Vec<PathBuf>) -> Result<Input, Error> {
    let paths = expand_all(paths)?;
    if let Some(run) = run_of(&paths)? {
        return Ok(Input::Run(run));
    }
    let mut files = JobFiles::find(&paths)?;
    files.traces.iter().try_for_each(|path| check_format(path))?;
    if files.only_traces() {
        files.take_snapshots(snapshots_alone(&paths)?);
    }
    Ok(Input::Files(files))
}

/// The snapshots of torch's allocator that all paths stand for; none if a path has traces, or something else. Beside traces, a pickle is a
/// file without traces, and is listed as one.
fn snapshots_alone(paths: &[PathBuf]) -> Result<Vec<PathBuf>, Error> {
    let snapshots = paths.iter().map(|path| snapshots_in(path)).collect::<Result<Vec<_>, _>>()?;
    for (path, found) in paths.iter().zip(&snapshots) {
        if found.is_empty() && !is_directory(path)? {
            return Ok(Vec::new());
        }
    }
    Ok(snapshots.concat())
}

/// The run that the paths are; `None` if they are none.
///
/// # Errors
/// [`Error::NoInput`] for a run beside other paths, and for shards without a manifest.
pub fn run_of(paths: &[PathBuf]) -> Result<Option<PathBuf>, Error> {
    match paths {
        [path] if is_run(path)? => return Ok(Some(path.clone())),
        [path] if path.file_name().is_some_and(|n| n == MANIFEST_FILE) => {
            return Ok(Some(path.parent().unwrap_or(Path::new(".")).into()));
        }
        _ => {}
    }
    for path in paths {
        if is_run(path)? {
            return Err(no_input(path, "it is a run, and a run is analyzed alone; give no other paths".into()));
        }
    }
    paths.iter().try_for_each(|path| check_manifest(path))?;
    Ok(None)
}

/// The pickles that a path stands for: itself, or those of a directory and of the directories of ranks in it. A directory
/// with any `.json` file has none, because its traces say more.
///
/// # Errors
/// [`Error::Io`] if there are pickles, and perhaps more that cannot be read. Without pickles, the reader of traces lists
/// what cannot be read.
fn snapshots_in(path: &Path) -> Result<Vec<PathBuf>, Error> {
    if !is_directory(path)? {
        return Ok(if is_pickle(path)? { vec![path.into()] } else { Vec::new() });
    }
    let (mut files, mut unread) = (Vec::new(), None);
    for entry in entries(path)? {
        match entry.is_directory.then(|| entries(&entry.path)) {
            None => files.push(entry.path),
            Some(Ok(inside)) => files.extend(inside.into_iter().map(|entry| entry.path)),
            Some(Err(error)) => unread = Some(error),
        }
    }
    files.sort();
    let is_trace = |path: &PathBuf| path.to_string_lossy().to_ascii_lowercase().contains(".json");
    if files.iter().any(is_trace) {
        return Ok(Vec::new());
    }
    files.retain(|path| {
        path.extension().is_some_and(|end| end == "pickle" || end == "pkl")
            && is_pickle(path).unwrap_or_else(|error| {
                unread = Some(error);
                false
            })
    });
    match unread {
        Some(error) if !files.is_empty() => Err(error),
        _ => Ok(files),
    }
}

fn entries(directory: &Path) -> Result<Vec<Entry>, Error> {
    let mut entries = place::entries(directory).map_err(|source| Error::Io { path: directory.into(), source })?;
    entries.truncate(MAX_MATCHES);
    Ok(entries)
}

fn no_input(path: &Path, why: String) -> Error {
    Error::NoInput { path: path.into(), why }
}

/// Expands the patterns among the paths.
///
/// # Errors
/// [`Error::NoInput`] if a path does not exist or a pattern matches nothing.
pub fn expand_all(paths: Vec<PathBuf>) -> Result<Vec<PathBuf>, Error> {
    Ok(paths.into_iter().map(expand).collect::<Result<Vec<_>, _>>()?.concat())
}

/// The paths that a pattern matches, such as a quoted `logs/rank_*`. A file that exists is no pattern, and `-` is standard input.
/// Names in an object store are not asked for one by one, so a URL with `*`, `?` or `[` is always a pattern.
fn expand(path: PathBuf) -> Result<Vec<PathBuf>, Error> {
    if let Some(shown) = place::without_secrets(&path) {
        let why = "a password or a query in a URL is not read; credentials come from the environment".into();
        return Err(no_input(&shown, why));
    }
    let pattern = path.to_str().filter(|text| text.contains(PATTERN_CHARS)).map(String::from);
    let matches = match (pattern, place::is_url(&path)) {
        _ if path.as_os_str() == "-" => return Ok(vec![path]),
        (Some(pattern), true) => urls_matching(&path, &pattern)?,
        (pattern, is_url) => match (place::kind(&path), pattern) {
            (Ok(_), _) => return Ok(vec![path]),
            (Err(source), _) if source.kind() != ErrorKind::NotFound => return Err(Error::Io { path, source }),
            (Err(_), Some(pattern)) => files_matching(&path, &pattern)?,
            (Err(error), None) if is_url => return Err(no_input(&path, error.to_string())),
            (Err(_), None) => return Err(no_input(&path, "there is no such file or directory".into())),
        },
    };
    match matches.len() {
        0 => Err(no_input(&path, "no file or directory matches this pattern".into())),
        MAX_MATCHES => Err(no_input(&path, format!("more than {MAX_MATCHES} paths match this pattern"))),
        _ => Ok(matches),
    }
}

fn files_matching(path: &Path, pattern: &str) -> Result<Vec<PathBuf>, Error> {
    let matches = glob::glob(pattern).map_err(|error| no_input(path, error.to_string()))?;
    let matches = matches.take(MAX_MATCHES).collect::<Result<_, _>>();
    matches.map_err(|error| Error::Io { path: error.path().into(), source: error.into() })
}

/// As [`files_matching`], in an object store: directory by directory.
fn urls_matching(path: &Path, pattern: &str) -> Result<Vec<PathBuf>, Error> {
    let parts: Vec<&str> = pattern.trim_end_matches('/').split('/').collect();
    let fixed = parts.iter().position(|part| part.contains(PATTERN_CHARS)).unwrap_or(parts.len());
    let mut found = vec![PathBuf::from(parts[..fixed].join("/"))];
    for (at, part) in parts.iter().enumerate().skip(fixed) {
        let part = glob::Pattern::new(part).map_err(|error| no_input(path, error.to_string()))?;
        let is_last = at + 1 == parts.len();
        let mut next = Vec::new();
        for directory in found {
            let matching = entries(&directory)?.into_iter().filter(|entry| {
                let name = entry.path.file_name().unwrap_or_default().to_string_lossy();
                part.matches(&name) && (is_last || entry.is_directory)
            });
            next.extend(matching.map(|entry| entry.path).take(MAX_MATCHES - next.len()));
        }
        found = next;
    }
    Ok(found)
}

fn check_format(path: &Path) -> Result<(), Error> {
    match other_format_of(path) {
        Some(OtherFormat { name: format, instead, .. }) => {
            Err(Error::UnreadFormat { path: path.into(), format, instead })
        }
        None => Ok(()),
    }
}

/// Refuses shards without their manifest.
fn check_manifest(path: &Path) -> Result<(), Error> {
    let events = path.join("events");
    if !is_directory(&events)? || is_run(&events)? {
        return Ok(());
    }
    let shards = place::entries(&events).map_err(|source| Error::Io { path: path.into(), source })?;
    if !shards.iter().any(|entry| entry.path.extension().is_some_and(|extension| extension == "parquet")) {
        return Ok(());
    }
    Err(no_input(path, format!("it has shards but no {MANIFEST_FILE}: copy the manifest of the run into it")))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::registry::FORMATS;

    fn resolved(files: &[(&str, &[u8])], given: &str) -> String {
        let dir = tempfile::tempdir().unwrap();
        for (name, content) in files {
            let path = dir.path().join(name);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, content).unwrap();
        }
        let text = match resolve(vec![dir.path().join(given)]) {
            Ok(Input::Run(_)) => "run".to_string(),
            Ok(Input::Files(files)) => described(&files),
            Err(error) => error.to_string(),
        };
        text.replace(&dir.path().display().to_string(), "DIR")
    }

    /// The kinds of files with their numbers, such as `2 exports, 1 traces`.
    fn described(files: &JobFiles) -> String {
        if files.only_traces() {
            return "traces".into();
        }
        let JobFiles { others, traces, snapshots, reports, .. } = files;
        let mut kinds: Vec<(&str, usize)> = Vec::new();
        for format in FORMATS {
            kinds.push((format.files.split(' ').next().unwrap(), others.get(format.name).map_or(0, Vec::len)));
        }
        kinds.extend([("snapshots", snapshots.len()), ("traces", traces.len()), ("reports", reports.len())]);
        kinds.retain(|(_, count)| *count > 0);
        kinds.iter().map(|(name, count)| format!("{count} {name}")).collect::<Vec<_>>().join(", ")
    }

    #[test]
    fn the_content_of_a_path_decides() {
        assert_eq!(resolved(&[("run.json", b"{}")], ""), "run");
        assert_eq!(resolved(&[("run.json", b"{}")], "run.json"), "run");
        assert_eq!(resolved(&[("rank0.json.gz", b"")], ""), "traces");
        assert_eq!(resolved(&[("rank0.json", b"")], "rank0.json"), "traces");
        assert_eq!(resolved(&[("rank0.json", b""), ("rank1.json", b"")], "rank?.json"), "traces");
        assert_eq!(resolved(&[("rank[0].json", b"")], "rank[0].json"), "traces");
    }

    #[test]
    fn pickles_without_traces_are_snapshots() {
        let pickle: &[u8] = b"\x80\x04N.";
        assert_eq!(resolved(&[("a.pickle", pickle)], "a.pickle"), "1 snapshots");
        assert_eq!(resolved(&[("oom", pickle)], "oom"), "1 snapshots");
        assert_eq!(resolved(&[("rank0.pickle", pickle), ("rank1.pkl", pickle), ("notes.txt", b"")], ""), "2 snapshots");
        assert_eq!(resolved(&[("rank_0/a.pickle", pickle), ("rank_1/a.pickle", pickle)], ""), "2 snapshots");
        assert_eq!(resolved(&[("rank0.pickle", pickle), ("rank0.json", b"{}")], ""), "traces");
        assert_eq!(resolved(&[("a.pickle", b"text")], "a.pickle"), "traces");
    }

    #[test]
    fn exports_are_found_by_their_content_and_beside_traces() {
        let export: &[u8] = b"SQLite format 3\0 and more";
        assert_eq!(resolved(&[("export.db", export)], "export.db"), "1 exports");
        assert_eq!(resolved(&[("a.sqlite", export), ("r/b", export), ("log.txt", b"")], ""), "2 exports");
        assert_eq!(resolved(&[("a.sqlite", export), ("rank1.json", b"{}")], ""), "1 exports, 1 traces");
        assert_eq!(
            resolved(&[("a.sqlite", export), ("a.nsys-rep", b""), ("b.nsys-rep", b"")], ""),
            "1 exports, 1 reports",
            "a report beside its export is the same recording"
        );
        assert_eq!(resolved(&[("run.json", b"{}"), ("a.sqlite", export)], ""), "run");
        assert_eq!(
            resolved(
                &[("a.sqlite", export), ("a_pqtdir/StringIds.parquet", b"PAR1"), ("b_arwdir/StringIds.arrow", b"")],
                ""
            ),
            "2 exports",
            "of two exports of one recording, the one in SQLite is read"
        );
        assert_eq!(resolved(&[("r_pqtdir/StringIds.parquet", b"PAR1")], "r_pqtdir"), "1 exports");
    }

    #[test]
    fn dumps_of_the_inspector_are_found_by_their_content() {
        let dump: &[u8] = b"{\"header\":{\"id\":\"0x1f\",\"rank\":0";
        assert_eq!(resolved(&[("a-pid7.log", dump)], "a-pid7.log"), "1 dumps");
        let gzip = fixtures::small_trace::gzip(dump);
        assert_eq!(resolved(&[("a-pid7.log", dump), ("b-pid8.log.gz", &gzip), ("c.log", b"words")], ""), "2 dumps");
        assert_eq!(resolved(&[("a-pid7.log", dump), ("rank1.json", b"{}")], ""), "1 dumps, 1 traces");
    }

    #[test]
    fn profiles_are_found_by_their_content_or_name() {
        let profile: &[u8] = b"\x0a\x10\x12\x0e/host:metadata";
        let found = "1 profiles";
        assert_eq!(resolved(&[("h.xplane.pb", b"damaged")], "h.xplane.pb"), found);
        assert_eq!(resolved(&[("anything", profile)], "anything"), found);
        let folder = "plugins/profile/2026_01_02";
        let beside = ["t.trace.json.gz", "perfetto_trace.json.gz"].map(|name| format!("{folder}/{name}"));
        let files = [(&*format!("{folder}/h.xplane.pb"), profile), (&*beside[0], b"{}"), (&*beside[1], b"{}")];
        assert_eq!(resolved(&files, ""), found, "what JAX writes beside a profile is no other trace");
        assert_eq!(resolved(&[("a/h.xplane.pb", profile), ("b/x.trace.json.gz", b"{}")], ""), "1 profiles, 1 traces");
    }

    #[test]
    fn errors_name_a_way_out() {
        let check = |files: &[(&str, &[u8])], given: &str, part: &str| {
            let text = resolved(files, given);
            assert!(text.contains(part), "{text:?} lacks {part:?}");
        };
        check(&[], "none", "no such file or directory");
        check(&[("events/rank-00000-0000.parquet", b"")], "", "copy the manifest");
        check(&[("a.nsys-rep", b"")], "a.nsys-rep", "a report of Nsight Systems is not read; write it as SQLite");
        check(&[("a.json", b"")], "*.txt", "no file or directory matches this pattern");
    }
}
