//! The part of the account of lost time that is the headline where no rank is.

use std::collections::BTreeSet;

use trace::LostPart;

use account::Cost;
use model::analysis::{Tables, Verdict, VerdictKind};
use model::units::{ns, plural};

/// A part that takes less of a step, in percent, is no headline.
const LEAST_PCT: f64 = 2.0;
/// Nor is variation that takes less: equal ranks always vary.
const LEAST_VARIATION_PCT: f64 = 5.0;
/// So many steps are listed.
const LISTED: usize = 5;

/// A part of the steps.
pub(super) struct PartOfSteps {
    part: LostPart,
    cost: Cost,
    /// The mean length of a step.
    step_ns: i64,
    /// The steps with the most of it.
    most: Vec<i32>,
    steps: usize,
}

/// The mean length of a step by the account; `None` without one.
pub(super) fn mean_step_ns(tables: &Tables) -> Option<i64> {
    let steps: BTreeSet<i32> = tables.lost_time.iter().map(|row| row.step).collect();
    tables.lost_time.iter().map(|row| row.ns).sum::<i64>().checked_div(steps.len() as i64)
}

/// Whether a time is worth a headline.
pub(super) fn is_much(ns: i64, step_ns: i64) -> bool {
    100.0 * ns as f64 >= LEAST_PCT * step_ns as f64
}

/// The part that takes the most of the steps, by enough; `None` where none does, or without an account. Work is none.
pub(super) fn largest(tables: &Tables) -> Option<PartOfSteps> {
    let step_ns = mean_step_ns(tables)?;
    let of_part = |part: LostPart| {
        let rows = tables.lost_time.iter().filter(|row| row.part == part);
        let by_step: Vec<(i32, i64)> = rows.map(|row| (row.step, row.ns)).collect();
        let cost = Cost::of_series(&by_step.iter().map(|(_, ns)| *ns).collect::<Vec<_>>());
        let least_pct = if part == LostPart::Variation { LEAST_VARIATION_PCT } else { LEAST_PCT };
        let is_much = |ns: i64, pct: f64| 100.0 * ns as f64 >= pct * step_ns as f64;
        let is_headline = step_ns > 0 && is_much(cost.ns, least_pct) && is_much(cost.low_ns, LEAST_PCT);
        let mut most = by_step.clone();
        most.sort_by_key(|(step, ns)| (std::cmp::Reverse(*ns), *step));
        let is_long = |(_, ns): &&(i32, i64)| *ns > 2 * cost.ns;
        let mut most: Vec<i32> = most.iter().take(LISTED).filter(is_long).map(|(step, _)| *step).collect();
        most.sort_unstable();
        is_headline.then_some(PartOfSteps { part, cost, step_ns, most, steps: by_step.len() })
    };
    let parts =
        [LostPart::Variation, LostPart::Transfer, LostPart::Dependencies, LostPart::Stages, LostPart::LongerSteps];
    parts.into_iter().filter_map(of_part).max_by_key(|part| part.cost.ns)
}

impl PartOfSteps {
    pub(super) fn kind(&self) -> VerdictKind {
        if self.part == LostPart::Variation { VerdictKind::Jitter } else { VerdictKind::Lost }
    }

    pub(super) fn sentence(&self) -> String {
        format!("no rank slows the others for certain. {} take {}.", capital(self.what()), self.amount())
    }

    /// Fills the lines of a verdict on it.
    pub(super) fn fill(&self, verdict: &mut Verdict) {
        verdict.title = match self.kind() {
            VerdictKind::Jitter => "JITTER".into(),
            _ => format!("LOST {} of each {} step", ns(self.cost.ns), ns(self.step_ns)),
        };
        verdict.cost = Some(self.amount());
        verdict.steps = self.steps as i32;
        verdict.part = Some(self.part);
        let most: Vec<String> = self.most.iter().map(i32::to_string).collect();
        let in_steps = if most.is_empty() { String::new() } else { format!("; most in steps {}", most.join(", ")) };
        verdict.location = Some(format!("{}{in_steps}", self.what()));
        verdict.action = Some(self.advice().into());
    }

    fn amount(&self) -> String {
        let Cost { ns: mean, low_ns, high_ns } = self.cost;
        format!(
            "{} of each {} step ({:.0} %, 95 % interval {} to {}, mean of {})",
            ns(mean),
            ns(self.step_ns),
            100.0 * mean as f64 / self.step_ns as f64,
            ns(low_ns),
            ns(high_ns),
            plural(self.steps, "step")
        )
    }

    fn what(&self) -> &'static str {
        match self.part {
            LostPart::Transfer => "transfers that no work hides",
            LostPart::Dependencies => "launches, bubbles, and waits for the work of other ranks",
            LostPart::Stages => "stages of the pipeline that work longer than others",
            LostPart::LongerSteps => "steps that are longer on all ranks",
            _ => "waits for one rank or another, none of which is late more often than chance,",
        }
    }

    fn advice(&self) -> &'static str {
        match self.part {
            LostPart::Transfer => {
                "start the collectives earlier, or make them faster; exposed_communication lists them"
            }
            LostPart::Dependencies => {
                "look at what the devices wait for: many small kernels, or stages with too few batches"
            }
            LostPart::Stages => {
                "move layers from the stages that work the longest to others; step_breakdown has their work"
            }
            LostPart::LongerSteps => "look at what these steps do beside training: logging, evaluation, checkpoints",
            _ => "compare the inputs of the late steps, and look for programs that run beside the ranks",
        }
    }
}

fn capital(words: &str) -> String {
    let mut letters = words.chars();
    letters.next().map_or(String::new(), |first| first.to_uppercase().chain(letters).collect())
}
