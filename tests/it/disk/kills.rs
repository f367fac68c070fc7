//! A command is killed at a random moment of its life: its output is the old one or the new one, and the next command
//! succeeds.

use std::os::unix::process::ExitStatusExt;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use fixtures::random::Random;

use crate::disk::cases::{CASES, Job, Prepared};
use crate::support::{Finished, number_of, seed};

/// Runs that measure the length of a command.
const MEASURED: usize = 5;
/// The most commands that are started for each kill.
const MAX_STARTS: usize = 20;

fn start(prepared: &Prepared) -> Child {
    let mut command = prepared.command(&[]);
    command.stdin(prepared.stdin()).stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap()
}

/// Kills each writing command in turn. A command that ends before it is killed is started again.
fn kill(kills: usize) {
    let mut random = Random(seed("kills"));
    let writing = CASES.iter().filter(|case| case.writes());
    let cases: Vec<Prepared> =
        writing.enumerate().map(|(number, case)| Prepared::new(case, Job::Long, &format!("kills/{number}"))).collect();
    let lengths: Vec<Duration> = cases.iter().map(length).collect();
    let (mut killed, mut ended, mut written, mut wrong) = (0, 0, 0, Vec::new());
    while killed < kills {
        assert!(ended < MAX_STARTS * kills, "{killed} kills, and {ended} commands ended before");
        let (prepared, length) = (&cases[killed % cases.len()], lengths[killed % cases.len()]);
        let mut child = start(prepared);
        // A run may take longer than those that were measured.
        let moment = length.mul_f64(random.below(1100) as f64 / 1000.0);
        std::thread::sleep(moment);
        child.kill().unwrap();
        let status = child.wait().unwrap();
        let has_written = prepared.has_changed();
        let checked = match (status.signal(), status.code()) {
            (Some(libc::SIGKILL), _) | (_, Some(0)) => prepared.check(&Finished::default()),
            _ => Err(format!("it ended with {status}")),
        };
        if status.success() {
            ended += 1;
        } else {
            killed += 1;
            written += usize::from(has_written);
        }
        if let Err(why) = checked {
            wrong.push(format!("kill {killed} of {} after {moment:?} of {length:?}: {why}", prepared.case.words()));
        }
        prepared.restore();
    }
    println!(
        "kills: {killed} running processes of {} commands ({ended} more had ended), {written} had begun to write; {} \
         destroyed something",
        cases.len(),
        wrong.len()
    );
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// The median time from the start of the command to its end. It only spreads the moments of the kills.
fn length(prepared: &Prepared) -> Duration {
    let mut lengths = [(); MEASURED].map(|()| {
        let mut child = start(prepared);
        let begin = Instant::now();
        assert!(child.wait().unwrap().success());
        let length = begin.elapsed();
        prepared.restore();
        length
    });
    lengths.sort_unstable();
    lengths[MEASURED / 2]
}

/// Invariant (files): A killed command leaves the old output or the new one.
#[test]
fn a_killed_command_leaves_the_old_output_or_the_new_one() {
    kill(20);
}

/// Invariant (files): A command that SIGTERM or Ctrl-C ends leaves nothing half written.
#[test]
fn a_stopped_command_leaves_nothing_half_written() {
    let mut random = Random(seed("stops"));
    let writing = CASES.iter().filter(|case| case.writes() && case.is_of_aggregator());
    for (number, case) in writing.enumerate() {
        let prepared = Prepared::new(case, Job::Long, &format!("stops/{number}"));
        let length = length(&prepared);
        for signal in ["-TERM", "-INT"] {
            let mut child = start(&prepared);
            std::thread::sleep(length.mul_f64(random.below(1000) as f64 / 1000.0));
            // It may have ended.
            let _ =
                Command::new("kill").args([signal, &child.id().to_string()]).stderr(Stdio::null()).status().unwrap();
            let status = child.wait().unwrap();
            assert!(status.success() || status.signal().is_some(), "{}: {status}", case.words());
            assert_eq!(prepared.temporaries(), [""; 0].map(PathBuf::from), "{}, {signal}: {status}", case.words());
            prepared.restore();
        }
    }
}

/// `tests/faults` runs it.
#[test]
#[ignore = "takes minutes"]
fn commands_are_killed_many_times() {
    kill(number_of("RANKSCOPE_KILLS", 500));
}
