//! Simulated jobs whose truth is known: verdict, cost, waits and clocks must be right. `tests/bench/truth` measures all
//! scenarios; these are right today.

use std::fs;
use std::path::Path;

use fixtures::data::{folder_of_several_communicators, real_traces};
use serde_json::Value;
use simulator::{find, judge, simulate, write};

use crate::support::{aggregator, scratch};

const SEED: u64 = 1;
const RIGHT: &[&str] = &[
    "ddp-pause",
    "gloo-pause-wait-rows",
    "hidden-before-optimizer",
    "tp2dp4-pause",
    "two-equal",
    "slow-tp-group",
    "leaves-late",
    "experts-hot",
    "rooted-root-pause",
    "windows-differ-without-seq",
    "clean-normal",
    "clock-bend-10",
    "ping-drift",
    "ping-bend-1-every-15-s",
];

/// Invariant (verdicts): Answers about simulated jobs are true in verdict, cost, waits and clocks. `tests/bench/truth`
/// measures them for all scenarios.
#[test]
fn the_answers_about_simulated_jobs_are_true() {
    for name in RIGHT {
        let scenario = find(name).unwrap();
        let job = scenario.job(SEED);
        let truth = simulate(&job, SEED).unwrap();
        let input = scratch(&format!("truth-{name}"));
        write(&job, &truth, &input).unwrap();
        let finished = aggregator(&[Path::new("analyze"), Path::new("--json"), input.as_path()]);
        let analysis =
            serde_json::from_str(&finished.stdout).unwrap_or_else(|e| panic!("{name}: {e}: {}", finished.said()));
        let score = judge(&scenario.expected, &job, &truth, &analysis).unwrap();
        let (held, stated) = score.in_interval;
        assert_eq!(held, stated, "{name}: the interval of a delay does not hold {:?}: {score:#?}", truth.alone_ns);
        assert!(
            score.is_right(),
            "{name}: {score:#?}, true cost {:?}, waits {}",
            truth.alone_ns,
            truth.outcome.waits_ns
        );
    }
}

#[test]
fn a_seed_gives_the_same_traces() {
    let job = find("tp2dp4-pause").unwrap().job(SEED);
    let write_seed = |seed: u64, name: &str| {
        let directory = scratch(name);
        write(&job, &simulate(&job, seed).unwrap(), &directory).unwrap();
        (0..job.ranks).map(|rank| fs::read(directory.join(format!("rank{rank}.json"))).unwrap()).collect::<Vec<_>>()
    };
    let first = write_seed(SEED, "truth-seed");
    assert_eq!(first, write_seed(SEED, "truth-seed-again"));
    assert_ne!(first, write_seed(SEED + 1, "truth-seed-other"));
}

/// Real jobs whose compute is a pause, so that what is planted costs what it should on few cores. The steps of d3_slow5_fwd are 137 ms
/// longer than those of d3_clean. For the others, no clean job was recorded: they cost no more than their pauses.
#[test]
#[ignore = "reads real traces"]
fn real_jobs_of_several_communicators_have_the_planted_cause() {
    const MS: i64 = 1_000_000;
    for (name, rank, cost_ms) in [
        ("d3_clean", None, 0..=0),
        ("d3_slow5_fwd", Some(5), 137..=240),
        ("pp2dp4_slow3_opt", Some(3), 0..=60),
        ("fsdp4_slow1", Some(1), 0..=240),
    ] {
        let folder = folder_of_several_communicators(name);
        let finished = aggregator(&[Path::new("analyze"), Path::new("--json"), folder.as_path()]);
        let analysis: Value =
            serde_json::from_str(&finished.stdout).unwrap_or_else(|e| panic!("{name}: {e}: {}", finished.said()));
        let verdict = &analysis["verdict"];
        let causes: Vec<i64> = verdict["causes"].as_array().unwrap().iter().filter_map(Value::as_i64).collect();
        assert_eq!(causes, Vec::from_iter(rank), "{name}: {}", verdict["sentence"]);
        if rank.is_some() {
            let of = |key: &str| verdict[key].as_i64().unwrap();
            let (low_ns, high_ns) = (of("step_delay_low_ns"), of("step_delay_high_ns"));
            let holds = low_ns <= cost_ms.end() * MS && cost_ms.start() * MS <= high_ns;
            assert!(holds, "{name}: {low_ns} to {high_ns} ns, and the cost is {cost_ms:?} ms");
        }
    }
}

/// The jobs of `truth`, beside the real traces: each names the ranks at fault and what they cost. Of the two that ask what another
/// setting saves, the page of one and the refusal of the other are tested too.
#[test]
#[ignore = "reads real traces"]
fn jobs_beside_the_real_traces_are_answered_as_their_truth_says() {
    let folder = real_traces().join("../truth");
    let mut jobs: Vec<_> = fs::read_dir(&folder).unwrap().map(|entry| entry.unwrap().path()).collect();
    jobs.retain(|job| job.join("truth.json").is_file());
    jobs.sort();
    assert_eq!(jobs.len(), 10, "{jobs:?}");
    for job in &jobs {
        let truth: Value = serde_json::from_slice(&fs::read(job.join("truth.json")).unwrap()).unwrap();
        let finished = aggregator(&[Path::new("analyze"), Path::new("--json"), job]);
        let found: Value = serde_json::from_str(&finished.stdout).unwrap();
        let verdict = &found["verdict"];
        let (mut causes, culprits) = (integers(&verdict["causes"]), integers(&truth["culprits"]));
        causes.sort_unstable();
        assert_eq!(causes, culprits, "{}: {}", job.display(), verdict["sentence"]);
        let Some(lost_ms) = truth["lost_ms"].as_f64() else { continue };
        let (cost_ms, interval_ms) =
            if culprits.is_empty() { (early_gathers_ms(&found), None) } else { cost_ms(&found, &culprits) };
        let may_miss_ms = (0.2 * lost_ms).max(0.01 * truth["step_ms"].as_f64().unwrap());
        assert!((cost_ms - lost_ms).abs() <= may_miss_ms, "{}: {cost_ms} ms, in truth {lost_ms}", job.display());
        let holds = interval_ms.is_none_or(|(low_ms, high_ms)| low_ms <= lost_ms && lost_ms <= high_ms);
        assert!(holds, "{}: {interval_ms:?}, in truth {lost_ms}", job.display());
    }
    let what_if = |job: &str, options: &[&str]| {
        let job = folder.join(job);
        aggregator(&[&["what-if", job.to_str().unwrap()], options].concat())
    };
    let scaled = what_if("n-two-communicators-back-to-back", &["--comm-scale", "0.5", "--json"]);
    let saved_ns = serde_json::from_str::<Value>(&scaled.stdout).unwrap()["changes"][0]["saved_ns"].as_f64().unwrap();
    assert!((saved_ns / 1e6 - 0.71).abs() < 0.04, "{saved_ns}");
    what_if("o-buckets", &["--bucket-mb", "4"]).expect_code(1);
}

fn integers(values: &Value) -> Vec<i64> {
    values.as_array().unwrap().iter().filter_map(Value::as_i64).collect()
}

/// The time that these ranks take of a step by the account, and the interval of the verdict.
fn cost_ms(found: &Value, culprits: &[i64]) -> (f64, Option<(f64, f64)>) {
    let rows = found["tables"]["lost_time"].as_array().unwrap();
    let of_culprits = rows.iter().filter(|row| row["rank"].as_i64().is_some_and(|rank| culprits.contains(&rank)));
    let sum_ns: i64 = of_culprits.filter_map(|row| row["ns"].as_i64()).sum();
    let verdict = &found["verdict"];
    let of = |key: &str| verdict["together_delay_".to_owned() + key].as_f64();
    let end_ms = |key: &str| of(key).or(verdict["step_delay_".to_owned() + key].as_f64()).unwrap() / 1e6;
    let steps = verdict["steps"].as_f64().unwrap();
    (sum_ns as f64 / steps / 1e6, Some((end_ms("low_ns"), end_ms("high_ns"))))
}

/// The time of a step that earlier all-gathers save.
fn early_gathers_ms(found: &Value) -> f64 {
    let findings = found["tables"]["findings"].as_array().unwrap();
    let late = findings.iter().find(|row| row["id"] == "late-all-gathers").unwrap();
    late["saving_ns"].as_f64().unwrap() / 1e6
}
