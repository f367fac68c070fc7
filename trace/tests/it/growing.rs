//! A run that grows: what a follower of it reads, what it forgets, and what it counts.

use std::fs;
use std::path::Path;

use trace::{CounterRow, EventRow, Growing, RankRow, Row, StepRow, join_parts, shard_path};

use crate::common::{meta, write_manifest, write_rows};

const TABLES: [&str; 2] = ["events", "steps"];

fn begin(run: &Path, ranks: i32) {
    write_manifest(run, ranks);
    for rank in 0..ranks {
        write_rows(run, &meta(rank), 0, &[RankRow { rank, world_size: ranks, ..RankRow::default() }]);
    }
}

/// Part `part` of a rank holds step `part`.
fn write_part(run: &Path, rank: i32, part: u32) {
    let step = part as i32;
    let event = EventRow { rank, kind: "cpu_op".into(), name: "gemm".into(), step: Some(step), ..EventRow::default() };
    write_rows(run, &meta(rank), part, &[event]);
    write_rows(run, &meta(rank), part, &[StepRow { rank, step, phase: "active".into(), ..StepRow::default() }]);
}

/// The parts of `events` of rank 0 that are held.
fn held(growing: &mut Growing) -> Vec<u32> {
    growing.excerpt().shards(0, "events").iter().map(|shard| shard.part).collect()
}

/// Invariant (watch): A refresh of `watch` reads and holds only the newest shards, however long the run is.
#[test]
fn a_refresh_reads_what_is_new_and_holds_what_is_asked_for() {
    let directory = tempfile::tempdir().unwrap();
    let run = directory.path();
    begin(run, 2);
    let mut growing = Growing::open(run).unwrap();
    assert_eq!(growing.refresh().len(), 2, "the row of each rank");
    assert!(growing.refresh().is_empty());
    for part in 0..500 {
        write_part(run, 0, part);
        write_part(run, 1, part);
        assert_eq!(growing.refresh().len(), 4);
        growing.forget_before(part as i32 - 2, 1000);
        assert!(held(&mut growing).len() <= 3 && growing.excerpt().is_excerpt);
    }
    assert_eq!((held(&mut growing), growing.first_whole_step()), (vec![497, 498, 499], 497));
    assert_eq!(growing.excerpt().ranks(), [0, 1]);
    assert_eq!(growing.take_problems(), vec![]);
}

#[test]
fn a_run_that_is_long_already_is_read_from_its_end() {
    let directory = tempfile::tempdir().unwrap();
    let run = directory.path();
    begin(run, 1);
    for part in 0..40 {
        write_part(run, 0, part);
        let counter = CounterRow { source: "host:main".into(), recorded: 1, dropped: 1, ..CounterRow::default() };
        write_rows(run, &meta(0), part, &[counter]);
    }
    let mut growing = Growing::open(run).unwrap();
    let found = growing.refresh();
    let of = |table: &str| found.iter().filter(|shard| shard.table == table).count();
    assert_eq!((of("events"), of("steps"), of("counters")), (8, 8, 40), "counts add up from the first one");
    // Rows of step 32 may be in part 31.
    assert_eq!((held(&mut growing), growing.first_whole_step()), ((32..40).collect(), 33));
}

/// Invariant (watch): A rank that joins its parts while `watch` reads them changes none of their rows.
#[test]
fn parts_that_are_joined_are_followed() {
    let directory = tempfile::tempdir().unwrap();
    let run = directory.path();
    begin(run, 1);
    let join = |first: u32, others: &[u32]| {
        for table in [EventRow::table(), StepRow::table()] {
            join_parts(run, &table, &meta(0), (first, others)).unwrap();
        }
    };
    (0..6).for_each(|part| write_part(run, 0, part));
    let (mut early, mut late) = (Growing::open(run).unwrap(), Growing::open(run).unwrap());
    early.refresh();
    assert_eq!(held(&mut early), [0, 1, 2, 3, 4, 5]);
    join(1, &[2, 3]);
    // The rows of parts 1 to 3 are in part 1 now, for both.
    assert_eq!(held(&mut early), [0, 1, 4, 5]);
    late.refresh();
    assert_eq!(held(&mut late), [0, 1, 4, 5]);
    write_part(run, 0, 6);
    for growing in [&mut early, &mut late] {
        assert_eq!(growing.refresh().len(), 2, "part 6 of both tables");
        let (rows, problems) = growing.excerpt().rows::<StepRow>(0);
        assert_eq!(rows.iter().map(|row| row.step).collect::<Vec<_>>(), [0, 1, 2, 3, 4, 5, 6]);
        assert_eq!((problems, growing.take_problems()), (vec![], vec![]));
    }
    // A watch that was behind goes on, and says what it has not seen.
    (7..40).for_each(|part| write_part(run, 0, part));
    join(7, &(8..30).collect::<Vec<_>>());
    fs::remove_file(shard_path(run, "events", 0, 7)).unwrap();
    let mut found = 0;
    (0..40).for_each(|_| found += early.refresh().iter().filter(|shard| shard.table == "events").count());
    assert_eq!(found, 8, "the newest parts");
    let problems = early.take_problems();
    assert!(problems.iter().any(|problem| problem.why.contains("were joined before they were read")), "{problems:?}");
}

/// Invariant (watch): Shards that `watch` cannot read are counted once and skipped.
#[test]
fn missing_and_damaged_parts_are_counted_once_and_skipped() {
    let directory = tempfile::tempdir().unwrap();
    let run = directory.path();
    begin(run, 1);
    (0..4).for_each(|part| write_part(run, 0, part));
    for table in TABLES {
        fs::remove_file(shard_path(run, table, 0, 1)).unwrap();
    }
    let damaged = shard_path(run, "events", 0, 2);
    let bytes = fs::read(&damaged).unwrap();
    fs::write(&damaged, &bytes[..bytes.len() / 2]).unwrap();
    let mut growing = Growing::open(run).unwrap();
    (0..8).for_each(|_| drop(growing.refresh()));
    let problems: Vec<String> = growing.take_problems().into_iter().map(|problem| problem.what).collect();
    assert_eq!(problems, ["rows of events", "rows of steps", "rows of events"]);
    assert_eq!((held(&mut growing), growing.first_whole_step()), (vec![0, 3], 4), "step 3 may have rows in part 2");
    (0..8).for_each(|_| drop(growing.refresh()));
    assert_eq!(growing.take_problems(), vec![]);
}

/// A tool that copies a run may write its files in place.
#[test]
fn a_part_that_is_written_while_it_is_read_is_tried_again() {
    let directory = tempfile::tempdir().unwrap();
    let run = directory.path();
    begin(run, 1);
    write_part(run, 0, 0);
    let path = shard_path(run, "events", 0, 0);
    let bytes = fs::read(&path).unwrap();
    fs::write(&path, &bytes[..100]).unwrap();
    let mut growing = Growing::open(run).unwrap();
    growing.refresh();
    fs::write(&path, &bytes).unwrap();
    growing.refresh();
    assert_eq!((held(&mut growing), growing.take_problems()), (vec![0], vec![]));
}

/// Invariant (watch): A refresh of `watch` reads and holds only the newest shards, however long the run is.
#[test]
fn tables_without_steps_and_with_many_rows_are_bounded() {
    let directory = tempfile::tempdir().unwrap();
    let run = directory.path();
    begin(run, 1);
    let mut growing = Growing::open(run).unwrap();
    let event = EventRow { kind: "cpu_op".into(), name: "gemm".into(), ..EventRow::default() };
    for part in 0..30 {
        write_rows(run, &meta(0), part, std::slice::from_ref(&event));
        growing.refresh();
        growing.forget_before(0, 1000);
    }
    assert_eq!(held(&mut growing), (24..30).collect::<Vec<_>>());
    // A step that never ends.
    let event = EventRow { step: Some(7), ..event };
    for part in 30..60 {
        write_rows(run, &meta(0), part, &vec![event.clone(); 100]);
        growing.refresh();
        growing.forget_before(7, 1000);
    }
    assert_eq!((held(&mut growing), growing.first_whole_step()), ((50..60).collect(), 8));
}
