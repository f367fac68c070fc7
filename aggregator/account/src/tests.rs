//! Tests of the verdicts: drawn timelines, real traces, simulated noise, and properties of all jobs.

mod build;
mod drawn;
mod graph;
mod job_path;
mod kin;
mod kineto;
mod noise;
mod occasional;
mod oracles;
mod pipelines;
mod planted;
mod properties;
mod rebucket;
mod stages;
mod usual;
