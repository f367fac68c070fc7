//! The lengths that spans have, and those that they would have without what the account names.
//!
//! | length | is | the difference from the one before is lost to |
//! |---|---|---|
//! | o | recorded | |
//! | m | the lower median of the ranks of the role, of the sum over the place, in the same step | places, variation |
//! | M | the median of m over the steps | steps that are longer for all |
//!
//! The lower median holds where half of the ranks are slow. It is low by selection where noise is large: it is scaled by what the
//! ranks' own medians over the steps show, by at most a half.
//!
//! No length is above the one before it: a rank that waits shares its device with the communication that spins, and would seem to gain.

use crate::graph::Graph;
use crate::places::{Places, Slot};
use model::stats::{lower_median, median};

/// From so many steps on, references are scaled.
const SCALED_STEPS: usize = 4;
/// By at most this.
const MOST_SCALED: f64 = 1.5;
/// From so many steps on, there is a usual step.
const LEAST_STEPS: usize = 3;

/// The lengths of all spans.
#[derive(Debug)]
pub(crate) struct Lengths {
    pub(crate) recorded_ns: Vec<i64>,
    pub(crate) typical_ns: Vec<i64>,
    pub(crate) steady_ns: Vec<i64>,
    /// For each unit of each slot: by how much its sum is above the reference m, or below; `None` where one of them is unknown.
    pub(crate) above_ns: Vec<Option<f64>>,
}

impl Lengths {
    pub(crate) fn of(graph: &Graph, places: &Places) -> Self {
        let recorded_ns = graph.recorded_ns();
        // Time lost to communication is left out: a late rank communicates for a shorter time than its peers.
        let own_ns: Vec<i64> = graph.spans.iter().map(|span| span.len_ns - span.contended_ns).collect();
        let sums = Sums::of(&own_ns, places);
        let (typical, steady) = sums.references(places);
        let scaled = |reference: &[Option<f64>], most_ns: &[i64]| -> Vec<i64> {
            let of_span = |((at, ns), most_ns): ((usize, &i64), &i64)| {
                let place = places.of_span[at];
                let reference = reference.get(place.0 as usize).copied().flatten();
                let sum_ns =
                    places.slots.get(place.0 as usize).map_or(0, |slot| sums.ns[slot.first + place.1 as usize]);
                let Some(reference) = reference.filter(|_| sum_ns > 0) else { return *most_ns };
                let like_others_ns = (*ns as f64 * (reference.max(0.0) / sum_ns as f64)).round() as i64;
                (like_others_ns + graph.spans[at].contended_ns).min(*most_ns)
            };
            own_ns.iter().enumerate().zip(most_ns).map(of_span).collect()
        };
        let typical_ns = scaled(&typical, &recorded_ns);
        let steady_ns = scaled(&steady, &typical_ns);
        let mut above_ns = vec![None; places.units];
        for (slot, typical) in places.slots.iter().zip(&typical) {
            for at in units_of(places, slot).filter(|at| sums.is_there[*at]) {
                above_ns[at] = typical.map(|typical| sums.ns[at] as f64 - typical);
            }
        }
        Self { recorded_ns, typical_ns, steady_ns, above_ns }
    }
}

fn units_of(places: &Places, slot: &Slot) -> std::ops::Range<usize> {
    slot.first..slot.first + places.roles[places.places[slot.place as usize].role as usize].len()
}

/// The sum of the spans of each unit in each slot.
struct Sums {
    ns: Vec<i64>,
    is_there: Vec<bool>,
}

impl Sums {
    fn of(recorded_ns: &[i64], places: &Places) -> Self {
        let mut sums = Self { ns: vec![0; places.units], is_there: vec![false; places.units] };
        for ((slot, unit), ns) in places.of_span.iter().zip(recorded_ns) {
            if let Some(slot) = places.slots.get(*slot as usize) {
                let at = slot.first + *unit as usize;
                sums.ns[at] += ns;
                sums.is_there[at] = true;
            }
        }
        sums
    }

    /// The references m and M of each slot.
    fn references(&self, places: &Places) -> (Vec<Option<f64>>, Vec<Option<f64>>) {
        let mut by_place: Vec<Vec<usize>> = vec![Vec::new(); places.places.len()];
        let mut typical: Vec<Option<f64>> = Vec::with_capacity(places.slots.len());
        for (at, slot) in places.slots.iter().enumerate() {
            let units = units_of(places, slot);
            let usual = &places.usual[places.places[slot.place as usize].role as usize];
            let here = units.clone().zip(usual).filter(|(at, is_usual)| **is_usual && self.is_there[*at]);
            let here: Vec<i64> = here.map(|(at, _)| self.ns[at]).collect();
            let least = usual.iter().filter(|is_usual| **is_usual).count().div_ceil(2);
            // One alone is compared with itself in other steps.
            let is_known = units.len() == 1 && !here.is_empty() || here.len() >= 2 && here.len() >= least;
            typical.push(lower_median(here).filter(|_| is_known).map(|ns| ns as f64));
            if is_known {
                by_place[slot.place as usize].push(at);
            }
        }
        let mut steady = typical.clone();
        for slots in by_place.iter().filter(|slots| !slots.is_empty()) {
            let of_slots: Vec<f64> = slots.iter().filter_map(|slot| typical[*slot]).collect();
            let scale = self.scale(places, slots, &of_slots);
            let usual = (slots.len() >= LEAST_STEPS).then(|| median(of_slots).unwrap_or(0.0) * scale);
            for slot in slots {
                typical[*slot] = typical[*slot].map(|ns| ns * scale);
                steady[*slot] = usual.or(typical[*slot]);
            }
        }
        (typical, steady)
    }

    /// By how much the lower medians of single steps are too low: the ranks' own medians over the steps show it.
    fn scale(&self, places: &Places, slots: &[usize], of_slots: &[f64]) -> f64 {
        let usual_ns = median(of_slots.iter().copied()).unwrap_or(0.0);
        if slots.len() < SCALED_STEPS || usual_ns <= 0.0 {
            return 1.0;
        }
        let units = units_of(places, &places.slots[slots[0]]).len();
        let of_unit = |unit: usize| {
            let at = slots.iter().map(|slot| places.slots[*slot].first + unit);
            median(at.filter(|at| self.is_there[*at]).map(|at| self.ns[at] as f64))
        };
        let usual = &places.usual[places.places[places.slots[slots[0]].place as usize].role as usize];
        let mut medians: Vec<f64> = (0..units).filter(|unit| usual[*unit]).filter_map(of_unit).collect();
        medians.sort_by(f64::total_cmp);
        let typical = medians.get(medians.len().saturating_sub(1) / 2).copied().unwrap_or(usual_ns);
        (typical / usual_ns).clamp(1.0, MOST_SCALED)
    }
}
