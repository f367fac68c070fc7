//! The door: every kind of input becomes a [`Source`](source::Source) of ranks.

pub mod kineto;
pub mod run;
pub mod source;
