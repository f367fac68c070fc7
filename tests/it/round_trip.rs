//! A native run, exported as Kineto's JSON, ingested, and analysed again: the same analysis, but for what the format cannot say.
//!
//! What cannot be equal, and why:
//!
//! - Clocks. A trace has no pings. The native run is therefore analysed without its own, and by the same evidence as the trace: one
//!   clock where the ranks are of one host, else their collectives. With pings its times would differ by the fit's error.
//! - Ranges of steps. A trace has no other steps than these; in a run, steps begin and end a few µs outside their ranges.
//! - Ids: of the run, of communicators (a trace's are computed from name and ranks), of rows (their place in the file).
//! - When a bucket was ready. A trace knows when the operator began that handed it over, and no more; so `ready_ns` is `enqueue_ns`.
//! - Bytes, FLOPs and the names of allocations: torch.profiler writes none for operators, and neither does the export.
//! - Two operators of no length that stand for DDP's hook and `c10d`: what bucket an all-reduce is of is known by them alone.
//! - Warm-up, which is no part of a trace, but of what `data_loading` compares the whole recording's input with.

use std::collections::BTreeMap;
use std::path::Path;

use aggregator::render::chrome as export;
use fixtures::planted;
use formats::ingest::ingest;
use formats::kineto::KinetoSource;
use formats::run_source::RunSource;
use model::analysis::Analysis;
use model::analysis::Tables;
use model::clock_choice::Choice;
use model::options::Options;
use model::source::Source;
use pipeline::analyze;
use report_timeline::chrome::HOOK;
use trace::name_rules::{COLLECTIVE_CALL_PREFIX, STEP};

use crate::support::{copy_directory, have_mpirun, scratch, train};

fn analysis(source: &dyn Source, clock: Choice) -> Analysis {
    let options = Options { clock, ..Options::default() };
    analyze(source, &options, &|_, _| ()).unwrap()
}

/// The tables with what cannot be equal put out.
fn comparable(analysis: Analysis) -> Tables {
    let mut tables = analysis.tables;
    let mut comms: BTreeMap<i64, i64> = BTreeMap::new();
    for instance in &mut tables.collective_instances {
        let next = comms.len() as i64;
        instance.comm_id = *comms.entry(instance.comm_id).or_insert(next);
    }
    for row in &mut tables.exposed_communication {
        row.comm_id = row.comm_id.and_then(|id| comms.get(&id).copied());
        // Traces do not say how many hosts a communicator has.
        row.nodes = None;
    }
    for row in &mut tables.communicators {
        (row.comm_id, row.nodes) = (comms.get(&row.comm_id).copied().unwrap_or(-1), None);
        // A planted run lists no communicators; a trace always lists their ranks.
        row.ranks = None;
    }
    for row in &mut tables.job_critical_path {
        row.comm_id = row.comm_id.and_then(|id| comms.get(&id).copied());
    }
    tables.bucket_timing.iter_mut().for_each(|row| row.ready_ns = None);
    // Each source has files of its own.
    tables.stragglers.iter_mut().for_each(|row| row.file = None);
    for row in &mut tables.lost_time_lines {
        row.comm_id = row.comm_id.and_then(|id| comms.get(&id).copied());
    }
    for row in &mut tables.lost_time {
        row.comm_id = row.comm_id.and_then(|id| comms.get(&id).copied());
    }
    tables.op_stats.retain(|row| {
        &*row.name != HOOK && !row.name.starts_with(COLLECTIVE_CALL_PREFIX) && !row.name.starts_with(STEP)
    });
    // FLOPs and bytes of the host's operators are not in a trace, so there is no roofline either.
    for row in &mut tables.op_stats {
        (row.bytes, row.flops, row.flops_ns, row.flops_per_s) = Default::default();
        (row.min_bytes, row.max_flops_per_byte, row.ridge_flops_per_byte, row.bound) = Default::default();
        (row.peak_flops_pct, row.peak_bandwidth_pct) = Default::default();
    }
    tables.step_flops.clear();
    tables.annotation_stats.retain(|row| !row.name.starts_with(STEP));
    tables.memory_peaks.iter_mut().for_each(|row| row.alive = "".into());
    tables.memory_at_peak.iter_mut().for_each(|row| row.operator = None);
    for row in tables.data_loading.iter_mut().filter(|row| row.step.is_none()) {
        (row.wall_ns, row.wall_pct) = Default::default();
    }
    // The pings were taken from the run, and traces have none.
    tables.omissions.retain(|row| &*row.what != "rows of clock_samples");
    tables.clock_fit.iter_mut().for_each(|row| (row.samples, row.residual_p95_ns) = (0, None));
    tables
}

/// Compares a run with its traces, and with the run that its traces become.
#[track_caller]
fn check_round_trip(run: &Path, place: &Path, clock: Choice) -> Analysis {
    let quiet = place.join("without_pings");
    copy_directory(run, &quiet);
    let pings = quiet.join("clock_samples");
    if pings.is_dir() {
        std::fs::remove_dir_all(pings).unwrap();
    }
    let traces = place.join("traces");
    let source = RunSource::open(run).unwrap();
    let exported = export(&source, &Options::default(), &traces, &|_, _| ()).unwrap();
    assert_eq!((exported.files.len(), exported.omissions), (source.ranks().len(), vec![]));
    let again = place.join("again");
    ingest(std::slice::from_ref(&traces), &again, &|_, _| ()).unwrap();

    let native = analysis(&RunSource::open(&quiet).unwrap(), clock);
    let expected = comparable(native.clone());
    for (what, source) in [
        ("its traces", Box::new(KinetoSource::open(&[traces]).unwrap()) as Box<dyn Source>),
        ("the run that its traces became", Box::new(RunSource::open(&again).unwrap())),
    ] {
        let other = analysis(source.as_ref(), clock);
        assert_eq!(other.facts.ranks, native.facts.ranks, "{what}");
        assert_eq!(other.facts.steps, native.facts.steps, "{what}");
        assert_eq!(other.facts.collectives, native.facts.collectives, "{what}");
        let other = comparable(other);
        for (found, wanted) in other.all().into_iter().zip(expected.all()) {
            assert_eq!(found.batch().unwrap(), wanted.batch().unwrap(), "{} of {what}", found.table().name);
        }
    }
    native
}

/// Invariant (files): A run and the same run exported as a trace give the same analysis.
#[test]
fn a_run_of_rank_agent_is_the_same_as_a_trace() {
    if !have_mpirun("a_run_of_rank_agent_is_the_same_as_a_trace") {
        return;
    }
    let place = scratch("round_trip");
    let run = place.join("run");
    train(3, &run, &["--inject", "slow:rank=1,ms=150,phase=forward"]).expect_code(0);
    let native = check_round_trip(&run, &place, Choice::SameHost);
    // What is compared says something: all kinds of tables have rows, and the slow rank is seen.
    let Tables { bucket_timing, stragglers, memory_peaks, op_stats, .. } = &native.tables;
    assert!(!bucket_timing.is_empty() && !memory_peaks.is_empty() && !op_stats.is_empty());
    assert_eq!(&*stragglers[1].verdict, "cause", "{stragglers:#?}");
}

/// The same without `mpirun`, on a planted run whose ranks have clocks of their own.
#[test]
fn a_planted_run_is_the_same_as_a_trace() {
    let place = scratch("planted_round_trip");
    let run = place.join("run");
    let plan = planted::Plan { slow: vec![(2, 700_000)], ..Default::default() };
    planted::write(&plan, &run).unwrap();
    let native = check_round_trip(&run, &place, Choice::Collective);
    assert_eq!(&*native.tables.stragglers[2].verdict, "cause");
}
