//! Bytes and time of reports of planted runs of 8, 64 and 512 ranks, beside the time of the analysis that they need.
//!
//! `cargo bench -p aggregator --bench report [-- STEPS [RANKS…]]`. Each runs in a process of its own, so that its peak
//! memory is its own. Times are CPU time, beside that of the analysis of the same run; nothing is
//! asserted about them.

#![expect(clippy::unwrap_used, reason = "a bench that cannot go on fails")]

#[path = "../../tests/src/planted.rs"]
#[expect(unreachable_pub, dead_code, reason = "each user of the builder needs a part of it")]
mod planted;

use std::path::Path;
use std::process::Command;

use aggregator::render::html::{Settings, report};
use aggregator::source::RunSource;
use aggregator::{Options, analyze};
use planted::Plan;

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).filter(|a| a != "--bench").collect();
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
        for command in ["plant", "analyze", "report"] {
            let mut child = Command::new(std::env::current_exe().unwrap());
            let status = child.args([command, directory.path().to_str().unwrap(), ranks, steps]).status().unwrap();
            assert!(status.success(), "{command} failed");
        }
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
    let peak_mib = status_kib("VmHWM:").unwrap_or(0) as f64 / 1024.0;
    println!("    {what}: {:.2} s of CPU, peak {peak_mib:.0} MiB", cpu_seconds().unwrap_or(f64::NAN));
}

/// CPU time of this process so far: on a busy machine, the wall clock measures the others.
fn cpu_seconds() -> Option<f64> {
    const TICKS_PER_SECOND: f64 = 100.0;
    let stat = std::fs::read_to_string("/proc/self/stat").ok()?;
    let fields: Vec<&str> = stat.rsplit_once(')')?.1.split_whitespace().collect();
    let ticks = |i: usize| fields.get(i)?.parse::<f64>().ok();
    Some((ticks(11)? + ticks(12)?) / TICKS_PER_SECOND)
}

/// A line of /proc/self/status, where the kernel has it.
fn status_kib(name: &str) -> Option<u64> {
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    let line = status.lines().find(|line| line.starts_with(name))?;
    line.split_whitespace().nth(1)?.parse().ok()
}
