//! `rank-agent exec` from outside: programs that know nothing of it, run as they would without it.

use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use fixtures::wait::wait_until;
use trace::{ClockSampleRow, CounterRow, Run};

use crate::support::{
    Finished, RANK_AGENT, analyze, finish, have_mpirun, inject_library, master_port, mpirun, one_job_at_a_time,
    scratch, skipped,
};

/// `rank-agent exec --out OUT -- sh -c SCRIPT`.
fn exec(out: &Path, script: &str) -> Command {
    let mut command = Command::new(RANK_AGENT);
    command.env("RANKSCOPE_INJECT_LIB", inject_library());
    command.args(["exec", "--out"]).arg(out).args(["--", "sh", "-c", script]);
    command
}

/// Invariant (recorder): A program under `exec` keeps its output, exit code and signals.
#[test]
fn a_program_runs_unharmed_and_the_run_says_why_it_is_empty() {
    let out = scratch("exec_empty").join("run");
    let done = finish(&mut exec(&out, "echo to stdout; echo to stderr >&2; cat")).expect_code(0);
    assert_eq!(done.stdout, "to stdout\n", "standard output is the program's alone");
    assert!(done.stderr.contains("to stderr\n") && done.stderr.contains("rankscope analyze"), "{}", done.stderr);
    let run = Run::open(&out).unwrap();
    let (counters, _) = run.rows::<CounterRow>(0);
    assert!(counters.iter().any(|c| &*c.source == "inject" && c.recorded == 0 && c.why.is_some()), "{counters:?}");
    let said = analyze(&out, &[], 0).stdout;
    assert!(unwrapped(&said).contains(NOTHING), "{said}");
}

const NOTHING: &str = "nothing was recorded: the program loaded neither CUDA nor NCCL";

/// Lines are wrapped to the terminal.
fn unwrapped(text: &str) -> String {
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}

/// All who may read a run may read its manifest, and arguments hold keys.
#[test]
fn values_of_arguments_are_stored_only_if_asked_for() {
    let place = scratch("exec_values");
    let manifest = |name: &str, options: &[&str]| {
        let out = place.join(name);
        let mut command = Command::new(RANK_AGENT);
        command.args(["exec", "-q", "--out"]).arg(&out).args(options);
        finish(command.args(["--", "true", "--api-key=KEY123", "KEY456"])).expect_code(0);
        fs::read_to_string(out.join("run.json")).unwrap()
    };
    let usual = manifest("usual", &[]);
    assert!(usual.contains("--api-key") && !usual.contains("KEY"), "{usual}");
    let asked = manifest("asked", &["--record-command"]);
    assert!(asked.contains("--api-key=KEY123") && asked.contains("KEY456"), "{asked}");
}

/// As a user starts it: nothing says where the library is.
#[test]
fn the_library_is_found_beside_the_program() {
    let out = scratch("exec_library").join("run");
    let script = "test -f $NCCL_PROFILER_PLUGIN && test $CUDA_INJECTION64_PATH = $NCCL_PROFILER_PLUGIN && echo found";
    let done = finish(exec(&out, script).env_remove("RANKSCOPE_INJECT_LIB")).expect_code(0);
    assert_eq!(done.stdout, "found\n", "{}", done.said());
    assert!(!done.stderr.contains("was not found"), "{}", done.stderr);
    // Without it the program runs all the same, and the run says what is missing.
    let out = scratch("exec_no_library").join("run");
    let done = finish(exec(&out, "echo hi").env("RANKSCOPE_INJECT_LIB", "/nowhere/x.so")).expect_code(0);
    assert_eq!(done.stdout, "hi\n");
    let said = analyze(&out, &[], 0).stdout;
    assert!(said.contains("/nowhere/x.so") && !unwrapped(&said).contains(NOTHING), "{said}");
}

/// Invariant (recorder): A program under `exec` keeps its output, exit code and signals.
#[test]
fn the_exit_code_is_the_programs() {
    let here = scratch("exec_codes");
    for (number, (script, code)) in [("exit 7", 7), ("kill -TERM $$", 128 + 15), ("kill -9 $$", 137)].iter().enumerate()
    {
        let out = here.join(number.to_string());
        let done = finish(&mut exec(&out, script)).expect_code(*code);
        assert!(Run::open(&out).is_ok(), "{script}: {}", done.said());
    }
    let mut missing = Command::new(RANK_AGENT);
    missing.args(["exec", "--out"]).arg(here.join("missing")).args(["--", "/no/such/program"]);
    let said = finish(&mut missing).expect_code(127).stderr;
    assert!(said.contains("/no/such/program") && !said.contains("CUDA"), "{said}");
    let said = unwrapped(&analyze(&here.join("missing"), &[], 0).stdout);
    assert!(said.contains("the program /no/such/program could not be started: No such file"), "{said}");
    let mut directory = Command::new(RANK_AGENT);
    directory.args(["exec", "--out"]).arg(here.join("directory")).args(["--", "/"]);
    finish(&mut directory).expect_code(126);
    finish(Command::new(RANK_AGENT).args(["exec", "--out", "x", "--"])).expect_code(2);
    finish(Command::new(RANK_AGENT).args(["exec", "--steps", "3", "--", "true"])).expect_code(2);
}

#[test]
fn a_run_that_exists_is_not_written_over_and_nothing_starts() {
    let here = scratch("exec_exists");
    fs::write(here.join("old"), "").unwrap();
    let done = finish(&mut exec(&here, "echo started")).expect_code(1);
    assert_eq!(done.stdout, "");
    assert!(done.stderr.contains("not empty"), "{}", done.stderr);
}

/// Invariant (recorder): A program under `exec` keeps its output, exit code and signals.
#[test]
fn signals_reach_the_program_and_its_children_do_not_matter() {
    let here = scratch("exec_signals");
    let ready = here.join("ready");
    // A child of the program outlives it, as a data loader's worker may.
    let script = format!(
        "trap 'echo got it; exit 5' USR1; sleep 300 >/dev/null 2>&1 & child=$!; echo $child > {}; \
         while :; do sleep 0.05; done",
        ready.display()
    );
    let mut command = exec(&here.join("run"), &script);
    let child = command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    wait_until("the program starts", || fs::read_to_string(&ready).is_ok_and(|text| !text.is_empty()));
    let kill = |signal: &str, pid: &str| finish(Command::new("kill").args([signal, pid]));
    kill("-USR1", &child.id().to_string()).expect_code(0);
    let output = child.wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(5), "{}", String::from_utf8_lossy(&output.stderr));
    assert_eq!(String::from_utf8_lossy(&output.stdout), "got it\n");
    kill("-9", fs::read_to_string(&ready).unwrap().trim());
}

#[test]
fn the_environment_of_the_program_is_kept_and_extended() {
    let out = scratch("exec_environment").join("run");
    let mut command = exec(&out, "env");
    command.env("MY_OWN", "value").env("NCCL_PROFILER_PLUGIN", "inspector");
    let said = finish(&mut command).expect_code(0).stdout;
    for line in ["MY_OWN=value", "RANKSCOPE_RANK=0", "RANKSCOPE_WORLD_SIZE=1"] {
        assert!(said.lines().any(|l| l == line), "{line} in {said}");
    }
    assert!(said.contains("inspector"), "the user's plugin is kept, by itself or chained");
    assert!(said.contains(&format!("RANKSCOPE_RUN={}", out.display())), "{said}");
}

/// Four ranks that an MPI launcher started, or that only their environment describes.
fn four_ranks(name: &str, launch: impl Fn(&Path) -> Vec<Finished>) {
    let out = scratch(name).join("run");
    let _turn = one_job_at_a_time();
    for done in launch(&out) {
        done.expect_code(0);
    }
    let run = Run::open(&out).unwrap();
    for rank in 0..4 {
        let (samples, _) = run.rows::<ClockSampleRow>(rank);
        let pings = samples.iter().filter(|sample| &*sample.kind == "ping").count();
        assert_eq!(pings > 0, rank > 0, "rank {rank} compared its clock {pings} times");
    }
    let said = analyze(&out, &["--full"], 0).stdout;
    assert!(said.contains("4 host clocks by ping"), "{said}");
}

const SLEEP: &str = "sleep 0.$RANKSCOPE_RANK";

#[test]
fn mpirun_starts_programs_that_know_nothing_of_mpi() {
    if !have_mpirun("mpirun rank-agent exec") {
        return;
    }
    four_ranks("exec_mpirun", |out| {
        vec![finish(mpirun(4).arg(RANK_AGENT).args(["exec", "--out"]).arg(out).args(["--", "sh", "-c", SLEEP]))]
    });
}

#[test]
fn ranks_of_torchrun_find_each_other_beside_its_port() {
    let port = master_port();
    four_ranks("exec_torchrun", |out| {
        let ranks: Vec<_> = (0..4)
            .map(|rank| {
                let mut command = exec(out, SLEEP);
                command.env("TORCHELASTIC_RUN_ID", "a test").env("RANK", rank.to_string()).env("WORLD_SIZE", "4");
                command.env("LOCAL_RANK", rank.to_string()).env("LOCAL_WORLD_SIZE", "4");
                command.env("MASTER_ADDR", "localhost").env("MASTER_PORT", port.to_string());
                std::thread::spawn(move || finish(&mut command))
            })
            .collect();
        ranks.into_iter().map(|rank| rank.join().unwrap()).collect()
    });
}

/// A rank of a job of three that waits so long for the others.
fn one_of_three(rank: i32, out: &Path, address: &str, seconds: &str, token: &str) -> Command {
    let mut command = Command::new(RANK_AGENT);
    command.args(["exec", "--join-timeout", seconds, "--rendezvous", address]).arg("--out").arg(out);
    command.args(["--", "echo", "started"]).env("RANKSCOPE_INJECT_LIB", inject_library());
    command.env("RANK", rank.to_string()).env("WORLD_SIZE", "3").env("RANKSCOPE_TOKEN", token);
    command
}

/// The reasons of a rank for clocks that were not compared.
fn apart(run: &Run, rank: i32) -> Vec<String> {
    let of_clocks = |row: &CounterRow| &*row.source == trace::CLOCK_SOURCE;
    let rows = run.rows::<CounterRow>(rank).0.into_iter().filter(of_clocks);
    rows.filter_map(|row| row.why).map(|why| why.to_string()).collect()
}

/// Invariant (recorder): A rank that does not come stops no job, and the run names the ranks whose clocks were not
/// compared.
///
/// Rank 1 never comes, and rank 2 comes after rank 0 has ended.
#[test]
fn a_job_runs_though_a_rank_is_missing_and_another_late() {
    let out = scratch("exec_missing").join("run");
    let address = format!("127.0.0.1:{}", master_port());
    let began = Instant::now();
    let done = finish(&mut one_of_three(0, &out, &address, "1", "")).expect_code(0);
    assert!(began.elapsed() < Duration::from_secs(30));
    assert_eq!(done.stdout, "started\n");
    let place = "ranks 1, 2 did not connect to the socket of this host's ranks (--rendezvous) within 1 s";
    for part in [place, "--join-timeout"] {
        assert!(done.stderr.contains(part), "{part} in {}", done.stderr);
    }
    let late = finish(&mut one_of_three(2, &out, &address, "1", "")).expect_code(0);
    assert_eq!(late.stdout, "started\n");
    assert!(
        late.stderr.contains("rank 2: clocks are not compared with the other ranks: rank 0 could not be reached at")
    );
    let run = Run::open(&out).unwrap();
    assert_eq!(run.manifest.world_size, 3);
    for rank in [0, 2] {
        let why = apart(&run, rank);
        assert!(why.len() == 1 && why[0].contains("the socket of this host's ranks"), "rank {rank}: {why:?}");
    }
    let json = crate::support::aggregator(&[Path::new("analyze"), &out, Path::new("--json")]).expect_code(3).stdout;
    let json: serde_json::Value = serde_json::from_str(&json).unwrap();
    let omissions = json["tables"]["omissions"].as_array().unwrap();
    let of_clocks = omissions.iter().filter(|row| row["what"] == "comparison of clocks" && row["kind"] == "left_out");
    assert_eq!(of_clocks.map(|row| &row["rank"]).collect::<Vec<_>>(), [&serde_json::json!(0), &serde_json::json!(2)]);
    let fits = json["tables"]["clock_fit"].as_array().unwrap();
    let of_rank_2: Vec<&serde_json::Value> = fits.iter().filter(|fit| fit["rank"] == 2).collect();
    assert!(!of_rank_2.is_empty() && of_rank_2.iter().all(|fit| fit["method"] != "ping"), "{fits:?}");
    // The same rank again is no late rank.
    let again = finish(&mut one_of_three(2, &out, &address, "1", "")).expect_code(1);
    assert!(again.stdout.is_empty() && again.stderr.contains("rank 2 was already recorded there"), "{}", again.stderr);
}

/// Invariant (recorder): A rank that does not come stops no job, and the run names the ranks whose clocks were not
/// compared.
///
/// Rank 1 has another token. Ranks 0 and 2 compare their clocks; all three are recorded to one run.
#[test]
fn a_rank_with_another_token_is_recorded_apart() {
    let out = scratch("exec_token").join("run");
    let address = format!("127.0.0.1:{}", master_port());
    let _turn = one_job_at_a_time();
    let ranks: Vec<_> = [(0, "a"), (1, "b"), (2, "a")]
        .into_iter()
        .map(|(rank, token)| {
            let mut command = one_of_three(rank, &out, &address, "4", token);
            std::thread::spawn(move || finish(&mut command))
        })
        .collect();
    let done: Vec<Finished> = ranks.into_iter().map(|rank| rank.join().unwrap().expect_code(0)).collect();
    assert!(done.iter().all(|done| done.stdout == "started\n"));
    assert!(done[1].stderr.contains("its RANKSCOPE_TOKEN differs"), "{}", done[1].stderr);
    let run = Run::open(&out).unwrap();
    assert!(apart(&run, 0)[0].contains("clocks are not compared with rank 1: "), "{:?}", apart(&run, 0));
    assert_eq!((apart(&run, 1).len(), apart(&run, 2).len()), (1, 0));
    let pings = |rank| run.rows::<ClockSampleRow>(rank).0.iter().filter(|sample| &*sample.kind == "ping").count();
    assert_eq!([pings(0) > 0, pings(1) > 0, pings(2) > 0], [false, false, true]);
}

#[test]
fn a_rank_that_fails_does_not_hold_the_others() {
    if !have_mpirun("a failing rank under exec") {
        return;
    }
    let out = scratch("exec_failing").join("run");
    let _turn = one_job_at_a_time();
    let script = "[ $RANKSCOPE_RANK = 1 ] && exit 9; sleep 0.3";
    let began = Instant::now();
    let mut job = mpirun(2);
    let done = finish(job.arg(RANK_AGENT).args(["exec", "--out"]).arg(&out).args(["--", "sh", "-c", script]));
    assert_eq!(done.code, Some(9), "{}", done.said());
    assert!(began.elapsed() < Duration::from_secs(60));
    assert!(Run::open(&out).is_ok(), "what was recorded is kept");
}

/// The scripts that start `exec` on clusters: whatever reads their language must take them.
#[test]
fn launch_scripts_are_well_formed() {
    let launch = Path::new(env!("CARGO_MANIFEST_DIR")).join("../launch");
    for script in ["mpirun.sh", "torchrun.sh", "slurm.sbatch"] {
        let path = launch.join(script);
        finish(Command::new("bash").arg("-n").arg(&path)).expect_code(0);
        assert!(fs::read_to_string(&path).unwrap().contains("exec --out"), "{script}");
    }
    let out = scratch("exec_launch").join("run");
    if have_mpirun("launch/mpirun.sh") {
        let _turn = one_job_at_a_time();
        let mut command = Command::new("bash");
        command.arg(launch.join("mpirun.sh")).args(["sh", "-c", SLEEP]).env("RANKS", "2").env("RUN", &out);
        command.env("RANK_AGENT", RANK_AGENT).env("MPIRUN_FLAGS", "--oversubscribe");
        command.env("OMPI_ALLOW_RUN_AS_ROOT", "1").env("OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "1");
        finish(&mut command).expect_code(0);
        assert!(Run::open(&out).is_ok());
    } else {
        skipped("launch/mpirun.sh", "there is no mpirun");
    }
}
