//! The lengths of the steps if transfers take another time, by the graph of the run.
//!
//! A step ends when all is done that its ranks launched before the next step began:
//!
//! ```text
//!   rank 0   host    |step 1 a b |step 2 c d |            the lengths of step 1 and 2 sum to the run,
//!            stream      |#a#|##b##|#c#|#d#|              although their work overlaps
//!                    |---- 1 ------|-- 2 --|
//! ```

use std::collections::BTreeSet;

use crate::graph::{Graph, Kind};
use measure::graph::{NodeKind, RankGraph};
use measure::own_time::OwnTime;
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
    /// For each node, how many of the steps began before the host reached it.
    begun: Vec<u32>,
    /// The number of steps.
    steps: usize,
}

impl Scaled {
    /// `None` if the graph of a rank was not kept, or ranks have no step in common, or collectives contradict the order of work.
    pub(crate) fn of(parts: &[&OwnTime], join: &Join, to_global: ToGlobal<'_>) -> Option<Self> {
        let ranks: Vec<Option<&RankGraph>> = parts.iter().map(|part| part.graph.as_deref()).collect();
        let numbers = |part: &OwnTime| part.path_steps.iter().map(|(step, _)| step.step).collect::<BTreeSet<i32>>();
        let common = parts.iter().map(|part| numbers(part)).reduce(|a, b| &a & &b)?;
        if common.is_empty() || ranks.iter().any(Option::is_none) {
            return None;
        }
        let begins = |part: &OwnTime| -> Vec<i64> {
            let steps = part.path_steps.iter().map(|(step, _)| step);
            let mut begins: Vec<i64> =
                steps.filter(|step| common.contains(&step.step)).map(|step| step.window.start_ns).collect();
            begins.sort_unstable();
            begins
        };
        let begins: Vec<Vec<i64>> = parts.iter().map(|part| begins(part)).collect();
        let global = |rank: usize, ns: i64| to_global(parts[rank].rank, parts[rank].has_device, ns);
        let graph = Graph::of(&ranks, &join.instances, &global)?;
        let begun = |node: &crate::graph::Node| {
            // A transfer belongs to the ranks that wait for it.
            let of_rank = begins.get(node.rank as usize).filter(|_| node.kind != Kind::Transfer);
            of_rank.map_or(0, |begins| begins.partition_point(|begin_ns| *begin_ns <= node.at_ns) as u32)
        };
        Some(Self {
            begun: graph.nodes.iter().map(begun).collect(),
            comm_of: join.instances.iter().map(|instance| instance.comm_id).collect(),
            steps: common.len(),
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
        let lengths = bounds_ns.windows(2).map(|pair| pair[1] - pair[0]);
        match self.steps < INNER_STEPS {
            true => lengths.collect(),
            false => lengths.skip(1).take(self.steps - 2).collect(),
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
        (self.graph.end_ns - self.graph.replay(&weights_ns, &mut ends_ns)) / self.steps as i64
    }

    /// The begin of each step and the end of the last one, with these gaps and lengths.
    pub(crate) fn bounds_ns(&self, weights_ns: &[i64]) -> Vec<i64> {
        let mut ends_ns = Vec::new();
        let end_ns = self.graph.replay(weights_ns, &mut ends_ns);
        let mut bounds_ns = vec![0; self.steps + 1];
        for ((node, begun), node_end_ns) in self.graph.nodes.iter().zip(&self.begun).zip(ends_ns) {
            if node.kind != Kind::Transfer {
                bounds_ns[*begun as usize] = node_end_ns.max(bounds_ns[*begun as usize]);
            }
        }
        let mut done_ns = 0;
        for bound_ns in &mut bounds_ns {
            done_ns = done_ns.max(*bound_ns);
            *bound_ns = done_ns;
        }
        bounds_ns[self.steps] = end_ns;
        bounds_ns
    }
}
