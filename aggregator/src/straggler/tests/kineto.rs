//! Just enough of Kineto's format to take real traces as oracles.

use std::collections::{BTreeMap, HashMap};
use std::io::Read;
use std::path::{Path, PathBuf};

use serde_json::Value;
use trace::{CollectiveRow, StepRow};

use super::build::{Row, instance, push_row};
use crate::model::{Instance, Kind, Member, RankData, RankInfo};

/// A folder of real traces, where this machine has it: in `$RANKSCOPE_DATA/kineto`, `examples/traces`, or beside the workspace.
pub(super) fn folder(name: &str) -> Option<PathBuf> {
    let workspace = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap();
    let places = [
        std::env::var_os("RANKSCOPE_DATA").map(|data| PathBuf::from(data).join("kineto")),
        Some(workspace.join("examples/traces")),
        workspace.parent().map(|p| p.join("shared/data/kineto")),
    ];
    let found = places.into_iter().flatten().map(|p| p.join(name)).find(|p| p.is_dir());
    if found.is_none() {
        eprintln!("skipped: no traces `{name}` here; set RANKSCOPE_DATA to a folder that holds kineto/");
    }
    found
}

/// All ranks of a directory, and their collectives matched.
pub(super) fn load(folder: &Path) -> (Vec<RankData>, Vec<Instance>) {
    let files = std::fs::read_dir(folder).unwrap().map(|e| e.unwrap().path());
    let mut ranks: Vec<RankData> =
        files.filter(|p| p.extension().is_some_and(|e| e == "gz")).map(|p| rank(&p)).collect();
    ranks.sort_by_key(|r| r.info.rank);
    let instances = match_from_the_end(&ranks);
    (ranks, instances)
}

/// One row of a trace.
struct Slice<'a> {
    kind: Kind,
    name: &'a str,
    thread: i64,
    correlation: Option<i64>,
    from_ns: i64,
    ns: i64,
}

fn rank(path: &Path) -> RankData {
    let mut text = Vec::new();
    flate2::read::GzDecoder::new(std::fs::File::open(path).unwrap()).read_to_end(&mut text).unwrap();
    let json: Value = serde_json::from_slice(&text).unwrap();
    let rank = json["distributedInfo"]["rank"].as_i64().unwrap() as i32;
    let mut slices: Vec<Slice<'_>> =
        json["traceEvents"].as_array().unwrap().iter().filter(|e| e["ph"] == "X").filter_map(slice).collect();
    slices.sort_by_key(|s| (s.from_ns, -s.ns));
    let mut data = RankData { info: RankInfo { rank, ..RankInfo::default() }, ..RankData::default() };
    for s in slices.iter().filter(|s| s.name.starts_with("ProfilerStep#") && s.kind == Kind::UserAnnotation) {
        let step = s.name["ProfilerStep#".len()..].parse().unwrap();
        let (start_ns, end_ns) = (s.from_ns, s.from_ns + s.ns);
        data.steps.push(StepRow { rank, step, phase: "active".into(), start_ns, end_ns, loss: None });
    }
    let launches: HashMap<i64, i64> =
        slices.iter().filter(|s| s.kind == Kind::Runtime).filter_map(|s| Some((s.correlation?, s.from_ns))).collect();
    let on_device = slices.iter().any(|s| s.kind == Kind::Kernel && s.name.starts_with("nccl"));
    for s in &slices {
        let row = Row { kind: s.kind, name: s.name, thread: s.thread, step: 0, from_ns: s.from_ns, ns: s.ns };
        push_row(&mut data, row);
        let communication = ["nccl", "gloo:", "c10d::", "record_param_comms"].iter().any(|p| s.name.starts_with(p));
        *data.events.is_comm.last_mut().unwrap() = communication;
        let is_collective = match on_device {
            true => s.kind == Kind::Kernel && s.name.starts_with("nccl"),
            false => s.name.starts_with("gloo:"),
        };
        if is_collective {
            let asked_ns =
                if on_device { s.correlation.and_then(|c| launches.get(&c)).copied() } else { Some(s.from_ns) };
            let step = data.steps.iter().find(|x| asked_ns.is_some_and(|t| (x.start_ns..x.end_ns).contains(&t)));
            data.collectives.push(CollectiveRow {
                rank,
                op: "allreduce".into(),
                // −1 and not null: a kernel that was launched before the first step must not be counted by when it ran.
                step: Some(step.map_or(-1, |s| s.step)),
                start_ns: Some(s.from_ns),
                end_ns: Some(s.from_ns + s.ns),
                timing_source: if on_device { "cupti" } else { "host" }.into(),
                ..CollectiveRow::default()
            });
        }
    }
    data
}

fn slice(event: &Value) -> Option<Slice<'_>> {
    let ns = |key: &str| Some((event[key].as_f64()? * 1e3).round() as i64);
    let thread = |key: &str| event[key].as_i64().unwrap_or(0);
    Some(Slice {
        kind: Kind::from_category(event["cat"].as_str()?),
        name: event["name"].as_str()?,
        thread: thread("pid") * 1_000_000 + thread("tid"),
        correlation: event["args"]["correlation"].as_i64(),
        from_ns: ns("ts")?,
        ns: ns("dur")?,
    })
}

/// Matches collectives by step and by position from the step's end.
fn match_from_the_end(ranks: &[RankData]) -> Vec<Instance> {
    let mut groups: BTreeMap<(i32, i64), Vec<Member>> = BTreeMap::new();
    for data in ranks {
        let mut behind: HashMap<i32, i64> = HashMap::new();
        for (index, row) in data.collectives.iter().enumerate().rev() {
            let step = row.step.unwrap();
            let behind = behind.entry(step).or_default();
            *behind -= 1;
            groups.entry((step, *behind)).or_default().push(Member {
                rank: data.info.rank,
                index: index as u32,
                start_ns: row.start_ns.unwrap(),
                end_ns: row.end_ns,
                device_clock: &*row.timing_source != "host",
            });
        }
    }
    let matched = groups.into_iter().filter(|((step, _), _)| *step >= 0).enumerate();
    matched.map(|(id, ((step, _), members))| instance(id, step as usize, ranks.len(), members)).collect()
}
