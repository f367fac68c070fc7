//! The operations of a file, whichever of its two formats it has.

use std::io;
use std::path::Path;

use crate::inspector::objects::{self, Damage, Object};
use crate::inspector::table;

/// Reads the operations of a dump or of a table in their order, until `take` returns false. What is no operation counts as damage.
///
/// # Errors
/// That of opening the file.
pub(super) fn read(path: &Path, take: impl FnMut(Object<'_>) -> bool) -> io::Result<Damage> {
    if table::is_table(path) { Ok(table::read(path, take)) } else { objects::read(path, take) }
}
