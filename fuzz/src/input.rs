//! The input of a check, taken piece by piece. At its end every piece is zero or empty.

/// Bytes that are not taken yet.
#[derive(Clone, Debug)]
pub(crate) struct Input<'a>(pub(crate) &'a [u8]);

impl<'a> Input<'a> {
    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Up to `count` bytes.
    pub(crate) fn take(&mut self, count: usize) -> &'a [u8] {
        let (taken, rest) = self.0.split_at(self.0.len().min(count));
        self.0 = rest;
        taken
    }

    pub(crate) fn byte(&mut self) -> u8 {
        self.take(1).first().copied().unwrap_or(0)
    }

    /// A number below `limit`, which is at least 1.
    pub(crate) fn below(&mut self, limit: usize) -> usize {
        let bytes = if limit > 256 { 4 } else { 1 };
        self.take(bytes).iter().fold(0, |number, byte| number << 8 | usize::from(*byte)) % limit
    }

    /// A number of one, or after 255 of eight bytes, so that small, large and extreme numbers are all near.
    pub(crate) fn number(&mut self) -> i64 {
        match self.byte() {
            u8::MAX => self.take(8).iter().fold(0, |number, byte| number << 8 | i64::from(*byte)),
            254 => i64::MIN,
            253 => i64::MAX,
            small => i64::from(small) - 8,
        }
    }

    /// A text of up to 15 bytes.
    pub(crate) fn text(&mut self) -> String {
        let length = self.below(16);
        String::from_utf8_lossy(self.take(length)).into_owned()
    }
}
