//! The result: one plain value that every renderer prints.

use serde::Serialize;
use trace::{
    AnnotationStatsRow, BucketTimingRow, ClockFitRow, CriticalPathRow, DataLoadingRow, FindingRow, GpuUtilizationRow,
    HtaTemporalRow, IdleBreakdownRow, InstanceRow, KernelBreakdownRow, KernelSequenceRow, KernelStatsRow,
    LaunchStatsRow, MemcpyBandwidthRow, MemoryCurveRow, MemoryPeakRow, OmissionRow, OpStatsRow, QueueLengthRow,
    StepBreakdownRow, StragglerRow, SyncStallRow, UnfinishedRow, WaitRow,
};

/// What an analysis found. Tables are sorted as their fields say; times of day are global ns.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Analysis {
    /// What was analysed.
    pub facts: Facts,
    /// Who slowed whom down.
    pub verdict: Verdict,
    /// Every table.
    pub tables: Tables,
}

/// What was analysed, and how much of it there was.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Facts {
    /// Id of the run; empty for traces.
    pub run_id: String,
    /// What wrote it.
    pub tool: String,
    /// Ranks in the job, where known.
    pub world_size: Option<i32>,
    /// Ranks that were read, ascending.
    pub ranks: Vec<i32>,
    /// Ranks of the job that are not in the analysis.
    pub missing_ranks: Vec<i32>,
    /// Hosts, by name.
    pub hosts: Vec<String>,
    /// Active steps that at least one rank recorded.
    pub steps: Vec<i32>,
    /// Rows of `events` that were read.
    pub events: u64,
    /// Rows of `collectives` that were read.
    pub collectives: u64,
    /// Rows that the recorders stored.
    pub recorded: i64,
    /// Rows that the recorders lost.
    pub dropped: i64,
    /// Why there is no row at all, as the recorders say it; left out of the JSON if there are rows or nothing is said.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub nothing_because: Vec<String>,
    /// When recording was switched off while the program ran, as the recorders say it; left out of the JSON if never.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub recording_was_off: Vec<String>,
    /// Whether some rows are a device's.
    pub has_device_rows: bool,
    /// What part of the run was asked for, as on the command line; `None`: all.
    pub selection: Option<String>,
}

/// What the analysis says in the end.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum VerdictKind {
    /// At least one rank slows the others down.
    Cause,
    /// A rank may, but it is not certain.
    Undecided,
    /// No rank stands out.
    Balanced,
    /// There is nothing to judge: one rank, no steps or no collectives.
    #[default]
    Nothing,
}

impl VerdictKind {
    /// The word in JSON.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Cause => "cause",
            Self::Undecided => "undecided",
            Self::Balanced => "balanced",
            Self::Nothing => "nothing",
        }
    }
}

/// The verdict: who, how much per step, why, how sure. Without a cause the numbers are those of the rank that stands
/// out most.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Verdict {
    /// What kind it is.
    pub kind: VerdictKind,
    /// All causes, the largest delay first.
    pub causes: Vec<i32>,
    /// The rank that the numbers below are about.
    pub rank: Option<i32>,
    /// Its delay of every step.
    pub step_delay_ns: Option<i64>,
    /// Its own work above that of the others, per step.
    pub own_excess_ns: Option<i64>,
    /// Lower end of the 95 % interval.
    pub own_excess_low_ns: Option<i64>,
    /// Upper end.
    pub own_excess_high_ns: Option<i64>,
    /// `compute`, `host`, `input` or `communication`.
    pub reason: Option<String>,
    /// The range that holds the excess.
    pub evidence_range: Option<String>,
    /// Excess of that range, per step.
    pub evidence_excess_ns: Option<i64>,
    /// What it stands on: `range`, the one above, or `stretch`, all of the rank's own work.
    pub stands_on: Option<String>,
    /// Distance of what it stands on from the other ranks, in standard errors; without a suspect, that of all own work.
    pub z: Option<f64>,
    /// Share of steps that show it.
    pub persistence: Option<f64>,
    /// Steps judged.
    pub steps: i32,
    /// Median length of a step over all ranks.
    pub step_ns: Option<i64>,
    /// All of it in a sentence.
    pub sentence: String,
}

/// Every table of the analysis, in the rows of [`trace`].
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Tables {
    /// By rank, host before device.
    pub clock_fit: Vec<ClockFitRow>,
    /// By rank and device; everything, then between steps, then steps ascending.
    pub step_breakdown: Vec<StepBreakdownRow>,
    /// By rank, device and stream.
    pub idle_breakdown: Vec<IdleBreakdownRow>,
    /// By time.
    pub collective_instances: Vec<InstanceRow>,
    /// By instance and rank.
    pub collective_waits: Vec<WaitRow>,
    /// By step, bucket and rank.
    pub bucket_timing: Vec<BucketTimingRow>,
    /// By rank.
    pub stragglers: Vec<StragglerRow>,
    /// By rank and device, longest total first.
    pub kernel_stats: Vec<KernelStatsRow>,
    /// By rank, longest total first.
    pub op_stats: Vec<OpStatsRow>,
    /// By rank and device, longest total first.
    pub annotation_stats: Vec<AnnotationStatsRow>,
    /// By rank and step.
    pub critical_path: Vec<CriticalPathRow>,
    /// By rank and device.
    pub memory_peaks: Vec<MemoryPeakRow>,
    /// By rank.
    pub hta_temporal_breakdown: Vec<HtaTemporalRow>,
    /// By rank and device.
    pub kernel_breakdown: Vec<KernelBreakdownRow>,
    /// By rank and device; all, then the longest summed delay first.
    pub launch_stats: Vec<LaunchStatsRow>,
    /// By rank, device and stream.
    pub queue_length: Vec<QueueLengthRow>,
    /// By rank, device and kind.
    pub memcpy_bandwidth: Vec<MemcpyBandwidthRow>,
    /// By rank and device; all steps, then each.
    pub gpu_utilization: Vec<GpuUtilizationRow>,
    /// By rank, the most frequent first.
    pub kernel_sequences: Vec<KernelSequenceRow>,
    /// By rank, longest total first.
    pub sync_stalls: Vec<SyncStallRow>,
    /// By rank; everything, then each step.
    pub data_loading: Vec<DataLoadingRow>,
    /// By rank and device, by time.
    pub memory_curve: Vec<MemoryCurveRow>,
    /// Those that a rank is missing from first, then by communicator and number.
    pub unfinished_collectives: Vec<UnfinishedRow>,
    /// In the order in which they were found.
    pub omissions: Vec<OmissionRow>,
    /// The most severe first.
    pub findings: Vec<FindingRow>,
}

impl Analysis {
    /// Whether ranks or rows were left out, which the exit code says.
    pub fn is_partial(&self) -> bool {
        !self.tables.omissions.is_empty() || self.facts.dropped > 0
    }
}
