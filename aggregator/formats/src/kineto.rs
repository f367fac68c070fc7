//! Traces of torch.profiler as a source of ranks, and as a run. The crate `kineto` reads and writes the format.

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};

use kineto::write::{WrittenShards, write_shards};
use kineto::{Plan, PlanOptions, TraceFile, load_windows, load_windows_detailed, load_windows_rows, plan};
use rayon::prelude::*;
use trace::rank::Details;
use trace::{HELD_RANKS, MANIFEST_FILE, Manifest, OmissionRow, SCHEMA_VERSION, TRACE_FILES, fnv_1a};

use crate::format::OpenOptions;
use crate::memory::max_memory_bytes;
use crate::registry::other_format;
use model::Error;
use model::RankData;
use model::source::{RankFile, Source, SourceInfo};

/// Traces of the ranks of one job.
#[derive(Clone, Debug)]
pub struct KinetoSource {
    path: PathBuf,
    plan: Plan,
}

impl KinetoSource {
    /// Finds the trace files and their ranks and windows, with the default options.
    ///
    /// # Errors
    /// As [`plan`].
    pub fn open(paths: &[PathBuf]) -> Result<Self, Error> {
        Self::open_with(paths, OpenOptions::default())
    }

    /// Finds the trace files and their ranks and windows.
    ///
    /// # Errors
    /// As [`plan`].
    pub fn open_with(paths: &[PathBuf], options: OpenOptions) -> Result<Self, Error> {
        Self::of_plan(paths, plan_options(options))
    }

    /// As [`open_with`](Self::open_with), for traces beside files of other formats, which are read too.
    ///
    /// # Errors
    /// As [`plan`].
    pub(crate) fn open_among_others(paths: &[PathBuf], options: OpenOptions) -> Result<Self, Error> {
        Self::of_plan(paths, PlanOptions { others_are_read: true, ..plan_options(options) })
    }

    fn of_plan(paths: &[PathBuf], options: PlanOptions) -> Result<Self, Error> {
        Ok(Self { path: paths.first().cloned().unwrap_or_default(), plan: plan(paths, options)? })
    }

    /// The windows of a rank.
    fn files_of(&self, rank: i32) -> Result<&[TraceFile], Error> {
        let all = &self.plan.files;
        let files = &all[all.partition_point(|file| file.rank < rank)..all.partition_point(|file| file.rank <= rank)];
        (!files.is_empty())
            .then_some(files)
            .ok_or_else(|| Error::NoRank { path: self.path.clone(), why: format!("there is no trace of rank {rank}") })
    }
}

impl Source for KinetoSource {
    fn info(&self) -> SourceInfo {
        SourceInfo {
            path: self.path.clone(),
            run_id: String::new(),
            tool: "torch.profiler".into(),
            world_size: Some(self.plan.world_size),
            ..SourceInfo::default()
        }
    }

    fn ranks(&self) -> Vec<i32> {
        by_rank(&self.plan).map(|files| files[0].rank).collect()
    }

    fn files(&self) -> Result<Vec<RankFile>, Error> {
        let file = |file: &TraceFile| RankFile {
            rank: file.rank,
            path: file.path.clone(),
            name: Some(file.name.clone()),
            size_bytes: file.size_bytes,
        };
        Ok(self.plan.files.iter().map(file).collect())
    }

    fn problems(&self) -> Vec<OmissionRow> {
        self.plan.omissions.clone()
    }

    fn load(&self, rank: i32) -> Result<RankData, Error> {
        Ok(load_windows(self.files_of(rank)?)?)
    }

    fn load_rows(&self, rank: i32) -> Result<RankData, Error> {
        Ok(load_windows_rows(self.files_of(rank)?)?)
    }

    fn load_detailed(&self, rank: i32) -> Result<(RankData, Details), Error> {
        Ok(load_windows_detailed(self.files_of(rank)?)?)
    }
}

fn plan_options(options: OpenOptions) -> PlanOptions {
    let OpenOptions { window, force, max_memory_bytes: limit } = options;
    let max_memory_bytes = Some(max_memory_bytes(limit));
    PlanOptions { window, force, max_memory_bytes, other_format: Some(other_format), others_are_read: false }
}

/// The files of each rank.
fn by_rank(plan: &Plan) -> impl Iterator<Item = &[TraceFile]> {
    plan.files.chunk_by(|a, b| a.rank == b.rank)
}

/// The result of [`ingest`].
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Ingested {
    /// Ranks that were written.
    pub ranks: Vec<i32>,
    /// Rows of `events`.
    pub rows: u64,
    /// Size of the traces on disk.
    pub read_bytes: u64,
    /// Bytes of Parquet.
    pub written_bytes: u64,
    /// Files, and parts of files, that could not be read.
    pub omissions: Vec<OmissionRow>,
}

/// Writes the traces in `paths` as a run into `out`, a new or empty directory. `progress` is called after each rank,
/// with the number done and the number to do.
///
/// # Errors
/// As [`plan`]; [`Error::NoInput`] if `out` is a run already; [`Error::Kineto`] or [`Error::Trace`] if it holds other
/// files or cannot be written. After an error `out` is as it was.
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
    let plan = plan(paths, plan_options(options))?;
    let manifest = Manifest {
        schema_version: SCHEMA_VERSION,
        run_id: run_id(&plan.files),
        world_size: plan.world_size,
        created_utc_ns: 0,
        tool: format!("torch.profiler, ingested by rankscope {}", env!("CARGO_PKG_VERSION")),
        command: Vec::new(),
        config: serde_json::Map::from_iter([
            ("files".to_string(), plan.files.iter().map(|f| serde_json::Value::from(&*f.name)).collect()),
            (TRACE_FILES.to_string(), by_rank(&plan).map(|files| serde_json::Value::from(&*files[0].name)).collect()),
            (HELD_RANKS.to_string(), by_rank(&plan).map(|files| serde_json::Value::from(files[0].rank)).collect()),
        ]),
    };
    trace::files::create_directory(out, |fresh| {
        write_run(&plan, manifest, fresh, progress).map_err(|error| error.moved(fresh, out))
    })
}

fn write_run(
    plan: &Plan,
    manifest: Manifest,
    run: &Path,
    progress: &(dyn Fn(usize, usize) + Sync),
) -> Result<Ingested, Error> {
    let done = AtomicUsize::new(0);
    let ranks: Vec<&[TraceFile]> = by_rank(plan).collect();
    let one = |files: &&[TraceFile]| {
        let written = write_shards(files, run, &manifest.run_id);
        progress(done.fetch_add(1, Ordering::Relaxed) + 1, ranks.len());
        written
    };
    // One rank at a time and thread, so that memory holds at most as many ranks as there are threads.
    let written: Result<Vec<WrittenShards>, kineto::Error> = ranks.par_iter().with_max_len(1).map(one).collect();
    let mut ingested = Ingested { omissions: plan.omissions.clone(), ..Ingested::default() };
    let mut first_ns = None;
    for (files, written) in ranks.iter().zip(written?) {
        ingested.ranks.push(files[0].rank);
        ingested.rows += written.rows;
        ingested.read_bytes += files.iter().map(|file| file.size_bytes).sum::<u64>();
        ingested.written_bytes += written.bytes;
        ingested.omissions.extend(written.omissions);
        first_ns = first_ns.into_iter().chain(written.first_ns).min();
    }
    Manifest { created_utc_ns: first_ns.unwrap_or_default(), ..manifest }.write(run)?;
    Ok(ingested)
}

/// An id that the same files give again, of their names, ranks and sizes.
fn run_id(files: &[TraceFile]) -> String {
    let text = |file: &TraceFile| format!("{}\0{}\0{}\0", file.name, file.rank, file.size_bytes).into_bytes();
    format!("kineto-{:016x}", fnv_1a(files.iter().flat_map(text)))
}
