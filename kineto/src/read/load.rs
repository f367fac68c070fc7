//! One trace file to one [`RankData`].

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use trace::name_rules::roles::RankName;
use trace::rank::flops::counted_once;
use trace::rank::{Collective, Details, Events, Launches, RankData, RankInfo, RankOutline, mark_below_operators};
use trace::time_limits::{FAR, LONG};
use trace::{CounterRow, DeviceRow, MAX_TEXT_BYTES, OmissionKind, OmissionRow, Phase, StepRow, Text};

use crate::Error;
use crate::bytes::input::Input;
use crate::bytes::memory::Room;
use crate::bytes::value::MAX_KEPT_BYTES;
use crate::columns::batch::{Columns, Tally};
use crate::columns::header::{Header, rank_from_distributed_info, world_size_from_distributed_info};
use crate::columns::rows::{Extras, Rows, rows_from_pieces};
use crate::columns::stream::{BLOCK_BYTES, Missing, Streamed, read_processes, read_stream};
use crate::columns::wanted_args::Wanted;
use crate::meaning::collectives::{Collectives, find_collectives};
use crate::meaning::device_memory_flow_rows::{device_rows, flow_rows, memory_rows};
use crate::meaning::device_steps::{NOTE, steps_on_devices};
use crate::meaning::flight_recorder::Dump;
use crate::meaning::groups::{Groups, MAX_UNLISTED_RANKS};
use crate::meaning::named_ranks::{named_ranks, own_number};
use crate::meaning::op_details::details_of;
use crate::meaning::overlong::cut_overlong_kernels;
use crate::meaning::steps::{LEFT_OUT_MARKS, Steps, assign_steps, find_steps};
use crate::read::dumps;
use crate::read::files::file_name;
use crate::read::names::host_from_name;
use crate::read::trace_file::{RankSource, TraceFile, Window, listed};
/// Reads a whole trace. Parts that could not be read are listed in [`RankData::omissions`], and the rest is kept.
///
/// Times are the host's UTC, in ns since 1970. A row's `id` is its place in the file.
///
/// # Errors
/// [`Error::Io`] if the file cannot be opened; [`Error::NotATrace`] if it holds no list of events.
pub fn load(file: &TraceFile) -> Result<RankData, Error> {
    Ok(load_wanted(file, Wanted::default(), 0)?.data)
}

/// As [`load`], with shapes, stacks and modules.
///
/// # Errors
/// As [`load`].
pub fn load_detailed(file: &TraceFile) -> Result<(RankData, Details), Error> {
    load_wanted(file, Wanted { args: true, ..Wanted::default() }, 0).map(Loaded::detailed)
}

/// A rank with the parts of its trace that only `ingest` needs.
#[derive(Debug, Default)]
pub(crate) struct Loaded {
    pub(crate) data: RankData,
    pub(crate) extras: Extras,
    /// Numbers and short strings of the header.
    pub(crate) scalars: BTreeMap<String, String>,
    /// The device of its first device row; set when its rows are dropped.
    pub(crate) used_device: Option<i64>,
    /// Memory that its rows took while they were read: an estimate.
    pub(crate) memory_bytes: u64,
}

impl Loaded {
    /// The rows with their shapes, stacks and modules.
    pub(crate) fn detailed(self) -> (RankData, Details) {
        let Self { mut data, extras, .. } = self;
        let details = details_of(&mut data, &extras);
        (data, details)
    }
}

/// As [`load`], with the parts that `wanted` names. The rows of other windows take `used_bytes` of the rank's memory.
pub(crate) fn load_wanted(file: &TraceFile, wanted: Wanted, used_bytes: u64) -> Result<Loaded, Error> {
    let shown = || PathBuf::from(&*file.name);
    let input = Input::open(&file.path).map_err(|source| Error::Io { path: shown(), source })?;
    let room = file.memory.room(used_bytes);
    let streamed = read_processes(input, wanted, BLOCK_BYTES, room, file.processes.clone());
    if !streamed.header.has_events {
        let why = match &streamed.missing {
            Some(missing) => format!("byte {}: {}", missing.byte, missing.why),
            None => "it has no traceEvents".into(),
        };
        return Err(Error::not_a_trace(&shown(), &why));
    }
    Ok(rank_from_stream(streamed, file))
}

/// For fuzzing: reads `bytes` as a trace in one block and in blocks of the given sizes, and compares the results.
///
/// # Panics
/// If the results differ.
#[cfg(feature = "fuzzing")]
pub fn check_any_blocks(bytes: &[u8], block_sizes: &[usize]) {
    let file = TraceFile {
        path: "trace".into(),
        name: "trace".into(),
        rank: 0,
        roles: None,
        rank_source: RankSource::Order,
        world_size: None,
        size_bytes: bytes.len() as u64,
        window: None,
        replica: None,
        memory: crate::bytes::memory::MemoryShare::default(),
        flight_recorder: None,
        processes: None,
    };
    let read = |block_bytes: usize| {
        let wanted = Wanted { args: true, shapes: true, rows_only: false };
        let streamed = read_stream(Input::from_bytes(bytes.to_vec()), wanted, block_bytes, Room::unlimited());
        let loaded = rank_from_stream(streamed, &file);
        // The numbers of names depend on the order in which the workers met them. All else must be equal.
        let names: Vec<Text> =
            loaded.data.events.name.iter().map(|id| loaded.data.names[*id as usize].clone()).collect();
        let mut data = loaded.data;
        data.events.name.clear();
        data.names.clear();
        (data, names)
    };
    let whole = read(bytes.len().max(1) * 2);
    for size in block_sizes {
        let blocks = read(*size);
        let summary = |(data, names): &(RankData, Vec<Text>)| (names.len(), data.omissions.clone());
        assert!(
            blocks == whole,
            "blocks of {size} bytes give another result: rows and omissions {:?}, in one block {:?}",
            summary(&blocks),
            summary(&whole)
        );
    }
}

/// The counts of [`parse_only`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Parsed {
    /// Bytes of JSON text.
    pub bytes: u64,
    /// Events of any phase.
    pub events: u64,
    /// Events that are kept as rows.
    pub rows: u64,
}

/// For benches: parses a trace into columns and drops them. This is the part of [`load`] whose time grows with the
/// bytes.
///
/// # Errors
/// [`Error::Io`] if the file cannot be opened.
pub fn parse_only(path: &Path) -> Result<Parsed, Error> {
    let input = Input::open(path).map_err(|source| Error::Io { path: path.into(), source })?;
    let streamed = read_stream(input, Wanted::default(), BLOCK_BYTES, Room::unlimited());
    let count = |of: fn(&Columns) -> u64| streamed.pieces.iter().map(|(_, piece)| of(piece)).sum();
    Ok(Parsed { bytes: streamed.bytes, events: count(|p| p.tally.events), rows: count(|p| p.len() as u64) })
}

/// Builds a rank from the content of a file.
pub(crate) fn rank_from_stream(streamed: Streamed, file: &TraceFile) -> Loaded {
    let number_of = own_number(&streamed);
    let unread_ranks = unread_ranks(&streamed, file);
    let Streamed { header, pieces, scratches, missing, trailing, memory_bytes, .. } = streamed;
    let header = own_header(header, file);
    let recorded = rank_from_distributed_info(header.distributed.as_ref());
    let first_rank = file.replica.map_or(0, |replica| replica.first_rank);
    let rank = recorded.map_or(file.rank, |recorded| recorded.saturating_add(first_rank));
    let from = if recorded.is_some() { RankSource::DistributedInfo } else { file.rank_source };
    let mut rows = rows_from_pieces(pieces, scratches, header.base_ns);
    let mut report =
        Report { file: file.name.clone(), rank, omissions: Vec::new(), remarks: vec![from.remark(rank - first_rank)] };
    if file.replica.is_some() {
        report.remarks.push(format!("rank {rank} of all replicas"));
    }
    let (launches, Steps { rows: mut steps, left_out }) = report.launches_and_steps(&mut rows);
    report.add_cut(cut_overlong_kernels(&mut rows.events, &rows.names, &launches));
    if let Some(window) = file.window {
        number_steps(&mut steps, window, &rows.events, rank);
    }
    let (what, why) = LEFT_OUT_MARKS;
    report.add(what, left_out, OmissionKind::LeftOut, why);
    assign_steps(&mut rows.events, &steps, &launches);
    let mut groups = Groups::from_info(header.distributed.as_ref(), first_rank);
    let dump = report.flight_recorder(file, memory_bytes);
    let collectives = find_collectives(&mut rows, &launches, &mut groups, &steps, (rank, &dump));
    mark_below_operators(&mut rows.events, &rows.names, Some(&launches));
    report.add_collectives(&collectives);
    report.lose("lists of ranks of process groups", groups.without_ranks, &too_many_ranks());
    report.add_tally(&rows.tally);
    report.add_unknown(&rows.unknown_on_devices);
    report.add_unread_ranks(&unread_ranks);
    report.add_header(&header);
    let allocations = std::mem::take(&mut rows.allocations);
    let (memory, (flows, incomplete_flows)) =
        rayon::join(|| memory_rows(&rows, allocations, rank), || flow_rows(&rows, rank));
    report.add("arrows", incomplete_flows, OmissionKind::LeftOut, "one of their ends is not in the trace");
    report.add_damage(missing, "rest of the file");
    report.add_damage(trailing, "text after the document");
    let (devices, unknown_devices) = own_devices(&header, &rows.events, rank, file);
    report.devices_without_properties(&unknown_devices);
    let counters = vec![report.counter(&rows)];
    let Rows { events, names, pids, extras, kernel_use, copy_rates, flops_types, .. } = rows;
    let Collectives { rows: collectives, comms_ids, .. } = collectives;
    let mut collectives = Collective::list(collectives);
    collectives.iter_mut().zip(comms_ids).for_each(|(collective, comms_id)| collective.set_comms_id(comms_id));
    let outline = RankOutline {
        info: rank_info(rank, &header, file, process(&pids).map_or(0, number_of)),
        collectives,
        steps,
        comms: groups.rows(rank),
        ..RankOutline::default()
    };
    let data = RankData {
        outline,
        names,
        events,
        memory,
        devices,
        kernel_use,
        flops_types,
        copy_rates,
        flows,
        counters,
        omissions: report.omissions,
        ..RankData::default()
    };
    Loaded { data, extras, scalars: header.scalars, used_device: None, memory_bytes }
}

/// The ranks that the processes of a file say, unless they were known before it is read.
fn unread_ranks(streamed: &Streamed, file: &TraceFile) -> Vec<RankName> {
    match file.processes {
        Some(_) => Vec::new(),
        None => named_ranks(streamed).into_keys().collect(),
    }
}

/// The header without what is of another rank of the file, which does not say of which.
fn own_header(header: Header, file: &TraceFile) -> Header {
    let mut own = header;
    if file.processes.is_some() {
        own.distributed = None;
        own.scalars.remove("host_name");
    }
    own
}

/// The devices of a rank, and those of its rows without properties. A file of many ranks lists the devices of all.
fn own_devices(header: &Header, events: &Events, rank: i32, file: &TraceFile) -> (Vec<DeviceRow>, Vec<i64>) {
    let (mut devices, unknown) = device_rows(header.devices.as_ref(), events, rank);
    if file.processes.is_some() {
        devices.retain(|row| events.device.contains(&row.device_id));
    }
    (devices, unknown)
}

fn too_many_ranks() -> String {
    format!("the groups would have more than {MAX_UNLISTED_RANKS} ranks that no collective lists; their sizes are kept")
}

/// Gives the steps of a window their numbers in the job. A window without marks is one step.
fn number_steps(steps: &mut Vec<StepRow>, window: Window, events: &Events, rank: i32) {
    for step in &mut *steps {
        step.step = step.step.saturating_add(window.step_shift);
        step.window = Some(window.number);
    }
    let Some(step) = window.as_step.filter(|_| steps.is_empty()) else { return };
    let spans = (0..events.len()).map(|row| (events.ts_ns[row], events.end_ns(row)));
    if let Some((start_ns, end_ns)) = spans.reduce(|a, b| (a.0.min(b.0), a.1.max(b.1))) {
        let window = Some(window.number);
        steps.push(StepRow { rank, step, phase: Phase::Active.into(), start_ns, end_ns, loss: None, window });
    }
}

/// The process with the most rows on the host.
fn process(pids: &BTreeMap<i64, u64>) -> Option<i64> {
    pids.iter().max_by_key(|(_, rows)| **rows).map(|(pid, _)| *pid)
}

fn rank_info(rank: i32, header: &Header, file: &TraceFile, pid: i64) -> RankInfo {
    let recorded = header.scalars.get("host_name").filter(|host| !host.is_empty()).cloned();
    let host = recorded.or_else(|| host_from_name(&file.name, pid)).unwrap_or_default();
    let of_file = || match file.processes {
        Some(_) => file.world_size,
        None => world_size_from_distributed_info(header.distributed.as_ref()),
    };
    let clock_domain = if host.is_empty() { "utc".to_string() } else { format!("{host}/utc") };
    RankInfo {
        rank,
        world_size: file.replica.map(|replica| replica.world_size).or_else(of_file),
        host,
        pid,
        clock_domain,
        closed_cleanly: None,
        roles: file.roles.clone(),
        file: file.name.clone(),
    }
}

/// The report on a file: losses, and remarks.
struct Report {
    file: Text,
    rank: i32,
    omissions: Vec<OmissionRow>,
    /// Facts that are not losses, but explain the rows.
    remarks: Vec<String>,
}

impl Report {
    fn row(&self, kind: OmissionKind, what: &str, why: &str) -> OmissionRow {
        OmissionRow::of(kind, what, why).rank(self.rank).file(self.file.clone())
    }

    fn lose(&mut self, what: &str, amount: i64, why: &str) {
        self.add(what, amount, OmissionKind::Lost, why);
    }

    fn add(&mut self, what: &str, amount: i64, kind: OmissionKind, why: &str) {
        if amount > 0 {
            self.omissions.push(self.row(kind, what, why).amount(amount));
        }
    }

    /// The launches and steps of a rank. Beside them, the FLOPs of its rows become such that they can be summed.
    fn launches_and_steps(&mut self, rows: &mut Rows) -> (Launches, Steps) {
        let (flops, rank) = (std::mem::take(&mut rows.events.flops), self.rank);
        let Rows { events, names, .. } = &*rows;
        let found = || rayon::join(|| Launches::collect(events), || find_steps(events, names, rank));
        let ((launches, mut steps), flops) = rayon::join(found, || counted_once(events, names, flops));
        if steps.rows.is_empty() {
            steps = steps_on_devices(events, names, &&launches, rank);
            let (what, why) = NOTE;
            self.add(what, steps.rows.len() as i64, OmissionKind::Note, why);
        }
        rows.events.flops = flops;
        (launches, steps)
    }

    /// Names the devices whose model is unknown although the trace has properties of devices.
    fn devices_without_properties(&mut self, devices: &[i64]) {
        if !devices.is_empty() {
            let ids: Vec<Text> = devices.iter().map(|id| id.to_string().into()).collect();
            let why = format!("device {} of the rows is none of deviceProperties; its model is unknown", listed(&ids));
            self.add("properties of devices", devices.len() as i64, OmissionKind::Note, &why);
        }
    }

    /// The dump beside the trace, whose rows take `used_bytes`; empty if there is none, or none that can be read.
    fn flight_recorder(&mut self, file: &TraceFile, used_bytes: u64) -> Dump {
        let Some(path) = &file.flight_recorder else { return Dump::default() };
        dumps::read(path, file.memory.room_of_file("dump", used_bytes)).unwrap_or_else(|why| {
            self.lose("dump of the Flight Recorder", 1, &format!("{}: {why}", file_name(path)));
            Dump::default()
        })
    }

    fn add_cut(&mut self, kernels: i64) {
        let why = "they end after the next kernel of their stream has ended; taken as ended where it begins";
        self.add("lengths of kernels", kernels, OmissionKind::Note, why);
    }

    fn add_collectives(&mut self, found: &Collectives) {
        let mut remark = |amount: i64, text: &str| {
            if amount > 0 {
                self.remarks.push(format!("{amount} {text}"));
            }
        };
        remark(found.by_name_only, "collectives known by the name of their kernel only");
        remark(found.unnamed, "collectives whose process group the trace does not name");
    }

    fn add_unknown(&mut self, by_category: &BTreeMap<Text, u64>) {
        for (category, count) in by_category {
            let why = "their category is unknown, and their process has work of a device: it is not counted as such";
            self.lose(&format!("rows of {category}"), (*count).min(i64::MAX as u64) as i64, why);
        }
    }

    /// Names the ranks that were read as one.
    fn add_unread_ranks(&mut self, ranks: &[RankName]) {
        if ranks.len() > 1 {
            let names: Vec<Text> = ranks.iter().map(|rank| rank.to_string().into()).collect();
            let why = format!(
                "its processes are named {}, behind too many other events to be found before the file is read: they \
                 were read as one rank; analyze the files that were merged, or write the rows of process_name first",
                listed(&names)
            );
            self.lose("ranks of one file", ranks.len() as i64, &why);
        }
    }

    fn add_header(&mut self, header: &Header) {
        let why = "baseTimeNanoseconds is not a 64-bit integer; times count from zero";
        self.lose("base time", i64::from(header.base_unread), why);
        for what in &header.too_long {
            self.lose(what, 1, &format!("it is longer than {MAX_KEPT_BYTES} bytes; not used"));
        }
    }

    fn add_damage(&mut self, place: Option<Missing>, what: &str) {
        if let Some(place) = place {
            let why = format!("from byte {} of the JSON text on: {}", place.byte, place.why);
            self.omissions.push(self.row(OmissionKind::Lost, what, &why));
        }
    }

    fn add_tally(&mut self, tally: &Tally) {
        let count = |n: u64| n.min(i64::MAX as u64) as i64;
        self.lose("events", count(tally.no_start), "they have no readable ts");
        self.lose("events", count(tally.in_ns), "their ts is in ns since 1970, and traces have µs");
        self.lose("events", count(tally.no_length), "they have no readable dur");
        self.lose("events", count(tally.far), FAR);
        self.lose("events", count(tally.too_long), LONG);
        self.lose("lengths", count(tally.negative), "they are negative; taken as zero");
        self.lose("items of traceEvents", count(tally.not_objects), "they are not objects");
        self.lose("begin and end events", count(tally.begin_end), "only complete events are read");
        self.lose("asynchronous events", count(tally.asynchronous), "only complete events are read");
        self.lose("events of other phases", count(tally.other_phases), "no trace of torch.profiler has them");
        let why =
            "whether they are of the host or of a device is unknown: they are neither computation nor communication";
        self.lose("rows without a category", count(tally.no_category), why);
        let why = "they have counters of CUPTI, which the method get_cupti_counter_data of rankscope.hta reads";
        self.add("rows of cuda_profiler_range", count(tally.profiler_ranges), OmissionKind::LeftOut, why);
        let why = "they are calls of CANN, waits, and parts and sums of other rows of Ascend's profiler";
        self.add("rows without a category", count(tally.of_ascend), OmissionKind::LeftOut, why);
        self.add("counter events", count(tally.counters), OmissionKind::LeftOut, "no table has such counters");
        self.lose("ids", count(tally.no_ids), "they are not 64-bit integers, or are devices beyond 32 bits");
        self.lose(
            "memory events",
            count(tally.bad_memory),
            "their time is unreadable or impossible, or they have no size",
        );
        let long = format!("they are longer than {MAX_TEXT_BYTES} bytes; shortened");
        self.lose("names and arguments", count(tally.long_texts), &long);
        let long = format!("they are longer than {MAX_KEPT_BYTES} bytes; not used");
        self.lose("arguments of collectives", count(tally.long_args), &long);
    }

    fn counter(&self, rows: &Rows) -> CounterRow {
        let omitted = self.omissions.iter().filter(|o| &*o.what == "events").filter_map(|o| o.amount).sum();
        CounterRow {
            rank: self.rank,
            source: "kineto".into(),
            recorded: rows.events.len() as i64,
            omitted,
            why: Some(self.remarks.join("; ").into()),
            ..CounterRow::default()
        }
    }
}
