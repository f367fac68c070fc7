//! Ranks that record the same clock domain, and the check of that claim by their collectives.

use std::collections::{BTreeMap, BTreeSet};

use rustc_hash::FxHashMap;
use trace::OmissionRow;

use crate::clock::ping::contradiction;
use model::RankOutline;
use model::{Barrier, Instance, Member, WEAK_SLACK_NS};

/// Share of two ranks' collectives that must break the barrier rule before their common clock is doubted. A few false
/// matches are no evidence against a host's clock.
const DOUBT: f64 = 0.05;
/// Many traces hold whole microseconds: truncation cuts start and length by up to 1 µs each.
pub(crate) const ROUNDING_NS: i64 = 2_000;
/// Error of CUPTI's conversion of device time to host time. Measured: 30 µs between the devices of one host.
pub(crate) const DEVICE_ERROR_NS: i64 = 50_000;

/// Whether a clock domain identifies one clock of one machine.
pub(crate) fn names_a_clock(domain: &str) -> bool {
    !domain.is_empty() && domain != "utc"
}

/// Whether a domain's times are wall-clock times.
pub(crate) fn is_utc(domain: &str) -> bool {
    domain == "utc" || domain.ends_with("/utc")
}

/// Ranks of one clock domain up to which each two are compared. No machine runs more.
const PAIRED_MAX: usize = 1024;

/// Pairs of a rank and the lowest rank that shares its clock. Claims that the collectives contradict are dropped and
/// reported.
pub(crate) fn shared_clocks(ranks: &[&RankOutline], instances: &[Instance]) -> (Vec<(i32, i32)>, Vec<OmissionRow>) {
    let mut domains: BTreeMap<&str, Vec<i32>> = BTreeMap::new();
    for rank in ranks.iter().filter(|r| names_a_clock(&r.info.clock_domain)) {
        domains.entry(&rank.info.clock_domain).or_default().push(rank.info.rank);
    }
    domains.retain(|_, members| members.len() > 1);
    let mut broken = broken_domains(&domains, instances);
    let mut shared = Vec::new();
    let mut omissions = Vec::new();
    for (number, (domain, members)) in domains.into_iter().enumerate() {
        let mut sharing = members.clone();
        let meetings = broken.remove(&number).unwrap_or_default();
        if !meetings.is_empty() && members.len() > PAIRED_MAX {
            sharing.truncate(1);
            let why = format!(
                "{} ranks record the clock domain {domain:?}, but on one clock their collectives would end before they begin, and \
                 more than {PAIRED_MAX} ranks are not compared with each other: their clocks are fitted as if each were on \
                 another host",
                members.len()
            );
            omissions.push(contradiction(None, members.len() as i64, &why));
        } else {
            for outsider in outsiders(&members, &meetings) {
                sharing.retain(|r| *r != outsider);
                let why = format!(
                    "rank {outsider} records the clock domain {domain:?} of other ranks, but on one clock their collectives would end \
                     before they begin: its clock is fitted as if it were on another host"
                );
                omissions.push(contradiction(outsider, 1, &why));
            }
        }
        shared.extend(sharing.iter().skip(1).map(|rank| (*rank, sharing[0])));
    }
    (shared, omissions)
}

/// A rank of a domain at one collective.
#[derive(Clone, Copy)]
struct Meeting {
    /// Its position among the members of the domain.
    member: usize,
    start_ns: i64,
    /// With the error of both times.
    end_ns: i64,
}

/// The collectives at which ranks of one domain met, by the number of the domain. Usually no rank ends before another one
/// begins; domains in which none does are left out.
fn broken_domains(domains: &BTreeMap<&str, Vec<i32>>, instances: &[Instance]) -> BTreeMap<usize, Vec<Vec<Meeting>>> {
    let mut broken: BTreeMap<usize, Vec<Vec<Meeting>>> = BTreeMap::new();
    if domains.is_empty() {
        return broken;
    }
    let of_domain = |(number, members): (usize, &Vec<i32>)| -> Vec<(i32, (usize, usize))> {
        members.iter().enumerate().map(|(at, rank)| (*rank, (number, at))).collect()
    };
    let places: FxHashMap<i32, (usize, usize)> = domains.values().enumerate().flat_map(of_domain).collect();
    let barriers = || instances.iter().filter(|i| i.barrier != Barrier::OneSided);
    let by_domain = |i: &Instance| -> Vec<(usize, Meeting)> {
        let weak = if i.barrier == Barrier::Weak { WEAK_SLACK_NS } else { 0 };
        let met = |m: &Member| {
            let (domain, at) = *places.get(&m.rank)?;
            // Device times are converted to host times; the conversion has an error at either end.
            let slack = ROUNDING_NS + weak + if m.device_clock { 2 * DEVICE_ERROR_NS } else { 0 };
            // A rank that has not left cannot break the rule.
            let end_ns = m.end_ns.map_or(i64::MAX, |end| end.saturating_add(slack));
            Some((domain, Meeting { member: at, start_ns: m.start_ns, end_ns }))
        };
        let mut met: Vec<(usize, Meeting)> = i.members.iter().filter_map(met).collect();
        met.sort_by_key(|(domain, _)| *domain);
        met
    };
    let is_broken = |here: &&[(usize, Meeting)]| {
        here.iter().map(|(_, met)| met.end_ns).min() < here.iter().map(|(_, met)| met.start_ns).max()
    };
    for met in barriers().map(by_domain) {
        for here in met.chunk_by(|a, b| a.0 == b.0).filter(is_broken) {
            broken.entry(here[0].0).or_default();
        }
    }
    if broken.is_empty() {
        return broken;
    }
    for met in barriers().map(by_domain) {
        for here in met.chunk_by(|a, b| a.0 == b.0) {
            if let Some(meetings) = broken.get_mut(&here[0].0) {
                meetings.push(here.iter().map(|(_, met)| *met).collect());
            }
        }
    }
    broken
}

/// The ranks to exclude so that no two of the rest break the barrier rule. Ranks that break it with the most others go
/// first. `meetings` have the positions of the ranks among `members`.
fn outsiders(members: &[i32], meetings: &[Vec<Meeting>]) -> Vec<i32> {
    if meetings.is_empty() {
        return Vec::new();
    }
    let n = members.len();
    // By pair: instances of both, instances that break the rule.
    let mut pairs = vec![(0_u32, 0_u32); n * n];
    for here in meetings {
        for (i, a) in here.iter().enumerate() {
            for b in &here[i + 1..] {
                let broken = u32::from(a.end_ns.min(b.end_ns) < a.start_ns.max(b.start_ns));
                // The members of an instance ascend.
                let count = &mut pairs[a.member * n + b.member];
                *count = (count.0 + 1, count.1 + broken);
            }
        }
    }
    let doubted = |a: usize, b: usize| {
        let (all, broken) = pairs[a.min(b) * n + a.max(b)];
        f64::from(broken) > DOUBT * f64::from(all)
    };
    let mut apart: Vec<BTreeSet<usize>> = (0..n).map(|a| (0..n).filter(|b| doubted(a, *b)).collect()).collect();
    let mut outsiders = Vec::new();
    // Of two ranks that contradict each other, exclude the higher one.
    while let Some(worst) = (0..n).filter(|a| !apart[*a].is_empty()).max_by_key(|a| (apart[*a].len(), members[*a])) {
        for other in std::mem::take(&mut apart[worst]) {
            apart[other].remove(&worst);
        }
        outsiders.push(members[worst]);
    }
    outsiders.sort_unstable();
    outsiders
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use trace::MatchLevel;

    use super::*;
    use model::RankInfo;

    /// Ranks of the given domains.
    fn ranks(domains: &[String]) -> Vec<RankOutline> {
        let info =
            |(rank, domain): (i32, &String)| RankInfo { rank, clock_domain: domain.clone(), ..RankInfo::default() };
        (0..).zip(domains).map(|at| RankOutline { info: info(at), ..RankOutline::default() }).collect()
    }

    /// A collective of all ranks with these starts, each 10 µs long.
    fn instance(starts_ns: &[i64]) -> Instance {
        let member = |(rank, start_ns): (i32, &i64)| Member {
            rank,
            index: 0,
            start_ns: *start_ns,
            end_ns: Some(start_ns + 10_000),
            device_clock: false,
        };
        Instance {
            id: 0,
            comm_id: 1,
            seq: None,
            op: "allreduce".into(),
            bytes: None,
            shares: model::Shares::Equal,
            step: None,
            sender: None,
            bucket: None,
            ranks_expected: None,
            fused: false,
            level: MatchLevel::Seq,
            barrier: Barrier::Strict,
            members: (0..).zip(starts_ns).map(member).collect(),
        }
    }

    fn shared(domains: &[String], instances: &[Instance]) -> (Vec<(i32, i32)>, Vec<OmissionRow>) {
        shared_clocks(&ranks(domains).iter().collect::<Vec<_>>(), instances)
    }

    /// The domains of a thousand hosts are not searched in every collective, and the ranks of a domain that no machine has
    /// are not compared in pairs.
    #[test]
    fn many_hosts_and_many_ranks_of_one_host_take_little_time() {
        const RANKS: usize = 20_000;
        let hosts: Vec<String> = (0..RANKS).map(|rank| format!("boot-{}", rank / 8)).collect();
        let mut starts_ns = vec![0; RANKS];
        starts_ns[11] = 1_000_000;
        let instances = vec![instance(&starts_ns); 20];
        let (pairs, omissions) = shared(&hosts, &instances);
        assert_eq!(omissions.iter().map(|o| o.rank).collect::<Vec<_>>(), [Some(11)]);
        assert_eq!(pairs.len(), RANKS / 8 * 7 - 1);
        assert_eq!(pairs[6..11], [(7, 0), (9, 8), (10, 8), (12, 8), (13, 8)]);

        let one = vec!["boot".to_owned(); RANKS];
        let (pairs, omissions) = shared(&one, &instances);
        assert_eq!((pairs.len(), omissions.len(), omissions[0].amount), (0, 1, Some(RANKS as i64)));
        assert!(omissions[0].why.contains("not compared with each other"), "{omissions:?}");
        assert_eq!(shared(&one, &[instance(&vec![0; RANKS])]).0.len(), RANKS - 1, "nothing contradicts");
    }

    proptest! {
        /// No two of the ranks that share a clock contradict each other, and no rank is excluded for nothing.
        #[test]
        fn the_ranks_that_share_a_clock_do_not_contradict_each_other(
            starts_us in prop::collection::vec(prop::collection::vec(0..40_i64, 6), 1..4),
            hosts in prop::collection::vec(0..2, 6),
        ) {
            let hosts: Vec<String> = hosts.into_iter().map(|host: i32| format!("boot-{host}")).collect();
            let starts_ns = |starts: &Vec<i64>| starts.iter().map(|us| 1_000 * us).collect::<Vec<_>>();
            let instances: Vec<Instance> = starts_us.iter().map(|starts| instance(&starts_ns(starts))).collect();
            let (pairs, omissions) = shared(&hosts, &instances);
            // Of at most three collectives, one that is broken is more than a twentieth.
            let apart = |a: usize, b: usize| starts_us.iter().any(|us| (us[a] - us[b]).abs() * 1_000 > 10_000 + ROUNDING_NS);
            let excluded: Vec<usize> = omissions.iter().map(|o| o.rank.unwrap() as usize).collect();
            for a in 0..6 {
                let alike = |b: &usize| *b != a && hosts[*b] == hosts[a];
                let contradicts = (0..6).filter(alike).any(|b| apart(a, b));
                prop_assert!(contradicts || !excluded.contains(&a));
                for b in (0..6).filter(alike) {
                    prop_assert!(excluded.contains(&a) || excluded.contains(&b) || !apart(a, b));
                    let joined = pairs.iter().filter(|(from, to)| [*from, *to] == [a as i32, b as i32]).count();
                    prop_assert!(joined == 0 || !excluded.contains(&a));
                }
            }
        }
    }
}
