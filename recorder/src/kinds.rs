//! The words of the columns, as types.

macro_rules! words {
    ($(#[doc = $doc:literal])+ $name:ident { $( $(#[doc = $vdoc:literal])+ $variant:ident = $word:literal, )+ }) => {
        $(#[doc = $doc])+
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        #[repr(u8)]
        pub enum $name {
            $( $(#[doc = $vdoc])+ $variant, )+
        }

        impl $name {
            /// Every variant.
            pub const ALL: &'static [Self] = &[$(Self::$variant),+];

            /// The word on disk.
            pub const fn as_str(self) -> &'static str {
                match self {
                    $( Self::$variant => $word, )+
                }
            }
        }
    };
}

words! {
    /// What a row of `events` is, in Kineto's words.
    Kind {
        /// An operation of the framework on the host.
        CpuOp = "cpu_op",
        /// A range that a person put into the program.
        UserAnnotation = "user_annotation",
        /// A device kernel.
        Kernel = "kernel",
        /// A copy by the device.
        GpuMemcpy = "gpu_memcpy",
        /// A fill by the device.
        GpuMemset = "gpu_memset",
        /// A person's range as the device saw it.
        GpuUserAnnotation = "gpu_user_annotation",
        /// A call of the CUDA runtime.
        CudaRuntime = "cuda_runtime",
        /// A call of the CUDA driver.
        CudaDriver = "cuda_driver",
        /// A synchronisation as the device saw it.
        CudaSync = "cuda_sync",
        /// Cost of recording.
        Overhead = "overhead",
        /// A Python function.
        PythonFunction = "python_function",
    }
}

words! {
    /// What a collective does.
    CollectiveOp {
        /// Sum (or other reduction) of all ranks' arrays, everywhere.
        AllReduce = "allreduce",
        /// All ranks' pieces, everywhere.
        AllGather = "allgather",
        /// Each rank gets its piece of the reduction.
        ReduceScatter = "reducescatter",
        /// The root's array, everywhere.
        Broadcast = "broadcast",
        /// The reduction, at the root.
        Reduce = "reduce",
        /// Every rank sends a piece to every rank.
        AllToAll = "alltoall",
        /// One side of a pair.
        Send = "send",
        /// The other side.
        Recv = "recv",
        /// Nobody leaves before all have come.
        Barrier = "barrier",
    }
}

words! {
    /// How far a collective came.
    CollectiveState {
        /// Handed to the library.
        Enqueued = "enqueued",
        /// Begun.
        Started = "started",
        /// Over.
        Done = "done",
    }
}

words! {
    /// Where the times of a collective come from.
    TimingSource {
        /// The library's timer on the device.
        GpuTimer = "gpu_timer",
        /// CUPTI's record of its kernel.
        Cupti = "cupti",
        /// The library's network thread.
        Proxy = "proxy",
        /// The host's clock, around a blocking or polled call.
        Host = "host",
        /// The host's clock at the hand-over; the end is unknown.
        Enqueue = "enqueue",
    }
}
