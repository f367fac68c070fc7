//! A process as a rank: its records as rows, with steps, collectives and devices.
//!
//! | records | rows |
//! |---|---|
//! | `kernel_dispatch` | `kernel`; copies and fills by HIP's own kernels: `gpu_memcpy`, `gpu_memset` |
//! | `memory_copy` | `gpu_memcpy` |
//! | `hip_api` | `cuda_runtime` |
//! | `rccl_api`, `marker_api` | `user_annotation` |
//!
//! Other records are counted.

use kineto::find_steps;
use rustc_hash::FxHashMap;
use trace::name_rules::kind_of;
use trace::name_rules::roles::roles_in;
use trace::rank::{Launches, mark_below_operators};
use trace::{DeviceRow, OmissionRow, Text};

use crate::memory::share;
use crate::rocprof::file::{Claimed, read, unread};
use crate::rocprof::parse::{Process, Record, Table, parse_one};
use crate::rows::{
    Added, Rows, by_order_of_streams, collective_kernels, collective_row, counted, list, sides_of, step,
};
use crate::shared_file::LastFile;
use model::Error;
use model::{Collective, KernelUse, Kind, NONE, RankData, RankInfo};

/// Memory of a record while it is read, beside its row.
const RECORD_BYTES: u64 = size_of::<Record>() as u64 + 256;
/// The share of the memory that names and other statements of a process may take: one of so many parts. Its rows may take the others.
pub(super) const STATED_SHARE: u64 = 4;
/// Tables that a message names.
const MAX_NAMED: usize = 8;

/// Loads a process.
///
/// # Errors
/// [`Error::NoInput`] if its file cannot be read.
pub(super) fn load(
    claimed: &Claimed,
    last: &LastFile<Vec<u8>>,
    (max_file_bytes, max_rows_bytes): (u64, u64),
) -> Result<RankData, Error> {
    let bytes = claimed.shared.get(last, || read(&claimed.file, max_file_bytes))?;
    let stated_bytes = max_rows_bytes / STATED_SHARE;
    let max_records = usize::try_from((max_rows_bytes - stated_bytes) / RECORD_BYTES).unwrap_or(usize::MAX);
    let mut room = share(Some(stated_bytes), 1).room_of_file("process", 0);
    if bytes.len() as u64 != claimed.size_bytes {
        return Err(unread(&claimed.file, "it has changed since it was opened"));
    }
    let (process, full) = parse_one(&bytes, claimed.text.start, max_records, &mut room);
    let file = Text::from(claimed.file.to_string_lossy());
    let devices = devices(&process);
    let mut loader = Loader {
        process: &process,
        devices: &devices,
        rows: Rows::within(u64::MAX),
        loose: Vec::new(),
        names: FxHashMap::default(),
        nameless: 0,
        marks: 0,
    };
    for record in &process.records {
        loader.add(record);
    }
    let mut omissions = loader.omissions();
    omissions.extend(full.map(|why| OmissionRow::lost("rest of the process", why).file(file.clone())));
    let Loader { rows, loose, .. } = loader;
    let clock_domain = match &*process.host {
        "" => format!("rocprof/{}", claimed.file.display()),
        host => format!("{host}/rocprof"),
    };
    let info = RankInfo {
        rank: claimed.rank,
        host: process.host.clone(),
        pid: process.pid,
        clock_domain,
        roles: roles_in(&file).map(Text::from),
        file,
        ..RankInfo::default()
    };
    let mut data = rows.into_rank(info, &loose, omissions);
    let used: std::collections::BTreeSet<i64> =
        data.events.device.iter().copied().filter(|device| *device != NONE).collect();
    data.devices =
        used.into_iter().map(|device_id| DeviceRow { rank: claimed.rank, device_id, ..DeviceRow::default() }).collect();
    let steps = find_steps(&data.events, &data.names, claimed.rank);
    step(&mut data, steps);
    collectives(&mut data);
    mark_below_operators(&mut data.events, &data.names, None);
    Ok(data)
}

/// The numbers of the GPUs, in the order of their nodes.
fn devices(process: &Process) -> FxHashMap<i64, i64> {
    let mut gpus: Vec<(i64, i64)> =
        process.agents.iter().filter(|agent| agent.is_gpu).map(|agent| (agent.node, agent.handle)).collect();
    gpus.sort_unstable();
    gpus.into_iter().enumerate().map(|(at, (_, handle))| (handle, at as i64)).collect()
}

/// The collectives are the kernels of RCCL. Nothing names their communicators.
fn collectives(data: &mut RankData) {
    let launches = Launches::collect(&data.events);
    let mut rows: Vec<_> =
        collective_kernels(data).into_iter().map(|found| collective_row(data, found, &launches)).collect();
    by_order_of_streams(&mut rows);
    if !rows.is_empty() {
        let why =
            "the records name none; on each device there is one of all ranks, or one for each stream with collectives";
        list(data, [OmissionRow::note("communicators of collectives", why).amount(rows.len() as i64)]);
    }
    data.outline.collectives = Collective::list(rows);
}

/// A table, with the numbers by which its records refer to a name.
type Key = (Table, Option<i64>, Option<i64>);

struct Loader<'a> {
    process: &'a Process,
    devices: &'a FxHashMap<i64, i64>,
    rows: Rows,
    /// Rows of ranges that may begin on one thread and end on another.
    loose: Vec<i64>,
    names: FxHashMap<Key, u32>,
    nameless: i64,
    marks: i64,
}

impl Loader<'_> {
    fn add(&mut self, record: &Record) {
        let process = self.process;
        let operation = operation(process, record);
        let base = Added {
            start: record.start_ns,
            end: record.end_ns,
            correlation: record.correlation.filter(|id| *id != 0),
            ..Added::default()
        };
        let of_thread = Added { thread: record.thread, ..base };
        let of_kind = (record.table, record.kind, record.operation);
        match record.table {
            Table::Kernels => self.kernel(record, base),
            Table::Copies => {
                let agents = [record.agent, record.source].into_iter().flatten();
                let device = agents.filter_map(|agent| self.devices.get(&agent)).next().copied();
                let row = Added { device, stream: record.stream, bytes: record.bytes, ..base };
                self.rows.add(Kind::GpuMemcpy, copy_name(operation), row);
            }
            Table::Calls => {
                let name = self.name(of_kind, operation, "unknown call");
                self.rows.add_named(Kind::Runtime, name, of_thread);
            }
            Table::Collectives => {
                let name = self.name(of_kind, operation, "unknown call of RCCL");
                self.rows.add_named(Kind::UserAnnotation, name, Added { correlation: None, ..of_thread });
            }
            Table::Markers if operation.starts_with("roctxMark") => self.marks += 1,
            Table::Markers => {
                let text = record.correlation.and_then(|id| process.markers.get(&id)).map_or(operation, String::as_str);
                let name = self.name((record.table, record.correlation, None), text, "unknown range");
                let id = self.rows.add_named(Kind::UserAnnotation, name, Added { correlation: None, ..of_thread });
                self.loose.extend(id.filter(|_| operation.starts_with("roctxProcess")));
            }
        }
    }

    /// The number of a name. `key` says whose it is, so that long ones are looked up once.
    fn name(&mut self, key: Key, name: &str, unknown: &'static str) -> u32 {
        self.nameless += i64::from(name.is_empty());
        let rows = &mut self.rows;
        *self.names.entry(key).or_insert_with(|| rows.name(if name.is_empty() { unknown } else { name }))
    }

    fn kernel(&mut self, record: &Record, base: Added) {
        let name = record.kernel.and_then(|id| self.process.kernels.get(&id)).map_or("", String::as_str);
        let name = name.strip_suffix(".kd").unwrap_or(name);
        let kind = kind_of("kernel", name.as_bytes());
        let name = self.name((record.table, record.kernel, None), name, "unknown kernel");
        let device = record.agent.and_then(|agent| self.devices.get(&agent)).copied();
        let stream = record.stream.filter(|stream| *stream != 0).or(record.queue);
        let row = Added { device, stream, ..base };
        let Some(id) = self.rows.add_named(kind, name, row).filter(|_| kind == Kind::Kernel) else { return };
        let block: Option<[u16; 3]> = sides_of(record.group);
        // The grid counts work-items.
        let blocks = |side: usize| {
            let (items, threads) = (record.grid[side]?, record.group[side].filter(|threads| *threads > 0)?);
            Some(items.checked_add(threads - 1)? / threads)
        };
        self.rows.raw.kernel_use.push(KernelUse {
            grid: sides_of([0, 1, 2].map(blocks)).unwrap_or_default(),
            block: block.unwrap_or_default(),
            shared_mem_bytes: record.shared_bytes.and_then(|bytes| bytes.try_into().ok()),
            ..KernelUse::unknown(id)
        });
    }

    fn omissions(&self) -> Vec<OmissionRow> {
        let lost = [
            ("names of rows", self.nameless, "the file has no text of their number"),
            (
                "events",
                self.process.too_many,
                "they need more memory than a rank may take; give more with --max-memory",
            ),
        ];
        let mut omissions = counted(&self.rows.lost(), OmissionRow::lost);
        omissions.extend(counted(&lost, OmissionRow::lost));
        omissions.extend(counted(&[("marks", self.marks, "marks have no length")], OmissionRow::left_out));
        let others = &self.process.others;
        if !others.is_empty() {
            let named: Vec<String> =
                others.iter().take(MAX_NAMED).map(|(table, count)| format!("{table} {count}")).collect();
            let more = others.len().saturating_sub(MAX_NAMED);
            let more = if more > 0 { format!(", and {more} more tables") } else { String::new() };
            let why = format!("nothing is made of them: {}{more}", named.join(", "));
            omissions.push(OmissionRow::left_out("records of other tables", why).amount(others.values().sum::<i64>()));
        }
        omissions
    }
}

/// The operation of a record; empty if the file does not name it.
fn operation<'a>(process: &'a Process, record: &Record) -> &'a str {
    let at = |number: Option<i64>| number.and_then(|number| usize::try_from(number).ok());
    let names = at(record.kind).and_then(|kind| process.operations.get(kind));
    names.zip(at(record.operation)).and_then(|(names, at)| names.get(at)).map_or("", String::as_str)
}

fn copy_name(operation: &str) -> &'static str {
    match operation.strip_prefix("MEMORY_COPY_").unwrap_or(operation) {
        "HOST_TO_DEVICE" => "Memcpy HtoD",
        "DEVICE_TO_HOST" => "Memcpy DtoH",
        "DEVICE_TO_DEVICE" => "Memcpy DtoD",
        "HOST_TO_HOST" => "Memcpy HtoH",
        _ => "Memcpy",
    }
}
