//! The work of all ranks as one graph, and its longest path: how long the run would take if parts of it took another time.
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
//! * A span is a time that changes as a whole: of each segment of a rank, its host, its device work, and its late starts; each transfer;
//!   and the time by which a rank leaves a collective after the first one.
//! * A node ends at the largest end of the paths to it, plus a rest that no span has. So the unchanged graph is as long as the
//!   recording.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use measure::graph::{Condensed, NodeKind, Path, Paths};
use rayon::iter::Either;
use topology::arrivals::Joined;

/// No instance, rank, span or node.
pub(crate) const NONE: u32 = u32::MAX;

/// Clocks of devices may let a rank seem to leave a collective this long before the last one arrives.
const CLOCKS_NS: i64 = 30_000;

/// A larger share of collectives that contradict the order of arrivals leaves no account.
const MOST_CONTRADICTED: f64 = 0.02;

/// Maps times of the clock of a rank's work, and the error of that.
pub(crate) type ClocksOfRanks<'a> = (&'a dyn Fn(usize, i64) -> i64, &'a dyn Fn(usize) -> Option<i64>);

/// The kind of a span.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) enum SpanKind {
    Host,
    Device,
    /// Starts that are later than all that they wait for.
    Late,
    /// From the first end of a collective to that of a rank.
    Leaving,
    Transfer,
}

impl SpanKind {
    /// Whether a rank takes it by itself, and not to communicate.
    pub(crate) fn is_own(self) -> bool {
        matches!(self, Self::Host | Self::Device | Self::Late)
    }
}

/// A time that changes as a whole.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Span {
    pub(crate) kind: SpanKind,
    /// Position of its rank; [`NONE`] of a transfer for which all ranks wait.
    pub(crate) rank: u32,
    /// Position of its segment among those of the rank; of a transfer for which all ranks wait, of the instance.
    pub(crate) at: u32,
    /// As recorded.
    pub(crate) len_ns: i64,
    /// The part of it that device work lost to communication beside it.
    pub(crate) contended_ns: i64,
}

/// A node, in an order in which each comes after those that it waits for.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Node {
    /// `None` of a transfer.
    pub(crate) kind: Option<NodeKind>,
    /// Position of its rank; [`NONE`] of a transfer for which all ranks wait.
    pub(crate) rank: u32,
    /// Position of the instance of an arrival, a transfer, or the end of one.
    pub(crate) instance: u32,
    /// When the host reached it, in the rank's clock.
    pub(crate) at_ns: i64,
    /// The host of its segment. Device work and late starts follow.
    pub(crate) segment: u32,
    /// A span that it takes itself.
    pub(crate) own: u32,
    /// The time that no span has.
    pub(crate) rest_ns: i64,
    /// Where its paths end.
    pub(crate) paths_end: u32,
}

impl Node {
    /// A node without time of its own, which ends with the last of the paths to it.
    pub(crate) fn bare(kind: Option<NodeKind>, rank: u32, instance: u32) -> Self {
        Self { kind, rank, instance, at_ns: 0, segment: NONE, own: NONE, rest_ns: 0, paths_end: 0 }
    }
}

/// The graph of all ranks.
#[derive(Debug)]
pub(crate) struct Graph {
    pub(crate) nodes: Vec<Node>,
    pub(crate) spans: Vec<Span>,
    /// For each node, the paths to it from others.
    paths: Paths,
    /// The begin of the recording in global time, from which replays count.
    pub(crate) origin_ns: i64,
    /// Length of the recording.
    pub(crate) end_ns: i64,
}

/// The changes that make another graph of the same run.
#[derive(Default)]
pub(crate) struct Changes {
    /// Other paths to nodes.
    pub(crate) paths: BTreeMap<u32, Vec<Path>>,
    /// Nodes behind all others, with the paths to them, and how many bounds of steps the host had passed there.
    pub(crate) added: Vec<(Node, Vec<Path>, u32)>,
    /// The spans of these nodes, behind all others.
    pub(crate) spans: Vec<Span>,
    /// Nodes that are left out. No path to another node may begin at one of them.
    pub(crate) removed: BTreeSet<u32>,
}

impl Changes {
    /// Other paths only.
    pub(crate) fn of_paths(paths: BTreeMap<u32, Vec<Path>>) -> Self {
        Self { paths, ..Self::default() }
    }
}

/// A node before the order is known. The rest of it stays in the graph of its rank until then: the graphs of all ranks are most of the
/// memory of a job.
struct Draft {
    end_ns: i64,
    /// As of a [`Node`].
    rank: u32,
    instance: u32,
    own: u32,
    /// Its position in the graph of its rank; [`NONE`] of a transfer.
    kept: u32,
    /// Where the nodes that join it to other ranks are in [`Builder::joining`]. It ends with the last of them. A node without such
    /// follows the paths in the graph of its rank.
    joined: (u32, u32),
}

impl Graph {
    /// `ranks` are the graphs of the ranks by position; `global` maps times of the clock of a rank's work. `None` if the instances
    /// contradict the order of the ranks' work, or ranks leave many of them before others arrive: these were not matched rightly, or a
    /// clock jumped.
    pub(crate) fn of(
        ranks: &[&Condensed],
        instances: &[Joined],
        (global, error_ns): ClocksOfRanks<'_>,
    ) -> Option<Self> {
        let errors_ns = (0..ranks.len()).map(|rank| error_ns(rank).unwrap_or(0).max(CLOCKS_NS));
        let sum = |of: fn(&Condensed) -> usize| ranks.iter().map(|rank| of(rank)).sum::<usize>();
        let joined: usize = instances.iter().map(|instance| instance.arrivals.len()).sum();
        let mut builder = Builder {
            drafts: Vec::with_capacity(sum(|rank| rank.nodes.len()) + instances.len()),
            joining: Vec::with_capacity(2 * joined),
            spans: Vec::with_capacity(3 * sum(|rank| rank.segments.len()) + joined + instances.len()),
            firsts: Vec::with_capacity(ranks.len()),
            collectives: Vec::with_capacity(ranks.len()),
            errors_ns: errors_ns.collect(),
            barriers: (0, 0),
            ranks,
        };
        (0..ranks.len()).for_each(|rank| builder.add_rank(rank, global));
        let unknown = of_unknown_ranks(instances, ranks.len());
        for (position, instance) in (0..).zip(instances) {
            let members = builder.members(position, instance);
            if !unknown.contains(&instance.comm_id) {
                builder.join(position, instance, members);
            }
        }
        let (contradicted, barriers) = builder.barriers;
        if contradicted as f64 > MOST_CONTRADICTED * barriers as f64 {
            return None;
        }
        builder.in_order()
    }

    /// The lengths of all spans as recorded.
    pub(crate) fn recorded_ns(&self) -> Vec<i64> {
        self.spans.iter().map(|span| span.len_ns).collect()
    }

    /// The end of each node if the spans are as long as `now_ns`, and the end of the run. `ends_ns` is overwritten.
    pub(crate) fn replay(&self, now_ns: &[i64], ends_ns: &mut Vec<i64>) -> i64 {
        let factors = self.factors(now_ns);
        ends_ns.clear();
        let (mut from, mut last_ns) = (0, 0);
        for node in &self.nodes {
            let mut ready_ns = if from == node.paths_end { 0 } else { i64::MIN };
            let of_segment = of_segment(&factors, node);
            for path in self.paths.between(from, node.paths_end) {
                ready_ns = ready_ns.max(ends_ns[path.from as usize] + length_ns(&path, of_segment));
            }
            from = node.paths_end;
            let own_ns = now_ns.get(node.own as usize).copied().unwrap_or(0);
            let end_ns = ready_ns + node.rest_ns + own_ns;
            last_ns = last_ns.max(end_ns);
            ends_ns.push(end_ns);
        }
        last_ns
    }

    /// Calls `on_path` for the spans of the longest path to the end of the run, the last one first, each with the share of it that is on
    /// the path. `ends_ns` are those of a replay with `now_ns`.
    pub(crate) fn longest_path(&self, now_ns: &[i64], ends_ns: &[i64], mut on_path: impl FnMut(usize, f64)) {
        let factors = self.factors(now_ns);
        let mut next = (0..ends_ns.len()).max_by_key(|node| ends_ns[*node]);
        while let Some(at) = next {
            let node = &self.nodes[at];
            if node.own != NONE {
                on_path(node.own as usize, 1.0);
            }
            let of_segment = of_segment(&factors, node);
            let end_of = |path: &Path| ends_ns[path.from as usize] + length_ns(path, of_segment);
            let path = self.paths_to(at).max_by_key(end_of);
            for (kind, ns) in (0..).zip(path.iter().flat_map(|path| [path.host_ns, path.device_ns, path.late_ns])) {
                if ns > 0 {
                    let span = node.segment as usize + kind;
                    on_path(span, ns as f64 / self.spans[span].len_ns.max(1) as f64);
                }
            }
            next = path.map(|path| path.from as usize);
        }
    }

    /// The graph with changes, and for each of its nodes its position in this graph; added nodes are numbered behind those of this graph.
    /// `None` if nodes then wait for each other.
    pub(crate) fn changed(&self, changes: &Changes) -> Option<(Self, Vec<u32>)> {
        let recorded = self.nodes.len();
        let paths_to = |node: usize| {
            let changed = match node.checked_sub(recorded) {
                Some(added) => Some(&changes.added[added].1),
                None => changes.paths.get(&(node as u32)),
            };
            changed.map_or_else(|| Either::Left(self.paths_to(node)), |paths| Either::Right(paths.iter().copied()))
        };
        let all = recorded + changes.added.len();
        let mut order = order(all, |node| paths_to(node).map(|path| path.from))?;
        order.retain(|node| !changes.removed.contains(node));
        let place = places(&order, all);
        let (mut nodes, mut paths) = (Vec::with_capacity(order.len()), Paths::with_capacity(self.paths.len()));
        for node in &order {
            let moved = |path: Path| Path { from: place[path.from as usize], ..path };
            paths.extend(paths_to(*node as usize).map(moved));
            let added = (*node as usize).checked_sub(recorded);
            let node = added.map_or_else(|| self.nodes[*node as usize], |added| changes.added[added].0);
            nodes.push(Node { paths_end: paths.len() as u32, ..node });
        }
        let spans = self.spans.iter().chain(&changes.spans).copied().collect();
        Some((Self { nodes, spans, paths, ..*self }, order))
    }

    /// Of the paths to a node, the one that ends last if nothing is changed; of several ones that end together, one from work of the
    /// rank. `ends_ns` are those of the recording.
    pub(crate) fn last_path(&self, node: usize, ends_ns: &[i64]) -> Option<Path> {
        let is_work = |path: &Path| self.nodes[path.from as usize].kind != Some(NodeKind::Leave);
        self.paths_to(node).max_by_key(|path| (ready_ns(path, ends_ns), is_work(path)))
    }

    pub(crate) fn paths_to(&self, node: usize) -> impl ExactSizeIterator<Item = Path> + Clone {
        let from = node.checked_sub(1).map_or(0, |before| self.nodes[before].paths_end);
        self.paths.between(from, self.nodes[node].paths_end)
    }

    /// For each span, its length now over the recorded one.
    fn factors(&self, now_ns: &[i64]) -> Vec<f64> {
        let factor = |(span, now_ns): (&Span, &i64)| match span.len_ns {
            0 => 1.0,
            len_ns if len_ns == *now_ns => 1.0,
            len_ns => *now_ns as f64 / len_ns as f64,
        };
        self.spans.iter().zip(now_ns).map(factor).collect()
    }
}

/// When a path is done in the recording.
pub(crate) fn ready_ns(path: &Path, ends_ns: &[i64]) -> i64 {
    ends_ns[path.from as usize] + length_ns(path, [1.0; 3])
}

/// The factors of host, device work and late starts of the paths to a node.
fn of_segment(factors: &[f64], node: &Node) -> [f64; 3] {
    let factors = factors.get(node.segment as usize..).and_then(|factors| factors.first_chunk());
    factors.copied().unwrap_or([1.0; 3])
}

fn length_ns(path: &Path, factors: [f64; 3]) -> i64 {
    let scaled = |ns: i64, factor: f64| if factor == 1.0 { ns } else { (ns as f64 * factor).round() as i64 };
    let [host, device, late] = factors;
    scaled(path.host_ns, host) + scaled(path.device_ns, device) + scaled(path.late_ns, late) + path.fixed_ns
}

struct Builder<'a> {
    drafts: Vec<Draft>,
    /// The nodes by which ranks are joined.
    joining: Vec<u32>,
    spans: Vec<Span>,
    /// For each rank, the positions of its first node and its first span.
    firsts: Vec<[u32; 2]>,
    /// Arrival and end of each of its collectives.
    collectives: Vec<Vec<Option<[u32; 2]>>>,
    /// For each rank, the error of its clock.
    errors_ns: Vec<i64>,
    /// The number of collectives of all their ranks that a rank left before another arrived, and of all of them.
    barriers: (usize, usize),
    ranks: &'a [&'a Condensed],
}

impl Builder<'_> {
    fn add_span(&mut self, kind: SpanKind, rank: u32, at: u32, len_ns: i64) -> u32 {
        self.spans.push(Span { kind, rank, at, len_ns, contended_ns: 0 });
        self.spans.len() as u32 - 1
    }

    fn add_rank(&mut self, rank: usize, global: &dyn Fn(usize, i64) -> i64) {
        self.firsts.push([self.drafts.len() as u32, self.spans.len() as u32]);
        let graph = self.ranks[rank];
        for (at, segment) in (0..).zip(&graph.segments) {
            self.add_span(SpanKind::Host, rank as u32, at, segment.host_ns);
            let device = self.add_span(SpanKind::Device, rank as u32, at, segment.device_ns);
            self.spans[device as usize].contended_ns = segment.contended_ns.clamp(0, segment.device_ns.max(0));
            self.add_span(SpanKind::Late, rank as u32, at, segment.late_ns);
        }
        for (kept, node) in (0..).zip(&graph.nodes) {
            let end_ns = global(rank, node.end_ns);
            self.drafts.push(Draft { end_ns, rank: rank as u32, instance: NONE, own: NONE, kept, joined: (0, 0) });
        }
        self.collectives.push(graph.collectives());
    }

    /// The ranks of an instance, with their arrival and their end. These nodes get the position of the instance.
    fn members(&mut self, position: u32, instance: &Joined) -> Vec<(usize, [u32; 2])> {
        let nodes_of = |rank: usize, collective: usize| {
            let nodes = self.collectives.get(rank)?.get(collective).copied()??;
            Some(nodes.map(|node| self.firsts[rank][0] + node))
        };
        let members = instance.arrivals.iter().filter_map(|a| Some((a.rank, nodes_of(a.rank, a.stretch as usize)?)));
        let members: Vec<(usize, [u32; 2])> = members.collect();
        for node in members.iter().flat_map(|(_, nodes)| nodes) {
            self.drafts[*node as usize].instance = position;
        }
        members
    }

    /// Adds what the ranks of an instance wait for.
    fn join(&mut self, position: u32, instance: &Joined, members: Vec<(usize, [u32; 2])>) {
        let ended_ns = |builder: &Self, node: u32| builder.drafts[node as usize].end_ns;
        let ends_ns = || members.iter().map(|(_, [_, leave])| ended_ns(self, *leave));
        let (first_end_ns, last_end_ns) = (ends_ns().min().unwrap_or(0), ends_ns().max().unwrap_or(0));
        let last_ns = members.iter().map(|(_, [arrive, _])| ended_ns(self, *arrive)).max().unwrap_or(0);
        // A rank that left before another arrived did not wait for it, whatever was matched.
        let is_symmetric = instance.symmetric && members.len() > 1;
        let error_ns = members.iter().map(|(rank, _)| self.errors_ns[*rank]).max().unwrap_or(0);
        // Two ranks that leave a message together waited for each other, too.
        let is_pair = instance.sender().is_some() && members.len() == 2 && last_end_ns - first_end_ns <= error_ns;
        let is_barrier = is_symmetric && first_end_ns + error_ns > last_ns || is_pair && first_end_ns >= last_ns;
        self.barriers.0 += usize::from(is_symmetric && !is_barrier);
        self.barriers.1 += usize::from(is_symmetric);
        if !is_barrier {
            for (rank, [_, leave]) in &members {
                let end_ns = ended_ns(self, *leave);
                let is_awaited = |of: usize, arrive: u32| of == *rank || ended_ns(self, arrive) <= end_ns;
                let arrivals = members.iter().filter(|(of, [arrive, _])| is_awaited(*of, *arrive));
                let awaited: Vec<u32> = arrivals.map(|(_, [arrive, _])| *arrive).collect();
                let at = self.segment_of(*rank, *leave);
                let node = self.transfer((position, *rank as u32, at), end_ns, &awaited);
                self.drafts[*leave as usize].joined = self.after(&[node]);
            }
            return;
        }
        let arrivals: Vec<u32> = members.iter().map(|(_, [arrive, _])| *arrive).collect();
        let node = self.transfer((position, NONE, position), first_end_ns, &arrivals);
        let ended_ns = self.drafts[node as usize].end_ns;
        for (rank, [_, leave]) in members {
            let draft = &self.drafts[leave as usize];
            let at = self.segment_of(rank, leave);
            let len_ns = (draft.end_ns - ended_ns).max(0);
            let own = self.add_span(SpanKind::Leaving, rank as u32, at, len_ns);
            let joined = self.after(&[node]);
            let draft = &mut self.drafts[leave as usize];
            (draft.own, draft.joined) = (own, joined);
        }
    }

    fn segment_of(&self, rank: usize, node: u32) -> u32 {
        self.ranks[rank].nodes[self.drafts[node as usize].kept as usize].segment
    }

    /// A transfer from the last of `awaited` to `end_ns`.
    fn transfer(&mut self, (instance, rank, at): (u32, u32, u32), end_ns: i64, awaited: &[u32]) -> u32 {
        let begin_ns = awaited.iter().map(|arrive| self.drafts[*arrive as usize].end_ns).max().unwrap_or(end_ns);
        let end_ns = end_ns.max(begin_ns);
        let own = self.add_span(SpanKind::Transfer, rank, at, end_ns - begin_ns);
        let joined = self.after(awaited);
        self.drafts.push(Draft { end_ns, rank, instance, own, kept: NONE, joined });
        self.drafts.len() as u32 - 1
    }

    /// Joins a draft to these nodes.
    fn after(&mut self, nodes: &[u32]) -> (u32, u32) {
        let from = self.joining.len() as u32;
        self.joining.extend_from_slice(nodes);
        (from, self.joining.len() as u32)
    }

    /// A node, without what follows from the paths to it.
    fn node(&self, draft: &Draft) -> Node {
        let Draft { rank, instance, own, kept, .. } = *draft;
        if kept == NONE {
            return Node { own, ..Node::bare(None, rank, instance) };
        }
        let kept = &self.ranks[rank as usize].nodes[kept as usize];
        let [_, first_span] = self.firsts[rank as usize];
        let (at_ns, segment) = (kept.at_ns, first_span + 3 * kept.segment);
        Node { at_ns, segment, own, ..Node::bare(Some(kept.kind), rank, instance) }
    }

    fn paths_to(&self, draft: &Draft) -> impl ExactSizeIterator<Item = Path> {
        let (from, to) = draft.joined;
        if from < to {
            let joining = &self.joining[from as usize..to as usize];
            return Either::Left(joining.iter().map(|from| Path { from: *from, ..Path::default() }));
        }
        let rank = draft.rank as usize;
        let ([first, _], paths) = (self.firsts[rank], self.ranks[rank].paths_to(draft.kept as usize));
        Either::Right(paths.map(move |path| Path { from: first + path.from, ..path }))
    }

    /// Sorts nodes so that each comes after those that it waits for.
    fn in_order(mut self) -> Option<Graph> {
        let order = order(self.drafts.len(), |node| self.paths_to(&self.drafts[node]).map(|path| path.from))?;
        let place = places(&order, self.drafts.len());
        let origin_ns = self.drafts.iter().map(|draft| draft.end_ns).min()?;
        let spans = std::mem::take(&mut self.spans);
        let paths = (0..self.drafts.len()).map(|node| self.paths_to(&self.drafts[node]).len()).sum();
        let (nodes, paths) = (Vec::with_capacity(order.len()), Paths::with_capacity(paths));
        let mut graph = Graph { nodes, spans, paths, origin_ns, end_ns: 0 };
        for draft in order {
            let draft = &self.drafts[draft as usize];
            let own_ns = graph.spans.get(draft.own as usize).map_or(0, |span| span.len_ns);
            let mut ready_ns = None;
            for path in self.paths_to(draft) {
                let from_ns = self.drafts[path.from as usize].end_ns;
                ready_ns = ready_ns.max(Some(from_ns + length_ns(&path, [1.0; 3])));
                graph.paths.push(Path { from: place[path.from as usize], ..path });
            }
            let rest_ns = draft.end_ns - own_ns - ready_ns.unwrap_or(origin_ns);
            graph.nodes.push(Node { rest_ns, paths_end: graph.paths.len() as u32, ..self.node(draft) });
            graph.end_ns = graph.end_ns.max(draft.end_ns - origin_ns);
        }
        Some(graph)
    }
}

/// The communicators with unknown ranks, if a quarter of their collectives lack some. Such collectives were matched by chance, so they do
/// not show who waited for whom. Those of all `ranks` lack none.
fn of_unknown_ranks(instances: &[Joined], ranks: usize) -> BTreeSet<i64> {
    let mut counts: BTreeMap<i64, (usize, usize)> = BTreeMap::new();
    for instance in instances {
        let (lack, all) = counts.entry(instance.comm_id).or_default();
        *lack += usize::from(instance.whole && !instance.complete && instance.arrivals.len() < ranks);
        *all += 1;
    }
    counts.into_iter().filter(|(_, (lack, all))| 4 * lack > *all).map(|(comm_id, _)| comm_id).collect()
}

/// An order in which each node comes after those that it waits for; `None` if some wait for each other.
fn order<P: Iterator<Item = u32>>(nodes: usize, awaited: impl Fn(usize) -> P) -> Option<Vec<u32>> {
    let mut waiting: Vec<u32> = (0..nodes).map(|node| awaited(node).count() as u32).collect();
    let mut first = vec![0_u32; nodes + 1];
    for from in (0..nodes).flat_map(&awaited) {
        first[from as usize + 1] += 1;
    }
    (1..first.len()).for_each(|at| first[at] += first[at - 1]);
    let mut followers = vec![0_u32; *first.last()? as usize];
    let mut next = first.clone();
    for node in 0..nodes {
        for from in awaited(node) {
            followers[next[from as usize] as usize] = node as u32;
            next[from as usize] += 1;
        }
    }
    let mut ready: VecDeque<u32> = (0..nodes as u32).filter(|node| waiting[*node as usize] == 0).collect();
    let mut order = Vec::with_capacity(nodes);
    while let Some(node) = ready.pop_front() {
        order.push(node);
        for follower in &followers[first[node as usize] as usize..first[node as usize + 1] as usize] {
            waiting[*follower as usize] -= 1;
            if waiting[*follower as usize] == 0 {
                ready.push_back(*follower);
            }
        }
    }
    (order.len() == nodes).then_some(order)
}

/// The place of each of so many nodes in an order.
fn places(order: &[u32], nodes: usize) -> Vec<u32> {
    let mut places = vec![NONE; nodes];
    (0..).zip(order).for_each(|(at, node)| places[*node as usize] = at);
    places
}
