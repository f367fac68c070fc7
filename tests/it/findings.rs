//! Findings on real traces: the profiler's own cost, and slow first steps and input without a name, which are planted by
//! pauses of known length.

use std::path::{Path, PathBuf};

use findings::FINDINGS;
use flate2::read::GzDecoder;
use formats::kineto::KinetoSource;
use model::analysis::Analysis;
use model::claim::{Claim, Quantity};
use model::options::Options;
use pipeline::analyze;
use serde_json::Value;
use trace::FindingRow;

use crate::support::{aggregator, scratch};

fn read(file: &Path) -> Value {
    serde_json::from_reader(GzDecoder::new(std::io::BufReader::new(std::fs::File::open(file).unwrap()))).unwrap()
}

fn only_file(folder: &Path) -> PathBuf {
    std::fs::read_dir(folder).unwrap().next().unwrap().unwrap().path()
}

fn analyzed(path: &Path) -> Analysis {
    analyze(&KinetoSource::open(&[path.to_path_buf()]).unwrap(), &Options::default(), &|_, _| ()).unwrap()
}

fn finding<'a>(analysis: &'a Analysis, id: &str) -> Option<&'a FindingRow> {
    assert!(FINDINGS.iter().any(|kind| kind.id == id), "{id}");
    analysis.tables.findings.iter().find(|finding| &*finding.id == id)
}

fn is_named(event: &Value, begin: &str) -> bool {
    event["name"].as_str().is_some_and(|name| name.starts_with(begin))
}

/// Stops the host for `pause_us` at a time: later rows shift, and the host rows around that time become longer.
fn pause(events: &mut [Value], at_us: f64, pause_us: f64) {
    for event in events {
        let Some(ts) = event["ts"].as_f64() else { continue };
        let dur = event["dur"].as_f64().unwrap_or(0.0);
        let on_device = event["cat"].as_str().is_some_and(|cat| matches!(cat, "Kernel" | "Memcpy" | "Memset"));
        if ts >= at_us {
            event["ts"] = (ts + pause_us).into();
        } else if ts + dur > at_us && !on_device {
            event["dur"] = (dur + pause_us).into();
        }
    }
}

/// The starts of the rows whose name begins so, the last first.
fn starts(events: &[Value], begin: &str) -> Vec<f64> {
    let mut starts: Vec<f64> = events.iter().filter(|e| is_named(e, begin)).filter_map(|e| e["ts"].as_f64()).collect();
    starts.sort_by(|a, b| b.total_cmp(a));
    starts
}

/// 1 967.7 µs of overhead, all of it outside of device work: an independent sweep over the JSON.
#[test]
#[ignore = "reads real traces"]
fn the_profilers_own_cost_is_named_and_is_no_idleness_of_the_job() {
    let folder = fixtures::data::folder("b200_r0of8");
    let analysis = analyzed(&folder);
    let step = analysis.tables.step_breakdown.iter().find(|row| row.step == Some(0)).unwrap();
    assert!((step.overhead_ns - 1_967_713).abs() < 100, "{step:?}");
    let parts = [step.compute_ns, step.overlap_ns, step.exposed_comm_ns, step.memory_ns, step.idle_ns];
    assert_eq!(parts.iter().sum::<i64>(), step.wall_ns);
    let found = finding(&analysis, "profiling-overhead").unwrap();
    let (who, names) = (
        "the profiler and the driver took 1.97 ms of step 0 on rank 0",
        "Activity Buffer Request 1.53 ms (1 row), Lazy Function Loading 441 µs (8 rows)",
    );
    assert!(found.title.starts_with(who) && found.title.contains(names), "{found:?}");
    assert!((found.saving_ns.unwrap() - 1_526_826).abs() < 100, "{found:?}");
    let of_idle = |claim: &&Claim| claim.quantity == Quantity::Idle;
    let idle = analysis.claims.iter().find(of_idle).unwrap();
    assert_eq!(idle.value, Some(model::claim::Value::Ns(step.idle_ns - step.overhead_ns)), "{idle:?}");
    let gaps = analysis.tables.idle_breakdown.iter();
    assert!(gaps.clone().any(|row| row.overhead_ns > 0) && gaps.clone().all(|row| row.overhead_ns <= row.idle_ns));
}

#[test]
#[ignore = "reads real traces"]
fn a_slow_first_step_of_a_real_trace_is_named() {
    let folder = fixtures::data::folder("resnet50_2021");
    let file = only_file(&folder);
    let clean = analyzed(&file);
    let found = finding(&clean, "slow-first-steps").unwrap();
    assert_eq!(&*found.title, "step 5, the first one, takes 182 ms; the other 5 steps take 126 ms (median)");
    let mut trace = read(&file);
    let events = trace["traceEvents"].as_array_mut().unwrap();
    let first = *starts(events, "ProfilerStep#").last().unwrap();
    pause(events, first + 1_000.0, 500_000.0);
    let planted = scratch("findings_first_step").join("rank0.json");
    std::fs::write(&planted, trace.to_string()).unwrap();
    let slow = analyzed(&planted);
    let found = finding(&slow, "slow-first-steps").unwrap();
    assert_eq!(&*found.title, "step 5, the first one, takes 682 ms; the other 5 steps take 126 ms (median)");
    let length =
        |analysis: &Analysis| analysis.tables.step_breakdown.iter().find(|row| row.step == Some(5)).unwrap().wall_ns;
    assert_eq!(length(&slow) - length(&clean), 500_000_000);
    assert!(found.evidence.contains("most of the excess is idle"), "{found:?}");
    let medians = |analysis: &Analysis| (analysis.verdict.kind, analysis.verdict.step_ns);
    assert_eq!(medians(&slow), medians(&clean), "medians do not change");
    let selected =
        aggregator(&["analyze", planted.to_str().unwrap(), "--steps", "5..11", "--json"]).expect_code(0).stdout;
    assert!(!selected.contains("slow-first-steps"), "{selected}");
}

/// A loader whose ranges have another name stops the host for 40 ms in each step. All quiet time before is also there
/// without the pauses.
#[test]
#[ignore = "reads real traces"]
fn input_without_a_name_is_found_between_the_optimizer_and_the_next_forward() {
    let folder = fixtures::data::folder("resnet50_2021");
    let file = only_file(&folder);
    let named = analyzed(&file);
    assert!(named.tables.input_gaps.is_empty() && !named.tables.data_loading.is_empty());
    let place = scratch("findings_input");
    let without_names = |name: &str, pause_us: f64| {
        let mut trace = read(&file);
        let events = trace["traceEvents"].as_array_mut().unwrap();
        for start in starts(events, "enumerate(DataLoader)") {
            pause(events, start + 1.0, pause_us);
        }
        events.retain(|event| !is_named(event, "enumerate(DataLoader)"));
        std::fs::write(place.join(name), trace.to_string()).unwrap();
        analyzed(&place.join(name))
    };
    let (before, after) = (without_names("before.json", 0.0), without_names("after.json", 40_000.0));
    assert!(before.tables.data_loading.is_empty());
    // An independent sweep over the JSON gives these quiet times in µs: stretches of 100 µs and more without a runtime call
    // or an operator that contains one.
    let quiet = |analysis: &Analysis| analysis.tables.input_gaps.iter().map(|row| row.quiet_ns).collect::<Vec<i64>>();
    let expected_us = [3_090, 3_161, 4_285, 5_975, 4_479];
    assert!(
        quiet(&before).iter().zip(expected_us).all(|(ns, us)| (ns - us * 1_000).abs() < 2_000)
            && quiet(&before).len() == 5,
        "{:?}",
        quiet(&before)
    );
    assert_eq!(finding(&before, "likely-input"), None, "below the limit");
    let longer: Vec<i64> = quiet(&after).iter().zip(quiet(&before)).map(|(after, before)| after - before).collect();
    assert_eq!(longer, [40_000_000; 5]);
    let found = finding(&after, "likely-input").unwrap();
    assert!(found.title.contains("the host of rank 0 launches nothing for 44.3 ms"), "{found:?}");
    assert!(found.evidence.contains("median of 5 gaps"), "{found:?}");
}

/// Counted from the JSON by the steps of the launches: 1 478 and 870 kernels, each with its own launch.
#[test]
#[ignore = "reads real traces"]
fn a_diff_counts_the_kernels_of_a_step() {
    let [a, b] = ["resnet50_2021", "ns_resolution"].map(fixtures::data::folder);
    let arguments = ["diff", a.to_str().unwrap(), b.to_str().unwrap(), "--force"];
    let text = aggregator(&arguments).stdout;
    let words =
        "A has 1478 kernels in 1478 launches, B has 870 kernels in 870 launches: -41.1 % kernels, -41.1 % launches";
    assert!(text.split_whitespace().collect::<Vec<_>>().join(" ").contains(words), "{text}");
    let json = aggregator(&[&arguments[..], &["--json"]].concat()).stdout;
    let kernels = &serde_json::from_str::<Value>(&json).unwrap()["kernels"];
    assert_eq!(
        (&kernels["a"]["kernels_per_step"], &kernels["b"]["launches_per_step"]),
        (&1478.0.into(), &870.0.into())
    );
    // Names that only one side has are listed apart.
    let first = &kernels["changes"][0];
    assert!(first["name"].as_str().unwrap().contains("FillFunctor<float>"), "{first}");
    assert_eq!((&first["a_per_step"], &first["b_per_step"]), (&163.0.into(), &2.0.into()));
    let page = scratch("findings_diff").join("page.html");
    aggregator(&["report", a.to_str().unwrap(), b.to_str().unwrap(), "--force", "-o", page.to_str().unwrap()]);
    let page = std::fs::read_to_string(page).unwrap();
    assert!(page.contains("A has 1478 kernels in 1478 launches") && page.contains("data-diff=\"kernels\""));
}
