//! Real traces whose culprit is known.

use super::build::verdicts;
use super::kineto;
use crate::model::{Instance, RankData};
use crate::straggler::{RankPart, StragglerRow, Stragglers, Thresholds, map_rank, reduce};

fn analyze(ranks: &[RankData], instances: &[Instance]) -> Stragglers {
    let thresholds = Thresholds::default();
    let parts: Vec<RankPart> = ranks.iter().map(|r| map_rank(r, &thresholds)).collect();
    reduce(&parts, instances, &|_, _, t_ns| t_ns, &thresholds)
}

/// The same job as if `rank` had not been there.
fn without(rank: i32, ranks: &[RankData], instances: &[Instance]) -> Stragglers {
    let ranks: Vec<RankData> = ranks.iter().filter(|r| r.info.rank != rank).cloned().collect();
    let mut instances = instances.to_vec();
    for instance in &mut instances {
        instance.members.retain(|m| m.rank != rank);
    }
    analyze(&ranks, &instances)
}

/// The same job with only some of its steps recorded.
fn only_steps(steps: std::ops::Range<i32>, ranks: &[RankData], instances: &[Instance]) -> Stragglers {
    let mut ranks = ranks.to_vec();
    for rank in &mut ranks {
        rank.steps.retain(|s| steps.contains(&s.step));
    }
    let instances: Vec<Instance> =
        instances.iter().filter(|i| i.step.is_some_and(|s| steps.contains(&s))).cloned().collect();
    analyze(&ranks, &instances)
}

fn assert_close(what: &str, value: f64, expected: f64, tolerance: f64) {
    assert!((value - expected).abs() <= tolerance, "{what}: {value}, expected {expected} ± {tolerance}");
}

fn only_cause(result: &Stragglers, rank: i32) -> &StragglerRow {
    print_rows(result);
    let causes: Vec<i32> = result.stragglers.iter().filter(|r| &*r.verdict == "cause").map(|r| r.rank).collect();
    assert_eq!(causes, [rank]);
    assert_exact(result);
    result.stragglers.iter().find(|r| r.rank == rank).unwrap()
}

/// Charges sum to waits.
fn assert_exact(result: &Stragglers) {
    assert_eq!(result.charged_ns.iter().sum::<i64>() + result.before_recording_ns, result.waited_ns);
}

fn nobody_is_blamed(result: &Stragglers) {
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
fn torchrec_rank_2_is_held_up_by_its_host() {
    let Some(folder) = kineto::folder("torchrec4_long_a2a") else { return };
    let (ranks, instances) = kineto::load(&folder);
    let result = analyze(&ranks, &instances);
    let cause = only_cause(&result, 2);
    // 1008.4 ms less what the others compute while they wait.
    assert_close("own excess", ms(cause.own_excess_ns), 1004.2, 0.5);
    assert_eq!(cause.persistence, Some(1.0));
    assert_eq!(cause.evidence_range.as_deref(), Some("# running sparse arch"));
    // The range goes on for some ms after it has launched its collective; those are not in an own stretch.
    assert_close("range", ms(cause.evidence_excess_ns.unwrap()), 1005.0, 5.0);
    assert_eq!(cause.reason.as_deref(), Some("host"));
    assert_eq!(cause.own_excess_low_ns, None, "three steps give no 95 % interval");
    for other in result.stragglers.iter().filter(|r| r.rank != 2) {
        assert_eq!(&*other.verdict, "victim");
        assert!(ms(other.own_excess_ns).abs() < 0.002 * 1004.2, "{other:?}");
    }
    nobody_is_blamed(&without(2, &ranks, &instances));
    let two_steps = only_steps(4..6, &ranks, &instances);
    assert_eq!(verdicts(&two_steps)[2], "undecided");
}

/// Rank 5 sleeps 60 ms before forward in every step; eight ranks share two cores, so others profit from its sleep.
#[test]
fn gloo8_rank_5_sleeps() {
    let Some(folder) = kineto::folder("gloo8_slow5") else { return };
    let (ranks, instances) = kineto::load(&folder);
    let result = analyze(&ranks, &instances);
    let cause = only_cause(&result, 5);
    assert_close("own excess", ms(cause.own_excess_ns), 43.8, 0.1);
    assert_close("z", cause.z.unwrap(), 6.1, 0.1);
    assert_close("z of the next", result.stragglers[7].z.unwrap(), 1.0, 0.1);
    assert_eq!(cause.evidence_range.as_deref(), Some("injected_delay"));
    // Other ranks have no such range at all: it stands out by far more than the whole stretch.
    assert_eq!(cause.stands_on.as_deref(), Some("range"));
    assert!(cause.evidence_z > cause.z && cause.evidence_persistence == Some(1.0), "{cause:?}");
    assert_close("range", ms(cause.evidence_excess_ns.unwrap()), 61.0, 1.5);
    assert_eq!(cause.reason.as_deref(), Some("compute"));
    nobody_is_blamed(&without(5, &ranks, &instances));
    // Windows of three steps and more still show it.
    for steps in [3..6, 4..7, 5..8, 6..9, 3..7, 5..9] {
        only_cause(&only_steps(steps, &ranks, &instances), 5);
    }
    assert_eq!(verdicts(&only_steps(3..5, &ranks, &instances))[5], "undecided");
}

/// Rank 2 sleeps 35 ms; this trace holds Python functions.
#[test]
fn gloo4_rank_2_sleeps() {
    let Some(folder) = kineto::folder("gloo4_slow2_stack") else { return };
    let (ranks, instances) = kineto::load(&folder);
    let result = analyze(&ranks, &instances);
    let cause = only_cause(&result, 2);
    assert_close("own excess", ms(cause.own_excess_ns), 29.2, 0.1);
    assert_close("z", cause.z.unwrap(), 22.0, 0.1);
    assert_close("range", ms(cause.evidence_excess_ns.unwrap()), 35.0, 1.0);
    nobody_is_blamed(&without(2, &ranks, &instances));
    for steps in [3..6, 6..9, 4..8] {
        only_cause(&only_steps(steps, &ranks, &instances), 2);
    }
}

/// One step says nothing about the next.
#[test]
fn dlrm8_has_one_step() {
    let Some(folder) = kineto::folder("dlrm8") else { return };
    let (ranks, instances) = kineto::load(&folder);
    let result = analyze(&ranks, &instances);
    nobody_is_blamed(&result);
    assert!(verdicts(&result).contains(&"undecided"));
}

/// Ranks whose recordings begin and end at different collectives are compared in what all of them hold.
#[test]
fn windows_cut_at_different_places_change_nothing() {
    let Some(folder) = kineto::folder("gloo8_slow5") else { return };
    let (ranks, mut instances) = kineto::load(&folder);
    // Rank 1 lacks the first collective, rank 3 the last two.
    let n = instances.len();
    instances[0].members.retain(|m| m.rank != 1);
    instances[n - 1].members.retain(|m| m.rank != 3);
    instances[n - 2].members.retain(|m| m.rank != 3);
    let result = analyze(&ranks, &instances);
    only_cause(&result, 5);
    assert!(!result.omissions.is_empty());
}
