//! Ranks that say they share one clock, and whether their collectives agree.

use std::collections::BTreeMap;

use trace::OmissionRow;

use super::RankClock;
use super::ping::note;
use crate::model::{Barrier, Instance, WEAK_SLACK_NS};

/// Of two ranks' collectives, more than this share must break the barrier rule before their common clock is doubted: a
/// few false matches are no evidence against a host's clock.
const DOUBT: f64 = 0.05;
/// Times of many traces are whole microseconds: start and length are each cut by up to one.
pub(crate) const ROUNDING_NS: i64 = 2_000;
/// How far CUPTI's conversion of device time may be off host time. Measured: 30 µs between the devices of one host.
pub(crate) const DEVICE_ERROR_NS: i64 = 50_000;

/// Whether a clock domain names one clock of one machine.
fn names_a_clock(domain: &str) -> bool {
    !domain.is_empty() && domain != "utc"
}

/// Whether a domain's times are wall-clock times.
pub(crate) fn is_utc(domain: &str) -> bool {
    domain == "utc" || domain.ends_with("/utc")
}

/// For each rank that shares a clock with a lower one: itself, and the lowest. What the collectives say is impossible
/// is left out and reported.
pub(crate) fn shared_clocks(ranks: &[RankClock<'_>], instances: &[Instance]) -> (Vec<(i32, i32)>, Vec<OmissionRow>) {
    let mut domains: BTreeMap<&str, Vec<i32>> = BTreeMap::new();
    for rank in ranks.iter().filter(|r| names_a_clock(&r.info.clock_domain)) {
        domains.entry(&rank.info.clock_domain).or_default().push(rank.info.rank);
    }
    let mut shared = Vec::new();
    let mut omissions = Vec::new();
    for (domain, members) in domains.into_iter().filter(|(_, members)| members.len() > 1) {
        let mut kept = members.clone();
        for outsider in outsiders(&members, instances) {
            kept.retain(|r| *r != outsider);
            let why = format!(
                "rank {outsider} names the clock domain {domain:?} of other ranks, but collectives between them would have ended \
                 before they began: its clock is fitted like one of another host"
            );
            omissions.push(note(outsider, "clock contradiction", 1, &why));
        }
        shared.extend(kept.iter().skip(1).map(|rank| (*rank, kept[0])));
    }
    (shared, omissions)
}

/// The ranks to leave out so that no two of the rest break the barrier rule; those that break it with most others
/// first.
fn outsiders(members: &[i32], instances: &[Instance]) -> Vec<i32> {
    let barriers = || instances.iter().filter(|i| i.barrier != Barrier::OneSided);
    let of_domain = |i: &'_ Instance| -> Vec<(i32, i64, i64)> {
        let weak = if i.barrier == Barrier::Weak { WEAK_SLACK_NS } else { 0 };
        let ours = i.members.iter().filter(|m| members.binary_search(&m.rank).is_ok());
        ours.map(|m| {
            // Device times are host times too, but for the error of the conversion at either end.
            let slack = ROUNDING_NS + weak + if m.device_clock { 2 * DEVICE_ERROR_NS } else { 0 };
            // A rank that has not left breaks no rule.
            (m.rank, m.start_ns, m.end_ns.map_or(i64::MAX, |end| end.saturating_add(slack)))
        })
        .collect()
    };
    let broken = |here: &[(i32, i64, i64)]| here.iter().map(|m| m.2).min() < here.iter().map(|m| m.1).max();
    // As a rule nothing is broken, and then pairs need not be looked at.
    if !barriers().any(|i| broken(&of_domain(i))) {
        return Vec::new();
    }
    // (instances of both, instances that break the rule) by pair.
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
        // Of two that doubt each other, the higher goes.
        let Some(worst) = members.iter().copied().max_by_key(|r| (doubts(*r), *r)) else { break };
        apart.retain(|(a, b)| *a != worst && *b != worst);
        outsiders.push(worst);
    }
    outsiders.sort_unstable();
    outsiders
}
