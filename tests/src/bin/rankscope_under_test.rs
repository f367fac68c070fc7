//! The `rankscope` command, for the tests of this crate.
fn main() -> std::process::ExitCode {
    rankscope::main_impl()
}
