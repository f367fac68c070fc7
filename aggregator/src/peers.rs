//! The other side of a send or receive as a rank of the job.
//!
//! NCCL counts peers within a communicator; `comms` says which rank of the job is which member:
//!
//! ```text
//!  communicator 7      member 0      member 1          rank 5 sends to peer 0: to rank 3
//!  rank of the job     3             5
//! ```
//!
//! Where no row of `comms` tells a rank's place (`comm_rank`), as in traces of torch.profiler, peers are ranks already.

use std::collections::BTreeMap;

use trace::{CollectiveRow, CommRow, OmissionRow};

use crate::map::RankPart;
use crate::outline::Outline;

/// Members of a communicator by their place in it: ranks of the job; `None` where two ranks claim one place.
type Members = BTreeMap<i32, Option<i32>>;

/// What has communicators, and rows that name peers in them: a rank.
pub(crate) trait HasPeers {
    fn rank(&self) -> i32;
    fn comms(&self) -> &[CommRow];
    fn collectives(&mut self) -> &mut [CollectiveRow];
}

impl HasPeers for RankPart {
    fn rank(&self) -> i32 {
        self.info.rank
    }

    fn comms(&self) -> &[CommRow] {
        &self.comms
    }

    fn collectives(&mut self) -> &mut [CollectiveRow] {
        &mut self.collectives
    }
}

impl HasPeers for (Outline, Option<crate::intervals::IntervalSet>) {
    fn rank(&self) -> i32 {
        self.0.info.rank
    }

    fn comms(&self) -> &[CommRow] {
        &self.0.comms
    }

    fn collectives(&mut self) -> &mut [CollectiveRow] {
        &mut self.0.collectives
    }
}

/// Turns the peers of all ranks' sends and receives into ranks of the job. A peer whose rank is not in the run becomes
/// unknown; the omissions that are returned count these.
pub(crate) fn peers_as_ranks(parts: &mut [impl HasPeers]) -> Vec<OmissionRow> {
    let mut members: BTreeMap<i64, Members> = BTreeMap::new();
    for comm in parts.iter().flat_map(HasPeers::comms) {
        if let Some(place) = comm.comm_rank {
            let rank = members.entry(comm.comm_id).or_default().entry(place).or_insert(Some(comm.rank));
            *rank = rank.filter(|rank| *rank == comm.rank);
        }
    }
    if members.is_empty() {
        return Vec::new();
    }
    let mut omissions = Vec::new();
    for part in parts {
        let mut unknown = 0;
        for row in part.collectives() {
            if let (Some(peer), Some(members)) = (row.peer, members.get(&row.comm_id)) {
                row.peer = members.get(&peer).copied().flatten();
                unknown += i64::from(row.peer.is_none());
            }
        }
        if unknown > 0 {
            omissions.push(OmissionRow {
                file: None,
                rank: Some(part.rank()),
                what: "peers of sends and receives".into(),
                amount: Some(unknown),
                why: "no rank of the run says that it is that member of the communicator".into(),
            });
        }
    }
    omissions
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::RankInfo;

    fn part(rank: i32, comms: &[(i64, Option<i32>)], peers: &[(i64, i32)]) -> RankPart {
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
        RankPart {
            info: RankInfo { rank, ..RankInfo::default() },
            comms: comms.iter().map(comm).collect(),
            collectives: peers.iter().map(send).collect(),
            ..RankPart::default()
        }
    }

    fn peers(parts: &[RankPart]) -> Vec<Vec<Option<i32>>> {
        parts.iter().map(|part| part.collectives.iter().map(|row| row.peer).collect()).collect()
    }

    /// ```text
    /// rank           0    3    5
    /// place in 1     0    1    2
    /// place in 7          1    0
    /// ```
    #[test]
    fn a_peer_is_the_rank_that_has_its_place() {
        let mut parts = [
            part(0, &[(1, Some(0))], &[(1, 2)]),
            part(3, &[(1, Some(1)), (7, Some(1))], &[(7, 0), (1, 0)]),
            // A communicator of which nothing is told, and a row that is told twice.
            part(5, &[(1, Some(2)), (7, Some(0)), (7, Some(0))], &[(7, 1), (9, 4)]),
        ];
        assert_eq!(peers_as_ranks(&mut parts), []);
        assert_eq!(peers(&parts), [vec![Some(5)], vec![Some(5), Some(0)], vec![Some(3), Some(4)]]);
    }

    #[test]
    fn a_peer_that_is_not_in_the_run_is_unknown_and_counted() {
        let mut parts = [part(3, &[(7, Some(1))], &[(7, 0), (7, 0), (7, 1)])];
        let omissions = peers_as_ranks(&mut parts);
        assert_eq!(peers(&parts), [vec![None, None, Some(3)]]);
        assert_eq!((omissions[0].rank, omissions[0].amount), (Some(3), Some(2)));
        // Two ranks that claim one place: neither is believed.
        let mut parts = [part(0, &[(7, Some(0))], &[(7, 0)]), part(1, &[(7, Some(0))], &[])];
        peers_as_ranks(&mut parts);
        assert_eq!(peers(&parts)[0], [None]);
    }

    #[test]
    fn traces_that_tell_no_places_keep_their_peers() {
        let mut parts = [part(0, &[(7, None)], &[(7, 1)])];
        peers_as_ranks(&mut parts);
        assert_eq!(peers(&parts), [[Some(1)]]);
    }
}
