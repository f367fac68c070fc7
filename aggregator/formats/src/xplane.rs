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
mod work;

use std::path::PathBuf;

use trace::OmissionRow;

use crate::format::{Beside, Format, Head};
use crate::memory::{max_memory_bytes, share};
use crate::shared_file::LastFile;
use crate::xplane::devices::Claimed;
use crate::xplane::load::Job;
use crate::xplane::profile::Content;
use model::Error;
use model::RankData;
use model::source::{RankFile, Source, SourceInfo};

/// The format.
pub(crate) const FORMAT: Format = Format {
    name: "a profile of XLA (XPlane)",
    files: "profiles of XLA (XPlane)",
    instead: "`rankscope analyze` reads it",
    recognise,
    open: |paths, beside| Ok(Box::new(XplaneSource::open_beside(paths, beside)?)),
    is_table: Format::NO_TABLES,
    is_twin,
};

/// How the names of planes begin.
const PLANES: [&str; 5] = ["/host:", "/device:", "/virtualdevice:", "Task Environment", "#Chip"];

/// By the name, so that a damaged profile is reported as damaged, or by the first bytes: the length of a plane, perhaps its id, and a name
/// that planes have.
fn recognise(head: &Head<'_>) -> bool {
    let varint = |bytes: &[u8]| bytes.iter().take(10).position(|byte| byte & 0x80 == 0).map(|at| at + 1);
    let after = |bytes: &[u8], tag: u8| {
        let rest = bytes.strip_prefix(&[tag])?;
        Some(varint(rest)?).and_then(|end| rest.get(end..)).map(<[u8]>::to_vec)
    };
    let name_of_plane = || {
        let plane = after(head.bytes, 0x0a)?;
        let plane = if plane.starts_with(&[0x08]) { after(&plane, 0x08)? } else { plane };
        after(&plane, 0x12)
    };
    let is_plane = |name: Vec<u8>| PLANES.iter().any(|plane| name.starts_with(plane.as_bytes()));
    head.name.ends_with(".xplane.pb") || name_of_plane().is_some_and(is_plane)
}

/// JAX and XProf write a profile once more: `host.trace.json.gz`, `perfetto_trace.json.gz`, `host.memory_profile.json.gz`.
fn is_twin(name: &str) -> bool {
    let name = name.strip_suffix(".gz").unwrap_or(name);
    name.ends_with(".trace.json") || name.ends_with("memory_profile.json") || name == "perfetto_trace.json"
}

/// The devices of one job, in the profiles of one host or of several.
#[derive(Clone, Debug)]
pub struct XplaneSource {
    path: PathBuf,
    /// By rank.
    claimed: Vec<Claimed>,
    problems: Vec<OmissionRow>,
    max_file_bytes: u64,
    max_rows_bytes: u64,
    last: LastFile<Content>,
}

impl XplaneSource {
    /// Finds the devices of profiles and numbers them.
    ///
    /// # Errors
    /// [`Error::NoInput`] or [`Error::Io`] if no file can be read, or none has an event.
    pub fn open(paths: &[PathBuf]) -> Result<Self, Error> {
        Self::open_beside(paths, &Beside::alone())
    }

    /// As [`open`](Self::open), as a part of a job.
    ///
    /// # Errors
    /// As [`open`](Self::open); [`Error::Option`] if there is no recording of the chosen number.
    pub(crate) fn open_beside(paths: &[PathBuf], beside: &Beside<'_>) -> Result<Self, Error> {
        let all = max_memory_bytes(beside.options.max_memory_bytes);
        let found = devices::ranks(paths, all, beside)?;
        let at_once = share(Some(all), found.ranks.len()).ranks_at_once;
        let largest = found.ranks.iter().map(|claimed| claimed.profile.size_bytes).max().unwrap_or(0);
        Ok(Self {
            path: paths.first().cloned().unwrap_or_default(),
            claimed: found.ranks,
            problems: found.problems,
            max_file_bytes: all,
            max_rows_bytes: all.saturating_sub(largest) / at_once,
            last: LastFile::default(),
        })
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

    fn files(&self) -> Result<Vec<RankFile>, Error> {
        self.claimed.iter().map(|claimed| RankFile::of(claimed.rank, &claimed.profile.path)).collect()
    }

    fn problems(&self) -> Vec<OmissionRow> {
        self.problems.clone()
    }

    fn load(&self, rank: i32) -> Result<RankData, Error> {
        let none = || Error::NoRank { path: self.path.clone(), why: format!("there is no device of rank {rank}") };
        let at = self.claimed.binary_search_by_key(&rank, |claimed| claimed.rank).map_err(|_| none())?;
        let (max_file_bytes, max_rows_bytes, last) = (self.max_file_bytes, self.max_rows_bytes, self.last.clone());
        let job = Job { ranks: self.ranks(), max_file_bytes, max_rows_bytes, last };
        load::load(&self.claimed[at], &job)
    }

    fn lacks(&self) -> &'static [&'static str] {
        &["shapes and FLOPs of operators", "stacks and modules", "allocations of memory", "numbers of collectives"]
    }
}
