//! Rows per second and peak memory of an analysis of 8 and 64 ranks with 200 000 rows each. Also checks that the
//! analysis finds the planted facts.
//!
//! `cargo bench -p aggregator --bench analyze [-- ROWS [RANKS…]]`. Each analysis runs in its own process, to measure
//! its own peak memory. Times are not asserted; the planted facts are.

#![expect(clippy::unwrap_used, reason = "a bench that cannot go on fails")]

use std::path::Path;
use std::time::Instant;

use fixtures::bench::{arguments, cpu_seconds, in_own_processes, peak_memory_mib};
use fixtures::planted::{self, Plan};
use formats::run_source::RunSource;
use model::analysis::Analysis;
use model::options::Options;
use pipeline::analyze;

const DELAY_NS: i64 = 10_000_000;

fn plan(ranks: i32, rows: usize) -> Plan {
    let plan = Plan {
        ranks,
        steps: 20,
        buckets: 6,
        op_ns: 10_000,
        // The gap equals the duration of a bucket's enqueueing. A late rank enqueues in its own time, the other ranks
        // while they wait. With another gap, the late rank's own time would rightly differ from the planted delay.
        gap_ns: planted::LAUNCH_NS,
        jitter_ns: 3_000,
        slow: vec![(ranks / 2 + 1, DELAY_NS)],
        offset_ns: (0..i64::from(ranks))
            .map(|rank| (rank * 7_000_003) % 500_000_000 - 250_000_000 * (rank % 2))
            .collect(),
        ..Plan::default()
    };
    plan.with_rows(rows)
}

fn main() {
    let arguments = arguments();
    if let [command, directory, ranks, rows] = arguments.as_slice()
        && ["plant", "analyze"].contains(&command.as_str())
    {
        let plan = plan(ranks.parse().unwrap(), rows.parse().unwrap());
        if command == "plant" {
            plant(&plan, Path::new(directory))
        } else {
            measure(&plan, Path::new(directory))
        }
        return;
    }
    let rows = arguments.first().map_or("200000", String::as_str);
    let defaults = ["8".to_string(), "64".to_string()];
    let ranks = if arguments.len() > 1 { &arguments[1..] } else { &defaults };
    for ranks in ranks {
        let directory = tempfile::tempdir().unwrap();
        in_own_processes(&["plant", "analyze"], &[directory.path().to_str().unwrap(), ranks, rows]);
    }
}

fn plant(plan: &Plan, run: &Path) {
    let truth = planted::write(plan, run).unwrap();
    let per_row = truth.events_bytes as f64 / truth.events as f64;
    println!("{} ranks: {} rows planted, {per_row:.1} bytes a row", plan.ranks, truth.events);
}

fn measure(plan: &Plan, run: &Path) {
    let begin = Instant::now();
    let analysis = analyze(&RunSource::open(run).unwrap(), &Options::default(), &|_, _| ()).unwrap();
    let seconds = begin.elapsed().as_secs_f64();
    let (cpu_seconds, peak_mib) = (cpu_seconds(), peak_memory_mib());
    let million = analysis.facts.events as f64 / 1e6;
    println!(
        "{} ranks: {seconds:.2} s on {} threads, {:.1} M rows/s; {cpu_seconds:.2} s of CPU, {:.1} M rows per CPU second; peak {peak_mib:.0} MiB",
        plan.ranks,
        std::thread::available_parallelism().map_or(1, usize::from),
        million / seconds,
        million / cpu_seconds,
    );
    check(plan, &analysis);
    println!("{} ranks: every step, bucket, offset and the straggler as planted, to the ns", plan.ranks);
}

fn check(plan: &Plan, analysis: &Analysis) {
    let truth = planted::truth(plan);
    let tables = &analysis.tables;
    let of_steps = tables.step_breakdown.iter().filter(|r| r.step.is_some_and(|s| s >= 0));
    for (row, step) in of_steps.zip(&truth.steps) {
        assert_eq!((row.rank, row.step), (step.rank, Some(step.step)));
        let found = [row.wall_ns, row.compute_ns, row.overlap_ns, row.exposed_comm_ns, row.idle_ns];
        assert_eq!(found, [step.wall_ns, step.compute_ns, step.overlap_ns, step.exposed_ns, step.idle_ns]);
    }
    assert_eq!(tables.bucket_timing.len(), truth.buckets.len());
    for (row, b) in tables.bucket_timing.iter().zip(&truth.buckets) {
        assert_eq!((row.step, row.bucket, row.rank), (b.step, b.bucket, b.rank));
        assert_eq!((row.start_ns, row.end_ns, row.wait_ns), (b.start_ns, b.end_ns, Some(b.wait_ns)));
        assert_eq!((row.exposed_ns, row.transfer_ns), (b.exposed_ns, Some(plan.transfer_ns)));
    }
    for fit in &tables.clock_fit {
        assert_eq!(
            (fit.offset_ns, fit.violations),
            (plan.offset_ns[fit.rank as usize], 0),
            "offset of rank {}",
            fit.rank
        );
    }
    let slow = plan.slow[0].0;
    assert_eq!(analysis.verdict.causes, [slow]);
    let row = &tables.stragglers[slow as usize];
    assert_eq!((row.evidence_range.as_deref(), row.evidence_excess_ns), (Some("forward"), Some(DELAY_NS)));
    assert_eq!((row.own_excess_ns, row.step_delay_ns), (DELAY_NS, DELAY_NS));
}
