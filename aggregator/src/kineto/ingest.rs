//! Traces to a run.

use std::path::{Path, PathBuf};

use rayon::prelude::*;
use trace::{MANIFEST_FILE, Manifest, OmissionRow, SCHEMA_VERSION, ShardMeta};

use crate::Error;
use crate::kineto::event::Wanted;
use crate::kineto::files::{TraceFile, plan};
use crate::kineto::load::{file_name, load_wanted};
use crate::kineto::write::write_rank;

/// What became of traces.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Ingested {
    /// Ranks that were written.
    pub ranks: Vec<i32>,
    /// Rows of `events`.
    pub rows: u64,
    /// Bytes of JSON on disk, as they were given.
    pub read_bytes: u64,
    /// Bytes of Parquet.
    pub written_bytes: u64,
    /// What was left out.
    pub omissions: Vec<OmissionRow>,
}

/// Writes the traces in `paths` as a run into `out`, which must not hold one. `progress` is called after each rank,
/// with the number done and the number to do.
///
/// # Errors
/// As [`plan`]; [`Error::NoInput`] if `out` is a run already; [`Error::Trace`] if it cannot be written.
pub fn ingest(paths: &[PathBuf], out: &Path, progress: &(dyn Fn(usize, usize) + Sync)) -> Result<Ingested, Error> {
    if out.join(MANIFEST_FILE).exists() {
        let why = "it holds a run already; choose another --out";
        return Err(Error::NoInput { path: out.into(), why: why.into() });
    }
    let plan = plan(paths)?;
    let run_id = run_id(&plan.files);
    let manifest = Manifest {
        schema_version: SCHEMA_VERSION,
        run_id: run_id.clone(),
        world_size: plan.world_size,
        created_utc_ns: 0,
        tool: format!("torch.profiler, ingested by rankscope {}", env!("CARGO_PKG_VERSION")),
        command: Vec::new(),
        config: serde_json::Map::from_iter([(
            "files".to_string(),
            plan.files.iter().map(|f| serde_json::Value::from(&*file_name(&f.path))).collect(),
        )]),
    };
    let done = std::sync::atomic::AtomicUsize::new(0);
    let one = |at: usize| {
        let written = write_one(&plan.files[at], out, &run_id);
        progress(done.fetch_add(1, std::sync::atomic::Ordering::Relaxed) + 1, plan.files.len());
        written
    };
    // One rank at a time and thread, so that memory is that of as many ranks as there are threads.
    let files = 0..plan.files.len();
    let written: Result<Vec<Written>, Error> = files.into_par_iter().with_max_len(1).map(one).collect();
    let mut ingested = Ingested { omissions: plan.omissions.clone(), ..Ingested::default() };
    let mut first_ns = None;
    for (file, written) in plan.files.iter().zip(written?) {
        ingested.ranks.push(file.rank);
        ingested.rows += written.rows;
        ingested.read_bytes += file.size_bytes;
        ingested.written_bytes += written.bytes;
        ingested.omissions.extend(written.omissions);
        first_ns = first_ns.into_iter().chain(written.first_ns).min();
    }
    // The manifest comes last: without it the directory is no run, so a half-written one is never taken for whole.
    Manifest { created_utc_ns: first_ns.unwrap_or_default(), ..manifest }.write(out)?;
    Ok(ingested)
}

struct Written {
    rows: u64,
    bytes: u64,
    first_ns: Option<i64>,
    omissions: Vec<OmissionRow>,
}

fn write_one(file: &TraceFile, out: &Path, run_id: &str) -> Result<Written, Error> {
    let mut loaded = load_wanted(file, Wanted { args: true, ..Wanted::default() })?;
    let info = &loaded.data.info;
    let meta = ShardMeta {
        run_id: run_id.to_string(),
        rank: info.rank,
        host: info.host.clone(),
        pid: info.pid,
        boot_id: String::new(),
        clock_domain: info.clock_domain.clone(),
        session: String::new(),
    };
    let bytes = write_rank(&loaded, out, &meta)?;
    Ok(Written {
        rows: loaded.data.events.len() as u64,
        bytes,
        first_ns: loaded.data.events.ts_ns.first().copied(),
        omissions: std::mem::take(&mut loaded.data.omissions),
    })
}

/// An id that the same files give again: FNV-1a over their names, ranks and sizes.
fn run_id(files: &[TraceFile]) -> String {
    let mut hash = 0xcbf2_9ce4_8422_2325u64;
    for file in files {
        let text = format!("{}\0{}\0{}\0", file_name(&file.path), file.rank, file.size_bytes);
        for byte in text.bytes() {
            hash = (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3);
        }
    }
    format!("kineto-{hash:016x}")
}
