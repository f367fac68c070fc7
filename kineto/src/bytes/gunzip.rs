//! gzip to text, keeping every byte before damage.
//!
//! Decoders that implement [`Read`] lose the bytes that a call has inflated when the same call meets damage. Then the
//! size of the caller's buffer would decide how much is kept. This decoder returns those bytes first.

use std::io::{self, Read};

use flate2::{Decompress, FlushDecompress, Status};

/// The first bytes of a gzip stream.
pub(crate) const MAGIC: [u8; 2] = [0x1f, 0x8b];

const BUFFER_BYTES: usize = 256 << 10;

/// zlib's largest window, which is what gzip uses.
const WINDOW_BITS: u8 = 15;

/// Members of a gzip stream, one after the other.
pub(crate) struct Gunzip {
    reader: Box<dyn Read + Send>,
    buffer: Vec<u8>,
    /// Start and end of the bytes in `buffer` that are still to be inflated.
    from: usize,
    to: usize,
    /// The reader has ended.
    drained: bool,
    member: Decompress,
    /// The error to return once all bytes before it were returned.
    failure: Option<String>,
}

impl Gunzip {
    /// A decoder of the bytes of `reader`.
    pub(crate) fn new(reader: Box<dyn Read + Send>) -> Self {
        let member = Decompress::new_gzip(WINDOW_BITS);
        Self { reader, buffer: vec![0; BUFFER_BYTES], from: 0, to: 0, drained: false, member, failure: None }
    }

    /// Inflates into `out`, which must not be empty, and returns the number of bytes; 0 if the stream ended in order.
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

/// A message for damage. zlib's own message for the same bytes depends on how far its window was filled.
fn damage(zlib: &str) -> String {
    let damage = match zlib {
        "incorrect data check" | "incorrect length check" => "its checksum does not match",
        "incorrect header check" => "what follows is no gzip",
        _ => "corrupt deflate stream",
    };
    format!("the compressed data is damaged ({damage})")
}

#[cfg(test)]
mod tests {
    use fixtures::small_trace::gzip;

    use super::*;

    /// Returns the bytes in small parts of changing size, as a pipe does.
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
    fn the_bytes_before_a_cut_are_kept() {
        let whole = gzip(&text());
        let (some, why) = inflated(&whole[..whole.len() / 2], 1000);
        assert!(some.len() > 1000 && text().starts_with(&some));
        assert_eq!(why.unwrap(), "the compressed data ends early");
        let (all, why) = inflated(&whole[..whole.len() - 1], 1000);
        assert_eq!((all, why.unwrap().as_str()), (text(), "the compressed data ends early"));
        assert_eq!(inflated(&whole[..5], 10).1.unwrap(), "the compressed data ends early");
    }

    #[test]
    fn damage_is_an_error_and_not_an_end() {
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
        /// Damaged data gives the same bytes and the same message, whatever the size of the caller's buffer.
        #[test]
        fn the_sizes_of_blocks_do_not_change_the_bytes_that_are_kept(at in 0.0f64..1.0, flip in 1u8.., block in 1usize..5000) {
            let mut packed = gzip(&text());
            let at = (packed.len() as f64 * at) as usize;
            packed[at] ^= flip;
            let (whole, parts) = (inflated(&packed, 1 << 20), inflated(&packed, block));
            proptest::prop_assert_eq!((whole.0.len(), &whole.1), (parts.0.len(), &parts.1));
            proptest::prop_assert!(whole == parts);
        }
    }
}
