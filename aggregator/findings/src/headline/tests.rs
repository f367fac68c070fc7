//! The headline for small tables of stragglers and waits.

use trace::{FindingRow, InstanceRow, LostPart, LostTimeRow, StepBreakdownRow};

use super::*;

const MS: i64 = 1_000_000;

fn step() -> StepBreakdownRow {
    StepBreakdownRow { step: Some(3), wall_ns: 200 * MS, ..Default::default() }
}

/// An account in which all is work.
fn work() -> LostTimeRow {
    LostTimeRow { step: 3, part: LostPart::Work.into(), ns: 200 * MS, ..LostTimeRow::default() }
}

/// A rank that takes 30 ms longer in `forward` and lengthens the steps by `step_delay_ns`.
fn slow(rank: i32, verdict: &str, step_delay_ns: i64) -> StragglerRow {
    StragglerRow {
        rank,
        steps: 5,
        verdict: verdict.into(),
        reason: Some("compute".into()),
        evidence_range: Some("forward".into()),
        evidence_excess_ns: Some(30 * MS),
        stands_on: Some("range".into()),
        step_delay_ns,
        ..StragglerRow::default()
    }
}

fn judge(stragglers: Vec<StragglerRow>, facts: Facts) -> Verdict {
    let ranks = stragglers.iter().map(|r| r.rank).collect();
    let instances = vec![InstanceRow { step: Some(3), error_ns: Some(0), ..Default::default() }];
    let (step_breakdown, lost_time) = (vec![step()], vec![work()]);
    let tables = Tables { stragglers, step_breakdown, lost_time, collective_instances: instances, ..Tables::default() };
    verdict(&tables, &Found::default(), &Facts { ranks, ..facts }, &Thresholds::default())
}

#[test]
fn the_sentence_of_an_empty_run_has_the_reason() {
    let facts = Facts { ranks: vec![0], nothing_because: vec!["no CUDA".into()], ..Facts::default() };
    let verdict = verdict(&Tables::default(), &Found::default(), &facts, &Thresholds::default());
    assert_eq!(verdict.sentence, "nothing was recorded: no CUDA.");
}

/// Rank 0 waits for a rank that changes from step to step, so medians over steps show no slow rank.
///
/// ```text
/// rank 0   [work]~~~~~~    [work    ]
/// rank 1   [work    ]      [work]~~~~~~
/// ```
#[test]
fn a_cause_in_some_steps_names_them() {
    let late = StragglerRow {
        steps: 40,
        delayed_steps: Some(8),
        period_steps: Some(5),
        period_first_step: Some(5),
        persistence: Some(0.2),
        stands_on: Some("steps".into()),
        own_excess_ns: 31 * MS,
        ..slow(3, "cause", 4 * MS)
    };
    let verdict = judge(vec![late], Facts::default());
    let text = "rank 3 slows 8 of 40 steps (every 5th from step 5), by 4.00 ms (2 % of a step) on average over all steps: it computes \
                31.0 ms longer between collectives than the other ranks do, 30.0 ms of it in `forward`. Its own work takes longer in 8 of 40 steps.";
    assert_eq!(verdict.sentence, text);
    assert_eq!((verdict.delayed_steps, verdict.period_steps), (Some(8), Some(5)));
}

#[test]
fn a_missing_rank_forbids_balanced() {
    let ok = |rank| StragglerRow { rank, steps: 5, verdict: "ok".into(), ..StragglerRow::default() };
    assert_eq!(judge(vec![ok(0), ok(1)], Facts::default()).kind, VerdictKind::Balanced);
    let facts = Facts { missing_ranks: vec![2], world_size: Some(3), ..Facts::default() };
    let verdict = judge(vec![ok(0), ok(1)], facts);
    assert_eq!((verdict.kind, verdict.rank), (VerdictKind::Undecided, None));
    assert!(verdict.sentence.contains("only 2 of 3 ranks were analyzed"), "{}", verdict.sentence);
}

/// Invariant (verdicts): A rank whose recorded rows are lost is no cause, and no job with such a rank is balanced.
#[test]
fn a_loss_forbids_a_cause_and_balanced() {
    let ok = |rank| StragglerRow { rank, steps: 5, verdict: "ok".into(), ..StragglerRow::default() };
    let instances = vec![InstanceRow { step: Some(3), error_ns: Some(0), ..Default::default() }];
    let (step_breakdown, lost_time) = (vec![step()], vec![work()]);
    let facts = Facts { ranks: vec![0, 1, 2], events: 3_000, collectives: 30, ..Facts::default() };
    let judge = |slow_rank: Option<i32>, omission: &OmissionRow| {
        let rank = |at| if slow_rank == Some(at) { slow(at, "cause", 20 * MS) } else { ok(at) };
        let mut tables = Tables {
            stragglers: (0..3).map(rank).collect(),
            step_breakdown: step_breakdown.clone(),
            lost_time: lost_time.clone(),
            collective_instances: instances.clone(),
            omissions: vec![omission.clone()],
            ..Tables::default()
        };
        take_losses(&mut tables, &facts);
        let verdict = verdict(&tables, &Found::default(), &facts, &Thresholds::default());
        (verdict.kind, verdict.doubt.unwrap_or_default())
    };
    let lost = |what: &str| OmissionRow::lost(what, "a shard is missing").rank(2);
    for omission in [lost("rows of events").amount(104), lost("rows of steps"), lost("rows").rank(None)] {
        for slow_rank in [None, Some(0), Some(2)] {
            let (kind, doubt) = judge(slow_rank, &omission);
            if slow_rank == Some(0) && omission.rank == Some(2) {
                assert_eq!(kind, VerdictKind::Cause, "nothing of rank 0 is lost");
                continue;
            }
            assert_eq!(kind, VerdictKind::Undecided, "{slow_rank:?} {omission:?}");
            assert!(doubt.contains("lost") && doubt.ends_with("what happened there is unknown"), "{doubt}");
        }
    }
    let doubt = judge(None, &lost("rows of events").amount(1_104)).1;
    assert_eq!(doubt, "rank 2 lost 1 104 rows of events, so what happened there is unknown");
    let few = lost("rows of events").amount(9);
    for other in [
        few,
        lost("rows of memory"),
        lost("text after the document"),
        OmissionRow::left_out("rows of events", "why"),
        OmissionRow::note("clocks", "why"),
    ] {
        assert_eq!(judge(None, &other).0, VerdictKind::Balanced, "{other:?}");
        assert_eq!(judge(Some(0), &other).0, VerdictKind::Cause, "{other:?}");
    }
}

#[test]
fn an_empty_selection_is_named_as_the_reason() {
    let sentence = |selection: Option<&str>| {
        let facts = Facts { ranks: vec![0, 1], selection: selection.map(String::from), ..Facts::default() };
        verdict(&Tables::default(), &Found::default(), &facts, &Thresholds::default()).sentence
    };
    let unknown = "waits between ranks are unknown.";
    assert_eq!(sentence(None), format!("no collective was recorded: {unknown}"));
    assert_eq!(sentence(Some("--from +9s")), format!("no collective lies in --from +9s: {unknown}"));
}

#[test]
fn the_sentence_of_a_cause_has_its_cost_and_names_the_other_causes() {
    let why = "it computes 30.0 ms longer in `forward` than the other ranks do. Measured over 5 steps.";
    let one = judge(vec![slow(5, "cause", 20 * MS)], Facts::default());
    assert_eq!(one.sentence, format!("rank 5 slows every step by 20.0 ms (10 % of a step): {why}"));
    let two = judge(vec![slow(3, "cause", 4 * MS), slow(5, "cause", 20 * MS)], Facts::default());
    assert_eq!((two.rank, two.causes), (Some(5), vec![5, 3]));
    assert!(two.sentence.ends_with("Also slow: rank 3 (4.00 ms)."), "{}", two.sentence);
    let accumulated = judge(vec![slow(5, "cause", 20 * MS)], Facts { steps: (0..20).collect(), ..Facts::default() });
    assert!(accumulated.sentence.contains("(10 % of a step) on average:"), "{}", accumulated.sentence);
}

/// The headline has the number by which suspects are ordered, and says what a cause needs.
#[test]
fn an_undecided_headline_says_why_and_names_all_suspects() {
    let suspect = |rank, delay_ms: i64, z| StragglerRow {
        steps: 1,
        stands_on: Some("stretch".into()),
        own_excess_ns: 40 * MS,
        z,
        doubt: Some("only 1 step was compared, and a cause needs 3 steps".into()),
        ..slow(rank, "undecided", delay_ms * MS)
    };
    let noise = judge(vec![suspect(0, 22, Some(0.8)), suspect(6, 23, Some(0.7))], Facts::default());
    assert_eq!((noise.kind, noise.rank, &noise.suspects[..]), (VerdictKind::Undecided, Some(6), &[6, 0][..]));
    let starts = "rank 6 may slow every step by 23.0 ms (12 % of a step): it computes 40.0 ms longer between collectives than \
                  the other ranks do, 30.0 ms of it in `forward`.";
    assert!(noise.sentence.starts_with(starts), "{}", noise.sentence);
    assert!(noise.sentence.contains("Undecided, because only 1 step was compared"), "{}", noise.sentence);
    assert!(noise.sentence.contains("within the usual variation (z 0.7)"), "{}", noise.sentence);
    assert!(noise.sentence.ends_with("Other suspects: rank 0 (22.0 ms)."), "{}", noise.sentence);
    assert!(noise.within_variation);
    assert!(!judge(vec![suspect(6, 23, Some(14.7))], Facts::default()).within_variation);
    let by_range = StragglerRow { evidence_z: Some(38.0), ..suspect(6, 23, Some(3.9)) };
    let by_range = judge(vec![by_range], Facts::default());
    let text = "within the usual variation (z 3.9), and the named part far outside (z 38.0)";
    assert!(!by_range.within_variation && by_range.sentence.contains(text), "{}", by_range.sentence);
}

#[test]
fn without_a_verdict_the_first_finding_is_the_headline() {
    let facts = Facts { ranks: vec![0], events: 7, ..Facts::default() };
    let title = "51 % of the step is spent on input";
    let finding = FindingRow { id: "input".into(), title: title.into(), ..Default::default() };
    let headline = |facts: &Facts, findings: Vec<FindingRow>| {
        let tables = Tables { findings, ..Tables::default() };
        let verdict = verdict(&tables, &Found::default(), facts, &Thresholds::default());
        let mut analysis = Analysis { facts: facts.clone(), verdict, tables, ..Analysis::default() };
        take_top_finding(&mut analysis);
        assert_eq!(analysis.verdict.finding.is_some(), analysis.verdict.title == "TOP FINDING");
        (analysis.headlines_finding(), analysis.verdict.sentence)
    };
    let only = "only one rank was recorded, so there is no other rank to compare it with.";
    let none = format!("no value exceeds a threshold. No verdict on ranks: {only}");
    assert_eq!(headline(&facts, Vec::new()), (true, none));
    let found = format!("51 % of the step is spent on input. No verdict on ranks: {only}");
    assert_eq!(headline(&facts, vec![finding.clone()]), (true, found));
    let empty = Facts { nothing_because: vec!["no CUDA".into()], events: 0, ..facts };
    assert_eq!(headline(&empty, vec![finding]), (false, "nothing was recorded: no CUDA.".into()));
}

/// Ranks 2 and 3 share a communicator whose collectives are slow; rank 5 is slow by itself.
#[test]
fn a_slow_communicator_is_named_by_its_ranks() {
    let member = |rank| StragglerRow {
        reason: Some("network".into()),
        evidence_range: None,
        stands_on: Some("transfers".into()),
        slow_comm_id: Some(7),
        persistence: Some(1.0),
        ..slow(rank, "cause", 20 * MS)
    };
    let verdict = judge(vec![member(2), member(3), slow(5, "cause", 4 * MS)], Facts::default());
    assert_eq!(
        verdict.sentence,
        "the collectives of ranks 2–3 slow every step by 20.0 ms (10 % of a step): they take 30.0 ms longer per step than \
         those of communicators of the same size. They take longer in 5 of 5 steps. Also slow: rank 5 (4.00 ms)."
    );
    let late = StragglerRow { slow_comm_id: None, ..member(2) };
    let sentence = judge(vec![late, slow(3, "ok", 0)], Facts::default()).sentence;
    let wanted = "rank 2 slows every step by 20.0 ms (10 % of a step): its transfers take 30.0 ms longer per step than those of \
                  the other ranks. They take longer in 5 of 5 steps.";
    assert_eq!(sentence, wanted);
}

/// Of two ranks that are equally late, neither costs anything alone.
#[test]
fn causes_that_hide_each_other_cost_something_together() {
    let tables = |delay_ns: i64| Tables {
        stragglers: vec![slow(0, "ok", 0), slow(2, "cause", delay_ns), slow(5, "cause", delay_ns / 2)],
        step_breakdown: vec![step()],
        collective_instances: vec![InstanceRow { step: Some(3), error_ns: Some(0), ..Default::default() }],
        ..Tables::default()
    };
    let facts = Facts { ranks: vec![0, 2, 5], ..Facts::default() };
    let found = Found { together: Some(Together { ns: 24 * MS, interval_ns: (20 * MS, 28 * MS) }), ..Found::default() };
    let sentence = |delay_ns| verdict(&tables(delay_ns), &found, &facts, &Thresholds::default()).sentence;
    let hiding = sentence(MS);
    let wanted = "ranks 2, 5 together slow every step by 24.0 ms (12 % of a step), and hide each other. Rank 2 alone slows it \
                  by 1.00 ms (0 % of a step): ";
    assert!(hiding.starts_with(wanted), "{hiding}");
    let beside = sentence(16 * MS);
    let wanted = "Also slow: rank 5 (8.00 ms). Without all of them, a step would be 24.0 ms shorter.";
    assert!(beside.starts_with("rank 2 slows every step by 16.0 ms") && beside.ends_with(wanted), "{beside}");
}

#[test]
fn the_ranks_that_show_the_work_are_named_if_most_are_slow() {
    let tables = Tables {
        stragglers: [0, 1, 2, 3, 4].map(|rank| slow(rank, if rank < 2 { "ok" } else { "cause" }, 0)).into(),
        step_breakdown: vec![step()],
        collective_instances: vec![InstanceRow { step: Some(3), error_ns: Some(0), ..Default::default() }],
        ..Tables::default()
    };
    let facts = Facts { ranks: (0..5).collect(), ..Facts::default() };
    let found = Found { usual: vec![0, 1], ..Found::default() };
    let sentence = verdict(&tables, &found, &facts, &Thresholds::default()).sentence;
    let wanted = " Most ranks that do this work are slow: ranks 0–1 show how long it takes.";
    assert!(sentence.contains(wanted), "{sentence}");
}
