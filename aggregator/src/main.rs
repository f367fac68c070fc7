//! The `aggregator` command; everything but MPI is in the library.

#[cfg(feature = "mpi")]
mod messages;

#[cfg(feature = "mpi")]
fn main() -> std::process::ExitCode {
    aggregator::main_with(messages::join)
}

#[cfg(not(feature = "mpi"))]
fn main() -> std::process::ExitCode {
    aggregator::main_impl()
}
