//! The work of all ranks as one graph, and its longest path: how long the run would take with other lengths.
//!
//! ```text
//!   rank 0   --host--|##work##|A~~~~~~~~~~~~|L--    A: arrival
//!   rank 1   --host-----|####work####|A~~~~~|L--    L: the rank leaves
//!                                    |-xfer-|       the transfer begins with the last arrival
//! ```
//!
//! * The graph of each rank comes from [`measure::graph`]. What ranks wait for in a collective joins them: its transfer begins when
//!   the last rank has arrived, and ends when the first one leaves. In a send or a rooted collective, a rank waits only for those
//!   that arrived before it left.
//! * It is one graph of the whole run, so what a rank is ahead at the end of a step is carried into the next one.
//! * A node that begins later than all that it waits for keeps that gap. So the unchanged graph is as long as the recording.
//!
//! A node ends at the largest end of what it waits for, plus its gap, plus its length.

use std::collections::VecDeque;

use measure::graph::{NodeKind, RankGraph};
use topology::arrivals::Joined;

/// The kind of a node of the joined graph.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) enum Kind {
    /// A node of a rank.
    Rank(NodeKind),
    /// The transfer of a collective.
    Transfer,
}

/// No instance, rank or node.
pub(crate) const NONE: u32 = u32::MAX;

/// A node, in an order in which each comes after those that it waits for.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Node {
    pub(crate) kind: Kind,
    /// Position of its rank; [`NONE`] of a transfer.
    pub(crate) rank: u32,
    /// Position of the instance of an arrival, a transfer, or the end of one.
    pub(crate) instance: u32,
    /// When the host reached it, in the rank's clock.
    pub(crate) at_ns: i64,
    /// Where its edges end.
    edges_end: u32,
}

/// The graph of all ranks.
#[derive(Debug)]
pub(crate) struct Graph {
    pub(crate) nodes: Vec<Node>,
    /// For each edge, the node that has to end, and the time between.
    edges: Vec<(u32, i64)>,
    /// Own length of each node.
    pub(crate) len_ns: Vec<i64>,
    /// How long after all that it waits for each node began.
    pub(crate) gap_ns: Vec<i64>,
    /// Length of the recording.
    pub(crate) end_ns: i64,
}

/// A node before the order is known.
struct Draft {
    node: Node,
    begin_ns: i64,
    end_ns: i64,
    /// Whether it began as soon as all that it waits for had ended.
    follows: bool,
    edges: Vec<(u32, i64)>,
}

impl Graph {
    /// `ranks` are the graphs of the ranks by position; `global` maps times of the clock of a rank's work. `None` if the instances
    /// contradict the order of the ranks' work.
    pub(crate) fn of(ranks: &[&RankGraph], instances: &[Joined], global: &dyn Fn(usize, i64) -> i64) -> Option<Self> {
        let mut drafts = Vec::new();
        let mut firsts = Vec::with_capacity(ranks.len());
        for (rank, graph) in ranks.iter().enumerate() {
            firsts.push(drafts.len() as u32);
            let first = drafts.len() as u32;
            drafts.extend((0..graph.nodes.len()).map(|own| of_rank(graph, (rank, own), first, global)));
        }
        for (position, instance) in instances.iter().enumerate() {
            join(&mut drafts, position as u32, instance, |rank, collective| {
                let nodes = ranks.get(rank)?.collectives.get(collective).copied()??;
                Some(nodes.map(|node| firsts[rank] + node))
            });
        }
        Self::in_order(drafts)
    }

    /// Sorts nodes so that each comes after those that it waits for, and measures gaps and lengths.
    fn in_order(drafts: Vec<Draft>) -> Option<Self> {
        let order = order(&drafts)?;
        let mut place = vec![NONE; drafts.len()];
        (0..).zip(&order).for_each(|(at, draft)| place[*draft as usize] = at);
        let origin_ns = drafts.iter().map(|draft| draft.begin_ns).min()?;
        let mut graph = Self {
            nodes: Vec::with_capacity(drafts.len()),
            edges: Vec::new(),
            len_ns: Vec::new(),
            gap_ns: Vec::new(),
            end_ns: 0,
        };
        let mut ends_ns: Vec<i64> = Vec::with_capacity(drafts.len());
        for draft in order {
            let draft = &drafts[draft as usize];
            let edges = draft.edges.iter().map(|(from, after_ns)| (place[*from as usize], *after_ns));
            graph.edges.extend(edges.clone());
            let ready_ns = edges.map(|(from, after_ns)| ends_ns[from as usize] + after_ns).max().unwrap_or(0);
            let (begin_ns, end_ns) = (draft.begin_ns - origin_ns, draft.end_ns - origin_ns);
            let gap_ns = if draft.follows { 0 } else { begin_ns - ready_ns };
            graph.gap_ns.push(gap_ns);
            graph.len_ns.push(end_ns - ready_ns - gap_ns);
            graph.nodes.push(Node { edges_end: graph.edges.len() as u32, ..draft.node });
            graph.end_ns = graph.end_ns.max(end_ns);
            ends_ns.push(end_ns);
        }
        Some(graph)
    }

    /// Gap and length of each node as recorded.
    pub(crate) fn recorded_ns(&self) -> Vec<i64> {
        self.gap_ns.iter().zip(&self.len_ns).map(|(gap, len)| gap + len).collect()
    }

    /// The end of each node if its gap and length are `weights_ns`, and the end of the run. `ends_ns` is overwritten.
    pub(crate) fn replay(&self, weights_ns: &[i64], ends_ns: &mut Vec<i64>) -> i64 {
        ends_ns.clear();
        let (mut from, mut last_ns) = (0, 0);
        for (node, weight_ns) in self.nodes.iter().zip(weights_ns) {
            let to = node.edges_end as usize;
            let mut ready_ns = if from == to { 0 } else { i64::MIN };
            for (before, after_ns) in &self.edges[from..to] {
                ready_ns = ready_ns.max(ends_ns[*before as usize] + after_ns);
            }
            from = to;
            let end_ns = ready_ns + weight_ns;
            last_ns = last_ns.max(end_ns);
            ends_ns.push(end_ns);
        }
        last_ns
    }
}

fn of_rank(graph: &RankGraph, (rank, own): (usize, usize), first: u32, global: &dyn Fn(usize, i64) -> i64) -> Draft {
    let node = &graph.nodes[own];
    Draft {
        node: Node { kind: Kind::Rank(node.kind), rank: rank as u32, instance: NONE, at_ns: node.at_ns, edges_end: 0 },
        begin_ns: global(rank, node.begin_ns),
        end_ns: global(rank, node.end_ns),
        follows: matches!(node.kind, NodeKind::Host | NodeKind::Wait | NodeKind::Leave),
        edges: graph.edges(own).iter().map(|edge| (first + edge.from, edge.after_ns)).collect(),
    }
}

/// Adds what the ranks of an instance wait for. `nodes_of` gives arrival and end of a rank's collective.
fn join(
    drafts: &mut Vec<Draft>,
    position: u32,
    instance: &Joined,
    nodes_of: impl Fn(usize, usize) -> Option<[u32; 2]>,
) {
    let members = instance.arrivals.iter().filter_map(|a| Some((a.rank, nodes_of(a.rank, a.stretch as usize)?)));
    let members: Vec<(usize, [u32; 2])> = members.collect();
    for node in members.iter().flat_map(|(_, nodes)| nodes) {
        drafts[*node as usize].node.instance = position;
    }
    let arrived_ns = |drafts: &[Draft], node: u32| drafts[node as usize].end_ns;
    let last_ns = members.iter().map(|(_, [arrive, _])| arrived_ns(drafts, *arrive)).max().unwrap_or(0);
    let transfer = |drafts: &mut Vec<Draft>, rank: u32, (begin_ns, end_ns): (i64, i64), edges: Vec<(u32, i64)>| {
        let node = Node { kind: Kind::Transfer, rank, instance: position, at_ns: 0, edges_end: 0 };
        drafts.push(Draft { node, begin_ns, end_ns: end_ns.max(begin_ns), follows: true, edges });
        drafts.len() as u32 - 1
    };
    if instance.symmetric && members.len() > 1 {
        let first_end_ns = members.iter().map(|(_, [_, leave])| arrived_ns(drafts, *leave)).min().unwrap_or(last_ns);
        let edges = members.iter().map(|(_, [arrive, _])| (*arrive, 0)).collect();
        let node = transfer(drafts, NONE, (last_ns, first_end_ns), edges);
        for (_, [_, leave]) in &members {
            drafts[*leave as usize].edges = vec![(node, 0)];
        }
        return;
    }
    for (rank, [_, leave]) in &members {
        let end_ns = arrived_ns(drafts, *leave);
        let awaited =
            members.iter().map(|(_, [arrive, _])| *arrive).filter(|arrive| arrived_ns(drafts, *arrive) <= end_ns);
        let edges: Vec<(u32, i64)> = awaited.map(|arrive| (arrive, 0)).collect();
        let begin_ns = edges.iter().map(|(arrive, _)| arrived_ns(drafts, *arrive)).max().unwrap_or(end_ns);
        let node = transfer(drafts, *rank as u32, (begin_ns, end_ns), edges);
        drafts[*leave as usize].edges = vec![(node, 0)];
    }
}

/// An order in which each node comes after those that it waits for; `None` if some wait for each other.
fn order(drafts: &[Draft]) -> Option<Vec<u32>> {
    let mut waiting: Vec<u32> = drafts.iter().map(|draft| draft.edges.len() as u32).collect();
    let mut first = vec![0_u32; drafts.len() + 1];
    for (from, _) in drafts.iter().flat_map(|draft| &draft.edges) {
        first[*from as usize + 1] += 1;
    }
    (1..first.len()).for_each(|at| first[at] += first[at - 1]);
    let mut followers = vec![0_u32; *first.last()? as usize];
    let mut next = first.clone();
    for (node, draft) in (0..).zip(drafts) {
        for (from, _) in &draft.edges {
            followers[next[*from as usize] as usize] = node;
            next[*from as usize] += 1;
        }
    }
    let mut ready: VecDeque<u32> = (0..drafts.len() as u32).filter(|node| waiting[*node as usize] == 0).collect();
    let mut order = Vec::with_capacity(drafts.len());
    while let Some(node) = ready.pop_front() {
        order.push(node);
        for follower in &followers[first[node as usize] as usize..first[node as usize + 1] as usize] {
            waiting[*follower as usize] -= 1;
            if waiting[*follower as usize] == 0 {
                ready.push_back(*follower);
            }
        }
    }
    (order.len() == drafts.len()).then_some(order)
}
