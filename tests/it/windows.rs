//! Two windows of eight ranks, as a schedule of torch.profiler with `repeat=2` writes them.

use std::path::Path;
use std::process::Command;

use flate2::read::GzDecoder;
use formats::ingest::ingest;
use formats::kineto::KinetoSource;
use formats::run_source::RunSource;
use model::analysis::Analysis;
use model::analysis::VerdictKind;
use model::options::Options;
use model::source::Source;
use pipeline::analyze;
use serde_json::Value;

use crate::support::{AGGREGATOR, aggregator, gloo8, scratch};

/// The second window begins this much after the first.
const LATER_US: f64 = 5e6;
const STEPS_BETWEEN: i32 = 10;

/// Writes a rank's trace again, `window` windows later and without its last `dropped` operators.
fn write_window(traces: &Path, rank: i32, window: i32, dropped: usize, out: &Path) {
    let file = std::fs::File::open(traces.join(format!("rank{rank}.json.gz"))).unwrap();
    let mut trace: Value = serde_json::from_reader(std::io::BufReader::new(GzDecoder::new(file))).unwrap();
    let events = trace["traceEvents"].as_array_mut().unwrap();
    let is_operator = |event: &Value| event["name"].as_str().is_some_and(|name| name.starts_with("aten::"));
    let operators = events.iter().filter(|event| is_operator(event)).count();
    let mut seen = 0;
    events.retain(|event| {
        seen += usize::from(is_operator(event));
        !is_operator(event) || seen + dropped <= operators
    });
    for event in events {
        if let Some(ts) = event["ts"].as_f64() {
            event["ts"] = (ts + f64::from(window) * LATER_US).into();
        }
        let step = event["name"].as_str().and_then(|name| name.strip_prefix("ProfilerStep#")?.parse::<i32>().ok());
        if let Some(step) = step {
            event["name"] = format!("ProfilerStep#{}", step + window * STEPS_BETWEEN).into();
        }
    }
    std::fs::write(out.join(format!("rank{rank}.{window}.json")), trace.to_string()).unwrap();
}

fn analyzed(source: &dyn Source) -> Analysis {
    analyze(source, &Options::default(), &|_, _| ()).unwrap()
}

/// Invariant (clocks): No row counts a pause between two windows of a profiler.
#[test]
fn windows_are_analyzed_as_one_run_with_a_pause() {
    let place = scratch("two_windows");
    let one = gloo8();
    let traces = place.join("traces");
    std::fs::create_dir(&traces).unwrap();
    for rank in 0..8 {
        for window in 0..2 {
            // The sizes of the files alternate, so that the larger file of a rank is in the first or second window.
            write_window(&one, rank, window, if (rank + window) % 2 == 0 { 40 } else { 0 }, &traces);
        }
    }
    let first = analyzed(&KinetoSource::open(&[one]).unwrap());
    let both = analyzed(&KinetoSource::open(std::slice::from_ref(&traces)).unwrap());
    let steps: Vec<i32> = first.facts.steps.iter().flat_map(|s| [*s, s + STEPS_BETWEEN]).collect();
    assert!(steps.iter().all(|step| both.facts.steps.contains(step)), "{:?}", both.facts.steps);
    assert_eq!(both.facts.steps.len(), steps.len());
    assert_eq!((both.verdict.kind, both.verdict.rank), (VerdictKind::Cause, Some(5)));
    let losses: Vec<_> = both.tables.omissions.iter().filter(|o| o.kind != trace::OmissionKind::Note).collect();
    assert_eq!(losses, Vec::<&trace::OmissionRow>::new());
    assert_eq!(both.tables.collective_instances.len(), 2 * first.tables.collective_instances.len());
    // Instances never span the pause, and the pause is neither idle nor between steps.
    let pause_ns = (LATER_US * 1e3) as i64;
    assert!(both.tables.collective_instances.iter().all(|i| i.skew_ns < pause_ns / 10));
    let total = |analysis: &Analysis| -> i64 {
        analysis.tables.step_breakdown.iter().filter(|row| row.step.is_none()).map(|row| row.wall_ns).sum()
    };
    assert!((total(&both) - 2 * total(&first)).abs() < total(&first) / 100, "{} {}", total(&both), total(&first));

    let run = place.join("run");
    ingest(std::slice::from_ref(&traces), &run, &|_, _| ()).unwrap();
    let source = RunSource::open(&run).unwrap();
    assert_eq!(source.windows().len(), 2);
    let ingested = analyzed(&source);
    assert_eq!(ingested.verdict, both.verdict);
    assert_eq!(ingested.tables.step_breakdown, both.tables.step_breakdown);
    assert_eq!(ingested.tables.collective_instances.len(), both.tables.collective_instances.len());

    // One window of the traces, of the run, and the first traces alone have the same steps.
    for input in [&traces, &run] {
        let out = place.join("out");
        let window = ["--window", "1", "--json", "--out", out.to_str().unwrap()];
        let output = aggregator(&[&["analyze", input.to_str().unwrap()], &window[..]].concat()).expect_code(0);
        let json: Value = serde_json::from_str(&output.stdout).unwrap();
        let steps: Vec<i32> = serde_json::from_value(json["facts"]["steps"].clone()).unwrap();
        assert_eq!(steps, first.facts.steps, "{}", input.display());
    }
    let said = aggregator(&["table", run.to_str().unwrap(), "--window", "3"]).expect_code(2).said();
    assert!(said.contains("the run has 2 windows"), "{said}");
}

#[test]
fn standard_input_is_a_trace() {
    let trace = gloo8().join("rank0.json.gz");
    let input = std::fs::File::open(trace).unwrap();
    let output = Command::new(AGGREGATOR).args(["table", "-", "--json"]).stdin(input).output().unwrap();
    let json: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert!(json["tables"][0]["rows"].as_array().unwrap().len() > 10, "{output:?}");
}
