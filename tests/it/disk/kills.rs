//! A command is killed at a random moment: its output is the old one or the new one, and the next command succeeds.

use std::process::Stdio;
use std::time::{Duration, Instant};

use fixtures::random::Random;

use crate::disk::cases::{CASES, Prepared};
use crate::support::{Finished, number_of, seed};

/// Kills each writing command in turn.
fn kill(kills: usize) {
    let mut random = Random(seed("kills"));
    let writing = CASES.iter().filter(|case| case.writes());
    let cases: Vec<Prepared> =
        writing.enumerate().map(|(number, case)| Prepared::new(case, &format!("kills/{number}"))).collect();
    let lengths: Vec<Duration> = cases.iter().map(length).collect();
    let (mut ended, mut wrong) = (0, Vec::new());
    for number in 0..kills {
        let (prepared, length) = (&cases[number % cases.len()], lengths[number % cases.len()]);
        let mut child =
            prepared.command(&[]).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
        // Some commands end before they are killed.
        let moment = length.mul_f64(random.below(1100) as f64 / 1000.0);
        std::thread::sleep(moment);
        child.kill().unwrap();
        let code = child.wait().unwrap().code();
        ended += usize::from(code.is_some());
        let checked = match code {
            None | Some(0) => prepared.check(&Finished::default()),
            code => Err(format!("it ended with {code:?}")),
        };
        if let Err(why) = checked {
            wrong.push(format!("kill {number} of {} after {moment:?}: {why}", prepared.case.arguments));
        }
        prepared.restore();
    }
    println!(
        "kills: {kills} of {} commands, of which {ended} had ended; {} destroyed something",
        cases.len(),
        wrong.len()
    );
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// The time that the command takes here. It only spreads the moments of the kills.
fn length(prepared: &Prepared) -> Duration {
    let begin = Instant::now();
    prepared.finish(&mut prepared.command(&[]));
    let length = begin.elapsed();
    prepared.restore();
    length
}

#[test]
fn a_killed_command_leaves_the_old_output_or_the_new_one() {
    kill(20);
}

/// `tests/faults` runs it.
#[test]
#[ignore = "takes minutes"]
fn commands_are_killed_many_times() {
    kill(number_of("RANKSCOPE_KILLS", 500));
}
