//! The `aggregator` command, for the tests of this crate.

#[cfg(feature = "mpi")]
#[path = "../../../aggregator/src/messages.rs"]
mod messages;

#[cfg(feature = "mpi")]
fn main() -> std::process::ExitCode {
    aggregator::main_with(messages::join)
}

#[cfg(not(feature = "mpi"))]
fn main() -> std::process::ExitCode {
    aggregator::main_impl()
}
