//! Converts instances into evidence for the fits, and checks the fits against the instances.

use std::collections::BTreeMap;

use trace::{ClockSide, MaybeNs, OmissionRow};

use crate::clock::clocks::{Clocks, DeviceFit};
use crate::clock::collective::{self, Driven, Evidence, Fitted, Part};
use crate::clock::errors::along;
use crate::clock::fit::Fit;
use crate::clock::hosts::{Hosts, Place, here};
use crate::clock::identity::ROUNDING_NS;
use crate::clock::ping::contradiction;
use crate::clock::tree::{Forest, Joint, Node, path};
use model::{Barrier, Instance, RankOutline, WEAK_SLACK_NS};

/// Checks redundant pings: those between ranks that other pings already connect must agree with them.
pub(super) fn open_loops(forest: &Forest, spare: &[Joint]) -> Vec<OmissionRow> {
    let mut problems = Vec::new();
    for joint in spare {
        let reached = forest.reached(joint.to);
        let (Node::Rank(from), Node::Rank(to), Some(other)) = (joint.from, joint.to, reached.get(&joint.from)) else {
            continue;
        };
        let at = joint.fit.map.origin_ns;
        let apart = joint.fit.map.apply(at).abs_diff(other.map.apply(at));
        let bounds = path(&reached, joint.from, joint.to).unwrap_or_default();
        let bounds = bounds
            .iter()
            .map(|j| forest.joints[*j].fit.bound_ns(here(&forest.joints[*j])))
            .chain([joint.fit.bound_ns((at, at))]);
        let Some(allowed) = along(bounds) else { continue };
        if apart > allowed.unsigned_abs() {
            let why = format!(
                "the round trips between rank {from} and rank {to} disagree with the path through other ranks by {apart} ns; at \
                 most {allowed} ns are possible"
            );
            problems.push(contradiction(from, 1, &why));
        }
    }
    problems
}

/// Joints from collectives between groups of hosts. Each group moves as a whole.
pub(super) fn by_collectives(hosts: &Hosts, instances: &[Instance]) -> (Vec<Joint>, Vec<OmissionRow>) {
    let Hosts { places, roots } = hosts;
    if roots.len() < 2 {
        return (Vec::new(), Vec::new());
    }
    let evidence = evidence_of(instances, places, false);
    let Fitted { fits, contradictions } = collective::fit_all(evidence, roots.len(), &[]);
    let joint = |(clock, to, fit): (usize, usize, Fit)| Joint {
        from: Node::Rank(roots[clock]),
        to: Node::Rank(roots[to]),
        fit,
    };
    (fits.into_iter().map(joint).collect(), describe(contradictions, roots, "host", instances))
}

/// Fits between the ranks' device clocks, each in the time of its group of hosts.
pub(super) fn by_device_collectives(
    ranks: &[&RankOutline],
    instances: &[Instance],
    hosts: &Hosts,
) -> (Vec<DeviceFit>, Vec<OmissionRow>) {
    let ids: Vec<i32> = ranks.iter().map(|r| r.info.rank).collect();
    let of_group = |rank: &i32| hosts.places.get(rank);
    // The fit is that of the device after the map of its host, so the error of this map adds nothing.
    let place = |(clock, rank): (usize, &i32)| {
        let place = *of_group(rank)?;
        Some((*rank, Place { clock, slack_ns: 0, ..place }))
    };
    let places = ids.iter().enumerate().filter_map(place).collect();
    let evidence = evidence_of(instances, &places, true);
    let driven = |rank: &i32| of_group(rank).map(|place| Driven { host: place.clock, error_ns: place.error_ns });
    let driven: Vec<Driven> = ids.iter().filter_map(driven).collect();
    let Fitted { fits, contradictions } = collective::fit_all(evidence, ids.len(), &driven);
    let fits = fits.into_iter().map(|(clock, to, fit)| DeviceFit { rank: ids[clock], to: ids[to], fit }).collect();
    (fits, describe(contradictions, &ids, "device", instances))
}

/// Barriers with each clock once: for ranks that share a clock, the last arrival and the first departure count.
fn evidence_of(instances: &[Instance], places: &BTreeMap<i32, Place>, device: bool) -> Vec<Evidence> {
    let rounding = rounding(instances);
    let mut evidence = Vec::new();
    for (position, instance) in instances.iter().enumerate().filter(|(_, i)| i.barrier != Barrier::OneSided) {
        let weak = instance.barrier == Barrier::Weak;
        let mut parts: BTreeMap<usize, Part> = BTreeMap::new();
        for member in instance.members.iter().filter(|m| m.device_clock == device) {
            let Some(place) = places.get(&member.rank) else { continue };
            let half_weak = if weak { WEAK_SLACK_NS / 2 } else { 0 };
            let slack = place.slack_ns.saturating_add(half_weak);
            let start_ns = place.map.apply(member.start_ns).saturating_sub(slack);
            let left_ns = member.end_ns.map(|end| place.map.apply(end));
            let end_ns = left_ns.map(|end| end.saturating_add(slack).saturating_add(rounding));
            let first = |a: MaybeNs, b: Option<i64>| MaybeNs::of(a.get().into_iter().chain(b).min());
            let part =
                Part { clock: place.clock, start_ns, end_ns: MaybeNs::of(end_ns), left_ns: MaybeNs::of(left_ns) };
            parts
                .entry(place.clock)
                .and_modify(|p| {
                    p.start_ns = p.start_ns.max(start_ns);
                    p.end_ns = first(p.end_ns, end_ns);
                    p.left_ns = first(p.left_ns, left_ns);
                })
                .or_insert(part);
        }
        if parts.len() > 1 {
            evidence.push(Evidence { instance: position as i64, weak, parts: parts.into_values().collect() });
        }
    }
    evidence
}

/// Possible loss by rounding: whole microseconds lose up to one at the start and one in the length.
fn rounding(instances: &[Instance]) -> i64 {
    let mut times = instances.iter().flat_map(|i| &i.members).flat_map(|m| Some((m.start_ns, m.end_ns?)));
    // Check lengths instead of times, because a shifted clock need not be at whole microseconds.
    if times.all(|(start, end)| end.saturating_sub(start) % 1_000 == 0) { ROUNDING_NS } else { 2 }
}

fn describe(
    contradictions: Vec<(Vec<i64>, Vec<usize>)>,
    ranks: &[i32],
    clock: &str,
    instances: &[Instance],
) -> Vec<OmissionRow> {
    let row = |(positions, clocks): (Vec<i64>, Vec<usize>)| {
        let members: Vec<String> = clocks.iter().map(|c| ranks[*c].to_string()).collect();
        let named = positions.iter().filter_map(|k| instances.get(*k as usize)).map(describe_instance);
        let why = format!(
            "ranks {}: no offsets of their {clock} clocks let every rank enter before the first one leaves in all of these collectives: \
             {}. A false match, a one-sided operation or a clock that jumped is the cause. These collectives are not used to align the \
             clocks, and these ranks have no guaranteed error",
            members.join(", "),
            named.collect::<Vec<_>>().join("; ")
        );
        let rank = clocks.iter().map(|c| ranks[*c]).max().unwrap_or_default();
        contradiction(rank, positions.len() as i64, &why)
    };
    contradictions.into_iter().map(row).collect()
}

/// Describes an instance by properties that do not change when instances are renumbered.
fn describe_instance(instance: &Instance) -> String {
    let Instance { op, seq, members, .. } = instance;
    let number = seq.map(|seq| format!(" number {seq}")).unwrap_or_default();
    let entered = members.first().map(|m| format!(", entered by rank {} at {} ns of its clock", m.rank, m.start_ns));
    format!("{op}{number}{}", entered.unwrap_or_default())
}

/// Counts, for every clock, the barriers that it left before another rank had entered, by more than the bounds of both
/// ranks.
pub(super) fn count_violations(clocks: &mut Clocks, instances: &[Instance]) {
    let rounding = rounding(instances);
    let mut counts: BTreeMap<(i32, bool), i64> = BTreeMap::new();
    for instance in instances.iter().filter(|i| i.barrier != Barrier::OneSided) {
        let slack = if instance.barrier == Barrier::Weak { WEAK_SLACK_NS } else { rounding };
        let bound = |rank: i32, device: bool| {
            let row = clocks.row(rank, device);
            row.and_then(|r| r.bound_ns.or(r.error_ns.max(r.bias_ns))).unwrap_or(0)
        };
        for device in [false, true] {
            let members = || instance.members.iter().filter(|m| m.device_clock == device);
            let entered =
                members().map(|m| clocks.global(m.rank, device, m.start_ns).saturating_sub(bound(m.rank, device)));
            let Some(last_in) = entered.max() else { continue };
            for member in members() {
                let Some(end) = member.end_ns else { continue };
                let latest = clocks.global(member.rank, device, end).saturating_add(bound(member.rank, device));
                if latest.saturating_add(slack) < last_in {
                    *counts.entry((member.rank, device)).or_default() += 1;
                }
            }
        }
    }
    for row in &mut clocks.rows {
        row.violations = counts.get(&(row.rank, row.clock == ClockSide::Device)).copied().unwrap_or(0);
    }
}
