//! Matching by gapped alignment of the ranks' sequences, checked by the barrier rule.
//!
//! The rows of the rank with the most rows become the *spine*. Every other rank is aligned to it, and rows that the
//! spine lacks are inserted. The clock offsets are unknown, so choosing the partner of a row and estimating the offset
//! are one question. A row can match a spine row only if both have the same (communicator, operation, bytes; not the bytes of an
//! uneven all-to-all) and overlap on one clock, because no rank leaves a collective before every rank has entered it. Each such pair allows a
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
//!
//! Ranks that record one clock domain need no such search: where their own times pair as many rows as any candidate, these are the partners.
//! A file that was cut, or has gaps, is matched so. Where they pair fewer, the ranks do not share the clock that they claim.

mod alike;
mod candidates;
mod lists;
mod pairing;

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};

use rayon::prelude::*;
use trace::{MatchLevel, OmissionRow, Op, Word};

use crate::clock::identity::{DEVICE_ERROR_NS, names_a_clock};
use crate::matching::align::alike::Alike;
use crate::matching::align::candidates::candidates;
use crate::matching::align::lists::{Item, Lists};
use crate::matching::align::pairing::{Alignment, alignment_at, alignments};
use crate::matching::row::{Group, RowRef, barrier_of, is_point_to_point, omission, pair_of, window_of};
use model::RankOutline;
use model::windows::Windows;
use model::{Barrier, WEAK_SLACK_NS};

/// A rank may leave a one-sided operation this long before another rank enters it.
const ONE_SIDED_SLACK_NS: i64 = 1_000_000;
/// Many traces hold whole microseconds: truncation cuts start and length by up to 1 µs each.
const ROUNDING_NS: i64 = 2_000;
/// Standard deviation of the ln of a distance: π/√6 for an exponential distance far above 1 µs, less below.
const SCATTER: f64 = 1.28;

/// The most jumps of a clock, and the rows that a side of a jump has at least.
const JUMPS_MAX: usize = 4;
const JUMPED_MIN: usize = 4;

/// Matched groups, and the count of the rows that found no group.
pub(super) struct Aligned {
    pub(super) groups: Vec<Group>,
    pub omissions: Vec<OmissionRow>,
}

/// Properties that rows must share to be one collective.
#[derive(PartialEq, Eq, PartialOrd, Ord)]
struct Likeness {
    window: Option<i32>,
    comm_id: i64,
    op: Word<Op>,
    bytes: Option<i64>,
    /// Sender and receiver.
    pair: Option<(i32, i32)>,
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
    let mut alike = Alike::of(&sequences);
    for pivot in longest_first(&sequences) {
        let mut spine = std::mem::take(&mut sequences[pivot]);
        if spine.is_empty() {
            continue;
        }
        alike.take(pivot);
        alike.extend(spine.iter().map(|item| item.token));
        // Time of the spine − time of each domain that it has.
        let mut domains = BTreeMap::from([(&*ranks[pivot].info.clock_domain, 0)]);
        while let Some(next) = alike.most() {
            let items = std::mem::take(&mut sequences[next]);
            alike.take(next);
            let domain = &*ranks[next].info.clock_domain;
            let shared = domains.get(domain).copied().filter(|_| names_a_clock(domain));
            match align(&spine, &items, shared) {
                Some(alignment) => {
                    domains.entry(domain).or_insert(alignment.offset_ns);
                    alike.extend(merge(&mut spine, items, &alignment).into_iter());
                }
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
        open[*r] += usize::from(ranks[*r].collectives[*i].end_ns().is_none());
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
    let windows: Vec<Windows> = ranks.iter().map(|rank| Windows::of(&rank.steps)).collect();
    let uneven = uneven_exchanges(ranks, rest);
    let likeness = |(r, i): &RowRef| -> Likeness {
        let row = &ranks[*r].collectives[*i];
        let op = if is_point_to_point(row) { Op::Send.into() } else { row.op.clone() };
        Likeness {
            window: window_of(&windows[*r], row),
            comm_id: row.comm_id,
            op,
            bytes: row.bytes.filter(|_| row.op != Op::AllToAll || !uneven.contains(&row.comm_id)),
            pair: pair_of(ranks[*r].info.rank, row),
        }
    };
    let mut numbers: BTreeMap<Likeness, usize> = BTreeMap::new();
    let found: Vec<usize> = rest
        .iter()
        .map(|place| {
            let next = numbers.len();
            *numbers.entry(likeness(place)).or_insert(next)
        })
        .collect();
    // Tokens are in the order of the likenesses, which does not depend on the order of the rows.
    let mut tokens = vec![0; numbers.len()];
    for (token, number) in (known.len() as u32..).zip(numbers.into_values()) {
        tokens[number] = token;
    }
    let known_rows = known.iter().zip(0..).flat_map(|(group, token)| group.rows.iter().map(move |row| (row, token)));
    let mut sequences: Vec<Vec<Item>> = vec![Vec::new(); ranks.len()];
    for (place, token) in known_rows.chain(rest.iter().zip(found.iter().map(|number| tokens[*number]))) {
        let row = &ranks[place.0].collectives[place.1];
        let (Some(start_ns), Some(end_ns)) = (row.start_ns(), row.end_ns()) else { continue };
        let slack_ns = match barrier_of(row) {
            Barrier::Strict => ROUNDING_NS,
            Barrier::Weak => WEAK_SLACK_NS,
            Barrier::OneSided => ONE_SIDED_SLACK_NS,
        };
        sequences[place.0].push(Item { token, start_ns, end_ns, slack_ns, step: row.step(), rows: vec![*place] });
    }
    sequences.par_iter_mut().for_each(|sequence| sort(sequence));
    sequences
}

/// The communicators in which ranks exchange parts of different sizes: the sizes of their all-to-alls do not tell which are one.
/// A row states different parts, or ranks have different sizes.
fn uneven_exchanges(ranks: &[&RankOutline], rest: &[RowRef]) -> BTreeSet<i64> {
    let mut sizes: BTreeMap<i64, BTreeMap<usize, BTreeSet<Option<i64>>>> = BTreeMap::new();
    let mut uneven: BTreeSet<i64> = BTreeSet::new();
    for (r, i) in rest {
        let row = &ranks[*r].collectives[*i];
        if row.op == Op::AllToAll {
            let states =
                |parts: &Option<Vec<i64>>| parts.iter().any(|parts| parts.windows(2).any(|two| two[0] != two[1]));
            if states(&row.sent_bytes) || states(&row.received_bytes) {
                uneven.insert(row.comm_id);
            }
            sizes.entry(row.comm_id).or_default().entry(*r).or_default().insert(row.bytes);
        }
    }
    let is_uneven = |of_ranks: &BTreeMap<usize, BTreeSet<Option<i64>>>| {
        of_ranks.values().zip(of_ranks.values().skip(1)).any(|(one, other)| one != other)
    };
    uneven.extend(sizes.into_iter().filter(|(_, of_ranks)| is_uneven(of_ranks)).map(|(comm_id, _)| comm_id));
    uneven
}

/// Sorts by start, because programs issue in this order; concurrent operations may end in any order.
fn sort(items: &mut [Item]) {
    items.sort_by_key(|i| (i.start_ns, i.end_ns, i.token, i.rows[0]));
}

/// The ranks with items, those with the most first; of equals, the lowest rank.
fn longest_first(sequences: &[Vec<Item>]) -> Vec<usize> {
    let mut ranks: Vec<usize> = (0..sequences.len()).filter(|rank| !sequences[*rank].is_empty()).collect();
    ranks.sort_by_key(|rank| Reverse(sequences[*rank].len()));
    ranks
}

/// The best alignment; `None` if there is none, or if a different one is equally good. A clock that jumped has another offset
/// on the other side, so rows that both sides have before or after all pairs are aligned by themselves. `shared_ns` is the offset if both
/// record one clock domain.
fn align(spine: &[Item], items: &[Item], shared_ns: Option<i64>) -> Option<Alignment> {
    let mut whole = align_even(spine, items, shared_ns)?;
    for _ in 0..JUMPS_MAX {
        let spine_at = || whole.pairs.iter().map(|pair| pair.0 as usize);
        let (Some(first), Some(last)) = (whole.pairs.first(), whole.pairs.last()) else { break };
        let (Some(first_on_spine), Some(last_on_spine)) = (spine_at().min(), spine_at().max()) else { break };
        let head = (0..first_on_spine, 0..first.1 as usize);
        let tail = (last_on_spine + 1..spine.len(), last.1 as usize + 1..items.len());
        let (of_spine, of_items) = if head.1.len() > tail.1.len() { head } else { tail };
        let both = of_spine.len().min(of_items.len());
        if both < JUMPED_MIN {
            break;
        }
        let Some(part) = align_even(&spine[of_spine.clone()], &items[of_items.clone()], None) else { break };
        // Chance pairs a few rows.
        if part.pairs.len() < JUMPED_MIN || part.pairs.len() * 5 < both * 4 {
            break;
        }
        let moved = |(i, j): (u32, u32)| (i + of_spine.start as u32, j + of_items.start as u32);
        whole.pairs.extend(part.pairs.into_iter().map(moved));
        whole.pairs.sort_unstable_by_key(|pair| pair.1);
    }
    Some(whole)
}

/// The best alignment by one offset.
fn align_even(spine: &[Item], items: &[Item], shared_ns: Option<i64>) -> Option<Alignment> {
    let lists = Lists::new(spine, items);
    let mut found = alignments(&lists, &candidates(&lists));
    if let Some(shared_ns) = shared_ns {
        let most = found.iter().map(|a| a.pairs.len()).max().unwrap_or(0);
        // Devices of one host have clocks of their own.
        let near = found.iter().filter(|a| a.offset_ns.abs_diff(shared_ns) <= DEVICE_ERROR_NS.unsigned_abs());
        let shared = near.cloned().chain(alignment_at(&lists, shared_ns)).max_by_key(|a| a.pairs.len());
        if let Some(shared) = shared.filter(|a| a.pairs.len() >= most) {
            return Some(shared);
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
        let of_other =
            |p: &&(u32, u32)| other.pairs.binary_search_by_key(&p.1, |q| q.1).is_ok_and(|k| other.pairs[k].0 == p.0);
        self.pairs.iter().filter(of_other).count() * 2 < other.pairs.len()
    }
}

/// Merges the aligned items into the spine, and inserts those that it lacks. Returns the tokens of these.
fn merge(spine: &mut Vec<Item>, items: Vec<Item>, alignment: &Alignment) -> Vec<u32> {
    let mut inserted = Vec::new();
    let mut partner: Vec<Option<u32>> = vec![None; items.len()];
    for (i, j) in &alignment.pairs {
        partner[*j as usize] = Some(*i);
    }
    for (item, partner) in items.into_iter().zip(partner) {
        match partner {
            Some(i) => spine[i as usize].rows.extend(item.rows),
            None => {
                inserted.push(item.token);
                spine.push(Item {
                    start_ns: item.start_ns.saturating_add(alignment.offset_ns),
                    end_ns: item.end_ns.saturating_add(alignment.offset_ns),
                    ..item
                });
            }
        }
    }
    sort(spine);
    inserted
}
