//! MB/s, rows/s and peak memory of the exports, for 8, 64 and 512 ranks.
//!
//! `cargo bench -p aggregator --bench export [-- ROWS [RANKS…]]`: rows a rank. Each export runs in a process of its own,
//! so that its peak memory is its own; it goes to a file, so that what is measured includes writing it. Nothing is
//! asserted about time; that every row was written is.

#![expect(clippy::unwrap_used, reason = "a bench that cannot go on fails")]

#[path = "../../tests/src/planted.rs"]
#[expect(dead_code, unreachable_pub, reason = "each user of the builder needs a part of it")]
mod planted;

use std::fs::File;
use std::io::BufWriter;
use std::path::Path;
use std::process::Command;
use std::time::Instant;

use aggregator::Options;
use aggregator::render::{chrome, perfetto};
use aggregator::source::RunSource;
use planted::Plan;

/// Perfetto's protobuf; Kineto's JSON as it is; Kineto's JSON compressed.
const FORMATS: [&str; 3] = ["perfetto", "json", "json.gz"];

fn plan(ranks: i32, rows: usize) -> Plan {
    let plan = Plan { ranks, steps: 20, buckets: 6, op_ns: 10_000, jitter_ns: 3_000, ..Plan::default() };
    plan.with_rows(rows)
}

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).filter(|a| a != "--bench").collect();
    if let [command, directory, ranks, rows] = arguments.as_slice()
        && (command == "plant" || FORMATS.contains(&command.as_str()))
    {
        let plan = plan(ranks.parse().unwrap(), rows.parse().unwrap());
        match command.as_str() {
            "plant" => {
                planted::write(&plan, &Path::new(directory).join("run")).unwrap();
            }
            format => measure(format, ranks.parse().unwrap(), Path::new(directory)),
        }
        return;
    }
    let rows = arguments.first().map_or("20000", String::as_str);
    let defaults = ["8".to_string(), "64".to_string(), "512".to_string()];
    let ranks = if arguments.len() > 1 { &arguments[1..] } else { &defaults };
    for ranks in ranks {
        let directory = tempfile::tempdir().unwrap();
        for command in ["plant"].iter().chain(&FORMATS) {
            let mut child = Command::new(std::env::current_exe().unwrap());
            let status = child.args([command, directory.path().to_str().unwrap(), ranks, rows]).status().unwrap();
            assert!(status.success(), "{command} failed");
        }
    }
}

fn measure(format: &str, ranks: usize, directory: &Path) {
    let source = RunSource::open(&directory.join("run")).unwrap();
    let out = directory.join(format);
    let begin = Instant::now();
    let options = Options::default();
    let (rows, bytes) = match format {
        "perfetto" => {
            let file = BufWriter::new(File::create(&out).unwrap());
            let exported = perfetto::export(&source, &options, file, &|_, _| ()).unwrap();
            (exported.counts.events, exported.bytes)
        }
        extension => {
            let pattern = out.join(format!("rank{{rank}}.{extension}"));
            let exported = chrome::export(&source, &options, &pattern, &|_, _| ()).unwrap();
            assert_eq!(exported.files.len(), ranks);
            (exported.counts.events, exported.bytes)
        }
    };
    let seconds = begin.elapsed().as_secs_f64();
    let cpu_seconds = cpu_seconds().unwrap_or(f64::NAN);
    let peak_mib = peak_memory_kib().unwrap_or(0) as f64 / 1024.0;
    let in_run: u64 = (0..ranks as i32).flat_map(|rank| source.run().shards(rank, "events")).map(|s| s.rows).sum();
    assert_eq!(rows, in_run, "rows of events written");
    println!(
        "{ranks:4} ranks, {format:8}: {:5.2} M rows, {:7.1} MB; {seconds:6.2} s, {:6.1} MB/s, {:5.2} M rows/s; \
         {:6.1} MB and {:5.2} M rows per CPU second; peak {peak_mib:4.0} MiB",
        rows as f64 / 1e6,
        bytes as f64 / 1e6,
        bytes as f64 / 1e6 / seconds,
        rows as f64 / 1e6 / seconds,
        bytes as f64 / 1e6 / cpu_seconds,
        rows as f64 / 1e6 / cpu_seconds,
    );
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
