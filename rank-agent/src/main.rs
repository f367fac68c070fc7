//! The `rank-agent` command; everything is in the library.
fn main() -> std::process::ExitCode {
    rank_agent::main_impl()
}
