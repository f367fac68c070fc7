//! Clocks whose collectives do not match those of the other ranks.
//!
//! ```text
//!   rank 0   [A] [B] [C] [D] [E]
//!   rank 1   [A] [B] [C] [D] [E]
//!   rank 2   [A] [B]  ?   ?   ?        its clock jumped, so that its rows do not look like C, D and E
//! ```
//!
//! Collectives bound a clock where they match, on the premise that it ran evenly in between. If a rank has rows without a match in
//! the same place where its communicator has collectives without that rank, the clock may have jumped there. At the two ends of
//! recordings that overlap in part, rows without a match lie at one end, and collectives without the rank at the other.
//!
//! ```text
//!   rank 0   [A] [B] [C] [D] [E]
//!   rank 2   [A] [B]  ?  [C] [D]       after its clock jumped back by a whole period, it looks one period early
//! ```
//!
//! A row without a match between rows with one is no matter of an end either.

use std::collections::{BTreeMap, BTreeSet};

use trace::{ClockMethod, OmissionRow, Op};

use crate::clock::clocks::Clocks;
use model::{Barrier, Instance, RankOutline};

/// The places of one communicator, for one rank.
#[derive(Default)]
struct Places {
    /// Starts of the rank's collectives that match, ascending.
    matched_ns: Vec<i64>,
    /// Global times of the same instances, and of those without the rank.
    with_ns: Vec<i64>,
    without_ns: Vec<i64>,
    /// Starts of the rank's collectives that match none.
    unmatched_ns: Vec<i64>,
}

impl Places {
    /// The number of collectives without a match in places where others have collectives without this rank, or between
    /// collectives that match.
    fn unexplained(&mut self) -> i64 {
        self.matched_ns.sort_unstable();
        self.with_ns.sort_unstable();
        let place = |all: &[i64], t_ns: i64| all.partition_point(|at| *at < t_ns);
        let without: BTreeSet<usize> = self.without_ns.iter().map(|t_ns| place(&self.with_ns, *t_ns)).collect();
        let between = 1..self.matched_ns.len();
        let is_there = |t_ns: &&i64| {
            let place = place(&self.matched_ns, **t_ns);
            without.contains(&place) || between.contains(&place)
        };
        if self.matched_ns.is_empty() { 0 } else { self.unmatched_ns.iter().filter(is_there).count() as i64 }
    }
}

/// For each rank whose clock is fitted to collectives, the number of them that show it may have jumped unseen; without those of
/// which there are none.
pub(crate) fn unexplained(ranks: &[&RankOutline], instances: &[Instance], clocks: &Clocks) -> BTreeMap<i32, i64> {
    let is_fitted = |rank: i32| {
        let rows = clocks.rows().iter().filter(|row| row.rank == rank);
        let by_collectives = [ClockMethod::Collective, ClockMethod::CollectiveWeak];
        rows.filter_map(|row| row.method.known()).any(|method| by_collectives.contains(&method))
    };
    let mut matched: BTreeMap<i32, Vec<bool>> =
        ranks.iter().map(|rank| (rank.info.rank, vec![false; rank.collectives.len()])).collect();
    for member in instances.iter().flat_map(|instance| &instance.members) {
        let flag = matched.get_mut(&member.rank).and_then(|flags| flags.get_mut(member.index as usize));
        flag.into_iter().for_each(|flag| *flag = true);
    }
    let of_rank = |rank: &&RankOutline| {
        let id = rank.info.rank;
        let mut places: BTreeMap<i64, Places> = BTreeMap::new();
        for (row, _) in rank.collectives.iter().zip(&matched[&id]).filter(|(_, matched)| !**matched) {
            let waits = !matches!(row.op.known(), Some(Op::Send | Op::Recv));
            if let Some(start_ns) = row.start_ns().filter(|_| waits && row.end_ns().is_some()) {
                places.entry(row.comm_id).or_default().unmatched_ns.push(start_ns);
            }
        }
        if places.is_empty() || !is_fitted(id) {
            return None;
        }
        for instance in instances.iter().filter(|i| i.barrier != Barrier::OneSided) {
            let Some(places) = places.get_mut(&instance.comm_id) else { continue };
            let Some(first) = instance.members.iter().find(|m| m.rank != id) else { continue };
            let global_ns = clocks.global(first.rank, first.device_clock, first.start_ns);
            match instance.members.iter().find(|m| m.rank == id) {
                Some(own) => {
                    places.matched_ns.push(own.start_ns);
                    places.with_ns.push(global_ns);
                }
                None => places.without_ns.push(global_ns),
            }
        }
        let count: i64 = places.values_mut().map(Places::unexplained).sum();
        (count > 0).then_some((id, count))
    };
    ranks.iter().filter_map(of_rank).collect()
}

/// The line for a clock without a guarantee.
pub(crate) fn described(rank: i32, count: i64) -> OmissionRow {
    let why = "they match none of the others', where these have collectives without this rank, or between those that match: its \
               clock may have jumped there, so it has no bound";
    OmissionRow::note("collectives that do not bound the clock", why).rank(rank).amount(count)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn places(matched_ns: &[i64], with_ns: &[i64], without_ns: &[i64], unmatched_ns: &[i64]) -> Places {
        let [matched_ns, with_ns, without_ns, unmatched_ns] =
            [matched_ns, with_ns, without_ns, unmatched_ns].map(<[i64]>::to_vec);
        Places { matched_ns, with_ns, without_ns, unmatched_ns }
    }

    /// ```text
    /// others    [1] [2] [3] [4]            [1] [2] [3] [4]            [1] [2] [3] [4]
    /// rank      [1] [2]  ?   ?                 [2] [3] [4]  ?         [1] [2]  ?  [3]
    ///           the same place             the two ends               between matches
    /// ```
    #[test]
    fn rows_without_a_match_are_explained_by_the_ends_of_recordings_only() {
        assert_eq!(places(&[1, 2], &[1, 2], &[3, 4], &[3, 4]).unexplained(), 2);
        assert_eq!(places(&[2, 3, 4], &[2, 3, 4], &[1], &[5]).unexplained(), 0);
        assert_eq!(places(&[1, 2, 4], &[1, 2, 3], &[4], &[3]).unexplained(), 1);
        assert_eq!(places(&[], &[], &[1], &[1]).unexplained(), 0, "no clock is fitted");
    }
}
