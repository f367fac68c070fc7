//! Kineto's JSON, one file a rank: what torch.profiler would have written of a run, for whoever reads that: Perfetto,
//! HTA, the TensorBoard plugin.
//!
//! Times are the rank's own, as Kineto's are. Rows are read from the shards and written one by one: memory is that of a
//! row group, of the rank's collectives and of its arrows, whatever the length of the run.

mod columns;
mod event;
mod rank;
mod text;

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{BufWriter, Write};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};

use flate2::Compression;
use flate2::write::GzEncoder;
use rayon::prelude::*;
use rustc_hash::FxHashMap;
use trace::{OmissionRow, Run, StepRow};

use crate::Error;
use crate::intervals::Interval;
use crate::model::RankData;
use crate::options::Options;
use crate::outline::align_source;
use crate::select::Scope;
use crate::source::{RunSource, Source};
use crate::steps::{mark_steps, one_step_if_none};

pub use self::rank::{CALL, Counts, HOOK, STEP};

/// What became of an export.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Exported {
    /// What was written.
    pub counts: Counts,
    /// Bytes on disk.
    pub bytes: u64,
    /// The files, by rank.
    pub files: Vec<PathBuf>,
    /// What was left out of the input.
    pub omissions: Vec<OmissionRow>,
}

/// What stands for the rank's number in the name of a file.
const RANK: &str = "{rank}";
/// Numbers of JSON are doubles to most readers: beyond this many ns, times count from a base.
const MAX_EXACT_NS: i64 = 1 << 52;
/// Bases are multiples of this, so that all ranks of a run have one.
const BASE_UNIT_NS: i64 = 1_000_000_000_000_000;

/// The file of a rank. `out` is a directory, which gets `rank0.json.gz`, …; or a file's name with `{rank}` in it,
/// which is compressed if it ends in `.gz`.
pub fn path_of(out: &Path, rank: i32) -> PathBuf {
    let text = out.to_string_lossy();
    if text.contains(RANK) {
        text.replace(RANK, &rank.to_string()).into()
    } else {
        out.join(format!("rank{rank}.json.gz"))
    }
}

/// Writes the part of a run that `options` choose. `progress` is called after each rank.
///
/// # Errors
/// As [`analyze`](crate::analyze) where the part is chosen by time; [`Error::Io`].
pub fn export(
    source: &RunSource,
    options: &Options,
    out: &Path,
    progress: &(dyn Fn(usize, usize) + Sync),
) -> Result<Exported, Error> {
    let wanted = |rank: &i32| options.ranks.as_ref().is_none_or(|ranks| ranks.contains(rank));
    let ranks: Vec<i32> = source.ranks().into_iter().filter(wanted).collect();
    if ranks.is_empty() {
        let why = "--ranks chose none of its ranks, or none could be read".to_string();
        return Err(Error::NoRank { path: source.info().path, why });
    }
    let directory = if out.to_string_lossy().contains(RANK) { out.parent().unwrap_or(out) } else { out };
    if !directory.as_os_str().is_empty() {
        std::fs::create_dir_all(directory).map_err(|source| Error::Io { path: directory.into(), source })?;
    }
    let mut omissions = source.problems();
    let mut time = BTreeMap::new();
    if options.selects_by_time() {
        // What --from and --to mean on a rank's clock is known only when all clocks are.
        let aligned = align_source(source, options, &|_, _| ())?;
        omissions = aligned.omissions;
        time = aligned.time;
    }
    let base_ns = base_ns(source.run(), &ranks);
    let done = AtomicUsize::new(0);
    let one = |rank: &i32| {
        let path = path_of(out, *rank);
        let written = write_rank(source, *rank, options, time.get(rank).copied(), base_ns, &path);
        progress(done.fetch_add(1, Ordering::Relaxed) + 1, ranks.len());
        (path, written)
    };
    let written: Vec<_> = ranks.par_iter().with_max_len(1).map(one).collect();
    let mut exported = Exported { omissions, ..Exported::default() };
    for (path, result) in written {
        let (counts, bytes, omissions) = result?;
        exported.counts.add(counts);
        exported.bytes += bytes;
        exported.files.push(path);
        exported.omissions.extend(omissions);
    }
    Ok(exported)
}

/// The time that a trace's times count from: none where doubles hold them as they are.
fn base_ns(run: &Run, ranks: &[i32]) -> i64 {
    let first = ranks.iter().filter_map(|rank| run.rows::<StepRow>(*rank).0.first().map(|step| step.start_ns)).min();
    match first {
        Some(ns) if ns.saturating_abs() > MAX_EXACT_NS => (ns / BASE_UNIT_NS - 1) * BASE_UNIT_NS,
        _ => 0,
    }
}

/// The part of a rank that was asked for.
struct Chosen {
    steps: Vec<StepRow>,
    scope: Scope,
    /// The step of each row by its id, where it is not the one that the row names.
    row_steps: Option<FxHashMap<i64, i32>>,
}

fn chosen(source: &RunSource, rank: i32, options: &Options, time: Option<Interval>) -> Result<Chosen, Error> {
    let data = match &options.step_marker {
        // Ranges of any name may be steps: all rows must be seen.
        Some(marker) => {
            let mut data = source.load(rank)?;
            mark_steps(&mut data, marker);
            one_step_if_none(&mut data);
            data
        }
        // What cannot be read of it is listed by whoever writes it.
        None => RankData { steps: source.run().rows::<StepRow>(rank).0, ..RankData::default() },
    };
    let mut scope = Scope::of(&data, options, time);
    // A run without any step is step 0.
    if data.steps.is_empty() && scope.has_step(0) {
        scope.steps = None;
    }
    let marked = options.step_marker.as_ref().filter(|_| scope.steps.is_some());
    let row_steps = marked.map(|_| data.events.id.iter().copied().zip(data.events.step.iter().copied()).collect());
    Ok(Chosen { steps: data.steps, scope, row_steps })
}

/// Bytes that pass through.
struct Counted<W> {
    out: W,
    bytes: u64,
}

impl<W: Write> Write for Counted<W> {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        let written = self.out.write(bytes)?;
        self.bytes += written as u64;
        Ok(written)
    }

    fn flush(&mut self) -> std::io::Result<()> {
        self.out.flush()
    }
}

/// Writes one rank beside its file first: what was there stays until the new one is whole.
fn write_rank(
    source: &RunSource,
    rank: i32,
    options: &Options,
    time: Option<Interval>,
    base_ns: i64,
    path: &Path,
) -> Result<(Counts, u64, Vec<OmissionRow>), Error> {
    let chosen = chosen(source, rank, options, time)?;
    let mut name = path.as_os_str().to_owned();
    name.push(".part");
    let part = PathBuf::from(name);
    let io = |source| Error::Io { path: path.into(), source };
    let file = Counted { out: File::create(&part).map_err(io)?, bytes: 0 };
    let compressed = path.extension().is_some_and(|extension| extension == "gz");
    let of_rank = rank::Rank {
        run: source.run(),
        rank,
        steps: &chosen.steps,
        scope: &chosen.scope,
        row_steps: chosen.row_steps.as_ref(),
        base_ns,
    };
    let write = || -> Result<(Counts, u64, Vec<OmissionRow>), Error> {
        let (counts, omissions, bytes) = if compressed {
            let mut out = BufWriter::new(GzEncoder::new(file, Compression::fast()));
            let (counts, omissions) = of_rank.write(&mut out)?;
            let encoder = out.into_inner().map_err(|error| io(error.into_error()))?;
            (counts, omissions, encoder.finish().map_err(io)?.bytes)
        } else {
            let mut out = BufWriter::new(file);
            let (counts, omissions) = of_rank.write(&mut out)?;
            (counts, omissions, out.into_inner().map_err(|error| io(error.into_error()))?.bytes)
        };
        std::fs::rename(&part, path).map_err(io)?;
        Ok((counts, bytes, omissions))
    };
    let written = write();
    if written.is_err() {
        // The error matters more than what is left of the attempt.
        let _ = std::fs::remove_file(&part);
    }
    written
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_files() {
        assert_eq!(path_of(Path::new("out"), 3), Path::new("out/rank3.json.gz"));
        assert_eq!(path_of(Path::new("out/r{rank}.json"), 3), Path::new("out/r3.json"));
    }
}
