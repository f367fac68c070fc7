//! The `rankscope` command; everything is in the library.
fn main() -> std::process::ExitCode {
    rankscope::main_impl()
}
