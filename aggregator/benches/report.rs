//! Size and time of reports of planted runs with 8, 64 and 512 ranks, and the time of the analyses that they need.
//!
//! `cargo bench -p aggregator --bench report [-- STEPS [RANKS…]]`. Each report is made in its own process, to measure
//! its own peak memory. Times are CPU times and are not asserted.

#![expect(clippy::unwrap_used, reason = "a bench that cannot go on fails")]

use std::path::Path;

use aggregator::render::report;
use fixtures::bench::{arguments, cpu_seconds, in_own_processes, peak_memory_mib};
use fixtures::planted::{self, Plan};
use formats::run_source::RunSource;
use model::options::Options;
use pipeline::analyze;
use report_html::Settings;

fn main() {
    let arguments = arguments();
    if let [command, directory, ranks, steps] = arguments.as_slice()
        && ["plant", "analyze", "report"].contains(&command.as_str())
    {
        run(command, Path::new(directory), ranks.parse().unwrap(), steps.parse().unwrap());
        return;
    }
    let steps = arguments.first().map_or("100", String::as_str);
    let defaults = ["8".to_string(), "64".to_string(), "512".to_string()];
    let ranks = if arguments.len() > 1 { &arguments[1..] } else { &defaults };
    for ranks in ranks {
        let directory = tempfile::tempdir().unwrap();
        in_own_processes(&["plant", "analyze", "report"], &[directory.path().to_str().unwrap(), ranks, steps]);
    }
}

fn run(command: &str, directory: &Path, ranks: i32, steps: i32) {
    let slow = ranks / 2 + 1;
    if command == "plant" {
        let plan = Plan { ranks, steps, jitter_ns: 3_000, slow: vec![(slow, 10_000_000)], ..Plan::default() };
        let truth = planted::write(&plan, directory).unwrap();
        println!("{ranks} ranks × {steps} steps: {} rows of events", truth.events);
        return;
    }
    let source = RunSource::open(directory).unwrap();
    let what = if command == "analyze" {
        assert_eq!(analyze(&source, &Options::default(), &|_, _| ()).unwrap().verdict.causes, [slow]);
        "analysis".to_string()
    } else {
        let out = std::fs::File::create(directory.join("report.html")).unwrap();
        let made = report(&source, &Options::default(), &Settings::default(), out, &|_, _| ()).unwrap();
        for text in &made.summarised {
            println!("    summarised: {text}");
        }
        format!("report of {:.2} MB", made.bytes as f64 / 1e6)
    };
    println!("    {what}: {:.2} s of CPU, peak {:.0} MiB", cpu_seconds(), peak_memory_mib());
}
