//! Faults while a job runs: a rank is killed, the disk is full, the launcher is of another MPI.

use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};

use fixtures::wait::wait_until;
use trace::{CounterRow, EventRow, OmissionRow, RankRow, Run};

use crate::support::{
    AGGREGATOR, RANK_AGENT, SMALL_MODEL, analyze, copy_directory, finish, have_mpirun, is_root, mpirun,
    one_job_at_a_time, scratch, skipped,
};
use crate::tables::analysis;

fn has_parts(run: &Path, rank: i32, parts: u32) -> bool {
    (0..parts).all(|part| trace::shard_path(run, "events", rank, part).is_file())
}

/// Invariant (files): A killed rank loses at most its open part.
#[test]
fn a_killed_rank_loses_at_most_its_open_part() {
    if !have_mpirun("a_killed_rank_loses_at_most_its_open_part") {
        return;
    }
    let path = scratch("killed").join("run");
    let turn = one_job_at_a_time();
    // Steps without end, all of them recorded.
    let mut job = mpirun(2)
        .arg(RANK_AGENT)
        .arg("--out")
        .arg(&path)
        .args(SMALL_MODEL)
        .args(["--steps", "1000000", "--schedule", "wait=0,warmup=1,active=100,repeat=0"])
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    wait_until("both ranks have a second part", || has_parts(&path, 0, 2) && has_parts(&path, 1, 2));
    let victim = Run::open(&path).unwrap().rows::<RankRow>(1).0[0].pid;
    let killed = Command::new("kill").args(["-KILL", &victim.to_string()]).status().unwrap();
    assert!(killed.success());
    let status = job.wait().unwrap();
    drop(turn);
    assert!(!status.success(), "mpirun noticed nothing");

    let run = Run::open(&path).unwrap();
    assert_eq!(run.ranks(), [0, 1]);
    let (events, problems) = run.rows::<EventRow>(1);
    assert_eq!(problems, vec![], "what was closed is whole");
    let closed: u64 = run.shards(1, "events").iter().map(|s| s.rows).sum();
    assert!(run.shards(1, "events").len() >= 2 && events.len() as u64 == closed && closed > 20, "{closed} rows");
    assert!(!run.rows::<RankRow>(1).0.last().unwrap().closed_cleanly);

    analyze(&path, &[], 3);
    let omissions = analysis::<OmissionRow>(&path);
    assert!(omissions.iter().any(|o| o.rank == Some(1)), "{omissions:#?}");
}

/// Invariant (recorder): A full disk costs rows and does not stop the training.
///
/// A disk that is full while recording: a tmpfs of 144 KiB, in a mount namespace of its own that ends with the job.
#[test]
fn a_full_disk_costs_rows_but_not_the_training() {
    let what = "a_full_disk_costs_rows_but_not_the_training";
    if !have_mpirun(what) {
        return;
    }
    let here = scratch("full_disk");
    let (mount, kept) = (here.join("small"), here.join("kept"));
    fs::create_dir(&mount).unwrap();
    let namespace: &[&str] = if is_root() { &["--mount"] } else { &["--mount", "--user", "--map-root-user"] };
    let probe = Command::new("unshare")
        .args(namespace)
        .args(["mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs"])
        .arg(&mount)
        .output();
    if !probe.is_ok_and(|o| o.status.success()) {
        skipped(what, "this kernel lets nobody mount a tmpfs here");
        return;
    }
    let script = r#"
        mount -t tmpfs -o size=144k tmpfs "$1" || exit 99
        mkdir "$1/run"
        shift 1
        "$@"
        code=$?
        df -k "$MOUNT" >&2
        cp -r "$MOUNT/run" "$KEPT" || exit 98
        exit $code"#;
    let job = mpirun(2);
    let _turn = one_job_at_a_time();
    let mut command = Command::new("unshare");
    command.args(namespace).args(["sh", "-c", script, "sh"]).arg(&mount).arg(job.get_program()).args(job.get_args());
    command.envs(job.get_envs().filter_map(|(k, v)| Some((k, v?)))).env("MOUNT", &mount).env("KEPT", &kept);
    command.arg(RANK_AGENT).arg("--out").arg(mount.join("run")).args(SMALL_MODEL);
    command.args(["--steps", "150", "--schedule", "wait=0,warmup=1,active=149,repeat=1"]);
    let finished = finish(&mut command);
    let said = finished.said();
    assert!(!said.contains("panicked"), "{said}");
    // 3: done, but rows were left out.
    assert_eq!(finished.code, Some(3), "{said}");
    assert!(said.to_lowercase().contains("lost"), "nobody says that rows were lost: {said}");
    check_loss(&kept);
}

/// What was lost stands in the counters that found room, or in the rows that say how far the recording came.
fn check_loss(kept: &Path) {
    let run = Run::open(kept).unwrap();
    assert!(!run.ranks().is_empty(), "not one shard found room");
    analyze(kept, &[], 3);
    let omissions = analysis::<OmissionRow>(kept);
    let counted: i64 = run.ranks().iter().flat_map(|r| run.rows::<CounterRow>(*r).0).map(|c| c.dropped).sum();
    let unclosed = run.ranks().iter().any(|r| !run.rows::<RankRow>(*r).0.last().is_some_and(|row| row.closed_cleanly));
    assert!(counted > 0 || unclosed, "the run looks complete");
    assert!(!omissions.is_empty());
}

/// Invariant (recorder): The launcher of another MPI is refused.
///
/// The launcher says eight ranks, the library says one: a binary started by another MPI's launcher.
#[test]
fn the_launcher_of_another_mpi_is_refused() {
    if !have_mpirun("the_launcher_of_another_mpi_is_refused") {
        return;
    }
    for (rank, size) in [("PMI_RANK", "PMI_SIZE"), ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE")] {
        let path = scratch(&format!("mismatch_{size}")).join("run");
        let _turn = one_job_at_a_time();
        let mut command = Command::new(RANK_AGENT);
        command.arg("--out").arg(&path).args(SMALL_MODEL).env(size, "8");
        let said = finish(command.env(rank, "0")).expect_code(1).stderr;
        assert!(said.contains("rank 0 of 8") && said.contains("rank 0 of 1"), "{size}: {said}");
        // The other seven fail as well; one of eight says why.
        finish(command.env(rank, "3")).expect_code(1);
        assert!(!path.join(trace::MANIFEST_FILE).exists(), "{size}: a run was begun");
    }
}

/// A run that cannot be created is wrong input, said before any training.
#[test]
fn an_output_that_cannot_be_written_is_an_error() {
    let here = scratch("no_output");
    let file = here.join("file");
    fs::write(&file, "in the way").unwrap();
    let said = finish(Command::new(RANK_AGENT).arg("--out").arg(file.join("run")).args(SMALL_MODEL)).expect_code(1);
    assert!(said.stderr.contains("file"), "{}", said.stderr);
}

/// An analysis that cannot be written says so and does not end as if it were done.
#[test]
fn an_analysis_that_cannot_be_written_is_an_error() {
    let Some(run) = crate::support::sound_run("no_analysis") else { return };
    let copy = scratch("no_analysis_dir").join("run");
    copy_directory(&run, &copy);
    fs::write(copy.join(trace::ANALYSIS_DIR), "in the way").unwrap();
    let finished = finish(Command::new(AGGREGATOR).arg("analyze").arg(&copy)).expect_code(1);
    assert!(finished.stderr.contains("analysis"), "{}", finished.stderr);
}
