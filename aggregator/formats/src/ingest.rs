//! Recordings of other tools, written as a run.

use std::any::Any;
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};

use kineto::write::{WrittenShards, write_rank, write_shards};
use rayon::prelude::*;
use serde_json::Value;
use trace::{HELD_RANKS, MANIFEST_FILE, Manifest, OmissionRow, SCHEMA_VERSION, TRACE_FILES, fnv_1a, worst_omission};

use crate::format::OpenOptions;
use crate::input::{Input, resolve};
use crate::kineto::KinetoSource;
use crate::mixed::MixedSource;
use model::source::{RankFile, Source, no_rank};
use model::{Error, RankData};

/// The result of [`ingest`].
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Ingested {
    /// Ranks that were written.
    pub ranks: Vec<i32>,
    /// Rows of `events`.
    pub rows: u64,
    /// Size of the files that were read.
    pub read_bytes: u64,
    /// Bytes of Parquet.
    pub written_bytes: u64,
    /// Files, and parts of files, that could not be read.
    pub omissions: Vec<OmissionRow>,
}

/// Writes the recordings in `paths` as a run into `out`, a new or empty directory. `progress` is called after each rank,
/// with the number done and the number to do.
///
/// # Errors
/// As [`resolve`] and [`JobFiles::open`](crate::job_files::JobFiles::open); [`Error::NoInput`] if `paths` are a run, or `out` is one
/// already; [`Error::Kineto`] or [`Error::Trace`] if it holds other files or cannot be written; [`Error::NoRank`] if no rank can be read.
/// After an error `out` is as it was.
pub fn ingest(paths: &[PathBuf], out: &Path, progress: &(dyn Fn(usize, usize) + Sync)) -> Result<Ingested, Error> {
    ingest_with(paths, OpenOptions::default(), out, progress)
}

/// As [`ingest`], with options.
///
/// # Errors
/// As [`ingest`].
pub fn ingest_with(
    paths: &[PathBuf],
    options: OpenOptions,
    out: &Path,
    progress: &(dyn Fn(usize, usize) + Sync),
) -> Result<Ingested, Error> {
    if out.join(MANIFEST_FILE).exists() {
        let why = "it holds a run already; choose another --out";
        return Err(Error::NoInput { path: out.into(), why: why.into() });
    }
    let source = match resolve(paths.to_vec())? {
        Input::Files(files) => files.open(options)?,
        Input::Run(path) => {
            let why = "it is a run already; analyze it directly".to_string();
            return Err(Error::NoInput { path, why });
        }
    };
    let manifest = manifest(&*source)?;
    trace::files::create_directory(out, |fresh| {
        write_run(&*source, manifest, fresh, progress).map_err(|error| error.moved(fresh, out))
    })
}

fn manifest(source: &dyn Source) -> Result<Manifest, Error> {
    let (info, ranks, files) = (source.info(), source.ranks(), source.files()?);
    let last = *ranks.last().ok_or_else(|| no_rank(source, None))?;
    let mut first_file: BTreeMap<i32, String> = BTreeMap::new();
    for file in &files {
        first_file.entry(file.rank).or_insert_with(|| name(file));
    }
    let names: BTreeSet<String> = files.iter().map(name).collect();
    let of_ranks = ranks.iter().map(|rank| Value::from(first_file.get(rank).cloned().unwrap_or_default()));
    Ok(Manifest {
        schema_version: SCHEMA_VERSION,
        run_id: run_id(&files),
        // The job has at least so many ranks.
        world_size: info.world_size.unwrap_or(last.saturating_add(1)),
        created_utc_ns: info.created_utc_ns.unwrap_or_default(),
        tool: format!("{}, ingested by rankscope {}", info.tool, env!("CARGO_PKG_VERSION")),
        command: info.command,
        config: serde_json::Map::from_iter([
            ("files".to_string(), names.into_iter().map(Value::from).collect()),
            (TRACE_FILES.to_string(), of_ranks.collect()),
            (HELD_RANKS.to_string(), ranks.iter().copied().map(Value::from).collect()),
        ]),
    })
}

fn name(file: &RankFile) -> String {
    file.name.as_deref().map_or_else(|| file.path.to_string_lossy().into_owned(), String::from)
}

/// An id that the same files give again, of their names, ranks and sizes.
fn run_id(files: &[RankFile]) -> String {
    let text = |file: &RankFile| format!("{}\0{}\0{}\0", name(file), file.rank, file.size_bytes).into_bytes();
    format!("ingested-{:016x}", fnv_1a(files.iter().flat_map(text)))
}

fn write_run(
    source: &dyn Source,
    mut manifest: Manifest,
    run: &Path,
    progress: &(dyn Fn(usize, usize) + Sync),
) -> Result<Ingested, Error> {
    let done = AtomicUsize::new(0);
    let ranks = source.ranks();
    let one = |rank: &i32| {
        let written = write(source, *rank, (run, &manifest.run_id), &|_| ());
        progress(done.fetch_add(1, Ordering::Relaxed) + 1, ranks.len());
        written
    };
    // One rank at a time and thread, so that memory holds at most as many ranks as there are threads.
    let written: Vec<Result<WrittenShards, Unwritten>> = ranks.par_iter().with_max_len(1).map(one).collect();
    let sizes: BTreeMap<PathBuf, u64> = source.files()?.into_iter().map(|file| (file.path, file.size_bytes)).collect();
    let mut of_job = source.problems();
    let mut ingested = Ingested { read_bytes: sizes.values().sum(), ..Ingested::default() };
    let mut first_ns = None;
    for (rank, written) in ranks.iter().zip(written) {
        match written {
            Ok(written) => {
                ingested.ranks.push(*rank);
                ingested.rows += written.rows;
                ingested.written_bytes += written.bytes;
                ingested.omissions.extend(written.omissions);
                first_ns = first_ns.into_iter().chain(written.first_ns).min();
            }
            Err(Unwritten::Unread(error)) => {
                of_job.push(OmissionRow::lost("rank", error.to_string()).rank(*rank).amount(1))
            }
            Err(Unwritten::Failed(error)) => return Err(error),
        }
    }
    if ingested.ranks.is_empty() {
        let why = of_job.last().map(|row| row.why.to_string()).unwrap_or_default();
        return Err(Error::NoRank { path: source.info().path, why });
    }
    // Times of torch.profiler are UTC.
    if let (true, Some(first_ns)) = ((source as &dyn Any).is::<KinetoSource>(), first_ns) {
        manifest.created_utc_ns = first_ns;
    }
    manifest.keep_omissions(&kept(&of_job))?;
    manifest.write(run)?;
    ingested.omissions.splice(0..0, of_job);
    Ok(ingested)
}

/// Omissions that a manifest keeps.
const MOST_OMISSIONS: usize = 256;

/// The first omissions; the others are counted.
fn kept(omissions: &[OmissionRow]) -> Vec<OmissionRow> {
    let (first, others) = omissions.split_at(omissions.len().min(MOST_OMISSIONS));
    let of_others = worst_omission(others).map(|worst| {
        let why = format!("the run keeps the first {MOST_OMISSIONS} that concern no rows of a rank");
        OmissionRow::of(worst, "further omissions", why).amount(others.len() as i64)
    });
    first.iter().cloned().chain(of_others).collect()
}

/// Why a rank was not written.
enum Unwritten {
    /// Nothing of it can be read.
    Unread(Error),
    Failed(Error),
}

/// Writes a rank. `complete` changes what the other ranks of the job decide of it.
fn write(
    source: &dyn Source,
    rank: i32,
    (run, run_id): (&Path, &str),
    complete: &dyn Fn(&mut RankData),
) -> Result<WrittenShards, Unwritten> {
    let any: &dyn Any = source;
    if let Some(mixed) = any.downcast_ref::<MixedSource>() {
        let of_rank = mixed.of(rank).map_err(Unwritten::Unread)?;
        return write(of_rank, rank, (run, run_id), &|data| data.omissions.extend(mixed.join(&mut data.outline)));
    }
    let written = match any.downcast_ref::<KinetoSource>() {
        // A trace has more than `RankData`: all arguments of its rows.
        Some(traces) => write_shards(traces.files_of(rank).map_err(Unwritten::Unread)?, run, run_id, complete),
        None => {
            let mut data = source.load(rank).map_err(Unwritten::Unread)?;
            complete(&mut data);
            write_rank(data, run, run_id)
        }
    };
    written.map_err(|error| Unwritten::Failed(error.into()))
}
