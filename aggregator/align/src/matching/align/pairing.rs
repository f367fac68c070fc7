//! The cheapest pairing of a rank's rows with those of the spine, at an offset between their clocks.

use std::collections::{BTreeMap, BTreeSet};

use rayon::prelude::*;

use crate::matching::align::lists::{Lists, Row, Shared};
use model::stats::lower_median;

/// The times that an offset is moved to where the ends of the pairs agree.
const ROUNDS: usize = 4;

/// One alignment of a rank's items to the spine.
#[derive(Clone, Debug)]
pub(super) struct Alignment {
    /// Spine time − rank time.
    pub(super) offset_ns: i64,
    /// Positions on the spine and in the rank's items, sorted by the latter.
    pub(super) pairs: Vec<(u32, u32)>,
    pub(super) cost: f64,
    /// Mean cost of the pairs: small if partners end close together.
    pub(super) distance: f64,
}

/// An offset that is refined by the ends of the pairs that it gives.
struct Search {
    offset_ns: i64,
    /// The cheapest offset so far, and its cost.
    best: Option<(i64, f64)>,
    ended: bool,
}

/// The outcome of a pairing.
struct Outcome {
    cost: f64,
    /// The offset at which the ends of the pairs agree at the median; `None` without pairs.
    refined_ns: Option<i64>,
}

/// Refines each of the offsets. Returns the cheapest alignments that they lead to; different offsets have different ones.
/// Many offsets lead to the same one, so each pairing is computed once.
pub(super) fn alignments(lists: &Lists, offsets: &[i64]) -> Vec<Alignment> {
    let start = |offset_ns: &i64| Search { offset_ns: *offset_ns, best: None, ended: false };
    let mut searches: Vec<Search> = offsets.iter().map(start).collect();
    let mut known: BTreeMap<i64, Outcome> = BTreeMap::new();
    for _ in 0..ROUNDS {
        let due: BTreeSet<i64> =
            searches.iter().filter(|search| !search.ended).map(|search| search.offset_ns).collect();
        let due: Vec<i64> = due.into_iter().filter(|offset_ns| !known.contains_key(offset_ns)).collect();
        let outcome = |table: &mut Table, offset_ns: &i64| {
            let mut ends = Vec::new();
            let cost = table.pair(lists, *offset_ns, |s, r| ends.push(s.end_ns.saturating_sub(r.end_ns)));
            (*offset_ns, Outcome { cost, refined_ns: lower_median(ends) })
        };
        let found: Vec<_> = due.par_iter().with_max_len(1).map_init(Table::default, outcome).collect();
        known.extend(found);
        for search in searches.iter_mut().filter(|search| !search.ended) {
            let Some(outcome) = known.get(&search.offset_ns) else { continue };
            let is_cheaper = search.best.is_none_or(|(_, cost)| outcome.cost < cost);
            if is_cheaper {
                search.best = Some((search.offset_ns, outcome.cost));
            }
            match outcome.refined_ns.filter(|refined_ns| is_cheaper && *refined_ns != search.offset_ns) {
                Some(refined_ns) => search.offset_ns = refined_ns,
                None => search.ended = true,
            }
        }
    }
    let mut best: Vec<i64> = Vec::new();
    for (offset_ns, _) in searches.iter().filter_map(|search| search.best) {
        if !best.contains(&offset_ns) {
            best.push(offset_ns);
        }
    }
    let at_offset = |table: &mut Table, offset_ns: &i64| alignment(table, lists, *offset_ns);
    let found: Vec<_> = best.par_iter().with_max_len(1).map_init(Table::default, at_offset).collect();
    let mut different: Vec<Alignment> = Vec::new();
    for alignment in found {
        if !alignment.pairs.is_empty() && !different.iter().any(|other| other.pairs == alignment.pairs) {
            different.push(alignment);
        }
    }
    different
}

/// The alignment at an offset that is not refined; `None` if it pairs nothing.
pub(super) fn alignment_at(lists: &Lists, offset_ns: i64) -> Option<Alignment> {
    Some(alignment(&mut Table::default(), lists, offset_ns)).filter(|alignment| !alignment.pairs.is_empty())
}

fn alignment(table: &mut Table, lists: &Lists, offset_ns: i64) -> Alignment {
    let mut pairs: Vec<(u32, u32, f64)> = Vec::new();
    let cost = table.pair(lists, offset_ns, |s, r| pairs.push((s.at, r.at, s.cost_with(r, offset_ns))));
    pairs.sort_unstable_by_key(|(_, j, _)| *j);
    let sum: f64 = pairs.iter().map(|(.., cost)| cost).sum();
    let distance = sum / pairs.len().max(1) as f64;
    Alignment { offset_ns, pairs: pairs.into_iter().map(|(i, j, _)| (i, j)).collect(), cost, distance }
}

/// The predecessor of a cell in the table.
#[derive(Clone, Copy, Debug)]
enum Step {
    Start,
    Pair,
    SpineAlone,
    RankAlone,
}

/// The table of Needleman and Wunsch, in a band around equal ends. Its memory serves one token after the other.
#[derive(Default)]
struct Table {
    /// For each number of spine rows: the range of the number of rank rows that may be aligned with them.
    band: Vec<(usize, usize)>,
    /// The cells, one row of the band after the other, and the place of the first cell of each row.
    steps: Vec<Step>,
    firsts: Vec<usize>,
    /// Costs of a row of the band, and of the row above it.
    costs: Vec<f64>,
    above: Vec<f64>,
}

impl Table {
    /// Concurrent operations end in any order: partners lie at most this many rows from the position that their ends
    /// suggest.
    const HALF_WIDTH: usize = 8;
    /// Rank rows that a row of the spine is compared with, on average.
    const WIDTH_MAX: usize = 256;

    /// Finds the cheapest pairing at an offset, and returns its cost. Calls `take` with the two rows of each pair.
    fn pair(&mut self, lists: &Lists, offset_ns: i64, mut take: impl FnMut(&Row, &Row)) -> f64 {
        let both_record = lists.both_record(offset_ns);
        let alone = |end_ns: i64| {
            if (both_record.0..=both_record.1).contains(&end_ns) { lists.alone } else { lists.alone / 2.0 }
        };
        let mut cost = 0.0;
        for rows in &lists.tokens {
            self.find_band(rows, offset_ns);
            cost += self.fill(rows, offset_ns, alone);
            self.follow(rows, &mut take);
        }
        cost
    }

    fn find_band(&mut self, rows: &Shared, offset_ns: i64) {
        let (n, m) = (rows.on_spine.len(), rows.in_rank.len());
        self.band_around(rows, offset_ns, rows.on_spine.iter().map(|row| row.end_ns));
        let cells: usize = self.band.iter().map(|(low, high)| high + 1 - low).sum();
        if cells > Self::WIDTH_MAX * (n + m) {
            // The band never gets narrower again after a row that ends much later than the rows behind it.
            let mut ends: Vec<i64> = rows.on_spine.iter().map(|row| row.end_ns).collect();
            ends.sort_unstable();
            self.band_around(rows, offset_ns, ends.into_iter());
        }
    }

    /// The band around the places of `ends`, one for each row of the spine, among the ends of the rank.
    fn band_around(&mut self, rows: &Shared, offset_ns: i64, ends: impl Iterator<Item = i64>) {
        let (n, m) = (rows.on_spine.len(), rows.in_rank.len());
        self.band.clear();
        let mut center = 0;
        for (a, end_ns) in ends.enumerate() {
            center = place(&rows.rank_ends, offset_ns, end_ns, center);
            if a == 0 {
                self.band.push((0, (center + Self::HALF_WIDTH).min(m)));
            }
            let high = (center + 1 + Self::HALF_WIDTH).min(m).max(self.band[a].1);
            self.band.push((center, if a + 1 == n { m } else { high }));
        }
        // A row that ends later than rows behind it must not take their places from them, so the least place of the row
        // and of those behind it counts. The band must stay within reach of the row above, or no path would connect the
        // two.
        let mut least = m;
        for a in (1..self.band.len()).rev() {
            least = least.min(self.band[a].0);
            self.band[a].0 = least.saturating_sub(Self::HALF_WIDTH).min(self.band[a - 1].1);
        }
    }

    /// Fills the table for the rows of one token, and returns the cost of the cheapest pairing.
    fn fill(&mut self, rows: &Shared, offset_ns: i64, alone: impl Fn(i64) -> f64) -> f64 {
        self.steps.clear();
        self.firsts.clear();
        self.above.clear();
        let mut low_above = 0;
        for (a, (low, high)) in self.band.iter().copied().enumerate() {
            self.firsts.push(self.steps.len());
            self.costs.clear();
            let row = a.checked_sub(1).map(|a| &rows.on_spine[a]);
            let row_alone = row.map_or(f64::INFINITY, |row| alone(row.end_ns));
            let above = |b: usize| self.above.get(b.wrapping_sub(low_above)).copied().unwrap_or(f64::INFINITY);
            let (mut diagonal, mut left) = (above(low.wrapping_sub(1)), f64::INFINITY);
            for b in low..=high {
                let partner = b.checked_sub(1).map(|b| &rows.in_rank[b]);
                let partner_alone = partner.map_or(f64::INFINITY, |row| alone(row.end_ns.saturating_add(offset_ns)));
                let over = above(b);
                let (without_row, without_partner) = (over + row_alone, left + partner_alone);
                let (mut cost, mut step) = (without_row, Step::SpineAlone);
                if without_partner < cost {
                    (cost, step) = (without_partner, Step::RankAlone);
                }
                // A pair costs something, so most pairs need no cost to be known as too expensive.
                if let (Some(row), Some(partner)) = (row, partner)
                    && diagonal <= cost
                {
                    let paired = diagonal + row.cost_with(partner, offset_ns);
                    if paired <= cost {
                        (cost, step) = (paired, Step::Pair);
                    }
                }
                if a == 0 && b == 0 {
                    (cost, step) = (0.0, Step::Start);
                }
                self.costs.push(cost);
                self.steps.push(step);
                (diagonal, left) = (over, cost);
            }
            std::mem::swap(&mut self.above, &mut self.costs);
            low_above = low;
        }
        self.above.last().copied().unwrap_or(0.0)
    }

    /// Follows the path back from the last cell.
    fn follow(&self, rows: &Shared, take: &mut impl FnMut(&Row, &Row)) {
        let (mut a, mut b) = (rows.on_spine.len(), rows.in_rank.len());
        loop {
            match self.steps[self.firsts[a] + b - self.band[a].0] {
                Step::Start => break,
                Step::Pair => {
                    (a, b) = (a - 1, b - 1);
                    take(&rows.on_spine[a], &rows.in_rank[b]);
                }
                Step::SpineAlone => a -= 1,
                Step::RankAlone => b -= 1,
            }
        }
    }
}

/// The number of ends that come before `end_ns` once they are moved by an offset. `ends` are ascending, and `near` is the
/// number for the row before.
fn place(ends: &[i64], offset_ns: i64, end_ns: i64, near: usize) -> usize {
    let before = |end: &i64| end.saturating_add(offset_ns) < end_ns;
    let ahead = ends[near..].iter().take(Table::HALF_WIDTH).take_while(|end| before(end)).count();
    let found = near + ahead;
    let fits = (found == 0 || before(&ends[found - 1])) && ends.get(found).is_none_or(|end| !before(end));
    if fits { found } else { ends.partition_point(before) }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::matching::align::{Item, sort};

    /// Items of two tokens: start, length, and whether they name a step.
    fn items() -> impl Strategy<Value = Vec<Item>> {
        let item = (0..2_u32, 0..60_i64, 0..20_i64, prop::option::of(0..2)).prop_map(|(token, start, length, step)| {
            let (start_ns, end_ns) = (start * 1000, (start + length) * 1000);
            Item { token, start_ns, end_ns, slack_ns: 2000, step, rows: vec![(0, start as usize)] }
        });
        prop::collection::vec(item, 1..=Table::HALF_WIDTH).prop_map(|mut items| {
            sort(&mut items);
            items
        })
    }

    /// The cost of the cheapest pairing, from the definition.
    fn cheapest(rows: &Shared, (a, b): (usize, usize), offset_ns: i64, alone: &dyn Fn(i64) -> f64) -> f64 {
        let (s, r) = (&rows.on_spine[..a], &rows.in_rank[..b]);
        let without_s = s.last().map(|s| cheapest(rows, (a - 1, b), offset_ns, alone) + alone(s.end_ns));
        let without_r = r.last().map(|r| cheapest(rows, (a, b - 1), offset_ns, alone) + alone(r.end_ns + offset_ns));
        let paired = s.last().zip(r.last()).map(|(s, r)| s.cost_with(r, offset_ns)).filter(|cost| cost.is_finite());
        let paired = paired.map(|cost| cheapest(rows, (a - 1, b - 1), offset_ns, alone) + cost);
        [without_s, without_r, paired].into_iter().flatten().min_by(f64::total_cmp).unwrap_or(0.0)
    }

    /// Short rows that follow each other, and at a position one that ends after all others.
    fn with_a_long_row(short: i64, at: usize) -> Vec<Item> {
        let item = |start_ns: i64, end_ns| {
            let (token, slack_ns, step, rows) = (0, 2_000, None, vec![(0, 0)]);
            Item { token, start_ns, end_ns, slack_ns, step, rows }
        };
        let mut items: Vec<Item> = (1..=short).map(|k| item(10_000 * k, 10_000 * k + 5_000)).collect();
        items.insert(at, item(10_000 * at as i64 + 2_000, 10_000 * (short + 1_000)));
        items
    }

    /// ```text
    /// spine  |0---------------------------|     the place of row 0 is behind all rows of the rank; those of the others
    ///           |1-| |2-| |3-| |4-| |5-|        are where they were
    /// ```
    #[test]
    fn a_row_that_ends_after_all_others_takes_no_place_from_them() {
        for short in [3, 20, 300, 3_000] {
            for at in [0, 1, 2, short as usize / 2] {
                let items = with_a_long_row(short, at);
                let lists = Lists::new(&items, &items);
                let mut pairs = 0;
                let cost = Table::default().pair(&lists, 0, |s, r| pairs += usize::from(s.at == r.at));
                assert_eq!((cost, pairs), (0.0, items.len()), "{short} short rows, the long one at {at}");
            }
        }
    }

    /// Without a bound, every row would be compared with all rows behind a row that ends after all others.
    #[test]
    fn a_long_row_does_not_widen_the_band_for_all_others() {
        for at in [0, 1] {
            let items = with_a_long_row(20_000, at);
            let lists = Lists::new(&items, &items);
            let mut table = Table::default();
            let mut pairs = 0;
            let cost = table.pair(&lists, 0, |s, r| pairs += usize::from(s.at == r.at));
            assert_eq!((cost, pairs), (0.0, 20_001));
            assert!(table.steps.len() <= Table::WIDTH_MAX * 40_000, "{}", table.steps.len());
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]

        /// One table serves all offsets and tokens, and leaves out the costs of pairs that cannot be cheapest.
        #[test]
        fn the_cheapest_pairing_is_found(spine in items(), items in items(), offsets in prop::collection::vec(-30..30_i64, 3)) {
            let (spine, items) = (&spine[..spine.len().min(5)], &items[..items.len().min(5)]);
            let lists = Lists::new(spine, items);
            let mut table = Table::default();
            for offset_ns in offsets.into_iter().map(|us| 1000 * us) {
                let (from, to) = lists.both_record(offset_ns);
                let alone = |end_ns: i64| if (from..=to).contains(&end_ns) { lists.alone } else { lists.alone / 2.0 };
                let expected: f64 = lists
                    .tokens
                    .iter()
                    .map(|rows| cheapest(rows, (rows.on_spine.len(), rows.in_rank.len()), offset_ns, &alone))
                    .sum();
                let mut pairs: Vec<(u32, u32)> = Vec::new();
                let cost = table.pair(&lists, offset_ns, |s, r| pairs.push((s.at, r.at)));
                prop_assert!((cost - expected).abs() < 1e-9, "{} and not {}", cost, expected);
                pairs.sort_unstable();
                // Pairs of one token keep their order.
                for token in 0..2 {
                    let of_token = pairs.iter().filter(|(i, _)| spine[*i as usize].token == token);
                    prop_assert!(of_token.map(|(_, j)| j).is_sorted_by(|a, b| a < b));
                }
            }
        }
    }
}
