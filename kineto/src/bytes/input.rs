//! The bytes of a trace: a file, compressed with gzip or zstd or not. Its first bytes decide which, not its name.

use std::io::{self, Cursor as Bytes, Read};
use std::path::Path;
use std::sync::{Arc, Mutex};

use trace::lock;
use trace::place::{self, Opened};

use crate::bytes::gunzip::{self, Gunzip};

/// The first bytes of a zstd stream.
const ZSTD_MAGIC: [u8; 4] = [0x28, 0xb5, 0x2f, 0xfd];
/// A compressed file may inflate to this size …
const INFLATE_FREE_BYTES: u64 = 1 << 30;
/// … plus this many times its own size. Kineto's JSON shrinks 10 to 30 times; deflate can at most 1032 times.
const INFLATE_RATIO: u64 = 256;

/// The most bytes that a compressed file or an archive of `size` bytes may inflate to.
pub(crate) fn inflate_limit_bytes(size: u64) -> u64 {
    INFLATE_FREE_BYTES.saturating_add(size.saturating_mul(INFLATE_RATIO))
}

/// Whether a stream with these first bytes is compressed.
pub(crate) fn is_compressed(head: &[u8]) -> bool {
    head.starts_with(&ZSTD_MAGIC) || head.starts_with(&gunzip::MAGIC)
}

/// A stream of JSON text.
pub(crate) struct Input {
    reader: Reader,
    /// Bytes that were returned so far.
    pub(crate) read_bytes: u64,
    limit_bytes: u64,
    ended: bool,
    /// Why the stream ended too early.
    pub(crate) failure: Option<String>,
    /// The error of the file system, if that is why.
    pub(crate) file_error: FileError,
}

/// The last error that the file system or the object store returned. Unlike damage, such an error may not come again, so a
/// reader of a part of the file must not pass over it.
#[derive(Clone, Debug, Default)]
pub(crate) struct FileError(Arc<Mutex<Option<io::Error>>>);

impl FileError {
    fn set(&self, error: &io::Error) {
        let again = match error.raw_os_error() {
            Some(number) => io::Error::from_raw_os_error(number),
            None => io::Error::new(error.kind(), error.to_string()),
        };
        *lock(&self.0) = Some(again);
    }

    /// Returns the error once.
    pub(crate) fn check(&self) -> io::Result<()> {
        lock(&self.0).take().map_or(Ok(()), Err)
    }
}

/// A file that keeps its last error, because decoders return errors of their own.
struct Watched {
    file: Opened,
    error: FileError,
}

impl Read for Watched {
    fn read(&mut self, bytes: &mut [u8]) -> io::Result<usize> {
        self.file.read(bytes).inspect_err(|error| {
            if error.kind() != io::ErrorKind::Interrupted {
                self.error.set(error);
            }
        })
    }
}

enum Reader {
    Plain(Box<dyn Read + Send>),
    Gzip(Box<Gunzip>),
}

impl Input {
    /// Opens a file.
    pub(crate) fn open(path: &Path) -> io::Result<Self> {
        let mut file = place::open(path)?;
        let size = file.size_bytes()?;
        let mut magic = [0; 4];
        let got = read_up_to(&mut file, &mut magic)?;
        let error = FileError::default();
        let file = Watched { file, error: error.clone() };
        // A pipe cannot seek back, so the first bytes are chained before the rest.
        let input = Self::new(Bytes::new(magic[..got].to_vec()).chain(file), &magic[..got], size)?;
        Ok(Self { file_error: error, ..input })
    }

    /// Whether the bytes of the file are not those of the text.
    pub(crate) fn is_compressed(&self) -> bool {
        self.limit_bytes != u64::MAX
    }

    /// A stream from bytes in memory.
    #[cfg(any(test, feature = "fuzzing"))]
    pub(crate) fn from_bytes(bytes: Vec<u8>) -> Self {
        let size = bytes.len() as u64;
        Self::plain_or_gzip(Bytes::new(bytes.clone()), &bytes, size)
    }

    fn new(reader: impl Read + Send + 'static, head: &[u8], size: u64) -> io::Result<Self> {
        if !head.starts_with(&ZSTD_MAGIC) {
            return Ok(Self::plain_or_gzip(reader, head, size));
        }
        let reader = Reader::Plain(Box::new(zstd::stream::read::Decoder::new(reader)?));
        Ok(Self { limit_bytes: inflate_limit_bytes(size), ..Self::of(reader) })
    }

    fn plain_or_gzip(reader: impl Read + Send + 'static, head: &[u8], size: u64) -> Self {
        if !head.starts_with(&gunzip::MAGIC) {
            return Self::of(Reader::Plain(Box::new(reader)));
        }
        let reader = Reader::Gzip(Box::new(Gunzip::new(Box::new(reader))));
        Self { limit_bytes: inflate_limit_bytes(size), ..Self::of(reader) }
    }

    fn of(reader: Reader) -> Self {
        let file_error = FileError::default();
        Self { reader, read_bytes: 0, limit_bytes: u64::MAX, ended: false, failure: None, file_error }
    }

    /// Fills `buffer` and returns the number of bytes. Fewer bytes than it holds mean that the stream has ended, in
    /// order or by [`failure`](Self::failure).
    ///
    /// The sizes of the buffers do not change the bytes that are returned, wherever the stream is damaged.
    pub(crate) fn fill(&mut self, buffer: &mut [u8]) -> usize {
        let left = self.limit_bytes - self.read_bytes;
        let room = usize::try_from(left).map_or(buffer.len(), |left| left.min(buffer.len()));
        let mut filled = 0;
        while filled < room && !self.ended {
            let got = match &mut self.reader {
                Reader::Plain(reader) => match reader.read(&mut buffer[filled..room]) {
                    Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                    got => got.map_err(|error| error.to_string()),
                },
                Reader::Gzip(gunzip) => gunzip.inflate(&mut buffer[filled..room]),
            };
            match got {
                Ok(0) => self.ended = true,
                Ok(n) => filled += n,
                Err(why) => self.fail(why),
            }
        }
        self.read_bytes += filled as u64;
        if room < buffer.len() && !self.ended && filled == room {
            let limit = self.limit_bytes;
            self.fail(format!("it inflates to more than {limit} bytes (1 GiB + {INFLATE_RATIO} × its own size)"));
        }
        filled
    }

    fn fail(&mut self, why: String) {
        self.ended = true;
        self.failure = Some(why);
    }
}

impl Read for Input {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        match self.fill(buffer) {
            0 if !buffer.is_empty() => self.failure.clone().map_or(Ok(0), |why| Err(io::Error::other(why))),
            filled => Ok(filled),
        }
    }
}

fn read_up_to(reader: &mut impl Read, buffer: &mut [u8]) -> io::Result<usize> {
    let mut filled = 0;
    while filled < buffer.len() {
        match reader.read(&mut buffer[filled..]) {
            Ok(0) => break,
            Ok(n) => filled += n,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(filled)
}

#[cfg(test)]
mod tests {
    use super::*;
    use fixtures::small_trace::gzip;

    fn all(mut input: Input, block_bytes: usize) -> (Vec<u8>, Option<String>) {
        let mut out = Vec::new();
        let mut block = vec![0; block_bytes];
        loop {
            let n = input.fill(&mut block);
            out.extend_from_slice(&block[..n]);
            if n < block.len() {
                return (out, input.failure);
            }
        }
    }

    #[test]
    fn gzip_is_recognised_by_content() {
        let text: Vec<u8> = (0..100_000u32).flat_map(u32::to_le_bytes).collect();
        assert_eq!(all(Input::from_bytes(text.clone()), 1000), (text.clone(), None));
        assert_eq!(all(Input::from_bytes(gzip(&text)), 1000), (text.clone(), None));
        for short in [&b""[..], b"x"] {
            assert_eq!(all(Input::from_bytes(short.into()), 1000), (short.into(), None));
        }
    }

    #[test]
    fn zstd_is_recognised_by_content() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("named.json");
        let text: Vec<u8> = (0..100_000u32).flat_map(u32::to_le_bytes).collect();
        let packed = zstd::encode_all(&text[..], 1).unwrap();
        std::fs::write(&path, &packed).unwrap();
        assert_eq!(all(Input::open(&path).unwrap(), 1000), (text.clone(), None));
        std::fs::write(&path, &packed[..packed.len() / 2]).unwrap();
        let (some, why) = all(Input::open(&path).unwrap(), 1000);
        assert!(text.starts_with(&some) && why.is_some(), "{} {why:?}", some.len());
    }

    #[test]
    fn inflating_stops_at_the_limit() {
        for block_bytes in [7, 999, 1000, 1001, 100_000] {
            let mut input = Input::from_bytes(gzip(&vec![b' '; 1 << 20]));
            input.limit_bytes = 1000;
            let (some, why) = all(input, block_bytes);
            assert_eq!(some.len(), 1000);
            assert!(why.unwrap().contains("inflates to more than 1000 bytes"));
        }
    }
}
