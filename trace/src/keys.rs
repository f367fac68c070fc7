//! Metadata keys and file names of a run, and the version of the schema. Change a table: raise the version.

/// Version of all tables together.
///
/// A reader accepts files of its own version and older ones. A newer file is an error.
pub const SCHEMA_VERSION: u32 = 2;

/// Schema version, decimal.
pub const KEY_SCHEMA_VERSION: &str = "rankscope.schema_version";
/// Run id, as in the manifest.
pub const KEY_RUN_ID: &str = "rankscope.run_id";
/// Global rank, decimal.
pub const KEY_RANK: &str = "rankscope.rank";
/// Host name.
pub const KEY_HOST: &str = "rankscope.host";
/// Process id, decimal.
pub const KEY_PID: &str = "rankscope.pid";
/// Boot id of the host.
pub const KEY_BOOT_ID: &str = "rankscope.boot_id";
/// Recording session of several processes; absent where a process records alone.
pub const KEY_SESSION: &str = "rankscope.session";
/// The parts that a joined one holds, each with its rows, as `8:1000,9:990`; absent from a part that was closed once.
pub const KEY_PARTS: &str = "rankscope.parts";
/// Clock domain of every time in the file.
pub const KEY_CLOCK_DOMAIN: &str = "rankscope.clock_domain";

/// The manifest's file name.
pub const MANIFEST_FILE: &str = "run.json";
/// The longest manifest. One that lists 65 536 traces with their names has about 10 MB.
pub const MAX_MANIFEST_BYTES: usize = 32 << 20;
/// The directory that the aggregator writes.
pub const ANALYSIS_DIR: &str = "analysis";
/// The directory of dumps of torch's Flight Recorder, one for each rank that is stalled. `rankscope.torch` writes it.
pub const IN_FLIGHT_DIR: &str = "in_flight";
/// The key in a manifest's `config` for the profiler whose windows a run has.
pub const RECORDED_BY: &str = "recorded_by";
