//! Somebody else's plugin of NCCL, which was set up before `rank-agent exec` came: it is told what NCCL would tell it,
//! and the recorder loses nothing by it.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::process::Command;

use trace::{CollectiveRow, Run};

use crate::support::{RANK_AGENT, finish, inject_library, scratch};

const REPLAY: &str = env!("CARGO_BIN_EXE_nccl-replay-under-test");
const OPERATIONS: usize = 50;
/// Type of a collective, and of a group.
const COLL: u64 = 2;
const GROUP: u64 = 1;

fn second_plugin() -> PathBuf {
    let library = inject_library().with_file_name("libstand_in_plugin.so");
    assert!(library.is_file(), "{} is missing", library.display());
    library
}

/// A job under `exec` whose environment named `plugin` already; returns the run and what the plugin wrote down.
fn record(name: &str, version: u8, plugin: &Path, search: Option<&Path>) -> (PathBuf, String, String) {
    let here = scratch(name);
    let (run, told) = (here.join("run"), here.join("told.txt"));
    let mut command = Command::new(RANK_AGENT);
    command.args(["exec", "--quiet", "--nccl-detail", "proxy", "--out"]).arg(&run).args(["--", "sh", "-c"]);
    // What NCCL would load is what the environment of the program says.
    command.arg(format!("exec {REPLAY} $NCCL_PROFILER_PLUGIN sequence {version} {OPERATIONS}"));
    command.env("NCCL_PROFILER_PLUGIN", plugin).env("STAND_IN_PLUGIN", &told);
    command.env("RANKSCOPE_INJECT_LIB", inject_library());
    if let Some(directory) = search {
        command.env("LD_LIBRARY_PATH", directory);
    }
    let done = finish(&mut command).expect_code(0);
    (run, std::fs::read_to_string(told).unwrap_or_default(), done.stderr)
}

/// Invariant (recorder): A NCCL plugin that was configured before receives every event that it asked for.
#[test]
fn a_chained_plugin_receives_every_event_it_asked_for() {
    for version in [3, 4, 5, 6, 7] {
        let (run, told, said) = record(&format!("exec_chain_{version}"), version, &second_plugin(), None);
        assert_eq!(said, "", "v{version}");
        // Two communicators, each with so many collectives, a send and a receive.
        let starts = check_told(version, &told);
        assert_eq!((starts[&COLL], starts[&GROUP]), (2 * OPERATIONS, 2 * OPERATIONS), "v{version}: {starts:?}");
        let (rows, problems) = Run::open(&run).unwrap().rows::<CollectiveRow>(0);
        let done = rows.iter().filter(|row| &*row.state == "done").count();
        let copied = if version >= 6 { 2 } else { 0 };
        assert_eq!((done, problems), (2 * (OPERATIONS + 2) + copied, vec![]), "v{version}");
    }
}

/// Reads what the plugin wrote down: its own handles and contexts only, every event in order, and nothing after its
/// end. Returns how many events of each type it was told, those included that it refused.
fn check_told(version: u8, told: &str) -> BTreeMap<u64, usize> {
    let (mut open, mut ever) = (BTreeSet::new(), BTreeSet::from([0]));
    let (mut contexts, mut starts) = (BTreeSet::new(), BTreeMap::new());
    for line in told.lines() {
        let words: Vec<&str> = line.split(' ').collect();
        let number = |at: usize| words[at].parse::<u64>().unwrap();
        match words[0] {
            "init" => assert!(contexts.insert(number(1)), "v{version}: {line}"),
            "start" => {
                assert!(open.insert(number(1)) && ever.insert(number(1)), "v{version}: {line}");
                assert!(ever.contains(&number(3)), "v{version}: a parent that is not its own: {line}");
                assert!(contexts.contains(&number(4)), "v{version}: {line}");
                *starts.entry(number(2)).or_default() += 1;
            }
            "refuse" => *starts.entry(number(1)).or_default() += 1,
            "state" => assert!(open.contains(&number(1)), "v{version}: not open: {line}"),
            "stop" => assert!(open.remove(&number(1)), "v{version}: not open: {line}"),
            "finalize" => assert!(contexts.remove(&number(1)), "v{version}: {line}"),
            other => panic!("v{version}: {other}"),
        }
    }
    assert!(open.is_empty() && contexts.is_empty(), "v{version}: {open:?} {contexts:?} never ended");
    starts
}

/// `NCCL_PROFILER_PLUGIN=name` means `libnccl-profiler-name.so` to NCCL.
#[test]
fn a_plugin_is_found_by_the_name_that_nccl_uses() {
    let directory = scratch("exec_chain_names");
    std::fs::copy(second_plugin(), directory.join("libnccl-profiler-standin.so")).unwrap();
    let (_, told, said) = record("exec_chain_named", 5, Path::new("standin"), Some(&directory));
    assert_eq!(said, "");
    assert!(told.contains("start "), "{told}");
    let (run, told, said) = record("exec_chain_missing", 5, Path::new("nothere"), Some(&directory));
    assert!(told.is_empty() && said.contains("RANKSCOPE_NCCL_CHAIN=nothere"), "{said}");
    assert!(!Run::open(&run).unwrap().rows::<CollectiveRow>(0).0.is_empty(), "what was asked for is recorded");
}
