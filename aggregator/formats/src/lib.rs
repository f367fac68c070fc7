//! Every kind of input becomes a [`Source`](model::source::Source) of ranks.

mod columnar;
pub mod format;
pub mod ingest;
pub mod input;
pub mod inspector;
pub mod job_files;
pub mod kineto;
pub mod memory;
mod mixed;
mod names;
pub mod nsys;
pub mod paths;
mod ranks;
pub mod registry;
pub mod rocprof;
mod rows;
pub mod run;
pub mod run_source;
mod shared_file;
pub mod snapshot;
pub mod xplane;
