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

use crate::judge::stragglers::join::{Arrival, Join, Joined};

/// Bits after the binary point while a gap is split among the missing ranks, in nanoseconds.
const FRACTION_BITS: u32 = 20;

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
    /// For each instance, the waits that later instances pass back to it, each with the rank that the victim waited
    /// for. Charging consumes them.
    inflow_ns: Vec<Vec<(usize, i64)>>,
}

impl Charges {
    /// Charges all waits within active steps.
    pub(super) fn of(join: &Join, ranks: usize) -> Self {
        let mut charges = Self {
            suffered_ns: vec![0; ranks],
            caused_ns: vec![0; ranks],
            inherited_ns: vec![0; ranks],
            before_recording_ns: 0,
            inflow_ns: vec![Vec::new(); join.instances.len()],
        };
        charges.charge_waits(join, ranks);
        charges.pass_back(join);
        charges
    }

    /// The first level: charges every wait to the ranks that had not arrived.
    fn charge_waits(&mut self, join: &Join, ranks: usize) {
        let mut order: Vec<(i64, usize, usize)> = Vec::new();
        for (i, instance) in join.instances.iter().enumerate().filter(|(_, i)| i.step.is_some()) {
            order.extend(instance.arrivals.iter().enumerate().map(|(m, a)| (a.arrival_ns, i, m)));
        }
        order.sort_unstable();
        let shares: Vec<Shares> = join.instances.iter().map(Shares::of).collect();
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
                self.charge_wait(join, instance, victim, &shares[i], (from_ns, to_ns));
            }
        }
    }

    fn charge_wait(&mut self, join: &Join, at: &Joined, victim: &Arrival, shares: &Shares, wait: (i64, i64)) {
        let (from_ns, to_ns) = wait;
        let mut rest_ns = to_ns - from_ns;
        let before = shares.sum_until(from_ns);
        let blocker = at.blocker();
        for late in at.arrivals.iter().filter(|a| a.arrival_ns > from_ns && a.rank != blocker.rank) {
            let share = shares.sum_until(late.arrival_ns.min(to_ns)) - before;
            let ns = (share >> FRACTION_BITS) as i64;
            rest_ns -= ns;
            self.charge_late(join, victim, late, ns);
        }
        // The last rank is missing during the whole wait. It also takes the rounding remainders, so that the sum is
        // exact.
        self.charge_late(join, victim, blocker, rest_ns);
    }

    /// Splits the wait of `victim` for `late` into the part that `late` caused and the part that `late` inherited.
    fn charge_late(&mut self, join: &Join, victim: &Arrival, late: &Arrival, ns: i64) {
        let later_ns = late.arrival_ns - victim.arrival_ns;
        let head_start_ns = (late.from_ns - victim.from_ns).clamp(0, later_ns.max(0));
        let inherited_ns = match late.own_ns {
            // The begin of the own stretch is unknown, so `late` is not charged.
            None => ns,
            Some(_) if join.leave_together(late, victim) => 0,
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
            inflow.sort_unstable();
            let instance = &join.instances[i];
            let blocker = instance.blocker();
            let own_ns = instance.own_excess_ns(blocker).max(0);
            let together = instance.typical().is_some_and(|typical| join.leave_together(blocker, typical));
            let inherited_ns = if together { 0 } else { instance.inherited_ns(blocker).max(0) };
            for flows in inflow.chunk_by(|a, b| a.0 == b.0) {
                let origin = flows[0].0;
                let ns: i64 = flows.iter().map(|f| f.1).sum();
                let back_ns = match blocker.own_ns {
                    None => ns,
                    Some(_) => fraction_of(ns, inherited_ns, own_ns + inherited_ns),
                };
                self.charge(blocker.rank, origin, ns - back_ns);
                self.send_back(join, blocker, origin, back_ns, Some((&place, place[i])));
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

    /// Passes `ns` back to the instance at which the own stretch of `late` began. `after` holds the order of the
    /// further levels and the current place in it. With a clock error an instance may seem to depend on a later one;
    /// then `late` is charged.
    fn send_back(&mut self, join: &Join, late: &Arrival, origin: usize, ns: i64, after: Option<(&[usize], usize)>) {
        match join.previous(late) {
            _ if ns == 0 => {}
            Some(i) if after.is_none_or(|(place, now)| place[i] > now) => self.inflow_ns[i].push((origin, ns)),
            Some(_) => self.charge(late.rank, origin, ns),
            None => {
                self.inherited_ns[origin] += ns;
                self.before_recording_ns += ns;
            }
        }
    }
}

/// `ns · part / whole`, rounded down; 0 if `whole` is not positive.
fn fraction_of(ns: i64, part: i64, whole: i64) -> i64 {
    if whole <= 0 { 0 } else { (i128::from(ns) * i128::from(part) / i128::from(whole)) as i64 }
}

/// For one instance, the cumulative share of a wait that one missing rank is charged, from the first arrival on.
struct Shares {
    /// The arrivals in order, each with the sum up to it.
    sums: Vec<(i64, i128)>,
}

impl Shares {
    fn of(instance: &Joined) -> Self {
        let mut arrivals: Vec<i64> = instance.arrivals.iter().map(|a| a.arrival_ns).collect();
        arrivals.sort_unstable();
        let mut sum = 0;
        let mut previous = arrivals[0];
        let mut sums = Vec::with_capacity(arrivals.len());
        for (here, &at_ns) in arrivals.iter().enumerate() {
            let missing = (arrivals.len() - here) as i128;
            sum += (i128::from(at_ns - previous) << FRACTION_BITS) / missing;
            sums.push((at_ns, sum));
            previous = at_ns;
        }
        Self { sums }
    }

    /// The cumulative share up to `t_ns`, in 2⁻²⁰ ns.
    fn sum_until(&self, t_ns: i64) -> i128 {
        let after = self.sums.partition_point(|&(at, _)| at <= t_ns);
        let Some(&(at_ns, sum)) = after.checked_sub(1).and_then(|i| self.sums.get(i)) else { return 0 };
        match self.sums.len() - after {
            0 => sum,
            missing => sum + (i128::from(t_ns - at_ns) << FRACTION_BITS) / missing as i128,
        }
    }
}
