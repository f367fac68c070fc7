//! CUPTI's records as rows.

use std::collections::BTreeMap;
use std::sync::Arc;

use recorder::{EventDetail, Kind, MemoryRecord, Missing, NONE, NameId, Shared, SourceBatch, SourceEvent, StepAt};
use rustc_hash::{FxHashMap, FxHashSet};
use trace::{DeviceRow, name_rules};

use super::awaiting_launch::{AwaitingLaunch, Launched};
use super::collectives::{Announced, Collectives, Work};
use super::enum_names;
use super::ffi::{EXTERNAL_KIND, domain};
use super::links::Launches;
use super::markers::Markers;
use super::occupancy::{self, Limits};
use super::record::{
    Api, Device, ExternalCorrelation, KIND_RUNTIME, Kernel, Memcpy, Memory, Memset, Overhead, PeerMemcpy, Record,
    Synchronization,
};
use super::settings::KnownDevice;
use super::time::TimeMap;
use crate::comm_kernels::{CommKernel, CommKernels};

/// Name of the source in `counters`.
const SOURCE: &str = "cupti";

/// Strings that the records refer to.
pub(crate) trait Strings {
    /// The string at an address in a record.
    fn string_at(&self, address: u64) -> Option<String>;
    /// Name of a call, by domain and callback id.
    fn call_name(&self, domain: u32, id: u32) -> Option<String>;
}

/// `CUPTI_ACTIVITY_OBJECT_THREAD`.
const OBJECT_THREAD: u32 = 2;
const INACTIVE: &str = "launched while nothing was recorded";

/// An id; CUPTI stores all ones for an unknown id.
fn known(id: u32) -> i64 {
    if id == u32::MAX { NONE } else { id.into() }
}

/// An id of a graph, node or correlation; CUPTI stores 0 for none.
fn nonzero(id: u64) -> i64 {
    // Node ids hold the graph in their upper half and may exceed i64: keep the bits.
    if id == 0 { NONE } else { id as i64 }
}

/// Makes rows of records, and keeps the work that waits for other records.
pub(crate) struct Rows<S> {
    strings: S,
    shared: Arc<Shared>,
    rank: i32,
    pub(crate) times: TimeMap,
    launches: Launches,
    waiting: AwaitingLaunch,
    pub(crate) collectives: Collectives,
    markers: Markers,
    limits: FxHashMap<u32, Limits>,
    devices_written: FxHashSet<u32>,
    device_of_context: FxHashMap<u32, u32>,
    allocated_bytes: FxHashMap<i64, i64>,
    kernel_names: FxHashMap<String, (NameId, bool)>,
    call_names: FxHashMap<(u32, u32), NameId>,
    /// Whether calls are recorded. If not, device work does not wait for them.
    pub(crate) has_calls: bool,
    /// Whether the kernels of a graph carry the right id of their launch.
    pub(crate) graphs_join: bool,
    pub(crate) devices: Vec<DeviceRow>,
    batch: SourceBatch,
    comm_kernels: Arc<CommKernels>,
    missing: BTreeMap<(&'static str, String), (u64, u64)>,
}

impl<S: Strings> Rows<S> {
    pub(crate) fn new(strings: S, shared: Arc<Shared>, rank: i32, comm_kernels: Arc<CommKernels>) -> Self {
        Self {
            strings,
            shared,
            rank,
            times: TimeMap::default(),
            launches: Launches::default(),
            waiting: AwaitingLaunch::default(),
            collectives: Collectives::default(),
            markers: Markers::default(),
            limits: FxHashMap::default(),
            devices_written: FxHashSet::default(),
            device_of_context: FxHashMap::default(),
            allocated_bytes: FxHashMap::default(),
            kernel_names: FxHashMap::default(),
            call_names: FxHashMap::default(),
            has_calls: true,
            graphs_join: true,
            devices: Vec::new(),
            batch: SourceBatch { source: SOURCE, ..SourceBatch::default() },
            comm_kernels,
            missing: BTreeMap::new(),
        }
    }

    /// Keeps a collective that is about to be launched.
    pub(crate) fn announce(&mut self, announced: Announced) {
        self.collectives.announce(announced);
    }

    /// Counts lost records.
    pub(crate) fn lose(&mut self, source: &'static str, records: u64, why: &str) {
        self.missing.entry((source, why.into())).or_default().0 += records;
    }

    /// Counts records that make no row on purpose.
    pub(crate) fn omit(&mut self, source: &'static str, records: u64, why: &str) {
        self.missing.entry((source, why.into())).or_default().1 += records;
    }

    /// Makes rows of records. It first reads the records that describe others, because CUPTI's records have no order.
    pub(crate) fn take(&mut self, records: &[Record]) {
        for record in records {
            self.learn(record);
        }
        if !self.waiting.is_empty() {
            let launches = &self.launches;
            let ready = |id| launches.get(id).is_some_and(|launch| launch.start_ns.is_some());
            for launched in self.waiting.take_ready(ready) {
                self.place_in_step(launched);
            }
        }
        for record in records {
            self.row(record);
        }
    }

    fn learn(&mut self, record: &Record) {
        match record {
            Record::Api(Api { correlation_id, start, .. }) => {
                if let Some(start_ns) = self.times.local(*start) {
                    self.launches.called(*correlation_id, start_ns);
                }
            }
            // Other kinds belong to other profilers.
            Record::ExternalCorrelation(ExternalCorrelation {
                external_kind: EXTERNAL_KIND,
                external_id,
                correlation_id,
            }) => {
                self.launches.inside(*correlation_id, *external_id as i64);
            }
            Record::Context(context) => {
                self.device_of_context.insert(context.context_id, context.device_id);
            }
            Record::Device(device) => self.device(device),
            _ => {}
        }
    }

    fn row(&mut self, record: &Record) {
        match record {
            Record::Kernel(kernel) => self.kernel(kernel),
            Record::Memcpy(copy) => self.memcpy(copy),
            Record::PeerMemcpy(copy) => self.peer_memcpy(copy),
            Record::Memset(fill) => self.memset(fill),
            Record::Api(api) => self.api(api),
            Record::Overhead(overhead) => self.overhead(overhead),
            Record::Synchronization(sync) => self.synchronization(sync),
            Record::Memory(memory) => self.memory(memory),
            Record::Marker(marker) => {
                let text = |address| self.strings.string_at(address);
                let ended = self.times.local(marker.timestamp).and_then(|ns| self.markers.take(marker, ns, text));
                if let Some(range) = ended {
                    let event = range.event(&self.shared);
                    self.on_host(event);
                }
            }
            Record::MarkerData(data) => self.markers.describe(data),
            Record::Name(_) => self.omit("cupti:names", 1, "names of threads and streams have no table"),
            Record::ExternalCorrelation(_) | Record::Device(_) | Record::Context(_) | Record::Stream(_) => {}
        }
    }

    /// Takes a device for which the program writes the row.
    pub(crate) fn know(&mut self, known: &KnownDevice) {
        self.devices_written.insert(known.device_id);
        if let Some(limits) = Limits::of(known) {
            self.limits.insert(known.device_id, limits);
        }
    }

    fn device(&mut self, device: &Device) {
        let known = occupancy::known(device);
        if let Some(limits) = Limits::of(&known) {
            self.limits.insert(device.id, limits);
        }
        if !self.devices_written.insert(device.id) {
            return;
        }
        // As `nvidia-smi -L` prints them.
        let (kind, uuid) = match device.is_mig_enabled {
            0 => ("GPU", device.uuid),
            _ => ("MIG", device.mig_uuid),
        };
        let hex: String = uuid.iter().map(|byte| format!("{byte:02x}")).collect();
        let uuid = format!("{kind}-{}-{}-{}-{}-{}", &hex[..8], &hex[8..12], &hex[12..16], &hex[16..20], &hex[20..]);
        self.devices.push(DeviceRow {
            rank: self.rank,
            device_id: device.id.into(),
            name: self.strings.string_at(device.name).map(Into::into),
            uuid: Some(uuid.into()),
            sm_count: i32::try_from(device.multiprocessors).ok(),
            max_threads_per_sm: i32::try_from(known.threads_per_multiprocessor).ok(),
            registers_per_sm: i32::try_from(known.registers_per_multiprocessor).ok(),
            shared_mem_per_sm_bytes: Some(known.shared_bytes_per_multiprocessor.into()),
            clock_khz: Some(device.core_clock_khz.into()),
            memory_clock_khz: None,
            memory_bytes: i64::try_from(device.memory_bytes).ok(),
            peak_flops: None,
            // CUPTI's unit is kB/s.
            peak_bytes_per_s: (device.memory_bandwidth_kbs > 0).then_some(device.memory_bandwidth_kbs as f64 * 1000.0),
        });
    }

    /// An interval. An incomplete record gives `None` and is counted: as left out if recording was inactive at its
    /// launch, otherwise as lost.
    fn interval(&mut self, kind: Kind, name: NameId, times: (u64, u64), correlation_id: u32) -> Option<SourceEvent> {
        let ends = (self.times.local(times.0), self.times.local(times.1));
        let why = match ends {
            (Some(start_ns), Some(end_ns)) if start_ns <= end_ns => {
                return Some(SourceEvent::new(self.shared.next_id(), kind, name, start_ns, end_ns));
            }
            (Some(_), Some(_)) => "the record ends before it starts",
            _ => "the work had not ended when the record was handed over",
        };
        let made_ns = self.launches.get(correlation_id).and_then(|launch| launch.start_ns);
        if made_ns.is_some_and(|made_ns| !matches!(self.shared.step_at(made_ns), StepAt::Active(_))) {
            self.omit("cupti:inactive", 1, INACTIVE);
        } else {
            self.lose("cupti:incomplete", 1, why);
        }
        None
    }

    fn kernel(&mut self, kernel: &Kernel) {
        let (name, is_comm) = self.kernel_name(kernel.name);
        let Some(event) = self.interval(Kind::Kernel, name, (kernel.start, kernel.end), kernel.correlation_id) else {
            return;
        };
        let limits = self.limits.get(&kernel.device_id);
        let detail = EventDetail::Kernel {
            grid: [kernel.grid_x, kernel.grid_y, kernel.grid_z],
            block: [kernel.block_x, kernel.block_y, kernel.block_z],
            registers: kernel.registers_per_thread.into(),
            shared_mem_bytes: i64::from(kernel.static_shared_memory) + i64::from(kernel.dynamic_shared_memory),
            occupancy_pct: limits.and_then(|limits| occupancy::achieved_pct(limits, kernel)),
        };
        let mut args = serde_json::Map::new();
        if kernel.cluster_x.max(kernel.cluster_y).max(kernel.cluster_z) > 1 {
            args.insert("cluster".into(), serde_json::json!([kernel.cluster_x, kernel.cluster_y, kernel.cluster_z]));
        }
        if let Some(priority) = kernel.priority.filter(|priority| *priority != 0) {
            args.insert("priority".into(), priority.into());
        }
        if kernel.is_device_launched.is_some_and(|launched| launched != 0) {
            args.insert("device_launched".into(), true.into());
        }
        let args = (!args.is_empty()).then(|| serde_json::Value::Object(args).to_string().into());
        let place = (kernel.device_id, kernel.context_id, kernel.stream_id);
        let graph = (kernel.graph_id, kernel.graph_node_id);
        self.launched(SourceEvent { detail, is_comm, args, ..event }, place, graph, kernel.correlation_id);
    }

    fn memcpy(&mut self, copy: &Memcpy) {
        let name = self.shared.intern(&enum_names::memcpy_name(copy.copy_kind, copy.src_kind, copy.dst_kind));
        let Some(event) = self.interval(Kind::GpuMemcpy, name, (copy.start, copy.end), copy.correlation_id) else {
            return;
        };
        let kind = enum_names::copy_kind_word(copy.copy_kind);
        let detail = EventDetail::Copy { kind, bytes: copy.bytes as i64, devices: None };
        let place = (copy.device_id, copy.context_id, copy.stream_id);
        self.launched(SourceEvent { detail, ..event }, place, (copy.graph_id, copy.graph_node_id), copy.correlation_id);
    }

    fn peer_memcpy(&mut self, copy: &PeerMemcpy) {
        let name = self.shared.intern(&enum_names::memcpy_name(copy.copy_kind, copy.src_kind, copy.dst_kind));
        let Some(event) = self.interval(Kind::GpuMemcpy, name, (copy.start, copy.end), copy.correlation_id) else {
            return;
        };
        let (kind, devices) = (enum_names::copy_kind_word(copy.copy_kind), (copy.src_device_id, copy.dst_device_id));
        let detail = EventDetail::Copy { kind, bytes: copy.bytes as i64, devices: Some(devices) };
        let place = (copy.device_id, copy.context_id, copy.stream_id);
        self.launched(SourceEvent { detail, ..event }, place, (copy.graph_id, copy.graph_node_id), copy.correlation_id);
    }

    fn memset(&mut self, fill: &Memset) {
        let name = self.shared.intern(&enum_names::memset_name(fill.memory_kind));
        let Some(event) = self.interval(Kind::GpuMemset, name, (fill.start, fill.end), fill.correlation_id) else {
            return;
        };
        let detail = EventDetail::Fill { bytes: fill.bytes as i64 };
        let place = (fill.device_id, fill.context_id, fill.stream_id);
        self.launched(SourceEvent { detail, ..event }, place, (fill.graph_id, fill.graph_node_id), fill.correlation_id);
    }

    fn synchronization(&mut self, sync: &Synchronization) {
        let kind = enum_names::sync_word(sync.sync_kind);
        let name = self.shared.intern(kind);
        let Some(event) = self.interval(Kind::Sync, name, (sync.start, sync.end), sync.correlation_id) else {
            return;
        };
        let device_id = self.device_of_context.get(&sync.context_id).copied().unwrap_or(u32::MAX);
        let place = (device_id, sync.context_id, sync.stream_id);
        let args =
            (sync.event_id != u32::MAX).then(|| serde_json::json!({"event_id": sync.event_id}).to_string().into());
        let detail = EventDetail::Sync { kind };
        self.launched(SourceEvent { detail, args, ..event }, place, (0, 0), sync.correlation_id);
    }

    /// Fills in device, context and stream, and keeps the event until its launch is known.
    fn launched(&mut self, event: SourceEvent, place: (u32, u32, u32), graph: (u32, u64), correlation_id: u32) {
        let (device_id, context_id, stream_id) = place;
        let correlation_id = if graph.0 != 0 && !self.graphs_join {
            self.omit("cupti:graph_launches", 1, "before 13.1 U1, CUPTI confuses the launches of graphs after a pause");
            0
        } else {
            correlation_id
        };
        let event = SourceEvent {
            device_id: known(device_id),
            context_id: known(context_id),
            stream_id: known(stream_id),
            graph_id: nonzero(graph.0.into()),
            graph_node_id: nonzero(graph.1),
            correlation_id: nonzero(correlation_id.into()),
            ..event
        };
        let launch = self.launches.get(correlation_id);
        if self.has_calls && correlation_id != 0 && launch.is_none_or(|launch| launch.start_ns.is_none()) {
            if let Some(overdue) = self.waiting.push(Launched { event, correlation_id, age: 0 }) {
                self.place_in_step(overdue);
            }
            return;
        }
        self.place_in_step(Launched { event, correlation_id, age: 0 });
    }

    /// Gives device work the step and the scope of its launch. Without a record of the launch it gets the step of its own
    /// start.
    fn place_in_step(&mut self, launched: Launched) {
        let Launched { event, correlation_id, .. } = launched;
        let launch = self.launches.get(correlation_id);
        let made_ns = launch.and_then(|launch| launch.start_ns).unwrap_or(event.ts_ns);
        let external_id = launch.map_or(NONE, |launch| launch.external_id);
        if external_id != NONE && event.kind != Kind::Sync {
            self.collectives.work(
                external_id,
                Work {
                    start_ns: event.ts_ns,
                    end_ns: event.ts_ns + event.dur_ns,
                    event_id: event.id,
                    device_id: event.device_id,
                    stream_id: event.stream_id,
                    is_comm: event.is_comm,
                },
            );
        }
        if external_id != NONE && event.is_comm {
            let (launch, start_ns, end_ns) = (external_id, event.ts_ns, event.ts_ns + event.dur_ns);
            self.comm_kernels.push(CommKernel { launch, start_ns, end_ns });
        }
        self.keep_if_active(SourceEvent { external_id, ..event }, made_ns);
    }

    fn api(&mut self, api: &Api) {
        let domain = if api.kind == KIND_RUNTIME { domain::RUNTIME_API } else { domain::DRIVER_API };
        if domain == domain::DRIVER_API && !enum_names::LAUNCH_CALLS.contains(&api.callback_id) {
            return self.omit(
                "cupti:cuda_driver",
                1,
                "of the driver's calls, only launches, copies and fills are recorded",
            );
        }
        if domain == domain::RUNTIME_API && enum_names::QUIET_CALLS.contains(&api.callback_id) {
            return self.omit(
                "cupti:cuda_runtime",
                1,
                "calls that ask for the device or the last error, or make an event, are not recorded",
            );
        }
        let name = self.call_name(domain, api.callback_id);
        let kind = if domain == domain::RUNTIME_API { Kind::Runtime } else { Kind::Driver };
        let Some(event) = self.interval(kind, name, (api.start, api.end), api.correlation_id) else { return };
        let external_id = self.launches.get(api.correlation_id).map_or(NONE, |launch| launch.external_id);
        let failed =
            (api.return_value != 0).then(|| serde_json::json!({"return": api.return_value}).to_string().into());
        self.on_host(SourceEvent {
            thread_id: api.thread_id.into(),
            correlation_id: nonzero(api.correlation_id.into()),
            external_id,
            // The innermost scope of the thread at the call encloses it.
            parent_id: external_id,
            args: failed,
            ..event
        });
    }

    fn overhead(&mut self, overhead: &Overhead) {
        let name = self.shared.intern(enum_names::overhead_word(overhead.overhead_kind));
        let Some(event) = self.interval(Kind::Overhead, name, (overhead.start, overhead.end), overhead.correlation_id)
        else {
            return;
        };
        let on_thread = overhead.object_kind == OBJECT_THREAD;
        let thread_id = if on_thread { overhead.thread_id.into() } else { NONE };
        self.on_host(SourceEvent { thread_id, correlation_id: nonzero(overhead.correlation_id.into()), ..event });
    }

    /// Keeps a row of the host, which has the step of its start.
    fn on_host(&mut self, event: SourceEvent) {
        let start_ns = event.ts_ns;
        self.keep_if_active(event, start_ns);
    }

    fn keep_if_active(&mut self, event: SourceEvent, made_ns: i64) {
        match self.shared.step_at(made_ns) {
            StepAt::Active(step) => self.batch.events.push(SourceEvent { step, ..event }),
            StepAt::Unknown => self.lose("cupti:late", 1, "its step is no longer remembered"),
            StepAt::Inactive => self.omit("cupti:inactive", 1, INACTIVE),
        }
    }

    fn memory(&mut self, memory: &Memory) {
        let Some(ts_ns) = self.times.local(memory.timestamp) else {
            return self.lose("cupti:incomplete", 1, "an allocation without its time");
        };
        let sign = match memory.operation {
            1 => 1,
            2 => -1,
            other => return self.omit("cupti:memory", 1, &format!("memory operation {other} is not known")),
        };
        let delta_bytes = sign * memory.bytes as i64;
        let word = enum_names::memory_word(u8::try_from(memory.memory_kind).unwrap_or(0));
        let on_device = matches!(memory.memory_kind, 3..=6);
        let device_id = on_device.then(|| i64::from(memory.device_id));
        let allocated_bytes = match device_id {
            Some(device) => {
                let allocated = self.allocated_bytes.entry(device).or_default();
                *allocated = allocated.saturating_add(delta_bytes);
                *allocated
            }
            None => self.shared.allocate(delta_bytes),
        };
        let name = self.strings.string_at(memory.name).unwrap_or_else(|| word.into());
        let row = recorder::Memory {
            name: self.shared.intern(&name),
            delta_bytes,
            device_id,
            allocated_bytes: Some(allocated_bytes),
            reserved_bytes: None,
            address: Some(memory.address as i64),
        };
        self.batch.memory.push(MemoryRecord { ts_ns, memory: row });
    }

    fn kernel_name(&mut self, address: u64) -> (NameId, bool) {
        let mangled = self.strings.string_at(address).unwrap_or_else(|| "(kernel without a name)".into());
        if let Some(known) = self.kernel_names.get(&mangled) {
            return *known;
        }
        let name = enum_names::demangle(&mangled);
        let known = (self.shared.intern(&name), name_rules::is_communication_kernel(&name));
        self.kernel_names.insert(mangled, known);
        known
    }

    fn call_name(&mut self, domain: u32, id: u32) -> NameId {
        if let Some(known) = self.call_names.get(&(domain, id)) {
            return *known;
        }
        let name = self.strings.call_name(domain, id);
        let name = name
            .as_deref()
            .map_or_else(|| format!("(call {id} of domain {domain})"), |n| enum_names::call_name(n).into());
        let interned = self.shared.intern(&name);
        self.call_names.insert((domain, id), interned);
        interned
    }

    /// Ends a flush: work that has waited for several flushes is placed without its launch.
    pub(crate) fn flushed(&mut self) {
        for overdue in self.waiting.grow_older() {
            self.place_in_step(overdue);
        }
        self.settle(true, false);
    }

    /// Makes rows of everything that still waits.
    pub(crate) fn finish(&mut self, now_ns: i64) {
        for launched in self.waiting.drain() {
            self.place_in_step(launched);
        }
        for range in self.markers.drain(now_ns) {
            let event = range.event(&self.shared);
            self.on_host(event);
        }
        self.settle(false, true);
    }

    fn settle(&mut self, flushed: bool, last: bool) {
        let untimed = self.collectives.untimed;
        self.collectives.settle(flushed, last, &mut self.batch.collectives);
        let more = self.collectives.untimed - untimed;
        if more > 0 {
            self.omit("cupti:collectives", more, "no kernel, or not as many as collectives, was launched in the scope");
        }
    }

    /// The rows since the last call.
    pub(crate) fn batch(&mut self) -> SourceBatch {
        self.settle(false, false);
        let empty = SourceBatch { source: SOURCE, ..SourceBatch::default() };
        let mut batch = std::mem::replace(&mut self.batch, empty);
        for ((source, why), (dropped, omitted)) in std::mem::take(&mut self.missing) {
            batch.missing.push(Missing { source: source.into(), dropped, omitted, why });
        }
        batch
    }
}
