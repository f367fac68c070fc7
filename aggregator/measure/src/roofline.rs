//! Whether operators are limited by arithmetic or by memory, and their share of the device's peak rates.
//!
//! The bytes are a lower bound (`trace::rank::least_bytes`), so the arithmetic intensity is an upper bound:
//!
//! ```text
//!                    ridge = peak FLOP/s / peak bytes/s
//!   ─────────────────────┼─────────────────────►  FLOPs / least bytes
//!    memory: more bytes  │  compute: likely, as far as
//!    only move it left   │  the bytes are near their least
//! ```

use std::collections::{BTreeMap, BTreeSet};

use rustc_hash::FxHashMap;
use trace::kernel_rules::computes_in_tf32;
use trace::rank::DevicesById;
use trace::{Dtype, OpStatsRow, RooflineBound, Text};

use model::peaks::Peaks;
use model::{Kind, NONE, RankData};

/// Sums over the calls with FLOPs of one operator.
#[derive(Clone, Debug, Default, PartialEq)]
struct Sums {
    /// `None` if the bytes of a call are unknown.
    min_bytes: Option<i64>,
    flops_by_type: BTreeMap<Dtype, i64>,
}

/// The operators with FLOPs of a rank, and its device.
#[derive(Debug, Default)]
pub(super) struct Roofline {
    by_name: FxHashMap<Text, Sums>,
    /// The peak rates; `None` if the devices differ or are unknown.
    peaks: Option<Peaks>,
    uses_tf32: bool,
}

impl Roofline {
    /// Sums the chosen calls.
    pub(super) fn of(data: &RankData, keep: &dyn Fn(usize) -> bool) -> Self {
        let events = &data.events;
        let mut by_name: FxHashMap<u32, Sums> = FxHashMap::default();
        let counts = |row: &usize| events.kind[*row] == Kind::CpuOp && events.flops[*row] != NONE && keep(*row);
        for row in (0..events.len()).filter(counts) {
            let sums = by_name.entry(events.name[row]).or_insert(Sums { min_bytes: Some(0), ..Sums::default() });
            let at = data.flops_types.binary_search_by_key(&events.id[row], |known| known.id).ok();
            let known = at.map(|at| data.flops_types[at]);
            if let Some(known) = known {
                let flops = sums.flops_by_type.entry(known.dtype).or_default();
                *flops = flops.saturating_add(events.flops[row]);
            }
            let stated = Some(events.bytes[row]).filter(|bytes| *bytes != NONE);
            let bytes = stated.or_else(|| known?.min_bytes);
            sums.min_bytes = sums.min_bytes.zip(bytes).map(|(sum, bytes)| sum.saturating_add(bytes));
        }
        if by_name.is_empty() {
            return Self::default();
        }
        let by_name = by_name.into_iter().map(|(name, sums)| (data.names[name as usize].clone(), sums)).collect();
        Self { by_name, peaks: peaks(data), uses_tf32: uses_tf32(data) }
    }

    /// Fills the columns of the roofline.
    pub(super) fn fill(&self, row: &mut OpStatsRow) {
        let (Some(sums), Some(flops)) = (self.by_name.get(&row.name), row.flops) else { return };
        let most = sums.flops_by_type.iter().max_by_key(|(_, flops)| **flops).map(|(dtype, _)| *dtype);
        let precision = most.map(|dtype| precision(dtype, self.uses_tf32));
        let peak_flops = self.peaks.zip(precision).and_then(|(peaks, precision)| peaks.flops_per_s(precision));
        let peak_bytes = self.peaks.and_then(|peaks| peaks.bytes_per_s());
        let ridge = peak_flops.zip(peak_bytes).map(|(flops, bytes)| flops / bytes);
        row.min_bytes = sums.min_bytes.filter(|bytes| *bytes > 0);
        row.max_flops_per_byte = row.min_bytes.map(|bytes| flops as f64 / bytes as f64);
        row.ridge_flops_per_byte = ridge;
        row.bound = Some(match row.max_flops_per_byte.zip(ridge) {
            None => RooflineBound::Unknown.into(),
            Some((intensity, ridge)) if intensity < ridge => RooflineBound::Memory.into(),
            Some(_) => RooflineBound::Compute.into(),
        });
        let share = |rate: Option<f64>, peak: Option<f64>| rate.zip(peak).map(|(rate, peak)| 100.0 * rate / peak);
        let seconds = row.flops_ns.filter(|_| row.flops_per_s.is_some()).map(|ns| ns as f64 * 1e-9);
        let bytes_per_s = row.min_bytes.zip(seconds).map(|(bytes, seconds)| bytes as f64 / seconds);
        row.peak_flops_pct = share(row.flops_per_s, peak_flops);
        row.peak_bandwidth_pct = share(bytes_per_s, peak_bytes);
    }
}

/// The word for a type in [`Peaks`].
pub(super) fn precision(dtype: Dtype, uses_tf32: bool) -> &'static str {
    if uses_tf32 && dtype == Dtype::F32 { "tf32" } else { trace::Vocabulary::as_str(dtype) }
}

/// The peaks of the devices that ran kernels, if all are of one known model.
fn peaks(data: &RankData) -> Option<Peaks> {
    let events = &data.events;
    let kernels = (0..events.len()).filter(|row| events.kind[*row] == Kind::Kernel);
    let devices: BTreeSet<i64> = kernels.map(|row| events.device[row]).collect();
    let known = DevicesById::of(&data.devices);
    let of = |device: &i64| Peaks::of(known.get(*device)?.name.as_deref()?);
    let first = of(devices.first()?)?;
    devices.iter().all(|device| of(device) == Some(first)).then_some(first)
}

/// Whether a kernel of the rank computes products of 32-bit numbers in TF32.
pub(super) fn uses_tf32(data: &RankData) -> bool {
    let events = &data.events;
    let mut is_kernel = vec![false; data.names.len()];
    for row in (0..events.len()).filter(|row| events.kind[*row] == Kind::Kernel) {
        is_kernel[events.name[row] as usize] = true;
    }
    data.names.iter().zip(is_kernel).any(|(name, is_kernel)| is_kernel && computes_in_tf32(name))
}

#[cfg(test)]
mod tests {
    use trace::DeviceRow;
    use trace::rank::FlopsType;

    use super::*;
    use drawn::Drawn;

    /// Two products of `flops` FLOPs each. The bytes of the second are given.
    fn data(device: &str, flops: i64, bytes: Option<i64>) -> RankData {
        let mut data = Drawn::rank(0)
            .host(Kind::CpuOp, "aten::mm", 1, "##..##..")
            .device(Kind::Kernel, "nvjet", (0, 7), 1, "..##....")
            .data();
        data.devices = vec![DeviceRow { name: Some(device.into()), ..DeviceRow::default() }];
        let rows: Vec<usize> = (0..data.events.len()).filter(|row| data.events.kind[*row] == Kind::CpuOp).collect();
        for (row, min_bytes) in rows.into_iter().zip([Some(1_000_000), bytes]) {
            data.events.flops[row] = flops;
            data.flops_types.push(FlopsType { id: data.events.id[row], dtype: Dtype::Bf16, min_bytes });
        }
        data.flops_types.sort_by_key(|known| known.id);
        data
    }

    fn filled(data: &RankData) -> OpStatsRow {
        let flops: i64 = data.events.flops.iter().filter(|flops| **flops != NONE).sum();
        // 2 µs at the H200's 989.5 TFLOP/s and 4.8 TB/s are 1.979 GFLOP and 9.6 MB.
        let mut row = OpStatsRow {
            name: "aten::mm".into(),
            flops: Some(flops),
            flops_ns: Some(2000),
            flops_per_s: Some(flops as f64 / 2e-6),
            ..OpStatsRow::default()
        };
        Roofline::of(data, &|_| true).fill(&mut row);
        row
    }

    /// Invariant (numbers): An operator counts as memory-bound only by a lower bound of its bytes.
    #[test]
    fn the_least_bytes_decide_what_limits_an_operator() {
        let row = filled(&data("NVIDIA H200", 197_900_000, Some(1_400_000)));
        assert_eq!((row.min_bytes, row.bound.as_deref()), (Some(2_400_000), Some("memory")));
        let near = |value: Option<f64>, expected: f64| (value.unwrap() - expected).abs() < 1e-9 * expected;
        assert!(near(row.max_flops_per_byte, 395.8 / 2.4) && near(row.ridge_flops_per_byte, 989.5 / 4.8), "{row:?}");
        assert!(near(row.peak_flops_pct, 20.0) && near(row.peak_bandwidth_pct, 25.0), "{row:?}");
        assert_eq!(filled(&data("NVIDIA H200", 400_000_000, Some(1_400_000))).bound.as_deref(), Some("compute"));
    }

    #[test]
    fn without_bytes_or_peaks_the_limit_is_unknown() {
        let no_bytes = filled(&data("NVIDIA H200", 1000, None));
        assert_eq!((no_bytes.bound.as_deref(), no_bytes.min_bytes), (Some("unknown"), None));
        assert!(no_bytes.ridge_flops_per_byte.is_some() && no_bytes.peak_bandwidth_pct.is_none());
        let no_peak = filled(&data("NVIDIA L20", 1000, Some(10)));
        assert_eq!((no_peak.bound.as_deref(), no_peak.ridge_flops_per_byte), (Some("unknown"), None));
        assert_eq!(no_peak.min_bytes, Some(1_000_010));
        let mut other = OpStatsRow::default();
        Roofline::default().fill(&mut other);
        assert_eq!(other.bound, None);
    }
}
