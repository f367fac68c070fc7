//! The fabric over MPI. It is a crate of its own, so that whatever does not link it builds without MPI and libclang.

mod error;
#[expect(unsafe_code, reason = "MPI's C interface: rsmpi drops return codes, and its requests borrow for one scope")]
mod ffi;

use std::sync::{Arc, Mutex};

use agent::Error as AgentError;
use agent::fabric::{Buffers, Control, Fabric, Group, InFlight, Lane, Pace, Stop, Transfer, wait_for};
use mpi::environment::Universe;

use self::ffi::{Communicator, Operation, SendRecv};

pub use crate::error::Error;

/// A rank of an MPI job.
pub struct Mpi {
    world: Communicator,
    control: Communicator,
    rank: usize,
    size: usize,
    stop: Stop,
    /// Finalizes MPI when dropped; kept until [`Mpi::leave`], because all ranks must finalize together.
    universe: Mutex<Option<Universe>>,
}

impl Mpi {
    /// Initializes MPI for several threads and duplicates the world twice.
    ///
    /// Before that it makes Open MPI yield the core while it waits, as `--oversubscribe` does, unless the user has set the
    /// variable: ranks may outnumber cores, and each has two threads. The environment can be changed only while the process
    /// has no other threads.
    ///
    /// # Errors
    /// [`Error::Call`]; [`Error::Unavailable`] if the library does not support threads, or MPI is initialized already.
    pub fn enter(stop: Stop) -> Result<Self, Error> {
        ffi::set_default_environment("OMPI_MCA_mpi_yield_when_idle", "1");
        let (universe, level) = mpi::initialize_with_threading(mpi::Threading::Multiple)
            .ok_or_else(|| Error::Unavailable("MPI is initialized already".into()))?;
        // An early return must not finalize MPI, because other ranks may not have failed.
        let universe = Mutex::new(Some(universe));
        if level < mpi::Threading::Multiple {
            forget(&universe);
            return Err(Error::Unavailable(format!(
                "the MPI library offers thread level {level:?}, but a communication thread beside the main thread needs \
                 Multiple; build MPI with MPI_THREAD_MULTIPLE"
            )));
        }
        let (world, control) = match ffi::duplicate_world().and_then(|world| Ok((world, ffi::duplicate_world()?))) {
            Ok(both) => both,
            Err(error) => {
                forget(&universe);
                return Err(error);
            }
        };
        let (rank, size) = (control.rank()?, control.size()?);
        Ok(Self { world, control, rank, size, stop, universe })
    }

    /// Finalizes MPI; every rank must call it. Without this call, dropping does not finalize MPI, which would wait for ranks
    /// that have failed.
    pub fn leave(&self) {
        let universe = match self.universe.lock() {
            Ok(mut guard) => guard.take(),
            Err(_) => None,
        };
        drop(universe);
    }

    fn communicator(&self, lane: Lane) -> &Communicator {
        match lane {
            Lane::World => &self.world,
            Lane::Control => &self.control,
        }
    }

    /// Waits for an operation and returns its memory.
    fn complete<M>(&self, mut operation: Operation<M>, pace: Pace) -> Result<M, AgentError> {
        wait_for(&self.stop, pace, || Ok(operation.test()?))?;
        operation.into_memory().ok_or(AgentError::Abandoned)
    }
}

fn forget(universe: &Mutex<Option<Universe>>) {
    if let Ok(mut guard) = universe.lock() {
        std::mem::forget(guard.take());
    }
}

impl Drop for Mpi {
    fn drop(&mut self) {
        forget(&self.universe);
    }
}

impl Control for Mpi {
    fn rank(&self) -> usize {
        self.rank
    }

    fn size(&self) -> usize {
        self.size
    }

    fn version(&self) -> String {
        let version = mpi::environment::library_version().unwrap_or_default();
        // Open MPI prints one line with details of its build, MPICH prints many lines.
        version
            .trim_matches('\0')
            .lines()
            .next()
            .unwrap_or("MPI")
            .split(", package")
            .next()
            .unwrap_or("MPI")
            .trim()
            .into()
    }

    fn barrier(&self) -> Result<(), AgentError> {
        self.complete(self.control.start_barrier()?, Pace::calm())
    }

    fn broadcast(&self, bytes: Vec<u8>) -> Result<Vec<u8>, AgentError> {
        let length = [bytes.len() as u64];
        let length = self.all_gather(Lane::Control, &length)?[0];
        let mut bytes = bytes;
        // Rank 0's length is the right one; on rank 0 this changes nothing.
        bytes.resize(length as usize, 0);
        self.complete(self.control.start_broadcast(bytes)?, Pace::calm())
    }

    fn all_gather(&self, lane: Lane, mine: &[u64]) -> Result<Vec<u64>, AgentError> {
        let all = vec![0; mine.len() * self.size];
        let operation = self.communicator(lane).start_all_gather(mine.to_vec(), all)?;
        Ok(self.complete(operation, Pace::brisk())?.1)
    }

    fn send_word(&self, peer: usize, word: i64) -> Result<(), AgentError> {
        Ok(self.control.send_word(peer, word)?)
    }

    fn receive_word(&self, peer: usize) -> Result<i64, AgentError> {
        let mut operation = self.control.start_receive_word(peer)?;
        while !operation.test()? {
            self.stop.check()?;
            // Open MPI yields in its test; other libraries spin.
            std::hint::spin_loop();
        }
        operation.into_memory().map(|word| word[0]).ok_or(AgentError::Abandoned)
    }

    fn abandon(&self, exit_code: u8) {
        self.control.abort(exit_code);
    }
}

impl Group for Mpi {
    fn start(&self, transfer: Transfer, buffers: Buffers) -> Result<Box<dyn InFlight>, AgentError> {
        self.world.start(transfer, buffers)
    }
}

impl Fabric for Mpi {
    fn split(&self, color: usize) -> Result<Arc<dyn Group>, AgentError> {
        Ok(Arc::new(self.world.split(color)?))
    }
}

impl Group for Communicator {
    fn start(&self, transfer: Transfer, buffers: Buffers) -> Result<Box<dyn InFlight>, AgentError> {
        let Buffers { send, recv } = buffers;
        Ok(Box::new(OverMpi(match transfer {
            Transfer::AllReduce => self.start_all_reduce(send, recv)?,
            Transfer::AllGather => self.start_all_gather_floats(send, recv)?,
            Transfer::ReduceScatter => self.start_reduce_scatter(send, recv)?,
            Transfer::Send { peer } => self.start_send(peer, send, recv)?,
            Transfer::Receive { peer } => self.start_receive(peer, send, recv)?,
        })))
    }
}

struct OverMpi(Operation<SendRecv<f32>>);

impl InFlight for OverMpi {
    fn test(&mut self) -> Result<bool, AgentError> {
        Ok(self.0.test()?)
    }

    fn into_buffers(self: Box<Self>) -> Buffers {
        self.0.into_memory().map_or_else(Buffers::default, |(send, recv)| Buffers { send, recv })
    }
}
