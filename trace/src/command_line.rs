//! The command line of this process, as messages and manifests show it.

use std::ffi::OsString;
use std::sync::OnceLock;

static GIVEN: OnceLock<Vec<OsString>> = OnceLock::new();

/// Sets the command line, program first, where another program runs the command: of an interpreter, the system knows only
/// its own arguments. The first call counts.
pub fn set(arguments: Vec<OsString>) {
    let _ = GIVEN.set(arguments);
}

/// The command line, program first.
pub fn get() -> Vec<OsString> {
    GIVEN.get().cloned().unwrap_or_else(|| std::env::args_os().collect())
}
