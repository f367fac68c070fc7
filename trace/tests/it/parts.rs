//! The list of shards that a process closed, against shards that are lost, doubled, foreign or altered.

use std::fs;
use std::path::Path;

use tempfile::TempDir;
use trace::{EventRow, PartRow, RankRow, Row, Run, ShardMeta, StepRow, batch_from_rows, shard_path, write_shard};

use crate::common::{events, meta, write_manifest, write_rows};

const RANK: i32 = 0;

/// Writes shards, then their list and the last row of `ranks`, as a recorder does.
struct Process<'a> {
    run: &'a Path,
    meta: ShardMeta,
    closed: Vec<PartRow>,
}

impl Process<'_> {
    fn write<R: Row>(&mut self, part: u32, rows: &[R]) {
        let table = R::table();
        let closed = write_shard(self.run, &table, &self.meta, part, &[batch_from_rows(rows).unwrap()]).unwrap();
        self.closed.push(closed.row(&self.meta, &table, part));
    }

    fn end(self) {
        let parts = Some(self.closed.len() as i64);
        write_rows(self.run, &self.meta, 0, &self.closed);
        let last = RankRow { rank: RANK, pid: self.meta.pid, closed_cleanly: true, parts, ..RankRow::default() };
        write_rows(self.run, &self.meta, 1, &[last]);
    }
}

/// A run of one rank: `ranks` part 0, three parts of `events`, one of `steps`.
///
/// ```text
/// events   0: 4 rows   1: 3 rows   2: 2 rows
/// ```
fn recorded() -> TempDir {
    let directory = tempfile::tempdir().unwrap();
    write_manifest(directory.path(), 1);
    let mut process = Process { run: directory.path(), meta: meta(RANK), closed: Vec::new() };
    process.write(0, &[RankRow { rank: RANK, pid: process.meta.pid, ..RankRow::default() }]);
    let rows = events(RANK, 9);
    for (part, rows) in [&rows[..4], &rows[4..7], &rows[7..]].into_iter().enumerate() {
        process.write(part as u32, rows);
    }
    process.write(0, &[StepRow { rank: RANK, ..StepRow::default() }]);
    process.end();
    directory
}

fn events_part(run: &Path, part: u32) -> std::path::PathBuf {
    shard_path(run, "events", RANK, part)
}

/// The problems, as `ITEM AMOUNT: REASON`, and the rows of `events` that are read.
fn opened(run: &Path) -> (Vec<String>, u64) {
    let run = Run::open(run).unwrap();
    let problems = run.problems.iter().map(|problem| {
        let amount = problem.amount.map_or("?".to_string(), |amount| amount.to_string());
        format!("{} {amount}: {}", problem.what, problem.why)
    });
    (problems.collect(), run.shards(RANK, "events").iter().map(|shard| shard.rows).sum())
}

#[test]
fn a_whole_run_has_no_problem() {
    assert_eq!(opened(recorded().path()), (vec![], 9));
}

#[test]
fn each_lost_shard_is_a_problem_with_its_rows() {
    const WHY: &str = "the rank closed shards that are not there (parts";
    for (part, rows) in [(0, 4), (1, 3), (2, 2)] {
        let run = recorded();
        fs::remove_file(events_part(run.path(), part)).unwrap();
        assert_eq!(opened(run.path()), (vec![format!("rows of events {rows}: {WHY} {part})")], 9 - rows));
    }
    let run = recorded();
    fs::remove_dir_all(run.path().join("events")).unwrap();
    fs::remove_dir_all(run.path().join("steps")).unwrap();
    let expected = vec![format!("rows of events 9: {WHY} 0, 1, 2)"), format!("rows of steps 1: {WHY} 0)")];
    assert_eq!(opened(run.path()), (expected, 0));
}

#[test]
fn another_shard_in_the_place_of_one_is_left_out() {
    let run = recorded();
    let other = tempfile::tempdir().unwrap();
    // Rows of the same number and times, but of another length.
    let altered: Vec<EventRow> =
        events(RANK, 9).drain(4..7).map(|event| EventRow { dur_ns: event.dur_ns + 1, ..event }).collect();
    write_rows(other.path(), &meta(RANK), 1, &altered);
    fs::copy(events_part(other.path(), 1), events_part(run.path(), 1)).unwrap();
    let why = "the shards are not those that the rank closed: their checksums differ (parts 1)";
    assert_eq!(opened(run.path()), (vec![format!("rows of events 3: {why}")], 6));
    assert_eq!(Run::open(run.path()).unwrap().left_out, [events_part(run.path(), 1)]);
}

#[test]
fn a_further_shard_is_left_out() {
    let run = recorded();
    write_rows(run.path(), &meta(RANK), 3, &events(RANK, 5));
    let why = "the shards are none that the rank closed (parts 3)";
    assert_eq!(opened(run.path()), (vec![format!("rows of events 5: {why}")], 9));
    assert_eq!(Run::open(run.path()).unwrap().left_out, [events_part(run.path(), 3)]);
}

#[test]
fn a_lost_list_is_a_problem() {
    let run = recorded();
    fs::remove_dir_all(run.path().join("parts")).unwrap();
    let (problems, rows) = opened(run.path());
    assert_eq!((problems.len(), rows), (1, 9));
    assert!(problems[0].starts_with("rows of parts 5: process 40 closed 5 shards, and the list of them has 0"));
}

#[test]
fn the_shards_of_a_killed_process_stay() {
    let directory = tempfile::tempdir().unwrap();
    write_manifest(directory.path(), 1);
    write_rows(directory.path(), &meta(RANK), 0, &[RankRow { rank: RANK, pid: 40, ..RankRow::default() }]);
    write_rows(directory.path(), &meta(RANK), 0, &events(RANK, 9));
    assert_eq!(opened(directory.path()), (vec![], 9));
}
