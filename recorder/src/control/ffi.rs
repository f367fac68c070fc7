//! A page of a file that several processes map.

use std::fs::File;
use std::sync::atomic::AtomicU32;

use memmap2::MmapRaw;

use super::MAGIC;

/// A mapping of at least [`super::PAGE_BYTES`].
#[derive(Debug)]
pub(super) struct Page(MmapRaw);

impl Page {
    pub(super) fn map(file: &File) -> std::io::Result<Self> {
        Ok(Self(MmapRaw::map_raw(file)?))
    }

    pub(super) fn magic(&self) -> [u8; MAGIC.len()] {
        // SAFETY: the mapping is a whole page, and nobody writes these bytes after the file was made. Only the file's
        // owner could cut it short, which ends the process by a signal and is no other program's mistake.
        unsafe { self.0.as_ptr().cast::<[u8; MAGIC.len()]>().read() }
    }

    /// The word behind the magic.
    pub(super) fn word(&self) -> &AtomicU32 {
        // SAFETY: inside the mapping, aligned since that begins at a page, and used as an atomic by every process.
        unsafe { AtomicU32::from_ptr(self.0.as_mut_ptr().add(MAGIC.len()).cast()) }
    }
}
