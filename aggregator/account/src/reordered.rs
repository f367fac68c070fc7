//! The run with its calls in another order.
//!
//! If every collective blocks its rank, the work that the rank calls after it begins when the rank has left it:
//!
//! ```text
//!   recorded   host    |a|A|b|c|              blocked   host    |a|A|b|c|
//!              device    #a##b##c#                      device    #a#~~~~~~#b##c#
//!              A           ~~~~~~~                      A           ~~~~~~~
//! ```
//!
//! If all-gathers are called early, each is called with the one before it of its communicator and step. What it gathers is known by
//! then, as the parameters of a layer are.

use std::collections::{BTreeMap, BTreeSet};

use measure::graph::{NodeKind, Path};

use crate::contention::Contention;
use crate::graph::{Changes, Graph, NONE};
use crate::scaled::Scaled;

impl Scaled {
    /// The same run with collectives that block; `None` if ranks then wait for each other for ever.
    pub(crate) fn blocked(&self, ranks: usize) -> Option<Self> {
        let mut changed: BTreeMap<u32, Vec<Path>> = BTreeMap::new();
        for (to, path) in behind_collectives(&self.graph) {
            changed.entry(to).or_insert_with(|| self.graph.paths_to(to as usize).collect()).push(path);
        }
        self.changed(&Changes::of_paths(changed), ranks)
    }

    /// The same run with all-gathers that are called early; `None` if it has none that could be. `gathers` says of each instance
    /// whether it is one.
    pub(crate) fn with_early_gathers(&self, gathers: &dyn Fn(u32) -> bool, ranks: usize) -> Option<Self> {
        let mut calls: BTreeMap<(u32, i64), Vec<Gather>> = BTreeMap::new();
        let mut left: BTreeMap<(u32, u32), u32> = BTreeMap::new();
        for (at, node) in
            (0..).zip(&self.graph.nodes).filter(|(_, node)| node.instance != NONE && gathers(node.instance))
        {
            let of_rank = (node.rank, self.comm_of[node.instance as usize]);
            match node.kind {
                Some(NodeKind::Arrive) => {
                    calls.entry(of_rank).or_default().push(Gather { arrive: at, at_ns: node.at_ns })
                }
                Some(NodeKind::Leave) => _ = left.insert((node.rank, node.instance), at),
                _ => {}
            }
        }
        let mut changed: BTreeMap<u32, Vec<Path>> = BTreeMap::new();
        for gathers in calls.values_mut() {
            gathers.sort_by_key(|gather| (gather.at_ns, gather.arrive));
            for pair in gathers.windows(2) {
                let [before, gather] = [pair[0].arrive, pair[1].arrive];
                let of_before = &self.graph.nodes[before as usize];
                let Some(leave) = left.get(&(of_before.rank, of_before.instance)) else { continue };
                if self.passed[before as usize] == self.passed[gather as usize] {
                    let mut paths: Vec<Path> = self.graph.paths_to(before as usize).collect();
                    paths.push(Path { from: *leave, ..Path::default() });
                    changed.insert(gather, paths);
                }
            }
        }
        if changed.is_empty() { None } else { self.changed(&Changes::of_paths(changed), ranks) }
    }

    /// The same run with changes; `None` if ranks then wait for each other for ever.
    pub(crate) fn changed(&self, changes: &Changes, ranks: usize) -> Option<Self> {
        let (graph, order) = self.graph.changed(changes)?;
        let passed_of = |node: &u32| match (*node as usize).checked_sub(self.passed.len()) {
            None => self.passed[*node as usize],
            Some(added) => changes.added[added].2,
        };
        let passed: Vec<u32> = order.iter().map(passed_of).collect();
        let contention = Contention::of(&graph, ranks, &passed, self.begins_step.len());
        let (steps, comm_of, begins_step) = (self.steps.clone(), self.comm_of.clone(), self.begins_step.clone());
        Some(Self { graph, comm_of, passed, steps, begins_step, contention })
    }
}

/// The arrival at an all-gather, and when it was called.
struct Gather {
    arrive: u32,
    at_ns: i64,
}

/// For each path from a host to work that follows calls of collectives, the work from where the rank left these. The work of a rank
/// without devices is that of its host.
fn behind_collectives(graph: &Graph) -> Vec<(u32, Path)> {
    let mut left: BTreeMap<(u32, u32), Vec<u32>> = BTreeMap::new();
    let mut has_device = BTreeSet::new();
    for (at, node) in (0..).zip(&graph.nodes) {
        match node.kind {
            Some(NodeKind::Leave) => left.entry((node.rank, node.segment)).or_default().push(at),
            Some(NodeKind::Work) => _ = has_device.insert(node.rank),
            _ => {}
        }
    }
    let mut called: BTreeMap<(u32, u32), Vec<(u32, Path)>> = BTreeMap::new();
    for (at, node) in (0..).zip(&graph.nodes) {
        let on_device = has_device.contains(&node.rank);
        let works = match node.kind {
            Some(NodeKind::Work) => true,
            Some(NodeKind::Host | NodeKind::Wait | NodeKind::Arrive) => !on_device,
            _ => false,
        };
        for path in graph.paths_to(at as usize).filter(|_| works) {
            // A rank that calls a collective right after another one has no host between them.
            let by_host = matches!(
                graph.nodes[path.from as usize].kind,
                Some(NodeKind::Begin | NodeKind::Host | NodeKind::Wait | NodeKind::Arrive)
            );
            if by_host {
                let work = if on_device { Path { device_ns: path.device_ns, ..Path::default() } } else { path };
                // The collective that is called at the end of the path does not block it.
                let from_segment = node.segment + u32::from(node.kind != Some(NodeKind::Arrive));
                called.entry((node.rank, from_segment)).or_default().push((at, work));
            }
        }
    }
    // The calls since the work before.
    let mut since: BTreeMap<u32, u32> = BTreeMap::new();
    let mut behind = Vec::new();
    for ((rank, end), work) in called {
        let begin = since.insert(rank, end).unwrap_or(0);
        for left in left.range((rank, begin)..(rank, end)).flat_map(|(_, left)| left) {
            behind.extend(work.iter().map(|(to, path)| (*to, Path { from: *left, ..*path })));
        }
    }
    behind
}
