//! Charges every wait to the ranks that caused it. The sums are integers and exact to the nanosecond.
//!
//! ```text
//!   rank 0   ####[~~~~~~~~~~~~AAA]         between the arrivals of 0 and 1: 1 and 2 are missing, half the wait each
//!   rank 1   ########[~~~~~~~~AAA]         between the arrivals of 1 and 2: 2 is missing and is charged both waits
//!   rank 2   ################[AAA]
//! ```
//!
//! A missing rank may have inherited a delay from its previous collective. The inherited share is not charged to that
//! rank. It goes back to the collective at which the rank's own stretch began, is charged there to the rank that
//! arrived last, and so on (like the delay costs of Scalasca: Böhme et al., ACM TOPC 3(2), 2016). If the waiting rank
//! comes from the same collective, both had the same delay there, and the missing rank is charged for leaving later. A
//! delay from before the first recorded collective is charged to no rank and reported separately.
//!
//! A rank that works beside a collective may come late to the next one because it entered that collective late:
//!
//! ```text
//!   rank 0   ###|~~~~~~A~~~~~~~|[~~B]      its work beside A is done before A ends
//!   rank 4   ########|###A#####|###[B]     the delay of rank 4 at B is that at A, and goes back to what rank 4 did before A
//! ```
//!
//! At a collective of more than [`PAIRED_MAX`] ranks, the share that a missing rank inherited is that against a typical
//! rank, and not against each waiting rank: pairs would take the square of the ranks. If all of its ranks come from the
//! same collective, the charges are the same.

use rustc_hash::FxHashMap;

use crate::shares::{Shares, Wait};
use topology::arrivals::{Arrival, Joined};
use topology::join::Join;

/// Ranks of a collective up to which each waiting rank is compared with each missing rank.
pub(super) const PAIRED_MAX: usize = 512;

/// The charges of all waits, by rank.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Charges {
    /// The wait of each rank: the union of its waits in active steps, so overlapping waits count once.
    pub(super) suffered_ns: Vec<i64>,
    /// The waits of other ranks that each rank's own stretches caused.
    pub(super) caused_ns: Vec<i64>,
    /// The waits for each rank that were charged to other ranks, because it was late before its own stretch began.
    pub(super) inherited_ns: Vec<i64>,
    /// Waits for ranks that were late before the recording began.
    pub(super) before_recording_ns: i64,
    /// Collectives of more than [`PAIRED_MAX`] ranks whose ranks come from different collectives.
    pub(super) unpaired: i64,
    /// For each instance, the waits that later instances pass back to its end, each with the rank that the victim waited
    /// for. Charging consumes them.
    inflow_ns: Vec<Vec<(usize, i64)>>,
    /// The same of waits that are passed back to the arrival of a rank, by instance and rank.
    entries_ns: FxHashMap<(usize, usize), Vec<(usize, i64)>>,
}

impl Charges {
    /// Charges all waits within active steps.
    pub(super) fn of(join: &Join, ranks: usize) -> Self {
        Self::with(join, ranks, PAIRED_MAX)
    }

    /// Charges all waits. Ranks are compared in pairs at collectives of at most `paired_max` ranks.
    pub(super) fn with(join: &Join, ranks: usize, paired_max: usize) -> Self {
        let mut charges = Self {
            suffered_ns: vec![0; ranks],
            caused_ns: vec![0; ranks],
            inherited_ns: vec![0; ranks],
            before_recording_ns: 0,
            unpaired: 0,
            inflow_ns: vec![Vec::new(); join.instances.len()],
            entries_ns: FxHashMap::default(),
        };
        charges.charge_waits(join, ranks, paired_max);
        charges.pass_back(join);
        charges
    }

    /// The first level: charges every wait to the ranks that had not arrived.
    fn charge_waits(&mut self, join: &Join, ranks: usize, paired_max: usize) {
        let mut order: Vec<(i64, usize, usize)> = Vec::new();
        for (i, instance) in join.instances.iter().enumerate().filter(|(_, i)| i.step.is_some()) {
            order.extend(instance.arrivals.iter().enumerate().map(|(m, a)| (a.arrival_ns, i, m)));
        }
        order.sort_unstable();
        let mut waits: Vec<Vec<Wait>> = vec![Vec::new(); join.instances.len()];
        // A rank may be in two collectives at once; their common wait counts once.
        let mut covered_ns = vec![i64::MIN; ranks];
        for (_, i, m) in order {
            let instance = &join.instances[i];
            let victim = &instance.arrivals[m];
            let from_ns = victim.arrival_ns.max(covered_ns[victim.rank]);
            let to_ns = victim.wait_end_ns(instance.last_ns);
            if from_ns < to_ns {
                covered_ns[victim.rank] = to_ns;
                self.suffered_ns[victim.rank] += to_ns - from_ns;
                waits[i].push(Wait { victim: m, from_ns, to_ns });
            }
        }
        for (instance, waits) in join.instances.iter().zip(&waits).filter(|(_, waits)| !waits.is_empty()) {
            let shares = Shares::of(instance);
            if instance.arrivals.len() <= paired_max {
                waits.iter().for_each(|wait| self.charge_wait(join, instance, *wait, &shares));
            } else {
                self.charge_together(join, instance, waits, &shares);
            }
        }
    }

    fn charge_wait(&mut self, join: &Join, at: &Joined, wait: Wait, shares: &Shares) {
        let victim = &at.arrivals[wait.victim];
        let mut rest_ns = wait.to_ns - wait.from_ns;
        let (blocker, share_ns) = (at.blocker(), shares.of_wait(wait));
        let is_late = |(_, a): &(usize, &Arrival)| a.arrival_ns > wait.from_ns && a.rank != blocker.rank;
        for (position, late) in at.arrivals.iter().enumerate().filter(is_late) {
            let ns = share_ns(position);
            rest_ns -= ns;
            self.charge_late(join, victim, late, ns);
        }
        // The last rank is missing during the whole wait. It also takes the rounding remainders, so that the sum is
        // exact.
        self.charge_late(join, victim, blocker, rest_ns);
    }

    /// Charges all waits at an instance. A missing rank is compared with the typical rank.
    fn charge_together(&mut self, join: &Join, at: &Joined, waits: &[Wait], shares: &Shares) {
        let leave_together = |a: &Arrival| join.leave_together(a, &at.arrivals[0]);
        let is_known = |a: &Arrival| a.own_ns().is_some();
        self.unpaired += i64::from(at.arrivals.iter().any(is_known) && !at.arrivals.iter().all(leave_together));
        let typical = at.typical();
        let mut rest_ns: i64 = waits.iter().map(|wait| wait.to_ns - wait.from_ns).sum();
        let blocker = at.blocker();
        let mut charge = |late: &Arrival, ns: i64| {
            let inherited_ns = inherited_of(join, at, typical, late, ns);
            self.caused_ns[late.rank] += ns - inherited_ns;
            self.send_back(join, late, late.rank, inherited_ns, None);
        };
        for (late, ns) in at.arrivals.iter().zip(shares.sums_ns(at, waits)).filter(|(a, _)| a.rank != blocker.rank) {
            rest_ns -= ns;
            charge(late, ns);
        }
        charge(blocker, rest_ns);
    }

    /// Splits the wait of `victim` for `late` into the part that `late` caused and the part that `late` inherited.
    fn charge_late(&mut self, join: &Join, victim: &Arrival, late: &Arrival, ns: i64) {
        let later_ns = late.arrival_ns - victim.arrival_ns;
        let follows_entry = late.follows_entry();
        let head_start_ns = if follows_entry { late.since_ns - victim.since_ns } else { late.from_ns - victim.from_ns };
        let head_start_ns = head_start_ns.clamp(0, later_ns.max(0));
        let inherited_ns = match late.own_ns() {
            // The begin of the own stretch is unknown, so `late` is not charged.
            None => ns,
            Some(_) if !follows_entry && join.leave_together(late, victim) => 0,
            Some(_) => fraction_of(ns, head_start_ns, later_ns),
        };
        self.caused_ns[late.rank] += ns - inherited_ns;
        self.send_back(join, late, late.rank, inherited_ns, None);
    }

    /// The further levels: charges the waits that were passed back to an instance to the last rank of that instance.
    fn pass_back(&mut self, join: &Join) {
        let order = join.latest_first();
        let mut place = vec![0; order.len()];
        for (at, &i) in order.iter().enumerate() {
            place[i] = at;
        }
        for &i in &order {
            let mut inflow = std::mem::take(&mut self.inflow_ns[i]);
            sum_flows(&mut inflow);
            let instance = &join.instances[i];
            let (blocker, typical) = (instance.blocker(), instance.typical());
            let mut flows: Vec<(&Arrival, (usize, i64))> = inflow.into_iter().map(|flow| (blocker, flow)).collect();
            for late in &instance.arrivals {
                let mut of_rank = self.entries_ns.remove(&(i, late.rank)).unwrap_or_default();
                sum_flows(&mut of_rank);
                flows.extend(of_rank.into_iter().map(|flow| (late, flow)));
            }
            for (late, (origin, ns)) in flows {
                let back_ns = inherited_of(join, instance, typical, late, ns);
                self.charge(late.rank, origin, ns - back_ns);
                self.send_back(join, late, origin, back_ns, Some((&place, place[i])));
            }
        }
    }

    /// Charges `rank` with `ns` of waits for `origin`.
    fn charge(&mut self, rank: usize, origin: usize, ns: i64) {
        self.caused_ns[rank] += ns;
        if rank != origin {
            self.inherited_ns[origin] += ns;
        }
    }

    /// Passes `ns` back to the instance at which the own stretch of `late` began, or that it entered before. `after` holds the order of the
    /// further levels and the current place in it. With a clock error an instance may seem to depend on a later one;
    /// then `late` is charged.
    fn send_back(&mut self, join: &Join, late: &Arrival, origin: usize, ns: i64, after: Option<(&[usize], usize)>) {
        let follows_entry = late.follows_entry();
        let before = if follows_entry { join.entered(late) } else { join.previous(late) };
        match before {
            _ if ns == 0 => {}
            Some(i) if after.is_none_or(|(place, now)| place[i] > now) => match follows_entry {
                true => add_flow(self.entries_ns.entry((i, late.rank)).or_default(), (origin, ns)),
                false => add_flow(&mut self.inflow_ns[i], (origin, ns)),
            },
            Some(_) => self.charge(late.rank, origin, ns),
            None => {
                self.inherited_ns[origin] += ns;
                self.before_recording_ns += ns;
            }
        }
    }
}

/// Adds a flow. Many pairs of ranks have the same origin, so flows of one origin are summed before the list grows.
fn add_flow(flows: &mut Vec<(usize, i64)>, flow: (usize, i64)) {
    if flows.len() == flows.capacity() && !flows.is_empty() {
        sum_flows(flows);
        if 2 * flows.len() > flows.capacity() {
            flows.reserve_exact(flows.capacity());
        }
    }
    flows.push(flow);
}

/// Makes one flow of those with the same origin.
fn sum_flows(flows: &mut Vec<(usize, i64)>) {
    flows.sort_unstable_by_key(|flow| flow.0);
    flows.dedup_by(|next, kept| {
        let is_same = next.0 == kept.0;
        kept.1 += if is_same { next.1 } else { 0 };
        is_same
    });
}

/// The part of `ns` of waits for `late` that `late` inherited, compared with the ranks that do the same work, or with the typical rank of
/// the instance. All ranks of a small communicator may have inherited the same delay, so they do not show it.
fn inherited_of(join: &Join, at: &Joined, typical: Option<&Arrival>, late: &Arrival, ns: i64) -> i64 {
    if late.own_ns().is_none() {
        // The begin of the own stretch is unknown, so `late` is not charged.
        return ns;
    }
    if let Some((above_ns, later_ns)) = late.above_typical().filter(|(_, later_ns)| *later_ns > 0) {
        return ns - fraction_of(ns, above_ns.clamp(0, later_ns), later_ns);
    }
    let own_ns = at.own_excess_ns(late).max(0);
    let together = !late.follows_entry() && typical.is_some_and(|typical| join.leave_together(late, typical));
    let inherited_ns = if together { 0 } else { at.inherited_ns(late).max(0) };
    fraction_of(ns, inherited_ns, own_ns + inherited_ns)
}

/// `ns · part / whole`, rounded down; 0 if `whole` is not positive.
fn fraction_of(ns: i64, part: i64, whole: i64) -> i64 {
    if whole <= 0 { 0 } else { (i128::from(ns) * i128::from(part) / i128::from(whole)) as i64 }
}
