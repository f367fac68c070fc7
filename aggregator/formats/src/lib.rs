//! Every kind of input becomes a [`Source`](model::source::Source) of ranks.

mod columnar;
pub mod exports;
pub mod input;
pub mod inspector;
pub mod kineto;
mod memory;
pub mod mixed;
mod names;
pub mod nsys;
mod nsys_export;
pub mod paths;
mod ranks;
pub mod rocprof;
mod rows;
pub mod run;
pub mod run_source;
pub mod snapshot;
pub mod xplane;
