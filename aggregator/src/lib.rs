//! The `aggregator` command, and its commands as functions for other languages.
//!
//! The analysis is in the crates of the folders beside this one: [`pipeline`] loads, maps, aligns, reduces and judges.
//! [`render`](mod@render) analyzes a source and writes a report or a timeline.

pub mod cli;
pub mod render;

pub use cli::{main_impl, main_with};
