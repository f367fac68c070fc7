//! Opens a shared library and checks its symbols.

use std::ffi::OsStr;
use std::path::Path;

/// A library that stays open until the process ends, because its threads and exit handlers may outlive any owner.
#[derive(Debug)]
pub struct Library(&'static libloading::Library);

impl Library {
    /// Opens a library by a bare name, which the loader resolves, or by a path.
    pub(in crate::cuda) fn open(name: &OsStr) -> Result<Self, String> {
        // SAFETY: the initializers of NVIDIA's libraries may run on any thread and assume nothing of the program. The
        // user's installation guarantees that a file of this name is such a library, as for every program that links it.
        match unsafe { libloading::Library::new(name) } {
            Ok(library) => Ok(Self(Box::leak(Box::new(library)))),
            Err(error) => Err(describe(&error, name)),
        }
    }

    /// Whether the library has a symbol.
    pub fn has(&self, symbol: &str) -> bool {
        // SAFETY: the address is compared, never used.
        unsafe { self.0.get::<*const ()>(symbol.as_bytes()) }.is_ok()
    }

    /// The library, for lookups of functions.
    pub fn raw(&self) -> &'static libloading::Library {
        self.0
    }
}

/// The loader's message without the name, which the caller prints.
fn describe(error: &libloading::Error, name: &OsStr) -> String {
    use std::error::Error as _;
    let text = error.source().map_or_else(|| error.to_string(), ToString::to_string);
    let name = Path::new(name).display().to_string();
    text.strip_prefix(&format!("{name}: ")).map_or(text.clone(), str::to_owned)
}
