//! Each call of `ctl` on a file fails once. It lists all ranks, or ends with an error.

use std::fs::{self, File};
use std::process::Command;

use crate::disk::faults::{Disk, ERRORS, REPEATED};
use crate::exec_control::{COLL, Recorded, ctl, runtime};
use crate::support::{Finished, RANK_AGENT, scratch};

/// Invariant (files): When a call on a file fails, `ctl` lists every rank or reports the error.
#[test]
fn a_failing_disk_hides_no_rank_from_ctl() {
    let (run, runtime) = (scratch("ctl_faults").join("run"), runtime());
    // The report of the disk lies beside it.
    let place = runtime.path().canonicalize().unwrap().join("disk");
    fs::create_dir(&place).unwrap();
    let mut program = Recorded::start(&run, &place, &["--delay", "1e9"], 1, None);
    assert_eq!(program.next("mask") & COLL, 0);
    let (stdout, disk, out) = (place.join("stdout"), Disk::below(&place), run.to_str().unwrap());
    let status = |fault: &str| {
        let mut command = Command::new(RANK_AGENT);
        command.args(["ctl", "status", "--json", "--out", out]).env("XDG_RUNTIME_DIR", &place);
        disk.put_under(&mut command, fault);
        let finished = Finished::of(command.stdout(File::create(&stdout).unwrap()).output().unwrap());
        Finished { stdout: fs::read_to_string(&stdout).unwrap(), ..finished }
    };
    let (mut faults, mut unsaid) = (0, Vec::new());
    for kind in ERRORS.iter().chain(&REPEATED) {
        let sound = status(&format!("{kind} 0")).expect_code(0);
        assert!(is_listed(&sound), "{}", sound.stdout);
        for number in 1..=disk.report().0 {
            let finished = status(&format!("{kind} {number}"));
            let (_, failed, what) = disk.report();
            faults += u64::from(failed > 0);
            let is_said = match finished.code {
                Some(0) => is_listed(&finished),
                Some(1) => finished.stderr.contains("os error") && !REPEATED.contains(kind),
                _ => false,
            };
            if !is_said {
                unsaid.push(format!("{kind} {number} ({what}): {:?} {}", finished.code, finished.said()));
            }
        }
    }
    // The program ends with its first switch.
    ctl(&place, &["start", "--out", out]).expect_code(0);
    program.end();
    println!("disk: rank-agent ctl: {faults} faults, {} hid a rank unsaid", unsaid.len());
    assert!(faults > 0 && unsaid.is_empty(), "{}", unsaid.join("\n"));
}

/// Whether the one rank is listed.
fn is_listed(finished: &Finished) -> bool {
    let ranks: Option<Vec<serde_json::Value>> = serde_json::from_str(&finished.stdout).ok();
    ranks.is_some_and(|ranks| ranks.len() == 1 && ranks[0]["recording"] == false)
}
