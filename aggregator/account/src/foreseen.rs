//! Whether the graph can say how long steps are that it has not seen: every second step is replayed with the lengths of the step after
//! it, and should then take as long as these steps do.

use std::collections::BTreeMap;

use model::stats::student_quantile;
use rustc_hash::FxHashMap;

use crate::places::{Places, Slot};
use crate::scaled::{Scaled, inner};

/// From so many inner steps on, halves are compared.
const LEAST_STEPS: usize = 4;
/// A replay is right within this share of a step …
const SHARE: f64 = 0.05;
/// … or what the halves differ by with this probability (Student's t).
const WITHIN: f64 = 0.95;

/// A half of the steps, as recorded and by the lengths of the other half.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Foreseen {
    /// The mean of the steps of one half.
    pub recorded_ns: i64,
    /// The same by a replay with the lengths of the other half.
    pub replayed_ns: i64,
    /// By how much the halves differ by chance, at 95 %.
    pub error_ns: i64,
}

impl Foreseen {
    /// `None` of too few steps.
    pub(crate) fn of(run: &Scaled, places: &Places, steps: &BTreeMap<i32, usize>, recorded_ns: &[i64]) -> Option<Self> {
        let all: Vec<usize> = (0..recorded_ns.len()).collect();
        let pairs: Vec<[usize; 2]> = inner(&all).chunks_exact(2).map(|pair| [pair[0], pair[1]]).collect();
        if 2 * pairs.len() < LEAST_STEPS {
            return None;
        }
        let next: BTreeMap<usize, usize> = pairs.iter().map(|pair| (pair[0], pair[1])).collect();
        let spans_ns = like_next(run, places, steps, &next);
        let replayed_ns = run.lengths_ns(&spans_ns);
        let of = |half: usize, lengths_ns: &[i64]| -> Vec<f64> {
            pairs.iter().map(|pair| lengths_ns[pair[half]] as f64).collect()
        };
        let mean = |of: &[f64]| of.iter().sum::<f64>() / of.len() as f64;
        let square = |of: &[f64]| {
            let mean = mean(of);
            of.iter().map(|ns| (ns - mean).powi(2)).sum::<f64>() / ((of.len() - 1) * of.len()) as f64
        };
        let (first, second) = (of(0, recorded_ns), of(1, recorded_ns));
        let times = student_quantile(0.5 - WITHIN / 2.0, 2.0 * (pairs.len() - 1) as f64);
        let rounded = |ns: f64| ns.round() as i64;
        Some(Self {
            recorded_ns: rounded(mean(&first)),
            replayed_ns: rounded(mean(&of(0, &replayed_ns))),
            error_ns: rounded(times * (square(&first) + square(&second)).sqrt()),
        })
    }

    /// Whether the replay is as good as the halves of the steps are alike.
    pub fn is_right(&self) -> bool {
        let off_ns = (self.replayed_ns - self.recorded_ns).abs() as f64;
        off_ns <= (SHARE * self.recorded_ns as f64).max(self.error_ns as f64)
    }
}

/// The lengths of all spans; in some of the steps, each unit takes as long at each place as in another step.
fn like_next(run: &Scaled, places: &Places, steps: &BTreeMap<i32, usize>, next: &BTreeMap<usize, usize>) -> Vec<i64> {
    let mut spans_ns = run.graph.recorded_ns();
    let mut sums_ns = vec![0; places.units];
    for ((slot, unit), ns) in places.of_span.iter().zip(&spans_ns) {
        if let Some(slot) = places.slots.get(*slot as usize) {
            sums_ns[slot.first + *unit as usize] += ns;
        }
    }
    let step_of = |slot: &Slot| steps.get(&slot.step).copied();
    let at_place = |slot: &Slot| step_of(slot).map(|step| ((slot.place, step), slot.first));
    let firsts: FxHashMap<(u32, usize), usize> = places.slots.iter().filter_map(at_place).collect();
    let other_of = |slot: &Slot| firsts.get(&(slot.place, *next.get(&step_of(slot)?)?)).copied();
    let others: Vec<Option<usize>> = places.slots.iter().map(other_of).collect();
    for ((at, unit), ns) in places.of_span.iter().zip(&mut spans_ns) {
        let (at, unit) = (*at as usize, *unit as usize);
        if let Some(other) = others.get(at).copied().flatten()
            && let own_ns = sums_ns[places.slots[at].first + unit]
            && own_ns > 0
        {
            *ns = (*ns as f64 * sums_ns[other + unit] as f64 / own_ns as f64).round() as i64;
        }
    }
    spans_ns
}
