//! Compares the clocks of the ranks before, during and after the program.
//!
//! At every tick the ranks exchange whether their programs have ended; rank 0 decides when to compare clocks. All ranks
//! leave together, after the last comparison.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
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

/// What the ranks tell each other about the steps of their programs, where these report them. Clones share it.
#[derive(Clone, Debug, Default)]
pub(super) struct Steps(Arc<Reported>);

#[derive(Debug, Default)]
struct Reported {
    /// The step that runs.
    now: AtomicU64,
    /// Whether the profiler records, so that a comparison would disturb it.
    records: AtomicBool,
    /// Whether a comparison is wanted.
    wanted: AtomicBool,
    /// The step at which all ranks begin to record, plus one; 0: none.
    opens: AtomicU64,
    /// Whether the program reports its steps, so that also a single rank looks for orders.
    reported: AtomicBool,
}

impl Steps {
    /// Notes the step that runs now.
    pub(super) fn at(&self, step: u64) {
        self.0.now.store(step, Ordering::Relaxed);
        self.0.reported.store(true, Ordering::Relaxed);
    }

    /// Notes whether the profiler records. When it ends, the clocks are compared.
    pub(super) fn records(&self, records: bool) {
        if self.0.records.swap(records, Ordering::Relaxed) && !records {
            self.0.wanted.store(true, Ordering::Relaxed);
        }
    }

    /// Asks for a comparison at the next exchange at which no rank records.
    pub(super) fn compare(&self) {
        self.0.wanted.store(true, Ordering::Relaxed);
    }

    /// The last step that was chosen for all ranks to begin to record.
    pub(super) fn opens(&self) -> Option<u64> {
        self.0.opens.load(Ordering::Relaxed).checked_sub(1)
    }

    fn words(&self) -> [u64; 2] {
        let Reported { now, records, wanted, .. } = &*self.0;
        let flag = |flag: &AtomicBool| u64::from(flag.load(Ordering::Relaxed));
        [flag(records) | flag(wanted) << 1, now.load(Ordering::Relaxed)]
    }
}

/// Words that a rank gives to an exchange: state, whether a comparison is due, order, flags of [`Steps`], step.
const WORDS: usize = 5;

/// What the ranks said in earlier exchanges. It is the same on all of them, and so is what follows from it.
#[derive(Clone, Copy, Debug, Default)]
struct Earlier {
    /// Number of orders.
    orders: u64,
    /// The furthest step; `None` before the first exchange.
    step: Option<u64>,
}

/// Steps since the last exchange that are assumed at the first one.
const FIRST_STEPS: u64 = 8;

impl Earlier {
    /// The step at which all ranks begin to record, if a rank was told to since the last exchange. No rank reaches it before
    /// it knows: ranks of a job are at most a step apart, and the margin is three times what they did since the last exchange.
    fn opening(&mut self, all: &[u64]) -> Option<u64> {
        let newest = all.chunks_exact(WORDS).map(|rank| rank[2]).max().unwrap_or(0);
        let step = all.chunks_exact(WORDS).map(|rank| rank[4]).max().unwrap_or(0);
        let before = std::mem::replace(self, Self { orders: newest >> 8, step: Some(step) });
        let is_start = newest >> 8 > before.orders && newest & 1 != 0;
        let since = before.step.map_or(FIRST_STEPS, |before| step.saturating_sub(before));
        is_start.then(|| step + 2 + 3 * since)
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
    /// The steps of this rank's program.
    pub(super) steps: Steps,
    /// Error of the times of this run's rows in the clocks that are compared. A round trip is longer by it at each of its four
    /// ends, so that a bound that follows from it contains the error.
    pub(super) error_ns: i64,
}

impl Sync {
    /// Compares all clocks once. Collective.
    ///
    /// # Errors
    /// An error of the network or the recorder.
    pub(super) fn burst(&self) -> Result<(), Error> {
        let mut samples = self.tree.burst(&*self.control, self.recorder.clock())?;
        for ping in samples.iter_mut().filter(|sample| sample.peer_rank.is_some()) {
            ping.rtt_ns += 4 * self.error_ns;
        }
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
        let mut earlier = Earlier::default();
        loop {
            let state = self.progress.0.load(Ordering::Relaxed);
            let is_due = self.control.rank() == 0 && self.every.is_some_and(|every| last.elapsed() >= every);
            let [flags, step] = self.steps.words();
            let mine: [u64; WORDS] = [state, u64::from(is_due), self.switch.word(), flags, step];
            let all = self.control.all_gather(Lane::Control, &mine)?;
            let of = |word: usize| all.iter().copied().skip(word).step_by(WORDS);
            self.switch.follow(of(2));
            if let Some(step) = earlier.opening(&all) {
                self.steps.0.opens.store(step + 1, Ordering::Relaxed);
            }
            let is_over = of(0).all(|state| state != RUNS) || of(0).any(|state| state == FAILED);
            let is_wanted = of(1).any(|due| due != 0) || of(3).any(|flags| flags & 2 != 0);
            if is_over || (is_wanted && of(3).all(|flags| flags & 1 == 0)) {
                self.steps.0.wanted.store(false, Ordering::Relaxed);
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

    /// The wait of a single rank, which ends with its program, or with the tick if the program reports steps.
    fn wait_alone(&self, tick: Duration, last: Instant) {
        let until = self.every.map(|every| last + every);
        loop {
            if self.progress.0.load(Ordering::Relaxed) != RUNS || until.is_some_and(|until| Instant::now() >= until) {
                return;
            }
            std::thread::park_timeout(tick);
            if self.steps.0.reported.load(Ordering::Relaxed) {
                return;
            }
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
                steps: Steps::default(),
                error_ns: 0,
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
                steps: Steps::default(),
                error_ns: 0,
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
            let (switch, steps) = (switch(), Steps::default());
            Sync { control: fabric, tree, recorder, every: None, progress, switch, steps, error_ns: 0 }.run().unwrap()
        });
        assert_eq!(bursts, [1; 2]);
    }

    /// Invariant (python): The ranks of a training open their windows at one step.
    #[test]
    fn an_order_to_any_rank_chooses_one_step_that_no_rank_has_reached() {
        let gathered = |orders: [u64; 2], steps: [u64; 2]| {
            let rank = |at: usize| [RUNS, 0, orders[at] << 8 | u64::from(orders[at] > 0), 0, steps[at]];
            [rank(0), rank(1)].concat()
        };
        assert_eq!(Earlier::default().opening(&gathered([1, 0], [5000, 5000])), Some(5000 + 2 + 24));
        let mut earlier = Earlier::default();
        assert_eq!(earlier.opening(&gathered([0, 0], [10, 11])), None);
        assert_eq!(earlier.opening(&gathered([0, 1], [15, 16])), Some(16 + 2 + 15));
        assert_eq!(earlier.opening(&gathered([1, 1], [20, 20])), None, "the order is known");
        assert_eq!(earlier.opening(&gathered([3, 1], [20, 20])), Some(22));
    }

    #[test]
    fn clocks_are_compared_between_windows_only() {
        let bursts = threads::run(2, |fabric| {
            let rank = fabric.rank();
            let (progress, steps) = (Progress::default(), Steps::default());
            let recorder = Recorder::disabled(recorder::Clock::system());
            let sync = Sync {
                control: fabric.clone(),
                tree: PingTree::new(2, 1),
                recorder,
                every: Some(Duration::ZERO),
                progress: progress.clone(),
                switch: switch(),
                steps: steps.clone(),
                error_ns: 0,
            };
            steps.records(true);
            std::thread::scope(|scope| {
                scope.spawn(move || {
                    std::thread::sleep(Duration::from_millis(250 + 150 * rank as u64));
                    progress.done();
                });
                sync.run().unwrap()
            })
        });
        assert_eq!(bursts, [1; 2], "only the last comparison, when all programs have ended");
    }
}
