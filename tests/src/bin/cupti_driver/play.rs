//! The simulated program and its GPU.

use std::ffi::CStr;
use std::thread::sleep;
use std::time::Duration;

use recorder::{Collective, CollectiveOp, Kind, Phase, Recorder, ThreadRecorder};
use sources::cupti::Cupti;
use stand_in_cupti::records::{
    API, Context4, Device6, ExternalCorrelation, Kernel13, Marker2, MarkerData2, Memcpy7, MemcpyPtoP4, Memory4,
    Memset5, Name, Overhead3, Stream, Synchronization2,
};

use crate::ffi::{StandIn, fork};

const GEMM: &CStr = c"_ZN4ours4gemmIfLi128EEEvPKT_PS1_";
const NCCL: &CStr = c"_Z39ncclDevKernel_AllReduce_Sum_f32_RING_LL24ncclDevKernelArgsStorageILm4096EE";

/// Runtime and driver calls, by CUPTI's numbers.
const RUNTIME: u32 = 5;
const DRIVER: u32 = 4;
const GET_DEVICE: u32 = 17;
const LAUNCH_KERNEL: u32 = 211;
const GRAPH_LAUNCH: u32 = 311;
const MEMCPY_ASYNC: u32 = 41;
const STREAM_SYNCHRONIZE: u32 = 131;
const CU_LAUNCH_KERNEL: u32 = 307;
const CU_MEM_ALLOC: u32 = 243;

fn address(text: &CStr) -> u64 {
    text.as_ptr() as usize as u64
}

/// One record of every kind that is read. Their values show a shifted field.
pub(crate) fn one_of_each(version: u32) -> Vec<u8> {
    [
        Kernel13 { start: 5, end: 9, correlation_id: 1, ..Default::default() }.bytes(version),
        Memcpy7 { start: 5, end: 9, correlation_id: 2, ..Default::default() }.bytes(version),
        MemcpyPtoP4 { start: 5, end: 9, correlation_id: 3, ..Default::default() }.bytes(version),
        Memset5 { start: 5, end: 9, correlation_id: 4, ..Default::default() }.bytes(version),
        API { start: 5, end: 9, correlation_id: 1, ..Default::default() }.bytes(version),
        API { kind: DRIVER, start: 5, end: 9, correlation_id: 1, ..Default::default() }.bytes(version),
        ExternalCorrelation { external_kind: 5, external_id: 6, correlation_id: 1, ..Default::default() }
            .bytes(version),
        Overhead3 { start: 5, end: 9, ..Default::default() }.bytes(version),
        Synchronization2 { start: 5, end: 9, ..Default::default() }.bytes(version),
        Marker2 { timestamp: 5, id: 1, ..Default::default() }.bytes(version),
        MarkerData2 { id: 1, ..Default::default() }.bytes(version),
        Memory4 { timestamp: 5, bytes: 6, ..Default::default() }.bytes(version),
        Device6 { id: 1, ..Default::default() }.bytes(version),
        Context4 { context_id: 1, ..Default::default() }.bytes(version),
        Stream { stream_id: 1, ..Default::default() }.bytes(version),
        Name { object_kind: 2, ..Default::default() }.bytes(version),
    ]
    .concat()
}

pub(crate) struct Gpu<'r> {
    stand_in: StandIn,
    recorder: &'r Recorder,
    thread: ThreadRecorder,
    cupti: Cupti,
    version: u32,
}

impl<'r> Gpu<'r> {
    pub(crate) fn new(stand_in: StandIn, recorder: &'r Recorder, cupti: Cupti) -> Self {
        let said = cupti.version();
        let version = said.split(' ').next().unwrap().parse().unwrap();
        Self { stand_in, recorder, thread: recorder.thread("main"), cupti, version }
    }

    /// Device, context, streams.
    pub(crate) fn describe(&self) {
        // The values of a Hopper GPU.
        let device = Device6 {
            memory_bandwidth_kbs: 4_814_000_000,
            memory_bytes: 150_000_000_000,
            threads_per_warp: 32,
            core_clock_khz: 1_980_000,
            multiprocessors: 132,
            warps_per_multiprocessor: 64,
            blocks_per_multiprocessor: 32,
            shared_memory_per_multiprocessor: 233_472,
            registers_per_multiprocessor: 65_536,
            capability_major: 9,
            uuid: u64::from_ne_bytes([0xa0, 1, 2, 3, 4, 5, 6, 7]),
            uuid2: u64::from_ne_bytes([8, 9, 10, 11, 12, 13, 14, 0xff]),
            name: address(c"NVIDIA Stand-in"),
            ..Default::default()
        };
        self.stand_in.put(&device.bytes(self.version));
        self.stand_in.put(&Context4 { context_id: 1, null_stream_id: 7, ..Default::default() }.bytes(self.version));
    }

    /// A part of a device, by MIG.
    pub(crate) fn describe_slice(&self) {
        let slice = Device6 {
            id: 1,
            uuid: 1,
            is_mig_enabled: 1,
            mig_uuid: u64::from_ne_bytes([0xb0, 1, 2, 3, 4, 5, 6, 7]),
            mig_uuid2: u64::from_ne_bytes([8, 9, 10, 11, 12, 13, 14, 15]),
            ..Default::default()
        };
        self.stand_in.put(&slice.bytes(self.version));
    }

    /// The time `us` from now.
    fn after(&self, us: u64) -> u64 {
        self.stand_in.now() + us * 1000
    }

    /// A kernel of `us` microseconds, launched by `correlation_id`.
    fn kernel(&self, name: &CStr, correlation_id: u32, stream_id: u32, start: u64, us: u64, graph: (u32, u64)) {
        let kernel = Kernel13 {
            registers_per_thread: 128,
            start,
            end: start + us * 1000,
            completed: start + us * 1000,
            context_id: 1,
            stream_id,
            grid_x: 264,
            grid_y: 2,
            grid_z: 1,
            block_x: 256,
            block_y: 1,
            block_z: 1,
            static_shared_memory: 1024,
            dynamic_shared_memory: 4096,
            correlation_id,
            name: address(name),
            graph_node_id: graph.1,
            graph_id: graph.0,
            cluster_x: 2,
            cluster_y: 1,
            cluster_z: 1,
            priority: -5,
            ..Default::default()
        };
        self.stand_in.put(&kernel.bytes(self.version));
    }

    fn op(&self, name: &str, body: impl FnOnce()) {
        let _scope = self.thread.scope(Kind::CpuOp, self.recorder.intern(name));
        body();
    }

    fn collective(seq: i64, bucket: i32) -> Collective {
        Collective {
            comm_size: Some(2),
            bytes: Some(4 << 20),
            bucket: Some(bucket),
            ..Collective::new(77, seq, CollectiveOp::AllReduce)
        }
    }

    /// Four steps, two of which are recorded.
    pub(crate) fn train(&self) {
        // Before the first step: no row.
        let early = self.stand_in.call(RUNTIME, LAUNCH_KERNEL);
        self.kernel(GEMM, early, 7, self.after(0), 10, (0, 0));
        self.memory(1, 3, 1 << 20);
        for step in 0..4 {
            let phase = if step < 2 { Phase::Warmup } else { Phase::Active };
            self.recorder.begin_step(step, phase);
            self.step(step.into());
            self.recorder.end_step(None);
        }
        self.recorder.set_active(false);
        self.memory(2, 3, 1 << 20);
        // A kind that is not read, and two kernels that have not ended: the launch of one is unknown, and the other was
        // launched after recording.
        self.stand_in.put(&[57_u32.to_ne_bytes().as_slice(), &[1; 68]].concat());
        self.stand_in.put(&Kernel13 { start: 5, ..Default::default() }.bytes(self.version));
        let correlation_id = self.stand_in.call(RUNTIME, LAUNCH_KERNEL);
        self.stand_in.put(&Kernel13 { start: 5, correlation_id, ..Default::default() }.bytes(self.version));
    }

    fn step(&self, step: i64) {
        self.op("forward", || {
            self.stand_in.call(RUNTIME, GET_DEVICE);
            for _ in 0..2 {
                let id = self.stand_in.call(RUNTIME, LAUNCH_KERNEL);
                self.kernel(GEMM, id, 7, self.after(0), 400, (0, 0));
                sleep(Duration::from_micros(500));
            }
            self.copies();
        });
        let scope = self.thread.scope(Kind::CpuOp, self.recorder.intern("nccl:all_reduce")).comm();
        let timed = self.cupti.collectives(&scope, &[Self::collective(3 * step, 0)]);
        assert_eq!(timed, scope.id().is_some(), "timed where the scope is recorded");
        let id = self.stand_in.call(DRIVER, CU_LAUNCH_KERNEL);
        self.kernel(NCCL, id, 9, self.after(100), 300, (0, 0));
        drop(scope);
        self.graph(step);
        sleep(Duration::from_millis(2));
        let id = self.stand_in.call(RUNTIME, STREAM_SYNCHRONIZE);
        self.synchronize(id);
        self.host_side();
    }

    /// One launch, three kernels, two collectives.
    fn graph(&self, step: i64) {
        let scope = self.thread.scope(Kind::CpuOp, self.recorder.intern("graph"));
        let collectives = [Self::collective(3 * step + 1, 1), Self::collective(3 * step + 2, 2)];
        let _ = self.cupti.collectives(&scope, &collectives);
        let id = self.stand_in.call(RUNTIME, GRAPH_LAUNCH);
        // Read the time once: on their stream the kernels then have the order of the collectives.
        let now = self.after(0);
        self.kernel(NCCL, id, 9, now + 900_000, 100, (3, 3 << 32 | 12));
        self.kernel(GEMM, id, 7, now + 400_000, 500, (3, 3 << 32 | 10));
        self.kernel(NCCL, id, 9, now + 500_000, 200, (3, 3 << 32 | 11));
    }

    fn copies(&self) {
        let id = self.stand_in.call(RUNTIME, MEMCPY_ASYNC);
        let start = self.stand_in.now();
        let end = start + 10_000;
        let (src_kind, dst_kind, bytes, stream_id, context_id) = (2, 3, 100_000, 7, 1);
        let correlation_id = id;
        let copy = Memcpy7 {
            copy_kind: 1,
            src_kind,
            dst_kind,
            bytes,
            start,
            end,
            stream_id,
            context_id,
            correlation_id,
            ..Default::default()
        };
        self.stand_in.put(&copy.bytes(self.version));
        let peer = MemcpyPtoP4 {
            copy_kind: 10,
            src_kind: 3,
            dst_kind,
            bytes,
            start,
            end,
            stream_id,
            context_id,
            correlation_id,
            dst_device_id: 1,
            ..Default::default()
        };
        self.stand_in.put(&peer.bytes(self.version));
        let memory_kind = 3;
        let fill =
            Memset5 { bytes, start, end, stream_id, context_id, correlation_id, memory_kind, ..Default::default() };
        self.stand_in.put(&fill.bytes(self.version));
    }

    fn synchronize(&self, correlation_id: u32) {
        let start = self.stand_in.now();
        let (stream_id, context_id, event_id, end) = (7, 1, u32::MAX, start + 50_000);
        let sync = Synchronization2 {
            sync_kind: 3,
            start,
            end,
            correlation_id,
            context_id,
            stream_id,
            event_id,
            ..Default::default()
        };
        self.stand_in.put(&sync.bytes(self.version));
    }

    /// Work of the host beside launches: a range, overhead, a driver call that launches nothing.
    fn host_side(&self) {
        let marker = |flags, name| Marker2 {
            flags,
            timestamp: self.stand_in.now(),
            id: 4,
            object_kind: 2,
            thread_id: 55,
            name,
            domain: address(c"NCCL"),
            ..Default::default()
        };
        self.stand_in.put(&marker(2, address(c"ncclAllReduce")).bytes(self.version));
        self.stand_in.put(&MarkerData2 { id: 4, category: 6, ..Default::default() }.bytes(self.version));
        sleep(Duration::from_micros(100));
        self.stand_in.put(&marker(4, 0).bytes(self.version));
        let start = self.stand_in.now();
        let cost = Overhead3 {
            overhead_kind: 1 << 16,
            object_kind: 2,
            thread_id: 55,
            start,
            end: start + 700,
            ..Default::default()
        };
        self.stand_in.put(&cost.bytes(self.version));
        self.stand_in.call(DRIVER, CU_MEM_ALLOC);
    }

    fn memory(&self, operation: u32, memory_kind: u32, bytes: u64) {
        let timestamp = self.stand_in.now();
        let memory =
            Memory4 { operation, memory_kind, bytes, timestamp, address: 0x7f00_0000_1000, ..Default::default() };
        self.stand_in.put(&memory.bytes(self.version));
    }

    /// More records than the buffers hold, without a flush.
    pub(crate) fn flood(&self) {
        self.recorder.begin_step(0, Phase::Active);
        for _ in 0..2000 {
            let id = self.stand_in.call(RUNTIME, LAUNCH_KERNEL);
            self.kernel(GEMM, id, 7, self.after(0), 1, (0, 0));
        }
        self.recorder.end_step(None);
    }

    /// Kernels of a device that is always behind.
    pub(crate) fn wait_for_the_kill(&self) {
        const KERNELS: u32 = 10_000;
        self.recorder.begin_step(0, Phase::Active);
        for _ in 0..KERNELS {
            let id = self.stand_in.call(RUNTIME, LAUNCH_KERNEL);
            self.kernel(GEMM, id, 7, self.after(0), 1, (0, 0));
        }
        println!("kernels {KERNELS}");
        sleep(Duration::from_secs(600));
    }

    /// A forked child that continues like its parent. Returns 0 if it did not call CUPTI.
    pub(crate) fn fork(&self) -> i32 {
        self.recorder.begin_step(0, Phase::Active);
        self.op("parent", || {});
        let pushes = self.stand_in.pushes();
        assert!(pushes > 0);
        let code = fork(|| {
            self.op("child", || {});
            self.cupti.flush();
            let finished = self.cupti.finish();
            self.stand_in.pushes() == pushes && finished.failure.is_some()
        });
        self.op("parent again", || {});
        assert!(self.stand_in.pushes() > pushes);
        self.recorder.end_step(None);
        code
    }

    pub(crate) fn destroy_context(&self) {
        self.recorder.begin_step(0, Phase::Active);
        let id = self.stand_in.call(RUNTIME, LAUNCH_KERNEL);
        self.kernel(GEMM, id, 7, self.after(0), 1, (0, 0));
        let before = self.stand_in.flushes();
        // The start of cuCtxDestroy_v2 causes a flush. Its end and other calls do not.
        assert!(self.stand_in.event(1, 322, 0));
        println!("flushed {}", self.stand_in.flushes() > before);
        assert!(self.stand_in.event(1, 322, 1) && !self.stand_in.event(1, 307, 0));
        // The resource callback only wakes the worker.
        assert!(self.stand_in.event(3, 2, 0));
        self.recorder.end_step(None);
    }

    /// Three recorded parts of a program that launches once in each, a graph or by the driver, after a context that was
    /// made before them.
    pub(crate) fn windows(&self, by_driver: bool) {
        let (kind, call, graph) =
            if by_driver { (DRIVER, CU_LAUNCH_KERNEL, (0, 0)) } else { (RUNTIME, GRAPH_LAUNCH, (3, 3 << 32 | 10)) };
        let flushes = self.stand_in.flushes();
        for step in 0..3 {
            self.cupti.resume();
            self.recorder.begin_step(step, Phase::Active);
            self.op("launch", || {
                let id = self.stand_in.call(kind, call);
                self.kernel(GEMM, id, 7, self.after(0), 50, graph);
            });
            let id = self.stand_in.call(RUNTIME, STREAM_SYNCHRONIZE);
            self.synchronize(id);
            sleep(Duration::from_millis(100));
            println!("flushes_in_window {}", self.stand_in.flushes() - flushes);
            self.recorder.end_step(None);
            self.recorder.set_active(false);
            self.cupti.pause();
        }
        println!("disabled {}", self.stand_in.disabled());
    }

    /// Steps whose records another profiler takes.
    pub(crate) fn taken(&self) {
        let step = |step| {
            self.recorder.begin_step(step, Phase::Active);
            let id = self.stand_in.call(RUNTIME, LAUNCH_KERNEL);
            self.kernel(GEMM, id, 7, self.after(0), 1, (0, 0));
            sleep(Duration::from_millis(50));
            self.recorder.end_step(None);
        };
        step(0);
        self.stand_in.take();
        (1..40).for_each(step);
        // It takes CUPTI back.
        self.cupti.pause();
        self.cupti.resume();
        step(40);
    }

    pub(crate) fn pause(&self) {
        self.recorder.begin_step(0, Phase::Active);
        let launch = |name: &str| {
            let mut taken = 0;
            self.op(name, || {
                let id = self.stand_in.call(RUNTIME, LAUNCH_KERNEL);
                self.kernel(GEMM, id, 7, self.after(0), 1, (0, 0));
                taken = id;
            });
            taken
        };
        launch("before");
        self.cupti.pause();
        self.cupti.pause();
        let pushes = self.stand_in.pushes();
        launch("paused");
        assert_eq!(self.stand_in.pushes(), pushes);
        let scope = self.thread.scope(Kind::CpuOp, self.recorder.intern("paused collective"));
        assert!(!self.cupti.collectives(&scope, &[Self::collective(0, 0)]));
        drop(scope);
        self.cupti.resume();
        launch("after");
        self.recorder.end_step(None);
    }
}
