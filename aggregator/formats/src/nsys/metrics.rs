//! Hardware metrics of devices (`nsys profile --gpu-metrics-devices`): samples on the clock of the session.
//!
//! ```text
//!  typeId     0x … GG       GG is the host's number of the device
//! ```
//!
//! A process numbers the devices that it sees by itself; `TARGET_INFO_CUDA_DEVICE` has both numbers.

use std::collections::BTreeMap;

use rustc_hash::FxHashMap;
use trace::rank::{Metric, MetricSample};
use trace::{OmissionRow, Text};

use crate::nsys::database::Database;
use crate::nsys::devices::{Numbers, used};
use crate::nsys::processes::Process;
use crate::nsys::tables::METRICS;
use crate::nsys::wanted::Wanted;
use crate::rows::{counted, list};
use model::RankData;

/// The bits of a `typeId` that name the device.
const DEVICE_BITS: i64 = 0xff;
const NAMES: &str = "TARGET_INFO_GPU_METRICS";
/// Metrics of all devices.
const MAX_METRICS: usize = 1 << 16;

/// Adds the samples of a process's devices, which may take `max_memory_bytes`.
pub(super) fn add_metrics(
    data: &mut RankData,
    (database, process): (&Database, &Process),
    numbers: &Numbers,
    max_memory_bytes: u64,
) {
    if !database.has(METRICS) {
        return;
    }
    let mut omissions = Vec::new();
    let names = names(database, &mut omissions);
    let of_gpus = devices(data, process, numbers);
    let most = usize::try_from(max_memory_bytes / size_of::<MetricSample>() as u64).unwrap_or(usize::MAX);
    let mut metrics: FxHashMap<(i64, i64), u32> = FxHashMap::default();
    let (mut nameless, mut of_others, mut unclear, mut beyond) = (0, 0, 0, 0);
    let columns = ["timestamp", "typeId", "metricId", "value"];
    let cut = database.rows(METRICS, &columns, &columns, Wanted::All, |cells| {
        let [Some(ts_ns), Some(kind), Some(metric), Some(value)] = [0, 1, 2, 3].map(|column| cells.integer(column))
        else {
            unclear += 1;
            return;
        };
        let Some(device_id) = of_gpus.get(&(kind & DEVICE_BITS)).copied() else {
            of_others += i64::from(process.is_first() && !numbers.has(kind & DEVICE_BITS));
            return;
        };
        let Some(name) = names.get(&(kind, metric)) else {
            nameless += 1;
            return;
        };
        if data.metric_samples.len() >= most {
            beyond += 1;
            return;
        }
        let next = data.metrics.len() as u32;
        let metric = *metrics.entry((kind, metric)).or_insert(next);
        if metric == next {
            data.metrics.push(Metric { device_id, name: name.clone() });
        }
        let ts_ns = ts_ns.saturating_add(process.session.offset_ns());
        data.metric_samples.push(MetricSample { ts_ns, metric, value });
    });
    data.metric_samples.sort_by_key(|sample| (sample.ts_ns, sample.metric));
    omissions.extend(cut.map(|why| OmissionRow::lost(format!("rest of table {METRICS}"), why)));
    let what = "samples of GPU metrics";
    let lost = [
        (what, nameless, "the export has no name of their metric"),
        (what, unclear, "they have no time, device, metric or value"),
        (what, beyond, "they need more memory than a rank may take; give more with --max-memory"),
    ];
    omissions.extend(counted(&lost, OmissionRow::lost));
    let why = "no rank is known to use their device";
    omissions.extend(counted(&[(what, of_others, why)], OmissionRow::left_out));
    list(data, omissions);
}

/// The names of the metrics, by type and number.
fn names(database: &Database, omissions: &mut Vec<OmissionRow>) -> FxHashMap<(i64, i64), Text> {
    let (mut names, mut beyond) = (FxHashMap::default(), 0);
    let columns = ["typeId", "metricId", "metricName"];
    let cut = database.rows(NAMES, &columns, &columns, Wanted::All, |cells| {
        let (Some(kind), Some(metric), Some(name)) = (cells.integer(0), cells.integer(1), cells.text(2)) else {
            return;
        };
        if names.len() < MAX_METRICS {
            names.insert((kind, metric), trace::shortened(&name).into());
        } else {
            beyond += 1;
        }
    });
    omissions.extend(cut.map(|why| OmissionRow::lost(format!("rest of table {NAMES}"), why)));
    let why = format!("only the first {MAX_METRICS} are used");
    omissions.extend((beyond > 0).then(|| OmissionRow::left_out("GPU metrics", why).amount(beyond)));
    names
}

/// The process's numbers of the devices that it used, by the host's. Where nothing translates them, they are equal if the file has one
/// process.
fn devices(data: &RankData, process: &Process, numbers: &Numbers) -> BTreeMap<i64, i64> {
    let of_host = |device_id: &i64| match numbers.of_process(process.pid()) {
        Some(of_process) => of_process.get(device_id).copied(),
        None => Some(*device_id).filter(|_| process.of_file.len() <= 1),
    };
    used(&data.events).iter().filter_map(|device_id| Some((of_host(device_id)?, *device_id))).collect()
}
