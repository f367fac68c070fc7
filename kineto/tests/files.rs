//! Which files of a directory are traces, which ranks they get, and which events of a damaged file are kept.

#![expect(clippy::unwrap_used, reason = "tests may, and their helpers too")]

use std::fmt::Write as _;
use std::io::Write as _;
use std::path::Path;

use fixtures::small_trace::{EVENTS, document, gzip};
use kineto::{PlanOptions, RankSource, load, plan};

/// Invariant (input): Every event of a trace before a cut is read.
///
/// A file that is cut after any byte, plain or compressed, keeps exactly the events that end before the cut.
#[test]
fn a_file_cut_anywhere_keeps_everything_before_the_cut() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("rank0.json");
    let rows = |bytes: &[u8]| {
        std::fs::write(&path, bytes).unwrap();
        plan(std::slice::from_ref(&path), PlanOptions::default())
            .map_or(0, |plan| load(&plan.files[0]).unwrap().events.len())
    };
    let text = document();
    let ends: Vec<usize> = EVENTS.iter().map(|event| text.find(event).unwrap() + event.len()).collect();
    for cut in 0..=text.len() {
        let whole = ends.iter().filter(|end| **end <= cut).count();
        assert_eq!(rows(&text.as_bytes()[..cut]), whole, "cut after {cut} bytes");
    }
    let packed = gzip(text.as_bytes());
    for cut in 0..=packed.len() {
        let mut oracle = flate2::write::GzDecoder::new(Vec::new());
        oracle.write_all(&packed[..cut]).unwrap();
        // A stream that ends early is an error, but the bytes before its end are there.
        let _ = oracle.try_finish();
        let text_bytes = oracle.get_ref().len();
        let whole = ends.iter().filter(|end| **end <= text_bytes).count();
        assert_eq!(rows(&packed[..cut]), whole, "compressed, cut after {cut} bytes: {text_bytes} bytes of text");
    }
}

/// The plan of files: world size, files by rank, and omissions.
fn planned(files: &[(&str, &str)]) -> (i32, Vec<(i32, String, RankSource)>, Vec<String>) {
    let dir = tempfile::tempdir().unwrap();
    for (name, text) in files {
        std::fs::write(dir.path().join(name), text).unwrap();
    }
    let plan = plan(&[dir.path().to_path_buf()], PlanOptions::default()).unwrap();
    let name = |path: &Path| path.file_name().unwrap().to_string_lossy().into_owned();
    let ranks = plan.files.iter().map(|f| (f.rank, name(&f.path), f.rank_source)).collect();
    (plan.world_size, ranks, plan.omissions.iter().map(|o| format!("{}: {}", o.what, o.why)).collect())
}

#[test]
fn a_number_in_a_name_is_a_rank_only_where_it_can_be() {
    let nameless = document().replace("distributedInfo", "somethingElse");
    let check = |names: &[&str], text: &str, expected: &[(i32, RankSource)]| {
        let files: Vec<(&str, &str)> = names.iter().map(|name| (*name, text)).collect();
        let (_, ranks, omissions) = planned(&files);
        let found: Vec<(i32, RankSource)> = ranks.iter().map(|(rank, _, source)| (*rank, *source)).collect();
        assert_eq!(found, expected, "{names:?} {omissions:?}");
    };
    let (by_name, by_order) = (RankSource::FileName, RankSource::Order);
    // A time is not a rank.
    let times = ["worker_0.pt.trace.json", "worker_1696341258.pt.trace.json"];
    check(&times, &nameless, &[(0, by_name), (1, by_order)]);
    // A pod with four devices: the number is the host's, whether or not the events have the process ids of the names.
    let pod = [
        "worker-0_4000.1696341258110.pt.trace.json",
        "worker-0_4001.1696341258111.pt.trace.json",
        "worker-0_4002.1696341258112.pt.trace.json",
        "worker-0_4003.1696341258113.pt.trace.json",
    ];
    check(&pod, &nameless, &[(0, by_order), (1, by_order), (2, by_order), (3, by_order)]);
    check(&pod[2..3], &nameless.replace("\"pid\": 9", "\"pid\": 4002"), &[(0, by_order)]);
    let pods = [pod[0], pod[1], "worker-7_4000.1696341258113.pt.trace.json"];
    check(&pods, &nameless, &[(0, by_order), (1, by_order), (2, by_order)]);
    // A name with the word `rank` has a rank.
    let ranks = ["rank_3.1696341258110.pt.trace.json", "rank5.1696341258110.pt.trace.json.gz", "trace_rank_07.json"];
    check(&ranks, &nameless.replace("\"pid\": 0", "\"pid\": 3"), &[(3, by_name), (5, by_name), (7, by_name)]);
    check(&["worker-2_4000.1696341258110.pt.trace.json"], &nameless, &[(2, by_name)]);
}

#[test]
fn a_world_of_any_size_takes_no_memory() {
    let world = |rank: &str, world: &str| {
        document()
            .replace("\"rank\": 0", &format!("\"rank\": {rank}"))
            .replace("\"world_size\": 1", &format!("\"world_size\": {world}"))
    };
    let (size, ranks, omissions) = planned(&[
        ("a.json", &world("0", "100000000")),
        ("b.json", &world("2147483647", "2147483647")),
        ("c.json", &world("1", "2")),
    ]);
    assert_eq!((size, ranks.len()), (3, 3));
    assert_eq!(omissions.iter().filter(|o| o.contains("is impossible (a job has at most")).count(), 3, "{omissions:?}");
}

/// A directory with other files in it: the plan lists all that it leaves out.
#[test]
fn a_directory_with_other_files_in_it() {
    let rank = |rank: &str, world: u32| {
        document()
            .replace("\"rank\": 0", &format!("\"rank\": {rank}"))
            .replace("\"world_size\": 1", &format!("\"world_size\": {world}"))
    };
    let no_info = document().replace("distributedInfo", "somethingElse");
    let behind = no_info.replace("\"traceName\": \"t\"", "\"distributedInfo\": {\"rank\": 3, \"world_size\": 5}");
    let files: [(&str, Vec<u8>); 12] = [
        ("a.json", rank("0", 5).into_bytes()),
        ("b.json.gz", gzip(rank("1", 5).as_bytes())),
        ("again.json", [rank("1", 5).as_bytes(), b"      "].concat()),
        ("other_job.json", rank("2", 7).into_bytes()),
        ("trace_rank_2.json", no_info.clone().into_bytes()),
        ("on_demand.json", behind.into_bytes()),
        ("nameless.json", no_info.into_bytes()),
        ("config.json", b"{\"lr\": 0.1}".to_vec()),
        ("notes.txt", b"hello".to_vec()),
        ("empty.json", Vec::new()),
        ("report.nsys-rep", b"binary".to_vec()),
        (".hidden", b"x".to_vec()),
    ];
    let dir = tempfile::tempdir().unwrap();
    std::fs::create_dir(dir.path().join("older")).unwrap();
    for (name, bytes) in files {
        std::fs::write(dir.path().join(name), bytes).unwrap();
    }
    let paths = [dir.path().to_path_buf()];
    let refused = plan(&paths, PlanOptions::default()).unwrap_err().to_string();
    assert!(refused.contains("2 different jobs") && refused.contains("other_job.json"), "{refused}");
    let plan = plan(&paths, PlanOptions { force: true, ..PlanOptions::default() }).unwrap();
    let mut text = format!("world {}\n", plan.world_size);
    for file in &plan.files {
        let name = file.path.file_name().unwrap().to_string_lossy();
        writeln!(text, "rank {} {name} by {:?}", file.rank, file.rank_source).unwrap();
    }
    for o in &plan.omissions {
        writeln!(text, "left out: {} {}: {}", o.what, o.file.as_deref().unwrap_or("-"), o.why).unwrap();
    }
    insta::assert_snapshot!("directory", text);
}

/// Files without events change nothing of the ranks beside them, nor do zeros before the numbers in names.
#[test]
fn files_that_are_no_traces_change_no_rank() {
    const OTHERS: [(&str, &str); 12] = [
        ("a_train.log", "[2024-06-11 10:00:00] INFO begin\n"),
        ("host.log", "[rank0]: step 1\n"),
        ("metrics.json", r#"[{"step": 1, "loss": 0.5}]"#),
        ("server.json", r#"[{"id": 1, "model_name": "m", "timestamps": []}]"#),
        ("overrides.yaml", "[]\n"),
        ("empty_list.json", "[]"),
        ("pyproject.toml", "[tool.black]\nline-length = 100\n"),
        ("setup.ini", "[section]\nkey = 1\n"),
        ("Notes.md", "# Notes\n"),
        ("results.json", r#"{"tables": []}"#),
        ("list.json", "[[1, 2], [3]]"),
        ("words.json", r#"["ph", "ts"]"#),
    ];
    let text = document().replace("distributedInfo", "somethingElse");
    let plan = |name: &dyn Fn(usize) -> String, others: &[(&str, &str)]| {
        let names: Vec<String> = (0..12).map(name).collect();
        let traces = names.iter().map(|name| (name.as_str(), text.as_str()));
        planned(&traces.chain(others.iter().copied()).collect::<Vec<_>>())
    };
    for prefix in ["trace_", "7z_"] {
        let plain = |rank: usize| format!("{prefix}{rank}.json");
        let (world_size, alone, _) = plan(&plain, &[]);
        let expected: Vec<_> = (0..12).map(|rank| (rank as i32, plain(rank), RankSource::FileName)).collect();
        assert_eq!((world_size, &alone), (12, &expected));
        let (world_size, beside, said) = plan(&plain, &OTHERS);
        assert_eq!((world_size, &beside), (12, &expected), "{said:?}");
        assert!(said.iter().any(|said| said.starts_with("files without traces: Notes.md, ")), "{said:?}");
        let padded = |rank: usize| format!("{prefix}{rank:03}.json");
        let ranks: Vec<String> = plan(&padded, &[]).1.into_iter().map(|(_, name, _)| name).collect();
        assert_eq!(ranks, (0..12).map(padded).collect::<Vec<_>>());
    }
}

/// The rows of a replica are those that it has alone, with its ranks moved by the ranks before it.
#[test]
fn a_replica_has_the_rows_that_it_has_alone() {
    let text = |rank: i32, pid: i32| {
        format!(
            r#"{{"distributedInfo": {{"rank": {rank}, "world_size": 2, "pg_config": [{{"pg_name": "0", "ranks": [0, 1]}}]}}, "traceEvents": [
            {{"ph": "X", "cat": "cpu_op", "name": "aten::mm", "pid": {pid}, "tid": {pid}, "ts": 1.5, "dur": 2}},
            {{"ph": "X", "cat": "kernel", "name": "ncclDevKernel_SendRecv(x)", "pid": 0, "tid": 7, "ts": 5, "dur": 9, "args": {{
              "device": 0, "stream": 7, "correlation": 1, "Collective name": "send", "Process Group Name": "0", "Group size": 2,
              "Process Group Ranks": "[0, 1]", "Dst Rank": {other}}}}}]}}"#,
            other = 1 - rank
        )
    };
    let dir = tempfile::tempdir().unwrap();
    for (name, rank, pid) in [("a/0.json", 0, 11), ("a/1.json", 1, 12), ("b/0.json", 0, 21), ("b/1.json", 1, 22)] {
        std::fs::create_dir_all(dir.path().join(name).parent().unwrap()).unwrap();
        std::fs::write(dir.path().join(name), text(rank, pid)).unwrap();
    }
    let loaded = |below: &str| -> Vec<_> {
        let plan = plan(&[dir.path().join(below)], PlanOptions::default()).unwrap();
        plan.files.iter().map(|file| load(file).unwrap()).collect()
    };
    let (both, alone) = (loaded(""), [loaded("a"), loaded("b")].concat());
    assert_eq!(both.len(), 4);
    for (at, (joined, alone)) in both.iter().zip(&alone).enumerate() {
        let first_rank = 2 * (at as i32 / 2);
        assert_eq!((joined.outline.info.rank, joined.outline.info.world_size), (at as i32, Some(4)));
        assert_eq!((&joined.events, &joined.names), (&alone.events, &alone.names));
        let moved =
            |ranks: &Option<Vec<i32>>| ranks.as_ref().map(|ranks| ranks.iter().map(|r| r + first_rank).collect());
        assert_eq!(joined.outline.comms[0].ranks, moved(&alone.outline.comms[0].ranks));
        let peer = |data: &trace::rank::RankData| data.outline.collectives[0].peer().unwrap();
        assert_eq!(peer(joined), peer(alone) + first_rank);
    }
    assert_ne!(both[0].outline.comms[0].comm_id, both[2].outline.comms[0].comm_id);
    assert_eq!(both[2].outline.comms[0].comm_id, both[3].outline.comms[0].comm_id);
}
