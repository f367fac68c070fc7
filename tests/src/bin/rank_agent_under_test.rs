//! The `rank-agent` command, for the tests of this crate.
fn main() -> std::process::ExitCode {
    rank_agent::main_impl()
}
