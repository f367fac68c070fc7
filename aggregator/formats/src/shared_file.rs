//! The content of a file that has several ranks. The file is read once for all ranks that are loaded at the same time, or one after the
//! other without a rank of another file in between.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, Weak};

use model::Error;
use trace::lock;

/// A file of several ranks.
#[derive(Debug)]
pub(crate) struct SharedFile<T> {
    held: Mutex<Weak<T>>,
    /// The number of its ranks, and how often one has asked.
    ranks: usize,
    asked: AtomicUsize,
}

/// The content of the file that was read last. A source keeps one file in memory, until the last rank of that file has been loaded.
#[derive(Debug)]
pub(crate) struct LastFile<T>(Arc<Mutex<Option<Arc<T>>>>);

impl<T> Clone for LastFile<T> {
    fn clone(&self) -> Self {
        Self(self.0.clone())
    }
}

impl<T> Default for LastFile<T> {
    fn default() -> Self {
        Self(Arc::default())
    }
}

impl<T> SharedFile<T> {
    /// A file of so many ranks.
    pub(crate) fn of(ranks: usize) -> Self {
        Self { held: Mutex::default(), ranks, asked: AtomicUsize::new(0) }
    }

    /// The content of the file. `read` reads it if no rank holds it.
    ///
    /// # Errors
    /// The error of `read`.
    pub(crate) fn get(&self, last: &LastFile<T>, read: impl FnOnce() -> Result<T, Error>) -> Result<Arc<T>, Error> {
        // Other ranks of the file wait here, and then have it.
        let mut held = lock(&self.held);
        let is_last_rank = (self.asked.fetch_add(1, Ordering::Relaxed) + 1).is_multiple_of(self.ranks.max(1));
        let found = match held.upgrade() {
            Some(found) => found,
            None => {
                // The file before is dropped first: both together may not fit.
                *lock(&last.0) = None;
                Arc::new(read()?)
            }
        };
        *held = Arc::downgrade(&found);
        *lock(&last.0) = (!is_last_rank).then(|| found.clone());
        Ok(found)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_is_read_once_until_another_one_is_read() {
        let (files, last) = ([SharedFile::of(3), SharedFile::of(2)], LastFile::default());
        let mut reads = Vec::new();
        for at in [0, 0, 1, 1, 0, 1] {
            let read = || {
                reads.push(at);
                Ok(at)
            };
            assert_eq!(*files[at].get(&last, read).unwrap(), at);
        }
        assert_eq!(reads, [0, 1, 0, 1]);
        assert!(lock(&last.0).is_some(), "file 1 is read for a second time, and has another rank");
        files[1].get(&last, || Ok(1)).unwrap();
        assert!(lock(&last.0).is_none(), "that was its last rank");
    }
}
