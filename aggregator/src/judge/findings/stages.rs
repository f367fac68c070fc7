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

use trace::{FindingRow, Op, Severity};

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
         step (this program's); a stage is the ranks that meet in collectives",
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

/// The stages of a pipeline: ranks that meet in collectives are of one stage. `None` if no stages send to each other.
fn stages(analysis: &Analysis) -> Option<Vec<BTreeSet<i32>>> {
    let tables = &analysis.tables;
    if !tables.collective_instances.iter().any(|row| row.op == Op::Send) {
        return None;
    }
    // Groups repeat in every collective: they are looked at once. Rows are in the order of their instances.
    let (mut groups, mut pairs) = (BTreeSet::new(), BTreeSet::new());
    for rows in tables.collective_waits.chunk_by(|a, b| a.instance == b.instance) {
        let instance = usize::try_from(rows[0].instance).ok().and_then(|at| tables.collective_instances.get(at));
        let Some(instance) = instance.filter(|row| row.instance == rows[0].instance) else { continue };
        let ranks: Vec<i32> = rows.iter().map(|row| row.rank).collect();
        if instance.op == Op::Send {
            pairs.insert(ranks)
        } else {
            groups.insert(ranks)
        };
    }
    let mut stage_of: BTreeMap<i32, i32> = step_rows(analysis).map(|row| (row.rank, row.rank)).collect();
    for ranks in groups {
        let joined: BTreeSet<i32> = ranks.iter().filter_map(|rank| stage_of.get(rank).copied()).collect();
        if let Some(first) = joined.first().copied().filter(|_| joined.len() > 1) {
            stage_of.values_mut().filter(|stage| joined.contains(stage)).for_each(|stage| *stage = first);
        }
    }
    let crosses = |ranks: &Vec<i32>| {
        let stages: BTreeSet<Option<&i32>> = ranks.iter().map(|rank| stage_of.get(rank)).collect();
        stages.len() > 1
    };
    if !pairs.iter().any(crosses) {
        return None;
    }
    let mut stages: BTreeMap<i32, BTreeSet<i32>> = BTreeMap::new();
    for (rank, stage) in stage_of {
        stages.entry(stage).or_default().insert(rank);
    }
    Some(stages.into_values().collect())
}

#[cfg(test)]
mod tests {
    use trace::{InstanceRow, StepBreakdownRow, WaitRow};

    use super::*;

    /// Ranks 0 and 1, and 2 and 3, meet in collectives 0 and 1; rank 1 sends to rank 2.
    fn pipeline(work_ns: [i64; 4]) -> Analysis {
        let mut analysis = Analysis::default();
        analysis.verdict.step_ns = Some(1_000);
        for (instance, op, ranks) in [(0, "allreduce", [0, 1]), (1, "allreduce", [2, 3]), (2, "send", [1, 2])] {
            analysis.tables.collective_instances.push(InstanceRow { instance, op: op.into(), ..Default::default() });
            let wait = |rank| WaitRow { instance, rank, ..Default::default() };
            analysis.tables.collective_waits.extend(ranks.map(wait));
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
    fn without_sends_between_stages_there_is_no_pipeline() {
        let mut analysis = pipeline([300, 300, 600, 610]);
        analysis.tables.collective_waits.retain(|row| row.instance < 2);
        assert_eq!(imbalance(&analysis), None);
        let mut analysis = pipeline([300, 300, 600, 610]);
        analysis.tables.collective_waits.insert(2, WaitRow { instance: 0, rank: 2, ..Default::default() });
        assert_eq!(imbalance(&analysis), None, "all ranks meet");
    }
}
