//! The memory of a rank: its curve, its peak and what is in use there, its categories, and its growth over steps.

pub mod growth;

mod at_peak;
mod blocks;
mod phases;

use std::collections::BTreeMap;

use rustc_hash::FxHashMap;
use trace::{
    MemoryAtPeakRow, MemoryCategory, MemoryCurveRow, MemoryGrowthRow, MemoryPeakRow, MemoryRow, StepRow, Tables,
};

use crate::memory::blocks::{Block, blocks};
use crate::memory::growth::{InStep, in_steps, trend};
use crate::memory::phases::Phases;
use model::RankData;
use model::windows::Windows;

/// The number of time spans of a curve. The curve has at most one point for each.
const CURVE_POINTS: i64 = 200;

/// The memory tables of a rank, for each of its devices and its host. `keep` selects times in the rank's clock, which is
/// also the clock of all times here. Allocations outside of the selection count as well, because their blocks may be in
/// use inside of it.
pub(crate) fn memory_tables(data: &RankData, keep: &dyn Fn(i64) -> bool) -> Tables {
    let mut tables = Tables::default();
    if data.memory.is_empty() {
        return tables;
    }
    let windows = Windows::of(&data.outline.steps);
    let phases = Phases::find(data);
    let mut by_device: BTreeMap<Option<i64>, Vec<u32>> = BTreeMap::new();
    for (number, row) in (0..).zip(&data.memory) {
        by_device.entry(row.device_id).or_default().push(number);
    }
    for (device_id, rows) in by_device {
        let blocks = blocks(&data.memory, &rows, &windows);
        let in_use = in_use(&data.memory, &rows, &blocks, &windows);
        let device = Device { data, phases: &phases, windows: &windows, device_id, in_use, rows, blocks };
        tables.append(device.tables(keep));
    }
    tables
}

/// The bytes in use after each row. The allocator's own count is preferred, because it includes memory from before the
/// recording. Without it, the count is the sum of the recorded changes, and of that earlier memory only what was released
/// in the recording: at least so much is in use.
///
/// ```text
/// changes       +5  −7  +3  −4
/// sums           5  −2   1  −3       3 more were released than allocated, so they were in use before
/// in use         8   1   4   0
/// ```
fn in_use(memory: &[MemoryRow], rows: &[u32], blocks: &[Block], windows: &Windows) -> Vec<i64> {
    // By the first row of a window: the bytes of blocks from before it.
    let mut earlier: FxHashMap<u32, i64> = FxHashMap::default();
    for block in blocks.iter().filter(|block| block.allocated.is_none()) {
        let bytes = earlier.entry(block.alive.start).or_default();
        *bytes = bytes.saturating_add(block.bytes);
    }
    let window_of = |number: &u32| windows.at(memory[*number as usize].ts_ns);
    for window in rows.chunk_by(|a, b| window_of(a) == window_of(b)) {
        let (mut sum, mut least) = (0_i64, 0_i64);
        for number in window {
            sum = sum.saturating_add(memory[*number as usize].delta_bytes);
            least = least.min(sum);
        }
        if let Some(first) = window.first() {
            let bytes = earlier.entry(*first).or_default();
            *bytes = least.saturating_neg().max(*bytes);
        }
    }
    let mut in_use = 0_i64;
    let after = |number: &u32| {
        let row = &memory[*number as usize];
        let before = earlier.get(number).map_or(in_use, |earlier| in_use.max(*earlier));
        in_use = row.allocated_bytes.unwrap_or(before.saturating_add(row.delta_bytes));
        in_use
    };
    rows.iter().map(after).collect()
}

/// The memory of one device, or of the host.
struct Device<'a> {
    data: &'a RankData,
    phases: &'a Phases<'a>,
    windows: &'a Windows,
    device_id: Option<i64>,
    /// Numbers of its rows, ascending.
    rows: Vec<u32>,
    /// Bytes in use after each of `rows`.
    in_use: Vec<i64>,
    blocks: Vec<Block>,
}

impl Device<'_> {
    fn row(&self, at: usize) -> &MemoryRow {
        &self.data.memory[self.rows[at] as usize]
    }

    fn tables(&self, keep: &dyn Fn(i64) -> bool) -> Tables {
        let (rank, device_id) = (self.data.outline.info.rank, self.device_id);
        let kept: Vec<usize> = (0..self.rows.len()).filter(|at| keep(self.row(*at).ts_ns)).collect();
        // The first of equal peaks.
        let Some(peak) = kept.iter().copied().max_by_key(|at| (self.in_use[*at], std::cmp::Reverse(*at))) else {
            return Tables::default();
        };
        let steps: Vec<StepRow> = self.data.outline.steps.iter().filter(|step| keep(step.start_ns)).cloned().collect();
        let points: Vec<(i64, i64)> =
            self.in_use.iter().enumerate().map(|(at, bytes)| (self.row(at).ts_ns, *bytes)).collect();
        let in_steps = in_steps(&steps, &points);
        let (peak, at_peak) = self.peak(peak);
        Tables {
            memory_peaks: vec![peak],
            memory_at_peak: at_peak,
            memory_curve: self.curve(&kept),
            memory_growth: self.growth(&in_steps).into_iter().collect(),
            memory_by_step: in_steps.iter().map(|step| step.row(rank, device_id)).collect(),
            ..Tables::default()
        }
    }

    /// The peak and what is in use there.
    fn peak(&self, at: usize) -> (MemoryPeakRow, Vec<MemoryAtPeakRow>) {
        let (rank, device_id) = (self.data.outline.info.rank, self.device_id);
        let (row, peak_bytes) = (self.row(at), self.in_use[at]);
        let mut held = at_peak::rows(self.data, self.phases, &self.blocks, (self.rows[at], peak_bytes));
        for held in &mut held {
            (held.rank, held.device_id) = (rank, device_id);
        }
        let sum = |category: MemoryCategory| {
            held.iter().filter(|row| row.category == category).fold(0_i64, |sum, row| sum.saturating_add(row.bytes))
        };
        let fragmentation_bytes = row.reserved_bytes.map(|reserved| reserved.saturating_sub(peak_bytes));
        let peak = MemoryPeakRow {
            rank,
            device_id,
            ts_ns: row.ts_ns,
            peak_bytes,
            reserved_bytes: row.reserved_bytes,
            fragmentation_bytes,
            fragmentation_pct: row
                .reserved_bytes
                .zip(fragmentation_bytes)
                .filter(|(reserved, _)| *reserved > 0)
                .map(|(reserved, unused)| 100.0 * unused as f64 / reserved as f64),
            parameters_bytes: sum(MemoryCategory::Parameters),
            gradients_bytes: sum(MemoryCategory::Gradients),
            optimizer_state_bytes: sum(MemoryCategory::OptimizerState),
            activations_bytes: sum(MemoryCategory::Activations),
            temporary_bytes: sum(MemoryCategory::Temporary),
            unknown_bytes: sum(MemoryCategory::Unknown),
            alive: at_peak::holders(&held, self.rest()),
        };
        (peak, held)
    }

    /// The name of the memory that is in no block.
    fn rest(&self) -> &'static str {
        let has_an_address = |row: &MemoryRow| row.address.is_some() || row.delta_bytes == 0;
        let is_joined = !self.blocks.is_empty() || (0..self.rows.len()).all(|at| has_an_address(self.row(at)));
        if is_joined { at_peak::BEFORE } else { at_peak::UNKNOWN }
    }

    /// The growth of the least memory in use, and the place of the program that allocates most of it.
    fn growth(&self, steps: &[InStep]) -> Option<MemoryGrowthRow> {
        let series: Vec<(i32, i64)> = steps.iter().map(|step| (step.step, step.floor_bytes)).collect();
        let trend = trend(&series)?;
        // Blocks are known within one window only.
        let window_of = |step: &InStep| self.windows.at(self.row(step.floor_at).ts_ns);
        let longest = steps.chunk_by(|a, b| window_of(a) == window_of(b)).max_by_key(|window| window.len())?;
        // The first quarter is left out, because the first steps make state that stays.
        let (first, last) = (longest.get(longest.len() / 4)?, longest.last()?);
        let places = (self.rows[first.floor_at], self.rows[last.floor_at]);
        let most = at_peak::most_grown(self.data, self.phases, &self.blocks, places);
        let most = most.filter(|_| trend.grows && last.step > first.step);
        let per_step = most.as_ref().map(|most| most.bytes as f64 / f64::from(last.step.saturating_sub(first.step)));
        let (operator, stack) = most.map(|most| (most.operator, most.stack)).unwrap_or_default();
        Some(MemoryGrowthRow {
            rank: self.data.outline.info.rank,
            device_id: self.device_id,
            steps: trend.steps as i64,
            grows: trend.grows,
            growth_bytes: trend.slope,
            growth_low_bytes: trend.low,
            growth_high_bytes: trend.high,
            z: trend.z,
            operator,
            stack,
            operator_growth_bytes: per_step,
        })
    }

    /// The curve over the kept rows.
    ///
    /// ```text
    /// in use   12334 21113 44444 32211
    /// points      4↑ 2↑    4↑    3↑        the highest value of each span
    /// ```
    fn curve(&self, kept: &[usize]) -> Vec<MemoryCurveRow> {
        let (Some(first), Some(last)) = (kept.first(), kept.last()) else { return Vec::new() };
        let first_ns = self.row(*first).ts_ns;
        let span_ns = (self.row(*last).ts_ns.saturating_sub(first_ns) / CURVE_POINTS).saturating_add(1);
        let span = |at: &usize| self.row(*at).ts_ns.saturating_sub(first_ns) / span_ns;
        let highest =
            |spans: &[usize]| spans.iter().copied().max_by_key(|at| (self.in_use[*at], std::cmp::Reverse(*at)));
        let point = |at: usize| MemoryCurveRow {
            rank: self.data.outline.info.rank,
            device_id: self.device_id,
            ts_ns: self.row(at).ts_ns,
            in_use_bytes: self.in_use[at],
            reserved_bytes: self.row(at).reserved_bytes,
        };
        kept.chunk_by(|a, b| span(a) == span(b)).filter_map(highest).map(point).collect()
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn tables(rank: i32, memory: &[MemoryRow]) -> Tables {
        let mut data = RankData { memory: memory.to_vec(), ..RankData::default() };
        data.outline.info.rank = rank;
        memory_tables(&data, &|_| true)
    }

    fn memory_peaks(rank: i32, memory: &[MemoryRow]) -> Vec<MemoryPeakRow> {
        tables(rank, memory).memory_peaks
    }

    fn row(ts_ns: i64, name: &str, delta_bytes: i64, allocated_bytes: Option<i64>) -> MemoryRow {
        MemoryRow { ts_ns, name: Some(name.into()), delta_bytes, allocated_bytes, ..MemoryRow::default() }
    }

    #[test]
    fn the_peak_is_at_the_most_bytes_in_use() {
        //  weights      ####################
        //  activations  ....########........
        //  gradients    ........########....
        let rows = [
            row(0, "weights", 100, None),
            row(4, "activations", 60, None),
            row(8, "gradients", 50, None),
            row(12, "activations", -60, None),
            row(16, "gradients", -50, None),
        ];
        let peaks = memory_peaks(3, &rows);
        assert_eq!(peaks.len(), 1);
        assert_eq!((peaks[0].rank, peaks[0].ts_ns, peaks[0].peak_bytes), (3, 8, 210));
        assert_eq!(&*peaks[0].alive, "weights=100; activations=60; gradients=50");
    }

    #[test]
    fn memory_from_before_the_recording_is_a_holder() {
        let peaks = memory_peaks(0, &[row(1, "a", 10, Some(1010)), row(2, "a", -10, Some(1000))]);
        assert_eq!(peaks[0].peak_bytes, 1010);
        assert_eq!(&*peaks[0].alive, "before the recording=1000; a=10");
    }

    #[test]
    fn a_release_reduces_the_operator_that_allocated() {
        //  linear 0x1   ##########
        //  relu   0x2     ####......          released by another operator
        //  linear 0x1               ####      the same address again
        //  0x9          allocated before the recording, released during it
        let at = |ts_ns, name, delta_bytes, address| MemoryRow {
            address: Some(address),
            ..row(ts_ns, name, delta_bytes, None)
        };
        let rows = [
            at(0, "linear", 100, 1),
            at(1, "copy", -7, 9),
            at(2, "relu", 50, 2),
            at(6, "backward", -50, 2),
            at(10, "backward", -100, 1),
            at(11, "linear", 200, 1),
        ];
        let peaks = memory_peaks(0, &rows);
        assert_eq!((peaks[0].ts_ns, &*peaks[0].alive), (11, "linear=200"));
        assert_eq!(&*memory_peaks(0, &rows[..4])[0].alive, "linear=100; relu=50");
    }

    #[test]
    fn memory_whose_release_alone_is_recorded_was_in_use_before() {
        //  0x9  <######.....
        //  0x1   ..########.
        let at = |ts_ns, delta_bytes, address| MemoryRow {
            address: Some(address),
            ..row(ts_ns, "linear", delta_bytes, None)
        };
        let found = tables(0, &[at(2, 10, 1), at(7, -70, 9), at(10, -10, 1)]);
        let peak = &found.memory_peaks[0];
        assert_eq!((peak.ts_ns, peak.peak_bytes), (2, 80));
        assert_eq!(found.memory_at_peak.iter().map(|row| row.bytes).collect::<Vec<_>>(), [70, 10]);
        assert_eq!(found.memory_curve.iter().map(|point| point.in_use_bytes).collect::<Vec<_>>(), [80, 10, 0]);
    }

    /// As in traces of 2021: an operator allocates what another one releases.
    #[test]
    fn without_addresses_the_memory_in_use_is_the_sum_from_its_least() {
        let rows = [row(0, "a", 5, None), row(1, "b", -7, None), row(2, "a", 3, None), row(3, "b", -4, None)];
        let found = tables(0, &rows);
        assert_eq!(found.memory_curve.iter().map(|point| point.in_use_bytes).collect::<Vec<_>>(), [8, 1, 4, 0]);
        let peak = &found.memory_peaks[0];
        assert_eq!((peak.peak_bytes, peak.unknown_bytes, &*peak.alive), (8, 8, "unknown=8"));
    }

    #[test]
    fn a_curve_has_the_peak_of_every_span() {
        let rows: Vec<MemoryRow> =
            (0..10_000).map(|i| row(i * 10, "a", if i % 2 == 0 { 100 } else { -100 }, None)).collect();
        let curve = tables(2, &rows).memory_curve;
        assert!(curve.len() <= CURVE_POINTS as usize && curve.len() > 190, "{}", curve.len());
        assert!(curve.iter().all(|p| p.in_use_bytes == 100 && p.rank == 2));
        assert!(curve.is_sorted_by_key(|p| p.ts_ns));
        assert_eq!(tables(0, &[]).memory_curve, []);
    }

    #[test]
    fn small_blocks_are_summed_and_earlier_memory_is_counted() {
        let block = |i: i64| MemoryRow { address: Some(i), ..row(i, "linear", 1000 - i, Some(1_000_000 + i)) };
        let rows: Vec<MemoryRow> = (0..150).map(block).collect();
        let found = tables(0, &rows).memory_at_peak;
        assert_eq!(found.iter().filter(|row| row.blocks == Some(1)).count(), 100);
        assert!(found.iter().any(|row| row.blocks == Some(50) && row.operator.as_deref() == Some("linear")));
        let last = found.last().unwrap();
        assert_eq!((last.blocks, last.operator.as_deref(), &*last.category), (None, None, "unknown"));
        assert_eq!(last.bytes, 1_000_149 - (0..150).map(|i| 1000 - i).sum::<i64>());
    }

    #[test]
    fn what_the_allocator_holds_without_use_is_counted_at_the_peak() {
        let at = |ts_ns, delta, allocated, reserved| MemoryRow {
            reserved_bytes: Some(reserved),
            ..row(ts_ns, "a", delta, Some(allocated))
        };
        let peaks = memory_peaks(0, &[at(0, 60, 60, 80), at(1, -60, 0, 80), at(2, 75, 75, 100)]);
        assert_eq!(
            (peaks[0].peak_bytes, peaks[0].fragmentation_bytes, peaks[0].fragmentation_pct),
            (75, Some(25), Some(25.0))
        );
        assert_eq!(memory_peaks(0, &[row(0, "a", 1, None)])[0].fragmentation_bytes, None);
    }

    proptest! {
        /// Without the allocator's count, no memory in use is negative, and the peak is at least the range of the sums.
        #[test]
        fn no_memory_in_use_is_negative(
            changes in proptest::collection::vec((0_i64..8, -100_i64..100, any::<bool>()), 1..100),
        ) {
            let address = |(address, _, has_address): &(i64, i64, bool)| has_address.then_some(*address);
            let rows: Vec<MemoryRow> = (0..)
                .zip(&changes)
                .map(|(ts_ns, change)| MemoryRow { address: address(change), ..row(ts_ns, "a", change.1, None) })
                .collect();
            let found = tables(0, &rows);
            prop_assert!(found.memory_curve.iter().all(|point| point.in_use_bytes >= 0));
            let sums = changes.iter().scan(0, |sum, change| { *sum += change.1; Some(*sum) }).collect::<Vec<i64>>();
            let range = sums.iter().max().unwrap() - sums.iter().min().unwrap().min(&0);
            prop_assert!(found.memory_peaks[0].peak_bytes >= range);
        }

        /// Invariant (numbers): The blocks at a peak of memory sum to the peak.
        #[test]
        fn blocks_and_unknown_memory_sum_to_the_peak(
            changes in proptest::collection::vec((0_i64..8, -100_i64..100, any::<bool>(), 0_i64..3), 1..200),
            counted in any::<bool>(),
        ) {
            let mut rows = Vec::new();
            let mut allocated = 10_000;
            for (ts_ns, (address, delta_bytes, has_address, device)) in (0..).zip(changes) {
                allocated += delta_bytes;
                rows.push(MemoryRow {
                    address: has_address.then_some(address),
                    device_id: (device > 0).then_some(device),
                    ..row(ts_ns, "a", delta_bytes, counted.then_some(allocated))
                });
            }
            let tables = tables(0, &rows);
            for peak in &tables.memory_peaks {
                let of_device = tables.memory_at_peak.iter().filter(|row| row.device_id == peak.device_id);
                prop_assert_eq!(of_device.map(|row| row.bytes).sum::<i64>(), peak.peak_bytes);
                let MemoryPeakRow { parameters_bytes, gradients_bytes, optimizer_state_bytes, .. } = peak;
                let MemoryPeakRow { activations_bytes, temporary_bytes, unknown_bytes, .. } = peak;
                let kept = parameters_bytes + gradients_bytes + optimizer_state_bytes;
                prop_assert_eq!(kept + activations_bytes + temporary_bytes + unknown_bytes, peak.peak_bytes);
            }
        }
    }
}
