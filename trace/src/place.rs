//! The place of a path: a file system, or an object store.
//!
//! A path such as `s3://bucket/run` is a URL. Its files and directories are listed and read like those of a file system; an object
//! store has no directories, so a prefix of names stands for one. Nothing is written to a URL.

#[cfg(feature = "cloud")]
mod blocks;
mod entry;
#[cfg(feature = "cloud")]
mod objects;
#[cfg(not(feature = "cloud"))]
#[path = "place/no_objects.rs"]
mod objects;
#[cfg(feature = "cloud")]
mod process;
#[cfg(feature = "cloud")]
mod reasons;
#[cfg(feature = "cloud")]
mod retry;
mod search;

use std::fs;
use std::io::{self, ErrorKind, Read, Seek, SeekFrom};
use std::os::unix::fs::FileExt;
use std::path::Path;

use bytes::Bytes;
pub use entry::{Entry, Kind};
use objects::Object;
use parquet::errors::ParquetError;
use parquet::file::reader::{ChunkReader, Length};
pub use search::{Search, Step};

use crate::files::open_regular;
use crate::url::Url;
pub use crate::url::{canonical, is_url, without_secrets};

/// Threads that wait for answers of an object store at the same time.
const WAITING_THREADS: usize = 32;

/// What a path leads to; links are followed.
///
/// # Errors
/// `NotFound` if there is nothing; the error of the file system or of the object store.
pub fn kind(path: &Path) -> io::Result<Kind> {
    if let Some(url) = Url::of(path) {
        return objects::kind(url);
    }
    let metadata = fs::metadata(path)?;
    Ok(match () {
        () if metadata.is_file() => Kind::File { bytes: metadata.len() },
        () if metadata.is_dir() => Kind::Directory,
        () => Kind::Other,
    })
}

/// Whether a path leads to a file.
///
/// # Errors
/// The error of the file system or of the object store.
pub fn is_file(path: &Path) -> io::Result<bool> {
    leads_to(path, |kind| matches!(kind, Kind::File { .. }))
}

/// Whether a path leads to a directory.
///
/// # Errors
/// The error of the file system or of the object store.
pub fn is_directory(path: &Path) -> io::Result<bool> {
    leads_to(path, |kind| kind == Kind::Directory)
}

fn leads_to(path: &Path, is_wanted: impl Fn(Kind) -> bool) -> io::Result<bool> {
    match kind_if_there(path) {
        // There is nothing below a file.
        Err(error) if error.kind() == io::ErrorKind::NotADirectory => Ok(false),
        found => Ok(found?.is_some_and(is_wanted)),
    }
}

/// [`kind`]; `None` if there is nothing.
///
/// # Errors
/// The error of the file system or of the object store.
pub fn kind_if_there(path: &Path) -> io::Result<Option<Kind>> {
    match kind(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        found => found.map(Some),
    }
}

/// What lies in a directory, in the order of names.
///
/// # Errors
/// `NotFound` if there is no such directory; the error of the file system or of the object store.
pub fn entries(directory: &Path) -> io::Result<Vec<Entry>> {
    let mut entries = match Url::of(directory) {
        Some(url) => objects::entries(directory, url)?,
        None => {
            let entry = |entry: io::Result<fs::DirEntry>| {
                let entry = entry?;
                let path = entry.path();
                // The listing has the kinds of most entries, so that only links are followed.
                let is_directory = match entry.file_type() {
                    Ok(kind) if !kind.is_symlink() => kind.is_dir(),
                    _ => path.is_dir(),
                };
                Ok(Entry { is_directory, path })
            };
            fs::read_dir(directory)?.map(entry).collect::<io::Result<Vec<_>>>()?
        }
    };
    // They have one directory, so that bytes order them as parts of paths do, and faster.
    entries.sort_unstable_by(|a, b| a.path.as_os_str().cmp(b.path.as_os_str()));
    Ok(entries)
}

/// A file or an object that is open to be read.
#[derive(Debug)]
pub enum Opened {
    /// A regular file.
    File(fs::File),
    /// An object.
    Object(Object),
    /// The whole content.
    Memory(io::Cursor<Bytes>),
}

/// Files up to this size are read at once. The reader of Parquet asks for each page by itself.
const SMALL_BYTES: u64 = 1 << 20;

/// Opens a regular file or an object to read it. Objects are read in ranges, and again after an error that may pass.
///
/// # Errors
/// The error of the file system or of the object store; `InvalidInput` if it is no regular file.
pub fn open(path: &Path) -> io::Result<Opened> {
    match Url::of(path) {
        Some(url) => objects::open(url).map(Opened::Object),
        None => open_regular(path).map(Opened::File),
    }
}

/// The first bytes of a regular file or an object, at most `most`. Nothing, and what is neither, has none.
///
/// # Errors
/// The error of the file system or of the object store.
pub fn first_bytes(path: &Path, most: u64) -> io::Result<Vec<u8>> {
    if !is_file(path)? {
        return Ok(Vec::new());
    }
    let mut head = Vec::new();
    open(path)?.take(most).read_to_end(&mut head)?;
    Ok(head)
}

impl Opened {
    /// A file whose content is in memory.
    pub fn in_memory(content: Vec<u8>) -> Self {
        Self::Memory(io::Cursor::new(content.into()))
    }

    /// Its size.
    ///
    /// # Errors
    /// The error of the file system.
    pub fn size_bytes(&self) -> io::Result<u64> {
        match self {
            Self::File(file) => Ok(file.metadata()?.len()),
            Self::Object(object) => Ok(object.size_bytes()),
            Self::Memory(content) => Ok(content.get_ref().len() as u64),
        }
    }

    /// The whole content of a small file, and other files as they are.
    ///
    /// # Errors
    /// The error of the file system.
    pub(crate) fn with_small_in_memory(self) -> io::Result<Self> {
        let bytes = self.size_bytes()?;
        if bytes > SMALL_BYTES || !matches!(self, Self::File(_)) {
            return Ok(self);
        }
        let mut content = vec![0; bytes as usize];
        self.read_exact_at(&mut content, 0)?;
        Ok(Self::in_memory(content))
    }

    /// Reads from byte `at` on, and returns the number of bytes; 0 at the end. A read that a signal interrupts is repeated.
    ///
    /// # Errors
    /// The error of the file system or of the object store.
    pub(crate) fn read_at(&self, buffer: &mut [u8], at: u64) -> io::Result<usize> {
        loop {
            let got = match self {
                Self::File(file) => file.read_at(buffer, at),
                Self::Object(object) => object.read_at(buffer, at),
                Self::Memory(content) => {
                    let from = usize::try_from(at).unwrap_or(usize::MAX).min(content.get_ref().len());
                    (&content.get_ref()[from..]).read(buffer)
                }
            };
            match got {
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                got => return got,
            }
        }
    }

    /// Fills a buffer from byte `at` on.
    ///
    /// # Errors
    /// `UnexpectedEof` if the file ends before; the error of the file system or of the object store.
    pub fn read_exact_at(&self, buffer: &mut [u8], at: u64) -> io::Result<()> {
        let mut filled = 0;
        while filled < buffer.len() {
            match self.read_at(&mut buffer[filled..], at + filled as u64)? {
                0 => return Err(ErrorKind::UnexpectedEof.into()),
                got => filled += got,
            }
        }
        Ok(())
    }
}

impl Read for Opened {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        match self {
            Self::File(file) => file.read(buffer),
            Self::Object(object) => object.read(buffer),
            Self::Memory(content) => content.read(buffer),
        }
    }
}

impl Seek for Opened {
    fn seek(&mut self, to: SeekFrom) -> io::Result<u64> {
        match self {
            Self::File(file) => file.seek(to),
            Self::Object(object) => object.seek(to),
            Self::Memory(content) => content.seek(to),
        }
    }
}

impl Length for Opened {
    fn len(&self) -> u64 {
        // A file whose size is unknown has no footer, and its reader says so.
        self.size_bytes().unwrap_or(0)
    }
}

impl ChunkReader for Opened {
    type T = Box<dyn Read>;

    fn get_read(&self, start: u64) -> Result<Self::T, ParquetError> {
        Ok(match self {
            Self::File(file) => Box::new(file.get_read(start)?),
            Self::Object(object) => object.reader_from(start),
            Self::Memory(content) => Box::new(content.get_ref().get_read(start)?),
        })
    }

    fn get_bytes(&self, start: u64, length: usize) -> Result<Bytes, ParquetError> {
        match self {
            Self::File(file) => file.get_bytes(start, length),
            Self::Object(object) => Ok(object.range(start, length)?),
            Self::Memory(content) => content.get_ref().get_bytes(start, length),
        }
    }
}

/// Does work for each item. Requests to an object store are made at the same time, because each waits for an answer; work on
/// files of a file system is done in turn.
pub(crate) fn for_all<T: Sync, R: Send>(items: &[T], place: &Path, work: impl Fn(&T) -> R + Sync) -> Vec<R> {
    if !is_url(place) {
        return items.iter().map(work).collect();
    }
    let each = items.len().div_ceil(WAITING_THREADS).max(1);
    let work = &work;
    std::thread::scope(|scope| {
        let chunks = items.chunks(each);
        let threads: Vec<_> =
            chunks.map(|items| scope.spawn(move || items.iter().map(work).collect::<Vec<R>>())).collect();
        let result = |thread: std::thread::ScopedJoinHandle<'_, Vec<R>>| {
            thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
        };
        threads.into_iter().flat_map(result).collect()
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_and_directories_are_told_apart() {
        let dir = tempfile::tempdir().unwrap();
        fs::create_dir(dir.path().join("b")).unwrap();
        fs::write(dir.path().join("a"), "four").unwrap();
        let found: Vec<_> = entries(dir.path()).unwrap().into_iter().map(|e| (e.path, e.is_directory)).collect();
        assert_eq!(found, [(dir.path().join("a"), false), (dir.path().join("b"), true)]);
        assert_eq!(kind(&dir.path().join("a")).unwrap(), Kind::File { bytes: 4 });
        assert_eq!(kind(dir.path()).unwrap(), Kind::Directory);
        assert_eq!(kind(&dir.path().join("c")).unwrap_err().kind(), ErrorKind::NotFound);
    }

    #[cfg(not(feature = "cloud"))]
    #[test]
    fn a_build_without_the_feature_says_what_to_build() {
        let error = open(Path::new("s3://bucket/a")).unwrap_err();
        assert!(error.to_string().contains("--features cloud"), "{error}");
    }
}
