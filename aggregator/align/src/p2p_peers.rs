//! Turns the peer of a send or receive into a rank of the job.
//!
//! NCCL numbers peers within a communicator; the table `comms` maps its members to ranks of the job:
//!
//! ```text
//!  communicator 7      member 0      member 1          rank 5 sends to peer 0: to rank 3
//!  rank of the job     3             5
//! ```
//!
//! If no row of `comms` has a `comm_rank`, as in traces of torch.profiler, peers are ranks of the job already.

use std::collections::BTreeMap;

use trace::OmissionRow;

use model::RankOutline;

/// The ranks of the job by their number in a communicator; `None` if two ranks claim the same number.
type Members = BTreeMap<i32, Option<i32>>;

/// Turns the peers of all sends and receives into ranks of the job. A peer that is not in the run becomes unknown; the
/// returned omissions count these peers.
pub fn peers_as_ranks(ranks: &mut [&mut RankOutline]) -> Vec<OmissionRow> {
    let mut members: BTreeMap<i64, Members> = BTreeMap::new();
    for comm in ranks.iter().flat_map(|rank| &rank.comms) {
        if let Some(place) = comm.comm_rank {
            let rank = members.entry(comm.comm_id).or_default().entry(place).or_insert(Some(comm.rank));
            *rank = rank.filter(|rank| *rank == comm.rank);
        }
    }
    if members.is_empty() {
        return Vec::new();
    }
    let mut omissions = Vec::new();
    for outline in ranks {
        let mut unknown = 0;
        for row in &mut outline.collectives {
            if let (Some(peer), Some(members)) = (row.peer(), members.get(&row.comm_id)) {
                row.set_peer(members.get(&peer).copied().flatten());
                unknown += i64::from(row.peer().is_none());
            }
        }
        if unknown > 0 {
            omissions.push(
                OmissionRow::left_out(
                    "peers of sends and receives",
                    "no recorded rank has that number in the communicator",
                )
                .rank(outline.info.rank)
                .amount(unknown),
            );
        }
    }
    omissions
}

#[cfg(test)]
mod tests {
    use trace::{CollectiveRow, CommRow};

    use super::*;
    use model::{Collective, RankInfo};

    fn part(rank: i32, comms: &[(i64, Option<i32>)], peers: &[(i64, i32)]) -> RankOutline {
        let comm = |(comm_id, comm_rank): &(i64, Option<i32>)| CommRow {
            rank,
            comm_id: *comm_id,
            comm_rank: *comm_rank,
            ..CommRow::default()
        };
        let send = |(comm_id, peer): &(i64, i32)| CollectiveRow {
            rank,
            comm_id: *comm_id,
            op: "send".into(),
            peer: Some(*peer),
            ..CollectiveRow::default()
        };
        RankOutline {
            info: RankInfo { rank, ..RankInfo::default() },
            comms: comms.iter().map(comm).collect(),
            collectives: peers.iter().map(send).map(Collective::from).collect(),
            ..RankOutline::default()
        }
    }

    fn resolve(parts: &mut [RankOutline]) -> Vec<OmissionRow> {
        peers_as_ranks(&mut parts.iter_mut().collect::<Vec<_>>())
    }

    fn peers(parts: &[RankOutline]) -> Vec<Vec<Option<i32>>> {
        parts.iter().map(|part| part.collectives.iter().map(|row| row.peer()).collect()).collect()
    }

    /// ```text
    /// rank           0    3    5
    /// place in 1     0    1    2
    /// place in 7          1    0
    /// ```
    #[test]
    fn a_peer_is_the_rank_with_its_number_in_the_communicator() {
        let mut parts = [
            part(0, &[(1, Some(0))], &[(1, 2)]),
            part(3, &[(1, Some(1)), (7, Some(1))], &[(7, 0), (1, 0)]),
            // Communicator 9 has no rows in `comms`; one row of communicator 7 is duplicated.
            part(5, &[(1, Some(2)), (7, Some(0)), (7, Some(0))], &[(7, 1), (9, 4)]),
        ];
        assert_eq!(resolve(&mut parts), []);
        assert_eq!(peers(&parts), [vec![Some(5)], vec![Some(5), Some(0)], vec![Some(3), Some(4)]]);
    }

    #[test]
    fn a_peer_that_is_not_in_the_run_is_unknown_and_counted() {
        let mut parts = [part(3, &[(7, Some(1))], &[(7, 0), (7, 0), (7, 1)])];
        let omissions = resolve(&mut parts);
        assert_eq!(peers(&parts), [vec![None, None, Some(3)]]);
        assert_eq!((omissions[0].rank, omissions[0].amount), (Some(3), Some(2)));
        // If two ranks claim the same number, the peer is unknown.
        let mut parts = [part(0, &[(7, Some(0))], &[(7, 0)]), part(1, &[(7, Some(0))], &[])];
        resolve(&mut parts);
        assert_eq!(peers(&parts)[0], [None]);
    }

    #[test]
    fn peers_stay_in_traces_without_comm_ranks() {
        let mut parts = [part(0, &[(7, None)], &[(7, 1)])];
        resolve(&mut parts);
        assert_eq!(peers(&parts), [[Some(1)]]);
    }
}
