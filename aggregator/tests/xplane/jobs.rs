//! Jobs of several devices, hosts, recordings and formats.

use std::fs;
use std::path::{Path, PathBuf};

use formats::format::OpenOptions;
use formats::job_files::JobFiles;
use model::RankData;
use model::options::Options;
use model::source::Source;
use pipeline::analyze;
use trace::OmissionRow;

use crate::profiles::{gpu, host, tpus};
use crate::writer::{Event, Plane, opened, recorded, rows, write};

const START_NS: i64 = 1_700_000_000_000_000_000;

fn of<'a>(problems: &'a [OmissionRow], what: &str) -> Option<&'a OmissionRow> {
    problems.iter().find(|problem| &*problem.what == what)
}

#[test]
fn the_small_inputs_are_what_is_written_here() {
    let gpus = vec![gpu(0), gpu(1), host(), recorded(START_NS, START_NS + 1_000_000)];
    for (name, planes) in [("gpus", gpus), ("tpus", tpus(true))] {
        let directory = tempfile::tempdir().unwrap();
        write(&directory.path().join("node-a.xplane.pb"), "node-a", &planes);
        fixtures::generated::check_folder(&format!("fixtures/inputs/xplane_{name}"), directory.path());
    }
}

/// A profile of a kernel on each of `devices`.
fn small(path: PathBuf, host: &str, devices: &[i64], start_ns: i64) -> PathBuf {
    let device = |number: &i64| {
        Plane::new(&format!("/device:GPU:{number}")).line(1, "Stream #1(Kernel)", 0, &[Event("gemm", 0, 1_000, &[])])
    };
    let mut planes: Vec<Plane> = devices.iter().map(device).collect();
    planes.push(recorded(start_ns, start_ns + 1_000_000));
    write(&path, host, &planes)
}

/// Invariant (formats): XPlane: a thread's rows belong to the ranks that the thread worked for.
#[test]
fn threads_are_of_the_devices_that_they_launch_on() {
    let directory = tempfile::tempdir().unwrap();
    let planes = [gpu(0), gpu(1), host(), recorded(START_NS, START_NS)];
    let source = opened(&[write(&directory.path().join("h.xplane.pb"), "h", &planes)]);
    assert_eq!(source.ranks(), [0, 1]);
    let threads = |data: &RankData| {
        let count = |thread: i64| data.events.thread.iter().filter(|of_row| **of_row == thread).count();
        [71, 72, 73, 74].map(count)
    };
    let (zero, one) = (source.load(0).unwrap(), source.load(1).unwrap());
    // Of the thread with launches on both, each rank has its own launch and the rest.
    assert_eq!((threads(&zero), threads(&one)), ([2, 0, 2, 3], [0, 1, 2, 3]));
    assert_eq!(&*of(&source.problems(), "rows of threads").unwrap().kind, "note");
    assert_eq!(zero.outline.info.clock_domain, one.outline.info.clock_domain);
    assert_eq!((zero.outline.steps.len(), one.outline.steps.len()), (2, 2), "the steps of Python are those of all");
}

#[test]
fn ranks_are_numbered_by_hosts_and_devices() {
    let directory = tempfile::tempdir().unwrap();
    let path = |name: &str| directory.path().join(name);
    let paths = [
        small(path("plugins/profile/a/w-10.xplane.pb"), "", &[0, 1], START_NS),
        small(path("plugins/profile/a/w-2.xplane.pb"), "", &[3, 1], START_NS + 5),
    ];
    let source = opened(&paths);
    let host = |rank: i32| source.load(rank).unwrap().outline.info.host;
    assert_eq!(source.ranks().into_iter().map(host).collect::<Vec<_>>(), ["w-2", "w-2", "w-10", "w-10"]);
    let device = |rank: i32| source.load(rank).unwrap().events.device[0];
    assert_eq!(source.ranks().into_iter().map(device).collect::<Vec<_>>(), [1, 3, 0, 1]);
    let problems = source.problems();
    let numbered = of(&problems, "ranks of devices").unwrap();
    assert!(numbered.why.contains("ranks 0–1 of w-2, ranks 2–3 of w-10"), "{}", numbered.why);
    let stated = opened(&[
        small(path("rank7/h.xplane.pb"), "h", &[0], START_NS),
        small(path("rank5/h.xplane.pb"), "h", &[0], START_NS + 1),
    ]);
    assert_eq!(stated.ranks(), [5, 7], "the folders state them");
}

#[test]
fn of_several_recordings_of_a_host_the_last_is_read() {
    let directory = tempfile::tempdir().unwrap();
    let path = |name: &str| directory.path().join(name);
    let paths = [
        small(path("later/h.xplane.pb"), "h", &[0], START_NS + 5_000_000),
        small(path("earlier/h.xplane.pb"), "h", &[0, 1], START_NS),
        small(path("copy/h.xplane.pb"), "h", &[0], START_NS + 5_000_000),
    ];
    let source = opened(&paths);
    assert_eq!((source.ranks(), source.info().created_utc_ns), (vec![0], Some(START_NS + 5_000_000)));
    let said: Vec<String> = source.problems().iter().map(|problem| problem.why.to_string()).collect();
    assert!(said.iter().any(|why| why.contains("it is recording 1 of 2 of its host")), "{said:?}");
    assert!(said.iter().any(|why| why.starts_with("it is the recording of ")), "{said:?}");
    let window = |number: i32| {
        let options = OpenOptions { window: kineto::WindowChoice::Number(number), ..Default::default() };
        JobFiles::find(&paths).unwrap().open(options).map(|source| source.ranks())
    };
    assert_eq!(window(1).unwrap(), [0, 1]);
    assert!(window(3).unwrap_err().to_string().contains("there are 2 recordings"));
}

#[test]
fn files_of_one_time_on_one_host_are_processes() {
    let directory = tempfile::tempdir().unwrap();
    let path = |name: &str| directory.path().join(name);
    let paths =
        [small(path("a/h.xplane.pb"), "h", &[0], START_NS), small(path("b/h.xplane.pb"), "h", &[1], START_NS + 9)];
    let source = opened(&paths);
    assert_eq!(source.ranks(), [0, 1]);
    assert!(of(&source.problems(), "processes").unwrap().why.contains("the host h has 2 files of one time"));
}

#[test]
fn a_file_that_cannot_be_read_is_a_loss_beside_others() {
    let directory = tempfile::tempdir().unwrap();
    let good = small(directory.path().join("good.xplane.pb"), "h", &[0], START_NS);
    let bad = directory.path().join("bad.xplane.pb");
    fs::write(&bad, b"\x0a\xef\xbf\xbd\xef\xbf\xbd\x06").unwrap();
    let source = opened(&[bad, good]);
    let problems = source.problems();
    let lost = of(&problems, "file").unwrap();
    assert_eq!(&*lost.kind, "lost");
    assert!(
        lost.why.contains("byte 8: a field claims") && lost.file.as_ref().unwrap().ends_with("bad.xplane.pb"),
        "{lost:?}"
    );
}

#[test]
fn collectives_match_within_the_groups_that_the_program_states() {
    let directory = tempfile::tempdir().unwrap();
    let source = opened(&[write(&directory.path().join("h.xplane.pb"), "h", &tpus(true))]);
    let analysis = analyze(&source, &Options::default(), &|_, _| ()).unwrap();
    let matched: Vec<(String, i32, Option<i32>)> = analysis
        .tables
        .collective_instances
        .iter()
        .map(|instance| (instance.op.as_str().to_string(), instance.ranks_seen, instance.ranks_expected))
        .collect();
    let expected = [("allreduce", 2, Some(2)), ("allreduce", 2, Some(2)), ("allgather", 4, Some(4))];
    let mut expected: Vec<_> = expected.map(|(op, seen, size)| (op.to_string(), seen, size)).into();
    let mut matched = matched;
    matched.sort();
    expected.sort();
    assert_eq!(matched, expected);
}

/// Invariant (formats): XPlane: ranks that may belong to different groups are not matched.
#[test]
fn groups_of_a_program_with_more_devices_are_not_matched() {
    let directory = tempfile::tempdir().unwrap();
    // Two of four devices.
    let mut planes = tpus(true);
    planes.drain(..2);
    let source = opened(&[write(&directory.path().join("h.xplane.pb"), "h", &planes)]);
    let data = source.load(0).unwrap();
    let unknown = data.omissions.iter().find(|omission| &*omission.what == "communicators of collectives").unwrap();
    assert_eq!((&*unknown.kind, unknown.amount), ("left_out", Some(1)));
    let comms =
        |rank: i32| source.load(rank).unwrap().outline.collectives.iter().map(|c| c.comm_id).collect::<Vec<_>>();
    assert!(comms(0)[0] != comms(1)[0], "they may be of different groups");
    assert_eq!((comms(0)[1], data.outline.collectives[1].comm_size), (0, Some(4)), "one group of all");
}

#[test]
fn ranks_of_torch_and_of_xla_are_one_job() {
    let directory = tempfile::tempdir().unwrap();
    let trace = directory.path().join("rank0.json");
    let text = r#"{"distributedInfo": {"rank": 0, "world_size": 2}, "traceEvents": [
        {"ph": "X", "cat": "kernel", "name": "ncclDevKernel_AllReduce_Sum_f32_RING_LL(x)", "pid": 0, "tid": 7, "ts": 30, "dur": 11,
          "args": {"device": 0, "stream": 7, "correlation": 3}}]}"#;
    fs::write(&trace, text).unwrap();
    write(&directory.path().join("h.xplane.pb"), "h", &[gpu(0), recorded(START_NS, START_NS)]);
    let files = JobFiles::find(&[directory.path().to_path_buf()]).unwrap();
    let source = files.open(OpenOptions::default()).unwrap();
    assert_eq!((source.ranks(), source.info().tool), (vec![0, 1], "torch.profiler and XLA's profiler".to_string()));
    let problems = source.problems();
    assert_eq!(&*of(&problems, "formats").unwrap().why, "torch.profiler recorded rank 0, XLA's profiler rank 1");
    assert!(of(&problems, "files without traces").is_none(), "{problems:?}");
    assert!(rows(&source.load(1).unwrap()).iter().any(|(_, name, ..)| *name == "gemm"));
}

#[test]
fn a_host_without_devices_is_a_rank_if_there_is_no_device() {
    let directory = tempfile::tempdir().unwrap();
    let threads = write(&directory.path().join("cpu.xplane.pb"), "cpu", &[host(), recorded(START_NS, START_NS)]);
    let source = opened(std::slice::from_ref(&threads));
    assert_eq!(source.load(0).unwrap().events.len(), 9);
    let device = small(directory.path().join("gpu.xplane.pb"), "gpu", &[0], START_NS);
    let both = opened(&[threads, device]);
    assert_eq!(both.ranks(), [0]);
    assert!(both.problems().iter().any(|problem| problem.why.contains("no device of it did anything")));
    let empty = write(Path::new(&directory.path().join("empty.xplane.pb")), "x", &[recorded(START_NS, START_NS)]);
    let error = formats::xplane::XplaneSource::open(&[empty]).unwrap_err().to_string();
    assert!(error.contains("it has no events of a device or of a thread"), "{error}");
}
