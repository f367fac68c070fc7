//! The reference workload: trains a model data-parallel, and records what every rank does.
//!
//! A rank learns its place from its launcher, joins the others over a [`Fabric`](agent::fabric::Fabric), trains a model
//! whose gradients travel in buckets while the backward pass goes on ([`engine::Engine`]), and records what it does.
//! [`job::run`] does all of it.
//!
//! A single rank trains the same way, buckets included, but has no collective and records none: the sum over one rank is
//! its own numbers.

pub mod backend;
pub mod buckets;
pub mod checksum;
pub(crate) mod context;
#[cfg(feature = "cuda")]
pub mod cuda;
pub mod dataset;
pub mod engine;
mod error;
pub mod faults;
pub mod job;
pub mod model;
pub mod op_observer;
pub mod op_recording;
pub mod options;
pub mod parallel;
pub mod report;
pub mod stream;
pub mod trainer;
pub mod training;

pub use crate::error::Error;
