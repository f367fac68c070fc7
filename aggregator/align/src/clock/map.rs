//! The map from a clock that may bend and jump to another clock.

use crate::clock::affine::Affine;

/// A map between clocks, in ns: lines between times at which the clock bends, after its jumps are taken away.
#[derive(Clone, Debug, PartialEq)]
pub struct Map {
    /// The line before the first bend.
    first: Affine,
    /// The time of each bend on the clock without its jumps, and the line from there on; ascending.
    bends: Vec<(i64, Affine)>,
    /// The time of each jump, and the sum of all jumps up to it; ascending.
    jumps: Vec<(i64, i64)>,
}

impl Default for Map {
    fn default() -> Self {
        Self::line(Affine::IDENTITY)
    }
}

impl Map {
    /// The map of a clock that neither bends nor jumps.
    pub(crate) fn line(line: Affine) -> Self {
        Self { first: line, bends: Vec::new(), jumps: Vec::new() }
    }

    /// The map through `knots`: times of both clocks, of which those of this clock ascend. Before and after them it runs as `line`.
    pub(crate) fn through(line: Affine, knots: &[(i64, i64)]) -> Self {
        let from = |(t, to): (i64, i64), drift| Affine { offset_ns: to.saturating_sub(t), drift, origin_ns: t };
        let between = |pair: &[(i64, i64)]| {
            let [here, there] = [pair[0], pair[1]].map(|(t, to)| (t, to.saturating_sub(t)));
            let drift = there.1.saturating_sub(here.1) as f64 / there.0.saturating_sub(here.0).max(1) as f64;
            (pair[0].0, from(pair[0], drift))
        };
        let (Some(first), Some(last)) = (knots.first(), knots.last()) else { return Self::line(line) };
        let bends = knots.windows(2).map(between).chain([(last.0, from(*last, line.drift))]).collect();
        Self { first: from(*first, line.drift), bends, jumps: Vec::new() }
    }

    /// The same map for a clock that also jumped, with the time of each jump and how far it leapt ahead.
    pub(crate) fn with_jumps(&self, jumps: impl Iterator<Item = (i64, i64)>) -> Self {
        let sums = jumps.scan(0_i64, |sum, (from_ns, by_ns)| {
            *sum = sum.saturating_add(by_ns);
            Some((from_ns, *sum))
        });
        Self { jumps: sums.collect(), ..self.clone() }
    }

    /// Composes this map with `next`.
    pub(crate) fn then(&self, next: &Affine) -> Self {
        let bends = self.bends.iter().map(|(from, line)| (*from, line.then(next))).collect();
        Self { first: self.first.then(next), bends, jumps: self.jumps.clone() }
    }

    /// Converts a time to the target clock.
    pub fn apply(&self, t_ns: i64) -> i64 {
        let even_ns = t_ns.saturating_sub(self.ahead_ns(t_ns));
        let after = self.bends.partition_point(|(from_ns, _)| *from_ns <= even_ns);
        after.checked_sub(1).map_or(&self.first, |at| &self.bends[at].1).apply(even_ns)
    }

    /// How far the clock is ahead at `t_ns` because it has jumped.
    fn ahead_ns(&self, t_ns: i64) -> i64 {
        self.jumps.iter().rev().find(|(from, _)| *from <= t_ns).map_or(0, |(_, sum)| *sum)
    }

    /// The one line of a clock without bends.
    pub(crate) fn as_line(&self) -> Option<&Affine> {
        self.bends.is_empty().then_some(&self.first)
    }

    /// The lines within times of the clock without its jumps, with the time from which each holds; `None`: the clock's first or
    /// last.
    pub(crate) fn within(&self, from_ns: Option<i64>, until_ns: Option<i64>) -> Vec<(Option<i64>, Affine)> {
        let ends = self.bends.iter().map(|(from, _)| Some(*from)).chain([None]);
        let lines = [(None, self.first)].into_iter().chain(self.bends.iter().map(|(from, line)| (Some(*from), *line)));
        let reaches = |(begin, end): (Option<i64>, Option<i64>)| {
            let is_before = |a: Option<i64>, b: Option<i64>| a.zip(b).is_none_or(|(a, b)| a < b);
            is_before(from_ns, end) && is_before(begin, until_ns)
        };
        let within = lines.zip(ends).filter(|((begin, _), end)| reaches((*begin, *end)));
        within.map(|((begin, line), _)| (begin.max(from_ns), line)).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const S: i64 = 1_000_000_000;

    // global      ____,-´´´
    //        ,,-´´
    //        0    10   20   30 s
    #[test]
    fn a_clock_that_bends_has_a_line_between_knots() {
        let line = Affine { offset_ns: 5, drift: 1e-6, origin_ns: 0 };
        let map = Map::through(line, &[(0, 5), (10 * S, 10 * S + 20_005), (20 * S, 20 * S + 20_005)]);
        let above = |t: i64| map.apply(t) - t;
        assert_eq!(
            [-S, 0, 5 * S, 10 * S, 15 * S, 20 * S, 30 * S].map(above),
            [-995, 5, 10_005, 20_005, 20_005, 20_005, 30_005]
        );
        assert_eq!(
            map.within(Some(11 * S), Some(20 * S)).iter().map(|part| part.0).collect::<Vec<_>>(),
            [Some(11 * S)]
        );
        let froms: Vec<Option<i64>> = map.within(None, None).iter().map(|part| part.0).collect();
        assert_eq!(froms, [None, Some(0), Some(10 * S), Some(20 * S)]);
        assert_eq!((map.as_line(), Map::line(line).as_line()), (None, Some(&line)));
    }

    #[test]
    fn jumps_are_taken_away_before_the_bends() {
        let map = Map::through(Affine::IDENTITY, &[(0, 0), (10 * S, 10 * S + 1_000), (20 * S, 20 * S)]);
        let jumped = map.with_jumps([(5 * S, 300), (15 * S, -100)].into_iter());
        for (shown, even) in [(4 * S, 4 * S), (5 * S + 300, 5 * S), (12 * S + 300, 12 * S), (16 * S + 200, 16 * S)] {
            assert_eq!(jumped.apply(shown), map.apply(even));
        }
    }
}
