//! The clocks of the ranks, compared while the program runs: before it, now and then, and after it.
//!
//! The ranks meet at every tick and tell each other whether their program has ended; rank 0 says when clocks are to be
//! compared. So all of them leave together, after the last comparison.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use recorder::Recorder;

use crate::Error;
use crate::fabric::{Control, Lane};
use crate::ping::PingTree;

use super::switch::Switch;

/// Ranks meet this often; more rarely where there are many.
const TICK: Duration = Duration::from_millis(100);
const TICK_OF_A_RANK: Duration = Duration::from_micros(500);

/// What this rank's program does.
#[derive(Clone, Debug, Default)]
pub struct Progress(Arc<AtomicU64>);

const RUNS: u64 = 0;
/// It has ended, and others may go on.
const DONE: u64 = 1;
/// It has failed; so will the job, and nobody shall wait.
const FAILED: u64 = 2;

impl Progress {
    /// The program has ended in order.
    pub fn done(&self) {
        // A failure stays one.
        let _ = self.0.compare_exchange(RUNS, DONE, Ordering::Relaxed, Ordering::Relaxed);
    }

    /// The program has failed, or this rank was told to stop.
    pub fn failed(&self) {
        self.0.store(FAILED, Ordering::Relaxed);
    }
}

/// Compares the clocks of a job.
pub struct Sync {
    /// The other ranks.
    pub control: Arc<dyn Control>,
    /// Who compares with whom.
    pub tree: PingTree,
    /// Where samples go.
    pub recorder: Recorder,
    /// Time between comparisons.
    pub every: Option<Duration>,
    /// This rank's program.
    pub progress: Progress,
    /// Whether it is recorded.
    pub switch: Switch,
}

impl Sync {
    /// One comparison of all clocks. Collective.
    ///
    /// # Errors
    /// The network's, or the recorder's.
    pub fn burst(&self) -> Result<(), Error> {
        let samples = self.tree.burst(&*self.control, self.recorder.clock())?;
        Ok(self.recorder.rows(samples)?)
    }

    /// Meets the others until all have ended, or one has failed, and compares a last time. Returns how many comparisons
    /// there were.
    ///
    /// # Errors
    /// The network's: another rank is gone, and no comparison will follow.
    pub fn run(&self) -> Result<u64, (u64, Error)> {
        let mut bursts = 0;
        self.meet(&mut bursts).map_err(|error| (bursts, error))?;
        Ok(bursts)
    }

    fn meet(&self, bursts: &mut u64) -> Result<(), Error> {
        let tick = TICK.max(TICK_OF_A_RANK.saturating_mul(self.control.size() as u32));
        let mut last = Instant::now();
        loop {
            let state = self.progress.0.load(Ordering::Relaxed);
            let is_due = self.control.rank() == 0 && self.every.is_some_and(|every| last.elapsed() >= every);
            let all = self.control.all_gather(Lane::Control, &[state, u64::from(is_due), self.switch.word()])?;
            let states = || all.iter().step_by(3);
            self.switch.follow(all.iter().skip(2).step_by(3).copied());
            let is_over = states().all(|state| *state != RUNS) || states().any(|state| *state == FAILED);
            if is_over || all[1] != 0 {
                self.burst()?;
                *bursts += 1;
                last = Instant::now();
            }
            if is_over {
                return Ok(());
            }
            if self.control.size() == 1 {
                self.doze(tick, last);
            } else {
                std::thread::sleep(tick);
            }
        }
    }

    /// A rank that is alone need not meet anybody, and ends when its program does.
    fn doze(&self, tick: Duration, last: Instant) {
        let until = self.every.map(|every| last + every);
        while self.progress.0.load(Ordering::Relaxed) == RUNS && until.is_none_or(|until| Instant::now() < until) {
            std::thread::park_timeout(tick);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fabric::threads;

    fn switch() -> Switch {
        let order = recorder::Order { record: true, detail: recorder::nccl::Detail::Coll };
        Switch::new(None, super::super::switch::TimeSchedule::default(), order)
    }

    #[test]
    fn ranks_leave_together_after_the_last_comparison() {
        let bursts = threads::run(3, |fabric| {
            let rank = fabric.rank();
            let progress = Progress::default();
            let sync = Sync {
                control: fabric.clone(),
                tree: PingTree::new(3, 1),
                recorder: Recorder::disabled(recorder::Clock::system()),
                every: None,
                progress: progress.clone(),
                switch: switch(),
            };
            std::thread::scope(|scope| {
                scope.spawn(move || {
                    std::thread::sleep(Duration::from_millis(60 * rank as u64));
                    progress.done();
                });
                sync.run().unwrap()
            })
        });
        assert_eq!(bursts, [1; 3]);
    }

    #[test]
    fn a_failure_frees_those_who_would_wait() {
        let bursts = threads::run(2, |fabric| {
            let progress = Progress::default();
            if fabric.rank() == 1 {
                progress.failed();
                progress.done();
            }
            let recorder = Recorder::disabled(recorder::Clock::system());
            let tree = PingTree::new(2, 1);
            Sync { control: fabric, tree, recorder, every: None, progress, switch: switch() }.run().unwrap()
        });
        assert_eq!(bursts, [1; 2]);
    }
}
