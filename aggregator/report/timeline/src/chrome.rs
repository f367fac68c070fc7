//! Writes a run as Kineto's JSON, one file per rank, as torch.profiler would have written it. Perfetto, HTA and the
//! TensorBoard plugin read these files.
//!
//! Times are in the rank's own clock, as in Kineto's traces. Rows are read from the shards and written one by one, so
//! memory is bounded by a row group, the rank's collectives and its arrows, whatever the length of the run.

use std::collections::BTreeMap;
use std::io::{BufWriter, Write};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};

use flate2::Compression;
use flate2::write::GzEncoder;
use kineto::write::{Selection, TraceWriter, is_exported};
use rayon::prelude::*;
use rustc_hash::FxHashMap;
use trace::files::{replace_files, write_output};
use trace::{OmissionRow, StepRow};

use align::aligned::Aligned;
use formats::run_source::RunSource;
use model::Error;
use model::intervals::Interval;
use model::options::Options;
use model::scope::Scope;
use model::source::{Source, no_rank};
use model::steps::{mark_steps, one_step_if_none};
use model::{RankData, RankOutline};

pub use kineto::write::{Counts, HOOK};

/// The result of an export.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Exported {
    /// Numbers of written rows and arrows.
    pub counts: Counts,
    /// Bytes on disk.
    pub bytes: u64,
    /// The written files, by rank.
    pub files: Vec<PathBuf>,
    /// Data that was left out of the input.
    pub omissions: Vec<OmissionRow>,
}

/// The placeholder for the rank's number in the name of a file.
pub const RANK: &str = "{rank}";
/// Times beyond this count from a base, because most readers of JSON parse numbers as doubles.
const MAX_EXACT_NS: i64 = 1 << 52;
/// Bases are multiples of this, so that all ranks of a run have the same base.
const BASE_UNIT_NS: i64 = 1_000_000_000_000_000;

/// Whether the name is that of a file with JSON, compressed or not.
pub fn is_json_name(path: &Path) -> bool {
    let name = path.to_string_lossy().to_lowercase();
    name.ends_with(".json") || name.ends_with(".json.gz")
}

/// Returns the file of a rank. `out` is a directory for `rank0.json.gz`, …, or the name of a JSON file, in which `{rank}`
/// stands for the rank's number. A file is compressed if it ends in `.gz`.
pub fn path_of(out: &Path, rank: i32) -> PathBuf {
    let text = out.to_string_lossy();
    if text.contains(RANK) {
        text.replace(RANK, &rank.to_string()).into()
    } else if is_json_name(out) {
        out.into()
    } else {
        out.join(format!("rank{rank}.json.gz"))
    }
}

/// Refuses one file for several ranks, and directories of their own.
fn check_name(out: &Path, ranks: &[i32]) -> Result<(), Error> {
    let text = out.display().to_string();
    if out.parent().is_some_and(|directory| directory.to_string_lossy().contains(RANK)) {
        let why = format!("put {RANK} into the name of the file: all files are written into one directory");
        return Err(Error::Option { option: "out", value: text, why });
    }
    if ranks.len() < 2 || text.contains(RANK) || !is_json_name(out) {
        return Ok(());
    }
    let (stem, ending) = text.rfind(".json").map_or((&*text, ""), |at| text.split_at(at));
    let why = format!(
        "{} ranks are {} files: put {RANK} into the name, as in {stem}-{RANK}{ending}, or name a directory, or choose one \
         rank with --ranks",
        ranks.len(),
        ranks.len()
    );
    Err(Error::Option { option: "out", value: text, why })
}

/// Writes the part of a run that `options` select. Calls `progress` after each rank. `aligned` is needed for a selection that does not
/// take whole ranks: it has the span of `--from` and `--to` on each rank's clock.
///
/// # Errors
/// [`Error::NoRank`] and [`Error::Io`].
pub fn export(
    source: &RunSource,
    options: &Options,
    aligned: Option<Aligned>,
    out: &Path,
    progress: &(dyn Fn(usize, usize) + Sync),
) -> Result<Exported, Error> {
    let wanted = |rank: &i32| options.ranks.as_ref().is_none_or(|ranks| ranks.contains(rank));
    let ranks: Vec<i32> = source.ranks().into_iter().filter(wanted).collect();
    if ranks.is_empty() {
        return Err(no_rank(source, options.ranks.as_ref()));
    }
    check_name(out, &ranks)?;
    let mut omissions = source.problems();
    let mut time = BTreeMap::new();
    if let Some(aligned) = aligned {
        omissions = aligned.omissions;
        time = aligned.time;
    }
    let is_file = out.to_string_lossy().contains(RANK) || is_json_name(out);
    let directory = if is_file { out.parent().unwrap_or(out) } else { out };
    let directory = if directory.as_os_str().is_empty() { Path::new(".") } else { directory };
    std::fs::create_dir_all(directory).map_err(|source| Error::Io { path: directory.into(), source })?;
    let paths: Vec<PathBuf> = ranks.iter().map(|rank| path_of(out, *rank)).collect();
    let one_file = is_json_name(out) && !out.to_string_lossy().contains(RANK);
    if let Some(path) = paths.iter().find(|path| !one_file && is_foreign(path)).cloned() {
        let why = "it exists, and rankscope did not write it".into();
        return Err(trace::Error::Occupied { path, why }.into());
    }
    let base_ns = base_ns(source, &ranks);
    let done = AtomicUsize::new(0);
    let write_one = |rank: i32, path: &Path| {
        let written = write_rank(source, rank, options, time.get(&rank).copied(), base_ns, path);
        progress(done.fetch_add(1, Ordering::Relaxed) + 1, ranks.len());
        written
    };
    let written: Vec<Written> = match (ranks.as_slice(), paths.as_slice()) {
        ([rank], [path]) => vec![write_one(*rank, path)?],
        // The files of all ranks appear together, so that an error leaves no files of two exports side by side.
        _ => replace_files(directory, |fresh| {
            let write = |(rank, path): (&i32, &PathBuf)| {
                let inside = fresh.join(path.file_name().unwrap_or_default());
                write_one(*rank, &inside).map_err(|error| error.moved(fresh, directory))
            };
            ranks.par_iter().zip(&paths).with_max_len(1).map(write).collect::<Result<_, _>>()
        })?,
    };
    let mut exported = Exported { omissions, files: paths, ..Exported::default() };
    for (rank, (counts, bytes, omissions)) in ranks.iter().zip(written) {
        exported.counts.add(counts);
        exported.bytes += bytes;
        let is_listed = |row: &OmissionRow| omissions.iter().any(|o| (o.rank, &o.what) == (row.rank, &row.what));
        exported.omissions.extend(source.losses(*rank).into_iter().filter(|row| !is_listed(row)));
        exported.omissions.extend(omissions);
    }
    Ok(exported)
}

/// The base from which the times of a trace count; 0 if doubles represent the times exactly.
fn base_ns(source: &RunSource, ranks: &[i32]) -> i64 {
    let first = ranks.iter().filter_map(|rank| source.rows::<StepRow>(*rank).first().map(|step| step.start_ns)).min();
    match first {
        Some(ns) if ns.saturating_abs() > MAX_EXACT_NS => (ns / BASE_UNIT_NS - 1) * BASE_UNIT_NS,
        _ => 0,
    }
}

/// The selected part of a rank.
struct Chosen {
    steps: Vec<StepRow>,
    scope: Scope,
    /// The step of each row by its id, if `--step-marker` changes the recorded steps.
    row_steps: Option<FxHashMap<i64, i32>>,
}

impl Selection for Chosen {
    fn keeps_row(&self, id: i64, ts_ns: i64, step: Option<i32>) -> bool {
        let in_step = || self.row_steps.as_ref().map_or(step, |steps| steps.get(&id).copied());
        let chosen = self.scope.steps.is_none() || in_step().is_some_and(|step| self.scope.has_step(step));
        chosen && self.scope.has_time(ts_ns)
    }

    fn keeps_step(&self, step: &StepRow) -> bool {
        self.scope.has_step(step.step) && self.scope.has_time(step.start_ns)
    }

    fn keeps_host_time(&self, t_ns: i64) -> bool {
        self.scope.keeps_host_time(&self.steps, t_ns)
    }
}

fn chosen(source: &RunSource, rank: i32, options: &Options, time: Option<Interval>) -> Result<Chosen, Error> {
    let data = match &options.step_marker {
        // Any range may match the marker, so all rows must be loaded.
        Some(marker) => {
            let mut data = source.load(rank)?;
            source.list_later(rank, std::mem::take(&mut data.omissions));
            mark_steps(&mut data, marker);
            one_step_if_none(&mut data);
            data
        }
        None => {
            let steps = source.rows::<StepRow>(rank);
            RankData { outline: RankOutline { steps, ..RankOutline::default() }, ..RankData::default() }
        }
    };
    let mut scope = Scope::of(&data, options, time);
    // A run without steps counts as step 0.
    if data.outline.steps.is_empty() && scope.has_step(0) {
        scope.steps = None;
    }
    let marked = options.step_marker.as_ref().filter(|_| scope.steps.is_some());
    let row_steps = marked.map(|_| data.events.id.iter().copied().zip(data.events.step.iter().copied()).collect());
    Ok(Chosen { steps: data.outline.steps, scope, row_steps })
}

/// Counts the bytes written to `out`.
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

/// Whether a file exists that no export wrote. Its name follows from the number of the rank, so the user may not know of it.
fn is_foreign(path: &Path) -> bool {
    path.symlink_metadata().is_ok() && !is_exported(path)
}

/// Rows and bytes of a written rank, and data that its shards lack.
type Written = (Counts, u64, Vec<OmissionRow>);

/// Writes one rank. An existing file stays until the new one is complete.
fn write_rank(
    source: &RunSource,
    rank: i32,
    options: &Options,
    time: Option<Interval>,
    base_ns: i64,
    path: &Path,
) -> Result<Written, Error> {
    let chosen = chosen(source, rank, options, time)?;
    let io = |source| Error::Io { path: path.into(), source };
    // The writer of JSON does not know into which file it writes.
    let named = |error| match error {
        kineto::Error::Output(source) => io(source),
        error => error.into(),
    };
    let compressed = path.extension().is_some_and(|extension| extension == "gz");
    let writer = TraceWriter { run: source.run(), rank, steps: &chosen.steps, selection: &chosen, base_ns };
    write_output(path, |out| {
        let mut file = Counted { out, bytes: 0 };
        let (counts, omissions) = if compressed {
            let mut out = BufWriter::new(GzEncoder::new(&mut file, Compression::fast()));
            let written = writer.write(&mut out).map_err(named)?;
            out.into_inner().map_err(|error| io(error.into_error()))?.finish().map_err(io)?;
            written
        } else {
            writer.write(&mut file).map_err(named)?
        };
        Ok((counts, file.bytes, omissions))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn file_names_contain_the_rank() {
        assert_eq!(path_of(Path::new("out"), 3), Path::new("out/rank3.json.gz"));
        assert_eq!(path_of(Path::new("out/r{rank}.json"), 3), Path::new("out/r3.json"));
    }
}
