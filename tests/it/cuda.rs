//! Training on CUDA devices, without one: what is said where something is missing, and the whole of it on a stand-in
//! for CUDA's libraries that runs the real kernels (tests/cuda). Nothing here says anything about a GPU.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

use trace::{ClockSampleRow, CollectiveRow, EventRow, RankRow, Run, StepRow};

use crate::support::{RANK_AGENT, finish, have_mpirun, mpirun, one_job_at_a_time, scratch, shared, skipped};

/// Small: the stand-in computes product by product and thread by thread.
const TINY: &[&str] =
    &["--layers", "4", "--hidden", "48", "--batch", "16", "--bucket-mb", "0", "--steps", "9", "--lr", "0.05"];

/// Whether there is a real driver here, which these tests would find first.
fn has_driver(what: &str) -> bool {
    let found = Path::new("/dev/nvidiactl").exists();
    if found {
        skipped(what, "there is a real driver here");
    }
    found
}

/// The stand-in's directory, built once; nothing where there is no C compiler.
fn stand_in(what: &str) -> Option<&'static Path> {
    static BUILT: OnceLock<Option<PathBuf>> = OnceLock::new();
    if has_driver(what) {
        return None;
    }
    let build = || {
        let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("cuda/build");
        Command::new("cc").arg("--version").output().ok()?;
        let compile = |place: &Path| {
            finish(Command::new(script).arg(place)).expect_code(0);
        };
        Some(shared("cuda_stand_in", compile))
    };
    let built = BUILT.get_or_init(build).as_deref();
    if built.is_none() {
        skipped(what, "there is no C compiler");
    }
    built
}

/// `rank-agent` that finds CUDA's libraries in `libraries` only.
fn agent(libraries: &Path) -> Command {
    let mut command = Command::new(RANK_AGENT);
    command.env("RANKSCOPE_CUDA_PATH", libraries).env("XDG_CACHE_HOME", libraries.join("cache")).env_remove("PATH");
    command
}

/// Invariant (recorder): Without CUDA, the program gives one clear error or runs on the CPU.
#[test]
fn without_cuda_one_clear_error_or_the_cpu() {
    if has_driver("rank-agent without CUDA") {
        return;
    }
    let place = scratch("no_cuda");
    let run = place.join("run");
    let mut command = Command::new(RANK_AGENT);
    let said = finish(command.args(["--backend", "cuda", "--out"]).arg(&run)).expect_code(1).stderr;
    assert_eq!(said.lines().count(), 1, "{said}");
    for part in
        ["--backend cuda: the CUDA driver (libcuda.so", "was not found; searched: ", "To get it: ", "--backend cpu"]
    {
        assert!(said.contains(part), "{part}: {said}");
    }
    assert!(!run.exists(), "nothing is left behind");
    let mut command = Command::new(RANK_AGENT);
    let said = finish(command.args(TINY).args(["--backend", "auto", "--record", "off"])).expect_code(0).stderr;
    assert!(said.contains("computed by the cpu (chosen by --backend auto: the CUDA driver (libcuda.so"), "{said}");
}

/// Invariant (recorder): Without CUDA, the program gives one clear error or runs on the CPU.
///
/// Each library in turn is missing, or there and empty.
#[test]
fn every_missing_or_empty_library_is_named() {
    let Some(all) = stand_in("CUDA libraries that are missing") else { return };
    let place = scratch("cuda_missing");
    let libraries = [("libcuda.so.1", "the CUDA driver"), ("libcublas.so.13", "cuBLAS"), ("libnvrtc.so.13", "NVRTC")];
    for (missing, name) in libraries {
        let here = place.join(missing);
        fs::create_dir(&here).unwrap();
        for (file, _) in libraries.iter().filter(|(file, _)| *file != missing) {
            fs::copy(all.join(file), here.join(file)).unwrap();
        }
        let arguments = ["--backend", "cuda", "--record", "off"];
        let said = finish(agent(&here).args(arguments)).expect_code(1).stderr;
        assert!(said.contains(&format!("--backend cuda: {name} (")) && said.contains("was not found"), "{said}");
        let empty = here.join(missing);
        let cc = ["-shared", "-fPIC", "-x", "c", "/dev/null", "-o"];
        finish(Command::new("cc").args(cc).arg(&empty)).expect_code(0);
        let said = finish(agent(&here).args(arguments)).expect_code(1).stderr;
        assert!(said.contains(name) && said.contains(missing) && said.contains("is too old: it lacks"), "{said}");
        fs::write(&empty, "garbage").unwrap();
        let said = finish(agent(&here).args(arguments)).expect_code(1).stderr;
        assert!(said.contains(name) && said.contains("cannot be loaded"), "{said}");
    }
}

#[test]
fn a_driver_that_is_old_or_has_no_device_says_so() {
    let Some(stand_in) = stand_in("a driver without a device") else { return };
    for (variable, value, part) in [
        ("STANDIN_DRIVER", "11080", "the CUDA driver (libcuda.so.1) is too old: it serves CUDA 11.8"),
        ("STANDIN_INIT", "100", "cuInit failed: CUDA_ERROR_NO_DEVICE"),
        ("STANDIN_DEVICES", "0", "there is no CUDA device to compute on: the driver sees none"),
        ("CUDA_VISIBLE_DEVICES", "", "there is no CUDA device to compute on: CUDA_VISIBLE_DEVICES is ``"),
    ] {
        let mut command = agent(stand_in);
        let said = finish(command.args(["--backend", "cuda", "--record", "off"]).env(variable, value)).expect_code(1);
        assert!(said.stderr.contains(part), "{}", said.stderr);
    }
}

#[test]
fn the_kernels_are_right_within_their_bounds() {
    let Some(stand_in) = stand_in("the kernels on a processor") else { return };
    let said = finish(agent(stand_in).args(["selftest", "--large", "96"])).expect_code(0).stdout;
    for dtype in ["f32", "tf32", "bf16"] {
        assert!(said.contains(&format!("check cuda {dtype}: 155 of 155 within bounds")), "{said}");
    }
}

/// The loss of every step of a run.
fn losses(run: &Path, rank: i32) -> Vec<f64> {
    let (rows, problems) = Run::open(run).unwrap().rows::<StepRow>(rank);
    assert_eq!(problems, []);
    rows.iter().map(|row| row.loss.unwrap()).collect()
}

/// Invariant (recorder): Training gives the same weights on devices and on the CPU, in any order of events.
///
/// One after the other: as on the CPU; with a CUDA graph; two ranks by NCCL in several unkind orders, and by MPI.
#[test]
fn devices_and_the_cpu_learn_the_same_by_every_transport() {
    let what = "training on a stand-in for CUDA";
    let Some(stand_in) = stand_in(what) else { return };
    if !have_mpirun(what) {
        return;
    }
    let _turn = one_job_at_a_time();
    let place = scratch("cuda_trains");
    let train = |ranks: u32, name: &str, arguments: &[&str], order: &str| {
        let run = place.join(name);
        let mut command = mpirun(ranks);
        command.arg(RANK_AGENT).args(TINY).args(arguments).arg("--out").arg(&run);
        command.env("RANKSCOPE_CUDA_PATH", stand_in).env("XDG_CACHE_HOME", stand_in.join("cache"));
        // As before NCCL 2.30: one device holds one rank of a host.
        command.env("STANDIN_ORDER", order).env("STANDIN_DUPLICATE", "1");
        (finish(&mut command).expect_code(0).stderr, run)
    };
    let (_, cpu) = train(2, "cpu", &["--backend", "cpu"], "first");
    let expected = losses(&cpu, 0);
    for (name, more, order, said) in [
        ("nccl_first", &["--share-gpu"][..], "first", "by a host id for every rank, over sockets"),
        ("nccl_last", &["--share-gpu"], "last", "collectives: nccl"),
        ("graph", &["--share-gpu", "--cuda-graph"], "11", "collectives: nccl"),
        ("mpi", &["--share-gpu", "--collectives", "mpi"], "3", "collectives: mpi through pinned host memory"),
    ] {
        let (stderr, run) = train(2, name, &[&["--backend", "cuda"], more].concat(), order);
        assert!(stderr.contains(said), "{name}: {stderr}");
        for (step, (found, expected)) in losses(&run, 0).iter().zip(&expected).enumerate() {
            let error = (found - expected).abs() / expected;
            assert!(error < 1e-5, "{name}, step {step}: {found} for {expected}");
        }
        assert_eq!(losses(&run, 0).len(), expected.len());
        check_collectives(&run, name);
    }
    let (stderr, _) = train(1, "alone", &["--backend", "cuda", "--dtype", "bf16", "--cuda-graph"], "5");
    assert!(stderr.contains("collectives: none"), "{stderr}");
}

/// Each transfer carries known numbers, which the ranks check.
#[test]
fn jobs_with_several_communicators_get_their_numbers_by_nccl() {
    let what = "several communicators on a stand-in for NCCL";
    let Some(stand_in) = stand_in(what) else { return };
    if !have_mpirun(what) {
        return;
    }
    let _turn = one_job_at_a_time();
    let place = scratch("nccl_groups");
    for (name, mesh, more) in [
        ("sharded", "dp=4", &["--fsdp"][..]),
        ("tensor", "dp=2,tp=2", &["--compute", "sleep"]),
        ("pipeline", "dp=2,pp=2", &["--compute", "sleep", "--microbatches", "4"]),
    ] {
        let run = place.join(name);
        let mut command = mpirun(4);
        command
            .arg(RANK_AGENT)
            .args(TINY)
            .args(["--parallel", mesh, "--collectives", "nccl", "--share-gpu"])
            .args(more);
        command.env("RANKSCOPE_CUDA_PATH", stand_in).env("XDG_CACHE_HOME", stand_in.join("cache"));
        let said = finish(command.env("STANDIN_DUPLICATE", "1").arg("--out").arg(&run)).expect_code(0).stderr;
        assert!(said.contains("collectives: nccl") && said.contains("by a host id for every rank"), "{said}");
        let (rows, problems) = Run::open(&run).unwrap().rows::<CollectiveRow>(3);
        assert_eq!(problems, []);
        let ops: std::collections::BTreeSet<String> = rows.iter().map(|row| row.op.to_string()).collect();
        let expected: &[&str] = match name {
            "sharded" => &["allgather", "reducescatter"],
            "tensor" => &["allgather", "allreduce"],
            _ => &["allgather", "allreduce", "recv", "send"],
        };
        assert_eq!(ops, expected.iter().map(|op| (*op).to_owned()).collect(), "{name}");
        assert!(rows.iter().all(|row| &*row.state == "done"), "{name}");
    }
}

/// The host is steps ahead of the device, so that only a delay of the device makes a step longer.
#[test]
fn a_planted_delay_occupies_the_device_in_every_phase() {
    let what = "a planted delay on a stand-in for CUDA";
    let Some(stand_in) = stand_in(what) else { return };
    let place = scratch("cuda_delay");
    let train = |name: &str, arguments: &[&str]| {
        let mut command = agent(stand_in);
        command.args(TINY).args(["--backend", "cuda", "--schedule", "wait=0,warmup=3,active=5"]).args(arguments);
        let said = finish(command.arg("--out").arg(place.join(name))).expect_code(0).stderr;
        let ms = said.split(" ms a step").next().and_then(|before| before.rsplit(' ').next()).unwrap();
        ms.parse::<f64>().unwrap_or_else(|_| panic!("{said}"))
    };
    for phase in ["input", "forward", "backward"] {
        let fault = format!("slow:rank=0,ms=40,phase={phase}");
        let run = format!("{phase}_graph");
        for (name, more) in [(phase, &["--inject", &fault][..]), (&run, &["--inject", &fault, "--cuda-graph"])] {
            let ms = train(name, more);
            assert!(ms >= 40.0, "{name}: {ms}");
            assert_eq!(losses(&place.join(name), 0).len(), 9);
            // The host only launches the kernel that takes the time.
            let (rows, _) = Run::open(&place.join(name)).unwrap().rows::<EventRow>(0);
            let launches = rows.iter().filter(|row| &*row.kind == "cpu_op" && &*row.name == "injected_delay");
            let least_ns = launches.map(|row| row.dur_ns).min();
            assert!(least_ns.is_some_and(|ns| ns < 20_000_000), "{name}: {least_ns:?}");
        }
    }
}

/// ```text
/// recorder's clock   anchor    [ready] [collective]        anchor
/// device's, twice    anchor         [ready]    [collective]            anchor
/// ```
#[test]
fn a_device_whose_clock_runs_fast_has_times_in_the_recorders_clock() {
    let what = "a device with a fast clock";
    let Some(stand_in) = stand_in(what) else { return };
    if !have_mpirun(what) {
        return;
    }
    let _turn = one_job_at_a_time();
    let run = scratch("cuda_clock").join("run");
    let mut command = mpirun(2);
    command.arg(RANK_AGENT).args(TINY).args(["--backend", "cuda", "--share-gpu", "--inject", "slow:rank=1,ms=50"]);
    // A planted fault of the clock bends the times of the device, too.
    command.args(["--inject", "clock:rank=1,offset_ms=5000,drift_ppm=100"]);
    command.args(["--schedule", "wait=0,warmup=3,active=5", "--out"]).arg(&run);
    command.env("RANKSCOPE_CUDA_PATH", stand_in).env("XDG_CACHE_HOME", stand_in.join("cache"));
    finish(command.env("STANDIN_CLOCK_PERCENT", "200").env("STANDIN_DUPLICATE", "1")).expect_code(0);
    let run = Run::open(&run).unwrap();
    let (rows, _) = run.rows::<CollectiveRow>(1);
    let times: Vec<_> = rows.iter().filter(|row| &*row.timing_source == "gpu_timer").collect();
    let first_ns = times.iter().filter_map(|row| row.enqueue_ns).min().unwrap();
    let last_ns = times.iter().filter_map(|row| row.end_ns).max().unwrap();
    // The ranks compare their clocks after the last step.
    let compared_ns = run.rows::<ClockSampleRow>(1).0.iter().map(|sample| sample.local_ns).max().unwrap();
    assert_eq!(times.len(), 40);
    assert!(
        last_ns - first_ns >= 200_000_000 && last_ns <= compared_ns,
        "{first_ns} to {last_ns}, compared {compared_ns}"
    );
}

/// Eight buckets in five recorded steps, each measured as well as it can be.
fn check_collectives(run: &Path, name: &str) {
    let run = Run::open(run).unwrap();
    let (mut rows, problems) = run.rows::<CollectiveRow>(1);
    assert_eq!(problems, []);
    rows.retain(|row| &*row.op == "allreduce");
    assert_eq!(rows.len(), 40, "{name}");
    let source = |row: &CollectiveRow| (row.timing_source.to_string(), row.state.to_string());
    let expected = match name {
        // CUDA events: without CUPTI.
        "nccl_first" | "nccl_last" => ("gpu_timer", "done"),
        // Events inside a graph keep the times of its last launch only.
        "graph" => ("enqueue", "unreported"),
        _ => ("host", "done"),
    };
    for row in &rows {
        assert_eq!(source(row), (expected.0.into(), expected.1.into()), "{name}");
        if expected.1 == "done" {
            assert!(row.ready_ns <= row.start_ns && row.start_ns <= row.end_ns, "{name}: {row:?}");
        }
    }
    let (ranks, _) = run.rows::<RankRow>(1);
    assert_eq!(ranks.last().unwrap().device_name.as_deref(), Some("Stand-in 0"), "{name}");
}

#[test]
fn ranks_share_a_device_only_on_request() {
    let what = "two ranks on one stand-in device";
    let Some(stand_in) = stand_in(what) else { return };
    if !have_mpirun(what) {
        return;
    }
    let _turn = one_job_at_a_time();
    let train = |arguments: &[&str], variables: &[(&str, &str)], code: i32| {
        let mut command = mpirun(2);
        command.arg(RANK_AGENT).args(TINY).args(["--record", "off"]).args(arguments);
        command.env("RANKSCOPE_CUDA_PATH", stand_in).env("XDG_CACHE_HOME", stand_in.join("cache"));
        finish(command.envs(variables.iter().copied())).expect_code(code).stderr
    };
    let said = train(&["--backend", "cuda"], &[], 1);
    assert_eq!(said.matches("ranks 0 and 1 would compute on the same device").count(), 1, "{said}");
    let said = train(&["--backend", "auto"], &[], 0);
    assert!(said.contains("computed by the cpu (chosen by --backend auto: ranks 0 and 1"), "{said}");
    let said = train(&["--backend", "cuda", "--share-gpu=multi-rank"], &[], 1);
    assert!(said.contains("needs NCCL 2.30.3 or newer, and this is 2.28.9"), "{said}");
    let said =
        train(&["--backend", "cuda", "--share-gpu"], &[("STANDIN_NCCL", "23007"), ("STANDIN_DUPLICATE", "1")], 0);
    assert!(said.contains("NCCL 2.30.7 by NCCL_MULTI_RANK_GPU_ENABLE"), "{said}");
    // Two parts of a device, by MIG: NCCL sees one bus id.
    let said = train(&["--backend", "cuda"], &[("STANDIN_DEVICES", "2"), ("STANDIN_MIG", "1")], 1);
    assert_eq!(said.matches("ranks 0 and 1 would compute on the same device").count(), 1, "{said}");
    // A device each: nothing is shared, and nothing is said of it.
    let said = train(&["--backend", "cuda"], &[("STANDIN_DEVICES", "2")], 0);
    assert!(said.contains("collectives: nccl") && !said.contains("share a GPU"), "{said}");
}
