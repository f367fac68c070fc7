//! JSON of rocprofv3: every process with work of a device is a rank, with its records as rows.

#![expect(clippy::unwrap_used, reason = "tests may, and their helpers too")]

use std::fs;
use std::path::{Path, PathBuf};

use drawn::check_source;
use formats::format::OpenOptions;
use formats::job_files::JobFiles;
use formats::rocprof::RocprofSource;
use model::options::Options;
use model::source::Source;
use model::{Kind, NONE, RankData};
use pipeline::analyze;

/// A process: GPUs are agents 11 and 12, in the order 12, 11 of their nodes.
fn process(pid: i64, kernels: &str) -> String {
    format!(
        r#"{{"metadata": {{"node": {{"hostname": "node-a"}}, "pid": {pid}, "init_time": 1}},
        "agents": [{{"size": 1, "id": {{"handle": 10}}, "type": 1, "node_id": 0}}, {{"id": {{"handle": 11}}, "type": 2, "node_id": 2}},
            {{"id": {{"handle": 12}}, "type": 2, "node_id": 1}}],
        "strings": {{"callback_records": [], "buffer_records": [{{"kind": "NONE", "operations": []}},
            {{"kind": "HIP_RUNTIME_API", "operations": ["none", "hipLaunchKernel", "hipMemcpyAsync"]}},
            {{"kind": "MEMORY_COPY", "operations": ["MEMORY_COPY_NONE", "MEMORY_COPY_HOST_TO_DEVICE"]}},
            {{"kind": "MARKER_CORE_API", "operations": ["roctxMarkA", "roctxThreadRangeA", "roctxProcessRangeA"]}},
            {{"kind": "RCCL_API", "operations": ["ncclAllReduce"]}}],
            "marker_api": [{{"key": 7, "value": "ProfilerStep#3"}}, {{"key": 8, "value": "loose"}}]}},
        "kernel_symbols": [{{"kernel_id": 1, "kernel_name": "gemm.kd", "formatted_kernel_name": "gemm"}},
            {{"kernel_id": 2, "kernel_name": "ncclDevKernel_AllReduce_Sum_f32_RING_LL(x)"}}],
        "buffer_records": {{"kernel_dispatch": [{kernels}],
            "memory_copy": [{{"size": 1, "kind": 2, "operation": 1, "thread_id": 5, "correlation_id": {{"internal": 2, "external": 0}},
                "start_timestamp": 150, "end_timestamp": 160, "dst_agent_id": {{"handle": 11}}, "src_agent_id": {{"handle": 10}}, "bytes": 4096}}],
            "hip_api": [{{"kind": 1, "operation": 1, "thread_id": 5, "correlation_id": {{"internal": 1}}, "start_timestamp": 90, "end_timestamp": 99}},
                {{"kind": 9, "operation": 1, "thread_id": 5, "correlation_id": {{"internal": 2}}, "start_timestamp": 100, "end_timestamp": 105}}],
            "rccl_api": [{{"kind": 4, "operation": 0, "thread_id": 5, "correlation_id": {{"internal": 3}}, "start_timestamp": 110, "end_timestamp": 120}}],
            "marker_api": [{{"kind": 3, "operation": 1, "thread_id": 5, "correlation_id": {{"internal": 7}}, "start_timestamp": 80, "end_timestamp": 500}},
                {{"kind": 3, "operation": 2, "thread_id": 5, "correlation_id": {{"internal": 8}}, "start_timestamp": 85, "end_timestamp": 600}},
                {{"kind": 3, "operation": 0, "thread_id": 5, "correlation_id": {{"internal": 9}}, "start_timestamp": 85, "end_timestamp": 85}}],
            "hsa_api": [{{"a": 1}}, {{"a": "}}"}}]}}}}"#
    )
}

fn kernel(id: i64, correlation: i64, start_ns: i64, end_ns: i64) -> String {
    format!(
        r#"{{"kind": 5, "thread_id": 5, "correlation_id": {{"internal": {correlation}, "external": 0}}, "start_timestamp": {start_ns},
        "end_timestamp": {end_ns}, "dispatch_info": {{"size": 1, "agent_id": {{"handle": 12}}, "queue_id": {{"handle": 77}}, "kernel_id": {id},
        "group_segment_size": 512, "workgroup_size": {{"x": 64, "y": 2, "z": 1}}, "grid_size": {{"x": 256, "y": 2, "z": 1}}}}}}"#
    )
}

fn kernels() -> String {
    [kernel(1, 1, 200, 300), kernel(2, 3, 300, 400), kernel(9, 4, 410, 420)].join(", ")
}

fn file(processes: &[String]) -> String {
    format!("{{\n \"rocprofiler-sdk-tool\": [{}]}}\n", processes.join(", "))
}

fn write(path: &Path, processes: &[String]) -> PathBuf {
    fs::create_dir_all(path.parent().unwrap()).unwrap();
    fs::write(path, file(processes)).unwrap();
    path.into()
}

fn loaded(processes: &[String]) -> RankData {
    let directory = tempfile::tempdir().unwrap();
    let source = RocprofSource::open(&[write(&directory.path().join("a.json"), processes)]).unwrap();
    source.load(source.ranks()[0]).unwrap()
}

fn omitted(data: &RankData) -> Vec<(&str, &str, Option<i64>)> {
    data.omissions.iter().map(|omission| (&*omission.kind, &*omission.what, omission.amount)).collect()
}

#[test]
fn the_small_input_is_what_is_written_here() {
    let directory = tempfile::tempdir().unwrap();
    for rank in [0, 1] {
        write(&directory.path().join(format!("rank{rank}_results.json")), &[process(70 + rank, &kernels())]);
    }
    fixtures::generated::check_folder("fixtures/inputs/rocprof", directory.path());
}

/// Invariant (formats): rocprofv3: the records of a process become rows with their names and devices.
#[test]
fn records_of_a_process_are_rows_with_their_names_and_devices() {
    let data = loaded(&[process(70, &kernels())]);
    let events = &data.events;
    let rows: Vec<(Kind, &str, i64, i64)> = (0..events.len())
        .map(|row| (events.kind[row], &*data.names[events.name[row] as usize], events.ts_ns[row], events.dur_ns[row]))
        .collect();
    let expected = [
        (Kind::UserAnnotation, "ProfilerStep#3", 80, 420),
        (Kind::UserAnnotation, "loose", 85, 515),
        (Kind::Runtime, "hipLaunchKernel", 90, 9),
        (Kind::Runtime, "unknown call", 100, 5),
        (Kind::UserAnnotation, "ncclAllReduce", 110, 10),
        (Kind::GpuMemcpy, "Memcpy HtoD", 150, 10),
        (Kind::Kernel, "gemm", 200, 100),
        (Kind::Kernel, "ncclDevKernel_AllReduce_Sum_f32_RING_LL(x)", 300, 100),
        (Kind::Kernel, "unknown kernel", 410, 10),
    ];
    assert_eq!(rows, expected);
    assert_eq!(
        (events.device[5], events.device[6], events.stream[6]),
        (1, 0, 77),
        "devices are in the order of their nodes"
    );
    assert_eq!((events.bytes[5], events.thread[6], events.correlation[6]), (4096, NONE, 1));
    let used = &data.kernel_use[0];
    assert_eq!((used.blocks(), used.block_threads(), used.shared_mem_bytes), (Some(4), Some(128), Some(512)));
    assert_eq!(data.outline.steps.len(), 1);
    assert_eq!((data.outline.collectives.len(), data.outline.collectives[0].op.as_str()), (1, "allreduce"));
    let info = &data.outline.info;
    assert_eq!((&*info.host, info.pid, &*info.clock_domain), ("node-a", 70, "node-a/rocprof"));
    let expected = [
        ("lost", "names of rows", Some(2)),
        ("left_out", "marks", Some(1)),
        ("left_out", "records of other tables", Some(2)),
        ("note", "communicators of collectives", Some(1)),
    ];
    assert_eq!(omitted(&data), expected);
    assert!(events.parent[2] == 0, "the loose range encloses nothing");
}

#[test]
fn a_compressed_file_is_read_as_its_text() {
    let directory = tempfile::tempdir().unwrap();
    let plain = write(&directory.path().join("a/7_results.json"), &[process(70, &kernels())]);
    let packed = directory.path().join("b/7_results.json.gz");
    fs::create_dir(directory.path().join("b")).unwrap();
    fs::write(&packed, fixtures::small_trace::gzip(&fs::read(&plain).unwrap())).unwrap();
    let rows = |path: &Path| RocprofSource::open(&[path.to_path_buf()]).unwrap().load(0).unwrap().events;
    assert_eq!(rows(&packed), rows(&plain));
    let cut = &fs::read(&packed).unwrap()[..300];
    fs::write(&packed, cut).unwrap();
    assert!(RocprofSource::open(&[packed]).unwrap_err().to_string().contains("7_results.json.gz"));
}

#[test]
fn processes_are_ranks_by_their_files_or_in_order() {
    let directory = tempfile::tempdir().unwrap();
    let both = [process(70, &kernels()), process(71, ""), process(72, &kernels())];
    // A copy makes a process a rank too.
    let idle = process(73, "").replace("\"memory_copy\": [", "\"other\": [");
    let one = write(&directory.path().join("out.json"), &[both.to_vec(), vec![idle]].concat());
    let source = RocprofSource::open(std::slice::from_ref(&one)).unwrap();
    assert_eq!(source.ranks(), [0, 1, 2]);
    let pid = |rank: i32| source.load(rank).unwrap().outline.info.pid;
    assert_eq!([pid(0), pid(1), pid(2)], [70, 71, 72]);
    let whats: Vec<String> = source.problems().iter().map(|problem| problem.what.to_string()).collect();
    assert_eq!(whats, ["processes", "ranks of processes"]);
    let stated = [5, 3]
        .map(|rank| write(&directory.path().join(format!("rank{rank}/7_results.json")), &[process(70, &kernels())]));
    let source = RocprofSource::open(&stated).unwrap();
    assert_eq!((source.ranks(), source.problems().len()), (vec![3, 5], 0));
    let tables = analyze(&source, &Options::default(), &|_, _| ()).unwrap().tables;
    assert_eq!((tables.collective_instances.len(), tables.collective_instances[0].ranks_seen), (1, 2));
    let doubled = [stated[0].clone(), write(&directory.path().join("again/rank5.json"), &[process(70, &kernels())])];
    assert!(RocprofSource::open(&doubled).unwrap_err().to_string().contains("the same rank"));
}

#[test]
fn records_and_traces_of_torch_are_one_job() {
    let directory = tempfile::tempdir().unwrap();
    let trace = r#"{"distributedInfo": {"rank": 0, "world_size": 2}, "traceEvents": [
        {"ph": "X", "cat": "kernel", "name": "gemm", "pid": 0, "tid": 7, "ts": 30, "dur": 11, "args": {"device": 0, "stream": 7}}]}"#;
    fs::write(directory.path().join("rank0.json"), trace).unwrap();
    write(&directory.path().join("rank1.json"), &[process(70, &kernels())]);
    let files = JobFiles::find(&[directory.path().to_path_buf()]).unwrap();
    let source = files.open(OpenOptions::default()).unwrap();
    assert_eq!((source.ranks(), source.info().tool), (vec![0, 1], "torch.profiler and rocprofv3".to_string()));
    assert!(
        source.problems().iter().all(|problem| &*problem.what != "files without traces"),
        "{:?}",
        source.problems()
    );
}

/// Invariant (formats): rocprofv3: a file that is cut anywhere is an error or lists its loss.
#[test]
fn a_file_that_is_cut_anywhere_is_an_error_or_lists_its_loss() {
    let directory = tempfile::tempdir().unwrap();
    let whole = file(&[process(70, &kernels()), process(72, &kernels())]);
    let path = directory.path().join("cut.json");
    let mut read = 0;
    for end in 0..whole.trim_end().len() {
        fs::write(&path, &whole[..end]).unwrap();
        match RocprofSource::open(std::slice::from_ref(&path)) {
            Ok(source) => {
                check_source(&source);
                let lost = source.problems().into_iter().find(|problem| &*problem.kind == "lost").unwrap();
                assert!(lost.why.contains("byte "), "{lost:?}");
                read += 1;
            }
            Err(error) => assert!(error.to_string().contains("byte ") || end == 0, "cut at {end}: {error}"),
        }
    }
    assert!(read > whole.len() / 2, "records before a cut are read");
}

/// Invariant (formats): rocprofv3: changed bytes do no harm, and the memory for records is bounded.
#[test]
fn changed_bytes_and_too_many_records_do_no_harm() {
    let directory = tempfile::tempdir().unwrap();
    let whole = file(&[process(70, &kernels())]).into_bytes();
    let path = directory.path().join("a.json");
    for at in (0..whole.len()).step_by(2) {
        for byte in [b'"', b'{', b'9'] {
            let mut bytes = whole.clone();
            bytes[at] = byte;
            fs::write(&path, &bytes).unwrap();
            if let Ok(source) = RocprofSource::open(std::slice::from_ref(&path)) {
                check_source(&source);
            }
        }
    }
    let many: Vec<String> = (0..2_000).map(|at| kernel(1, at, 10 * at, 10 * at + 5)).collect();
    let path = write(&path, &[process(70, &many.join(","))]);
    let size = fs::metadata(&path).unwrap().len();
    let records = [path];
    let within = |max_memory_bytes: u64| {
        let options = OpenOptions { max_memory_bytes: Some(max_memory_bytes), ..Default::default() };
        JobFiles::find(&records).unwrap().open(options)
    };
    let data = within(size + 200_000).unwrap().load(0).unwrap();
    let lost = omitted(&data).into_iter().find(|(kind, what, _)| (*kind, *what) == ("lost", "events")).unwrap();
    let rows = data.events.len() as i64;
    assert!(rows > 100 && rows < 2_000, "{rows}");
    assert!(lost.2.unwrap() > 0);
    assert!(within(size - 1).err().unwrap().to_string().contains("--max-memory"));
}
