//! The bubbles of a pipeline: how much longer the step of a rank is because it waits for other ranks, if each rank works as long as is
//! typical of its role and transfers take no time.

use measure::graph::NodeKind;
use measure::graph::Path;
use measure::own_time::OwnTime;
use topology::join::Join;
use trace::{Op, PipelineRow};

use crate::graph::{Changes, SpanKind};
use crate::lost_time::Accounted;
use crate::scaled::{Scaled, bounds_of};

/// One row for each rank and step, in that order; none if ranks send nothing to each other.
pub(crate) fn bubbles(account: &Accounted, parts: &[&OwnTime], join: &Join) -> Vec<PipelineRow> {
    let sends = join.instances.iter().any(|instance| instance.op == Op::Send);
    let Accounted { run, lengths, .. } = account;
    let Some(alone) = sends.then(|| run.without_waits(parts.len())).flatten() else { return Vec::new() };
    let is_transfer = |kind: SpanKind| matches!(kind, SpanKind::Transfer | SpanKind::Leaving);
    let spans = run.graph.spans.iter().zip(&lengths.typical_ns);
    let spans_ns: Vec<i64> = spans.map(|(span, ns)| if is_transfer(span.kind) { 0 } else { *ns }).collect();
    let [together, alone] = [run, &alone].map(|run| run.lengths_of_ranks_ns(&spans_ns, parts.len()));
    let mut rows = Vec::with_capacity(parts.len() * run.steps.len());
    for (rank, (together, alone)) in together.iter().zip(alone).enumerate() {
        let stage = parts[join.same_work.stages[rank]].rank;
        rows.extend(run.steps.iter().zip(together.iter().zip(alone)).map(|(step, (step_ns, alone_ns))| {
            let bubble_ns = (step_ns - alone_ns).max(0);
            PipelineRow { rank: parts[rank].rank, stage, step: *step, step_ns: *step_ns, bubble_ns }
        }));
    }
    rows
}

impl Scaled {
    /// The same run with ranks that wait for none of each other.
    fn without_waits(&self, ranks: usize) -> Option<Self> {
        let nodes = &self.graph.nodes;
        let own_arrival = |at: usize| {
            let transfer = self.graph.paths_to(at).next()?.from as usize;
            let arrivals = self.graph.paths_to(transfer).map(|path| path.from);
            arrivals
                .filter(|_| nodes[transfer].kind.is_none())
                .find(|from| nodes[*from as usize].rank == nodes[at].rank)
        };
        let leaves = (0..nodes.len()).filter(|at| nodes[*at].kind == Some(NodeKind::Leave));
        let alone = leaves.filter_map(|at| Some((at as u32, vec![Path { from: own_arrival(at)?, ..Path::default() }])));
        self.changed(&Changes::of_paths(alone.collect()), ranks)
    }

    /// For each rank, how long each step takes: from when all is done that it launched before the step, to when all is done that it
    /// launched in it.
    fn lengths_of_ranks_ns(&self, spans_ns: &[i64], ranks: usize) -> Vec<Vec<i64>> {
        let mut ends_ns = Vec::new();
        self.graph.replay(spans_ns, &mut ends_ns);
        let mut done_ns = vec![vec![0; self.begins_step.len() + 1]; ranks];
        for ((node, passed), end_ns) in self.graph.nodes.iter().zip(&self.passed).zip(ends_ns) {
            if let Some(of_rank) = done_ns.get_mut(node.rank as usize).filter(|_| node.kind.is_some()) {
                of_rank[*passed as usize] = end_ns.max(of_rank[*passed as usize]);
            }
        }
        done_ns.into_iter().map(|of_rank| self.lengths_between(&bounds_of(of_rank))).collect()
    }
}
