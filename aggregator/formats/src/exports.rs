//! Finds exports of Nsight Systems, profiles of XLA, dumps of NCCL's Inspector and JSON of rocprofv3 among paths, by the content of
//! files.

use std::collections::BTreeSet;
use std::io::Read;
use std::path::{Path, PathBuf};

use kineto::{HEAD_BYTES, PlanOptions, is_compressed, is_inspector, is_rocprof, is_sqlite, is_xplane};
use tempfile::TempDir;
use trace::place::{self, Entry};
use trace::{OmissionRow, Text};

use crate::inspector;
use crate::mixed::{JobFiles, MixedSource};
use crate::nsys;
use crate::nsys_export::{self, Converted};
use crate::paths::{is_directory, is_run};
use model::Error;

/// Directories inside directories that are searched, and files that are looked at: as for traces.
const MAX_DEPTH: usize = 8;
const MAX_FILES: usize = 1 << 16;
/// How a report becomes a file that is read.
const EXPORT: &str =
    "`nsys` is not on the PATH; write it as SQLite where it is: `nsys export --type sqlite FILE.nsys-rep`";

/// The exports and profiles that paths lead to, and what lies beside them.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Exports {
    /// Exports of Nsight Systems: files of SQLite, and directories of Parquet or Arrow files.
    pub files: Vec<PathBuf>,
    /// Profiles of XLA.
    pub profiles: Vec<PathBuf>,
    /// Dumps of NCCL's Inspector.
    pub dumps: Vec<PathBuf>,
    /// JSON of rocprofv3.
    pub records: Vec<PathBuf>,
    /// The paths that may have traces of torch.profiler.
    pub traces: Vec<PathBuf>,
    /// Reports of Nsight Systems without an export.
    pub reports: Vec<PathBuf>,
    /// Whether the program that exports reports is installed. It is looked for only if there are reports.
    can_export: bool,
    /// Exports that repeat the recording of another export, which is read.
    repeated: Vec<PathBuf>,
    /// Files that XLA's tools write beside a profile. They repeat its recording.
    twins: Vec<PathBuf>,
    /// Files and directories that could not be looked at, with the reasons.
    unreadable: Vec<(PathBuf, String)>,
}

/// The kinds of files.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    Export,
    Profile,
    Dump,
    Records,
    Other,
}

/// Finds the kind of a file by its first bytes. Objects in a store and standard input are looked at by their names only, because SQLite reads
/// files of this machine.
fn kind(path: &Path) -> Result<Kind, Error> {
    let name = path.to_string_lossy();
    let is_here = !place::is_url(path) && path.as_os_str() != "-";
    let head = if is_here { place::first_bytes(path, HEAD_BYTES) } else { Ok(Vec::new()) };
    let head = head.map_err(|source| Error::Io { path: path.into(), source })?;
    if is_sqlite(&head) {
        return Ok(Kind::Export);
    }
    if head.starts_with(b"PAR1") && inspector::is_table(path) {
        return Ok(Kind::Dump);
    }
    if is_xplane(&name, &head) {
        return Ok(Kind::Profile);
    }
    // The text of a compressed file decides. The reader of traces reports a damaged one.
    let text = if is_compressed(&head) { first_text(path).unwrap_or_default() } else { head };
    Ok(match () {
        () if is_inspector(&text) => Kind::Dump,
        () if is_rocprof(&text) => Kind::Records,
        () => Kind::Other,
    })
}

fn first_text(path: &Path) -> std::io::Result<Vec<u8>> {
    let mut text = Vec::new();
    kineto::open_text(path)?.take(HEAD_BYTES).read_to_end(&mut text)?;
    Ok(text)
}

impl Exports {
    /// Finds the exports and profiles. Without any, all paths may have traces.
    ///
    /// # Errors
    /// [`Error::Io`]; [`Error::NoInput`] for more files than are looked at.
    pub fn find(paths: &[PathBuf]) -> Result<Self, Error> {
        let mut found = Self::default();
        let mut searched = BTreeSet::new();
        for path in paths {
            if is_report(path) {
                found.reports.push(path.clone());
            } else if place::is_url(path) || !is_directory(path)? {
                match kind(path)? {
                    Kind::Export => &mut found.files,
                    Kind::Profile => &mut found.profiles,
                    Kind::Dump => &mut found.dumps,
                    Kind::Records => &mut found.records,
                    Kind::Other => &mut found.traces,
                }
                .push(path.clone());
            } else if found.search(path, 0, &mut searched)? {
                found.traces.push(path.clone());
            }
        }
        if [&found.files, &found.profiles, &found.dumps, &found.records].iter().any(|files| files.len() > MAX_FILES) {
            let why = format!("there are more than {MAX_FILES} files of one format");
            return Err(Error::NoInput { path: paths.first().cloned().unwrap_or_default(), why });
        }
        found.drop_repeated()?;
        found.can_export = !found.reports.is_empty() && nsys_export::is_installed();
        if found.is_empty() {
            found.traces = paths.to_vec();
        }
        for files in [&mut found.files, &mut found.profiles, &mut found.dumps, &mut found.records] {
            files.sort();
            files.dedup();
        }
        Ok(found)
    }

    /// Leaves out reports that were exported, and further exports of one recording.
    fn drop_repeated(&mut self) -> Result<(), Error> {
        let (mut directories, mut files) = (Vec::new(), Vec::new());
        for file in self.files.drain(..) {
            if is_directory(&file)? { &mut directories } else { &mut files }.push(file);
        }
        let mut exported: BTreeSet<PathBuf> = files.iter().map(|file| recording(file)).collect();
        self.files = files;
        for directory in directories {
            let is_first = exported.insert(recording(&directory));
            if is_first { &mut self.files } else { &mut self.repeated }.push(directory);
        }
        self.reports.retain(|report| !exported.contains(&recording(report)));
        Ok(())
    }

    /// Whether there is no export, no profile and no other recording. Reports count where they can be exported.
    pub fn is_empty(&self) -> bool {
        let lists = [&self.files, &self.profiles, &self.dumps, &self.records];
        lists.iter().all(|files| files.is_empty()) && !self.can_export
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
        let (mut has_traces, mut has_profile) = (false, false);
        let mut twins = Vec::new();
        for Entry { path, is_directory } in place::entries(directory).map_err(io)? {
            let name = path.file_name().unwrap_or_default().to_string_lossy().to_ascii_lowercase();
            if name.starts_with('.') {
                continue;
            }
            if is_directory {
                let inside = match is_run(&path) {
                    // A run is analyzed alone.
                    Ok(true) => continue,
                    Ok(false) => self.search(&path, depth + 1, searched),
                    Err(error) => Err(error),
                };
                match inside {
                    Ok(found) => has_traces |= found,
                    Err(error) => self.unreadable.push((path, error.to_string())),
                }
            } else if nsys::marks_export(&path) {
                self.files.push(directory.into());
            } else if is_report(&path) {
                self.reports.push(path);
            } else {
                match kind(&path) {
                    Ok(Kind::Export) => self.files.push(path),
                    Ok(Kind::Profile) => {
                        has_profile = true;
                        self.profiles.push(path);
                    }
                    Ok(Kind::Dump) => self.dumps.push(path),
                    Ok(Kind::Records) => self.records.push(path),
                    Ok(Kind::Other) if is_twin(&name) => twins.push(path),
                    Ok(Kind::Other) => has_traces |= may_have_traces(&name),
                    Err(error) => self.unreadable.push((path, error.to_string())),
                }
            }
        }
        if has_profile {
            self.twins.append(&mut twins);
        }
        Ok(has_traces || !twins.is_empty())
    }

    /// Opens the exports and profiles, with the traces beside them.
    ///
    /// # Errors
    /// As [`MixedSource::open`].
    pub fn open(&self, options: PlanOptions) -> Result<MixedSource, Error> {
        let shown = |path: &Path| Text::from(path.to_string_lossy());
        let repeated = |path: &PathBuf| {
            OmissionRow::note("export of Nsight Systems", "another export of the same recording is read")
                .file(shown(path))
        };
        let twin = |path: &PathBuf| {
            OmissionRow::note("file", "it is made of the profile of XLA beside it, which is read").file(shown(path))
        };
        let unread = |(path, why): &(PathBuf, String)| OmissionRow::lost("file", why.as_str()).file(shown(path));
        let remarks = self.twins.iter().map(twin).chain(self.repeated.iter().map(repeated));
        let mut remarks: Vec<OmissionRow> = remarks.chain(self.unreadable.iter().map(unread)).collect();
        let (converted, directory) = self.converted(&mut remarks)?;
        let Self { files, profiles, dumps, records, traces, .. } = self;
        let exports = [&files[..], &converted].concat();
        let files = JobFiles { exports: &exports, profiles, dumps, records, traces };
        let source = MixedSource::open(files, remarks, options)?;
        Ok(source.with_directory(directory))
    }

    /// Exports the reports. Without the program for it, they are left out.
    fn converted(&self, remarks: &mut Vec<OmissionRow>) -> Result<(Vec<PathBuf>, Option<TempDir>), Error> {
        if !self.can_export {
            let report = |path: &PathBuf| {
                OmissionRow::left_out("report of Nsight Systems", EXPORT).file(Text::from(path.to_string_lossy()))
            };
            remarks.extend(self.reports.iter().map(report));
            return Ok((Vec::new(), None));
        }
        let path = std::env::temp_dir();
        let Converted { files, directory, remarks: said } =
            nsys_export::export(&self.reports).map_err(|source| Error::Io { path, source })?;
        let lists = [&files, &self.files, &self.profiles, &self.dumps, &self.records, &self.traces];
        if let (true, Some(first)) = (lists.iter().all(|files| files.is_empty()), said.first()) {
            let why = format!("it cannot be exported: {}", first.why);
            return Err(Error::NoInput { path: self.reports.first().cloned().unwrap_or_default(), why });
        }
        remarks.extend(said);
        Ok((files, Some(directory)))
    }
}

/// The path of a report or of an export without its ending.
fn recording(path: &Path) -> PathBuf {
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    match ["_pqtdir", "_arwdir"].iter().find_map(|ending| name.strip_suffix(ending)) {
        Some(stem) => path.with_file_name(stem),
        None => path.with_extension(""),
    }
}

/// Whether a file has the name of a report of Nsight Systems.
fn is_report(path: &Path) -> bool {
    path.extension().is_some_and(|ending| ending.eq_ignore_ascii_case("nsys-rep")) && !place::is_url(path)
}

/// Whether a file has the name of a trace or of an archive.
fn may_have_traces(name: &str) -> bool {
    name.contains(".json") || [".zip", ".tar", ".gz", ".tgz", ".zst"].iter().any(|end| name.ends_with(end))
}

/// Whether a file has a name by which JAX and XProf write a profile once more: `host.trace.json.gz`, `perfetto_trace.json.gz`,
/// `host.memory_profile.json.gz`.
fn is_twin(name: &str) -> bool {
    let name = name.strip_suffix(".gz").unwrap_or(name);
    name.ends_with(".trace.json") || name.ends_with("memory_profile.json") || name == "perfetto_trace.json"
}
