//! gzip to text, keeping every byte that comes before damage.
//!
//! The decoders that implement [`Read`] lose what a call has inflated when the same call meets damage, so how much is
//! kept would depend on how much was asked for. This one hands it out first.

use std::io::{self, Read};

use flate2::{Decompress, FlushDecompress, Status};

/// How a gzip stream begins.
pub(crate) const MAGIC: [u8; 2] = [0x1f, 0x8b];

const BUFFER_BYTES: usize = 256 << 10;

/// zlib's largest window, which is what gzip uses.
const WINDOW_BITS: u8 = 15;

/// Members of a gzip stream, one after the other.
pub(crate) struct Gunzip {
    reader: Box<dyn Read + Send>,
    buffer: Vec<u8>,
    /// What of `buffer` is to be inflated.
    from: usize,
    to: usize,
    /// The reader has given all it has.
    drained: bool,
    member: Decompress,
    /// What to say once everything before it was handed out.
    failure: Option<String>,
}

impl Gunzip {
    /// Inflates what `reader` gives.
    pub(crate) fn new(reader: Box<dyn Read + Send>) -> Self {
        let member = Decompress::new_gzip(WINDOW_BITS);
        Self { reader, buffer: vec![0; BUFFER_BYTES], from: 0, to: 0, drained: false, member, failure: None }
    }

    /// Inflates into `out`, which is not empty; returns how much. 0: the stream ended in order.
    pub(crate) fn inflate(&mut self, out: &mut [u8]) -> Result<usize, String> {
        loop {
            if let Some(why) = self.failure.take() {
                return Err(why);
            }
            if self.from == self.to && !self.drained {
                self.read_more();
                continue;
            }
            let starved = self.from == self.to;
            if starved && self.member.total_in() == 0 {
                return Ok(0);
            }
            let (read_before, out_before) = (self.member.total_in(), self.member.total_out());
            let status = self.member.decompress(&self.buffer[self.from..self.to], out, FlushDecompress::None);
            self.from += (self.member.total_in() - read_before) as usize;
            let got = (self.member.total_out() - out_before) as usize;
            match status {
                Ok(Status::StreamEnd) => self.next_member(),
                Ok(Status::Ok | Status::BufError) if got == 0 && starved => {
                    self.failure = Some("the compressed data ends early".into());
                }
                Ok(Status::Ok | Status::BufError) => {}
                Err(error) => self.failure = Some(damage(error.message().unwrap_or_default())),
            }
            if got > 0 {
                return Ok(got);
            }
        }
    }

    fn read_more(&mut self) {
        match self.reader.read(&mut self.buffer) {
            Ok(0) => self.drained = true,
            Ok(n) => (self.from, self.to) = (0, n),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => self.failure = Some(error.to_string()),
        }
    }

    fn next_member(&mut self) {
        self.member = Decompress::new_gzip(WINDOW_BITS);
    }
}

/// Damage in words. zlib's own differ by how far its window had been filled when it met the same bytes.
fn damage(zlib: &str) -> String {
    let what = match zlib {
        "incorrect data check" | "incorrect length check" => "its checksum does not match",
        "incorrect header check" => "what follows is no gzip",
        _ => "corrupt deflate stream",
    };
    format!("the compressed data is damaged ({what})")
}

#[cfg(test)]
pub(crate) mod tests {
    use std::io::Write;

    use super::*;

    pub(crate) fn gzip(bytes: &[u8]) -> Vec<u8> {
        let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
        encoder.write_all(bytes).unwrap();
        encoder.finish().unwrap()
    }

    /// Hands out the bytes in small parts of changing size, as a pipe does.
    struct Parts(Vec<u8>, usize);

    impl Read for Parts {
        fn read(&mut self, out: &mut [u8]) -> io::Result<usize> {
            self.1 = self.1 % 97 + 1;
            let n = self.1.min(self.0.len()).min(out.len());
            out[..n].copy_from_slice(&self.0[..n]);
            self.0.drain(..n);
            Ok(n)
        }
    }

    fn inflated(packed: &[u8], block_bytes: usize) -> (Vec<u8>, Option<String>) {
        let mut gunzip = Gunzip::new(Box::new(Parts(packed.to_vec(), 0)));
        let mut out = Vec::new();
        let mut block = vec![0; block_bytes];
        loop {
            match gunzip.inflate(&mut block) {
                Ok(0) => return (out, None),
                Ok(n) => out.extend_from_slice(&block[..n]),
                Err(why) => return (out, Some(why)),
            }
        }
    }

    fn text() -> Vec<u8> {
        (0..5_000u32).flat_map(|n| (n * 7919).to_string().into_bytes()).collect()
    }

    #[test]
    fn members_follow_each_other() {
        let members = [gzip(&text()), gzip(b""), gzip(b"tail")].concat();
        let expected = [text().as_slice(), b"tail"].concat();
        assert_eq!(inflated(&members, 1000), (expected, None));
        assert_eq!(inflated(&gzip(b""), 10), (Vec::new(), None));
    }

    #[test]
    fn what_comes_before_a_cut_is_kept() {
        let whole = gzip(&text());
        let (some, why) = inflated(&whole[..whole.len() / 2], 1000);
        assert!(some.len() > 1000 && text().starts_with(&some));
        assert_eq!(why.unwrap(), "the compressed data ends early");
        let (all, why) = inflated(&whole[..whole.len() - 1], 1000);
        assert_eq!((all, why.unwrap().as_str()), (text(), "the compressed data ends early"));
        assert_eq!(inflated(&whole[..5], 10).1.unwrap(), "the compressed data ends early");
    }

    #[test]
    fn damage_is_said_and_is_no_end() {
        let mut bad = gzip(&text());
        let end = bad.len() - 6;
        bad[end] ^= 1;
        let (all, why) = inflated(&bad, 1000);
        assert_eq!(
            (all, why.unwrap().as_str()),
            (text(), "the compressed data is damaged (its checksum does not match)")
        );
        let (all, why) = inflated(&[gzip(b"x").as_slice(), b"garbage"].concat(), 1000);
        assert_eq!(all, b"x");
        assert_eq!(why.unwrap(), "the compressed data is damaged (what follows is no gzip)");
    }

    proptest::proptest! {
        /// However it is asked for, damaged data gives the same bytes and the same words.
        #[test]
        fn what_is_kept_does_not_depend_on_the_blocks(at in 0.0f64..1.0, flip in 1u8.., block in 1usize..5000) {
            let mut packed = gzip(&text());
            let at = (packed.len() as f64 * at) as usize;
            packed[at] ^= flip;
            let (whole, parts) = (inflated(&packed, 1 << 20), inflated(&packed, block));
            proptest::prop_assert_eq!((whole.0.len(), &whole.1), (parts.0.len(), &parts.1));
            proptest::prop_assert!(whole == parts);
        }
    }
}
