//! Opening a shared library, and looking whether it has what is needed.

use std::ffi::OsStr;
use std::path::Path;

/// A library that stays open until the process ends: what it started (threads, handlers at exit) may outlive any owner.
#[derive(Debug)]
pub struct Library(&'static libloading::Library);

impl Library {
    /// Opens a library by a bare name, by the loader's rules, or by a path.
    pub(in crate::cuda) fn open(name: &OsStr) -> Result<Self, String> {
        // SAFETY: the initialisers of NVIDIA's libraries may run on any thread and assume nothing of the program; that
        // a file of this name is such a library is the user's installation, as it is for every program that links it.
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

    /// The library itself, to take functions from.
    pub fn raw(&self) -> &'static libloading::Library {
        self.0
    }
}

/// The loader's own words without the name, which the caller says.
fn describe(error: &libloading::Error, name: &OsStr) -> String {
    use std::error::Error as _;
    let text = error.source().map_or_else(|| error.to_string(), ToString::to_string);
    let name = Path::new(name).display().to_string();
    text.strip_prefix(&format!("{name}: ")).map_or(text.clone(), str::to_owned)
}
