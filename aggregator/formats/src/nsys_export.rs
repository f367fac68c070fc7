//! Exports reports of Nsight Systems (`.nsys-rep`) by its own program, because nothing else can read them.

use std::io;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use tempfile::TempDir;
use trace::{OmissionRow, Text};

/// The program; it must be on the PATH.
const NSYS: &str = "nsys";
/// Characters of its message that are repeated.
const MAX_SHOWN: usize = 200;

/// Whether the program is there.
pub(super) fn is_installed() -> bool {
    let mut version = Command::new(NSYS);
    version.arg("--version").stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    version.status().is_ok_and(|status| status.success())
}

/// Exports of reports.
pub(super) struct Converted {
    /// The exports, in a directory that is removed with them.
    pub(super) files: Vec<PathBuf>,
    pub(super) directory: TempDir,
    /// A remark about each report: that it was exported, or why it was not.
    pub(super) remarks: Vec<OmissionRow>,
}

/// Exports reports to a temporary directory.
///
/// # Errors
/// The error of the file system.
pub(super) fn export(reports: &[PathBuf]) -> io::Result<Converted> {
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
