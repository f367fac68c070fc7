//! Everything that a rank trains with, and the rows that are the same for every back end.

use std::cell::Cell;
use std::sync::Arc;
use std::sync::atomic::AtomicU32;
use std::time::Instant;

use agent::fabric::agree::{RunPlace, hash, host_hash};
use agent::fabric::ping::PingTree;
use agent::fabric::{Fabric, Stop};
use recorder::Recorder;
use trace::{CommOrigin, CommRow};

use crate::Error;
use crate::engine::{Engine, EngineParts};
use crate::faults::SlowLinks;
use crate::options::Options;
use crate::report::{Report, StepTime};
use crate::stream::{CommNames, WORLD_NAME};
use crate::training::StepResult;

/// Everything that a rank trains with.
#[derive(Clone, Copy)]
pub(crate) struct JobContext<'a> {
    pub(crate) fabric: &'a Arc<dyn Fabric>,
    pub(crate) options: &'a Options,
    pub(crate) recorder: &'a Recorder,
    pub(crate) stop: &'a Stop,
    pub(crate) place: Option<&'a RunPlace>,
    /// The step that began last.
    pub(crate) begun: &'a AtomicU32,
}

/// The result of a training.
pub(crate) struct Trained {
    pub(crate) first: StepResult,
    pub(crate) last: StepResult,
    pub(crate) time: Option<StepTime>,
    pub(crate) report: Report,
}

impl JobContext<'_> {
    /// Writes the row of the workload's communicator.
    pub(crate) fn record_comm(&self, world: &CommNames, hosts: usize) -> Result<(), Error> {
        let size = rank_number(self.fabric.size());
        Ok(self.recorder.rows(vec![CommRow {
            rank: rank_number(self.fabric.rank()),
            comm_id: world.comm_id,
            name: Some(WORLD_NAME.into()),
            description: None,
            origin: Some(CommOrigin::Stated.into()),
            size: Some(size),
            ranks: Some((0..size).collect()),
            comm_rank: Some(rank_number(self.fabric.rank())),
            nodes: Some(rank_number(hosts)),
            created_ns: Some(self.recorder.clock().now_ns()),
            destroyed_ns: None,
        }])?)
    }

    /// The clock comparisons, before the first of them, and the number of hosts. Every rank must call this.
    pub(crate) fn clock_comparison(&self) -> Result<(ClockComparison<'_>, usize), Error> {
        let (tree, hosts) = PingTree::for_fabric(&**self.fabric, host_hash())?;
        Ok((ClockComparison { job: self, tree, last: Cell::new(Instant::now()) }, hosts))
    }

    /// The workload's communicator, as rows name it.
    pub(crate) fn world(&self) -> CommNames {
        let size = self.fabric.size();
        CommNames::new(self.recorder, "mpi", (WORLD_NAME, comm_id(size)), size)
    }

    /// The engine of the workload's communicator of all ranks, for so many buckets.
    pub(crate) fn world_engine(&self, names: CommNames, buckets: usize) -> Result<Engine, Error> {
        let members: Vec<usize> = (0..self.fabric.size()).collect();
        let parts = EngineParts {
            group: self.fabric.clone(),
            names,
            thread: "comm",
            progress: self.options.progress,
            links: SlowLinks::of(&self.options.faults, &members, self.fabric.rank()),
            slots: buckets,
            stop: self.stop.clone(),
        };
        Ok(Engine::start(self.recorder, parts)?)
    }
}

/// The comparisons of the ranks' clocks: before and after the training, after each window of recorded steps, and between two
/// steps when the last comparison is too long ago. Clocks are never compared within a step, which would become longer.
pub(crate) struct ClockComparison<'a> {
    job: &'a JobContext<'a>,
    tree: PingTree,
    last: Cell<Instant>,
}

impl ClockComparison<'_> {
    /// Whether the last comparison is too long ago. Rank 0 decides for all ranks, which learn it in the next exchange.
    pub(crate) fn is_due(&self) -> bool {
        self.job.fabric.rank() == 0 && self.last.get().elapsed() >= self.job.options.ping_interval
    }

    /// Compares the clocks of all ranks once. Collective.
    pub(crate) fn run(&self) -> Result<(), Error> {
        let samples = self.tree.burst(&**self.job.fabric, self.job.recorder.clock())?;
        self.last.set(Instant::now());
        Ok(self.job.recorder.rows(samples)?)
    }
}

/// A rank, or another small count, as rows hold it.
pub(crate) fn rank_number(rank: usize) -> i32 {
    i32::try_from(rank).unwrap_or(i32::MAX)
}

/// The id of the workload's communicator; every rank computes the same.
fn comm_id(size: usize) -> i64 {
    hash(&[WORLD_NAME.as_bytes(), &(size as u64).to_le_bytes()]).cast_signed()
}
