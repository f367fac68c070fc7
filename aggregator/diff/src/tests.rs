//! Comparisons of simulated runs with the noise of a busy machine.
//!
//! ```text
//!  value = work × load of the run × load of the step × noise of rank and step + preemption
//!          load of the run: e^N(0, 0.15)      the machine is busier today
//!          load of the step: AR(1), 0.6       for seconds at a time
//!          preemption: 12 ms in 5 %           another process ran on the processor
//! ```

use super::*;
use crate::judge::compare;
use crate::profile::{RankProfile, RunProfile};
use model::analysis::RankIdentity;
use trace::random::SplitMix64;

const RANKS: usize = 8;
const STEPS: usize = 20;
const MS: f64 = 1e6;

/// Work of a step by key, in ms.
fn work() -> Vec<(Key, f64)> {
    let step = |name: &str| Key::new(Group::Step, name, Measure::Total);
    let mut work = vec![(step("wall"), 450.0), (step("compute"), 300.0), (step("exposed communication"), 120.0)];
    for (name, total, own) in
        [("input", 1.0, 0.01), ("forward", 130.0, 0.03), ("backward", 190.0, 0.05), ("optimizer", 20.0, 0.02)]
    {
        work.push((Key::new(Group::Range, name, Measure::Total), total));
        work.push((Key::new(Group::Range, name, Measure::SelfTime), own));
    }
    for op in 0..10 {
        work.push((Key::new(Group::Operator, &format!("aten::op{op}"), Measure::SelfTime), f64::from(op * op)));
    }
    work
}

struct Noise {
    random: SplitMix64,
    run: f64,
    step: f64,
    rank: f64,
    preempted: f64,
}

impl Noise {
    /// A machine whose ranks share cores with each other and with other processes.
    fn busy(seed: u64) -> Self {
        Self { random: SplitMix64(seed), run: 0.15, step: 0.2, rank: 0.15, preempted: 0.05 }
    }

    /// A machine with a device for each rank.
    fn quiet(seed: u64) -> Self {
        Self { random: SplitMix64(seed), run: 0.003, step: 0.005, rank: 0.005, preempted: 0.0 }
    }

    fn uniform(&mut self) -> f64 {
        (self.random.next_u64() >> 11) as f64 / (1_u64 << 53) as f64
    }

    /// The sum of twelve uniform numbers: nearly normal.
    fn normal(&mut self) -> f64 {
        (0..12).map(|_| self.uniform()).sum::<f64>() - 6.0
    }
}

/// Simulates a run. `more` adds ms to a key on a rank, or on all ranks if it names none.
fn run(mut noise: Noise, more: &[(Option<usize>, &Key, f64)]) -> (String, RunProfile) {
    let n = &mut noise;
    let of_run = (n.run * n.normal()).exp();
    let mut load = 0.0;
    let loads: Vec<f64> = (0..STEPS)
        .map(|step| {
            load = 0.6 * load + 0.8 * n.normal();
            // The first step is slow, as in real runs.
            (n.step * load).exp() * if step == 0 { 1.5 } else { 1.0 }
        })
        .collect();
    let mut ranks = Vec::new();
    for rank in 0..RANKS {
        let mut profile =
            RankProfile { rank: rank as i32, steps: (0..STEPS as i32).collect(), ..RankProfile::default() };
        for (key, work_ms) in work() {
            let added: f64 =
                more.iter().filter(|(r, k, _)| r.is_none_or(|r| r == rank) && **k == key).map(|(_, _, ms)| ms).sum();
            let mut value = |load: &f64| {
                let hit = if n.uniform() < n.preempted { 12.0 * n.uniform() } else { 0.0 };
                // A sleep has its requested length on any machine.
                MS * (work_ms * of_run * load * (n.rank * n.normal()).exp() + hit + added)
            };
            profile.series.insert(key, loads.iter().map(&mut value).collect());
        }
        ranks.push(profile);
    }
    ("run".into(), RunProfile { ranks, ..RunProfile::default() })
}

fn judged(a: &[(String, RunProfile)], b: &[(String, RunProfile)]) -> Diff {
    compare(a, b, &Method::default(), Vec::new()).unwrap()
}

fn forward(measure: Measure) -> Key {
    Key::new(Group::Range, "forward", measure)
}

/// Invariant (verdicts): Two clean runs are not called different, and a slow rank is found.
///
/// Two clean runs do not differ, and a slow rank is found with its phase. The counts are printed.
#[test]
fn clean_runs_are_the_same_and_a_slow_rank_is_found() {
    const PAIRS: u64 = 30;
    let (own, total) = (forward(Measure::SelfTime), forward(Measure::Total));
    let (mut wrong, mut found) = (0, 0);
    for pair in 0..PAIRS {
        let seed = |of: u64| 1_000 * pair + of;
        let clean = run(Noise::busy(seed(1)), &[]);
        let again = run(Noise::busy(seed(2)), &[]);
        let slow = run(Noise::busy(seed(3)), &[(Some(5), &own, 30.0), (Some(5), &total, 30.0)]);
        wrong += u32::from(judged(std::slice::from_ref(&clean), &[again]).verdict.changed);
        let diff = judged(&[clean], &[slow]);
        let row = diff.verdict.row.map(|at| &diff.rows[at]);
        found +=
            u32::from(row.is_some_and(|row| {
                row.key == own && row.place == Place::Rank(5) && row.judgement == Judgement::Slower
            }));
    }
    println!("{PAIRS} pairs of runs on a busy machine: {wrong} clean ones differ; a slow rank is found in {found}");
    assert!(wrong <= 1, "{wrong} of {PAIRS} clean pairs differ");
    assert!(found >= PAIRS as u32 - 1, "the slow rank is found in {found} of {PAIRS}");
}

/// Invariant (verdicts): One run a side proves a change of one rank only where several peers did not change so.
#[test]
fn one_run_a_side_proves_no_change_of_one_of_two_ranks() {
    let (own, total) = (forward(Measure::SelfTime), forward(Measure::Total));
    let of = |ranks: usize, seed: u64, more: &[(Option<usize>, &Key, f64)]| {
        let (name, mut profile) = run(Noise::quiet(seed), more);
        profile.ranks.truncate(ranks);
        (name, profile)
    };
    let slow = [(Some(1), &own, 60.0), (Some(1), &total, 60.0)];
    for (ranks, runs, is_proof) in [(2, 1, false), (2, 3, true), (3, 1, true)] {
        let side = |first: u64, more: &[(Option<usize>, &Key, f64)]| -> Vec<_> {
            (0..runs).map(|seed| of(ranks, first + seed, more)).collect()
        };
        let diff = judged(&side(1, &[]), &side(11, &slow));
        let row = diff.slower_than(5.0).find(|row| row.place == Place::Rank(1));
        assert_eq!(row.map(|row| diff.is_proof(row)), Some(is_proof), "{ranks} ranks, {runs} runs a side");
    }
}

/// A change of all ranks looks like a busier machine. One run a side cannot separate the two; three can, if runs differ
/// less than that.
#[test]
fn several_runs_a_side_see_a_change_of_all_ranks() {
    let wall = Key::new(Group::Step, "wall", Measure::Total);
    let side = |first: u64, n: u64, more: &[(Option<usize>, &Key, f64)], noise: fn(u64) -> Noise| {
        (first..first + n).map(|seed| run(noise(seed), more)).collect::<Vec<_>>()
    };
    let slower = [(None, &wall, 45.0)];
    let verdict = |n: u64, noise: fn(u64) -> Noise| {
        let diff = judged(&side(1, n, &[], noise), &side(101, n, &slower, noise));
        let row = diff.rows.iter().find(|r| r.key == wall && r.place == Place::AllRanks).unwrap().clone();
        (row, diff)
    };
    let (row, diff) = verdict(1, Noise::busy);
    assert_eq!(row.judgement, Judgement::Unclear, "{row:?}");
    assert!(diff.verdict.detectable_step_pct.unwrap() > 10.0, "{:?}", diff.verdict);
    let (row, _) = verdict(3, Noise::quiet);
    assert_eq!(row.judgement, Judgement::Slower, "{row:?}");
    assert!(row.change.low_ns < 45.0 * MS && 45.0 * MS < row.change.high_ns, "{row:?}");
    let same = judged(&side(1, 3, &[], Noise::quiet), &side(101, 3, &[], Noise::quiet));
    assert!(!same.verdict.changed, "{:?}", same.verdict);
}

/// Less overlap moves time between parts of a step. It is no slowdown.
#[test]
fn a_shift_between_parts_is_no_slowdown() {
    let compute = Key::new(Group::Step, "compute", Measure::Total);
    let diff = judged(&[run(Noise::quiet(10), &[])], &[run(Noise::quiet(11), &[(None, &compute, 90.0)])]);
    let row = diff.rows.iter().find(|r| r.key == compute && r.place == Place::AllRanks).unwrap();
    assert_eq!(row.judgement, Judgement::Slower, "{row:?}");
    assert_eq!(diff.slower_than(5.0).count(), 0);
}

/// Invariant (verdicts): The intervals of `diff` hold the truth as often as they state.
///
/// The intervals contain the truth at least as often as stated, even if runs differ.
#[test]
fn intervals_hold_the_truth() {
    let own = forward(Measure::Total);
    let (mut held, mut all) = (0, 0);
    for pair in 0..40_u64 {
        let clean = run(Noise::busy(7_000 + 2 * pair), &[]);
        let slow = run(Noise::busy(7_001 + 2 * pair), &[(Some(2), &own, 60.0)]);
        let diff = judged(&[clean], &[slow]);
        for row in diff.rows.iter().filter(|row| row.key == own && row.place != Place::AllRanks) {
            let truth = if row.place == Place::Rank(2) { 60.0 * MS } else { 0.0 };
            all += 1;
            held += u32::from(row.change.low_ns <= truth && truth <= row.change.high_ns);
        }
    }
    println!("{held} of {all} intervals of 95 % hold the truth");
    assert!(f64::from(held) >= 0.95 * f64::from(all), "{held} of {all}");
}

#[test]
fn rows_of_one_side_are_listed_and_not_compared() {
    let fused = Key::new(Group::Kernel, "fused_adam", Measure::Total);
    let clean = run(Noise::quiet(1), &[]);
    let mut other = run(Noise::quiet(2), &[]);
    for rank in &mut other.1.ranks {
        rank.series.insert(fused.clone(), vec![3.0 * MS; STEPS].into_iter().collect());
        rank.series.remove(&Key::new(Group::Operator, "aten::op9", Measure::SelfTime));
    }
    let diff = judged(&[clean], &[other]);
    assert_eq!(diff.appeared.iter().map(|o| (&*o.key.name, o.step_ns)).collect::<Vec<_>>(), [("fused_adam", 3.0 * MS)]);
    assert_eq!(diff.vanished.iter().map(|o| &*o.key.name).collect::<Vec<_>>(), ["aten::op9"]);
    assert!(diff.rows.iter().all(|row| row.key != fused));
}

/// If all other ranks got slower, an unchanged rank is not called faster.
#[test]
fn a_rank_that_did_not_change_is_not_blamed_for_the_others() {
    let exposed = Key::new(Group::Step, "exposed communication", Measure::Total);
    let waits: Vec<_> = (0..RANKS).filter(|r| *r != 5).map(|r| (Some(r), &exposed, 60.0)).collect();
    let diff = judged(&[run(Noise::quiet(3), &[])], &[run(Noise::quiet(4), &waits)]);
    let row = diff.rows.iter().find(|r| r.key == exposed && r.place == Place::Rank(5)).unwrap();
    assert!(row.change.delta_ns < -50.0 * MS, "{row:?}");
    assert_eq!(row.judgement, Judgement::Unclear, "{row:?}");
}

#[test]
fn runs_without_a_common_rank_are_compared_as_a_whole() {
    let clean = run(Noise::quiet(5), &[]);
    let mut other = run(Noise::quiet(6), &[]);
    other.1.ranks.iter_mut().for_each(|rank| rank.rank += 100);
    let diff = judged(std::slice::from_ref(&clean), std::slice::from_ref(&other));
    assert_eq!(diff.not_compared, ["single ranks, because no rank is on both sides"]);
    assert!(!diff.rows.is_empty() && diff.rows.iter().all(|row| row.place == Place::AllRanks));
    // The mean of a side needs ranks that all of its runs have.
    let error = compare(&[clean.clone(), other], &[clean], &Method::default(), Vec::new()).unwrap_err();
    assert!(error.to_string().contains("no rank"), "{error}");
}

#[test]
fn a_run_without_a_common_step_is_refused() {
    let mut empty = run(Noise::quiet(7), &[]);
    empty.1.ranks[3].steps.clear();
    let error = compare(&[run(Noise::quiet(5), &[])], &[empty], &Method::default(), Vec::new()).unwrap_err();
    assert!(error.to_string().contains("no active step"), "{error}");
}

/// Of unlike runs the sentence is about the step, and sums by category are compared. Of like runs neither is so.
#[test]
fn unlike_runs_are_compared_by_their_step_and_by_category() {
    let step = Key::step();
    let category = Key::new(Group::Category, "gemm", Measure::Total);
    let own = forward(Measure::SelfTime);
    let with_category = |mut run: (String, RunProfile), device: &str| {
        let values = [80.0 * MS; STEPS];
        run.1.ranks.iter_mut().for_each(|rank| {
            rank.series.insert(category.clone(), values.iter().copied().collect());
        });
        let identity = RankIdentity { device_name: Some(device.into()), ..RankIdentity::default() };
        run.1.facts.identities = vec![identity];
        run
    };
    let side = |seed: u64, device: &str, more: &[(Option<usize>, &Key, f64)]| {
        let run = |seed| with_category(run(Noise::quiet(seed), more), device);
        [run(seed), run(seed + 1), run(seed + 2)]
    };
    let faster = [(None, &step, -200.0), (None, &own, 30.0)];
    let like = judged(&side(1, "A100", &[]), &side(4, "A100", &faster));
    assert_eq!((like.differences.len(), like.heading()), (0, Heading::Slower), "{:?}", like.verdict);
    assert!(like.rows.iter().all(|row| row.key != category));
    // Twice the bytes are other work of equal names.
    let with_bytes = |mut runs: [(String, RunProfile); 3], bytes: i64| {
        runs.iter_mut().for_each(|run| run.1.collective_bytes = bytes);
        runs
    };
    let sides = [(side(1, "A100", &[]), 1 << 30), (side(4, "A100", &faster), 2 << 30)];
    let [a, b] = sides.map(|(runs, bytes)| with_bytes(runs, bytes));
    let other_bytes = judged(&a, &b);
    assert_eq!(other_bytes.heading(), Heading::Faster, "{:?}", other_bytes.verdict);
    assert!(other_bytes.rows.iter().all(|row| row.key != category), "the names match");
    let unlike = judged(&side(1, "A100", &[]), &side(4, "H100", &faster));
    assert_eq!(unlike.heading(), Heading::Faster, "{:?}", unlike.verdict);
    assert!(unlike.verdict.sentence.starts_with("the step is faster by"), "{}", unlike.verdict.sentence);
    assert_eq!(unlike.differences[0].words(), "device: A100 in A, H100 in B");
    assert_eq!(unlike.rows.iter().filter(|row| row.key == category).count(), 1);
    assert_eq!(unlike.slower_than(1.0).filter(|row| row.key.group.is_cut()).count(), 0);
}

/// The first `steps` steps of a run.
fn cut(mut run: (String, RunProfile), steps: usize) -> (String, RunProfile) {
    let kept: Vec<usize> = (0..steps).collect();
    for rank in &mut run.1.ranks {
        rank.steps.truncate(steps);
        rank.series.values_mut().for_each(|series| *series = series.at(&kept).into_iter().collect());
    }
    run
}

/// Invariant (verdicts): A comparison whose interval of the step excludes 0 never says that nothing changed.
#[test]
fn a_heading_without_change_has_a_step_that_may_be_unchanged() {
    let wall = Key::new(Group::Step, "wall", Measure::Total);
    let mut found = Vec::new();
    for (seed, steps) in (0_u64..).zip([4, 6, 20].repeat(12)) {
        let change_ms = -10.0 * (seed / 3) as f64;
        let a = cut(run(Noise::quiet(2 * seed), &[]), steps);
        let b = cut(run(Noise::quiet(2 * seed + 1), &[(None, &wall, change_ms)]), steps);
        let diff = judged(&[a], &[b]);
        let step = diff.step().unwrap().change;
        let heading = diff.heading();
        assert!(heading != Heading::NoChange || (step.low_ns <= 0.0 && 0.0 <= step.high_ns), "{step:?}");
        assert_eq!(heading == Heading::TooFewSteps, steps < 5, "{:?}", diff.verdict);
        assert_eq!(diff.verdict.sentence.contains("too few to judge"), steps < 5, "{}", diff.verdict.sentence);
        assert_eq!(diff.verdict.sentence.contains("does not prove"), heading == Heading::Undecided);
        found.push(heading);
    }
    for heading in [Heading::NoChange, Heading::Undecided, Heading::TooFewSteps, Heading::Faster] {
        assert!(found.contains(&heading), "{heading:?} never occurs: {found:?}");
    }
}

/// Four steps do not show how much steps vary: no change is significant, however large.
#[test]
fn with_too_few_steps_nothing_is_significant() {
    let own = forward(Measure::SelfTime);
    let slow = run(Noise::quiet(9), &[(Some(5), &own, 30.0)]);
    let diff = judged(&[cut(run(Noise::quiet(8), &[]), 4)], &[cut(slow, 4)]);
    assert!(!diff.verdict.changed && diff.verdict.too_few_steps, "{:?}", diff.verdict);
    assert_eq!(diff.verdict.detectable_step_pct, None);
}
