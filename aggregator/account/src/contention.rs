//! Computation takes longer while its rank communicates, so it is shorter where other ranks are awaited for less long.
//!
//! The time that it loses to communication is measured on each rank. In a replay, a rank loses as much less
//! in a step as its collectives are in flight for less long in it. The unchanged replay loses what the recording did.

use measure::graph::NodeKind;

use crate::graph::{Graph, NONE};

/// The device work of a segment that lost time to communication.
#[derive(Clone, Copy, Debug)]
struct Contended {
    span: u32,
    /// The rank and the bound that its host had passed, as a position.
    at: u32,
    ns: i64,
}

/// The device work that is slower beside communication, and how long collectives are in flight.
#[derive(Debug)]
pub(crate) struct Contention {
    all: Vec<Contended>,
    /// For each rank and bound, how long its collectives were in flight.
    in_flight_ns: Vec<i64>,
    /// For each node, rank and bound as a position.
    at: Vec<u32>,
}

impl Contention {
    /// `passed` says of each node how many of `bounds` bounds its host had passed. `None` where nothing lost time.
    pub(crate) fn of(graph: &Graph, ranks: usize, passed: &[u32], bounds: usize) -> Option<Self> {
        graph.spans.iter().find(|span| span.contended_ns > 0)?;
        let at = |(node, passed): (&crate::graph::Node, &u32)| {
            if node.rank == NONE { NONE } else { node.rank * (bounds as u32 + 1) + passed }
        };
        let at: Vec<u32> = graph.nodes.iter().zip(passed).map(at).collect();
        let mut of_span = vec![NONE; graph.spans.len()];
        for (node, at) in graph.nodes.iter().zip(&at) {
            // The device work of a segment follows its host.
            if let Some(of_span) = of_span.get_mut(node.segment.saturating_add(1) as usize) {
                *of_span = (*of_span).min(*at);
            }
        }
        let spans = (0..).zip(graph.spans.iter().zip(of_span));
        let contended = spans.filter(|(_, (span, at))| span.contended_ns > 0 && *at != NONE);
        let all = contended.map(|(span, (of, at))| Contended { span, at, ns: of.contended_ns }).collect();
        let mut ends_ns = Vec::new();
        graph.replay(&graph.recorded_ns(), &mut ends_ns);
        let mut contention = Self { all, in_flight_ns: vec![0; ranks * (bounds + 1)], at };
        contention.in_flight_ns = contention.in_flight_ns(graph, &ends_ns);
        Some(contention)
    }

    fn in_flight_ns(&self, graph: &Graph, ends_ns: &[i64]) -> Vec<i64> {
        let mut in_flight_ns = vec![0; self.in_flight_ns.len()];
        for ((node, at), end_ns) in graph.nodes.iter().zip(&self.at).zip(ends_ns) {
            let Some(in_flight_ns) = in_flight_ns.get_mut(*at as usize).filter(|_| node.instance != NONE) else {
                continue;
            };
            match node.kind {
                Some(NodeKind::Arrive) => *in_flight_ns -= end_ns,
                Some(NodeKind::Leave) => *in_flight_ns += end_ns,
                _ => {}
            }
        }
        in_flight_ns
    }

    /// The lengths of all spans without the time that a replay with `spans_ns`, which ended at `ends_ns`, does not lose.
    pub(crate) fn relieved_ns(&self, graph: &Graph, spans_ns: &[i64], ends_ns: &[i64]) -> Vec<i64> {
        let now_ns = self.in_flight_ns(graph, ends_ns);
        let mut relieved = spans_ns.to_vec();
        for Contended { span, at, ns } in &self.all {
            let (before, now) = (self.in_flight_ns[*at as usize], now_ns[*at as usize]);
            if now < before {
                let len_ns = graph.spans[*span as usize].len_ns.max(1);
                let lost_ns = *ns as f64 * spans_ns[*span as usize] as f64 / len_ns as f64;
                let less_ns = lost_ns * (1.0 - now.max(0) as f64 / before as f64);
                relieved[*span as usize] -= less_ns.round() as i64;
            }
        }
        relieved
    }
}
