//! The own work of ranks in each step, and the same work if the stages of a pipeline shared it evenly.

use std::collections::BTreeMap;

use crate::graph::{Graph, NONE, Span, SpanKind};
use crate::scaled::Scaled;
use model::stats::median;

/// The spans of a segment: its host, its device work, its late starts.
const SPANS: usize = 3;

/// The work of ranks, by spans of some lengths: of their devices, without devices of their hosts.
pub(crate) struct Work {
    kind: SpanKind,
    /// For each step and rank.
    ns: Vec<Vec<i64>>,
    /// For each span of such work, the position of its step.
    step_of: Vec<Option<usize>>,
}

impl Work {
    pub(crate) fn of(run: &Scaled, spans_ns: &[i64], ranks: usize) -> Self {
        let graph = &run.graph;
        let has_device = graph.spans.iter().any(|span| span.kind == SpanKind::Device && span.len_ns > 0);
        let kind = if has_device { SpanKind::Device } else { SpanKind::Host };
        let steps = run.steps_after();
        let mut step_of: Vec<Option<usize>> = vec![None; graph.spans.len()];
        for (node, passed) in graph.nodes.iter().zip(&run.passed).filter(|(node, _)| node.segment != NONE) {
            let of_segment = &mut step_of[node.segment as usize..][..SPANS];
            of_segment.fill(steps[*passed as usize].or(of_segment[0]));
        }
        let mut ns = vec![vec![0; ranks]; run.steps.len()];
        for ((span, step), span_ns) in graph.spans.iter().zip(&step_of).zip(spans_ns) {
            if let Some(step) = step.filter(|_| span.kind == kind) {
                ns[step][span.rank as usize] += span_ns;
            }
        }
        Self { kind, ns, step_of }
    }

    /// That of the busiest rank in each step.
    pub(crate) fn busiest_ns(&self) -> Vec<i64> {
        self.ns.iter().map(|of_step| of_step.iter().copied().max().unwrap_or(0)).collect()
    }

    /// The lengths of spans with which the ranks of each stage work as long as the mean stage in each step. `stages` has the stage of each
    /// rank.
    pub(crate) fn spread_over_stages(&self, graph: &Graph, spans_ns: &[i64], stages: &[usize]) -> Vec<i64> {
        let factors = |of_step: &Vec<i64>| {
            let mut of_stages: BTreeMap<usize, Vec<f64>> = BTreeMap::new();
            for (stage, ns) in stages.iter().zip(of_step) {
                of_stages.entry(*stage).or_default().push(*ns as f64);
            }
            let of_stages = of_stages.into_iter().filter_map(|(stage, ns)| Some((stage, median(ns)?)));
            let of_stages: BTreeMap<usize, f64> = of_stages.collect();
            let mean_ns = of_stages.values().sum::<f64>() / of_stages.len().max(1) as f64;
            let factor = |stage| of_stages.get(stage).filter(|ns| **ns > 0.0).map_or(1.0, |ns| mean_ns / ns);
            stages.iter().map(factor).collect::<Vec<f64>>()
        };
        let factors: Vec<Vec<f64>> = self.ns.iter().map(factors).collect();
        let spread_ns = |((span, step), ns): ((&Span, &Option<usize>), &i64)| match step {
            Some(step) if span.kind == self.kind => (*ns as f64 * factors[*step][span.rank as usize]).round() as i64,
            _ => *ns,
        };
        graph.spans.iter().zip(&self.step_of).zip(spans_ns).map(spread_ns).collect()
    }
}
