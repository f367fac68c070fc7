//! A disk that hangs: fsync(2) of files in one directory does not return until the disk is released.

#[expect(unsafe_code, reason = "a function of the C library is replaced in this program")]
mod ffi;

use std::os::fd::RawFd;
use std::path::{Path, PathBuf};
use std::sync::{Condvar, Mutex};

static HANGING: Mutex<Option<PathBuf>> = Mutex::new(None);
static RELEASED: Condvar = Condvar::new();

/// The disk hangs as long as this lives.
pub(crate) struct HangingDisk;

impl HangingDisk {
    /// Lets every sync of files in `directory` hang.
    pub(crate) fn at(directory: &Path) -> Self {
        *HANGING.lock().unwrap() = Some(directory.canonicalize().unwrap());
        Self
    }
}

impl Drop for HangingDisk {
    fn drop(&mut self) {
        *HANGING.lock().unwrap() = None;
        RELEASED.notify_all();
    }
}

/// Returns when the file does not lie on a hanging disk.
fn wait(file: RawFd) {
    let Ok(path) = std::fs::read_link(format!("/proc/self/fd/{file}")) else { return };
    let hangs =
        |directory: &mut Option<PathBuf>| directory.as_ref().is_some_and(|directory| path.starts_with(directory));
    drop(RELEASED.wait_while(HANGING.lock().unwrap(), hangs));
}
