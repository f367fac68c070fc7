//! The work that a slow rank would have done without what makes it slow.
//!
//! ```text
//!   step              1          2          3
//!   typical rank      ####       ####       ####
//!   slow rank         ########+  #########  ########      three or four columns more; what varies is its own
//!   without           ####+      #####      ####
//! ```
//!
//! A typical rank does not vary, but every rank does, and in a large job the latest of many sets the time. So a slow rank keeps its
//! variation, as far as other ranks vary as much: only what is *steady* goes. That is the median over steps of its excess at the same
//! place of a step; or, if the verdict stands on a host range, the excess of that range in each step, at the places where the rank
//! works longer.

use std::collections::{BTreeMap, BTreeSet};

use rustc_hash::FxHashMap;

use crate::nodes::{Node, Work};
use crate::replay::Replay;
use model::stats::median_ns;

/// A rank varies by no more than this many standard deviations of the others.
const VARIES_SIGMAS: i64 = 3;
/// A range is in the places whose excess is at least this share of the largest one of the step.
const PLACE_SHARE: i64 = 10;

/// What makes a rank slow.
#[derive(Clone, Debug)]
pub(super) enum Fault {
    /// Its excess in these steps; in all that count, if it is `None`.
    Steady(Option<BTreeSet<i32>>),
    /// The excess of host ranges in each step.
    Ranges(BTreeMap<i32, i64>),
}

/// For each node of some ranks, the work without what makes the rank slow.
pub(super) fn works(replay: &Replay, faults: &BTreeMap<usize, Fault>) -> FxHashMap<u32, Work> {
    let mut nodes: BTreeMap<usize, BTreeMap<i32, Vec<u32>>> = BTreeMap::new();
    for (at, node) in (0..).zip(&replay.nodes) {
        let step = replay.step_of[node.instance as usize];
        if let Some(step) = step.filter(|_| faults.contains_key(&(node.rank as usize))) {
            nodes.entry(node.rank as usize).or_default().entry(step).or_default().push(at);
        }
    }
    let mut works = FxHashMap::default();
    for (rank, steps) in nodes {
        match &faults[&rank] {
            Fault::Steady(late) => steady(replay, &steps, late.as_ref(), &mut works),
            Fault::Ranges(excess_ns) => {
                for (step, nodes) in &steps {
                    let of_step = excess_ns.get(step).copied().unwrap_or(0);
                    ranges(replay, nodes, of_step, &mut works);
                }
            }
        }
    }
    works
}

fn excess_ns(node: &Node) -> i64 {
    node.work.own_ns - node.typical.own_ns
}

/// The work of a node that is shorter by `fault_ns`.
fn without(node: &Node, fault_ns: i64) -> Work {
    let most_ns = VARIES_SIGMAS * node.sigma_ns;
    let varies_ns = (excess_ns(node) - fault_ns).clamp(-most_ns, most_ns);
    let beside = |typical_ns: i64| (typical_ns + varies_ns).max(0);
    Work { own_ns: beside(node.typical.own_ns), after_ns: beside(node.typical.after_ns) }
}

/// The median over `late` steps of the excess at each place goes. Where steps differ in their places, the whole excess does.
fn steady(
    replay: &Replay,
    steps: &BTreeMap<i32, Vec<u32>>,
    late: Option<&BTreeSet<i32>>,
    works: &mut FxHashMap<u32, Work>,
) {
    let is_late = |step: &i32| late.is_none_or(|late| late.contains(step));
    let places = steps.iter().find(|(step, _)| is_late(step)).map_or(0, |(_, nodes)| nodes.len());
    // Ranks that send and receive have no fixed order of these in a step.
    let mut late_steps = steps.iter().filter(|(step, _)| is_late(step));
    let is_alike = !replay.has_sends && late_steps.all(|(_, nodes)| nodes.len() == places);
    let node = |at: &u32| &replay.nodes[*at as usize];
    let center = |place: usize| {
        let of_steps = steps.iter().filter(|(step, _)| is_late(step));
        let values: Vec<i64> = of_steps.map(|(_, nodes)| excess_ns(node(&nodes[place]))).collect();
        median_ns(&values).unwrap_or(0)
    };
    let centers_ns: Option<Vec<i64>> = is_alike.then(|| (0..places).map(center).collect());
    for (step, nodes) in steps {
        for (place, at) in nodes.iter().enumerate() {
            let work = match &centers_ns {
                _ if !is_late(step) => node(at).work,
                Some(centers_ns) => without(node(at), centers_ns[place]),
                None => node(at).typical,
            };
            works.insert(*at, work);
        }
    }
}

/// The excess of ranges in a step goes from the places where the rank works longer, in proportion.
fn ranges(replay: &Replay, nodes: &[u32], fault_ns: i64, works: &mut FxHashMap<u32, Work>) {
    let node = |at: &u32| &replay.nodes[*at as usize];
    let largest_ns = nodes.iter().map(|at| excess_ns(node(at))).max().unwrap_or(0);
    let share_ns = |at: &u32| match excess_ns(node(at)) {
        ns if ns > 0 && ns >= largest_ns / PLACE_SHARE => ns,
        _ => 0,
    };
    let all_ns = nodes.iter().map(share_ns).fold(0_i64, i64::saturating_add).max(1);
    for at in nodes {
        let of_node = fault_ns as f64 * (share_ns(at) as f64 / all_ns as f64);
        works.insert(*at, without(node(at), of_node.round() as i64));
    }
}
