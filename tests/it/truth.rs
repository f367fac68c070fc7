//! Simulated jobs whose truth is known: verdict, cost, waits and clocks must be right. `tests/bench/truth` measures all
//! scenarios; these are right today.

use std::fs;
use std::path::Path;

use fixtures::simulator::{find, judge, simulate, write};

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
        let score = judge(&scenario.expected, &job, &truth, &analysis);
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
