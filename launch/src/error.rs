//! Errors in the environment of a rank.

use crate::Launcher;

/// The reason why a process cannot learn its place in the job.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
#[non_exhaustive]
pub enum Error {
    /// One of two variables that belong together is missing.
    #[error("{present} is set but {missing} is not: unset {present}, or start all ranks with {}", launcher.command())]
    Incomplete {
        /// The launcher that these variables belong to.
        launcher: Launcher,
        /// The variable that is set.
        present: &'static str,
        /// The variable that is missing.
        missing: &'static str,
    },
    /// A variable does not hold a number in its range.
    #[error("{variable} is `{value}`, which is not {expected}: unset it, or start all ranks with {}", launcher.command())]
    Unreadable {
        /// The launcher that these variables belong to.
        launcher: Launcher,
        /// The variable.
        variable: &'static str,
        /// Its value.
        value: String,
        /// The expected value.
        expected: String,
    },
    /// The launcher and the MPI library report different ranks.
    #[error(
        "{} started this process as rank {rank} of {world_size}, but the MPI library it is linked with ({library}) \
         reports rank {mpi_rank} of {mpi_size}; {advice}",
        launcher.described()
    )]
    WorldMismatch {
        /// The launcher.
        launcher: Launcher,
        /// Rank in the launcher's environment.
        rank: i32,
        /// Number of ranks in the launcher's environment.
        world_size: i32,
        /// Name and version of the MPI library.
        library: String,
        /// Rank from the library.
        mpi_rank: i32,
        /// Number of ranks from the library.
        mpi_size: i32,
        /// A way to mend it.
        advice: String,
    },
    /// No variable gives the host of rank 0.
    #[error(
        "{} sets no address of rank 0: set MASTER_ADDR and MASTER_PORT on all ranks, or give --rendezvous HOST:PORT",
        launcher.described()
    )]
    NoMeeting {
        /// The launcher.
        launcher: Launcher,
    },
    /// A variable or option is not an address.
    #[error("{variable}: `{value}` is not a host and a port, as in node0:29500")]
    Address {
        /// The variable or option.
        variable: &'static str,
        /// Its value.
        value: String,
    },
}
