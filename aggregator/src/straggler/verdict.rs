//! From numbers to a verdict, with its reason in words.
//!
//! A rank is a `cause` if its own time between collectives exceeds that of the others by enough to matter, in enough steps,
//! and by more than chance. Two cases are accepted; both need [`Thresholds::min_steps`] steps and
//! [`Thresholds::min_persistence`].
//!
//! * **The whole stretch stands out**: own excess is at least [`Thresholds::min_z`] standard errors from the other ranks, also
//!   if steps are not independent, and an outlier among the medians of the ranks. The latter conditions are there for
//!   oversubscribed machines: a scheduler that favours some ranks does so for many steps. In simulations of 8 noisy clean
//!   ranks and 5 steps the plain standard error blamed somebody in up to two of ten runs.
//! * **One host range stands out**, by [`Thresholds::min_range_z`] and as an outlier, and the whole stretch does not contradict
//!   it. The scheduler takes time from whatever runs, so its noise is spread over all ranges in proportion to their length,
//!   while a delay sits in one. So a delay that is a fraction of the whole stretch's noise is many times the noise of its range.
//!
//! In both cases the other ranks' steps must not show the like too often: [`Thresholds::max_chance`].
//!
//! A rank that passes the first half of the first case only is `undecided`: it is slow, but no slower than this machine makes
//! ranks by itself.

use super::Thresholds;
use super::deviation::Deviation;
use super::evidence::Evidence;
use super::stats::spoken_z;

/// What is known of a rank when it is judged.
#[derive(Clone, Debug, Default)]
pub(super) struct Case {
    /// Own excess against the other ranks; `None` if there was nothing to compare.
    pub(super) own: Option<Deviation>,
    /// The range that holds the excess.
    pub(super) range: Option<Evidence>,
    /// No other rank was recorded.
    pub(super) alone: bool,
    /// Median step.
    pub(super) step_ns: i64,
    /// Smallest effect that matters.
    pub(super) min_effect_ns: f64,
    /// Wait for others, per step.
    pub(super) suffered_ns: f64,
    /// Excess of the device's work within the own stretches; `None` without a device.
    pub(super) device_excess_ns: Option<f64>,
}

/// How a rank was judged.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Verdict {
    Cause,
    Victim,
    Ok,
    Undecided,
}

/// What a verdict stands on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Basis {
    /// The whole of the rank's own time.
    Stretch,
    /// One range of its host.
    Range,
}

impl Basis {
    /// The word in the `stands_on` column.
    pub(super) fn as_str(self) -> &'static str {
        match self {
            Self::Stretch => "stretch",
            Self::Range => "range",
        }
    }
}

impl Verdict {
    /// The word in the `verdict` column.
    pub(super) fn as_str(self) -> &'static str {
        match self {
            Self::Cause => "cause",
            Self::Victim => "victim",
            Self::Ok => "ok",
            Self::Undecided => "undecided",
        }
    }
}

impl Case {
    /// Excess of the range that stands out by itself.
    fn distinct_range_ns(&self, t: &Thresholds) -> Option<f64> {
        let range = self.range.as_ref()?;
        let d = &range.deviation;
        let distinct = d.exceeds_error(t.min_range_z) && d.outlier && d.chance <= t.max_chance;
        let lasting = d.steps >= t.min_steps && d.persistence >= t.min_persistence;
        (distinct && lasting && d.effect_ns >= self.min_effect_ns).then_some(range.excess_ns)
    }

    /// The rule without regard to how much ranks differ by themselves.
    fn stretch_stands_out(&self, t: &Thresholds) -> bool {
        self.own.is_some_and(|d| {
            d.steps >= t.min_steps
                && d.effect_ns >= self.min_effect_ns
                && d.exceeds_error(t.min_z)
                && d.persistence >= t.min_persistence
        })
    }

    /// What makes the rank a cause; `None` if nothing does. Where both the range and the whole stretch would, it is the range
    /// if that holds the larger part: the rest is spread over everything that the rank does, as the scheduler's noise is.
    fn cause(&self, usual_range_ns: f64, t: &Thresholds) -> Option<Basis> {
        let own = self.own?;
        let by_stretch =
            self.stretch_stands_out(t) && own.exceeds_sigma(t.min_z) && own.outlier && own.chance <= t.max_chance;
        // Ranks that each have a range of their own name, as long as the others', are all alike.
        let range_ns = self.distinct_range_ns(t).map_or(0.0, |ns| ns - usual_range_ns);
        let contradicted = own.effect_ns + CONTRADICTION_ERRORS * own.error_ns < self.min_effect_ns;
        let by_range = range_ns >= self.min_effect_ns && !contradicted;
        match () {
            () if by_range && (!by_stretch || range_ns >= own.effect_ns / 2.0) => Some(Basis::Range),
            () if by_stretch => Some(Basis::Stretch),
            () => None,
        }
    }

    /// The most that a step can be longer by what the verdict stands on; `None`: as much as the rank's own excess.
    ///
    /// Ranks that share cores are no independent witnesses of what is normal: while the late rank waits in its range, the others
    /// compute faster than they would beside it, and while they wait, it computes beside whatever else the machine has to do. So
    /// its own excess over them comes out larger than what the range costs. (Measured: two ranks on two cores, 30 ms of waiting
    /// injected. Own excess on an idle machine 29 to 32 ms, beside another process that computes 32 to 48 ms; but runs without
    /// the injection have steps that are 26 and 27 ms shorter.)
    pub(super) fn most_delay_ns(&self, basis: Option<Basis>) -> Option<i64> {
        let range = self.range.as_ref().filter(|_| basis == Some(Basis::Range))?;
        // A rank may be slow in several ranges, which all count.
        Some(range.distinct_ns.round() as i64)
    }

    fn is_undecided(&self, t: &Thresholds) -> bool {
        let Some(own) = self.own else { return !self.alone };
        let too_few = own.steps < t.min_steps && own.effect_ns >= self.min_effect_ns;
        too_few || (own.effect_ns >= self.min_effect_ns && own.exceeds_error(t.min_z))
    }

    /// `input`, `host` or `compute`.
    pub(super) fn reason(&self) -> &'static str {
        if self.range.as_ref().is_some_and(|r| r.input) {
            return "input";
        }
        let excess_ns = self.own.map_or(0.0, |d| d.effect_ns);
        match self.device_excess_ns {
            // The device explains less than half of the excess: it idles while the host is busy.
            Some(device_ns) if device_ns < excess_ns / 2.0 => "host",
            _ => "compute",
        }
    }

    /// The case in a sentence.
    pub(super) fn sentence(&self, verdict: Verdict, t: &Thresholds) -> String {
        let Some(own) = self.own else { return self.nothing_to_compare().into() };
        let share = |ns: f64| if self.step_ns > 0 { 100.0 * ns / self.step_ns as f64 } else { 0.0 };
        let excess = format!(
            "own work takes {} a step longer than on the other ranks ({:.1} % of a step, {})",
            milliseconds(own.effect_ns),
            share(own.effect_ns),
            sureness(&own),
        );
        let range = self.range.as_ref().map_or(String::new(), |r| {
            let filled = r.fills.as_ref().map_or(String::new(), |_| format!(", filled by `{}`", r.name));
            let (excess, sure) = (milliseconds(r.excess_ns), sureness(&r.deviation));
            format!("; range `{}` takes {excess} longer ({sure}){filled}", r.known_as())
        });
        match verdict {
            Verdict::Cause => format!("{excess}{range}"),
            Verdict::Undecided if own.steps < t.min_steps => {
                format!("{excess}{range}; {} steps are needed to call it a cause", t.min_steps)
            }
            Verdict::Undecided if own.persistence < t.min_persistence => {
                format!("{excess}{range}; a cause shows in {:.0} % of steps", 100.0 * t.min_persistence)
            }
            Verdict::Undecided => format!(
                "{excess}{range}; but the other ranks differ among themselves by up to {}, and no single range accounts for it",
                milliseconds(own.spread_ns)
            ),
            Verdict::Victim => {
                format!("waits {} a step for others ({:.1} %)", milliseconds(self.suffered_ns), share(self.suffered_ns))
            }
            Verdict::Ok => format!(
                "own work differs by {} a step from the other ranks' ({:.1} % of a step)",
                milliseconds(own.effect_ns),
                share(own.effect_ns)
            ),
        }
    }

    fn nothing_to_compare(&self) -> &'static str {
        if self.alone {
            "the only rank that was recorded: nothing to compare"
        } else if self.step_ns > 0 {
            "no collective in a step that another rank recorded too: nothing to compare"
        } else {
            "no step was recorded: nothing to compare"
        }
    }
}

/// The whole stretch contradicts a range if its excess is this many standard errors below the smallest effect that matters.
const CONTRADICTION_ERRORS: f64 = 2.0;

/// Judges all ranks together: there is no victim without a cause. A cause or what may be one comes with what that stands on.
pub(super) fn judge(cases: &[Case], t: &Thresholds) -> Vec<(Verdict, Option<Basis>)> {
    let mut distinct: Vec<f64> = cases.iter().map(|c| c.distinct_range_ns(t).unwrap_or(0.0)).collect();
    distinct.sort_unstable_by(f64::total_cmp);
    // With one of two ranks late, the lower median of the two is that of the other.
    let usual_ns = distinct.get(distinct.len().saturating_sub(1) / 2).copied().unwrap_or(0.0);
    let causes: Vec<Option<Basis>> = cases.iter().map(|c| c.cause(usual_ns, t)).collect();
    let has_cause = causes.iter().any(Option::is_some);
    let judge_one = |(case, &basis): (&Case, &Option<Basis>)| {
        let waits = case.step_ns > 0 && case.suffered_ns >= t.min_effect_pct / 100.0 * case.step_ns as f64;
        match () {
            () if basis.is_some() => (Verdict::Cause, basis),
            () if case.is_undecided(t) => (Verdict::Undecided, case.own.map(|_| Basis::Stretch)),
            () if has_cause && waits => (Verdict::Victim, None),
            () => (Verdict::Ok, None),
        }
    };
    cases.iter().zip(&causes).map(judge_one).collect()
}

fn sureness(d: &Deviation) -> String {
    let z = d.z().map_or(String::new(), |z| format!("{}, ", spoken_z(z)));
    format!("{z}{} of {} steps", (d.persistence * d.steps as f64).round(), d.steps)
}

fn milliseconds(ns: f64) -> String {
    let ms = ns / 1e6;
    if ms.abs() < 1.0 { format!("{ms:.3} ms") } else { format!("{ms:.1} ms") }
}
