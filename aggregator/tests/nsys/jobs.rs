//! Jobs of several files and formats.

use std::path::Path;

use formats::format::OpenOptions;
use formats::job_files::JobFiles;
use formats::kineto::KinetoSource;
use formats::snapshot::SnapshotSource;
use model::options::Options;
use model::source::Source;
use model::{Kind, RankData};
use pipeline::analyze;
use trace::OmissionRow;

use crate::export::{KERNELS, ONE, STRINGS, database, export, opened, rows, small};

/// A trace of rank 1 of 2 with a kernel of NCCL.
fn trace(directory: &Path, world_size: i32) -> std::path::PathBuf {
    let path = directory.join("rank1.json");
    let text = format!(
        r#"{{"distributedInfo": {{"rank": 1, "world_size": {world_size}}}, "traceEvents": [
        {{"ph": "X", "cat": "kernel", "name": "ncclDevKernel_AllReduce_Sum_f32_RING_LL(x)", "pid": 0, "tid": 7, "ts": 30, "dur": 11,
          "args": {{"device": 0, "stream": 7, "correlation": 3}}}},
        {{"ph": "X", "cat": "cpu_op", "name": "aten::mm", "pid": 9, "tid": 9, "ts": 1, "dur": 5}}]}}"#
    );
    std::fs::write(&path, text).unwrap();
    path
}

fn mixed(exports: &Path, traces: &Path) -> Result<Box<dyn Source>, model::Error> {
    JobFiles::find(&[exports.into(), traces.into()])?.open(OpenOptions::default())
}

fn of<'a>(problems: &'a [OmissionRow], what: &str) -> Option<&'a OmissionRow> {
    problems.iter().find(|problem| problem.what.contains(what))
}

#[test]
fn ranks_of_two_formats_are_one_job() {
    let directory = tempfile::tempdir().unwrap();
    let exported = small(directory.path(), "r.sqlite", "");
    trace(directory.path(), 3);
    let source = mixed(&exported, directory.path()).unwrap();
    assert_eq!((source.ranks(), source.info().world_size), (vec![0, 1], Some(3)));
    let problems = source.problems();
    assert_eq!(&*of(&problems, "formats").unwrap().why, "torch.profiler recorded rank 1, Nsight Systems rank 0");
    let lacking = of(&problems, "allocations of memory").unwrap();
    assert_eq!((&*lacking.kind, lacking.amount), ("left_out", Some(1)), "{problems:?}");
    assert_eq!(of(&problems, "ranks").unwrap().rank, Some(2), "the third rank is missing: {problems:?}");
    assert!(of(&problems, "files without traces").is_none(), "the export is read: {problems:?}");
    let analysis = analyze(&*source, &Options::default(), &|_, _| ()).unwrap();
    let matched = &analysis.tables.collective_instances;
    assert_eq!((matched.len(), matched[0].ranks_seen), (1, 2), "{matched:?}");
    assert_eq!(analysis.facts.tool, "torch.profiler and Nsight Systems");
}

#[test]
fn a_rank_of_both_formats_is_refused() {
    let directory = tempfile::tempdir().unwrap();
    let exported = small(directory.path(), "rank1.sqlite", "");
    let error = mixed(&exported, &trace(directory.path(), 2)).err().unwrap().to_string();
    assert!(error.contains("rank 1 is in it and in the files of another format"), "{error}");
}

/// Containers of different hosts may have one name.
#[test]
fn hosts_of_one_name_are_told_apart_by_their_boot() {
    let directory = tempfile::tempdir().unwrap();
    let session = |utc_ns: i64, steady_ns: i64| {
        format!(
            "CREATE TABLE TARGET_INFO_SESSION_START_TIME (utcEpochNs INTEGER, systemClockNs INTEGER);
             INSERT INTO TARGET_INFO_SESSION_START_TIME VALUES ({utc_ns}, {steady_ns});
             CREATE TABLE TARGET_INFO_SYSTEM_ENV (name TEXT, value TEXT); INSERT INTO TARGET_INFO_SYSTEM_ENV VALUES ('Hostname', 'modal');"
        )
    };
    let second = 1_000_000_000;
    let paths: Vec<_> =
        [(1_000 * second, 50 * second), (1_010 * second, 60 * second + 7), (1_010 * second, 500 * second)]
            .into_iter()
            .enumerate()
            .map(|(rank, (utc_ns, steady_ns))| {
                small(directory.path(), &format!("rank{rank}"), &session(utc_ns, steady_ns))
            })
            .collect();
    let source = opened(&paths);
    let domain = |rank| source.load(rank).unwrap().outline.info.clock_domain;
    assert_eq!((domain(0), domain(1)), ("modal/steady".into(), "modal/steady".into()));
    assert_eq!(domain(2), "modal/steady/510000000000");
    assert_eq!(source.load(1).unwrap().events.ts_ns[0], 60 * second + 7 + 100);
}

/// What a source of ranks delivers.
fn delivered(data: &RankData, detailed: bool) -> Vec<&'static str> {
    let has = |kind: Kind| rows(data, kind) > 0;
    let all = [
        ("operators", has(Kind::CpuOp)),
        ("calls of CUDA", has(Kind::Runtime)),
        ("kernels", has(Kind::Kernel)),
        ("launch shapes", !data.kernel_use.is_empty()),
        ("steps", !data.outline.steps.is_empty()),
        ("collectives", !data.outline.collectives.is_empty()),
        ("communicators", !data.outline.comms.is_empty()),
        ("FLOPs", data.events.flops.iter().any(|flops| *flops > 0)),
        ("memory", !data.memory.is_empty()),
        ("shapes, stacks, modules", detailed),
    ];
    all.into_iter().filter(|(_, is_there)| *is_there).map(|(what, _)| what).collect()
}

#[test]
fn each_source_delivers_what_it_says() {
    let directory = tempfile::tempdir().unwrap();
    let of = |source: &dyn Source| {
        let (data, details) = source.load_detailed(source.ranks()[0]).unwrap();
        (delivered(&data, details != trace::rank::Details::default()), source.lacks())
    };
    let exported = opened(&[export(directory.path(), "r.sqlite")]);
    let lacks =
        ["shapes and FLOPs of operators", "stacks and modules", "allocations of memory", "numbers of collectives"];
    assert_eq!(of(&exported), (vec!["operators", "calls of CUDA", "kernels", "launch shapes", "steps"], &lacks[..]));
    let traced = KinetoSource::open(&[trace(directory.path(), 2)]).unwrap();
    assert_eq!(of(&traced), (vec!["operators", "kernels", "collectives", "communicators"], &[][..]));
    let snapshot = Path::new(env!("CARGO_MANIFEST_DIR")).join("../fuzz/corpus/snapshot/protocol_4");
    let snapshot = SnapshotSource::open(&[snapshot]).unwrap();
    assert_eq!(of(&snapshot), (vec!["memory"], &["operators, kernels and steps", "collectives"][..]));
}

/// Rows of twelve processes, in turns and then together, and a row of no process.
#[test]
fn each_of_many_processes_has_its_own_rows_only() {
    const PROCESSES: i64 = 12;
    let pid = |process: i64| ONE + (process << 24);
    let kernel = |process: i64, at: i64| {
        let start = 1000 * at + process;
        format!("({start}, {start} + {}, 0, 7, {at}, {}, 1, 4, 2, 1, '')", 10 * process + at, pid(process))
    };
    let in_turns = (0..3).flat_map(|at| (0..PROCESSES).map(move |process| (process, at)));
    let together = (0..PROCESSES).flat_map(|process| (3..6).map(move |at| (process, at)));
    let all: Vec<String> = in_turns.chain(together).map(|(process, at)| kernel(process, at)).collect();
    let sql = format!(
        "INSERT INTO CUPTI_ACTIVITY_KIND_KERNEL VALUES {}, (1, 2, 0, 7, 1, NULL, 1, 1, 1, 1, '');
         DELETE FROM CUPTI_ACTIVITY_KIND_KERNEL WHERE globalPid = {} AND correlationId = 1;",
        all.join(", "),
        pid(3)
    );
    let directory = tempfile::tempdir().unwrap();
    let source = opened(&[database(directory.path(), "many.sqlite", &[STRINGS, KERNELS, &sql])]);
    for (process, rank) in (0..).zip(source.ranks()) {
        let data = source.load(rank).unwrap();
        let expected: Vec<i64> = (0..6).filter(|at| (process, *at) != (3, 1)).map(|at| 10 * process + at).collect();
        assert_eq!(data.events.dur_ns[..], expected[..], "process {process}");
        let of_nobody = data.omissions.iter().find(|row| &*row.what == "rows of no process").and_then(|row| row.amount);
        assert_eq!(of_nobody, (process == 0).then_some(1));
    }
}
