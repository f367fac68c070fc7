//! Real traces with a known slow rank.

use fixtures::data::folder;
use trace::Verdict;

use crate::tests::build::verdicts;
use crate::tests::kineto;
use crate::{Stragglers, reduce};
use measure::own_time::{OwnTime, map_rank};
use model::thresholds::Thresholds;
use model::{Collective, RankData};
use trace::StragglerRow;

fn analyze(ranks: &[RankData]) -> Stragglers {
    let thresholds = Thresholds::default();
    let parts: Vec<OwnTime> = ranks.iter().map(|r| map_rank(r, &thresholds)).collect();
    reduce(&parts, &kineto::matched(ranks), (&|_, _, t_ns| t_ns, &|_, _| Some(0)), &thresholds)
}

/// Keeps the collectives for which `keep` returns true, given their position and row.
fn retain(rank: &mut RankData, keep: impl Fn(usize, &Collective) -> bool) {
    let flags: Vec<bool> = rank.outline.collectives.iter().enumerate().map(|(i, row)| keep(i, row)).collect();
    let mut at = flags.iter();
    rank.outline.collectives.retain(|_| at.next() == Some(&true));
}

/// Analyses the job as if the file of `rank` were missing.
fn without(rank: i32, ranks: &[RankData]) -> Stragglers {
    let ranks: Vec<RankData> = ranks.iter().filter(|r| r.outline.info.rank != rank).cloned().collect();
    analyze(&ranks)
}

/// Analyses the job as if only `steps` were recorded.
fn only_steps(steps: std::ops::Range<i32>, ranks: &[RankData]) -> Stragglers {
    let mut ranks = ranks.to_vec();
    for rank in &mut ranks {
        rank.outline.steps.retain(|s| steps.contains(&s.step));
        retain(rank, |_, row| row.step().is_some_and(|s| steps.contains(&s)));
    }
    analyze(&ranks)
}

fn assert_close(what: &str, value: f64, expected: f64, tolerance: f64) {
    assert!((value - expected).abs() <= tolerance, "{what}: {value}, expected {expected} ± {tolerance}");
}

/// Checks that `rank` is the only cause, and returns its row.
fn only_cause(result: &Stragglers, rank: i32) -> &StragglerRow {
    print_rows(result);
    let causes: Vec<i32> = result.stragglers.iter().filter(|r| r.verdict == Verdict::Cause).map(|r| r.rank).collect();
    assert_eq!(causes, [rank]);
    assert_exact(result);
    result.stragglers.iter().find(|r| r.rank == rank).unwrap()
}

/// Checks that the charges add up to the waits exactly.
fn assert_exact(result: &Stragglers) {
    assert_eq!(result.charged_ns.iter().sum::<i64>() + result.before_recording_ns, result.waited_ns);
}

fn assert_no_cause(result: &Stragglers) {
    print_rows(result);
    assert!(!verdicts(result).contains(&"cause"));
    assert_exact(result);
}

fn print_rows(result: &Stragglers) {
    for r in &result.stragglers {
        eprintln!(
            "rank {} {:<9} E {:.3} ms delay {:.3} caused {:.3} inherited {:.3} suffered {:.3} z {:?} p {:?} slow {:?} last {}/{} {:?} {:?} {:?}",
            r.rank,
            r.verdict,
            ms(r.own_excess_ns),
            ms(r.step_delay_ns),
            ms(r.caused_wait_ns),
            ms(r.inherited_ns),
            ms(r.suffered_wait_ns),
            r.z,
            r.persistence,
            r.slowdown,
            r.steps_last,
            r.steps,
            r.reason,
            r.evidence_range,
            r.evidence
        );
    }
}

fn ms(ns: i64) -> f64 {
    ns as f64 / 1e6
}

/// Rank 2's host spends a second of every step in `# running sparse arch`.
#[test]
#[ignore = "reads real traces"]
fn torchrec_rank_2_is_held_up_by_its_host() {
    let traces = folder("torchrec4_long_a2a");
    let ranks = kineto::load(&traces);
    let result = analyze(&ranks);
    let cause = only_cause(&result, 2);
    // 1008.4 ms, minus the work that the other ranks do while they wait.
    assert_close("own excess", ms(cause.own_excess_ns), 1004.2, 0.5);
    assert_eq!(cause.persistence, Some(1.0));
    assert_eq!(cause.evidence_range.as_deref(), Some("# running sparse arch"));
    // The range continues for some milliseconds after it launched its collective; these are in no own stretch.
    assert_close("range", ms(cause.evidence_excess_ns.unwrap()), 1005.0, 5.0);
    assert_eq!(cause.reason.as_deref(), Some("host"));
    assert_eq!(cause.own_excess_low_ns, None, "three steps give no 95 % interval");
    for other in result.stragglers.iter().filter(|r| r.rank != 2) {
        assert_eq!(&*other.verdict, "victim");
        assert!(ms(other.own_excess_ns).abs() < 0.002 * 1004.2, "{other:?}");
    }
    assert_no_cause(&without(2, &ranks));
    let two_steps = only_steps(4..6, &ranks);
    assert_eq!(verdicts(&two_steps)[2], "undecided");
}

/// Rank 5 sleeps 60 ms before forward in every step. Eight ranks share two cores, so its sleep speeds up the other
/// ranks.
#[test]
fn gloo8_rank_5_sleeps() {
    let traces = folder("gloo8_slow5");
    let ranks = kineto::load(&traces);
    let result = analyze(&ranks);
    let cause = only_cause(&result, 5);
    assert_close("own excess", ms(cause.own_excess_ns), 45.1, 0.1);
    assert_close("z", cause.z.unwrap(), 6.1, 0.1);
    assert_close("z of the next", result.stragglers[7].z.unwrap(), 1.0, 0.1);
    assert_eq!(cause.evidence_range.as_deref(), Some("injected_delay"));
    // The other ranks do not have this range, so it stands out by far more than the whole stretch.
    assert_eq!(cause.stands_on.as_deref(), Some("range"));
    assert!(cause.evidence_z > cause.z && cause.evidence_persistence == Some(1.0), "{cause:?}");
    assert_close("range", ms(cause.evidence_excess_ns.unwrap()), 61.0, 1.5);
    assert_eq!(cause.reason.as_deref(), Some("host"), "no operator runs while it sleeps");
    assert_no_cause(&without(5, &ranks));
    // Windows of three or more steps still have rank 5 as the cause.
    for steps in [3..6, 4..7, 5..8, 6..9, 3..7, 5..9] {
        only_cause(&only_steps(steps, &ranks), 5);
    }
    assert_eq!(verdicts(&only_steps(3..5, &ranks))[5], "undecided");
}

/// Rank 2 sleeps 35 ms. The trace contains Python functions.
#[test]
fn gloo4_rank_2_sleeps() {
    let traces = folder("gloo4_slow2_stack");
    let ranks = kineto::load(&traces);
    let result = analyze(&ranks);
    let cause = only_cause(&result, 2);
    assert_close("own excess", ms(cause.own_excess_ns), 29.4, 0.1);
    assert_close("z", cause.z.unwrap(), 18.2, 0.1);
    // The Python frame `<built-in function sleep>` fills the user's range.
    assert_eq!(cause.evidence_range.as_deref(), Some("injected_delay"));
    assert!(cause.evidence.as_deref().unwrap().contains("filled by `<built-in function sleep>`"), "{cause:?}");
    assert_close("range", ms(cause.evidence_excess_ns.unwrap()), 35.0, 1.0);
    assert_no_cause(&without(2, &ranks));
    for steps in [3..6, 6..9, 4..8] {
        only_cause(&only_steps(steps, &ranks), 2);
    }
}

/// With one step, no rank can be called a cause.
#[test]
#[ignore = "reads real traces"]
fn dlrm8_with_one_step_has_no_cause() {
    let traces = folder("dlrm8");
    let ranks = kineto::load(&traces);
    let result = analyze(&ranks);
    assert_no_cause(&result);
}

/// Ranks whose recordings begin and end at different collectives are compared at the collectives that all of them
/// recorded.
#[test]
fn windows_cut_at_different_places_change_nothing() {
    let traces = folder("gloo8_slow5");
    let mut ranks = kineto::load(&traces);
    // Rank 1 lacks the first collective, rank 3 the last two.
    retain(&mut ranks[1], |i, _| i > 0);
    let n = ranks[3].outline.collectives.len();
    retain(&mut ranks[3], |i, _| i < n - 2);
    let result = analyze(&ranks);
    only_cause(&result, 5);
    assert!(!result.omissions.is_empty());
}
