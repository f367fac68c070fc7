//! Classifies each rank: the rules that turn its numbers into a verdict, with the reason in a sentence.
//!
//! A rank is a `cause` if its own time between collectives exceeds that of the other ranks by enough to matter, in
//! enough steps, and by more than chance. Three cases count; the first two need [`Thresholds::min_steps`] steps.
//!
//! * **The whole stretch stands out.** The own excess is at least [`Thresholds::min_z`] standard errors, and it is
//!   [`Standing::Certain`] by the variation of steps and of ranks. The last condition handles oversubscribed machines, where a
//!   scheduler favours some ranks for many steps. In simulations of 8 noisy clean ranks and 5 steps, the plain standard
//!   error blamed a rank in up to two of ten runs. Of fewer steps, the collectives inside them count.
//! * **One host range stands out**, by [`Thresholds::min_range_z`] and as an outlier, and the whole stretch does not
//!   contradict it. The scheduler preempts all ranges in proportion to their length, while a delay is in one range. A
//!   delay that is small against the noise of the whole stretch is therefore many times the noise of its range.
//! * **Some of the steps stand out**, as [`occasional`](super::occasional) says.
//!
//! A rank or a group whose collectives take longer is a cause by [`transfers`](super::transfers).
//!
//! In the first two cases the steps of other ranks must rarely show the same effect: [`Thresholds::max_chance`]. And the rank must
//! cost something: a rank that lengthens the step by less than [`Thresholds::min_delay_pct`] is `ok`, although it stands out.
//!
//! A rank that is [`Standing::Likely`] only is `undecided`: it seems slow, but the noise of the machine can explain that.

use trace::{Reason, StandsOn, Verdict, name_rules};

use crate::deviation::Deviation;
use crate::evidence::Evidence;
use crate::occasional::Period;
use crate::prices::Cost;
use crate::standing::Standing;
use model::stats::nearest_rank;
use model::thresholds::Thresholds;
use model::units::{ns, spoken_z};

/// The numbers of one rank that its verdict uses.
#[derive(Clone, Debug, Default)]
pub(super) struct Case {
    /// Own excess against the other ranks; `None` if no other rank can be compared.
    pub(super) own: Option<Deviation>,
    /// How far the own excess stands out, by the variation of steps and of ranks.
    pub(super) standing: Standing,
    /// Whether that is known by the collectives of a few steps.
    pub(super) by_collectives: bool,
    /// The steps in which the rank is late, if it is late in some only. `own` and the range are measured in these.
    pub(super) occasion: Option<Occasion>,
    /// The transfers of the rank or of its group, if they are slow.
    pub(super) transfers: Option<SlowPart>,
    /// The median over steps of the own excess: own work above the lower median of the ranks.
    pub(super) own_excess_ns: i64,
    /// By how much a step would be shorter, on average, if this rank worked as a typical rank does.
    pub(super) alone_ns: i64,
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
    /// What a step would save without its excess, by the account of lost time; `None` if there is no account.
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
    /// By how much the excess may be off, at 95 %.
    pub(super) error_ns: i64,
    /// By how much a step would be shorter with the transfers of a typical rank or group.
    pub(super) delay_ns: i64,
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

    /// Whether the whole stretch exceeds the plain standard error; differences between the other ranks are not
    /// considered.
    fn stretch_stands_out(&self, t: &Thresholds) -> bool {
        self.own.is_some_and(|d| {
            let is_lasting = lasts(&d, least_persistence(&d, t), t);
            d.effect_ns >= self.min_effect_ns && d.exceeds_error(t.min_z) && (is_lasting || self.by_collectives)
        })
    }

    /// The basis on which the rank is a cause; `None` if it is no cause. If both bases qualify, the range is used if it
    /// holds at least half of the excess, because the rest is then spread over all ranges like the scheduler's noise.
    fn cause(&self, usual_range_ns: f64, t: &Thresholds) -> Option<StandsOn> {
        let own = self.own?;
        let by_stretch = self.stretch_stands_out(t)
            && self.standing == Standing::Certain
            && (own.chance <= t.max_chance || self.by_collectives);
        // Each rank may have a range of its own name. If these ranges are equally long, none of them stands out.
        let range_ns = self.distinct_range_ns(t).map_or(0.0, |ns| ns - usual_range_ns);
        let contradicted = own.effect_ns + CONTRADICTION_ERRORS * own.error_ns < self.min_effect_ns;
        let by_range = range_ns >= self.min_effect_ns && !contradicted;
        match () {
            () if by_range && (!by_stretch || range_ns >= own.effect_ns / 2.0) => Some(StandsOn::Range),
            () if by_stretch => Some(StandsOn::Stretch),
            () => None,
        }
    }

    /// The delay of a step. A verdict that is based on a range limits it to what the ranges that stand out hold.
    ///
    /// Ranks that share cores do not show the normal time of each other. While the late rank waits in its range, the
    /// other ranks compute faster; while they wait, the late rank shares its core with other processes. So its own
    /// excess is larger than the cost of the range. (Measured: two ranks on two cores with an injected wait of 30 ms.
    /// The own excess was 29 to 32 ms on an idle machine and 32 to 48 ms beside another busy process, but steps without
    /// the injection were only 26 and 27 ms shorter.)
    pub(super) fn delay_ns(&self, basis: Option<StandsOn>) -> i64 {
        if let Some(cost) = self.cost {
            return cost.ns.max(0);
        }
        if let Some(transfers) = self.slow_transfers(basis) {
            return transfers.delay_ns;
        }
        match self.range.as_ref().filter(|_| basis == Some(StandsOn::Range)) {
            // All ranges that stand out delay the step, not only the one that is named.
            Some(range) => self.alone_ns.min(range.distinct_ns.round() as i64),
            None => self.alone_ns,
        }
    }

    fn slow_transfers(&self, basis: Option<StandsOn>) -> Option<&SlowPart> {
        self.transfers.as_ref().filter(|_| basis == Some(StandsOn::Transfers))
    }

    /// Whether a step that is longer by `delay_ns` matters.
    fn matters(&self, delay_ns: i64, t: &Thresholds) -> bool {
        delay_ns as f64 >= t.min_delay_pct / 100.0 * self.step_ns as f64
    }

    /// Whether the rank lengthens the step enough to matter, or would if the other ranks that stand out did not.
    fn has_cost(&self, basis: Option<StandsOn>, hidden_ns: i64, t: &Thresholds) -> bool {
        self.matters(self.delay_ns(basis).max(hidden_ns), t)
    }

    fn is_undecided(&self, t: &Thresholds) -> bool {
        let Some(own) = self.own else { return !self.alone };
        let too_few = own.steps < t.min_steps && own.effect_ns >= self.min_effect_ns;
        let is_likely =
            own.effect_ns >= self.min_effect_ns && own.exceeds_error(t.min_z) && self.standing >= Standing::Likely;
        too_few || is_likely
    }

    /// Whether the excess is so far outside the usual variation that the rank cannot be called even with the others, though it is no
    /// cause: it may show in too few steps, be too small, or stand among ranks that differ as much.
    fn is_far_outside(&self, t: &Thresholds) -> bool {
        self.own.and_then(|own| own.z()).is_some_and(|z| z >= 2.0 * t.min_z)
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

    /// The condition of a cause that an undecided rank does not meet.
    pub(super) fn doubt(&self, t: &Thresholds) -> String {
        if let Some(doubted) = &self.doubted {
            return doubted.clone();
        }
        let Some(own) = self.own else { return self.nothing_to_compare().into() };
        let least = least_persistence(&own, t);
        let seen = |persistence: f64, least: f64| {
            format!("{:.0} % of the steps, and a cause needs {:.0} %", 100.0 * persistence, 100.0 * least)
        };
        let certain = |e: &&Evidence| e.deviation.exceeds_error(t.min_range_z) && e.deviation.outlier;
        let flickers = |e: &&Evidence| !lasts(&e.deviation, t.min_persistence, t);
        match self.range.as_ref().filter(certain).filter(flickers) {
            _ if own.steps < t.min_steps => {
                let were = if own.steps == 1 { "step was" } else { "steps were" };
                format!("only {} {were} compared, and a cause needs {} steps", own.steps, t.min_steps)
            }
            Some(range) => format!(
                "{} takes longer in only {}",
                range.place(),
                seen(range.deviation.persistence, t.min_persistence)
            ),
            None if !lasts(&own, least, t) => format!("it shows in only {}", seen(own.persistence, least)),
            None if own.spread_ns > 0.0 => format!(
                "the other ranks differ from each other by up to {}, and no single range stands out enough; more steps would decide",
                milliseconds(own.spread_ns)
            ),
            None => format!(
                "steps vary by {} (standard deviation), and no single range stands out enough; more steps would decide",
                milliseconds(own.sigma_ns.max(own.own_sigma_ns))
            ),
        }
    }

    /// The evidence for `verdict` as a sentence.
    pub(super) fn sentence(&self, (verdict, basis): Judged, t: &Thresholds) -> String {
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
        let delay_ns = self.delay_ns(basis);
        let delay = format!("; it lengthens the step by {} ({:.1} %)", ns(delay_ns), share(delay_ns as f64));
        match verdict {
            Verdict::Cause => format!("{excess}{range}{delay}"),
            Verdict::Undecided => format!("{excess}{range}{delay}; undecided: {}", self.doubt(t)),
            Verdict::Ok if basis.is_some() => {
                format!("{excess}{range}{delay}, which is below the {:.0} % of a step that matter", t.min_delay_pct)
            }
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

/// The share of steps that must show half of the effect: more than half of them by three standard errors of a share, but no
/// more than [`Thresholds::min_persistence`]. An effect that is small against the variation of single steps is hidden in some.
fn least_persistence(d: &Deviation, t: &Thresholds) -> f64 {
    t.min_persistence.min(0.5 + 1.5 / (d.steps as f64).sqrt())
}

/// The whole stretch contradicts a range if its excess is this many standard errors below the smallest effect that
/// matters.
const CONTRADICTION_ERRORS: f64 = 2.0;

/// A job in which one rank costs this share of a step, in percent, is not balanced, however few of its steps show why. Of clean
/// simulated jobs, none in a hundred has such a rank.
const MUCH_PCT: f64 = 3.0;
/// So many times the cost of every other rank. A delay that moves from rank to rank costs the same on each.
const MUCH_MORE: i64 = 2;

/// The rank that costs much, and much more than each other one.
fn costliest(cases: &[Case]) -> Option<usize> {
    let mut by_cost: Vec<usize> = (0..cases.len()).collect();
    by_cost.sort_by_key(|rank| std::cmp::Reverse(cases[*rank].alone_ns));
    let (first, next) = (*by_cost.first()?, by_cost.get(1));
    let Case { own, alone_ns, step_ns, .. } = &cases[first];
    let costs_much = *step_ns > 0 && 100.0 * *alone_ns as f64 >= MUCH_PCT * *step_ns as f64;
    let is_apart = next.is_none_or(|next| *alone_ns >= cases[*next].alone_ns.saturating_mul(MUCH_MORE));
    (own.is_some() && costs_much && is_apart).then_some(first)
}

/// The quantity in which each rank stands out by enough to be a cause, if it lengthens the steps.
pub(super) fn bases(cases: &[Case], t: &Thresholds) -> Vec<Option<StandsOn>> {
    let mut distinct: Vec<f64> = cases.iter().map(|c| c.distinct_range_ns(t).unwrap_or(0.0)).collect();
    // The lower median: if one of two ranks is late, it is the value of the other rank.
    let usual_ns = nearest_rank(&mut distinct, 0.5).unwrap_or(0.0);
    cases.iter().map(|c| c.cause(usual_ns, t)).collect()
}

/// Judges all ranks together, because a victim needs a cause. `hidden_ns` holds the delay of each rank that other ranks hide.
pub(super) fn judge(cases: &[Case], bases: &[Option<StandsOn>], hidden_ns: &[i64], t: &Thresholds) -> Vec<Judged> {
    let is_cause = |rank: usize| bases[rank].is_some() && cases[rank].has_cost(bases[rank], hidden_ns[rank], t);
    let has_cause = (0..cases.len()).any(is_cause);
    let costliest = costliest(cases);
    let judge_one = |rank: usize| {
        let (case, basis) = (&cases[rank], bases[rank]);
        let waits_enough = case.step_ns > 0 && case.suffered_ns >= t.min_effect_pct / 100.0 * case.step_ns as f64;
        match () {
            () if is_cause(rank) => (Verdict::Cause, basis),
            () if basis.is_some() => (Verdict::Ok, basis),
            () if case.own.is_none() && case.is_undecided(t) => (Verdict::Undecided, None),
            () if case.is_undecided(t) && case.has_cost(None, 0, t) => (Verdict::Undecided, Some(StandsOn::Stretch)),
            () if has_cause && waits_enough => (Verdict::Victim, None),
            () if case.is_far_outside(t) && case.has_cost(None, 0, t) => (Verdict::Undecided, Some(StandsOn::Stretch)),
            () if !has_cause && costliest == Some(rank) => (Verdict::Undecided, Some(StandsOn::Stretch)),
            () => (Verdict::Ok, None),
        }
    };
    (0..cases.len()).map(judge_one).collect()
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
