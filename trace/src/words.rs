//! The vocabularies of the columns.

vocabularies! {
    /// What an event is, in Kineto's words. One variant covers the words of all vendors and of all of Kineto's years.
    Kind {
        /// Operator of the framework on the host.
        CpuOp = "cpu_op" | "Operator",
        /// Range that the program's author named.
        UserAnnotation = "user_annotation",
        /// Python function.
        PythonFunction = "python_function",
        /// Call of the device's runtime library.
        Runtime = "cuda_runtime" | "Runtime" | "hip_runtime" | "xpu_runtime" | "privateuse1_runtime" | "mtia_runtime" | "glow_runtime",
        /// Call of the device's driver library.
        Driver = "cuda_driver" | "xpu_driver" | "privateuse1_driver",
        /// Kernel. MTIA's category has copies and waits too.
        Kernel = "kernel" | "Kernel" | "mtia_ccp_events",
        /// Copy by the device.
        GpuMemcpy = "gpu_memcpy" | "Memcpy",
        /// Fill by the device.
        GpuMemset = "gpu_memset" | "Memset",
        /// Range of the host, as long as the device work that was launched in it.
        GpuUserAnnotation = "gpu_user_annotation",
        /// Synchronisation as the device saw it. It is no work of the device.
        Sync = "cuda_sync" | "xpu_sync",
        /// Time that the profiler itself took.
        Overhead = "overhead",
        /// Any other kind.
        Other = "other",
    }

    /// Operation of a collective.
    Op {
        /// Reduces the arrays of all ranks; every rank gets the result.
        AllReduce = "allreduce",
        /// Every rank gets the pieces of all ranks.
        AllGather = "allgather",
        /// Reduces the arrays of all ranks; each rank gets its piece of the result.
        ReduceScatter = "reducescatter",
        /// Every rank gets the root's array.
        Broadcast = "broadcast",
        /// Reduces the arrays of all ranks; the root gets the result.
        Reduce = "reduce",
        /// Every rank sends a piece to every rank.
        AllToAll = "alltoall",
        /// The sending side of a pair.
        Send = "send",
        /// The receiving side of a pair.
        Recv = "recv",
        /// No rank leaves before every rank has entered.
        Barrier = "barrier",
        /// Kernel of sends and receives; the trace does not tell which operation it belongs to.
        SendRecv = "sendrecv",
        /// The root gets the pieces of all ranks.
        Gather = "gather",
        /// Each rank gets its piece of the root's array.
        Scatter = "scatter",
    }

    /// Progress of a collective, in its order: a later variant is further.
    State {
        /// The program handed it to the library.
        Enqueued = "enqueued",
        /// It began.
        Started = "started",
        /// It ended.
        Done = "done",
        /// The library does not report how far it is.
        Unreported = "unreported",
    }

    /// Origin of a collective's times.
    TimingSource {
        /// Timer of the collective library on the device.
        GpuTimer = "gpu_timer",
        /// CUPTI's record of the kernel.
        Cupti = "cupti",
        /// Network thread of the collective library.
        Proxy = "proxy",
        /// Clock of the host around a blocking or polled call.
        Host = "host",
        /// Clock of the host at the call that enqueues; the end is unknown.
        Enqueue = "enqueue",
    }

    /// Element type.
    Dtype {
        /// 32-bit floating point.
        F32 = "f32" | "float32" | "float",
        /// 16-bit floating point (IEEE).
        F16 = "f16" | "float16" | "half",
        /// 16-bit floating point with the exponent of 32 bits.
        Bf16 = "bf16" | "bfloat16",
        /// 64-bit floating point.
        F64 = "f64" | "float64" | "double",
        /// 8-bit floating point, 4 bits of exponent.
        F8E4M3 = "f8e4m3" | "float8e4m3",
        /// 8-bit floating point, 5 bits of exponent.
        F8E5M2 = "f8e5m2" | "float8e5m2",
        /// Signed byte.
        I8 = "i8" | "int8" | "char",
        /// Byte.
        U8 = "u8" | "uint8",
        /// 16-bit integer.
        I16 = "i16" | "int16",
        /// 32-bit integer.
        I32 = "i32" | "int32" | "int",
        /// Unsigned 32-bit integer.
        U32 = "u32" | "uint32",
        /// 64-bit integer.
        I64 = "i64" | "int64",
        /// Unsigned 64-bit integer.
        U64 = "u64" | "uint64",
        /// Truth value.
        Bool = "bool",
    }

    /// Phase of the recording schedule in which a step ran.
    Phase {
        /// The recorder ran, and its rows are not analysed.
        Warmup = "warmup",
        /// The step is analysed.
        Active = "active",
    }

    /// Origin of a flow.
    FlowKind {
        /// From a forward operator to its backward operator.
        Fwdbwd = "fwdbwd",
        /// From a call of the host to the device work that it launched.
        Launch = "launch",
    }

    /// What a clock sample compares the rank's clock with.
    SampleKind {
        /// Clock of another rank, by a message there and back.
        Ping = "ping",
        /// UTC of the same host.
        Utc = "utc",
        /// Clock of the rank's device.
        Gpu = "gpu",
    }

    /// Phase of a NCCL kernel on one channel, or part of a copy engine's operation.
    ChannelPhase {
        /// Waiting for the peers before the transfer.
        InitialSync = "initial_sync",
        /// Transferring and reducing.
        Compute = "compute",
        /// Waiting for the peers after the transfer.
        FinalSync = "final_sync",
        /// Synchronisation of a copy engine.
        CeSync = "ce_sync",
        /// Batch of copies by a copy engine.
        CeBatch = "ce_batch",
    }

    /// Clock of a rank.
    ClockSide {
        /// Clock of the rank's host.
        Host = "host",
        /// Clock of the rank's device.
        Device = "device",
    }

    /// Evidence that maps a rank's clock to global time, best first.
    ClockMethod {
        /// Messages between the ranks, there and back.
        Ping = "ping",
        /// One clock for all ranks of a host.
        SameHost = "same_host",
        /// Collectives that hold their ranks together.
        Collective = "collective",
        /// Collectives that nearly hold their ranks together, such as all-to-alls.
        CollectiveWeak = "collective_weak",
        /// UTC of the hosts.
        Utc = "utc",
        /// No evidence.
        None = "none",
    }

    /// Reason why a stream was idle.
    IdleCategory {
        /// The host launched the next work only after the stream had become idle.
        HostWait = "host_wait",
        /// The next work had been launched, and followed after a short gap.
        KernelWait = "kernel_wait",
        /// The next work had been launched and still began late, or its launch is unknown.
        Other = "other",
    }

    /// Evidence that rows of several ranks are one collective, best first.
    MatchLevel {
        /// Kineto's `Comms Id`.
        CommsId = "comms_id",
        /// Communicator and sequence number.
        Seq = "seq",
        /// Alignment of the ranks' sequences.
        Ordinal = "ordinal",
    }

    /// Verdict on one rank.
    Verdict {
        /// The rank makes the others wait.
        Cause = "cause",
        /// The rank waits for others.
        Victim = "victim",
        /// The rank does not stand out.
        Ok = "ok",
        /// The rank may make the others wait; the evidence is not sufficient.
        Undecided = "undecided",
    }

    /// Kind of work in which a rank loses its time.
    Reason {
        /// The device has more work, or the host of a rank without a device has.
        Compute = "compute",
        /// The same kernels take longer than on other devices.
        Device = "device",
        /// The host does something else while the device idles; without a device, something that no operator explains.
        Host = "host",
        /// A range of input takes longer.
        Input = "input",
        /// Transfers of collectives.
        Network = "network",
        /// A range that waits by its name takes longer.
        Waiting = "waiting",
    }

    /// Part of a step in the account of lost time.
    LostPart {
        /// Work of the busiest rank.
        Work = "work",
        /// Launches, bubbles, and waits for the work of other ranks.
        Dependencies = "dependencies",
        /// Transfers that nothing hides.
        Transfer = "transfer",
        /// Stages of a pipeline that work longer than others.
        Stages = "stages",
        /// Steps that take longer on all ranks.
        LongerSteps = "longer_steps",
        /// What a rank, or several, or a communicator takes.
        Line = "line",
        /// What ranks lose to each other without that one stands out.
        Variation = "variation",
    }

    /// Quantity that a verdict stands on.
    StandsOn {
        /// Excess of one range of the host.
        Range = "range",
        /// Excess of all own work between collectives.
        Stretch = "stretch",
        /// Excess of all own work in some of the steps.
        Steps = "steps",
        /// Excess of the time from the last arrival at collectives until the rank leaves.
        Transfers = "transfers",
    }

    /// Type of device work.
    WorkType {
        /// Kernels that compute.
        Compute = "compute",
        /// Kernels of collectives.
        Communication = "communication",
        /// Copies and fills.
        Memory = "memory",
    }

    /// What device work computes, by its name.
    KernelCategory {
        /// Products of matrices.
        Gemm = "gemm",
        /// Attention in one kernel.
        Attention = "attention",
        /// Convolutions and their gradients.
        Convolution = "convolution",
        /// Layer, batch, group and root-mean-square normalization, and softmax.
        Normalization = "normalization",
        /// One result for each element, optimizers included.
        Elementwise = "elementwise",
        /// Sums, norms, maxima and scans.
        Reduction = "reduction",
        /// Copies, fills, and kernels that only move data.
        Copy = "copy",
        /// Collectives, by the rules of the analysis.
        Communication = "communication",
        /// Any other work.
        Other = "other",
    }

    /// What keeps the occupancy of a kernel from being higher.
    OccupancyLimit {
        /// The grid has too few blocks for all multiprocessors.
        Grid = "grid",
        /// The registers of its threads.
        Registers = "registers",
        /// The shared memory of its blocks.
        SharedMemory = "shared_memory",
        /// Registers and shared memory allow the same number of blocks.
        RegistersAndSharedMemory = "registers_and_shared_memory",
        /// Its blocks have so few threads that the number of blocks that a multiprocessor holds is the limit.
        BlockSize = "block_size",
    }

    /// What limits an operator, by the roofline model.
    RooflineBound {
        /// Likely arithmetic: FLOPs / least bytes reach the ridge. More bytes than the least may still make it memory.
        Compute = "compute",
        /// Memory: FLOPs / least bytes are below the ridge, unless the caches held its inputs.
        Memory = "memory",
        /// Its bytes, its type or the peak rates of its device are unknown.
        Unknown = "unknown",
    }

    /// Largest part of a critical path.
    BoundBy {
        /// Code of the host.
        Cpu = "cpu",
        /// Ranges of data loaders.
        DataLoading = "data_loading",
        /// Compute, copies, and gaps between them.
        Gpu = "gpu",
        /// Communication, waiting for other ranks included.
        Communication = "communication",
        /// From launches to the starts of their kernels.
        Launch = "launch",
        /// Waiting for work that was not recorded.
        Other = "other",
    }

    /// What is slow, if ranks are.
    Level {
        /// One rank.
        Rank = "rank",
        /// All ranks of one or several hosts, and no others.
        Host = "host",
        /// All ranks with one or several models of device, and no others.
        DeviceModel = "device_model",
        /// All ranks of one or several racks, switches, or other places that a file names, and no others.
        Place = "place",
        /// The communication of a communicator.
        Communicator = "communicator",
        /// The communication of one rank.
        Link = "link",
        /// All ranks of a stage of a pipeline.
        Stage = "stage",
        /// Several ranks without such a thing in common.
        Several = "several",
    }

    /// How it is known which collectives are those of a communicator.
    CommOrigin {
        /// The recording names it with each of them.
        Stated = "stated",
        /// Dumps of torch's Flight Recorder beside the trace name it.
        FlightRecorder = "flight_recorder",
        /// No other fits, or its ranks meet in them each time.
        Inferred = "inferred",
    }

    /// What the critical path of the job is in.
    PathKind {
        /// The rank's own work.
        Work = "work",
        /// A collective, from the last arrival to the end.
        Transfer = "transfer",
    }

    /// Why a part of the critical path of the job is not explained.
    Unexplained {
        /// Communication that was matched with that of no other rank, or not with that of all ranks.
        Unmatched = "unmatched",
        /// The error of the clocks is unknown, so the last rank to arrive is.
        Clock = "clock",
        /// The rank recorded nothing at that time.
        NotRecorded = "not_recorded",
    }

    /// What an omission means for the result, worst first.
    OmissionKind {
        /// It was recorded, and it is lost or cannot be read.
        Lost = "lost",
        /// It was read but not used, or never was in the input, and nothing recorded was lost.
        LeftOut = "left_out",
        /// Nothing is missing: how the input was read.
        Note = "note",
    }

    /// What a block of memory is for, by the rules of docs/method/memory.md.
    MemoryCategory {
        /// Weights, buffers of modules, and whatever else is made before the first backward pass and kept.
        Parameters = "parameters",
        /// Gradients of parameters.
        Gradients = "gradients",
        /// Made by an optimizer's step and kept: momenta, moments.
        OptimizerState = "optimizer_state",
        /// Values of the forward pass; inputs and losses too.
        Activations = "activations",
        /// Released by the operator, the backward pass or the optimizer's step that allocated it.
        Temporary = "temporary",
        /// The recording does not tell, mostly because the block was allocated before it began.
        Unknown = "unknown",
    }

    /// Severity of a finding, worst first.
    Severity {
        /// The job loses time to it.
        Critical = "critical",
        /// Worth a look.
        Warning = "warning",
        /// For information.
        Info = "info",
    }
}

impl Kind {
    /// Number of kinds, for tables that are indexed by kind.
    pub const COUNT: usize = Self::ALL.len();

    /// The kind of Kineto's category, in any of its historic spellings; [`Kind::Other`] for all that are unknown.
    pub fn from_category(category: &str) -> Self {
        crate::Vocabulary::from_word(category).unwrap_or(Self::Other)
    }

    /// Whether the event is work of a device: a kernel, copy or fill.
    #[inline]
    pub fn is_device_work(self) -> bool {
        matches!(self, Self::Kernel | Self::GpuMemcpy | Self::GpuMemset)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;
    use crate::{Text, Vocabulary, Word};

    pub(super) trait VocabularyVisitor {
        fn visit<V: Vocabulary>(&mut self);
    }

    /// Checks every word of every vocabulary.
    struct Check {
        vocabularies: BTreeSet<&'static str>,
    }

    impl VocabularyVisitor for Check {
        fn visit<V: Vocabulary>(&mut self) {
            assert!(self.vocabularies.insert(V::NAME), "{} is declared twice", V::NAME);
            let mut words = BTreeSet::new();
            for variant in V::ALL {
                let text = variant.as_str();
                assert!(words.insert(text), "{} has {text} twice", V::NAME);
                assert_eq!(V::from_word(text), Some(*variant));
                assert!(variant.doc().ends_with('.'), "{}::{variant:?}", V::NAME);
                let word = Word::<V>::from(text);
                assert_eq!((&word, word.known(), word.as_str()), (&Word::from(*variant), Some(*variant), text));
                assert!(word == *variant && word.to_string() == text && format!("{word:?}") == format!("{text:?}"));
                let json = serde_json::to_string(&word).unwrap();
                assert_eq!(serde_json::from_str::<Word<V>>(&json).unwrap(), word);
            }
            for foreign in ["", "no such word", "ünknown"] {
                let word = Word::<V>::from(Text::from(foreign));
                assert_eq!((word.known(), word.as_str(), &*word.text()), (None, foreign, foreign), "{}", V::NAME);
                assert!(V::ALL.iter().all(|variant| word != *variant));
            }
            assert_eq!(Word::<V>::default(), Word::from(""));
        }
    }

    #[test]
    fn every_word_is_read_as_it_is_written() {
        let mut check = Check { vocabularies: BTreeSet::new() };
        visit_vocabularies(&mut check);
        assert!(check.vocabularies.contains("Kind") && check.vocabularies.contains("Severity"));
    }

    #[test]
    fn another_spelling_keeps_its_text_and_has_the_meaning() {
        let word = Word::<Kind>::from("hip_runtime");
        let plain = Word::from(Kind::Runtime);
        assert!(word == Kind::Runtime && word != plain);
        assert_eq!((word.known(), &*word), (Some(Kind::Runtime), "hip_runtime"));
        assert_eq!(Word::<Dtype>::from("float32").known(), Word::<Dtype>::from("f32").known());
    }

    #[test]
    fn words_are_sorted_as_text() {
        let mut words = [Op::Send, Op::AllReduce, Op::Broadcast].map(Word::from).to_vec();
        words.push("all_to_all".into());
        words.sort();
        let texts: Vec<&str> = words.iter().map(|word| &**word).collect();
        assert_eq!(texts, ["all_to_all", "allreduce", "broadcast", "send"]);
    }

    #[test]
    fn kinds_cover_the_words_of_all_vendors_and_years() {
        for (category, kind) in [
            ("cpu_op", Kind::CpuOp),
            ("Operator", Kind::CpuOp),
            ("Memcpy", Kind::GpuMemcpy),
            ("xpu_driver", Kind::Driver),
            ("xpu_sync", Kind::Sync),
            ("privateuse1_runtime", Kind::Runtime),
            ("ac2g", Kind::Other),
            ("", Kind::Other),
        ] {
            assert_eq!(Kind::from_category(category), kind, "{category}");
        }
        assert!(Kind::GpuMemset.is_device_work() && !Kind::Sync.is_device_work());
        assert_eq!(Kind::COUNT, Kind::Other as usize + 1);
    }
}
