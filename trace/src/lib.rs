//! The nouns of rankscope: event tables (schema, documentation, version), the run manifest, and Parquet shards.
//!
//! A *run* is a directory. Each rank writes *shards* into it, one Parquet file per table and part; the aggregator
//! writes `analysis/`. The tables are declared once, in [`rank_tables`] and [`analysis_tables`]: a declaration gives
//! the row type, its builder, its reader, its Arrow schema and its documentation.
//!
//! ```
//! use trace::{EventRow, Manifest, Row, Run, ShardMeta, SCHEMA_VERSION, batch_from_rows, write_shard};
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
//! let event = EventRow { kind: "cpu_op".into(), name: "gemm".into(), ts_ns: 10, dur_ns: 5, ..Default::default() };
//! let meta = ShardMeta {
//!     run_id: "example".into(),
//!     rank: 0,
//!     host: "here".into(),
//!     pid: 1,
//!     boot_id: String::new(),
//!     clock_domain: "example".into(),
//!     session: String::new(),
//! };
//! write_shard(&dir, &EventRow::table(), &meta, 0, &[batch_from_rows(&[event.clone()])?])?;
//!
//! let run = Run::open(&dir)?;
//! let (rows, problems) = run.rows::<EventRow>(0);
//! assert_eq!((rows, problems.len()), (vec![event], 0));
//! # std::fs::remove_dir_all(&dir).ok();
//! # Ok(())
//! # }
//! ```

mod analysis_tables;
mod cell;
mod device_tables;
mod durable;
mod error;
mod keys;
mod manifest;
mod rank_tables;
mod run;
mod shard;
mod table;

pub use analysis_tables::*;
pub use arrow_array::RecordBatch;
pub use cell::{Cell, Text, TextColumn};
pub use device_tables::*;
pub use error::Error;
pub use keys::*;
pub use manifest::Manifest;
pub use rank_tables::*;
pub use run::{Problem, Run};
pub use shard::{
    Checker, ROW_GROUP_ROWS, Shard, ShardMeta, column_names, parse_shard_name, shard_path, write_shard, write_table,
};
pub use table::{ColumnInfo, Row, RowBuilder, Table, Writer, batch_from_rows, column, rows_from_batch};
