//! The real traces beside the repository (`../shared/data`), where there are any: what each file gives, and the truth
//! of an independent sweep to the microsecond.

#![expect(clippy::unwrap_used, reason = "tests may, and their helpers too")]

use std::path::{Path, PathBuf};

use fixtures::data::real_traces;
use formats::ingest::ingest;
use formats::kineto::KinetoSource;
use formats::run_source::RunSource;
use model::Kind;
use model::communication::Counted;
use model::options::Options;
use model::source::Source;
use pipeline::analyze;

fn folders(data: &Path) -> Vec<PathBuf> {
    let mut all: Vec<PathBuf> = std::fs::read_dir(data.join("kineto")).unwrap().map(|e| e.unwrap().path()).collect();
    all.sort();
    all
}

/// One line of `temporal_overlap_ref.csv`, in µs.
fn reference(path: &Path) -> Vec<Vec<f64>> {
    let text = std::fs::read_to_string(path).unwrap();
    text.lines().skip(1).map(|l| l.split(',').map(|f| f.trim().parse().unwrap_or(f64::NAN)).collect()).collect()
}

/// What the reference's own arithmetic may be off by, in µs. It adds times as doubles, in µs: since 1970
/// (`ns_resolution`) they lie on a grid of 0.25 µs, and each of its rows may be off by half of it; elsewhere 1 µs is
/// far beyond its error.
fn tolerance_us(folder: &str, rows: f64) -> f64 {
    if folder == "ns_resolution" { rows * 0.125 } else { 1.0 }
}

/// Options with HTA's definition of communication.
fn by_hta() -> Options {
    let mut options = Options::default();
    options.communication.counted = Some(Counted::Hta);
    options
}

/// HTA's temporal breakdown and overlap over all rows, against the independent sweep.
#[test]
#[ignore = "reads real traces"]
fn breakdown_and_overlap_are_those_of_an_independent_sweep() {
    let data = real_traces();
    let mut compared = 0;
    for folder in folders(&data) {
        let name = folder.file_name().unwrap().to_string_lossy().into_owned();
        let expected = data.join("expected_ref").join(&name).join("temporal_overlap_ref.csv");
        if !expected.is_file() {
            continue;
        }
        let source = KinetoSource::open(std::slice::from_ref(&folder)).unwrap();
        // The reference has HTA's communication, which the table of HTA's breakdown has without this option too.
        let tables = analyze(&source, &by_hta(), &|_, _| ()).unwrap().tables;
        let by_rules = analyze(&source, &Options::default(), &|_, _| ()).unwrap().tables;
        assert_eq!(tables.hta_temporal_breakdown, by_rules.hta_temporal_breakdown, "{name}");
        for line in reference(&expected) {
            let [rank, rows, kernel, idle, compute, non_compute, comm, overlap] = line[..] else { panic!("{line:?}") };
            let tolerance = tolerance_us(&name, rows);
            let check = |what: &str, ns: i64, us: f64| {
                assert!(
                    (ns as f64 / 1e3 - us).abs() <= tolerance,
                    "{name} rank {rank} {what}: {ns} ns, reference {us} µs"
                );
            };
            let hta = tables.hta_temporal_breakdown.iter().find(|r| f64::from(r.rank) == rank).unwrap();
            check("kernel time", hta.kernel_time_ns, kernel);
            check("idle", hta.idle_time_ns, idle);
            check("compute", hta.compute_time_ns, compute);
            check("non-compute", hta.non_compute_time_ns, non_compute);
            let of_all = |r: &&trace::StepBreakdownRow| f64::from(r.rank) == rank && r.step.is_none();
            let all: Vec<_> = tables.step_breakdown.iter().filter(of_all).collect();
            check("communication", all.iter().map(|r| r.comm_total_ns).sum(), comm);
            let overlap_ns: i64 = all.iter().map(|r| r.overlap_ns).sum();
            let expected_us = if comm > 0.0 { comm * overlap / 100.0 } else { 0.0 };
            check("overlap", overlap_ns, expected_us);
            compared += 1;
        }
    }
    assert!(compared >= 20, "{compared}");
}

/// Every row that the reader keeps, swept once more in the plainest way: exact to the ns where the reference above is
/// not.
#[test]
#[ignore = "reads real traces"]
fn compute_time_is_the_plain_union_of_compute_kernels() {
    let data = real_traces();
    let folder = data.join("kineto/ns_resolution");
    let source = KinetoSource::open(&[folder]).unwrap();
    let rank = source.load(0).unwrap();
    let mut intervals: Vec<(i64, i64)> = (0..rank.events.len())
        .filter(|row| rank.events.kind[*row] == Kind::Kernel && !rank.events.is_comm[*row])
        .map(|row| (rank.events.ts_ns[row], rank.events.end_ns(row)))
        .collect();
    intervals.sort_unstable();
    let (mut sum, mut reached) = (0, i64::MIN);
    for (start, end) in intervals {
        sum += (end - start.max(reached)).max(0);
        reached = reached.max(end);
    }
    let tables = analyze(&source, &Options::default(), &|_, _| ()).unwrap().tables;
    assert_eq!(tables.hta_temporal_breakdown[0].compute_time_ns, sum);
}

/// Invariant (numbers): A kernel counts as communication by its function or by its operator.
///
/// The shares of the wall time that an independent sweep gives if DeepEP's kernels (`::ep::`) are the communication:
/// compute alone, overlap, exposed communication, idle.
#[test]
#[ignore = "reads real traces"]
fn deepep_is_communication_that_dualpipe_hides() {
    let data = real_traces();
    let source = KinetoSource::open(&[data.join("kineto/deepseek_train_r0of64")]).unwrap();
    let analysis = analyze(&source, &Options::default(), &|_, _| ()).unwrap();
    let row = analysis.tables.step_breakdown.iter().find(|row| row.step.is_none()).unwrap();
    let share = |ns: i64| 100.0 * ns as f64 / row.wall_ns as f64;
    let found = [row.compute_ns, row.overlap_ns, row.exposed_comm_ns, row.idle_ns].map(share);
    for (found, truth) in found.iter().zip([11.7, 84.7, 3.2, 0.4]) {
        assert!((found - truth).abs() <= 0.5, "{found} instead of {truth}: {row:?}");
    }
    let sentence = analysis.facts.communication_by_name.unwrap();
    assert!(sentence.contains("100 % of communication time: dpsk::ep::internode::combine, "), "{sentence}");
    assert!(!analysis.tables.findings.iter().any(|finding| &*finding.id == "possible-communication"));
}

/// If nothing were known of DeepEP's kernels, they would be suspected.
#[test]
#[ignore = "reads real traces"]
fn unknown_communication_is_suspected() {
    let data = real_traces();
    let source = KinetoSource::open(&[data.join("kineto/deepseek_train_r0of64")]).unwrap();
    let mut options = Options::default();
    options.communication.not_counted = Some(regex::Regex::new("::ep::").unwrap());
    let findings = analyze(&source, &options, &|_, _| ()).unwrap().tables.findings;
    let finding = findings.iter().find(|finding| &*finding.id == "possible-communication").unwrap();
    assert!(finding.title.contains("dpsk::ep::internode::combine"), "{finding:?}");
    assert_eq!(&*finding.severity, "info");
}

/// vLLM's all-reduces by symmetric memory: known by their operator, and the copies inside are none of them.
#[test]
#[ignore = "reads real traces"]
fn all_reduces_by_symmetric_memory_are_communication() {
    let data = real_traces();
    let source = KinetoSource::open(&[data.join("kineto/b200_r0of8")]).unwrap();
    let analysis = analyze(&source, &Options::default(), &|_, _| ()).unwrap();
    let communicates = |row: &&trace::KernelStatsRow| row.work == trace::WorkType::Communication;
    let kernels: Vec<_> = analysis.tables.kernel_stats.iter().filter(communicates).collect();
    let total_ns: i64 = kernels.iter().map(|row| row.total_ns).sum();
    assert!((total_ns - 2_141_500).abs() < 1_000, "{total_ns}");
    assert_eq!(kernels.iter().map(|row| row.calls).sum::<i64>(), 74);
    assert_eq!(analysis.facts.communication_by_name, None);
}

/// Invariant (verdicts): No rank is blamed without a cause.
///
/// The numbers that the design page gives for the real traces.
#[test]
#[ignore = "reads real traces"]
fn causes_are_found_and_nobody_is_blamed_without_one() {
    let data = real_traces();
    let of = |folder: &str, ranks: Option<Vec<i32>>| {
        let source = KinetoSource::open(&[data.join("kineto").join(folder)]).unwrap();
        let options = Options { ranks: ranks.map(|r| r.into_iter().collect()), ..Options::default() };
        analyze(&source, &options, &|_, _| ()).unwrap().tables.stragglers
    };
    let check = |folder: &str, cause: i32, own_ms: f64, range: &str, excess_ms: f64| {
        let rows = of(folder, None);
        for row in &rows {
            let expected = if row.rank == cause { "cause" } else { "victim" };
            assert_eq!(&*row.verdict, expected, "{folder} rank {}", row.rank);
        }
        let row = rows.iter().find(|r| r.rank == cause).unwrap();
        assert!((row.own_excess_ns as f64 / 1e6 - own_ms).abs() < own_ms * 0.01, "{folder}: {row:?}");
        assert_eq!(row.evidence_range.as_deref(), Some(range), "{folder}");
        let excess = row.evidence_excess_ns.unwrap() as f64 / 1e6;
        assert!((excess - excess_ms).abs() < excess_ms * 0.05, "{folder}: {excess}");
        let others: Vec<i32> = rows.iter().map(|r| r.rank).filter(|r| *r != cause).collect();
        for row in of(folder, Some(others)) {
            assert_ne!(&*row.verdict, "cause", "{folder} without rank {cause}: {row:?}");
        }
    };
    check("torchrec4_long_a2a", 2, 1008.0, "# running sparse arch", 1010.0);
    // Without work under collectives, which gloo has no rows of waits for, the design page has 43.8 and 29.2.
    check("gloo8_slow5", 5, 45.1, "injected_delay", 61.0);
    check("gloo4_slow2_stack", 2, 29.4, "injected_delay", 35.0);
    assert!(of("dlrm8", None).iter().all(|row| matches!(&*row.verdict, "undecided" | "ok")));
}

/// A run that was ingested gives the analysis that its traces give.
#[test]
#[ignore = "reads real traces"]
fn an_ingested_run_is_analysed_as_its_traces_are() {
    let data = real_traces();
    for folder in ["torchrec4_long_a2a", "gloo4_slow2_stack", "resnet50_2021", "megatron_tp2", "ddp_nccl_r0of2"] {
        let traces = data.join("kineto").join(folder);
        let run = tempfile::tempdir().unwrap();
        let ingested = ingest(std::slice::from_ref(&traces), run.path(), &|_, _| ()).unwrap();
        assert!(ingested.rows > 0 && ingested.written_bytes > 0);
        let tables = |source: &dyn Source| {
            let mut tables = analyze(source, &Options::default(), &|_, _| ()).unwrap().tables;
            // The traces' omissions name files; the run's are in its counters.
            tables.omissions.clear();
            tables
        };
        let direct = tables(&KinetoSource::open(std::slice::from_ref(&traces)).unwrap());
        let stored = tables(&RunSource::open(run.path()).unwrap());
        assert_eq!(direct, stored, "{folder}");
        let again = ingest(&[traces], run.path(), &|_, _| ()).unwrap_err();
        assert!(again.to_string().contains("it holds a run already"), "{again}");
    }
}

/// What has no column of its own survives in `args`, and everything else is in its column.
#[test]
#[ignore = "reads real traces"]
fn arguments_survive() {
    let data = real_traces();
    let run = tempfile::tempdir().unwrap();
    ingest(&[data.join("kineto/b200_r0of8")], run.path(), &|_, _| ()).unwrap();
    let (rows, problems) = trace::Run::open(run.path()).unwrap().rows::<trace::EventRow>(0);
    assert_eq!(problems, []);
    let find = |kind: &str, part: &str| rows.iter().find(|r| &*r.kind == kind && r.name.contains(part)).unwrap();
    let kernel = find("kernel", "ncclDevKernel_AllGather");
    assert_eq!((kernel.grid.as_deref().map(<[i32]>::len), kernel.registers.is_some()), (Some(3), true));
    let args: serde_json::Value = serde_json::from_str(kernel.args.as_deref().unwrap()).unwrap();
    assert_eq!(args["Collective name"], "_allgather_base");
    assert!(args.get("grid").is_none() && args.get("stream").is_none());
    let gather = find("cpu_op", "c10d::_allgather_base_");
    assert_eq!(gather.input_dims.as_deref(), Some("[[8, 25136], [1, 25136], [], [], []]"));
    assert!(
        rows.iter()
            .filter(|r| r.args.is_some())
            .all(|r| { serde_json::from_str::<serde_json::Value>(r.args.as_deref().unwrap()).unwrap().is_object() })
    );
    let copies = rows.iter().filter(|r| &*r.kind == "gpu_memcpy");
    assert!(copies.clone().count() > 0 && copies.clone().all(|r| r.copy_kind.is_some() && r.bytes.is_some()));
}
