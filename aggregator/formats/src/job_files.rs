//! The files of a job, by format: found among paths by their content, and opened together.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use model::Error;
use model::source::Source;
use tempfile::TempDir;
use trace::place::{self, Entry, Search, Step};
use trace::{OmissionRow, Text};

use crate::format::{Format, OpenOptions};
use crate::kineto::KinetoSource;
use crate::mixed::MixedSource;
use crate::nsys;
use crate::nsys::reports::{self, Converted};
use crate::paths::{is_directory, is_run};
use crate::registry::{FORMATS, format_of};
use crate::snapshot::SnapshotSource;

/// Directories inside directories that are searched, and files that are looked at: as for traces.
const MAX_DEPTH: usize = 8;
const MAX_FILES: usize = 1 << 16;

/// The files of a job.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct JobFiles {
    /// Those of [`FORMATS`], by the name of the format.
    pub(crate) others: BTreeMap<&'static str, Vec<PathBuf>>,
    /// The paths that may have traces of torch.profiler: files, archives, or directories of them.
    pub(crate) traces: Vec<PathBuf>,
    /// Snapshots of torch's allocator, one for each rank. Then there are no other files.
    pub(crate) snapshots: Vec<PathBuf>,
    /// Reports of Nsight Systems without an export.
    pub(crate) reports: Vec<PathBuf>,
    /// Whether the program that exports reports is installed. It is looked for only if there are reports.
    can_export: bool,
    /// Exports of Nsight Systems that repeat the recording of another export, which is read.
    repeated: Vec<PathBuf>,
    /// Files that repeat a recording beside them, which is read.
    twins: Vec<PathBuf>,
    /// Files and directories that could not be looked at, with the reasons.
    unreadable: Vec<(PathBuf, String)>,
    /// Directories that are not searched, with the reasons.
    left_out: Vec<(PathBuf, String)>,
    /// Files that were looked at.
    looked_at: usize,
}

impl JobFiles {
    /// Finds the files of [`FORMATS`]. Without any, all paths may have traces.
    ///
    /// # Errors
    /// [`Error::Io`]; [`Error::NoInput`] for more files than are looked at.
    pub fn find(paths: &[PathBuf]) -> Result<Self, Error> {
        let mut found = Self::default();
        let mut directories = Search::default();
        for path in paths {
            if reports::is_report(path) {
                found.reports.push(path.clone());
            } else if place::is_url(path) || !is_directory(path)? {
                match format_of(path)? {
                    Some(format) => found.files_of(format),
                    None => &mut found.traces,
                }
                .push(path.clone());
            } else {
                let io = |source| Error::Io { path: path.clone(), source };
                if directories.begin(path).map_err(io)? && found.search(path, 0, &mut directories)? {
                    found.traces.push(path.clone());
                }
            }
        }
        if found.others.values().any(|files| files.len() > MAX_FILES) {
            let why = format!("there are more than {MAX_FILES} files of one format");
            return Err(Error::NoInput { path: paths.first().cloned().unwrap_or_default(), why });
        }
        let mut reports = std::mem::take(&mut found.reports);
        found.repeated = reports::drop_repeated(found.files_of(&nsys::FORMAT), &mut reports)?;
        found.reports = reports;
        found.can_export = !found.reports.is_empty() && reports::is_installed();
        for files in found.others.values_mut() {
            files.sort();
            files.dedup();
        }
        if found.only_traces() {
            found.traces = paths.to_vec();
        }
        Ok(found)
    }

    /// The files of a format.
    fn files_of(&mut self, format: &Format) -> &mut Vec<PathBuf> {
        self.others.entry(format.name).or_default()
    }

    /// Whether there are no other files than traces. Reports count where they can be exported.
    pub(crate) fn only_traces(&self) -> bool {
        self.others.values().all(Vec::is_empty) && self.snapshots.is_empty() && !self.can_export
    }

    /// Takes snapshots, if there are any, in place of the traces.
    pub(crate) fn take_snapshots(&mut self, snapshots: Vec<PathBuf>) {
        if !snapshots.is_empty() {
            self.traces.clear();
            self.snapshots = snapshots;
        }
    }

    /// The paths of a job that has traces of torch.profiler only.
    pub fn traces(&self) -> Option<&[PathBuf]> {
        self.only_traces().then_some(&*self.traces)
    }

    /// Counts a file before it is looked at. True if there are too many, which is listed once.
    fn is_full(&mut self, path: &Path) -> bool {
        self.looked_at += 1;
        if self.looked_at == MAX_FILES + 1 {
            let why = format!("there are more than {MAX_FILES} files; from this one on, they are not read");
            self.unreadable.push((path.into(), why));
        }
        self.looked_at > MAX_FILES
    }

    /// As [`search`](Self::search), of a directory in one that is searched.
    fn subdirectory(&mut self, directory: &Path, depth: usize, directories: &mut Search) -> Result<bool, Error> {
        if depth > MAX_DEPTH {
            let why = format!("it lies more than {MAX_DEPTH} directories deep and is not searched; name it");
            self.unreadable.push((directory.into(), why));
            return Ok(false);
        }
        match directories.enter(directory).map_err(|source| Error::Io { path: directory.into(), source })? {
            Step::Search => self.search(directory, depth, directories),
            Step::Seen => Ok(false),
            Step::LeftOut(why) => {
                self.left_out.push((directory.into(), why));
                Ok(false)
            }
        }
    }

    /// Searches a directory. Returns whether something in it may be a trace.
    fn search(&mut self, directory: &Path, depth: usize, directories: &mut Search) -> Result<bool, Error> {
        let io = |source| Error::Io { path: directory.into(), source };
        let mut has_traces = false;
        // The formats of the files here, and the other files whose names repeat a recording of a format.
        let (mut here, mut twins) = (Vec::new(), Vec::new());
        for Entry { path, is_directory } in place::entries(directory).map_err(io)? {
            let name = path.file_name().unwrap_or_default().to_string_lossy().to_ascii_lowercase();
            if name.starts_with('.') {
                continue;
            }
            if !is_directory && self.is_full(&path) {
                break;
            }
            if is_directory {
                let inside = match is_run(&path) {
                    // A run is analyzed alone.
                    Ok(true) => continue,
                    Ok(false) => self.subdirectory(&path, depth + 1, directories),
                    Err(error) => Err(error),
                };
                match inside {
                    Ok(found) => has_traces |= found,
                    Err(error) => self.unreadable.push((path, error.to_string())),
                }
            } else if let Some(format) = FORMATS.iter().find(|format| (format.is_table)(&path)) {
                self.files_of(format).push(directory.into());
            } else if reports::is_report(&path) {
                self.reports.push(path);
            } else {
                match format_of(&path) {
                    Ok(Some(format)) => {
                        here.push(format.name);
                        self.files_of(format).push(path);
                    }
                    Ok(None) => match FORMATS.iter().find(|format| (format.is_twin)(&name)) {
                        Some(format) => twins.push((path, format.name)),
                        None => has_traces |= may_have_traces(&name),
                    },
                    Err(error) => self.unreadable.push((path, error.to_string())),
                }
            }
        }
        let (repeats, others): (Vec<_>, Vec<_>) = twins.into_iter().partition(|(_, format)| here.contains(format));
        self.twins.extend(repeats.into_iter().map(|(path, _)| path));
        Ok(has_traces || !others.is_empty())
    }

    /// Opens the files as one source.
    ///
    /// # Errors
    /// Those of the sources; [`Error::NoInput`] if two formats have one rank, or if there is no file.
    pub fn open(&self, options: OpenOptions) -> Result<Box<dyn Source>, Error> {
        if !self.snapshots.is_empty() {
            return Ok(Box::new(SnapshotSource::open_within(&self.snapshots, options.max_memory_bytes)?));
        }
        if self.only_traces() {
            return Ok(Box::new(KinetoSource::open_with(&self.traces, options)?));
        }
        let mut remarks = self.remarks();
        let (converted, directory) = self.converted(&mut remarks)?;
        let mut others = self.others.clone();
        others.entry(nsys::FORMAT.name).or_default().extend(converted);
        Ok(Box::new(MixedSource::open(&self.traces, &others, remarks, options)?.with_directory(directory)))
    }

    /// The omissions of the search.
    fn remarks(&self) -> Vec<OmissionRow> {
        let shown = |path: &Path| Text::from(path.to_string_lossy());
        let repeated = |path: &PathBuf| {
            OmissionRow::note("export of Nsight Systems", "another export of the same recording is read")
                .file(shown(path))
        };
        let twin = |path: &PathBuf| {
            OmissionRow::note("file", "it is made of the profile of XLA beside it, which is read").file(shown(path))
        };
        let unread = |(path, why): &(PathBuf, String)| OmissionRow::lost("file", why.as_str()).file(shown(path));
        let left_out =
            |(path, why): &(PathBuf, String)| OmissionRow::left_out("directory", why.as_str()).file(shown(path));
        let remarks = self.twins.iter().map(twin).chain(self.repeated.iter().map(repeated));
        remarks.chain(self.unreadable.iter().map(unread)).chain(self.left_out.iter().map(left_out)).collect()
    }

    /// Exports the reports. Without the program for it, they are left out.
    fn converted(&self, remarks: &mut Vec<OmissionRow>) -> Result<(Vec<PathBuf>, Option<TempDir>), Error> {
        if !self.can_export {
            remarks.extend(reports::left_out(&self.reports));
            return Ok((Vec::new(), None));
        }
        let path = std::env::temp_dir();
        let Converted { files, directory, remarks: of_reports } =
            reports::export(&self.reports).map_err(|source| Error::Io { path, source })?;
        let is_empty = files.is_empty() && self.others.values().all(Vec::is_empty) && self.traces.is_empty();
        if let (true, Some(first)) = (is_empty, of_reports.first()) {
            let why = format!("it cannot be exported: {}", first.why);
            return Err(Error::NoInput { path: self.reports.first().cloned().unwrap_or_default(), why });
        }
        remarks.extend(of_reports);
        Ok((files, Some(directory)))
    }
}

/// Whether a file has the name of a trace or of an archive.
fn may_have_traces(name: &str) -> bool {
    name.contains(".json") || [".zip", ".tar", ".gz", ".tgz", ".zst"].iter().any(|end| name.ends_with(end))
}
