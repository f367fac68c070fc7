//! The lengths of the steps if transfers take another time, by the graph of the run.
//!
//! A step ends when all is done that its ranks launched before the next step began, or before its own end if no step follows:
//!
//! ```text
//!   rank 0   host    |step 1 a b |step 2 c d |            the lengths of step 1 and 2 sum to the run,
//!            stream      |#a#|##b##|#c#|#d#|              although their work overlaps
//!                    |---- 1 ------|-- 2 --|
//! ```

use std::collections::BTreeSet;

use crate::graph::{Graph, Kind, Node};
use measure::graph::{NodeKind, RankGraph};
use measure::own_time::OwnTime;
use model::steps::StepWindow;
use topology::ToGlobal;
use topology::join::Join;

/// From so many steps on, the first and the last one do not count: the recording cuts what they wait for.
const INNER_STEPS: usize = 4;

/// The graph of a run, and the steps that its ranks have in common.
#[derive(Debug)]
pub(crate) struct Scaled {
    pub(crate) graph: Graph,
    /// For each instance, its communicator.
    comm_of: Vec<i64>,
    /// For each node, how many bounds its host had passed.
    passed: Vec<u32>,
    /// For each bound, whether a step begins there: where the next step is not in common, the end of a step is a bound, too.
    begins_step: Vec<bool>,
}

impl Scaled {
    /// `None` if the graph of a rank was not kept, or ranks have no step in common, or collectives contradict the order of work.
    pub(crate) fn of(parts: &[&OwnTime], join: &Join, to_global: ToGlobal<'_>) -> Option<Self> {
        let ranks: Vec<&RankGraph> = parts.iter().map(|part| part.graph.as_deref()).collect::<Option<_>>()?;
        let numbers = |rank: &&RankGraph| rank.steps.iter().map(|step| step.step).collect::<BTreeSet<i32>>();
        let common = ranks.iter().map(numbers).reduce(|a, b| &a & &b).filter(|common| !common.is_empty())?;
        let is_followed = |step: i32| common.contains(&(step + 1));
        let begins_step: Vec<bool> = common
            .iter()
            .flat_map(|step| std::iter::once(true).chain((!is_followed(*step)).then_some(false)))
            .collect();
        let bounds = |rank: &&RankGraph| -> Vec<i64> {
            let mut steps = rank.steps.clone();
            steps.retain(|step| common.contains(&step.step));
            steps.sort_unstable_by_key(|step| step.step);
            steps.dedup_by_key(|step| step.step);
            let of_step = |step: &StepWindow| {
                let end_ns = (!is_followed(step.step)).then_some(step.window.end_ns);
                std::iter::once(step.window.start_ns).chain(end_ns)
            };
            steps.iter().flat_map(of_step).collect()
        };
        let bounds: Vec<Vec<i64>> = ranks.iter().map(bounds).collect();
        let global = |rank: usize, ns: i64| to_global(parts[rank].rank, parts[rank].has_device, ns);
        let graph = Graph::of(&ranks, &join.instances, &global)?;
        let passed = |node: &Node| {
            // A transfer belongs to the ranks that wait for it.
            let of_rank = bounds.get(node.rank as usize).filter(|_| node.kind != Kind::Transfer);
            of_rank.map_or(0, |bounds| bounds.partition_point(|bound_ns| *bound_ns <= node.at_ns) as u32)
        };
        Some(Self {
            passed: graph.nodes.iter().map(passed).collect(),
            comm_of: join.instances.iter().map(|instance| instance.comm_id).collect(),
            begins_step,
            graph,
        })
    }

    /// The lengths of the steps if the transfers of each communicator take a multiple of their time.
    pub(crate) fn step_lengths_ns(&self, scale_of: &dyn Fn(i64) -> f64) -> Vec<i64> {
        let mut weights_ns = self.graph.recorded_ns();
        for ((weight_ns, node), len_ns) in weights_ns.iter_mut().zip(&self.graph.nodes).zip(&self.graph.len_ns) {
            let is_transfer = matches!(node.kind, Kind::Transfer | Kind::Rank(NodeKind::Leave));
            if let Some(comm_id) = self.comm_of.get(node.instance as usize).filter(|_| is_transfer) {
                *weight_ns -= ((1.0 - scale_of(*comm_id)) * (*len_ns).max(0) as f64).round() as i64;
            }
        }
        let bounds_ns = self.bounds_ns(&weights_ns);
        let between = bounds_ns.windows(2).map(|pair| pair[1] - pair[0]).zip(&self.begins_step);
        let lengths: Vec<i64> = between.filter(|(_, begins)| **begins).map(|(length_ns, _)| length_ns).collect();
        match lengths.len() {
            INNER_STEPS.. => lengths[1..lengths.len() - 1].to_vec(),
            _ => lengths,
        }
    }

    /// How much of a step begins later than anything that the graph knows explains.
    pub(crate) fn unexplained_ns(&self) -> i64 {
        let mut weights_ns = self.graph.recorded_ns();
        for ((weight_ns, node), gap_ns) in weights_ns.iter_mut().zip(&self.graph.nodes).zip(&self.graph.gap_ns) {
            // Recordings of ranks begin when they begin.
            *weight_ns -= if node.kind == Kind::Rank(NodeKind::Begin) { 0 } else { (*gap_ns).max(0) };
        }
        let mut ends_ns = Vec::new();
        (self.graph.end_ns - self.graph.replay(&weights_ns, &mut ends_ns))
            / self.begins_step.iter().filter(|begins| **begins).count().max(1) as i64
    }

    /// When all is done that was launched before each bound, with these gaps and lengths.
    pub(crate) fn bounds_ns(&self, weights_ns: &[i64]) -> Vec<i64> {
        let mut ends_ns = Vec::new();
        self.graph.replay(weights_ns, &mut ends_ns);
        let mut bounds_ns = vec![0; self.begins_step.len() + 1];
        for ((node, passed), node_end_ns) in self.graph.nodes.iter().zip(&self.passed).zip(ends_ns) {
            if node.kind != Kind::Transfer {
                bounds_ns[*passed as usize] = node_end_ns.max(bounds_ns[*passed as usize]);
            }
        }
        // Work that was launched behind the last bound belongs to no step.
        bounds_ns.pop();
        let mut done_ns = 0;
        for bound_ns in &mut bounds_ns {
            done_ns = done_ns.max(*bound_ns);
            *bound_ns = done_ns;
        }
        bounds_ns
    }
}
