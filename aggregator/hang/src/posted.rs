//! Sends and receives that a rank posted. The end of one in a batch is not recorded, only that of the whole batch, so its two sides
//! are counted: who posted as many as the other is not waited for.
//!
//! ```text
//!  rank 1   [send to 2, receive from 0] ended
//!  rank 2   [send to 3, receive from 1] open      its receive has its send, its send to 3 has no receive
//!  rank 3   [send to 0]                           the one that is waited for
//! ```
//!
//! Rings that lost operations are counted from a collective of the same communicator on, which ended on both ranks: one stream
//! carries out batches and collectives in their order, so all before it have ended.

use std::collections::BTreeMap;

use kineto::FlightEntry;

/// Collectives of a rank that are kept to count from. Ranks of a job that hangs are not further apart.
const MAX_ENDED: usize = 16;

/// The recorded sends and receives of a rank in a communicator, ended or not.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Posted {
    /// Whether the ring holds all operations since the start of the process.
    is_whole: bool,
    /// Places in the order of calls, by the other rank, and whether they are sends. Ascending.
    transfers: BTreeMap<(i32, bool), Vec<i64>>,
    /// The places of the last collectives that ended, by number.
    ended: BTreeMap<i64, i64>,
}

impl Posted {
    /// `place` is the global rank of a number in the communicator.
    pub(crate) fn of(place: impl Fn(i32) -> Option<i32>, ring: &[(i64, FlightEntry)], batches: &Batches) -> Self {
        let mut posted = Self { is_whole: batches.is_whole, ..Self::default() };
        for (order, entry) in ring {
            match (entry.is_p2p, entry.peer.and_then(&place), entry.seq) {
                (true, Some(peer), _) => {
                    posted.transfers.entry((peer, entry.op == Some("send"))).or_default().push(*order);
                }
                (false, _, Some(seq)) if !is_batch(entry) && batches.is_finished(entry) => {
                    posted.ended.insert(seq, *order);
                    if posted.ended.len() > MAX_ENDED {
                        posted.ended.pop_first();
                    }
                }
                _ => {}
            }
        }
        posted
    }

    /// That of a rank that used no operation of a communicator, which its whole ring shows.
    pub(crate) fn nothing() -> Self {
        Self { is_whole: true, ..Self::default() }
    }

    /// How many more sends to (or receives from) `other` a rank posted than `other` posted on its side; `None` if it is unknown.
    pub(crate) fn more_than(&self, rank: i32, is_send: bool, of_other: &Self, other: i32) -> Option<i64> {
        let (from, from_of_other) = match self.is_whole && of_other.is_whole {
            true => (i64::MIN, i64::MIN),
            false => {
                let both = |(seq, order): (&i64, &i64)| of_other.ended.get(seq).map(|of_other| (*order, *of_other));
                self.ended.iter().rev().find_map(both)?
            }
        };
        let count = |posted: &Self, key: (i32, bool), from: i64| {
            let orders = posted.transfers.get(&key).map_or(&[][..], Vec::as_slice);
            (orders.len() - orders.partition_point(|order| *order <= from)) as i64
        };
        Some(count(self, (other, is_send), from) - count(of_other, (rank, !is_send), from_of_other))
    }
}

/// Numbers of an entry: those of operations that NCCL carries out together are equal.
type Numbers = (Option<i64>, Option<i64>);

/// The operations of a ring that are carried out together.
pub(crate) struct Batches {
    /// Whether the entry that closes a batch is finished. Only this one is watched to its end.
    closed: BTreeMap<Numbers, bool>,
    /// How many sends and receives have these numbers.
    transfers: BTreeMap<Numbers, usize>,
    /// Whether the ring holds all operations since the start of the process.
    is_whole: bool,
    /// The numbers of the oldest operation of a ring that is not whole: other members of its batch may be lost.
    cut: Option<Numbers>,
}

/// Whether an entry closes a batch.
pub(crate) fn is_batch(entry: &FlightEntry) -> bool {
    entry.op.is_none() && entry.name.ends_with("coalesced")
}

fn numbers(entry: &FlightEntry) -> Numbers {
    (entry.seq, entry.p2p_seq)
}

impl Batches {
    /// `oldest`: the place of the oldest operation of all communicators, if the ring holds all after it.
    pub(crate) fn of(ring: &[(i64, FlightEntry)], is_whole: bool, oldest: Option<i64>) -> Self {
        let is_cut = |(order, _): &&(i64, FlightEntry)| !is_whole && Some(*order) == oldest;
        let cut = ring.first().filter(is_cut).map(|(_, entry)| numbers(entry));
        let mut batches = Self { closed: BTreeMap::new(), transfers: BTreeMap::new(), is_whole, cut };
        for (_, entry) in ring {
            if is_batch(entry) {
                batches.closed.insert(numbers(entry), entry.is_finished);
            } else if entry.is_p2p {
                *batches.transfers.entry(numbers(entry)).or_default() += 1;
            }
        }
        batches
    }

    pub(crate) fn is_finished(&self, entry: &FlightEntry) -> bool {
        entry.is_finished || !is_batch(entry) && self.closed.get(&numbers(entry)).copied().unwrap_or(false)
    }

    /// Whether a batch has sends and receives.
    pub(crate) fn has_transfers(&self, batch: &FlightEntry) -> bool {
        self.transfers.contains_key(&numbers(batch))
    }

    /// The number of the batch of a send or receive, if it is a member of one.
    pub(crate) fn number(&self, entry: &FlightEntry) -> Option<i64> {
        let numbers = numbers(entry);
        let is_member = self.closed.contains_key(&numbers) || self.transfers.get(&numbers) > Some(&1);
        entry.p2p_seq.filter(|_| is_member || self.cut == Some(numbers))
    }
}
