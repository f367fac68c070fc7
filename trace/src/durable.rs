//! Files that exist whole or not at all: temporary name, sync, rename, sync of the directory.

use std::fs::{self, File};
use std::path::{Path, PathBuf};

use crate::Error;

/// The name a file has while it is being written. It does not end in `.parquet`, so no glob of a reader meets it.
pub(crate) fn temporary_name(path: &Path) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(".tmp");
    name.into()
}

/// Writes `path` through `fill`. On any error the temporary file is removed and `path` is as it was.
///
/// # Errors
/// What `fill` returns, or [`Error::Io`].
pub(crate) fn replace(path: &Path, fill: impl FnOnce(&mut File) -> Result<(), Error>) -> Result<(), Error> {
    let temporary = temporary_name(path);
    let io = |source| Error::Io { path: path.into(), source };
    let written = File::create(&temporary).map_err(io).and_then(|mut file| {
        fill(&mut file)?;
        file.sync_all().map_err(io)
    });
    let renamed = written.and_then(|()| fs::rename(&temporary, path).map_err(io));
    if let Err(error) = renamed {
        // The first error is the one to report; a leftover temporary file is named so that readers ignore it.
        let _ = fs::remove_file(&temporary);
        return Err(error);
    }
    match path.parent() {
        Some(parent) => File::open(parent).and_then(|dir| dir.sync_all()).map_err(io),
        None => Ok(()),
    }
}
