//! The values that the stages hand on: a loaded rank, what is left of it after the map, a matched collective.

use trace::{
    BucketRow, ClockSampleRow, CollectiveRow, CommRow, CounterRow, DeviceRow, FlowRow, MemoryRow, OmissionRow, StepRow,
    Text,
};

/// No value, in the dense columns of [`Events`] that hold `i64`.
pub const NONE: i64 = i64::MIN;
/// No step known, in [`Events::step`]. (−1 is a value: between steps.)
pub const NO_STEP: i32 = i32::MIN;
/// No parent, in [`Events::parent`].
pub const NO_PARENT: u32 = u32::MAX;

/// What a row is: Kineto's words, folded to those that an analysis tells apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(u8)]
pub enum Kind {
    /// `cpu_op`.
    CpuOp,
    /// `user_annotation`: a range of the host.
    UserAnnotation,
    /// `python_function`.
    PythonFunction,
    /// `cuda_runtime`, `hip_runtime`, `xpu_runtime`, …
    Runtime,
    /// `cuda_driver` and its like.
    Driver,
    /// `kernel`.
    Kernel,
    /// `gpu_memcpy`.
    GpuMemcpy,
    /// `gpu_memset`.
    GpuMemset,
    /// `gpu_user_annotation`.
    GpuUserAnnotation,
    /// `cuda_sync`: a synchronisation as the device saw it; no GPU work.
    Sync,
    /// `overhead` of the profiler.
    Overhead,
    /// Anything else.
    Other,
}

impl Kind {
    /// How many there are.
    pub const COUNT: usize = Self::Other as usize + 1;

    /// The kind of Kineto's category, in any of its historic spellings.
    pub fn from_category(category: &str) -> Self {
        match category {
            "cpu_op" | "Operator" => Self::CpuOp,
            "user_annotation" => Self::UserAnnotation,
            "python_function" => Self::PythonFunction,
            "kernel" | "Kernel" => Self::Kernel,
            "gpu_memcpy" | "Memcpy" => Self::GpuMemcpy,
            "gpu_memset" | "Memset" => Self::GpuMemset,
            "gpu_user_annotation" => Self::GpuUserAnnotation,
            "cuda_sync" | "xpu_sync" => Self::Sync,
            "overhead" => Self::Overhead,
            "Runtime"
            | "cuda_runtime"
            | "hip_runtime"
            | "xpu_runtime"
            | "privateuse1_runtime"
            | "mtia_runtime"
            | "glow_runtime" => Self::Runtime,
            "cuda_driver" | "xpu_driver" | "privateuse1_driver" => Self::Driver,
            _ => Self::Other,
        }
    }

    /// Whether such a row is work of a device: kernel, copy or fill.
    pub fn is_device_work(self) -> bool {
        matches!(self, Self::Kernel | Self::GpuMemcpy | Self::GpuMemset)
    }
}

/// The rows of one rank, column by column, sorted by `ts_ns`, then longest first. All columns have the same length.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Events {
    /// What the row is.
    pub kind: Vec<Kind>,
    /// Index into [`RankData::names`].
    pub name: Vec<u32>,
    /// Start, in the rank's clock.
    pub ts_ns: Vec<i64>,
    /// Length, never negative.
    pub dur_ns: Vec<i64>,
    /// Unique id in the rank.
    pub id: Vec<i64>,
    /// Step, or [`NO_STEP`].
    pub step: Vec<i32>,
    /// Host thread, or [`NONE`].
    pub thread: Vec<i64>,
    /// Device, or [`NONE`].
    pub device: Vec<i64>,
    /// Stream, or [`NONE`].
    pub stream: Vec<i64>,
    /// Joins launch and kernel, or [`NONE`].
    pub correlation: Vec<i64>,
    /// Joins operator and launch, or [`NONE`].
    pub external: Vec<i64>,
    /// Row index of the enclosing row of the same thread, or [`NO_PARENT`].
    pub parent: Vec<u32>,
    /// Communication, or waiting for it, by the rules of the analysis.
    pub is_comm: Vec<bool>,
    /// Bytes moved, or [`NONE`].
    pub bytes: Vec<i64>,
    /// FLOPs computed, or [`NONE`].
    pub flops: Vec<i64>,
}

impl Events {
    /// Rows.
    pub fn len(&self) -> usize {
        self.ts_ns.len()
    }

    /// Whether there is no row.
    pub fn is_empty(&self) -> bool {
        self.ts_ns.is_empty()
    }

    /// End of a row.
    pub fn end_ns(&self, row: usize) -> i64 {
        self.ts_ns[row].saturating_add(self.dur_ns[row])
    }
}

/// How a kernel filled its device.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct KernelUse {
    /// The row's `id`.
    pub id: i64,
    /// Blocks of its grid, or [`NONE`].
    pub blocks: i64,
    /// Estimated achieved occupancy.
    pub occupancy_pct: Option<f32>,
}

/// How fast a copy or fill was.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct CopyRate {
    /// The row's `id`.
    pub id: i64,
    /// Bandwidth, more precise than bytes over a length that was cut to whole µs.
    pub bandwidth_gbs: f64,
}

/// Who a rank is.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RankInfo {
    /// Global rank.
    pub rank: i32,
    /// Ranks in the job, where known.
    pub world_size: Option<i32>,
    /// Host name; empty if unknown.
    pub host: String,
    /// Process.
    pub pid: i64,
    /// Clock domain: ranks with equal domains share one clock, but for the domains that name no clock of one machine:
    /// empty (nothing known) and `utc` (wall clock of an unknown host). Kineto's is `<host>/utc` where the host is
    /// known.
    pub clock_domain: String,
    /// Whether the recorder ended in order; `None` where the format cannot tell.
    pub closed_cleanly: Option<bool>,
}

/// One rank, loaded: the common form of a run's shards and of a Kineto trace. Times are in the rank's clock.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct RankData {
    /// Who it is.
    pub info: RankInfo,
    /// Names that [`Events::name`] points into.
    pub names: Vec<Text>,
    /// Its rows.
    pub events: Events,
    /// Its collectives, sorted by start.
    pub collectives: Vec<CollectiveRow>,
    /// Kineto's `Comms Id` of each collective, by position in [`collectives`](Self::collectives); empty where no row
    /// has one.
    pub comms_ids: Vec<Option<u64>>,
    /// Its steps, sorted; warm-up and active.
    pub steps: Vec<StepRow>,
    /// Its clock comparisons.
    pub clock_samples: Vec<ClockSampleRow>,
    /// Its allocations, sorted by time.
    pub memory: Vec<MemoryRow>,
    /// Its gradient buckets.
    pub buckets: Vec<BucketRow>,
    /// Its communicators.
    pub comms: Vec<CommRow>,
    /// Its devices.
    pub devices: Vec<DeviceRow>,
    /// How its kernels filled their device, by `id`; those that the profiler says nothing of have no row.
    pub kernel_use: Vec<KernelUse>,
    /// Bandwidth of its copies and fills as their profiler measured it, by `id`.
    pub copy_rates: Vec<CopyRate>,
    /// Arrows between its rows.
    pub flows: Vec<FlowRow>,
    /// What its recorder counted.
    pub counters: Vec<CounterRow>,
    /// What was left out of it while loading.
    pub omissions: Vec<OmissionRow>,
}

/// How the rows of an instance found each other, best first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum MatchLevel {
    /// By Kineto's `Comms Id`.
    CommsId,
    /// By communicator and sequence number.
    Seq,
    /// By an alignment of the ranks' sequences.
    Ordinal,
}

impl MatchLevel {
    /// The word in the `match` column.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::CommsId => "comms_id",
            Self::Seq => "seq",
            Self::Ordinal => "ordinal",
        }
    }
}

/// Whether an operation makes its ranks wait for each other, and so says something about their clocks: if it does, no
/// rank leaves before every rank has entered.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Barrier {
    /// All-reduce, all-gather, reduce-scatter, barrier: every rank needs something of every other.
    Strict,
    /// All-to-all: made of pairs, so only nearly a barrier; see [`WEAK_SLACK_NS`].
    Weak,
    /// Broadcast, reduce, send, receive, empty operations, and any whose times are only those of being handed over.
    OneSided,
}

/// How much earlier than another rank's entry a rank may leave a [`Barrier::Weak`] operation. Measured on real
/// all-to-alls that are made of sends and receives: down to 73 µs.
pub const WEAK_SLACK_NS: i64 = 100_000;

/// One rank's part in an [`Instance`], in that rank's own clock.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Member {
    /// Global rank.
    pub rank: i32,
    /// Position in that rank's collectives.
    pub index: u32,
    /// Entered.
    pub start_ns: i64,
    /// Left; `None` while it is not done.
    pub end_ns: Option<i64>,
    /// The times are a device's, not the host's.
    pub device_clock: bool,
}

/// One collective, seen by all its ranks.
#[derive(Clone, Debug, PartialEq)]
pub struct Instance {
    /// Position in the list of instances.
    pub id: i64,
    /// Communicator.
    pub comm_id: i64,
    /// Number on the communicator, where known.
    pub seq: Option<i64>,
    /// Operation, as in `collectives.op`.
    pub op: Text,
    /// Bytes of the whole array.
    pub bytes: Option<i64>,
    /// Step that most of its ranks name.
    pub step: Option<i32>,
    /// Bucket, if its ranks agree.
    pub bucket: Option<i32>,
    /// Ranks in the communicator, where known.
    pub ranks_expected: Option<i32>,
    /// How it was matched.
    pub level: MatchLevel,
    /// Whether it holds its ranks together.
    pub barrier: Barrier,
    /// Its ranks, ascending, each once.
    pub members: Vec<Member>,
}

impl Instance {
    /// Whether every expected rank was seen and is done.
    pub fn complete(&self) -> bool {
        let all_done = self.members.iter().all(|m| m.end_ns.is_some());
        all_done && self.ranks_expected.is_some_and(|n| n as usize == self.members.len())
    }
}
