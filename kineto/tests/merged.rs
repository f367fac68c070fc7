//! Files that hold the traces of many ranks.

#![expect(clippy::unwrap_used, reason = "tests may, and their helpers too")]

use std::fs;
use std::path::Path;

use fixtures::merged::{Naming, merged};
use fixtures::small_trace::gzip;
use kineto::{Plan, PlanOptions, RankSource, load, plan};
use proptest::prelude::*;
use serde_json::{Value, json};
use simulator::{Job, Shape, simulate, write};
use trace::rank::RankData;

fn planned(directory: &Path) -> Plan {
    plan(&[directory.to_path_buf()], PlanOptions::default()).unwrap()
}

/// The traces of a small job, without the groups that the header lists.
fn traces(shape: Shape, ranks: usize, seed: u64) -> Vec<Value> {
    let job = Job { steps: 2, layers: 2, buckets: 1, ..Job::new(shape, ranks) };
    let place = tempfile::tempdir().unwrap();
    write(&job, &simulate(&job, seed).unwrap(), place.path()).unwrap();
    let trace = |rank: usize| {
        let mut trace: Value =
            serde_json::from_slice(&fs::read(place.path().join(format!("rank{rank}.json"))).unwrap()).unwrap();
        trace.as_object_mut().unwrap().remove("distributedInfo");
        trace.as_object_mut().unwrap().remove("host_name");
        trace
    };
    (0..ranks).map(trace).collect()
}

/// What a rank has, whatever its file is.
fn content(data: &RankData) -> impl PartialEq + std::fmt::Debug + use<> {
    let events = &data.events;
    let rows: Vec<_> = (0..events.len())
        .map(|row| {
            let place = (events.device[row], events.stream[row], events.correlation[row], events.step[row]);
            let name = data.names[events.name[row] as usize].clone();
            (events.kind[row], name, events.ts_ns[row], events.dur_ns[row], events.parent[row], place)
        })
        .collect();
    let outline = &data.outline;
    (rows, outline.collectives.clone(), outline.steps.clone(), outline.comms.clone(), data.devices.clone())
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 12, ..ProptestConfig::default() })]

    /// Invariant (input): A file that holds the traces of many ranks is read as their files would be.
    #[test]
    fn a_merged_file_is_its_ranks(
        shape in prop::sample::select(vec![Shape::Ddp, Shape::Tensor(2), Shape::Gloo]),
        naming in prop::sample::select(vec![Naming::Texts, Naming::Rows]),
        is_compressed: bool,
        seed in 0..100_u64,
    ) {
        let traces = traces(shape, 4, seed);
        let (apart, together) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        for (rank, trace) in traces.iter().enumerate() {
            fs::write(apart.path().join(format!("rank{rank}.json")), trace.to_string()).unwrap();
        }
        let whole = merged(traces, naming).to_string().into_bytes();
        let whole = if is_compressed { gzip(&whole) } else { whole };
        fs::write(together.path().join("merged.json"), whole).unwrap();
        let (apart, together) = (planned(apart.path()), planned(together.path()));
        prop_assert_eq!(together.files.len(), 4);
        for (one, part) in apart.files.iter().zip(&together.files) {
            prop_assert_eq!((part.rank, part.rank_source), (one.rank, RankSource::ProcessNames));
            let (one, part) = (load(one).unwrap(), load(part).unwrap());
            prop_assert_eq!(content(&one), content(&part));
            prop_assert_eq!(&part.omissions, &[]);
        }
    }

    /// Processes of one rank have many names.
    #[test]
    fn other_names_of_processes_make_no_ranks(
        names in prop::collection::vec(
            prop_oneof![
                "[a-z:./ ]{0,12}",
                (prop::sample::select(vec!["python", "CPU", "GPU", "Stream", "CUDA API", "worker", "NVIDIA H"]), 0..200_u32)
                    .prop_map(|(word, number)| format!("{word} {number}")),
                // One rank has one name.
                Just("rank 3".to_string()),
            ],
            1..8,
        ),
        are_texts: bool,
    ) {
        let pid = |(at, name): (usize, &String)| if are_texts { json!(name) } else { json!(at) };
        let event = |process| json!({"ph": "X", "cat": "cpu_op", "name": "op", "pid": pid(process), "tid": 1, "ts": 1, "dur": 1});
        let row = |process| {
            json!({"ph": "M", "name": "process_name", "pid": pid(process), "args": {"name": process.1}})
        };
        let events: Vec<Value> =
            names.iter().enumerate().map(row).chain(names.iter().enumerate().map(event)).collect();
        let place = tempfile::tempdir().unwrap();
        fs::write(place.path().join("trace.json"), json!({"traceEvents": events}).to_string()).unwrap();
        let plan = planned(place.path());
        prop_assert_eq!((plan.files.len(), &plan.files[0].processes), (1, &None));
        let data = load(&plan.files[0]).unwrap();
        prop_assert_eq!((data.events.len(), data.omissions.len()), (names.len(), 0));
    }
}

fn text(events: &[Value]) -> String {
    json!({"traceEvents": events}).to_string()
}

fn event(pid: Value) -> Value {
    json!({"ph": "X", "cat": "cpu_op", "name": "op", "pid": pid, "tid": 1, "ts": 1, "dur": 1})
}

fn named(pid: i64, name: &str) -> Value {
    json!({"ph": "M", "name": "process_name", "pid": pid, "args": {"name": name}})
}

fn said(plan: &Plan) -> Vec<String> {
    plan.omissions.iter().map(|row| format!("{} {} {:?}: {}", row.kind, row.what, row.amount, row.why)).collect()
}

#[test]
fn rows_of_processes_without_a_rank_are_lost() {
    let place = tempfile::tempdir().unwrap();
    let events = [
        named(1, "rank 0"),
        named(2, "rank 1"),
        // Both ranks have a process 3.
        named(3, "rank 0"),
        named(3, "rank 1"),
        event(json!(1)),
        event(json!(2)),
        event(json!(3)),
        event(json!(4)),
        json!({"ph": "X", "cat": "cpu_op", "name": "op", "ts": 1, "dur": 1}),
    ];
    fs::write(place.path().join("m.json"), text(&events)).unwrap();
    let plan = planned(place.path());
    assert_eq!(plan.files.len(), 2);
    assert_eq!(said(&plan)[1], "lost rows of processes Some(3): the names of their processes say no rank, or two");
    assert_eq!(load(&plan.files[1]).unwrap().events.len(), 1);
}

#[test]
fn a_merged_file_beside_its_ranks_is_left_aside() {
    let place = tempfile::tempdir().unwrap();
    for rank in 0..2 {
        fs::write(place.path().join(format!("7-TP-{rank}.json")), text(&[event(json!(100 + rank))])).unwrap();
    }
    let events = [event(json!("[TP00] 100")), event(json!("[TP01] 101"))];
    fs::write(place.path().join("merged-7.json"), text(&events)).unwrap();
    let plan = planned(place.path());
    assert!(plan.files.iter().all(|file| file.processes.is_none()));
    assert_eq!((plan.files.len(), plan.world_size), (2, 2));
    assert!(said(&plan).iter().any(|row| row.contains("it was merged from the traces of ranks")), "{:?}", said(&plan));
}

#[test]
fn names_at_the_end_of_a_compressed_file_are_noticed() {
    let events: Vec<Value> =
        (0..2000).map(|at| event(json!(at % 2))).chain([named(0, "rank 0"), named(1, "rank 1")]).collect();
    let place = tempfile::tempdir().unwrap();
    fs::write(place.path().join("m.json"), text(&events)).unwrap();
    assert_eq!(planned(place.path()).files.len(), 2);
    fs::write(place.path().join("m.json"), gzip(text(&events).as_bytes())).unwrap();
    let plan = planned(place.path());
    assert_eq!(plan.files.len(), 1);
    let omissions = load(&plan.files[0]).unwrap().omissions;
    assert_eq!((&*omissions[0].what, omissions[0].amount), ("ranks of one file", Some(2)));
}
