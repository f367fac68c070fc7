//! The tables that ranks write. Times are in the rank's own clock unless a column says otherwise.

use crate::Text;

crate::tables! {
    /// One row per interval that a rank recorded.
    events: EventRow / EventBuilder / EventView, by Rank, sorted by Some("ts_ns"); {
        /// Global rank.
        rank: i32,
        /// Kineto's word for the row: `cpu_op`, `user_annotation`, `kernel`, `gpu_memcpy`, `cuda_runtime`, …
        kind: Text,
        /// Demangled kernel, operator or range name.
        name: Text,
        /// Start.
        ts_ns: i64,
        /// Length, never negative.
        dur_ns: i64,
        /// Unique in the rank, given when the row begins.
        id: i64,
        /// Training step the row belongs to (device rows: that of their launch); −1 between steps.
        step: Option<i32>,
        /// Process.
        pid: Option<i64>,
        /// Host thread.
        thread_id: Option<i64>,
        /// Device.
        device_id: Option<i64>,
        /// CUDA context.
        context_id: Option<i64>,
        /// CUDA stream.
        stream_id: Option<i64>,
        /// Joins a launch and its kernel, within (rank, pid).
        correlation_id: Option<i64>,
        /// Joins an operator and its launches.
        external_id: Option<i64>,
        /// `id` of the enclosing row of the same thread.
        parent_id: Option<i64>,
        /// The row had not ended when its part closed; a later row with the same id completes it.
        open: Option<bool>,
        /// Communication, by the rules of the analysis.
        is_comm: Option<bool>,
        /// Direction of a copy: `HtoD`, `DtoH`, `DtoD`, `PtoP`, …
        copy_kind: Option<Text>,
        /// Device a peer copy reads.
        src_device: Option<i64>,
        /// Device a peer copy writes.
        dst_device: Option<i64>,
        /// Kind of a synchronisation: `Event Sync`, `Stream Wait Event`, `Stream Sync`, `Context Sync`.
        sync_kind: Option<Text>,
        /// CUDA graph that launched the row.
        graph_id: Option<i64>,
        /// Node within that graph.
        graph_node_id: Option<i64>,
        /// Bytes moved.
        bytes: Option<i64>,
        /// Bandwidth of a copy or fill, as its profiler measured it.
        bandwidth_gbs: Option<f64>,
        /// Floating-point operations computed.
        flops: Option<i64>,
        /// Grid, three numbers.
        grid: Option<Vec<i32>>,
        /// Block, three numbers.
        block: Option<Vec<i32>>,
        /// Registers per thread.
        registers: Option<i32>,
        /// Shared memory per block, static and dynamic.
        shared_mem_bytes: Option<i64>,
        /// Estimated achieved occupancy.
        occupancy_pct: Option<f64>,
        /// Shapes of the inputs, as torch.profiler prints them.
        input_dims: Option<Text>,
        /// Types of the inputs, as torch.profiler prints them.
        input_types: Option<Text>,
        /// Call stack, outermost first, frames separated by `;`.
        stack: Option<Text>,
        /// Module hierarchy.
        module: Option<Text>,
        /// What else came with the row, as JSON.
        args: Option<Text>,
    }

    /// One row per rank and collective.
    collectives: CollectiveRow / CollectiveBuilder / CollectiveView, by Rank, sorted by None; {
        /// Global rank.
        rank: i32,
        /// Communicator, equal on all its ranks; a 64-bit unsigned id is stored by its bits.
        comm_id: i64,
        /// Communicator's name.
        comm_name: Option<Text>,
        /// Ranks in the communicator.
        comm_size: Option<i32>,
        /// Number of the collective on its communicator, equal on all its ranks.
        seq: Option<i64>,
        /// `allreduce`, `allgather`, `reducescatter`, `broadcast`, `reduce`, `alltoall`, `send`, `recv` or `barrier`.
        op: Text,
        /// Element type.
        dtype: Option<Text>,
        /// Elements.
        count: Option<i64>,
        /// Bytes of the whole array.
        bytes: Option<i64>,
        /// Root of a rooted operation.
        root: Option<i32>,
        /// Other side of a send or receive: its place in the communicator where `comms` tells `comm_rank`, else its rank.
        peer: Option<i32>,
        /// Training step.
        step: Option<i32>,
        /// Gradient bucket that is reduced.
        bucket: Option<i32>,
        /// The bucket's last gradient was produced.
        ready_ns: Option<i64>,
        /// Handed to the library.
        enqueue_ns: Option<i64>,
        /// Began.
        start_ns: Option<i64>,
        /// Ended.
        end_ns: Option<i64>,
        /// `done`, `started` or `enqueued`: a hang stays visible. A later row with the same communicator, `seq` and
        /// `op` replaces an earlier one.
        state: Text,
        /// Stream it ran on.
        stream_id: Option<i64>,
        /// Device it ran on.
        device_id: Option<i64>,
        /// Algorithm.
        algo: Option<Text>,
        /// Protocol.
        proto: Option<Text>,
        /// Channels used.
        channels: Option<i32>,
        /// How good the times are: `gpu_timer`, `cupti`, `proxy`, `host` or `enqueue`.
        timing_source: Text,
        /// The collective's row in `events`.
        event_id: Option<i64>,
    }

    /// One row per rank, operation and GPU channel, as NCCL's profiler plugin told of it; or per phase of one, or per copy
    /// engine's part of an operation.
    nccl_channels: NcclChannelRow / NcclChannelBuilder / NcclChannelView, by Rank, sorted by None; {
        /// Global rank.
        rank: i32,
        /// Communicator, as in `collectives`.
        comm_id: i64,
        /// Number, as in `collectives`.
        seq: Option<i64>,
        /// Operation, as in `collectives`.
        op: Text,
        /// Peer, as in `collectives`.
        peer: Option<i32>,
        /// Channel; null for a copy engine.
        channel: Option<i32>,
        /// Phase of the kernel (`initial_sync`, `compute`, `final_sync`), `ce_sync` or `ce_batch`; null for the channel as
        /// a whole.
        phase: Option<Text>,
        /// GPU's `globaltimer` at the start, as it came.
        gpu_start_ns: Option<i64>,
        /// GPU's `globaltimer` at the end, as it came.
        gpu_end_ns: Option<i64>,
        /// Start in the rank's clock.
        start_ns: Option<i64>,
        /// End in the rank's clock; null while it has not ended.
        end_ns: Option<i64>,
        /// Error of `start_ns` and `end_ns` against the GPU's clock; null if unknown.
        clock_error_ns: Option<i64>,
        /// NCCL's thread noticed the start.
        seen_start_ns: i64,
        /// NCCL's thread noticed the end.
        seen_end_ns: Option<i64>,
        /// Bytes of a copy engine's batch.
        bytes: Option<i64>,
        /// The GPU's stamps contradict themselves or their neighbours: NCCL keeps 64 per channel, and a host that falls
        /// behind reads newer ones.
        suspect: bool,
    }

    /// One row per rank, operation, channel and direction of NCCL's proxy thread, as its profiler plugin told of it.
    nccl_proxy: NcclProxyRow / NcclProxyBuilder / NcclProxyView, by Rank, sorted by None; {
        /// Global rank.
        rank: i32,
        /// Communicator, as in `collectives`.
        comm_id: i64,
        /// Number, as in `collectives`; null if the operation is not known.
        seq: Option<i64>,
        /// Operation, as in `collectives`; null if it is not known.
        op: Option<Text>,
        /// Channel.
        channel: i32,
        /// Rank of the communicator on the other side.
        peer: i32,
        /// Sends; else receives.
        is_send: bool,
        /// Process whose operation it is; with PXN another than that of the row.
        pid: i64,
        /// Steps that the operation has.
        steps: i32,
        /// Steps that were seen.
        steps_seen: i32,
        /// Bytes of one step.
        chunk_bytes: i64,
        /// Bytes that its steps moved, where they say.
        bytes: Option<i64>,
        /// Start.
        start_ns: i64,
        /// End; null while it has not ended.
        end_ns: Option<i64>,
        /// Time its steps waited for the GPU, summed.
        gpu_wait_ns: i64,
        /// Time its steps waited for the peer to be ready, summed.
        peer_wait_ns: i64,
        /// Time its steps waited for the network, summed.
        net_wait_ns: i64,
        /// Time its steps waited for a flush into the GPU's memory, summed.
        flush_wait_ns: i64,
    }

    /// One row per rank and communicator; a later row of the same communicator replaces an earlier one.
    comms: CommRow / CommBuilder / CommView, by Rank, sorted by None; {
        /// Global rank.
        rank: i32,
        /// Communicator, as in `collectives`.
        comm_id: i64,
        /// Its name.
        name: Option<Text>,
        /// Its number of ranks.
        size: Option<i32>,
        /// Its global ranks, in its own order, where known.
        ranks: Option<Vec<i32>>,
        /// This rank's number in it, which is what `peer` and `root` count in.
        comm_rank: Option<i32>,
        /// Hosts it spans.
        nodes: Option<i32>,
        /// Creation.
        created_ns: Option<i64>,
        /// Destruction.
        destroyed_ns: Option<i64>,
    }

    /// One row per rank and device.
    devices: DeviceRow / DeviceBuilder / DeviceView, by Rank, sorted by None; {
        /// Global rank.
        rank: i32,
        /// Device number as its process sees it.
        device_id: i64,
        /// Model.
        name: Option<Text>,
        /// Universal id.
        uuid: Option<Text>,
        /// Streaming multiprocessors.
        sm_count: Option<i32>,
        /// Highest core clock.
        clock_khz: Option<i64>,
        /// Highest memory clock.
        memory_clock_khz: Option<i64>,
        /// Memory.
        memory_bytes: Option<i64>,
        /// Peak arithmetic rate in FLOP/s.
        peak_flops: Option<f64>,
        /// Peak memory rate in bytes/s.
        peak_bytes_per_s: Option<f64>,
    }

    /// One row per arrow between two rows of a rank.
    flows: FlowRow / FlowBuilder / FlowView, by Rank, sorted by None; {
        /// Global rank.
        rank: i32,
        /// Unique in (rank, kind).
        id: i64,
        /// `fwdbwd` or `launch`.
        kind: Text,
        /// `id` of the row it leaves.
        src_id: i64,
        /// `id` of the row it enters.
        dst_id: i64,
    }

    /// One row per rank and training step that was recorded or warmed up.
    steps: StepRow / StepBuilder / StepView, by Rank, sorted by None; {
        /// Global rank.
        rank: i32,
        /// Step number, from 0.
        step: i32,
        /// `warmup` or `active`.
        phase: Text,
        /// Start.
        start_ns: i64,
        /// End.
        end_ns: i64,
        /// Loss on this rank's batch, before the update.
        loss: Option<f64>,
    }

    /// One row per process that records the rank; a later row of the same process replaces an earlier one.
    ranks: RankRow / RankBuilder / RankView, by Rank, sorted by None; {
        /// Global rank.
        rank: i32,
        /// Ranks in the job.
        world_size: i32,
        /// Rank within the host.
        local_rank: Option<i32>,
        /// Host name.
        host: Text,
        /// Process.
        pid: i64,
        /// Linux boot id of the host.
        boot_id: Option<Text>,
        /// Boot id, clock name, time namespace and whether the clock is bent: equal domains share one clock.
        clock_domain: Text,
        /// Device model.
        device_name: Option<Text>,
        /// Device's universal id.
        device_uuid: Option<Text>,
        /// What started the ranks: `openmpi`, `mpich`, `slurm`, `torchrun`, `none`, …
        launcher: Option<Text>,
        /// Versions of the tools involved, as JSON.
        versions: Option<Text>,
        /// The recorder ended in order; false in the row written at the start.
        closed_cleanly: bool,
    }

    /// What a source stored and lost. Rows of one source add up: each part brings what came since the part before.
    counters: CounterRow / CounterBuilder / CounterView, by Rank, sorted by None; {
        /// Global rank.
        rank: i32,
        /// `host:THREAD`, `collectives:THREAD`, `memory:THREAD`, `cupti:KIND` or `cupti:CAUSE`, the name of a table that
        /// was handed over, or `writer:TABLE` for rows that a part could not take.
        source: Text,
        /// Rows stored.
        recorded: i64,
        /// Rows lost: a queue was full, or a part could not be written.
        dropped: i64,
        /// Rows left out on purpose.
        omitted: i64,
        /// Why something was lost or left out.
        why: Option<Text>,
    }

    /// One row per comparison of two clocks.
    clock_samples: ClockSampleRow / ClockSampleBuilder / ClockSampleView, by Rank, sorted by None; {
        /// Global rank.
        rank: i32,
        /// The rank it compared with; null for `utc` and `gpu`.
        peer_rank: Option<i32>,
        /// `ping`, `utc` or `gpu`.
        kind: Text,
        /// This rank's clock: the midpoint between send and receive.
        local_ns: i64,
        /// The other clock, read in between.
        remote_ns: i64,
        /// remote − local.
        offset_ns: i64,
        /// Time between send and receive on this rank's clock: the true offset is within ± half of it.
        rtt_ns: i64,
    }

    /// One row per allocation or release.
    memory: MemoryRow / MemoryBuilder / MemoryView, by Rank, sorted by Some("ts_ns"); {
        /// Global rank.
        rank: i32,
        /// When.
        ts_ns: i64,
        /// Device; null on the host.
        device_id: Option<i64>,
        /// What it holds.
        name: Option<Text>,
        /// Size, negative for a release.
        delta_bytes: i64,
        /// In use afterwards.
        allocated_bytes: Option<i64>,
        /// Held by the allocator afterwards.
        reserved_bytes: Option<i64>,
        /// Address, by its bits.
        address: Option<i64>,
    }

    /// One row per gradient bucket.
    buckets: BucketRow / BucketBuilder / BucketView, by Rank, sorted by None; {
        /// Global rank.
        rank: i32,
        /// Number, in the order of launch.
        bucket: i32,
        /// Size.
        bytes: i64,
        /// Name of the parameter whose gradient fills it first.
        first_parameter: Text,
        /// Name of the parameter whose gradient fills it last.
        last_parameter: Text,
    }
}

/// Every table that ranks write.
pub fn rank_tables() -> Vec<crate::Table> {
    declared()
}
