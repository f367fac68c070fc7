//! torch.profiler's traces: Kineto's Chrome JSON, gzip or not, read to [`RankData`](trace::rank::RankData) and written
//! from the shards of a run.
//!
//! ```text
//! read     plan: which file is which rank
//! bytes    input ─ gunzip ─ blocks ─ json, number, text, value
//! columns  piece: cut at event starts ─ event: columns ─ rows: one table  (stream: one thread reads, all parse)
//! meaning  steps ─ collectives ─ memory, devices, arrows ─ details of operators
//! read     load: RankData
//! write    shards of a run;  a run's rank as a trace
//! ```
//!
//! Each folder imports only from those above it in `bytes`, `columns`, `meaning`, `read`, `write`.
//!
//! The format has changed since 2021, and many programs write it. The comment at each reader states which spellings it
//! accepts. The reader trusts no input: a byte that is not JSON ends the reading and is reported with its position, and
//! the events before it are kept.

mod bytes;
mod columns;
mod error;
mod meaning;
mod read;
pub mod write;

pub use error::Error;
pub use read::{
    Parsed, Plan, RankSource, TraceFile, check_any_blocks, file_name, load, load_detailed, parse_only, plan,
};
