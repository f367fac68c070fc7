//! Reads the real traces beside the repository, and compares a summary of each file.

#![expect(clippy::unwrap_used, reason = "tests may, and their helpers too")]

use std::fmt::Write;
use std::path::{Path, PathBuf};

use kineto::{PlanOptions, load, plan};
use trace::rank::{RankData, RankOutline};

fn folders(data: &Path) -> Vec<PathBuf> {
    let mut all: Vec<PathBuf> = std::fs::read_dir(data.join("kineto")).unwrap().map(|e| e.unwrap().path()).collect();
    all.sort();
    all
}

fn describe(rank: &RankData) -> String {
    let RankData { outline, events, memory, devices, flows, .. } = rank;
    let RankOutline { info, collectives, steps, comms, .. } = outline;
    let mut text = format!(
        "    {} rows, {} collectives, steps {:?}, {} memory, {} devices, {} arrows, host {:?}\n",
        events.len(),
        collectives.len(),
        steps.iter().map(|s| s.step).collect::<Vec<_>>(),
        memory.len(),
        devices.len(),
        flows.len(),
        info.host,
    );
    for comm in comms {
        let of: Vec<_> = collectives.iter().filter(|c| c.comm_id == comm.comm_id).collect();
        let mut ops: Vec<&str> = of.iter().map(|c| &*c.op).collect();
        ops.sort_unstable();
        ops.dedup();
        let sized = of.iter().filter(|c| c.bytes.is_some()).count();
        let buckets = of.iter().filter_map(|c| c.bucket()).max().map_or(0, |b| b + 1);
        let (name, size) = (comm.name.as_deref().unwrap_or("-"), comm.size);
        writeln!(text, "    group {name:?} of {size:?}: {} {ops:?}, {sized} with bytes, {buckets} buckets", of.len())
            .unwrap();
    }
    for counter in &rank.counters {
        writeln!(text, "    {}", counter.why.as_deref().unwrap_or_default()).unwrap();
    }
    for o in &rank.omissions {
        writeln!(text, "    left out: {:?} {}: {}", o.amount, o.what, o.why).unwrap();
    }
    text
}

#[test]
#[ignore = "reads real traces"]
fn every_real_file_is_read() {
    let data = fixtures::data::real_traces();
    let mut text = String::new();
    for folder in folders(&data) {
        // One of the folders has traces of several jobs.
        let force = folder.ends_with("odd");
        let plan = plan(std::slice::from_ref(&folder), PlanOptions { force, ..PlanOptions::default() }).unwrap();
        writeln!(text, "{}: world {}", folder.file_name().unwrap().to_string_lossy(), plan.world_size).unwrap();
        for o in &plan.omissions {
            writeln!(text, "  left out: {:?} {}: {}", o.amount, o.what, o.why).unwrap();
        }
        for file in &plan.files {
            writeln!(text, "  {}: rank {}", file.path.file_name().unwrap().to_string_lossy(), file.rank).unwrap();
            text.push_str(&describe(&load(file).unwrap()));
        }
    }
    insta::assert_snapshot!("real_files", text);
}
