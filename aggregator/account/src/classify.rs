//! The numbers of each rank beside its cost, and its verdict in a sentence.
//!
//! A host range stands out by [`Thresholds::min_range_z`] and as an outlier, if the whole stretch does not contradict it and the steps of
//! other ranks rarely show the same ([`Thresholds::max_chance`]). The scheduler preempts all ranges in proportion to their length, while a
//! delay is in one range. A delay that is small against the noise of the whole stretch is therefore many times the noise of its range.

use trace::{Reason, StandsOn, Verdict, name_rules};

use crate::deviation::Deviation;
use crate::evidence::Evidence;
use crate::lost_time::Period;
use crate::prices::Cost;
use model::stats::nearest_rank;
use model::thresholds::Thresholds;
use model::units::{ns, spoken_z};

/// The numbers of one rank that its verdict uses.
#[derive(Clone, Debug, Default)]
pub(super) struct Case {
    /// Own excess against the other ranks; `None` if no other rank can be compared.
    pub(super) own: Option<Deviation>,
    /// The steps in which the rank is late, if it is late in some only. `own` and the range are measured in these.
    pub(super) occasion: Option<Occasion>,
    /// The transfers of the rank or of its group, if they are slow.
    pub(super) transfers: Option<SlowPart>,
    /// The median over steps of the own excess: own work above the lower median of the ranks.
    pub(super) own_excess_ns: i64,
    /// The host range that holds most of the certain excess.
    pub(super) range: Option<Evidence>,
    /// Whether this is the only recorded rank.
    pub(super) alone: bool,
    /// The median length of a step.
    pub(super) step_ns: i64,
    /// The smallest effect that matters; smaller ones are ignored.
    pub(super) min_effect_ns: f64,
    /// The time that this rank waits for other ranks, per step.
    pub(super) suffered_ns: f64,
    /// The excess of device work within the own stretches, or of operators without a device; `None` if none was recorded.
    pub(super) busy_excess_ns: Option<f64>,
    /// By how much a step would be shorter without its excess, by the account; `None` if there is no account.
    pub(super) cost: Option<Cost>,
    /// Why the account does not name it, although it may take much.
    pub(super) doubted: Option<String>,
}

/// Steps in which a rank is late.
#[derive(Clone, Debug)]
pub(super) struct Occasion {
    /// Their positions among the compared steps.
    pub(super) at: Vec<usize>,
    /// The number of compared steps.
    pub(super) steps: usize,
    /// Their period, if they have one.
    pub(super) period: Option<Period>,
}

/// Transfers that take longer than those of other ranks or groups, per step.
#[derive(Clone, Debug)]
pub(super) struct SlowPart {
    pub(super) excess_ns: i64,
    /// The number of compared steps, and of those that show at least half of the excess.
    pub(super) steps: usize,
    pub(super) shown: usize,
    /// The communicator of a slow group; `None` for a rank that leaves late.
    pub(super) comm_id: Option<i64>,
}

/// The verdict on a rank, and the quantity in which the rank stands out.
pub(super) type Judged = (Verdict, Option<StandsOn>);

impl Case {
    /// The excess of the host range, if the range alone meets the conditions for a cause.
    fn distinct_range_ns(&self, t: &Thresholds) -> Option<f64> {
        let range = self.range.as_ref()?;
        let d = &range.deviation;
        let distinct = d.exceeds_error(t.min_range_z) && d.outlier && d.chance <= t.max_chance;
        (distinct && lasts(d, t.min_persistence, t) && d.effect_ns >= self.min_effect_ns).then_some(range.excess_ns)
    }

    /// Whether the excess of the host range is above the usual one, and the whole stretch does not contradict it. Each rank may have a
    /// range of its own name: if these are equally long, none of them stands out.
    fn has_distinct_range(&self, usual_range_ns: f64, t: &Thresholds) -> bool {
        let Some(own) = self.own else { return false };
        let range_ns = self.distinct_range_ns(t).map_or(0.0, |ns| ns - usual_range_ns);
        let is_contradicted = own.effect_ns + CONTRADICTION_ERRORS * own.error_ns < self.min_effect_ns;
        range_ns >= self.min_effect_ns && !is_contradicted
    }

    /// Whether its own work between collectives is longer than that of the others in every step, by more than chance.
    pub(super) fn stands_out(&self, t: &Thresholds) -> bool {
        self.own.is_some_and(|own| {
            let is_far = own.effect_ns >= self.min_effect_ns && own.exceeds_error(t.min_z) && own.outlier;
            is_far && own.chance <= t.max_chance && lasts(&own, t.min_persistence, t)
        })
    }

    /// By how much a step would be shorter without its excess.
    pub(super) fn delay_ns(&self) -> i64 {
        self.cost.map_or(0, |cost| cost.ns.max(0))
    }

    /// Why an undecided rank is not named.
    pub(super) fn doubt(&self) -> &str {
        self.doubted.as_deref().unwrap_or_else(|| self.nothing_to_compare())
    }

    fn slow_transfers(&self, basis: Option<StandsOn>) -> Option<&SlowPart> {
        self.transfers.as_ref().filter(|_| basis == Some(StandsOn::Transfers))
    }

    /// The reason for the excess. `None` if neither operators nor device work were recorded. Whether the device itself is slow is
    /// decided later, when its kernels are compared.
    pub(super) fn reason(&self, basis: Option<StandsOn>) -> Option<Reason> {
        if self.slow_transfers(basis).is_some() {
            return Some(Reason::Network);
        }
        if self.range.as_ref().is_some_and(|r| r.input) {
            return Some(Reason::Input);
        }
        let excess_ns = match &self.range {
            Some(range) if basis == Some(StandsOn::Range) => range.excess_ns,
            _ => self.own.map_or(0.0, |d| d.effect_ns),
        };
        let unexplained_ns = self.range.as_ref().filter(|range| range.in_operator).map_or(0.0, |range| range.excess_ns);
        let waits = self.range.as_ref().and_then(Evidence::known_as).is_some_and(|name| name_rules::waits(name));
        match self.busy_excess_ns.map(|busy_ns| busy_ns - unexplained_ns) {
            Some(busy_ns) if busy_ns >= excess_ns / 2.0 => Some(Reason::Compute),
            // Work explains less than half of the excess, so the host waits or does something else.
            _ if waits => Some(Reason::Waiting),
            Some(_) => Some(Reason::Host),
            None => None,
        }
    }

    /// The evidence for `verdict` as a sentence.
    pub(super) fn sentence(&self, (verdict, basis): Judged) -> String {
        let Some(own) = self.own else { return self.nothing_to_compare().into() };
        let share = |ns: f64| if self.step_ns > 0 { 100.0 * ns / self.step_ns as f64 } else { 0.0 };
        let when = match self.occasion.as_ref().filter(|_| basis == Some(StandsOn::Steps)) {
            Some(occasion) => format!("in {} of {} steps", occasion.at.len(), occasion.steps),
            None => "per step".into(),
        };
        let transfers = |t: &SlowPart| {
            let slow = match t.comm_id {
                Some(_) => "the collectives of its communicator take",
                None => "its transfers take",
            };
            let others = if t.comm_id.is_some() { "communicators of the same size" } else { "the other ranks" };
            let (excess_ns, steps) = (t.excess_ns, t.steps);
            format!(
                "{slow} {} longer than those of {others} per step ({:.1} % of a step, seen in {} of {steps} steps)",
                ns(excess_ns),
                share(excess_ns as f64),
                t.shown
            )
        };
        let own_work = || {
            format!(
                "its own work takes {} longer {when} than on the other ranks ({:.1} % of a step, {})",
                ns(self.own_excess_ns),
                share(self.own_excess_ns as f64),
                certainty(&own),
            )
        };
        let slow = self.slow_transfers(basis);
        let excess = slow.map_or_else(own_work, transfers);
        let range = self.range.as_ref().filter(|_| slow.is_none()).map_or(String::new(), |r| {
            let filled = r.fills.as_ref().and(r.name.as_ref()).map_or(String::new(), |f| format!(", filled by `{f}`"));
            format!("; {} takes {} longer ({}){filled}", r.place(), milliseconds(r.excess_ns), certainty(&r.deviation))
        });
        let delay_ns = self.delay_ns();
        let delay = format!("; it lengthens the step by {} ({:.1} %)", ns(delay_ns), share(delay_ns as f64));
        match verdict {
            Verdict::Cause => format!("{excess}{range}{delay}"),
            Verdict::Undecided => format!("{excess}{range}{delay}; undecided: {}", self.doubt()),
            Verdict::Victim => {
                format!(
                    "waits {} per step for other ranks ({:.1} % of a step)",
                    milliseconds(self.suffered_ns),
                    share(self.suffered_ns)
                )
            }
            Verdict::Ok => format!(
                "its own work differs by {} per step from that of the other ranks ({:.1} % of a step)",
                ns(self.own_excess_ns),
                share(self.own_excess_ns as f64)
            ),
        }
    }

    fn nothing_to_compare(&self) -> &'static str {
        if self.alone {
            "this is the only rank that was recorded, so there is no rank to compare it with"
        } else if self.step_ns > 0 {
            "no step has a collective that another rank recorded too, so there is nothing to compare"
        } else {
            "no step was recorded, so there is nothing to compare"
        }
    }
}

/// Whether enough steps show half of the effect: a share of `least`, without the fraction of a step, so that of four steps one may
/// be odd.
fn lasts(d: &Deviation, least: f64, t: &Thresholds) -> bool {
    let shown = (d.persistence * d.steps as f64).round();
    d.steps >= t.min_steps && shown >= (least * d.steps as f64).floor().max(t.min_steps as f64)
}

/// The whole stretch contradicts a range if its excess is this many standard errors below the smallest effect that
/// matters.
const CONTRADICTION_ERRORS: f64 = 2.0;

/// Whether a host range of each rank takes longer in every step than the ranges of other ranks do.
pub(super) fn have_distinct_ranges(cases: &[Case], t: &Thresholds) -> Vec<bool> {
    let mut distinct: Vec<f64> = cases.iter().map(|c| c.distinct_range_ns(t).unwrap_or(0.0)).collect();
    // The lower median: if one of two ranks is late, it is the value of the other rank.
    let usual_ns = nearest_rank(&mut distinct, 0.5).unwrap_or(0.0);
    cases.iter().map(|case| case.has_distinct_range(usual_ns, t)).collect()
}

/// The certainty of a deviation in words: its distance and the steps that show it.
fn certainty(d: &Deviation) -> String {
    let z = d.z().map_or(String::new(), |z| format!("{}, ", spoken_z(z)));
    format!("{z}seen in {} of {} steps", (d.persistence * d.steps as f64).round(), d.steps)
}

fn milliseconds(ns: f64) -> String {
    let ms = ns / 1e6;
    if ms.abs() < 1.0 { format!("{ms:.3} ms") } else { format!("{ms:.1} ms") }
}
