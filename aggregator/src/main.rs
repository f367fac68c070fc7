//! The `aggregator` command; everything is in the library.
fn main() -> std::process::ExitCode {
    aggregator::main_impl()
}
