//! The offsets between two clocks that are worth a try.

use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::ops::Range;

use crate::matching::align::lists::Lists;
use model::stats::lower_median;

/// Pairs of rows within reach of each other, per rank. Bounds the reach where all rows look alike.
const PAIRS_MAX: usize = 500_000;
/// Pairs of rows examined per rank, from a sample of its rows.
const EXAMINED_MAX: usize = 100_000;
/// Pairs of each row that are examined even if there are more than [`PAIRS_MAX`] in all: those of positions at most this
/// far apart.
const REACH_MIN: usize = 8;
/// Offset candidates examined per rank, beside those of the shifts.
const CANDIDATES_MAX: usize = 64;
/// Shifts by whole rows that are always tried, because a few false or one-sided rows can hide the true offset from the
/// barrier rule.
const SHIFTS: usize = 4;

/// Offset candidates, ascending and without duplicates.
pub(super) fn candidates(lists: &Lists) -> Vec<i64> {
    let total: usize = lists.tokens.iter().map(|rows| rows.in_rank.len()).sum();
    let reach = (PAIRS_MAX / total.max(1)).max(REACH_MIN);
    let near_one = |spine: usize| spine.min(2 * (2 * reach + 1));
    let pairs: usize = lists.tokens.iter().map(|rows| rows.in_rank.len() * near_one(rows.on_spine.len())).sum();
    // Every row of the rank has its partner at the same offset, so a sample of the rows shows it too.
    let stride = pairs.div_ceil(EXAMINED_MAX).max(1);
    // The ends of the ranges of offsets that the pairs allow.
    let (mut lows, mut highs) = (Vec::new(), Vec::new());
    let mut shifts: BTreeMap<isize, Vec<i64>> = BTreeMap::new();
    for rows in &lists.tokens {
        // Recordings differ at their beginning or end: partners have nearby positions when counted from one of them.
        let surplus = rows.on_spine.len() as isize - rows.in_rank.len() as isize;
        for (b, r) in rows.in_rank.iter().enumerate().step_by(stride) {
            for a in near(b as isize, surplus, reach, 0..rows.on_spine.len() as isize) {
                let s = &rows.on_spine[a as usize];
                let slack = s.slack_with(r);
                lows.push(s.start_ns.saturating_sub(r.end_ns).saturating_sub(slack));
                highs.push(s.end_ns.saturating_sub(r.start_ns).saturating_add(slack));
            }
        }
        for shift in near(0, surplus, SHIFTS, isize::MIN..isize::MAX) {
            let (on_spine, in_rank) = (shift.max(0).unsigned_abs(), shift.min(0).unsigned_abs());
            let pairs = rows.on_spine.iter().skip(on_spine).zip(rows.in_rank.iter().skip(in_rank));
            let offsets = pairs.map(|(s, r)| s.end_ns.saturating_sub(r.end_ns));
            shifts.entry(shift).or_default().extend(offsets);
        }
    }
    let mut offsets: Vec<i64> = shifts.into_values().filter_map(lower_median).collect();
    offsets.extend(deepest(lows, highs));
    offsets.sort_unstable();
    offsets.dedup();
    offsets
}

/// The positions in `within` that lie at most `reach` from `center` or from `center + surplus`, ascending.
fn near(center: isize, surplus: isize, reach: usize, within: Range<isize>) -> impl Iterator<Item = isize> {
    let around = |center: isize| {
        let clamp = |position: isize| position.clamp(within.start, within.end);
        clamp(center.saturating_sub_unsigned(reach))..clamp(center.saturating_add_unsigned(reach).saturating_add(1))
    };
    let (first, second) = (around(center + surplus.min(0)), around(center + surplus.max(0)));
    let rest = second.start.max(first.end)..second.end;
    first.chain(rest)
}

/// Midpoints of the ranges that most intervals cover, in any order. `lows` and `highs` are the ends of the intervals.
fn deepest(mut lows: Vec<i64>, mut highs: Vec<i64>) -> Vec<i64> {
    rayon::join(|| lows.sort_unstable(), || highs.sort_unstable());
    let mut peaks: Vec<(Reverse<usize>, i64)> = Vec::new();
    let mut closed = 0;
    for (opened, low) in lows.iter().enumerate() {
        // At equal values, intervals open before others close, so that touching intervals overlap.
        closed += highs[closed..].iter().take_while(|high| *high < low).count();
        let Some(high) = highs.get(closed) else { break };
        if lows.get(opened + 1).is_none_or(|next| high < next) {
            peaks.push((Reverse(opened + 1 - closed), low + high.saturating_sub(*low) / 2));
        }
    }
    if peaks.len() > CANDIDATES_MAX {
        peaks.select_nth_unstable(CANDIDATES_MAX);
        peaks.truncate(CANDIDATES_MAX);
    }
    peaks.into_iter().map(|(_, at)| at).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn positions_near_two_places_are_listed_once() {
        let near = |b, surplus, reach| near(b, surplus, reach, 0..10).collect::<Vec<_>>();
        assert_eq!(near(1, 0, 2), [0, 1, 2, 3]);
        assert_eq!(near(1, 6, 1), [0, 1, 2, 6, 7, 8]);
        assert_eq!(near(8, -6, 1), [1, 2, 3, 7, 8, 9]);
        assert_eq!(near(4, 2, 1), [3, 4, 5, 6, 7]);
        assert!(near(12, -1, 1).is_empty());
        assert_eq!(near(30, -21, 1), [8, 9]);
    }

    // offset    0 1 2 3 4 5 6 7 8
    // pair 1    |─────────|            0 to 5
    // pair 2        |───────|          2 to 6
    // pair 3              |───|        5 to 7: touches the first
    // pair 4                      |    9
    #[test]
    fn the_deepest_ranges_are_those_that_most_intervals_cover() {
        let mut found = deepest(vec![5, 0, 9, 2], vec![7, 5, 9, 6]);
        found.sort_unstable();
        assert_eq!(found, [5, 9]);
        let many = deepest((0..100).map(|k| 10 * k).collect(), (0..100).map(|k| 10 * k + 4).collect());
        assert_eq!(many.len(), CANDIDATES_MAX);
        assert_eq!(many.iter().max(), Some(&632));
        assert!(deepest(vec![], vec![]).is_empty());
    }
}
