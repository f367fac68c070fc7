//! Finds exports of Nsight Systems among paths, by the content of files.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use kineto::PlanOptions;
use trace::place::{self, Entry};
use trace::{MANIFEST_FILE, OmissionRow, Text};

use crate::Error;
use crate::ingest::mixed::MixedSource;
use crate::ingest::nsys::is_sqlite;

/// Directories inside directories that are searched, and files that are looked at: as for traces.
const MAX_DEPTH: usize = 8;
const MAX_FILES: usize = 1 << 16;
/// How a report becomes a file that is read.
const EXPORT: &str = "write it as SQLite, which is read: `nsys export --type sqlite FILE.nsys-rep`";

/// The exports that paths lead to, and what lies beside them.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Exports {
    /// SQLite files.
    pub(super) files: Vec<PathBuf>,
    /// The paths that may have traces of torch.profiler.
    pub(super) traces: Vec<PathBuf>,
    /// Reports of Nsight Systems, and exports in other formats, without one in SQLite.
    pub(super) reports: Vec<PathBuf>,
    /// Files and directories that could not be looked at, with the reasons.
    unreadable: Vec<(PathBuf, String)>,
}

impl Exports {
    /// Finds the exports. Without any, all paths may have traces.
    ///
    /// # Errors
    /// [`Error::Io`]; [`Error::UnreadFormat`] if there are only exports in Parquet; [`Error::NoInput`] for more files than are looked at.
    pub(super) fn find(paths: &[PathBuf]) -> Result<Self, Error> {
        let mut found = Self::default();
        let mut searched = BTreeSet::new();
        for path in paths {
            // SQLite reads files of this machine only. Standard input is none.
            if place::is_url(path) || !place::is_directory(path) {
                let is_export = !place::is_url(path) && path.as_os_str() != "-" && is_sqlite(path)?;
                if is_export { &mut found.files } else { &mut found.traces }.push(path.clone());
            } else if found.search(path, 0, &mut searched)? {
                found.traces.push(path.clone());
            }
        }
        if found.files.len() > MAX_FILES {
            let why = format!("there are more than {MAX_FILES} exports");
            return Err(Error::NoInput { path: paths.first().cloned().unwrap_or_default(), why });
        }
        if found.files.is_empty() {
            let parquet = found.reports.iter().find(|report| place::is_directory(report));
            if let (Some(path), true) = (parquet, found.traces.is_empty()) {
                let format = "a Parquet export of Nsight Systems";
                return Err(Error::UnreadFormat { path: path.clone(), format, instead: EXPORT });
            }
            found.traces = paths.to_vec();
        }
        found.files.sort();
        found.files.dedup();
        let exported: BTreeSet<PathBuf> = found.files.iter().map(|file| file.with_extension("")).collect();
        found.reports.retain(|report| !exported.contains(&recording(report)));
        Ok(found)
    }

    /// Searches a directory. Returns whether something in it may be a trace.
    fn search(&mut self, directory: &Path, depth: usize, searched: &mut BTreeSet<PathBuf>) -> Result<bool, Error> {
        let io = |source| Error::Io { path: directory.into(), source };
        if depth > MAX_DEPTH {
            let why = format!("it lies more than {MAX_DEPTH} directories deep and is not searched; name it");
            self.unreadable.push((directory.into(), why));
            return Ok(false);
        }
        if !searched.insert(place::canonical(directory).map_err(io)?) {
            return Ok(false);
        }
        let mut has_traces = false;
        for Entry { path, is_directory } in place::entries(directory).map_err(io)? {
            let name = path.file_name().unwrap_or_default().to_string_lossy().to_ascii_lowercase();
            if name.starts_with('.') || is_directory && place::is_file(&path.join(MANIFEST_FILE)) {
                continue;
            }
            let found = match () {
                () if is_directory => self.search(&path, depth + 1, searched),
                () if name == "stringids.parquet" => {
                    self.reports.push(directory.into());
                    Ok(false)
                }
                () if name.ends_with(".nsys-rep") => {
                    self.reports.push(path.clone());
                    Ok(false)
                }
                () => is_sqlite(&path).map(|is_export| {
                    self.files.extend(is_export.then(|| path.clone()));
                    !is_export && may_have_traces(&name)
                }),
            };
            match found {
                Ok(found) => has_traces |= found,
                Err(error) => self.unreadable.push((path, error.to_string())),
            }
        }
        Ok(has_traces)
    }

    /// Opens the exports, with the traces beside them.
    ///
    /// # Errors
    /// As [`MixedSource::open`].
    pub(super) fn open(&self, options: PlanOptions) -> Result<MixedSource, Error> {
        let shown = |path: &Path| Text::from(path.to_string_lossy());
        let report = |path: &PathBuf| OmissionRow::left_out("report of Nsight Systems", EXPORT).file(shown(path));
        let unread = |(path, why): &(PathBuf, String)| OmissionRow::lost("file", why.as_str()).file(shown(path));
        let remarks = self.reports.iter().map(report).chain(self.unreadable.iter().map(unread)).collect();
        MixedSource::open(&self.files, &self.traces, remarks, options)
    }
}

/// The path of a report, or of an export in Parquet, without its ending.
fn recording(report: &Path) -> PathBuf {
    let name = report.file_name().unwrap_or_default().to_string_lossy();
    match name.strip_suffix("_pqtdir") {
        Some(stem) => report.with_file_name(stem),
        None => report.with_extension(""),
    }
}

/// Whether a file has the name of a trace or of an archive.
fn may_have_traces(name: &str) -> bool {
    name.contains(".json") || [".zip", ".tar", ".gz", ".tgz", ".zst"].iter().any(|end| name.ends_with(end))
}
