//! Bounds of memory: rows, texts and values that are larger than any job's.

use fixtures::small_trace::gzip;
use trace::MAX_TEXT_BYTES;

use crate::bytes::input::Input;
use crate::bytes::memory::{MemoryShare, Room};
use crate::bytes::value::MAX_KEPT_BYTES;
use crate::columns::stream::{Streamed, read_stream};
use crate::columns::wanted_args::Wanted;
use crate::read::load::load_wanted;
use crate::read::tests::{file_of, rank_from_text};
use crate::read::{TraceFile, load_windows};

const HEAD: &str = r#"{"traceEvents": [{"ph":"X","cat":"cpu_op","name":"first","ts":0,"dur":1}"#;

fn room(bytes: u64) -> Room {
    Room { bytes, full: "no room".into() }
}

fn streamed(bytes: Vec<u8>, room_bytes: u64, block_bytes: usize) -> Streamed {
    read_stream(
        Input::from_bytes(bytes),
        Wanted { args: true, shapes: true, rows_only: false },
        block_bytes,
        room(room_bytes),
    )
}

fn rows_in(streamed: &Streamed) -> usize {
    streamed.pieces.iter().map(|(_, piece)| piece.len()).sum()
}

fn events(count: usize) -> String {
    (0..count).map(|ts| format!(r#",{{"ph":"X","cat":"cpu_op","name":"k","ts":{ts},"dur":1}}"#)).collect()
}

#[test]
fn rows_are_read_until_they_fill_their_memory() {
    let text = format!("{HEAD}{}]}}", events(20_000));
    for block_bytes in [1000, 64 << 10] {
        let all = streamed(text.clone().into_bytes(), u64::MAX, block_bytes);
        assert_eq!((rows_in(&all), &all.missing), (20_001, &None));
        // Each thread counts the texts that it has met, so the sum differs a little from one time to the next.
        let exactly = streamed(text.clone().into_bytes(), all.memory_bytes + (64 << 10), block_bytes);
        assert_eq!((rows_in(&exactly), &exactly.missing), (20_001, &None));
        let half = streamed(text.clone().into_bytes(), all.memory_bytes / 2, block_bytes);
        let missing = half.missing.as_ref().unwrap();
        assert_eq!(missing.why, "no room");
        // The rows before the byte are those that are kept.
        let before = text[..missing.byte as usize].matches(r#""ph""#).count();
        assert_eq!(rows_in(&half), before);
        assert!((6_000..10_001).contains(&before) && half.memory_bytes < all.memory_bytes / 5 * 3, "{before}");
    }
}

/// Invariant (input): A compressed file is read only until its rows fill their memory.
///
/// 400 kB that inflate to 400 MB: 12 million rows without room.
#[test]
fn a_compressed_bomb_is_read_only_until_its_rows_fill_their_memory() {
    let member = gzip(events(30_000).as_bytes());
    let bomb = [gzip(HEAD.as_bytes()), member.repeat(400)].concat();
    let read = streamed(bomb, 16 << 20, 256 << 10);
    assert_eq!(read.missing.as_ref().map(|missing| &*missing.why), Some("no room"));
    assert!(read.bytes < 32 << 20 && read.memory_bytes <= 16 << 20, "{} {}", read.bytes, read.memory_bytes);
}

#[test]
fn texts_count_as_memory_in_names_categories_shapes_arguments_and_events() {
    let long = "x".repeat(100_000);
    let distinct = |event: &dyn Fn(String) -> String| {
        let events: String = (0..50).map(|number| event(format!("{number}{long}"))).collect();
        format!("{HEAD}{events}]}}")
    };
    let texts = [
        distinct(&|name| format!(r#",{{"ph":"X","name":"{name}","ts":1,"dur":1}}"#)),
        distinct(&|category| format!(r#",{{"ph":"X","name":"k","cat":"{category}","ts":1,"dur":1}}"#)),
        distinct(&|value| {
            format!(r#",{{"ph":"X","name":"k","cat":"kernel","ts":1,"dur":1,"args":{{"a":"{value}"}}}}"#)
        }),
        distinct(&|dims| {
            format!(r#",{{"ph":"X","cat":"cpu_op","name":"k","ts":1,"dur":1,"args":{{"Input Dims":["{dims}"]}}}}"#)
        }),
        distinct(&|args| {
            format!(
                r#",{{"ph":"X","cat":"kernel","name":"ncclDevKernel_AllReduce","ts":1,"dur":1,"args":{{"a":"{args}"}}}}"#
            )
        }),
        format!(r#"{HEAD},{{"ph":"X","name":"k","ts":1,"dur":1,"x":"{}"}}]}}"#, long.repeat(50)),
    ];
    for text in texts {
        let all = streamed(text.clone().into_bytes(), u64::MAX, 64 << 10);
        assert_eq!(all.missing, None);
        let some = streamed(text.clone().into_bytes(), 2 << 20, 64 << 10);
        let head = &text[HEAD.len()..HEAD.len() + 80];
        assert_eq!(some.missing.as_ref().map(|missing| &*missing.why), Some("no room"), "{head}");
    }
}

#[test]
fn long_names_and_arguments_are_shortened_and_counted() {
    let long = "é".repeat(MAX_TEXT_BYTES / 2);
    let event = |name: &str, arg: &str| {
        format!(r#",{{"ph":"X","cat":"kernel","name":"{name}","ts":1,"dur":1,"args":{{"stream":7,"note":"{arg}"}}}}"#)
    };
    let text = format!("{HEAD}{}{}{}]}}", event(&long, ""), event(&format!("{long}e"), ""), event("k", &long));
    let file = file_of(&text);
    let loaded = load_wanted(file.as_ref(), Wanted { args: true, ..Wanted::default() }, 0).unwrap();
    let lengths: Vec<usize> = loaded.data.names.iter().map(|name| name.len()).collect();
    assert!(lengths.iter().all(|length| *length <= MAX_TEXT_BYTES), "{lengths:?}");
    assert!(loaded.data.names.iter().any(|name| **name == *long), "a name of this length stays");
    let [omission] = &loaded.data.omissions[..] else { panic!("{:?}", loaded.data.omissions) };
    // The name that is one byte longer, and the argument, whose quotes count.
    assert_eq!((&*omission.what, omission.amount), ("names and arguments", Some(2)));
    assert_eq!(&*omission.why, "they are longer than 1048576 bytes; shortened");
    assert_eq!(omission.file.as_deref(), Some("trace"));
}

#[test]
fn values_that_are_kept_whole_have_a_longest_length() {
    let long = format!("[{}0]", "0,".repeat(MAX_KEPT_BYTES / 2));
    let header = rank_from_text(&format!(r#"{{"distributedInfo": {{"rank": 3, "a": {long}}}, "traceEvents": []}}"#));
    let said = |omissions: &[trace::OmissionRow]| omissions.iter().map(|o| o.what.to_string()).collect::<Vec<_>>();
    assert_eq!(said(&header.omissions), ["distributedInfo"]);
    let event = r#"{"ph":"X","cat":"kernel","name":"ncclDevKernel_AllReduce","ts":1,"dur":1,"args":"#;
    let rank = rank_from_text(&format!(r#"{{"traceEvents": [{event}{{"stream":7,"a":{long}}}}}]}}"#));
    assert_eq!(said(&rank.omissions), ["arguments of collectives"]);
    assert_eq!(rank.events.len(), 1);
}

#[test]
fn the_windows_of_a_rank_share_its_memory() {
    let text = format!("{HEAD}{}]}}", events(5_000));
    let files = [file_of(&text), file_of(&text)];
    let one = load_wanted(files[0].as_ref(), Wanted::default(), 0).unwrap();
    let within = |all_bytes: u64, ranks_at_once: u64| {
        let memory = MemoryShare { all_bytes, ranks_at_once };
        let limited = files.each_ref().map(|file| TraceFile { memory, ..file.as_ref().clone() });
        let rank = load_windows(&limited).unwrap();
        (rank.events.len(), rank.omissions)
    };
    // Each thread counts the texts that it has met.
    assert_eq!(within(2 * one.memory_bytes + (64 << 10), 1), (10_002, Vec::new()));
    let (rows, omissions) = within(3 * one.memory_bytes, 2);
    assert!((5_001..8_000).contains(&rows), "{rows}");
    let [omission] = &omissions[..] else { panic!("{omissions:?}") };
    assert_eq!((&*omission.what, omission.file.as_deref()), ("rest of the file", Some("trace")));
    let share = 3 * one.memory_bytes / 2;
    let limit = format!("may take, {share} bytes ({} bytes for 2 ranks at once); give more", 3 * one.memory_bytes);
    assert!(omission.why.contains(&limit), "{}", omission.why);
}
