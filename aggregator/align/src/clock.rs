//! Fits one clock for all ranks and estimates its error.
//!
//! The evidence, best first: round trips (`ping`), equal clock domains (`identity`), the barrier rule of collectives
//! (`collective`), wall clocks. Weaker evidence never overrules stronger evidence: it only joins ranks that stronger
//! evidence left apart. Global time is the clock of the reference rank: the lowest rank of the largest joined group.
//!
//! ```text
//!   rank 3 ──ping──▸ rank 2 ──ping──▸ rank 0 ◂──ping── rank 1        a tree: offsets, drifts and errors add up along its paths
//!   rank 5 ──same_host──▸ rank 4 ──collective──▸ rank 0
//! ```
//!
//! Device rows get fits of their own from device-timed collectives, because CUPTI converts device time to host time
//! with an error that differs by device. Where pings or equal clock domains join the hosts, a device differs from its host
//! by this error at most.

mod affine;
mod barrier;
mod bend;
mod choice;
mod clocks;
mod collective;
mod curve;
mod drift;
mod errors;
mod evidence;
mod fit;
mod hosts;
pub(crate) mod identity;
mod jump;
mod lines;
mod map;
mod misfit;
mod ping;
mod polygon;
mod tree;
mod unmatched;

#[cfg(test)]
pub(crate) mod tests;

use std::cmp::Reverse;
use std::collections::BTreeMap;

use trace::{ClockMethod, OmissionRow, SampleKind};

pub use affine::Affine;
pub use clocks::Clocks;
pub use map::Map;

use choice::allows;
use clocks::{DeviceFit, Goodness};
use fit::Fit;
use hosts::Hosts;
use jump::Jumps;
use model::clock_choice::Choice;
use model::{Instance, RankOutline};
use tree::{Forest, Joint, Node, Reached};

/// Fits the clocks of all ranks by the evidence of `choice`. The result does not depend on the order of `ranks`.
pub fn fit(ranks: &[&RankOutline], instances: &[Instance], choice: Choice) -> Clocks {
    let mut ranks = ranks.to_vec();
    ranks.sort_by_key(|r| r.info.rank);
    ranks.dedup_by_key(|r| r.info.rank);
    let (mut clocks, jumps) = fit_jumps(&ranks, instances, choice);
    for (rank, count) in unmatched::unexplained(&ranks, instances, &clocks) {
        clocks.drop_bounds(rank);
        clocks.contradictions.push(unmatched::described(rank, count));
    }
    clocks.list_parts(&jumps);
    clocks
}

/// Fits clocks that may jump, and returns the jumps. `ranks` ascend.
fn fit_jumps(ranks: &[&RankOutline], instances: &[Instance], choice: Choice) -> (Clocks, Jumps) {
    let mut clocks = fit_even(ranks, instances, choice);
    let jumps = if allows(choice, ClockMethod::Collective) { jump::find(instances) } else { Jumps::new() };
    if jumps.is_empty() {
        return (clocks, jumps);
    }
    if clocks.contradictions.is_empty() {
        clocks.widen_bounds(&jumps);
        clocks.contradictions = jump::suspected(&jumps, ranks);
        return (clocks, Jumps::new());
    }
    let (even_ranks, even_instances) = jump::without(&jumps, ranks, instances);
    let even = fit_even(&even_ranks.iter().collect::<Vec<_>>(), &even_instances, choice);
    // Only jumps that explain contradictions are believed.
    if even.contradictions.len() < clocks.contradictions.len() {
        (even.with_jumps(&jumps, ranks), jumps)
    } else {
        (clocks, Jumps::new())
    }
}

/// Fits clocks that do not jump. `ranks` ascend.
fn fit_even(ranks: &[&RankOutline], instances: &[Instance], choice: Choice) -> Clocks {
    let mut contradictions = Vec::new();
    let (mut forest, hosts, devices) = join_all(ranks, instances, choice, &mut contradictions);
    let Some(reference) = reference(&mut forest, ranks) else { return Clocks { contradictions, ..Clocks::default() } };
    let reached = forest.reached(Node::Rank(reference));
    let window = global_window(ranks, &reached);
    let map = |node: Node| reached.get(&node).map_or(Affine::IDENTITY, |at| at.map);
    let joints = forest.joints.iter().map(|j| Goodness::of(&j.fit, j.to, &map(j.from), window)).collect();
    let mut clocks = Clocks { joints, reached, contradictions, ..Clocks::default() };
    for rank in ranks {
        clocks.push_host(&forest, reference, rank.info.rank);
    }
    let best = clocks.rows.iter().filter(|r| r.rank != reference).filter_map(|r| r.method.known()).min();
    if let Some(row) = clocks.rows.iter_mut().find(|r| r.rank == reference) {
        // Identity; named like the best fit to it.
        row.method = best.unwrap_or(ClockMethod::SameHost).into();
    }
    clocks.push_devices(ranks, instances, &hosts, devices, reference, window);
    clocks.number_rows();
    evidence::count_violations(&mut clocks, instances);
    let alone = clocks.left_alone(choice, ranks);
    clocks.contradictions.extend(alone);
    clocks
}

/// Sorts instances by the global time of their last arrival, then by their members, and renumbers them.
pub fn number_by_time(instances: &mut [Instance], clocks: &Clocks) {
    instances.sort_by_cached_key(|i| {
        let arrivals = i.members.iter().map(|m| clocks.global(m.rank, m.device_clock, m.start_ns));
        (arrivals.max(), i.comm_id, i.seq, i.members.first().map(|m| (m.rank, m.index)))
    });
    for (id, instance) in instances.iter_mut().enumerate() {
        instance.id = id as i64;
    }
}

/// Joins the ranks by all permitted evidence, best first. Returns the fits between their devices, too, and the groups of
/// hosts in whose time these are.
fn join_all(
    ranks: &[&RankOutline],
    instances: &[Instance],
    choice: Choice,
    contradictions: &mut Vec<OmissionRow>,
) -> (Forest, Hosts, Vec<DeviceFit>) {
    let mut forest = Forest::default();
    if allows(choice, ClockMethod::Ping) {
        join_by_pings(&mut forest, ranks, contradictions);
    }
    if allows(choice, ClockMethod::SameHost) {
        let (pairs, problems) = identity::shared_clocks(ranks, instances);
        contradictions.extend(problems);
        for (rank, lowest) in pairs {
            // Pings may contradict the claim.
            forest.join(Joint {
                from: Node::Rank(rank),
                to: Node::Rank(lowest),
                fit: Fit::identity(ClockMethod::SameHost),
            });
        }
    }
    let hosts = Hosts::of(&forest, ranks);
    let mut devices = Vec::new();
    if allows(choice, ClockMethod::Collective) {
        let (joints, problems) = evidence::by_collectives(&hosts, instances);
        contradictions.extend(problems);
        for joint in joints {
            forest.join(joint);
        }
        let problems;
        (devices, problems) = evidence::by_device_collectives(ranks, instances, &hosts);
        contradictions.extend(problems);
        for DeviceFit { rank, to, fit } in &devices {
            // CUPTI converts device times to host times, so they also measure the offset between the hosts.
            let fit = fit.borrowed(identity::DEVICE_ERROR_NS);
            forest.join(Joint { from: Node::Rank(hosts.root(*rank).1), to: Node::Rank(hosts.root(*to).1), fit });
        }
    }
    for rank in ranks.iter().filter(|_| allows(choice, ClockMethod::Utc)) {
        if let Some(fit) = utc_fit(rank) {
            forest.join(Joint { from: Node::Rank(rank.info.rank), to: Node::Utc, fit });
        }
    }
    (forest, hosts, devices)
}

/// Joins ranks by round trips, the shortest first. Longer round trips must agree with them.
fn join_by_pings(forest: &mut Forest, ranks: &[&RankOutline], contradictions: &mut Vec<OmissionRow>) {
    let (mut pings, problems) = ping::fit_all(ranks);
    contradictions.extend(problems);
    pings.sort_by_key(|p| (p.half_rtt_ns, p.from, p.to));
    let mut spare = Vec::new();
    for ping::PingFit { from, to, fit, .. } in pings {
        let joint = Joint { from: Node::Rank(from), to: Node::Rank(to), fit };
        if !forest.join(joint.clone()) {
            spare.push(joint);
        }
    }
    contradictions.extend(evidence::open_loops(forest, &spare));
}

/// Fits a rank's clock to the wall clock by its quickest reading. The error is unknown.
fn utc_fit(rank: &RankOutline) -> Option<Fit> {
    let samples = || rank.clock_samples.iter().filter(|s| s.kind == SampleKind::Utc);
    if let Some(best) = samples().min_by_key(|s| (s.rtt_ns, s.local_ns)) {
        let offset_ns = best.remote_ns.checked_sub(best.local_ns)?;
        return Some(Fit::unknown(ClockMethod::Utc, offset_ns, samples().count() as i64));
    }
    identity::is_utc(&rank.info.clock_domain).then(|| Fit::unknown(ClockMethod::Utc, 0, 0))
}

/// The lowest rank of the tree with the most loaded ranks. Among trees of equal size, the tree with the lowest rank
/// wins.
fn reference(forest: &mut Forest, ranks: &[&RankOutline]) -> Option<i32> {
    let mut trees: BTreeMap<Node, (usize, Reverse<i32>)> = BTreeMap::new();
    for rank in ranks.iter().map(|r| r.info.rank) {
        let tree = trees.entry(forest.tree_of(Node::Rank(rank))).or_insert((0, Reverse(rank)));
        tree.0 += 1;
    }
    trees.into_values().max().map(|(_, lowest)| lowest.0)
}

/// The window from the first to the last recorded time of all ranks; from the first to the last clock sample if no rank
/// recorded anything. The window has a margin, because the clocks are mapped with an error.
fn global_window(ranks: &[&RankOutline], reached: &BTreeMap<Node, Reached>) -> (i64, i64) {
    const MARGIN_NS: i64 = 1_000_000;
    let compared = |rank: &RankOutline| {
        let times = || rank.clock_samples.iter().map(|sample| sample.local_ns);
        Some((times().min()?, times().max()?))
    };
    let is_empty = ranks.iter().all(|rank| rank.recorded_ns.is_none());
    let mut window: Option<(i64, i64)> = None;
    for rank in ranks {
        let times = if is_empty { compared(rank) } else { rank.recorded_ns };
        let (Some((from, to)), Some(at)) = (times, reached.get(&Node::Rank(rank.info.rank))) else { continue };
        let (from, to) = (at.map.apply(from), at.map.apply(to));
        let (first, last) = window.unwrap_or((from, to));
        window = Some((first.min(from), last.max(to)));
    }
    let (from, to) = window.unwrap_or_default();
    let margin = MARGIN_NS.saturating_add(to.saturating_sub(from) / 1_000);
    (from.saturating_sub(margin), to.saturating_add(margin))
}
