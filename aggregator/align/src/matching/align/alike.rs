//! Which rank is aligned to the spine next: the one that shares the most tokens with it.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};

use crate::matching::align::lists::Item;

/// The number of items that each rank shares with the spine. It is kept up to date while the spine grows, because comparing all ranks
/// with it for each rank would take the square of their number.
pub(super) struct Alike {
    tokens: BTreeMap<u32, Holders>,
    /// The number of items that each rank shares; `None` for ranks that were taken.
    shared: Vec<Option<usize>>,
    /// The ranks that share any, in the order of their numbers of items.
    order: BTreeSet<(usize, Reverse<usize>)>,
}

/// The ranks that have a token.
#[derive(Default)]
struct Holders {
    /// The number of items and the rank, those with the most items first.
    ranks: Vec<(Reverse<usize>, usize)>,
    /// The number of items on the spine.
    on_spine: usize,
}

impl Alike {
    /// The ranks of `sequences`, and an empty spine.
    pub(super) fn of(sequences: &[Vec<Item>]) -> Self {
        let mut tokens: BTreeMap<u32, Holders> = BTreeMap::new();
        for (rank, items) in sequences.iter().enumerate() {
            for (token, count) in count(items.iter().map(|item| item.token)) {
                tokens.entry(token).or_default().ranks.push((Reverse(count), rank));
            }
        }
        tokens.values_mut().for_each(|holders| holders.ranks.sort_unstable());
        Self { tokens, shared: vec![Some(0); sequences.len()], order: BTreeSet::new() }
    }

    /// Takes a rank out, because it is on the spine or was compared with it.
    pub(super) fn take(&mut self, rank: usize) {
        if let Some(shared) = self.shared[rank].take() {
            self.order.remove(&(shared, Reverse(rank)));
        }
    }

    /// Adds items with these tokens to the spine. A spine is complete if no rank shares anything with it, so the next one
    /// has none of its tokens and may follow without a reset.
    pub(super) fn extend(&mut self, tokens: impl Iterator<Item = u32>) {
        let mut gains: BTreeMap<usize, usize> = BTreeMap::new();
        for (token, count) in count(tokens) {
            let Some(holders) = self.tokens.get_mut(&token) else { continue };
            let (before, after) = (holders.on_spine, holders.on_spine + count);
            // Each gain is at least one item of a rank, so that all gains together are at most all items.
            for (Reverse(items), rank) in holders.ranks.iter().take_while(|(items, _)| items.0 > before) {
                *gains.entry(*rank).or_default() += (*items).min(after) - before;
            }
            holders.on_spine = after;
        }
        for (rank, gain) in gains {
            if let Some(shared) = &mut self.shared[rank] {
                self.order.remove(&(*shared, Reverse(rank)));
                *shared += gain;
                self.order.insert((*shared, Reverse(rank)));
            }
        }
    }

    /// The rank that shares the most items with the spine; of equals, the lowest rank; `None` if no rank shares any.
    pub(super) fn most(&self) -> Option<usize> {
        self.order.last().map(|(_, rank)| rank.0)
    }
}

/// How often each token occurs, by token.
fn count(tokens: impl Iterator<Item = u32>) -> Vec<(u32, usize)> {
    let mut tokens: Vec<u32> = tokens.collect();
    tokens.sort_unstable();
    tokens.chunk_by(|a, b| a == b).map(|same| (same[0], same.len())).collect()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn items(tokens: &[u32]) -> Vec<Item> {
        let item = |token| Item { token, start_ns: 0, end_ns: 0, slack_ns: 0, step: None, rows: Vec::new() };
        tokens.iter().copied().map(item).collect()
    }

    /// How many items of one side find an equal token on the other, from the definition.
    fn shared(spine: &[u32], tokens: &[u32]) -> usize {
        let of = |tokens: &[u32], token: u32| tokens.iter().filter(|other| **other == token).count();
        (0..6).map(|token| of(spine, token).min(of(tokens, token))).sum()
    }

    proptest! {
        #[test]
        fn the_next_rank_shares_the_most(
            ranks in prop::collection::vec(prop::collection::vec(0..6_u32, 0..9), 1..8),
            kept in 0..4_usize,
        ) {
            let sequences: Vec<Vec<Item>> = ranks.iter().map(|tokens| items(tokens)).collect();
            let mut alike = Alike::of(&sequences);
            let mut left: Vec<usize> = (0..ranks.len()).collect();
            while !left.is_empty() {
                let mut spine = ranks[left.remove(0)].clone();
                let pivot = (0..ranks.len()).find(|rank| alike.shared[*rank].is_some()).unwrap();
                alike.take(pivot);
                alike.extend(spine.iter().copied());
                loop {
                    let best = left.iter().map(|rank| (shared(&spine, &ranks[*rank]), Reverse(*rank))).max();
                    let best = best.filter(|(shared, _)| *shared > 0).map(|(_, rank)| rank.0);
                    prop_assert_eq!(alike.most(), best);
                    let Some(best) = best else { break };
                    alike.take(best);
                    left.retain(|rank| *rank != best);
                    // Some of its items find no partner and lengthen the spine.
                    let inserted = &ranks[best][..kept.min(ranks[best].len())];
                    spine.extend(inserted);
                    alike.extend(inserted.iter().copied());
                }
            }
        }
    }
}
