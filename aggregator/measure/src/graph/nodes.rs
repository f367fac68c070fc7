//! The nodes of the graph of a rank, and what each waits for.

use super::contention::Contention;
use model::steps::StepWindow;

/// A start this soon after an end follows from it.
pub(super) const NEAR_NS: i64 = 3_000;
/// How far times are shifted to ask how often a rule is right by chance.
pub(super) const SHIFTED_NS: i64 = 733_000;
/// A rule is right where it finds this many times what it finds by chance.
pub(super) const BETTER_THAN_CHANCE: f64 = 3.0;

/// The kind of a node.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum NodeKind {
    /// The begin of the recording of a rank.
    #[default]
    Begin,
    /// The host between two calls.
    Host,
    /// The end of a call that waited.
    Wait,
    /// A kernel, a copy or a fill.
    Work,
    /// The arrival at a collective; it has no length.
    Arrive,
    /// The end of a collective. Here it holds the whole time since the arrival.
    Leave,
}

impl NodeKind {
    /// The kind with this number, in the order of their declaration; a number that no kind has is the begin's.
    pub fn numbered(number: i32) -> Self {
        let all = [Self::Begin, Self::Host, Self::Wait, Self::Work, Self::Arrive, Self::Leave];
        usize::try_from(number).ok().and_then(|at| all.get(at).copied()).unwrap_or_default()
    }
}

/// A node of the graph. Times are in the rank's clock.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Node {
    /// Its kind.
    pub kind: NodeKind,
    /// The row of `events` that it belongs to; [`NO_ROW`] for the host.
    pub row: u32,
    /// When the host reached it: the place in the program by which ranks are compared.
    pub at_ns: i64,
    /// When its own length began.
    pub begin_ns: i64,
    /// When it ended.
    pub end_ns: i64,
    /// Where its edges end in [`RankGraph::edges`].
    edges_end: u32,
}

/// No row.
pub const NO_ROW: u32 = u32::MAX;

/// Says that a node begins not before another ended, and some time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Edge {
    /// The node that has to end.
    pub from: u32,
    /// The time between.
    pub after_ns: i64,
}

/// How many pieces of device work began when something that the graph knows allowed it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Starts {
    /// All.
    pub all: u64,
    /// Those that began as soon as usual.
    pub explained: u64,
}

/// The graph of one rank. Each node comes after those that it waits for.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct RankGraph {
    /// Its nodes. The first one is the begin of the recording.
    pub nodes: Vec<Node>,
    /// The edges of all nodes.
    edges: Vec<Edge>,
    /// Arrival and end of each of the rank's collectives, in their order; `None` for one without times.
    pub collectives: Vec<Option<[u32; 2]>>,
    /// The rank's active steps as its host ran them.
    pub steps: Vec<StepWindow>,
    /// How well it explains what happened.
    pub starts: Starts,
    /// By how much its computation takes longer beside communication.
    pub(super) contention: Option<Contention>,
}

impl RankGraph {
    pub(super) fn new(begin_ns: i64, collectives: usize) -> Self {
        let mut graph = Self { collectives: vec![None; collectives], ..Self::default() };
        graph.add(NodeKind::Begin, NO_ROW, begin_ns, (begin_ns, begin_ns), &[]);
        graph
    }

    /// The edges of a node: the nodes that it waits for.
    pub fn edges(&self, node: usize) -> &[Edge] {
        let from = node.checked_sub(1).map_or(0, |before| self.nodes[before].edges_end);
        &self.edges[from as usize..self.nodes[node].edges_end as usize]
    }

    pub(super) fn add(
        &mut self,
        kind: NodeKind,
        row: u32,
        at_ns: i64,
        (begin_ns, end_ns): (i64, i64),
        edges: &[Edge],
    ) -> u32 {
        self.edges.extend_from_slice(edges);
        self.nodes.push(Node { kind, row, at_ns, begin_ns, end_ns, edges_end: self.edges.len() as u32 });
        self.nodes.len() as u32 - 1
    }

    /// The host from the end of `before` to a call.
    pub(super) fn add_host(&mut self, before: u32, to_ns: i64, at_ns: i64) -> u32 {
        let begin_ns = self.nodes[before as usize].end_ns;
        self.add(NodeKind::Host, NO_ROW, at_ns, (begin_ns, to_ns), &[Edge { from: before, after_ns: 0 }])
    }

    /// The end of a wait for all of `awaited`.
    pub(super) fn add_wait(&mut self, row: u32, at_ns: i64, end_ns: i64, awaited: impl Iterator<Item = u32>) -> u32 {
        let edges: Vec<Edge> = awaited.map(|from| Edge { from, after_ns: 0 }).collect();
        let ends_ns = edges.iter().map(|edge| self.nodes[edge.from as usize].end_ns);
        let begin_ns = ends_ns.max().unwrap_or(end_ns);
        self.add(NodeKind::Wait, row, at_ns, (begin_ns, end_ns), &edges)
    }

    /// Arrival and end of a collective.
    pub(super) fn add_collective(
        &mut self,
        (collective, row): (usize, u32),
        at_ns: i64,
        (start_ns, end_ns): (i64, i64),
        edges: &[Edge],
    ) -> [u32; 2] {
        let arrive = self.add(NodeKind::Arrive, row, at_ns, (start_ns, start_ns), edges);
        let edge = [Edge { from: arrive, after_ns: 0 }];
        let leave = self.add(NodeKind::Leave, row, at_ns, (start_ns, end_ns), &edge);
        self.collectives[collective] = Some([arrive, leave]);
        [arrive, leave]
    }
}
