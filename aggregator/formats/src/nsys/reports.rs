//! Reports of Nsight Systems (`.nsys-rep`) and their exports. Only its own program reads reports, so it exports them.

use std::collections::BTreeSet;
use std::io;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use model::Error;
use tempfile::TempDir;
use trace::place;
use trace::{OmissionRow, Text};

use crate::paths::is_directory;

/// The program; it must be on the PATH.
const NSYS: &str = "nsys";
/// Characters of its message that are repeated.
const MAX_SHOWN: usize = 200;

/// How a report becomes a file that is read.
const EXPORT: &str =
    "`nsys` is not on the PATH; write it as SQLite where it is: `nsys export --type sqlite FILE.nsys-rep`";

/// Whether a file has the name of a report.
pub(crate) fn is_report(path: &Path) -> bool {
    path.extension().is_some_and(|ending| ending.eq_ignore_ascii_case("nsys-rep")) && !place::is_url(path)
}

/// The path of a report or of an export without its ending.
fn recording(path: &Path) -> PathBuf {
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    match ["_pqtdir", "_arwdir"].iter().find_map(|ending| name.strip_suffix(ending)) {
        Some(stem) => path.with_file_name(stem),
        None => path.with_extension(""),
    }
}

/// Leaves out further exports of one recording, and reports that were exported. Returns the exports that are left out. Of two exports, the
/// one in SQLite is read.
///
/// # Errors
/// [`Error::Io`].
pub(crate) fn drop_repeated(exports: &mut Vec<PathBuf>, reports: &mut Vec<PathBuf>) -> Result<Vec<PathBuf>, Error> {
    let (mut directories, mut files) = (Vec::new(), Vec::new());
    for file in exports.drain(..) {
        if is_directory(&file)? { &mut directories } else { &mut files }.push(file);
    }
    let mut exported: BTreeSet<PathBuf> = files.iter().map(|file| recording(file)).collect();
    *exports = files;
    let mut repeated = Vec::new();
    for directory in directories {
        let is_first = exported.insert(recording(&directory));
        if is_first { &mut *exports } else { &mut repeated }.push(directory);
    }
    reports.retain(|report| !exported.contains(&recording(report)));
    Ok(repeated)
}

/// Whether the program is there.
pub(crate) fn is_installed() -> bool {
    let mut version = Command::new(NSYS);
    version.arg("--version").stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    version.status().is_ok_and(|status| status.success())
}

/// That reports are left out, where the program is not there.
pub(crate) fn left_out(reports: &[PathBuf]) -> impl Iterator<Item = OmissionRow> {
    let text = |path: &PathBuf| Text::from(path.to_string_lossy());
    reports.iter().map(move |path| OmissionRow::left_out("report of Nsight Systems", EXPORT).file(text(path)))
}

/// Exports of reports.
pub(crate) struct Converted {
    /// The exports, in a directory that is removed with them.
    pub(crate) files: Vec<PathBuf>,
    pub(crate) directory: TempDir,
    /// A remark about each report: that it was exported, or why it was not.
    pub(crate) remarks: Vec<OmissionRow>,
}

/// Exports reports to a temporary directory.
///
/// # Errors
/// The error of the file system.
pub(crate) fn export(reports: &[PathBuf]) -> io::Result<Converted> {
    let directory = TempDir::with_prefix("rankscope-nsys-")?;
    let (mut files, mut remarks) = (Vec::new(), Vec::new());
    for (at, report) in reports.iter().enumerate() {
        // The name may state the rank, and reports of different directories may have one name.
        let folder = directory.path().join(at.to_string());
        std::fs::create_dir(&folder)?;
        let file = folder.join(report.file_name().unwrap_or_default()).with_extension("sqlite");
        // The payloads of NCCL's calls are blobs. Older releases know no such option.
        let done = run(report, &file, &["--include-blobs=true"]).or_else(|_| run(report, &file, &[]));
        let shown = Text::from(report.to_string_lossy());
        match done {
            Ok(()) => {
                remarks.push(
                    OmissionRow::note("report of Nsight Systems", "`nsys export` wrote it as SQLite").file(shown),
                );
                files.push(file);
            }
            Err(why) => remarks.push(OmissionRow::lost("report of Nsight Systems", why).file(shown)),
        }
    }
    Ok(Converted { files, directory, remarks })
}

/// Runs the program for one report. Returns the reason why there is no export.
fn run(report: &Path, file: &Path, more: &[&str]) -> Result<(), String> {
    let mut command = Command::new(NSYS);
    command.args(["export", "--type=sqlite", "--force-overwrite=true"]).args(more).arg("--output").arg(file);
    let output = command.arg(report).stdin(Stdio::null()).output().map_err(|error| format!("`{NSYS}`: {error}"))?;
    if output.status.success() && file.is_file() {
        return Ok(());
    }
    let said = [output.stderr, output.stdout].concat();
    let said = String::from_utf8_lossy(&said);
    let line = said.lines().map(str::trim).find(|line| !line.is_empty()).unwrap_or("it wrote no file");
    let line: String = line.chars().take(MAX_SHOWN).collect();
    Err(format!("`{NSYS} export` ended with {}: {line}", output.status))
}
