//! A program without any code of the recorder: CUDA's driver and NCCL load the library that `rank-agent exec` named in the
//! environment, and call its functions. The GPU is a stand-in.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::ffi::CStr;
use std::path::PathBuf;

use fixtures::nccl_replay::abi::{Coll, Descriptor, kind};
use fixtures::nccl_replay::ffi::{Comm, Plugin, initialize_injection, mask};
use stand_in_cupti::records::Kernel13;

use crate::ffi::{Nvtx, StandIn};

const ALL_REDUCE: &CStr = c"_Z39ncclDevKernel_AllReduce_Sum_f32_RING_LL24ncclDevKernelArgsStorageILm4096EE";
const BROADCAST: &CStr = c"_Z31ncclDevKernel_Broadcast_RING_LL24ncclDevKernelArgsStorageILm4096EE";
const GEMM: &CStr = c"_ZN4ours4gemmIfLi128EEEvPKT_PS1_";
const DRIVER: u32 = 4;
const RUNTIME: u32 = 5;
const CU_LAUNCH_KERNEL: u32 = 307;
const LAUNCH_KERNEL: u32 = 211;
/// Domains of callbacks.
const DRIVER_API: u32 = 1;
const RESOURCE: u32 = 3;
/// cuStreamBeginCapture_v2, and an event of resources.
const STREAM_BEGIN_CAPTURE: u32 = 539;
const CONTEXT_CREATED: u32 = 1;
/// The first version of NCCL's interface with calls and launches: NCCL 2.28.
const LAUNCHES: u8 = 5;
pub(crate) const COLLECTIVES: u64 = 10;

fn path(variable: &str) -> PathBuf {
    PathBuf::from(std::env::var_os(variable).unwrap_or_else(|| panic!("{variable} is not set")))
}

/// A collective whose kernel runs.
struct Running {
    operation: usize,
    began: u64,
    ended: u64,
}

struct Program {
    stand_in: StandIn,
    /// Version of NCCL's interface.
    version: u8,
    plugin: Plugin,
    context: usize,
    /// When the last kernel of each stream ends: the next one waits for it.
    ends: RefCell<BTreeMap<u32, u64>>,
}

/// Trains a little: matrix products, and a collective behind each.
pub(crate) fn run(steps: Option<u64>) {
    let stand_in = StandIn::open(&path("RANKSCOPE_CUPTI"));
    // In cuInit, whose lock CUPTI's functions take, too.
    stand_in.initialise(true);
    println!("injected {}", initialize_injection(&path("CUDA_INJECTION64_PATH")).unwrap());
    if std::env::var_os("SLOW_INIT").is_some() {
        // With many devices it takes longer than the time between two flushes.
        std::thread::sleep(std::time::Duration::from_millis(2500));
    }
    stand_in.initialise(false);
    println!("intruders {}", stand_in.intruders());
    stand_in.event(RESOURCE, CONTEXT_CREATED, 0);
    // In ncclCommInit.
    let version = std::env::var("PLUGIN_VERSION").ok().and_then(|version| version.parse().ok()).unwrap_or(LAUNCHES);
    let plugin = Plugin::load(&path("NCCL_PROFILER_PLUGIN"), version).unwrap();
    let rank = std::env::var("RANK").ok().and_then(|rank| rank.parse().ok()).unwrap_or(0);
    let context = plugin.init(&Comm { name: "dp", hash: 0xfeed, nodes: 1, ranks: 2, rank });
    if std::env::var_os("CAPTURE").is_some() {
        let before = mask();
        stand_in.event(DRIVER_API, STREAM_BEGIN_CAPTURE, 0);
        println!("masks {before} {}", mask());
    }
    let program = Program { stand_in, version, plugin, context, ends: RefCell::default() };
    // At its first range.
    let nvtx = steps.map(|_| Nvtx::initialize(&path("NVTX_INJECTION64_PATH")));
    let mut before = None;
    for seq in 0..steps.unwrap_or(COLLECTIVES) {
        let marks = nvtx.as_ref().map(|nvtx| (nvtx.range(&format!("ProfilerStep#{seq}")), nvtx.range("forward")));
        let gemm = program.stand_in.call(RUNTIME, LAUNCH_KERNEL);
        program.kernel(GEMM, gemm, 7);
        if std::env::var_os("BROADCAST").is_some() {
            program.broadcast();
        }
        // A GPU is behind the host: the channels of a collective are reported in the next step.
        before.replace(program.all_reduce(seq)).into_iter().for_each(|running| program.progress(&running));
        if let Some((step, forward)) = marks {
            drop(forward);
            drop(step);
        }
    }
    before.into_iter().for_each(|running| program.progress(&running));
    program.plugin.finalize(context);
    println!("pushes {}", program.stand_in.pushes());
    // It exits without ending the recording.
}

impl Program {
    fn kernel(&self, name: &CStr, correlation_id: u32, stream_id: u32) -> (u64, u64) {
        let mut ends = self.ends.borrow_mut();
        let stream_end = ends.entry(stream_id).or_default();
        let start = self.stand_in.now().max(*stream_end);
        let (end, name) = (start + 50_000, name.as_ptr() as usize as u64);
        *stream_end = end;
        let kernel = Kernel13 { start, end, context_id: 1, stream_id, correlation_id, name, ..Default::default() };
        self.stand_in.put(&kernel.bytes(130_001));
        (start, end)
    }

    fn start(&self, descriptor: &Descriptor) -> usize {
        self.plugin.start(self.context, descriptor.bytes())
    }

    fn begin(&self, kind: u64, parent: usize) -> usize {
        self.start(&Descriptor::new(self.version, kind, parent))
    }

    /// Calls of NCCL on the user's thread: first the launch, then the collective. NCCL 2.26 and 2.27 report neither the call of the
    /// program nor the launch.
    fn all_reduce(&self, seq: u64) -> Running {
        let version = self.version;
        let (func, datatype, algo, proto) = (c"AllReduce", c"ncclFloat32", c"RING", c"LL");
        let calls = (version >= LAUNCHES).then(|| {
            let group_api = self.begin(kind::GROUP_API, 0);
            let call = self.start(&Descriptor::coll_api(version, group_api, func, 1000, datatype));
            self.plugin.stop(call);
            (group_api, call)
        });
        let launch = calls.map(|(group_api, _)| self.begin(kind::KERNEL_LAUNCH, group_api));
        let correlation_id = self.stand_in.call(DRIVER, CU_LAUNCH_KERNEL);
        launch.into_iter().for_each(|launch| self.plugin.stop(launch));
        let group = self.begin(kind::GROUP, 0);
        let coll = Coll { comm_hash: 0xfeed, seq, func, count: 1000, root: 0, datatype, channels: 1, algo, proto };
        let operation = self.start(&Descriptor::coll(version, calls.map_or(group, |(_, call)| call), group, coll));
        for handle in [operation, group].into_iter().chain(calls.map(|(group_api, _)| group_api)) {
            self.plugin.stop(handle);
        }
        let (began, ended) = self.kernel(ALL_REDUCE, correlation_id, 9);
        Running { operation, began, ended }
    }

    /// Calls of NCCL 2.29 on the user's thread for a broadcast: it reports no more.
    fn broadcast(&self) {
        let group_api = self.begin(kind::GROUP_API, 0);
        self.plugin.stop(self.start(&Descriptor::coll_api(self.version, group_api, c"Broadcast", 16, c"ncclInt8")));
        let correlation_id = self.stand_in.call(DRIVER, CU_LAUNCH_KERNEL);
        self.plugin.stop(group_api);
        self.kernel(BROADCAST, correlation_id, 9);
    }

    /// Calls of NCCL on its proxy thread: the channels of a kernel.
    fn progress(&self, running: &Running) {
        // The GPU's own clock is another.
        const GPU_NS: u64 = 1_756_000_000_000_000_000;
        let Running { operation, began, ended } = *running;
        while self.stand_in.now() < began {
            std::hint::spin_loop();
        }
        let channel = self.start(&Descriptor::kernel_ch(self.version, operation, 0, GPU_NS + began));
        while self.stand_in.now() < ended {
            std::hint::spin_loop();
        }
        if self.version > 3 {
            self.plugin.record_state(channel, 22, Some(GPU_NS + ended));
        }
        self.plugin.stop(channel);
    }
}
