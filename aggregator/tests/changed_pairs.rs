//! `diff` of simulated pairs of runs: the rank that became slower is named, and equal runs fail no gate.

#![expect(clippy::unwrap_used, reason = "tests may, and their helpers too")]

use diff::{Diff, Heading, Method, Place as Named};
use drawn::SimulatedSource;
use model::options::Options;
use pipeline::diff::diff;
use rayon::prelude::*;
use simulator::{Fault, Job, MS, Place, Shape, What, When, simulate};

/// Pairs of each kind and size. More of them make a table of how often each is found.
fn seeds() -> u64 {
    std::env::var("RANKSCOPE_PAIRS").ok().and_then(|pairs| pairs.parse().ok()).unwrap_or(2)
}

/// Sizes of a fault, in percent of a step of about 14 ms. Those from [`CERTAIN_PCT`] on must be found.
const SIZES_PCT: [i64; 5] = [2, 5, 10, 20, 40];
const CERTAIN_PCT: i64 = 10;
/// The share of the certain ones that must be found at their rank, and that of all that may be said of another one.
const LEAST_FOUND: f64 = 0.95;
/// The rank that becomes slow.
const SLOW: usize = 3;
/// A change of this share of a step fails a gate.
const GATE_PCT: f64 = 5.0;

fn job() -> Job {
    Job { steps: 20, host_ranks: 4, ..Job::new(Shape::Ddp, 8) }
}

fn compared(a: &Job, b: &Job, seed: u64) -> Diff {
    let source = |job: &Job, seed: u64| SimulatedSource::of(job, &simulate(job, seed).unwrap()).unwrap();
    let (a, b) = (source(a, seed), source(b, 1_000 + seed));
    diff(&[&a], &[&b], &Options::default(), &Method::default(), &|_, _| ()).unwrap()
}

fn fails(diff: &Diff) -> bool {
    diff.slower_than(GATE_PCT).any(|row| diff.is_proof(row))
}

/// A fault of rank 3 that takes about this share of a step.
type Kind = fn(i64) -> Job;

const KINDS: [(&str, Kind); 5] = [
    ("pause in the forward pass", |pct| job().pause(SLOW, pct * 14 * MS / 100, Place::Forward)),
    ("pause in the input", |pct| job().pause(SLOW, pct * 14 * MS / 100, Place::Input)),
    ("slow device", |pct| job().fault(Fault::of([SLOW], What::SlowDevice(10 * pct)))),
    ("every fourth step", |pct| {
        let when = When::Cycle { period: 4, first: 1, length: 1 };
        job().pauses([SLOW], 4 * pct * 14 * MS / 100, Place::Forward, when)
    }),
    ("from the middle on", |pct| job().pauses([SLOW], 2 * pct * 14 * MS / 100, Place::Forward, When::During(10..20))),
];

#[test]
fn the_rank_that_became_slower_is_named() {
    let (mut wrong, mut certain, mut found) = (Vec::new(), 0, 0);
    for (kind, of) in KINDS {
        let mut power = Vec::new();
        for pct in SIZES_PCT {
            let all: Vec<Diff> = (1..=seeds()).into_par_iter().map(|seed| compared(&job(), &of(pct), seed)).collect();
            let place = |diff: &Diff| diff.verdict.row.map(|row| diff.rows[row].place);
            let is_named =
                |diff: &&Diff| diff.heading() == Heading::Slower && place(diff) == Some(Named::Rank(SLOW as i32));
            let named = all.iter().filter(is_named).count();
            let of_others = |diff: &&Diff| matches!(place(diff), Some(Named::Rank(rank)) if rank != SLOW as i32);
            wrong
                .extend(all.iter().filter(of_others).map(|diff| format!("{kind}, {pct} %: {}", diff.verdict.sentence)));
            power.push(format!("{pct} %: {named} named, {} fail", all.iter().filter(|diff| fails(diff)).count()));
            if pct >= CERTAIN_PCT {
                (certain, found) = (certain + all.len(), found + named);
            }
        }
        println!("{kind}, of {}: {}", seeds(), power.join("; "));
    }
    assert_eq!(wrong, [""; 0]);
    assert!(found as f64 >= LEAST_FOUND * certain as f64, "{found} of {certain}");
}

/// Invariant (verdicts): Two equal runs fail no gate of `diff`.
#[test]
fn equal_runs_fail_no_gate() {
    let pairs = 10 * seeds();
    let wrong: Vec<String> = (1..=pairs)
        .into_par_iter()
        .map(|seed| compared(&job(), &job(), seed))
        .filter(fails)
        .map(|diff| diff.verdict.sentence)
        .collect();
    assert!(100 * wrong.len() as u64 <= pairs, "{} of {pairs}: {wrong:?}", wrong.len());
}
