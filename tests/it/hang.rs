//! A job that hangs in NCCL, replayed through the library that NCCL would load, and the sentence by which the analysis
//! names the missing rank.

use std::collections::BTreeMap;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use fixtures::planted::{self, Plan};
use fixtures::shards::manifest;
use trace::{CollectiveRow, RankRow, Run};

use crate::damage::{replace, rows};
use crate::support::{aggregator, analyze, inject_library, scratch};

const REPLAY: &str = env!("CARGO_BIN_EXE_nccl-replay-under-test");
const RANKS: i32 = 4;
const MISSING: i32 = 2;

fn start(run: &Path, rank: i32) -> Child {
    let mut command = Command::new(REPLAY);
    command.arg(inject_library()).args(["hang", "5", &MISSING.to_string()]).stdout(Stdio::null());
    command.env("RANKSCOPE_RUN", run).env("RANKSCOPE_RUN_ID", "hang").env("RANKSCOPE_WORLD_SIZE", RANKS.to_string());
    command.env("RANKSCOPE_RANK", rank.to_string()).env("RANKSCOPE_AGENT_PID", std::process::id().to_string());
    command.spawn().unwrap()
}

/// Whether every rank has written its rows: the waiting ranks two operations in flight, the missing rank all operations
/// that it finished.
fn all_is_on_disk(run: &Path) -> bool {
    let run = Run::open(run).unwrap();
    (0..RANKS).all(|rank| {
        let (rows, _) = run.rows::<CollectiveRow>(rank);
        // The newest row of each operation: an earlier one may have been written before its kernel began.
        let newest = |row: CollectiveRow| ((row.comm_id, row.op.clone(), row.seq), row.state);
        let states: BTreeMap<_, _> = rows.into_iter().map(newest).collect();
        let done = states.values().filter(|state| &***state == "done").count();
        let open = states.len() - done;
        done == 7 && open == if rank == MISSING { 0 } else { 2 }
    })
}

/// Invariant (hang): After a killed job, the run shows which ranks wait in a collective and which never called it.
#[test]
fn the_rank_that_is_missing_from_a_hang_is_named() {
    let run = scratch("hang").join("run");
    manifest("hang", RANKS).write(&run).unwrap();
    let mut ranks: Vec<Child> = (0..RANKS).map(|rank| start(&run, rank)).collect();
    let begin = Instant::now();
    while !all_is_on_disk(&run) && begin.elapsed() < Duration::from_secs(50) {
        std::thread::sleep(Duration::from_millis(100));
    }
    let on_disk = all_is_on_disk(&run);
    for rank in &mut ranks {
        // An operator, or a scheduler's time limit, ends a hung job like this.
        rank.kill().unwrap();
        rank.wait().unwrap();
    }
    assert!(on_disk, "operations in flight must be on disk before the ranks are killed");

    let said = analyze(&run, &[], 3).stdout;
    let sentence = "rank 2 is missing from allgather 1 of communicator \"dp_group_1\": ranks 0–1, 3 entered it";
    let flat: String = said.split_whitespace().collect::<Vec<_>>().join(" ");
    assert!(flat.contains(sentence), "{said}");
    assert!(said.starts_with("HUNG OR STOPPED: rank 2 — the recording was cut on "), "a hang is the headline: {said}");

    let json = aggregator(&[Path::new("analyze"), &run, Path::new("--json")]).expect_code(3).stdout;
    let json: serde_json::Value = serde_json::from_str(&json).unwrap();
    assert_eq!((&json["verdict"]["kind"], &json["verdict"]["causes"]), (&"hung".into(), &serde_json::json!([MISSING])));
    let rows = json["tables"]["unfinished_collectives"].as_array().unwrap();
    let found: Vec<String> = rows
        .iter()
        .map(|row| format!("{} {} {} {} {}", row["op"], row["seq"], row["started"], row["enqueued"], row["missing"]))
        .collect();
    assert_eq!(found, ["\"allgather\" 1 [0,1,3] [] [2]", "\"allreduce\" 6 [] [0,1,3] [2]"]);
    assert_eq!(json["tables"]["findings"][0]["id"], "hang");
    println!("hang: {}", json["tables"]["findings"][0]["title"]);

    let told = aggregator(&[Path::new("hang"), &run, Path::new("--json")]).stdout;
    let told: serde_json::Value = serde_json::from_str(&told).unwrap();
    assert_eq!((&told["culprits"], &told["device_stuck"]), (&serde_json::json!([MISSING]), &serde_json::json!([])));
    assert_eq!(told["waits_for"], serde_json::json!({"0": [MISSING], "1": [MISSING], "3": [MISSING]}));
}

/// Invariant (hang): A recording that was cut is not reported as a hang.
///
/// ```text
///                allreduce 11   12       13       14
///  ranks 1 to 3  [####]        [####]   [####]   [~~~~~  the end was not recorded
///  rank 0        [####]                                  the rows of its last part are lost
/// ```
///
/// Ctrl-C, a kill or a time limit ends the ranks at about the same time. Their last rows are lost, or show a collective that
/// had not ended. No rank is missing from it, as far as the rows tell.
#[test]
fn a_recording_that_was_cut_is_no_hang() {
    let run = scratch("cut").join("run");
    planted::write(&Plan::default(), &run).unwrap();
    for rank in 0..4 {
        let mut collectives = rows::<CollectiveRow>(&run, rank);
        collectives.sort_by_key(|row| row.start_ns);
        if rank == 0 {
            collectives.truncate(collectives.len() - 3);
        } else if let Some(last) = collectives.last_mut() {
            (last.state, last.end_ns) = ("started".into(), None);
        }
        replace(&run, rank, &collectives);
        let ended: Vec<RankRow> =
            rows::<RankRow>(&run, rank).into_iter().map(|row| RankRow { closed_cleanly: false, ..row }).collect();
        replace(&run, rank, &ended);
    }
    let json = aggregator(&[Path::new("analyze"), &run, Path::new("--json")]).expect_code(3).stdout;
    let json: serde_json::Value = serde_json::from_str(&json).unwrap();
    assert_eq!(json["facts"]["recording_was_cut"], serde_json::json!([0, 1, 2, 3]));
    let findings = json["tables"]["findings"].as_array().unwrap();
    let of_hang: Vec<&serde_json::Value> = findings.iter().filter(|row| row["id"] == "hang").collect();
    assert_eq!(of_hang.len(), 1, "{findings:#?}");
    let title = of_hang[0]["title"].as_str().unwrap();
    assert!(title.starts_with("the recording was cut on ranks 0–3; allreduce 14"), "{title}");
    assert!(title.ends_with("did not end: ranks 1–3 entered it") && of_hang[0]["severity"] == "info", "{title}");
    let row = &json["tables"]["unfinished_collectives"][0];
    assert_eq!((&row["missing"], &row["unknown"]), (&serde_json::json!([]), &1.into()));
}
