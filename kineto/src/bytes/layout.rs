//! The bytes between the values of an object, which repeat event after event.
//!
//! A writer puts the members of its events in one order, with the same comma, blanks, key and colon between two values.
//! So the reader first compares the bytes with those of the last event of the same kind, thirty-two at a time, and
//! reads and looks up the key only where they differ. Prediction changes only the time: the bytes that it steps over
//! are, byte for byte, bytes that the parser read before at a place of the same grammar.

use crate::bytes::json::{Cursor, Fault};

/// Longest separator that is predicted, in bytes.
const WIDTH: usize = 32;

/// Members of an object that are predicted; later ones are read.
const MEMBERS: usize = 16;

/// The keys that the reader of events knows, outside and inside `args`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Key {
    /// An unknown key, whose value is skipped.
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
    Block,
    Registers,
    SharedMemory,
    Occupancy,
    Bandwidth,
    Collective,
}

/// The bytes between a value and the next, or between an object's brace and its first value, with the key in them.
#[derive(Clone, Copy, Debug)]
struct Separator {
    bytes: [u64; WIDTH / 8],
    /// The bits of `bytes` that are compared.
    mask: [u64; WIDTH / 8],
    /// 0 before the first separator was seen.
    length: usize,
    key: Key,
}

const NONE_YET: Separator = Separator { bytes: [0; 4], mask: [0; 4], length: 0, key: Key::Other };

fn words(bytes: &[u8; WIDTH]) -> [u64; WIDTH / 8] {
    std::array::from_fn(|at| u64::from_le_bytes(std::array::from_fn(|byte| bytes[8 * at + byte])))
}

impl Separator {
    /// The separator's length, if these bytes begin with it and a value follows at once.
    #[inline(always)]
    fn at_start_of(&self, bytes: &[u8]) -> Option<usize> {
        let found = words(bytes.first_chunk()?);
        let mut difference = 0;
        for ((found, own), mask) in found.iter().zip(&self.bytes).zip(&self.mask) {
            difference |= (found ^ own) & mask;
        }
        // The parser handles further blanks before the value.
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

/// The separators of the objects of one kind, by the number of the member that follows.
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
    fn known_separators_are_predicted_and_others_are_read() {
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
        /// Earlier objects do not change how an object is read.
        #[test]
        fn earlier_objects_change_nothing(texts in proptest::collection::vec("\\{[ ,:\"]?(\"(ts|dur|x)\":? ?[0-9] ?,? ?){0,5}\\}? {0,40}", 1..8)) {
            let mut layout = Layout::default();
            for text in &texts {
                proptest::prop_assert_eq!(read(Some(&mut layout), text.as_bytes()), read(None, text.as_bytes()));
            }
        }
    }
}
