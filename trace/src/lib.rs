//! The nouns of rankscope: event tables (schema, documentation, version), the run manifest, and Parquet shards.
//!
//! A *run* is a directory. Each rank writes *shards* into it, one Parquet file per table and part; the aggregator
//! writes `analysis/`. Each table is declared once, in [`tables`]: the declaration gives the row type, its builder, its
//! reader, its Arrow schema and its documentation. Columns with a vocabulary hold [`Word`]s of [`words`]. [`files`]
//! writes files and directories atomically.
//!
//! This program writes a shard of two events and reads it back:
//!
//! ```
//! use trace::{EventRow, Kind, Manifest, Row, Run, SCHEMA_VERSION, ShardMeta, batch_from_rows, write_shard};
//!
//! # fn main() -> Result<(), trace::Error> {
//! let dir = std::env::temp_dir().join(format!("rankscope-doc-{}", std::process::id()));
//! let manifest = Manifest {
//!     schema_version: SCHEMA_VERSION,
//!     run_id: "example".into(),
//!     world_size: 1,
//!     created_utc_ns: 0,
//!     tool: "doc-test".into(),
//!     command: vec![],
//!     config: Default::default(),
//! };
//! manifest.write(&dir)?;
//! let event = |name: &str, ts_ns| EventRow {
//!     kind: Kind::CpuOp.as_str().into(),
//!     name: name.into(),
//!     ts_ns,
//!     dur_ns: 5,
//!     ..EventRow::default()
//! };
//! let events = vec![event("gemm", 10), event("bias_relu", 15)];
//! let meta = ShardMeta {
//!     run_id: "example".into(),
//!     rank: 0,
//!     host: "node-1".into(),
//!     pid: 1,
//!     boot_id: String::new(),
//!     clock_domain: "example".into(),
//!     session: String::new(),
//! };
//! write_shard(&dir, &EventRow::table(), &meta, 0, &[batch_from_rows(&events)?])?;
//!
//! let run = Run::open(&dir)?;
//! let (rows, problems) = run.rows::<EventRow>(0);
//! assert_eq!((rows, problems.len()), (events, 0));
//! # std::fs::remove_dir_all(&dir).ok();
//! # Ok(())
//! # }
//! ```

#![warn(missing_docs)]

#[macro_use]
mod table;
#[macro_use]
mod word;

mod begin;
mod cell;
mod checksum;
pub mod command_line;
mod content;
mod describe;
mod error;
pub mod files;
mod foreign;
mod hash;
pub mod kernel_rules;
mod keys;
mod lock;
mod manifest;
mod maybe;
pub mod name_rules;
mod omission;
pub mod place;
pub mod random;
pub mod rank;
mod run;
mod shard;
pub mod tables;
pub mod terminal;
pub mod time_limits;
mod url;
mod views;
pub mod words;

pub use arrow_array::RecordBatch;
pub use cell::{Cell, DocumentedWord, TextColumn, VocabularyInfo, WordColumn};
pub use content::{ContentFile, encode_content, open_content, read_content, write_content};
pub use describe::{Entry, describe, entries};
pub use error::{Error, io_reason};
pub use foreign::{columns_of_file, read_columns};
pub use hash::fnv_1a;
pub use keys::*;
pub use lock::lock;
pub use manifest::{HELD_RANKS, Manifest, TRACE_FILES};
pub use maybe::{Maybe, MaybeAt, MaybeNs};
pub use omission::{
    BEFORE_KEPT, CLOCK_SOURCE, CUT_SOURCE, KEEP_SOURCE, PROFILER_ERROR_NS, REST_OF_PROGRAM, cancelled, worst_omission,
};
pub use run::growing::Growing;
pub use run::{Problem, Run};
pub use shard::join::join_parts;
pub use shard::write::{ForEach, write_shard, write_shard_with, write_table};
pub use shard::{
    Checker, ClosedShard, ROW_GROUP_ROWS, Shard, ShardMeta, column_names, is_written_by_rankscope, parse_shard_name,
    shard_path,
};
pub use table::{ColumnInfo, Row, RowBuilder, Table, Writer, batch_from_rows, column, rows_from_batch};
pub use tables::*;
pub use views::{View, ViewSource, views, views_of_analysis};
pub use word::{MAX_TEXT_BYTES, Text, Vocabulary, Word, shortened};
pub use words::*;
