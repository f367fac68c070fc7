//! A page of a file that several processes map into their memory.

use std::fs::File;
use std::sync::atomic::AtomicU32;

use memmap2::MmapRaw;

/// First bytes of the page. They distinguish it from other files.
pub(super) const MAGIC: [u8; 8] = *b"rnkscp01";

/// A mapping of at least a page.
#[derive(Debug)]
pub(super) struct Page(MmapRaw);

impl Page {
    pub(super) fn map(file: &File) -> std::io::Result<Self> {
        Ok(Self(MmapRaw::map_raw(file)?))
    }

    pub(super) fn magic(&self) -> [u8; MAGIC.len()] {
        // SAFETY: the mapping is a whole page, and no process writes these bytes after the file was created. Only the
        // file's owner could truncate it, which would end this process by a signal.
        unsafe { self.0.as_ptr().cast::<[u8; MAGIC.len()]>().read() }
    }

    /// The word after the magic.
    pub(super) fn word(&self) -> &AtomicU32 {
        // SAFETY: the word lies inside the mapping, is aligned because the mapping begins at a page, and every process
        // uses it as an atomic.
        unsafe { AtomicU32::from_ptr(self.0.as_mut_ptr().add(MAGIC.len()).cast()) }
    }
}
