//! The parts of a step in the account of lost time, in words. Terminal and page show the same.

use std::collections::BTreeMap;

use trace::{LostPart, LostTimeLineRow};

use crate::analysis::{Analysis, Tables};
use crate::stats::lower_median;
use crate::units::{ordinal, ranks_named};

/// Time between steps is shown from this share of the recording on.
const LEAST_BETWEEN: f64 = 0.02;

/// A part of the mean step.
#[derive(Clone, Debug, PartialEq)]
pub struct PartOfStep {
    pub part: LostPart,
    /// What it is: `work of the busiest rank`, `rank 0, every 10th step`.
    pub words: String,
    /// The mean over the steps; negative where a rank takes less than is typical.
    pub ns: i64,
    /// The share of the mean step.
    pub share: f64,
}

impl Analysis {
    /// The time between steps that no step holds (start, evaluation, checkpoints), and its share of the recording: the lower median over
    /// ranks. `None` below 2 % of the recording.
    pub fn between_steps(&self) -> Option<(i64, f64)> {
        let all = &self.tables.step_breakdown;
        let wall_of = |step: Option<i32>| {
            let rows = all.iter().filter(move |row| row.step == step);
            rows.map(|row| (row.rank, row.wall_ns)).collect::<BTreeMap<i32, i64>>()
        };
        let (between, whole) = (wall_of(Some(-1)), wall_of(None));
        let between_ns = lower_median(whole.keys().map(|rank| between.get(rank).copied().unwrap_or(0)))?;
        let share = between_ns as f64 / lower_median(whole.into_values())?.max(1) as f64;
        (share >= LEAST_BETWEEN).then_some((between_ns, share))
    }

    /// The parts of the mean step, which sum to it but for the rounding of means; empty without an account.
    pub fn parts_of_step(&self) -> Vec<PartOfStep> {
        let rows = &self.tables.lost_time;
        let steps = rows.iter().map(|row| row.step).collect::<std::collections::BTreeSet<i32>>().len().max(1) as i64;
        let all_ns: i64 = rows.iter().map(|row| row.ns).sum();
        // In the order of the rows.
        let mut order: Vec<(LostPart, Option<i32>)> = Vec::new();
        let mut sums: BTreeMap<(usize, Option<i32>), i64> = BTreeMap::new();
        for row in rows {
            let Some(part) = row.part.known() else { continue };
            let at = order.iter().position(|known| *known == (part, row.line)).unwrap_or_else(|| {
                order.push((part, row.line));
                order.len() - 1
            });
            *sums.entry((at, row.line)).or_default() += row.ns;
        }
        let of_part = |((at, line), ns): ((usize, Option<i32>), i64)| PartOfStep {
            part: order[at].0,
            words: words(&self.tables, order[at].0, line),
            ns: ns / steps,
            share: ns as f64 / all_ns.max(1) as f64,
        };
        sums.into_iter().map(of_part).collect()
    }
}

fn words(tables: &Tables, part: LostPart, line: Option<i32>) -> String {
    let of_line = || tables.lost_time_lines.iter().filter(|row| Some(row.line) == line);
    match part {
        LostPart::Work => "work of the busiest rank".into(),
        LostPart::Dependencies => "launches, bubbles, waits for other ranks' work".into(),
        LostPart::Transfer => "transfers that no work hides".into(),
        LostPart::Stages => "stages that work longer than others".into(),
        LostPart::LongerSteps => "steps that are longer on all ranks".into(),
        LostPart::Variation => "variation: one rank or another is late".into(),
        LostPart::Line => {
            let mut ranks: Vec<i32> = of_line().filter_map(|row| row.rank).collect();
            ranks.sort_unstable();
            let who = match ranks.is_empty() {
                true => "slow transfers of a communicator".into(),
                false => ranks_named(&ranks),
            };
            of_line().next().map_or(who.clone(), |row| format!("{who}, {}", when(row)))
        }
    }
}

/// When a line takes time: `every step`, `every 10th step`, `from step 17 on`.
pub fn when(row: &LostTimeLineRow) -> String {
    let steps = if row.steps == 1 { "1 step".into() } else { format!("{} steps", row.steps) };
    let first = row.first_step.unwrap_or(0);
    match (&*row.pattern, row.period_steps) {
        ("periodic", Some(period)) => format!("every {} step from step {first} on", ordinal(period)),
        ("ramp", _) => "more with each step".into(),
        ("begins", _) => format!("from step {first} on"),
        ("ends", _) => format!("in the first {steps}"),
        ("on_and_off", _) => format!("on and off, in {steps}"),
        ("single", _) if row.steps == 1 => format!("in step {first}"),
        ("single", _) => format!("in {steps}, first in step {first}"),
        _ => "every step".into(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use trace::LostTimeRow;

    /// Invariant (verdicts): The parts of a step sum to its length.
    #[test]
    fn parts_sum_to_the_mean_step() {
        let row = |part: LostPart, line, rank, step, ns| LostTimeRow {
            part: part.into(),
            line,
            rank,
            step,
            ns,
            ..LostTimeRow::default()
        };
        let mut analysis = Analysis::default();
        for step in [1, 2] {
            analysis.tables.lost_time.extend([
                row(LostPart::Work, None, None, step, 60),
                row(LostPart::Line, Some(0), Some(3), step, 20),
                row(LostPart::Line, Some(0), Some(4), step, 20),
                row(LostPart::Variation, None, None, step, -10),
            ]);
        }
        let of_rank = |rank| LostTimeLineRow {
            rank: Some(rank),
            pattern: "periodic".into(),
            period_steps: Some(2),
            first_step: Some(1),
            ..LostTimeLineRow::default()
        };
        analysis.tables.lost_time_lines = vec![of_rank(3), of_rank(4)];
        let parts = analysis.parts_of_step();
        assert_eq!(parts.iter().map(|part| part.ns).collect::<Vec<_>>(), [60, 40, -10]);
        assert_eq!(parts[1].words, "ranks 3–4, every 2nd step from step 1 on");
        assert!((parts.iter().map(|part| part.share).sum::<f64>() - 1.0).abs() < 1e-12);
    }
}
