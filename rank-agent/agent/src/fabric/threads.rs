//! Ranks as threads of one process. Tests of this crate and of the workload use them, because they need no MPI.

use std::collections::{BTreeMap, VecDeque};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use trace::lock;

use super::{Buffers, Control, Fabric, Group, InFlight, Lane, Pace, Stop, Transfer, wait_for};
use crate::Error;

/// One rank of a world of threads.
struct Threads {
    rank: usize,
    shared: Arc<Shared>,
    world: Members,
    stop: Stop,
    /// This rank's next number in each exchange; calls with equal numbers belong together.
    numbers: [AtomicU64; 3],
}

struct Shared {
    size: usize,
    splits: Mutex<BTreeMap<(u64, usize), Arc<SharedGroup>>>,
    words: [Exchange<u64>; 2],
    mail: Mutex<BTreeMap<(usize, usize), VecDeque<i64>>>,
}

/// Every rank puts in one value and takes out the values of all ranks.
struct Exchange<T> {
    meetings: Mutex<BTreeMap<u64, Meeting<T>>>,
}

struct Meeting<T> {
    given: Vec<Option<Vec<T>>>,
    taken: usize,
}

impl<T: Clone> Exchange<T> {
    fn new() -> Self {
        Self { meetings: Mutex::new(BTreeMap::new()) }
    }

    fn give(&self, size: usize, number: u64, rank: usize, mine: Vec<T>) {
        let mut meetings = lock(&self.meetings);
        let meeting =
            meetings.entry(number).or_insert_with(|| Meeting { given: (0..size).map(|_| None).collect(), taken: 0 });
        assert!(meeting.given[rank].replace(mine).is_none(), "rank {rank} called twice");
    }

    /// The values in rank order once all ranks have put theirs in; each rank takes once.
    fn take(&self, size: usize, number: u64) -> Option<Vec<Vec<T>>> {
        let mut meetings = lock(&self.meetings);
        let meeting = meetings.get_mut(&number)?;
        let all: Vec<Vec<T>> = meeting.given.iter().flatten().cloned().collect();
        if all.len() < size {
            return None;
        }
        meeting.taken += 1;
        if meeting.taken == size {
            meetings.remove(&number);
        }
        Some(all)
    }
}

/// The ranks of a world of `size` threads.
fn world(size: usize) -> Vec<Threads> {
    let shared = Arc::new(Shared {
        size,
        splits: Mutex::default(),
        words: [Exchange::new(), Exchange::new()],
        mail: Mutex::new(BTreeMap::new()),
    });
    let stop = Stop::default();
    let of_world = SharedGroup::new();
    (0..size)
        .map(|rank| Threads {
            rank,
            shared: shared.clone(),
            world: Members { place: rank, size, shared: of_world.clone(), stop: stop.clone(), next: Mutex::default() },
            stop: stop.clone(),
            numbers: Default::default(),
        })
        .collect()
}

/// Runs `body` on every rank of a world of `size` threads and returns the results. A rank that panics ends the waits of the
/// others.
pub fn run<R: Send>(size: usize, body: impl Fn(Arc<dyn Fabric>) -> R + Sync) -> Vec<R> {
    struct AbandonOnPanic(Stop);
    impl Drop for AbandonOnPanic {
        fn drop(&mut self) {
            if std::thread::panicking() {
                self.0.abandon();
            }
        }
    }
    std::thread::scope(|scope| {
        let body = &body;
        let handles: Vec<_> = world(size)
            .into_iter()
            .map(|rank| {
                scope.spawn(move || {
                    let _guard = AbandonOnPanic(rank.stop.clone());
                    body(Arc::new(rank))
                })
            })
            .collect();
        handles
            .into_iter()
            .map(|handle| handle.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)))
            .collect()
    })
}

impl Threads {
    fn next(&self, exchange: usize) -> u64 {
        self.numbers[exchange].fetch_add(1, Ordering::Relaxed)
    }

    fn gather(&self, lane: Lane, mine: Vec<u64>) -> Result<Vec<Vec<u64>>, Error> {
        let index = lane as usize;
        let (exchange, number) = (&self.shared.words[index], self.next(index));
        exchange.give(self.shared.size, number, self.rank, mine);
        let mut all = Vec::new();
        wait_for(&self.stop, Pace::brisk(), || {
            Ok(exchange.take(self.shared.size, number).map(|taken| all = taken).is_some())
        })?;
        Ok(all)
    }
}

impl Control for Threads {
    fn rank(&self) -> usize {
        self.rank
    }

    fn size(&self) -> usize {
        self.shared.size
    }

    fn version(&self) -> String {
        "threads".into()
    }

    fn barrier(&self) -> Result<(), Error> {
        self.gather(Lane::Control, Vec::new()).map(|_| ())
    }

    fn broadcast(&self, bytes: Vec<u8>) -> Result<Vec<u8>, Error> {
        let words = if self.rank == 0 { bytes.into_iter().map(u64::from).collect() } else { Vec::new() };
        let all = self.gather(Lane::Control, words)?;
        Ok(all[0].iter().map(|word| *word as u8).collect())
    }

    fn all_gather(&self, lane: Lane, mine: &[u64]) -> Result<Vec<u64>, Error> {
        Ok(self.gather(lane, mine.to_vec())?.concat())
    }

    fn send_word(&self, peer: usize, word: i64) -> Result<(), Error> {
        lock(&self.shared.mail).entry((self.rank, peer)).or_default().push_back(word);
        Ok(())
    }

    fn receive_word(&self, peer: usize) -> Result<i64, Error> {
        loop {
            if let Some(word) = lock(&self.shared.mail).entry((peer, self.rank)).or_default().pop_front() {
                return Ok(word);
            }
            self.stop.check()?;
            std::thread::yield_now();
        }
    }

    fn abandon(&self, _exit_code: u8) {
        self.stop.abandon();
    }
}

impl Group for Threads {
    fn start(&self, transfer: Transfer, buffers: Buffers) -> Result<Box<dyn InFlight>, Error> {
        self.world.start(transfer, buffers)
    }
}

impl Fabric for Threads {
    fn split(&self, color: usize) -> Result<Arc<dyn Group>, Error> {
        let number = self.next(2);
        let colors = self.gather(Lane::Control, vec![color as u64])?.concat();
        let members: Vec<usize> = (0..colors.len()).filter(|rank| colors[*rank] == color as u64).collect();
        let place = members.iter().position(|member| *member == self.rank).unwrap_or(0);
        let shared = lock(&self.shared.splits).entry((number, color)).or_insert_with(SharedGroup::new).clone();
        Ok(Arc::new(Members { place, size: members.len(), shared, stop: self.stop.clone(), next: Mutex::default() }))
    }
}

/// The messages from one member to another, in their order.
type Mail = BTreeMap<(usize, usize), VecDeque<Vec<f32>>>;

/// What the members of a communicator share.
struct SharedGroup {
    collectives: Exchange<f32>,
    messages: Mutex<Mail>,
}

impl SharedGroup {
    fn new() -> Arc<Self> {
        Arc::new(Self { collectives: Exchange::new(), messages: Mutex::default() })
    }
}

/// A member of a communicator.
struct Members {
    place: usize,
    size: usize,
    shared: Arc<SharedGroup>,
    stop: Stop,
    /// Number of the next collective.
    next: Mutex<u64>,
}

impl Group for Members {
    fn start(&self, transfer: Transfer, buffers: Buffers) -> Result<Box<dyn InFlight>, Error> {
        let mut number = 0;
        match transfer {
            Transfer::Send { peer } => {
                let mut messages = lock(&self.shared.messages);
                messages.entry((self.place, peer)).or_default().push_back(buffers.send.clone());
            }
            Transfer::Receive { .. } => {}
            Transfer::AllReduce | Transfer::AllGather | Transfer::ReduceScatter => {
                let mut next = lock(&self.next);
                number = *next;
                *next += 1;
                self.shared.collectives.give(self.size, number, self.place, buffers.send.clone());
            }
        }
        let (shared, stop) = (self.shared.clone(), self.stop.clone());
        let (place, size) = (self.place, self.size);
        Ok(Box::new(Running { shared, stop, place, size, number, transfer, buffers, complete: false }))
    }
}

struct Running {
    shared: Arc<SharedGroup>,
    stop: Stop,
    place: usize,
    size: usize,
    number: u64,
    transfer: Transfer,
    buffers: Buffers,
    complete: bool,
}

impl Running {
    /// The result, once it is there.
    fn result(&self) -> Option<Vec<f32>> {
        match self.transfer {
            Transfer::Send { .. } => return Some(Vec::new()),
            Transfer::Receive { peer } => {
                return lock(&self.shared.messages).entry((peer, self.place)).or_default().pop_front();
            }
            Transfer::AllReduce | Transfer::AllGather | Transfer::ReduceScatter => {}
        }
        let all = self.shared.collectives.take(self.size, self.number)?;
        if self.transfer == Transfer::AllGather {
            return Some(all.concat());
        }
        // In the order of members on every rank, so that all get the same bits.
        let mut sum = vec![0.0; self.buffers.send.len()];
        for given in all {
            for (sum, x) in sum.iter_mut().zip(given) {
                *sum += x;
            }
        }
        let len = self.buffers.recv.len();
        let begin = if self.transfer == Transfer::ReduceScatter { self.place * len } else { 0 };
        Some(sum[begin..begin + len].to_vec())
    }
}

impl InFlight for Running {
    fn test(&mut self) -> Result<bool, Error> {
        self.stop.check()?;
        if !self.complete
            && let Some(result) = self.result()
        {
            for (to, from) in self.buffers.recv.iter_mut().zip(result) {
                *to = from;
            }
            self.complete = true;
        }
        Ok(self.complete)
    }

    fn into_buffers(self: Box<Self>) -> Buffers {
        if self.complete { self.buffers } else { Buffers::default() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranks_gather_broadcast_and_sum() {
        let sums = run(3, |fabric| {
            let rank = fabric.rank();
            fabric.barrier().unwrap();
            assert_eq!(fabric.all_gather(Lane::World, &[rank as u64, 9]).unwrap(), [0, 9, 1, 9, 2, 9]);
            assert_eq!(fabric.broadcast(vec![rank as u8; 2]).unwrap(), [0, 0]);
            let buffers = Buffers { send: vec![rank as f32, 1.0], recv: vec![0.0; 2] };
            let mut sum = fabric.start(Transfer::AllReduce, buffers).unwrap();
            while !sum.test().unwrap() {}
            sum.into_buffers().recv
        });
        assert_eq!(sums, vec![vec![3.0, 3.0]; 3]);
    }

    #[test]
    fn members_of_a_communicator_transfer_among_themselves() {
        let got = run(4, |fabric| {
            let rank = fabric.rank();
            // 0 and 2, 1 and 3.
            let (group, place) = (fabric.split(rank % 2).unwrap(), rank / 2);
            let do_it = |transfer, send: &[f32], recv_len| {
                let buffers = Buffers { send: send.to_vec(), recv: vec![0.0; recv_len] };
                let mut running = group.start(transfer, buffers).unwrap();
                while !running.test().unwrap() {}
                running.into_buffers().recv
            };
            let mine = rank as f32;
            let sent = do_it(Transfer::Send { peer: 1 - place }, &[10.0 + mine], 0);
            assert!(sent.is_empty());
            [
                do_it(Transfer::AllGather, &[mine], 2),
                do_it(Transfer::ReduceScatter, &[mine, 1.0], 1),
                do_it(Transfer::AllReduce, &[mine], 1),
                do_it(Transfer::Receive { peer: 1 - place }, &[], 1),
            ]
        });
        assert_eq!(got[0], [vec![0.0, 2.0], vec![2.0], vec![2.0], vec![12.0]]);
        assert_eq!(got[2], [vec![0.0, 2.0], vec![2.0], vec![2.0], vec![10.0]]);
        assert_eq!(got[1], [vec![1.0, 3.0], vec![4.0], vec![4.0], vec![13.0]]);
        assert_eq!(got[3], [vec![1.0, 3.0], vec![2.0], vec![4.0], vec![11.0]]);
    }

    #[test]
    fn a_rank_that_gives_up_frees_the_others() {
        let results = run(3, |fabric| {
            if fabric.rank() == 1 {
                fabric.abandon(1);
                return true;
            }
            matches!(fabric.barrier(), Err(Error::Abandoned))
        });
        assert_eq!(results, [true; 3]);
    }
}
