//! Times per step, over all steps of the job.
//!
//! A job may have a collective in some of its steps only, as with gradient accumulation:
//!
//! ```text
//!   step        |---1---|---2---|---3---|---4---|
//!   rank 0      ####### ####### ####### #####[~~A]       own work of four steps before A
//!   rank 1      ####### ####### ####### #######[A]
//! ```
//!
//! Own work of all four steps is compared at the collective of the fourth. Per step it is a fourth of that.

use std::collections::BTreeSet;

use measure::own_time::OwnTime;

/// The share of the job's steps that have a collective: times that are measured once per such step become times per step.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct PerStep(f64);

impl PerStep {
    /// The share over the active steps of all ranks; 1 without any collective.
    pub fn of(parts: &[&OwnTime]) -> Self {
        let all: BTreeSet<i32> = parts.iter().flat_map(|p| p.steps.iter().map(|s| s.step)).collect();
        let with: BTreeSet<i32> = parts.iter().flat_map(|p| p.stretches.iter().filter_map(|s| s.step)).collect();
        Self(if with.is_empty() || with.len() >= all.len() { 1.0 } else { with.len() as f64 / all.len() as f64 })
    }

    /// Whether every step of the job has a collective.
    pub fn is_every(self) -> bool {
        self.0 >= 1.0
    }

    /// A time per step from a time per step with a collective.
    pub fn ns(self, ns: i64) -> i64 {
        if self.0 < 1.0 { (ns as f64 * self.0).round() as i64 } else { ns }
    }
}
