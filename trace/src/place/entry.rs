//! What a path leads to.

use std::path::PathBuf;

/// What a path leads to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// A regular file, or an object.
    File {
        /// Its size.
        bytes: u64,
    },
    /// A directory, or the prefix of some objects.
    Directory,
    /// A pipe, a socket or a device.
    Other,
}

/// Something in a directory.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Entry {
    /// Its path, which begins with that of the directory.
    pub path: PathBuf,
    /// Whether it is a directory, or a link to one.
    pub is_directory: bool,
}
