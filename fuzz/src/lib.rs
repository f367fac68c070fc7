//! Checks of everything that reads bytes of others. Each takes any bytes and panics if a promise is broken; a fuzz target
//! hands it what libFuzzer invents, and a test the corpus and its mutations.
//!
//! | check | bytes of | promise besides no panic, no hang, no memory beyond the input's |
//! |---|---|---|
//! | `kineto` | a trace of torch.profiler | the sizes of the blocks in which it is read change nothing |
//! | `cupti` | a buffer of CUPTI | records lie side by side, and none is read beyond its end |
//! | `shards` | a shard of any table | rows read and rows said to be lost are the rows written; no changed page is read |
//! | `manifest` | `run.json` | the same after it is written and read again |
//! | `exec` | ranks, and the variables of a program | ranks join exactly if no byte changed; offsets are exact or at their limit |
//! | `ctl` | a process of the user | each line has one answer, which is printed without controls |
//! | `nvtx` | ranges of a program | each end belongs to one beginning |
//! | `plugin` | calls of NCCL | each operation becomes one valid row or is counted |
//! | `snapshot` | a pickle of torch's allocator | rows in the order of time |
//! | `flight_recorder` | a dump of torch's Flight Recorder | a rank waits only in what it called |
//! | `nsys` | an SQLite export of Nsight Systems | rows in the order of time, the same each time |
//! | `xplane` | a profile of XLA | rows in the order of time, the same each time |
//! | `inspector` | a dump of NCCL's Inspector | rows in the order of time, the same each time |
//! | `rocprof` | JSON of rocprofv3 | rows in the order of time, the same each time |
//! | `columns` | a Parquet or Arrow file of another program | batches have the columns asked for, as long as each other |

mod columns;
mod cupti;
mod input;
mod shards;

use std::path::Path;

use drawn::check_source;
use formats::inspector::InspectorSource;
use formats::nsys::NsysSource;
use formats::rocprof::RocprofSource;
use formats::snapshot::SnapshotSource;
use formats::xplane::XplaneSource;
use model::source::Source;
use trace::{MANIFEST_FILE, Manifest};

pub use agent::exec::fuzz::check_any_ctl as ctl;
pub use cupti::check_any_bytes as cupti;
pub use hang::dumps::check_any_dump as flight_recorder;
pub use inject::check_any_ranges as nvtx;
pub use shards::check_any_shard as shards;
pub use sources::nccl::ffi::fuzz::check_any_calls as plugin;

/// A check: its name, which is that of its target and corpus, and the function.
pub type Check = (&'static str, fn(&[u8]));

/// All checks.
pub const CHECKS: [Check; 15] = [
    ("kineto", kineto),
    ("cupti", cupti),
    ("shards", shards),
    ("manifest", manifest),
    ("exec", exec),
    ("ctl", ctl),
    ("nvtx", nvtx),
    ("plugin", plugin),
    ("snapshot", snapshot),
    ("flight_recorder", flight_recorder),
    ("nsys", nsys),
    ("xplane", xplane),
    ("inspector", inspector),
    ("rocprof", rocprof),
    ("columns", columns),
];

/// A Parquet or Arrow file.
pub fn columns(bytes: &[u8]) {
    in_file(bytes, |path| {
        let Ok(names) = trace::columns_of_file(path) else { return };
        let mut distinct: Vec<&str> = names.iter().map(String::as_str).collect();
        distinct.sort_unstable();
        distinct.dedup();
        let read = trace::read_columns(path, &distinct, |batch| {
            let mut found: Vec<String> = batch.schema().fields().iter().map(|field| field.name().clone()).collect();
            found.sort_unstable();
            found.dedup();
            assert_eq!(found, distinct);
            true
        });
        // An error is an answer too.
        drop(read);
    });
}

/// `run.json`.
pub fn manifest(bytes: &[u8]) {
    let Ok(run) = tempfile::tempdir() else { return };
    if std::fs::write(run.path().join(MANIFEST_FILE), bytes).is_err() {
        return;
    }
    let Ok(manifest) = Manifest::read(run.path()) else { return };
    // Fractions in `config` may change in their last digit.
    let facts = |of: &Manifest| {
        let keys: Vec<String> = of.config.keys().cloned().collect();
        (Manifest { config: Default::default(), ..of.clone() }, keys, of.held_ranks())
    };
    match manifest.write(run.path()) {
        // Spaces that the input lacks.
        Err(trace::Error::LongManifest { .. }) => return,
        Err(error) => unreachable!("{error}"),
        Ok(()) => {}
    }
    let again = Manifest::read(run.path());
    assert!(matches!(&again, Ok(again) if facts(again) == facts(&manifest)), "{manifest:?} became {again:?}");
}

/// A trace of torch.profiler.
pub fn kineto(bytes: &[u8]) {
    kineto::check_any_blocks(bytes, &[16, 100, 1000]);
}

/// The messages between `exec` and other ranks, and the variables that it sets for the injected library.
pub fn exec(bytes: &[u8]) {
    let Some((part, rest)) = bytes.split_first() else { return };
    match part % 3 {
        0 => agent::fabric::sockets::fuzz::check_any_connection(rest),
        1 => agent::exec::fuzz::check_any_peer(rest),
        _ => inject::check_any_variables(rest),
    }
}

/// An SQLite export of Nsight Systems. SQLite reads files only.
pub fn nsys(bytes: &[u8]) {
    in_file(bytes, |path| check_opened(NsysSource::open(&[path.into()])));
}

/// A profile of XLA. Ranks read its file again.
pub fn xplane(bytes: &[u8]) {
    in_file(bytes, |path| check_opened(XplaneSource::open(&[path.into()])));
}

/// A dump of NCCL's Inspector. Ranks read its file again.
pub fn inspector(bytes: &[u8]) {
    in_file(bytes, |path| check_opened(InspectorSource::open(&[path.into()])));
}

/// JSON of rocprofv3. Ranks read its file again.
pub fn rocprof(bytes: &[u8]) {
    in_file(bytes, |path| check_opened(RocprofSource::open(&[path.into()])));
}

/// A pickle of torch's allocator.
pub fn snapshot(bytes: &[u8]) {
    in_file(bytes, |path| {
        let Ok(source) = SnapshotSource::open(&[path.into()]) else { return };
        for rank in source.ranks() {
            let Ok(data) = source.load(rank) else { continue };
            let rows = &data.memory;
            assert!(rows.iter().all(|row| row.rank == rank && row.delta_bytes != 0), "{rows:?}");
            assert!(rows.is_sorted_by_key(|row| row.ts_ns), "{rows:?}");
        }
    });
}

fn check_opened<S: Source>(opened: Result<S, model::Error>) {
    if let Ok(source) = opened {
        check_source(&source);
    }
}

fn in_file(bytes: &[u8], check: fn(&Path)) {
    let Ok(mut file) = tempfile::NamedTempFile::new() else { return };
    if std::io::Write::write_all(&mut file, bytes).is_ok() {
        check(file.path());
    }
}
