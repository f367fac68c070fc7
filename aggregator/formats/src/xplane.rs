//! Profiles of XLA (`*.xplane.pb`, of JAX, TensorFlow and PyTorch/XLA) as a source of ranks: each device that did anything is a rank.
//!
//! ```text
//!  time of an event = start of the recording (UTC) + timestamp_ns of its line + offset_ps
//! ```
//!
//! A file is one host with all its devices. It is read wholly, because what names the rows of a plane follows them; ranks of one file share
//! its bytes. Whatever is damaged is lost by itself, with its byte: an event, a line or a plane.

mod collectives;
mod devices;
mod hlo;
mod host;
mod load;
mod profile;
mod space;
mod stats;
mod wire;
mod work;

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use kineto::PlanOptions;
use trace::OmissionRow;

use crate::memory::default_max_memory_bytes;
use crate::run_source::check_any_source;
use crate::xplane::devices::Claimed;
use crate::xplane::load::Job;
use model::Error;
use model::RankData;
use model::source::{Source, SourceInfo};

/// The devices of one job, in the profiles of one host or of several.
#[derive(Clone, Debug)]
pub struct XplaneSource {
    path: PathBuf,
    /// By rank.
    claimed: Vec<Claimed>,
    problems: Vec<OmissionRow>,
    max_file_bytes: u64,
    max_rows_bytes: u64,
}

impl XplaneSource {
    /// Finds the devices of profiles and numbers them.
    ///
    /// # Errors
    /// [`Error::NoInput`] or [`Error::Io`] if no file can be read, or none has an event.
    pub fn open(paths: &[PathBuf]) -> Result<Self, Error> {
        Self::open_beside(paths, PlanOptions::default(), &BTreeSet::new())
    }

    /// As [`open`](Self::open), with options: a limit of memory (`None`: three quarters of the machine's), and which of several recordings of
    /// a host is read. No device gets a rank that is `taken`.
    ///
    /// # Errors
    /// As [`open`](Self::open); [`Error::Option`] if there is no recording of the chosen number.
    pub(crate) fn open_beside(paths: &[PathBuf], options: PlanOptions, taken: &BTreeSet<i32>) -> Result<Self, Error> {
        let all = options.max_memory_bytes.unwrap_or_else(default_max_memory_bytes);
        let found = devices::ranks(paths, all, options, |rank| taken.contains(&rank))?;
        let at_once = rayon::current_num_threads().min(found.ranks.len()).max(1) as u64;
        let largest = found.ranks.iter().map(|claimed| claimed.profile.size_bytes).max().unwrap_or(0);
        Ok(Self {
            path: paths.first().cloned().unwrap_or_default(),
            claimed: found.ranks,
            problems: found.problems,
            max_file_bytes: all,
            max_rows_bytes: all.saturating_sub(largest) / at_once,
        })
    }

    /// The file of each rank.
    pub(crate) fn files(&self) -> impl Iterator<Item = (i32, &Path)> {
        self.claimed.iter().map(|claimed| (claimed.rank, claimed.profile.path.as_path()))
    }
}

impl Source for XplaneSource {
    fn info(&self) -> SourceInfo {
        SourceInfo {
            path: self.path.clone(),
            tool: "XLA's profiler".into(),
            created_utc_ns: self.claimed.iter().filter_map(|claimed| claimed.profile.clock.start_ns).min(),
            ..SourceInfo::default()
        }
    }

    fn ranks(&self) -> Vec<i32> {
        self.claimed.iter().map(|claimed| claimed.rank).collect()
    }

    fn problems(&self) -> Vec<OmissionRow> {
        self.problems.clone()
    }

    fn load(&self, rank: i32) -> Result<RankData, Error> {
        let none = || Error::NoRank { path: self.path.clone(), why: format!("there is no device of rank {rank}") };
        let at = self.claimed.binary_search_by_key(&rank, |claimed| claimed.rank).map_err(|_| none())?;
        let job = Job { ranks: self.ranks(), max_file_bytes: self.max_file_bytes, max_rows_bytes: self.max_rows_bytes };
        load::load(&self.claimed[at], &job)
    }

    fn lacks(&self) -> &'static [&'static str] {
        &["shapes and FLOPs of operators", "stacks and modules", "allocations of memory", "numbers of collectives"]
    }
}

/// For fuzzing: reads a file of any bytes. Panics if a rank is not the same twice, or if its columns differ in length or are not in the
/// order of time.
pub fn check_any_profile(path: &Path) {
    if let Ok(source) = XplaneSource::open(&[path.to_path_buf()]) {
        check_any_source(&source);
    }
}
