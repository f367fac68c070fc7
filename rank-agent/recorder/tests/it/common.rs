//! Helpers of the tests: a run in a temporary directory, and its rows.

use std::path::Path;
use std::time::{Duration, Instant};

use recorder::{Options, Recorder};
use tempfile::TempDir;
use trace::{CounterRow, EventRow, Manifest, Row, Run, SCHEMA_VERSION, Text};

pub(crate) const RANK: i32 = 3;

/// A run directory with a manifest of run `test`, world size 4.
pub(crate) fn new_run() -> TempDir {
    let run = tempfile::tempdir().unwrap();
    let manifest = Manifest {
        schema_version: SCHEMA_VERSION,
        run_id: "test".into(),
        world_size: 4,
        created_utc_ns: 1,
        tool: "test".into(),
        command: vec![],
        config: Default::default(),
    };
    manifest.write(run.path()).unwrap();
    run
}

/// Options of rank 3 of run `test`. Parts close only when they are full or at the end.
pub(crate) fn options(run: &Path) -> Options {
    Options { part_period: Duration::from_secs(3600), ..Options::new(run, "test", RANK, 4) }
}

/// A recorder that is active outside of any step.
pub(crate) fn active(options: Options) -> Recorder {
    let recorder = Recorder::start(options).unwrap();
    recorder.set_active(true);
    recorder
}

/// Rows of a table of rank 3. Fails if a shard has a problem, except for a part that is being written.
pub(crate) fn rows<R: Row>(run: &Path) -> Vec<R> {
    let run = Run::open(run).unwrap();
    let bad = |problem: &&trace::Problem| problem.rank == Some(RANK) && !problem.what.starts_with("unfinished part");
    assert_eq!(run.problems.iter().find(bad), None);
    let (rows, problems) = run.rows::<R>(RANK);
    assert_eq!(problems, []);
    rows
}

/// The event with this name; the last one, if it was written open first.
pub(crate) fn event(events: &[EventRow], name: &str) -> EventRow {
    events.iter().rfind(|event| &*event.name == name).unwrap_or_else(|| panic!("no event {name}: {events:?}")).clone()
}

/// Sums of `counters`, by source: recorded, dropped and the last reason.
pub(crate) fn counters(run: &Path) -> Vec<(Text, i64, i64, Option<Text>)> {
    let mut sums = std::collections::BTreeMap::<Text, (i64, i64, Option<Text>)>::new();
    for row in rows::<CounterRow>(run) {
        let sum = sums.entry(row.source).or_default();
        *sum = (sum.0 + row.recorded, sum.1 + row.dropped, row.why.or(sum.2.take()));
    }
    sums.into_iter().map(|(source, (recorded, dropped, why))| (source, recorded, dropped, why)).collect()
}

/// Waits for the writer until `what` holds; fails after a time that no healthy machine needs.
#[track_caller]
pub(crate) fn wait_until(what: &str, mut holds: impl FnMut() -> bool) {
    let start = Instant::now();
    while !holds() {
        assert!(start.elapsed() < Duration::from_secs(120), "never: {what}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// Number of shards of a table of rank 3 on disk.
pub(crate) fn shards(run: &Path, table: &str) -> usize {
    (0..).take_while(|part| trace::shard_path(run, table, RANK, *part).exists()).count()
}
