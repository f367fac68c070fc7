//! Full queues, full and hanging disks, killed ranks: the program continues, and lost rows are counted.

use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use recorder::{Collective, CollectiveOp, Error, Kind, Loss, Memory, Options, Recorder, Session};
use trace::{BucketRow, CounterRow, EventRow, MemoryRow, RankRow, Run};

use crate::common::{RANK, active, counters, event, new_run, options, rows, shards, wait_until};
use crate::hanging_disk::HangingDisk;

/// Invariant (recorder): Every queue has a bound, and every loss a counter.
#[test]
fn a_full_queue_drops_and_counts() {
    let run = new_run();
    let recorder = active(Options { queue_records: 16, ..options(run.path()) });
    let thread = recorder.thread("main");
    let name = recorder.intern("op");
    const EVENTS: u64 = 100_000;
    for i in 0..EVENTS {
        drop(thread.scope(Kind::CpuOp, name));
        thread.collective(Collective::new(1, i as i64, CollectiveOp::Barrier));
        thread.memory(Memory::host(name, 1));
    }
    let summary = recorder.finish();
    assert!(summary.closed_cleanly);
    assert_eq!(summary.recorded + summary.dropped, 3 * EVENTS, "every record is stored or counted");
    assert!(summary.dropped > 0, "a queue of 16 holds 100 000 events");
    let on_disk = rows::<EventRow>(run.path()).len() as i64;
    for (source, recorded, dropped, why) in counters(run.path()) {
        assert_eq!(recorded + dropped, EVENTS as i64, "{source}");
        assert_eq!(why.as_deref(), Some("its queue of 16 records was full"), "{source}");
        if &*source == "host:main" {
            assert_eq!(recorded, on_disk);
        }
    }
    let sources: Vec<&str> = summary.losses.iter().map(|loss| loss.source.as_str()).collect();
    assert_eq!(sources, ["host:main", "collectives:main", "memory:main"]);
}

/// Makes every write into a table fail, like a full disk: the table's directory becomes a file.
fn block(run: &Path, table: &str) {
    fs::write(run.join(table), b"in the way").unwrap();
}

#[test]
fn a_failed_write_is_repeated() {
    let run = new_run();
    block(run.path(), "events");
    let recorder = active(Options { part_period: Duration::from_millis(20), ..options(run.path()) });
    let thread = recorder.thread("main");
    let op = || (0..10).for_each(|_| drop(thread.scope(Kind::CpuOp, recorder.intern("op"))));
    op();
    thread.memory(Memory::host(recorder.intern("weights"), 8));
    // Other tables are still written.
    wait_until("memory is on disk", || shards(run.path(), "memory") == 1);
    op();
    std::thread::sleep(Duration::from_millis(100));
    fs::remove_file(run.path().join("events")).unwrap();
    wait_until("events are on disk", || shards(run.path(), "events") == 1);
    let summary = recorder.finish();
    assert_eq!((summary.recorded, summary.dropped, summary.closed_cleanly), (21, 0, true));
    assert!(summary.failed_parts > 0);
    assert_eq!((rows::<EventRow>(run.path()).len(), rows::<MemoryRow>(run.path()).len()), (20, 1));
    assert_eq!(counters(run.path()), [("host:main".into(), 20, 0, None), ("memory:main".into(), 1, 0, None)]);
}

/// Invariant (recorder): Every queue has a bound, and every loss a counter.
#[test]
fn rows_that_never_find_room_are_lost_and_counted() {
    let run = new_run();
    for table in ["events", "collectives", "memory", "buckets"] {
        block(run.path(), table);
    }
    let recorder = active(Options { part_rows: 100, ..options(run.path()) });
    let thread = recorder.thread("main");
    let name = recorder.intern("op");
    for i in 0..1000 {
        drop(thread.scope(Kind::CpuOp, name));
        thread.collective(Collective::new(1, i, CollectiveOp::Barrier));
        thread.memory(Memory::host(name, 1));
    }
    recorder.rows((0..7).map(|bucket| BucketRow { rank: RANK, bucket, ..BucketRow::default() }).collect()).unwrap();
    let summary = recorder.finish();
    assert_eq!((summary.recorded, summary.dropped), (0, 3007));
    assert!(summary.closed_cleanly, "the recorder ended cleanly, and `counters` has the losses");
    assert!(summary.failed_parts > 10);
    let counted = counters(run.path());
    assert_eq!(counted.len(), summary.losses.len());
    for (source, recorded, dropped, why) in counted {
        assert_eq!(recorded, 0);
        assert!(why.is_some_and(|why| why.starts_with("the part could not be written: ")), "{source}");
        let Loss { rows, .. } = summary.losses.iter().find(|loss| *loss.source == *source).unwrap();
        assert_eq!(*rows as i64, dropped, "{source}");
    }
    assert!(summary.to_string().contains("writer:buckets: 7 rows lost: the part could not be written"));
}

#[test]
fn a_recording_without_its_counters_does_not_end_cleanly() {
    let run = new_run();
    let recorder = active(options(run.path()));
    block(run.path(), "events");
    block(run.path(), "counters");
    drop(recorder.thread("main").scope(Kind::CpuOp, recorder.intern("op")));
    let summary = recorder.finish();
    assert_eq!((summary.recorded, summary.dropped, summary.closed_cleanly), (0, 1, false));
    assert!(summary.failure.is_some_and(|why| why.contains("counters")));
    assert_eq!(rows::<RankRow>(run.path()).iter().filter(|row| row.closed_cleanly).count(), 0);
}

#[test]
fn a_run_directory_that_vanishes_does_not_stop_the_program() {
    let run = new_run();
    let recorder = active(Options { part_rows: 10, ..options(run.path()) });
    let thread = recorder.thread("main");
    fs::remove_dir_all(run.path()).unwrap();
    (0..100).for_each(|_| drop(thread.scope(Kind::CpuOp, recorder.intern("op"))));
    let summary = recorder.finish();
    assert_eq!(summary.recorded + summary.dropped, 100);
}

/// Invariant (recorder): A disk that hangs does not hang the program.
///
/// The sync of a part does not return, as on a network disk whose server is gone: the writer hangs, but the program does
/// not.
#[test]
fn a_disk_that_hangs_does_not_hang_the_program() {
    let run = new_run();
    let recorder = active(Options {
        part_period: Duration::from_millis(10),
        finish_timeout: Duration::from_millis(300),
        queue_records: 64,
        ..options(run.path())
    });
    let disk = HangingDisk::at(run.path());
    let thread = recorder.thread("main");
    let name = recorder.intern("op");
    let start = Instant::now();
    while start.elapsed() < Duration::from_millis(200) {
        drop(thread.scope(Kind::CpuOp, name));
    }
    let summary = recorder.finish();
    assert!(!summary.closed_cleanly);
    assert!(summary.failure.as_ref().is_some_and(|why| why.contains("still busy after 0.3 s")), "{summary}");
    // The test leaves no thread behind.
    drop(disk);
}

#[test]
fn a_rank_that_the_run_already_holds_is_refused() {
    let run = new_run();
    let first = active(options(run.path()));
    let second = Recorder::start(options(run.path())).unwrap_err();
    assert!(matches!(second, Error::RankTaken { rank: RANK, .. }));
    assert!(second.to_string().contains("choose another run directory"), "{second}");
    drop(first.thread("main").scope(Kind::CpuOp, first.intern("op")));
    assert_eq!(first.finish().recorded, 1, "the first is not disturbed");
    let nowhere = Recorder::start(options(Path::new("/dev/null/nowhere"))).unwrap_err();
    assert!(nowhere.to_string().contains("/dev/null/nowhere"), "{nowhere}");
}

/// Invariant (files): Processes of one session record a rank together.
///
/// Two recorders in this process stand for two processes.
#[test]
fn processes_of_a_session_never_collide() {
    let run = new_run();
    let of = |session| Options { session: Some(session), ..options(run.path()) };
    let leader = active(of(Session::lead()));
    let join = || Session::join(std::process::id());
    let again = Recorder::start(of(Session::lead())).unwrap_err();
    assert!(matches!(again, Error::RankTaken { rank: RANK, .. }), "one leads: {again}");
    // In sequence, because temporary files of one process would collide.
    let joined: Vec<Recorder> = std::iter::once(leader).chain((0..4).map(|_| active(of(join())))).collect();
    for recorder in &joined {
        let (thread, name) = (recorder.thread("main"), recorder.intern("op"));
        for _ in 0..100 {
            drop(thread.scope(Kind::CpuOp, name));
        }
        let summary = recorder.finish();
        assert!(summary.closed_cleanly && summary.recorded == 100, "{summary}");
    }
    let events = rows::<EventRow>(run.path());
    let ids: std::collections::BTreeSet<i64> = events.iter().map(|event| event.id).collect();
    assert_eq!((events.len(), ids.len()), (500, 500), "no row is lost, no id is given twice");
    assert_eq!(rows::<trace::RankRow>(run.path()).len(), 10, "one at the start and one at the end of each");
    // A process outside of the session is still refused.
    assert!(matches!(Recorder::start(options(run.path())).unwrap_err(), Error::RankTaken { .. }));
}

#[test]
fn rows_beyond_the_byte_limit_are_left_out_and_counted() {
    let run = new_run();
    let part_rows = 1000;
    let recorder = active(Options { max_bytes: Some(20_000), part_rows, ..options(run.path()) });
    let (thread, name) = (recorder.thread("main"), recorder.intern("op"));
    for _ in 0..30_000 {
        drop(thread.scope(Kind::CpuOp, name));
    }
    let summary = recorder.finish();
    // A scope that was open when a part closed has a row in that part, too.
    let kept = rows::<EventRow>(run.path()).iter().filter(|event| event.open != Some(true)).count() as u64;
    assert!(summary.closed_cleanly && summary.dropped == 0 && kept >= 1000, "{summary}");
    assert_eq!((summary.recorded, summary.omitted), (kept, 30_000 - kept));
    assert!(summary.bytes < 60_000, "{summary}");
    let omitted: i64 = rows::<trace::CounterRow>(run.path()).iter().map(|row| row.omitted).sum();
    assert_eq!(omitted, summary.omitted as i64, "the run says so itself");
}

/// Invariant (recorder): The newest rows that are to be kept are there, and the older ones are counted.
#[test]
fn old_parts_are_removed_and_counted() {
    let run = new_run();
    let (keep, part_period) = (Some(Duration::from_millis(300)), Duration::from_millis(10));
    let recorder = active(Options { keep, part_period, ..options(run.path()) });
    let (thread, name) = (recorder.thread("main"), recorder.intern("op"));
    let mut recorded = 0;
    // The first part holds those that were joined with it.
    let first = trace::shard_path(run.path(), "events", RANK, 0);
    for is_there in [true, false] {
        wait_until("the first part comes and goes", || {
            drop(thread.scope(Kind::CpuOp, name));
            recorded += 1;
            first.exists() == is_there
        });
    }
    let summary = recorder.finish();
    assert!(summary.closed_cleanly && summary.recorded == recorded, "{summary}");
    let events: Vec<EventRow> = rows::<EventRow>(run.path()).into_iter().filter(|row| row.open != Some(true)).collect();
    let counters = rows::<CounterRow>(run.path());
    let of_events = counters.iter().filter(|row| &*row.source == "keep:events");
    let sum = |(sum, last_ns): (i64, i64), row: &CounterRow| (sum + row.omitted, last_ns.max(row.before_ns.unwrap()));
    let (removed, before_ns) = of_events.fold((0, 0), sum);
    assert!(events.len() as u64 + removed as u64 >= recorded, "{} of {recorded} rows, {removed} removed", events.len());
    let newest = events.iter().filter(|row| row.ts_ns >= before_ns).count() as i64;
    let all: Vec<i64> = events.iter().rev().map(|row| row.id).take(newest as usize).collect();
    assert!(newest > 0 && all[0] - all[all.len() - 1] + 1 == newest, "a row between others was removed: {all:?}");
    let opened = Run::open(run.path()).unwrap();
    let tables = trace::rank_tables();
    let on_disk: Vec<u64> =
        tables.iter().flat_map(|table| opened.shards(RANK, table.name)).map(|shard| shard.bytes).collect();
    assert_eq!(
        (summary.bytes, summary.shards),
        (on_disk.iter().sum(), on_disk.len() as u64),
        "removed parts do not count"
    );
}

const CHILD: &str = "RANKSCOPE_TEST_RECORD_INTO";

/// Body of the process that [`a_killed_rank_leaves_a_readable_run`] starts and kills. Without its variable it does
/// nothing.
#[test]
fn records_until_it_is_killed() {
    let Some(run) = std::env::var_os(CHILD) else { return };
    let recorder = active(Options { part_period: Duration::from_millis(50), ..options(Path::new(&run)) });
    let thread = recorder.thread("main");
    let _outer = thread.scope(Kind::UserAnnotation, recorder.intern("until killed"));
    let name = recorder.intern("op");
    loop {
        drop(thread.scope(Kind::CpuOp, name));
        std::thread::sleep(Duration::from_micros(50));
    }
}

#[test]
fn a_killed_rank_leaves_a_readable_run() {
    let run = new_run();
    let mut child = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "faults::records_until_it_is_killed"])
        .env(CHILD, run.path())
        .stdout(Stdio::null())
        .spawn()
        .unwrap();
    wait_until("three parts are on disk", || shards(run.path(), "events") >= 3 && shards(run.path(), "counters") >= 2);
    // SIGKILL: no code of the child runs any more.
    child.kill().unwrap();
    child.wait().unwrap();

    let opened = Run::open(run.path()).unwrap();
    let foreign =
        |problem: &&trace::Problem| problem.rank == Some(RANK) && !problem.what.starts_with("unfinished part");
    assert_eq!(opened.problems.iter().find(foreign), None, "at most a part was being written");
    let (events, problems) = opened.rows::<EventRow>(RANK);
    assert_eq!(problems, []);
    let outer = event(&events, "until killed");
    assert_eq!(outer.open, Some(true), "what was open when it died is there");
    let ops: Vec<&EventRow> = events.iter().filter(|event| &*event.name == "op").collect();
    assert!(ops.iter().all(|op| op.parent_id == Some(outer.id)));
    let (counted, _) = opened.rows::<CounterRow>(RANK);
    let recorded: i64 = counted.iter().map(|row| row.recorded).sum();
    let finished = ops.iter().filter(|op| op.open == Some(false)).count() as i64;
    assert!(recorded > 0 && recorded <= finished, "{recorded} counted, {finished} on disk");
    let (ranks, _) = opened.rows::<RankRow>(RANK);
    assert!(ranks.iter().all(|row| !row.closed_cleanly));
}
