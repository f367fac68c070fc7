//! What stands between the values of an object: the same bytes, event after event.
//!
//! A writer puts the members of its events in one order and between one and the next always the same comma, blanks, key
//! and colon. So the bytes that stood there in the last event of its kind are compared first, thirty-two at a time; only
//! where others stand is the key read and looked up. Prediction changes nothing but the time: what it steps over, the
//! parser had read before, byte for byte, at a place of the same grammar.

use crate::kineto::json::{Cursor, Fault};

/// Bytes that a separator may have; a longer one is always read.
const WIDTH: usize = 32;

/// Members of an object that are predicted; those behind are read.
const MEMBERS: usize = 16;

/// A key that the reader of events knows; outside and inside `args`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Key {
    /// Any other: its value is stepped over.
    #[default]
    Other,
    Phase,
    Category,
    Name,
    Start,
    Length,
    Process,
    Thread,
    Id,
    Args,
    External,
    Correlation,
    Device,
    Stream,
    Bytes,
    Shape,
    Grid,
    Occupancy,
    Bandwidth,
}

/// The bytes between a value and the next, or between an object's brace and its first value, with the key in them.
#[derive(Clone, Copy, Debug)]
struct Separator {
    bytes: [u64; WIDTH / 8],
    /// Which bits of `bytes` count.
    mask: [u64; WIDTH / 8],
    /// 0: none was seen yet.
    length: usize,
    key: Key,
}

const NONE_YET: Separator = Separator { bytes: [0; 4], mask: [0; 4], length: 0, key: Key::Other };

fn words(bytes: &[u8; WIDTH]) -> [u64; WIDTH / 8] {
    std::array::from_fn(|at| u64::from_le_bytes(std::array::from_fn(|byte| bytes[8 * at + byte])))
}

impl Separator {
    /// Its length, if these bytes begin with it and a value follows at once.
    #[inline(always)]
    fn at_start_of(&self, bytes: &[u8]) -> Option<usize> {
        let found = words(bytes.first_chunk()?);
        let mut difference = 0;
        for ((found, own), mask) in found.iter().zip(&self.bytes).zip(&self.mask) {
            difference |= (found ^ own) & mask;
        }
        // More blanks before the value are left to the parser.
        let is_here = difference == 0 && self.length > 0 && *bytes.get(self.length)? > b' ';
        is_here.then_some(self.length)
    }

    #[cold]
    fn learn(&mut self, bytes: &[u8], key: Key) {
        *self = NONE_YET;
        if bytes.len() <= WIDTH {
            let (mut padded, mut mask) = ([0; WIDTH], [0; WIDTH]);
            padded[..bytes.len()].copy_from_slice(bytes);
            mask[..bytes.len()].fill(0xff);
            *self = Self { bytes: words(&padded), mask: words(&mask), length: bytes.len(), key };
        }
    }
}

/// The separators of the objects of one kind, by the number of the member behind them.
#[derive(Clone, Debug)]
pub(crate) struct Layout {
    separators: [Separator; MEMBERS],
}

impl Default for Layout {
    fn default() -> Self {
        Self { separators: [NONE_YET; MEMBERS] }
    }
}

impl Layout {
    /// As [`Cursor::member`], with the key looked up by `known`. `number` counts the object's members from 0.
    #[inline(always)]
    pub(crate) fn member(
        &mut self,
        cursor: &mut Cursor<'_>,
        number: usize,
        known: impl Fn(&[u8]) -> Key,
    ) -> Result<Option<Key>, Fault> {
        let Some(separator) = self.separators.get_mut(number) else {
            return Ok(cursor.member(number == 0)?.map(|key| known(key.raw)));
        };
        if let Some(length) = separator.at_start_of(cursor.rest()) {
            cursor.bump(length);
            return Ok(Some(separator.key));
        }
        let start = cursor.pos();
        let Some(key) = cursor.member(number == 0)? else { return Ok(None) };
        let key = known(key.raw);
        separator.learn(cursor.since(start), key);
        Ok(Some(key))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn known(key: &[u8]) -> Key {
        match key {
            b"ts" => Key::Start,
            b"dur" => Key::Length,
            _ => Key::Other,
        }
    }

    /// The keys of an object, and where each value begins, or the fault.
    fn read(layout: Option<&mut Layout>, text: &[u8]) -> Result<Vec<(Key, usize)>, Fault> {
        let mut fresh = Layout::default();
        let layout = layout.unwrap_or(&mut fresh);
        let mut cursor = Cursor::new(text, 0);
        cursor.need(b'{', "an object")?;
        let mut found = Vec::new();
        while let Some(key) = layout.member(&mut cursor, found.len(), known)? {
            found.push((key, cursor.pos()));
            cursor.skip()?;
        }
        Ok(found)
    }

    #[test]
    fn what_was_seen_is_found_again_and_what_differs_is_read() {
        let mut layout = Layout::default();
        let texts = [
            r#"{"ts": 1, "dur": 2, "x": 3}                                  "#,
            r#"{"ts": 15, "dur": 27, "x": "\"}"}                            "#,
            r#"{"ts": 15, "dur":  27, "x":3}                                "#,
            r#"{"dur": 15, "ts": 27}                                        "#,
            r#"{"ts": 1, "dur": 2 , "x": 3}                                 "#,
            r#"{"ts": 1}                                                    "#,
            r#"{}                                                           "#,
            r#"{"ts": 1, "dur" 2}                                           "#,
            r#"{"ts": 1 "dur": 2}                                           "#,
            r#"{, "ts": 1}                                                  "#,
        ];
        for text in texts.iter().chain(&texts) {
            assert_eq!(read(Some(&mut layout), text.as_bytes()), read(None, text.as_bytes()), "{text}");
        }
    }

    #[test]
    fn long_separators_and_many_members_are_read() {
        let mut layout = Layout::default();
        let long = format!("{{{}\"ts\": 1}}{}", " ".repeat(WIDTH), " ".repeat(WIDTH));
        let many: Vec<String> = (0..3 * MEMBERS).map(|n| format!("\"dur\": {n}")).collect();
        let many = format!("{{{}}}{}", many.join(", "), " ".repeat(WIDTH));
        for text in [&long, &many, &long, &many] {
            assert_eq!(read(Some(&mut layout), text.as_bytes()), read(None, text.as_bytes()));
        }
        assert_eq!(read(None, many.as_bytes()).unwrap().len(), 3 * MEMBERS);
    }

    proptest::proptest! {
        /// Whatever came before, an object is read as if nothing had.
        #[test]
        fn what_came_before_changes_nothing(texts in proptest::collection::vec("\\{[ ,:\"]?(\"(ts|dur|x)\":? ?[0-9] ?,? ?){0,5}\\}? {0,40}", 1..8)) {
            let mut layout = Layout::default();
            for text in &texts {
                proptest::prop_assert_eq!(read(Some(&mut layout), text.as_bytes()), read(None, text.as_bytes()));
            }
        }
    }
}
