//! Decides whether the paths on the command line are a run or traces.

use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};

use trace::MANIFEST_FILE;

use crate::Error;
use crate::ingest::kineto::KinetoSource;
use crate::ingest::source::{RunSource, Source};

/// The input of a command.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Input {
    /// A run.
    Run(PathBuf),
    /// Traces: files, or directories of them.
    Traces(Vec<PathBuf>),
}

/// Formats that are recognised by name but not read, each with an alternative.
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

/// Decides by the content of the paths: a directory with a manifest is a run.
///
/// # Errors
/// [`Error::NoInput`] or [`Error::UnreadFormat`]; their messages name a way out.
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
            Some(run) => Err(no_input(run, "it is a run, and a run is analyzed alone; give no other paths".into())),
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

/// Whether a file is a SQLite database. Its content decides, because exports get renamed. A file that cannot be opened
/// is reported by its reader later.
fn is_sqlite(path: &Path) -> bool {
    let mut head = [0_u8; 16];
    path.is_file() && File::open(path).and_then(|mut f| f.read_exact(&mut head)).is_ok() && head == SQLITE_MAGIC
}

/// Whether the name or the first bytes look like a trace: JSON or gzip. The reader checks the content later.
fn is_trace(path: &Path) -> bool {
    let name = path.to_string_lossy();
    let mut head = [0_u8; 2];
    let mut starts = || {
        File::open(path).and_then(|mut f| f.read_exact(&mut head)).is_ok()
            && matches!(head, [b'{' | b'[', _] | [0x1f, 0x8b])
    };
    name.ends_with(".json") || name.ends_with(".json.gz") || starts()
}

/// Checks that a path is a trace, or a directory with at least one trace. For directories without a trace, the error
/// distinguishes shards without a manifest from formats that are not read.
fn check_traces(path: &Path) -> Result<(), Error> {
    if !path.is_dir() {
        let why = "it is neither a run (a directory with run.json) nor a trace (.json, .json.gz)";
        return if is_trace(path) { Ok(()) } else { Err(no_input(path, why.into())) };
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

/// Opens a run or traces as a source of ranks.
pub(super) fn open(paths: Vec<PathBuf>) -> Result<Box<dyn Source>, Error> {
    source_of(resolve(paths)?)
}

/// Opens a resolved input.
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
    fn the_content_of_a_path_decides() {
        assert_eq!(resolved(&[("run.json", b"{}")], ""), "run");
        assert_eq!(resolved(&[("run.json", b"{}")], "run.json"), "run");
        assert_eq!(resolved(&[("rank0.json.gz", b"")], ""), "traces");
        assert_eq!(resolved(&[("rank0.json", b"")], "rank0.json"), "traces");
    }

    #[test]
    fn errors_name_a_way_out() {
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
