//! When parts close, and how they contain scopes and collectives that have not ended.

use std::time::Duration;

use recorder::{Collective, CollectiveOp, CollectiveState, Kind, Options};
use trace::{CollectiveRow, EventRow, RankRow, Run, StepRow};

use crate::common::{RANK, active, counters, event, new_run, options, rows, shards, wait_until};

#[test]
fn a_part_closes_when_it_is_full() {
    let run = new_run();
    let recorder = active(Options { part_rows: 100, ..options(run.path()) });
    let thread = recorder.thread("main");
    let name = recorder.intern("op");
    (0..1050).for_each(|_| drop(thread.scope(Kind::CpuOp, name)));
    let summary = recorder.finish();
    assert_eq!((summary.recorded, summary.dropped, summary.failed_parts), (1050, 0, 0));
    let opened = Run::open(run.path()).unwrap();
    let parts: Vec<u64> = opened.shards(RANK, "events").iter().map(|shard| shard.rows).collect();
    // A scope that is open while a part closes has a row in that part, and its final row in a later one.
    assert!(parts.len() >= 11 && parts.iter().all(|rows| *rows <= 101), "{parts:?}");
    let written = rows::<EventRow>(run.path());
    assert_eq!(written.len() as u64, parts.iter().sum::<u64>());
    assert_eq!(written.iter().filter(|row| row.open != Some(true)).count(), 1050);
    // The rows of `counters` sum up over any number of parts.
    assert_eq!(counters(run.path()), [("host:main".into(), 1050, 0, None)]);
    let bytes: u64 = ["events", "counters", "ranks", "parts"]
        .iter()
        .flat_map(|table| opened.shards(RANK, table))
        .map(|shard| shard.bytes)
        .sum();
    assert_eq!(summary.bytes, bytes);
}

#[test]
fn a_part_closes_after_its_period() {
    let run = new_run();
    let recorder = active(Options { part_period: Duration::from_millis(30), ..options(run.path()) });
    let thread = recorder.thread("main");
    for part in 0..3 {
        drop(thread.scope(Kind::CpuOp, recorder.intern("op")));
        wait_until("the part is on disk", || shards(run.path(), "events") > part);
    }
    // Without rows there is no part.
    let written = shards(run.path(), "events");
    std::thread::sleep(Duration::from_millis(150));
    assert_eq!(shards(run.path(), "events"), written);
    // While the recorder runs, the parts on disk are readable and counted.
    assert_eq!(rows::<EventRow>(run.path()).len(), 3);
    wait_until("the counters are on disk", || shards(run.path(), "counters") >= 3);
    assert_eq!(counters(run.path()), [("host:main".into(), 3, 0, None)]);
    assert_eq!(recorder.finish().recorded, 3);
}

/// Invariant (recorder): Rows that were flushed are on the disk.
#[test]
fn flushed_rows_are_on_the_disk() {
    let run = new_run();
    let hour = Duration::from_secs(3600);
    let recorder = active(Options { part_period: hour, ..options(run.path()) });
    let (thread, name) = (recorder.thread("main"), recorder.intern("op"));
    for flushed in 1..3 {
        (0..100).for_each(|_| drop(thread.scope(Kind::CpuOp, name)));
        assert!(recorder.flush(hour));
        assert_eq!(rows::<EventRow>(run.path()).len(), 100 * flushed);
    }
    recorder.finish();
    assert!(!recorder.flush(hour), "nothing is recorded any more");
}

/// ```text
/// main  [step                                   …
///         [done]   [hangs                       …
/// parts              ^ step, hangs: open          ^ completed by rows with the same ids
/// ```
#[test]
fn open_scopes_are_written_and_completed_later() {
    let run = new_run();
    let recorder = active(Options { part_period: Duration::from_millis(30), ..options(run.path()) });
    let thread = recorder.thread("main");
    let scope = |name: &str| thread.scope(Kind::CpuOp, recorder.intern(name));
    let step = scope("step");
    let done = scope("done");
    let done_id = done.id().unwrap();
    drop(done);
    let hangs = scope("hangs").bytes(77).comm();
    let (step_id, hangs_id) = (step.id().unwrap(), hangs.id().unwrap());
    // A part may close at any time; after the last of these rows there is nothing new to write.
    let mut before = Vec::new();
    wait_until("all three are on disk", || {
        before = if shards(run.path(), "events") == 0 { vec![] } else { rows::<EventRow>(run.path()) };
        let is_told = |id: i64, open: bool| before.iter().any(|event| event.id == id && event.open == Some(open));
        is_told(step_id, true) && is_told(hangs_id, true) && is_told(done_id, false)
    });
    let (open_step, open_hangs) = (event(&before, "step"), event(&before, "hangs"));
    assert_eq!((open_step.open, open_hangs.open, event(&before, "done").open), (Some(true), Some(true), Some(false)));
    assert_eq!((open_hangs.parent_id, open_hangs.bytes, open_hangs.is_comm), (Some(step_id), None, None));
    assert_eq!(open_hangs.thread_id, event(&before, "done").thread_id);
    assert!(open_hangs.dur_ns >= 0 && open_step.dur_ns >= open_hangs.dur_ns);
    // A rank that hangs does not write the same open rows again and again.
    let written = shards(run.path(), "events");
    std::thread::sleep(Duration::from_millis(200));
    assert_eq!(shards(run.path(), "events"), written);

    drop(hangs);
    drop(step);
    let summary = recorder.finish();
    assert_eq!(summary.recorded, 3, "open rows are not counted");
    let after = rows::<EventRow>(run.path());
    for (open, name) in [(&open_step, "step"), (&open_hangs, "hangs")] {
        let closed = event(&after, name);
        assert_eq!((closed.open, closed.id, closed.ts_ns), (Some(false), open.id, open.ts_ns));
        assert!(closed.dur_ns >= open.dur_ns);
    }
    let hangs = event(&after, "hangs");
    assert_eq!((hangs.bytes, hangs.is_comm), (Some(77), Some(true)));
    assert_eq!(counters(run.path()), [("host:main".into(), 3, 0, None)]);
}

#[test]
fn a_short_collective_across_two_parts_has_one_row() {
    let run = new_run();
    let recorder = active(Options { part_rows: 2, ..options(run.path()) });
    let thread = recorder.thread("comm");
    let collective = |seq, state| Collective { state, ..Collective::new(1, seq, CollectiveOp::AllReduce) };
    thread.collective(collective(1, CollectiveState::Started));
    thread.collective(collective(2, CollectiveState::Done));
    thread.collective(collective(3, CollectiveState::Done));
    wait_until("a part is closed", || shards(run.path(), "collectives") == 1);
    thread.collective(collective(1, CollectiveState::Done));
    recorder.finish();
    let rows = rows::<CollectiveRow>(run.path());
    assert!(rows.iter().all(|row| &*row.state == "done"));
    assert_eq!(rows.iter().map(|row| row.seq).collect::<Vec<_>>(), [Some(2), Some(3), Some(1)]);
}

#[test]
fn a_hanging_collective_is_written_once_and_completed_later() {
    let run = new_run();
    let recorder = active(Options { part_period: Duration::from_millis(30), ..options(run.path()) });
    let thread = recorder.thread("comm");
    let started = Collective { start_ns: Some(5), ..Collective::new(1, 9, CollectiveOp::AllReduce) };
    thread.collective(Collective { state: CollectiveState::Started, ..started });
    wait_until("it is on disk", || shards(run.path(), "collectives") == 1);
    std::thread::sleep(Duration::from_millis(150));
    assert_eq!(shards(run.path(), "collectives"), 1);
    thread.collective(Collective { end_ns: Some(8), ..started });
    recorder.finish();
    let states: Vec<_> = rows::<CollectiveRow>(run.path())
        .iter()
        .map(|row| (row.seq, row.state.to_string(), row.start_ns, row.end_ns))
        .collect();
    assert_eq!(states, [(Some(9), "started".into(), Some(5), None), (Some(9), "done".into(), Some(5), Some(8))]);
}

#[test]
fn without_finish_the_rows_are_written_but_the_end_is_not_clean() {
    let run = new_run();
    {
        let recorder = active(options(run.path()));
        let clone = recorder.clone();
        let thread = recorder.thread("main");
        drop(recorder);
        drop(thread.scope(Kind::CpuOp, clone.intern("op")));
        clone.begin_step(1, recorder::Phase::Active);
        clone.end_step(None);
    }
    assert_eq!(rows::<EventRow>(run.path()).len(), 1);
    assert_eq!(rows::<StepRow>(run.path()).len(), 1);
    let ranks: Vec<bool> = rows::<RankRow>(run.path()).iter().map(|row| row.closed_cleanly).collect();
    assert_eq!(ranks, [false]);
}
