//! What the ranks of a job share: the time of the trace and the collectives. The process `job` shows both.

use std::collections::BTreeMap;

use rustc_hash::FxHashMap;
use trace::{InstanceRow, JobPathRow};

use crate::perfetto::packets::{Annotation, Counts, Rank, Sequence, Slice, Track, Value};
use align::clock::{Clocks, Map};
use model::{Barrier, Instance};

/// Data shared by all ranks.
pub(super) struct Shared<'a> {
    pub(super) clocks: &'a Clocks,
    pub(super) shift_ns: i64,
}

impl Shared<'_> {
    pub(super) fn time(&self, rank: i32, device: bool, t_ns: i64) -> i64 {
        self.on_trace(self.clocks.global(rank, device, t_ns))
    }

    /// Converts a global time to a time in the trace.
    pub(super) fn on_trace(&self, global_ns: i64) -> i64 {
        global_ns.saturating_add(self.shift_ns).max(0)
    }

    /// Returns the clocks of a rank, for converting many times.
    pub(super) fn of_rank(&self, rank: i32) -> RankTimes {
        let map = |device| self.clocks.map(rank, device).into_owned();
        RankTimes { host: map(false), device: map(true), shift_ns: self.shift_ns }
    }
}

/// The maps from the clocks of one rank to the time of the trace.
#[derive(Clone, Debug)]
pub(super) struct RankTimes {
    host: Map,
    device: Map,
    pub(super) shift_ns: i64,
}

impl RankTimes {
    pub(super) fn time(&self, device: bool, t_ns: i64) -> i64 {
        let map = if device { &self.device } else { &self.host };
        map.apply(t_ns).saturating_add(self.shift_ns).max(0)
    }
}

/// The data of a collective that its ranks need.
#[derive(Debug)]
pub(super) struct JobInstance {
    pub(super) id: i64,
    /// Last arrival in the time of the trace, and its rank; `None` if ranks are missing or the ranks do not wait for each
    /// other.
    pub(super) last: Option<(i64, i32)>,
}

impl JobInstance {
    /// The time that a rank which arrived at `start_ns` waited for the last rank.
    pub(super) fn wait_ns(&self, start_ns: i64) -> Option<i64> {
        self.last.map(|(last_ns, _)| (last_ns - start_ns).max(0))
    }
}

/// A position that no instance has.
const NO_INSTANCE: u32 = u32::MAX;

/// The collectives of the job.
pub(super) struct Job {
    rows: Vec<InstanceRow>,
    instances: Vec<JobInstance>,
    /// For each collective of a rank, its position in `instances`; `NO_INSTANCE` if it is unmatched.
    of_rank: FxHashMap<i32, Vec<u32>>,
    names: BTreeMap<i64, String>,
}

impl Job {
    pub(super) fn of(instances: &[Instance], names: BTreeMap<i64, String>, shared: &Shared<'_>) -> Self {
        let mut of_rank: FxHashMap<i32, Vec<u32>> = FxHashMap::default();
        let last = |i: &Instance| {
            let waits = i.complete() && i.barrier != Barrier::OneSided;
            let arrivals = i.members.iter().map(|m| (shared.time(m.rank, m.device_clock, m.start_ns), m.rank));
            arrivals.max().filter(|_| waits)
        };
        for (at, instance) in instances.iter().enumerate() {
            for member in &instance.members {
                let (places, index) = (of_rank.entry(member.rank).or_default(), member.index as usize);
                if places.len() <= index {
                    places.resize(index + 1, NO_INSTANCE);
                }
                places[index] = u32::try_from(at).unwrap_or(NO_INSTANCE);
            }
        }
        Self {
            rows: instances.iter().filter_map(|i| align::collective_cost::instance_row(i, shared.clocks)).collect(),
            instances: instances.iter().map(|i| JobInstance { id: i.id, last: last(i) }).collect(),
            of_rank,
            names,
        }
    }

    pub(super) fn instance_of(&self, rank: i32, index: usize) -> Option<&JobInstance> {
        let at = self.of_rank.get(&rank)?.get(index)?;
        self.instances.get(*at as usize)
    }

    /// Writes the process `job`: its critical path, and the bus bandwidth of each communicator from the last arrival to the end,
    /// and 0 between collectives.
    pub(super) fn write(&self, path: &[JobPathRow], shared: &Shared<'_>) -> (Vec<u8>, Counts) {
        let mut out = Sequence::new(Rank(-1));
        out.process("job");
        critical_path(&mut out, path, shared);
        let mut changes: Vec<(i64, i64, f64)> = Vec::new();
        for row in &self.rows {
            if let Some(busbw_gbs) = row.busbw_gbs {
                changes.push((row.comm_id, row.last_start_ns, busbw_gbs));
                changes.push((row.comm_id, row.end_ns, 0.0));
            }
        }
        changes.sort_by(|a, b| (a.0, a.1).cmp(&(b.0, b.1)).then(a.2.total_cmp(&b.2)));
        for of_comm in changes.chunk_by(|a, b| a.0 == b.0) {
            let comm = of_comm[0].0;
            let name = self.names.get(&comm).cloned().unwrap_or_else(|| format!("{comm:x}"));
            let track = out.counter(Track::Bandwidth(comm), &format!("bus bandwidth of {name}"), "GB/s");
            for &(_, at, gbs) in of_comm {
                out.count(track, shared.on_trace(at), gbs);
            }
        }
        out.finish()
    }
}

/// Writes the critical path of the job as one track: the ranks that work, and the transfers between them.
fn critical_path(out: &mut Sequence, path: &[JobPathRow], shared: &Shared<'_>) {
    for row in path {
        let track = out.track(Track::CriticalPath, "critical path");
        let (category, name) = match (&row.op, row.unexplained.is_some()) {
            (Some(op), false) => ("transfer", format!("{op} of rank {}", row.rank)),
            (Some(op), true) => ("unexplained", format!("{op} of rank {}, not explained", row.rank)),
            (None, _) => ("work", format!("rank {}", row.rank)),
        };
        let annotations = [
            (Annotation::Step, Some(Value::Number(i64::from(row.step)))),
            (Annotation::Instance, row.instance.map(Value::Number)),
        ];
        let (category, name) = (out.category(category), out.name(&name));
        let at_ns = shared.on_trace(row.ts_ns);
        out.begin(&Slice { track, at_ns, category, name, annotations: &annotations, flows: &[] });
        out.end(track, shared.on_trace(row.ts_ns + row.dur_ns));
        out.counts.critical_path += 1;
    }
}
