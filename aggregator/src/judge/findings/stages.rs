//! Stages of a pipeline that work longer than the others.
//!
//! ```text
//!   stage    ranks     work in a step
//!   0        0, 1      ########                 replicas and tensor peers of one stage meet in collectives;
//!   1        2, 3      ##################       stages only send to each other and receive
//!   2        4, 5      ########
//! ```
//!
//! A rank is compared with the ranks of its own stage. A whole stage that works longer is an imbalance of the pipeline, and no
//! rank's fault.

use std::collections::{BTreeMap, BTreeSet};

use trace::{FindingRow, Severity};

use crate::base::stats::lower_median;
use crate::base::units::{ns, ranks_named};
use crate::judge::findings::{finding, saving, step_rows};
use crate::model::analysis::Analysis;

/// The least excess of a stage, in percent of a step. First and last stages differ by the embedding and the loss.
const LEAST_PCT: f64 = 15.0;

/// The finding about the stage that works longest.
pub(super) fn imbalance(analysis: &Analysis) -> Option<FindingRow> {
    let stages = stages(analysis)?;
    let mut work_ns: BTreeMap<(i32, Option<i32>), i64> = BTreeMap::new();
    for row in step_rows(analysis) {
        // Of a rank's devices, the one that works most. A device that idles outside of communication waits for its own host.
        let own_ns = row.wall_ns.saturating_sub(row.exposed_comm_ns);
        let most_ns = work_ns.entry((row.rank, row.step)).or_default();
        *most_ns = (*most_ns).max(own_ns);
    }
    let of_stage = |stage: &BTreeSet<i32>| {
        let values = work_ns.iter().filter(|((rank, _), _)| stage.contains(rank)).map(|(_, ns)| *ns);
        lower_median(values).map(|ns| (ns, stage.clone()))
    };
    let mut by_work: Vec<(i64, BTreeSet<i32>)> = stages.iter().filter_map(of_stage).collect();
    by_work.sort();
    let (longest_ns, longest) = by_work.pop()?;
    let next_ns = by_work.last()?.0;
    let usual_ns = lower_median(by_work.iter().map(|(ns, _)| *ns))?;
    let step_ns = analysis.verdict.step_ns.filter(|ns| *ns > 0)?;
    if ((longest_ns - usual_ns) as f64) < LEAST_PCT / 100.0 * step_ns as f64 {
        return None;
    }
    let named = ranks_named(&longest.iter().copied().collect::<Vec<_>>());
    let title = format!(
        "the pipeline's stage of {named} works {} longer in a step than the other stages: {} instead of {}",
        ns(longest_ns - usual_ns),
        ns(longest_ns),
        ns(usual_ns)
    );
    let evidence = format!(
        "wall_ns − exposed_comm_ns, lower medians over the ranks and steps of each of {} stages; threshold {LEAST_PCT} % of a \
         step (this program's); a stage is the ranks that do the same work",
        stages.len()
    );
    let suggestion = match longest.len() {
        1 => {
            "move layers to other stages; if its layers are no more than theirs, look at this rank: no other has its role"
        }
        _ => "move layers to other stages",
    };
    Some(saving(longest_ns - next_ns, finding(Severity::Warning, title, ("step_breakdown", evidence), suggestion)))
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

    /// Two stages of two ranks.
    fn pipeline(work_ns: [i64; 4]) -> Analysis {
        let mut analysis = Analysis::default();
        analysis.verdict.step_ns = Some(1_000);
        for (rank, stage) in (0..).zip([0, 0, 2, 2]) {
            let row = PipelineRow { rank, stage, step: 3, step_ns: 800, bubble_ns: 200 };
            analysis.tables.pipeline.push(row);
        }
        for (rank, work_ns) in (0..).zip(work_ns) {
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
        let found = imbalance(&pipeline([300, 300, 600, 610])).unwrap();
        assert_eq!(
            &*found.title,
            "the pipeline's stage of ranks 2–3 works 300 ns longer in a step than the other stages: 600 ns instead of 300 ns"
        );
        assert_eq!(found.saving_ns, Some(300));
        assert_eq!(imbalance(&pipeline([300, 300, 300, 610])), None, "rank 3 alone is slow");
        assert_eq!(imbalance(&pipeline([300, 300, 400, 400])), None, "below the threshold");
    }

    #[test]
    fn one_stage_is_no_pipeline() {
        let mut analysis = pipeline([300, 300, 600, 610]);
        analysis.tables.pipeline.iter_mut().for_each(|row| row.stage = 0);
        assert_eq!((imbalance(&analysis), bubble(&analysis)), (None, None));
    }

    #[test]
    fn a_bubble_is_stated_with_its_share() {
        let mut analysis = pipeline([300; 4]);
        assert_eq!(
            &*bubble(&analysis).unwrap().title,
            "the 2 stages of the pipeline idle for 200 ns of a step (25 %) by its schedule, even without transfers and slow ranks"
        );
        analysis.tables.pipeline.iter_mut().for_each(|row| row.bubble_ns = 79);
        assert_eq!(bubble(&analysis), None);
    }
}
