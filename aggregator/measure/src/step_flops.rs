//! The FLOPs of each step, and the share of the devices' peak rate: model FLOPs utilization (MFU).

use std::collections::BTreeMap;

use trace::rank::flops::always_counts;
use trace::rank::{DevicesById, outermost};
use trace::{Dtype, StepBreakdownRow, StepFlopsRow};

use crate::roofline::{precision, uses_tf32};
use model::peaks::Peaks;
use model::{Kind, NO_PARENT, NONE, RankData};

/// Sums over the operators of one step.
#[derive(Debug, Default)]
struct Sums {
    flops: i64,
    unknown_calls: i64,
    by_dtype: BTreeMap<Dtype, i64>,
}

/// One row for each step of `breakdown` whose operators have FLOPs. Steps are as long as there.
pub(crate) fn step_flops(
    data: &RankData,
    keep: &dyn Fn(usize) -> bool,
    breakdown: &[StepBreakdownRow],
) -> Vec<StepFlopsRow> {
    let mut steps: BTreeMap<i32, Sums> = BTreeMap::new();
    let events = &data.events;
    let counts = |row: &usize| events.kind[*row] == Kind::CpuOp && events.flops[*row] != NONE && keep(*row);
    for row in (0..events.len()).filter(counts) {
        let sums = steps.entry(events.step[row]).or_default();
        sums.flops = sums.flops.saturating_add(events.flops[row]);
        if let Ok(at) = data.flops_types.binary_search_by_key(&events.id[row], |known| known.id) {
            let sum = sums.by_dtype.entry(data.flops_types[at].dtype).or_default();
            *sum = sum.saturating_add(events.flops[row]);
        }
    }
    if steps.is_empty() {
        return Vec::new();
    }
    for step in unknown_calls(data, keep) {
        steps.entry(step).or_default().unknown_calls += 1;
    }
    let tf32 = uses_tf32(data);
    let devices = DevicesById::of(&data.devices);
    let mut lengths: BTreeMap<i32, Vec<&StepBreakdownRow>> = BTreeMap::new();
    for row in breakdown {
        lengths.entry(row.step.unwrap_or(-1)).or_default().push(row);
    }
    let mut rows = Vec::new();
    for (step, sums) in steps.into_iter().filter(|(step, _)| *step >= 0) {
        let of_step = || lengths.get(&step).into_iter().flatten();
        let Some(wall_ns) = of_step().map(|row| row.wall_ns).max().filter(|ns| *ns > 0 && sums.flops > 0) else {
            continue;
        };
        let flops_per_s = sums.flops as f64 / (wall_ns as f64 * 1e-9);
        let most = sums.by_dtype.iter().max_by_key(|(_, flops)| **flops).map(|(dtype, _)| *dtype);
        let precision = most.map(|dtype| precision(dtype, tf32));
        let peak_flops =
            precision.and_then(|precision| peak(&devices, of_step().filter_map(|row| row.device_id), precision));
        rows.push(StepFlopsRow {
            rank: data.outline.info.rank,
            step,
            wall_ns,
            flops: sums.flops,
            unknown_calls: sums.unknown_calls,
            flops_per_s,
            precision: precision.map(Into::into),
            peak_flops,
            mfu_pct: peak_flops.filter(|_| sums.unknown_calls == 0).map(|peak| 100.0 * flops_per_s / peak),
        });
    }
    rows
}

/// The step of each call that must have FLOPs and has none. Calls inside of another such call do not count.
fn unknown_calls(data: &RankData, keep: &dyn Fn(usize) -> bool) -> Vec<i32> {
    let events = &data.events;
    let must: Vec<bool> = data.names.iter().map(|name| always_counts(name.as_bytes())).collect();
    let is_call = |row: usize| events.kind[row] == Kind::CpuOp && must[events.name[row] as usize];
    let around = outermost(events, &is_call);
    let unknown = |row: &usize| is_call(*row) && events.flops[*row] == NONE && around[*row] == NO_PARENT && keep(*row);
    (0..events.len()).filter(unknown).map(|row| events.step[row]).collect()
}

/// The summed peak rates of some devices; `None` without devices, or if one is unknown.
fn peak(known: &DevicesById<'_>, devices: impl Iterator<Item = i64>, precision: &str) -> Option<f64> {
    let of = |device: i64| Peaks::of(known.get(device)?.name.as_deref()?)?.flops_per_s(precision);
    let peaks: Option<Vec<f64>> = devices.map(of).collect();
    peaks.filter(|peaks| !peaks.is_empty()).map(|peaks| peaks.iter().sum())
}

#[cfg(test)]
mod tests {
    use trace::DeviceRow;
    use trace::rank::FlopsType;

    use super::*;
    use drawn::Drawn;

    /// Two products of 10 GFLOP in a step of 100 µs, on a device of a name.
    fn rows(device: &str, kernel: &str, dtype: Dtype) -> Vec<StepFlopsRow> {
        rows_beside("aten::relu", device, kernel, dtype)
    }

    /// As [`rows`], with another operator that has no FLOPs.
    fn rows_beside(other: &str, device: &str, kernel: &str, dtype: Dtype) -> Vec<StepFlopsRow> {
        let mut data = Drawn::rank(3)
            .host(Kind::CpuOp, "aten::mm", 1, "##..")
            .host(Kind::CpuOp, "aten::mm", 1, "..##")
            .host(Kind::CpuOp, other, 2, "####")
            .device(Kind::Kernel, kernel, (0, 7), 1, "..##")
            .data();
        data.devices = vec![DeviceRow { name: Some(device.into()), ..DeviceRow::default() }];
        for row in (0..data.events.len()).filter(|row| data.events.kind[*row] == Kind::CpuOp).collect::<Vec<_>>() {
            data.events.step[row] = 4;
            if &*data.names[data.events.name[row] as usize] != "aten::mm" {
                continue;
            }
            data.events.flops[row] = 10_000_000_000;
            data.flops_types.push(FlopsType { id: data.events.id[row], dtype, min_bytes: None });
        }
        data.flops_types.sort_by_key(|known| known.id);
        let step =
            |step| StepBreakdownRow { device_id: Some(0), step, wall_ns: 100_000, ..StepBreakdownRow::default() };
        step_flops(&data, &|_| true, &[step(None), step(Some(4)), step(Some(5))])
    }

    #[test]
    fn utilization_is_flops_by_wall_time_and_peak() {
        let found = rows("NVIDIA H100 80GB HBM3", "nvjet", Dtype::Bf16);
        assert_eq!(found.len(), 1);
        let row = &found[0];
        assert_eq!((row.rank, row.step, row.flops, row.wall_ns), (3, 4, 20_000_000_000, 100_000));
        assert_eq!((row.precision.as_deref(), row.peak_flops), (Some("bf16"), Some(989.5e12)));
        assert!(
            (row.flops_per_s - 2e14).abs() < 1.0 && (row.mfu_pct.unwrap() - 20_000.0 / 989.5).abs() < 1e-9,
            "{row:?}"
        );
    }

    /// A convolution without its stride, as in traces before PyTorch 2.0.
    #[test]
    fn there_is_no_utilization_with_unknown_flops() {
        let found = rows_beside("aten::convolution", "NVIDIA H200", "nvjet", Dtype::Bf16);
        assert_eq!((found[0].flops, found[0].unknown_calls, found[0].mfu_pct), (20_000_000_000, 1, None));
        assert_eq!(rows("NVIDIA H200", "nvjet", Dtype::Bf16)[0].unknown_calls, 0);
    }

    #[test]
    fn the_peak_is_that_of_the_precision_and_of_known_devices_only() {
        let peak = |device: &str, kernel: &str, dtype| rows(device, kernel, dtype)[0].peak_flops;
        assert_eq!(peak("NVIDIA H100 80GB HBM3", "ampere_sgemm_32x128_tn", Dtype::F32), Some(67e12));
        assert_eq!(peak("NVIDIA H100 80GB HBM3", "cutlass_80_tensorop_s1688gemm_128x64", Dtype::F32), Some(494.5e12));
        assert_eq!(peak("NVIDIA L20", "nvjet", Dtype::Bf16), None);
        assert_eq!(rows("NVIDIA L20", "nvjet", Dtype::Bf16)[0].mfu_pct, None);
    }
}
