//! Traces as those of servers: no range of the host is a `ProfilerStep#N`, and kernels of their own reduce. The printed
//! `--step-marker` gives the steps, or ranges on devices do.

#![expect(clippy::unwrap_used, reason = "tests may, and their helpers too")]

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use formats::ingest::ingest;
use formats::kineto::KinetoSource;
use formats::run_source::RunSource;
use model::analysis::Analysis;
use model::options::Options;
use model::source::Source;
use regex::Regex;
use serde_json::{Value, json};
use simulator::{Fault, Job, Shape, What, simulate, write};
use trace::Op;

const STEPS: i64 = 6;
const SLOW_RANK: i32 = 2;

/// A job with a slow device, whose events `change` changes in each trace.
fn traces(name: &str, change: impl Fn(&mut Vec<Value>)) -> PathBuf {
    let slow = Fault::of([SLOW_RANK as usize], What::SlowDevice(200));
    changed(name, &Job { steps: STEPS as usize, layers: 4, ..Job::new(Shape::Ddp, 4) }.fault(slow), change)
}

fn changed(name: &str, job: &Job, change: impl Fn(&mut Vec<Value>)) -> PathBuf {
    let place = Path::new(env!("CARGO_TARGET_TMPDIR")).join("serving").join(name);
    let _ = fs::remove_dir_all(&place);
    write(job, &simulate(job, 1).unwrap(), &place).unwrap();
    for rank in 0..job.ranks {
        let file = place.join(format!("rank{rank}.json"));
        let mut document: Value = serde_json::from_slice(&fs::read(&file).unwrap()).unwrap();
        change(document["traceEvents"].as_array_mut().unwrap());
        fs::write(&file, document.to_string()).unwrap();
    }
    place
}

fn analyzed(source: &dyn Source, marker: Option<&str>) -> Analysis {
    let step_marker = marker.map(|marker| Regex::new(marker).unwrap());
    pipeline::analyze(source, &Options { step_marker, ..Options::default() }, &|_, _| ()).unwrap()
}

fn of_traces(place: &Path, marker: Option<&str>) -> Analysis {
    analyzed(&KinetoSource::open(&[place.to_path_buf()]).unwrap(), marker)
}

fn step_of(event: &Value) -> Option<i64> {
    let number = event["name"].as_str()?.strip_prefix("ProfilerStep#").filter(|_| event["cat"] == "user_annotation")?;
    number.parse().ok()
}

/// What `unmarked-steps` advises.
fn advice(analysis: &Analysis) -> Option<&str> {
    let found = analysis.tables.findings.iter().find(|row| &*row.id == "unmarked-steps");
    found.map(|row| &*row.suggestion)
}

/// All steps are there, and the slow rank is the only cause.
#[track_caller]
fn is_answered(analysis: &Analysis, what: &str) {
    assert_eq!(
        (analysis.facts.steps.len(), &analysis.verdict.causes[..]),
        (STEPS as usize, &[SLOW_RANK][..]),
        "{what}"
    );
}

#[test]
fn the_printed_marker_gives_the_steps() {
    let names: [fn(i64) -> String; 5] = [
        |_| "[pl][profile]run_training_batch".into(),
        |step| format!("Iteration {step}"),
        |step| format!("execute_context_{step}(64)_generation_{}(8)", step + 1),
        |step| format!("execute_model#{step}"),
        |step| format!("train.step [{step}/100] (epoch 1+1)"),
    ];
    for (number, name) in names.into_iter().enumerate() {
        let place = traces(&number.to_string(), |events| {
            for event in events {
                if let Some(step) = step_of(event) {
                    event["name"] = name(step).into();
                }
            }
        });
        let unmarked = of_traces(&place, None);
        assert_eq!(unmarked.facts.steps.len(), 1, "{}", name(0));
        let advice = advice(&unmarked).unwrap();
        let marker = advice.split_once("--step-marker '").and_then(|(_, rest)| rest.split_once('\''));
        let (marker, _) = marker.unwrap_or_else(|| panic!("{}: {advice}", name(0)));
        is_answered(&of_traces(&place, Some(marker)), &name(0));
    }
}

/// Moves the marks of steps to the devices, as torch draws them: on each stream, from the first kernel of the step to the last.
fn mark_on_devices(events: &mut Vec<Value>) {
    let number = |value: &Value| value.as_f64().unwrap();
    let steps: Vec<(f64, f64, i64)> = events
        .iter()
        .filter_map(|event| Some((number(&event["ts"]), number(&event["ts"]) + number(&event["dur"]), step_of(event)?)))
        .collect();
    let launches: BTreeMap<i64, f64> = events
        .iter()
        .filter(|event| event["cat"] == "cuda_runtime")
        .filter_map(|event| Some((event["args"]["correlation"].as_i64()?, number(&event["ts"]))))
        .collect();
    let mut ranges: BTreeMap<(i64, i64, i64), (f64, f64)> = BTreeMap::new();
    for kernel in events.iter().filter(|event| event["cat"] == "kernel") {
        let launch = launches[&kernel["args"]["correlation"].as_i64().unwrap()];
        let (.., step) = steps.iter().find(|(start, end, _)| (start..end).contains(&&launch)).unwrap();
        let (start, place) = (number(&kernel["ts"]), |key: &str| kernel["args"][key].as_i64().unwrap());
        let end = start + number(&kernel["dur"]);
        let range = ranges.entry((place("device"), place("stream"), *step)).or_insert((start, end));
        *range = (range.0.min(start), range.1.max(end));
    }
    events.retain(|event| step_of(event).is_none());
    events.extend(ranges.into_iter().map(|((device, stream, step), (start, end))| {
        json!({"ph": "X", "cat": "gpu_user_annotation", "name": format!("ProfilerStep#{step}"), "pid": device, "tid": stream,
               "ts": start, "dur": end - start, "args": {"device": device, "stream": stream}})
    }));
}

/// Compute of each rank and step.
fn compute(analysis: &Analysis) -> Vec<(i32, Option<i32>, i64)> {
    analysis
        .tables
        .step_breakdown
        .iter()
        .filter(|row| row.step >= Some(0))
        .map(|row| (row.rank, row.step, row.compute_ns))
        .collect()
}

#[test]
fn ranges_on_devices_are_steps_if_the_host_has_none() {
    let marked = of_traces(&traces("marked", |_| ()), None);
    is_answered(&marked, "marked on the host");
    for (name, has_host) in [("on_devices", true), ("devices_only", false)] {
        let place = traces(name, |events| {
            mark_on_devices(events);
            events.retain(|event| has_host || (event["cat"] != "cpu_op" && event["cat"] != "user_annotation"));
        });
        let analysis = of_traces(&place, None);
        is_answered(&analysis, name);
        assert_eq!((compute(&analysis), &analysis.facts.steps), (compute(&marked), &marked.facts.steps), "{name}");
        assert_eq!(advice(&analysis), None, "{name}");
        let is_note =
            |analysis: &Analysis| analysis.tables.omissions.iter().filter(|row| &*row.what == "marks of steps").count();
        let run = place.with_extension("run");
        let _ = fs::remove_dir_all(&run);
        ingest(&[place], &run, &|_, _| ()).unwrap();
        let ingested = analyzed(&RunSource::open(&run).unwrap(), None);
        assert_eq!((is_note(&analysis), is_note(&ingested)), (4, 4), "{name}");
        assert_eq!(compute(&ingested), compute(&marked), "{name}");
    }
}

/// Gives a trace all-reduces of which nothing but the names of their kernels says that they communicate.
fn custom(events: &mut Vec<Value>) {
    let is_record = |event: &Value| event["cat"] == "cpu_op" && !event["args"]["Collective name"].is_null();
    events.retain(|event| !is_record(event) && !event["name"].as_str().is_some_and(|name| name.starts_with("c10d::")));
    for event in events.iter_mut().filter(|event| event["cat"] == "kernel") {
        if event["name"].as_str().is_some_and(|name| name.starts_with("nccl")) {
            event["name"] =
                "void vllm::cross_device_reduce_2stage<__nv_bfloat16, 4>(vllm::RankData*, vllm::RankSignals)".into();
            event["args"].as_object_mut().unwrap().retain(|key, _| !key.contains(' '));
        }
    }
}

#[test]
fn custom_all_reduces_make_ranks_wait_too() {
    let analysis = of_traces(&traces("custom", custom), None);
    is_answered(&analysis, "custom all-reduces");
    let instances = &analysis.tables.collective_instances;
    assert!(
        instances.iter().all(|row| row.op == Op::AllReduce && row.complete && row.bytes.is_none()),
        "{instances:?}"
    );
    assert!(analysis.tables.collective_waits.iter().any(|row| row.wait_ns > 0));
}

/// The kernels do not say in which group they reduce, so that no rank of another group may be blamed.
#[test]
fn custom_all_reduces_of_several_groups_blame_no_innocent_rank() {
    for (tensor, is_slow) in [(2, false), (2, true), (4, false), (4, true)] {
        let job = Job { steps: 8, layers: 4, ..Job::new(Shape::Tensor(tensor), 8) };
        let slow = Fault::of([2], What::SlowDevice(200));
        let job = if is_slow { job.fault(slow) } else { job };
        let analysis = of_traces(&changed(&format!("groups-{tensor}-{is_slow}"), &job, custom), None);
        assert_eq!(analysis.verdict.causes, if is_slow { vec![2] } else { vec![] }, "groups of {tensor}");
    }
}
