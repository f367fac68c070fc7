//! The tables that the aggregator writes. Times of day are in global ns: the clock of the reference rank.

use crate::Text;

crate::tables! {
    /// How each rank's clock maps to global time: global = t + offset + drift·(t − origin).
    clock_fit: ClockFitRow / ClockFitBuilder / ClockFitView, by Aggregator, sorted by None; {
        /// Global rank.
        rank: i32,
        /// `host` or `device`.
        clock: Text,
        /// The rank whose clock is global time.
        reference_rank: i32,
        /// Offset at `origin_ns`.
        offset_ns: i64,
        /// Drift in parts per 10⁹; null where the evidence spans too little time to tell.
        drift_ppb: Option<f64>,
        /// Local time from which drift counts.
        origin_ns: i64,
        /// 95 % of the estimate's error, over the recorded window; null: unknown.
        error_ns: Option<i64>,
        /// Guaranteed error, over the recorded window; null: there is no guarantee.
        bound_ns: Option<i64>,
        /// `ping`, `same_host`, `collective`, `collective_weak`, `utc` or `none`.
        method: Text,
        /// Samples used.
        samples: i64,
        /// 95th percentile of the samples' distances from the fit.
        residual_p95_ns: Option<i64>,
        /// Collectives that this rank left before another rank had entered, by more than the two ranks' bounds.
        violations: i64,
    }

    /// Where the time of each rank and step went; the five parts sum to wall.
    step_breakdown: StepBreakdownRow / StepBreakdownBuilder / StepBreakdownView, by Aggregator, sorted by None; {
        /// Global rank.
        rank: i32,
        /// Device; null for the CPU.
        device_id: Option<i64>,
        /// Step; null for everything recorded, −1 for the time between steps.
        step: Option<i32>,
        /// Length of the window.
        wall_ns: i64,
        /// |K \ C|: compute alone.
        compute_ns: i64,
        /// |K ∩ C|: communication hidden under compute.
        overlap_ns: i64,
        /// |C \ K|: communication that nothing hides.
        exposed_comm_ns: i64,
        /// |M \ (K ∪ C)|: copies and fills alone.
        memory_ns: i64,
        /// The rest.
        idle_ns: i64,
        /// |C|.
        comm_total_ns: i64,
        /// 100·|K ∩ C| / |C| (HTA's definition); null without communication.
        overlap_pct: Option<f64>,
    }

    /// Why each stream was idle between two of its rows.
    idle_breakdown: IdleBreakdownRow / IdleBreakdownBuilder / IdleBreakdownView, by Aggregator, sorted by None; {
        /// Global rank.
        rank: i32,
        /// Device.
        device_id: Option<i64>,
        /// Stream.
        stream_id: Option<i64>,
        /// `host_wait`, `kernel_wait` or `other` (HTA's categories, cutoff 30 µs).
        category: Text,
        /// Gaps.
        gaps: i64,
        /// Their total.
        idle_ns: i64,
    }

    /// One row per collective, seen by all its ranks.
    collective_instances: InstanceRow / InstanceBuilder / InstanceView, by Aggregator, sorted by None; {
        /// Number of the instance in this analysis.
        instance: i64,
        /// Communicator.
        comm_id: i64,
        /// Number on the communicator.
        seq: Option<i64>,
        /// Operation.
        op: Text,
        /// Bytes of the whole array.
        bytes: Option<i64>,
        /// Step.
        step: Option<i32>,
        /// Bucket.
        bucket: Option<i32>,
        /// Ranks in the communicator.
        ranks_expected: Option<i32>,
        /// Ranks whose row was found.
        ranks_seen: i32,
        /// All expected ranks were seen, and all are done.
        complete: bool,
        /// First arrival.
        first_start_ns: i64,
        /// Last arrival.
        last_start_ns: i64,
        /// The rank that arrived last.
        last_rank: i32,
        /// Lower median of the ranks' ends.
        end_ns: i64,
        /// Last arrival − first arrival; for an incomplete instance a lower bound.
        skew_ns: i64,
        /// end − last arrival; null for one-sided operations, incomplete instances and transfers inside the clock
        /// error.
        transfer_ns: Option<i64>,
        /// bytes / transfer.
        algbw_gbs: Option<f64>,
        /// algbw × the operation's factor (nccl-tests, PERFORMANCE.md).
        busbw_gbs: Option<f64>,
        /// The same against the mean of the ranks' full durations, their waits included.
        busbw_incl_wait_gbs: Option<f64>,
        /// Error of differences between ranks; null: unknown.
        error_ns: Option<i64>,
        /// How the rows were matched: `comms_id`, `seq` or `ordinal`.
        r#match: Text,
        /// The aligned waits and their clock-free twins differ by more than the clock error.
        clocks_disagree: bool,
    }

    /// One row per collective and rank: how long it waited for the last.
    collective_waits: WaitRow / WaitBuilder / WaitView, by Aggregator, sorted by None; {
        /// Number of the instance.
        instance: i64,
        /// Global rank.
        rank: i32,
        /// When it entered.
        arrival_ns: i64,
        /// min(last arrival, its end) − arrival.
        wait_ns: i64,
        /// Its duration − the shortest duration of any rank: the wait without any clock.
        wait_clockfree_ns: Option<i64>,
        /// Its own stretch before the collective, above the lower median of the ranks.
        own_excess_ns: i64,
        /// Lateness that it had from earlier collectives.
        inherited_ns: i64,
    }

    /// One row per step, bucket and rank.
    bucket_timing: BucketTimingRow / BucketTimingBuilder / BucketTimingView, by Aggregator, sorted by None; {
        /// Step.
        step: i32,
        /// Bucket.
        bucket: i32,
        /// Global rank.
        rank: i32,
        /// Size.
        bytes: Option<i64>,
        /// Its last gradient was produced.
        ready_ns: Option<i64>,
        /// Its all-reduce was handed to the library.
        enqueue_ns: Option<i64>,
        /// Its all-reduce began.
        start_ns: i64,
        /// Its all-reduce ended.
        end_ns: i64,
        /// start − enqueue.
        queue_ns: Option<i64>,
        /// Waiting for the last rank.
        wait_ns: Option<i64>,
        /// From the last arrival to the end.
        transfer_ns: Option<i64>,
        /// |[start, end) \ K|: the part that no compute hides.
        exposed_ns: i64,
        /// 100·(1 − exposed / (end − start)).
        hidden_pct: Option<f64>,
    }

    /// One row per rank: did it make the others wait?
    stragglers: StragglerRow / StragglerBuilder / StragglerView, by Aggregator, sorted by None; {
        /// Global rank.
        rank: i32,
        /// Steps analysed.
        steps: i32,
        /// Steps in which it was the last to arrive at more collectives than any other rank.
        steps_last: i32,
        /// Median over steps of its own work between collectives above the lower median of the ranks.
        own_excess_ns: i64,
        /// Lower end of its 95 % interval (order statistics over steps); null with too few steps.
        own_excess_low_ns: Option<i64>,
        /// Upper end.
        own_excess_high_ns: Option<i64>,
        /// Own excess on the blocking chain, per step, but where the verdict stands on a range, at most the excess of
        /// all ranges that stand out: what "ms per step" means.
        step_delay_ns: i64,
        /// Waits of other ranks charged to it, per step.
        caused_wait_ns: i64,
        /// Part of its lateness that it had from others, per step.
        inherited_ns: i64,
        /// Time it waited for others, per step.
        suffered_wait_ns: i64,
        /// Distance of its excess from that of the other ranks, in standard errors of a median over steps; null where
        /// the others do not vary.
        z: Option<f64>,
        /// Share of steps that show it.
        persistence: Option<f64>,
        /// Time of the run / its time with this rank's own work replaced by the lower median's.
        slowdown: Option<f64>,
        /// `cause`, `victim`, `ok` or `undecided`.
        verdict: Text,
        /// `compute`, `host`, `input` or `communication`; null unless it is a cause or may be one.
        reason: Option<Text>,
        /// The host range that holds the excess; for a frame of Python's stack that fills a named range, that range.
        evidence_range: Option<Text>,
        /// Excess of that range per step.
        evidence_excess_ns: Option<i64>,
        /// Distance of that range's excess from what the range takes on the other ranks, in standard errors of a median
        /// over steps.
        evidence_z: Option<f64>,
        /// Share of steps that show at least half of that range's excess.
        evidence_persistence: Option<f64>,
        /// What the verdict stands on: `range` (`evidence_z`) or `stretch`, all of its own work between collectives
        /// (`z`); null unless it is a cause or may be one.
        stands_on: Option<Text>,
        /// The case in a sentence.
        evidence: Option<Text>,
    }

    /// Kernels by name.
    kernel_stats: KernelStatsRow / KernelStatsBuilder / KernelStatsView, by Aggregator, sorted by None; {
        /// Global rank.
        rank: i32,
        /// Device.
        device_id: Option<i64>,
        /// Kernel, copy or fill.
        name: Text,
        /// `compute`, `communication` or `memory`; the first that was seen under this name.
        work: Text,
        /// Calls.
        calls: i64,
        /// Total time.
        total_ns: i64,
        /// Total less the time of enclosed rows.
        self_ns: i64,
        /// Shortest.
        min_ns: i64,
        /// Mean.
        mean_ns: f64,
        /// Longest.
        max_ns: i64,
        /// Standard deviation over calls.
        std_ns: f64,
        /// Bytes, where known.
        bytes: Option<i64>,
        /// FLOPs, where known.
        flops: Option<i64>,
        /// Mean on this device / median of the devices' means: a slow device shows here.
        vs_median_device: Option<f64>,
    }

    /// Operators and ranges of the host by name.
    op_stats: OpStatsRow / OpStatsBuilder / OpStatsView, by Aggregator, sorted by None; {
        /// Global rank.
        rank: i32,
        /// Device; null on the host.
        device_id: Option<i64>,
        /// Operator or range.
        name: Text,
        /// Calls.
        calls: i64,
        /// Total time.
        total_ns: i64,
        /// Total less the time of enclosed rows.
        self_ns: i64,
        /// Shortest.
        min_ns: i64,
        /// Mean.
        mean_ns: f64,
        /// Longest.
        max_ns: i64,
        /// Standard deviation over calls.
        std_ns: f64,
        /// Bytes, where known.
        bytes: Option<i64>,
        /// FLOPs, where known.
        flops: Option<i64>,
        /// Mean on this rank / median of the ranks' means.
        vs_median_rank: Option<f64>,
    }

    /// User annotations by name.
    annotation_stats: AnnotationStatsRow / AnnotationStatsBuilder / AnnotationStatsView, by Aggregator, sorted by None; {
        /// Global rank.
        rank: i32,
        /// Device; null on the host.
        device_id: Option<i64>,
        /// Annotation.
        name: Text,
        /// Occurrences.
        calls: i64,
        /// Total time.
        total_ns: i64,
        /// Shortest.
        min_ns: i64,
        /// Mean.
        mean_ns: f64,
        /// Longest.
        max_ns: i64,
        /// Standard deviation over occurrences.
        std_ns: f64,
    }

    /// The critical path of each step: what the step waited for, backwards from its end. The parts sum to wall.
    critical_path: CriticalPathRow / CriticalPathBuilder / CriticalPathView, by Aggregator, sorted by None; {
        /// Global rank.
        rank: i32,
        /// Step.
        step: i32,
        /// Length of the step, up to the end of the last device work launched in it.
        wall_ns: i64,
        /// The largest part: `cpu`, `data_loading`, `gpu` (compute, copies, and gaps between them), `communication`,
        /// `launch` or `other`.
        bound_by: Text,
        /// Code of the host (HTA's `cpu_bound`, and the time between operators, which HTA leaves out).
        cpu_ns: i64,
        /// Of `cpu_ns`: outside any operator; Python, mostly.
        host_gap_ns: i64,
        /// Ranges of data loaders (HTA's `data_loading`).
        data_loading_ns: i64,
        /// Kernels that compute (HTA's `gpu_compute_bound`, with `gpu_memory_ns`).
        gpu_compute_ns: i64,
        /// Copies and fills.
        gpu_memory_ns: i64,
        /// Communication, waiting for other ranks included (HTA's `gpu_communication_bound`).
        communication_ns: i64,
        /// From the start of a launch to that of its kernel (HTA's `gpu_kernel_launch_overhead`).
        launch_ns: i64,
        /// Between kernels that follow each other at once (HTA's `gpu_kernel_kernel_overhead`).
        kernel_gap_ns: i64,
        /// Waiting for what was not recorded.
        other_ns: i64,
        /// Device rows on the path.
        device_rows: i64,
        /// Waits of the host for a device on the path that no `cuda_sync` row tells; the row that ended last is taken
        /// for their reason.
        inferred_waits: i64,
        /// Names with the most time on the path, `name=ns`, separated by `; `.
        longest: Text,
    }

    /// The highest use of memory.
    memory_peaks: MemoryPeakRow / MemoryPeakBuilder / MemoryPeakView, by Aggregator, sorted by None; {
        /// Global rank.
        rank: i32,
        /// Device; null on the host.
        device_id: Option<i64>,
        /// When.
        ts_ns: i64,
        /// In use then.
        peak_bytes: i64,
        /// What was alive: the largest holders, `name=bytes`, separated by `; `.
        alive: Text,
    }

    /// HTA's temporal breakdown, for people who compare: whole trace, device rows, no cuda_sync.
    hta_temporal_breakdown: HtaTemporalRow / HtaTemporalBuilder / HtaTemporalView, by Aggregator, sorted by None; {
        /// Global rank.
        rank: i32,
        /// Last end − first start of kernel, memcpy and memset rows.
        kernel_time_ns: i64,
        /// Part of it in which none of them ran.
        idle_time_ns: i64,
        /// |K|.
        compute_time_ns: i64,
        /// The rest.
        non_compute_time_ns: i64,
    }

    /// Collectives that some rank entered and did not leave before its recording ended, and who is missing from them: a
    /// hang, or where the recording was cut.
    unfinished_collectives: UnfinishedRow / UnfinishedBuilder / UnfinishedView, by Aggregator, sorted by None; {
        /// Communicator.
        comm_id: i64,
        /// Its name.
        comm_name: Option<Text>,
        /// Number, as in `collectives`.
        seq: Option<i64>,
        /// Operation.
        op: Text,
        /// Other side of a send or receive.
        peer: Option<i32>,
        /// Ranks in the communicator, where known.
        ranks_expected: Option<i32>,
        /// Global ranks that finished it.
        done: Option<Vec<i32>>,
        /// Global ranks in which it began and did not end.
        started: Option<Vec<i32>>,
        /// Global ranks that handed it over, and in which it did not begin.
        enqueued: Option<Vec<i32>>,
        /// Global ranks of the communicator that never called it; empty if all did; null where it is not known which
        /// ranks these are.
        missing: Option<Vec<i32>>,
        /// Ranks that never called it and of which nothing else is known of this communicator.
        unknown: i32,
        /// Some rank lost rows, so that one that seems missing may have called it.
        rows_lost: bool,
    }

    /// What was left out of the analysis.
    omissions: OmissionRow / OmissionBuilder / OmissionView, by Aggregator, sorted by None; {
        /// File, where one is to blame.
        file: Option<Text>,
        /// Rank, where known.
        rank: Option<i32>,
        /// What was left out.
        what: Text,
        /// How much, in the unit that `what` names; null: unknown.
        amount: Option<i64>,
        /// Why.
        why: Text,
    }

    /// Sentences with evidence.
    findings: FindingRow / FindingBuilder / FindingView, by Aggregator, sorted by None; {
        /// `critical`, `warning` or `info`.
        severity: Text,
        /// One line.
        title: Text,
        /// The numbers behind it, and the threshold.
        evidence: Text,
        /// The table that holds them.
        evidence_table: Text,
        /// What to do.
        suggestion: Text,
    }
}

/// Every table that the aggregator writes.
pub fn analysis_tables() -> Vec<crate::Table> {
    declared().into_iter().chain(crate::device_tables::device_tables()).collect()
}
