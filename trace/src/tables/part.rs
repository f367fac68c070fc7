//! The tables by which `map` hands the parts of ranks to `reduce`, beside those of the ranks and of the analysis. Times are
//! in the rank's clock.

use crate::Text;

tables! {
    part_list uses $, by Map;

    /// One row per mapped rank.
    mapped_ranks: MappedRankRow / MappedRankBuilder / MappedRankView; {
        /// Global rank.
        rank: i32,
        /// Number of ranks in the job.
        world_size: Option<i32>,
        /// Host name; empty if unknown.
        host: Text,
        /// Process id.
        pid: i64,
        /// Clock domain. Ranks with equal domains share one clock.
        clock_domain: Text,
        /// Whether the recorder ended in order.
        closed_cleanly: Option<bool>,
        /// File of the rank in messages.
        file: Text,
        /// Places in the job's parallelism, as the names of the rank's file or processes say them.
        roles: Option<Text>,
        /// First start of everything that was read.
        recorded_start_ns: Option<i64>,
        /// Last end of everything that was read.
        recorded_end_ns: Option<i64>,
        /// Whether some rows have a device's times.
        has_device_rows: bool,
        /// Number of rows of `events` that were read.
        rows: i64,
        /// Numbers of all active steps, also of those that are not selected.
        recorded_steps: Option<Vec<i32>>,
        /// Whether the selected time has a part of the recording.
        has_selected_time: bool,
        /// Whether it marks steps.
        has_marked_steps: bool,
        /// Time of all kernels that communicate.
        comm_kernels_ns: i64,
    }

    /// One row per row of `collectives` that a part has, in the same order: what a trace and the map add to that row.
    mapped_collectives: MappedCollectiveRow / MappedCollectiveBuilder / MappedCollectiveView; {
        /// Global rank.
        rank: i32,
        /// `Comms Id` of torch.profiler, stored by its bits.
        comms_id: Option<i64>,
        /// Time that no compute of its device hides.
        exposed_ns: Option<i64>,
    }

    /// One row per kernel name of a rank that may communicate, or that only its name tells to communicate.
    comm_evidence: CommEvidenceRow / CommEvidenceBuilder / CommEvidenceView; {
        /// Global rank.
        rank: i32,
        /// Name of the kernel.
        name: Text,
        /// Time of a kernel that only its name tells to communicate.
        by_name_ns: Option<i64>,
        /// Time of a kernel that may communicate.
        suspect_ns: Option<i64>,
        /// Part of `suspect_ns` during which other streams compute.
        suspect_overlap_ns: Option<i64>,
        /// Time from the first to the last row of the suspect's device.
        suspect_device_ns: Option<i64>,
    }

    /// One row per range of a rank without marked steps that may be its steps.
    recurring_ranges: RecurringRangeRow / RecurringRangeBuilder / RecurringRangeView; {
        /// Global rank.
        rank: i32,
        /// Regular expression of its name.
        pattern: Text,
        /// Number of calls.
        calls: i64,
        /// Mean length of a call.
        mean_ns: i64,
    }

    /// One row per step with work of the profiler or the driver, and one per name of that work.
    step_overhead: StepOverheadRow / StepOverheadBuilder / StepOverheadView; {
        /// Global rank.
        rank: i32,
        /// Training step.
        step: i32,
        /// Name of the work; null in the row of the step, whose time counts no instant twice.
        name: Option<Text>,
        /// Number of calls; 0 in the row of the step.
        calls: i64,
        /// Time of the work.
        total_ns: i64,
    }

    /// One row per rank, and a second one `without_waits` if it recorded its waits: the time between collectives in which the rank works by itself.
    own_time: OwnTimeRow / OwnTimeBuilder / OwnTimeView; {
        /// Global rank.
        rank: i32,
        /// Whether it is the own time without the waits that the rank recorded, for runs in which other ranks record none.
        without_waits: bool,
        /// Whether the rank has device work.
        has_device: bool,
        /// Whether the rank has device work or operators.
        has_work: bool,
        /// Number of host ranges beyond those in `own_ranges`.
        ranges_dropped: i64,
        /// Largest self time of one of these in one step.
        dropped_max_ns: i64,
    }

    /// One row per row of `collectives` that a part has, for each row of `own_time`, in the same order: the rank's own
    /// stretch before it.
    own_stretches: OwnStretchRow / OwnStretchBuilder / OwnStretchView; {
        /// Global rank.
        rank: i32,
        /// Whether it is the own time without the waits that the rank recorded, for runs in which other ranks record none.
        without_waits: bool,
        /// Time at which the rank entered the previous collective, or the start of the first recorded step.
        since_ns: i64,
        /// Latest end of an earlier collective, or the start of the first recorded step.
        from_ns: i64,
        /// Time at which the rank enters the collective.
        start_ns: i64,
        /// Time at which the rank leaves the collective.
        end_ns: Option<i64>,
        /// Own work from `since_ns` to `start_ns`; null if its begin is unknown.
        own_ns: Option<i64>,
        /// Position of the collective whose end is `from_ns`; null if that is the start of a step.
        previous: Option<i32>,
        /// Position of the collective that the rank entered at `since_ns`; null if that is the start of a step.
        entered: Option<i32>,
        /// Position of the last collective that the rank waited for before this one.
        waited: Option<i32>,
        /// Active training step of the collective.
        step: Option<i32>,
    }

    /// One row per row of `own_time` and active step.
    own_steps: OwnStepRow / OwnStepBuilder / OwnStepView; {
        /// Global rank.
        rank: i32,
        /// Whether it is the own time without the waits that the rank recorded, for runs in which other ranks record none.
        without_waits: bool,
        /// Training step.
        step: i32,
        /// Length of the step.
        dur_ns: i64,
        /// Time within the own stretches of the step in which a device works; without a device, an operator.
        busy_ns: i64,
    }

    /// One row per row of `own_time` and host range with time inside of own stretches, largest first.
    own_ranges: OwnRangeRow / OwnRangeBuilder / OwnRangeView; {
        /// Global rank.
        rank: i32,
        /// Whether it is the own time without the waits that the rank recorded, for runs in which other ranks record none.
        without_waits: bool,
        /// Name of the range; null for the time outside of all other ranges.
        name: Option<Text>,
        /// Whether the range loads input.
        input: bool,
        /// Name of the user's range that this Python frame fills.
        fills: Option<Text>,
        /// The user's Python function that is the innermost one for more than half of this time.
        code: Option<Text>,
        /// Whether it is a user's range or a Python frame inside of an operator of a host without a device.
        in_operator: bool,
        /// Self time in each step of `own_steps`.
        self_ns: Option<Vec<i64>>,
    }

    /// One row per row of `own_time` and start or end of a collective or step: the work of the rank before it, by kind.
    path_cuts: PathCutRow / PathCutBuilder / PathCutView; {
        /// Global rank.
        rank: i32,
        /// Whether it is the own time without the waits that the rank recorded, for runs in which other ranks record none.
        without_waits: bool,
        /// Time of the start or end.
        ts_ns: i64,
        /// Operators and calls of the host while no device works.
        cpu_ns: i64,
        /// Code of the host outside of them.
        host_gap_ns: i64,
        /// Ranges of data loaders while no device works.
        data_loading_ns: i64,
        /// Kernels that compute.
        gpu_compute_ns: i64,
        /// Copies and fills beside computing kernels.
        gpu_memory_ns: i64,
    }

    /// One row per row of `own_time` and active step: its window on a critical path.
    path_steps: PathStepRow / PathStepBuilder / PathStepView; {
        /// Global rank.
        rank: i32,
        /// Whether it is the own time without the waits that the rank recorded, for runs in which other ranks record none.
        without_waits: bool,
        /// Training step.
        step: i32,
        /// Start of the step.
        start_ns: i64,
        /// End of the step and of the device work that was launched in it.
        end_ns: i64,
    }

    /// One row per segment of a rank's program, by time: what lies between two begins of steps or calls of collectives.
    graph_segments: GraphSegmentRow / GraphSegmentBuilder / GraphSegmentView; {
        /// Global rank.
        rank: i32,
        /// Time at which the host reached its begin; that of the first segment is before all times.
        at_ns: i64,
        /// Position of the collective whose call is its begin.
        collective: Option<i32>,
        /// Number of the step that begins with it.
        step: Option<i32>,
        /// End of that step; null if it is not selected.
        step_end_ns: Option<i64>,
        /// Time of the host.
        host_ns: i64,
        /// Time of device work that was launched in it.
        device_ns: i64,
        /// Time by which its work started later than all that it waited for.
        late_ns: i64,
        /// Time by which its device work took longer because the rank communicated beside it.
        contended_ns: i64,
    }

    /// One row per node of a rank's graph, in an order in which each comes after those that it waits for.
    graph_nodes: GraphNodeRow / GraphNodeBuilder / GraphNodeView; {
        /// Global rank.
        rank: i32,
        /// Kind of the node by number: begin, host, wait, work, arrival at a collective, end of a collective.
        kind: i32,
        /// Position of its segment.
        segment: i32,
        /// Time at which the host reached it.
        at_ns: i64,
        /// Time at which it ended.
        end_ns: i64,
        /// Position of the collective that it is the arrival at, or the end of.
        collective: Option<i32>,
        /// Number of rows of `graph_paths` that lead to it.
        paths: i32,
    }

    /// One row per path between two nodes of a rank's graph, in the order of `graph_nodes`.
    graph_paths: GraphPathRow / GraphPathBuilder / GraphPathView; {
        /// Global rank.
        rank: i32,
        /// Position of the node at whose end it begins.
        from_node: i32,
        /// Time of the host on it.
        host_ns: i64,
        /// Time of device work on it.
        device_ns: i64,
        /// Time by which starts on it are late.
        late_ns: i64,
        /// All other time on it; negative where starts overlap ends.
        fixed_ns: i64,
    }
}
