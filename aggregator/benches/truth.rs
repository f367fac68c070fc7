//! Compares the analysis of simulated jobs with their truth: verdict, cost of each cause, waits, clocks. `tests/bench/truth` says
//! when an answer is right.
//!
//! ```console
//! $ cargo bench -p aggregator --bench truth -- --list
//! $ cargo bench -p aggregator --bench truth -- FILE SEEDS [SCENARIO | PREFIX*]…
//! ```
//!
//! Runs the seeds 1 to SEEDS of each scenario on all cores, and appends a line of JSON to FILE for each run. Runs that FILE has
//! already are not run again. Jobs are simulated, analysed and judged in memory; of jobs that only files show, the files are
//! written for that long. Prints the counts of all chosen runs by kind. Exit code 1: a run failed.

use std::collections::BTreeMap;
use std::error::Error;
use std::fs::{File, OpenOptions};
use std::io::{ErrorKind, Write};
use std::path::Path;
use std::process::ExitCode;
use std::sync::Mutex;

use drawn::SimulatedSource;
use formats::kineto::KinetoSource;
use formats::run_source::RunSource;
use model::options::Options;
use model::source::Source;
use rayon::prelude::*;
use report_tables::json;
use serde_json::{Value, json};
use simulator::{Job, Scenario, Score, Simulated, all, describe, evened_saving_ns, find, judge, simulate, write};

/// A cause without a fault is innocent if a typical rank in its place would save less of a step, in thousandths.
const LEAST_SAVING_PERMILLE: i64 = 10;

fn main() -> Result<ExitCode, Box<dyn Error>> {
    // `cargo bench` adds `--bench`.
    let arguments: Vec<String> = std::env::args().skip(1).filter(|a| a != "--bench").collect();
    let (file, seeds, patterns) = match arguments.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        ["--list"] => {
            all().iter().for_each(|scenario| println!("{}\t{}", scenario.name, scenario.kind));
            return Ok(ExitCode::SUCCESS);
        }
        [file, seeds, ref patterns @ ..] => (Path::new(file), seeds.parse::<u64>()?, patterns.to_vec()),
        _ => return Err("usage: --list | FILE SEEDS [SCENARIO | PREFIX*]…".into()),
    };
    let cases = cases(&patterns, seeds)?;
    let mut results = read(file)?;
    let is_open = |(scenario, seed): &&(Scenario, u64)| !results.contains_key(&(scenario.name.into(), *seed));
    let open: Vec<&(Scenario, u64)> = cases.iter().filter(is_open).collect();
    println!("{} runs, {} of them in {} already", cases.len(), cases.len() - open.len(), file.display());
    let out = Mutex::new(OpenOptions::new().create(true).append(true).open(file)?);
    let (done, failed): (Vec<Value>, Vec<String>) =
        open.into_par_iter().with_max_len(1).map(|case| result(case, &out)).partition_map(|result| match result {
            Ok(result) => rayon::iter::Either::Left(result),
            Err(why) => rayon::iter::Either::Right(why),
        });
    results.extend(done.into_iter().map(|result| (key(&result), result)));
    print_by_kind(cases.iter().filter_map(|(scenario, seed)| results.get(&(scenario.name.into(), *seed))));
    failed.iter().for_each(|why| eprintln!("{why}"));
    Ok(if failed.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// The chosen scenarios, each with its seeds. Without a pattern, all that have an answer of their own.
fn cases(patterns: &[&str], seeds: u64) -> Result<Vec<(Scenario, u64)>, Box<dyn Error>> {
    let mut chosen = if patterns.is_empty() { all() } else { Vec::new() };
    for pattern in patterns {
        match pattern.strip_suffix('*') {
            Some(prefix) => chosen.extend(all().into_iter().filter(|scenario| scenario.name.starts_with(prefix))),
            None => chosen.push(find(pattern).ok_or_else(|| format!("there is no scenario {pattern}; see --list"))?),
        }
    }
    Ok(chosen.into_iter().flat_map(|scenario| (1..=seeds).map(move |seed| (scenario.clone(), seed))).collect())
}

/// The results that a file has. A killed run may have left part of a line, which is no result.
fn read(file: &Path) -> Result<BTreeMap<(String, u64), Value>, Box<dyn Error>> {
    let text = match std::fs::read_to_string(file) {
        Err(why) if why.kind() == ErrorKind::NotFound => return Ok(BTreeMap::new()),
        text => text?,
    };
    if !text.is_empty() && !text.ends_with('\n') {
        OpenOptions::new().append(true).open(file)?.write_all(b"\n")?;
    }
    let results: Vec<Value> = text.lines().filter_map(|line| serde_json::from_str(line).ok()).collect();
    let others = text.lines().count() - results.len();
    if others > 0 {
        println!("{others} lines of {} are no results", file.display());
    }
    Ok(results.into_iter().map(|result| (key(&result), result)).collect())
}

fn key(result: &Value) -> (String, u64) {
    (result["name"].as_str().unwrap_or_default().into(), result["seed"].as_u64().unwrap_or_default())
}

/// Runs a case and appends its result.
fn result((scenario, seed): &(Scenario, u64), out: &Mutex<File>) -> Result<Value, String> {
    let run = || -> Result<Value, Box<dyn Error>> {
        let job = scenario.job(*seed);
        let truth = simulate(&job, *seed)?;
        let analysis = analysis(&job, &truth)?;
        let result = scored(scenario, &job, &truth, &analysis)?;
        let mut out = out.lock().map_err(|_| "another run has panicked")?;
        out.write_all(format!("{result}\n").as_bytes())?;
        Ok(result)
    };
    run().map_err(|why| format!("{}, seed {seed}: {why}", scenario.name))
}

/// The analysis of a job, as `analyze --json --full` prints it.
fn analysis(job: &Job, truth: &Simulated) -> Result<Value, Box<dyn Error>> {
    let directory = tempfile::tempdir()?;
    let source: Box<dyn Source> = match SimulatedSource::of(job, truth) {
        Some(source) => Box::new(source),
        None => {
            write(job, truth, directory.path())?;
            if job.is_recorded {
                Box::new(RunSource::open(directory.path())?)
            } else {
                Box::new(KinetoSource::open(&[directory.path().into()])?)
            }
        }
    };
    let mut document = Vec::new();
    json::render(&pipeline::analyze(&*source, &Options::default(), &|_, _| {})?, usize::MAX, &mut document)?;
    Ok(serde_json::from_slice(&document)?)
}

/// Truth, answer and judgement.
fn scored(scenario: &Scenario, job: &Job, truth: &Simulated, analysis: &Value) -> Result<Value, Box<dyn Error>> {
    let score = judge(&scenario.expected, job, truth, analysis)?;
    let clocks: Vec<Value> = score
        .clocks
        .iter()
        .map(|c| {
            json!({
                "rank": c.rank, "clock": c.clock, "off_ns": c.off_ns,
                "error_ns": c.error_ns, "bias_ns": c.bias_ns, "bound_ns": c.bound_ns,
            })
        })
        .collect();
    Ok(json!({
        "name": scenario.name,
        "kind": scenario.kind,
        "seed": truth.seed,
        "job": describe(job),
        "expected": format!("{:?}", scenario.expected),
        "truth": {
            "step_ns": truth.step_ns,
            "alone_ns": truth.alone_ns,
            "together_ns": truth.together_ns,
            "waits_ns": truth.outcome.waits_ns,
        },
        "answer": {
            "kind": score.said,
            "causes": score.causes,
            "innocent": innocent(scenario, job, truth, &score)?,
            "in_interval": score.in_interval,
            "suspects": score.suspects,
            "step_ns": analysis["verdict"]["step_ns"],
            "waits_ns": score.waits_ns,
            "clocks": clocks,
            "sentence": analysis["verdict"]["sentence"],
        },
        "verdict": score.is_verdict_right,
        "cost": score.is_cost_right,
        "waits": score.is_waits_right,
        "clocks": score.is_clocks_right,
        "right": score.is_right(),
    }))
}

/// The causes that are none: without a fault, and typical ranks in their place would save next to nothing, neither alone nor beside
/// those in the place of all other causes.
fn innocent(scenario: &Scenario, job: &Job, truth: &Simulated, score: &Score) -> Result<Vec<i64>, Box<dyn Error>> {
    let all: Vec<usize> = score.causes.iter().map(|(rank, _)| *rank as usize).collect();
    let mut innocent = Vec::new();
    for (rank, _) in &score.causes {
        let may_be =
            scenario.expected.ranks().iter().any(|of| i64::from(*of) == *rank) || job.has_fault(*rank as usize);
        if may_be {
            continue;
        }
        let others: Vec<usize> = all.iter().copied().filter(|other| *other != *rank as usize).collect();
        let alone_ns = evened_saving_ns(job, truth, &[*rank as usize])?;
        let beside_ns = evened_saving_ns(job, truth, &all)? - evened_saving_ns(job, truth, &others)?;
        if alone_ns.max(beside_ns) * 1000 < LEAST_SAVING_PERMILLE * truth.step_ns {
            innocent.push(*rank);
        }
    }
    Ok(innocent)
}

/// The counts of the runs of a kind.
#[derive(Default)]
struct Counts {
    runs: usize,
    right: usize,
    /// Right and judged, of each part.
    parts: [(usize, usize); 4],
    /// Intervals that hold the truth, and all.
    intervals: (u64, u64),
    /// Runs that name an innocent rank.
    innocent: usize,
    /// Runs without a fault, by the word of their verdict.
    clean: BTreeMap<String, usize>,
}

impl Counts {
    fn add(&mut self, result: &Value) {
        let answer = &result["answer"];
        self.runs += 1;
        self.right += usize::from(result["right"] == true);
        for (part, name) in self.parts.iter_mut().zip(["verdict", "cost", "waits", "clocks"]) {
            part.0 += usize::from(result[name] == true);
            part.1 += usize::from(result[name].is_boolean());
        }
        let interval = |at: usize| answer["in_interval"][at].as_u64().unwrap_or_default();
        self.intervals = (self.intervals.0 + interval(0), self.intervals.1 + interval(1));
        self.innocent += usize::from(answer["innocent"].as_array().is_some_and(|ranks| !ranks.is_empty()));
        if result["truth"]["alone_ns"].as_array().is_some_and(Vec::is_empty) {
            *self.clean.entry(answer["kind"].as_str().unwrap_or_default().into()).or_default() += 1;
        }
    }

    fn line(&self) -> String {
        let part = |(right, of): (usize, usize)| if of > 0 { format!("{right}/{of}") } else { "-".into() };
        let cells: Vec<String> = self.parts.map(part).map(|cell| format!("{cell:>9}")).into();
        let clean: Vec<String> = self.clean.iter().map(|(word, runs)| format!("{word} {runs}")).collect();
        let (held, stated) = self.intervals;
        let right = format!("{}/{}", self.right, self.runs);
        let interval = if stated > 0 { format!("{held}/{stated}") } else { "-".into() };
        format!("{right:>9} {} {interval:>9} {:>8}  {}", cells.join(" "), self.innocent, clean.join(", "))
    }
}

fn print_by_kind<'a>(results: impl Iterator<Item = &'a Value>) {
    let (mut kinds, mut sum) = (BTreeMap::<&str, Counts>::new(), Counts::default());
    for result in results {
        kinds.entry(result["kind"].as_str().unwrap_or_default()).or_default().add(result);
        sum.add(result);
    }
    println!(
        "{:22} {:>9} {:>9} {:>9} {:>9} {:>9} {:>9} {:>8}  without a fault",
        "kind", "right", "verdict", "cost", "waits", "clocks", "interval", "innocent"
    );
    for (kind, counts) in kinds.iter().chain([(&"all", &sum)]) {
        println!("{kind:22} {}", counts.line());
    }
}
