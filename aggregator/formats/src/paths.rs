//! Paths: whether one is a run or a directory, and how one inside a run is named.

use std::path::Path;
use std::sync::Arc;

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

/// The path of a file inside its run, for messages.
pub(crate) fn relative(path: &Path, run: &Path) -> Arc<str> {
    path.strip_prefix(run).unwrap_or(path).display().to_string().into()
}
