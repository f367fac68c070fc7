//! The tables that ranks write. Times are in the rank's own clock unless a column states otherwise.

use crate::words::{ChannelPhase, CommOrigin, Dtype, FlowKind, Kind, Op, Phase, SampleKind, State, TimingSource};
use crate::{Text, Word};

tables! {
    rank_list uses $, by Rank;

    /// One row per interval that a rank recorded: an operator, a range, a call, a kernel, a copy.
    events: EventRow / EventBuilder / EventView, sorted by "ts_ns"; {
        /// Global rank.
        rank: i32,
        /// Kind of event, in Kineto's words: `cpu_op`, `user_annotation`, `kernel`, `gpu_memcpy`, `cuda_runtime`, …
        kind: Word<Kind>,
        /// Name of the kernel (demangled), operator or range.
        name: Text,
        /// Start of the interval.
        ts_ns: i64,
        /// Length of the interval; never negative.
        dur_ns: i64,
        /// Id of the row, unique in the rank; assigned when the interval begins.
        id: i64,
        /// Training step of the row; for device work, the step of its launch; −1 between steps.
        step: Option<i32>,
        /// Process id.
        pid: Option<i64>,
        /// Id of the host thread, as the system numbers it.
        thread_id: Option<i64>,
        /// Device number, as the process sees it.
        device_id: Option<i64>,
        /// CUDA context.
        context_id: Option<i64>,
        /// CUDA stream.
        stream_id: Option<i64>,
        /// Number that a launch and its kernel share; unique within (rank, pid).
        correlation_id: Option<i64>,
        /// Number that an operator and its launches share.
        external_id: Option<i64>,
        /// `id` of the enclosing row of the same thread.
        parent_id: Option<i64>,
        /// Whether the interval was still running when its part closed; a later row with the same `id` replaces this
        /// one.
        open: Option<bool>,
        /// Whether the row is communication, by the rules of the analysis.
        is_comm: Option<bool>,
        /// Direction of a copy: `HtoD`, `DtoH`, `DtoD`, `PtoP`, …
        copy_kind: Option<Text>,
        /// Device that a peer copy reads.
        src_device: Option<i64>,
        /// Device that a peer copy writes.
        dst_device: Option<i64>,
        /// Type of a synchronisation: `Event Sync`, `Stream Wait Event`, `Stream Sync`, `Context Sync`.
        sync_kind: Option<Text>,
        /// CUDA graph that launched the row.
        graph_id: Option<i64>,
        /// Node of the graph that the row ran.
        graph_node_id: Option<i64>,
        /// Bytes that the row moved.
        bytes: Option<i64>,
        /// Bandwidth of a copy or fill, as the profiler measured it.
        bandwidth_gbs: Option<f64>,
        /// Floating-point operations that the row computed.
        flops: Option<i64>,
        /// Bytes that an operator with `flops` must move at least: its factors and its result once. Caches may hold some
        /// of them.
        min_bytes: Option<i64>,
        /// Blocks of the grid in x, y and z.
        grid: Option<Vec<i32>>,
        /// Threads of a block in x, y and z.
        block: Option<Vec<i32>>,
        /// Registers of a thread.
        registers: Option<i32>,
        /// Shared memory of a block, static and dynamic.
        shared_mem_bytes: Option<i64>,
        /// Estimated achieved occupancy of the kernel.
        occupancy_pct: Option<f64>,
        /// Shapes of the inputs, as torch.profiler prints them.
        input_dims: Option<Text>,
        /// Types of the inputs, as torch.profiler prints them.
        input_types: Option<Text>,
        /// Call stack, outermost first, frames separated by `;`.
        stack: Option<Text>,
        /// Path of the `nn.Module` that called the operator.
        module: Option<Text>,
        /// Further arguments of the row, as JSON.
        args: Option<Text>,
    }

    /// One row per rank and collective. A later row with the same communicator, `seq` and `op` replaces an earlier one.
    collectives: CollectiveRow / CollectiveBuilder / CollectiveView; {
        /// Global rank.
        rank: i32,
        /// Id of the communicator, equal on all its ranks.
        comm_id: i64,
        /// Name of the communicator.
        comm_name: Option<Text>,
        /// Number of ranks in the communicator.
        comm_size: Option<i32>,
        /// Sequence number of the collective on its communicator, equal on all its ranks.
        seq: Option<i64>,
        /// Operation: `allreduce`, `allgather`, `reducescatter`, `broadcast`, `reduce`, `alltoall`, `send`, `recv`,
        /// `barrier`.
        op: Word<Op>,
        /// Element type; NCCL's rows spell it `float32`, all others `f32`.
        dtype: Option<Word<Dtype>>,
        /// Number of elements.
        count: Option<i64>,
        /// Size of the whole array.
        bytes: Option<i64>,
        /// Bytes of an all-to-all for each rank of the communicator, in its order, this rank included. Null if all shares are
        /// equal or the source does not divide them; empty if shares are unequal and their sizes unknown.
        sent_bytes: Option<Vec<i64>>,
        /// Bytes of an all-to-all from each rank of the communicator, as `sent_bytes`.
        received_bytes: Option<Vec<i64>>,
        /// Root of a rooted operation, by its number in the communicator.
        root: Option<i32>,
        /// Other side of a send or receive: its number in the communicator where `comms.comm_rank` is known, else its
        /// global rank.
        peer: Option<i32>,
        /// Training step.
        step: Option<i32>,
        /// Gradient bucket that the collective reduces.
        bucket: Option<i32>,
        /// Time when the bucket's last gradient was produced.
        ready_ns: Option<i64>,
        /// Time when the program handed it to the library.
        enqueue_ns: Option<i64>,
        /// Time when it began.
        start_ns: Option<i64>,
        /// Time when it ended.
        end_ns: Option<i64>,
        /// Progress: `done`, `started` or `enqueued`; `unreported` where the library reports no progress. The last row of a
        /// hung collective is `started` or `enqueued`.
        state: Word<State>,
        /// Stream of the collective.
        stream_id: Option<i64>,
        /// Device of the collective.
        device_id: Option<i64>,
        /// Algorithm of the library, such as `RING` or `TREE`.
        algo: Option<Text>,
        /// Protocol of the library, such as `LL`, `LL128` or `SIMPLE`.
        proto: Option<Text>,
        /// Number of channels.
        channels: Option<i32>,
        /// Origin of the times, best first: `gpu_timer`, `cupti`, `proxy`, `host` or `enqueue`.
        timing_source: Word<TimingSource>,
        /// `id` of the collective's row in `events`.
        event_id: Option<i64>,
        /// Whether NCCL carried it out together with others of its group, so that its times are those of all of them.
        fused: Option<bool>,
    }

    /// One row per rank, operation and GPU channel, one per phase of a channel, and one per copy engine's part of an
    /// operation. NCCL's profiler plugin reports them.
    nccl_channels: NcclChannelRow / NcclChannelBuilder / NcclChannelView; {
        /// Global rank.
        rank: i32,
        /// Id of the communicator, as in `collectives`.
        comm_id: i64,
        /// Sequence number, as in `collectives`.
        seq: Option<i64>,
        /// Operation, as in `collectives`.
        op: Word<Op>,
        /// Other side of a send or receive, as in `collectives`.
        peer: Option<i32>,
        /// Number of the channel; null for a copy engine.
        channel: Option<i32>,
        /// Phase of the kernel (`initial_sync`, `compute`, `final_sync`), `ce_sync` or `ce_batch`; null for the channel
        /// as a whole.
        phase: Option<Word<ChannelPhase>>,
        /// The GPU's `globaltimer` at the start, unchanged.
        gpu_start_ns: Option<i64>,
        /// The GPU's `globaltimer` at the end, unchanged.
        gpu_end_ns: Option<i64>,
        /// Start, in the rank's clock.
        start_ns: Option<i64>,
        /// End, in the rank's clock; null if it has not ended.
        end_ns: Option<i64>,
        /// Error of `start_ns` and `end_ns` against the GPU's clock; null if unknown.
        clock_error_ns: Option<i64>,
        /// Time when NCCL's thread noticed the start.
        seen_start_ns: i64,
        /// Time when NCCL's thread noticed the end.
        seen_end_ns: Option<i64>,
        /// Size of a copy engine's batch.
        bytes: Option<i64>,
        /// Whether the GPU's timestamps contradict themselves, their neighbours or the launch, or may be those of another
        /// operation. NCCL keeps 64 per channel; a host that falls behind reads newer ones. Before 2.31 it also confuses
        /// those after a send to oneself and after a CUDA graph.
        suspect: bool,
    }

    /// One row per rank, operation, channel and direction of NCCL's proxy thread. NCCL's profiler plugin reports them.
    nccl_proxy: NcclProxyRow / NcclProxyBuilder / NcclProxyView; {
        /// Global rank.
        rank: i32,
        /// Id of the communicator, as in `collectives`.
        comm_id: i64,
        /// Sequence number, as in `collectives`; null if the operation is not known.
        seq: Option<i64>,
        /// Operation, as in `collectives`; null if it is not known.
        op: Option<Word<Op>>,
        /// Number of the channel.
        channel: i32,
        /// Other side, by its number in the communicator.
        peer: i32,
        /// Whether the proxy sends; else it receives.
        is_send: bool,
        /// Process that called the operation; with PXN this is not the process of the proxy.
        pid: i64,
        /// Number of network steps that the operation has.
        steps: i32,
        /// Number of network steps that were recorded.
        steps_seen: i32,
        /// Size of one network step.
        chunk_bytes: i64,
        /// Bytes that the steps moved, where NCCL reports them.
        bytes: Option<i64>,
        /// Start of the operation.
        start_ns: i64,
        /// End of the operation; null if it has not ended.
        end_ns: Option<i64>,
        /// Sum of the times that the steps waited for the GPU.
        gpu_wait_ns: i64,
        /// Sum of the times that the steps waited for the peer to be ready.
        peer_wait_ns: i64,
        /// Sum of the times that the steps waited for the network.
        net_wait_ns: i64,
        /// Sum of the times that the steps waited for a flush into the GPU's memory.
        flush_wait_ns: i64,
    }

    /// One row per rank and communicator; a later row of the same communicator replaces an earlier one.
    comms: CommRow / CommBuilder / CommView; {
        /// Global rank.
        rank: i32,
        /// Id of the communicator, as in `collectives`.
        comm_id: i64,
        /// Name of the communicator.
        name: Option<Text>,
        /// What it is for, as the program says, such as `mesh_tp`.
        description: Option<Text>,
        /// How it is known which collectives are its: `stated`, `flight_recorder` or `inferred`.
        origin: Option<Word<CommOrigin>>,
        /// Number of ranks in the communicator.
        size: Option<i32>,
        /// Global ranks of the communicator, in its own order.
        ranks: Option<Vec<i32>>,
        /// Number of this rank in the communicator; `peer` and `root` are such numbers.
        comm_rank: Option<i32>,
        /// Number of hosts in the communicator.
        nodes: Option<i32>,
        /// Time of creation.
        created_ns: Option<i64>,
        /// Time of destruction.
        destroyed_ns: Option<i64>,
    }

    /// One row per rank and device.
    devices: DeviceRow / DeviceBuilder / DeviceView; {
        /// Global rank.
        rank: i32,
        /// Device number, as the process sees it.
        device_id: i64,
        /// Model of the device.
        name: Option<Text>,
        /// Universal id (UUID) of the device.
        uuid: Option<Text>,
        /// Number of streaming multiprocessors (SMs).
        sm_count: Option<i32>,
        /// Most threads that an SM holds.
        max_threads_per_sm: Option<i32>,
        /// Registers of an SM.
        registers_per_sm: Option<i32>,
        /// Shared memory of an SM.
        shared_mem_per_sm_bytes: Option<i64>,
        /// Highest frequency of the cores.
        clock_khz: Option<i64>,
        /// Highest frequency of the memory.
        memory_clock_khz: Option<i64>,
        /// Size of the device's memory.
        memory_bytes: Option<i64>,
        /// Peak arithmetic rate, in FLOP/s.
        peak_flops: Option<f64>,
        /// Peak rate of the memory, in bytes per second.
        peak_bytes_per_s: Option<f64>,
    }

    /// One row per flow from one row of `events` to another of the same rank.
    flows: FlowRow / FlowBuilder / FlowView; {
        /// Global rank.
        rank: i32,
        /// Id of the flow, unique in (rank, kind).
        id: i64,
        /// Origin of the flow: `fwdbwd` (forward to backward operator) or `launch` (call to device work).
        kind: Word<FlowKind>,
        /// `id` of the row that the flow leaves.
        src_id: i64,
        /// `id` of the row that the flow enters.
        dst_id: i64,
    }

    /// One row per rank and training step that the schedule recorded, warm-up included.
    steps: StepRow / StepBuilder / StepView; {
        /// Global rank.
        rank: i32,
        /// Step number, from 0.
        step: i32,
        /// Phase of the schedule: `warmup` (not analysed) or `active`.
        phase: Word<Phase>,
        /// Start of the step.
        start_ns: i64,
        /// End of the step.
        end_ns: i64,
        /// Loss on this rank's batch, before the update of the parameters.
        loss: Option<f64>,
        /// Number of the profiler's window, from 1, equal on all ranks. Null if the source does not number its windows;
        /// then a window is an unbroken run of step numbers.
        window: Option<i32>,
    }

    /// One row per process that records the rank; a later row of the same process replaces an earlier one.
    ranks: RankRow / RankBuilder / RankView; {
        /// Global rank.
        rank: i32,
        /// Number of ranks in the job.
        world_size: i32,
        /// Rank within the host.
        local_rank: Option<i32>,
        /// Host name.
        host: Text,
        /// Process id.
        pid: i64,
        /// Linux boot id of the host.
        boot_id: Option<Text>,
        /// Boot id, clock name, time namespace and injected clock errors. Ranks with equal domains share one clock.
        clock_domain: Text,
        /// Model of the rank's device.
        device_name: Option<Text>,
        /// Universal id (UUID) of the rank's device.
        device_uuid: Option<Text>,
        /// Places in the job's parallelism, as the names of the rank's file or processes say them: `DP 0, PP 0, TP 1`.
        roles: Option<Text>,
        /// Launcher of the ranks: `openmpi`, `mpich`, `slurm`, `torchrun`, `none`, …
        launcher: Option<Text>,
        /// Versions of the programs and libraries, as JSON.
        versions: Option<Text>,
        /// Whether the recorder ended in order; false in the row that is written at the start.
        closed_cleanly: bool,
        /// Number of shards of the process that `parts` lists. Null in the row that is written at the start, and if the
        /// process listed none.
        parts: Option<i64>,
    }

    /// One row per shard that a process closed, without the shards of this table and the last one of `ranks`. A reader
    /// compares them with the shards that it finds.
    parts: PartRow / PartBuilder / PartView; {
        /// Global rank.
        rank: i32,
        /// Process id of the writer.
        pid: i64,
        /// Table of the shard.
        table_name: Text,
        /// Part number of the shard.
        part: i64,
        /// Number of rows.
        rows: i64,
        /// Size of the file.
        bytes: i64,
        /// XXH3 of the file's footer, in hexadecimal digits. The footer holds the checksums of the row groups.
        footer_xxh3: Text,
    }

    /// One row per source and part: the number of rows that the source stored and lost since the part before. Sum the
    /// rows of a source.
    counters: CounterRow / CounterBuilder / CounterView; {
        /// Global rank.
        rank: i32,
        /// Source of rows: `host:THREAD`, `collectives:THREAD`, `memory:THREAD`, `cupti:KIND`, `cupti:CAUSE`, the name
        /// of a table that the program filled itself, `writer:TABLE` for rows that a part could not hold, or
        /// `lost: ITEM`, `left_out: ITEM` and `note: ITEM` for the omissions of a recording of another tool that became a run (an amount of 0 is unknown), `keep:TABLE` for stored rows that were removed. `clock_sync`, `schedule`, `inject` and `interrupted`
        /// only give a reason: clocks were not compared, recording was off, the program was not recorded, or it was
        /// stopped.
        source: Text,
        /// Number of rows stored.
        recorded: i64,
        /// Number of rows lost, because a queue was full or a part could not be written.
        dropped: i64,
        /// Number of rows left out on purpose.
        omitted: i64,
        /// Of removed rows: a time after all of them began. From then on, none is missing.
        before_ns: Option<i64>,
        /// Reason why rows were lost or left out.
        why: Option<Text>,
    }

    /// One row per comparison of the rank's clock with another clock.
    clock_samples: ClockSampleRow / ClockSampleBuilder / ClockSampleView; {
        /// Global rank.
        rank: i32,
        /// Rank whose clock is compared; null for `utc` and `gpu`.
        peer_rank: Option<i32>,
        /// Other clock: `ping` (another rank's), `utc` (the host's UTC) or `gpu` (the device's).
        kind: Word<SampleKind>,
        /// This rank's clock, at the midpoint between send and receive.
        local_ns: i64,
        /// The other clock, read between send and receive.
        remote_ns: i64,
        /// `remote_ns` − `local_ns`.
        offset_ns: i64,
        /// Time between send and receive on this rank's clock. The true offset is within ± half of it. Where a profiler's times
        /// were converted to the rank's clock, it contains the error of that, four times 1 µs.
        rtt_ns: i64,
    }

    /// One row per allocation or release of memory.
    memory: MemoryRow / MemoryBuilder / MemoryView, sorted by "ts_ns"; {
        /// Global rank.
        rank: i32,
        /// Time of the allocation or release.
        ts_ns: i64,
        /// Device number; null on the host.
        device_id: Option<i64>,
        /// Purpose of the memory.
        name: Option<Text>,
        /// Size; negative for a release.
        delta_bytes: i64,
        /// Memory in use afterwards.
        allocated_bytes: Option<i64>,
        /// Memory that the allocator holds afterwards.
        reserved_bytes: Option<i64>,
        /// Address, stored by its bits.
        address: Option<i64>,
        /// Host thread that allocated or released it.
        thread_id: Option<i64>,
        /// Python stack of the allocation, outermost first, separated by `;`, where it came with the row.
        stack: Option<Text>,
    }

    /// One row per sample of a hardware metric of a device. The profiler of another tool took it.
    gpu_metric_samples: GpuMetricSampleRow / GpuMetricSampleBuilder / GpuMetricSampleView, sorted by "ts_ns"; {
        /// Global rank.
        rank: i32,
        /// Time of the sample.
        ts_ns: i64,
        /// Device number.
        device_id: i64,
        /// Name of the metric, with its unit, as the profiler spells it.
        metric: Text,
        /// Value.
        value: i64,
    }

    /// One row per rank and gradient bucket.
    buckets: BucketRow / BucketBuilder / BucketView; {
        /// Global rank.
        rank: i32,
        /// Number of the bucket, in the order of launch.
        bucket: i32,
        /// Size of the bucket.
        bytes: i64,
        /// Name of the parameter whose gradient fills it first.
        first_parameter: Text,
        /// Name of the parameter whose gradient fills it last.
        last_parameter: Text,
        /// Sizes of its gradients in the order in which they fill it.
        parameter_bytes: Option<Vec<i64>>,
    }
}
