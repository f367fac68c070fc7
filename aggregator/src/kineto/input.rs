//! The bytes of a trace: a file, gzip or not, told by its content.

use std::fs::File;
use std::io::{self, BufReader, Cursor as Bytes, Read};
use std::path::Path;

use flate2::read::MultiGzDecoder;

/// A gzip file may inflate to this much …
const INFLATE_FREE_BYTES: u64 = 1 << 30;
/// … plus this many times its own size. Kineto's JSON shrinks 10 to 30 times; deflate can at most 1032 times.
const INFLATE_RATIO: u64 = 256;

const MAGIC: [u8; 2] = [0x1f, 0x8b];

const GZIP_BUFFER_BYTES: usize = 256 << 10;

/// A stream of JSON text.
pub(crate) struct Input {
    reader: Box<dyn Read + Send>,
    /// The file is compressed.
    pub(crate) gzip: bool,
    /// Bytes handed out.
    pub(crate) read_bytes: u64,
    limit_bytes: u64,
    ended: bool,
    /// Why the stream ended before its time.
    pub(crate) failure: Option<String>,
}

impl Input {
    /// Opens a file.
    pub(crate) fn open(path: &Path) -> io::Result<Self> {
        let mut file = File::open(path)?;
        let size = file.metadata()?.len();
        let mut magic = [0; 2];
        let got = read_up_to(&mut file, &mut magic)?;
        // Put before the rest rather than sought back to: a pipe has no way back.
        Ok(Self::new(Bytes::new(magic[..got].to_vec()).chain(file), magic == MAGIC, size))
    }

    /// A stream from bytes in memory.
    pub(crate) fn from_bytes(bytes: Vec<u8>) -> Self {
        let size = bytes.len() as u64;
        let gzip = bytes.starts_with(&MAGIC);
        Self::new(Bytes::new(bytes), gzip, size)
    }

    fn new(reader: impl Read + Send + 'static, gzip: bool, size: u64) -> Self {
        let reader: Box<dyn Read + Send> = if gzip {
            Box::new(MultiGzDecoder::new(BufReader::with_capacity(GZIP_BUFFER_BYTES, reader)))
        } else {
            Box::new(reader)
        };
        let limit_bytes =
            if gzip { INFLATE_FREE_BYTES.saturating_add(size.saturating_mul(INFLATE_RATIO)) } else { u64::MAX };
        Self { reader, gzip, read_bytes: 0, limit_bytes, ended: false, failure: None }
    }

    /// Fills `buffer`; returns how much of it. Less than all of it: the stream has ended, in order or by [`failure`](Self::failure).
    pub(crate) fn fill(&mut self, buffer: &mut [u8]) -> usize {
        let mut filled = 0;
        while filled < buffer.len() && !self.ended {
            match self.reader.read(&mut buffer[filled..]) {
                Ok(0) => self.ended = true,
                Ok(n) => filled += n,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => self.fail(describe(&error, self.gzip)),
            }
            if self.read_bytes + filled as u64 > self.limit_bytes {
                let limit = self.limit_bytes;
                self.fail(format!("it inflates to more than {limit} bytes (1 GiB + {INFLATE_RATIO} × its own size)"));
            }
        }
        self.read_bytes += filled as u64;
        filled
    }

    fn fail(&mut self, why: String) {
        self.ended = true;
        self.failure = Some(why);
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

fn describe(error: &io::Error, gzip: bool) -> String {
    match (gzip, error.kind()) {
        (true, io::ErrorKind::UnexpectedEof) => "the compressed data ends early".into(),
        (true, _) => format!("the compressed data is damaged ({error})"),
        (false, _) => error.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use super::*;

    fn gzip(bytes: &[u8]) -> Vec<u8> {
        let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
        encoder.write_all(bytes).unwrap();
        encoder.finish().unwrap()
    }

    fn all(mut input: Input) -> (Vec<u8>, Option<String>) {
        let mut out = Vec::new();
        let mut block = vec![0; 1000];
        loop {
            let n = input.fill(&mut block);
            out.extend_from_slice(&block[..n]);
            if n < block.len() {
                return (out, input.failure);
            }
        }
    }

    #[test]
    fn gzip_is_told_by_content() {
        let text: Vec<u8> = (0..100_000u32).flat_map(u32::to_le_bytes).collect();
        assert_eq!(all(Input::from_bytes(text.clone())), (text.clone(), None));
        assert_eq!(all(Input::from_bytes(gzip(&text))), (text.clone(), None));
        let members = [gzip(&text), gzip(b"tail")].concat();
        assert_eq!(all(Input::from_bytes(members)).0.len(), text.len() + 4);
        for short in [&b""[..], b"x"] {
            assert_eq!(all(Input::from_bytes(short.into())), (short.into(), None));
        }
    }

    #[test]
    fn a_cut_or_damaged_gzip_keeps_what_it_gave() {
        let text: Vec<u8> = (0..100_000u32).flat_map(u32::to_le_bytes).collect();
        let whole = gzip(&text);
        let (some, why) = all(Input::from_bytes(whole[..whole.len() / 2].into()));
        assert!(!some.is_empty() && text.starts_with(&some));
        assert_eq!(why.unwrap(), "the compressed data ends early");
        let mut bad = whole.clone();
        let middle = bad.len() / 2;
        bad[middle..middle + 8].fill(0xff);
        let (_, why) = all(Input::from_bytes(bad));
        assert!(why.unwrap().starts_with("the compressed data is damaged"));
    }

    #[test]
    fn a_bomb_is_stopped_at_its_limit() {
        let mut input = Input::from_bytes(gzip(&vec![b' '; 1 << 20]));
        input.limit_bytes = 1000;
        let (some, why) = all(input);
        assert!(some.len() <= 2000);
        assert!(why.unwrap().contains("inflates to more than 1000 bytes"));
    }
}
