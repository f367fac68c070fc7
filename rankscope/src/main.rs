//! The `rankscope` command; everything is in the library.

/// See the comment at the dependency.
#[cfg(target_env = "musl")]
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> std::process::ExitCode {
    rankscope::main_impl()
}
