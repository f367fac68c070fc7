//! Compares the clocks of the ranks before, during and after the program.
//!
//! At every tick the ranks exchange whether their programs have ended; rank 0 decides when to compare clocks. All ranks
//! leave together, after the last comparison.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use recorder::Recorder;

use crate::Error;
use crate::fabric::ping::PingTree;
use crate::fabric::{Control, Lane};

use super::switch::Switch;

/// Interval of the exchanges, and its minimum per rank of a large job.
const TICK: Duration = Duration::from_millis(100);
const TICK_OF_A_RANK: Duration = Duration::from_micros(500);

/// State of this rank's program.
#[derive(Clone, Debug, Default)]
pub(super) struct Progress(Arc<AtomicU64>);

const RUNS: u64 = 0;
/// The program has ended; those of other ranks may go on.
const DONE: u64 = 1;
/// The program has failed, and so will the job: no rank waits any longer.
const FAILED: u64 = 2;

impl Progress {
    /// Notes that the program has ended without an error.
    pub(super) fn done(&self) {
        // Keeps an earlier failure.
        let _ = self.0.compare_exchange(RUNS, DONE, Ordering::Relaxed, Ordering::Relaxed);
    }

    /// Notes that the program has failed, or that a signal stops this rank.
    pub(super) fn failed(&self) {
        self.0.store(FAILED, Ordering::Relaxed);
    }
}

/// Compares the clocks of a job.
pub(super) struct Sync {
    /// The other ranks.
    pub(super) control: Arc<dyn Control>,
    /// The pairs that compare their clocks.
    pub(super) tree: PingTree,
    /// Recorder of the clock samples.
    pub(super) recorder: Recorder,
    /// Interval of the comparisons; `None`: none while the program runs.
    pub(super) every: Option<Duration>,
    /// State of this rank's program.
    pub(super) progress: Progress,
    /// Switch of this rank's recording, which follows the other ranks.
    pub(super) switch: Switch,
}

impl Sync {
    /// Compares all clocks once. Collective.
    ///
    /// # Errors
    /// An error of the network or the recorder.
    pub(super) fn burst(&self) -> Result<(), Error> {
        let samples = self.tree.burst(&*self.control, self.recorder.clock())?;
        Ok(self.recorder.rows(samples)?)
    }

    /// Exchanges states until all programs have ended or one has failed, and compares a last time. Returns the number of
    /// comparisons.
    ///
    /// # Errors
    /// An error of the network, with the number of comparisons so far: another rank is gone.
    pub(super) fn run(&self) -> Result<u64, (u64, Error)> {
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
                self.wait_alone(tick, last);
            } else {
                std::thread::sleep(tick);
            }
        }
    }

    /// The wait of a single rank, which ends with its program.
    fn wait_alone(&self, tick: Duration, last: Instant) {
        let until = self.every.map(|every| last + every);
        while self.progress.0.load(Ordering::Relaxed) == RUNS && until.is_none_or(|until| Instant::now() < until) {
            std::thread::park_timeout(tick);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;
    use crate::fabric::agree::{RunRequest, agree_on_run};
    use crate::fabric::threads;

    fn switch() -> Switch {
        let order = recorder::Order { record: true, detail: recorder::CollectiveDetail::Coll };
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

    /// Ranks that compare their clocks at every exchange. Rank 0's program calls `end` after some comparisons.
    fn compare_often(
        run: &Path,
        end: impl Fn(&dyn Control, &Progress) + std::marker::Sync,
    ) -> Vec<Result<u64, (u64, Error)>> {
        let request = RunRequest { out: Some(run.into()), world_size: 3, ..RunRequest::default() };
        threads::run(3, |fabric| {
            let place = agree_on_run(&*fabric, &request).unwrap();
            let progress = Progress::default();
            let options = recorder::Options::new(&place.path, &place.run_id, fabric.rank() as i32, 3);
            let options = recorder::Options { part_period: Duration::from_millis(1), ..options };
            let sync = Sync {
                control: fabric.clone(),
                tree: PingTree::new(3, 1),
                recorder: Recorder::start(options).unwrap(),
                every: Some(Duration::ZERO),
                progress: progress.clone(),
                switch: switch(),
            };
            std::thread::scope(|scope| {
                if fabric.rank() == 0 {
                    scope.spawn(|| {
                        while samples(run, 0, false) < 3 * 4 {
                            std::thread::yield_now();
                        }
                        end(&*fabric, &progress);
                    });
                } else {
                    progress.done();
                }
                let result = sync.run();
                assert!(sync.recorder.finish().closed_cleanly);
                result
            })
        })
    }

    /// The clock samples of a rank on the disk: with another rank, or with UTC.
    fn samples(run: &Path, rank: i32, is_ping: bool) -> u64 {
        let (rows, _) = trace::Run::open(run).unwrap().rows::<trace::ClockSampleRow>(rank);
        rows.iter().filter(|row| row.peer_rank.is_some() == is_ping).count() as u64
    }

    #[test]
    fn clocks_are_compared_while_a_program_runs() {
        let run = tempfile::tempdir().unwrap();
        let bursts = compare_often(run.path(), |_, progress| progress.done()).into_iter().map(Result::unwrap);
        for (rank, bursts) in bursts.enumerate() {
            assert!(bursts > 3, "rank {rank}: {bursts}");
            assert_eq!(samples(run.path(), rank as i32, true), if rank == 0 { 0 } else { 16 * bursts });
        }
    }

    #[test]
    fn a_rank_that_dies_ends_the_comparisons_and_nothing_else() {
        let run = tempfile::tempdir().unwrap();
        let ended = compare_often(run.path(), |control, _| control.abandon(1));
        for (rank, ended) in ended.into_iter().enumerate() {
            let (bursts, error) = ended.unwrap_err();
            assert!(bursts >= 2 && matches!(error, Error::Abandoned), "rank {rank}: {bursts}, {error}");
            assert_eq!(
                samples(run.path(), rank as i32, true),
                if rank == 0 { 0 } else { 16 * bursts },
                "rows are kept"
            );
        }
    }

    #[test]
    fn a_failure_ends_the_wait_of_other_ranks() {
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
