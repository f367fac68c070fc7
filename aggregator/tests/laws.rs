//! Laws that hold for what every answer says, on every input that there is and on drawn jobs.
//!
//! They are tested on claims and tables and never on words:
//!
//! ```text
//!   unknown is no zero     a claim about a quantity that few rows know says that it is unknown; a length is not negative, a share is
//!                          0 to 100 %, an interval is not inverted
//!   no contradiction       no two shown claims exclude each other or explain the same time, and the verdict yields to nothing
//!   evidence               the rows that a claim names are in its table
//!   sums                   the parts of a step are its length; what hosts do while a device idles is no longer than that
//!   ingest                 a run that was made of files of another tool has their tables, row for row, file names aside
//! ```

#![expect(clippy::unwrap_used, reason = "tests may, and their helpers too")]

use std::collections::{BTreeMap, BTreeSet};
use std::env;
use std::fs;
use std::path::{Path, PathBuf};

use drawn::{SimulatedSource, check_source};
use fixtures::data::{places, real_traces};
use formats::format::OpenOptions;
use formats::ingest::ingest;
use formats::input::{Input, resolve};
use formats::run_source::RunSource;
use model::analysis::Analysis;
use model::claim::exclusions::contradictions;
use model::claim::{Advice, Claim, Relation};
use model::options::Options;
use model::units::ns;
use serde_json::Value;
use simulator::{Job, Shape, all as scenarios, find, simulate, write};
use trace::{Op, StepBreakdownRow};

/// What was checked, and what broke a law.
#[derive(Debug, Default)]
struct Checked {
    inputs: usize,
    claims: usize,
    ingested: usize,
    broken: Vec<String>,
}

impl Checked {
    fn input(&mut self, name: &str, paths: &[PathBuf]) {
        let Some(analysis) = analyzed(paths) else {
            println!("{name}: no analysis");
            return;
        };
        self.analysis(name, &analysis);
        let run = scratch(&format!("ingested-{name}"));
        let is_run = matches!(resolve(paths.to_vec()), Ok(Input::Run(_)));
        if !is_run {
            self.ingested += 1;
            ingest(paths, &run, &|_, _| ()).unwrap();
            let again = analyzed(std::slice::from_ref(&run)).unwrap();
            let changed = differences(&analysis, &again).into_iter().chain(lacking_omissions(&analysis, &again));
            self.broken.extend(changed.map(|what| format!("{name}: ingest changes {what}")));
        }
        fs::remove_dir_all(&run).unwrap();
    }

    /// A simulated job in memory has the analysis of its traces.
    fn in_memory(&mut self, name: &str, source: &SimulatedSource, files: &Analysis) {
        check_source(source);
        let analysis = pipeline::analyze(source, &Options::default(), &|_, _| ()).unwrap();
        let verdict = (analysis.verdict != files.verdict).then(|| format!("the verdict: {:?}", analysis.verdict));
        let found = differences(files, &analysis).into_iter().chain(verdict);
        self.broken.extend(found.map(|what| format!("{name}: in memory differs {what}")));
    }

    fn analysis(&mut self, name: &str, analysis: &Analysis) {
        self.inputs += 1;
        self.claims += analysis.claims.len();
        let tables = serde_json::to_value(&analysis.tables).unwrap();
        let laws = [
            analysis.claims.iter().filter_map(Claim::fault).collect(),
            contradictions(&analysis.claims),
            verdicts_that_yield(analysis),
            comparisons_of_one_rank(analysis),
            findings_without_claim(analysis),
            missing_evidence(analysis, &tables),
            analysis.tables.step_breakdown.iter().filter_map(sums).collect(),
            causes_beyond_idle_time(analysis),
            impossible_numbers(&tables),
        ];
        self.broken.extend(laws.concat().into_iter().map(|broken| format!("{name}: {broken}")));
    }

    /// Fails with all that broke a law.
    fn finish(self, what: &str) {
        println!("{what}: {} inputs, {} claims, {} ingested", self.inputs, self.claims, self.ingested);
        assert!(self.inputs > 0, "nothing was checked");
        let shown: Vec<&str> = self.broken.iter().take(40).map(String::as_str).collect();
        assert!(self.broken.is_empty(), "{} laws are broken:\n{}", self.broken.len(), shown.join("\n"));
    }
}

/// The analysis of files or of a run; `None` if it has no rank, which is an answer too.
fn analyzed(paths: &[PathBuf]) -> Option<Analysis> {
    let done = |_, _| ();
    match resolve(paths.to_vec()).ok()? {
        Input::Run(run) => pipeline::analyze(&RunSource::open(&run).ok()?, &Options::default(), &done).ok(),
        Input::Files(files) => {
            pipeline::analyze(&*files.open(OpenOptions::default()).ok()?, &Options::default(), &done).ok()
        }
    }
}

/// The tables in which two analyses differ, but for names of files. Omissions are compared apart: a run sums those of a rank.
fn differences(files: &Analysis, run: &Analysis) -> Vec<String> {
    let comparable = |analysis: &Analysis| {
        let mut tables = serde_json::to_value(&analysis.tables).unwrap();
        let tables = tables.as_object_mut().unwrap();
        tables.remove("omissions");
        for row in tables.values_mut().flat_map(|rows| rows.as_array_mut().unwrap()) {
            row.as_object_mut().unwrap().remove("file");
        }
        tables.clone()
    };
    let (files, run) = (comparable(files), comparable(run));
    let differs = |(table, rows): (&String, &Value)| {
        let (one, other) = (rows.as_array()?, run.get(table)?.as_array()?);
        let at = one.iter().zip(other).position(|(a, b)| a != b).unwrap_or(one.len().min(other.len()));
        (one != other).then(|| {
            format!(
                "{table} ({} and {} rows), row {at}: {:?} and {:?}",
                one.len(),
                other.len(),
                one.get(at),
                other.get(at)
            )
        })
    };
    files.iter().filter_map(differs).collect()
}

/// The omissions that one of two analyses has, by kind, rank and item.
fn lacking_omissions(files: &Analysis, run: &Analysis) -> Vec<String> {
    let all = |analysis: &Analysis| -> BTreeSet<String> {
        let rows = analysis.tables.omissions.iter();
        rows.map(|row| format!("{} {} {:?}", row.kind, row.what, row.rank)).collect()
    };
    let (files, run) = (all(files), all(run));
    files.symmetric_difference(&run).map(|omission| format!("the omission {omission}")).collect()
}

/// Whether the claim is no finding: that of the verdict, or that of the line about what was left out.
fn is_at_the_head(claim: &Claim) -> bool {
    ["verdict", "omissions"].contains(&claim.by)
}

/// The verdict stands at the head of an answer, so nothing may be stronger.
fn verdicts_that_yield(analysis: &Analysis) -> Vec<String> {
    let yields = |claim: &&Claim| is_at_the_head(claim) && claim.yields_to.is_some();
    analysis.claims.iter().filter(yields).map(|claim| format!("the verdict yields: {claim:?}")).collect()
}

fn comparisons_of_one_rank(analysis: &Analysis) -> Vec<String> {
    let compares = |claim: &&Claim| claim.advice == Advice::CompareRanks && claim.yields_to.is_none();
    let one = analysis.facts.ranks.len() < 2;
    analysis.claims.iter().filter(|claim| one && compares(claim)).map(|claim| format!("one rank: {claim:?}")).collect()
}

/// The findings are the shown claims that are not the verdict's, in their order.
fn findings_without_claim(analysis: &Analysis) -> Vec<String> {
    let shown = analysis.claims.iter().filter(|claim| claim.yields_to.is_none() && !is_at_the_head(claim));
    let (claims, rows): (Vec<&str>, Vec<&str>) =
        (shown.map(|claim| claim.by).collect(), analysis.tables.findings.iter().map(|row| &*row.id).collect());
    if claims == rows { Vec::new() } else { vec![format!("findings {rows:?} of claims {claims:?}")] }
}

/// Claims whose evidence is in no row of their table.
fn missing_evidence(analysis: &Analysis, tables: &Value) -> Vec<String> {
    // Tables that are written late, and counters of the recorder, are not among those of an analysis in memory.
    let table_of = |claim: &Claim| tables.get(claim.evidence.table).and_then(Value::as_array);
    let lacks = |claim: &&Claim| {
        let evidence = &claim.evidence;
        table_of(claim).filter(|_| claim.relation != Relation::Absent).is_some_and(|rows| {
            let has = |row: &Value| {
                let is = |column: &str, wanted: Option<Value>| {
                    wanted.is_none_or(|wanted| row.get(column).is_none_or(|found| *found == wanted))
                };
                is("rank", evidence.rank.map(Value::from))
                    && is("device_id", evidence.device_id.map(Value::from))
                    && is("step", evidence.step.map(Value::from))
                    && is("name", evidence.name.clone().map(Value::from))
            };
            !rows.iter().any(has)
        })
    };
    analysis.claims.iter().filter(lacks).map(|claim| format!("no row shows {claim:?}")).collect()
}

/// What is wrong with the parts of a step.
fn sums(row: &StepBreakdownRow) -> Option<String> {
    let parts = [row.compute_ns, row.overlap_ns, row.exposed_comm_ns, row.memory_ns, row.idle_ns];
    let is_whole = parts.iter().sum::<i64>() == row.wall_ns && parts.iter().all(|part| *part >= 0);
    let known = row.overhead_ns >= 0 && row.unknown_ns >= 0 && row.overhead_ns + row.unknown_ns <= row.idle_ns;
    let waits = row.exposed_wait_ns.is_none_or(|wait| (0..=row.exposed_comm_ns).contains(&wait));
    (!(is_whole && known && waits)).then(|| format!("the parts are not the step: {row:?}"))
}

/// Ranks with one device on which the hosts' rows have more idle time than the device has.
fn causes_beyond_idle_time(analysis: &Analysis) -> Vec<String> {
    let mut idle_ns: BTreeMap<i32, BTreeMap<i64, i64>> = BTreeMap::new();
    for row in analysis.tables.step_breakdown.iter().filter(|row| row.step.is_some_and(|step| step >= 0)) {
        if let Some(device) = row.device_id {
            let of_device = idle_ns.entry(row.rank).or_default().entry(device).or_default();
            *of_device = of_device.saturating_add(row.idle_ns - row.overhead_ns - row.unknown_ns);
        }
    }
    let mut caused_ns: BTreeMap<i32, i64> = BTreeMap::new();
    for row in &analysis.tables.idle_causes {
        let of_rank = caused_ns.entry(row.rank).or_default();
        *of_rank = of_rank.saturating_add(row.idle_ns).saturating_add(row.graph_ns);
    }
    let is_beyond = |rank: &i32, caused_ns: i64| {
        let devices = idle_ns.get(rank).filter(|devices| devices.len() == 1)?;
        let idle_ns = *devices.values().next()?;
        (caused_ns > idle_ns)
            .then(|| format!("rank {rank} idles for {}, its hosts' rows say {}", ns(idle_ns), ns(caused_ns)))
    };
    caused_ns.iter().filter_map(|(rank, ns)| is_beyond(rank, *ns)).collect()
}

/// Shares beyond 0 to 100 %, and inverted intervals.
fn impossible_numbers(tables: &Value) -> Vec<String> {
    let mut found = Vec::new();
    for (table, rows) in tables.as_object().unwrap() {
        for row in rows.as_array().unwrap() {
            let row = row.as_object().unwrap();
            let number = |column: &str| row.get(column).and_then(Value::as_f64);
            for (column, value) in row.iter().filter_map(|(column, value)| Some((column, value.as_f64()?))) {
                // Work beyond the stated peak, and growth, are more than 100 %.
                let is_share = column.ends_with("_pct") && !column.contains("peak") && !column.contains("change");
                if is_share && !(-1e-6..=100.0 + 1e-6).contains(&value) {
                    found.push(format!("{table}.{column} is {value}"));
                }
                let high = column.contains("_low_").then(|| number(&column.replace("_low_", "_high_"))).flatten();
                if high.is_some_and(|high| high < value) {
                    found.push(format!("{table}.{column}: {value} to {high:?}"));
                }
            }
        }
    }
    found
}

fn folders(place: &Path) -> Vec<PathBuf> {
    let mut all: Vec<PathBuf> = fs::read_dir(place).unwrap().map(|entry| entry.unwrap().path()).collect();
    all.retain(|path| path.is_dir());
    all.sort();
    all
}

fn name(path: &Path) -> String {
    path.file_name().unwrap().to_string_lossy().into_owned()
}

/// A place for the files of drawn jobs.
fn scratch(name: &str) -> PathBuf {
    let place = Path::new(env!("CARGO_TARGET_TMPDIR")).join("laws").join(name);
    let _ = fs::remove_dir_all(&place);
    fs::create_dir_all(&place).unwrap();
    place
}

fn simulated(checked: &mut Checked, scenario: &str, seed: u64) {
    let job = find(scenario).unwrap().job(seed);
    let (name, place) = (format!("{scenario} {seed}"), scratch(&format!("{scenario}-{seed}")));
    let truth = simulate(&job, seed).unwrap();
    write(&job, &truth, &place).unwrap();
    checked.input(&name, std::slice::from_ref(&place));
    if let Some(source) = SimulatedSource::of(&job, &truth) {
        checked.in_memory(&name, &source, &analyzed(std::slice::from_ref(&place)).unwrap());
    }
    fs::remove_dir_all(&place).unwrap();
}

/// Invariant (sentences): No two claims of an answer exclude each other or explain the same time, none is about a quantity that few
/// rows know, each has its evidence, and the parts of a step are its length.
#[test]
fn the_small_inputs_keep_the_laws() {
    let inputs = Path::new(env!("CARGO_MANIFEST_DIR")).join("../fixtures/inputs");
    let mut checked = Checked::default();
    for folder in folders(&inputs).into_iter().chain(folders(&places()[0])) {
        checked.input(&name(&folder), std::slice::from_ref(&folder));
    }
    checked.finish("small inputs");
}

/// `RANKSCOPE_LAW_JOBS` is the number of drawn jobs.
#[test]
fn drawn_jobs_keep_the_laws() {
    let drawn: u64 = env::var("RANKSCOPE_LAW_JOBS").ok().and_then(|number| number.parse().ok()).unwrap_or(12);
    let mut checked = Checked::default();
    const FAMILIES: [&str; 3] = ["random-clean", "random-slow", "random-clocks"];
    for seed in 0..drawn {
        simulated(&mut checked, FAMILIES[(seed % 3) as usize], seed);
    }
    let kinds: BTreeSet<&str> = scenarios().iter().map(|scenario| scenario.kind).collect();
    for kind in kinds {
        let all = scenarios();
        let of_kind = all.iter().filter(|scenario| scenario.kind == kind);
        let most = if drawn > 100 { usize::MAX } else { 1 };
        of_kind.take(most).for_each(|scenario| simulated(&mut checked, scenario.name, 1));
    }
    checked.finish("drawn jobs");
}

/// The parts that each rank sends to each: rank 2 gets five of the eight.
const PARTS: [i64; 4] = [1, 1, 5, 1];

/// Gives the all-to-alls of a rank's trace unequal shares.
fn divide_unequally(file: &Path, rank: usize) {
    let number = |line: &str, key: &str| -> i64 {
        let (_, rest) = line.split_once(key).unwrap();
        rest.split(',').next().unwrap().trim().parse().unwrap()
    };
    let divided = |line: &str| {
        let key = "\"Out msg nelems\": ";
        if !line.contains("\"all_to_all\"") {
            return line.to_string();
        }
        let elements = number(line, key);
        let all: i64 = PARTS.iter().sum();
        assert_eq!(elements % all, 0);
        let received = elements / all * PARTS[rank] * PARTS.len() as i64;
        let splits =
            format!("\"In split size\": \"{PARTS:?}\", \"Out split size\": \"{:?}\"", [PARTS[rank]; PARTS.len()]);
        line.replace("\"all_to_all\"", "\"all_to_allv\"")
            .replace(&format!("{key}{elements}"), &format!("{key}{received}, {splits}"))
    };
    let lines: Vec<String> = fs::read_to_string(file).unwrap().lines().map(divided).collect();
    fs::write(file, lines.join("\n")).unwrap();
}

/// Rank 2 receives 20 of 8 parts, 15 of them from others; `ingest` keeps that, as everything.
#[test]
fn unequal_all_to_alls_have_the_bandwidth_of_the_busiest_rank() {
    let place = scratch("unequal");
    let job = Job { steps: 3, layers: 4, ..Job::new(Shape::Experts, PARTS.len()) };
    write(&job, &simulate(&job, 1).unwrap(), &place).unwrap();
    let before = analyzed(std::slice::from_ref(&place)).unwrap();
    (0..job.ranks).for_each(|rank| divide_unequally(&place.join(format!("rank{rank}.json")), rank));
    let mut checked = Checked::default();
    checked.input("unequal", std::slice::from_ref(&place));
    let after = analyzed(std::slice::from_ref(&place)).unwrap();
    let (mut known, mut others) = (0, 0);
    for (equal, row) in before.tables.collective_instances.iter().zip(&after.tables.collective_instances) {
        if row.op != Op::AllToAll {
            others += 1;
            assert_eq!(row, equal);
        } else if let (Some(algbw), Some(busbw), Some(equal)) = (row.algbw_gbs, row.busbw_gbs, equal.algbw_gbs) {
            known += 1;
            assert!((algbw / equal - 20.0 / 8.0).abs() < 1e-9 && (busbw / algbw - 15.0 / 20.0).abs() < 1e-9, "{row:?}");
        }
    }
    assert!(known > 0 && others > 0, "{known} {others}");
    fs::remove_dir_all(&place).unwrap();
    checked.finish("unequal shares");
}

/// The host waits for its device at the end of each step, and then loads the next batch while the device is idle. What the removal
/// of that wait saves is known from the same job without it.
#[test]
fn what_a_wait_of_the_host_costs_is_not_printed_yet() {
    let place = scratch("waits");
    let job = Job { steps: 6, input_ns: 14_000_000, ..Job::new(Shape::Ddp, 2) };
    let waits = simulate(&job, 1).unwrap();
    write(&job, &waits, &place).unwrap();
    let runs_ahead = simulate(&Job { synchronizes: false, ..job }, 1).unwrap();
    let saved_ns = waits.step_ns - runs_ahead.step_ns;
    assert!(saved_ns > waits.step_ns / 4, "{saved_ns} of {}", waits.step_ns);
    let analysis = analyzed(std::slice::from_ref(&place)).unwrap();
    fs::remove_dir_all(&place).unwrap();
    let found = analysis.tables.findings.iter().find(|row| &*row.id == "sync-stalls").unwrap();
    let said = format!("{}; {}; {}", found.title, found.evidence, found.suggestion);
    // What a step saves must come from a replay: before, 62 µs were said to be the most where 192 µs are saved.
    let is_right = said.contains(&format!("saves {}", ns(saved_ns)));
    assert!(!is_right, "the answer is right now: remove the mark, and require `saves {}` of: {said}", ns(saved_ns));
    assert!(!said.contains("save"), "no number is known yet: {said}");
}

#[test]
#[ignore = "reads real traces"]
fn real_and_public_inputs_keep_the_laws() {
    let data = real_traces();
    let mut checked = Checked::default();
    for folder in folders(&data.join("../public")) {
        checked.input(&name(&folder), &[folder.join("input")]);
    }
    for place in ["kineto", "nd", "nsys", "straggler", "xplane", "../truth"] {
        for folder in folders(&data.join(place)) {
            checked.input(&name(&folder), std::slice::from_ref(&folder));
        }
    }
    checked.finish("real and public inputs");
}
