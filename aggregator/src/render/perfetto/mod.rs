//! One Perfetto trace of all ranks on global time, for <https://ui.perfetto.dev> and its trace processor.
//!
//! A process is a rank. Its lines are its steps, its communicators, its threads, the streams of its devices, and
//! counters: how many kernels wait on a stream, and memory. Arrows lead from launches to what they launched, and
//! through the ranks of one collective in the order of their arrival. A process of its own, `job`, has the bus
//! bandwidth of each communicator.
//!
//! The trace is written rank by rank: memory is that of as many ranks as there are threads, whatever their number.

mod lanes;
mod packets;
mod proto;
mod rank;

use std::collections::BTreeMap;
use std::io::Write;

use rayon::prelude::*;
use rustc_hash::FxHashMap;
use trace::{InstanceRow, OmissionRow};

pub use self::packets::Counts;
use self::packets::{Rank, Sequence, Track};
use crate::clock::Clocks;
use crate::model::{Barrier, Instance, RankData};
use crate::options::Options;
use crate::reduce::{Aligned, align_source};
use crate::select::{narrow, scope};
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
    // Every rank is read twice: to be aligned, and to be written.
    let aligned = align_source(source, options, &|done, total| progress(done / 2, total))?;
    let Aligned { ranks, instances, clocks, time, starts, comm_names, mut omissions } = aligned;
    let first_ns = starts.iter().map(|&(rank, start_ns)| clocks.global(rank, false, start_ns)).min().unwrap_or(0);
    let shared = Shared { clocks: &clocks, shift_ns: first_ns.min(0).saturating_neg() };
    let job = Job::of(&instances, comm_names, &shared);
    let mut exported =
        Exported { shift_ns: shared.shift_ns, unaligned: unaligned(&clocks, &ranks), ..Exported::default() };
    let (bytes, counts) = job.write(&shared);
    out.write_all(&bytes)?;
    exported.bytes += bytes.len() as u64;
    exported.counts.add(counts);
    let mut done = 0;
    for some in ranks.chunks(rayon::current_num_threads().max(1)) {
        let write = |rank: &i32| -> Result<(Vec<u8>, Counts), Error> {
            let mut data = source.load(*rank)?;
            let scope = prepare(&mut data, options, time.get(rank).copied());
            Ok(rank::write(&data, scope.as_ref(), &shared, &job))
        };
        let written: Vec<Result<(Vec<u8>, Counts), Error>> = some.par_iter().with_max_len(1).map(write).collect();
        for (rank, result) in some.iter().zip(written) {
            match result {
                Ok((bytes, counts)) => {
                    out.write_all(&bytes)?;
                    exported.bytes += bytes.len() as u64;
                    exported.counts.add(counts);
                }
                Err(error) => omissions.push(OmissionRow {
                    rank: Some(*rank),
                    what: "rank".into(),
                    amount: Some(1),
                    why: error.to_string().into(),
                    ..OmissionRow::default()
                }),
            }
            done += 1;
            progress((ranks.len() + done) / 2, ranks.len());
        }
    }
    out.flush()?;
    exported.omissions = omissions;
    Ok(exported)
}

/// Makes a loaded rank what its analysis saw, collectives aside: their positions are those that instances name.
pub(in crate::render) fn prepare(
    data: &mut RankData,
    options: &Options,
    time: Option<Interval>,
) -> Option<crate::intervals::IntervalSet> {
    if let Some(marker) = &options.step_marker {
        mark_steps(data, marker);
    }
    one_step_if_none(data);
    let scope = scope(data, options, time);
    if let Some(scope) = &scope {
        narrow(data, scope);
    }
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
        self.clocks.global(rank, device, t_ns).saturating_add(self.shift_ns).max(0)
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

/// The collectives of the job.
struct Job {
    rows: Vec<InstanceRow>,
    instances: Vec<JobInstance>,
    by_member: FxHashMap<(i32, u32), usize>,
    names: BTreeMap<i64, String>,
}

impl Job {
    fn of(instances: &[Instance], names: BTreeMap<i64, String>, shared: &Shared<'_>) -> Self {
        let mut by_member = FxHashMap::default();
        let last = |i: &Instance| {
            let waits = i.complete() && i.barrier != Barrier::OneSided;
            let arrivals = i.members.iter().map(|m| shared.time(m.rank, m.device_clock, m.start_ns));
            arrivals.max().filter(|_| waits)
        };
        for (at, instance) in instances.iter().enumerate() {
            by_member.extend(instance.members.iter().map(|m| ((m.rank, m.index), at)));
        }
        Self {
            rows: instances.iter().filter_map(|i| crate::instances::instance_row(i, shared.clocks)).collect(),
            instances: instances.iter().map(|i| JobInstance { id: i.id, last_ns: last(i) }).collect(),
            by_member,
            names,
        }
    }

    fn instance_of(&self, rank: i32, index: usize) -> Option<&JobInstance> {
        let at = self.by_member.get(&(rank, u32::try_from(index).ok()?))?;
        self.instances.get(*at)
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
        for (comm, at, gbs) in changes {
            let name = self.names.get(&comm).cloned().unwrap_or_else(|| format!("{comm:x}"));
            let track = out.counter(Track::Bandwidth(comm), &format!("bus bandwidth of {name}"), "GB/s");
            out.count(track, at.saturating_add(shared.shift_ns).max(0), gbs);
        }
        out.finish()
    }
}
