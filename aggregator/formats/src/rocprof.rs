//! JSON of rocprofv3 (`rocprofv3 --output-format json`) as a source of ranks: each process with work of a device is a rank.
//!
//! A file has one process or several. Its processes are found when it is opened; each rank then parses its own. Times are those of a steady clock of the host.

mod file;
mod load;
mod parse;

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::sync::Arc;

use trace::{OmissionRow, Text};

use crate::format::{Beside, Format, Head};
use crate::memory::{max_memory_bytes, share};
use crate::ranks::{by_rank, numbered, of_rank};
use crate::rocprof::file::{Claimed, read, unread};
use crate::rocprof::load::STATED_SHARE;
use crate::rocprof::parse::{Parsed, parse};
use crate::shared_file::{LastFile, SharedFile};
use model::Error;
use model::source::{RankFile, Source, SourceInfo};
use model::{MAX_RANKS, RankData};

/// The format.
pub(crate) const FORMAT: Format = Format {
    name: "JSON of rocprofv3",
    files: "JSON of rocprofv3",
    instead: "`rankscope analyze` reads it",
    recognise,
    open: |paths, beside| Ok(Box::new(RocprofSource::open_beside(paths, beside)?)),
    is_table: Format::NO_TABLES,
    is_twin: Format::NO_TWINS,
};

/// A file begins with this member.
fn recognise(head: &Head<'_>) -> bool {
    let mut rest = head.text().trim_ascii_start();
    for part in [&b"{"[..], b"\"rocprofiler-sdk-tool\""] {
        match rest.strip_prefix(part) {
            Some(after) => rest = after.trim_ascii_start(),
            None => return false,
        }
    }
    true
}

/// The processes of one job, in one file or several.
#[derive(Clone, Debug)]
pub struct RocprofSource {
    path: PathBuf,
    /// By rank.
    claimed: Vec<Claimed>,
    problems: Vec<OmissionRow>,
    max_file_bytes: u64,
    max_rows_bytes: u64,
    last: LastFile<Vec<u8>>,
}

impl RocprofSource {
    /// Finds the processes of files and their ranks.
    ///
    /// # Errors
    /// [`Error::NoInput`] or [`Error::Io`] if a file cannot be read, if no process used a device, or if two processes claim one rank.
    pub fn open(paths: &[PathBuf]) -> Result<Self, Error> {
        Self::open_beside(paths, &Beside::alone())
    }

    /// As [`open`](Self::open), as a part of a job.
    ///
    /// # Errors
    /// As [`open`](Self::open).
    pub(crate) fn open_beside(paths: &[PathBuf], beside: &Beside<'_>) -> Result<Self, Error> {
        let all = max_memory_bytes(beside.options.max_memory_bytes);
        let mut problems = Vec::new();
        let mut claimed: Vec<(Option<i32>, Claimed)> = Vec::new();
        for path in paths {
            let bytes = read(path, all)?;
            let mut room =
                share(Some(all.saturating_sub(bytes.len() as u64) / STATED_SHARE), 1).room_of_file("process", 0);
            let Parsed { processes, too_many, end, is_full } = parse(&bytes, &mut room);
            let file = Text::from(path.to_string_lossy());
            let with_work: Vec<usize> = (0..processes.len()).filter(|at| processes[*at].device_records > 0).collect();
            if let Some(why) = end {
                if with_work.is_empty() {
                    return Err(unread(path, why));
                }
                let why = if is_full { why } else { format!("it is damaged: {why}") };
                problems.push(OmissionRow::lost("rest of the file", why).file(file.clone()));
            }
            if too_many > 0 {
                let why = "a file of more processes is read up to there";
                problems.push(OmissionRow::lost("processes", why).file(file.clone()).amount(too_many));
            }
            let others = processes.len() - with_work.len();
            if others > 0 {
                let why = "a process that uses no device is no rank";
                problems.push(OmissionRow::left_out("processes", why).file(file).amount(others as i64));
            }
            let stated = kineto::rank_of_name(&path.to_string_lossy()).filter(|_| with_work.len() == 1);
            let size_bytes = bytes.len() as u64;
            let shared = Arc::new(SharedFile::of(with_work.len()));
            claimed.extend(with_work.into_iter().map(|at| {
                let stated = stated.filter(|rank| (0..MAX_RANKS).contains(rank));
                let (file, shared, text) = (path.clone(), shared.clone(), processes[at].text.clone());
                (stated, Claimed { rank: 0, file, shared, size_bytes, text })
            }));
        }
        if claimed.is_empty() {
            let path = paths.first().cloned().unwrap_or_default();
            return Err(unread(&path, "no process of it has a kernel or a copy"));
        }
        let claimed = number(claimed, beside.taken, &mut problems)?;
        let at_once = share(Some(all), claimed.len()).ranks_at_once;
        let largest = claimed.iter().map(|claimed| claimed.size_bytes).max().unwrap_or(0);
        Ok(Self {
            path: paths.first().cloned().unwrap_or_default(),
            claimed,
            problems,
            max_file_bytes: all,
            last: LastFile::default(),
            // Each rank that is read holds its file.
            max_rows_bytes: (all / at_once).saturating_sub(largest),
        })
    }
}

/// Numbers the processes: as the names of their files state, else by what is left.
fn number(
    claimed: Vec<(Option<i32>, Claimed)>,
    taken: &BTreeSet<i32>,
    problems: &mut Vec<OmissionRow>,
) -> Result<Vec<Claimed>, Error> {
    let guessed = claimed.iter().filter(|(rank, _)| rank.is_none()).count();
    if guessed > 0 && claimed.len() + taken.len() > 1 {
        let why =
            "the names of their files do not state them; processes are numbered in the order of the files and in them";
        problems.push(OmissionRow::note("ranks of processes", why).amount(guessed as i64));
    }
    let (stated, claimed): (Vec<Option<i32>>, Vec<Claimed>) = claimed.into_iter().unzip();
    let ranks = numbered(&stated, taken);
    let claimed = claimed.into_iter().zip(ranks).map(|(claimed, rank)| Claimed { rank, ..claimed });
    by_rank(claimed.collect(), |claimed| claimed.rank, |claimed| &claimed.file)
}

impl Source for RocprofSource {
    fn info(&self) -> SourceInfo {
        SourceInfo { path: self.path.clone(), tool: "rocprofv3".into(), ..SourceInfo::default() }
    }

    fn ranks(&self) -> Vec<i32> {
        self.claimed.iter().map(|claimed| claimed.rank).collect()
    }

    fn files(&self) -> Result<Vec<RankFile>, Error> {
        self.claimed.iter().map(|claimed| RankFile::of(claimed.rank, &claimed.file)).collect()
    }

    fn problems(&self) -> Vec<OmissionRow> {
        self.problems.clone()
    }

    fn load(&self, rank: i32) -> Result<RankData, Error> {
        let claimed = of_rank(&self.claimed, rank, |claimed| claimed.rank, &self.path)?;
        load::load(claimed, &self.last, (self.max_file_bytes, self.max_rows_bytes))
    }

    fn lacks(&self) -> &'static [&'static str] {
        &["shapes and FLOPs of operators", "stacks and modules", "allocations of memory", "numbers of collectives"]
    }
}
