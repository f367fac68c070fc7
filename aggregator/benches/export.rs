//! MB/s, rows/s and peak memory of the exports, for 8, 64 and 512 ranks.
//!
//! `cargo bench -p aggregator --bench export [-- ROWS [RANKS…]]`, with ROWS per rank. Each export runs in its own
//! process, to measure its own peak memory. It writes to a file, so the times include writing. Times are not asserted;
//! the number of written rows is.

#![expect(clippy::unwrap_used, reason = "a bench that cannot go on fails")]

use std::fs::File;
use std::io::BufWriter;
use std::path::Path;
use std::time::Instant;

use aggregator::render::{chrome, perfetto};
use fixtures::bench::{arguments, cpu_seconds, in_own_processes, peak_memory_mib};
use fixtures::planted::{self, Plan};
use formats::run_source::RunSource;
use model::options::Options;

/// Perfetto's protobuf, Kineto's JSON, and compressed Kineto JSON.
const FORMATS: [&str; 3] = ["perfetto", "json", "json.gz"];

fn plan(ranks: i32, rows: usize) -> Plan {
    let plan = Plan { ranks, steps: 20, buckets: 6, op_ns: 10_000, jitter_ns: 3_000, ..Plan::default() };
    plan.with_rows(rows)
}

fn main() {
    let arguments = arguments();
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
        let arguments = [directory.path().to_str().unwrap(), ranks, rows];
        in_own_processes(&["plant"], &arguments);
        in_own_processes(&FORMATS, &arguments);
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
            let exported = perfetto(&source, &options, file, &|_, _| ()).unwrap();
            (exported.counts.events, exported.bytes)
        }
        extension => {
            let pattern = out.join(format!("rank{{rank}}.{extension}"));
            let exported = chrome(&source, &options, &pattern, &|_, _| ()).unwrap();
            assert_eq!(exported.files.len(), ranks);
            (exported.counts.events, exported.bytes)
        }
    };
    let seconds = begin.elapsed().as_secs_f64();
    let (cpu_seconds, peak_mib) = (cpu_seconds(), peak_memory_mib());
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
