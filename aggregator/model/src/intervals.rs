//! Sets of half-open intervals of time, in ns.
//!
//! The intervals of an [`IntervalSet`] are sorted and not empty, and they neither overlap nor touch. Every set of
//! points therefore has exactly one form. One column is one ns:
//!
//! ```text
//!                 0         1
//!                 0123456789012345
//!  a              ####..####......      [0,4) [6,10)
//!  b              ..####..####....      [2,6) [8,12)
//!  a ∪ b          ############....      [0,12)
//!  a ∩ b          ..##....##......      [2,4) [8,10)
//!  a \ b          ##....##........      [0,2) [6,8)
//! ```
//!
//! Each operation is one pass over its operands. [`Coverage`] returns the length of the set within a window in
//! logarithmic time, so a breakdown into thousands of windows stays linear in the rows.

/// The points `start_ns ≤ t < end_ns`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Interval {
    /// First point in the interval.
    pub start_ns: i64,
    /// First point after the interval.
    pub end_ns: i64,
}

impl Interval {
    /// The interval from `start_ns` to `end_ns`; empty unless `start_ns < end_ns`.
    pub fn new(start_ns: i64, end_ns: i64) -> Self {
        Self { start_ns, end_ns }
    }

    /// Length; 0 if the ends are reversed.
    pub fn len_ns(self) -> i64 {
        self.end_ns.saturating_sub(self.start_ns).max(0)
    }

    /// Whether the interval contains no point.
    pub fn is_empty(self) -> bool {
        self.start_ns >= self.end_ns
    }

    /// The intersection; may be empty.
    #[must_use]
    pub fn intersection(self, other: Self) -> Self {
        Self { start_ns: self.start_ns.max(other.start_ns), end_ns: self.end_ns.min(other.end_ns) }
    }

    /// The shortest interval that contains both.
    #[must_use]
    pub fn hull(self, other: Self) -> Self {
        Self { start_ns: self.start_ns.min(other.start_ns), end_ns: self.end_ns.max(other.end_ns) }
    }
}

/// A set of points in time, stored as its maximal intervals in order.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct IntervalSet {
    intervals: Vec<Interval>,
}

impl IntervalSet {
    /// The empty set.
    pub fn new() -> Self {
        Self::default()
    }

    /// The union of intervals in any order.
    pub fn from_unsorted(mut intervals: Vec<Interval>) -> Self {
        intervals.sort_unstable();
        let mut set = Self::new();
        for interval in intervals {
            set.push(interval);
        }
        set
    }

    /// Adds an interval that starts no earlier than all intervals before it. Building a union this way is cheap for
    /// sorted rows. Empty intervals add nothing.
    ///
    /// # Panics
    /// In debug builds, if the interval starts before the last one does.
    pub fn push(&mut self, interval: Interval) {
        if interval.is_empty() {
            return;
        }
        match self.intervals.last_mut() {
            Some(last) if interval.start_ns <= last.end_ns => {
                debug_assert!(interval.start_ns >= last.start_ns, "intervals are pushed in the order of their starts");
                last.end_ns = last.end_ns.max(interval.end_ns);
            }
            _ => self.intervals.push(interval),
        }
    }

    /// The intervals in order.
    pub fn intervals(&self) -> &[Interval] {
        &self.intervals
    }

    /// Whether the set contains no point.
    pub fn is_empty(&self) -> bool {
        self.intervals.is_empty()
    }

    /// Total length of the intervals.
    pub fn len_ns(&self) -> i64 {
        self.intervals.iter().map(|i| i.len_ns()).sum()
    }

    /// The interval from the first point to the last; `None` for the empty set.
    pub fn hull(&self) -> Option<Interval> {
        let (first, last) = (self.intervals.first()?, self.intervals.last()?);
        Some(Interval::new(first.start_ns, last.end_ns))
    }

    /// The union of both sets.
    #[must_use]
    pub fn union(&self, other: &Self) -> Self {
        let (a, b) = (&self.intervals, &other.intervals);
        let mut set = Self { intervals: Vec::with_capacity(a.len().max(b.len())) };
        let (mut i, mut j) = (0, 0);
        while i < a.len() || j < b.len() {
            let take_a = j == b.len() || (i < a.len() && a[i].start_ns <= b[j].start_ns);
            set.push(if take_a { a[i] } else { b[j] });
            if take_a {
                i += 1;
            } else {
                j += 1;
            }
        }
        set
    }

    /// The union of any number of sets.
    #[must_use]
    pub fn union_of<'a>(sets: impl Iterator<Item = &'a Self>) -> Self {
        let mut intervals: Vec<Interval> = sets.flat_map(|set| set.intervals.iter().copied()).collect();
        // The stable sort merges sorted runs, which the sets are.
        intervals.sort();
        let mut union = Self::new();
        intervals.into_iter().for_each(|interval| union.push(interval));
        union
    }

    /// The intersection of both sets.
    #[must_use]
    pub fn intersection(&self, other: &Self) -> Self {
        let (a, b) = (&self.intervals, &other.intervals);
        let mut set = Self::new();
        let (mut i, mut j) = (0, 0);
        while i < a.len() && j < b.len() {
            set.push(a[i].intersection(b[j]));
            if a[i].end_ns <= b[j].end_ns {
                i += 1;
            } else {
                j += 1;
            }
        }
        set
    }

    /// The points of this set that are not in the other.
    #[must_use]
    pub fn difference(&self, other: &Self) -> Self {
        let holes = &other.intervals;
        let mut set = Self::new();
        let mut next = 0;
        for interval in &self.intervals {
            let mut start_ns = interval.start_ns;
            while next < holes.len() && holes[next].end_ns <= start_ns {
                next += 1;
            }
            let mut hole = next;
            while hole < holes.len() && holes[hole].start_ns < interval.end_ns {
                set.push(Interval::new(start_ns, holes[hole].start_ns));
                start_ns = holes[hole].end_ns;
                hole += 1;
            }
            set.push(Interval::new(start_ns, interval.end_ns));
        }
        set
    }

    /// The part of the set within `window`.
    #[must_use]
    pub fn clip(&self, window: Interval) -> Self {
        let first = self.intervals.partition_point(|i| i.end_ns <= window.start_ns);
        let mut set = Self::new();
        for interval in self.intervals[first..].iter().take_while(|i| i.start_ns < window.end_ns) {
            set.push(interval.intersection(window));
        }
        set
    }

    /// The points of `window` that are not in the set.
    #[must_use]
    pub fn gaps(&self, window: Interval) -> Self {
        let mut whole = Self::new();
        whole.push(window);
        whole.difference(self)
    }
}

impl FromIterator<Interval> for IntervalSet {
    fn from_iter<I: IntoIterator<Item = Interval>>(intervals: I) -> Self {
        Self::from_unsorted(intervals.into_iter().collect())
    }
}

/// A set with prefix sums, to measure its length within windows.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Coverage {
    set: IntervalSet,
    /// Total length of all intervals before the i-th.
    before_ns: Vec<i64>,
    total_ns: i64,
}

impl Coverage {
    /// Computes the prefix sums.
    pub fn new(set: IntervalSet) -> Self {
        let mut total_ns = 0;
        let before_ns = set
            .intervals
            .iter()
            .map(|interval| {
                let before = total_ns;
                total_ns += interval.len_ns();
                before
            })
            .collect();
        Self { set, before_ns, total_ns }
    }

    /// The underlying set.
    pub fn set(&self) -> &IntervalSet {
        &self.set
    }

    /// Total length of the set.
    pub fn len_ns(&self) -> i64 {
        self.total_ns
    }

    /// Length of the set within `window`.
    pub fn within_ns(&self, window: Interval) -> i64 {
        if window.is_empty() { 0 } else { self.before(window.end_ns) - self.before(window.start_ns) }
    }

    /// Length of the set before `t`.
    pub fn before(&self, t: i64) -> i64 {
        let i = self.set.intervals.partition_point(|interval| interval.start_ns < t);
        if i == 0 {
            return 0;
        }
        let interval = self.set.intervals[i - 1];
        self.before_ns[i - 1] + interval.end_ns.min(t).saturating_sub(interval.start_ns)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// The set drawn with `#`, one column per ns.
    fn drawn(line: &str) -> IntervalSet {
        line.char_indices().filter(|(_, c)| *c == '#').map(|(t, _)| Interval::new(t as i64, t as i64 + 1)).collect()
    }

    fn draw(set: &IntervalSet, width: usize) -> String {
        let inside = |t: usize| set.intervals().iter().any(|i| i.start_ns <= t as i64 && (t as i64) < i.end_ns);
        (0..width).map(|t| if inside(t) { '#' } else { '.' }).collect()
    }

    #[test]
    fn operations_are_as_drawn() {
        let a = drawn("####..####..#...");
        let b = drawn("..####..####...#");
        let check = |set: &IntervalSet, expected: &str| assert_eq!(draw(set, 16), expected);
        check(&a.union(&b), "#############..#");
        check(&a.intersection(&b), "..##....##......");
        check(&a.difference(&b), "##....##....#...");
        check(&b.difference(&a), "....##....##...#");
        check(&a.clip(Interval::new(2, 8)), "..##..##........");
        check(&a.gaps(Interval::new(2, 14)), "....##....##.#..");
    }

    #[test]
    fn touching_intervals_are_one() {
        let set: IntervalSet = [Interval::new(4, 6), Interval::new(0, 4), Interval::new(6, 6)].into_iter().collect();
        assert_eq!(set.intervals(), [Interval::new(0, 6)]);
        assert_eq!(set.hull(), Some(Interval::new(0, 6)));
    }

    #[test]
    fn one_hole_may_cut_several_intervals() {
        //                               0         1
        let a = drawn("###.###.###.####");
        let b = drawn(".############...");
        assert_eq!(draw(&a.difference(&b), 16), "#............###");
    }

    #[test]
    fn reversed_ends_are_empty() {
        assert!(Interval::new(5, 3).is_empty());
        assert_eq!(Interval::new(5, 3).len_ns(), 0);
        assert_eq!(Coverage::new(drawn("####")).within_ns(Interval::new(3, 1)), 0);
    }

    const POINTS: i64 = 48;

    fn interval_lists() -> impl Strategy<Value = Vec<Interval>> {
        let interval = (0..POINTS, 0..12_i64).prop_map(|(start, len)| Interval::new(start, (start + len).min(POINTS)));
        prop::collection::vec(interval, 0..12)
    }

    fn has(intervals: &[Interval], t: i64) -> bool {
        intervals.iter().any(|i| i.start_ns <= t && t < i.end_ns)
    }

    fn assert_canonical(set: &IntervalSet) {
        assert!(set.intervals().iter().all(|i| !i.is_empty()));
        assert!(set.intervals().windows(2).all(|w| w[0].end_ns < w[1].start_ns));
    }

    proptest! {
        #[test]
        fn operations_agree_with_points(x in interval_lists(), y in interval_lists(), start in 0..POINTS, len in 0..POINTS) {
            let (a, b) = (IntervalSet::from_unsorted(x.clone()), IntervalSet::from_unsorted(y.clone()));
            let window = Interval::new(start, (start + len).min(POINTS));
            let results = [
                a.clone(), a.union(&b), a.intersection(&b), a.difference(&b), a.clip(window), a.gaps(window),
            ];
            for t in 0..POINTS {
                let (in_a, in_b, in_window) = (has(&x, t), has(&y, t), window.start_ns <= t && t < window.end_ns);
                let expected =
                    [in_a, in_a || in_b, in_a && in_b, in_a && !in_b, in_a && in_window, !in_a && in_window];
                for (set, expected) in results.iter().zip(expected) {
                    prop_assert_eq!(has(set.intervals(), t), expected);
                }
            }
            results.iter().for_each(assert_canonical);
        }

        #[test]
        fn coverage_agrees_with_clip(x in interval_lists(), start in -5..POINTS, len in 0..POINTS) {
            let set = IntervalSet::from_unsorted(x);
            let coverage = Coverage::new(set.clone());
            let window = Interval::new(start, start + len);
            prop_assert_eq!(coverage.within_ns(window), set.clip(window).len_ns());
            prop_assert_eq!(coverage.len_ns(), set.len_ns());
        }

        #[test]
        fn inclusion_and_exclusion(x in interval_lists(), y in interval_lists()) {
            let (a, b) = (IntervalSet::from_unsorted(x), IntervalSet::from_unsorted(y));
            prop_assert_eq!(a.union(&b).len_ns() + a.intersection(&b).len_ns(), a.len_ns() + b.len_ns());
            prop_assert_eq!(a.difference(&b).len_ns(), a.len_ns() - a.intersection(&b).len_ns());
        }
    }
}
