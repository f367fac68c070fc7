//! torch.profiler's traces: Kineto's Chrome JSON, compressed or not, read to [`RankData`](trace::rank::RankData) and written
//! from the shards of a run.
//!
//! ```text
//! read     plan: which file is which rank and window. find: files, directories, archives ─ probe: headers ─ survey:
//!          windows and jobs
//! bytes    input ─ gunzip ─ blocks ─ json, number, text, value; pickle; visit: JSON of other formats
//! columns  piece: cut at event starts ─ event: columns ─ rows: one table  (stream: one thread reads, all parse)
//! meaning  steps ─ flight recorder ─ collectives ─ memory, devices, arrows ─ details of operators
//! read     load: RankData
//! write    shards of a run;  a run's rank as a trace
//! ```
//!
//! Each folder imports only from those above it in `bytes`, `columns`, `meaning`, `read`, `write`.
//!
//! The format has changed since 2021, and many programs write it. The comment at each reader states which spellings it
//! accepts. The reader trusts no input: a byte that is not JSON ends the reading and is reported with its position, and
//! the events before it are kept.
//!
//! ```
//! use kineto::{PlanOptions, load, plan};
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! # let path = std::env::temp_dir().join(format!("rankscope-kineto-doc-{}.json", std::process::id()));
//! let event = r#"{"ph": "X", "cat": "cpu_op", "name": "aten::mm", "pid": 1, "tid": 1, "ts": 10.0, "dur": 2.5}"#;
//! std::fs::write(&path, format!(r#"{{"traceEvents": [{event}]}}"#))?;
//!
//! let plan = plan(&[path.clone()], PlanOptions::default())?;
//! let rank = load(&plan.files[0])?;
//! assert_eq!((rank.names[0].as_ref(), rank.events.dur_ns[0]), ("aten::mm", 2_500));
//! # std::fs::remove_file(&path)?;
//! # Ok(())
//! # }
//! ```

#![warn(missing_docs)]

mod bytes;
mod columns;
mod error;
mod meaning;
mod read;
pub mod write;

pub use bytes::memory::{MemoryShare, Room};
pub use bytes::pickle;
pub use bytes::visit as json;
pub use error::{Error, OtherFormat};
pub use meaning::flight_dump::{FlightDump, FlightEntry, FlightFrame, FlightGroup, FlightPosition, RankLists};
pub use meaning::names::{algorithm, kernel_dtype, operation};
pub use meaning::steps::{LEFT_OUT_MARKS, Steps, find_steps, steps_of_marks};
#[cfg(feature = "fuzzing")]
pub use read::check_any_blocks;
pub use read::{
    FlightDumps, Parsed, Plan, PlanOptions, RankSource, RecognizeOther, Replica, TraceFile, Window, WindowChoice,
    file_name, flight_dumps, load, load_detailed, load_windows, load_windows_detailed, load_windows_rows, parse_only,
    plan, rank_of_name,
};

/// Whether a file with these first bytes is compressed with gzip or zstd.
pub fn is_compressed(head: &[u8]) -> bool {
    bytes::input::is_compressed(head)
}

/// Opens a text to read it: a file or an object, compressed with gzip or zstd or not. Its first bytes decide which. Damage of a
/// compressed text is an error of the read.
///
/// # Errors
/// The error of the file system or of the object store; `InvalidInput` if it is no regular file.
pub fn open_text(path: &std::path::Path) -> std::io::Result<impl std::io::Read + Send> {
    bytes::input::Input::open(path)
}
