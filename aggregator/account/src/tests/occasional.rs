//! Drawn timelines of ranks that are late in some of the steps.

use trace::LostPart;

use crate::tests::build::{Job, verdicts};
use crate::tests::drawn::{exact, work};

/// Rank 1 evaluates in every third step.
///
/// ```text
///   step             0       1       2       3       4       5
///   rank 0, 2, 3   ###     ###     ###~~~  ###     ###     ###~~~
///   rank 1         ###     ###     ######  ###     ###     ######
/// ```
#[test]
fn a_rank_that_is_late_in_some_steps_is_a_cause_in_these() {
    let rank = |ns| vec![vec![("forward", 1000), ("evaluate", ns)], work("optimizer", 100)];
    let step = |s: usize| (0..4).map(|r| rank(if r == 1 && s % 3 == 2 { 901 } else { 1 })).collect();
    let result = Job { steps: (0..24).map(step).collect(), ..Job::default() }.analyze(&exact());
    assert_eq!(verdicts(&result), ["victim", "cause", "victim", "victim"]);
    let row = &result.stragglers[1];
    assert_eq!((row.stands_on.as_deref(), row.reason.as_deref()), (Some("steps"), None));
    assert_eq!((row.delayed_steps, row.period_steps, row.period_first_step), (Some(8), Some(3), Some(2)));
    assert_eq!((row.steps, row.persistence), (24, Some(8.0 / 24.0)));
    assert_eq!((row.own_excess_ns, row.step_delay_ns), (900, 300));
    assert_eq!((row.evidence_range.as_deref(), row.evidence_excess_ns), (Some("evaluate"), Some(900)));
    assert!(row.evidence.as_deref().unwrap().contains("longer in 8 of 24 steps"), "{row:?}");
}

/// Four late steps of one of four ranks may be chance by their number, but not by what they cost.
///
/// ```text
///   step             0       1       2       3       4       5
///   rank 0, 2, 3   ###     ###     ###~~~  ###     ###     ###
///   rank 1         ###     ###     ######  ###     ###     ###
/// ```
#[test]
fn a_rank_that_costs_much_in_few_steps_is_not_called_even() {
    let rank = |ns| vec![work("forward", 1000 + ns), work("optimizer", 100)];
    let late = [2, 7, 11, 18];
    let of_step = |least: i64| {
        move |s: usize| (0..4).map(|r| rank(if r == 1 && late.contains(&s) { least } else { 0 })).collect()
    };
    let job = |ns| Job { steps: (0..20).map(of_step(ns)).collect(), ..Job::default() }.analyze(&exact());
    let result = job(900);
    assert_eq!(verdicts(&result), ["ok", "undecided", "ok", "ok"]);
    assert_eq!(result.stragglers[1].step_delay_ns, 180);
    assert_eq!(verdicts(&job(40)), ["ok"; 4], "0.7 % of a step");
}

/// Another rank is late in each step.
#[test]
fn a_delay_that_moves_is_no_ranks() {
    let rank = |ns| vec![work("forward", ns), work("optimizer", 100)];
    let step = |s: usize| (0..4).map(|r| rank(if r == s % 4 { 1800 } else { 1000 })).collect();
    let result = Job { steps: (0..12).map(step).collect(), ..Job::default() }.analyze(&exact());
    assert_eq!(verdicts(&result), ["ok"; 4]);
    let variation_ns: i64 =
        result.lost_time.iter().filter(|row| row.part == LostPart::Variation).map(|row| row.ns).sum();
    assert_eq!(variation_ns, 12 * 800);
}
