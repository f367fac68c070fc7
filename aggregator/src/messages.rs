//! The messages of an MPI job. This file belongs to the command and not to the library, so that other programs with the library
//! link no MPI.

use std::time::Duration;

use aggregator::Messages;
use launch::{Identity, World, check_world};
use mpi::Threading;
use mpi::environment::Universe;
use mpi::point_to_point::{Destination, MatchedReceiveVec, Source};
use mpi::topology::{Communicator, SimpleCommunicator};

/// The shortest and the longest sleep of a process that waits. MPI's own waiting takes a whole core.
const SLEEPS: [Duration; 2] = [Duration::from_micros(50), Duration::from_millis(1)];

/// The processes of an MPI job. Its drop waits for all of them.
struct Job {
    world: SimpleCommunicator,
    /// Finalizes MPI when it is dropped.
    _universe: Universe,
}

/// Joins the MPI job of this process. Returns `None` if the launcher started only this process.
///
/// # Errors
/// One sentence, if the variables of the launcher contradict each other, or if the launcher belongs to another MPI.
pub(crate) fn join() -> Result<Option<Box<dyn Messages>>, String> {
    let identity = Identity::from_env(&|name| std::env::var(name).ok()).map_err(|error| error.to_string())?;
    if !identity.launcher.starts_mpi() || identity.world_size < 2 {
        return Ok(None);
    }
    let Some((universe, _)) = mpi::initialize_with_threading(Threading::Funneled) else { return Ok(None) };
    let world = universe.world();
    let library = mpi::environment::library_version().unwrap_or_default();
    let place = World { rank: world.rank(), size: world.size(), library: &library };
    check_world(&identity, &place).map_err(|error| error.to_string())?;
    Ok(Some(Box::new(Job { world, _universe: universe })))
}

impl Messages for Job {
    fn rank(&self) -> u32 {
        self.world.rank().unsigned_abs()
    }

    fn size(&self) -> u32 {
        self.world.size().unsigned_abs()
    }

    fn send(&self, to: u32, bytes: &[u8]) {
        self.world.process_at_rank(to.cast_signed()).send(bytes);
    }

    fn receive(&self, from: u32) -> Vec<u8> {
        let process = self.world.process_at_rank(from.cast_signed());
        let [mut sleep, longest] = SLEEPS;
        loop {
            if let Some(message) = process.immediate_matched_probe() {
                return message.matched_receive_vec::<u8>().0;
            }
            std::thread::sleep(sleep);
            sleep = (2 * sleep).min(longest);
        }
    }
}
