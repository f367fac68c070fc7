//! Reads a file of rocprofv3 as text, and names a process in it.

use std::io::Read;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use crate::shared_file::SharedFile;
use model::Error;
use model::units;

/// A process as a rank.
#[derive(Clone, Debug)]
pub(super) struct Claimed {
    pub(super) rank: i32,
    pub(super) file: PathBuf,
    /// The file's bytes, which its processes share.
    pub(super) shared: Arc<SharedFile<Vec<u8>>>,
    pub(super) size_bytes: u64,
    /// The place of its text in the file.
    pub(super) text: Range<usize>,
}

/// The error of a file that cannot be read.
pub(super) fn unread(path: &Path, why: impl std::fmt::Display) -> Error {
    Error::NoInput { path: path.into(), why: format!("it cannot be read as JSON of rocprofv3: {why}") }
}

/// Reads a file, compressed or not, whose text has at most `max_bytes`.
pub(super) fn read(path: &Path, max_bytes: u64) -> Result<Vec<u8>, Error> {
    let io = |source| Error::Io { path: path.into(), source };
    let mut bytes = Vec::new();
    kineto::open_text(path).map_err(io)?.take(max_bytes.saturating_add(1)).read_to_end(&mut bytes).map_err(io)?;
    if bytes.len() as u64 > max_bytes {
        let size = units::bytes(i64::try_from(max_bytes).unwrap_or(i64::MAX));
        let why = format!("it takes more memory than the {size} that files may take; give more with --max-memory");
        return Err(Error::NoInput { path: path.into(), why });
    }
    Ok(bytes)
}
