//! The reader as a whole: cut, damaged and odd files, and agreement with serde_json.

use std::path::PathBuf;

use crate::kineto::event::Wanted;
use crate::kineto::load::rank_from_stream;
use crate::kineto::source::Source;
use crate::kineto::stream::read_stream;
use crate::kineto::{RankSource, TraceFile};
use crate::model::RankData;

/// A rank from the text of a file, read in blocks of `block_bytes`.
pub(crate) fn rank_from_bytes(bytes: Vec<u8>, block_bytes: usize) -> RankData {
    let file = TraceFile {
        path: PathBuf::from("test.json"),
        rank: 0,
        rank_source: RankSource::Order,
        world_size: None,
        size_bytes: bytes.len() as u64,
    };
    rank_from_stream(read_stream(Source::from_bytes(bytes), Wanted::default(), block_bytes), &file)
}

/// A rank from the text of a file.
pub(crate) fn rank_from_text(text: &str) -> RankData {
    rank_from_bytes(text.as_bytes().to_vec(), 1 << 16)
}

/// A rank from events, without their list's brackets.
pub(crate) fn rank_from_events(events: &str) -> RankData {
    rank_from_text(&format!("{{\"traceEvents\": [{events}]}}"))
}

#[test]
fn dump_real() {
    let root = std::env::var("KINETO_DATA").unwrap();
    let mut dirs: Vec<_> = std::fs::read_dir(root).unwrap().map(|e| e.unwrap().path()).collect();
    dirs.sort();
    for dir in dirs {
        let plan = crate::kineto::plan(&[dir.clone()]);
        let plan = match plan {
            Ok(p) => p,
            Err(e) => {
                println!("{e}");
                continue;
            }
        };
        println!("## {} world {} files {}", dir.display(), plan.world_size, plan.files.len());
        for o in &plan.omissions {
            println!("   OM {:?} {:?} {} {:?} {}", o.file, o.rank, o.what, o.amount, o.why);
        }
        for f in &plan.files {
            let d = crate::kineto::load(f).unwrap();
            println!(
                "  {:?} rank {} {:?} ev {} coll {} steps {:?} mem {} flows {} dev {} comms {:?}",
                f.path.file_name().unwrap(),
                d.info.rank,
                d.info,
                d.events.len(),
                d.collectives.len(),
                d.steps.iter().map(|s| s.step).collect::<Vec<_>>(),
                d.memory.len(),
                d.flows.len(),
                d.devices.len(),
                d.comms.iter().map(|c| (c.name.clone(), c.size, c.comm_id)).collect::<Vec<_>>()
            );
            for o in &d.omissions {
                println!("     OM {:?} {:?} {} {:?} {}", o.file, o.rank, o.what, o.amount, o.why);
            }
            println!("     {:?}", d.counters[0].why);
            for c in d.collectives.iter().take(if d.info.rank < 1 || d.info.rank == 2 { 8 } else { 0 }) {
                println!(
                    "     {} {:?} cs {:?} seq {:?} {:?} n{:?} b{:?} step {:?} bk {:?} rdy {:?} enq {:?} st {:?} dur {:?} {:?} {:?} {:?}",
                    c.op,
                    c.comm_name,
                    c.comm_size,
                    c.seq,
                    c.dtype,
                    c.count,
                    c.bytes,
                    c.step,
                    c.bucket,
                    c.ready_ns.map(|t| t - c.start_ns.unwrap()),
                    c.enqueue_ns.map(|t| t - c.start_ns.unwrap()),
                    c.start_ns,
                    c.end_ns.map(|e| e - c.start_ns.unwrap()),
                    c.stream_id,
                    c.algo,
                    c.proto
                );
            }
        }
    }
}
