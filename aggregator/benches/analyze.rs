//! Rows per second and peak memory of an analysis, for 8 and for 64 ranks of 200 000 rows, and whether it found what
//! was planted.
//!
//! `cargo bench -p aggregator --bench analyze [-- ROWS [RANKS…]]`. Each analysis runs in a process of its own, so that
//! its peak memory is its own. Nothing is asserted about time; what was planted is.

#![expect(clippy::unwrap_used, reason = "a bench that cannot go on fails")]

#[path = "../../tests/src/planted.rs"]
#[expect(unreachable_pub, reason = "each user of the builder needs a part of it")]
mod planted;

use std::path::Path;
use std::process::Command;
use std::time::Instant;

use aggregator::source::RunSource;
use aggregator::{Analysis, Options, analyze};
use planted::Plan;

const DELAY_NS: i64 = 10_000_000;

fn plan(ranks: i32, rows: usize) -> Plan {
    let plan = Plan {
        ranks,
        steps: 20,
        buckets: 6,
        op_ns: 10_000,
        // As long as handing a bucket over takes. A late rank does that in its own time, the others while they wait;
        // with another gap its own time, and so its excess, would rightly be longer than the delay that was planted.
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
    let arguments: Vec<String> = std::env::args().skip(1).filter(|a| a != "--bench").collect();
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
        for command in ["plant", "analyze"] {
            let mut child = Command::new(std::env::current_exe().unwrap());
            let status = child.args([command, directory.path().to_str().unwrap(), ranks, rows]).status().unwrap();
            assert!(status.success(), "{command} failed");
        }
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
    let cpu_seconds = cpu_seconds().unwrap_or(f64::NAN);
    let peak_mib = peak_memory_kib().unwrap_or(0) as f64 / 1024.0;
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

/// CPU time of this process so far: on a busy machine, the wall clock measures the others.
fn cpu_seconds() -> Option<f64> {
    const TICKS_PER_SECOND: f64 = 100.0;
    let stat = std::fs::read_to_string("/proc/self/stat").ok()?;
    let fields: Vec<&str> = stat.rsplit_once(')')?.1.split_whitespace().collect();
    let ticks = |i: usize| fields.get(i)?.parse::<f64>().ok();
    Some((ticks(11)? + ticks(12)?) / TICKS_PER_SECOND)
}

/// The most memory that this process ever had, where the kernel tells.
fn peak_memory_kib() -> Option<u64> {
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    let line = status.lines().find(|line| line.starts_with("VmHWM:"))?;
    line.split_whitespace().nth(1)?.parse().ok()
}
