//! Matching by gapped alignment of the ranks' sequences, checked by the barrier rule.
//!
//! The rows of the rank with the most rows become the *spine*. Every other rank is aligned to it, and rows that the
//! spine lacks are inserted. The clock offsets are unknown, so choosing the partner of a row and estimating the offset
//! are one question. A row can match a spine row only if both have the same (communicator, operation, bytes) and
//! overlap on one clock, because no rank leaves a collective before every rank has entered it. Each such pair allows a
//! range of offsets:
//!
//! ```text
//! spine   |--A--|      |--A--|        |--A--|
//! rank          |-A-|        |----A-|       |A|       offset 0: one pair out of place, two rows overlap nothing
//! rank  |-A-|        |----A-|       |A|               offset −8: every row overlaps its partner, and they end together
//!
//! offsets allowed by the pairs        ───── ──    the offset that most pairs allow is a candidate
//!                                  ────  ────────
//! ```
//!
//! Several candidates can satisfy the rule, most often where steps repeat. The cost of a candidate decides: partners
//! that end close together make it small (ranks leave a collective together), rows without a partner make it large. The
//! cost is Σ ln(1 + |difference of ends| / 1 µs) over the pairs, plus P = ln(1 + spacing / 1 µs) for each row without a
//! partner while both sides recorded, and half of P where the other side did not record. Among the candidates whose
//! partners end equally close, within chance, the one with the most pairs wins. If two different candidates have
//! equally many pairs, the alignment is ambiguous: the rank stays unmatched and is reported. Only differences between
//! times of one clock are used, so a shifted clock changes nothing.

use std::cmp::Reverse;
use std::collections::BTreeMap;

use trace::{MatchLevel, OmissionRow, Op, Word};

use crate::align::matching::{Group, RowRef, barrier_of, is_point_to_point, omission, pair_of, window_of};
use crate::base::stats::lower_median;
use crate::model::RankOutline;
use crate::model::windows::Windows;
use crate::model::{Barrier, WEAK_SLACK_NS};

/// Pairs of rows examined per rank. Bounds time and memory where all rows look alike.
const PAIRS_MAX: usize = 500_000;
/// Offset candidates examined per rank.
const CANDIDATES_MAX: usize = 64;
/// Shifts by whole rows that are always tried, because a few false or one-sided rows can hide the true offset from the
/// barrier rule.
const SHIFTS: isize = 4;
/// A rank may leave a one-sided operation this long before another rank enters it.
const ONE_SIDED_SLACK_NS: i64 = 1_000_000;
/// Drift limit between two clocks: two quartz oscillators at ±50 ppm. In parts per 10⁶.
const DRIFT_LIMIT_PPM: i64 = 100;
/// Many traces hold whole microseconds: truncation cuts start and length by up to 1 µs each.
const ROUNDING_NS: i64 = 2_000;
/// Cost of a pair whose rows name different steps, in nats (a likelihood ratio of e).
const STEPS_DIFFER: f64 = 1.0;
/// Standard deviation of the ln of a distance: π/√6 for an exponential distance far above 1 µs, less below.
const SCATTER: f64 = 1.28;

/// Matched groups, and the count of the rows that found no group.
pub(super) struct Aligned {
    pub(super) groups: Vec<Group>,
    pub(super) omissions: Vec<OmissionRow>,
}

/// Properties that rows must share to be one collective.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Token {
    /// A group that its key has already matched: evidence for the offset.
    Known(usize),
    /// Window, communicator, operation, bytes, sender and receiver.
    Like(Option<i32>, i64, Word<Op>, Option<i64>, Option<(i32, i32)>),
}

/// One row. Times are in its rank's clock, or in the spine's clock.
#[derive(Clone, Debug)]
struct Item {
    token: u32,
    start_ns: i64,
    end_ns: i64,
    slack_ns: i64,
    step: Option<i32>,
    /// The rows that this item represents: one, or on the spine all rows that were merged into it.
    rows: Vec<RowRef>,
}

/// Groups `rest`, the rows that no key could place. `known` holds the groups that keys have matched.
pub(super) fn group(ranks: &[&RankOutline], known: &[Group], rest: &[RowRef]) -> Aligned {
    let mut sequences = sequences(ranks, known, rest);
    let known_tokens = known.len() as u32;
    let mut omissions = Vec::new();
    let mut groups = Vec::new();
    let lone = ranks.len() == 1;
    let mut single = vec![0_usize; ranks.len()];
    let mut ambiguous = vec![0_usize; ranks.len()];
    while let Some(pivot) = longest(&sequences) {
        let mut spine = std::mem::take(&mut sequences[pivot]);
        while let Some(next) = most_alike(&spine, &sequences) {
            let items = std::mem::take(&mut sequences[next]);
            match align(&spine, &items) {
                Some(alignment) => merge(&mut spine, items, &alignment),
                None => ambiguous[next] += items.iter().filter(|i| i.token >= known_tokens).count(),
            }
        }
        for item in spine.into_iter().filter(|i| i.token >= known_tokens) {
            if item.rows.len() > 1 || lone {
                groups.push(Group { level: MatchLevel::Ordinal, rows: item.rows });
            } else {
                single[item.rows[0].0] += 1;
            }
        }
    }
    let mut open = vec![0_usize; ranks.len()];
    for (r, i) in rest {
        open[*r] += usize::from(ranks[*r].collectives[*i].end_ns.is_none());
    }
    for (r, rank) in ranks.iter().enumerate() {
        let mut count = |amount, why| omissions.extend(omission(rank.info.rank, "collectives unmatched", amount, why));
        count(single[r], "no other rank has a collective of the same operation, size, communicator and time");
        count(ambiguous[r], "they match the other ranks' collectives in several ways, or in none");
        count(open[r], "they did not end and have no sequence number");
    }
    Aligned { groups, omissions }
}

/// The items of every rank, sorted by start. Rows that did not end are left out.
fn sequences(ranks: &[&RankOutline], known: &[Group], rest: &[RowRef]) -> Vec<Vec<Item>> {
    let known_rows =
        known.iter().enumerate().flat_map(|(g, group)| group.rows.iter().map(move |row| (*row, Token::Known(g))));
    let windows: Vec<Windows> = ranks.iter().map(|rank| Windows::of(&rank.steps)).collect();
    let like = rest.iter().map(|(r, i)| {
        let row = &ranks[*r].collectives[*i];
        let pair = pair_of(ranks[*r].info.rank, row);
        let op = if is_point_to_point(row) { Op::Send.into() } else { row.op.clone() };
        ((*r, *i), Token::Like(window_of(&windows[*r], row), row.comm_id, op, row.bytes, pair))
    });
    let tokens: Vec<(RowRef, Token)> = known_rows.chain(like).collect();
    let mut numbers: BTreeMap<&Token, u32> = tokens.iter().map(|(_, token)| (token, 0)).collect();
    for (number, value) in numbers.values_mut().enumerate() {
        *value = number as u32;
    }
    // `Known` sorts first, so the known groups get the lowest token numbers. Every known group has a row.
    let mut sequences: Vec<Vec<Item>> = vec![Vec::new(); ranks.len()];
    for (place, token) in &tokens {
        let row = &ranks[place.0].collectives[place.1];
        let (Some(start_ns), Some(end_ns)) = (row.start_ns, row.end_ns) else { continue };
        let slack_ns = match barrier_of(row) {
            Barrier::Strict => ROUNDING_NS,
            Barrier::Weak => WEAK_SLACK_NS,
            Barrier::OneSided => ONE_SIDED_SLACK_NS,
        };
        let token = numbers[token];
        sequences[place.0].push(Item { token, start_ns, end_ns, slack_ns, step: row.step, rows: vec![*place] });
    }
    for sequence in &mut sequences {
        sort(sequence);
    }
    sequences
}

/// Sorts by start, because programs issue in this order; concurrent operations may end in any order.
fn sort(items: &mut [Item]) {
    items.sort_by_key(|i| (i.start_ns, i.end_ns, i.token, i.rows[0]));
}

/// The rank with the most items; of equals, the lowest rank.
fn longest(sequences: &[Vec<Item>]) -> Option<usize> {
    let lengths = sequences.iter().enumerate().map(|(r, s)| (s.len(), Reverse(r)));
    lengths.filter(|(len, _)| *len > 0).max().map(|(_, r)| r.0)
}

/// The rank that shares the most tokens with the spine; of equals, the lowest rank; `None` if no rank shares any.
fn most_alike(spine: &[Item], sequences: &[Vec<Item>]) -> Option<usize> {
    let on_spine = count_tokens(spine);
    let shared = |items: &[Item]| -> usize {
        let counts = count_tokens(items);
        counts.iter().map(|(token, n)| (*n).min(on_spine.get(token).copied().unwrap_or(0))).sum()
    };
    let alike = sequences.iter().enumerate().map(|(r, s)| (shared(s), Reverse(r)));
    alike.filter(|(n, _)| *n > 0).max().map(|(_, r)| r.0)
}

fn count_tokens(items: &[Item]) -> BTreeMap<u32, usize> {
    let mut counts = BTreeMap::new();
    for item in items {
        *counts.entry(item.token).or_default() += 1;
    }
    counts
}

/// One alignment of a rank's items to the spine.
#[derive(Clone, Debug)]
struct Alignment {
    /// Spine time − rank time.
    offset_ns: i64,
    /// Positions on the spine and in the rank's items, sorted by the latter.
    pairs: Vec<(usize, usize)>,
    cost: f64,
    /// Mean cost of the pairs: small if partners end close together.
    distance: f64,
}

/// The best alignment; `None` if there is none, or if a different one is equally good.
fn align(spine: &[Item], items: &[Item]) -> Option<Alignment> {
    let lists = Lists::new(spine, items);
    let mut found: Vec<Alignment> = Vec::new();
    for offset in lists.candidates(spine, items) {
        let alignment = lists.evaluate(spine, items, offset);
        let duplicate = found.iter().any(|a| a.pairs == alignment.pairs);
        if !alignment.pairs.is_empty() && !duplicate {
            found.push(alignment);
        }
    }
    found.sort_by(|a, b| a.cost.total_cmp(&b.cost).then_with(|| a.pairs.cmp(&b.pairs)));
    let cheapest = found.first()?;
    // Where steps repeat to the µs, cost differences are chance; prefer the alignment that explains more rows.
    let best = found.iter().filter(|a| a.as_close_as(cheapest)).min_by_key(|a| Reverse(a.pairs.len()))?;
    let rival = |a: &Alignment| a.pairs.len() == best.pairs.len() && a.as_close_as(best) && a.differs_from(best);
    (!found.iter().any(rival)).then(|| best.clone())
}

impl Alignment {
    /// Whether partners end as close together as in another alignment, within one standard error of the mean. (Two
    /// standard errors would accept a shift by a whole step on real runs of a dozen rows.)
    fn as_close_as(&self, other: &Self) -> bool {
        let counts = 1.0 / self.pairs.len() as f64 + 1.0 / other.pairs.len() as f64;
        self.distance <= other.distance + SCATTER * counts.sqrt()
    }

    fn differs_from(&self, other: &Self) -> bool {
        let of_other = |p: &&(usize, usize)| {
            other.pairs.binary_search_by_key(&p.1, |q| q.1).is_ok_and(|k| other.pairs[k].0 == p.0)
        };
        self.pairs.iter().filter(of_other).count() * 2 < other.pairs.len()
    }
}

/// Positions by token, for tokens that both sides have.
struct Lists {
    tokens: Vec<(Vec<usize>, Vec<usize>)>,
    /// Cost of a row without a partner.
    alone: f64,
    center_ns: i64,
}

impl Lists {
    fn new(spine: &[Item], items: &[Item]) -> Self {
        let mut by_token: BTreeMap<u32, (Vec<usize>, Vec<usize>)> = BTreeMap::new();
        for (i, item) in spine.iter().enumerate() {
            by_token.entry(item.token).or_default().0.push(i);
        }
        for (j, item) in items.iter().enumerate() {
            by_token.entry(item.token).or_default().1.push(j);
        }
        let tokens: Vec<_> = by_token.into_values().filter(|(s, r)| !s.is_empty() && !r.is_empty()).collect();
        let mut ends: Vec<i64> = tokens.iter().flat_map(|(s, _)| s.iter().map(|i| spine[*i].end_ns)).collect();
        ends.sort_unstable();
        let mut gaps: Vec<i64> = ends.windows(2).map(|w| w[1].saturating_sub(w[0])).collect();
        gaps.sort_unstable();
        let spacing = gaps.get(gaps.len() / 2).copied().unwrap_or(1_000_000);
        let center_ns = ends.get(ends.len() / 2).copied().unwrap_or(0);
        Self { tokens, alone: cost_of(spacing.max(1_000)), center_ns }
    }

    /// Drift can move the spine's time by this much, beyond a constant offset.
    fn drift_ns(&self, spine: &Item) -> i64 {
        spine.end_ns.abs_diff(self.center_ns).min(i64::MAX as u64) as i64 / 1_000_000 * DRIFT_LIMIT_PPM
    }

    /// Offset candidates, without duplicates.
    fn candidates(&self, spine: &[Item], items: &[Item]) -> Vec<i64> {
        let total: usize = self.tokens.iter().map(|(_, r)| r.len()).sum();
        let reach = (PAIRS_MAX / total.max(1)).max(8) as isize;
        let mut edges: Vec<(i64, i32)> = Vec::new();
        let mut shifts: BTreeMap<isize, Vec<i64>> = BTreeMap::new();
        for (on_spine, in_rank) in &self.tokens {
            // Recordings differ at their beginning or end: partners have nearby positions when counted from one of
            // them.
            let surplus = on_spine.len() as isize - in_rank.len() as isize;
            for (b, j) in in_rank.iter().enumerate() {
                let near = |shift: isize, reach: isize| shift.abs() <= reach || (shift - surplus).abs() <= reach;
                let first = b.saturating_add_signed(surplus.min(0) - reach);
                let last = b.saturating_add_signed(surplus.max(0) + reach).min(on_spine.len() - 1);
                for (a, i) in on_spine.iter().enumerate().take(last + 1).skip(first) {
                    let shift = a as isize - b as isize;
                    if !near(shift, reach) {
                        continue;
                    }
                    let (s, r) = (&spine[*i], &items[*j]);
                    let slack = s.slack_ns.max(r.slack_ns) + self.drift_ns(s);
                    edges.push((s.start_ns.saturating_sub(r.end_ns).saturating_sub(slack), 1));
                    edges.push((s.end_ns.saturating_sub(r.start_ns).saturating_add(slack), -1));
                    if near(shift, SHIFTS) {
                        shifts.entry(shift).or_default().push(s.end_ns.saturating_sub(r.end_ns));
                    }
                }
            }
        }
        let mut offsets: Vec<i64> = shifts.into_values().filter_map(lower_median).collect();
        offsets.extend(deepest(edges));
        offsets.sort_unstable();
        offsets.dedup();
        offsets
    }

    /// Aligns the items at an offset, refines the offset by the ends of the pairs, and returns the cheapest alignment.
    fn evaluate(&self, spine: &[Item], items: &[Item], offset_ns: i64) -> Alignment {
        const ROUNDS: usize = 4;
        let mut best = Alignment { offset_ns, pairs: Vec::new(), cost: f64::INFINITY, distance: 0.0 };
        let mut offset_ns = offset_ns;
        for _ in 0..ROUNDS {
            let at = At { spine, items, offset_ns, both_record: self.both_record(spine, items, offset_ns) };
            let mut pairs = Vec::new();
            let mut cost = 0.0;
            for (on_spine, in_rank) in &self.tokens {
                cost += self.lay(&at, on_spine, in_rank, &mut pairs);
            }
            let ends = pairs.iter().map(|(i, j)| spine[*i].end_ns.saturating_sub(items[*j].end_ns));
            let better = lower_median(ends).unwrap_or(0);
            let done = pairs.is_empty() || better == offset_ns || cost >= best.cost;
            if cost < best.cost {
                best = Alignment { offset_ns, pairs, cost, distance: 0.0 };
            }
            if done {
                break;
            }
            offset_ns = better;
        }
        best.pairs.sort_unstable_by_key(|(_, j)| *j);
        let at = At { spine, items, offset_ns: best.offset_ns, both_record: (0, 0) };
        let sum: f64 = best.pairs.iter().map(|(i, j)| self.pair_cost(&at, *i, *j)).sum();
        best.distance = sum / best.pairs.len().max(1) as f64;
        best
    }

    /// The time span in which both sides recorded, on the spine's clock.
    fn both_record(&self, spine: &[Item], items: &[Item], offset_ns: i64) -> (i64, i64) {
        let s_ends = || self.tokens.iter().flat_map(|(s, _)| s.iter().map(|i| spine[*i].end_ns));
        let r_ends =
            || self.tokens.iter().flat_map(|(_, r)| r.iter().map(|j| items[*j].end_ns.saturating_add(offset_ns)));
        (s_ends().min().max(r_ends().min()).unwrap_or(0), s_ends().max().min(r_ends().max()).unwrap_or(0))
    }

    /// The cheapest monotonic pairing of the rows of one token (Needleman and Wunsch, in a band around equal ends).
    /// Returns its cost.
    fn lay(&self, at: &At<'_>, on_spine: &[usize], in_rank: &[usize], pairs: &mut Vec<(usize, usize)>) -> f64 {
        let band = Band::new(at, on_spine, in_rank);
        let alone =
            |end: i64| if (at.both_record.0..=at.both_record.1).contains(&end) { self.alone } else { self.alone / 2.0 };
        let s_alone: Vec<f64> = on_spine.iter().map(|i| alone(at.spine[*i].end_ns)).collect();
        let r_alone: Vec<f64> =
            in_rank.iter().map(|j| alone(at.items[*j].end_ns.saturating_add(at.offset_ns))).collect();
        let mut steps: Vec<Vec<Step>> = Vec::with_capacity(band.rows.len());
        let mut above: Vec<f64> = Vec::new();
        for (a, (low, high)) in band.rows.iter().copied().enumerate() {
            let mut costs = vec![f64::INFINITY; high - low + 1];
            let mut row = vec![Step::Start; costs.len()];
            for b in low..=high {
                let over = |b: usize| {
                    let (low_above, high_above) = band.rows[a - 1];
                    if (low_above..=high_above).contains(&b) { above[b - low_above] } else { f64::INFINITY }
                };
                let mut best = if a == 0 && b == 0 { (0.0, Step::Start) } else { (f64::INFINITY, Step::Start) };
                let mut offer = |cost: f64, step: Step| best = if cost < best.0 { (cost, step) } else { best };
                if a > 0 && b > 0 {
                    offer(over(b - 1) + self.pair_cost(at, on_spine[a - 1], in_rank[b - 1]), Step::Pair);
                }
                if a > 0 {
                    offer(over(b) + s_alone[a - 1], Step::SpineAlone);
                }
                if b > low {
                    offer(costs[b - 1 - low] + r_alone[b - 1], Step::RankAlone);
                }
                (costs[b - low], row[b - low]) = best;
            }
            steps.push(row);
            above = costs;
        }
        let (mut a, mut b) = (on_spine.len(), in_rank.len());
        loop {
            match steps[a][b - band.rows[a].0] {
                Step::Start => break,
                Step::Pair => {
                    (a, b) = (a - 1, b - 1);
                    pairs.push((on_spine[a], in_rank[b]));
                }
                Step::SpineAlone => a -= 1,
                Step::RankAlone => b -= 1,
            }
        }
        above.last().copied().unwrap_or(0.0)
    }

    fn pair_cost(&self, at: &At<'_>, i: usize, j: usize) -> f64 {
        let (s, r) = (&at.spine[i], &at.items[j]);
        let slack = s.slack_ns.max(r.slack_ns) + self.drift_ns(s);
        let on_spine = |t: i64| t.saturating_add(at.offset_ns);
        let overlap = s.start_ns <= on_spine(r.end_ns).saturating_add(slack)
            && on_spine(r.start_ns) <= s.end_ns.saturating_add(slack);
        if !overlap {
            return f64::INFINITY;
        }
        // Each program counts its own steps, so a step number is a hint and not a key.
        let steps_differ = s.step.is_some() && r.step.is_some() && s.step != r.step;
        cost_of(s.end_ns.saturating_sub(on_spine(r.end_ns))) + if steps_differ { STEPS_DIFFER } else { 0.0 }
    }
}

/// A rank's items and the spine, at one offset.
struct At<'a> {
    spine: &'a [Item],
    items: &'a [Item],
    offset_ns: i64,
    both_record: (i64, i64),
}

/// The predecessor of a cell in the alignment.
#[derive(Clone, Copy, Debug)]
enum Step {
    Start,
    Pair,
    SpineAlone,
    RankAlone,
}

/// For each number of spine rows: the range of the number of rank rows that may be aligned with them.
struct Band {
    rows: Vec<(usize, usize)>,
}

impl Band {
    /// Concurrent operations end in any order: partners lie at most this many rows from the position that their ends
    /// suggest.
    const HALF_WIDTH: usize = 8;

    fn new(at: &At<'_>, on_spine: &[usize], in_rank: &[usize]) -> Self {
        let mut ends: Vec<i64> = in_rank.iter().map(|j| at.items[*j].end_ns.saturating_add(at.offset_ns)).collect();
        ends.sort_unstable();
        let (n, m) = (on_spine.len(), in_rank.len());
        let center = |a: usize| ends.partition_point(|end| *end < at.spine[on_spine[a]].end_ns);
        let mut rows = vec![(0, (center(0) + Self::HALF_WIDTH).min(m))];
        for a in 0..n {
            let (low, high) = rows[a];
            let next = (center(a) + 1 + Self::HALF_WIDTH).min(m).max(high);
            // The band must stay within reach of the row above, or no path would connect the two.
            rows.push((
                low.max(center(a).saturating_sub(Self::HALF_WIDTH).min(high)),
                if a + 1 == n { m } else { next },
            ));
        }
        Self { rows }
    }
}

fn cost_of(distance_ns: i64) -> f64 {
    (1.0 + distance_ns.unsigned_abs() as f64 / 1_000.0).ln()
}

/// Midpoints of the ranges that most intervals cover, from interval ends marked +1 and −1.
fn deepest(mut edges: Vec<(i64, i32)>) -> Vec<i64> {
    // At equal values, starts sort before ends, so that touching intervals overlap.
    edges.sort_unstable_by_key(|(at, step)| (*at, -step));
    let mut peaks: Vec<(i32, i64)> = Vec::new();
    let mut depth = 0;
    for pair in edges.windows(2) {
        let ((at, step), (next, next_step)) = (pair[0], pair[1]);
        depth += step;
        if step > 0 && next_step < 0 {
            peaks.push((depth, at + next.saturating_sub(at) / 2));
        }
    }
    peaks.sort_unstable_by_key(|(depth, at)| (-depth, *at));
    peaks.into_iter().take(CANDIDATES_MAX).map(|(_, at)| at).collect()
}

/// Merges the aligned items into the spine, and inserts those that it lacks.
fn merge(spine: &mut Vec<Item>, items: Vec<Item>, alignment: &Alignment) {
    let mut partner: Vec<Option<usize>> = vec![None; items.len()];
    for (i, j) in &alignment.pairs {
        partner[*j] = Some(*i);
    }
    for (item, partner) in items.into_iter().zip(partner) {
        match partner {
            Some(i) => spine[i].rows.extend(item.rows),
            None => spine.push(Item {
                start_ns: item.start_ns.saturating_add(alignment.offset_ns),
                end_ns: item.end_ns.saturating_add(alignment.offset_ns),
                ..item
            }),
        }
    }
    sort(spine);
}
