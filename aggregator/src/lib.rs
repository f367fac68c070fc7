//! Reads a run or traces, puts all ranks on one clock, measures, judges, and renders.
//!
//! ```text
//! ingest ─► align ─► measure ─► parts ─► judge ─► compare, torch, what_if, watch, hang ─► render ─► cli
//!    └────────┴─ model: a rank, steps, options, the analysis   base: intervals, units, statistics
//! ```
//!
//! A folder imports from the folders on its left, from `model` and `base`, and from nothing on its right.
//!
//! ```
//! use aggregator::ingest::source::RunSource;
//! use aggregator::{Options, analyze};
//! use fixtures::planted::{Plan, write};
//!
//! # fn main() -> Result<(), aggregator::Error> {
//! # let run = std::env::temp_dir().join(format!("rankscope-aggregator-doc-{}", std::process::id()));
//! // A run in which rank 2 is 5 ms late in every step.
//! write(&Plan { slow: vec![(2, 5_000_000)], ..Plan::default() }, &run)?;
//!
//! let analysis = analyze(&RunSource::open(&run)?, &Options::default(), &|_done, _ranks| ())?;
//! assert_eq!(analysis.verdict.causes, [2]);
//! # std::fs::remove_dir_all(&run).ok();
//! # Ok(())
//! # }
//! ```

pub mod align;
pub mod base;
pub mod cli;
pub mod compare;
pub mod error;
pub mod hang;
pub mod ingest;
pub mod judge;
pub mod measure;
pub mod model;
pub(crate) mod parts;
pub mod render;
pub mod torch;
pub mod watch;
pub mod what_if;

pub use cli::{main_impl, main_with};
pub use error::Error;
pub use judge::findings::{FINDINGS, FindingKind};
pub use judge::reduce::{analyze, reduce};
pub use measure::map::map_rank;
pub use measure::part::RankPart;
pub use model::analysis::Analysis;
pub use model::options::Options;
pub use parts::processes::{Join, Messages};
