//! One Perfetto trace of all ranks on global time, for <https://ui.perfetto.dev> and its trace processor.
//!
//! A process is a rank. Its lines are its steps, its communicators, its threads, the streams of its devices, and
//! counters: how many kernels wait on a stream, and memory. Arrows lead from launches to what they launched, and
//! through the ranks of one collective in the order of their arrival. A process of its own, `job`, has the bus
//! bandwidth of each communicator.
//!
//! The trace is written rank by rank: memory is that of as many ranks as there are threads, and of the collectives,
//! whatever the number of ranks.

mod lanes;
mod packets;
mod proto;
mod rank;

use std::collections::BTreeMap;
use std::io::Write;

use rustc_hash::FxHashMap;
use trace::{InstanceRow, OmissionRow};

pub use self::packets::Counts;
use self::packets::{Rank, Sequence, Track};
use crate::clock::{Affine, Clocks};
use crate::model::{Barrier, Instance, RankData};
use crate::options::Options;
use crate::ordered::{Sink, in_order};
use crate::outline::{Aligned, align_source};
use crate::select::{Scope, narrow_to_steps, narrow_to_time};
use crate::source::Source;
use crate::steps::{mark_steps, one_step_if_none};
use crate::{Error, intervals::Interval};

/// What became of an export.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Exported {
    /// What was written.
    pub counts: Counts,
    /// Bytes written.
    pub bytes: u64,
    /// Added to global time, because a trace has no times before 0; else 0.
    pub shift_ns: i64,
    /// Ranks whose clock nothing joins to the others': they are drawn on their own clock.
    pub unaligned: Vec<i32>,
    /// What was left out of the input.
    pub omissions: Vec<OmissionRow>,
}

/// Writes the part of `source` that `options` choose. `progress` is called after each rank.
///
/// # Errors
/// As [`analyze`](crate::analyze), and [`Error::Output`].
pub fn export(
    source: &dyn Source,
    options: &Options,
    mut out: impl Write,
    progress: &(dyn Fn(usize, usize) + Sync),
) -> Result<Exported, Error> {
    // Every rank is looked at twice: to be aligned, and to be written.
    let aligned = align_source(source, options, &|done, total| progress(done / 2, total))?;
    let Aligned { ranks, instances, clocks, time, starts, comm_names, omissions } = aligned;
    let first_ns = starts.iter().map(|&(rank, start_ns)| clocks.global(rank, false, start_ns)).min().unwrap_or(0);
    let shared = Shared { clocks: &clocks, shift_ns: first_ns.min(0).saturating_neg() };
    let job = Job::of(&instances, comm_names, &shared);
    drop(instances);
    let mut exported =
        Exported { shift_ns: shared.shift_ns, unaligned: unaligned(&clocks, &ranks), omissions, ..Exported::default() };
    let (bytes, counts) = job.write(&shared);
    exported.counts.add(counts);
    let mut written = 0;
    let mut write = |bytes: Vec<u8>| {
        written += bytes.len() as u64;
        out.write_all(&bytes)
    };
    write(bytes)?;
    let make = |rank: &i32, sink: &mut Sink<'_>| -> Result<(Counts, Vec<OmissionRow>), Error> {
        let mut data = source.load(*rank)?;
        let scope = prepare(&mut data, options, time.get(rank).copied());
        let counts = rank::write(&data, &scope, &shared, &job, sink);
        Ok((counts, data.omissions))
    };
    let mut done = 0;
    in_order(&ranks, make, write, |rank, result| {
        match result {
            Ok((counts, omissions)) => {
                exported.counts.add(counts);
                exported.omissions.extend(omissions);
            }
            Err(error) => exported.omissions.push(OmissionRow {
                rank: Some(*rank),
                what: "rank".into(),
                amount: Some(1),
                why: error.to_string().into(),
                ..OmissionRow::default()
            }),
        }
        done += 1;
        progress((ranks.len() + done) / 2, ranks.len());
    })?;
    out.flush()?;
    exported.bytes = written;
    Ok(exported)
}

/// Makes a loaded rank what its analysis saw, collectives aside: their positions are those that instances name.
pub(in crate::render) fn prepare(data: &mut RankData, options: &Options, time: Option<Interval>) -> Scope {
    if let Some(marker) = &options.step_marker {
        mark_steps(data, marker);
    }
    one_step_if_none(data);
    let scope = Scope::of(data, options, time);
    let RankData { steps, collectives, comms_ids, .. } = data;
    narrow_to_time(steps, collectives, comms_ids, &scope);
    narrow_to_steps(steps, collectives, comms_ids, &scope);
    scope
}

/// Ranks of several that share no clock with the reference.
fn unaligned(clocks: &Clocks, ranks: &[i32]) -> Vec<i32> {
    let none = |rank: &&i32| clocks.row(**rank, false).is_none_or(|row| &*row.method == "none");
    if ranks.len() < 2 {
        Vec::new()
    } else {
        ranks.iter().filter(none).copied().filter(|r| Some(*r) != clocks.reference_rank()).collect()
    }
}

/// What all ranks share.
struct Shared<'a> {
    clocks: &'a Clocks,
    shift_ns: i64,
}

impl Shared<'_> {
    fn time(&self, rank: i32, device: bool, t_ns: i64) -> i64 {
        self.on_trace(self.clocks.global(rank, device, t_ns))
    }

    /// The time in the trace of a global time.
    fn on_trace(&self, global_ns: i64) -> i64 {
        global_ns.saturating_add(self.shift_ns).max(0)
    }

    /// The clocks of a rank, for many times.
    fn of_rank(&self, rank: i32) -> RankTimes {
        RankTimes { host: self.clocks.map(rank, false), device: self.clocks.map(rank, true), shift_ns: self.shift_ns }
    }
}

/// What maps the times of one rank to those of the trace.
#[derive(Clone, Copy, Debug)]
struct RankTimes {
    host: Affine,
    device: Affine,
    shift_ns: i64,
}

impl RankTimes {
    fn time(&self, device: bool, t_ns: i64) -> i64 {
        let map = if device { &self.device } else { &self.host };
        map.apply(t_ns).saturating_add(self.shift_ns).max(0)
    }
}

/// A collective as its ranks need it.
#[derive(Debug)]
struct JobInstance {
    id: i64,
    /// Last arrival in the time of the trace; `None` where ranks are missing or nobody waits for the last.
    last_ns: Option<i64>,
}

impl JobInstance {
    /// How long a rank that began at `start_ns` waited for the last.
    fn wait_ns(&self, start_ns: i64) -> Option<i64> {
        self.last_ns.map(|last| (last - start_ns).max(0))
    }
}

/// Past every position.
const NO_INSTANCE: u32 = u32::MAX;

/// The collectives of the job.
struct Job {
    rows: Vec<InstanceRow>,
    instances: Vec<JobInstance>,
    /// Position in `instances` of each of a rank's collectives; `NO_INSTANCE`: it fits nowhere.
    of_rank: FxHashMap<i32, Vec<u32>>,
    names: BTreeMap<i64, String>,
}

impl Job {
    fn of(instances: &[Instance], names: BTreeMap<i64, String>, shared: &Shared<'_>) -> Self {
        let mut of_rank: FxHashMap<i32, Vec<u32>> = FxHashMap::default();
        let last = |i: &Instance| {
            let waits = i.complete() && i.barrier != Barrier::OneSided;
            let arrivals = i.members.iter().map(|m| shared.time(m.rank, m.device_clock, m.start_ns));
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
            rows: instances.iter().filter_map(|i| crate::instances::instance_row(i, shared.clocks)).collect(),
            instances: instances.iter().map(|i| JobInstance { id: i.id, last_ns: last(i) }).collect(),
            of_rank,
            names,
        }
    }

    fn instance_of(&self, rank: i32, index: usize) -> Option<&JobInstance> {
        let at = self.of_rank.get(&rank)?.get(index)?;
        self.instances.get(*at as usize)
    }

    /// The process `job`: bus bandwidth of each communicator from the last arrival to the end, 0 between collectives.
    fn write(&self, shared: &Shared<'_>) -> (Vec<u8>, Counts) {
        let mut out = Sequence::new(Rank(-1));
        out.process("job");
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
