//! The devices of a process, by its own numbers of them.

use std::collections::{BTreeMap, BTreeSet};

use trace::{DeviceRow, OmissionRow, Text};

use crate::nsys::database::Database;
use crate::nsys::processes::{MAX_PROCESSES, Process};
use crate::nsys::wanted::Wanted;
use model::{Events, NONE};

const GPUS: &str = "TARGET_INFO_GPU";
const OF_PROCESSES: &str = "TARGET_INFO_CUDA_DEVICE";
/// Devices of a host.
const MAX_DEVICES: usize = 1 << 10;

/// The numbers that processes give to the host's devices.
#[derive(Default)]
pub(super) struct Numbers(BTreeMap<i64, BTreeMap<i64, i64>>);

impl Numbers {
    pub(super) fn read(database: &Database, omissions: &mut Vec<OmissionRow>) -> Self {
        let mut of_processes: BTreeMap<i64, BTreeMap<i64, i64>> = BTreeMap::new();
        let mut beyond = 0;
        let columns = ["cudaId", "gpuId", "pid"];
        let cut = database.rows(OF_PROCESSES, &columns, &columns, Wanted::All, |cells| {
            let (Some(cuda), Some(gpu), Some(pid)) = (cells.integer(0), cells.integer(1), cells.integer(2)) else {
                return;
            };
            if of_processes.len() < MAX_PROCESSES || of_processes.contains_key(&pid) {
                keep(of_processes.entry(pid).or_default(), (cuda, gpu), &mut beyond);
            } else {
                beyond += 1;
            }
        });
        omissions.extend(list(OF_PROCESSES, cut, beyond));
        Self(of_processes)
    }

    /// The host's number of each device, by that of the process; `None` if the export has none of the process.
    pub(super) fn of_process(&self, pid: i64) -> Option<&BTreeMap<i64, i64>> {
        self.0.get(&pid)
    }

    /// Whether a process is known to see a device of the host.
    pub(super) fn has(&self, gpu: i64) -> bool {
        self.0.values().any(|of_process| of_process.values().any(|of_host| *of_host == gpu))
    }
}

/// The numbers of the devices that rows are of.
pub(super) fn used(events: &Events) -> BTreeSet<i64> {
    events.device.iter().copied().filter(|device| *device != NONE).collect()
}

/// The devices that `events` name, as far as the export describes them.
pub(super) fn devices(
    database: &Database,
    (process, numbers): (&Process, &Numbers),
    events: &Events,
    omissions: &mut Vec<OmissionRow>,
) -> Vec<DeviceRow> {
    let gpus = gpus(database, omissions);
    let of_process = numbers.of_process(process.pid());
    // Without a table of numbers, a process may count any of the host's devices as its first.
    let models: BTreeSet<Option<&Text>> = gpus.values().map(|gpu| gpu.name.as_ref()).collect();
    let any = gpus.values().next().filter(|_| models.len() == 1);
    let describe = |device_id: i64| {
        let known = of_process.and_then(|known| known.get(&device_id)).and_then(|gpu| gpus.get(gpu));
        let gpu = known.or(any)?.clone();
        let uuid = gpu.uuid.filter(|_| known.is_some() || gpus.len() == 1);
        Some(DeviceRow { rank: process.rank, device_id, uuid, ..gpu })
    };
    used(events).into_iter().filter_map(describe).collect()
}

/// Keeps the first value of a number, or counts it as `beyond` if there are too many numbers.
fn keep<T>(known: &mut BTreeMap<i64, T>, (id, value): (i64, T), beyond: &mut i64) {
    if known.len() < MAX_DEVICES || known.contains_key(&id) {
        known.entry(id).or_insert(value);
    } else {
        *beyond += 1;
    }
}

/// Lists the rows of a table that follow a damage, and those `beyond` the limit.
fn list(table: &str, cut: Option<String>, beyond: i64) -> impl Iterator<Item = OmissionRow> {
    let lost = cut.map(|why| OmissionRow::lost(format!("rest of table {table}"), why));
    let why = format!("only the first {MAX_DEVICES} devices of a host or process are used");
    let left_out = (beyond > 0).then(|| OmissionRow::left_out(format!("rows of {table}"), why).amount(beyond));
    lost.into_iter().chain(left_out)
}

/// The devices of the host, by its numbers of them.
fn gpus(database: &Database, omissions: &mut Vec<OmissionRow>) -> BTreeMap<i64, DeviceRow> {
    let (mut gpus, mut beyond) = (BTreeMap::new(), 0);
    let columns = [
        "id",
        "name",
        "uuid",
        "smCount",
        "maxWarpsPerSm",
        "threadsPerWarp",
        "maxRegistersPerSm",
        "maxShmemPerSm",
        "clockRate",
        "totalMemory",
        "memoryBandwidth",
    ];
    let cut = database.rows(GPUS, &columns, &["id"], Wanted::All, |cells| {
        let Some(id) = cells.integer(0) else { return };
        let positive = |column: usize| cells.integer(column).filter(|value| *value > 0);
        let small = |column: usize| positive(column).and_then(|value| i32::try_from(value).ok());
        let text = |column: usize| cells.text(column).filter(|text| !text.is_empty());
        let row = DeviceRow {
            device_id: id,
            name: text(1).map(|name| trace::shortened(&name).into()),
            uuid: text(2).map(|uuid| trace::shortened(&uuid).into()),
            sm_count: small(3),
            max_threads_per_sm: small(4).zip(small(5)).and_then(|(warps, threads)| warps.checked_mul(threads)),
            registers_per_sm: small(6),
            shared_mem_per_sm_bytes: positive(7),
            clock_khz: positive(8).map(|hz| hz / 1_000),
            memory_bytes: positive(9),
            peak_bytes_per_s: positive(10).map(|rate| rate as f64),
            ..DeviceRow::default()
        };
        keep(&mut gpus, (id, row), &mut beyond);
    });
    omissions.extend(list(GPUS, cut, beyond));
    gpus
}
