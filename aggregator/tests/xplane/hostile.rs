//! Files that are damaged, or made to do harm.

use std::fs;
use std::path::Path;

use drawn::check_source;
use formats::format::OpenOptions;
use formats::job_files::JobFiles;
use formats::xplane::XplaneSource;
use model::source::Source;

use crate::profiles::{gpu, host, tpus};
use crate::writer::{Event, Message, Plane, loaded, omitted, opened, profile, recorded, rows};

fn whole() -> Vec<u8> {
    let mut planes = tpus(true);
    planes.extend([gpu(0), gpu(1), host()]);
    profile("h", &planes)
}

/// Where a plane ends: after its tag, its length of at most two bytes, and its bytes.
fn ends_of_planes(whole: &[u8]) -> Vec<usize> {
    let (mut ends, mut at) = (vec![0], 0);
    while whole.get(at) == Some(&0x0a) {
        let long = usize::from(whole[at + 1] >= 0x80);
        let length = usize::from(whole[at + 1] & 0x7f) + long * (usize::from(whole[at + 2]) << 7);
        at += 2 + long + length;
        ends.push(at);
    }
    ends
}

/// All rows of all ranks, and whether a loss is listed.
fn read(path: &Path) -> Option<(usize, bool)> {
    let source = XplaneSource::open(&[path.to_path_buf()]).ok()?;
    let mut is_said = source.problems().iter().any(|problem| &*problem.kind == "lost");
    let mut count = 0;
    for rank in source.ranks() {
        let data = source.load(rank).unwrap();
        count += data.events.len();
        is_said |= data.omissions.iter().any(|omission| &*omission.kind == "lost");
    }
    Some((count, is_said))
}

/// Invariant (formats): XPlane: a file that is cut anywhere is an error or lists its loss.
#[test]
fn a_file_that_is_cut_anywhere_is_an_error_or_lists_its_loss() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("cut.xplane.pb");
    let whole = whole();
    let ends = ends_of_planes(&whole);
    fs::write(&path, &whole).unwrap();
    let (all, is_said) = read(&path).unwrap();
    assert!(!is_said && all > 80, "{all}");
    let mut kept = 0;
    for end in (0..whole.len()).step_by(3) {
        fs::write(&path, &whole[..end]).unwrap();
        if let Some((count, is_said)) = read(&path) {
            // At the end of a plane, nothing says that there was more.
            assert!(is_said || ends.contains(&end), "cut at {end}: {count} of {all} rows");
            kept += usize::from(is_said);
        }
    }
    assert!(kept > whole.len() / 6, "planes before a cut are read: {kept} of {}", whole.len());
}

/// Invariant (formats): XPlane: every changed byte is an error or rows.
#[test]
fn every_changed_byte_is_an_error_or_rows() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("changed.xplane.pb");
    let whole = profile("h", &[gpu(0), host(), recorded(1_700_000_000_000_000_000, 1_700_000_000_000_000_001)]);
    for at in 0..whole.len() {
        for change in [0x01, 0x80, 0xff] {
            let mut bytes = whole.clone();
            bytes[at] ^= change;
            fs::write(&path, &bytes).unwrap();
            if let Ok(source) = XplaneSource::open(std::slice::from_ref(&path)) {
                check_source(&source);
            }
        }
    }
}

#[test]
#[ignore = "reads real traces"]
fn the_damaged_profile_of_a_tpu_names_its_byte() {
    let data = fixtures::data::real_traces();
    let path = data.join("xplane/broken_tpu_inference.xplane.pb");
    if path.is_file() {
        let error = XplaneSource::open(&[path]).unwrap_err().to_string();
        assert!(error.contains("byte 8: a field claims 28501368332271 bytes, and 1365932 are left"), "{error}");
    }
}

/// A plane of one line with `events`.
fn plane(events: &[Message]) -> Message {
    let line = events
        .iter()
        .fold(Message::default().number(1, 1).bytes(2, b"Stream #1(Kernel)"), |line, event| line.bytes(4, &event.0));
    let kind = Message::default().number(1, 1).bytes(2, &Message::default().number(1, 1).bytes(2, b"gemm").0);
    Message::default().bytes(2, b"/device:GPU:0").bytes(3, &line.0).bytes(4, &kind.0)
}

fn written(planes: &[Message]) -> Vec<u8> {
    planes.iter().fold(Message::default(), |space, plane| space.bytes(1, &plane.0)).0
}

fn load(bytes: &[u8]) -> model::RankData {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("h.xplane.pb");
    fs::write(&path, bytes).unwrap();
    opened(&[path]).load(0).unwrap()
}

/// Invariant (formats): XPlane: a damaged event is counted, with its byte, and costs no other event.
#[test]
fn a_damaged_event_costs_itself_and_is_counted() {
    let event = |offset_ps: i64| Message::default().number(1, 1).number(2, offset_ps).number(3, 1_000);
    let group = Message(vec![0x0b, 0x0c]);
    let wrong_type = Message::default().bytes(1, b"x");
    let data = load(&written(&[plane(&[event(0), group, wrong_type, event(5_000)])]));
    assert_eq!(data.events.ts_ns, [0, 5]);
    let lost = data.omissions.iter().find(|omission| &*omission.kind == "lost").unwrap();
    assert_eq!(lost.amount, Some(2));
    assert!(lost.why.contains("first at byte "), "{}", lost.why);
}

#[test]
fn impossible_times_are_counted_and_negative_lengths_are_zero() {
    let event =
        |offset_ps: i64, duration_ps: i64| Message::default().number(1, 1).number(2, offset_ps).number(3, duration_ps);
    let data = load(&written(&[plane(&[
        event(0, 1_000),
        event(i64::MAX, i64::MAX),
        event(9_000, -5_000),
        event(i64::MIN, 3),
    ])]));
    assert!(data.events.dur_ns.iter().all(|dur_ns| *dur_ns >= 0));
    assert!(omitted(&data).iter().any(|(kind, what, _)| (*kind, *what) == ("lost", "lengths")), "{:?}", omitted(&data));
}

#[test]
fn unknown_kinds_and_the_last_of_equal_ids_count() {
    let event = |kind: i64| Message::default().number(1, kind).number(3, 1_000);
    let again = Message::default().number(1, 1).bytes(2, &Message::default().bytes(2, b"second").0);
    let data = load(&written(&[plane(&[event(1), event(99)]).bytes(4, &again.0)]));
    let names: Vec<&str> = rows(&data).iter().map(|(_, name, ..)| *name).collect();
    assert_eq!(names, ["second", "unknown kernel"]);
    assert!(omitted(&data).contains(&("lost", "names of events", Some(1))));
}

#[test]
fn long_and_broken_names_are_shortened_and_counted() {
    let long = "x".repeat(3_000_000);
    let events = [Event(&long, 0, 1, &[]), Event(&long, 5, 1, &[])];
    let data = loaded(&[Plane::new("/device:GPU:0").line(1, "Stream #1", 0, &events)]);
    assert!(data.names.iter().all(|name| name.len() <= trace::MAX_TEXT_BYTES));
    assert!(omitted(&data).contains(&("lost", "names of events", Some(1))), "{:?}", omitted(&data));
    let kind = Message::default().number(1, 1).bytes(2, &Message::default().number(1, 1).bytes(2, b"\xffA").0);
    let data = load(&written(&[plane(&[Message::default().number(1, 1)]).bytes(4, &kind.0)]));
    assert_eq!(rows(&data)[0].1, "\u{fffd}A");
    assert!(omitted(&data).contains(&("lost", "texts", Some(1))));
}

#[test]
fn rows_and_files_beyond_the_memory_are_said() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("h.xplane.pb");
    let events: Vec<Event<'_>> = (0..4_000).map(|at| Event("gemm", at * 2_000, 1_000, &[])).collect();
    let bytes = profile("h", &[Plane::new("/device:GPU:0").line(1, "Stream #1(Kernel)", 0, &events)]);
    fs::write(&path, &bytes).unwrap();
    let profiles = [path];
    let within = |max_memory_bytes: u64| {
        let options = OpenOptions { max_memory_bytes: Some(max_memory_bytes), ..Default::default() };
        JobFiles::find(&profiles).unwrap().open(options)
    };
    let data = within(bytes.len() as u64 + 1_000 * 256).unwrap().load(0).unwrap();
    assert_eq!(data.events.len(), 1_000);
    assert!(omitted(&data).contains(&("lost", "events", Some(3_000))), "{:?}", omitted(&data));
    let error = within(bytes.len() as u64 - 1).err().unwrap().to_string();
    assert!(error.contains("give more with --max-memory"), "{error}");
}
