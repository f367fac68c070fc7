//! JSON values in memory, for the few small ones that are kept whole: `distributedInfo`, `deviceProperties`, the
//! arguments of a collective.

use crate::bytes::json::{Cursor, Fault, FaultKind};
use crate::bytes::memory::Room;
use crate::bytes::visit::take;
use crate::bytes::{number, text};

/// Longest text of a kept value, in memory up to 32 times as long. A list of all ranks of the largest job is about 9 MB.
pub(crate) const MAX_KEPT_BYTES: usize = 16 << 20;

/// Nesting depth of a kept value. It is limited because such values are read recursively.
const MAX_VALUE_DEPTH: usize = 32;

/// A JSON value. Numbers and bare words stay text, so that no digit is lost.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Value {
    /// A number, `true`, `null`, `NaN`, …
    Word(String),
    /// A string.
    Text(String),
    /// An array.
    List(Vec<Value>),
    /// An object, in the order of the file.
    Map(Vec<(String, Value)>),
}

impl Value {
    /// Reads the value at the cursor.
    pub(crate) fn read(cursor: &mut Cursor<'_>) -> Result<Self, Fault> {
        Self::read_within(cursor, &mut Room::unlimited())
    }

    /// As [`read`](Self::read). What the value takes in memory is taken of `room`; without room, [`FaultKind::Full`] is returned.
    pub(crate) fn read_within(cursor: &mut Cursor<'_>, room: &mut Room) -> Result<Self, Fault> {
        Self::read_nested(cursor, 0, room)
    }

    /// Reads the value in `bytes`.
    pub(crate) fn parse(bytes: &[u8]) -> Option<Self> {
        Self::read(&mut Cursor::new(bytes, 0)).ok()
    }

    fn read_nested(cursor: &mut Cursor<'_>, depth: usize, room: &mut Room) -> Result<Self, Fault> {
        if depth > MAX_VALUE_DEPTH {
            return cursor.fault(FaultKind::TooDeep(MAX_VALUE_DEPTH));
        }
        match cursor.peek() {
            Some(b'"') => {
                let string = cursor.string()?;
                take(cursor, room, string.raw.len())?;
                Ok(Self::Text(text::decode(string)))
            }
            Some(b'[') => {
                cursor.bump(1);
                let mut items = Vec::new();
                while !cursor.eat(b']') {
                    if !items.is_empty() {
                        cursor.need(b',', "a comma or a closing bracket")?;
                        cursor.space();
                    }
                    take(cursor, room, grown::<Self>(items.is_empty()))?;
                    items.push(Self::read_nested(cursor, depth + 1, room)?);
                }
                Ok(Self::List(items))
            }
            Some(b'{') => {
                cursor.bump(1);
                let mut members = Vec::new();
                while cursor.next_member(members.is_empty())? {
                    let key = cursor.key()?;
                    take(cursor, room, grown::<(String, Self)>(members.is_empty()) + key.raw.len())?;
                    let key = text::decode(key);
                    members.push((key, Self::read_nested(cursor, depth + 1, room)?));
                }
                Ok(Self::Map(members))
            }
            _ => {
                let word = cursor.word()?;
                take(cursor, room, word.len())?;
                Ok(Self::Word(String::from_utf8_lossy(word).into_owned()))
            }
        }
    }

    /// A member of an object; the last one if several have this name.
    pub(crate) fn get(&self, key: &str) -> Option<&Self> {
        match self {
            Self::Map(members) => members.iter().rev().find(|(k, _)| k == key).map(|(_, v)| v),
            _ => None,
        }
    }

    /// The items of an array; empty for other values.
    pub(crate) fn items(&self) -> &[Self] {
        match self {
            Self::List(items) => items,
            _ => &[],
        }
    }

    /// An integer, written as a number or as a string.
    pub(crate) fn integer(&self) -> Option<i64> {
        match self {
            Self::Word(text) | Self::Text(text) => number::integer(text.as_bytes()),
            _ => None,
        }
    }

    /// A string, or a number as it is written.
    pub(crate) fn text(&self) -> Option<&str> {
        match self {
            Self::Text(text) => Some(text),
            Self::Word(text) if text != "null" => Some(text),
            _ => None,
        }
    }

    /// A list of integers, written as an array or as a string that holds one; `None` if dots cut it short, or it is not
    /// a list.
    pub(crate) fn integers(&self) -> Option<Vec<i64>> {
        let parsed;
        let list = match self {
            Self::Text(text) => {
                parsed = Self::parse(text.as_bytes())?;
                &parsed
            }
            other => other,
        };
        match list {
            Self::List(items) => items.iter().map(Self::integer).collect(),
            _ => None,
        }
    }
}

/// The memory by which one more item may make a list grow. The first takes the place of four, and later ones may double it.
fn grown<T>(is_first: bool) -> usize {
    size_of::<T>() * if is_first { 4 } else { 2 }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_are_read() {
        let text =
            br#"{"a": [1, "2", NaN], "b": {"c": null}, "a": "last", "e": [], "f": {}, "u": 18446744073709551615}"#;
        let value = Value::parse(text).unwrap();
        assert_eq!(value.get("a"), Some(&Value::Text("last".into())));
        assert_eq!(value.get("b").unwrap().get("c").unwrap().text(), None);
        assert_eq!(value.get("u").unwrap().integer(), Some(-1));
        assert_eq!(value.get("e").unwrap().items().len(), 0);
    }

    #[test]
    fn lists_of_ranks_are_arrays_or_strings_and_may_be_cut_short() {
        let list = |text: &str| Value::parse(text.as_bytes()).unwrap().integers();
        assert_eq!(list("[0, 1, 2]"), Some(vec![0, 1, 2]));
        assert_eq!(list("\"[4, 5]\""), Some(vec![4, 5]));
        assert_eq!(list("\"[0, 1, ..., 30]\""), None);
        assert_eq!(list("\"[0, 1, ...]\""), None);
        assert_eq!(list("7,"), None);
    }

    #[test]
    fn depth_is_limited() {
        let deep = "[".repeat(10_000);
        let fault = Value::read(&mut Cursor::new(deep.as_bytes(), 0)).unwrap_err();
        assert_eq!(fault.what, FaultKind::TooDeep(MAX_VALUE_DEPTH));
    }

    #[test]
    fn an_array_wants_commas() {
        assert!(Value::parse(b"[1 2]").is_none());
        assert!(Value::parse(b"[1, 2").is_none());
    }
}
