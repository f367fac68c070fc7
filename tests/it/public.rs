//! Small inputs made from public reports about traces: what is asked of each, and that the answer is right.
//!
//! Each folder of `public`, beside the real traces, has an `input` and the report's expectation in `expected.txt`.

use std::cell::OnceCell;
use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};

use serde_json::Value;

use crate::support::{Finished, aggregator, copy_directory, scratch};

/// The traces that most reports were made of: six steps of four ranks, rank 2 computes 3 ms longer in each.
const USUAL_MS: f64 = 2.98;

/// An input and what the commands say of it.
struct Answer {
    input: PathBuf,
    options: &'static [&'static str],
    json: OnceCell<Value>,
}

impl Answer {
    fn of(name: &str, options: &'static [&'static str]) -> Self {
        let input = public().join(name).join("input");
        assert!(input.is_dir(), "{} is missing", input.display());
        Self { input, options, json: OnceCell::new() }
    }

    /// `COMMAND INPUT` with the options of the case and these.
    fn run(&self, command: &str, more: &[&str]) -> Finished {
        let input = self.input.to_str().unwrap();
        let given = [command, input].into_iter().chain(self.options.iter().copied()).chain(more.iter().copied());
        aggregator(&given.collect::<Vec<_>>())
    }

    /// The first screen, which must end with this code.
    #[track_caller]
    fn screen(&self, code: i32) -> String {
        one_line(&self.run("analyze", &[]).expect_code(code).stdout)
    }

    fn json(&self) -> &Value {
        self.json.get_or_init(|| {
            let done = self.run("analyze", &["--json"]);
            serde_json::from_str(&done.stdout).unwrap_or_else(|e| panic!("{e}: {}", done.said()))
        })
    }

    fn rows(&self, table: &str) -> &Vec<Value> {
        self.json()["tables"][table].as_array().unwrap_or_else(|| panic!("no table {table}"))
    }

    /// The ranks that were read.
    #[track_caller]
    fn ranks(&self, ranks: &[i32]) {
        assert_eq!(self.json()["facts"]["ranks"], serde_json::json!(ranks));
    }

    /// One rank is the cause and costs this much of each step.
    #[track_caller]
    fn slow(&self, rank: i32, ms: f64) {
        let verdict = &self.json()["verdict"];
        assert_eq!((&verdict["kind"], &verdict["causes"]), (&"cause".into(), &serde_json::json!([rank])), "{verdict}");
        near(verdict["step_delay_ns"].as_f64().unwrap() / 1e6, ms, 0.03);
    }

    /// The mean of a column of `step_breakdown` over the steps of a device, in ms.
    #[track_caller]
    fn step_ms(&self, (rank, device): (i64, i64), column: &str, ms: f64) {
        let is_row =
            |row: &&Value| row["rank"] == rank && row["device_id"] == device && row["step"].as_i64() >= Some(0);
        let rows: Vec<f64> =
            self.rows("step_breakdown").iter().filter(is_row).filter_map(|r| r[column].as_f64()).collect();
        assert!(!rows.is_empty(), "no {column} of device {device} of rank {rank}");
        near(rows.iter().sum::<f64>() / rows.len() as f64 / 1e6, ms, 0.01);
    }
}

/// The folder of these inputs, beside the real traces.
fn public() -> PathBuf {
    let folder = fixtures::data::real_traces().join("../public");
    assert!(folder.is_dir(), "{} is missing", folder.display());
    folder
}

/// Text without the line breaks that the width of the terminal makes.
fn one_line(text: &str) -> String {
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}

#[track_caller]
fn near(found: f64, wanted: f64, relative: f64) {
    assert!((found - wanted).abs() <= relative * wanted.abs(), "{found} is not about {wanted}");
}

#[track_caller]
fn says(text: &str, words: &[&str]) {
    for word in words {
        assert!(text.contains(word), "{word:?} is missing in: {text}");
    }
}

#[track_caller]
fn never(text: &str, words: &[&str]) {
    for word in words {
        assert!(!text.contains(word), "{word:?} must not be in: {text}");
    }
}

/// One test for each case.
macro_rules! cases {
    ($($name:ident $options:tt $check:expr;)+) => {$(
        #[test]
        #[ignore = "reads real traces"]
        fn $name() {
            let check: fn(&Answer) = $check;
            check(&Answer::of(stringify!($name), &$options));
        }
    )+};
}

/// Rank 2 of four is slow by 3 ms, and nothing is lost.
fn usual(answer: &Answer) {
    says(&answer.screen(0), &["SLOW RANK 2"]);
    answer.ranks(&[0, 1, 2, 3]);
    answer.slow(2, USUAL_MS);
}

/// The same where some rows are lost.
fn usual_with_loss(answer: &Answer, lost: &[&str]) {
    let screen = answer.screen(3);
    says(&screen, &["SLOW RANK 2"]);
    says(&screen, lost);
    answer.slow(2, USUAL_MS);
}

/// What `hang` says.
fn hang(answer: &Answer, words: &[&str]) {
    says(&one_line(&answer.run("hang", &[]).expect_code(0).stdout), words);
}

cases! {
    all_gpu_ops_lost [] |a| {
        let screen = a.screen(3);
        says(&screen, &["30 launches", "no device work was recorded"]);
        never(&screen, &["NO FINDING", "nothing left out"]);
        for row in a.rows("step_breakdown") {
            assert_eq!(row["compute_ns"], 0, "CPU operators are no compute of a GPU job: {row}");
            assert_eq!(row["unknown_ns"], row["wall_ns"], "{row}");
        }
    };
    array_top [] usual;
    b_e_pairs_titan [] |a| says(&a.screen(3), &["LOST", "begin and end events"]);
    be_events [] |a| says(&a.screen(3), &["LOST", "156 begin and end events"]);
    clock_jump_fwd40 [] |a| {
        let screen = a.screen(0);
        never(&screen, &["BALANCED"]);
        says(&screen, &["UNDECIDED", "a clock jumped"]);
    };
    comm_no_correlation [] |a| {
        usual(a);
        a.step_ms((2, 2), "exposed_comm_ns", 2.0);
        a.step_ms((0, 0), "exposed_comm_ns", 5.0);
    };
    control_and_utf8 [] |a| { usual(a); says(&a.screen(0), &["nothing left out"]); };
    cuda_graph_corr [] |a| {
        a.slow(1, 0.5);
        let all = a.rows("launch_stats").iter().find(|row| row["rank"] == 0 && row["name"].is_null()).unwrap();
        let of = |column: &str| all[column].as_i64().unwrap();
        // Eight graphs of 200 kernels and a collective each.
        assert_eq!((of("launches"), of("calls"), of("delay_outliers")), (1608, 8, 0));
        let table = a.run("table", &["--json"]).expect_code(0).stdout;
        let table: Value = serde_json::from_str(&table).unwrap();
        let rows = table["tables"][0]["rows"].as_array().unwrap();
        let call = rows.iter().find(|row| row["name"] == "cudaGraphLaunch").unwrap();
        let device_ns = call["device_time_total_ns"].as_i64().unwrap();
        near(device_ns as f64 / 1e6, 16.0 + 4.64, 0.01);
    };
    cupti_range_counters [] |a| {
        let screen = a.screen(0);
        never(&screen, &["nothing left out"]);
        says(&a.run("analyze", &["--full"]).stdout, &["30", "cuda_profiler_range"]);
    };
    dup_corr_64bit_stream [] |a| {
        usual(a);
        says(&a.screen(0), &["nothing left out"]);
        a.step_ms((0, 0), "compute_ns", 9.96);
        a.step_ms((0, 0), "overlap_ns", 0.0);
        let rows = a.rows("queue_length").iter().filter(|r| r["rank"] == 0);
        let mut streams: Vec<i64> = rows.filter_map(|r| r["stream_id"].as_i64()).collect();
        streams.sort_unstable();
        streams.dedup();
        assert_eq!(streams, [94012345678901, 94012345678902]);
    };
    float_precision [] usual;
    fr_host_in_name [] |a| hang(a, &["Rank 5 holds the job up", "rank 5: its program has not called allreduce 5"]);
    fr_json_bytes [] |a| hang(a, &["Rank 1 holds the job up"]);
    fr_missing_dump_of_culprit [] |a| hang(a, &["rank 2: it has no dump or rows, and others wait for it"]);
    fr_nccl2_backend [] |a| hang(a, &["Rank 1 holds the job up"]);
    fr_size_mismatch [] |a| hang(a, &["no rank is behind the others", "ranks 0, 2–3: 1024; rank 1: 2048"]);
    gz_trailing_garbage [] |a| usual_with_loss(a, &["LOST rank 1", "what follows is no gzip"]);
    hosts_same_device0 [] |a| {
        says(&a.screen(0), &["SLOW RANK 2 — r1t07", "3 hosts", "clocks within"]);
        a.slow(2, 2.99);
    };
    intra_inter_node [] |a| {
        let nodes = |row: &Value| (row["name"].as_str().unwrap().to_string(), row["nodes"].as_i64());
        let expected = [("dp", 2), ("tp", 1)].map(|(name, nodes)| (name.to_string(), Some(nodes)));
        let found: BTreeSet<_> = a.rows("communicators").iter().map(nodes).collect();
        assert_eq!(found, BTreeSet::from(expected));
        says(&a.run("analyze", &["--full"]).stdout, &["within a host", "across hosts", "busbw by communicator"]);
    };
    long_names [] usual;
    many_gpus_one_process [] |a| {
        let screen = a.screen(0);
        says(&screen, &["device 2 of rank 0", "3.00 ms"]);
        never(&screen, &["the ranks arrive", "stragglers"]);
        for (device, ms) in [(0, 9.96), (1, 9.96), (2, 12.96), (3, 9.96)] {
            a.step_ms((0, device), "compute_ns", ms);
        }
        says(a.json()["verdict"]["sentence"].as_str().unwrap(), &["device 2 of rank 0"]);
    };
    name_order_10_before_2 [] |a| {
        says(&a.screen(0), &["SLOW RANK 10", "trace_10.json", "the files' names"]);
        a.ranks(&(0..12).collect::<Vec<_>>());
    };
    nan_inf [] usual;
    no_rank_anywhere [] |a| {
        a.ranks(&[0]);
        never(&a.screen(0), &["stragglers", "the ranks arrive"]);
    };
    no_steps_serving [] |a| {
        let screen = a.screen(0);
        never(&screen, &["record at least"]);
        says(&screen, &["--step-marker"]);
        a.step_ms((0, 0), "exposed_wait_ns", 18.0);
        a.step_ms((2, 2), "exposed_wait_ns", 0.0);
    };
    ns_ts_no_base [] |a| says(&a.screen(3), &["LOST rank 1", "78 events", "ns"]);
    nsys_base ["--step-marker", "train_step"] |a| a.slow(1, 3.0);
    nsys_no_nvtx [] |a| {
        says(&a.screen(0), &["UNDECIDED: rank 1"]);
        assert_eq!(a.rows("collective_instances").len(), 6);
    };
    nsys_nvtx_v2 ["--step-marker", "train_step"] |a| {
        a.slow(1, 3.0);
        assert_eq!(a.json()["facts"]["steps"].as_array().unwrap().len(), 6);
    };
    nsys_srun_files ["--step-marker", "train_step"] |a| a.slow(1, 3.0);
    one_rank_of_two [] |a| {
        let screen = a.screen(0);
        never(&screen, &["the ranks arrive", "stragglers", "late ranks"]);
        a.ranks(&[1]);
    };
    one_stall [] |a| says(&a.screen(0), &["step 10", "rank 2"]);
    p2p_batch [] |a| says(&a.screen(0), &["stage of rank 1 works 8.00 ms longer", "each rank is a stage"]);
    pdl_overlap [] |a| a.step_ms((0, 0), "compute_ns", 3.220);
    pg_renumbered [] |a| {
        usual(a);
        assert!(a.rows("collective_instances").iter().all(|row| row["complete"] != false && row["error_ns"].is_i64()));
    };
    primus_names [] |a| {
        a.ranks(&[0, 1, 2, 3]);
        a.slow(3, USUAL_MS);
    };
    rocprof_utf8 [] |a| {
        says(&a.screen(3), &["LOST rank 0: 1 name of rows"]);
        a.step_ms((0, 0), "compute_ns", 0.0045);
    };
    sglang_names_no_di [] |a| { usual(a); says(&a.screen(0), &["TP-2-DP"]); };
    stream_sync_virtual_tid [] |a| { usual(a); a.step_ms((2, 2), "idle_ns", 0.35); };
    sync_wait_without_device_rows [] |a| {
        let screen = a.screen(3);
        never(&screen, &["fewer, larger kernels", "waits for the host", ".item()", "nothing left out"]);
        says(&screen, &["device work is missing"]);
    };
    text_file_starts_with_bracket [] |a| {
        usual(a);
        says(&a.screen(0), &["host_1002"]);
        says(&a.run("analyze", &["--full"]).stdout, &["a_train.log", "overrides.yaml", "pyproject.toml"]);
    };
    timezone_names [] usual;
    ts_zero_kernels [] |a| {
        usual_with_loss(a, &["LOST rank 0", "3 events"]);
        assert_eq!(a.json()["facts"]["steps"].as_array().unwrap().len(), 6);
    };
    two_ranks_interleaved [] |a| {
        let screen = a.screen(3);
        says(&screen, &["from byte"]);
        never(&screen, &["the file ends inside"]);
    };
    two_runs_one_dir [] |a| {
        let screen = a.screen(0);
        never(&screen, &["BALANCED"]);
        says(&screen, &["rank 2", "2 recordings"]);
    };
    vllm_dp2_tp2_names [] |a| {
        a.ranks(&[0, 1, 2, 3]);
        a.slow(3, 3.0);
        never(&a.screen(0), &["LOST"]);
    };
    xpu_kernels [] |a| {
        usual(a);
        let kernels: i64 = a.rows("kernel_stats").iter().filter(|r| r["rank"] == 0).filter_map(|r| r["calls"].as_i64()).sum();
        assert_eq!(kernels, 24 + 6);
    };
}

/// The links are written as text files where they lie, so they are made again.
#[test]
#[ignore = "reads real traces"]
fn symlinks() {
    let (from, place) = (public().join("symlinks"), scratch("public_symlinks"));
    copy_directory(&from.join("pool"), &place.join("pool"));
    let input = place.join("input");
    fs::create_dir_all(&input).unwrap();
    for file in fs::read_dir(from.join("input")).unwrap() {
        let file = file.unwrap().path();
        let target = fs::read_link(&file).unwrap_or_else(|_| fs::read_to_string(&file).unwrap().trim().into());
        symlink(target, input.join(file.file_name().unwrap())).unwrap();
    }
    let answer = Answer { input, options: &[], json: OnceCell::new() };
    says(&answer.screen(3), &["LOST", "rank3.json"]);
    answer.ranks(&[0, 1, 2]);
}

/// Two recordings of one script in one folder: what `ingest` writes gives the answer of the files.
#[test]
#[ignore = "reads real traces"]
fn ingest_two_processes() {
    let answer = Answer::of("ingest_two_processes", &[]);
    usual(&answer);
    answer.step_ms((0, 0), "compute_ns", 9.96);
    let run = scratch("public_ingest").join("run");
    let out = ["ingest", answer.input.to_str().unwrap(), "--out", run.to_str().unwrap()];
    aggregator(&out).expect_code(0);
    let ingested = Answer { input: run, options: &[], json: OnceCell::new() };
    usual(&ingested);
    assert_eq!(ingested.rows("step_breakdown"), answer.rows("step_breakdown"));
}

/// Every folder has its case.
#[test]
#[ignore = "reads real traces"]
fn every_input_has_a_test() {
    let source = fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("it/public.rs")).unwrap();
    for folder in fs::read_dir(public()).unwrap() {
        let name = folder.unwrap().file_name().into_string().unwrap();
        let is_case = source.contains(&format!("    {name} [")) || source.contains(&format!("fn {name}()"));
        assert!(is_case, "{name} has no test");
    }
}
