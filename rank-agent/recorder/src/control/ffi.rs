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

    /// The word after the magic. It is for calls of the kernel only, which fail if the file was cut: a read in this process would end
    /// it by a signal.
    pub(super) fn word(&self) -> &AtomicU32 {
        // SAFETY: the word lies inside the mapping and is aligned because the mapping begins at a page. It is neither read nor
        // written through this reference.
        unsafe { AtomicU32::from_ptr(self.0.as_mut_ptr().add(MAGIC.len()).cast()) }
    }
}
