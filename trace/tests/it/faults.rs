//! Broken runs: every fault becomes an error or a problem that names the file, never a panic and never a wrong row.

use std::fs;
use std::path::Path;

use crate::common::{events, meta, write_manifest, write_rows};
use trace::*;

/// A run of two ranks, `events` and `steps`, with 200 rows of `events` a rank.
fn good_run() -> tempfile::TempDir {
    let run = tempfile::tempdir().unwrap();
    write_manifest(run.path(), 2);
    for rank in 0..2 {
        write_rows(run.path(), &meta(rank), 0, &events(rank, 200));
        let step = StepRow { rank, phase: "active".into(), ..StepRow::default() };
        write_rows(run.path(), &meta(rank), 0, &[step]);
    }
    run
}

/// Opens a run, reads all its events, and returns `rank: rows` and the problems, one a line.
fn report(run: &Path) -> String {
    let run = Run::open(run).unwrap();
    let mut text = String::new();
    let mut problems = run.problems.clone();
    for rank in run.ranks() {
        let (rows, found) = run.rows::<EventRow>(rank);
        assert!(rows.iter().all(|row| row.rank == rank));
        text.push_str(&format!("rank {rank}: {} events\n", rows.len()));
        problems.extend(found);
    }
    for Problem { kind, path, rank, what, amount, why } in problems {
        assert_eq!(kind, OmissionKind::Lost, "{what}: {why}");
        let show = |n: Option<i64>| n.map_or("?".into(), |n| n.to_string());
        // Without the temporary directory's name.
        let why = path.iter().fold(why, |why, p| why.replace(&format!("{}: ", p.display()), ""));
        let file = path.map_or("-".into(), |p| p.file_name().unwrap().to_string_lossy().into_owned());
        text.push_str(&format!("{file} rank {}: {what} ({}): {why}\n", show(rank.map(i64::from)), show(amount)));
    }
    text
}

#[test]
fn a_good_run_has_no_problem() {
    insta::assert_snapshot!(report(good_run().path()), @r#"
        rank 0: 200 events
        rank 1: 200 events
    "#);
}

#[test]
fn a_shard_cut_anywhere_is_a_problem() {
    let run = good_run();
    let path = shard_path(run.path(), "events", 1, 0);
    let whole = fs::read(&path).unwrap();
    for twentieth in 0..20 {
        fs::write(&path, &whole[..whole.len() * twentieth / 20]).unwrap();
        let text = report(run.path());
        assert!(text.starts_with("rank 0: 200 events\nrank 1: 0 events\n"), "{text}");
        assert_eq!(text.matches("rank-00001-0000.parquet rank 1: rows of events (?)").count(), 1, "{text}");
    }
    // And one byte less than whole.
    fs::write(&path, &whole[..whole.len() - 1]).unwrap();
    assert!(report(run.path()).contains("rank 1: 0 events"));
}

#[test]
fn garbage_and_strangers_are_problems() {
    let run = good_run();
    let directory = run.path().join("events");
    let noise: Vec<u8> = (0..5000u32).map(|i| (i.wrapping_mul(2_654_435_761) >> 13) as u8).collect();
    fs::write(directory.join("rank-00000-0001.parquet"), &noise).unwrap();
    fs::write(directory.join("rank-00000-0002.parquet"), b"PAR1").unwrap();
    fs::write(directory.join("notes.txt"), b"hello").unwrap();
    fs::create_dir(directory.join("rank-00001-0009.parquet")).unwrap();
    fs::write(directory.join("rank-00001-0001.parquet.77.tmp"), &noise[..100]).unwrap();
    insta::assert_snapshot!(report(run.path()), @r#"
        rank 0: 200 events
        rank 1: 200 events
        notes.txt rank ?: rows of events (?): not a run (its name is not rank-NNNNN-NNNN.parquet)
        rank-00000-0001.parquet rank 0: rows of events (?): Parquet error: Invalid Parquet file. Corrupt footer
        rank-00000-0002.parquet rank 0: rows of events (?): EOF: Parquet file too small. Size is 4 but need 8
        rank-00001-0001.parquet.77.tmp rank 1: unfinished part of events (?): the part was being written when its rank stopped
        rank-00001-0009.parquet rank 1: rows of events (?): it is a directory, not a regular file
    "#);
}

/// Invariant (input): Long texts are shortened and counted, and all rows are read.
#[test]
fn long_texts_are_shortened_and_counted_and_all_rows_are_read() {
    let run = good_run();
    let long = "é".repeat(MAX_TEXT_BYTES / 2);
    let mut rows = events(0, 200);
    rows[7].name = long.clone().into();
    for row in [30, 70] {
        rows[row].name = format!("{long}{row}").into();
    }
    rows[8].args = Some(format!("{{\"ab\":\"{long}\"}}").into());
    fs::remove_file(shard_path(run.path(), "events", 0, 0)).unwrap();
    write_rows(run.path(), &meta(0), 0, &rows);
    insta::assert_snapshot!(report(run.path()), @r#"
        rank 0: 200 events
        rank 1: 200 events
        rank-00000-0000.parquet rank 0: rows of events (?): 3 texts are longer than 1048576 bytes; shortened
    "#);
    let (read, _) = Run::open(run.path()).unwrap().rows::<EventRow>(0);
    assert_eq!((&*read[7].name, &*read[30].name), (&*long, &*long));
    assert_eq!(read[8].args.as_ref().map(|args| args.len()), Some(MAX_TEXT_BYTES - 1), "no character is cut");
}

/// Invariant (input): A manifest that is too long is neither read nor written.
#[test]
fn a_manifest_that_is_too_long_is_neither_read_nor_written() {
    let run = good_run();
    let path = run.path().join(MANIFEST_FILE);
    let manifest = Manifest::read(run.path()).unwrap();
    let mut text = fs::read(&path).unwrap();
    text.resize(MAX_MANIFEST_BYTES, b' ');
    fs::write(&path, &text).unwrap();
    assert_eq!(Manifest::read(run.path()).unwrap(), manifest);
    text.push(b' ');
    fs::write(&path, &text).unwrap();
    let said = Run::open(run.path()).unwrap_err().to_string();
    assert_eq!(said, format!("{}: longer than 33554432 bytes, the most that a manifest may have", path.display()));
    let long = Manifest { command: vec!["x".repeat(MAX_MANIFEST_BYTES)], ..manifest };
    assert!(matches!(long.write(run.path()), Err(Error::LongManifest { .. })));
    assert_eq!(fs::read(&path).unwrap(), text, "the file is as it was");
}

/// Whatever a manifest says, what is missing fits into memory.
#[test]
fn of_very_many_missing_ranks_there_is_a_count() {
    let run = good_run();
    write_manifest(run.path(), i32::MAX);
    let problems = Run::open(run.path()).unwrap().problems;
    let (named, counted): (Vec<_>, Vec<_>) = problems.iter().partition(|problem| problem.rank.is_some());
    assert_eq!((named.first().and_then(|problem| problem.rank), counted.len()), (Some(2), 1));
    let missing = named.len() as i64 + counted[0].amount.unwrap();
    assert_eq!(missing, i64::from(i32::MAX) - 2);
}

#[test]
fn a_missing_rank_and_a_rank_too_many_are_problems() {
    let run = good_run();
    write_manifest(run.path(), 3);
    write_rows(run.path(), &meta(5), 0, &events(5, 10));
    insta::assert_snapshot!(report(run.path()), @r#"
        rank 0: 200 events
        rank 1: 200 events
        rank-00005-0000.parquet rank 5: rows of events (10): rank 5 in a run whose manifest says world_size 3
        - rank 2: rank (1): no readable shard of it was found
    "#);
}

#[test]
fn another_runs_shard_is_left_out() {
    let run = good_run();
    write_rows(run.path(), &ShardMeta { run_id: "other".into(), ..meta(1) }, 1, &events(1, 10));
    insta::assert_snapshot!(report(run.path()), @r#"
        rank 0: 200 events
        rank 1: 200 events
        rank-00001-0001.parquet rank 1: rows of events (10): it belongs to run "other", the manifest says "test"
    "#);
}

#[test]
fn of_two_processes_that_claim_a_rank_the_larger_is_kept() {
    let run = good_run();
    write_rows(run.path(), &ShardMeta { pid: 9999, ..meta(1) }, 1, &events(1, 10));
    insta::assert_snapshot!(report(run.path()), @r#"
        rank 0: 200 events
        rank 1: 200 events
        rank-00001-0001.parquet rank 1: rows of events (10): rank 1 is claimed by two processes: node-1 pid 41 is kept (more rows), this is node-1 pid 9999
    "#);
}

#[test]
fn a_renamed_shard_contradicts_its_metadata() {
    let run = good_run();
    fs::rename(shard_path(run.path(), "events", 1, 0), shard_path(run.path(), "events", 0, 1)).unwrap();
    insta::assert_snapshot!(report(run.path()), @r#"
        rank 0: 200 events
        rank 1: 0 events
        rank-00000-0001.parquet rank 0: rows of events (?): metadata key rankscope.rank is 1, but the file's name says 0
    "#);
}

#[test]
fn parts_are_read_in_the_order_of_their_numbers() {
    let run = tempfile::tempdir().unwrap();
    write_manifest(run.path(), 1);
    for part in [10_000, 9_999, 2] {
        let event = EventRow { id: i64::from(part), ..EventRow::default() };
        write_rows(run.path(), &meta(0), part, &[event]);
    }
    let (rows, problems) = Run::open(run.path()).unwrap().rows::<EventRow>(0);
    assert_eq!(rows.iter().map(|row| row.id).collect::<Vec<_>>(), [2, 9_999, 10_000]);
    assert_eq!(problems, []);
}

/// Invariant (files): Processes of one session record a rank together.
///
/// Several processes of one session record a rank together: a launcher and its children. A third that is not of them
/// is refused.
#[test]
fn the_processes_of_a_session_make_one_claim() {
    let of = |pid, session: &str| ShardMeta { pid, session: session.into(), ..meta(0) };
    let run = tempfile::tempdir().unwrap();
    write_manifest(run.path(), 1);
    write_rows(run.path(), &of(1, "boot 1"), 0, &events(0, 10));
    write_rows(run.path(), &of(2, "boot 1"), 1, &events(0, 20));
    write_rows(run.path(), &of(1, "boot 1"), 2, &events(0, 5));
    assert_eq!(Run::open(run.path()).unwrap().problems, []);
    write_rows(run.path(), &of(2, "boot 9"), 3, &events(0, 5));
    write_rows(run.path(), &of(2, ""), 4, &events(0, 4));
    insta::assert_snapshot!(report(run.path()), @r#"
        rank 0: 35 events
        rank-00000-0003.parquet rank 0: rows of events (5): rank 0 is claimed by two processes: node-1 session boot 1 is kept (more rows), this is node-1 session boot 9
        rank-00000-0004.parquet rank 0: rows of events (4): rank 0 is claimed by two processes: node-1 session boot 1 is kept (more rows), this is node-1 pid 2
    "#);
}

/// The writer refuses what the reader would refuse.
#[test]
fn a_writer_refuses_rows_that_break_the_facts() {
    let run = tempfile::tempdir().unwrap();
    let write = |rows: &[EventRow]| {
        let batch = batch_from_rows(rows).unwrap();
        write_shard(run.path(), &EventRow::table(), &meta(0), 0, &[batch]).unwrap_err()
    };
    let mut rows = events(0, 5);
    rows.swap(2, 3);
    assert!(matches!(write(&rows), Error::Unsorted { row: 3, .. }));
    let mut rows = events(0, 5);
    rows[4].rank = 1;
    assert!(matches!(write(&rows), Error::WrongRank { row: 4, found: 1, expected: 0, .. }));
    let mut rows = events(0, 5);
    rows[1].dur_ns = -1;
    assert!(matches!(write(&rows), Error::NegativeDuration { row: 1, dur_ns: -1, .. }));
    assert!(!run.path().join("events").exists(), "nothing was written");
}

/// The reader refuses what a careless writer wrote.
#[test]
fn a_reader_refuses_rows_that_break_the_facts() {
    let run = good_run();
    let unsorted = Table { sorted_by: None, ..EventRow::table() };
    let mut rows = events(1, 5);
    rows.swap(2, 3);
    write_shard(run.path(), &unsorted, &meta(1), 1, &[batch_from_rows(&rows).unwrap()]).unwrap();
    insta::assert_snapshot!(report(run.path()), @r#"
        rank 0: 200 events
        rank 1: 200 events
        rank-00001-0001.parquet rank 1: rows of events (5): table events is not sorted by ts_ns at row 3
    "#);
}

// PAR1 | pages | footer: one flipped bit in the pages changes a value, a length or a null. No row of the shard is used then.
#[test]
fn a_flipped_bit_in_the_pages_is_found() {
    let run = good_run();
    let path = shard_path(run.path(), "events", 1, 0);
    let sound = fs::read(&path).unwrap();
    let length = u32::from_le_bytes(sound[sound.len() - 8..sound.len() - 4].try_into().unwrap()) as usize;
    let pages = 4..sound.len() - 8 - length;
    assert!(pages.len() > 500, "{pages:?}");
    for at in pages {
        let mut damaged = sound.clone();
        damaged[at] ^= 1 << (at % 8);
        fs::write(&path, damaged).unwrap();
        let (rows, problems) = Run::open(run.path()).unwrap().rows::<EventRow>(1);
        assert!(rows.is_empty() && problems.len() == 1, "byte {at}: {} rows, {problems:?}", rows.len());
        assert!(problems[0].why.contains("checksum"), "byte {at}: {problems:?}");
    }
    fs::write(&path, sound).unwrap();
    assert_eq!(Run::open(run.path()).unwrap().rows::<EventRow>(1).0.len(), 200);
}

#[test]
fn a_copy_of_a_shard_under_another_name_is_no_further_part() {
    let run = good_run();
    let path = shard_path(run.path(), "events", 1, 0);
    for name in ["rank-1-1.parquet", "rank-00001-1.parquet", "rank-00001-00001.parquet", "rank-000001-0001.parquet"] {
        let copy = path.with_file_name(name);
        fs::copy(&path, &copy).unwrap();
        let opened = Run::open(run.path()).unwrap();
        assert_eq!(opened.rows::<EventRow>(1).0.len(), 200, "{name}");
        assert_eq!(opened.problems.len(), 1, "{name}: {:?}", opened.problems);
        fs::remove_file(copy).unwrap();
    }
}

#[test]
fn a_manifest_that_is_not_one_is_an_error() {
    let run = good_run();
    let path = run.path().join(MANIFEST_FILE);
    let manifest = fs::read_to_string(&path).unwrap();
    let newer = manifest.replace(&format!("\"schema_version\": {SCHEMA_VERSION}"), "\"schema_version\": 999");
    let cases = [
        ("", "EOF while parsing"),
        ("[]", "invalid"),
        ("{}", "missing field `schema_version`"),
        ("\u{0}\u{1}garbage", "expected value"),
        (&manifest[..manifest.len() / 2], "EOF while parsing"),
        (&newer, "schema version 999 is newer than 2"),
    ];
    for (text, message) in cases {
        fs::write(&path, text).unwrap();
        let error = Run::open(run.path()).unwrap_err().to_string();
        assert!(error.contains(message) && error.contains("run.json"), "{text:?}: {error}");
    }
    fs::remove_file(&path).unwrap();
    assert!(Run::open(run.path()).unwrap_err().to_string().contains("it has no run.json"));
    let nowhere = run.path().join("nowhere");
    assert!(Run::open(&nowhere).unwrap_err().to_string().contains("no such directory"));
    assert!(Run::open(&shard_path(run.path(), "events", 0, 0)).unwrap_err().to_string().contains("not a directory"));
}

/// Numbers from a small generator with a fixed seed: the same damage in every run of the test.
struct Dice(u64);

impl Dice {
    fn below(&mut self, limit: usize) -> usize {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) as usize % limit
    }
}

/// Invariant (files): A damaged shard is an error or rows, and never a panic.
#[test]
fn a_damaged_shard_is_an_error_or_rows_but_never_a_panic() {
    let run = tempfile::tempdir().unwrap();
    write_rows(run.path(), &meta(0), 0, &events(0, 300));
    let path = shard_path(run.path(), "events", 0, 0);
    let whole = fs::read(&path).unwrap();
    let mut dice = Dice(42);
    let (mut refused, mut read) = (0, 0);
    for _ in 0..1500 {
        let mut bytes = whole.clone();
        // Half of the damage goes into the footer, which is where the sizes and offsets stand.
        let region = if dice.below(2) == 0 { 0..bytes.len() } else { bytes.len() - 3200..bytes.len() };
        for _ in 0..1 + dice.below(6) {
            let at = region.start + dice.below(region.len());
            bytes[at] = match dice.below(3) {
                0 => bytes[at] ^ (1 << dice.below(8)),
                1 => [0, 1, 0x7f, 0x80, 0xff][dice.below(5)],
                _ => dice.below(256) as u8,
            };
        }
        fs::write(&path, &bytes).unwrap();
        let rows = Shard::open(&path, "events").and_then(|shard| {
            let mut rows = 0;
            shard.read(&EventRow::table(), None, |batch| -> Result<(), Error> {
                rows += rows_from_batch::<EventRow>(batch)?.len();
                Ok(())
            })?;
            Ok(rows)
        });
        match rows {
            Ok(_) => read += 1,
            Err(_) => refused += 1,
        }
    }
    // Most damage is found; what is not hits values, names or padding, which carry no checksum.
    assert!(refused > 400 && read > 40, "{refused} refused, {read} read");
}
