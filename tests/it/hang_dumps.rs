//! `hang` on real dumps of torch's Flight Recorder: with all dumps, without each of them, and with each of them cut.

use std::fs;
use std::path::{Path, PathBuf};

use fixtures::data;
use fixtures::planted::{Plan, write};
use serde_json::{Value, json};
use trace::{IN_FLIGHT_DIR, MANIFEST_FILE, RECORDED_BY};

use crate::support::{Finished, aggregator, scratch};

/// A real job that hung: its dumps by rank, the ranks that hold it up, and those whose devices are stuck.
struct Set {
    dumps: Vec<(i32, PathBuf)>,
    culprits: &'static [i32],
    stuck: &'static [i32],
}

fn sets() -> Vec<(&'static str, Set)> {
    let [gpu, gil] =
        ["gpu_error_1st", "lock_gil_2nd"].map(|name| data::real_traces().join("flight_recorder").join(name));
    let chain = data::folder_of_several_communicators("d3_hang3");
    let dumps = |folder: &Path, name: &str, ranks: i32, end: &str| {
        (0..ranks).map(|rank| (rank, folder.join(format!("{name}{rank}{end}")))).collect()
    };
    vec![
        ("gpu_error_1st", Set { dumps: dumps(&gpu, "_dump_", 16, ""), culprits: &[12], stuck: &[12, 14] }),
        ("lock_gil_2nd", Set { dumps: dumps(&gil, "_dump_", 16, ""), culprits: &[10, 15], stuck: &[] }),
        ("d3_hang3", Set { dumps: dumps(&chain, "nccl_trace_rank_", 8, ""), culprits: &[3], stuck: &[] }),
        ("d3_hang3.json", Set { dumps: dumps(&chain, "fr_json_rank_", 8, ".json"), culprits: &[3], stuck: &[] }),
    ]
}

fn hang(paths: &[PathBuf]) -> Finished {
    let arguments = [PathBuf::from("hang")].into_iter().chain(paths.iter().cloned()).chain(["--json".into()]);
    aggregator(&arguments.collect::<Vec<_>>())
}

fn answer(done: Finished) -> (Value, Value) {
    let json: Value = serde_json::from_str(&done.stdout).unwrap_or_else(|error| panic!("{error}: {}", done.said()));
    (json["culprits"].clone(), json["device_stuck"].clone())
}

/// Invariant (hang): The ranks that hold a job up and the devices that are stuck are named from dumps, also when any
/// one dump is missing.
#[test]
#[ignore = "reads real traces"]
fn culprits_and_stuck_devices_are_the_true_ones_also_without_each_dump() {
    let sets = sets();
    for (name, Set { dumps, culprits, stuck }) in sets {
        let paths = |without: Option<i32>| -> Vec<PathBuf> {
            dumps.iter().filter(|(rank, _)| Some(*rank) != without).map(|(_, path)| path.clone()).collect()
        };
        assert_eq!(answer(hang(&paths(None)).expect_code(0)), (json!(culprits), json!(stuck)), "{name}");
        for (rank, _) in &dumps {
            // Nothing is known of the device of a rank without a dump.
            let stuck: Vec<&i32> = stuck.iter().filter(|stuck| *stuck != rank).collect();
            assert_eq!(
                answer(hang(&paths(Some(*rank))).expect_code(0)),
                (json!(culprits), json!(stuck)),
                "{name} without {rank}"
            );
        }
    }
}

/// Invariant (hang): A dump that is cut is a loss, and its rank counts as a rank without a dump.
#[test]
#[ignore = "reads real traces"]
fn a_dump_that_is_cut_is_a_loss_and_its_rank_is_one_without_a_dump() {
    let sets = sets();
    for (name, Set { dumps, culprits, stuck }) in sets {
        let here = scratch(&format!("hang_cut_{name}"));
        for (rank, path) in &dumps {
            let file = here.join(path.file_name().unwrap());
            fs::copy(path, &file).unwrap();
            assert!(*rank >= 0);
        }
        for (at, (rank, path)) in dumps.iter().enumerate() {
            let file = here.join(path.file_name().unwrap());
            let whole = fs::read(path).unwrap();
            // Other places for each rank, the first bytes and the last one among them.
            for place in [at, whole.len() * (at + 1) / (dumps.len() + 1), whole.len() - 1 - at] {
                fs::remove_file(&file).unwrap();
                fs::write(&file, &whole[..place]).unwrap();
                let done = hang(std::slice::from_ref(&here)).expect_code(3);
                assert!(
                    done.stderr.contains(&format!("lost: rank {rank}: dump: ")),
                    "{name} {rank} {place}: {}",
                    done.stderr
                );
                let stuck: Vec<&i32> = stuck.iter().filter(|stuck| *stuck != rank).collect();
                assert_eq!(answer(done), (json!(culprits), json!(stuck)), "{name}: {rank} cut at {place}");
            }
            fs::remove_file(&file).unwrap();
            fs::write(&file, &whole).unwrap();
        }
    }
}

#[test]
#[ignore = "reads real traces"]
fn analyze_names_the_command_that_reads_dumps() {
    let sets = sets();
    for (name, Set { dumps, .. }) in sets {
        let folder = dumps[0].1.parent().unwrap();
        let said = aggregator(&[Path::new("analyze"), folder]).expect_code(1).stderr;
        assert!(said.contains("no trace; `rankscope hang` reads dumps"), "{name}: {said}");
    }
}

#[test]
#[ignore = "reads real traces"]
fn the_chain_of_waits_is_told_with_its_operation_and_line() {
    let folder = data::folder_of_several_communicators("d3_hang3");
    let done = aggregator(&[Path::new("hang"), &folder, Path::new("--json")]).expect_code(0);
    let json: Value = serde_json::from_str(&done.stdout).unwrap();
    assert_eq!(json["waits_for"], json!({"0": [1], "1": [3], "2": [3]}));
    let evidence = &json["evidence"][0];
    assert_eq!((&evidence["fault"], &evidence["waiting_in_all"]), (&json!("host"), &json!(3)));
    let line = evidence["operation"]["source_line"].as_str().unwrap();
    assert!(line.starts_with("torch_3d_gloo.py:"), "{line}");
    let said = aggregator(&[Path::new("hang"), &folder]).expect_code(0).stdout;
    assert!(said.starts_with("Rank 3 holds the job up.\n"), "{said}");
}

/// Invariant (hang): A dump of the Flight Recorder executes nothing.
#[test]
fn a_dump_that_wants_a_class_is_refused() {
    let here = scratch("hang_class");
    let dump = here.join("nccl_trace_rank_0");
    fs::write(&dump, b"\x80\x02}X\x07\0\0\0entriescos\nsystem\nX\x04\0\0\0true\x85Rs.").unwrap();
    let said = aggregator(&[Path::new("hang"), &dump]).expect_code(1).stderr;
    assert!(said.contains("instruction GLOBAL names or calls Python code, which is never executed"), "{said}");
}

/// Of a run whose ranks were stalled, the dumps answer; of one that only has windows of a profiler, the rows do, and it is said.
#[test]
#[ignore = "reads real traces"]
fn a_run_answers_by_the_dumps_of_its_stalled_ranks() {
    let folder = data::folder_of_several_communicators("d3_hang3");
    let run = scratch("hang_of_a_run").join("run");
    write(&Plan { ranks: 9, ..Plan::default() }, &run).unwrap();
    let manifest = fs::read_to_string(run.join(MANIFEST_FILE)).unwrap();
    let mut manifest: Value = serde_json::from_str(&manifest).unwrap();
    manifest["config"][RECORDED_BY] = json!("torch.profiler 2.15");
    fs::remove_file(run.join(MANIFEST_FILE)).unwrap();
    fs::write(run.join(MANIFEST_FILE), manifest.to_string()).unwrap();
    let done = hang(std::slice::from_ref(&run)).expect_code(0);
    assert!(done.stderr.contains("operations outside of windows"), "{}", done.stderr);
    assert_eq!(answer(done), (json!([]), json!([])));

    let stalled = run.join(IN_FLIGHT_DIR);
    fs::create_dir(&stalled).unwrap();
    for rank in 0..8 {
        let name = format!("nccl_trace_rank_{rank}");
        fs::copy(folder.join(&name), stalled.join(&name)).unwrap();
    }
    let done = hang(std::slice::from_ref(&run)).expect_code(0);
    let json: Value = serde_json::from_str(&done.stdout).unwrap();
    assert_eq!(json["ranks_not_read"], json!([8]), "{}", done.said());
    assert_eq!(answer(done), (json!([3]), json!([])));
    let page = run.with_file_name("report.html");
    aggregator(&[Path::new("report"), &run, Path::new("-o"), &page]).expect_code(0);
    let page = fs::read_to_string(page).unwrap();
    assert!(page.contains("<h2 id=\"hang-title\">Ranks that wait</h2>"));
    assert!(page.contains("aria-label=\"Rank 3 holds the job up.\""));
}

#[test]
#[ignore = "reads real traces"]
fn the_waits_are_a_picture() {
    let folder = data::folder_of_several_communicators("d3_hang3");
    let file = scratch("hang_picture").join("waits.svg");
    aggregator(&[Path::new("hang"), &folder, Path::new("--picture"), &file]).expect_code(0);
    let svg = fs::read_to_string(&file).unwrap();
    // Rank 3, for which ranks 1 and 2 wait in two groups, and rank 0, which waits for rank 1.
    assert_eq!(
        (svg.matches("<rect").count(), svg.matches("\"none\" stroke=\"currentColor\"").count()),
        (4, 6),
        "{svg}"
    );
    assert_eq!(
        (svg.matches("#c92a2a").count(), svg.matches("did not call").count()),
        (1, 2),
        "the culprit and its title: {svg}"
    );
    let done = aggregator(&[Path::new("hang"), &folder, Path::new("--picture"), &folder]);
    assert_eq!(done.code, Some(1), "a folder is no picture: {}", done.said());
}
