//! The whole reader: it agrees with serde_json, and with itself for blocks of any size.

mod device_steps;
mod layouts;
mod meaning;
mod memory;
mod reference;

use std::path::PathBuf;

use proptest::prelude::*;
use serde_json::{Value, json};
use trace::rank::{Events, NONE, RankData};

use crate::bytes::input::Input;
use crate::bytes::memory::{MemoryShare, Room};
use crate::columns::batch::Columns;
use crate::columns::stream::read_stream;
use crate::columns::wanted_args::Wanted;
use crate::read::load::rank_from_stream;
use crate::read::tests::reference::{check_rank, plain_rows, reference_rows};
use crate::read::{RankSource, TraceFile};
/// A rank from the text of a file, read in blocks of `block_bytes`.
pub(crate) fn rank_from_bytes(bytes: Vec<u8>, block_bytes: usize) -> RankData {
    wanted_from_bytes(bytes, Wanted::default(), block_bytes)
}

fn wanted_from_bytes(bytes: Vec<u8>, wanted: Wanted, block_bytes: usize) -> RankData {
    let file = TraceFile {
        name: "trace".into(),
        window: None,
        replica: None,
        path: PathBuf::from("test.json"),
        rank: 0,
        roles: None,
        rank_source: RankSource::Order,
        world_size: None,
        size_bytes: bytes.len() as u64,
        memory: MemoryShare::default(),
        flight_recorder: None,
        processes: None,
    };
    let streamed = read_stream(Input::from_bytes(bytes), wanted, block_bytes, Room::unlimited());
    let data = rank_from_stream(streamed, &file).data;
    check_rank(&data);
    data
}

/// A file with a trace, which is removed with the value.
pub(crate) struct Written {
    file: TraceFile,
    _directory: tempfile::TempDir,
}

impl AsRef<TraceFile> for Written {
    fn as_ref(&self) -> &TraceFile {
        &self.file
    }
}

/// A file with this text.
pub(crate) fn file_of(text: &str) -> Written {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("trace.json");
    std::fs::write(&path, text).unwrap();
    let file = TraceFile {
        name: "trace".into(),
        window: None,
        replica: None,
        path,
        rank: 0,
        roles: None,
        rank_source: RankSource::Order,
        world_size: None,
        size_bytes: text.len() as u64,
        memory: MemoryShare::default(),
        flight_recorder: None,
        processes: None,
    };
    Written { file, _directory: directory }
}

/// A rank from the text of a file.
pub(crate) fn rank_from_text(text: &str) -> RankData {
    rank_from_bytes(text.as_bytes().to_vec(), 1 << 16)
}

/// A rank from events, without their list's brackets.
pub(crate) fn rank_from_events(events: &str) -> RankData {
    rank_from_text(&format!("{{\"traceEvents\": [{events}]}}"))
}

fn any_event() -> impl Strategy<Value = Value> {
    let phase = prop_oneof![8 => Just("X"), 1 => Just("s"), 1 => Just("M"), 1 => Just("i")];
    let category = prop::sample::select(vec![
        "cpu_op",
        "user_annotation",
        "kernel",
        "gpu_memcpy",
        "cuda_runtime",
        "cuda_driver",
        "python_function",
        "Kernel",
        "Operator",
        "cuda_sync",
        "gpu_user_annotation",
        "unheard_of",
    ]);
    let name = prop_oneof![
        "[a-z:]{0,12}",
        ".{0,100}",
        Just("ProfilerStep#3".to_string()),
        Just("ncclDevKernel_AllReduce_Sum".into())
    ];
    let known = prop::sample::select(vec!["External id", "correlation", "device", "stream", "bytes"]);
    let odd =
        prop::sample::select(vec![Value::Null, json!("text"), json!([1, {"device": 2}]), json!({"a": 1}), json!(true)]);
    let known = (known.prop_map(String::from), prop_oneof![4 => (0i64..200).prop_map(Value::from), 1 => odd]);
    let unknown = (".{0,8}", crate::bytes::any_json::any_json());
    let args = prop::collection::vec(prop_oneof![known, unknown], 0..6)
        .prop_map(|members| Value::Object(members.into_iter().collect()));
    (phase, category, name, 0i64..5, 0i64..5, 0i64..2_000_000_000, 0i64..50_000, args).prop_map(
        |(ph, cat, name, pid, tid, ts, dur, args)| {
            let us = |ns: i64| serde_json::from_str::<Value>(&format!("{}.{:03}", ns / 1000, ns % 1000)).unwrap();
            json!({"ph": ph, "cat": cat, "name": name, "pid": pid, "tid": tid, "ts": us(ts), "dur": us(dur), "args": args})
        },
    )
}

/// An event's members in Kineto's order, which serde_json does not keep.
fn in_order(event: &Value, pretty: bool) -> String {
    let gap = if pretty { "\n    " } else { "" };
    let members: Vec<String> = ["ph", "cat", "name", "pid", "tid", "ts", "dur", "args"]
        .iter()
        .map(|key| format!("{gap}\"{key}\": {}", event[*key]))
        .collect();
    format!("{{{}}}", members.join(","))
}

/// A document, with its rows as serde_json sees them.
fn any_document() -> impl Strategy<Value = (String, Value)> {
    (prop::collection::vec(any_event(), 0..30), 0u8..4, any::<bool>()).prop_map(|(events, form, base)| {
        let base_ns = if base { 1_700_000_000_000_000_000i64 } else { 0 };
        let text = match form {
            0 => Value::from(events.clone()).to_string(),
            1 => format!(
                "{{\"schemaVersion\": 1, \"baseTimeNanoseconds\": {base_ns}, \"traceEvents\": [\n{}\n], \"distributedInfo\": {{\"rank\": 4}}}}",
                events.iter().map(|e| in_order(e, true)).collect::<Vec<_>>().join(",\n")
            ),
            2 => format!(
                "{{\"traceEvents\":[{}],\"x\":[{{\"ph\": 1}}],\"baseTimeNanoseconds\":{base_ns}}}",
                events.iter().map(|e| in_order(e, false)).collect::<Vec<_>>().join(",")
            ),
            _ => json!({"a": "}]", "traceEvents": events, "baseTimeNanoseconds": base_ns}).to_string(),
        };
        let value = serde_json::from_str(&text).unwrap();
        (text, value)
    })
}

/// The parts of a rank that must not depend on the sizes of blocks.
fn outcome(data: &RankData) -> impl PartialEq + std::fmt::Debug {
    let RankData { outline, events, memory, flows, omissions, .. } = data;
    (
        plain_rows(data),
        events.parent.clone(),
        events.step.clone(),
        (outline.clone(), memory.clone(), flows.clone(), omissions.clone()),
    )
}

proptest! {
    #[test]
    fn reading_agrees_with_serde_json((text, value) in any_document(), block in 16usize..3000) {
        let data = rank_from_bytes(text.into_bytes(), block);
        prop_assert_eq!(plain_rows(&data), reference_rows(&value));
        prop_assert!(data.omissions.iter().all(|o| matches!(&*o.what, "ProfilerStep marks" | "marks of steps" | "arrows" | "ids" | "rows of unheard_of")));
    }

    /// Invariant (input): Every event of a trace becomes something, or is counted by the reason why not.
    #[test]
    fn every_event_is_accounted_for(
        (text, _) in any_document(),
        phases in prop::collection::vec("[BEbneCiIMstfNODRX(]", 30),
        rows_only: bool,
    ) {
        let mut parts = text.split("\"X\"");
        let first = parts.next().unwrap_or_default().to_string();
        let text = parts.zip(phases.iter().cycle()).fold(first, |text, (part, phase)| format!("{text}\"{phase}\"{part}"));
        let wanted = if rows_only { ROWS_ONLY } else { Wanted::default() };
        let streamed = read_stream(Input::from_bytes(text.into_bytes()), wanted, 400, Room::unlimited());
        let sum = |of: fn(&Columns) -> u64| streamed.pieces.iter().map(|(_, piece)| of(piece)).sum::<u64>();
        prop_assert_eq!(sum(|p| p.tally.events), sum(Columns::events_accounted_for));
    }

    /// A file that is cut anywhere keeps the events that end before the cut, and lists the cut.
    #[test]
    fn a_cut_file_keeps_its_whole_events((text, _) in any_document(), cut in 0.0f64..1.0, block in 16usize..500) {
        let whole = plain_rows(&rank_from_bytes(text.clone().into_bytes(), 1 << 20));
        let cut = (text.len() as f64 * cut) as usize;
        let data = rank_from_bytes(text.as_bytes()[..cut].to_vec(), block);
        let mut kept: Vec<i64> = plain_rows(&data).iter().map(|row| row.id).collect();
        kept.sort_unstable();
        prop_assert_eq!(&kept, &(0..kept.len() as i64).collect::<Vec<_>>());
        prop_assert!(kept.len() <= whole.len());
        let missing = data.omissions.iter().filter(|o| &*o.what == "rest of the file").count();
        prop_assert_eq!(missing, 1);
    }

    #[test]
    fn rows_are_the_same_without_other_tables((text, _) in any_document(), block in 16usize..3000) {
        let all = rank_from_bytes(text.clone().into_bytes(), block);
        let rows = wanted_from_bytes(text.into_bytes(), ROWS_ONLY, block);
        prop_assert_eq!((plain_rows(&rows), rows.events.parent), (plain_rows(&all), all.events.parent));
        prop_assert_eq!((rows.events.step, rows.outline), (all.events.step, all.outline));
    }

    /// Damaged bytes cause no panic, and blocks of any size give the result of one block.
    #[test]
    fn damage_is_read_alike_in_any_blocks(
        (text, _) in any_document(),
        damage in prop::collection::vec((0.0f64..1.0, any::<u8>(), 0u8..3), 0..6),
        block in 16usize..400,
    ) {
        let mut bytes = text.into_bytes();
        for (at, byte, what) in damage {
            let at = ((bytes.len() as f64 * at) as usize).min(bytes.len().saturating_sub(1));
            match what {
                0 if !bytes.is_empty() => bytes[at] = byte,
                1 => bytes.insert(at, byte),
                _ if !bytes.is_empty() => drop(bytes.remove(at)),
                _ => {}
            }
        }
        let one = rank_from_bytes(bytes.clone(), 1 << 20);
        let many = rank_from_bytes(bytes, block);
        prop_assert_eq!(outcome(&one), outcome(&many));
    }
}

const ROWS_ONLY: Wanted = Wanted { args: false, shapes: false, rows_only: true };

#[test]
fn other_tables_are_left_out_where_only_rows_are_wanted() {
    let text = r#"[
        {"ph":"X","cat":"cpu_op","name":"aten::mm","pid":1,"tid":1,"ts":1,"dur":9,"args":{"Input Dims":[[2,3],[3,4]]}},
        {"ph":"X","cat":"cpu_op","name":"MmBackward0","pid":1,"tid":1,"ts":20,"dur":9},
        {"ph":"X","cat":"kernel","name":"gemm","pid":0,"tid":7,"ts":3,"dur":2,"args":{"device":0,"stream":7,"grid":[1,2,3],"registers per thread":9}},
        {"ph":"X","cat":"gpu_memcpy","name":"Memcpy HtoD","pid":0,"tid":7,"ts":5,"dur":2,"args":{"device":0,"stream":7,"memory bandwidth (GB/s)":1.5}},
        {"ph":"i","name":"[memory]","pid":1,"tid":1,"ts":3,"s":"t","args":{"Device Type":1,"Device Id":0,"Bytes":4}},
        {"ph":"s","cat":"fwdbwd","name":"fwdbwd","id":1,"pid":1,"tid":1,"ts":1},
        {"ph":"f","cat":"fwdbwd","name":"fwdbwd","id":1,"pid":1,"tid":1,"ts":20,"bp":"e"}]"#;
    let all = rank_from_text(text);
    let rows = wanted_from_bytes(text.as_bytes().to_vec(), ROWS_ONLY, 1 << 16);
    let tables = |data: &RankData| (data.memory.len(), data.flows.len(), data.kernel_use.len());
    assert_eq!((tables(&all), tables(&rows)), ((1, 1, 1), (0, 0, 0)));
    assert_eq!((&rows.copy_rates, rows.copy_rates.len()), (&all.copy_rates, 1));
    let known = |data: &RankData| data.events.flops.iter().filter(|flops| **flops != NONE).count();
    assert_eq!((known(&all), known(&rows)), (1, 0));
    let flops = all.events.flops.clone();
    assert_eq!(Events { flops, ..rows.events }, all.events);
}

#[test]
fn gaps_between_events_do_not_matter() {
    let compact = r#"{"traceEvents":[{"ph":"X","cat":"kernel","name":"k","ts":1,"dur":2}]}"#;
    let loose = "{ \"traceEvents\" :\n[ \t{ \"ph\" : \"X\" ,\r\n\"cat\" : \"kernel\" , \"name\" : \"k\" , \"ts\" : 1 , \"dur\" : 2 } ] } ";
    assert_eq!(plain_rows(&rank_from_text(compact)), plain_rows(&rank_from_text(loose)));
}

#[test]
fn odd_values_of_real_files_are_read() {
    let data = rank_from_events(
        r#"
        {"ph":"X","cat":"cpu_op","name":"int","pid":1,"tid":-5,"ts":1,"dur":1},
        {"ph":"X","cat":"cpu_op","name":"text","pid":"12","tid":"34","ts":"2.5","dur":"1.25"},
        {"ph":"X","cat":"Trace","name":"span","pid":"Spans","tid":"PyTorch Profiler","ts":3,"dur":1},
        {"ph":"X","cat":"cpu_op","name":"nan","pid":1,"tid":1,"ts":4,"dur":1,"args":{"a":NaN,"b":N/A,"c":-Infinity,"External id":7}},
        {"ph":"X","cat":"cpu_op","name":"lone \ud800 surrogate","pid":1,"tid":1,"ts":5,"dur":1},
        {"ph":"X","cat":"cpu_op","name":"negative","pid":1,"tid":1,"ts":6,"dur":-1},
        {"ph":"X","cat":"cpu_op","name":"no start","pid":1,"tid":1,"dur":1},
        {"ph":"X","cat":"cpu_op","name":"no length","pid":1,"tid":1,"ts":7},
        {"ph":"X","cat":"cpu_op","name":"exponent","pid":1,"tid":1,"ts":8e0,"dur":1.0E0},
        {"ph":"B","name":"begin","ts":1},
        {"ph":"C","name":"counter","ts":1}, null"#,
    );
    let rows = plain_rows(&data);
    let named: Vec<(&str, i64, i64)> = rows.iter().map(|r| (r.name.as_str(), r.ts_ns, -r.neg_dur_ns)).collect();
    assert_eq!(
        named,
        [
            ("int", 1000, 1000),
            ("text", 2500, 1250),
            ("span", 3000, 1000),
            ("nan", 4000, 1000),
            ("lone \u{FFFD} surrogate", 5000, 1000),
            ("negative", 6000, 0),
            ("exponent", 8000, 1000),
        ]
    );
    assert_eq!((rows[0].thread, rows[1].thread, rows[3].external), (-5, 34, 7));
    let listed: Vec<(&str, Option<i64>)> = data.omissions.iter().map(|o| (&*o.what, o.amount)).collect();
    assert_eq!(
        listed,
        [
            ("events", Some(1)),
            ("events", Some(1)),
            ("lengths", Some(1)),
            ("items of traceEvents", Some(1)),
            ("begin and end events", Some(1)),
            ("counter events", Some(1)),
        ]
    );
}

/// Each row's length is possible, but their sum is longer than any job. The long rows are left out, the others are
/// kept.
#[test]
fn lengths_that_sum_to_decades_are_left_out() {
    let event = |name: &str, ts: usize, dur: f64| {
        format!(r#"{{"ph":"X","cat":"kernel","name":"{name}","pid":0,"tid":7,"ts":{ts},"dur":{dur:.0}}}"#)
    };
    let year_us = 365.0 * 86_400e6;
    let mut events: Vec<String> = (0..100).map(|i| event("long", i, 0.9 * year_us)).collect();
    events.extend((0..5).map(|i| event("short", 50 + i, 9.0)));
    let data = rank_from_events(&events.join(","));
    assert_eq!(data.events.dur_ns, [9000; 5]);
    let listed: Vec<(&str, Option<i64>)> = data.omissions.iter().map(|o| (&*o.what, o.amount)).collect();
    assert_eq!(listed, [("events", Some(100))]);
    let few = rank_from_events(&events[..30].join(","));
    assert_eq!((few.events.len(), few.omissions.len()), (30, 0));
}

/// Rows of impossible times lie at both ends of the sorted rows. The others keep their names, arguments and parents.
#[test]
fn rows_of_impossible_times_do_not_change_the_others() {
    let rows = r#"
        {"ph":"X","cat":"cpu_op","name":"outer","pid":1,"tid":1,"ts":1700000000000001.5,"dur":9},
        {"ph":"X","cat":"kernel","name":"ncclDevKernel_AllReduce","pid":0,"tid":7,"ts":1700000000000002.5,"dur":3,"args":{"Collective name":"allreduce","Seq":4}},
        {"ph":"X","cat":"cpu_op","name":"inner","pid":1,"tid":1,"ts":1700000000000003.5,"dur":1},
        {"ph":"i","name":"[memory]","pid":1,"tid":1,"ts":1700000000000003.5,"args":{"Device Type":1,"Device Id":1,"Bytes":4}}"#;
    let far = r#"
        {"ph":"X","cat":"kernel","name":"ncclDevKernel_AllReduce","pid":0,"tid":7,"ts":-9.2e15,"dur":3,"args":{"Seq":5}},
        {"ph":"X","cat":"cpu_op","name":"boot","pid":1,"tid":1,"ts":12.5,"dur":9},
        {"ph":"X","cat":"cpu_op","name":"end","pid":1,"tid":1,"ts":9.2e15,"dur":9},
        {"ph":"i","name":"[memory]","pid":1,"tid":1,"ts":9.2e15,"args":{"Device Type":1,"Device Id":1,"Bytes":4}}"#;
    let clean = rank_from_events(rows);
    let data = rank_from_events(&format!("{rows},{far}"));
    assert_eq!(plain_rows(&data), plain_rows(&clean));
    assert_eq!((&data.events.parent, &data.memory), (&clean.events.parent, &clean.memory));
    assert_eq!((data.outline.collectives.len(), &data.outline.collectives), (1, &clean.outline.collectives));
    let listed: Vec<(&str, Option<i64>)> = data.omissions.iter().map(|o| (&*o.what, o.amount)).collect();
    assert_eq!(listed, [("events", Some(3)), ("memory events", Some(1))]);
}
