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
mod job;
mod lanes;
mod packets;
mod rank;

use std::io::Write;
use std::sync::Arc;

use trace::rank::Launches;
use trace::{ClockMethod, JobPathRow, OmissionRow};

use self::job::{Job, Shared};
pub use self::packets::Counts;
use align::aligned::Aligned;
use align::clock::Clocks;
use measure::graph::{Condensed, RankGraph};
use measure::own_time::{self, OwnTime};
use model::Error;
use model::Instance;
use model::in_order::{Sink, in_order};
use model::options::Options;
pub use model::scope::{Scope, prepare};
use model::source::Source;

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
pub type JobPath<'a> = &'a dyn Fn(Vec<OwnTime>, Vec<Instance>, &Clocks) -> Vec<JobPathRow>;

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
        let own_time = own_time::map_rank(&data, &options.thresholds);
        // An only rank has no path through other ranks.
        let graph = if ranks.len() > 1 { RankGraph::of(&data, &Launches::collect(&data.events)) } else { None };
        let graph = graph.map(|graph| Arc::new(Condensed::of(&graph)));
        Ok((counts, OwnTime { graph, ..own_time }, data.omissions))
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
    let path = job_path(parts, instances, &clocks);
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
