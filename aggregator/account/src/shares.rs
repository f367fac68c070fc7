//! The shares of the waits at one instance that its missing ranks are charged.

use topology::arrivals::Joined;

/// Bits after the binary point while a gap is split among the missing ranks, in nanoseconds.
const FRACTION_BITS: u32 = 20;
/// The bits after the binary point.
const FRACTION: i128 = (1 << FRACTION_BITS) - 1;

/// A wait at an instance, in global time.
#[derive(Clone, Copy, Debug)]
pub(super) struct Wait {
    /// The rank that waits, as a position among the arrivals.
    pub(super) victim: usize,
    pub(super) from_ns: i64,
    pub(super) to_ns: i64,
}

/// For one instance, the cumulative share of a wait that one missing rank is charged, from the first arrival on.
pub(super) struct Shares {
    /// The arrivals in order, each with the sum up to it.
    sums: Vec<(i64, i128)>,
    /// The same in the order of the instance.
    arrivals: Vec<(i64, i128)>,
}

impl Shares {
    pub(super) fn of(instance: &Joined) -> Self {
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
        let mut shares = Self { sums, arrivals: Vec::new() };
        let with_sum = |at_ns: i64| (at_ns, shares.sum_until(at_ns));
        shares.arrivals = instance.arrivals.iter().map(|a| with_sum(a.arrival_ns)).collect();
        shares
    }

    /// The share of each rank, by its position among the arrivals, that was missing in a wait, rounded down. It ends when the rank
    /// arrives.
    pub(super) fn of_wait(&self, wait: Wait) -> impl Fn(usize) -> i64 + '_ {
        let (begin, end) = (self.sum_until(wait.from_ns), self.sum_until(wait.to_ns));
        move |rank| {
            let (arrival_ns, sum) = self.arrivals[rank];
            ((if arrival_ns < wait.to_ns { sum } else { end } - begin) >> FRACTION_BITS) as i64
        }
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

    /// For each arrival, the sum of its shares of all `waits`. Each share is rounded down, as in [`Self::of_wait`].
    ///
    /// ```text
    ///   waits    1 [---------------------)
    ///            2     [-------)              has ended: its share grows no more
    ///            3         [-------------)
    ///            4                  [----)    has not begun
    ///   late                    ^             1 and 3 go on: Σ ⌊late − begin⌋
    /// ```
    pub(super) fn sums_ns(&self, at: &Joined, waits: &[Wait]) -> Vec<i64> {
        let mut begins: Vec<(i64, i128)> =
            waits.iter().map(|wait| (wait.from_ns, self.sum_until(wait.from_ns))).collect();
        let mut ends: Vec<(i64, i128)> = waits.iter().map(|wait| (wait.to_ns, self.sum_until(wait.from_ns))).collect();
        begins.sort_unstable();
        ends.sort_unstable();
        let mut fractions: Vec<i128> = begins.iter().map(|(_, begin)| begin & FRACTION).collect();
        fractions.sort_unstable();
        let place = |sum: i128| fractions.partition_point(|fraction| *fraction <= sum & FRACTION);
        let mut order: Vec<usize> = (0..at.arrivals.len()).collect();
        order.sort_unstable_by_key(|m| at.arrivals[*m].arrival_ns);
        let (mut begins, mut ends) = (begins.into_iter().peekable(), ends.into_iter().peekable());
        // Of the waits that go on: their number, the whole part of the sum of their begins, and their fractions.
        let (mut open, mut whole, mut by_fraction) = (0_i128, 0_i128, Counts::new(fractions.len()));
        let mut ended_ns = 0_i128;
        let mut sums_ns = vec![0; at.arrivals.len()];
        for m in order {
            let late_ns = at.arrivals[m].arrival_ns;
            while let Some((_, begin)) = begins.next_if(|(from_ns, _)| *from_ns < late_ns) {
                (open, whole) = (open + 1, whole + (begin >> FRACTION_BITS));
                by_fraction.add(place(begin), 1);
            }
            while let Some((to_ns, begin)) = ends.next_if(|(to_ns, _)| *to_ns < late_ns) {
                (open, whole) = (open - 1, whole - (begin >> FRACTION_BITS));
                by_fraction.add(place(begin), -1);
                ended_ns += (self.sum_until(to_ns) - begin) >> FRACTION_BITS;
            }
            let sum = self.sum_until(late_ns);
            // A difference rounds down by one more where the begin has the larger fraction.
            let rounded = open - i128::from(by_fraction.up_to(place(sum)));
            let sum_ns = open * (sum >> FRACTION_BITS) - whole - rounded + ended_ns;
            sums_ns[m] = i64::try_from(sum_ns).unwrap_or(i64::MAX);
        }
        sums_ns
    }
}

/// Counts by place, with their sums up to a place (Fenwick, Software: Practice and Experience 24(3), 1994).
struct Counts(Vec<i64>);

impl Counts {
    /// For places from 1 to `places`.
    fn new(places: usize) -> Self {
        Self(vec![0; places + 1])
    }

    fn add(&mut self, mut place: usize, count: i64) {
        while place < self.0.len() {
            self.0[place] += count;
            place += place & place.wrapping_neg();
        }
    }

    /// The sum of the counts at the places up to `place`.
    fn up_to(&self, mut place: usize) -> i64 {
        let mut sum = 0;
        while place > 0 {
            sum += self.0[place];
            place &= place - 1;
        }
        sum
    }
}
