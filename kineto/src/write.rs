//! Writes a trace as the shards of a run, and a rank of a run as a trace.

mod event_batch;
mod event_columns;
mod event_json;
mod json_text;
mod placement;
mod shards;
mod trace_file;
mod wall_clock;
mod windows;

pub use shards::{WrittenShards, write_rank, write_shards};
pub use trace_file::{Counts, HOOK, Selection, TraceWriter, is_exported};
pub use wall_clock::Comparison;
pub use windows::{RankPlace, WindowFile, WindowWriter, WrittenWindow};
