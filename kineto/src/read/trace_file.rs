//! A file of a rank and window.

use std::path::PathBuf;
use std::sync::Arc;

use trace::Text;

use crate::bytes::memory::MemoryShare;

/// Files that are named in one line.
const LISTED: usize = 5;

/// The source of a rank's number, best first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum RankSource {
    /// `distributedInfo` in the file.
    DistributedInfo,
    /// The file's name, or the name of a directory around it.
    FileName,
    /// The names of the processes in a file of many ranks.
    ProcessNames,
    /// The order of the files' names.
    Order,
}

impl RankSource {
    pub(crate) fn remark(self, rank: i32) -> String {
        match self {
            Self::DistributedInfo => format!("rank {rank} by distributedInfo"),
            Self::FileName => format!("rank {rank} by the file's name: the trace does not name its rank"),
            Self::ProcessNames => format!("rank {rank} by the names of its processes: the file holds several ranks"),
            Self::Order => {
                format!("rank {rank} by the order of the files: neither the trace nor the file's name has its rank")
            }
        }
    }
}

/// A trace of one rank, or of one window of a rank.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TraceFile {
    /// The file.
    pub path: PathBuf,
    /// Its name in messages.
    pub name: Text,
    /// Its rank.
    pub rank: i32,
    /// Its places in the job's parallelism, as its name or those of its processes say them: `DP 0, TP 1`.
    pub roles: Option<Text>,
    /// The source of that number.
    pub rank_source: RankSource,
    /// Ranks in its job, if the file has their number.
    pub world_size: Option<i32>,
    /// Its size on disk.
    pub size_bytes: u64,
    /// Its window; `None` if all files are of one window.
    pub window: Option<Window>,
    /// Its replica of the job; `None` if the job has one.
    pub replica: Option<Replica>,
    /// The memory that the rows of its rank may take.
    pub memory: MemoryShare,
    /// A dump of torch's Flight Recorder of its rank, if one lies in its directory.
    pub flight_recorder: Option<PathBuf>,
    /// The processes of its rank, by the numbers that stand for them here; `None` if the file is of one rank.
    pub processes: Option<Arc<[i64]>>,
}

/// A window of the profiler, and the numbers of its steps.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Window {
    /// Its number, from 1.
    pub number: i32,
    /// This is added to the numbers of its steps, because an earlier window has the same numbers.
    pub step_shift: i32,
    /// The step that the whole window is, if no rank marks steps in it.
    pub as_step: Option<i32>,
}

/// A replica of a job whose processes count their ranks from 0 in each replica.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Replica {
    /// This is added to the ranks in the file.
    pub first_rank: i32,
    /// Ranks in all replicas.
    pub world_size: i32,
}

/// Which windows are wanted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum WindowChoice {
    /// All windows.
    #[default]
    All,
    /// The last window.
    Last,
    /// The window with this number, from 1.
    Number(i32),
}

/// The first names, and the number of the others.
pub(crate) fn listed(names: &[Text]) -> String {
    let mut text = names.iter().take(LISTED).map(|name| &**name).collect::<Vec<_>>().join(", ");
    if names.len() > LISTED {
        text.push_str(&format!(" and {} more", names.len() - LISTED));
    }
    text
}
