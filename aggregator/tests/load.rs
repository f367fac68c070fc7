//! Loads shards from disk, whole and damaged: checks the rows, and the omissions for the rest.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on fails")]

use std::path::Path;

use fixtures::shards::{manifest, meta, write_rows};
use formats::run::{load_rank, outline_rank};
use model::{Kind, NO_PARENT, NONE, RankData};
use trace::{CollectiveRow, EventRow, RankRow, Row, Run, StepRow, shard_path};

fn shard<R: Row>(run: &Path, part: u32, rows: &[R]) {
    write_rows(run, &meta("test", 0), part, rows).unwrap();
}

fn event(id: i64, name: &str, ts_ns: i64, dur_ns: i64, parent_id: Option<i64>) -> EventRow {
    EventRow {
        kind: "cpu_op".into(),
        name: name.into(),
        ts_ns,
        dur_ns,
        id,
        thread_id: Some(1),
        parent_id,
        ..EventRow::default()
    }
}

fn loaded(run: &Path) -> RankData {
    load_rank(&Run::open(run).unwrap(), 0)
}

/// One string `name ts+dur <parent` for each row.
fn rows(data: &RankData) -> Vec<String> {
    let events = &data.events;
    let name = |row: usize| data.names[events.name[row] as usize].to_string();
    (0..events.len())
        .map(|row| {
            let parent = match events.parent[row] {
                NO_PARENT => String::new(),
                parent => format!(" <{}", name(parent as usize)),
            };
            format!("{} {}+{}{parent}", name(row), events.ts_ns[row], events.dur_ns[row])
        })
        .collect()
}

/// The omissions, as `what amount: why`.
fn omitted(data: &RankData) -> Vec<String> {
    let amount = |n: Option<i64>| n.map_or("?".into(), |n| n.to_string());
    data.omissions.iter().map(|o| format!("{} {}: {}", o.what, amount(o.amount), o.why)).collect()
}

#[test]
fn parts_are_merged_and_parents_found() {
    let dir = tempfile::tempdir().unwrap();
    manifest("test", 1).write(dir.path()).unwrap();
    // A range ends after the rows inside it. Its row is therefore in a later part but begins earlier.
    //  step     |--------------------|      part 1
    //  forward    |-------|                 part 1
    //  gemm         |--|                    part 0
    //  late               |--|              part 1, its parent was never written
    shard(dir.path(), 0, &[event(3, "gemm", 4, 3, Some(2))]);
    shard(
        dir.path(),
        1,
        &[event(1, "step", 0, 20, None), event(2, "forward", 2, 8, Some(1)), event(4, "late", 10, 3, Some(99))],
    );
    let data = loaded(dir.path());
    assert_eq!(rows(&data), ["step 0+20", "forward 2+8 <step", "gemm 4+3 <forward", "late 10+3"]);
    assert_eq!(data.outline.info.clock_domain, "test clock 0");
    assert_eq!(data.omissions, []);
}

#[test]
fn rows_of_equal_times_nest_by_id() {
    let dir = tempfile::tempdir().unwrap();
    manifest("test", 1).write(dir.path()).unwrap();
    shard(dir.path(), 0, &[event(2, "inner", 0, 5, Some(1)), event(1, "outer", 0, 5, None)]);
    assert_eq!(rows(&loaded(dir.path())), ["outer 0+5", "inner 0+5 <outer"]);
}

#[test]
fn a_later_row_completes_an_open_one() {
    let dir = tempfile::tempdir().unwrap();
    manifest("test", 1).write(dir.path()).unwrap();
    let open = |id, name, dur| EventRow { open: Some(true), ..event(id, name, 1, dur, None) };
    shard(dir.path(), 0, &[open(1, "step", 4), open(2, "never ends", 3)]);
    shard(dir.path(), 1, &[open(1, "step", 9)]);
    shard(dir.path(), 2, &[event(1, "step", 1, 30, None)]);
    let data = loaded(dir.path());
    assert_eq!(rows(&data), ["step 1+30", "never ends 1+3"]);
    assert_eq!(
        omitted(&data),
        ["ends of rows of events 1: the rank stopped before they ended; their lengths are lower bounds"]
    );
}

#[test]
fn communication_is_decided_by_flag_name_or_collective() {
    let dir = tempfile::tempdir().unwrap();
    manifest("test", 1).write(dir.path()).unwrap();
    let rows = [
        EventRow { is_comm: Some(true), ..event(1, "exchange", 0, 1, None) },
        event(2, "gloo:all_reduce", 1, 1, None),
        event(3, "custom_kernel", 2, 1, None),
        event(4, "gemm", 3, 1, None),
    ];
    shard(dir.path(), 0, &rows);
    shard(dir.path(), 0, &[collective(3, 2, 3)]);
    let data = loaded(dir.path());
    assert_eq!(data.events.is_comm, [true, true, true, false]);
    assert_eq!(data.events.kind[0], Kind::CpuOp);
    assert_eq!((data.events.device[0], data.events.bytes[0]), (NONE, NONE));
}

fn collective(event_id: i64, start_ns: i64, end_ns: i64) -> CollectiveRow {
    CollectiveRow {
        op: "allreduce".into(),
        start_ns: Some(start_ns),
        end_ns: Some(end_ns),
        state: "done".into(),
        timing_source: "host".into(),
        event_id: Some(event_id),
        ..CollectiveRow::default()
    }
}

#[test]
fn a_clock_that_jumps_backwards_is_reported() {
    let dir = tempfile::tempdir().unwrap();
    manifest("test", 1).write(dir.path()).unwrap();
    shard(dir.path(), 0, &[event(1, "gemm", 0, 5, None)]);
    shard(dir.path(), 0, &[collective(1, 30, 40), collective(1, 20, 10)]);
    let step =
        |step, start_ns, end_ns| StepRow { step, phase: "active".into(), start_ns, end_ns, ..StepRow::default() };
    shard(dir.path(), 0, &[step(0, 0, 10), step(1, 10, 4), step(2, 5, 9), step(3, 20, 30)]);
    let data = loaded(dir.path());
    assert_eq!(data.outline.collectives.len(), 1);
    assert_eq!(data.outline.steps.iter().map(|s| s.step).collect::<Vec<_>>(), [0, 3]);
    assert_eq!(
        omitted(&data),
        [
            "collectives 1: they end before they start: the clock jumped backwards",
            "steps 1: they end before they start: the clock jumped backwards",
            "steps 1: they begin before the previous step ended: the clock jumped backwards",
        ]
    );
}

#[test]
fn an_unclean_shutdown_is_reported() {
    let dir = tempfile::tempdir().unwrap();
    manifest("test", 1).write(dir.path()).unwrap();
    shard(dir.path(), 0, &[event(1, "gemm", 0, 5, None)]);
    shard(
        dir.path(),
        0,
        &[RankRow { world_size: 1, host: "test-host".into(), closed_cleanly: false, ..RankRow::default() }],
    );
    assert_eq!(
        omitted(&loaded(dir.path())),
        ["rows after the last part ?: the rank did not shut down cleanly; its last part may be missing"]
    );
}

/// 200 000 rows are two row groups. Destroying pages of the second leaves the first readable.
#[test]
fn a_shard_that_fails_half_way_keeps_what_was_read() {
    let dir = tempfile::tempdir().unwrap();
    manifest("test", 1).write(dir.path()).unwrap();
    // Durations without a pattern, so that the data is most of the file.
    let length = |i: i64| (i.wrapping_mul(i).wrapping_mul(0x9E37_79B9_7F4A_7C15_u64 as i64) >> 34) & 0xFFFF;
    let all: Vec<EventRow> = (0..200_000).map(|i| event(i, "gemm", i * 10, length(i), None)).collect();
    shard(dir.path(), 0, &all);
    let path = shard_path(dir.path(), "events", 0, 0);
    let mut bytes = std::fs::read(&path).unwrap();
    let (from, to) = (bytes.len() * 70 / 100, bytes.len() * 90 / 100);
    bytes[from..to].fill(0xff);
    std::fs::write(&path, bytes).unwrap();
    let data = loaded(dir.path());
    let read = data.events.len();
    assert!(read > 0 && read < 200_000, "{read}");
    assert_eq!(data.omissions.len(), 1);
    let omission = &data.omissions[0];
    assert_eq!((omission.amount, &*omission.what), (Some(200_000 - read as i64), "rows of events"));
    assert_eq!(omission.file.as_deref(), Some("events/rank-00000-0000.parquet"));
}

#[test]
fn garbage_and_halves_of_shards_leave_the_other_parts() {
    let dir = tempfile::tempdir().unwrap();
    manifest("test", 1).write(dir.path()).unwrap();
    for part in 0..3 {
        shard(dir.path(), part, &[event(i64::from(part), "gemm", i64::from(part) * 10, 5, None)]);
    }
    let path = |part| shard_path(dir.path(), "events", 0, part);
    let whole = std::fs::read(path(0)).unwrap();
    std::fs::write(path(0), &whole[..whole.len() / 2]).unwrap();
    std::fs::write(path(2), b"random bytes instead of parquet").unwrap();
    std::fs::write(path(3), b"").unwrap();
    let run = Run::open(dir.path()).unwrap();
    assert_eq!(run.problems.len(), 3);
    assert_eq!(rows(&load_rank(&run, 0)), ["gemm 10+5"]);
}

/// An outline is read without names and ids, and equals that of the loaded rank. Covers overlapping parts, rows that
/// are open in one part and end in the next, device rows, and collectives that run backwards.
///
/// ```text
///  part 0   |--- step (open) ----|   |-k-|
///  part 1   |--- step ---------------------------|
///  outline  |====================================|
/// ```
#[test]
fn an_outline_equals_that_of_the_loaded_rank() {
    let dir = tempfile::tempdir().unwrap();
    let run = dir.path();
    manifest("test", 1).write(run).unwrap();
    let open = EventRow { open: Some(true), ..event(1, "step", 100, 40, None) };
    let kernel = EventRow { kind: "kernel".into(), device_id: Some(0), ..event(2, "gemm", 150, 20, None) };
    shard(run, 0, &[open, kernel]);
    shard(run, 1, &[event(1, "step", 100, 400, None), event(3, "late", 460, 5, None)]);
    let collective = |seq, start, end| CollectiveRow {
        seq: Some(seq),
        op: "allreduce".into(),
        start_ns: Some(start),
        end_ns: Some(end),
        state: "done".into(),
        timing_source: "host".into(),
        ..CollectiveRow::default()
    };
    shard(run, 0, &[collective(1, 450, 520), collective(0, 120, 110)]);
    let step =
        |step, start_ns, end_ns| StepRow { step, phase: "active".into(), start_ns, end_ns, ..StepRow::default() };
    shard(run, 0, &[step(2, 300, 530), step(1, 90, 290)]);
    let run = Run::open(run).unwrap();
    let (outline, _) = outline_rank(&run, 0);
    let mut whole = load_rank(&run, 0);
    whole.measure_outline();
    assert_eq!(outline, whole.outline);
    assert_eq!((whole.rows_ns(), outline.has_device_rows), (Some((100, 500)), true));
    assert_eq!((outline.collectives.len(), outline.steps.len()), (1, 2));
}
