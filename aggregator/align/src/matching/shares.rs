//! The bytes that the ranks of an all-to-all exchange, by the shares that its rows state.
//!
//! ```text
//!              for 0   for 1   for 2
//!   rank 0       8       1       1        sends 10, 2 of them to others
//!   rank 1       6       2       2        sends 10, 8 of them to others
//!   rank 2       6       2       2        sends 10, 8 of them to others
//! ```
//!
//! Here rank 0 receives 20, 12 of them from others: more than any rank sends to others.

use std::borrow::Cow;

use model::{Collective, RankOutline, Shares};

/// The shares of one collective from its rows, each with the outline of its rank.
pub(super) fn shares_of<'a>(rows: impl Iterator<Item = (&'a RankOutline, &'a Collective)> + Clone) -> Shares {
    if rows.clone().all(|(_, row)| row.sent_bytes.is_none() && row.received_bytes.is_none()) {
        return Shares::Equal;
    }
    let sides: Option<Vec<Side>> = rows.map(|(outline, row)| Side::of(outline, row)).collect();
    sides.and_then(|sides| together(&sides)).unwrap_or(Shares::Unknown)
}

/// The bytes that one rank exchanges.
struct Side<'a> {
    /// Position of the rank in the communicator.
    place: usize,
    sent: Cow<'a, [i64]>,
    received: Cow<'a, [i64]>,
}

impl<'a> Side<'a> {
    /// `None` if shares are unknown, or the order of the communicator's ranks.
    fn of(outline: &'a RankOutline, row: &'a Collective) -> Option<Self> {
        let comm = outline.comms.iter().find(|comm| comm.comm_id == row.comm_id)?;
        let ranks = comm.ranks.as_deref()?;
        let place = ranks.iter().position(|rank| *rank == outline.info.rank)?;
        let shares = |stated: &'a Option<Vec<i64>>| match stated {
            Some(list) => (list.len() == ranks.len()).then_some(Cow::Borrowed(&**list)),
            None => {
                let (bytes, count) = (row.bytes?, i64::try_from(ranks.len()).ok()?);
                (bytes % count == 0).then(|| Cow::Owned(vec![bytes / count; ranks.len()]))
            }
        };
        Some(Self { place, sent: shares(&row.sent_bytes)?, received: shares(&row.received_bytes)? })
    }

    /// The most bytes in one direction: all of them, and those for or from other ranks.
    fn most(&self) -> Option<(i64, i64)> {
        let of = |shares: &[i64]| {
            let all = shares.iter().try_fold(0_i64, |sum, share| sum.checked_add(*share))?;
            Some((all, all - shares[self.place]))
        };
        let (sent, received) = (of(&self.sent)?, of(&self.received)?);
        Some((sent.0.max(received.0), sent.1.max(received.1)))
    }
}

fn together(sides: &[Side<'_>]) -> Option<Shares> {
    let mut pairs = sides.iter().flat_map(|from| sides.iter().map(move |to| (from, to)));
    if pairs.any(|(from, to)| from.sent.get(to.place) != to.received.get(from.place)) {
        return Some(Shares::Contradicted);
    }
    let most = sides.iter().map(Side::most).collect::<Option<Vec<_>>>()?;
    let array_bytes = most.iter().map(|(array, _)| *array).max()?;
    let crossing_bytes = most.iter().map(|(_, crossing)| *crossing).max()?;
    Some(Shares::Unequal { array_bytes, crossing_bytes })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use trace::{CollectiveRow, CommRow};

    use super::*;
    use model::RankInfo;

    /// The rows of the ranks that exchange these shares. The communicator does not have its ranks in their order.
    fn rows(matrix: &[Vec<i64>]) -> Vec<(RankOutline, Collective)> {
        let ranks: Vec<i32> = (0..matrix.len() as i32).rev().collect();
        let row = |(place, sent): (usize, &Vec<i64>)| {
            let rank = ranks[place];
            let row = CollectiveRow {
                rank,
                op: "alltoall".into(),
                bytes: Some(sent.iter().sum()),
                sent_bytes: Some(sent.clone()),
                received_bytes: Some(matrix.iter().map(|of_rank| of_rank[place]).collect()),
                ..CollectiveRow::default()
            };
            let comms = vec![CommRow { rank, ranks: Some(ranks.clone()), ..CommRow::default() }];
            let outline =
                RankOutline { info: RankInfo { rank, ..RankInfo::default() }, comms, ..RankOutline::default() };
            (outline, row.into())
        };
        matrix.iter().enumerate().map(row).collect()
    }

    fn found(rows: &[(RankOutline, Collective)]) -> Shares {
        shares_of(rows.iter().map(|(outline, row)| (outline, row)))
    }

    fn matrices() -> impl Strategy<Value = Vec<Vec<i64>>> {
        (2..6_usize).prop_flat_map(|ranks| prop::collection::vec(prop::collection::vec(0..9_i64, ranks), ranks))
    }

    proptest! {
        /// The sizes are those of the rank that sends or receives most; what ranks send is what ranks receive, or the sizes contradict.
        #[test]
        fn the_rank_that_exchanges_most_counts(matrix in matrices(), at in (0..5_usize, 0..5_usize)) {
            let mut all = rows(&matrix);
            let total = |list: fn(&Collective) -> &Option<Vec<i64>>| -> i64 {
                all.iter().flat_map(|(_, row)| list(row).iter().flatten()).sum()
            };
            prop_assert_eq!(total(|row| &row.sent_bytes), total(|row| &row.received_bytes));
            let ranks = matrix.len();
            let most = |counts: fn(usize, usize) -> bool| {
                let sent = |r: usize| (0..ranks).filter(|to| counts(r, *to)).map(|to| matrix[r][to]).sum::<i64>();
                let received = |r: usize| (0..ranks).filter(|from| counts(r, *from)).map(|from| matrix[from][r]).sum();
                (0..ranks).map(|r| sent(r).max(received(r))).max().unwrap()
            };
            let expected = Shares::Unequal { array_bytes: most(|_, _| true), crossing_bytes: most(|own, other| own != other) };
            prop_assert_eq!(found(&all), expected);

            let (rank, peer) = (at.0 % ranks, at.1 % ranks);
            all[rank].1.sent_bytes.as_mut().unwrap()[peer] += 1;
            prop_assert_eq!(found(&all), Shares::Contradicted);
            all[rank].1.sent_bytes = Some(Vec::new());
            prop_assert_eq!(found(&all), Shares::Unknown);
        }
    }

    #[test]
    fn a_rank_without_lists_has_equal_shares_of_its_array() {
        let matrix = [vec![2, 2, 2], vec![2, 5, 1], vec![2, 1, 4]];
        let mut all = rows(&matrix);
        let listed = found(&all);
        (all[0].1.sent_bytes, all[0].1.received_bytes) = (None, None);
        assert_eq!(found(&all), listed);
        all[0].1.bytes = Some(7);
        assert_eq!(found(&all), Shares::Unknown, "7 bytes are no three equal shares");
        all.iter_mut().for_each(|(_, row)| (row.sent_bytes, row.received_bytes) = (None, None));
        assert_eq!(found(&all), Shares::Equal);
    }

    #[test]
    fn shares_without_the_order_of_the_ranks_are_unknown() {
        let mut all = rows(&[vec![1, 2], vec![3, 4]]);
        all[1].0.comms[0].ranks = None;
        assert_eq!(found(&all), Shares::Unknown);
    }
}
