//! What a path on the command line is.

use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};

use trace::MANIFEST_FILE;

use crate::Error;
use crate::kineto::KinetoSource;
use crate::source::{RunSource, Source};

/// What was given to be analysed.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Input {
    /// A run.
    Run(PathBuf),
    /// Traces: files, or directories of them.
    Traces(Vec<PathBuf>),
}

/// Formats that are known by name and not read, with what to do instead.
const UNREAD: [(&str, &str, &str); 4] = [
    (
        ".nsys-rep",
        "a report of Nsight Systems",
        "record with torch.profiler or `rank-agent exec` instead; `nsys export` writes SQLite, which is not read yet either",
    ),
    (
        ".sqlite",
        "an SQLite export of Nsight Systems",
        "record with torch.profiler or `rank-agent exec` instead, or query the file with DuckDB's sqlite extension",
    ),
    (".qdrep", "a report of an old Nsight Systems", "record with torch.profiler or `rank-agent exec` instead"),
    (
        ".xplane.pb",
        "an XPlane of XLA",
        "convert it to a Chrome trace with the XProf tools, or record with torch.profiler",
    ),
];

const SQLITE_MAGIC: &[u8] = b"SQLite format 3\0";

/// Decides by what is there, not by what the names promise: a directory with a manifest is a run.
///
/// # Errors
/// [`Error::NoInput`] with what to do, or [`Error::UnreadFormat`].
pub(super) fn resolve(paths: Vec<PathBuf>) -> Result<Input, Error> {
    for path in &paths {
        check_exists(path)?;
        check_format(path)?;
    }
    let is_run = |path: &Path| path.is_dir() && path.join(MANIFEST_FILE).is_file();
    match paths.as_slice() {
        [path] if is_run(path) => Ok(Input::Run(path.clone())),
        [path] if path.file_name().is_some_and(|n| n == MANIFEST_FILE) => {
            Ok(Input::Run(path.parent().unwrap_or(Path::new(".")).into()))
        }
        _ => match paths.iter().find(|p| is_run(p)) {
            Some(run) => {
                Err(no_input(run, "it is a run, and a run is analysed alone; give it without other paths".into()))
            }
            None => {
                for path in &paths {
                    check_traces(path)?;
                }
                Ok(Input::Traces(paths))
            }
        },
    }
}

fn no_input(path: &Path, why: String) -> Error {
    Error::NoInput { path: path.into(), why }
}

fn check_exists(path: &Path) -> Result<(), Error> {
    if path.exists() {
        return Ok(());
    }
    Err(no_input(path, "there is no such file or directory".into()))
}

fn check_format(path: &Path) -> Result<(), Error> {
    let name = path.to_string_lossy();
    let unread = UNREAD.iter().find(|(suffix, _, _)| name.ends_with(suffix));
    let unread = unread.or_else(|| if is_sqlite(path) { UNREAD.get(1) } else { None });
    match unread {
        Some((_, format, instead)) => Err(Error::UnreadFormat { path: path.into(), format, instead }),
        None => Ok(()),
    }
}

/// By content, because exports are renamed. What cannot be opened here is reported by whoever reads it.
fn is_sqlite(path: &Path) -> bool {
    let mut head = [0_u8; 16];
    path.is_file() && File::open(path).and_then(|mut f| f.read_exact(&mut head)).is_ok() && head == SQLITE_MAGIC
}

/// Whether a name is that of a trace, or the first byte that of JSON or gzip. What is inside is for the reader to find
/// out.
fn is_trace(path: &Path) -> bool {
    let name = path.to_string_lossy();
    let mut head = [0_u8; 2];
    let mut starts = || {
        File::open(path).and_then(|mut f| f.read_exact(&mut head)).is_ok()
            && matches!(head, [b'{' | b'[', _] | [0x1f, 0x8b])
    };
    name.ends_with(".json") || name.ends_with(".json.gz") || starts()
}

/// A directory must hold a trace. One that holds shards but no manifest, or only formats that are not read, is said to.
fn check_traces(path: &Path) -> Result<(), Error> {
    if !path.is_dir() {
        let what = "it is neither a run (a directory with run.json) nor a trace (.json, .json.gz)";
        return if is_trace(path) { Ok(()) } else { Err(no_input(path, what.into())) };
    }
    let io = |source| Error::Io { path: path.into(), source };
    let mut entries = Vec::new();
    for entry in std::fs::read_dir(path).map_err(io)? {
        entries.push(entry.map_err(io)?.path());
    }
    entries.sort();
    if entries.iter().any(|e| e.is_file() && is_trace(e)) {
        return Ok(());
    }
    if path.join("events").is_dir() {
        let why = format!("it has shards but no {MANIFEST_FILE}: copy the manifest of the run into it");
        return Err(no_input(path, why));
    }
    entries.iter().try_for_each(|e| check_format(e))?;
    let why = format!("it holds neither {MANIFEST_FILE} (a run) nor a .json or .json.gz trace");
    Err(no_input(path, why))
}

/// A run or traces as a source of ranks.
pub(super) fn open(paths: Vec<PathBuf>) -> Result<Box<dyn Source>, Error> {
    source_of(resolve(paths)?)
}

/// What was resolved, opened.
pub(super) fn source_of(input: Input) -> Result<Box<dyn Source>, Error> {
    Ok(match input {
        Input::Run(path) => Box::new(RunSource::open(&path)?),
        Input::Traces(paths) => Box::new(KinetoSource::open(&paths)?),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn resolved(files: &[(&str, &[u8])], given: &str) -> String {
        let dir = tempfile::tempdir().unwrap();
        for (name, content) in files {
            let path = dir.path().join(name);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, content).unwrap();
        }
        let text = match resolve(vec![dir.path().join(given)]) {
            Ok(Input::Run(_)) => "run".to_string(),
            Ok(Input::Traces(_)) => "traces".to_string(),
            Err(error) => error.to_string(),
        };
        text.replace(&dir.path().display().to_string(), "DIR")
    }

    #[test]
    fn what_is_there_decides() {
        assert_eq!(resolved(&[("run.json", b"{}")], ""), "run");
        assert_eq!(resolved(&[("run.json", b"{}")], "run.json"), "run");
        assert_eq!(resolved(&[("rank0.json.gz", b"")], ""), "traces");
        assert_eq!(resolved(&[("rank0.json", b"")], "rank0.json"), "traces");
    }

    #[test]
    fn errors_say_what_to_do() {
        let check = |files: &[(&str, &[u8])], given: &str, part: &str| {
            let text = resolved(files, given);
            assert!(text.contains(part), "{text:?} lacks {part:?}");
        };
        check(&[], "none", "no such file or directory");
        check(&[("a.txt", b"")], "", "neither run.json (a run) nor a .json");
        check(&[("events/rank-00000-0000.parquet", b"")], "", "copy the manifest");
        check(&[("a.nsys-rep", b"")], "a.nsys-rep", "a report of Nsight Systems is not read; record with");
        check(&[("a.nsys-rep", b"")], "", "a report of Nsight Systems is not read");
        check(&[("export.db", b"SQLite format 3\0 and more")], "export.db", "an SQLite export");
        check(&[("host.xplane.pb", b"")], "host.xplane.pb", "an XPlane of XLA");
        check(&[("a.txt", b"")], "a.txt", "neither a run");
    }
}
