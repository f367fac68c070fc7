//! Ranks that record the same clock domain, and the check of that claim by their collectives.

use std::collections::BTreeMap;

use trace::OmissionRow;

use crate::align::clock::ping::contradiction;
use crate::model::RankOutline;
use crate::model::{Barrier, Instance, WEAK_SLACK_NS};

/// Share of two ranks' collectives that must break the barrier rule before their common clock is doubted. A few false
/// matches are no evidence against a host's clock.
const DOUBT: f64 = 0.05;
/// Many traces hold whole microseconds: truncation cuts start and length by up to 1 µs each.
pub(crate) const ROUNDING_NS: i64 = 2_000;
/// Error of CUPTI's conversion of device time to host time. Measured: 30 µs between the devices of one host.
pub(crate) const DEVICE_ERROR_NS: i64 = 50_000;

/// Whether a clock domain identifies one clock of one machine.
fn names_a_clock(domain: &str) -> bool {
    !domain.is_empty() && domain != "utc"
}

/// Whether a domain's times are wall-clock times.
pub(crate) fn is_utc(domain: &str) -> bool {
    domain == "utc" || domain.ends_with("/utc")
}

/// Pairs of a rank and the lowest rank that shares its clock. Claims that the collectives contradict are dropped and
/// reported.
pub(crate) fn shared_clocks(ranks: &[&RankOutline], instances: &[Instance]) -> (Vec<(i32, i32)>, Vec<OmissionRow>) {
    let mut domains: BTreeMap<&str, Vec<i32>> = BTreeMap::new();
    for rank in ranks.iter().filter(|r| names_a_clock(&r.info.clock_domain)) {
        domains.entry(&rank.info.clock_domain).or_default().push(rank.info.rank);
    }
    let mut shared = Vec::new();
    let mut omissions = Vec::new();
    for (domain, members) in domains.into_iter().filter(|(_, members)| members.len() > 1) {
        let mut sharing = members.clone();
        for outsider in outsiders(&members, instances) {
            sharing.retain(|r| *r != outsider);
            let why = format!(
                "rank {outsider} records the clock domain {domain:?} of other ranks, but on one clock their collectives would end \
                 before they begin: its clock is fitted as if it were on another host"
            );
            omissions.push(contradiction(outsider, 1, &why));
        }
        shared.extend(sharing.iter().skip(1).map(|rank| (*rank, sharing[0])));
    }
    (shared, omissions)
}

/// The ranks to exclude so that no two of the rest break the barrier rule. Ranks that break it with the most others go
/// first.
fn outsiders(members: &[i32], instances: &[Instance]) -> Vec<i32> {
    let barriers = || instances.iter().filter(|i| i.barrier != Barrier::OneSided);
    let of_domain = |i: &'_ Instance| -> Vec<(i32, i64, i64)> {
        let weak = if i.barrier == Barrier::Weak { WEAK_SLACK_NS } else { 0 };
        let ours = i.members.iter().filter(|m| members.binary_search(&m.rank).is_ok());
        ours.map(|m| {
            // Device times are converted to host times; the conversion has an error at either end.
            let slack = ROUNDING_NS + weak + if m.device_clock { 2 * DEVICE_ERROR_NS } else { 0 };
            // A rank that has not left cannot break the rule.
            (m.rank, m.start_ns, m.end_ns.map_or(i64::MAX, |end| end.saturating_add(slack)))
        })
        .collect()
    };
    let broken = |here: &[(i32, i64, i64)]| here.iter().map(|m| m.2).min() < here.iter().map(|m| m.1).max();
    // Usually nothing is broken; skip the pairs then.
    if !barriers().any(|i| broken(&of_domain(i))) {
        return Vec::new();
    }
    // By pair: (instances of both, instances that break the rule).
    let mut pairs: BTreeMap<(i32, i32), (u32, u32)> = BTreeMap::new();
    for here in barriers().map(of_domain) {
        for (i, a) in here.iter().enumerate() {
            for b in &here[i + 1..] {
                let count = pairs.entry((a.0, b.0)).or_default();
                count.0 += 1;
                count.1 += u32::from(broken(&[*a, *b]));
            }
        }
    }
    let mut apart: Vec<(i32, i32)> = pairs
        .into_iter()
        .filter(|(_, (all, broken))| f64::from(*broken) > DOUBT * f64::from(*all))
        .map(|(pair, _)| pair)
        .collect();
    let mut outsiders = Vec::new();
    while !apart.is_empty() {
        let doubts = |rank: i32| apart.iter().filter(|(a, b)| *a == rank || *b == rank).count();
        // Of two ranks that contradict each other, exclude the higher one.
        let Some(worst) = members.iter().copied().max_by_key(|r| (doubts(*r), *r)) else { break };
        apart.retain(|(a, b)| *a != worst && *b != worst);
        outsiders.push(worst);
    }
    outsiders.sort_unstable();
    outsiders
}
