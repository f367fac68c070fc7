//! The door: every kind of input becomes a [`Source`](source::Source) of ranks.

mod columnar;
pub mod inspector;
pub mod kineto;
mod memory;
pub mod mixed;
mod names;
pub mod nsys;
mod ranks;
pub mod rocprof;
mod rows;
pub mod run;
pub mod snapshot;
pub mod source;
pub mod xplane;
