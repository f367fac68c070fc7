//! The tables that the aggregator writes about devices, and about the host's work for them: the analyses of HTA and of
//! the TensorBoard plugin. Unless a column states otherwise, they cover everything that was recorded or selected.

use crate::words::{Kind, MemoryCategory};
use crate::{Text, Word};

tables! {
    device_list uses $, by Aggregator;

    /// One row per rank, device and combination of work types that ran at the same time. By rank and device.
    kernel_breakdown: KernelBreakdownRow / KernelBreakdownBuilder / KernelBreakdownView,
        listed |_| true, judged false; {
        /// Global rank.
        rank: i32,
        /// Device number.
        device_id: i64,
        /// Types of work that ran: `compute`, `communication`, `memory`, or several of them joined by `+` (HTA:
        /// "COMPUTATION overlapping …").
        running: Text,
        /// Time in which exactly these types ran.
        total_ns: i64,
        /// Share of the time in which any work ran.
        busy_pct: f64,
    }

    /// One row per rank, device and name of launched work: the time of the launching calls, of the launched work, and
    /// the delay between them. By rank and device: all names together, then the longest summed delay first.
    launch_stats: LaunchStatsRow / LaunchStatsBuilder / LaunchStatsView, listed |row| row.name.is_none(); {
        /// Global rank.
        rank: i32,
        /// Device number.
        device_id: Option<i64>,
        /// Name of the kernel, copy or fill; null for all work of the device.
        name: Option<Text>,
        /// Pieces of device work whose launch was recorded.
        launches: i64,
        /// Number of calls that launched them. A call that launches several kernels (a graph) counts once, with the first.
        calls: i64,
        /// Sum of the durations of the calls.
        cpu_total_ns: i64,
        /// Mean duration of the calls.
        cpu_mean_ns: f64,
        /// Longest call.
        cpu_max_ns: i64,
        /// Sum of the durations of the launched work.
        gpu_total_ns: i64,
        /// Mean duration of the launched work.
        gpu_mean_ns: f64,
        /// Longest launched work.
        gpu_max_ns: i64,
        /// Sum of the launch delays of the calls; a delay is max(0, first start on the device − end of the call).
        delay_total_ns: i64,
        /// Mean delay; null without a call, as for kernels that never are the first of their graph.
        delay_mean_ns: Option<f64>,
        /// Median delay (the lower of two).
        delay_p50_ns: Option<i64>,
        /// 95th percentile of the delays (nearest rank).
        delay_p95_ns: Option<i64>,
        /// Longest delay.
        delay_max_ns: Option<i64>,
        /// Pieces of work that are shorter than the call that launched them (HTA's short kernels).
        short_kernels: i64,
        /// Number of calls longer than 50 µs (HTA's `runtime_cutoff`).
        runtime_outliers: i64,
        /// Number of delays longer than 100 µs (HTA's `launch_delay_cutoff`).
        delay_outliers: i64,
    }

    /// One row per rank, device and stream: how many pieces of launched work waited. As in HTA, the statistics are over
    /// the points where the length of the queue changes. By rank, device and stream.
    queue_length: QueueLengthRow / QueueLengthBuilder / QueueLengthView, listed |_| true; {
        /// Global rank.
        rank: i32,
        /// Device number.
        device_id: Option<i64>,
        /// CUDA stream.
        stream_id: Option<i64>,
        /// Pieces of work whose launch was recorded.
        launches: i64,
        /// Pieces of work that began before their launch, by the trace's clocks; they never count as waiting.
        before_launch: i64,
        /// Number of points: one for each launch and one for each start.
        points: i64,
        /// Mean length over the points.
        mean_length: f64,
        /// Standard deviation of the length over the points.
        std_length: f64,
        /// Least length.
        min_length: i64,
        /// First quartile of the length.
        p25_length: f64,
        /// Median length.
        p50_length: f64,
        /// Third quartile of the length.
        p75_length: f64,
        /// Greatest length.
        max_length: i64,
        /// Mean length over time, from the first launch to the last start; null if these are at the same time.
        mean_over_time_length: Option<f64>,
        /// Time in which 1024 or more pieces waited, so the next launch of the host would block.
        full_ns: i64,
        /// `full_ns` as a share of everything recorded.
        full_pct: f64,
    }

    /// One row per rank, device and kind of copy or fill. As in HTA, the statistics are of the summed bandwidth of all
    /// that are under way, at the points where this sum changes. By rank, device and kind.
    memcpy_bandwidth: MemcpyBandwidthRow / MemcpyBandwidthBuilder / MemcpyBandwidthView,
        listed |_| true, judged false; {
        /// Global rank.
        rank: i32,
        /// Device number.
        device_id: Option<i64>,
        /// Kind: `Memcpy DtoH`, `Memcpy HtoD`, `Memcpy DtoD`, `Memcpy PtoP`, `Memset`, …
        name: Text,
        /// Number of copies or fills.
        copies: i64,
        /// Sum of the durations; overlaps count twice.
        total_ns: i64,
        /// Bytes moved; null if no row has them.
        bytes: Option<i64>,
        /// Bytes / time, over the rows with known bytes; null if they are less than 90 % of the time.
        mean_gbs: Option<f64>,
        /// Number of points at which at least one copy or fill of known bandwidth was under way.
        points: i64,
        /// Mean over the points; null without points.
        point_mean_gbs: Option<f64>,
        /// Standard deviation over the points; null with fewer than two.
        point_std_gbs: Option<f64>,
        /// Least bandwidth over the points.
        point_min_gbs: Option<f64>,
        /// First quartile over the points.
        point_p25_gbs: Option<f64>,
        /// Median over the points.
        point_p50_gbs: Option<f64>,
        /// Third quartile over the points.
        point_p75_gbs: Option<f64>,
        /// Greatest bandwidth over the points.
        point_max_gbs: Option<f64>,
    }

    /// One row per rank, device and step: how well the device was used, by the definitions of the TensorBoard plugin.
    /// By rank and device: all active steps together, then each.
    gpu_utilization: GpuUtilizationRow / GpuUtilizationBuilder / GpuUtilizationView, listed |row| row.step.is_none(); {
        /// Global rank.
        rank: i32,
        /// Device number.
        device_id: i64,
        /// Training step; null for all active steps together.
        step: Option<i32>,
        /// Length of the step or steps.
        window_ns: i64,
        /// Time in which at least one kernel ran, communication included.
        kernel_ns: i64,
        /// Utilization: 100·kernel / window.
        utilization_pct: f64,
        /// Estimated SM efficiency: Σ min(blocks / SMs, 1)·time / window, where the sum over overlapping kernels is at
        /// most 1. Kernels of unknown grid count as the mean of the others; null if `sm_known_pct` is below 90.
        sm_efficiency_pct: Option<f64>,
        /// Share of the kernels' time whose share of the SMs is known: the grid, and the number of the device's SMs.
        sm_known_pct: Option<f64>,
        /// Estimated achieved occupancy: the mean over kernels, weighted by their time; null if `occupancy_known_pct` is below 90.
        occupancy_pct: Option<f64>,
        /// Share of the kernels' time whose occupancy is known.
        occupancy_known_pct: Option<f64>,
    }

    /// One row per rank, device, step and hardware metric that a profiler sampled (`nsys profile --gpu-metrics-devices`). By rank, device
    /// and metric: everything recorded, then each step in which a sample lies.
    gpu_metrics: GpuMetricRow / GpuMetricBuilder / GpuMetricView, listed |row| row.step.is_none(); {
        /// Global rank.
        rank: i32,
        /// Device number.
        device_id: i64,
        /// Name of the metric, with its unit, as the profiler spells it.
        metric: Text,
        /// Training step; null for everything recorded.
        step: Option<i32>,
        /// Number of samples. They are of the whole device, so they may include the work of other processes.
        samples: i64,
        /// Mean of the samples. The profiler takes them at equal distances, so it is the mean over time.
        mean_value: f64,
        /// Least sample.
        min_value: i64,
        /// Greatest sample.
        max_value: i64,
    }

    /// One row per rank and sequence of kernels that an operator launches repeatedly: HTA's frequent kernel sequences.
    /// At most 50 of a rank, the most frequent first.
    kernel_sequences: KernelSequenceRow / KernelSequenceBuilder / KernelSequenceView, judged false; {
        /// Global rank.
        rank: i32,
        /// Outermost operator around the launches.
        operator: Text,
        /// Number of kernels, copies and fills in the sequence, at least three.
        kernels: i32,
        /// Operator and kernels in the order of their starts, separated by `|`; after the 32nd kernel only the number
        /// of the others.
        pattern: Text,
        /// Number of occurrences.
        calls: i64,
        /// Sum of the durations of the kernels; overlaps count twice.
        gpu_total_ns: i64,
        /// Sum of the durations of the operator.
        cpu_total_ns: i64,
    }

    /// One row per rank, call in which the host waits for the device, and operator around it. By rank, longest total
    /// first.
    sync_stalls: SyncStallRow / SyncStallBuilder / SyncStallView, listed |_| true; {
        /// Global rank.
        rank: i32,
        /// Name of the call: `cudaStreamSynchronize`, `cudaDeviceSynchronize`, `cudaMemcpy`, …
        api_call: Text,
        /// Innermost operator around the call; null if there is none.
        operator: Option<Text>,
        /// Outermost operator around the call, which the program called; null if there is none.
        outer_operator: Option<Text>,
        /// Innermost range around the call that is not a step; null if there is none.
        annotation: Option<Text>,
        /// Number of calls.
        calls: i64,
        /// Sum of the durations.
        total_ns: i64,
        /// Longest call.
        max_ns: i64,
        /// Part of the time in active steps. (A profiler waits for the device, too, when it stops.)
        in_steps_ns: i64,
        /// Part of the time in which a device of the rank was busy.
        device_busy_ns: i64,
    }

    /// One row per rank and place of the host: what the host did while no device of the rank worked and the next work was not
    /// launched. By rank, longest total first.
    idle_causes: IdleCauseRow / IdleCauseBuilder / IdleCauseView, listed |_| true; {
        /// Global rank.
        rank: i32,
        /// Kind of the innermost row of the host: an operator, a call of the runtime or the driver, a range, a Python function. Null if
        /// no row was open there, on the thread that launches the next work.
        kind: Option<Word<Kind>>,
        /// Name of that row. Null if no row was open.
        name: Option<Text>,
        /// Outermost operator around it, or the row itself; null if there is none.
        outer_operator: Option<Text>,
        /// Innermost range around it, or the row itself, that is not a step; null if there is none.
        annotation: Option<Text>,
        /// Number of rows.
        calls: i64,
        /// Idle time of the devices in active steps while one of these rows was the innermost one.
        idle_ns: i64,
        /// The most of it in one row.
        max_ns: i64,
        /// Part of it in stalls: operators and calls that hold a device up for 1 ms and for 20 medians of their name; in ranges and Python
        /// functions, and outside of all rows, each time of 1 ms or more in which no row begins or ends.
        stalled_ns: i64,
        /// Number of stalls.
        stalls: i64,
        /// Part of it in the first row of its name, or the first launch of a kernel, if that takes so long.
        first_ns: i64,
        /// Idle time after a call here had launched a CUDA graph, until the next row of the graph, which may run work without rows. No
        /// part of `idle_ns`.
        graph_ns: i64,
    }

    /// One row per rank and step: the time in which the step waits for input, that is in ranges of data loaders and in
    /// the range `input` of `rank-agent`. By rank: everything, then each step.
    data_loading: DataLoadingRow / DataLoadingBuilder / DataLoadingView, listed |row| row.step.is_none(); {
        /// Global rank.
        rank: i32,
        /// Training step; null for everything recorded.
        step: Option<i32>,
        /// Number of ranges that begin in the step.
        calls: i64,
        /// Time in these ranges within the step; no instant counts twice.
        total_ns: i64,
        /// Length of the step or of the whole recording.
        wall_ns: i64,
        /// Share of `wall_ns`.
        wall_pct: f64,
        /// Part of `total_ns` in which no device of the rank was busy; null without devices.
        device_idle_ns: Option<i64>,
    }

    /// One row per rank and gap between an optimizer step and the next forward pass, on ranks where no range names the
    /// loading of input. Such a gap is likely the loading of input. By rank and time.
    input_gaps: InputGapRow / InputGapBuilder / InputGapView, listed |_| true; {
        /// Global rank.
        rank: i32,
        /// Training step of the forward pass; null between steps.
        step: Option<i32>,
        /// From the end of the optimizer step to the begin of the forward pass, on the optimizer's host thread.
        gap_ns: i64,
        /// Part of `gap_ns` outside of calls to the device's runtime, communication, ranges of other names and, without
        /// devices, operators: the host launches nothing and waits for nothing that was recorded.
        quiet_ns: i64,
        /// Part of `quiet_ns` in ranges whose name says that they load input.
        named_ns: i64,
        /// Part of `quiet_ns` in which no device of the rank was busy; null without devices.
        device_idle_ns: Option<i64>,
    }

    /// One row per rank, device and span of time: the moment in the span when the most memory was in use. A recording
    /// has up to 200 spans of equal length. By rank and device, by time.
    memory_curve: MemoryCurveRow / MemoryCurveBuilder / MemoryCurveView; {
        /// Global rank.
        rank: i32,
        /// Device number; null on the host.
        device_id: Option<i64>,
        /// Time of that moment.
        ts_ns: i64,
        /// Memory in use at that time. If the allocator does not report it, the sum of the allocations and releases
        /// since the recording began.
        in_use_bytes: i64,
        /// Memory that the allocator held at that time.
        reserved_bytes: Option<i64>,
    }

    /// One row per rank and device: the moment of the highest use of memory. By rank and device.
    memory_peaks: MemoryPeakRow / MemoryPeakBuilder / MemoryPeakView, listed |_| true; {
        /// Global rank.
        rank: i32,
        /// Device number; null on the host.
        device_id: Option<i64>,
        /// Time of the peak.
        ts_ns: i64,
        /// Memory in use at that time: the allocator's own count if it was recorded, which torch calls
        /// `max_memory_allocated`.
        peak_bytes: i64,
        /// Memory that the allocator held at that time.
        reserved_bytes: Option<i64>,
        /// `reserved_bytes` − `peak_bytes`: held by the allocator but not in use.
        fragmentation_bytes: Option<i64>,
        /// `fragmentation_bytes` as a share of `reserved_bytes`.
        fragmentation_pct: Option<f64>,
        /// Part of `peak_bytes` in parameters. The categories sum to `peak_bytes`.
        parameters_bytes: i64,
        /// Part in gradients of parameters.
        gradients_bytes: i64,
        /// Part in the optimizer's state.
        optimizer_state_bytes: i64,
        /// Part in activations.
        activations_bytes: i64,
        /// Part in blocks that the operator, backward pass or optimizer's step that allocated them releases.
        temporary_bytes: i64,
        /// The rest. Negative if releases were recorded without their allocations and without the allocator's count.
        unknown_bytes: i64,
        /// Largest holders of memory at that time: `name=bytes`, separated by `; `.
        alive: Text,
    }

    /// One row per rank, device and block of memory that was in use at the peak of `memory_peaks`. The bytes of a device
    /// sum to its peak. By rank and device, the largest first; the memory of unknown blocks last.
    memory_at_peak: MemoryAtPeakRow / MemoryAtPeakBuilder / MemoryAtPeakView, listed |_| true; {
        /// Global rank.
        rank: i32,
        /// Device number; null on the host.
        device_id: Option<i64>,
        /// Size. Of the unknown blocks it is negative if releases are missing from the recording.
        bytes: i64,
        /// Number of blocks: 1; more where blocks that are too small to list are summed; null for memory whose blocks
        /// are unknown, because they were allocated before the recording and not released during it.
        blocks: Option<i64>,
        /// Category: `parameters`, `gradients`, `optimizer_state`, `activations`, `temporary` or `unknown`.
        category: Word<MemoryCategory>,
        /// Outermost operator that allocated it, or the purpose that the program recorded; null if unknown.
        operator: Option<Text>,
        /// Named ranges and Python functions that allocated it, outermost first, separated by `;`.
        stack: Option<Text>,
        /// Address of a single block, stored by its bits.
        address: Option<i64>,
        /// Time of the allocation of a single block; null if it was before the recording.
        ts_ns: Option<i64>,
        /// Step of the allocation of a single block; −1 between steps.
        step: Option<i32>,
    }

    /// One row per rank, device and step: the least and the most memory in use. By rank and device, by step.
    memory_by_step: MemoryByStepRow / MemoryByStepBuilder / MemoryByStepView; {
        /// Global rank.
        rank: i32,
        /// Device number; null on the host.
        device_id: Option<i64>,
        /// Step.
        step: i32,
        /// Least memory in use during the step.
        floor_bytes: i64,
        /// Most memory in use during the step.
        peak_bytes: i64,
        /// Memory in use at the end of the step.
        end_bytes: i64,
    }

    /// One row per rank and device with five steps or more: how `memory_by_step.floor_bytes` changes from step to step
    /// (docs/method/memory.md). By rank and device.
    memory_growth: MemoryGrowthRow / MemoryGrowthBuilder / MemoryGrowthView, listed |_| true; {
        /// Global rank.
        rank: i32,
        /// Device number; null on the host.
        device_id: Option<i64>,
        /// Number of steps in the slope.
        steps: i64,
        /// Whether the memory grows steadily.
        grows: bool,
        /// Growth per step: the median of the slopes between all pairs of steps (Theil–Sen).
        growth_bytes: f64,
        /// Lower end of the 95 % interval of `growth_bytes`.
        growth_low_bytes: f64,
        /// Upper end of that interval.
        growth_high_bytes: f64,
        /// Mann–Kendall statistic of the trend, standardised.
        z: f64,
        /// Operator whose blocks grow most, or the purpose that the program recorded.
        operator: Option<Text>,
        /// Named ranges and Python functions around that operator, outermost first, separated by `;`.
        stack: Option<Text>,
        /// Growth per step of the blocks of `operator` and `stack`; null if no block grows.
        operator_growth_bytes: Option<f64>,
    }
}
