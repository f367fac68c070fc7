//! Each call on a file of a run fails once while a program is recorded. The program is unharmed, and an
//! omission lists each loss.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use fixtures::random::Random;
use trace::Run;

use crate::disk::faults::{Disk, ERRORS, LIMIT_S, REPEATED};
use crate::support::{Finished, RANK_AGENT, aggregator, finish, inject_library, scratch, seed};

const REPLAY: &str = env!("CARGO_BIN_EXE_nccl-replay-under-test");

/// Rows of each table.
type Rows = BTreeMap<&'static str, u64>;

fn rows(run: &Path) -> Result<Rows, String> {
    let run = Run::open(run).map_err(|error| error.to_string())?;
    let of = |table: &str| run.shards(0, table).iter().map(|shard| shard.rows).sum();
    Ok(trace::rank_tables().iter().map(|table| (table.name, of(table.name))).collect())
}

/// A program that is recorded.
struct Program {
    /// The name of its test.
    name: &'static str,
    /// Adds the program's command line, which records into a directory.
    start: fn(&mut Command, &Path),
    /// Exit codes of a program that was not harmed, the last with rows lost.
    codes: &'static [i32],
    /// The result of the program.
    result: fn(&Finished) -> &str,
    /// A table that the program fills, with equally many rows each time.
    table: &'static str,
}

/// A program that calls NCCL, under `rank-agent exec`.
const EXEC: Program = Program {
    name: "exec",
    start: |command, run| {
        command.args([RANK_AGENT, "exec", "--nccl-detail", "proxy", "--out"]).arg(run).arg("--");
        command.arg(REPLAY).arg(inject_library()).args(["sequence", "5", "20"]);
        command.env("RANKSCOPE_INJECT_LIB", inject_library());
    },
    codes: &[0],
    result: |finished| &finished.stdout,
    table: "collectives",
};

/// The reference workload of `rank-agent`, as a single rank.
const TRAIN: Program = Program {
    name: "train",
    start: |command, run| {
        command.args([RANK_AGENT, "--backend", "cpu", "--layers", "2", "--hidden", "16", "--batch", "4", "--out"]);
        command.arg(run);
    },
    codes: &[0, 3],
    // "20 steps done: loss 2.30 → 2.29; 0.12 ms a step …"
    result: |finished| {
        let line = finished.stderr.lines().find_map(|line| line.split_once("done: "));
        line.and_then(|(_, line)| line.split(';').next()).unwrap_or_default()
    },
    table: "steps",
};

/// A program with its directory.
struct Recording {
    program: &'static Program,
    place: PathBuf,
    /// The result of the program, and its rows in those tables that have equally many each time.
    sound: (String, Rows),
}

impl Recording {
    fn new(program: &'static Program, name: &str) -> Self {
        let place = scratch(&format!("{name}/{}", program.name)).canonicalize().unwrap();
        let mut recording = Self { program, place, sound: Default::default() };
        let [first, second] = [(), ()].map(|()| {
            let finished = finish(&mut recording.command()).expect_code(0);
            let rows = rows(&recording.run()).unwrap();
            recording.restore();
            ((program.result)(&finished).to_string(), rows)
        });
        assert!(first.0.contains(char::is_numeric) && first.0 == second.0, "{} {}", first.0, second.0);
        let rows: Rows = first.1.into_iter().filter(|(table, rows)| second.1[table] == *rows).collect();
        assert!(rows[program.table] > 0 && rows["events"] > 0, "{rows:?}");
        recording.sound = (first.0, rows);
        recording
    }

    fn run(&self) -> PathBuf {
        self.place.join("run")
    }

    fn restore(&self) {
        if self.run().exists() {
            fs::remove_dir_all(self.run()).unwrap();
        }
    }

    fn command(&self) -> Command {
        let mut command = Command::new("timeout");
        command.arg(LIMIT_S).env("NO_COLOR", "1");
        (self.program.start)(&mut command, &self.run());
        command
    }

    fn check(&self, finished: &Finished, must_succeed: bool) -> Result<(), String> {
        let said = finished.said();
        // A process that cannot be recorded says so. NCCL would go on without the plugin, but the replay needs it.
        if !must_succeed && said.contains(" is not recorded: ") && said.contains("the plugin takes the communicator") {
            return Ok(());
        }
        if said.contains("panicked at") {
            return Err(format!("it panicked: {}", finished.said()));
        }
        let result = (self.program.result)(finished);
        match finished.code {
            Some(code) if self.program.codes.contains(&code) && result == self.sound.0 => {}
            // The run cannot be made, so the program is not started.
            Some(1) if !must_succeed && result.is_empty() && finished.stderr.contains("os error") => {
                // A disk that fails for longer leaves a run that has begun. The next one begins it again.
                let again = finish(&mut self.command());
                return match again.code {
                    Some(0) => Ok(()),
                    _ => Err(format!("the next one: {}", again.said())),
                };
            }
            code => return Err(format!("it ended with {code:?}: {}", finished.said())),
        }
        let analyzed = aggregator(&[Path::new("analyze"), &self.run()]);
        let rows = rows(&self.run())?;
        match analyzed.code {
            Some(3) if !must_succeed => Ok(()),
            Some(0) if finished.code == Some(0) => {
                match self.sound.1.iter().find(|(table, sound)| rows[*table] != **sound) {
                    Some((table, sound)) => Err(format!("{} of {sound} rows of {table} are there", rows[table])),
                    None => Ok(()),
                }
            }
            code => Err(format!("its analysis ended with {code:?}: {}", analyzed.said())),
        }
    }
}

fn sweep(program: &'static Program, name: &str, few: Option<u64>) {
    let mut random = Random(seed(name));
    let recording = Recording::new(program, name);
    let disk = Disk::below(&recording.place);
    let (mut faults, mut most, mut unsaid) = (0, 0, Vec::new());
    for kind in ERRORS.iter().chain(&REPEATED) {
        let mut with = |fault: String| {
            let mut command = recording.command();
            disk.put_under(&mut command, &fault);
            let finished = finish(&mut command);
            let (calls, failed, what) = disk.report();
            if failed > 0 {
                faults += 1;
                if let Err(why) = recording.check(&finished, REPEATED.contains(kind)) {
                    unsaid.push(format!("{fault} ({what}): {why}"));
                }
            }
            recording.restore();
            calls
        };
        let mut calls = with(format!("{kind} 0"));
        assert!(calls > 0, "no call was seen");
        let stride = few.map_or(1, |few| calls.div_ceil(few));
        let mut number = 1 + few.map_or(0, |_| random.below(stride as usize) as u64);
        while number <= calls {
            calls = calls.max(with(format!("{kind} {number}")));
            number += stride;
        }
        most = most.max(calls);
    }
    let name = program.name;
    println!("disk: rank-agent {name}: {most} calls, {faults} faults, {} lost something unsaid", unsaid.len());
    assert!(unsaid.is_empty(), "{}", unsaid.join("\n"));
}

/// Invariant (files): When a call on a file fails, the recorded program goes on and every loss is reported.
#[test]
fn a_failing_disk_harms_no_recorded_program_and_loses_nothing_unsaid() {
    [&EXEC, &TRAIN].into_iter().for_each(|program| sweep(program, "recorder_faults", Some(4)));
}

/// `tests/faults` runs it.
#[test]
#[ignore = "takes many minutes"]
fn every_fault_of_a_recording_is_said() {
    sweep(&EXEC, "recorder_faults_all", None);
}

/// `tests/faults` runs it.
#[test]
#[ignore = "takes minutes"]
fn every_fault_of_the_workload_is_said() {
    sweep(&TRAIN, "recorder_faults_all", None);
}
