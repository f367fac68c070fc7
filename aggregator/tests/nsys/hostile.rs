//! Files that are damaged, or made to do harm.

use std::fs;

use drawn::check_source;
use formats::nsys::NsysSource;
use model::source::Source;
use rusqlite::Connection;

use crate::export::{ONE, export, omitted, opened, small};

/// Invariant (formats): Nsight Systems: a file that is cut anywhere is an error or lists its loss.
#[test]
fn a_file_that_is_cut_anywhere_is_an_error_or_lists_its_loss() {
    let directory = tempfile::tempdir().unwrap();
    let path = export(directory.path(), "whole.sqlite");
    let whole = fs::read(&path).unwrap();
    let all: usize = opened(&[path]).load(0).unwrap().events.len();
    let cut = directory.path().join("cut.sqlite");
    for end in (0..whole.len()).step_by(509) {
        fs::write(&cut, &whole[..end]).unwrap();
        let Ok(source) = NsysSource::open(std::slice::from_ref(&cut)) else { continue };
        check_source(&source);
        let rank = source.ranks()[0];
        let data = source.load(rank).unwrap();
        let is_said = data.omissions.iter().chain(&source.problems()).any(|omission| &*omission.kind == "lost");
        assert!(is_said || data.events.len() == all, "cut at {end}: {} of {all} rows", data.events.len());
    }
}

#[test]
fn garbage_pages_are_errors_or_losses() {
    let directory = tempfile::tempdir().unwrap();
    let whole = fs::read(export(directory.path(), "whole.sqlite")).unwrap();
    let path = directory.path().join("garbage.sqlite");
    for page in 0..whole.len() / 4096 {
        for byte in [0, 5, 13, 255] {
            let mut bytes = whole.clone();
            bytes[page * 4096..(page + 1) * 4096].fill(byte);
            // The first page begins with the magic.
            bytes[..100].copy_from_slice(&whole[..100]);
            fs::write(&path, &bytes).unwrap();
            if let Ok(source) = NsysSource::open(std::slice::from_ref(&path)) {
                check_source(&source);
            }
        }
    }
}

/// Invariant (formats): Nsight Systems: no view of the database runs.
#[test]
fn a_view_is_no_table() {
    let directory = tempfile::tempdir().unwrap();
    let more = format!(
        "DROP TABLE CUPTI_ACTIVITY_KIND_RUNTIME;
         CREATE VIEW CUPTI_ACTIVITY_KIND_RUNTIME AS WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n)
             SELECT i AS start, i AS end, {ONE} AS globalTid FROM n;
         CREATE TRIGGER t AFTER INSERT ON NVTX_EVENTS BEGIN SELECT 1; END;
         CREATE VIEW of_a_tool AS SELECT 1;"
    );
    let source = opened(&[small(directory.path(), "a", &more)]);
    let whats: Vec<_> = source.problems().iter().map(|problem| problem.what.to_string()).collect();
    assert_eq!(whats, ["rows of CUPTI_ACTIVITY_KIND_RUNTIME"]);
    assert_eq!(source.load(0).unwrap().events.len(), 2);
}

#[test]
fn huge_and_broken_texts_are_bounded_and_counted() {
    let directory = tempfile::tempdir().unwrap();
    let more = format!(
        "INSERT INTO NVTX_EVENTS VALUES (1, 2, 59, CAST(zeroblob(3000000) AS TEXT), {ONE} + 1, NULL, 0, NULL),
             (3, 4, 59, CAST(x'ff41' AS TEXT), {ONE} + 1, NULL, 0, NULL), (5, 6, 59, CAST(zeroblob(30000000) AS TEXT), {ONE} + 1, NULL, 0, NULL);"
    );
    let data = opened(&[small(directory.path(), "a", &more)]).load(0).unwrap();
    assert!(data.names.iter().all(|name| name.len() <= trace::MAX_TEXT_BYTES));
    assert!(data.names.iter().any(|name| &**name == "\u{fffd}A"), "{:?}", data.names.last());
    let omitted = omitted(&data);
    assert_eq!(omitted[0], ("lost", "rest of table NVTX_EVENTS", None));
    assert!(omitted.contains(&("lost", "texts", Some(1))), "{omitted:?}");
}

/// Invariant (formats): Nsight Systems: the file is not changed, and no file appears beside it.
#[test]
fn the_file_is_not_changed_and_nothing_lies_beside_it() {
    let directory = tempfile::tempdir().unwrap();
    let path = export(directory.path(), "a ?#%.sqlite");
    // A journal that SQLite would roll back if it might write.
    Connection::open(&path).unwrap().execute_batch("PRAGMA journal_mode = wal").unwrap();
    let before = fs::read(&path).unwrap();
    opened(std::slice::from_ref(&path)).load(0).unwrap();
    assert_eq!(fs::read(&path).unwrap(), before);
    assert_eq!(fs::read_dir(directory.path()).unwrap().count(), 1);
}

/// A program that was killed, or still runs, leaves its last rows in a file beside the database.
#[test]
fn rows_that_are_not_in_the_database_yet_are_a_loss() {
    let directory = tempfile::tempdir().unwrap();
    let path = export(directory.path(), "a.sqlite");
    let lost = |path: &std::path::Path| -> Vec<String> {
        let problems = opened(&[path.into()]).problems();
        problems.iter().filter(|problem| &*problem.kind == "lost").map(|problem| problem.why.to_string()).collect()
    };
    let before = lost(&path);
    let connection = Connection::open(&path).unwrap();
    let begun = "PRAGMA journal_mode = persist; BEGIN; INSERT INTO StringIds VALUES (100, 'x');";
    connection.execute_batch(begun).unwrap();
    let journal = directory.path().join("a.sqlite-journal");
    // SQLite writes the begin of a journal when it writes the database.
    fs::write(&journal, b"\xd9\xd5\x05\xf9\x20\xa1\x63\xd7").unwrap();
    assert!(lost(&path).iter().any(|why| why.contains("a.sqlite-journal may hold rows")), "{:?}", lost(&path));
    drop(connection);
    fs::write(&journal, [0; 512]).unwrap();
    assert_eq!(lost(&path), before, "the begin of the journal says that its changes are saved");
    let begun = "PRAGMA journal_mode = wal; PRAGMA wal_autocheckpoint = 0; INSERT INTO StringIds VALUES (100, 'x');";
    let connection = Connection::open(&path).unwrap();
    connection.execute_batch(begun).unwrap();
    assert!(lost(&path).iter().any(|why| why.contains("a.sqlite-wal may hold rows")), "{:?}", lost(&path));
    drop(connection);
    assert_eq!(lost(&path), before, "SQLite has saved the rows");
}
