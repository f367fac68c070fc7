//! The bytes of a file that several ranks read. Ranks that are read at the same time share them, and so do ranks that are read one after
//! the other, as long as no rank of another file comes in between.

use std::sync::{Arc, Mutex, Weak};

use model::Error;
use trace::lock;

/// A file of several ranks.
#[derive(Debug, Default)]
pub(crate) struct SharedFile(Mutex<Weak<Vec<u8>>>);

/// The bytes of the file that was read last: of all files of a source, one stays in memory.
#[derive(Clone, Debug, Default)]
pub(crate) struct LastFile(Arc<Mutex<Option<Arc<Vec<u8>>>>>);

impl SharedFile {
    /// Its bytes, through `read` if no rank holds them.
    ///
    /// # Errors
    /// The error of `read`.
    pub(crate) fn bytes(
        &self,
        last: &LastFile,
        read: impl FnOnce() -> Result<Vec<u8>, Error>,
    ) -> Result<Arc<Vec<u8>>, Error> {
        // Other ranks of the file wait here, and then have its bytes.
        let mut held = lock(&self.0);
        if let Some(bytes) = held.upgrade() {
            return Ok(bytes);
        }
        // The file before is dropped first: both together may not fit.
        *lock(&last.0) = None;
        let bytes = Arc::new(read()?);
        *held = Arc::downgrade(&bytes);
        *lock(&last.0) = Some(bytes.clone());
        Ok(bytes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_is_read_once_until_another_one_is_read() {
        let (files, last) = ([SharedFile::default(), SharedFile::default()], LastFile::default());
        let mut reads = Vec::new();
        for at in [0, 0, 1, 1, 0] {
            let read = || {
                reads.push(at);
                Ok(vec![at as u8])
            };
            assert_eq!(*files[at].bytes(&last, read).unwrap(), [at as u8]);
        }
        assert_eq!(reads, [0, 1, 0]);
    }
}
