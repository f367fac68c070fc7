//! Ranks as threads of one process, for tests without MPI.

use std::collections::{BTreeMap, VecDeque};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::{Buffers, Control, Fabric, Lane, Pace, Reduction, Stop, wait_for};
use crate::Error;

/// One rank of a world of threads.
pub(crate) struct Threads {
    rank: usize,
    shared: Arc<Shared>,
    stop: Stop,
    /// This rank's next number in each exchange; calls with equal numbers belong together.
    numbers: [AtomicU64; 3],
}

struct Shared {
    size: usize,
    sums: Exchange<f32>,
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

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The ranks of a world of `size` threads.
pub(crate) fn world(size: usize) -> Vec<Threads> {
    let shared = Arc::new(Shared {
        size,
        sums: Exchange::new(),
        words: [Exchange::new(), Exchange::new()],
        mail: Mutex::new(BTreeMap::new()),
    });
    let stop = Stop::default();
    (0..size)
        .map(|rank| Threads { rank, shared: shared.clone(), stop: stop.clone(), numbers: Default::default() })
        .collect()
}

/// Runs `body` on every rank of a world of `size` threads and returns the results. A rank that panics ends the waits of the
/// others.
pub(crate) fn run<R: Send>(size: usize, body: impl Fn(Arc<dyn Fabric>) -> R + Sync) -> Vec<R> {
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
        handles.into_iter().map(|handle| handle.join().unwrap()).collect()
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

impl Fabric for Threads {
    fn start_all_reduce(&self, buffers: Buffers) -> Result<Box<dyn Reduction>, Error> {
        let number = self.next(2);
        self.shared.sums.give(self.shared.size, number, self.rank, buffers.send.clone());
        Ok(Box::new(Sum { shared: self.shared.clone(), stop: self.stop.clone(), number, buffers, complete: false }))
    }
}

struct Sum {
    shared: Arc<Shared>,
    stop: Stop,
    number: u64,
    buffers: Buffers,
    complete: bool,
}

impl Reduction for Sum {
    fn test(&mut self) -> Result<bool, Error> {
        self.stop.check()?;
        if self.complete {
            return Ok(true);
        }
        let Some(all) = self.shared.sums.take(self.shared.size, self.number) else { return Ok(false) };
        // In the order of ranks on every rank, so that all get the same bits.
        self.buffers.recv.fill(0.0);
        for given in all {
            for (sum, x) in self.buffers.recv.iter_mut().zip(given) {
                *sum += x;
            }
        }
        self.complete = true;
        Ok(true)
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
            let mut reduction = fabric.start_all_reduce(buffers).unwrap();
            while !reduction.test().unwrap() {}
            reduction.into_buffers().recv
        });
        assert_eq!(sums, vec![vec![3.0, 3.0]; 3]);
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
