//! Writes one Perfetto trace of all ranks on global time, for <https://ui.perfetto.dev> and its trace processor.
//!
//! Each rank is a process. Its tracks are its steps, its communicators, its threads, the streams of its devices, and
//! counters for memory and for the kernels that wait on a stream. A collective contains its wait for the last rank and its
//! transfer, which have names, and so colours, of their own. Arrows connect launches with launched work, forward operators
//! with backward operators, and the ranks of one collective in the order of their arrival. A click on a slice shows the
//! shapes, stack and module of an operator, and the launch parameters of a kernel. The process `job` has the critical path of the job and the bus
//! bandwidth of each communicator.
//!
//! The trace is written rank by rank, so memory holds one rank per thread, the collectives and the own work between them,
//! whatever the number of ranks. The process `job` comes last.

mod annotations;
mod lanes;
mod packets;
mod proto;
mod rank;

use std::collections::BTreeMap;
use std::io::Write;

use rustc_hash::FxHashMap;
use trace::{ClockMethod, InstanceRow, JobPathRow, OmissionRow};

pub use self::packets::Counts;
use self::packets::{Annotation, Rank, Sequence, Slice, Track, Value};
use align::aligned::Aligned;
use align::clock::{Clocks, Map};
use measure::own_time::{self, OwnTime};
use model::Error;
use model::in_order::{Sink, in_order};
use model::options::Options;
pub use model::scope::{Scope, prepare};
use model::source::Source;
use model::{Barrier, Instance};

/// The result of an export.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Exported {
    /// Numbers of written slices, arrows and counter values.
    pub counts: Counts,
    /// Bytes written.
    pub bytes: u64,
    /// Time added to global time, because a trace cannot have negative times; otherwise 0.
    pub shift_ns: i64,
    /// Ranks whose clock is not aligned with the others. They are drawn on their own clock.
    pub unaligned: Vec<i32>,
    /// Data that was left out of the input.
    pub omissions: Vec<OmissionRow>,
}

/// The critical path of the job, by the own time of all its ranks.
pub type JobPath<'a> = &'a dyn Fn(&[OwnTime], Vec<Instance>, &Clocks) -> Vec<JobPathRow>;

/// Writes the part of `source` that `options` select, on the clocks of `aligned`. Calls `progress` after each rank.
///
/// # Errors
/// [`Error::Output`]. A rank that cannot be loaded again is an omission.
pub fn export(
    (source, options, aligned): (&dyn Source, &Options, Aligned),
    job_path: JobPath<'_>,
    mut out: impl Write,
    progress: &(dyn Fn(usize, usize) + Sync),
) -> Result<Exported, Error> {
    let Aligned { ranks, instances, clocks, time, starts, comm_names, omissions } = aligned;
    let first_ns = starts.iter().map(|&(rank, start_ns)| clocks.global(rank, false, start_ns)).min().unwrap_or(0);
    let shared = Shared { clocks: &clocks, shift_ns: first_ns.min(0).saturating_neg() };
    let job = Job::of(&instances, comm_names, &shared);
    let mut exported =
        Exported { shift_ns: shared.shift_ns, unaligned: unaligned(&clocks, &ranks), omissions, ..Exported::default() };
    let mut written = 0;
    let mut write = |bytes: Vec<u8>| {
        written += bytes.len() as u64;
        out.write_all(&bytes)
    };
    let make = |rank: &i32, sink: &mut Sink<'_>| -> Result<(Counts, OwnTime, Vec<OmissionRow>), Error> {
        let (mut data, details) = source.load_detailed(*rank)?;
        let scope = prepare(&mut data, options, time.get(rank).copied());
        let counts = rank::write((&data, &details), &scope, &shared, &job, sink);
        Ok((counts, own_time::map_rank(&data, &options.thresholds), data.omissions))
    };
    let mut done = 0;
    let mut parts = Vec::with_capacity(ranks.len());
    in_order(&ranks, make, &mut write, |rank, result| {
        match result {
            Ok((counts, own_time, omissions)) => {
                exported.counts.add(counts);
                parts.push(own_time);
                exported.omissions.extend(omissions);
            }
            Err(error) => exported.omissions.push(OmissionRow::lost("rank", error.to_string()).rank(*rank).amount(1)),
        }
        done += 1;
        progress(done, ranks.len());
    })?;
    let path = job_path(&parts, instances, &clocks);
    let (bytes, counts) = job.write(&path, &shared);
    exported.counts.add(counts);
    write(bytes)?;
    exported.bytes = written;
    out.flush()?;
    Ok(exported)
}

/// Ranks whose clock is not aligned with the reference; none if there is only one rank.
fn unaligned(clocks: &Clocks, ranks: &[i32]) -> Vec<i32> {
    let none = |rank: &&i32| clocks.row(**rank, false).is_none_or(|row| row.method == ClockMethod::None);
    if ranks.len() < 2 {
        Vec::new()
    } else {
        ranks.iter().filter(none).copied().filter(|r| Some(*r) != clocks.reference_rank()).collect()
    }
}

/// Data shared by all ranks.
struct Shared<'a> {
    clocks: &'a Clocks,
    shift_ns: i64,
}

impl Shared<'_> {
    fn time(&self, rank: i32, device: bool, t_ns: i64) -> i64 {
        self.on_trace(self.clocks.global(rank, device, t_ns))
    }

    /// Converts a global time to a time in the trace.
    fn on_trace(&self, global_ns: i64) -> i64 {
        global_ns.saturating_add(self.shift_ns).max(0)
    }

    /// Returns the clocks of a rank, for converting many times.
    fn of_rank(&self, rank: i32) -> RankTimes {
        let map = |device| self.clocks.map(rank, device).into_owned();
        RankTimes { host: map(false), device: map(true), shift_ns: self.shift_ns }
    }
}

/// The maps from the clocks of one rank to the time of the trace.
#[derive(Clone, Debug)]
struct RankTimes {
    host: Map,
    device: Map,
    shift_ns: i64,
}

impl RankTimes {
    fn time(&self, device: bool, t_ns: i64) -> i64 {
        let map = if device { &self.device } else { &self.host };
        map.apply(t_ns).saturating_add(self.shift_ns).max(0)
    }
}

/// The data of a collective that its ranks need.
#[derive(Debug)]
struct JobInstance {
    id: i64,
    /// Last arrival in the time of the trace, and its rank; `None` if ranks are missing or the ranks do not wait for each
    /// other.
    last: Option<(i64, i32)>,
}

impl JobInstance {
    /// The time that a rank which arrived at `start_ns` waited for the last rank.
    fn wait_ns(&self, start_ns: i64) -> Option<i64> {
        self.last.map(|(last_ns, _)| (last_ns - start_ns).max(0))
    }
}

/// A position that no instance has.
const NO_INSTANCE: u32 = u32::MAX;

/// The collectives of the job.
struct Job {
    rows: Vec<InstanceRow>,
    instances: Vec<JobInstance>,
    /// For each collective of a rank, its position in `instances`; `NO_INSTANCE` if it is unmatched.
    of_rank: FxHashMap<i32, Vec<u32>>,
    names: BTreeMap<i64, String>,
}

impl Job {
    fn of(instances: &[Instance], names: BTreeMap<i64, String>, shared: &Shared<'_>) -> Self {
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

    fn instance_of(&self, rank: i32, index: usize) -> Option<&JobInstance> {
        let at = self.of_rank.get(&rank)?.get(index)?;
        self.instances.get(*at as usize)
    }

    /// Writes the process `job`: its critical path, and the bus bandwidth of each communicator from the last arrival to the end,
    /// and 0 between collectives.
    fn write(&self, path: &[JobPathRow], shared: &Shared<'_>) -> (Vec<u8>, Counts) {
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
