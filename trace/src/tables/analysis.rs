//! The tables that the aggregator writes about ranks, steps, collectives and names, and its findings. Times of day are
//! global: in the clock of the reference rank.

use crate::words::{
    BoundBy, ClockMethod, ClockSide, IdleCategory, KernelCategory, MatchLevel, OccupancyLimit, OmissionKind, Op,
    RooflineBound, Severity, WorkType,
};
use crate::{Text, Word};

tables! {
    analysis_list uses $, by Aggregator;

    /// One row per rank and clock: how the clock maps to global time, global = t + offset + drift·(t − origin). By
    /// rank, the host's clock first. A clock that bends or jumped has a row for each part, in order: each but the first holds
    /// from its `origin_ns` on.
    clock_fit: ClockFitRow / ClockFitBuilder / ClockFitView; {
        /// Global rank.
        rank: i32,
        /// Clock of the rank: `host` or `device`.
        clock: Word<ClockSide>,
        /// Rank whose clock is global time.
        reference_rank: i32,
        /// Correction at `origin_ns`: global time − this clock.
        offset_ns: i64,
        /// Change of the correction; null if the evidence spans too little time to estimate it.
        drift_ppb: Option<f64>,
        /// Time of this clock from which drift counts.
        origin_ns: i64,
        /// Error of the mapping within the recorded window, at 95 % confidence, as far as the samples show it; null if unknown.
        error_ns: Option<i64>,
        /// The largest further error that all samples share, so that none shows it: a rank that always leaves collectives later than
        /// others looks like a clock that is ahead. 0 for pings; null if unknown.
        bias_ns: Option<i64>,
        /// Guaranteed bound of the error within the recorded window; null if there is none.
        bound_ns: Option<i64>,
        /// Evidence: `ping`, `same_host`, `collective`, `collective_weak`, `utc` or `none`.
        method: Word<ClockMethod>,
        /// Number of samples used.
        samples: i64,
        /// 95th percentile of the samples' distances from the mapping.
        residual_p95_ns: Option<i64>,
        /// Number of collectives that this rank left before another rank had entered, by more than the bounds of the
        /// two ranks.
        violations: i64,
    }

    /// One row per rank, device and step: its time in five parts that sum to `wall_ns`. K: a kernel computes. C: a
    /// kernel communicates. M: a copy or fill runs. By rank and device: everything, between steps, then each step.
    step_breakdown: StepBreakdownRow / StepBreakdownBuilder / StepBreakdownView; {
        /// Global rank.
        rank: i32,
        /// Device number; null for the CPU.
        device_id: Option<i64>,
        /// Training step; null for everything recorded, −1 for the time between steps.
        step: Option<i32>,
        /// Length of the step or of the whole recording.
        wall_ns: i64,
        /// Compute without communication: |K \ C|.
        compute_ns: i64,
        /// Communication hidden by compute: |K ∩ C|.
        overlap_ns: i64,
        /// Communication that no compute hides: |C \ K|.
        exposed_comm_ns: i64,
        /// What of `exposed_comm_ns` is waiting for other ranks, at least: in each collective, the wait less all compute under it.
        /// The rest moves data. Null where no wait is known: in steps without matched collectives or with collectives that lack
        /// ranks, and for all but steps.
        exposed_wait_ns: Option<i64>,
        /// Copies and fills alone: |M \ (K ∪ C)|.
        memory_ns: i64,
        /// The rest of the time.
        idle_ns: i64,
        /// Part of `idle_ns` in which a row of kind `overhead` ran: work of the profiler, or of the driver that loads
        /// functions. The job is not idle then: its own idle time is `idle_ns` − `overhead_ns` − `unknown_ns`.
        overhead_ns: i64,
        /// Part of `idle_ns`, beside `overhead_ns`, in which the device may have worked: launches before it have no row of a device, so
        /// their rows were lost. 0 if no launch lacks its work.
        unknown_ns: i64,
        /// All communication: |C|.
        comm_total_ns: i64,
        /// Share of communication that compute hides, by HTA's definition: 100·|K ∩ C| / |C|; null without
        /// communication.
        overlap_pct: Option<f64>,
    }

    /// One row per rank, device, stream and reason: the gaps between two pieces of work of the stream. By rank, device
    /// and stream.
    idle_breakdown: IdleBreakdownRow / IdleBreakdownBuilder / IdleBreakdownView; {
        /// Global rank.
        rank: i32,
        /// Device number.
        device_id: Option<i64>,
        /// CUDA stream.
        stream_id: Option<i64>,
        /// Reason, by HTA's categories with a cutoff of 30 µs: `host_wait`, `kernel_wait` or `other`.
        category: Word<IdleCategory>,
        /// Number of gaps.
        gaps: i64,
        /// Sum of the gaps.
        idle_ns: i64,
        /// Part of `idle_ns` in which a row of kind `overhead` ran, as in `step_breakdown`.
        overhead_ns: i64,
    }

    /// One row per collective, joined from the rows of all its ranks. By time.
    collective_instances: InstanceRow / InstanceBuilder / InstanceView; {
        /// Number of the collective in this analysis.
        instance: i64,
        /// Id of the communicator.
        comm_id: i64,
        /// Sequence number on the communicator.
        seq: Option<i64>,
        /// Operation, as in `collectives`.
        op: Word<Op>,
        /// Size of the whole array.
        bytes: Option<i64>,
        /// Training step.
        step: Option<i32>,
        /// Gradient bucket.
        bucket: Option<i32>,
        /// Number of ranks in the communicator.
        ranks_expected: Option<i32>,
        /// Number of ranks whose row was found.
        ranks_seen: i32,
        /// Whether the rows of all expected ranks were found, and all are `done`.
        complete: bool,
        /// Arrival of the first rank.
        first_start_ns: i64,
        /// Arrival of the last rank.
        last_start_ns: i64,
        /// Rank that arrived last.
        last_rank: i32,
        /// End: the lower median of the ranks' ends.
        end_ns: i64,
        /// Last arrival − first arrival; a lower bound if the collective is not complete.
        skew_ns: i64,
        /// End − last arrival; null for one-sided operations, for collectives that are not complete, and for transfers
        /// shorter than the clock error.
        transfer_ns: Option<i64>,
        /// Algorithm bandwidth: bytes / transfer. Of an all-to-all with unequal shares, bytes are the most that one rank sends or
        /// receives.
        algbw_gbs: Option<f64>,
        /// Bus bandwidth: algorithm bandwidth × the operation's factor (nccl-tests, PERFORMANCE.md). Of an all-to-all with unequal
        /// shares: the most bytes that one rank exchanges with others, in one direction / transfer.
        busbw_gbs: Option<f64>,
        /// Bus bandwidth over the mean duration of the ranks, with their waits.
        busbw_incl_wait_gbs: Option<f64>,
        /// Error of differences between ranks' times; null if unknown.
        error_ns: Option<i64>,
        /// Evidence that the rows belong together: `comms_id`, `seq` or `ordinal`.
        r#match: Word<MatchLevel>,
        /// Whether the waits by aligned clocks and the waits by durations alone differ by more than the clock error.
        clocks_disagree: bool,
    }

    /// One row per collective and rank: how long the rank waited for the last one. By collective and rank.
    collective_waits: WaitRow / WaitBuilder / WaitView; {
        /// Number of the collective, as in `collective_instances`.
        instance: i64,
        /// Global rank.
        rank: i32,
        /// Time when the rank entered.
        arrival_ns: i64,
        /// Wait for the last rank: min(last arrival, own end) − arrival.
        wait_ns: i64,
        /// Part of the wait, at least, in which the rank computes nothing: `wait_ns` less all compute under the collective.
        /// Null if ranks do not wait for each other there (sends, receives, broadcasts), or if it is unknown.
        exposed_wait_ns: Option<i64>,
        /// Wait by durations alone, without any clock: own duration − shortest duration of any rank.
        wait_clockfree_ns: Option<i64>,
        /// Own work before the collective, above the lower median of the ranks.
        own_excess_ns: i64,
        /// Lateness that earlier collectives caused.
        inherited_ns: i64,
    }

    /// One row per step, gradient bucket and rank: the life of its all-reduce. By step, bucket and rank.
    bucket_timing: BucketTimingRow / BucketTimingBuilder / BucketTimingView; {
        /// Training step.
        step: i32,
        /// Number of the bucket.
        bucket: i32,
        /// Global rank.
        rank: i32,
        /// Size of the bucket.
        bytes: Option<i64>,
        /// Time when the last gradient of the bucket was produced.
        ready_ns: Option<i64>,
        /// Time when the program handed the all-reduce to the library.
        enqueue_ns: Option<i64>,
        /// Time when the all-reduce began.
        start_ns: i64,
        /// Time when the all-reduce ended.
        end_ns: i64,
        /// Time in the queue: start − enqueue.
        queue_ns: Option<i64>,
        /// Wait for the last rank.
        wait_ns: Option<i64>,
        /// Transfer: from the arrival of the last rank to the end.
        transfer_ns: Option<i64>,
        /// Part of the all-reduce that no compute hides: |[start, end) \ K|.
        exposed_ns: i64,
        /// Share that compute hides: 100·(1 − exposed / (end − start)).
        hidden_pct: Option<f64>,
    }

    /// One row per rank, device and name of a kernel, copy or fill. By rank and device, longest total first.
    kernel_stats: KernelStatsRow / KernelStatsBuilder / KernelStatsView; {
        /// Global rank.
        rank: i32,
        /// Device number.
        device_id: Option<i64>,
        /// Name of the kernel, copy or fill.
        name: Text,
        /// Type of work: `compute`, `communication` or `memory`; that of the first row with this name.
        work: Word<WorkType>,
        /// What the work computes, by its name: `gemm`, `attention`, `convolution`, `normalization`, `elementwise`,
        /// `reduction`, `copy`, `communication` or `other`.
        category: Word<KernelCategory>,
        /// Whether the name says that the kernel computes on tensor cores. Other kernels may use them too.
        tensor_cores: bool,
        /// Number of calls.
        calls: i64,
        /// Sum of the durations.
        total_ns: i64,
        /// Sum of the durations without the time of enclosed rows.
        self_ns: i64,
        /// Shortest duration.
        min_ns: i64,
        /// Mean duration.
        mean_ns: f64,
        /// Longest duration.
        max_ns: i64,
        /// Standard deviation of the durations.
        std_ns: f64,
        /// Bytes moved, where known.
        bytes: Option<i64>,
        /// Floating-point operations, where known.
        flops: Option<i64>,
        /// Estimated achieved occupancy of the calls, weighted by their time; null where less than 90 % of it have one. Below 30, too few
        /// warps may hide the latency of the memory. Where torch.profiler writes 0 for a kernel that ran with more, by its
        /// launch parameters.
        occupancy_pct: Option<f64>,
        /// What keeps the occupancy of the longest call from being higher: `grid`, `registers`, `shared_memory`,
        /// `registers_and_shared_memory` or `block_size`; null if it is full, or if the limits of the device are unknown.
        occupancy_limit: Option<Word<OccupancyLimit>>,
        /// Mean number of blocks of the calls' grids; null where less than 90 % of the calls have one.
        mean_blocks: Option<f64>,
        /// Blocks of the grid by streaming multiprocessor (SM), weighted by the time of the calls; null where less than 90 % of
        /// it have a grid. Below 1, some SMs have no block.
        blocks_per_sm: Option<f64>,
        /// Threads of a block, in the longest call.
        block_threads: Option<i32>,
        /// Registers of a thread, in the longest call.
        registers: Option<i32>,
        /// Shared memory of a block, static and dynamic, in the longest call.
        shared_mem_bytes: Option<i64>,
        /// Mean duration on this device / median of the devices' means; with two devices, / the shorter of both means.
        /// A slow device has values above 1.
        vs_median_device: Option<f64>,
    }

    /// One row per rank and name of an operator or range of the host; device ranges have a device. By rank, longest
    /// total first.
    op_stats: OpStatsRow / OpStatsBuilder / OpStatsView, judged false; {
        /// Global rank.
        rank: i32,
        /// Device number; null on the host.
        device_id: Option<i64>,
        /// Name of the operator or range.
        name: Text,
        /// Number of calls.
        calls: i64,
        /// Sum of the durations.
        total_ns: i64,
        /// Sum of the durations without the time of enclosed rows.
        self_ns: i64,
        /// Shortest duration.
        min_ns: i64,
        /// Mean duration.
        mean_ns: f64,
        /// Longest duration.
        max_ns: i64,
        /// Standard deviation of the durations.
        std_ns: f64,
        /// Bytes moved, where known.
        bytes: Option<i64>,
        /// Floating-point operations, where known.
        flops: Option<i64>,
        /// Time of the kernels that the calls with FLOPs launched; on a rank without device work, of these calls.
        flops_ns: Option<i64>,
        /// FLOPs per second of `flops_ns`, over the calls that have a time; null if these have less than 90 % of `flops`.
        flops_per_s: Option<f64>,
        /// Bytes that the calls with FLOPs must move at least: each factor and each result once. The bytes moved, where
        /// the recording states them; null if those of a call are unknown.
        min_bytes: Option<i64>,
        /// Arithmetic intensity: `flops` / `min_bytes`. An upper bound, as `min_bytes` is a lower bound.
        max_flops_per_byte: Option<f64>,
        /// Intensity at which the device's peak arithmetic rate for the type meets its peak memory rate; null if one of
        /// them is unknown.
        ridge_flops_per_byte: Option<f64>,
        /// What limits the calls with FLOPs: `memory` if `max_flops_per_byte` is below the ridge, else `compute`, which is
        /// likely but not certain; `unknown` if one of the two is null. Null for operators without FLOPs.
        bound: Option<Word<RooflineBound>>,
        /// `flops_per_s` as a share of the device's dense peak rate for the type.
        peak_flops_pct: Option<f64>,
        /// `min_bytes` per second of `flops_ns`, as a share of the peak rate of the device's memory. A lower bound; above
        /// 100, the caches held some of the inputs.
        peak_bandwidth_pct: Option<f64>,
        /// Mean duration on this rank / median of the ranks' means; with two ranks, / the shorter of both means.
        vs_median_rank: Option<f64>,
    }

    /// One row per rank and module of the model (`torch.nn.Module`), a tree: own times and the totals of the children sum
    /// to the total. A module is named by its calls in the Python stack (`with_stack=True`). Each module follows its
    /// parent, the longest first.
    module_stats: ModuleStatsRow / ModuleStatsBuilder / ModuleStatsView, judged false; {
        /// Global rank.
        rank: i32,
        /// Names of the modules around it and its own, separated by dots: `Model_0.Block_3.Linear_7`.
        path: Text,
        /// `path` of the module around it; null for the outermost.
        parent_path: Option<Text>,
        /// Number of modules around it. Modules below 64 others count for the module around them.
        depth: i32,
        /// Its class, and its number among the modules of the class, as torch.profiler counts them.
        module: Text,
        /// Number of calls in the forward pass.
        calls: i64,
        /// Host time of the forward pass.
        host_total_ns: i64,
        /// The same without the modules inside.
        host_self_ns: i64,
        /// Time of the device work that the calls launched, communication and copies included, summed over streams.
        device_total_ns: i64,
        /// The same without that of the modules inside.
        device_self_ns: i64,
        /// Number of backward operators of its forward operators, and of calls of the module while such an operator
        /// runs, to compute activations again.
        backward_calls: i64,
        /// Host time of these.
        backward_host_total_ns: i64,
        /// The same without the modules inside.
        backward_host_self_ns: i64,
        /// Time of the device work that these launched.
        backward_device_total_ns: i64,
        /// The same without that of the modules inside.
        backward_device_self_ns: i64,
    }

    /// One row per rank and step whose operators have FLOPs, and the model FLOPs utilization (MFU). By rank and step.
    step_flops: StepFlopsRow / StepFlopsBuilder / StepFlopsView; {
        /// Global rank.
        rank: i32,
        /// Training step.
        step: i32,
        /// Length of the step; of several devices, the longest.
        wall_ns: i64,
        /// Floating-point operations of the step's operators.
        flops: i64,
        /// Calls whose FLOPs are unknown, because the recorded inputs do not determine them. With such calls, `flops` is
        /// too low.
        unknown_calls: i64,
        /// `flops` per second of `wall_ns`.
        flops_per_s: f64,
        /// Type in which most of them were computed: `bf16`, `f16`, `f32`, `f64`, `f8e4m3`, `f8e5m2`, or `tf32` for `f32`
        /// on a rank with kernels of that type; null if unknown.
        precision: Option<Text>,
        /// Dense peak rate of the rank's devices for this type; null if the devices or the type are unknown.
        peak_flops: Option<f64>,
        /// 100·`flops_per_s` / `peak_flops`; null without a peak, or with unknown calls.
        mfu_pct: Option<f64>,
    }

    /// One row per rank, device and name of a user annotation. By rank and device, longest total first.
    annotation_stats: AnnotationStatsRow / AnnotationStatsBuilder / AnnotationStatsView, judged false; {
        /// Global rank.
        rank: i32,
        /// Device number; null on the host.
        device_id: Option<i64>,
        /// Name of the annotation.
        name: Text,
        /// Number of occurrences.
        calls: i64,
        /// Sum of the durations.
        total_ns: i64,
        /// Shortest duration.
        min_ns: i64,
        /// Mean duration.
        mean_ns: f64,
        /// Longest duration.
        max_ns: i64,
        /// Standard deviation of the durations.
        std_ns: f64,
    }

    /// One row per rank and step: the per-rank critical path of the step, followed backwards from its end. It ends at the
    /// rank's own collectives and does not lead to the rank that was waited for: see `job_critical_path`. The parts sum to
    /// `wall_ns`. By rank and step.
    critical_path: CriticalPathRow / CriticalPathBuilder / CriticalPathView, listed |_| true, judged false; {
        /// Global rank.
        rank: i32,
        /// Training step.
        step: i32,
        /// Length of the step, up to the end of the last device work that it launched.
        wall_ns: i64,
        /// Largest part: `cpu`, `data_loading`, `gpu` (compute, copies, and gaps between them), `communication`,
        /// `launch` or `other`.
        bound_by: Word<BoundBy>,
        /// Code of the host: HTA's `cpu_bound` and the time between operators, which HTA leaves out.
        cpu_ns: i64,
        /// Part of `cpu_ns` outside any operator, mostly Python.
        host_gap_ns: i64,
        /// Ranges of data loaders: HTA's `data_loading`.
        data_loading_ns: i64,
        /// Kernels that compute; with `gpu_memory_ns` it is HTA's `gpu_compute_bound`.
        gpu_compute_ns: i64,
        /// Copies and fills.
        gpu_memory_ns: i64,
        /// Communication, with the waits for other ranks: HTA's `gpu_communication_bound`.
        communication_ns: i64,
        /// From the start of a launch to the start of its kernel: HTA's `gpu_kernel_launch_overhead`.
        launch_ns: i64,
        /// Between kernels that follow each other at once: HTA's `gpu_kernel_kernel_overhead`.
        kernel_gap_ns: i64,
        /// Waiting for work that was not recorded.
        other_ns: i64,
        /// Number of device rows on the path.
        device_rows: i64,
        /// Number of waits on the path in which the host waits for a device and no `cuda_sync` row states for which
        /// work; the path follows the row that ended last.
        inferred_waits: i64,
        /// Names with the most time on the path, without ranges of steps: `name=ns`, separated by `; `.
        longest: Text,
    }

    /// One row per rank: HTA's temporal breakdown of the whole trace, over device rows without `cuda_sync`, for
    /// comparison with HTA. By rank.
    hta_temporal_breakdown: HtaTemporalRow / HtaTemporalBuilder / HtaTemporalView, judged false; {
        /// Global rank.
        rank: i32,
        /// Last end − first start of kernels, copies and fills.
        kernel_time_ns: i64,
        /// Part of `kernel_time_ns` in which none of them ran.
        idle_time_ns: i64,
        /// Part in which a kernel computed: |K|.
        compute_time_ns: i64,
        /// The rest of `kernel_time_ns`.
        non_compute_time_ns: i64,
    }
}

tables! {
    result_list uses $, by Aggregator;

    /// One row per collective that some rank entered and did not leave before its recording ended: a hang, or a
    /// recording that was cut. Those with missing ranks first, then by communicator and sequence number.
    unfinished_collectives: UnfinishedRow / UnfinishedBuilder / UnfinishedView; {
        /// Id of the communicator.
        comm_id: i64,
        /// Name of the communicator.
        comm_name: Option<Text>,
        /// Sequence number, as in `collectives`.
        seq: Option<i64>,
        /// Operation, as in `collectives`.
        op: Word<Op>,
        /// Other side of a send or receive, as in `collectives`.
        peer: Option<i32>,
        /// Number of ranks in the communicator, where known.
        ranks_expected: Option<i32>,
        /// Global ranks that finished it.
        done: Option<Vec<i32>>,
        /// Global ranks on which it began and did not end.
        started: Option<Vec<i32>>,
        /// Global ranks that enqueued it, and on which it did not begin.
        enqueued: Option<Vec<i32>>,
        /// Global ranks of the communicator that never called it; empty if all did; null if it is not known which ranks
        /// these are.
        missing: Option<Vec<i32>>,
        /// Number of ranks of the communicator of which no row was found.
        unknown: i32,
        /// Whether some rank lost rows, so a rank that seems missing may have called it.
        rows_lost: bool,
    }

    /// One row per item that was lost or left out of the analysis. In the order in which they were found.
    omissions: OmissionRow / OmissionBuilder / OmissionView; {
        /// Whether recorded data is missing: `lost`, `left_out` or `note`. A lost item makes the exit code 3.
        kind: Word<OmissionKind>,
        /// File that holds the item, where there is one.
        file: Option<Text>,
        /// Global rank, where known.
        rank: Option<i32>,
        /// Item that was lost or left out: a rank, a file, rows.
        what: Text,
        /// Amount, in the unit that `what` names; null if unknown.
        amount: Option<i64>,
        /// Reason.
        why: Text,
    }

    /// One row if the analysis covers a part of the run; empty for a whole run.
    selection: SelectionRow / SelectionBuilder / SelectionView; {
        /// Options that selected the part, as on the command line.
        options: Text,
    }

    /// One row per finding. Findings that make numbers invalid come first, then those with a predicted saving, the
    /// largest first, then the others by severity.
    findings: FindingRow / FindingBuilder / FindingView; {
        /// Kind of the finding, such as `exposed-communication`; docs/method/findings.md lists all. A kind keeps its id, while
        /// titles may change.
        id: Text,
        /// Severity: `critical`, `warning` or `info`.
        severity: Word<Severity>,
        /// Upper bound of the time by which a step becomes shorter if the finding is remedied and nothing else changes;
        /// docs/method/findings.md says how each is bounded. Null where no prediction is possible.
        saving_ns: Option<i64>,
        /// The finding in one line.
        title: Text,
        /// Numbers that support the finding, and their threshold.
        evidence: Text,
        /// Table that holds these numbers.
        evidence_table: Text,
        /// Recommended action.
        suggestion: Text,
    }
}
