//! Traces whose culprit is known, as a user analyses them: files in, table out; then the same with parts missing.

#![expect(clippy::unwrap_used, reason = "tests may, and their helpers too")]

mod common;

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use fixtures::data::folder;
use formats::kineto::KinetoSource;
use model::analysis::Analysis;
use model::analysis::VerdictKind;
use model::options::Options;
use model::options::{TimeBound, parse_steps};
use model::source::Source;
use pipeline::analyze;
use trace::{StragglerRow, Tables};

/// The files of a folder by rank: all of these name it in `distributedInfo`.
fn files(folder: &Path) -> Vec<PathBuf> {
    let all = std::fs::read_dir(folder).unwrap().map(|e| e.unwrap().path());
    let mut all: Vec<(i32, PathBuf)> = all
        .filter(|path| path.extension().is_some_and(|e| e == "gz"))
        .map(|path| (KinetoSource::open(std::slice::from_ref(&path)).unwrap().ranks()[0], path))
        .collect();
    all.sort();
    all.into_iter().map(|(_, path)| path).collect()
}

fn analyzed(paths: &[PathBuf], options: &Options) -> Analysis {
    analyze(&KinetoSource::open(paths).unwrap(), options, &|_, _| ()).unwrap()
}

fn whole(folder: &Path) -> Analysis {
    analyzed(&[folder.to_path_buf()], &Options::default())
}

fn by_verdict(analysis: &Analysis, verdict: &str) -> Vec<i32> {
    analysis.tables.stragglers.iter().filter(|s| &*s.verdict == verdict).map(|s| s.rank).collect()
}

#[track_caller]
fn only_cause(analysis: &Analysis, rank: i32) -> StragglerRow {
    let rows = &analysis.tables.stragglers;
    assert_eq!(by_verdict(analysis, "cause"), [rank], "{rows:#?}");
    assert_eq!((analysis.verdict.kind, analysis.verdict.rank), (VerdictKind::Cause, Some(rank)));
    rows.iter().find(|s| s.rank == rank).unwrap().clone()
}

/// The quantity that the verdict stands on is largest for the cause, in total and in most steps.
#[track_caller]
fn the_tables_show_the_cause(analysis: &Analysis, rank: i32) {
    let Tables { stragglers, straggler_steps, .. } = &analysis.tables;
    let largest = stragglers.iter().max_by(|a, b| a.evidence_z.unwrap().total_cmp(&b.evidence_z.unwrap())).unwrap();
    assert_eq!(largest.rank, rank);
    assert_eq!(stragglers.iter().max_by_key(|s| s.evidence_excess_ns).unwrap().rank, rank);
    let numbers: BTreeSet<i32> = straggler_steps.iter().map(|s| s.step).collect();
    for number in &numbers {
        let in_step = straggler_steps.iter().filter(|s| s.step == *number);
        assert_eq!(in_step.max_by_key(|s| s.evidence_excess_ns).unwrap().rank, rank, "step {number}");
    }
    common::the_critical_path_leads_into(analysis, rank);
}

#[track_caller]
fn near(what: &str, ns: i64, ms: f64, tolerance_ms: f64) {
    assert!((ns as f64 / 1e6 - ms).abs() <= tolerance_ms, "{what}: {ns} ns, expected {ms} ± {tolerance_ms} ms");
}

/// Without the culprit's file nobody is blamed; without any other the culprit is.
fn one_by_one(folder: &Path, culprit: i32) {
    let files = files(folder);
    for left_out in 0..files.len() {
        let rest: Vec<PathBuf> =
            files.iter().enumerate().filter(|(i, _)| *i != left_out).map(|(_, path)| path.clone()).collect();
        let analysis = analyzed(&rest, &Options::default());
        assert_eq!(analysis.facts.missing_ranks, [left_out as i32]);
        if left_out as i32 == culprit {
            assert_eq!(by_verdict(&analysis, "cause"), [] as [i32; 0], "{:#?}", analysis.tables.stragglers);
        } else {
            only_cause(&analysis, culprit);
        }
    }
}

fn steps(text: &str) -> Options {
    Options { steps: Some(parse_steps(text).unwrap()), ..Options::default() }
}

fn window(from_ms: i64, to_ms: i64) -> Options {
    let since_start = |ms| Some(TimeBound::SinceStartNs(ms * 1_000_000));
    Options { from: since_start(from_ms), to: since_start(to_ms), ..Options::default() }
}

#[test]
#[ignore = "reads real traces"]
fn torchrec_rank_2_is_held_up_by_its_host() {
    let folder = folder("torchrec4_long_a2a");
    let analysis = whole(&folder);
    let cause = only_cause(&analysis, 2);
    the_tables_show_the_cause(&analysis, 2);
    assert_eq!(by_verdict(&analysis, "victim"), [0, 1, 3]);
    assert_eq!(
        (cause.reason.as_deref(), cause.evidence_range.as_deref()),
        (Some("host"), Some("# running sparse arch"))
    );
    near("delay", cause.step_delay_ns, 980.0, 30.0);
    near("range", cause.evidence_excess_ns.unwrap(), 1_010.0, 10.0);
    one_by_one(&folder, 2);
    // Two steps are too few, and say so.
    let two = analyzed(&[folder], &steps("4..6"));
    assert_eq!((two.verdict.kind, two.verdict.rank), (VerdictKind::Undecided, Some(2)), "{:?}", two.verdict);
}

#[test]
fn gloo8_rank_5_sleeps() {
    let folder = folder("gloo8_slow5");
    let analysis = whole(&folder);
    let cause = only_cause(&analysis, 5);
    let why = (cause.reason.as_deref(), cause.evidence_range.as_deref());
    assert_eq!(why, (Some("host"), Some("injected_delay")), "no operator runs while it sleeps");
    the_tables_show_the_cause(&analysis, 5);
    // Its own work exceeds that of the others by 45 ms, but other ranks are late too.
    near("delay", cause.step_delay_ns, 24.6, 1.0);
    near("range", cause.evidence_excess_ns.unwrap(), 61.0, 0.05 * 61.0);
    one_by_one(&folder, 5);
    for cut in ["3..6", "4..7", "5..8", "6..9", "3..7", "5..9"] {
        only_cause(&analyzed(std::slice::from_ref(&folder), &steps(cut)), 5);
    }
    // Two steps vary too much to name it, and name no other rank.
    let two = analyzed(std::slice::from_ref(&folder), &steps("3..5"));
    assert!(two.verdict.causes.is_empty() && two.verdict.suspects.iter().all(|rank| *rank == 5), "{:?}", two.verdict);
    // Windows that cut steps at either end; with less than three whole steps nobody is sure.
    for (from_ms, to_ms, sure) in [(0, 700, true), (200, 900, true), (100, 800, true), (0, 250, false)] {
        let analysis = analyzed(std::slice::from_ref(&folder), &window(from_ms, to_ms));
        let expected: &[i32] = if sure { &[5] } else { &[] };
        assert_eq!(by_verdict(&analysis, "cause"), expected, "{from_ms}..{to_ms}: {:#?}", analysis.tables.stragglers);
    }
}

#[test]
fn gloo4_rank_2_sleeps_in_a_range_that_its_stack_fills() {
    let folder = folder("gloo4_slow2_stack");
    let analysis = whole(&folder);
    let cause = only_cause(&analysis, 2);
    let why = (cause.reason.as_deref(), cause.evidence_range.as_deref());
    assert_eq!(why, (Some("host"), Some("injected_delay")), "no operator runs while it sleeps");
    the_tables_show_the_cause(&analysis, 2);
    assert!(cause.evidence.as_deref().unwrap().contains("filled by `<built-in function sleep>`"), "{cause:?}");
    near("delay", cause.step_delay_ns, 28.0, 1.0);
    near("range", cause.evidence_excess_ns.unwrap(), 35.0, 1.0);
    one_by_one(&folder, 2);
    for cut in ["3..6", "6..9", "4..8"] {
        only_cause(&analyzed(std::slice::from_ref(&folder), &steps(cut)), 2);
    }
}

#[test]
#[ignore = "reads real traces"]
fn dlrm8_has_one_step_and_candidates() {
    let folder = folder("dlrm8");
    let analysis = whole(&folder);
    // Those may cost 12 µs of a step of 11.8 ms, 10 of which are launches and bubbles.
    assert_eq!(analysis.verdict.kind, VerdictKind::Lost, "{:?}", analysis.verdict);
    assert_eq!(analysis.verdict.suspects, [] as [i32; 0]);
    let candidates: BTreeSet<i32> = by_verdict(&analysis, "undecided").into_iter().collect();
    assert!(!candidates.is_empty() && candidates.len() < 8, "{candidates:?}");
    for row in analysis.tables.stragglers.iter().filter(|s| candidates.contains(&s.rank)) {
        assert!(row.own_excess_ns > 0 && row.doubt.as_deref().unwrap().contains("a cause needs 3"), "{row:?}");
    }
    assert_eq!(by_verdict(&analysis, "cause"), [] as [i32; 0]);
}

/// One step of two ranks: as long as the step is on both, its own range is no evidence.
#[test]
#[ignore = "reads real traces"]
fn megatrons_step_is_no_evidence() {
    let folder = folder("megatron_tp2");
    let analysis = whole(&folder);
    assert_eq!((analysis.verdict.kind, analysis.verdict.rank), (VerdictKind::Undecided, Some(0)));
    let row = &analysis.tables.stragglers[0];
    assert!(row.evidence_range.as_deref().is_none_or(|range| !range.starts_with("ProfilerStep")), "{row:?}");
    assert!(!analysis.verdict.sentence.contains("ProfilerStep"), "{}", analysis.verdict.sentence);
    let delay = model::units::ns(row.step_delay_ns);
    assert!(analysis.verdict.sentence.contains(&delay), "{delay}: {}", analysis.verdict.sentence);
    assert!(row.evidence.as_deref().unwrap().contains(&delay), "{delay}: {row:?}");
}

/// A trace of one rank has no verdict, but the analysis has findings: the first one is the headline. What the recording is like is none.
#[test]
#[ignore = "reads real traces"]
fn the_headline_of_one_rank_is_its_first_finding() {
    let analysis = whole(&folder("resnet50_2021"));
    assert_eq!(&*analysis.tables.findings[0].id, "slow-first-steps");
    let sentence = &analysis.verdict.sentence;
    assert!(sentence.starts_with("device 0 of rank 0 is busy for 73 % of a 141 ms step"), "{sentence}");
    for (name, id) in [
        ("neg_queue_r0of16", "exposed-communication"),
        ("b200_r0of8", "launch-bound"),
        ("alexnet_cp", "first-calls"),
        ("event_sync", "first-calls"),
    ] {
        let folder = folder(name);
        let analysis = whole(&folder);
        assert_eq!(analysis.verdict.kind, VerdictKind::Nothing);
        let first = &analysis.tables.findings[0];
        assert_eq!((analysis.verdict.finding.as_ref(), &*first.id), (Some(&first.id), id), "{name}");
        assert!(
            analysis.headlines_finding() && analysis.verdict.sentence.starts_with(&*first.title),
            "{name}: {first:?}"
        );
    }
}

/// Half of the steps, replayed with the lengths of the steps after them, take as long as recorded, or the page says "cannot replay".
#[test]
#[ignore = "reads real traces"]
fn half_of_the_steps_foresee_the_others() {
    let gloo = ["gloo8_slow5", "gloo4_slow2_stack"].map(folder);
    let nd = ["d3_clean", "d3_slow5_fwd", "fsdp4_slow1", "pp2dp4_slow3_opt"];
    let nd = nd.map(fixtures::data::folder_of_several_communicators);
    let mut known = 0;
    for folder in gloo.into_iter().chain(nd) {
        let source = KinetoSource::open(std::slice::from_ref(&folder)).unwrap();
        let replay = pipeline::analyze::analyze_replayed(&source, &Options::default(), &|_, _| ()).unwrap();
        let Some(foreseen) = replay.replayed.foreseen() else { continue };
        known += 1;
        println!("{}: {foreseen:?}, right: {}", folder.display(), foreseen.is_right());
        let is_said = replay.analysis.tables.omissions.iter().any(|row| row.why.contains("cannot replay"));
        assert_eq!(foreseen.is_right(), !is_said, "{}", folder.display());
    }
    // The others have fewer than four inner steps.
    assert_eq!(known, 2);
}
