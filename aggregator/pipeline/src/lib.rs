//! Loads, maps, aligns, reduces and judges: a source of ranks becomes one [`Analysis`].
//!
//! ```
//! use fixtures::planted::{Plan, write};
//! use formats::run_source::RunSource;
//! use pipeline::{Options, analyze};
//!
//! # fn main() -> Result<(), model::Error> {
//! # let run = std::env::temp_dir().join(format!("rankscope-pipeline-doc-{}", std::process::id()));
//! // A run in which rank 2 is 5 ms late in every step.
//! write(&Plan { slow: vec![(2, 5_000_000)], ..Plan::default() }, &run)?;
//!
//! let analysis = analyze(&RunSource::open(&run)?, &Options::default(), &|_done, _ranks| ())?;
//! assert_eq!(analysis.verdict.causes, [2]);
//! # std::fs::remove_dir_all(&run).ok();
//! # Ok(())
//! # }
//! ```
//!
//! The smallest source has one rank with one kernel:
//!
//! ```
//! use model::source::{Source, SourceInfo};
//! use model::{Events, Kind, NO_PARENT, NO_STEP, NONE, RankData};
//! use model::Error;
//! use pipeline::{Options, analyze};
//!
//! struct OneKernel;
//!
//! impl Source for OneKernel {
//!     fn info(&self) -> SourceInfo {
//!         SourceInfo { tool: "my profiler".into(), world_size: Some(1), ..SourceInfo::default() }
//!     }
//!     fn ranks(&self) -> Vec<i32> {
//!         vec![0]
//!     }
//!     fn problems(&self) -> Vec<trace::OmissionRow> {
//!         Vec::new()
//!     }
//!     fn load(&self, rank: i32) -> Result<RankData, Error> {
//!         let mut data = RankData { names: vec!["gemm".into()], ..RankData::default() };
//!         (data.outline.info.rank, data.outline.info.clock_domain) = (rank, "node-a/steady".into());
//!         data.events = Events {
//!             kind: vec![Kind::Kernel],
//!             name: vec![0],
//!             ts_ns: vec![1_000],
//!             dur_ns: vec![500],
//!             id: vec![1],
//!             step: vec![NO_STEP],
//!             thread: vec![NONE],
//!             device: vec![0],
//!             stream: vec![7],
//!             correlation: vec![NONE],
//!             external: vec![NONE],
//!             parent: vec![NO_PARENT],
//!             is_comm: vec![false],
//!             bytes: vec![NONE],
//!             flops: vec![NONE],
//!         };
//!         Ok(data)
//!     }
//! }
//!
//! # fn main() -> Result<(), Error> {
//! let analysis = analyze(&OneKernel, &Options::default(), &|_done, _ranks| ())?;
//! assert!(analysis.verdict.causes.is_empty());
//! # Ok(())
//! # }
//! ```

pub mod analyze;
pub mod diff;
mod identity;
pub mod parts;
mod step_numbers;
pub mod watch;

pub use analyze::{analyze, reduce};
pub use model::analysis::Analysis;
pub use model::options::Options;
