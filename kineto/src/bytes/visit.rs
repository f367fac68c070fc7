//! JSON of other formats, read with the parser of traces: values are visited in the order of the file, and none is kept.
//!
//! ```
//! use kineto::json::{Cursor, array, integer, object};
//!
//! let mut sum = 0;
//! let read = object(&mut Cursor::new(br#"{"a": [1, 2], "b": {}}"#, 0), |key, cursor| match key {
//!     b"a" => array(cursor, |cursor| Ok(sum += integer(cursor)?.unwrap_or(0))),
//!     _ => cursor.skip(),
//! });
//! assert_eq!((read, sum), (Ok(()), 3));
//! ```

use crate::bytes::memory::Room;
use crate::bytes::{number, text as texts};

pub use crate::bytes::json::{Cursor, Fault, FaultKind, Str};

/// Visits the members of an object. `visit` gets the key as it is written, and reads the value.
///
/// # Errors
/// The first byte that is no JSON, and errors of `visit`.
pub fn object(
    cursor: &mut Cursor<'_>,
    mut visit: impl FnMut(&[u8], &mut Cursor<'_>) -> Result<(), Fault>,
) -> Result<(), Fault> {
    cursor.need(b'{', "an object")?;
    let mut is_first = true;
    while let Some(key) = cursor.member(is_first)? {
        is_first = false;
        visit(key.raw, cursor)?;
    }
    Ok(())
}

/// Visits the items of an array. `visit` reads the item.
///
/// # Errors
/// As [`object`].
pub fn array(
    cursor: &mut Cursor<'_>,
    mut visit: impl FnMut(&mut Cursor<'_>) -> Result<(), Fault>,
) -> Result<(), Fault> {
    cursor.need(b'[', "an array")?;
    let mut is_first = true;
    while !cursor.eat(b']') {
        if !is_first {
            cursor.need(b',', "a comma or a closing bracket")?;
            cursor.space();
        }
        is_first = false;
        visit(cursor)?;
    }
    Ok(())
}

/// Takes the memory of a value that is kept.
///
/// # Errors
/// [`FaultKind::Full`] if less is left.
pub fn take(cursor: &Cursor<'_>, room: &mut Room, bytes: usize) -> Result<(), Fault> {
    room.take(bytes).map_err(|_| Fault { at: cursor.pos(), what: FaultKind::Full })
}

/// Reads an integer, written as a number or as a string; `None` for another value.
///
/// # Errors
/// As [`object`].
pub fn integer(cursor: &mut Cursor<'_>) -> Result<Option<i64>, Fault> {
    match cursor.peek() {
        Some(b'"') => Ok(number::integer(cursor.string()?.raw)),
        Some(b'{' | b'[') => cursor.skip().map(|()| None),
        _ => Ok(number::integer(cursor.word()?)),
    }
}

/// Reads a text of at most [`MAX_TEXT_BYTES`](trace::MAX_TEXT_BYTES); another value is an empty one.
///
/// # Errors
/// As [`object`].
pub fn text(cursor: &mut Cursor<'_>) -> Result<String, Fault> {
    match cursor.peek() {
        Some(b'"') => {
            let text = cursor.string()?;
            Ok(texts::decode(Str { raw: texts::shortened(text.raw), ..text }))
        }
        _ => cursor.skip().map(|()| String::new()),
    }
}
