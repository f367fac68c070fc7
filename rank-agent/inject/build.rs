//! Links the library such that it is never unloaded.

fn main() {
    // NCCL closes its plugin after the last communicator, while the recorder's threads run and its handlers are
    // registered for exit.
    println!("cargo:rustc-cdylib-link-arg=-Wl,-z,nodelete");
    println!("cargo:rerun-if-changed=build.rs");
}
