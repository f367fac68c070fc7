//! The communicators of a rank: one along each dimension of the mesh. Each transfer carries known numbers and is checked.

use std::sync::Arc;

use agent::fabric::agree::hash;
use agent::fabric::{Buffers, Group, Transfer};
use recorder::ThreadRecorder;
use trace::{CommOrigin, CommRow};

use super::mesh::{Dimension, Line, Mesh};
use crate::Error;
use crate::context::{JobContext, rank_number};
use crate::engine::{Engine, EngineParts, Progress};
use crate::faults::SlowLinks;
use crate::stream::CommNames;

/// A communicator with the thread that carries its transfers.
pub(super) struct Channel {
    engine: Engine,
    /// Its ranks, and this rank's place among them.
    pub(super) line: Line,
}

/// What carries the transfers.
#[derive(Clone, Copy)]
pub struct Wires<'a> {
    /// Its name in rows: `mpi` or `nccl`.
    pub name: &'a str,
    /// Makes communicators of the ranks that pass the same color. Collective.
    pub split: &'a dyn Fn(usize) -> Result<Arc<dyn Group>, Error>,
}

/// The communicators of a rank. Activations and their gradients have a thread each, because a stage that waits for the one
/// must not hold up the other.
pub(super) struct Comms {
    pub(super) dp: Channel,
    pub(super) tp: Channel,
    pub(super) forward: Channel,
    pub(super) backward: Channel,
}

impl Comms {
    /// Makes the communicators, with so many slots for transfers of data and pipeline parallelism. Collective.
    pub(super) fn new(
        context: &JobContext<'_>,
        mesh: &Mesh,
        wires: Wires<'_>,
        slots: (usize, usize),
    ) -> Result<Self, Error> {
        let rank = context.fabric.rank();
        let open = |dimension: Dimension| -> Result<_, Error> {
            let line = mesh.line(dimension, rank);
            Ok(((wires.split)(line.number)?, line, comm_name(dimension, mesh, rank)))
        };
        let (dp, tp) = (open(Dimension::Dp)?, open(Dimension::Tp)?);
        // NCCL does the messages of a communicator in their order, whichever of them are ready.
        let (forward, backward) = (open(Dimension::Pp)?, open(Dimension::Pp)?);
        type Opened = (Arc<dyn Group>, Line, String);
        let start = |(group, line, name): Opened, thread: &str, progress, slots| -> Result<Channel, Error> {
            let names = CommNames::new(context.recorder, wires.name, (&name, comm_id(&name)), line.ranks.len());
            let links = SlowLinks::of(&context.options.faults, &line.ranks, rank);
            let stop = context.stop.clone();
            let parts = EngineParts { group, names, thread, progress, links, slots, stop };
            Ok(Channel { engine: Engine::start(context.recorder, parts)?, line })
        };
        Ok(Self {
            dp: start(dp, "comm dp", context.options.progress, slots.0)?,
            tp: start(tp, "comm tp", Progress::Thread, 1)?,
            forward: start(forward, "comm pp forward", Progress::Thread, slots.1)?,
            backward: start(backward, "comm pp backward", Progress::Thread, slots.1)?,
        })
    }

    /// The rows of the communicators that have several ranks.
    pub(super) fn rows(context: &JobContext<'_>, mesh: &Mesh) -> Vec<CommRow> {
        let rank = context.fabric.rank();
        let row = |dimension: Dimension| {
            let line = mesh.line(dimension, rank);
            let name = comm_name(dimension, mesh, rank);
            (line.ranks.len() > 1).then(|| CommRow {
                rank: rank_number(rank),
                comm_id: comm_id(&name),
                name: Some(name.as_str().into()),
                description: Some(dimension.name().into()),
                origin: Some(CommOrigin::Stated.into()),
                size: Some(rank_number(line.ranks.len())),
                ranks: Some(line.ranks.iter().map(|rank| rank_number(*rank)).collect()),
                comm_rank: Some(rank_number(line.place)),
                nodes: None,
                created_ns: Some(context.recorder.clock().now_ns()),
                destroyed_ns: None,
            })
        };
        [Dimension::Dp, Dimension::Tp, Dimension::Pp].into_iter().filter_map(row).collect()
    }
}

fn comm_name(dimension: Dimension, mesh: &Mesh, rank: usize) -> String {
    format!("{}.{}", dimension.name(), mesh.line(dimension, rank).number)
}

/// Every rank of the communicator computes the same.
fn comm_id(name: &str) -> i64 {
    hash(&[b"rank-agent", name.as_bytes()]).cast_signed()
}

impl Channel {
    /// Number of ranks.
    pub(super) fn size(&self) -> usize {
        self.line.ranks.len()
    }

    /// Memory for a transfer: this rank sends `piece` numbers for itself, or for each member.
    pub(super) fn buffers(&self, transfer: Transfer, piece: usize) -> Buffers {
        let mine = (self.line.place + 1) as f32;
        let all = piece * self.size();
        match transfer {
            Transfer::AllReduce => Buffers { send: vec![mine; piece], recv: vec![0.0; piece] },
            Transfer::AllGather => Buffers { send: vec![mine; piece], recv: vec![0.0; all] },
            Transfer::ReduceScatter => Buffers { send: vec![mine; all], recv: vec![0.0; piece] },
            Transfer::Send { .. } => Buffers { send: vec![mine; piece], recv: Vec::new() },
            Transfer::Receive { .. } => Buffers { send: Vec::new(), recv: vec![0.0; piece] },
        }
    }

    /// Issues a transfer whose data is ready now.
    pub(super) fn issue(
        &mut self,
        thread: &ThreadRecorder,
        slot: (usize, Option<i32>),
        transfer: Transfer,
        buffers: Buffers,
    ) -> Result<(), Error> {
        Ok(self.engine.issue(thread, slot, transfer, thread.now_ns(), buffers)?)
    }

    /// Waits for the transfer of a slot and checks its numbers.
    pub(super) fn wait(&mut self, slot: usize, transfer: Transfer) -> Result<Buffers, Error> {
        let buffers = self.engine.wait(slot)?;
        self.check(transfer, &buffers.recv)?;
        Ok(buffers)
    }

    /// Waits for all transfers, and forgets the memory of messages.
    pub(super) fn drain(&mut self, slots: usize) -> Result<(), Error> {
        self.engine.wait_all()?;
        for slot in 0..slots {
            self.engine.take(slot);
        }
        Ok(())
    }

    /// Compares the first and the last number with those that the members have sent.
    fn check(&self, transfer: Transfer, recv: &[f32]) -> Result<(), Error> {
        let members = self.size();
        let (first, last) = match transfer {
            Transfer::AllReduce | Transfer::ReduceScatter => {
                let sum = (members * (members + 1) / 2) as f32;
                (sum, sum)
            }
            Transfer::AllGather => (1.0, members as f32),
            Transfer::Send { .. } => return Ok(()),
            Transfer::Receive { peer } => ((peer + 1) as f32, (peer + 1) as f32),
        };
        if recv.first().is_none_or(|x| *x == first) && recv.last().is_none_or(|x| *x == last) {
            return Ok(());
        }
        let got = (recv.first().copied(), recv.last().copied());
        let ranks = &self.line.ranks;
        Err(Error::WrongNumbers(format!("{transfer:?} among ranks {ranks:?}: {got:?} instead of {first} and {last}")))
    }
}
