//! Each call on a file fails once, in every command.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use fixtures::random::Random;

use crate::disk::cases::{CASES, Case, Prepared};
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
            Some(0 | 1 | 3) => prepared.check(&finished),
            code => Err(format!("it ended with {code:?}: {}", finished.said())),
        };
        if let Err(why) = checked {
            let unsaid = format!("{}, {fault} ({what}): {why}", prepared.case.arguments);
            println!("disk: {unsaid}");
            tally.unsaid.push(unsaid);
        }
    }
    prepared.restore();
    (calls, finished)
}

/// Lets calls of one command fail, each in a run of its own: all calls, or about `few` of them.
fn sweep(case: &'static Case, name: &str, few: Option<u64>, random: &mut Random) -> Tally {
    let prepared = Prepared::new(case, name);
    let mut tally = Tally::default();
    for kinds in [ERRORS, REPEATED] {
        let (sound_calls, sound) = with_fault(&prepared, &format!("{} 0", kinds[0]), &mut tally);
        assert!(sound_calls > 0 && sound.code == Some(0), "{}: {}", case.arguments, sound.said());
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

fn sweep_all(name: &str, few: Option<u64>) {
    let mut random = Random(seed(name));
    let (mut faults, mut unsaid) = (0, Vec::new());
    for (number, case) in CASES.iter().enumerate() {
        let tally = sweep(case, &format!("{name}/{number}"), few, &mut random);
        let [done, wrong, _, partial] = tally.by_code;
        println!(
            "disk: {}: {} calls, {} faults; ended with 0: {done}, 1: {wrong}, 3: {partial}; unsaid: {}",
            case.arguments,
            tally.calls,
            tally.faults,
            tally.unsaid.len()
        );
        faults += tally.faults;
        unsaid.extend(tally.unsaid);
    }
    println!("disk: {} commands, {faults} faults, {} lost or destroyed something unsaid", CASES.len(), unsaid.len());
    assert!(unsaid.is_empty(), "{}", unsaid.join("\n"));
}

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
