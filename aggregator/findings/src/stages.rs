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

use trace::{Level, Severity};

use crate::finding::{Found, finding, saving, step_rows};
use crate::headline::{Place, share_of_step};
use crate::registry::Context;
use model::analysis::{Analysis, Verdict, VerdictKind};
use model::claim::{Claim, Part, Quantity, Relation, Value};
use model::stats::lower_median;
use model::units::{ns, ranks_named};
use topology::same_work::pipeline_stages;

kind! {
    /// A stage of a pipeline works longer than the others.
    ///
    /// Its work in a step, less that of the second longest stage.
    UNEVEN_STAGES: "uneven-stages", by imbalance
}

kind! {
    /// The schedule of a pipeline makes its stages idle.
    PIPELINE_BUBBLE: "pipeline-bubble", by bubble
}

/// The least excess of the first or the last stage, in percent of a step. They differ by the embedding and the loss.
const LEAST_PCT: f64 = 10.0;
/// The least excess of a stage between others, which do the same work.
const LEAST_BETWEEN_PCT: f64 = 5.0;

/// The stages that work longer than the others.
struct Longer {
    /// The ranks of each, ascending; the stage that works longest comes first.
    stages: Vec<Vec<i32>>,
    /// Of the stage that works longest, its work in a step, and the median of the other stages: of those between others, if it is
    /// one.
    work_ns: i64,
    usual_ns: i64,
    /// By how much that stage works longer than each of the rest: no change of these stages saves more of a step.
    saving_ns: i64,
    /// The number of all stages.
    of: usize,
    least_pct: f64,
}

/// The stages that exceed the others by enough; `None` if the one that works longest does not.
fn longer(analysis: &Analysis) -> Option<Longer> {
    let stages = stages(analysis)?;
    let step_ns = analysis.verdict.step_ns.filter(|ns| *ns > 0)?;
    let works = works(&stages, analysis)?;
    // Stages are in the order of their lowest ranks, which is that of the layers in the usual layouts.
    let is_between = |at: usize| at > 0 && at + 1 < works.len();
    let mut order: Vec<usize> = (0..works.len()).collect();
    order.sort_by_key(|at| std::cmp::Reverse(works[*at]));
    let first = *order.first()?;
    let others = || order.iter().copied().filter(|at| *at != first);
    let alike = others().filter(|at| is_between(*at)).map(|at| works[at]);
    let (usual_ns, least_pct) = match lower_median(alike).filter(|_| is_between(first)) {
        Some(ns) => (ns, LEAST_BETWEEN_PCT),
        None => (lower_median(others().map(|at| works[at]))?, LEAST_PCT),
    };
    let is_long = |at: &&usize| (works[**at] - usual_ns) as f64 >= least_pct / 100.0 * step_ns as f64;
    let (long, rest): (Vec<&usize>, Vec<&usize>) = order.iter().partition(is_long);
    (!long.is_empty()).then(|| Longer {
        stages: long.iter().map(|at| stages[**at].iter().copied().collect()).collect(),
        work_ns: works[first],
        usual_ns,
        saving_ns: works[first] - rest.first().map_or(usual_ns, |at| works[**at]),
        of: stages.len(),
        least_pct,
    })
}

/// The work of each stage in a step; `None` if that of one is unknown.
fn works(stages: &[BTreeSet<i32>], analysis: &Analysis) -> Option<Vec<i64>> {
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
    stages.iter().map(of_stage).collect()
}

fn imbalance(context: &Context<'_>) -> Option<Found> {
    longer(context.analysis).map(|longer| longer.finding())
}

impl Longer {
    /// All ranks of these stages, ascending.
    fn ranks(&self) -> Vec<i32> {
        let mut ranks = self.stages.concat();
        ranks.sort_unstable();
        ranks
    }

    fn finding(&self) -> Found {
        let (these, work) = match self.stages.len() {
            1 => ("stage", "works"),
            _ => ("stages", "work up to"),
        };
        let title = format!(
            "the pipeline's {these} of {} {work} {} longer in a step than the other stages: {} instead of {}",
            ranks_named(&self.ranks()),
            ns(self.work_ns - self.usual_ns),
            ns(self.work_ns),
            ns(self.usual_ns)
        );
        let evidence = format!(
            "wall_ns − exposed_comm_ns, lower medians over the ranks and steps of each of {} stages; threshold {} % of a step \
             (this program's); a stage is the ranks that do the same work",
            self.of, self.least_pct
        );
        let suggestion = match self.stages.as_slice() {
            [ranks] if ranks.len() == 1 => {
                "move layers to other stages; if its layers are no more than theirs, look at this rank: no other has its role"
            }
            _ => "move layers to other stages; if there are no more layers than in these, look at the devices",
        };
        let claim = Claim::new(Quantity::StageWork, Relation::Exceeds, "step_breakdown").of_ranks(&self.ranks());
        let excess_ns = self.work_ns - self.usual_ns;
        let claim = claim.value(Value::Ns(excess_ns)).explains(Part::Work, excess_ns);
        saving(self.saving_ns, finding(claim, Severity::Warning, title, evidence, suggestion))
    }
}

/// Makes stages that work longer than the others the headline, if no rank is suspected. Whether they have more layers or slower
/// devices, no other rank shows.
pub fn take_headline(analysis: &mut Analysis) {
    let verdict = &analysis.verdict;
    let names_no_rank = match verdict.kind {
        VerdictKind::Balanced | VerdictKind::Jitter | VerdictKind::Lost => true,
        VerdictKind::Undecided => verdict.suspects.is_empty(),
        VerdictKind::Cause | VerdictKind::Nothing | VerdictKind::Hung => false,
    };
    let Some(longer) = longer(analysis).filter(|_| names_no_rank) else { return };
    let (ranks, step_ns) = (longer.ranks(), verdict.step_ns);
    let finding = longer.finding().row;
    let share = share_of_step(longer.saving_ns, step_ns);
    let place = Place::of(&ranks, &analysis.facts.identities);
    let place = place.map_or(String::new(), |place| format!(" They are {}, which may be slow.", place.all_ranks()));
    analysis.verdict = Verdict {
        kind: VerdictKind::Undecided,
        finding: Some(UNEVEN_STAGES.id.into()),
        level: Some(Level::Stage.into()),
        doubt: Some(
            "no rank of another stage does the same work: more layers or slower devices may be the reason".into(),
        ),
        step_ns,
        exposed_wait_ns: verdict.exposed_wait_ns,
        sentence: format!("{}. No rank slows the others of its stage.{place}", finding.title),
        title: format!("UNEVEN STAGES: {}", ranks_named(&ranks)),
        cost: Some(format!("at most {}{share}", ns(longer.saving_ns))),
        location: Some(finding.title.to_string()),
        action: Some(finding.suggestion.to_string()),
        ..Verdict::default()
    };
}

/// The least idle time by the schedule, in percent of a step.
const LEAST_BUBBLE_PCT: f64 = 10.0;

fn bubble(context: &Context<'_>) -> Option<Found> {
    let analysis = context.analysis;
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
    let claim = Claim::new(Quantity::Bubble, Relation::Exceeds, "pipeline").value(Value::Ns(bubble_ns));
    Some(finding(claim, Severity::Info, title, evidence, suggestion))
}

/// The stages of a pipeline; `None` if there are not several.
fn stages(analysis: &Analysis) -> Option<Vec<BTreeSet<i32>>> {
    let stages = pipeline_stages(&analysis.tables);
    (stages.len() > 1).then_some(stages)
}

#[cfg(test)]
mod tests {
    use trace::{PipelineRow, StepBreakdownRow};

    use model::analysis::RankIdentity;

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
        let found = |work_ns: &[i64]| UNEVEN_STAGES.in_tables(&pipeline(work_ns)).pop();
        let uneven = found(&[300, 300, 600, 610]).unwrap();
        assert_eq!(
            &*uneven.title,
            "the pipeline's stage of ranks 2–3 works 300 ns longer in a step than the other stages: 600 ns instead of 300 ns"
        );
        assert_eq!(uneven.saving_ns, Some(300));
        assert_eq!(found(&[300, 300, 300, 610]), None, "rank 3 alone is slow");
        assert_eq!(found(&[300, 300, 399, 399]), None, "below the threshold");
    }

    #[test]
    fn a_stage_between_others_is_compared_with_those_that_do_its_work() {
        let found = longer(&pipeline(&[300, 300, 310, 310, 350, 350, 400, 400])).map(|longer| longer.stages);
        assert_eq!(found, None, "the last stage has the loss");
        let found = longer(&pipeline(&[300, 300, 310, 310, 380, 380, 350, 350])).unwrap();
        assert_eq!((found.ranks(), found.usual_ns, found.saving_ns), (vec![4, 5], 310, 30));
        assert!(longer(&pipeline(&[200, 200, 310, 310, 350, 350, 200, 200])).is_none(), "40 of 1000 ns are too few");
        let three = longer(&pipeline(&[300, 300, 390, 390, 300, 300]));
        assert!(three.is_none(), "no other stage is between two");
    }

    /// The ranks of a host are two stages: more layers and a slow host look alike.
    #[test]
    fn several_stages_may_be_all_ranks_of_a_host() {
        let mut analysis = pipeline(&[300, 300, 310, 310, 380, 380, 370, 370]);
        analysis.verdict.kind = VerdictKind::Balanced;
        let identity = |rank| RankIdentity { rank, host: Some(format!("node{}", rank / 4)), ..RankIdentity::default() };
        analysis.facts.identities = (0..8).map(identity).collect();
        take_headline(&mut analysis);
        let verdict = &analysis.verdict;
        assert_eq!(
            (&*verdict.title, verdict.cost.as_deref()),
            ("UNEVEN STAGES: ranks 4–7", Some("at most 70 ns (7 % of a step)"))
        );
        assert_eq!(
            verdict.sentence,
            "the pipeline's stages of ranks 4–7 work up to 70 ns longer in a step than the other stages: 380 ns instead of 310 ns. \
             No rank slows the others of its stage. They are all the ranks of host node1, which may be slow."
        );
    }

    #[test]
    fn one_stage_is_no_pipeline() {
        let mut analysis = pipeline(&[300, 300, 600, 610]);
        analysis.tables.pipeline.iter_mut().for_each(|row| row.stage = 0);
        assert_eq!([UNEVEN_STAGES.in_tables(&analysis), PIPELINE_BUBBLE.in_tables(&analysis)].concat(), []);
    }

    #[test]
    fn a_bubble_is_stated_with_its_share() {
        let mut analysis = pipeline(&[300; 4]);
        assert_eq!(
            &*PIPELINE_BUBBLE.in_tables(&analysis)[0].title,
            "the 2 stages of the pipeline idle for 200 ns of a step (25 %) by its schedule, even without transfers and slow ranks"
        );
        analysis.tables.pipeline.iter_mut().for_each(|row| row.bubble_ns = 79);
        assert_eq!(PIPELINE_BUBBLE.in_tables(&analysis), []);
    }
}
