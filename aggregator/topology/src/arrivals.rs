//! One collective with the own stretches of its ranks, in global time.

use trace::{Maybe, MaybeAt, MaybeNs, Op, Word};

use crate::ToGlobal;
use measure::own_time::Stretch;
use model::Member;

/// One rank at one instance. Times are global unless noted.
#[derive(Clone, Copy, Debug)]
pub struct Arrival {
    /// The position of the rank among the parts.
    pub rank: usize,
    /// The position of the collective among the rank's stretches.
    pub stretch: u32,
    /// When the rank entered the collective before this one; `arrival_ns` if it is unknown.
    pub since_ns: i64,
    /// The begin of the rank's own stretch; `arrival_ns` if it is unknown.
    pub from_ns: i64,
    pub arrival_ns: i64,
    pub(crate) end_ns: MaybeNs,
    pub(crate) own_ns: MaybeNs,
    pub(crate) rolled_ns: MaybeNs,
    pub(crate) dur_ns: MaybeNs,
    pub(crate) previous: MaybeAt,
    pub(crate) entered: MaybeAt,
    pub(crate) above_ns: MaybeNs,
    pub(crate) later_ns: MaybeNs,
}

impl Arrival {
    /// The arrival of a rank, by its position among the parts. `rolled_ns` is filled later.
    pub(crate) fn of(member: &Member, (rank, stretch): (usize, &Stretch), to_global: ToGlobal<'_>) -> Self {
        let global = |t_ns| to_global(member.rank, member.device_clock, t_ns);
        let arrival_ns = global(member.start_ns);
        let from_ns = global(stretch.from_ns).min(arrival_ns);
        Self {
            rank,
            stretch: member.index,
            since_ns: global(stretch.since_ns).min(from_ns),
            from_ns,
            arrival_ns,
            end_ns: MaybeNs::of(member.end_ns.map(global)),
            own_ns: MaybeNs::of(stretch.own_ns),
            rolled_ns: MaybeNs::UNKNOWN,
            dur_ns: MaybeNs::of(member.end_ns.map(|end| end - member.start_ns)),
            previous: MaybeAt::of(stretch.previous),
            entered: MaybeAt::of(stretch.entered),
            above_ns: MaybeNs::UNKNOWN,
            later_ns: MaybeNs::UNKNOWN,
        }
    }

    /// The rank's own time before the instance above the lower median of the ranks that do the same work, also in other communicators,
    /// and by how much it arrives later than their lower median; `None` if it is not compared.
    pub fn above_typical(&self) -> Option<(i64, i64)> {
        self.above_ns.get().zip(self.later_ns.get())
    }

    /// Whether the rank worked for most of the time between its entry into the collective before and the end of the one that it left last.
    /// Then its arrival follows that entry, and not the end, which came while it worked.
    ///
    /// ```text
    ///   rank 0   |~~~~A~~~~~~~~|[B]     A runs beside its work, which was done before A ended: B follows the end of A
    ///   rank 1        |#######A####|##[B]     it works beside A and behind it: B follows its entry into A
    /// ```
    pub fn follows_entry(&self) -> bool {
        let idle_ns = self.own_ns().map(|own_ns| self.arrival_ns - self.since_ns - own_ns);
        self.entered.get().is_some() && idle_ns.is_some_and(|idle_ns| 2 * idle_ns < self.from_ns - self.since_ns)
    }

    /// The collective that the rank left before its own stretch began, as a position among its stretches.
    pub fn previous(&self) -> Option<u32> {
        self.previous.get()
    }

    /// The time at which the rank leaves the instance.
    pub fn end_ns(&self) -> Option<i64> {
        self.end_ns.get()
    }

    /// The own time before the instance, in the rank's clock.
    pub fn own_ns(&self) -> Option<i64> {
        self.own_ns.get()
    }

    /// The own time since the rank's previous symmetric collective. It includes the time before sends and receives in
    /// between.
    pub fn rolled_ns(&self) -> Option<i64> {
        self.rolled_ns.get()
    }

    /// The duration of the collective in the rank's clock.
    pub fn dur_ns(&self) -> Option<i64> {
        self.dur_ns.get()
    }

    /// The end of the rank's wait if the last rank arrives at `last_ns`.
    pub fn wait_end_ns(&self, last_ns: i64) -> i64 {
        self.end_ns().map_or(last_ns, |end| end.min(last_ns)).max(self.arrival_ns)
    }
}

/// An instance with at least one rank whose part is available.
#[derive(Clone, Debug)]
pub struct Joined {
    pub id: i64,
    pub comm_id: i64,
    pub op: Word<Op>,
    pub(crate) bytes: Maybe<i64>,
    pub(crate) sender: MaybeAt,
    /// The number of its gradient bucket.
    pub bucket: Option<i32>,
    /// The active step of the instance; `None` outside of active steps.
    pub step: Option<i32>,
    /// Whether all ranks have the same role and wait for each other. False for a send, a receive or a broadcast.
    pub symmetric: bool,
    /// Whether all expected ranks are here; true if the expected number is unknown.
    pub whole: bool,
    /// Whether every expected rank is here and has ended.
    pub complete: bool,
    /// The expected number of ranks, or that of those that are here.
    pub size: u32,
    /// One arrival for each rank, in the order of ranks.
    pub arrivals: Vec<Arrival>,
    /// The time of the last arrival.
    pub last_ns: i64,
    pub(crate) own_median_ns: MaybeNs,
    /// The lower median of the times at which the known own stretches began.
    pub from_median_ns: i64,
    /// The position in `arrivals` of the rank that arrived last. Of ranks that arrived together, it is the one with the
    /// longest own time, then the lowest rank.
    pub(crate) blocker: u32,
}

impl Joined {
    /// The rank that arrived last. Of ranks that arrived together, it is the one with the longest own time, then the
    /// lowest rank.
    pub fn blocker(&self) -> &Arrival {
        &self.arrivals[self.blocker as usize]
    }

    /// Whether ranks of the instance wait for each other, and all of them are known.
    pub fn is_comparable(&self) -> bool {
        self.symmetric && self.whole && self.arrivals.len() > 1
    }

    /// The size of the whole array.
    pub fn bytes(&self) -> Option<i64> {
        self.bytes.get()
    }

    /// Of a send, the position of the rank that sends.
    pub fn sender(&self) -> Option<usize> {
        self.sender.get().map(|rank| rank as usize)
    }

    /// The lower median of the known own times.
    pub fn own_median_ns(&self) -> Option<i64> {
        self.own_median_ns.get()
    }

    /// The arrival of a rank, by its position among the parts.
    pub fn arrival_of(&self, rank: usize) -> Option<&Arrival> {
        self.arrivals.binary_search_by_key(&rank, |a| a.rank).ok().map(|at| &self.arrivals[at])
    }

    /// The own time of `a` above the lower median of the ranks; 0 if it is unknown.
    pub fn own_excess_ns(&self, a: &Arrival) -> i64 {
        a.own_ns().zip(self.own_median_ns()).map_or(0, |(own, median)| own - median)
    }

    /// A rank whose own stretch began at `from_median_ns`.
    pub fn typical(&self) -> Option<&Arrival> {
        self.arrivals.iter().find(|a| a.own_ns().is_some() && a.from_ns == self.from_median_ns)
    }

    /// The delay with which the work of `a` before its arrival began, against a typical rank; 0 if it is unknown.
    pub fn inherited_ns(&self, a: &Arrival) -> i64 {
        let typical = self.typical().filter(|_| a.follows_entry());
        let delay_ns = typical.map_or(a.from_ns - self.from_median_ns, |typical| a.since_ns - typical.since_ns);
        a.own_ns().map_or(0, |_| delay_ns)
    }
}
