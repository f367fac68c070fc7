//! A pull parser for JSON as trace writers write it in practice.
//!
//! It accepts all of JSON, and also raw control characters and invalid UTF-8 in strings, lone surrogates, and bare
//! words (`NaN`, `Infinity`, `N/A`) in the place of a value. It never allocates, and skips unwanted values many bytes
//! at a time. It checks a skipped value only as far as it must to find its end: braces must balance in an object,
//! square brackets in a list, and strings must end.

/// Brackets that may be open at once. Kineto nests four deep; the limit keeps hostile input from costing a stack
/// anywhere later.
pub(crate) const MAX_DEPTH: usize = 512;

/// Strings from this length on are searched by `memchr`. In shorter ones its start-up costs more than it saves.
const LONG_STRING: usize = 64;

const ONES: u64 = u64::from_ne_bytes([0x01; 8]);
const HIGHS: u64 = u64::from_ne_bytes([0x80; 8]);

/// A byte at which reading stopped, and the reason.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fault {
    /// Position in the parsed slice.
    pub at: usize,
    /// The reason.
    pub what: FaultKind,
}

/// The reason of a [`Fault`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FaultKind {
    /// The bytes end inside a value.
    Cut,
    /// Another byte was expected.
    Expected(&'static str),
    /// More than this many brackets are open.
    TooDeep(usize),
    /// The value takes more memory than it may.
    Full,
}

impl FaultKind {
    /// The message that follows "byte N:".
    pub(crate) fn describe(self) -> String {
        match self {
            Self::Cut => "the file ends inside a value".into(),
            Self::Expected(what) => format!("expected {what}"),
            Self::TooDeep(most) => format!("nested deeper than {most} levels"),
            Self::Full => "its values take more memory than they may".into(),
        }
    }
}

impl std::fmt::Display for Fault {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(out, "byte {}: {}", self.at, self.what.describe())
    }
}

/// The inside of a string, between its quotes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Str<'a> {
    /// The bytes as they stand in the file.
    pub raw: &'a [u8],
    /// Whether the bytes contain a backslash.
    pub escaped: bool,
}

/// A position in a slice of JSON.
#[derive(Clone, Copy, Debug)]
pub struct Cursor<'a> {
    bytes: &'a [u8],
    pos: usize,
}

/// The high bit of every byte of `word` that is zero; bits above the lowest one set may be wrong.
#[inline(always)]
fn zero_bytes(word: u64) -> u64 {
    word.wrapping_sub(ONES) & !word & HIGHS
}

/// The high bit of every byte of `word` that equals `byte`; bits above the lowest one set may be wrong.
#[inline(always)]
fn equal_bytes(word: u64, byte: u8) -> u64 {
    zero_bytes(word ^ (ONES * byte as u64))
}

/// The high bit of every byte of `word` that is not one of `-./0123456789`; bits above the lowest one set may be wrong.
#[inline(always)]
fn not_digits(word: u64) -> u64 {
    // `-` to `9` are thirteen bytes. A lower byte borrows into its high bit; a higher byte carries into it.
    let low = word.wrapping_sub(ONES * 0x2d);
    let high = (word & !HIGHS) + ONES * (0x7f - 0x39);
    (low | high | word) & HIGHS
}

#[inline(always)]
fn word_at(bytes: &[u8], pos: usize) -> Option<u64> {
    let eight = bytes.get(pos..pos + 8)?;
    Some(u64::from_le_bytes(eight.try_into().ok()?))
}

impl<'a> Cursor<'a> {
    /// A cursor at `pos` of `bytes`.
    #[inline]
    pub fn new(bytes: &'a [u8], pos: usize) -> Self {
        Self { bytes, pos }
    }

    /// The cursor's position.
    #[inline]
    pub fn pos(&self) -> usize {
        self.pos
    }

    /// The bytes from `start` to the cursor.
    #[inline]
    pub(crate) fn since(&self, start: usize) -> &'a [u8] {
        &self.bytes[start..self.pos]
    }

    /// The bytes from the cursor on.
    #[inline(always)]
    pub(crate) fn rest(&self) -> &'a [u8] {
        self.bytes.get(self.pos..).unwrap_or_default()
    }

    #[inline]
    pub(crate) fn fault<T>(&self, what: FaultKind) -> Result<T, Fault> {
        Err(Fault { at: self.pos, what })
    }

    #[inline]
    pub(crate) fn expected<T>(&self, what: &'static str) -> Result<T, Fault> {
        let kind = if self.pos >= self.bytes.len() { FaultKind::Cut } else { FaultKind::Expected(what) };
        self.fault(kind)
    }

    /// The next byte, if there is one.
    #[inline(always)]
    pub fn peek(&self) -> Option<u8> {
        self.bytes.get(self.pos).copied()
    }

    /// Steps over `n` bytes that were peeked.
    #[inline(always)]
    pub(crate) fn bump(&mut self, n: usize) {
        self.pos += n;
    }

    /// Steps over white space. Compact files have no blank or one; indented files have a line break and a run of
    /// blanks.
    #[inline(always)]
    pub fn space(&mut self) {
        while let Some(byte) = self.peek() {
            if byte > b' ' || !matches!(byte, b' ' | b'\n' | b'\r' | b'\t') {
                break;
            }
            self.pos += 1;
            // Blanks follow a line break. Count eight at a time.
            while let Some(word) = word_at(self.bytes, self.pos) {
                let others = word ^ (ONES * 0x20);
                if others != 0 {
                    self.pos += others.trailing_zeros() as usize / 8;
                    break;
                }
                self.pos += 8;
            }
        }
    }

    /// Steps over white space, then over `byte` if it is next.
    #[inline(always)]
    pub fn eat(&mut self, byte: u8) -> bool {
        self.space();
        let found = self.peek() == Some(byte);
        self.pos += usize::from(found);
        found
    }

    /// Steps over white space, then over `byte`, which must be next.
    #[inline(always)]
    pub fn need(&mut self, byte: u8, what: &'static str) -> Result<(), Fault> {
        if self.eat(byte) { Ok(()) } else { self.expected(what) }
    }

    /// Reads the rest of a string whose opening quote was stepped over.
    #[inline(always)]
    pub(crate) fn string_rest(&mut self) -> Result<Str<'a>, Fault> {
        let start = self.pos;
        let mut at = start;
        while at - start < LONG_STRING {
            let Some(word) = word_at(self.bytes, at) else { break };
            let hits = equal_bytes(word, b'"') | equal_bytes(word, b'\\');
            if hits == 0 {
                at += 8;
                continue;
            }
            at += hits.trailing_zeros() as usize / 8;
            if self.bytes[at] == b'"' {
                self.pos = at + 1;
                return Ok(Str { raw: &self.bytes[start..at], escaped: false });
            }
            break;
        }
        self.string_tail(start, at)
    }

    /// The slow path of [`string_rest`](Self::string_rest): long strings, escapes, and the last bytes of the slice.
    fn string_tail(&mut self, start: usize, from: usize) -> Result<Str<'a>, Fault> {
        let mut at = from;
        let mut escaped = false;
        while let Some(hit) = memchr::memchr2(b'"', b'\\', &self.bytes[at..]) {
            at += hit;
            if self.bytes[at] == b'"' {
                self.pos = at + 1;
                return Ok(Str { raw: &self.bytes[start..at], escaped });
            }
            escaped = true;
            at = (at + 2).min(self.bytes.len());
        }
        self.pos = self.bytes.len();
        self.fault(FaultKind::Cut)
    }

    /// Reads a string, quotes included.
    #[inline(always)]
    pub fn string(&mut self) -> Result<Str<'a>, Fault> {
        self.need(b'"', "a string")?;
        self.string_rest()
    }

    /// Reads an object's key and the colon behind it.
    #[inline(always)]
    pub(crate) fn key(&mut self) -> Result<Str<'a>, Fault> {
        let key = self.string()?;
        self.need(b':', "a colon")?;
        self.space();
        Ok(key)
    }

    /// Steps from one member of an object to the next; false at the object's end. `first` is true before the first
    /// member.
    #[inline(always)]
    pub(crate) fn next_member(&mut self, first: bool) -> Result<bool, Fault> {
        self.space();
        match self.peek() {
            Some(b'}') => {
                self.pos += 1;
                Ok(false)
            }
            Some(b',') if !first => {
                self.pos += 1;
                Ok(true)
            }
            Some(b'"') if first => Ok(true),
            _ => self.expected(if first { "a key or a closing brace" } else { "a comma or a closing brace" }),
        }
    }

    /// Reads the next member's key and leaves the cursor on its value; `None` at the object's end. `first` is true
    /// before the first member.
    ///
    /// Most writers put no blank or one around commas and colons, so this form is tried first, three bytes at a time.
    #[inline(always)]
    pub fn member(&mut self, first: bool) -> Result<Option<Str<'a>>, Fault> {
        const COMMA: u64 = u32::from_le_bytes(*b", \"\0") as u64;
        const COLON: u64 = u16::from_le_bytes(*b": ") as u64;
        match word_at(self.bytes, self.pos) {
            Some(word) if word & 0xff_ffff == COMMA && !first => self.pos += 3,
            _ => {
                if !self.next_member(first)? {
                    return Ok(None);
                }
                self.need(b'"', "a string")?;
            }
        }
        let key = self.string_rest()?;
        match word_at(self.bytes, self.pos) {
            Some(word) if word & 0xffff == COLON && word >> 16 & 0xff > 0x20 => self.pos += 2,
            _ => {
                self.need(b':', "a colon")?;
                self.space();
            }
        }
        Ok(Some(key))
    }

    /// Reads a number, `true`, `null`, `NaN`, `N/A`: everything up to a separator.
    #[inline(always)]
    pub fn word(&mut self) -> Result<&'a [u8], Fault> {
        let start = self.pos;
        // Step over digits, points and signs eight at a time.
        while let Some(word) = word_at(self.bytes, self.pos) {
            let others = not_digits(word);
            if others != 0 {
                self.pos += others.trailing_zeros() as usize / 8;
                break;
            }
            self.pos += 8;
        }
        while let Some(byte) = self.peek() {
            if matches!(byte, b',' | b'}' | b']' | b' ' | b'\n' | b'\r' | b'\t' | b'"' | b'{' | b'[' | b':') {
                break;
            }
            self.pos += 1;
        }
        // A word that touches the end of the slice may continue in the next block.
        if self.pos >= self.bytes.len() {
            return self.fault(FaultKind::Cut);
        }
        if self.pos == start { self.expected("a value") } else { Ok(&self.bytes[start..self.pos]) }
    }

    /// Steps over any value.
    #[inline]
    pub fn skip(&mut self) -> Result<(), Fault> {
        match self.peek() {
            Some(b'"') => {
                self.pos += 1;
                self.string_rest().map(|_| ())
            }
            Some(b'{') => {
                self.pos += 1;
                self.close_object()
            }
            Some(b'[') => {
                self.pos += 1;
                self.close::<b'[', b']'>()
            }
            Some(_) => self.word().map(|_| ()),
            None => self.fault(FaultKind::Cut),
        }
    }

    /// Steps to the end of the enclosing object; the cursor must be outside a string.
    ///
    /// If the rest of the object has no nested object and no escape, the object ends at the first closing brace with an
    /// even number of quotes before it. Two vectorised searches find it faster than a walk from quote to quote.
    #[inline]
    pub(crate) fn close_object(&mut self) -> Result<(), Fault> {
        let rest = &self.bytes[self.pos..];
        if let Some(brace) = memchr::memchr3(b'}', b'{', b'\\', rest)
            && rest[brace] == b'}'
            && memchr::memchr_iter(b'"', &rest[..brace]).count().is_multiple_of(2)
        {
            self.pos += brace + 1;
            return Ok(());
        }
        self.close::<b'{', b'}'>()
    }

    /// Steps to the end of the innermost open bracket of this kind. Brackets of the other kind are ignored.
    fn close<const OPEN: u8, const CLOSE: u8>(&mut self) -> Result<(), Fault> {
        let mut depth = 1;
        loop {
            self.pos = self.next_of([b'"', OPEN, CLOSE]);
            match self.peek() {
                Some(b'"') => {
                    self.pos += 1;
                    self.string_rest()?;
                }
                Some(byte) if byte == OPEN => {
                    self.pos += 1;
                    depth += 1;
                    if depth > MAX_DEPTH {
                        return self.fault(FaultKind::TooDeep(MAX_DEPTH));
                    }
                }
                Some(_) => {
                    self.pos += 1;
                    depth -= 1;
                    if depth == 0 {
                        return Ok(());
                    }
                }
                None => return self.fault(FaultKind::Cut),
            }
        }
    }

    /// The next of three bytes, or the end.
    #[inline(always)]
    fn next_of(&self, three: [u8; 3]) -> usize {
        let mut at = self.pos;
        while let Some(word) = word_at(self.bytes, at) {
            let hits = three.into_iter().fold(0, |hits, byte| hits | equal_bytes(word, byte));
            if hits != 0 {
                return at + hits.trailing_zeros() as usize / 8;
            }
            at += 8;
        }
        while at < self.bytes.len() && !three.contains(&self.bytes[at]) {
            at += 1;
        }
        at
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check_skip(text: &str, rest: &str) {
        let mut cursor = Cursor::new(text.as_bytes(), 0);
        cursor.skip().unwrap();
        assert_eq!(&text[cursor.pos()..], rest);
    }

    #[test]
    fn values_are_skipped_whole() {
        check_skip(r#""a\"b\\", 1"#, ", 1");
        check_skip(r#"{"a": [1, {"b": "}]"}], "c": NaN} x"#, " x");
        check_skip("[]]", "]");
        check_skip("N/A,", ",");
        check_skip("-Infinity}", "}");
        check_skip(
            "\"tab\there, and a long string that goes on well beyond the sixty-four bytes of the fast path\\n\"!",
            "!",
        );
    }

    #[test]
    fn a_cut_and_a_wrong_byte_are_different_faults() {
        for text in ["", "\"abc", "\"abc\\", "{\"a\": [", "12", "[[\"a\"]"] {
            let fault = Cursor::new(text.as_bytes(), 0).skip().unwrap_err();
            assert_eq!(fault, Fault { at: text.len(), what: FaultKind::Cut }, "{text}");
        }
        let fault = Cursor::new(b": 1", 0).skip().unwrap_err();
        assert_eq!(fault.what, FaultKind::Expected("a value"));
    }

    #[test]
    fn depth_is_limited() {
        let deep = "[".repeat(MAX_DEPTH) + &"]".repeat(MAX_DEPTH);
        assert!(Cursor::new(deep.as_bytes(), 0).skip().is_ok());
        let deeper = "[".repeat(1_000_000);
        assert_eq!(Cursor::new(deeper.as_bytes(), 0).skip().unwrap_err().what, FaultKind::TooDeep(MAX_DEPTH));
    }

    proptest::proptest! {
        /// A value that serde_json writes is skipped to its last byte.
        #[test]
        fn skipping_agrees_with_serde_json(value in crate::bytes::any_json::any_json()) {
            let text = serde_json::to_string(&value).unwrap() + ",";
            let mut cursor = Cursor::new(text.as_bytes(), 0);
            cursor.skip().unwrap();
            proptest::prop_assert_eq!(cursor.pos(), text.len() - 1);
        }

        #[test]
        fn no_bytes_make_it_panic(bytes: Vec<u8>) {
            let _ = Cursor::new(&bytes, 0).skip();
        }
    }
}
