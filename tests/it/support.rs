//! Runs the commands under test, alone or under `mpirun`, and keeps their output.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::Write;
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Mutex, OnceLock};
use std::thread::ThreadId;
use std::time::SystemTime;

use rustix::fs::{FlockOperation, flock};

pub(crate) const RANK_AGENT: &str = env!("CARGO_BIN_EXE_rank-agent-under-test");
pub(crate) const AGGREGATOR: &str = env!("CARGO_BIN_EXE_aggregator-under-test");
pub(crate) const RANKSCOPE: &str = env!("CARGO_BIN_EXE_rankscope-under-test");

/// The library that CUDA and NCCL load. Cargo builds it with this test, because this package names it; a library beside
/// the commands may be of an earlier `cargo build`.
pub(crate) fn inject_library() -> PathBuf {
    let library = std::env::current_exe().unwrap().with_file_name("librankscope_inject.so");
    assert!(library.is_file(), "{} is missing", library.display());
    library
}

/// A job that hangs is a failure, not a hung test. Far above what any job here takes on a busy machine with two cores.
const JOB_LIMIT_S: u32 = 240;

/// A small model whose steps take some ten ms and whose gradients fill several buckets.
pub(crate) const SMALL_MODEL: &[&str] = &["--layers", "5", "--hidden", "384", "--batch", "32", "--bucket-mb", "1"];

/// How a command ended.
#[derive(Debug, Default)]
pub(crate) struct Finished {
    pub(crate) code: Option<i32>,
    pub(crate) stdout: String,
    pub(crate) stderr: String,
}

impl Finished {
    pub(crate) fn of(output: Output) -> Self {
        Self {
            code: output.status.code(),
            stdout: String::from_utf8_lossy(&output.stdout).into_owned(),
            stderr: String::from_utf8_lossy(&output.stderr).into_owned(),
        }
    }

    /// Checks the exit code, and that nothing panicked.
    #[track_caller]
    pub(crate) fn expect_code(self, code: i32) -> Self {
        let said = format!("{}\n{}", self.stdout, self.stderr);
        assert_eq!(self.code, Some(code), "{said}");
        assert!(!said.contains("panicked at"), "{said}");
        self
    }

    /// Its stdout and stderr.
    pub(crate) fn said(&self) -> String {
        format!("{}\n{}", self.stdout, self.stderr)
    }
}

/// Runs a command to its end and collects its output.
pub(crate) fn finish(command: &mut Command) -> Finished {
    let output = command.stdin(Stdio::null()).output().unwrap_or_else(|e| panic!("{command:?}: {e}"));
    Finished::of(output)
}

/// `aggregator` with these arguments.
pub(crate) fn aggregator<S: AsRef<std::ffi::OsStr>>(args: &[S]) -> Finished {
    finish(Command::new(AGGREGATOR).args(args).env("NO_COLOR", "1"))
}

/// `aggregator analyze RUN`, which must end with this code.
#[track_caller]
pub(crate) fn analyze(run: &Path, options: &[&str], code: i32) -> Finished {
    let arguments: Vec<&Path> = [Path::new("analyze"), run].into_iter().chain(options.iter().map(Path::new)).collect();
    aggregator(&arguments).expect_code(code)
}

/// Traces of eight ranks, of which rank 5 is slow.
pub(crate) fn gloo8() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../examples/traces/gloo8_slow5")
}

/// An empty directory of this name, inside the target directory. A name belongs to one test: two tests that run at the same
/// time would remove each other's files.
#[track_caller]
pub(crate) fn scratch(name: &str) -> PathBuf {
    static OWNERS: Mutex<BTreeMap<String, ThreadId>> = Mutex::new(BTreeMap::new());
    let test = std::thread::current().id();
    let owner = *OWNERS.lock().unwrap().entry(name.to_owned()).or_insert(test);
    assert!(owner == test, "another test uses the directory {name} too");
    let path = places().join(name);
    if path.exists() {
        fs::remove_dir_all(&path).unwrap();
    }
    fs::create_dir_all(&path).unwrap();
    path
}

fn places() -> PathBuf {
    Path::new(env!("CARGO_TARGET_TMPDIR")).join("it")
}

/// Waits for a lock that one test has at a time, whether tests are threads or processes. Dropping the file releases it.
fn locked(name: &str) -> File {
    fs::create_dir_all(places()).unwrap();
    let file = File::create(places().join(name).with_extension("lock")).unwrap();
    flock(&file, FlockOperation::LockExclusive).unwrap();
    file
}

/// A directory that several tests read. The first of a run that needs it makes it.
pub(crate) fn shared(name: &str, make: impl FnOnce(&Path)) -> PathBuf {
    let run = std::env::var("NEXTEST_RUN_ID").unwrap_or_else(|_| std::process::id().to_string());
    let (place, made) = (places().join(name), places().join(name).with_extension("made"));
    let _turn = locked(name);
    if fs::read_to_string(&made).is_ok_and(|by| by == run) {
        return place;
    }
    if place.exists() {
        fs::remove_dir_all(&place).unwrap();
    }
    fs::create_dir_all(&place).unwrap();
    make(&place);
    fs::write(made, run).unwrap();
    place
}

/// Prints that a test could not run on this machine, and why. `tests/all` collects these lines.
#[expect(clippy::explicit_write, reason = "the test harness would swallow what `eprintln!` prints")]
pub(crate) fn skipped(what: &str, why: &str) {
    writeln!(std::io::stderr(), "\nskipped: {what}: {why}").unwrap();
}

/// A seed that is another one every day, or `RANKSCOPE_SEED`. Printed, so that a failure can be repeated.
pub(crate) fn seed(what: &str) -> u64 {
    let days = || SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap().as_secs() / 86_400;
    let seed = std::env::var("RANKSCOPE_SEED").map_or_else(|_| days(), |seed| seed.parse().unwrap());
    println!("{what}: RANKSCOPE_SEED={seed}");
    // A generator that begins with a small number repeats itself at first, and 0 is not allowed.
    (seed + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15)
}

/// The number in an environment variable.
pub(crate) fn number_of(variable: &str, default: usize) -> usize {
    std::env::var(variable).map_or(default, |number| number.parse().unwrap())
}

/// Whether this user is root.
pub(crate) fn is_root() -> bool {
    let id = Command::new("id").arg("-u").output().unwrap();
    id.stdout.trim_ascii() == b"0"
}

/// Whether there is an `mpirun`; if not, prints that the test is skipped.
pub(crate) fn have_mpirun(what: &str) -> bool {
    static FOUND: OnceLock<bool> = OnceLock::new();
    let run = || Command::new("mpirun").arg("--version").output().is_ok_and(|o| o.status.success());
    let found = cfg!(feature = "mpi") && *FOUND.get_or_init(run);
    if !found {
        skipped(what, "there is no mpirun, or no MPI in this build; tests/all sets it up");
    }
    found
}

/// Jobs run one after the other: several at once on few cores would measure each other.
pub(crate) fn one_job_at_a_time() -> File {
    locked("jobs")
}

/// `mpirun -n RANKS` without a program yet.
pub(crate) fn mpirun(ranks: u32) -> Command {
    let mut command = Command::new("mpirun");
    command
        .args(["--oversubscribe", "--timeout", &JOB_LIMIT_S.to_string(), "-n", &ranks.to_string()])
        .env("OMPI_ALLOW_RUN_AS_ROOT", "1")
        .env("OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "1")
        .env("NO_COLOR", "1");
    command
}

fn training(ranks: u32, run: &Path, args: &[&str]) -> Command {
    let mut job = mpirun(ranks);
    job.arg(RANK_AGENT).arg("--out").arg(run).args(SMALL_MODEL).args(args);
    job
}

/// Runs `rank-agent --out RUN` on some ranks with the small model.
pub(crate) fn train(ranks: u32, run: &Path, args: &[&str]) -> Finished {
    let _turn = one_job_at_a_time();
    finish(&mut training(ranks, run, args))
}

/// The same job for each of the runs, all at once, so that other load on the machine affects all of them alike.
pub(crate) fn train_side_by_side(ranks: u32, runs: &[&Path], args: &[&str]) -> Vec<Finished> {
    let _turn = one_job_at_a_time();
    std::thread::scope(|scope| {
        let job = |run| scope.spawn(move || finish(&mut training(ranks, run, args)));
        let jobs: Vec<_> = runs.iter().copied().map(job).collect();
        jobs.into_iter().map(|job| job.join().unwrap()).collect()
    })
}

/// A `MASTER_PORT` that is free on the loopback, as is the port beside it where ranks meet. Both lie below those that the
/// system hands out by itself, and each caller begins its search elsewhere, so that no other caller takes one in between.
pub(crate) fn master_port() -> u16 {
    const FIRST: u32 = 20_000;
    const PORTS: u32 = 11_000;
    /// `launch::MASTER_PORT_OFFSET`.
    const OFFSET: u16 = 1117;
    static CALLS: AtomicU32 = AtomicU32::new(0);
    let begin = std::process::id().wrapping_mul(101).wrapping_add(7 * CALLS.fetch_add(1, Ordering::Relaxed));
    let is_free = |port: &u16| {
        let bind = |port: u16| TcpListener::bind(("127.0.0.1", port));
        matches!((bind(*port), bind(*port + OFFSET)), (Ok(_), Ok(_)))
    };
    let mut ports = (0..PORTS).map(|n| (FIRST + begin.wrapping_add(n) % PORTS) as u16);
    ports.find(is_free).expect("a pair of free ports")
}

/// A run of two ranks without injection, recorded once, for tests that damage a copy of it.
pub(crate) fn sound_run(copy_to: &str) -> Option<PathBuf> {
    if !have_mpirun(copy_to) {
        return None;
    }
    let original = shared("sound", |place| {
        train(2, &place.join("run"), &[]).expect_code(0);
    });
    let copy = scratch(copy_to).join("run");
    copy_directory(&original.join("run"), &copy);
    Some(copy)
}

pub(crate) fn copy_directory(from: &Path, to: &Path) {
    fs::create_dir_all(to).unwrap();
    for entry in fs::read_dir(from).unwrap() {
        let entry = entry.unwrap();
        let target = to.join(entry.file_name());
        if entry.file_type().unwrap().is_dir() {
            copy_directory(&entry.path(), &target);
        } else {
            fs::copy(entry.path(), target).unwrap();
        }
    }
}

/// Every file of a directory with its bytes.
pub(crate) fn files(directory: &Path) -> Vec<(PathBuf, Vec<u8>)> {
    let mut found = Vec::new();
    let mut pending = vec![directory.to_path_buf()];
    while let Some(next) = pending.pop() {
        for entry in fs::read_dir(next).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                pending.push(path);
            } else {
                let bytes = fs::read(&path).unwrap();
                found.push((path.strip_prefix(directory).unwrap().to_path_buf(), bytes));
            }
        }
    }
    found.sort();
    found
}
