//! Jobs that `rankscope simulate` writes: the analysis finds what was planted at each level, in a run and in traces.

use std::path::{Path, PathBuf};

use serde_json::Value;

use crate::support::{RANKSCOPE, aggregator, finish, scratch};

/// Simulates a job into `name`; the directory and the truth.
fn simulated(name: &str, options: &[&str]) -> (PathBuf, Value) {
    let out = scratch(name).join("job");
    let mut command = std::process::Command::new(RANKSCOPE);
    finish(command.arg("simulate").arg("--out").arg(&out).args(options)).expect_code(0);
    let truth = std::fs::read_to_string(out.with_file_name("job.truth.json")).unwrap();
    (out, serde_json::from_str(&truth).unwrap())
}

fn analysis(job: &Path) -> Value {
    let finished = aggregator(&[Path::new("analyze"), Path::new("--json"), job]);
    serde_json::from_str(&finished.stdout).unwrap_or_else(|e| panic!("{e}: {}", finished.said()))
}

fn rows<'a>(analysis: &'a Value, table: &str) -> Vec<&'a Value> {
    analysis["tables"][table].as_array().unwrap().iter().collect()
}

fn causes(analysis: &Value) -> Vec<&Value> {
    rows(analysis, "stragglers").into_iter().filter(|row| row["verdict"] == "cause").collect()
}

#[test]
fn a_planted_rank_is_found_with_its_cost_among_missing_and_cut_ranks() {
    let options = "--parallel dp=16,tp=4 --steps 4 --slow rank=21,ms=3 --clocks offset_ms=80,drift_ppm=20 --missing 5,60 \
                   --cut 9";
    let options: Vec<&str> = options.split_whitespace().collect();
    for format in ["run", "kineto"] {
        let (job, truth) = simulated(&format!("simulated-{format}"), &[&options[..], &["--format", format]].concat());
        let found = analysis(&job);
        let causes = causes(&found);
        let [cause] = causes[..] else { panic!("{format}: {causes:#?}") };
        let (cost_ns, tolerance_ns) = (&truth["stragglers"][0]["cost_ns"], &truth["stragglers"][0]["tolerance_ns"]);
        let off_ns = (cause["step_delay_ns"].as_i64().unwrap() - cost_ns.as_i64().unwrap()).abs();
        assert_eq!((cause["rank"].as_i64(), cause["reason"].as_str()), (Some(21), Some("host")), "{format}");
        assert!(off_ns <= tolerance_ns.as_i64().unwrap(), "{format}: {cause} of {truth}");
        assert_eq!(found["facts"]["missing_ranks"], truth["missing_ranks"], "{format}");
        let cut: Vec<&Value> = rows(&found, "omissions").into_iter().filter(|row| row["rank"] == 9).collect();
        assert!(!cut.is_empty(), "{format}: {}", found["tables"]["omissions"]);
        let groups = rows(&found, "rank_groups");
        let worst = |kind: &str| groups.iter().find(|row| row["kind"] == kind).unwrap_or_else(|| panic!("{groups:#?}"));
        assert_eq!((&worst("host")["name"], &worst("host")["worst_rank"]), (&"node2".into(), &21.into()), "{format}");
        assert_eq!(
            (&worst("group of 4")["name"], &worst("group of 4")["causes"]),
            (&"1".into(), &1.into()),
            "{format}"
        );
    }
}

#[test]
fn planted_hosts_and_device_models_are_named_as_such() {
    let common = ["--parallel", "dp=8,tp=4", "--steps", "6", "--host-ranks", "4"];
    for (name, slow, level) in [
        ("host", "host=3,percent=20", "host"),
        ("paused-host", "host=3,ms=3", "host"),
        ("model", "model=2..4,percent=25", "device_model"),
    ] {
        let options = [&common[..], &["--slow", slow]].concat();
        let (job, truth) = simulated(&format!("simulated-{name}"), &options);
        let found = analysis(&job);
        let named: Vec<&Value> = causes(&found).into_iter().map(|row| &row["rank"]).collect();
        let mut planted: Vec<&Value> = truth["stragglers"][0]["ranks"].as_array().unwrap().iter().collect();
        planted.sort_by_key(|rank| rank.as_i64());
        let mut sorted = named.clone();
        sorted.sort_by_key(|rank| rank.as_i64());
        assert_eq!(sorted, planted, "{slow}: {}", found["verdict"]["sentence"]);
        assert_eq!(found["verdict"]["level"], level, "{slow}: {}", found["verdict"]["sentence"]);
        let (said_ns, true_ns) = (&found["verdict"]["together_delay_ns"], &truth["together_cost_ns"]);
        let ratio = said_ns.as_f64().unwrap() / true_ns.as_f64().unwrap();
        assert!((0.95..1.05).contains(&ratio), "{slow}: {said_ns} of {true_ns}");
    }
}

#[test]
fn the_same_options_give_the_same_bytes_and_impossible_ones_are_refused() {
    let options = ["--parallel", "dp=2,tp=2", "--steps", "2", "--clocks", "offset_ms=5,drift_ppm=10"];
    let files = |seed: &str, name: &str| {
        let (job, _) = simulated(name, &[&options[..], &["--seed", seed]].concat());
        let read = |table: &str| std::fs::read(job.join(table).join("rank-00002-0000.parquet")).unwrap();
        ["events", "collectives", "clock_samples", "ranks"].map(read)
    };
    let first = files("3", "simulated-bytes");
    assert_eq!(first, files("3", "simulated-bytes-again"));
    assert_ne!(first, files("4", "simulated-bytes-other"));
    let out = scratch("simulated-refused").join("job");
    for wrong in [["--slow", "rank=8,ms=1"], ["--missing", "99"], ["--slow", "stage=1,ms=1"], ["--parallel", "dp=0"]] {
        let mut command = std::process::Command::new(RANKSCOPE);
        let refused = finish(command.arg("simulate").arg("--out").arg(&out).args(wrong)).expect_code(2);
        assert!(!refused.stderr.is_empty() && !out.exists(), "{wrong:?}: {}", refused.said());
    }
}

/// Replicas, tensor parallelism and a pipeline at once: 4 stages of 8 ranks.
#[test]
fn what_is_slow_is_named_in_jobs_with_pipelines() {
    let pipeline = ["--parallel", "dp=2,tp=4,pp=4"];
    let two_hosts = ["--parallel", "dp=8", "--host-ranks", "4"];
    for (common, slow, level) in [
        (&pipeline[..], "rank=17,ms=6", "rank"),
        (&pipeline[..], "comm=1,percent=100", "communicator"),
        (&pipeline[..], "link=3,percent=100", "link"),
        (&pipeline[..], "stage=1,percent=40", "stage"),
        (&two_hosts[..], "host=1,percent=20", "host"),
    ] {
        let (job, truth) = simulated("simulated-levels", &[common, &["--steps", "6", "--slow", slow][..]].concat());
        let found = analysis(&job);
        let verdict = &found["verdict"];
        assert_eq!(verdict["level"], level, "{slow}: {}", verdict["sentence"]);
        if level == "stage" {
            assert!(verdict["title"] == "UNEVEN STAGES: ranks 8–15" && verdict["kind"] == "undecided", "{verdict}");
            continue;
        }
        let mut causes: Vec<i64> = verdict["causes"].as_array().unwrap().iter().filter_map(Value::as_i64).collect();
        causes.sort_unstable();
        assert_eq!(Value::from(causes), truth["stragglers"][0]["ranks"], "{slow}: {}", verdict["sentence"]);
        let of = |end: &str| {
            let together = verdict[format!("together_delay_{end}")].as_i64();
            together.or(verdict[format!("step_delay_{end}")].as_i64()).unwrap()
        };
        let cost_ns = truth["together_cost_ns"].as_i64().unwrap();
        // What waits for the messages of a slow link is not all in the graph.
        let high_ns = if level == "link" { 2 * of("high_ns") } else { of("high_ns") };
        assert!((of("low_ns")..=high_ns).contains(&cost_ns), "{slow}: {cost_ns} ns; {}", verdict["sentence"]);
    }
}
