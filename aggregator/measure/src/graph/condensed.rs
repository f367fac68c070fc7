//! The graph of a rank, condensed to the nodes by which it meets other ranks and other segments of its program.
//!
//! A segment lies between two marks of the host: begins of steps, and calls of collectives. Nodes that only nodes of their own segment
//! wait for are replaced by the paths through them:
//!
//! ```text
//!   host      |--a--|--b--|---c---[all-reduce]            all nodes: a, b, c, k1, k2, k3, the arrival
//!   stream 7        |k1|k2|     |k3|A~~~~                 kept: the arrival A, the end of c, k3 (the next segment follows it)
//!
//!   paths from the begin to k3:  a + k1 + k2 + k3 | a + b + k2 + k3 | a + b + c + k3
//! ```
//!
//! A path says how long its host, its device and its late starts take. In other runs, these parts of a segment are longer or shorter
//! as a whole. So of the paths between two nodes, those are kept that are the longest for one of [`FACTORS`]. The unchanged graph is
//! as long as the recording, to the ns.

use super::nodes::{NodeKind, RankGraph};
use super::paths::{Path, Paths};
use model::intervals::Interval;
use model::steps::StepWindow;

/// Factors of host, device and late starts for which the longest path is exact; between them it may be a little too short.
pub(super) const FACTORS: [[f64; 3]; 10] = [
    [1.0, 1.0, 1.0],
    [1.0, 1.0, 0.0],
    [0.9, 1.0, 1.0],
    [1.0, 0.9, 1.0],
    [0.7, 1.0, 1.0],
    [1.0, 0.7, 1.0],
    [0.4, 1.0, 1.0],
    [1.0, 0.4, 1.0],
    [0.0, 1.0, 1.0],
    [1.0, 0.0, 1.0],
];
/// A start that is later than this after all that it waits for is late.
pub(super) const LATE_NS: i64 = 3_000;

/// A segment of the program of a rank. The first one is before all marks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Segment {
    /// When the host reached the mark at its begin, in the rank's clock.
    pub at_ns: i64,
    /// The collective whose call is that mark, as a position among those of the rank.
    pub collective: Option<u32>,
    /// The step that begins with that mark.
    pub step: Option<i32>,
    /// Its end as the host ran it; `None` of a step that is not selected.
    pub step_end_ns: Option<i64>,
    /// The time of the host in it.
    pub host_ns: i64,
    /// The time of device work that was launched in it.
    pub device_ns: i64,
    /// The time by which its work started late.
    pub late_ns: i64,
    /// The time by which its device work took longer because the rank communicated beside it.
    pub contended_ns: i64,
}

/// A node that was kept.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Kept {
    /// Its kind.
    pub kind: NodeKind,
    /// The segment of its length and of all paths to it.
    pub segment: u32,
    /// When the host reached it, in the rank's clock.
    pub at_ns: i64,
    /// When it ended, in the rank's clock.
    pub end_ns: i64,
    /// The collective of an arrival or the end of one, as a position among those of the rank.
    pub collective: Option<u32>,
    /// Where its paths end in [`Condensed::paths`].
    pub paths_end: u32,
}

/// The condensed graph of one rank. Each node comes after those that it waits for.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Condensed {
    /// The kept nodes. The first one is the begin of the recording.
    pub nodes: Vec<Kept>,
    /// The paths to all nodes. To the end of a collective leads one from its arrival, with the whole time between.
    pub paths: Paths,
    /// The segments by time.
    pub segments: Vec<Segment>,
}

/// No kept node.
const NONE: u32 = u32::MAX;

impl Condensed {
    /// Condenses the graph of a rank, in time linear in its nodes.
    pub fn of(graph: &RankGraph) -> Self {
        let segments = marked(graph);
        let segment_of = segment_of_nodes(graph, &segments);
        let keeps = kept(graph, &segment_of);
        let mut place = vec![NONE; graph.nodes.len()];
        let mut collective_of = vec![None; graph.nodes.len()];
        for (at, nodes) in (0..).zip(&graph.collectives) {
            nodes.iter().flatten().for_each(|node| collective_of[*node as usize] = Some(at));
        }
        let mut condensed = Self { segments, ..Self::default() };
        for (at, node) in graph.nodes.iter().enumerate().filter(|(at, _)| keeps[*at]) {
            place[at] = condensed.nodes.len() as u32;
            let (kind, at_ns, end_ns) = (node.kind, node.at_ns, node.end_ns);
            let (segment, collective) = (segment_of[at], collective_of[at]);
            condensed.nodes.push(Kept { kind, segment, at_ns, end_ns, collective, paths_end: 0 });
        }
        condensed.follow(graph, &segment_of, &place);
        condensed.shrink_to_fit();
        condensed
    }

    /// Whether every path begins at an earlier node, and every node has a segment: not after rows were lost.
    pub fn is_whole(&self) -> bool {
        let ends = std::iter::once(0).chain(self.nodes.iter().map(|node| node.paths_end));
        let has_segment = |node: &Kept| (node.segment as usize) < self.segments.len();
        ends.is_sorted()
            && self.nodes.last().is_some_and(|node| node.paths_end as usize == self.paths.len())
            && self.nodes.iter().all(has_segment)
            && (0..self.nodes.len()).all(|node| self.paths_to(node).all(|path| (path.from as usize) < node))
    }

    /// The rank's active steps as its host ran them.
    pub fn steps(&self) -> impl DoubleEndedIterator<Item = StepWindow> {
        let of_segment = |segment: &Segment| {
            let (step, end_ns) = (segment.step?, segment.step_end_ns?);
            Some(StepWindow { step, window: Interval::new(segment.at_ns, end_ns) })
        };
        self.segments.iter().filter_map(of_segment)
    }

    /// Arrival and end of each of the rank's collectives, in their order; `None` for one without times.
    pub fn collectives(&self) -> Vec<Option<[u32; 2]>> {
        let mut collectives: Vec<Option<[u32; 2]>> = Vec::new();
        for (node, kept) in (0..).zip(&self.nodes) {
            let Some(at) = kept.collective.map(|at| at as usize) else { continue };
            collectives.resize(collectives.len().max(at + 1), None);
            match &mut collectives[at] {
                Some([_, leave]) => *leave = node,
                none => *none = Some([node, node]),
            }
        }
        collectives
    }

    /// Forgets the ends of steps that are not selected, and their collectives. Their begins stay marks.
    pub(crate) fn select(&mut self, new_positions: &[Option<u32>], has_step: impl Fn(i32) -> bool) {
        let moved = |at: Option<u32>| new_positions.get(at? as usize).copied().flatten();
        for segment in &mut self.segments {
            segment.collective = moved(segment.collective);
            segment.step_end_ns = segment.step_end_ns.filter(|_| segment.step.is_some_and(&has_step));
        }
        self.nodes.iter_mut().for_each(|node| node.collective = moved(node.collective));
    }

    /// The paths to a node.
    pub fn paths_to(&self, node: usize) -> impl ExactSizeIterator<Item = Path> + Clone {
        let from = node.checked_sub(1).map_or(0, |before| self.nodes[before].paths_end);
        self.paths.between(from, self.nodes[node].paths_end)
    }

    /// Gives back the room for further nodes: the graphs of all ranks are in memory together.
    pub(super) fn shrink_to_fit(&mut self) {
        self.nodes.shrink_to_fit();
        self.paths.shrink_to_fit();
    }

    /// Follows the paths through each segment. Only nodes of the segment follow those that are not kept.
    fn follow(&mut self, graph: &RankGraph, segment_of: &[u32], place: &[u32]) {
        let mut order: Vec<u32> = (0..graph.nodes.len() as u32).collect();
        order.sort_by_key(|node| segment_of[*node as usize]);
        // Begin and end of the paths to each node: of a kept one in `found`, else in `inside`.
        let mut of_node = vec![(0_usize, 0_usize); graph.nodes.len()];
        let (mut found, mut inside, mut paths) = (Vec::new(), Vec::new(), Vec::new());
        for in_segment in order.chunk_by(|a, b| segment_of[*a as usize] == segment_of[*b as usize]) {
            inside.clear();
            for node in in_segment.iter().map(|node| *node as usize) {
                paths.clear();
                for edge in graph.edges(node) {
                    let (from, after) = (edge.from as usize, Path { fixed_ns: edge.after_ns, ..Path::default() });
                    if place[from] == NONE {
                        let (begin, end) = of_node[from];
                        paths.extend(inside[begin..end].iter().map(|path: &Path| path.plus(after)));
                    } else {
                        paths.push(Path { from: place[from], ..after });
                    }
                }
                let own = own_length(graph, node);
                let segment = &mut self.segments[segment_of[node] as usize];
                segment.host_ns += own.host_ns;
                segment.device_ns += own.device_ns;
                segment.late_ns += own.late_ns;
                segment.contended_ns += contended_ns(graph, node);
                paths.iter_mut().for_each(|path| *path = path.plus(own));
                let all = if place[node] == NONE { &mut inside } else { &mut found };
                let begin = all.len();
                longest(&mut paths, all);
                of_node[node] = (begin, all.len());
            }
        }
        for (node, place) in place.iter().enumerate().filter(|(_, place)| **place != NONE) {
            let (begin, end) = of_node[node];
            self.paths.extend(found[begin..end].iter().copied());
            self.nodes[*place as usize].paths_end = self.paths.len() as u32;
        }
    }
}

/// The segments, which are still empty.
fn marked(graph: &RankGraph) -> Vec<Segment> {
    let of_step = |step: &StepWindow| {
        let window = step.window;
        let (step, step_end_ns) = (Some(step.step), Some(window.end_ns));
        Segment { at_ns: window.start_ns, step, step_end_ns, ..Segment::default() }
    };
    let of_collective = |(at, nodes): (u32, &Option<[u32; 2]>)| {
        let [arrive, _] = (*nodes)?;
        let at_ns = graph.nodes[arrive as usize].at_ns;
        Some(Segment { at_ns, collective: Some(at), ..Segment::default() })
    };
    let mut segments = vec![Segment { at_ns: i64::MIN, ..Segment::default() }];
    segments.extend(graph.steps.iter().map(of_step));
    segments.extend((0..).zip(&graph.collectives).filter_map(of_collective));
    segments.sort_by_key(|segment| (segment.at_ns, segment.collective));
    segments
}

/// The segment of each node. The host before a call is in the segment that ends with it.
pub(super) fn segment_of_nodes(graph: &RankGraph, segments: &[Segment]) -> Vec<u32> {
    let of_node = |node: &super::Node| {
        let after = match node.kind {
            NodeKind::Host | NodeKind::Wait => segments.partition_point(|mark| mark.at_ns < node.at_ns),
            _ => segments.partition_point(|mark| mark.at_ns <= node.at_ns),
        };
        after.saturating_sub(1) as u32
    };
    graph.nodes.iter().map(of_node).collect()
}

/// Whether each node is kept: where other ranks or another segment follow it, or nothing does.
fn kept(graph: &RankGraph, segment_of: &[u32]) -> Vec<bool> {
    let is_end = |kind: NodeKind| matches!(kind, NodeKind::Begin | NodeKind::Arrive | NodeKind::Leave);
    let mut keeps: Vec<bool> = graph.nodes.iter().map(|node| is_end(node.kind)).collect();
    let mut is_last = vec![true; graph.nodes.len()];
    for node in 0..graph.nodes.len() {
        for from in graph.edges(node).iter().map(|edge| edge.from as usize) {
            is_last[from] = false;
            keeps[from] |= segment_of[from] != segment_of[node];
        }
    }
    keeps.iter_mut().zip(is_last).for_each(|(keeps, is_last)| *keeps |= is_last);
    keeps
}

/// The length of a node itself, and by how much it began late.
pub(super) fn own_length(graph: &RankGraph, node: usize) -> Path {
    let ends_ns = graph.edges(node).iter().map(|edge| graph.nodes[edge.from as usize].end_ns + edge.after_ns);
    let Some(ready_ns) = ends_ns.max() else { return Path::default() };
    let node = &graph.nodes[node];
    match node.kind {
        NodeKind::Host | NodeKind::Wait => {
            let len_ns = node.end_ns - ready_ns;
            Path { host_ns: len_ns.max(0), fixed_ns: len_ns.min(0), ..Path::default() }
        }
        NodeKind::Work | NodeKind::Arrive => {
            let gap_ns = node.begin_ns - ready_ns;
            let (late_ns, fixed_ns) = if gap_ns > LATE_NS { (gap_ns, 0) } else { (0, gap_ns) };
            Path { device_ns: node.end_ns - node.begin_ns, late_ns, fixed_ns, ..Path::default() }
        }
        NodeKind::Leave => Path { fixed_ns: node.end_ns - ready_ns, ..Path::default() },
        NodeKind::Begin => Path::default(),
    }
}

/// By how much device work took longer beside communication.
fn contended_ns(graph: &RankGraph, node: usize) -> i64 {
    let node = &graph.nodes[node];
    let of_work = graph.contention.as_ref().filter(|_| node.kind == NodeKind::Work);
    of_work.map_or(0, |contention| contention.longer_ns(Interval::new(node.begin_ns, node.end_ns)))
}

/// Of the paths from each node, appends those to `all` that are the longest for some of [`FACTORS`].
fn longest(paths: &mut [Path], all: &mut Vec<Path>) {
    paths.sort_by_key(|path| path.from);
    for paths in paths.chunk_by(|a, b| a.from == b.from) {
        if let [path] = paths {
            all.push(*path);
            continue;
        }
        let mut is_longest = vec![false; paths.len()];
        for factors in FACTORS {
            let mut most = (0, f64::NEG_INFINITY);
            for (at, path) in paths.iter().enumerate() {
                let length = path.length(factors);
                if length > most.1 {
                    most = (at, length);
                }
            }
            is_longest[most.0] = true;
        }
        all.extend(paths.iter().zip(is_longest).filter(|(_, is)| *is).map(|(path, _)| *path));
    }
}
