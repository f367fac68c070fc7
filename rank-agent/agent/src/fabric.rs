//! Communication between the ranks of a job: a few collectives and a ping, over TCP, between threads, or for a single rank.
//! Another crate has the fabric over MPI.
//!
//! A fabric has two communicators. *World* carries the workload's collectives: gradients and checksums. *Control* carries
//! rankscope's own messages: barriers, broadcasts, clock pings. Messages of the two never mix, so a communication thread
//! may drive an all-reduce on world while the main thread is in a barrier on control. Within one communicator all ranks
//! call in the same order.
//!
//! Every wait is a loop of tests with pauses ([`Pace`]) and not a blocking call: when ranks outnumber cores, a waiting rank
//! must leave its core to one that computes, and a waiting rank must notice a signal.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use crate::Error;

pub mod agree;
pub mod ping;
pub mod sockets;
pub mod solo;
pub mod threads;

/// A communicator of a [`Fabric`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Lane {
    /// The communicator of the workload.
    World,
    /// The communicator of rankscope's own messages.
    Control,
}

/// A transfer between the members of a communicator, which has `k` of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Transfer {
    /// `recv` is the sum of all members' `send`, equally long.
    AllReduce,
    /// `recv` holds the `send` of every member in their order, and is `k` times as long.
    AllGather,
    /// `recv` is this member's part of the sum of all members' `send`, which is `k` times as long.
    ReduceScatter,
    /// `send` goes to a member.
    Send {
        /// The receiver's number in the communicator.
        peer: usize,
    },
    /// `recv` comes from a member.
    Receive {
        /// The sender's number in the communicator.
        peer: usize,
    },
}

/// Memory of a transfer. The [`InFlight`] owns it while it runs.
#[derive(Debug, Default)]
pub struct Buffers {
    /// This rank's numbers.
    pub send: Vec<f32>,
    /// The result.
    pub recv: Vec<f32>,
}

/// Connects the ranks of a job for rankscope's own messages: agreements and clock pings.
pub trait Control: Send + Sync {
    /// This rank.
    fn rank(&self) -> usize;

    /// Number of ranks.
    fn size(&self) -> usize;

    /// The rank in the job of the process that this fabric counts as `rank`. They differ if ranks of the job are absent.
    fn rank_in_job(&self, rank: usize) -> usize {
        rank
    }

    /// The carrier of the messages with its version, for the `ranks` row.
    fn version(&self) -> String;

    /// Returns when every rank has called it. On control.
    ///
    /// # Errors
    /// [`Error::Fabric`], [`Error::Network`], [`Error::Stopped`] or [`Error::Abandoned`], as for all methods.
    fn barrier(&self) -> Result<(), Error>;

    /// Returns rank 0's bytes on every rank. On control.
    fn broadcast(&self, bytes: Vec<u8>) -> Result<Vec<u8>, Error>;

    /// Returns the words of all ranks in rank order; all ranks pass equally many. A fabric without a workload uses one
    /// communicator for both lanes.
    fn all_gather(&self, lane: Lane, mine: &[u64]) -> Result<Vec<u64>, Error>;

    /// Sends one word to `peer` without waiting for its receipt. On control.
    fn send_word(&self, peer: usize, word: i64) -> Result<(), Error>;

    /// Receives one word from `peer`. It spins, because it is half of a clock ping and a pause would be measured. On
    /// control.
    fn receive_word(&self, peer: usize) -> Result<i64, Error>;

    /// Tells the other ranks that this one gives up, because they cannot finish a collective without it. The caller exits
    /// with `exit_code`; an implementation may end this process and all others at once.
    fn abandon(&self, exit_code: u8);
}

/// A communicator of the workload.
pub trait Group: Send + Sync {
    /// Starts a transfer. All members start the same collectives in the same order; a sum is bit-identical on all of them.
    ///
    /// # Errors
    /// As for [`Control`].
    fn start(&self, transfer: Transfer, buffers: Buffers) -> Result<Box<dyn InFlight>, Error>;
}

/// A [`Control`] that is also the workload's communicator of all ranks.
pub trait Fabric: Control + Group {
    /// Makes communicators of the ranks that pass the same color, in the order of ranks. Every rank must call it.
    ///
    /// # Errors
    /// As for [`Control`].
    fn split(&self, color: usize) -> Result<Arc<dyn Group>, Error>;
}

/// A running transfer.
pub trait InFlight: Send {
    /// Drives the transfer and returns whether it is complete. Over MPI it advances only in this call.
    ///
    /// # Errors
    /// As for [`Control`].
    fn test(&mut self) -> Result<bool, Error>;

    /// Returns the memory after [`test`](Self::test) has returned true; before that, returns empty buffers.
    fn into_buffers(self: Box<Self>) -> Buffers;
}

/// The signal that asks this process to stop. Clones share it.
#[derive(Clone, Debug, Default)]
pub struct Stop(Arc<Signals>);

#[derive(Debug, Default)]
struct Signals {
    /// The received signal, or 0.
    signal: Arc<AtomicUsize>,
    abandoned: AtomicBool,
}

/// Lets a write beyond the file size limit fail instead of ending this process. A program that this process starts does
/// not inherit the handler.
///
/// # Errors
/// The operating system's error.
pub(crate) fn outlive_file_size_limit() -> std::io::Result<()> {
    signal_hook::flag::register(signal_hook::consts::SIGXFSZ, Arc::default()).map(drop)
}

impl Stop {
    /// Listens for SIGTERM and SIGINT, so that a stopped rank closes its shards first. A second SIGINT comes from an
    /// impatient user and ends the process at once; a second SIGTERM does not, because launchers repeat it.
    ///
    /// # Errors
    /// The operating system's error.
    pub fn on_signals() -> std::io::Result<Self> {
        use signal_hook::consts::{SIGINT, SIGTERM};
        outlive_file_size_limit()?;
        let stop = Self::default();
        let armed = Arc::new(AtomicBool::new(false));
        // The order matters: the first signal finds `armed` unset, passes, and sets it.
        signal_hook::flag::register_conditional_shutdown(SIGINT, 128 + SIGINT, armed.clone())?;
        signal_hook::flag::register(SIGINT, armed)?;
        for signal in [SIGTERM, SIGINT] {
            signal_hook::flag::register_usize(signal, stop.0.signal.clone(), signal as usize)?;
        }
        Ok(stop)
    }

    /// Notes that another rank has given up.
    pub fn abandon(&self) {
        self.0.abandoned.store(true, Ordering::Relaxed);
    }

    /// Acts as if `signal` had arrived.
    pub fn raise(&self, signal: i32) {
        self.0.signal.store(signal as usize, Ordering::Relaxed);
    }

    /// Fails once a signal has arrived or another rank has given up.
    ///
    /// # Errors
    /// [`Error::Stopped`] or [`Error::Abandoned`].
    pub fn check(&self) -> Result<(), Error> {
        match self.0.signal.load(Ordering::Relaxed) {
            0 if self.0.abandoned.load(Ordering::Relaxed) => Err(Error::Abandoned),
            0 => Ok(()),
            signal => Err(Error::Stopped(signal as i32)),
        }
    }
}

/// Growing pauses between tests: an immediate answer is seen immediately, and a long wait costs no core.
#[derive(Clone, Copy, Debug)]
pub struct Pace {
    tries: u32,
    pause: Duration,
    longest: Duration,
}

impl Pace {
    /// Pauses up to 100 µs, for collectives that a rank waits for. That is little beside a 4 MiB all-reduce of several
    /// milliseconds, and the tests cost a few per cent of a core.
    pub fn brisk() -> Self {
        Self { tries: 0, pause: Duration::from_micros(10), longest: Duration::from_micros(100) }
    }

    /// Pauses up to 2 ms, for barriers that wait for other ranks' work.
    pub fn calm() -> Self {
        Self { tries: 0, pause: Duration::from_micros(10), longest: Duration::from_millis(2) }
    }

    /// The pause before the next test; zero for the first tests.
    pub fn next_pause(&mut self) -> Duration {
        self.tries = self.tries.saturating_add(1);
        if self.tries <= 16 {
            return Duration::ZERO;
        }
        let pause = self.pause;
        self.pause = (pause * 2).min(self.longest);
        pause
    }
}

/// Calls `test` until it returns true, with pauses of `pace` between calls.
///
/// # Errors
/// The error of `test`; [`Error::Stopped`] or [`Error::Abandoned`].
pub fn wait_for(stop: &Stop, mut pace: Pace, mut test: impl FnMut() -> Result<bool, Error>) -> Result<(), Error> {
    while !test()? {
        stop.check()?;
        match pace.next_pause() {
            Duration::ZERO => std::thread::yield_now(),
            pause => std::thread::sleep(pause),
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_grow_to_their_limit() {
        let mut pace = Pace::brisk();
        let pauses: Vec<u128> = (0..24).map(|_| pace.next_pause().as_micros()).collect();
        assert!(pauses[..16].iter().all(|pause| *pause == 0));
        assert_eq!(pauses[16..], [10, 20, 40, 80, 100, 100, 100, 100]);
    }

    #[test]
    fn a_wait_ends_with_the_test_or_with_a_stop() {
        let stop = Stop::default();
        let mut left = 40;
        wait_for(&stop, Pace::brisk(), || {
            left -= 1;
            Ok(left == 0)
        })
        .unwrap();
        assert_eq!(left, 0);
        stop.abandon();
        let error = wait_for(&stop, Pace::brisk(), || Ok(false)).unwrap_err();
        assert!(matches!(error, Error::Abandoned));
    }
}
