//! `rankscope watch` on runs that grow: which changes it prints, and how it ends.

use std::fs;
use std::io::{BufRead, BufReader, Read};
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant};

use fixtures::growing::Growing;
use fixtures::planted::{self, Plan};

use crate::support::{AGGREGATOR, RANKSCOPE, finish, scratch};

/// Far above what a line takes on a busy machine.
const PATIENCE: Duration = Duration::from_secs(120);
/// Steps of each part of the job; a step takes about a second.
const STEPS: i32 = 16;
const SECOND_NS: i64 = 1_000_000_000;

/// A watch and the lines that it prints.
struct Watch {
    child: Child,
    lines: Receiver<String>,
    seen: Vec<String>,
}

impl Watch {
    fn start(program: &str, run: &Path, more: &[&str]) -> Self {
        let mut command = Command::new(program);
        command.arg("watch").arg(run).args(more).stdout(Stdio::piped()).stderr(Stdio::inherit());
        let mut child = command.spawn().unwrap();
        let (sender, lines) = channel();
        let out = BufReader::new(child.stdout.take().unwrap());
        std::thread::spawn(move || out.lines().map_while(Result::ok).try_for_each(|line| sender.send(line)));
        Self { child, lines, seen: Vec::new() }
    }

    /// The next line with these words.
    #[track_caller]
    fn expect(&mut self, words: &str) -> String {
        loop {
            let line = self.lines.recv_timeout(PATIENCE).unwrap_or_else(|_| panic!("no {words:?} in {:#?}", self.seen));
            self.seen.push(line.clone());
            if line.contains(words) {
                return line;
            }
        }
    }

    /// Waits for the end.
    #[track_caller]
    fn expect_end(mut self) -> Vec<String> {
        let code = self.child.wait().unwrap().code();
        self.seen.extend(self.lines.iter());
        assert_eq!(code, Some(0), "{:#?}", self.seen);
        std::mem::take(&mut self.seen)
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        // It has usually ended by itself.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A job of four ranks: clean, then with a slow rank 2, then clean again. Also the length of the first third.
fn growing(here: &Path) -> (Growing, i64) {
    let plant = |name: &str, slow: &[(i32, i64)]| -> PathBuf {
        let run = here.join(name);
        let plan = Plan { steps: STEPS, slow: slow.to_vec(), op_ns: 40_000_000, ..Plan::default() };
        planted::write(&plan, &run).unwrap();
        run
    };
    let runs = [plant("clean", &[]), plant("slow", &[(2, 300_000_000)]), plant("clean again", &[])];
    let one_ns = Growing::begin(&runs[..1], &here.join("one"), SECOND_NS).unwrap().length_ns;
    (Growing::begin(&runs, &here.join("run"), SECOND_NS).unwrap(), one_ns)
}

/// Writes the run in small pieces until the watch says `words`. Each piece is one verdict: the watch takes it, which its metrics
/// tell, before the next one is written, however busy the machine is.
#[track_caller]
fn grow_until(growing: &mut Growing, watch: &mut Watch, metrics: &Path, at_ns: &mut i64, words: &str) -> String {
    loop {
        *at_ns += 3 * SECOND_NS;
        assert!(*at_ns < growing.length_ns + 9 * SECOND_NS, "no {words:?} in {:#?}", watch.seen);
        growing.write_until(*at_ns).unwrap();
        let begin = Instant::now();
        while newest_step(metrics) < growing.newest_step() {
            assert!(begin.elapsed() < PATIENCE, "the watch is at step {}", newest_step(metrics));
            std::thread::sleep(Duration::from_millis(20));
        }
        // The lines of a refresh follow its metrics.
        while let Ok(line) = watch.lines.recv_timeout(Duration::from_millis(500)) {
            watch.seen.push(line.clone());
            if line.contains(words) {
                return line;
            }
        }
    }
}

/// The newest step that the watch has seen of all ranks; -1 before the first.
fn newest_step(metrics: &Path) -> i32 {
    let text = fs::read_to_string(metrics).unwrap_or_default();
    let step = text.lines().find_map(|line| line.strip_prefix("rankscope_newest_step "));
    step.map_or(-1, |step| step.parse().unwrap())
}

/// Invariant (watch): `watch` names a slow rank in time, and clears it.
#[test]
fn a_slow_rank_is_named_and_cleared_while_the_run_grows() {
    let here = scratch("watch_grows");
    let metrics = here.join("rankscope.prom");
    let mut watch = Watch::start(RANKSCOPE, &here.join("run"), &["--plain", "--metrics", metrics.to_str().unwrap()]);
    watch.expect("waiting: it does not exist yet");
    let (mut growing, one_ns) = growing(&here);
    watch.expect("4 ranks, no row lost of run planted began to record");
    growing.write_until(one_ns - SECOND_NS).unwrap();
    let mut at_ns = one_ns;
    let named = grow_until(&mut growing, &mut watch, &metrics, &mut at_ns, "SLOW RANK");
    assert!(
        named.contains("SLOW RANK 2 (planted-host, pid 1002): 300 ms longer in `forward`, delays each step by"),
        "{named}"
    );
    growing.lose(1, 7, "its queue of 4 records was full").unwrap();
    watch.expect("LOST 7 rows: its queue of 4 records was full (7 rows in all)");
    let cleared = grow_until(&mut growing, &mut watch, &metrics, &mut at_ns, "cleared: rank 2 is no longer slow");
    assert!(cleared.contains("step "), "{cleared}");
    growing.end().unwrap();
    let seen = watch.expect_end();
    assert_eq!(seen.iter().filter(|line| line.contains("SLOW RANK")).count(), 1, "{seen:#?}");
    assert!(seen.last().unwrap().contains("the run has ended; balanced over"), "{seen:#?}");
}

/// Ctrl-C ends the watch, whatever the run does, and a run that has ended already ends it at once.
#[test]
fn a_watch_ends_with_its_run_or_by_a_signal() {
    let here = scratch("watch_ends");
    let mut watch = Watch::start(AGGREGATOR, &here.join("none"), &["--plain"]);
    watch.expect("waiting: it does not exist yet");
    finish(Command::new("kill").args(["-INT", &watch.child.id().to_string()])).expect_code(0);
    let seen = watch.expect_end();
    assert!(seen.last().unwrap().contains("stopped watching; the run is waiting"), "{seen:?}");

    let run = here.join("run");
    planted::write(&Plan { steps: 20, slow: vec![(1, 5_000_000)], ..Plan::default() }, &run).unwrap();
    let seen = Watch::start(AGGREGATOR, &run, &["--plain"]).expect_end();
    assert!(seen.last().unwrap().contains("step 19"), "{seen:?}");
    assert!(
        seen.last().unwrap().contains("the run has ended; slow rank 1 over 20 steps; 4 ranks, no row lost"),
        "{seen:?}"
    );
    // Without a terminal and without --plain, only the end is printed.
    let seen = Watch::start(AGGREGATOR, &run, &[]).expect_end();
    assert_eq!(seen.len(), 1, "{seen:?}");
}

#[test]
fn what_is_no_run_is_an_error() {
    let here = scratch("watch_errors");
    let file = here.join("file");
    fs::write(&file, "text").unwrap();
    let said = finish(Command::new(AGGREGATOR).arg("watch").arg(&file)).expect_code(1).stderr;
    assert!(said.contains("it is a file, and a run is a directory"), "{said}");
    let said = finish(Command::new(RANKSCOPE).args(["watch", "999999999"])).expect_code(1).stderr;
    assert!(said.contains("process 999999999 is not a running exec of this user on this host"), "{said}");
    finish(Command::new(AGGREGATOR).arg("watch").arg(&here).args(["--metrics", "99999"])).expect_code(2);
}

/// A shard that is cut is counted once, and the other ones are judged.
#[test]
fn a_damaged_shard_is_a_counted_omission() {
    let here = scratch("watch_damage");
    let run = here.join("run");
    planted::write(&Plan { steps: 20, part_rows: 200, ..Plan::default() }, &run).unwrap();
    let damaged = run.join("events/rank-00001-0002.parquet");
    let bytes = fs::read(&damaged).unwrap();
    fs::write(&damaged, &bytes[..bytes.len() / 2]).unwrap();
    let metrics = here.join("rankscope.prom");
    let mut watch = Watch::start(AGGREGATOR, &run, &["--plain", "--metrics", metrics.to_str().unwrap()]);
    let line = watch.expect("LOST");
    assert!(line.contains("rank 1: rows of events:") && line.contains("rank-00001-0002.parquet"), "{line}");
    let seen = watch.expect_end();
    assert!(seen.last().unwrap().contains("4 ranks, no row lost, 1 shard unreadable"), "{seen:?}");
    assert!(fs::read_to_string(&metrics).unwrap().contains("rankscope_unreadable_shards_total 1\n"));
}

/// Rank 2 never calls the last collective: the other ranks wait in it.
#[test]
fn a_missing_rank_is_named() {
    let here = scratch("watch_hang");
    let run = here.join("run");
    let plan = Plan { steps: 8, op_ns: 4_000_000, ..Plan::default() };
    planted::write(&plan, &here.join("whole")).unwrap();
    let mut growing = Growing::begin(&[here.join("whole")], &run, SECOND_NS / 10).unwrap();
    growing.hang(7, 2);
    growing.write_until(growing.length_ns + SECOND_NS).unwrap();
    let metrics = here.join("rankscope.prom");
    let mut watch = Watch::start(AGGREGATOR, &run, &["--plain", "--metrics", metrics.to_str().unwrap()]);
    let line = watch.expect("HANG");
    assert!(line.contains("rank 2 is missing from allreduce"), "{line}");
    assert!(line.contains("ranks 0–1, 3 entered it and did not leave"), "{line}");
    let text = fs::read_to_string(&metrics).unwrap();
    assert!(text.contains("rankscope_hang 1\n") && text.contains("rankscope_missing_rank{rank=\"2\"} 1\n"), "{text}");
}

#[test]
fn metrics_are_served_on_the_loopback() {
    let here = scratch("watch_metrics");
    let run = here.join("run");
    planted::write(&Plan { steps: 20, ..Plan::default() }, &here.join("whole")).unwrap();
    let mut growing = Growing::begin(&[here.join("whole")], &run, SECOND_NS / 100).unwrap();
    growing.write_until(growing.length_ns).unwrap();
    let port = crate::support::master_port();
    let _watch = Watch::start(AGGREGATOR, &run, &["--metrics", &port.to_string()]);
    let scrape = || -> std::io::Result<String> {
        let mut stream = TcpStream::connect(("127.0.0.1", port))?;
        std::io::Write::write_all(
            &mut stream,
            b"GET /metrics HTTP/1.1\r\nAccept: application/openmetrics-text\r\n\r\n",
        )?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer)?;
        Ok(answer)
    };
    let begin = std::time::Instant::now();
    let answer = loop {
        match scrape() {
            Ok(answer) if answer.contains("rankscope_newest_step ") => break answer,
            other => assert!(begin.elapsed() < PATIENCE, "{other:?}"),
        }
        std::thread::sleep(Duration::from_millis(100));
    };
    assert!(answer.starts_with("HTTP/1.1 200 OK\r\nContent-Type: application/openmetrics-text"), "{answer}");
    assert!(answer.contains("# TYPE rankscope_lost_rows counter\n") && answer.ends_with("# EOF\n"), "{answer}");
    assert!(answer.contains("rankscope_slow_ranks 0\n"), "{answer}");
}
