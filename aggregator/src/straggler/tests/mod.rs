//! Drawn timelines, real traces, noise and invariants.

mod build;
mod drawn;
mod kineto;
mod noise;
mod oracles;
mod pipelines;
mod properties;
