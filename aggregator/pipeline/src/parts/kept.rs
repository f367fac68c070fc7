//! The files of a share that its process keeps until process 0 has read them.

use std::fs::File;
use std::io::{self, Write};
use std::os::unix::fs::FileExt;

use model::Error;

/// Files, one after the other in a file without a name in the system's directory for temporary files. In memory they would stay
/// beside what a reduction needs, up to its end.
#[derive(Debug)]
pub struct KeptFiles {
    content: File,
    /// The byte after each file.
    ends: Vec<u64>,
}

impl KeptFiles {
    /// Keeps no file yet.
    ///
    /// # Errors
    /// [`Error::Io`] with the directory.
    pub(crate) fn new() -> Result<Self, Error> {
        Ok(Self { content: tempfile::tempfile().map_err(failed)?, ends: Vec::new() })
    }

    /// Keeps a file, whose number is the number of files before it.
    ///
    /// # Errors
    /// [`Error::Io`] with the directory.
    pub(crate) fn add(&mut self, bytes: &[u8]) -> Result<(), Error> {
        self.content.write_all(bytes).map_err(failed)?;
        self.ends.push(self.start(self.ends.len()) + bytes.len() as u64);
        Ok(())
    }

    /// The content of a file; `None` if there is no such number.
    ///
    /// # Errors
    /// [`Error::Io`] with the directory.
    pub(crate) fn read(&self, number: u64) -> Result<Option<Vec<u8>>, Error> {
        let Some((number, end)) = usize::try_from(number).ok().and_then(|n| Some((n, *self.ends.get(n)?))) else {
            return Ok(None);
        };
        let mut bytes = vec![0; (end - self.start(number)) as usize];
        self.content.read_exact_at(&mut bytes, self.start(number)).map_err(failed)?;
        Ok(Some(bytes))
    }

    fn start(&self, number: usize) -> u64 {
        number.checked_sub(1).map_or(0, |before| self.ends[before])
    }
}

fn failed(source: io::Error) -> Error {
    Error::Io { path: std::env::temp_dir(), source }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_are_read_by_their_number() {
        let mut kept = KeptFiles::new().unwrap();
        for bytes in [&b"first"[..], b"", b"third"] {
            kept.add(bytes).unwrap();
        }
        let read: Vec<_> = (0..4).rev().map(|number| kept.read(number).unwrap()).collect();
        assert_eq!(read, [None, Some(b"third".to_vec()), Some(Vec::new()), Some(b"first".to_vec())]);
    }
}
