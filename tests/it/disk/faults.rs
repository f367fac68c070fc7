//! Each call on a file fails once, in every command.

use std::fs;
use std::num::NonZero;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

use fixtures::random::Random;

use crate::disk::cases::{CASES, Case, Job, Prepared};
use crate::support::{Finished, seed};

/// Bytes of the report of the library that fails calls, and of the two numbers at its beginning.
const REPORT_BYTES: usize = 16 + 1024;
const NUMBERS_BYTES: usize = 16;
/// A command that takes longer hangs.
pub(super) const LIMIT_S: &str = "120";

/// The library that fails calls, which cargo builds beside this program.
fn library() -> PathBuf {
    let library = std::env::current_exe().unwrap().with_file_name("libstand_in_disk.so");
    assert!(library.is_file(), "{} is missing", library.display());
    library
}

/// Ways to fail.
pub(super) const ERRORS: [&str; 2] = ["once", "lasting"];
/// Transfers that a program must repeat.
pub(super) const REPEATED: [&str; 2] = ["short", "interrupted"];

/// The disk below one directory, with a fault or without one.
pub(super) struct Disk<'a> {
    directory: &'a Path,
    report: PathBuf,
}

impl<'a> Disk<'a> {
    pub(super) fn below(directory: &'a Path) -> Self {
        Self { directory, report: directory.with_extension("report") }
    }

    /// Lets a command and its children use this disk, with a fault such as `once 7`.
    pub(super) fn put_under(&self, command: &mut Command, fault: &str) {
        fs::write(&self.report, [0; REPORT_BYTES]).unwrap();
        command.env("LD_PRELOAD", library()).env("STAND_IN_DISK_DIRECTORY", self.directory);
        command.env("STAND_IN_DISK_REPORT", &self.report).env("STAND_IN_DISK_FAULT", fault);
    }

    /// The number of calls, of calls that failed, and the first that did.
    pub(super) fn report(&self) -> (u64, u64, String) {
        let report = fs::read(&self.report).unwrap();
        let number = |at: usize| u64::from_ne_bytes(report[at..at + 8].try_into().unwrap());
        let text = report[NUMBERS_BYTES..].split(|byte| *byte == 0).next().unwrap();
        (number(0), number(8), String::from_utf8_lossy(text).into_owned())
    }
}

/// Faults that were tried, and those after which something was lost or destroyed and not said.
#[derive(Default)]
struct Tally {
    calls: u64,
    faults: u64,
    by_code: [u64; 4],
    unsaid: Vec<String>,
}

/// Runs the command of a case with one fault.
fn with_fault(prepared: &Prepared, fault: &str, tally: &mut Tally) -> (u64, Finished) {
    let disk = Disk::below(&prepared.place);
    let mut command = prepared.command(&["timeout", LIMIT_S]);
    disk.put_under(&mut command, fault);
    let finished = prepared.finish(&mut command);
    let (calls, failed, what) = disk.report();
    if failed > 0 {
        tally.faults += 1;
        if let Some(count) = finished.code.and_then(|code| tally.by_code.get_mut(code as usize)) {
            *count += 1;
        }
        let repeated = REPEATED.iter().any(|kind| fault.starts_with(kind));
        let checked = match finished.code {
            Some(124) => Err("it hangs".to_string()),
            Some(0 | 1 | 3) if repeated && finished.code != Some(0) => {
                Err(format!("it does not repeat: {}", finished.said()))
            }
            Some(0 | 1 | 3) => {
                let once = fault.starts_with("once");
                let together = if once { prepared.check_together(&finished) } else { Ok(()) };
                together.and_then(|()| prepared.check(&finished))
            }
            code => Err(format!("it ended with {code:?}: {}", finished.said())),
        };
        if let Err(why) = checked {
            let unsaid = format!("{}, {fault} ({what}): {why}", prepared.case.words());
            println!("disk: {unsaid}");
            tally.unsaid.push(unsaid);
        }
    }
    prepared.restore();
    (calls, finished)
}

/// Lets calls of one command fail, each in a run of its own: all calls, or about `few` of them.
fn sweep(case: &'static Case, name: &str, few: Option<u64>, mut random: Random) -> Tally {
    let prepared = Prepared::new(case, Job::Short, name);
    let mut tally = Tally::default();
    for kinds in [ERRORS, REPEATED] {
        let (sound_calls, sound) = with_fault(&prepared, &format!("{} 0", kinds[0]), &mut tally);
        assert!(sound_calls > 0 && sound.code == Some(0), "{}: {}", case.words(), sound.said());
        tally.calls = tally.calls.max(sound_calls);
        for kind in kinds {
            let few = few.map(|few| if kind == ERRORS[0] { few } else { 1 });
            let stride = few.map_or(1, |few| sound_calls.div_ceil(few));
            let mut number = 1 + few.map_or(0, |_| random.below(stride as usize) as u64);
            let mut calls = sound_calls;
            // A run may make more calls than the first one did.
            while number <= calls {
                calls = calls.max(with_fault(&prepared, &format!("{kind} {number}"), &mut tally).0);
                number += stride;
            }
        }
    }
    tally
}

/// Sweeps the commands, several at the same time. `RANKSCOPE_CASES` selects those whose words contain a text.
fn sweep_all(name: &str, few: Option<u64>) {
    let seed = seed(name);
    let part = std::env::var("RANKSCOPE_CASES").unwrap_or_default();
    let numbers: Vec<usize> = (0..CASES.len()).filter(|number| CASES[*number].words().contains(&part)).collect();
    let (next, tallies) = (AtomicUsize::new(0), Mutex::new(Vec::new()));
    let work = || {
        while let Some(number) = numbers.get(next.fetch_add(1, Ordering::Relaxed)) {
            let case = &CASES[*number];
            let random = Random(seed.wrapping_add(*number as u64));
            let tally = sweep(case, &format!("{name}/{number}"), few, random);
            let [done, wrong, _, partial] = tally.by_code;
            println!(
                "disk: {}: {} calls, {} faults; ended with 0: {done}, 1: {wrong}, 3: {partial}; unsaid: {}",
                case.words(),
                tally.calls,
                tally.faults,
                tally.unsaid.len()
            );
            tallies.lock().unwrap().push(tally);
        }
    };
    let threads = std::thread::available_parallelism().map_or(1, NonZero::get);
    std::thread::scope(|scope| (0..threads).for_each(|_| drop(scope.spawn(work))));
    let tallies = tallies.into_inner().unwrap();
    let faults: u64 = tallies.iter().map(|tally| tally.faults).sum();
    let unsaid: Vec<String> = tallies.into_iter().flat_map(|tally| tally.unsaid).collect();
    println!("disk: {} commands, {faults} faults, {} lost or destroyed something unsaid", numbers.len(), unsaid.len());
    assert!(unsaid.is_empty(), "{}", unsaid.join("\n"));
}

/// Invariant (files): When a call on a file fails, the command reports it and destroys nothing. `tests/faults` lets
/// every call fail in turn.
#[test]
fn a_failing_disk_loses_and_destroys_nothing_unsaid() {
    sweep_all("disk_faults", Some(5));
}

/// `tests/faults` runs it.
#[test]
#[ignore = "takes many minutes"]
fn every_fault_of_the_disk_is_said() {
    sweep_all("disk_faults_all", None);
}
