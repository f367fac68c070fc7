//! The arguments of every row, kept in little memory. `ingest` writes them; an analysis does not need them.
//!
//! Rows of one operator or kernel differ only in a few integers, mostly ids. So arguments are split into a *template*,
//! which is interned, and the integers, which are packed. Both together give the original text.

use trace::MAX_TEXT_BYTES;

use crate::bytes::json::{Cursor, Fault, Str};
use crate::bytes::text::shortened;
use crate::bytes::{number, text};

/// An argument: its key, and its value unless the value is an integer of the row.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Member {
    key: String,
    value: Option<Box<[u8]>>,
}

/// The arguments that many rows share, without their integers.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Template {
    members: Vec<Member>,
}

/// The value of an argument.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Argument<'a> {
    Integer(i64),
    /// Any other value, as JSON text.
    Json(&'a [u8]),
}

impl Template {
    /// Reads a template that [`encode`] wrote.
    pub(crate) fn decode(mut bytes: &[u8]) -> Self {
        let mut members = Vec::new();
        while let Some(key) = take_slice(&mut bytes) {
            let key = text::decode(Str { raw: key, escaped: memchr::memchr(b'\\', key).is_some() });
            let Some((kind, rest)) = bytes.split_first() else { break };
            bytes = rest;
            let value = if *kind == INTEGER { None } else { take_slice(&mut bytes).map(Into::into) };
            members.push(Member { key, value });
        }
        Self { members }
    }

    /// The arguments of a row, whose integers begin at the start of `numbers`.
    pub(crate) fn arguments<'a>(&'a self, mut numbers: &'a [u8]) -> impl Iterator<Item = (&'a str, Argument<'a>)> {
        self.members.iter().map(move |member| {
            let value = match &member.value {
                Some(raw) => Argument::Json(raw),
                None => Argument::Integer(take_integer(&mut numbers)),
            };
            (member.key.as_str(), value)
        })
    }
}

const INTEGER: u8 = 0;
const JSON: u8 = 1;

/// Splits the object at the cursor into `template` and `numbers`. Any other value becomes the argument `value`. Keys and
/// values that are too long are shortened and counted in `long`. A value is no longer JSON then.
pub(crate) fn encode(
    cursor: &mut Cursor<'_>,
    template: &mut Vec<u8>,
    numbers: &mut Vec<u8>,
    long: &mut u64,
) -> Result<(), Fault> {
    let mut put_text = |template: &mut Vec<u8>, raw: &[u8]| {
        *long += u64::from(raw.len() > MAX_TEXT_BYTES);
        put_slice(template, shortened(raw));
    };
    if cursor.peek() != Some(b'{') {
        let start = cursor.pos();
        cursor.skip()?;
        put_slice(template, b"value");
        template.push(JSON);
        put_text(template, cursor.since(start));
        return Ok(());
    }
    cursor.bump(1);
    let mut first = true;
    while cursor.next_member(first)? {
        first = false;
        put_text(template, cursor.key()?.raw);
        let start = cursor.pos();
        cursor.skip()?;
        let raw = cursor.since(start);
        match plain_integer(raw) {
            Some(integer) => {
                template.push(INTEGER);
                put_integer(numbers, integer);
            }
            None => {
                template.push(JSON);
                put_text(template, raw);
            }
        }
    }
    Ok(())
}

/// The text of an object of arguments, divided at its plain integers. Rows with one template are mostly written alike, and a
/// comparison with the text between the integers is faster than reading the members.
#[derive(Debug)]
pub(crate) struct Shape {
    /// The text without the integers.
    text: Box<[u8]>,
    /// Where the integers stand in `text`.
    cuts: Box<[u32]>,
}

impl Shape {
    /// The shape of an object; `None` if `raw` is none, or if it has texts that its template shortens.
    pub(crate) fn of(raw: &[u8]) -> Option<Self> {
        let mut cursor = Cursor::new(raw, 0);
        if raw.len() > MAX_TEXT_BYTES || !cursor.eat(b'{') {
            return None;
        }
        let (mut text, mut cuts, mut copied) = (Vec::with_capacity(raw.len()), Vec::new(), 0);
        let mut first = true;
        while cursor.next_member(first).ok()? {
            first = false;
            cursor.key().ok()?;
            let start = cursor.pos();
            cursor.skip().ok()?;
            if plain_integer(cursor.since(start)).is_some() {
                text.extend_from_slice(&raw[copied..start]);
                cuts.push(text.len() as u32);
                copied = cursor.pos();
            }
        }
        text.extend_from_slice(&raw[copied..cursor.pos()]);
        Some(Self { text: text.into_boxed_slice(), cuts: cuts.into_boxed_slice() })
    }

    /// Reads an object of this shape at the start of `bytes`: appends its integers to `numbers` and returns its length.
    /// `None`, and nothing is changed, if the object has another shape.
    pub(crate) fn read(&self, bytes: &[u8], numbers: &mut Vec<u8>) -> Option<usize> {
        let before = numbers.len();
        let read = self.read_parts(bytes, numbers);
        if read.is_none() {
            numbers.truncate(before);
        }
        read
    }

    #[inline]
    fn read_parts(&self, bytes: &[u8], numbers: &mut Vec<u8>) -> Option<usize> {
        let (mut rest, mut from) = (bytes, 0);
        for cut in &*self.cuts {
            rest = rest.strip_prefix(&self.text[from..*cut as usize])?;
            from = *cut as usize;
            let length = rest.iter().position(|byte| !matches!(byte, b'-' | b'0'..=b'9'))?;
            // A longer number has another byte here, because no shape goes on with it.
            put_integer(numbers, plain_integer(&rest[..length])?);
            rest = &rest[length..];
        }
        rest = rest.strip_prefix(&self.text[from..])?;
        Some(bytes.len() - rest.len())
    }
}

/// The integer in `raw`, if writing it gives `raw` again.
fn plain_integer(raw: &[u8]) -> Option<i64> {
    let digits = raw.strip_prefix(b"-").unwrap_or(raw);
    let plain = match digits {
        [b'0'] => raw.len() == 1,
        [b'1'..=b'9', ..] => digits.len() <= 18,
        _ => false,
    };
    if plain && digits.iter().all(u8::is_ascii_digit) { number::integer(raw) } else { None }
}

fn put_varint(out: &mut Vec<u8>, mut value: u64) {
    while value >= 0x80 {
        out.push(value as u8 | 0x80);
        value >>= 7;
    }
    out.push(value as u8);
}

fn take_varint(bytes: &mut &[u8]) -> Option<u64> {
    let mut value = 0;
    for shift in (0..64).step_by(7) {
        let (byte, rest) = bytes.split_first()?;
        *bytes = rest;
        value |= u64::from(byte & 0x7f) << shift;
        if byte & 0x80 == 0 {
            return Some(value);
        }
    }
    None
}

/// Zigzag encoding: small magnitudes of either sign take few bytes.
fn put_integer(out: &mut Vec<u8>, value: i64) {
    put_varint(out, ((value << 1) ^ (value >> 63)) as u64);
}

/// Takes the next integer of a row.
pub(crate) fn take_integer(bytes: &mut &[u8]) -> i64 {
    let folded = take_varint(bytes).unwrap_or_default();
    (folded >> 1) as i64 ^ -((folded & 1) as i64)
}

fn put_slice(out: &mut Vec<u8>, slice: &[u8]) {
    put_varint(out, slice.len() as u64);
    out.extend_from_slice(slice);
}

fn take_slice<'a>(bytes: &mut &'a [u8]) -> Option<&'a [u8]> {
    let length = usize::try_from(take_varint(bytes)?).ok()?;
    let (slice, rest) = bytes.split_at_checked(length)?;
    *bytes = rest;
    Some(slice)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn round_trip(text: &str) -> String {
        let (mut template, mut numbers) = (Vec::new(), Vec::new());
        encode(&mut Cursor::new(format!("{text},").as_bytes(), 0), &mut template, &mut numbers, &mut 0).unwrap();
        let template = Template::decode(&template);
        let members = template.arguments(&numbers).map(|(key, value)| match value {
            Argument::Integer(integer) => format!("{}:{integer}", serde_json::to_string(key).unwrap()),
            Argument::Json(raw) => format!("{}:{}", serde_json::to_string(key).unwrap(), String::from_utf8_lossy(raw)),
        });
        format!("{{{}}}", members.collect::<Vec<_>>().join(","))
    }

    #[test]
    fn arguments_come_back() {
        for text in [
            "{}",
            r#"{"a":1,"b":-7,"c":0,"d":999999999999999999}"#,
            r#"{"a":"1","b":[1,2,{"c":3}],"d":null,"e":1.50,"f":-0,"g":007,"h":10159970886766084423}"#,
            r#"{"k\"ey":NaN,"":""}"#,
        ] {
            assert_eq!(round_trip(text), text);
        }
        assert_eq!(round_trip("[1, 2]"), r#"{"value":[1, 2]}"#);
    }

    #[test]
    fn rows_that_differ_in_integers_share_a_template() {
        let template = |text: &str| {
            let (mut template, mut numbers) = (Vec::new(), Vec::new());
            encode(&mut Cursor::new(text.as_bytes(), 0), &mut template, &mut numbers, &mut 0).unwrap();
            (template, numbers.len())
        };
        let (one, two) = (template(r#"{"id": 1, "dims": [2]} "#), template(r#"{"id": 70000, "dims": [2]} "#));
        assert_eq!(one.0, two.0);
        assert_eq!((one.1, two.1), (1, 3));
    }

    fn parts(text: &str) -> (Vec<u8>, Vec<u8>) {
        let (mut template, mut numbers) = (Vec::new(), Vec::new());
        encode(&mut Cursor::new(format!("{text},").as_bytes(), 0), &mut template, &mut numbers, &mut 0).unwrap();
        (template, numbers)
    }

    // Text that has a shape has the template of every text with this shape.
    #[test]
    fn a_shape_reads_what_the_members_say_or_refuses() {
        let texts = [
            r#"{"id": 1, "dims": [2, 3], "t": "a"}"#,
            r#"{"id": 70000, "dims": [2, 3], "t": "a"}"#,
            r#"{"id": -5, "dims": [2, 3], "t": "a"}"#,
            r#"{"id":-5,"dims":[2, 3],"t":"a"}"#,
            r#"{"id": 1, "dims": [2, 3], "t": "ab"}"#,
            r#"{"id": 1, "dims": [2, 3], "t": "a", "u": 1}"#,
            r#"{"id": 1, "dims": [2, 3]}"#,
            r#"{"id": 1.5, "dims": [2, 3], "t": "a"}"#,
            r#"{"id": 01, "dims": [2, 3], "t": "a"}"#,
            r#"{"id": 12345678901234567890, "dims": [2, 3], "t": "a"}"#,
            r#"{"id": 2e3, "dims": [2, 3], "t": "a"}"#,
            r#"{"k\"": NaN}"#,
            r#"{"k\"": NaNs}"#,
            r#"{"n": 1}"#,
            r#"{"n": 1 }"#,
            "{}",
        ];
        let mut hits = 0;
        for text in texts {
            for other in texts {
                let ((own, expected), template) = (parts(text), parts(other).0);
                let mut numbers = vec![7];
                match Shape::of(other.as_bytes()).unwrap().read(format!("{text}, {{").as_bytes(), &mut numbers) {
                    Some(length) => {
                        assert_eq!(
                            (length, &own, &numbers[1..]),
                            (text.len(), &template, &*expected),
                            "{text} by {other}"
                        );
                        hits += usize::from(text != other);
                    }
                    None => assert!(text != other && numbers == [7], "{text} by {other}"),
                }
            }
        }
        assert_eq!(hits, 6, "the first three have one shape");
        for text in ["[1]", "1", "{\"a\": 1", "{\"a\" 1}"] {
            assert!(Shape::of(text.as_bytes()).is_none(), "{text}");
        }
    }

    proptest::proptest! {
        #[test]
        fn integers_are_packed_without_loss(values: Vec<i64>) {
            let mut bytes = Vec::new();
            values.iter().for_each(|v| put_integer(&mut bytes, *v));
            let mut rest = bytes.as_slice();
            let back: Vec<i64> = values.iter().map(|_| take_integer(&mut rest)).collect();
            proptest::prop_assert_eq!(back, values);
        }

        #[test]
        fn any_arguments_have_their_own_shape(value in crate::bytes::any_json::any_json(), number: i64) {
            let text = serde_json::json!({"a": value, "n": number}).to_string();
            let mut numbers = Vec::new();
            let shape = Shape::of(text.as_bytes()).unwrap();
            proptest::prop_assert_eq!(shape.read(text.as_bytes(), &mut numbers), Some(text.len()));
            proptest::prop_assert_eq!(numbers, parts(&text).1);
        }

        #[test]
        fn any_arguments_come_back(value in crate::bytes::any_json::any_json()) {
            let text = serde_json::json!({"a": value, "n": 5}).to_string();
            let back: serde_json::Value = serde_json::from_str(&round_trip(&text)).unwrap();
            proptest::prop_assert_eq!(back, serde_json::from_str::<serde_json::Value>(&text).unwrap());
        }
    }
}
