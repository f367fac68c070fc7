//! The NCCL that a program of this environment would load.

use std::ffi::c_int;
use std::path::PathBuf;

use libloading::Library;

use crate::installed;

/// The name for the loader, and in folders that it does not search.
const NAME: &str = "libnccl.so.2";

/// A NCCL.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Found {
    /// The library, or its name if the loader finds it.
    pub path: PathBuf,
    /// Its version, such as (2, 28, 9).
    pub version: (i32, i32, i32),
}

/// Finds NCCL: by the loader, else in Python's wheels. A program that brings its own, as static builds of PyTorch do, may load another
/// one.
///
/// # Errors
/// The paths that were tried.
pub fn find() -> Result<Found, Vec<PathBuf>> {
    let folders = installed::wheels(&["nccl/lib", "cu13/lib"]).into_iter();
    let tried: Vec<PathBuf> =
        std::iter::once(NAME.into()).chain(folders.map(|directory| directory.join(NAME))).collect();
    tried.iter().find_map(|path| Some(Found { path: path.clone(), version: version(path)? })).ok_or(tried)
}

fn version(path: &PathBuf) -> Option<(i32, i32, i32)> {
    // SAFETY: loading runs the initialisers of NVIDIA's libnccl, which need no driver.
    let library = unsafe { Library::new(path) }.ok()?;
    // SAFETY: nccl.h declares `ncclResult_t ncclGetVersion(int *version)`, in every version.
    let get_version = unsafe { library.get::<unsafe extern "C" fn(*mut c_int) -> c_int>(b"ncclGetVersion\0") }.ok()?;
    let mut code = 0;
    // SAFETY: it writes one int.
    let is_known = unsafe { get_version(&raw mut code) } == 0;
    // Its threads, if it has any, may still run: it stays loaded.
    std::mem::forget(library);
    is_known.then_some((code / 10_000, code / 100 % 100, code % 100))
}
