//! Tells whether a path is a run or a directory.

use std::path::Path;

use model::Error;
use trace::{MANIFEST_FILE, place};

/// Whether a path is a run.
///
/// # Errors
/// [`Error::Io`].
pub fn is_run(path: &Path) -> Result<bool, Error> {
    place::is_file(&path.join(MANIFEST_FILE)).map_err(|source| Error::Io { path: path.into(), source })
}

/// [`place::is_directory`], with the path in its error.
///
/// # Errors
/// [`Error::Io`].
pub fn is_directory(path: &Path) -> Result<bool, Error> {
    place::is_directory(path).map_err(|source| Error::Io { path: path.into(), source })
}
