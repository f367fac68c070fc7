//! The `aggregator` command, for the tests of this crate.
fn main() -> std::process::ExitCode {
    aggregator::main_impl()
}
