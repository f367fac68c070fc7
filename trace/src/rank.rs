//! One rank in memory, column by column: the common form of a recorded run and of a trace.

mod collective;
mod communication;
mod events;
pub mod flops;
mod launches;
mod least_bytes;
mod op_details;

use std::collections::BTreeMap;

use rustc_hash::FxHashMap;

use crate::{
    BucketRow, ClockSampleRow, CommRow, CounterRow, DeviceRow, Dtype, FlowRow, MemoryRow, OmissionRow, StepRow, Text,
};

pub use crate::Kind;
pub use collective::{Collective, CollectiveShape, CollectiveShapes};
pub use communication::{BelowOperators, communicates, mark_below_operators, mark_rows};
pub use events::{Events, NO_PARENT, NO_STEP, NONE};
pub use launches::{Launch, Launches, RowsByCorrelation, enclosing, innermost, innermost_at, outermost};
pub use least_bytes::least_bytes;
pub use op_details::{Detail, Details, Field, Written};

/// Maximum number of ranks in a job: 2^20. A larger number in a file means that the file is damaged.
pub const MAX_RANKS: i32 = 1 << 20;

/// Launch parameters and occupancy of a kernel. Sizes that no device can have count as unknown.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct KernelUse {
    /// The kernel row's `id`.
    pub id: i64,
    /// Blocks of its grid in x, y and z; zeros if unknown.
    pub grid: [u32; 3],
    /// Threads of a block in x, y and z; zeros if unknown.
    pub block: [u16; 3],
    /// Registers of a thread.
    pub registers: Option<u16>,
    /// Shared memory of a block, static and dynamic.
    pub shared_mem_bytes: Option<u32>,
    /// Estimated achieved occupancy.
    pub occupancy_pct: Option<f32>,
}

impl KernelUse {
    /// A kernel of which nothing is known.
    #[inline]
    pub fn unknown(id: i64) -> Self {
        Self { id, grid: [0; 3], block: [0; 3], registers: None, shared_mem_bytes: None, occupancy_pct: None }
    }

    /// Blocks of its grid.
    pub fn blocks(&self) -> Option<i64> {
        product(self.grid.map(i64::from))
    }

    /// Threads of a block.
    pub fn block_threads(&self) -> Option<u16> {
        product(self.block.map(i64::from))?.try_into().ok()
    }
}

/// The product of sides; `None` if they are unknown.
fn product(sides: [i64; 3]) -> Option<i64> {
    Some(sides.into_iter().fold(1_i64, i64::saturating_mul)).filter(|product| *product > 0)
}

/// Elements that an operator with FLOPs computes with.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct FlopsType {
    /// The operator row's `id`.
    pub id: i64,
    /// Type of its first input that is a tensor.
    pub dtype: Dtype,
    /// Bytes that it must move at least ([`least_bytes`]).
    pub min_bytes: Option<i64>,
}

/// Bandwidth of a copy or fill.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct CopyRate {
    /// The copy row's `id`.
    pub id: i64,
    /// Bandwidth as the profiler measured it. More precise than bytes over a duration in whole µs.
    pub bandwidth_gbs: f64,
}

/// A hardware metric that a profiler samples on a device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Metric {
    /// Device.
    pub device_id: i64,
    /// Name, as the profiler spells it.
    pub name: Text,
}

/// A sample of a hardware metric.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MetricSample {
    /// Time, in the host's clock of the rank.
    pub ts_ns: i64,
    /// Index of the metric in [`RankData::metrics`].
    pub metric: u32,
    /// Value, in the unit that the name of the metric states.
    pub value: i64,
}

/// Identity of a rank.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RankInfo {
    /// Global rank.
    pub rank: i32,
    /// Number of ranks in the job; `None` if unknown.
    pub world_size: Option<i32>,
    /// Host name; empty if unknown.
    pub host: String,
    /// Process id.
    pub pid: i64,
    /// Clock domain. Ranks with equal domains share one clock. Two domains identify no clock of one machine: the empty
    /// one (unknown) and `utc` (wall clock of an unknown host). Kineto's domain is `<host>/utc` if the host is known.
    pub clock_domain: String,
    /// Whether the recorder shut down cleanly; `None` if the format does not record it.
    pub closed_cleanly: Option<bool>,
    /// Its places in the job's parallelism, as the names of its file or processes say them: `DP 0, PP 0, TP 1`.
    pub roles: Option<Text>,
    /// Its file in messages: the trace, or for a run the files of `events`; empty if unknown. Of several windows, the first file.
    pub file: Text,
}

/// One rank without its rows of `events`: enough to match its collectives and to fit its clock, and small enough to hold
/// for every rank of a large run. Times are in the rank's clock.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct RankOutline {
    /// Identity and clock domain.
    pub info: RankInfo,
    /// Collectives, sorted by start.
    pub collectives: Vec<Collective>,
    /// Steps of warm-up and active steps, sorted.
    pub steps: Vec<StepRow>,
    /// Communicators.
    pub comms: Vec<CommRow>,
    /// The communicators that have another id in the job, because other ranks give them other names: the id in the trace, and id and
    /// name in the job. Empty before the ranks are joined.
    pub comm_ids: BTreeMap<i64, (i64, Text)>,
    /// Clock comparisons.
    pub clock_samples: Vec<ClockSampleRow>,
    /// First start and last end of everything that was read. `None`: nothing was read, or
    /// [`RankData::measure_outline`] has not run yet.
    pub recorded_ns: Option<(i64, i64)>,
    /// Whether some rows carry a device's times.
    pub has_device_rows: bool,
}

impl RankOutline {
    /// First start and last end of steps and collectives, together with `rows_ns`, the span of the rows of `events`.
    pub fn recorded_with(&self, rows_ns: Option<(i64, i64)>) -> Option<(i64, i64)> {
        let steps = self.steps.iter().map(|s| (s.start_ns, s.end_ns));
        let collectives = self.collectives.iter().filter_map(|c| {
            let start = c.start_ns().or(c.enqueue_ns())?;
            Some((start, c.end_ns().unwrap_or(start)))
        });
        let spans = rows_ns.into_iter().chain(steps).chain(collectives);
        spans.reduce(|a, b| (a.0.min(b.0), a.1.max(b.1)))
    }
}

/// The devices of a rank by number. Of several rows with one number, the first one counts.
#[derive(Clone, Debug)]
pub struct DevicesById<'a>(FxHashMap<i64, &'a DeviceRow>);

impl<'a> DevicesById<'a> {
    /// Collects the devices.
    pub fn of(devices: &'a [DeviceRow]) -> Self {
        Self(devices.iter().rev().map(|device| (device.device_id, device)).collect())
    }

    /// The device of this number.
    pub fn get(&self, device_id: i64) -> Option<&'a DeviceRow> {
        self.0.get(&device_id).copied()
    }
}

/// One rank, loaded: the common form of a run's shards and of a Kineto trace. Times are in the rank's clock.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct RankData {
    /// Everything but its rows.
    pub outline: RankOutline,
    /// Names that [`Events::name`] points into.
    pub names: Vec<Text>,
    /// Event rows.
    pub events: Events,
    /// Its allocations, sorted by time.
    pub memory: Vec<MemoryRow>,
    /// Gradient buckets.
    pub buckets: Vec<BucketRow>,
    /// Its devices.
    pub devices: Vec<DeviceRow>,
    /// Grids and occupancies of kernels, by `id`. Kernels without profiler data have no entry.
    pub kernel_use: Vec<KernelUse>,
    /// Element types of operators with FLOPs, by `id`.
    pub flops_types: Vec<FlopsType>,
    /// Bandwidths of copies and fills as the profiler measured them, by `id`.
    pub copy_rates: Vec<CopyRate>,
    /// Hardware metrics of its devices.
    pub metrics: Vec<Metric>,
    /// Their samples, sorted by time.
    pub metric_samples: Vec<MetricSample>,
    /// Arrows between rows.
    pub flows: Vec<FlowRow>,
    /// Counters of the recorder.
    pub counters: Vec<CounterRow>,
    /// Data that was left out while loading.
    pub omissions: Vec<OmissionRow>,
}

impl RankData {
    /// First start and last end of the rows of `events`.
    pub fn rows_ns(&self) -> Option<(i64, i64)> {
        let rows = (0..self.events.len()).map(|row| (self.events.ts_ns[row], self.events.end_ns(row)));
        rows.reduce(|a, b| (a.0.min(b.0), a.1.max(b.1)))
    }

    /// Measures what the outline says of the rows: when they were recorded, and whether some are a device's.
    pub fn measure_outline(&mut self) {
        self.outline.recorded_ns = self.outline.recorded_with(self.rows_ns());
        self.outline.has_device_rows = self.events.kind.iter().any(|kind| kind.is_device_work());
    }
}
