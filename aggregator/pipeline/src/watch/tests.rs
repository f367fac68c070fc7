//! Watches of simulated jobs, whose time passes as fast as they can be read.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::time::Duration;

use fixtures::growing::Growing;
use simulator::{Job, MS, NOISES, Noise, Place, Shape, simulate, write};

use super::*;

/// A recorder closes a part every 2 s, and a watch looks every 2 s.
const PERIOD_NS: i64 = 2_000 * MS;

/// A job of four ranks with steps of about 140 ms.
fn job(noise: Noise, sigma: f64, steps: usize) -> Job {
    let slow = |ns: i64| 10 * ns;
    let job = Job::new(Shape::Gloo, 4);
    let (layer_ns, transfer_ns, input_ns) = (slow(job.layer_ns), slow(job.transfer_ns), slow(job.input_ns));
    Job { noise, sigma, steps, layer_ns, transfer_ns, input_ns, is_recorded: true, ..job }
}

fn simulated(job: &Job, seed: u64, directory: &Path) -> PathBuf {
    let run = directory.join(format!("{seed}-{}", job.faults.len()));
    write(job, &simulate(job, seed).unwrap(), &run).unwrap();
    run
}

/// Watches `runs`, one after the other, and returns the changes with their times in s.
fn watched(runs: &[PathBuf], directory: &Path) -> Vec<(f64, Event)> {
    let path = directory.join("growing");
    let mut growing = Growing::begin(runs, &path, PERIOD_NS).unwrap();
    let mut watch = Watch::new(&path);
    let mut seen = Vec::new();
    let mut most_held = 0;
    // A watch begins at any time between two parts.
    let mut now_ns = PERIOD_NS / 2;
    while now_ns < growing.length_ns {
        growing.write_until(now_ns).unwrap();
        let events = watch.refresh(Duration::from_nanos(now_ns as u64)).unwrap();
        seen.extend(events.into_iter().map(|event| (now_ns as f64 / 1e9, event)));
        watch.forget();
        let held = watch.growing.as_mut().map_or(0, |growing| growing.excerpt().shards(0, "events").len());
        most_held = held.max(most_held);
        now_ns += PERIOD_NS;
    }
    growing.end().unwrap();
    for _ in 0..2 {
        let last = watch.refresh(Duration::from_nanos(now_ns as u64)).unwrap();
        seen.extend(last.into_iter().map(|event| (now_ns as f64 / 1e9, event)));
        now_ns += PERIOD_NS;
    }
    assert!(most_held <= 7, "{most_held} parts are held");
    assert_eq!(seen.first().map(|(_, event)| event), Some(&Event::Began));
    assert_eq!(seen.last().map(|(_, event)| event), Some(&Event::Ended));
    seen
}

/// Invariant (watch): `watch` names a slow rank in time, and clears it.
///
/// ```text
///  steps   0 … 299   300 … 599      600 … 899
///  rank 2            30 ms longer
///  alarm                  !!!!!!!!!!!!
/// ```
#[test]
fn a_slow_rank_is_named_and_cleared_in_time() {
    let directory = tempfile::tempdir().unwrap();
    let clean = job(Noise::Normal, 0.02, 300);
    let slow = clean.clone().pause(2, 30 * MS, Place::Forward);
    let runs = [(&clean, 1), (&slow, 2), (&clean, 3)].map(|(job, seed)| simulated(job, seed, directory.path()));
    let length_s = |run: &PathBuf| {
        let run = trace::Run::open(run).unwrap();
        let steps = run.rows::<StepRow>(0).0;
        (steps.last().unwrap().end_ns - steps[0].start_ns) as f64 / 1e9
    };
    let (onset_s, end_s) = (length_s(&runs[0]), length_s(&runs[0]) + length_s(&runs[1]));
    let seen = watched(&runs, directory.path());
    let [(_, Event::Began), (named_s, Event::Slow(ranks)), (cleared_s, Event::Cleared(cleared)), (_, Event::Ended)] =
        &seen[..]
    else {
        panic!("{seen:?}");
    };
    println!("named after {:.1} s, cleared after {:.1} s", named_s - onset_s, cleared_s - end_s);
    assert_eq!((ranks[0].identity.rank, ranks.len(), &cleared[..]), (2, 1, &[2][..]));
    assert_eq!(ranks[0].identity.words(), ["node0", "pid 1002"]);
    assert!(ranks[0].location.contains("preprocess"), "{}", ranks[0].location);
    // The first window has steps from before the onset, and the delay is the mean over all.
    assert!((10..=31).contains(&(ranks[0].step_delay_ns / MS)), "{} ns", ranks[0].step_delay_ns);
    assert!((0.0..15.0).contains(&(named_s - onset_s)) && (0.0..30.0).contains(&(cleared_s - end_s)), "{seen:?}");
}

/// Invariant (watch): `watch` raises no alarm for a clean job.
///
/// A minute of each noise. The ranks of `Hardware` are not alike, so one of them may be slow.
#[test]
fn a_clean_job_raises_no_alarm() {
    let mut minutes = 0.0;
    for (seed, noise) in (10..).zip(NOISES.into_iter().filter(|noise| *noise != Noise::Hardware)) {
        let directory = tempfile::tempdir().unwrap();
        let run = simulated(&job(noise, 0.05, steps_of_a_noise()), seed, directory.path());
        let seen = watched(&[run], directory.path());
        let changes: BTreeSet<String> = seen.iter().map(|(_, event)| format!("{event:?}")).collect();
        assert_eq!(changes.into_iter().collect::<Vec<_>>(), ["Began", "Ended"], "{noise:?}");
        minutes += seen.last().map_or(0.0, |(s, _)| *s) / 60.0;
    }
    println!("{minutes:.0} minutes without an alarm");
}

/// RANKSCOPE_WATCH_STEPS=2600 makes it an hour.
fn steps_of_a_noise() -> usize {
    std::env::var("RANKSCOPE_WATCH_STEPS").ok().and_then(|steps| steps.parse().ok()).unwrap_or(400)
}

/// A run begins as a directory with temporary and hidden files. Traces never become one.
#[test]
fn a_directory_that_may_become_a_run_is_waited_for() {
    let directory = tempfile::tempdir().unwrap();
    let mut watch = Watch::new(directory.path());
    for name in [".rankscope-secret", "run.json.rankscope-12-0.tmp"] {
        std::fs::write(directory.path().join(name), "").unwrap();
        watch.refresh(Duration::ZERO).unwrap();
        assert!(matches!(watch.state().phase, Phase::Waiting(_)), "{name}");
    }
    std::fs::write(directory.path().join("rank0.json.gz"), "").unwrap();
    let error = watch.refresh(Duration::ZERO).unwrap_err().to_string();
    assert!(error.contains("only a run can be watched"), "{error}");
}
