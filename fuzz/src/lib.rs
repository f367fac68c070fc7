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
mod input;
mod shards;

pub use agent::exec::check_any_ctl as ctl;
pub use formats::snapshot::check_any_snapshot as snapshot;
pub use hang::check_any_dump as flight_recorder;
pub use inject::check_any_ranges as nvtx;
pub use shards::check_any_shard as shards;
pub use sources::cupti::record::check_any_bytes as cupti;
pub use sources::nccl::ffi::fuzz::check_any_calls as plugin;
pub use trace::check_any_manifest as manifest;

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
    in_file(bytes, trace::check_any_columns);
}

/// A trace of torch.profiler.
pub fn kineto(bytes: &[u8]) {
    kineto::check_any_blocks(bytes, &[16, 100, 1000]);
}

/// The messages between `exec` and other ranks, and the variables that it sets for the injected library.
pub fn exec(bytes: &[u8]) {
    let Some((part, rest)) = bytes.split_first() else { return };
    match part % 3 {
        0 => agent::fabric::tcp::fuzz::check_any_connection(rest),
        1 => agent::exec::check_any_peer(rest),
        _ => inject::check_any_variables(rest),
    }
}

/// An SQLite export of Nsight Systems. SQLite reads files only.
pub fn nsys(bytes: &[u8]) {
    in_file(bytes, formats::nsys::check_any_export);
}

/// A profile of XLA. Ranks read its file again.
pub fn xplane(bytes: &[u8]) {
    in_file(bytes, formats::xplane::check_any_profile);
}

/// A dump of NCCL's Inspector. Ranks read its file again.
pub fn inspector(bytes: &[u8]) {
    in_file(bytes, formats::inspector::check_any_dump);
}

/// JSON of rocprofv3. Ranks read its file again.
pub fn rocprof(bytes: &[u8]) {
    in_file(bytes, formats::rocprof::check_any_records);
}

fn in_file(bytes: &[u8], check: fn(&std::path::Path)) {
    let Ok(mut file) = tempfile::NamedTempFile::new() else { return };
    if std::io::Write::write_all(&mut file, bytes).is_ok() {
        check(file.path());
    }
}
