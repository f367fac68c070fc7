//! The tables that the aggregator writes about devices, and about what the host did to keep them busy: HTA's and the
//! TensorBoard plugin's analyses. Unless a column says otherwise they cover everything recorded, or what was selected
//! of it.

use crate::Text;

crate::tables! {
    /// The five parts of device time, finer: which types of device work ran at the same time.
    kernel_breakdown: KernelBreakdownRow / KernelBreakdownBuilder / KernelBreakdownView, by Aggregator, sorted by None; {
        /// Global rank.
        rank: i32,
        /// Device.
        device_id: i64,
        /// What ran: `compute`, `communication`, `memory`, or several of them joined by `+` (HTA: "COMPUTATION
        /// overlapping …").
        running: Text,
        /// Time in which exactly these ran.
        total_ns: i64,
        /// Share of the time in which anything ran.
        busy_pct: f64,
    }

    /// From launch to kernel: how long the host's call took, how long the device worked for it, and what lay between.
    launch_stats: LaunchStatsRow / LaunchStatsBuilder / LaunchStatsView, by Aggregator, sorted by None; {
        /// Global rank.
        rank: i32,
        /// Device.
        device_id: Option<i64>,
        /// Kernel, copy or fill; null for all of the device.
        name: Option<Text>,
        /// Pieces of device work whose launch was recorded too.
        launches: i64,
        /// Time in the launching calls. A call that launches several kernels (a graph) counts once, with the first.
        cpu_total_ns: i64,
        /// Mean.
        cpu_mean_ns: f64,
        /// Longest.
        cpu_max_ns: i64,
        /// Time of the launched work.
        gpu_total_ns: i64,
        /// Mean.
        gpu_mean_ns: f64,
        /// Longest.
        gpu_max_ns: i64,
        /// Launch delays, max(0, start on the device − end of the call), summed.
        delay_total_ns: i64,
        /// Mean.
        delay_mean_ns: f64,
        /// Median (the lower of two).
        delay_p50_ns: i64,
        /// 95th percentile (nearest rank).
        delay_p95_ns: i64,
        /// Longest.
        delay_max_ns: i64,
        /// Work that is shorter than the call that launched it (HTA), and nothing else.
        short_kernels: i64,
        /// Calls longer than 50 µs (HTA's `runtime_cutoff`).
        runtime_outliers: i64,
        /// Delays longer than 100 µs (HTA's `launch_delay_cutoff`).
        delay_outliers: i64,
    }

    /// How many launched pieces of work waited on each stream; the statistics are over the points where the length
    /// changes, as HTA's.
    queue_length: QueueLengthRow / QueueLengthBuilder / QueueLengthView, by Aggregator, sorted by None; {
        /// Global rank.
        rank: i32,
        /// Device.
        device_id: Option<i64>,
        /// Stream.
        stream_id: Option<i64>,
        /// Pieces of work whose launch was recorded too.
        launches: i64,
        /// Those that began before their launch did, by the trace's clocks; they never count as waiting.
        before_launch: i64,
        /// Points: one for each launch and one for each start.
        points: i64,
        /// Mean over points.
        mean_length: f64,
        /// Standard deviation over points.
        std_length: f64,
        /// Least over points.
        min_length: i64,
        /// First quartile.
        p25_length: f64,
        /// Median.
        p50_length: f64,
        /// Third quartile.
        p75_length: f64,
        /// Most over points.
        max_length: i64,
        /// Mean over time, from the first launch to the last start; null if they are at one time.
        mean_over_time_length: Option<f64>,
        /// Time in which 1024 or more waited: the host's next launch would block.
        full_ns: i64,
        /// The same as a share of everything recorded.
        full_pct: f64,
    }

    /// Copies and fills by kind; the statistics are of the sum over those under way, at the points where it changes, as
    /// HTA's.
    memcpy_bandwidth: MemcpyBandwidthRow / MemcpyBandwidthBuilder / MemcpyBandwidthView, by Aggregator, sorted by None; {
        /// Global rank.
        rank: i32,
        /// Device.
        device_id: Option<i64>,
        /// `Memcpy DtoH`, `Memcpy HtoD`, `Memcpy DtoD`, `Memcpy PtoP`, `Memset`, …
        name: Text,
        /// Copies or fills.
        copies: i64,
        /// Time, overlaps counted twice.
        total_ns: i64,
        /// Bytes; null if no row says.
        bytes: Option<i64>,
        /// Bytes by time, over the rows that say how many; null without.
        mean_gbs: Option<f64>,
        /// Points at which at least one of known bandwidth was under way.
        points: i64,
        /// Mean over points; null without any.
        point_mean_gbs: Option<f64>,
        /// Standard deviation over points; null below two.
        point_std_gbs: Option<f64>,
        /// Least.
        point_min_gbs: Option<f64>,
        /// First quartile.
        point_p25_gbs: Option<f64>,
        /// Median.
        point_p50_gbs: Option<f64>,
        /// Third quartile.
        point_p75_gbs: Option<f64>,
        /// Most.
        point_max_gbs: Option<f64>,
    }

    /// How full the devices were, by the TensorBoard plugin's definitions, over the windows of active steps.
    gpu_utilization: GpuUtilizationRow / GpuUtilizationBuilder / GpuUtilizationView, by Aggregator, sorted by None; {
        /// Global rank.
        rank: i32,
        /// Device.
        device_id: i64,
        /// Step; null for all active steps together.
        step: Option<i32>,
        /// Length of the window or windows.
        window_ns: i64,
        /// Time in which at least one kernel ran, communication included.
        kernel_ns: i64,
        /// 100·kernel / window.
        utilization_pct: f64,
        /// Estimated SM efficiency: Σ min(blocks / SMs, 1)·time / window, the sum over kernels that overlap capped at
        /// 1; null if the device's number of SMs is not known, or no kernel's grid.
        sm_efficiency_pct: Option<f64>,
        /// Estimated achieved occupancy: the mean over kernels, weighted by their time; null if no kernel says.
        occupancy_pct: Option<f64>,
        /// Share of the kernels' time whose occupancy is known.
        occupancy_known_pct: Option<f64>,
    }

    /// Sequences of kernels that operators launch again and again, as HTA's frequent kernel sequences; the 50 most
    /// frequent of a rank.
    kernel_sequences: KernelSequenceRow / KernelSequenceBuilder / KernelSequenceView, by Aggregator, sorted by None; {
        /// Global rank.
        rank: i32,
        /// The outermost operator around the launches.
        operator: Text,
        /// Kernels, copies and fills in the sequence: three or more.
        kernels: i32,
        /// Operator and kernels in the order of their starts, separated by `|`; after the 32nd kernel, only how many
        /// more.
        pattern: Text,
        /// Times it was seen.
        calls: i64,
        /// Time of its kernels, overlaps counted twice.
        gpu_total_ns: i64,
        /// Time of the operator.
        cpu_total_ns: i64,
    }

    /// Calls in which the host waits for the device, and the operator that made them.
    sync_stalls: SyncStallRow / SyncStallBuilder / SyncStallView, by Aggregator, sorted by None; {
        /// Global rank.
        rank: i32,
        /// The call: `cudaStreamSynchronize`, `cudaDeviceSynchronize`, `cudaMemcpy`, …
        api_call: Text,
        /// The innermost operator around it; null if none is.
        operator: Option<Text>,
        /// The outermost operator around it: what the program called.
        outer_operator: Option<Text>,
        /// The innermost range around it that is no step.
        annotation: Option<Text>,
        /// Calls.
        calls: i64,
        /// Time in them.
        total_ns: i64,
        /// Longest.
        max_ns: i64,
        /// Part of the time that belongs to active steps: a profiler waits, too, when it ends.
        in_steps_ns: i64,
        /// Part of the time in which a device of the rank worked.
        device_busy_ns: i64,
    }

    /// Time in which a step waits for input: ranges of data loaders, and this program's `input`.
    data_loading: DataLoadingRow / DataLoadingBuilder / DataLoadingView, by Aggregator, sorted by None; {
        /// Global rank.
        rank: i32,
        /// Step; null for everything recorded.
        step: Option<i32>,
        /// Ranges that begin in the window.
        calls: i64,
        /// Time in them within the window, no instant counted twice.
        total_ns: i64,
        /// Length of the window.
        wall_ns: i64,
        /// Share of the window.
        wall_pct: f64,
        /// Part of the time in which no device of the rank worked; null without devices.
        device_idle_ns: Option<i64>,
    }

    /// Use of memory over time: in each of up to 200 spans of equal length, the moment when most was in use.
    memory_curve: MemoryCurveRow / MemoryCurveBuilder / MemoryCurveView, by Aggregator, sorted by None; {
        /// Global rank.
        rank: i32,
        /// Device; null on the host.
        device_id: Option<i64>,
        /// When, in global time.
        ts_ns: i64,
        /// In use then. Where the allocator says nothing, the sum of what was seen since the recording began.
        in_use_bytes: i64,
        /// Held by the allocator then.
        reserved_bytes: Option<i64>,
    }
}

/// Every table of this module.
pub(crate) fn device_tables() -> Vec<crate::Table> {
    declared()
}
