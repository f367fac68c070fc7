//! Stages of a pipeline that work longer than the others.
//!
//! ```text
//!   stage    ranks     work in a step
//!   0        0, 1      ########                 replicas and tensor peers of one stage meet in collectives;
//!   1        2, 3      ##################       stages only send to each other and receive
//!   2        4, 5      ########
//! ```
//!
//! A rank is compared with the ranks of its own stage. A whole stage that works longer has more layers, or slower devices: it is an
//! imbalance of the pipeline, and no rank's fault.

use std::collections::{BTreeMap, BTreeSet};

use trace::{FindingRow, Level, Severity};

use crate::base::stats::lower_median;
use crate::base::units::{ns, ranks_named};
use crate::judge::findings::{finding, saving, step_rows};
use crate::judge::headline::share_of_step;
use crate::model::analysis::{Analysis, Verdict, VerdictKind};

/// The least excess of the first or the last stage, in percent of a step. They differ by the embedding and the loss.
const LEAST_PCT: f64 = 15.0;
/// The least excess of a stage between others, which do the same work.
const LEAST_BETWEEN_PCT: f64 = 5.0;

/// The stage that works longest.
struct Longest {
    /// Ascending.
    ranks: Vec<i32>,
    /// Its work in a step, and the median of the other stages: of those between others, if it is one.
    work_ns: i64,
    usual_ns: i64,
    /// By how much it works longer than the next one: its removal saves no more of a step.
    saving_ns: i64,
    /// The number of stages.
    stages: usize,
    least_pct: f64,
}

/// The stage that works longest, if it exceeds the others by enough.
fn longest(analysis: &Analysis) -> Option<Longest> {
    let stages = stages(analysis)?;
    let mut work_ns: BTreeMap<(i32, Option<i32>), i64> = BTreeMap::new();
    for row in step_rows(analysis) {
        // Of a rank's devices, the one that works most. A device that idles outside of communication waits for its own host.
        let own_ns = row.wall_ns.saturating_sub(row.exposed_comm_ns);
        let most_ns = work_ns.entry((row.rank, row.step)).or_default();
        *most_ns = (*most_ns).max(own_ns);
    }
    let of_stage = |stage: &BTreeSet<i32>| {
        lower_median(work_ns.iter().filter(|((rank, _), _)| stage.contains(rank)).map(|(_, ns)| *ns))
    };
    let works: Vec<i64> = stages.iter().map(of_stage).collect::<Option<_>>()?;
    let (at, work_ns) = works.iter().copied().enumerate().max_by_key(|(_, ns)| *ns)?;
    let others = || works.iter().enumerate().filter(|(other, _)| *other != at);
    // Stages are in the order of their lowest ranks, which is that of the layers in the usual layouts.
    let is_between = |at: usize| at > 0 && at + 1 < works.len();
    let alike = others().filter(|(other, _)| is_between(*other) == is_between(at)).map(|(_, ns)| *ns);
    let (usual_ns, least_pct) = match lower_median(alike).filter(|_| is_between(at)) {
        Some(ns) => (ns, LEAST_BETWEEN_PCT),
        None => (lower_median(others().map(|(_, ns)| *ns))?, LEAST_PCT),
    };
    let step_ns = analysis.verdict.step_ns.filter(|ns| *ns > 0)?;
    let is_long = (work_ns - usual_ns) as f64 >= least_pct / 100.0 * step_ns as f64;
    let next_ns = others().map(|(_, ns)| *ns).max()?;
    is_long.then(|| Longest {
        ranks: stages[at].iter().copied().collect(),
        work_ns,
        usual_ns,
        saving_ns: work_ns - next_ns,
        stages: stages.len(),
        least_pct,
    })
}

/// The finding about the stage that works longest.
pub(super) fn imbalance(analysis: &Analysis) -> Option<FindingRow> {
    longest(analysis).map(|longest| longest.finding())
}

impl Longest {
    fn finding(&self) -> FindingRow {
        let title = format!(
            "the pipeline's stage of {} works {} longer in a step than the other stages: {} instead of {}",
            ranks_named(&self.ranks),
            ns(self.work_ns - self.usual_ns),
            ns(self.work_ns),
            ns(self.usual_ns)
        );
        let evidence = format!(
            "wall_ns − exposed_comm_ns, lower medians over the ranks and steps of each of {} stages; threshold {} % of a step \
             (this program's); a stage is the ranks that do the same work",
            self.stages, self.least_pct
        );
        let suggestion = match self.ranks.len() {
            1 => {
                "move layers to other stages; if its layers are no more than theirs, look at this rank: no other has its role"
            }
            _ => "move layers to other stages; if its layers are no more than theirs, look at its devices",
        };
        saving(self.saving_ns, finding(Severity::Warning, title, ("step_breakdown", evidence), suggestion))
    }
}

/// Makes a stage that works longer than the others the headline, if no rank is suspected. Whether its layers are more or its devices
/// are slower, no other rank shows.
pub(crate) fn take_headline(analysis: &mut Analysis) {
    let verdict = &analysis.verdict;
    let names_no_rank = match verdict.kind {
        VerdictKind::Balanced => true,
        VerdictKind::Undecided => verdict.suspects.is_empty(),
        VerdictKind::Cause | VerdictKind::Nothing | VerdictKind::Hung => false,
    };
    let Some(stage) = longest(analysis).filter(|_| names_no_rank) else { return };
    let (named, step_ns) = (ranks_named(&stage.ranks), verdict.step_ns);
    let finding = stage.finding();
    let share = share_of_step(stage.saving_ns, step_ns);
    analysis.verdict = Verdict {
        kind: VerdictKind::Undecided,
        level: Some(Level::Stage.into()),
        doubt: Some("no rank of another stage does the same work: it may have more layers, or slower devices".into()),
        step_ns,
        exposed_wait_ns: verdict.exposed_wait_ns,
        sentence: format!("{}. No rank slows the others of its stage.", finding.title),
        title: format!("UNEVEN STAGES: {named}"),
        cost: Some(format!("at most {}{share}", ns(stage.saving_ns))),
        location: Some(finding.title.to_string()),
        action: Some(finding.suggestion.to_string()),
        ..Verdict::default()
    };
}

/// The least idle time by the schedule, in percent of a step.
const LEAST_BUBBLE_PCT: f64 = 10.0;

/// The finding about the idle time that the schedule of a pipeline makes.
pub(super) fn bubble(analysis: &Analysis) -> Option<FindingRow> {
    let stages = stages(analysis)?;
    let rows = &analysis.tables.pipeline;
    let bubble_ns = lower_median(rows.iter().map(|row| row.bubble_ns))?;
    let step_ns = lower_median(rows.iter().map(|row| row.step_ns)).filter(|ns| *ns > 0)?;
    let pct = 100.0 * bubble_ns as f64 / step_ns as f64;
    if pct < LEAST_BUBBLE_PCT {
        return None;
    }
    let title = format!(
        "the {} stages of the pipeline idle for {} of a step ({pct:.0} %) by its schedule, even without transfers and slow ranks",
        stages.len(),
        ns(bubble_ns)
    );
    let evidence = format!(
        "bubble_ns and step_ns, lower medians over ranks and steps; threshold {LEAST_BUBBLE_PCT} % of a step (this program's)"
    );
    let suggestion = "more microbatches in a step, or an interleaved schedule, make the bubble smaller";
    Some(finding(Severity::Info, title, ("pipeline", evidence), suggestion))
}

/// The stages of a pipeline; `None` if there are not several.
fn stages(analysis: &Analysis) -> Option<Vec<BTreeSet<i32>>> {
    let mut stages: BTreeMap<i32, BTreeSet<i32>> = BTreeMap::new();
    for row in &analysis.tables.pipeline {
        stages.entry(row.stage).or_default().insert(row.rank);
    }
    (stages.len() > 1).then(|| stages.into_values().collect())
}

#[cfg(test)]
mod tests {
    use trace::{PipelineRow, StepBreakdownRow};

    use super::*;

    /// Stages of two ranks.
    fn pipeline(work_ns: &[i64]) -> Analysis {
        let mut analysis = Analysis::default();
        analysis.verdict.step_ns = Some(1_000);
        for rank in 0..work_ns.len() as i32 {
            let stage = rank / 2 * 2;
            let row = PipelineRow { rank, stage, step: 3, step_ns: 800, bubble_ns: 200 };
            analysis.tables.pipeline.push(row);
        }
        for (rank, work_ns) in (0..).zip(work_ns.iter().copied()) {
            analysis.tables.step_breakdown.extend((3..5).map(|step| StepBreakdownRow {
                rank,
                step: Some(step),
                wall_ns: 1_000,
                exposed_comm_ns: 1_000 - work_ns,
                ..Default::default()
            }));
        }
        analysis
    }

    #[test]
    fn a_stage_that_works_longer_is_an_imbalance_and_one_rank_of_it_is_not() {
        let found = imbalance(&pipeline(&[300, 300, 600, 610])).unwrap();
        assert_eq!(
            &*found.title,
            "the pipeline's stage of ranks 2–3 works 300 ns longer in a step than the other stages: 600 ns instead of 300 ns"
        );
        assert_eq!(found.saving_ns, Some(300));
        assert_eq!(imbalance(&pipeline(&[300, 300, 300, 610])), None, "rank 3 alone is slow");
        assert_eq!(imbalance(&pipeline(&[300, 300, 400, 400])), None, "below the threshold");
    }

    #[test]
    fn a_stage_between_others_is_compared_with_those_that_do_its_work() {
        let found = longest(&pipeline(&[300, 300, 310, 310, 380, 380, 450, 450])).map(|longest| longest.ranks);
        assert_eq!(found, None, "the last stage has the loss");
        let found = longest(&pipeline(&[300, 300, 310, 310, 380, 380, 350, 350])).unwrap();
        assert_eq!((found.ranks, found.usual_ns, found.saving_ns), (vec![4, 5], 310, 30));
        assert!(longest(&pipeline(&[200, 200, 310, 310, 350, 350, 200, 200])).is_none(), "40 of 1000 ns are too few");
        let three = longest(&pipeline(&[300, 300, 400, 400, 300, 300]));
        assert!(three.is_none(), "no other stage is between two");
    }

    #[test]
    fn one_stage_is_no_pipeline() {
        let mut analysis = pipeline(&[300, 300, 600, 610]);
        analysis.tables.pipeline.iter_mut().for_each(|row| row.stage = 0);
        assert_eq!((imbalance(&analysis), bubble(&analysis)), (None, None));
    }

    #[test]
    fn a_bubble_is_stated_with_its_share() {
        let mut analysis = pipeline(&[300; 4]);
        assert_eq!(
            &*bubble(&analysis).unwrap().title,
            "the 2 stages of the pipeline idle for 200 ns of a step (25 %) by its schedule, even without transfers and slow ranks"
        );
        analysis.tables.pipeline.iter_mut().for_each(|row| row.bubble_ns = 79);
        assert_eq!(bubble(&analysis), None);
    }
}
