//! Traces of jobs with several communicators, whose culprit is known: pipelines, tensor parallelism and FSDP of torch on gloo, each
//! rank with a dump of the Flight Recorder.

#![expect(clippy::unwrap_used, reason = "tests may, and their helpers too")]

mod common;

use std::path::Path;

use drawn::SimulatedSource;
use fixtures::data::folder_of_several_communicators;
use formats::kineto::KinetoSource;
use model::analysis::Analysis;
use model::analysis::VerdictKind;
use model::options::Options;
use model::source::Source;
use pipeline::analyze;
use simulator::{Fault, Job, MS, Place, Shape, What, simulate};

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
    let folder = folder_of_several_communicators(name);
    let analysis = analyzed(&folder);
    all_is_matched(&analysis);
    assert_eq!((analysis.verdict.kind, &analysis.verdict.causes[..]), (VerdictKind::Cause, &[rank][..]), "{name}");
    let row = analysis.tables.stragglers.iter().find(|row| row.rank == rank).unwrap();
    let off = |ns: i64, ms: f64| (ns as f64 / 1e6 / ms - 1.0).abs();
    assert!(off(row.own_excess_ns, excess_ms) <= 0.05, "{name}: {} ns", row.own_excess_ns);
    assert!(off(row.step_delay_ns, delay_ms) <= 0.15, "{name}: {} ns", row.step_delay_ns);
    common::the_critical_path_leads_into(&analysis, rank);
}

#[test]
#[ignore = "reads real traces"]
fn a_rank_of_a_pipeline_with_replicas_and_tensor_peers_is_the_only_cause() {
    // Four forwards of 60 ms. The run without the fault has steps of 506 ms, this one of 643 ms: there all ranks compete for two cores.
    only_cause("d3_slow5_fwd", 5, 240.0, 240.0);
}

#[test]
#[ignore = "reads real traces"]
fn a_rank_of_sharded_data_parallelism_is_the_only_cause() {
    only_cause("fsdp4_slow1", 1, 240.0, 227.0);
}

#[test]
#[ignore = "reads real traces"]
fn a_rank_that_is_slow_in_the_optimizer_is_the_only_cause() {
    let folder = folder_of_several_communicators("pp2dp4_slow3_opt");
    let analysis = analyzed(&folder);
    all_is_matched(&analysis);
    assert_eq!((analysis.verdict.kind, &analysis.verdict.causes[..]), (VerdictKind::Cause, &[3][..]));
    // 60 ms are planted.
    let range_ms = analysis.verdict.evidence_excess_ns.unwrap() as f64 / 1e6;
    assert!((range_ms - 60.0).abs() <= 1.0, "{range_ms}");
}

#[test]
#[ignore = "reads real traces"]
fn nobody_is_the_cause_of_a_pipeline_without_a_fault() {
    let folder = folder_of_several_communicators("d3_clean");
    let analysis = analyzed(&folder);
    all_is_matched(&analysis);
    assert!(analysis.verdict.kind.acquits_all(), "{:?}", analysis.verdict);
}

/// Without the dumps the trace names no group of a collective.
#[test]
#[ignore = "reads real traces"]
fn the_groups_come_from_the_dumps() {
    let folder = folder_of_several_communicators("d3_clean");
    let source = KinetoSource::open(&[folder]).unwrap();
    let rank = source.load(5).unwrap();
    let mut names: Vec<&str> = rank.outline.comms.iter().filter_map(|comm| comm.name.as_deref()).collect();
    names.sort_unstable();
    assert_eq!(names, ["11", "2", "8"], "tensor parallelism, pipeline, data parallelism");
    assert!(rank.outline.collectives.iter().all(|row| row.seq().is_some() != row.peer().is_some()));
}

/// Only the traces, without the dumps: the groups are inferred from the ranks that meet.
#[test]
#[ignore = "reads real traces"]
fn without_dumps_the_verdict_is_the_same() {
    let folder = folder_of_several_communicators("d3_slow5_fwd");
    let alone = tempfile::tempdir().unwrap();
    for file in folder.read_dir().unwrap().map(|file| file.unwrap().path()) {
        if file.file_name().unwrap().to_str().unwrap().ends_with(".json.gz") {
            std::fs::copy(&file, alone.path().join(file.file_name().unwrap())).unwrap();
        }
    }
    let [with, without] = [folder.as_path(), alone.path()].map(analyzed);
    assert_eq!(without.verdict.causes, [5]);
    assert_eq!(without.verdict.step_delay_ns, with.verdict.step_delay_ns);
    assert_eq!(without.tables.collective_instances.iter().filter(|row| !row.complete).count(), 0);
    let said: Vec<(&str, i64)> = without.tables.omissions.iter().map(|row| (&*row.what, row.amount.unwrap())).collect();
    assert_eq!(said, [("collectives with an inferred communicator", 384)]);
}

/// The waits that each rank caused, per step.
fn caused_ns(job: &Job) -> Vec<i64> {
    let source = SimulatedSource::of(job, &simulate(job, 1).unwrap()).unwrap();
    let analysis = analyze(&source, &Options::default(), &|_, _| ()).unwrap();
    analysis.tables.stragglers.iter().map(|row| row.caused_wait_ns).collect()
}

/// Invariant (numbers): Waits are charged to the rank that is slow, and not to those that it delays.
///
/// In a job with several communicators, a rank that waits for the slow one in one of them comes late to the others. Delays that
/// sends pass on are not compared between replicas, so pipelines and rings are left out.
#[test]
fn waits_are_charged_to_the_slow_rank_over_communicators() {
    const SLOW: usize = 5;
    let shapes = [
        Shape::Ddp,
        Shape::Hierarchical,
        Shape::TwoCommunicators,
        Shape::Fsdp { two_streams: true },
        Shape::Hsdp,
        Shape::Tensor(2),
        Shape::Tensor(4),
        Shape::Experts,
    ];
    let mut wrong = Vec::new();
    for shape in shapes {
        let job = || Job { steps: 12, host_ranks: 8, ..Job::new(shape, 8) };
        let faults = [
            ("input", job().pause(SLOW, 3 * MS, Place::Input)),
            ("device", job().fault(Fault::of([SLOW], What::SlowDevice(300)))),
        ];
        let before_ns = caused_ns(&job());
        for (kind, job) in faults {
            let more_ns: Vec<i64> =
                caused_ns(&job).iter().zip(&before_ns).map(|(with, without)| with - without).collect();
            let others = (0..more_ns.len()).filter(|rank| *rank != SLOW);
            let most = others.max_by_key(|rank| more_ns[*rank]).unwrap();
            if 5 * more_ns[most] > more_ns[SLOW] {
                wrong.push(format!("{shape:?}, {kind}: {} of rank 5, {} of rank {most}", more_ns[SLOW], more_ns[most]));
            }
        }
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
}
