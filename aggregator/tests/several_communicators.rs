//! Traces of jobs with several communicators, whose culprit is known: pipelines, tensor parallelism and FSDP of torch on gloo, each
//! rank with a dump of the Flight Recorder.

#![expect(clippy::unwrap_used, reason = "tests may, and their helpers too")]

use std::path::Path;

use aggregator::ingest::kineto::KinetoSource;
use aggregator::ingest::source::Source;
use aggregator::model::analysis::VerdictKind;
use aggregator::{Analysis, Options, analyze};
use fixtures::data::folder_of_several_communicators;

fn analyzed(folder: &Path) -> Analysis {
    let source = KinetoSource::open(&[folder.to_path_buf()]).unwrap();
    analyze(&source, &Options::default(), &|_, _| ()).unwrap()
}

/// Every collective has all its ranks, and no clock is accused. The ranks ran on one host, so that a wrong match would contradict
/// their clocks.
#[track_caller]
fn all_is_matched(analysis: &Analysis) {
    let incomplete = analysis.tables.collective_instances.iter().filter(|row| !row.complete).count();
    let said: Vec<&str> = analysis.tables.omissions.iter().map(|row| &*row.what).collect();
    assert_eq!((incomplete, said), (0, vec!["files without traces"]));
    assert_eq!(analysis.tables.clock_fit.iter().map(|row| row.violations).sum::<i64>(), 0);
}

/// The only cause, its own excess and its delay, each in ms: as planted, and as two runs with and without the fault show.
#[track_caller]
fn only_cause(name: &str, rank: i32, excess_ms: f64, delay_ms: f64) {
    let Some(folder) = folder_of_several_communicators(name) else { return };
    let analysis = analyzed(&folder);
    all_is_matched(&analysis);
    assert_eq!((analysis.verdict.kind, &analysis.verdict.causes[..]), (VerdictKind::Cause, &[rank][..]), "{name}");
    let row = analysis.tables.stragglers.iter().find(|row| row.rank == rank).unwrap();
    let off = |ns: i64, ms: f64| (ns as f64 / 1e6 / ms - 1.0).abs();
    assert!(off(row.own_excess_ns, excess_ms) <= 0.05, "{name}: {} ns", row.own_excess_ns);
    assert!(off(row.step_delay_ns, delay_ms) <= 0.15, "{name}: {} ns", row.step_delay_ns);
}

#[test]
fn a_rank_of_a_pipeline_with_replicas_and_tensor_peers_is_the_only_cause() {
    // Four forwards of 60 ms. The run without the fault has steps of 506 ms, this one of 643 ms.
    only_cause("d3_slow5_fwd", 5, 240.0, 137.0);
}

#[test]
fn a_rank_of_sharded_data_parallelism_is_the_only_cause() {
    only_cause("fsdp4_slow1", 1, 240.0, 227.0);
}

#[test]
fn a_rank_that_is_slow_in_the_optimizer_is_the_only_cause() {
    let Some(folder) = folder_of_several_communicators("pp2dp4_slow3_opt") else { return };
    let analysis = analyzed(&folder);
    all_is_matched(&analysis);
    assert_eq!((analysis.verdict.kind, &analysis.verdict.causes[..]), (VerdictKind::Cause, &[3][..]));
    // 60 ms are planted.
    let range_ms = analysis.verdict.evidence_excess_ns.unwrap() as f64 / 1e6;
    assert!((range_ms - 60.0).abs() <= 1.0, "{range_ms}");
}

#[test]
fn nobody_is_the_cause_of_a_pipeline_without_a_fault() {
    let Some(folder) = folder_of_several_communicators("d3_clean") else { return };
    let analysis = analyzed(&folder);
    all_is_matched(&analysis);
    assert_eq!((analysis.verdict.kind, analysis.verdict.causes.len()), (VerdictKind::Balanced, 0));
}

/// Without the dumps the trace names no group of a collective.
#[test]
fn the_groups_come_from_the_dumps() {
    let Some(folder) = folder_of_several_communicators("d3_clean") else { return };
    let source = KinetoSource::open(&[folder]).unwrap();
    let rank = source.load(5).unwrap();
    let mut names: Vec<&str> = rank.outline.comms.iter().filter_map(|comm| comm.name.as_deref()).collect();
    names.sort_unstable();
    assert_eq!(names, ["11", "2", "8"], "tensor parallelism, pipeline, data parallelism");
    assert!(rank.outline.collectives.iter().all(|row| row.seq.is_some() != row.peer.is_some()));
}
