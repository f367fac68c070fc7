//! What can be wrong with the way a rank was started.

use crate::Launcher;

/// Why a process cannot know its place in the job.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
#[non_exhaustive]
pub enum Error {
    /// The launcher's environment lacks a variable that goes with another one.
    #[error("{present} is set but {missing} is not: unset {present}, or start all ranks with {}", launcher.command())]
    Incomplete {
        /// Whose environment it seems to be.
        launcher: Launcher,
        /// The variable that is there.
        present: &'static str,
        /// The one that belongs to it.
        missing: &'static str,
    },
    /// A variable does not hold a number of the right range.
    #[error("{variable} is `{value}`, which is not {expected}: unset it, or start all ranks with {}", launcher.command())]
    Unreadable {
        /// Whose environment it seems to be.
        launcher: Launcher,
        /// The variable.
        variable: &'static str,
        /// What it holds.
        value: String,
        /// What it should hold.
        expected: String,
    },
    /// Launcher and MPI library disagree about this process.
    #[error(
        "{} started this process as rank {rank} of {world_size}, but the MPI library it is linked with ({library}) \
         believes it is rank {mpi_rank} of {mpi_size}; {advice}",
        launcher.described()
    )]
    WorldMismatch {
        /// What started the process.
        launcher: Launcher,
        /// Its rank in the launcher's environment.
        rank: i32,
        /// The number of ranks there.
        world_size: i32,
        /// Name and version of the MPI library.
        library: String,
        /// The rank that the library gives.
        mpi_rank: i32,
        /// The number of ranks that the library sees.
        mpi_size: i32,
        /// What to do.
        advice: String,
    },
    /// Nothing says where rank 0 is.
    #[error(
        "nothing in the environment of {} says on which host rank 0 is: set MASTER_ADDR and MASTER_PORT on all ranks, or \
         give --rendezvous HOST:PORT",
        launcher.described()
    )]
    NoMeeting {
        /// What started the process.
        launcher: Launcher,
    },
    /// A meeting place is no address.
    #[error("{variable}: `{value}` does not name a host and a port")]
    Address {
        /// The variable or option.
        variable: &'static str,
        /// What it holds.
        value: String,
    },
}
