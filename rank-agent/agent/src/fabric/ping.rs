//! Clock pings: round trips along a tree of ranks, so that the aggregator can put all ranks on one clock.
//!
//! ```text
//! child   t0 ──────┐        ┌─────▶ t1        rtt = t1 − t0
//! parent           └▶ remote┘                 offset = remote − (t0 + t1)/2, true to ± rtt/2
//! ```
//!
//! The tree is HCA3's (Hunold and Carpen-Amarie 2018): in round k, ranks 2^k … 2^(k+1)−1 ping the rank 2^k below them,
//! so that a rank is compared with rank 0 before others compare with it, and log2 p rounds reach all ranks. Only the
//! smallest round trips of a burst are kept, because they are the least likely to hold an interruption.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use recorder::Clock;
use trace::ClockSampleRow;

use crate::Error;
use crate::fabric::{Control, Lane};

/// Interval of the bursts during a run. A clock whose drift changes by 0.01 ppm in a second leaves a straight line by
/// 0.3 µs between two bursts, and by 1.1 µs in twice this interval.
pub const INTERVAL: Duration = Duration::from_secs(15);
/// Fewest round trips of a burst.
const TRIPS_MIN: usize = 100;
/// Most round trips of a burst, even if its best ones still differ.
const TRIPS_MAX: usize = 4000;
/// Round trips kept of a burst.
const KEPT: usize = 16;
/// Round trips before the first that counts, which connect the pair and warm its caches.
const WARM_UP: usize = 8;
/// Longest time that a burst waits for better round trips.
const BURST_LIMIT: Duration = Duration::from_millis(30);
/// UTC samples per burst.
const UTC_SAMPLES: usize = 4;
/// Ends a burst; a ping carries its number.
const END: i64 = -1;

/// The pairs that ping each other: rounds of (child, parent); the pairs of a round ping at the same time.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PingTree {
    rounds: Vec<Vec<(usize, usize)>>,
}

impl PingTree {
    /// The binomial tree over `size` ranks, with no more than `at_once` pairs in a round: pairs that share cores
    /// measure the scheduler.
    pub fn new(size: usize, at_once: usize) -> Self {
        let mut rounds = Vec::new();
        let mut distance = 1;
        while distance < size {
            let pairs: Vec<(usize, usize)> =
                (distance..size.min(2 * distance)).map(|child| (child, child - distance)).collect();
            rounds.extend(pairs.chunks(at_once.max(1)).map(<[_]>::to_vec));
            distance *= 2;
        }
        Self { rounds }
    }

    /// Every pair (child, parent).
    pub fn edges(&self) -> Vec<(usize, usize)> {
        self.rounds.concat()
    }

    /// The tree for the ranks of `fabric`, equal on all of them, and the number of hosts. A host with more ranks than cores
    /// has room for one spinning pair per two cores. Collective.
    ///
    /// # Errors
    /// The fabric's error.
    pub fn for_fabric(fabric: &dyn Control, host: u64) -> Result<(Self, usize), Error> {
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        let all = fabric.all_gather(Lane::Control, &[host, cores as u64])?;
        let mut hosts: BTreeMap<u64, (usize, usize)> = BTreeMap::new();
        for rank in all.chunks_exact(2) {
            let (ranks, cores) = hosts.entry(rank[0]).or_insert((0, usize::MAX));
            *ranks += 1;
            *cores = (*cores).min(rank[1] as usize);
        }
        let crowded = hosts.values().filter(|(ranks, cores)| ranks > cores).map(|(_, cores)| (cores / 2).max(1)).min();
        Ok((Self::new(fabric.size(), crowded.unwrap_or(usize::MAX)), hosts.len()))
    }

    /// Pings over the whole tree once. Returns this rank's comparisons with its parent and with UTC. Collective.
    ///
    /// # Errors
    /// The fabric's error.
    pub fn burst(&self, fabric: &dyn Control, clock: Clock) -> Result<Vec<ClockSampleRow>, Error> {
        let rank = fabric.rank();
        let own = fabric.rank_in_job(rank);
        let mut rows: Vec<ClockSampleRow> = (0..UTC_SAMPLES).map(|_| utc_row(own, clock)).collect();
        for round in &self.rounds {
            // Waiting ranks sleep in the barrier, so that they do not disturb the pings of this round.
            fabric.barrier()?;
            for &(child, parent) in round {
                if rank == child {
                    let trips = ping(fabric, clock, parent)?;
                    let peer = fabric.rank_in_job(parent);
                    rows.extend(trips.into_iter().map(|trip| trip.row(own, peer)));
                } else if rank == parent {
                    answer(fabric, clock, child)?;
                }
            }
        }
        fabric.barrier()?;
        // Ranks leave the barrier up to 2 ms apart. The next thing may be a recorded step, so this brings them together.
        fabric.all_gather(Lane::Control, &[0])?;
        Ok(rows)
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Trip {
    sent_ns: i64,
    remote_ns: i64,
    received_ns: i64,
}

impl Trip {
    fn rtt_ns(&self) -> i64 {
        self.received_ns - self.sent_ns
    }

    fn row(&self, rank: usize, peer: usize) -> ClockSampleRow {
        let local_ns = self.sent_ns + self.rtt_ns() / 2;
        ClockSampleRow {
            rank: rank as i32,
            peer_rank: Some(peer as i32),
            kind: "ping".into(),
            local_ns,
            remote_ns: self.remote_ns,
            // The remote time is whatever the peer has sent.
            offset_ns: self.remote_ns.saturating_sub(local_ns),
            rtt_ns: self.rtt_ns(),
        }
    }
}

fn utc_row(rank: usize, clock: Clock) -> ClockSampleRow {
    let (local_ns, utc_ns, rtt_ns) = clock.utc_sample();
    ClockSampleRow {
        rank: rank as i32,
        peer_rank: None,
        kind: "utc".into(),
        local_ns,
        remote_ns: utc_ns,
        offset_ns: utc_ns - local_ns,
        rtt_ns,
    }
}

/// The child's side: pings until the best round trips agree, and returns those in the order of time.
fn ping(fabric: &dyn Control, clock: Clock, parent: usize) -> Result<Vec<Trip>, Error> {
    let begin = Instant::now();
    let mut trips: Vec<Trip> = Vec::with_capacity(TRIPS_MAX);
    for number in 0..WARM_UP + TRIPS_MAX {
        let sent_ns = clock.now_ns();
        fabric.send_word(parent, number as i64)?;
        let remote_ns = fabric.receive_word(parent)?;
        let trip = Trip { sent_ns, remote_ns, received_ns: clock.now_ns() };
        if number >= WARM_UP {
            trips.push(trip);
        }
        let enough = !trips.is_empty() && trips.len().is_multiple_of(TRIPS_MIN);
        if enough && (begin.elapsed() > BURST_LIMIT || best_agree(&mut trips)) {
            break;
        }
    }
    fabric.send_word(parent, END)?;
    Ok(best(trips))
}

/// The parent's side: answers every ping with its clock.
fn answer(fabric: &dyn Control, clock: Clock, child: usize) -> Result<(), Error> {
    while fabric.receive_word(child)? != END {
        fabric.send_word(child, clock.now_ns())?;
    }
    Ok(())
}

/// Whether the round trips to keep are within a quarter of the smallest; then more trips would hardly be better.
fn best_agree(trips: &mut [Trip]) -> bool {
    trips.sort_unstable_by_key(Trip::rtt_ns);
    match (trips.first(), trips.get(KEPT - 1)) {
        (Some(first), Some(last)) => 4 * last.rtt_ns() <= 5 * first.rtt_ns(),
        _ => false,
    }
}

fn best(mut trips: Vec<Trip>) -> Vec<Trip> {
    trips.sort_unstable_by_key(Trip::rtt_ns);
    trips.truncate(KEPT);
    trips.sort_unstable_by_key(|trip| trip.sent_ns);
    trips
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fabric::threads;

    fn rounds(size: usize, at_once: usize) -> Vec<Vec<(usize, usize)>> {
        PingTree::new(size, at_once).rounds
    }

    #[test]
    fn a_tree_reaches_all_ranks_in_log2_rounds() {
        assert_eq!(rounds(1, 9), Vec::<Vec<(usize, usize)>>::new());
        assert_eq!(rounds(2, 9), [vec![(1, 0)]]);
        assert_eq!(rounds(5, 9), [vec![(1, 0)], vec![(2, 0), (3, 1)], vec![(4, 0)]]);
        assert_eq!(rounds(8, 9).len(), 3);
        for size in [3, 8, 13, 100, 1024] {
            let mut known = vec![0];
            for round in rounds(size, usize::MAX) {
                assert!(
                    round.iter().all(|(_, parent)| known.contains(parent)),
                    "parents are compared before their children"
                );
                known.extend(round.iter().map(|(child, _)| *child));
            }
            known.sort_unstable();
            assert_eq!(known, (0..size).collect::<Vec<_>>());
        }
        // On two cores, one pair at a time.
        assert_eq!(rounds(5, 1), [vec![(1, 0)], vec![(2, 0)], vec![(3, 1)], vec![(4, 0)]]);
    }

    #[test]
    fn the_smallest_round_trips_are_kept_in_order() {
        // Round trips of 100 − i, sent at i·1000: the last 16 are the best.
        let trips: Vec<Trip> =
            (0..50).map(|i| Trip { sent_ns: i * 1000, remote_ns: 0, received_ns: i * 1000 + 100 - i }).collect();
        let kept = best(trips);
        assert_eq!(kept.len(), KEPT);
        assert_eq!((kept[0].sent_ns, kept[15].sent_ns), (34_000, 49_000));
        let row = Trip { sent_ns: 100, remote_ns: 1_000, received_ns: 110 }.row(3, 1);
        assert_eq!((row.rank, row.peer_rank, row.local_ns, row.offset_ns, row.rtt_ns), (3, Some(1), 105, 895, 10));
    }

    #[test]
    fn pings_measure_a_shifted_clock_within_half_a_round_trip() {
        // Rank 2's clock is 1 s ahead of the others'; it pings rank 0.
        const AHEAD_NS: i64 = 1_000_000_000;
        let clock = |rank| if rank == 2 { Clock::bent(AHEAD_NS, 0) } else { Clock::system() };
        let all = threads::run(4, |fabric| PingTree::new(4, 1).burst(&*fabric, clock(fabric.rank())).unwrap());
        for (rank, rows) in all.iter().enumerate() {
            let pings: Vec<_> = rows.iter().filter(|row| &*row.kind == "ping").collect();
            assert_eq!(pings.len(), if rank == 0 { 0 } else { KEPT });
            assert_eq!(rows.len() - pings.len(), UTC_SAMPLES);
            let ahead_ns = if rank == 2 { AHEAD_NS } else { 0 };
            for row in pings {
                assert_eq!(row.peer_rank, Some(if rank == 3 { 1 } else { 0 }));
                assert!((row.offset_ns + ahead_ns).abs() <= row.rtt_ns / 2 + 1, "{row:?}");
            }
        }
    }
}
