//! One rank after the map: small enough to hold for every rank of a large run.

use std::collections::BTreeMap;
use std::sync::Arc;

use trace::{BucketRow, CounterRow, DeviceRow, OmissionRow, RecurringRangeRow, Tables};

use crate::communication::CommunicationEvidence;
use crate::overhead::StepOverhead;
use crate::own_time::{OwnTime, PathWork};
use model::RankOutline;
use model::selection::Held;

/// A rank after the map: its collectives, its steps and sums over its rows. Times are in the rank's clock.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct RankPart {
    /// Collectives, steps and the recorded span.
    pub outline: RankOutline,
    /// Number of rows of `events` that were read.
    pub rows: u64,
    /// Numbers of all active steps, ascending, including steps that are not selected.
    pub recorded_steps: Vec<i32>,
    /// Whether the selected time has a part of the recording.
    pub has_selected_time: bool,
    /// Whether it marks steps. Else its whole recording is one.
    pub has_marked_steps: bool,
    /// Gradient buckets.
    pub buckets: Vec<BucketRow>,
    /// Devices.
    pub devices: Vec<DeviceRow>,
    /// Counters of its recorder.
    pub counters: Vec<CounterRow>,
    /// The rows of the analysis tables that one rank alone decides, and its omissions. Rows of operators and kernels are
    /// not yet compared with those of other ranks. `None` if the reduction reads them later.
    pub tables: Option<Box<Tables>>,
    /// Work of the profiler and of the driver in each active step.
    pub overhead: BTreeMap<i32, StepOverhead>,
    /// How its communication was recognised.
    pub communication: CommunicationEvidence,
    /// Ranges that may be its steps; none if it has marked steps.
    pub recurring: Vec<RecurringRangeRow>,
    /// Own work between collectives, by position in the program. `None` if the reduction reads it later.
    pub straggler: Option<Box<OwnTime>>,
}

impl RankPart {
    /// The part of the selection that the rank recorded.
    pub fn held(&self) -> Held<'_> {
        Held { recorded_steps: &self.recorded_steps, has_time: self.has_selected_time }
    }
}

/// The data of all ranks that the reduction reads after it aligned their collectives. Before, this data may be on disk, or in other
/// processes.
pub trait Waiting {
    /// The own time of all ranks, in any order. May add to the omissions, and is called once.
    fn own_time(&mut self, omissions: &mut Vec<OmissionRow>) -> Vec<OwnTime>;
    /// Reads the work of ranks on the critical path of the job; `None` if their own time has it.
    fn on_paths(&self) -> Option<&dyn OnPaths>;
    /// Of the tables that one rank alone decides and that are not in the parts, those that are wanted, in the order of ranks. May
    /// add to the omissions, and is called once for each table.
    fn tables(&mut self, is_wanted: &dyn Fn(&str) -> bool, omissions: &mut Vec<OmissionRow>) -> Tables;
}

/// Reads the work of ranks on the critical path of the job, rank by rank: that of all ranks takes much memory.
pub trait OnPaths {
    /// The work of the rank of this own time.
    fn of(&self, own_time: &OwnTime) -> Arc<PathWork>;
}

/// The own time of ranks in memory. Their tables are in memory too.
pub struct InMemory(pub Vec<OwnTime>);

impl Waiting for InMemory {
    fn own_time(&mut self, _: &mut Vec<OmissionRow>) -> Vec<OwnTime> {
        std::mem::take(&mut self.0)
    }

    fn on_paths(&self) -> Option<&dyn OnPaths> {
        None
    }

    fn tables(&mut self, _: &dyn Fn(&str) -> bool, _: &mut Vec<OmissionRow>) -> Tables {
        Tables::default()
    }
}
