//! The meaning of a row's name: communication, a wait, a synchronisation, input, a step. No other file decides it.
//!
//! One question sometimes has several answers, because its users need different ones. Each answer is a function of its
//! own here, which names its user and its difference from the others; the table in the tests shows all of them side by
//! side.

mod kernels;
pub mod roles;

use crate::rank::Kind;

pub use kernels::{called_function, function_of, is_known_compute};

/// How the rows of a communication library are named on the host, and which rules count them.
struct HostPrefix {
    /// How the name begins.
    prefix: &'static str,
    /// [`NameClass::communicates_on_host`].
    communicates: bool,
    /// [`is_host_communication_in_traces`].
    in_traces: bool,
    /// [`is_host_collective`].
    is_collective: bool,
    /// [`is_backend_range`].
    is_backend_range: bool,
    /// [`Launched::Communication`].
    launches: bool,
}

/// One column for each rule. `ucc:`, `rccl:`, `xccl:`, `hccl:` and functional collectives are communication only in
/// traces: the two sets differ. The operators below `_c10d_functional::` have no collective's arguments, but launch
/// communication: those of symmetric memory (pytorch/pytorch torch/csrc/distributed/c10d/symm_mem), of vLLM
/// (vllm-project/vllm vllm/distributed/parallel_state.py, csrc/torch_bindings.cpp), of SGLang (sgl-project/sglang
/// sgl-kernel/csrc/common_extension.cc) and of TensorRT-LLM (NVIDIA/TensorRT-LLM cpp/tensorrt_llm/thop).
#[rustfmt::skip]
const HOST_PREFIXES: [HostPrefix; 20] = [
    //          prefix                 communicates  in_traces  collective  back end  launches
    host_prefix("c10d::",                 [true,         true,      false,      false,    true]),
    host_prefix("record_param_comms",     [true,         true,      false,      false,    true]),
    host_prefix("nccl:",                  [true,         true,      false,      true,     true]),
    host_prefix("gloo:",                  [true,         true,      true,       true,     true]),
    host_prefix("mpi:",                   [true,         true,      true,       false,    true]),
    host_prefix("ucc:",                   [false,        true,      true,       true,     true]),
    host_prefix("rccl:",                  [false,        true,      false,      true,     true]),
    host_prefix("xccl:",                  [false,        true,      false,      true,     true]),
    host_prefix("hccl:",                  [false,        true,      false,      true,     true]),
    host_prefix("c10d_functional::",      [false,        true,      false,      false,    true]),
    host_prefix("_c10d_functional::",     [false,        true,      false,      false,    true]),
    host_prefix("symm_mem::",             [false,        false,     false,      false,    true]),
    host_prefix("vllm::all_reduce",       [false,        false,     false,      false,    true]),
    host_prefix("vllm::all_gather",       [false,        false,     false,      false,    true]),
    host_prefix("vllm::reduce_scatter",   [false,        false,     false,      false,    true]),
    host_prefix("_C_custom_ar::",         [false,        false,     false,      false,    true]),
    host_prefix("sgl_kernel::all_reduce", [false,        false,     false,      false,    true]),
    host_prefix("trtllm::allreduce",      [false,        false,     false,      false,    true]),
    host_prefix("trtllm::allgather",      [false,        false,     false,      false,    true]),
    host_prefix("trtllm::reducescatter",  [false,        false,     false,      false,    true]),
];

const fn host_prefix(prefix: &'static str, rules: [bool; 5]) -> HostPrefix {
    let [communicates, in_traces, is_collective, is_backend_range, launches] = rules;
    HostPrefix { prefix, communicates, in_traces, is_collective, is_backend_range, launches }
}

fn has_prefix(name: &[u8], counts: impl Fn(&HostPrefix) -> bool) -> bool {
    HOST_PREFIXES.iter().any(|row| counts(row) && name.starts_with(row.prefix.as_bytes()))
}

/// The category of all rows of MTIA's devices: pytorch/kineto libkineto/include/ActivityType.h.
pub const MTIA_CATEGORY: &str = "mtia_ccp_events";

/// The kind of a row of a device whose category does not decide it, of a trace or of a run that was made of one.
pub fn kind_of(category: &str, name: &[u8]) -> Kind {
    match Kind::from_category(category) {
        Kind::Kernel if category == MTIA_CATEGORY => kind_on_mtia(name),
        Kind::Kernel => kind_of_kernel(name),
        kind => kind,
    }
}

/// A part of a piece of work has a row of its own on MTIA, which is no further work.
fn kind_on_mtia(name: &[u8]) -> Kind {
    match name {
        b"dma_request" => Kind::GpuMemcpy,
        b"event_wait" | b"event_record" => Kind::Sync,
        _ if MTIA_PARTS.iter().any(|part| name.starts_with(part)) => Kind::Other,
        _ => Kind::Kernel,
    }
}

/// The kind of a row of an Ascend device in torch_npu's trace_view.json, whose rows have no category. Waits are no work.
pub fn kind_on_ascend(name: &[u8]) -> Kind {
    let lower = name.to_ascii_lowercase();
    let has = |word: &str| memchr::memmem::find(&lower, word.as_bytes()).is_some();
    match () {
        () if has("wait") || has("event_record") || has("notify_record") => Kind::Other,
        () if lower.starts_with(b"memcpy") => Kind::GpuMemcpy,
        () => Kind::Kernel,
    }
}

/// Beginnings of names that HTA counts neither as computation nor as communication nor as copies: hta/common/types.py.
const MTIA_PARTS: [&[u8]; 5] =
    [b"pe_exe", b"job_exe", b"packet", b"cpum_exe_subgraph", b"collective_subgraph_execution"];

/// HIP's runtime copies and fills by kernels of its own: ROCm/clr rocclr/device/blitcl.cpp.
fn kind_of_kernel(name: &[u8]) -> Kind {
    match name.strip_prefix(b"__amd_rocclr_") {
        Some([b'c', b'o', b'p', b'y', ..]) => Kind::GpuMemcpy,
        Some([b'f', b'i', b'l', b'l', ..]) => Kind::GpuMemset,
        _ => Kind::Kernel,
    }
}

/// Whether rows of a name communicate, as the analysis counts it (`events.is_comm`). Computed once for each name, not
/// for each row.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct NameClass {
    /// A kernel of this name communicates: its function begins with the name of a library (`nccl…`), in any case, or is one of the
    /// table in `kernels`. [`is_communication_by_hta`] accepts fewer names.
    pub communicates_as_kernel: bool,
    /// An operator of this name communicates, or waits for communication. [`is_host_communication_in_traces`] accepts
    /// more prefixes, but no waits.
    pub communicates_on_host: bool,
}

impl NameClass {
    /// The class of `name`.
    pub fn of(name: &str) -> Self {
        Self {
            communicates_as_kernel: kernels::communicates(name),
            communicates_on_host: has_prefix(name.as_bytes(), |row| row.communicates) || waits(name),
        }
    }

    /// Whether a row of this name and `kind` communicates, or waits for communication. Only kernels and operators do:
    /// a range that a user names `nccl:…` does not.
    #[inline]
    pub fn is_comm(self, kind: Kind) -> bool {
        match kind {
            Kind::Kernel => self.communicates_as_kernel,
            Kind::CpuOp => self.communicates_on_host,
            _ => false,
        }
    }
}

/// Whether a host row of a trace may belong to a collective, so that its arguments are read. Wider than
/// [`NameClass::communicates_on_host`] by the prefixes of more libraries; without its waits, which name no collective.
#[inline]
pub fn is_host_communication_in_traces(name: &[u8]) -> bool {
    // The reader asks this of every operator, and nearly all begin with other letters.
    matches!(name.first(), Some(b'c' | b'n' | b'g' | b'm' | b'u' | b'r' | b'x' | b'h' | b'_'))
        && has_prefix(name, |row| row.in_traces)
}

/// Whether a kernel of a trace may belong to a collective, so that its arguments are read: the name of a library, such as
/// `nccl`, begins any word. Other libraries than [`NameClass::communicates_as_kernel`] accepts have no such arguments.
#[inline]
pub fn is_communication_kernel_in_traces(name: &[u8]) -> bool {
    let begins_word = |at: usize| !name[at - 1].is_ascii_alphabetic() && name[at - 1] != b'_';
    // All of these words end in `ccl`: a name without it in lower case is not searched further.
    kernels::starts_with_library(name)
        || name.starts_with(b"hcom_")
        || (memchr::memmem::find(name, b"ccl").is_some()
            && (1..name.len()).any(|at| kernels::starts_with_library(&name[at..]) && begins_word(at)))
}

/// What the kernels are that an operator launches.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Launched {
    /// Communication: the operator is one of a communication library.
    Communication,
    /// Its own computation: an operator of ATen. Within a collective it packs, casts or copies its data.
    Computation,
}

impl Launched {
    /// What rows of this name and `kind` launch. `None`: the row around it decides.
    pub fn of(name: &str, kind: Kind) -> Option<Self> {
        let communicates = match kind {
            Kind::CpuOp => has_prefix(name.as_bytes(), |row| row.launches),
            // Users name ranges as they like.
            Kind::UserAnnotation => is_backend_range(name),
            _ => return None,
        };
        match (communicates, kind) {
            (true, _) => Some(Self::Communication),
            (false, Kind::CpuOp) if name.starts_with("aten::") => Some(Self::Computation),
            _ => None,
        }
    }
}

/// Whether a row of a device communicates by HTA's definition, which knows the libraries of NVIDIA and Habana:
/// `(^nccl.*)|(^hip)|(^hccl)|(.*ncclKernel.*)` of facebookresearch/HolisticTraceAnalysis hta/utils/utils.py.
pub fn is_communication_by_hta(name: &str) -> bool {
    ["nccl", "hip", "hccl"].iter().any(|prefix| name.starts_with(prefix)) || name.contains("ncclKernel")
}

/// Whether a host row of a trace is a collective itself and has its time, because its library (gloo, MPI, UCC) works on
/// the host. Rows of other libraries only hand the collective to a device.
pub fn is_host_collective(name: &str) -> bool {
    has_prefix(name.as_bytes(), |row| row.is_collective)
}

/// Whether a host row is a range by which a communication back end of torch reports how long a collective took. Such a
/// range begins on one thread and ends on another, so torch's tables nest no row in it.
pub fn is_backend_range(name: &str) -> bool {
    has_prefix(name.as_bytes(), |row| row.is_backend_range)
}

/// The operation of an HLO instruction that communicates, as in `collectives.op`, by its opcode without `-start` or `-done`. Source:
/// openxla/xla xla/hlo/ir/hlo_opcode.h; TPUs fuse a reduce-scatter under the name `all-reduce-scatter`.
pub fn hlo_collective(opcode: &str) -> Option<&'static str> {
    Some(match opcode {
        "all-reduce" => "allreduce",
        "all-gather" => "allgather",
        "reduce-scatter" | "all-reduce-scatter" => "reducescatter",
        "all-to-all" | "ragged-all-to-all" => "alltoall",
        "collective-permute" => "sendrecv",
        "collective-broadcast" => "broadcast",
        "send" => "send",
        "recv" => "recv",
        _ => return None,
    })
}

/// How the operators begin that hand a collective over to torch's communication library.
pub const COLLECTIVE_CALL_PREFIX: &str = "c10d::";

/// Whether an operator hands a collective over. The export to Kineto's JSON writes such rows where a run has none.
pub fn hands_over_collective(name: &str) -> bool {
    name.starts_with(COLLECTIVE_CALL_PREFIX)
}

/// Whether a Python function, as torch.profiler names it (`train.py(7): step`), belongs to neither torch nor a package.
pub fn is_users_python(name: &str) -> bool {
    const OTHERS: [&str; 4] = ["/torch/", "site-packages/", "dist-packages/", "/lib/python"];
    name.contains(".py(") && !name.starts_with("torch/") && !OTHERS.iter().any(|part| name.contains(part))
}

/// Whether a row of the host waits: its name contains `wait`, in any case.
pub fn waits(name: &str) -> bool {
    name.as_bytes().windows(4).any(|four| four.eq_ignore_ascii_case(b"wait"))
}

/// Whether a call of a runtime returns only when a device is done: `cudaStreamSynchronize`, `hipDeviceSynchronize`,
/// `cuCtxSynchronize`, …, and copies without `Async` in their name.
pub fn synchronizes(name: &str) -> bool {
    let name = name.strip_suffix("_v2").unwrap_or(name);
    let copy = ["cudaMemcpy", "hipMemcpy", "cuMemcpy"].iter().any(|prefix| name.starts_with(prefix));
    name.ends_with("Synchronize") || (copy && !name.contains("Async"))
}

/// Whether a call of a runtime or driver launches a captured graph.
pub fn launches_graph(name: &str) -> bool {
    ["cudaGraphLaunch", "cuGraphLaunch", "hipGraphLaunch"].iter().any(|prefix| name.starts_with(prefix))
}

/// Whether a range is one whose time the table `data_loading` counts: the range `input` of the reference workload, or
/// the `enumerate(DataLoader)#…` of PyTorch's loaders. Narrower than [`is_input`], which also accepts what a loader
/// calls: that would count its time twice.
pub fn is_data_loading(name: &str) -> bool {
    name == INPUT || DATA_LOADERS.iter().any(|loader| name.starts_with(loader) && name[loader.len()..].starts_with('#'))
}

/// Whether a row belongs to a data loader, for the critical path: the TensorBoard plugin's rule. Without the range
/// `input`, which [`is_data_loading`] accepts.
pub fn is_data_loader(name: &str) -> bool {
    DATA_LOADERS.iter().any(|loader| name.contains(loader))
}

/// Whether own time in a row of this name, and in the rows inside it, is time to load input: the range `input`, any
/// row that names a loader, and frames of PyTorch's `torch/utils/data`. In any case, so wider than both
/// [`is_data_loading`] and [`is_data_loader`].
pub fn is_input(name: &str) -> bool {
    let lower = name.to_ascii_lowercase();
    lower == INPUT || ["dataloader", "datapipe", "torch/utils/data/"].iter().any(|word| lower.contains(word))
}

/// Whether a range is a step of an optimizer, as torch.profiler names it: `Optimizer.step#SGD.step`.
pub fn is_optimizer_step(name: &str) -> bool {
    name.starts_with("Optimizer.step#")
}

/// Whether a range belongs to an optimizer, `Optimizer.zero_grad#…` too. Wider than [`is_optimizer_step`].
pub fn is_optimizer(name: &str) -> bool {
    name.starts_with("Optimizer.")
}

/// Whether a range is a forward pass by its name: `forward`, `## forward ##`, `DistributedDataParallel.forward`.
pub fn is_forward(name: &str) -> bool {
    let lower = name.to_ascii_lowercase();
    lower.contains("forward") && !lower.contains("backward")
}

/// Whether a row of kind `overhead` is work of the profiler itself. The other rows of this kind are work of the driver
/// (`Driver Compiler`, `Lazy Function Loading`, `Runtime Triggered Module Loading`, `Command Buffer Full`), which occurs
/// without a profiler too. Source of the names: `CUpti_ActivityOverheadKind`, as Kineto spells them.
pub fn is_work_of_profiler(overhead: &str) -> bool {
    ["Activity Buffer Request", "Buffer Flush", "Instrumentation", "Resource", "UVM Activity Init"].contains(&overhead)
}

/// Whether a row of kind `overhead` is a wait of the host for the device: a launch waits while the queue of the device is
/// full, which costs the step nothing.
pub fn waits_for_device(overhead: &str) -> bool {
    overhead == "Command Buffer Full"
}

const INPUT: &str = "input";
const DATA_LOADERS: [&str; 2] = ["enumerate(DataLoader)", "enumerate(DataPipe)"];

/// How the range of a step begins, before `#` and the step's number.
pub const STEP: &str = "ProfilerStep";

/// The name under which tables count all steps as one, as torch.profiler's do.
pub const ALL_STEPS: &str = "ProfilerStep*";

/// The module whose call a Python function is, as torch.profiler names it with `with_stack=True`: `Linear_0` of
/// `nn.Module: Linear_0`.
pub fn module_name(function: &str) -> Option<&str> {
    function.strip_prefix("nn.Module: ").filter(|name| !name.is_empty())
}

/// Whether `outer` is the operator in which autograd's engine evaluates the backward function `inner`.
pub fn evaluates(outer: &str, inner: &str) -> bool {
    outer.strip_prefix("autograd::engine::evaluate_function: ") == Some(inner)
}

/// Whether a range is a step of torch.profiler: `ProfilerStep#` and anything.
pub fn is_step(name: &str) -> bool {
    name.strip_prefix(STEP).is_some_and(|rest| rest.starts_with('#'))
}

/// The number of a step: `ProfilerStep#12` is 12. `None` if the name is not a step's, or its number is negative or
/// unreadable; then no step begins there, though [`is_step`] may hold.
pub fn step_number(name: &str) -> Option<i32> {
    name.strip_prefix(STEP)?.strip_prefix('#')?.parse().ok().filter(|number| *number >= 0)
}

/// The number behind the last `#` of a range that begins with [`STEP`]: `Some(None)` where it is unreadable. Wider than
/// [`step_number`], because a range of NVTX is a step's mark without a number too, and the export to Kineto's JSON must
/// recognise all of them.
pub fn step_mark(name: &str) -> Option<Option<i32>> {
    name.starts_with(STEP).then(|| name.rsplit('#').next().and_then(|number| number.parse().ok()))
}

/// The part of a training step that an operator or range of torch is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TrainingPhase {
    /// A node of the backward pass.
    Backward,
    /// The node of the backward pass that stores a parameter's gradient.
    StoreGradient,
    /// The step of an optimizer.
    OptimizerStep,
    /// The release, or the fill with zeros, of the gradients.
    ZeroGradients,
}

impl TrainingPhase {
    /// The phase that rows of this name begin (pytorch/pytorch torch/csrc/autograd/engine.cpp, torch/optim/optimizer.py).
    pub fn of(name: &str) -> Option<Self> {
        if let Some(node) = name.strip_prefix(EVALUATES) {
            return Some(if node.contains("AccumulateGrad") { Self::StoreGradient } else { Self::Backward });
        }
        let of_optimizer = name.strip_prefix("Optimizer.")?;
        match of_optimizer.split_once('#')?.0 {
            "step" => Some(Self::OptimizerStep),
            "zero_grad" => Some(Self::ZeroGradients),
            _ => None,
        }
    }
}

/// How the name of a node of the backward pass begins; the node's name follows.
pub const EVALUATES: &str = "autograd::engine::evaluate_function: ";

/// Whether a kernel communicates: [`NameClass::communicates_as_kernel`], for code that has no other question.
pub fn is_communication_kernel(name: &str) -> bool {
    kernels::communicates(name)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// All rules, in the order of the columns of the table.
    const RULES: [fn(&str) -> bool; 14] = [
        |name| NameClass::of(name).is_comm(Kind::Kernel),
        is_communication_by_hta,
        |name| is_communication_kernel_in_traces(name.as_bytes()),
        |name| NameClass::of(name).is_comm(Kind::CpuOp),
        |name| is_host_communication_in_traces(name.as_bytes()),
        is_host_collective,
        is_backend_range,
        |name| Launched::of(name, Kind::CpuOp) == Some(Launched::Communication),
        waits,
        synchronizes,
        is_data_loading,
        is_data_loader,
        is_input,
        is_step,
    ];

    /// `x`: the rule of this column holds for the name.
    const TABLE: &str = "
        kernel  HTA  kernel in traces  host  host in traces  collective  back end  launches  wait  sync  loading  loader  input  step
        x       x    x                 .     .               .           .         .         .     .     .        .       .      .     ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevKernelArgs)
        x       x    x                 .     .               .           .         .         .     .     .        .       .      .     ncclKernel_SendRecv_RING_SIMPLE_Sum_int8_t
        x       .    x                 .     .               .           .         .         .     .     .        .       .      .     NCCLKernel
        x       .    x                 .     .               .           .         .         .     .     .        .       .      .     rcclGenericKernel
        x       x    x                 .     .               .           .         .         .     .     .        .       .      .     nccl_helper
        x       x    x                 .     .               .           .         .         .     .     .        .       .      .     void ncclKernel_X<float>()
        .       .    x                 .     .               .           .         .         .     .     .        .       .      .     void gemm<nccl>(float*)
        x       .    .                 .     .               .           .         .         .     .     .        .       .      .     void vllm::cross_device_reduce_1stage<__half, 8>()
        x       .    .                 .     .               .           .         .         .     .     .        .       .      .     void dpsk::ep::internode::combine<false>(int4*)
        x       x    x                 .     .               .           .         .         .     .     .        .       .      .     hcclKernel
        .       .    .                 .     .               .           .         .         .     .     .        .       .      .     my_nccl_copy_helper
        .       .    .                 .     .               .           .         .         .     .     .        .       .      .     vectorized_succl
        .       .    .                 .     .               .           .         .         .     .     .        .       .      .     ampere_sgemm_128x64_tn
        .       .    .                 .     .               .           .         .         .     .     .        .       .      .     é
        .       .    .                 x     x               .           .         x         .     .     .        .       .      .     c10d::allreduce_
        .       .    .                 x     x               .           .         x         .     .     .        .       .      .     record_param_comms
        x       x    x                 x     x               .           x         x         .     .     .        .       .      .     nccl:all_reduce
        .       .    .                 x     x               x           x         x         .     .     .        .       .      .     gloo:all_reduce
        .       .    .                 x     x               x           .         x         .     .     .        .       .      .     mpi:all_reduce
        .       .    .                 .     x               x           x         x         .     .     .        .       .      .     ucc:all_reduce
        x       .    x                 .     x               .           x         x         .     .     .        .       .      .     rccl:all_reduce
        x       .    x                 .     x               .           x         x         .     .     .        .       .      .     xccl:all_reduce
        x       x    x                 .     x               .           x         x         .     .     .        .       .      .     hccl:all_reduce
        .       .    .                 .     x               .           .         x         .     .     .        .       .      .     c10d_functional::all_reduce
        .       .    .                 .     x               .           .         x         .     .     .        .       .      .     _c10d_functional::all_reduce
        x       .    .                 .     .               .           .         x         .     .     .        .       .      .     symm_mem::multimem_all_reduce_
        .       .    .                 .     .               .           .         x         .     .     .        .       .      .     vllm::all_reduce
        .       .    .                 .     .               .           .         x         .     .     .        .       .      .     _C_custom_ar::all_reduce
        .       .    .                 x     x               .           .         x         x     .     .        .       .      .     c10d::WaitTensor
        .       .    .                 x     .               .           .         .         x     .     .        .       .      .     wait_all_reduce
        .       .    .                 .     .               .           .         .         .     .     .        .       .      .     aten::addmm
        .       .    .                 .     .               .           .         .         .     x     .        .       .      .     cudaStreamSynchronize
        .       x    .                 .     .               .           .         .         .     x     .        .       .      .     hipDeviceSynchronize
        .       .    .                 .     .               .           .         .         .     x     .        .       .      .     cuCtxSynchronize
        .       .    .                 .     .               .           .         .         .     x     .        .       .      .     cudaMemcpy
        .       .    .                 .     .               .           .         .         .     x     .        .       .      .     cuMemcpyDtoH_v2
        .       .    .                 .     .               .           .         .         .     .     .        .       .      .     cudaMemcpyAsync
        .       .    .                 .     .               .           .         .         .     .     .        .       .      .     cuMemcpyHtoDAsync_v2
        .       .    .                 x     .               .           .         .         x     .     .        .       .      .     cudaStreamWaitEvent
        .       .    .                 .     .               .           .         .         .     .     x        .       x      .     input
        .       .    .                 .     .               .           .         .         .     .     .        .       x      .     Input
        .       .    .                 .     .               .           .         .         .     .     x        x       x      .     enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__
        .       .    .                 .     .               .           .         .         .     .     x        x       x      .     enumerate(DataPipe)#Mapper
        .       .    .                 .     .               .           .         .         .     .     .        x       x      .     enumerate(DataLoader)
        .       .    .                 .     .               .           .         .         .     .     .        x       x      .     my enumerate(DataLoader)#1
        .       .    .                 .     .               .           .         .         .     .     .        .       x      .     torch/utils/data/dataloader.py(600): __next__
        .       .    .                 .     .               .           .         .         .     .     .        .       .      .     input_layer
        .       .    .                 .     .               .           .         .         .     .     .        .       .      x     ProfilerStep#12
        .       .    .                 .     .               .           .         .         .     .     .        .       .      x     ProfilerStep#x
        .       .    .                 .     .               .           .         .         .     .     .        .       .      .     ProfilerStep
        .       .    .                 .     .               .           .         .         .     .     .        .       .      .     my ProfilerStep#1
    ";

    #[test]
    fn every_name_has_the_meanings_of_the_table() {
        let rows = TABLE.lines().map(str::trim).filter(|line| line.starts_with(['x', '.']));
        let mut names = 0;
        for row in rows {
            let mut rest = row;
            let mut expected = String::new();
            for _ in RULES {
                expected.push_str(&rest[..1]);
                rest = rest[1..].trim_start();
            }
            let found: String = RULES.iter().map(|holds| if holds(rest) { 'x' } else { '.' }).collect();
            assert_eq!(found, expected, "{rest}");
            names += 1;
        }
        assert_eq!(names, 51);
    }

    #[test]
    fn only_kernels_and_operators_communicate() {
        for kind in [Kind::UserAnnotation, Kind::Runtime, Kind::GpuUserAnnotation, Kind::PythonFunction] {
            assert!(!NameClass::of("nccl:all_reduce").is_comm(kind), "{kind:?}");
        }
    }

    #[test]
    fn an_operator_of_aten_computes_and_the_ranges_of_back_ends_communicate() {
        assert_eq!(Launched::of("aten::copy_", Kind::CpuOp), Some(Launched::Computation));
        assert_eq!(Launched::of("nccl:all_reduce", Kind::UserAnnotation), Some(Launched::Communication));
        for (name, kind) in [("symm_mem::x", Kind::UserAnnotation), ("c10d::x", Kind::Runtime), ("my_op", Kind::CpuOp)]
        {
            assert_eq!(Launched::of(name, kind), None, "{name}");
        }
    }

    #[test]
    fn the_phases_of_a_step_have_names() {
        let names =
            ["Optimizer.step#Adam.step", "Optimizer.zero_grad#SGD.zero_grad", "## forward ##", "forward_backward"];
        assert_eq!(names.map(is_optimizer_step), [true, false, false, false]);
        assert_eq!(names.map(is_optimizer), [true, true, false, false]);
        assert_eq!(names.map(is_forward), [false, false, true, false]);
        assert!(waits_for_device("Command Buffer Full") && !waits_for_device("Buffer Flush"));
        assert!(is_work_of_profiler("Buffer Flush") && !is_work_of_profiler("Lazy Function Loading"));
    }

    #[test]
    fn the_name_decides_the_kind_of_some_rows_of_devices() {
        let kinds = |category: &str, names: &[&str]| {
            names.iter().map(|name| kind_of(category, name.as_bytes())).collect::<Vec<_>>()
        };
        use Kind::{CpuOp, GpuMemcpy, GpuMemset, Kernel, Other, Sync};
        let on_mtia = ["dma_request", "event_wait", "event_record", "pe_exe", "job_exe:3", "add", "hccl::all_reduce"];
        assert_eq!(kinds(MTIA_CATEGORY, &on_mtia), [GpuMemcpy, Sync, Sync, Other, Other, Kernel, Kernel]);
        let of_hip = ["__amd_rocclr_copyBuffer.kd", "__amd_rocclr_fillBufferAligned", "__amd_rocclr_scheduler", "gemm"];
        assert_eq!(kinds("kernel", &of_hip), [GpuMemcpy, GpuMemset, Kernel, Kernel]);
        assert_eq!(kinds("cpu_op", &["__amd_rocclr_copyBuffer", "dma_request"]), [CpuOp, CpuOp]);
    }

    #[test]
    fn steps_have_numbers() {
        let names = ["ProfilerStep#12", "ProfilerStep#-1", "ProfilerStep#x", "ProfilerStep", "forward"];
        assert_eq!(names.map(step_number), [Some(12), None, None, None, None]);
        assert_eq!(names.map(step_mark), [Some(Some(12)), Some(Some(-1)), Some(None), Some(None), None]);
    }
}
