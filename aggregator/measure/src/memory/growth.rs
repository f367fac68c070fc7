//! Memory that grows from step to step: a leak.
//!
//! The series is the least memory in use during each step, because the memory of a batch, of activations and of
//! gradients is not part of it. docs/method/memory.md states the test and its limits.

use trace::{MemoryByStepRow, StepRow};

use model::stats::median_of_sorted;

/// Steps below which there is no slope.
pub(crate) const MIN_STEPS: usize = 5;
/// Growth per step below which nothing is reported: a million steps would fill 16 GB.
pub const MIN_GROWTH_BYTES: f64 = 16_384.0;
/// Mann–Kendall statistic from which a trend is certain: one-sided p = 0.001.
pub const MIN_Z: f64 = 3.09;
/// A shorter series is certain if each step is this close to one line, as a share of the growth per step.
pub const MAX_SCATTER: f64 = 0.25;
/// The second half of the steps grows by at least this share of the growth of all.
pub(crate) const MIN_LATE_SHARE: f64 = 0.5;
/// Half the width of a 95 % interval, in standard errors.
const Z_95: f64 = 1.96;
/// Steps of a slope. Of more steps, every n-th is taken, because the pairs grow with the square.
const MAX_STEPS: usize = 1000;

/// Memory in use during one step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct InStep {
    pub(super) step: i32,
    pub(super) floor_bytes: i64,
    pub(super) peak_bytes: i64,
    pub(super) end_bytes: i64,
    /// Position of the floor in the rows of the device: the bytes are in use after this row.
    pub(super) floor_at: usize,
}

impl InStep {
    pub(super) fn row(&self, rank: i32, device_id: Option<i64>) -> MemoryByStepRow {
        let Self { step, floor_bytes, peak_bytes, end_bytes, .. } = *self;
        MemoryByStepRow { rank, device_id, step, floor_bytes, peak_bytes, end_bytes }
    }
}

/// The steps of one device, from the bytes in use after each of its rows (time, bytes), ascending. A step before the
/// first row has no known memory and is left out.
pub(super) fn in_steps(steps: &[StepRow], in_use: &[(i64, i64)]) -> Vec<InStep> {
    let of_step = |step: &StepRow| {
        let from = in_use.partition_point(|(ts_ns, _)| *ts_ns < step.start_ns);
        let to = in_use.partition_point(|(ts_ns, _)| *ts_ns < step.end_ns);
        // The row before the step tells the memory at its start.
        let held = from.saturating_sub(1)..to;
        let floor_at = held.clone().min_by_key(|at| in_use[*at].1)?;
        let peak_bytes = in_use[held].iter().map(|(_, bytes)| *bytes).max()?;
        let end_bytes = in_use[to.checked_sub(1)?].1;
        Some(InStep { step: step.step, floor_bytes: in_use[floor_at].1, peak_bytes, end_bytes, floor_at })
    };
    steps.iter().filter_map(of_step).collect()
}

/// The trend of a series.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Trend {
    pub(super) steps: usize,
    /// Theil–Sen slope, in bytes per step, and its 95 % interval (Sen, "Estimates of the Regression Coefficient Based on
    /// Kendall's Tau", JASA 63, 1968).
    pub(super) slope: f64,
    pub(super) low: f64,
    pub(super) high: f64,
    /// Mann–Kendall statistic, standardised, with the correction for ties (Mann, Econometrica 13, 1945).
    pub(super) z: f64,
    /// Whether the series grows steadily.
    pub(super) grows: bool,
}

/// The trend of (step, bytes). Of six steps or more the first is left out, because it makes the optimizer's state.
/// `None` below [`MIN_STEPS`].
pub(super) fn trend(series: &[(i32, i64)]) -> Option<Trend> {
    let series = if series.len() > MIN_STEPS { &series[1..] } else { series };
    if series.len() < MIN_STEPS {
        return None;
    }
    let every = series.len().div_ceil(MAX_STEPS);
    let series: Vec<(f64, f64)> =
        series.iter().step_by(every).map(|(step, bytes)| (f64::from(*step), *bytes as f64)).collect();
    let slopes = slopes(&series);
    let (slope, n) = (median_of_sorted(&slopes)?, series.len() as f64);
    let (score, variance) = mann_kendall(&series);
    let z = if variance > 0.0 { (score - score.signum()) / variance.sqrt() } else { 0.0 };
    // The interval ignores ties, which makes it wider.
    let half = Z_95 * (n * (n - 1.0) * (2.0 * n + 5.0) / 18.0).sqrt();
    let pairs = slopes.len() as f64;
    let (from, to) = (((pairs - half) / 2.0).floor(), ((pairs + half) / 2.0).ceil());
    let at = |place: f64| slopes[(place.max(0.0) as usize).min(slopes.len() - 1)];
    let (low, high) = (at(from - 1.0), at(to));
    let late = median_of_sorted(&self::slopes(&series[series.len() / 2..])).unwrap_or(0.0);
    let certain = (z >= MIN_Z && low > 0.0) || near_one_line(&series, slope);
    let grows = slope >= MIN_GROWTH_BYTES && certain && late >= MIN_LATE_SHARE * slope;
    Some(Trend { steps: series.len(), slope, low, high, z, grows })
}

/// The slopes between all pairs, ascending. Pairs in one step have none.
fn slopes(series: &[(f64, f64)]) -> Vec<f64> {
    let mut slopes = Vec::with_capacity(series.len() * series.len().saturating_sub(1) / 2);
    for (i, (x, y)) in series.iter().enumerate() {
        let later = series[i + 1..].iter().filter(|(later, _)| later > x);
        slopes.extend(later.map(|(later, bytes)| (bytes - y) / (later - x)));
    }
    slopes.sort_unstable_by(f64::total_cmp);
    slopes
}

/// Pairs that rise less pairs that fall, and its variance without a trend.
fn mann_kendall(series: &[(f64, f64)]) -> (f64, f64) {
    let mut values: Vec<f64> = series.iter().map(|(_, bytes)| *bytes).collect();
    let mut score = 0.0;
    for (i, bytes) in values.iter().enumerate() {
        score += values[i + 1..].iter().map(|later| f64::from(later > bytes) - f64::from(later < bytes)).sum::<f64>();
    }
    values.sort_unstable_by(f64::total_cmp);
    let term = |n: f64| n * (n - 1.0) * (2.0 * n + 5.0) / 18.0;
    let ties: f64 = values.chunk_by(|a, b| a == b).map(|tied| term(tied.len() as f64)).sum();
    (score, term(values.len() as f64) - ties)
}

/// Whether each step is near the line through the medians.
fn near_one_line(series: &[(f64, f64)], slope: f64) -> bool {
    let mut offsets: Vec<f64> = series.iter().map(|(step, bytes)| bytes - slope * step).collect();
    offsets.sort_unstable_by(f64::total_cmp);
    let offset = median_of_sorted(&offsets).unwrap_or(0.0);
    slope > 0.0 && offsets.iter().all(|at| (at - offset).abs() <= MAX_SCATTER * slope)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const MIB: f64 = 1_048_576.0;

    fn of(series: impl IntoIterator<Item = f64>) -> Trend {
        let series: Vec<(i32, i64)> = (0..).zip(series).map(|(step, mib)| (step, (mib * MIB) as i64)).collect();
        trend(&series).unwrap()
    }

    /// Numbers from −1 to 1 that look random, the same each time.
    fn noise(step: i32, seed: i32) -> f64 {
        let mixed = (step as u64 + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15).wrapping_add(seed as u64 * 0x00d1_342f_543d);
        let mixed = (mixed ^ (mixed >> 29)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        ((mixed ^ (mixed >> 32)) % 2001) as f64 / 1000.0 - 1.0
    }

    #[test]
    fn a_leak_of_1_mib_per_step_is_found_in_20_steps() {
        let clean = of((0..20).map(f64::from));
        assert!(clean.grows && (clean.slope, clean.low, clean.high) == (MIB, MIB, MIB), "{clean:?}");
        // The first step makes 100 MiB of the optimizer's state; batches differ by up to 2 MiB.
        for seed in 0..50 {
            let found = of((0..20).map(|i| if i == 0 { 0.0 } else { 100.0 + f64::from(i) + 2.0 * noise(i, seed) }));
            assert!(found.grows && found.low <= MIB && MIB <= found.high * 1.1, "{seed}: {found:?}");
            assert!((0.5 * MIB..1.6 * MIB).contains(&found.slope), "{seed}: {found:?}");
        }
        // Every second step leaks 2 MiB.
        assert!(of((0..20).map(|i| f64::from(i / 2 * 2))).grows);
        // Five steps are enough if they are regular, and below that there is no answer.
        assert!(of((0..5).map(f64::from)).grows);
        assert_eq!(trend(&[(0, 0), (1, 1 << 20), (2, 2 << 20), (3, 3 << 20)]), None);
    }

    /// Invariant (numbers): The memory of a run without a leak is not reported to grow.
    #[test]
    fn clean_runs_do_not_grow() {
        type Series = fn(i32) -> f64;
        let clean: [(&str, Series); 9] = [
            ("constant", |_| 500.0),
            ("optimizer state in the first step", |i| if i == 0 { 100.0 } else { 300.0 }),
            ("state in the first three steps", |i| f64::from(i.min(3)) * 100.0),
            ("growth that ends", |i| 100.0 * (1.0 - (-f64::from(i) / 2.0).exp())),
            ("half of the steps grow", |i| f64::from(i.min(9))),
            ("every second step", |i| f64::from(i % 2) * 50.0),
            ("every fourth step", |i| f64::from(i % 4) * 50.0),
            ("shrinks", |i| 100.0 - f64::from(i)),
            ("too little to matter", |i| f64::from(i) * 0.001),
        ];
        for (name, at) in clean {
            for steps in [5, 6, 7, 10, 20, 50] {
                if name == "half of the steps grow" && steps < 20 {
                    continue;
                }
                let found = of((0..steps).map(at));
                assert!(!found.grows, "{name}, {steps} steps: {found:?}");
            }
        }
        for (steps, limit) in [(5, 3), (10, 3), (20, 3)] {
            let wrong = (0..1000).filter(|seed| of((0..steps).map(|i| 100.0 * noise(i, *seed))).grows).count();
            assert!(wrong <= limit, "{wrong} of 1000 noisy runs of {steps} steps");
        }
    }

    #[test]
    fn a_step_knows_its_least_and_its_most_memory() {
        //  step        0         1         2
        //  in use   ..5....9.7.....3....4......
        let steps: Vec<StepRow> = (0..3)
            .map(|step| StepRow {
                step,
                start_ns: 10 * i64::from(step),
                end_ns: 10 * (i64::from(step) + 1),
                ..Default::default()
            })
            .collect();
        let in_use = [(2, 5), (7, 9), (9, 7), (15, 3), (19, 4)];
        let found: Vec<_> =
            in_steps(&steps, &in_use).iter().map(|s| (s.floor_bytes, s.peak_bytes, s.end_bytes, s.floor_at)).collect();
        assert_eq!(found, [(5, 9, 7, 0), (3, 7, 4, 3), (4, 4, 4, 4)]);
        assert_eq!(in_steps(&steps, &[]), []);
        assert_eq!(in_steps(&steps[..1], &[(50, 1)]), []);
    }

    proptest! {
        #[test]
        fn a_constant_changes_nothing(series in proptest::collection::vec(0_i64..1 << 40, 5..30), by in 0_i64..1 << 40) {
            let moved = |by: i64| (0..).zip(series.iter().map(|bytes| bytes + by)).collect::<Vec<(i32, i64)>>();
            let (one, other) = (trend(&moved(0)).unwrap(), trend(&moved(by)).unwrap());
            prop_assert_eq!(one, other);
            prop_assert!(one.low <= one.slope && one.slope <= one.high);
        }
    }
}
