//! Matching of sends and receives by the order of their pair.
//!
//! ```text
//! rank 0   [send A]  [recv B]    [send C]  [recv D]
//! rank 4   [send B]  [recv A]    [send D]  [recv C]      each rank has its own order of the two directions
//! ```
//!
//! Messages from one rank to another arrive in their order. An alignment of whole sequences would cross, because a rank's sends and
//! receives are independent of each other. So the rows of each direction of a pair are matched one by one, in each step in which
//! both ranks recorded equally many; all others go on to the alignment.

use std::collections::{BTreeMap, BTreeSet};

use trace::{MatchLevel, Op};

use crate::matching::row::{Group, RowRef, pair_of, window_of};
use model::RankOutline;
use model::windows::Windows;

/// The messages of one rank to another in a step of a window.
#[derive(PartialEq, Eq, PartialOrd, Ord)]
struct PairKey {
    window: Option<i32>,
    comm_id: i64,
    sender: i32,
    receiver: i32,
    step: Option<i32>,
}

/// Rows of one key: the sends and the receives, each by start.
#[derive(Default)]
struct Sides {
    sends: Vec<(Option<i64>, RowRef)>,
    recvs: Vec<(Option<i64>, RowRef)>,
}

/// Matches sends and receives of `rest`, and removes them from it.
pub(super) fn group(ranks: &[&RankOutline], rest: &mut Vec<RowRef>) -> Vec<Group> {
    let mut keys: BTreeMap<PairKey, Sides> = BTreeMap::new();
    let windows: Vec<Windows> = ranks.iter().map(|rank| Windows::of(&rank.steps)).collect();
    for (r, i) in &*rest {
        let row = &ranks[*r].collectives[*i];
        let Some((sender, receiver)) = pair_of(ranks[*r].info.rank, row).filter(|_| row.end_ns().is_some()) else {
            continue;
        };
        let (window, comm_id, step) = (window_of(&windows[*r], row), row.comm_id, row.step());
        let sides = keys.entry(PairKey { window, comm_id, sender, receiver, step }).or_default();
        let side = if row.op == Op::Send { &mut sides.sends } else { &mut sides.recvs };
        side.push((row.start_ns(), (*r, *i)));
    }
    let mut groups = Vec::new();
    for mut sides in keys.into_values().filter(|sides| sides.sends.len() == sides.recvs.len()) {
        sides.sends.sort_unstable();
        sides.recvs.sort_unstable();
        let same_bytes = |(send, recv): (&(_, RowRef), &(_, RowRef))| {
            let bytes = |(r, i): RowRef| ranks[r].collectives[i].bytes;
            bytes(send.1) == bytes(recv.1)
        };
        if sides.sends.iter().zip(&sides.recvs).all(same_bytes) {
            let pairs = sides.sends.into_iter().zip(sides.recvs);
            groups.extend(pairs.map(|(send, recv)| Group { level: MatchLevel::Ordinal, rows: vec![send.1, recv.1] }));
        }
    }
    let placed: BTreeSet<RowRef> = groups.iter().flat_map(|group| group.rows.iter().copied()).collect();
    rest.retain(|row| !placed.contains(row));
    groups
}
