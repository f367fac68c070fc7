//! The messages of an MPI job. This file belongs to the command and not to the library, so that other programs with the library
//! link no MPI.

use std::time::Duration;

use launch::{Identity, World, check_world};
use mpi::Threading;
use mpi::environment::Universe;
use mpi::point_to_point::{Destination, MatchedReceiveVec, Source};
use mpi::topology::{Communicator, SimpleCommunicator};
use pipeline::parts::processes::Messages;

/// The shortest sleep of a process that waits. MPI's own waiting takes a whole core.
const SHORTEST: Duration = Duration::from_micros(50);
/// The longest sleep of a process that waits for a message.
const LONGEST: Duration = Duration::from_millis(1);
/// The longest sleep of a process whose message is taken. Where MPI copies a long message in pieces, a test sends the next ones.
const LONGEST_OF_SENDER: Duration = Duration::from_micros(100);

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
        let process = self.world.process_at_rank(to.cast_signed());
        mpi::request::scope(|scope| {
            let mut sent = Some(process.immediate_send(scope, bytes));
            wait_for(LONGEST_OF_SENDER, || match sent.take()?.test() {
                Ok(_) => Some(()),
                Err(request) => {
                    sent = Some(request);
                    None
                }
            });
        });
    }

    fn receive(&self, from: u32) -> Vec<u8> {
        let process = self.world.process_at_rank(from.cast_signed());
        wait_for(LONGEST, || process.immediate_matched_probe()).matched_receive_vec::<u8>().0
    }
}

/// Asks until there is an answer, and sleeps between.
fn wait_for<T>(longest: Duration, mut ask: impl FnMut() -> Option<T>) -> T {
    let mut sleep = SHORTEST;
    loop {
        if let Some(answer) = ask() {
            return answer;
        }
        std::thread::sleep(sleep);
        sleep = (2 * sleep).min(longest);
    }
}
