//! Which claims no answer may have together, and which of two claims about the same time is shown.

use super::{Advice, Claim, Quantity, Relation, Value};

/// A pattern of claims: this quantity in this relation.
#[derive(Clone, Copy, Debug)]
pub struct Pattern(pub Quantity, pub Relation);

impl Pattern {
    fn fits(self, claim: &Claim) -> bool {
        (claim.quantity, claim.relation) == (self.0, self.1)
    }
}

/// Where two claims must meet to exclude each other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Meet {
    /// Anywhere in the job.
    Job,
    /// On a place of both, where the claim that stays explains at least half of the other's time.
    Time,
}

/// Two claims that exclude each other.
#[derive(Debug)]
pub struct Exclusion {
    /// This one yields.
    pub yields: Pattern,
    pub to: Pattern,
    pub meet: Meet,
    pub why: &'static str,
}

/// All exclusions.
pub const EXCLUSIONS: &[Exclusion] = &[
    Exclusion {
        yields: Pattern(Quantity::Balance, Relation::Is),
        to: Pattern(Quantity::OwnExcess, Relation::Exceeds),
        meet: Meet::Job,
        why: "a job is not balanced if a rank that costs time is far outside the usual variation",
    },
    Exclusion {
        yields: Pattern(Quantity::Balance, Relation::Is),
        to: Pattern(Quantity::StepDelay, Relation::Exceeds),
        meet: Meet::Job,
        why: "a job is not balanced if a rank delays its steps",
    },
    Exclusion {
        yields: Pattern(Quantity::Balance, Relation::Is),
        to: Pattern(Quantity::Wait, Relation::Exceeds),
        meet: Meet::Job,
        why: "a job is not balanced if ranks wait for others for long",
    },
    Exclusion {
        yields: Pattern(Quantity::HostWait, Relation::Exceeds),
        to: Pattern(Quantity::Unknown, Relation::Exceeds),
        meet: Meet::Time,
        why: "a host that waits for work without rows waits for what is unknown",
    },
    Exclusion {
        yields: Pattern(Quantity::Rows, Relation::Absent),
        to: Pattern(Quantity::Rows, Relation::Exceeds),
        meet: Meet::Job,
        why: "rows were left out or lost",
    },
];

/// The rule by which `a` yields to `b`; `None` if both may stand.
pub fn excluded(a: &Claim, b: &Claim) -> Option<&'static Exclusion> {
    let most = || 2 * time_ns(b) >= time_ns(a);
    let meets = |meet: Meet| match meet {
        Meet::Job => true,
        Meet::Time => meet_in_places(a, b) && most(),
    };
    EXCLUSIONS.iter().find(|rule| rule.yields.fits(a) && rule.to.fits(b) && meets(rule.meet))
}

/// Whether both are about a common place. A claim about the job is about all places.
fn meet_in_places(a: &Claim, b: &Claim) -> bool {
    let shares = || a.places.iter().any(|one| b.places.iter().any(|other| one.meets(*other)));
    a.places.is_empty() || b.places.is_empty() || shares()
}

/// Whether both explain the same part of the step of a common place.
pub fn share_time(a: &Claim, b: &Claim) -> bool {
    let part = |claim: &Claim| claim.time.map(|time| time.part);
    part(a).is_some() && part(a) == part(b) && meet_in_places(a, b)
}

/// The time of a step that a claim explains or, without one, its length.
fn time_ns(claim: &Claim) -> i64 {
    match (claim.time, claim.value) {
        (Some(time), _) => time.ns_per_step,
        (None, Some(Value::Ns(ns))) => ns,
        _ => 0,
    }
}

/// How general the explanation of a claim is: a cause is more special than the idle time that it makes.
fn generality(quantity: Quantity) -> u8 {
    match quantity {
        Quantity::StepDelay | Quantity::Wait | Quantity::Unknown => 0,
        Quantity::HostCode => 2,
        Quantity::LaunchTime | Quantity::KernelTime => 3,
        Quantity::Idle | Quantity::Exposed => 4,
        _ => 1,
    }
}

/// Whether `a` yields to `b`, which explains the same time: the more special one is shown if it explains at least half of the other's
/// time, and else the other. Of two that are as special, the longer one is shown, or the one that comes first.
fn yields_time(a: &Claim, b: &Claim) -> bool {
    let (of_a, of_b) = (generality(a.quantity), generality(b.quantity));
    match of_a.cmp(&of_b) {
        std::cmp::Ordering::Equal => time_ns(a) < time_ns(b),
        // The verdict stands at the head of the answer.
        _ if of_a.min(of_b) == 0 => of_a > of_b,
        std::cmp::Ordering::Greater => 2 * time_ns(b) >= time_ns(a),
        std::cmp::Ordering::Less => 2 * time_ns(a) < time_ns(b),
    }
}

/// Decides which claims are shown: each that is not has the id of the other in `yields_to`. Claims are in the order of importance.
pub fn settle(claims: &mut [Claim], ranks: usize) {
    // Nobody compares ranks where one was seen.
    for claim in claims.iter_mut().filter(|claim| claim.advice == Advice::CompareRanks && ranks < 2) {
        claim.yields_to = Some("one rank");
    }
    // A claim that yields takes nobody's place, so that two claims never yield to each other.
    for at in 0..claims.len() {
        if claims[at].yields_to.is_some() {
            continue;
        }
        let shown = |other: &usize| *other != at && claims[*other].yields_to.is_none();
        let stronger = |other: &usize| {
            let (a, b) = (&claims[at], &claims[*other]);
            let is_tie = share_time(a, b) && !yields_time(a, b) && !yields_time(b, a) && other < &at;
            excluded(a, b).is_some() || (a.by != b.by && share_time(a, b) && (yields_time(a, b) || is_tie))
        };
        claims[at].yields_to = (0..claims.len()).filter(shown).find(stronger).map(|other| claims[other].by);
    }
}

/// Two shown claims that exclude each other or explain the same time, in words; empty if an answer keeps the law.
pub fn contradictions(claims: &[Claim]) -> Vec<String> {
    let shown: Vec<&Claim> = claims.iter().filter(|claim| claim.yields_to.is_none()).collect();
    let mut found = Vec::new();
    for (at, a) in shown.iter().enumerate() {
        for (other, b) in shown.iter().enumerate().filter(|(other, _)| *other != at) {
            if let Some(rule) = excluded(a, b) {
                found.push(format!("{}: {a:?} beside {b:?}", rule.why));
            }
            if other > at && a.by != b.by && share_time(a, b) {
                found.push(format!("the same time twice: {a:?} and {b:?}"));
            }
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::super::Part;
    use super::*;

    fn idle(ns: i64) -> Claim {
        let claim = Claim::new(Quantity::Idle, Relation::Exceeds, "step_breakdown").of(0, Some(0));
        Claim { by: "idle", ..claim }.value(Value::Ns(ns)).explains(Part::Idle, ns)
    }

    fn input(rank: i32, ns: i64) -> Claim {
        let claim = Claim::new(Quantity::Input, Relation::Exceeds, "data_loading").of(rank, None);
        Claim { by: "input", ..claim }.explains(Part::Idle, ns)
    }

    fn shown(claims: &[Claim]) -> Vec<&'static str> {
        let mut claims = claims.to_vec();
        settle(&mut claims, 2);
        assert_eq!(contradictions(&claims), [""; 0]);
        claims.iter().filter(|claim| claim.yields_to.is_none()).map(|claim| claim.by).collect()
    }

    #[test]
    fn a_cause_is_shown_instead_of_the_idle_time_that_it_makes() {
        assert_eq!(shown(&[idle(100), input(0, 60)]), ["input"]);
        assert_eq!(shown(&[idle(100), input(0, 40)]), ["idle"], "most of the idle time has another cause");
        assert_eq!(shown(&[idle(100), input(1, 60)]), ["idle", "input"], "another rank");
    }

    #[test]
    fn a_blocked_host_needs_no_larger_kernels() {
        let on_host = |by, quantity, ns: i64| {
            let claim = Claim::new(quantity, Relation::Exceeds, "").of(0, None);
            Claim { by, ..claim }.value(Value::Ns(ns)).explains(Part::Idle, ns)
        };
        let waits = |ns| on_host("waits", Quantity::HostWait, ns);
        let launches = on_host("launches", Quantity::LaunchTime, 100);
        assert_eq!(shown(&[idle(100), launches.clone(), waits(98)]), ["waits"]);
        assert_eq!(shown(&[idle(100), launches, waits(30)]), ["launches"], "the host launches for most of the time");
    }

    #[test]
    fn a_host_that_waits_for_unknown_work_has_no_advice() {
        let waits = Claim::new(Quantity::HostWait, Relation::Exceeds, "").of(0, None).value(Value::Ns(400));
        let waits = Claim { by: "waits", ..waits };
        let unknown = |ns| {
            let claim = Claim::new(Quantity::Unknown, Relation::Exceeds, "").of(0, Some(0));
            Claim { by: "unknown", ..claim }.explains(Part::Unknown, ns)
        };
        assert_eq!(shown(&[waits.clone(), unknown(390)]), ["unknown"]);
        assert_eq!(shown(&[waits, unknown(10)]), ["waits", "unknown"]);
    }

    #[test]
    fn one_rank_is_compared_with_nobody() {
        let mut claims = [idle(1).advises(Advice::CompareRanks)];
        settle(&mut claims, 1);
        assert_eq!(claims[0].yields_to, Some("one rank"));
    }

    #[test]
    fn a_claim_that_contradicts_itself_is_a_fault() {
        let length = idle(1);
        assert_eq!(length.fault(), None);
        assert!(idle(-1).fault().is_some());
        assert!(length.clone().interval(Some(2), Some(1)).fault().is_some());
        assert!(length.clone().interval(Some(-2), Some(1)).fault().is_some());
        assert!(length.clone().value(Value::Pct(147.0)).fault().is_some());
        assert!(length.coverage(2.7).fault().is_some());
    }
}
