//! Reads messages without copying. Types 3 and 4 (groups) are in no profile. Whatever cannot be read is an error with its byte in the file.

use std::fmt;
use std::ops::Range;

/// Most bytes of a varint of 64 bits.
const MAX_VARINT_BYTES: usize = 10;
/// The largest number of a field.
const MAX_FIELD: u64 = (1 << 29) - 1;

/// Where bytes are no message, and why.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Damage {
    /// The byte in the file, from 0.
    pub at: usize,
    why: Why,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Why {
    Cut,
    LongVarint,
    Length {
        bytes: u64,
        left: usize,
    },
    Number(u64),
    Type(u64),
    /// The field has another type of value than its number asks for.
    Unexpected(u32),
}

impl fmt::Display for Damage {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "byte {}: ", self.at)?;
        match self.why {
            Why::Cut => write!(out, "the message ends within a field"),
            Why::LongVarint => write!(out, "a number has more than 64 bits"),
            Why::Length { bytes, left } => write!(out, "a field claims {bytes} bytes, and {left} are left"),
            Why::Number(number) => write!(out, "no field has the number {number}"),
            Why::Type(of) => write!(out, "no field has a value of type {of}"),
            Why::Unexpected(number) => write!(out, "field {number} has a value of another type"),
        }
    }
}

/// The bytes of a message, and where they are in the file.
#[derive(Clone, Copy, Debug, Default)]
pub struct Message<'a> {
    pub bytes: &'a [u8],
    at: usize,
}

impl<'a> Message<'a> {
    /// A whole file.
    pub fn of(bytes: &'a [u8]) -> Self {
        Self { bytes, at: 0 }
    }

    /// The message at a place of a file; `None` if the file ends before.
    pub fn within(bytes: &'a [u8], place: Range<usize>) -> Option<Self> {
        Some(Self { bytes: bytes.get(place.clone())?, at: place.start })
    }

    /// Its place in the file.
    pub fn place(&self) -> Range<usize> {
        self.at..self.at + self.bytes.len()
    }

    /// Its fields, up to the first that cannot be read.
    pub fn fields(self) -> Fields<'a> {
        Fields { message: self, next: 0 }
    }
}

/// A field.
#[derive(Clone, Copy, Debug)]
pub struct Field<'a> {
    pub number: u32,
    /// Its first byte in the file.
    at: usize,
    value: Value<'a>,
}

#[derive(Clone, Copy, Debug)]
enum Value<'a> {
    Varint(u64),
    Eight(u64),
    Four,
    Bytes(Message<'a>),
}

impl<'a> Field<'a> {
    fn unexpected(&self) -> Damage {
        Damage { at: self.at, why: Why::Unexpected(self.number) }
    }

    /// A whole number. `uint64` beyond `i64` becomes negative, as `int64` is written.
    pub fn integer(&self) -> Result<i64, Damage> {
        match self.value {
            Value::Varint(value) => Ok(value.cast_signed()),
            _ => Err(self.unexpected()),
        }
    }

    /// A number with a fraction.
    pub fn double(&self) -> Result<f64, Damage> {
        match self.value {
            Value::Eight(bits) => Ok(f64::from_bits(bits)),
            _ => Err(self.unexpected()),
        }
    }

    /// A message inside.
    pub fn message(&self) -> Result<Message<'a>, Damage> {
        match self.value {
            Value::Bytes(message) => Ok(message),
            _ => Err(self.unexpected()),
        }
    }

    /// A text, or bytes.
    pub fn bytes(&self) -> Result<&'a [u8], Damage> {
        self.message().map(|message| message.bytes)
    }
}

/// The fields of a message. After an error there are none.
#[derive(Clone, Debug)]
pub struct Fields<'a> {
    message: Message<'a>,
    next: usize,
}

impl<'a> Fields<'a> {
    fn damage(&self, at: usize, why: Why) -> Damage {
        Damage { at: self.message.at + at, why }
    }

    fn varint(&mut self) -> Result<u64, Damage> {
        let start = self.next;
        let mut value = 0_u64;
        for place in 0..MAX_VARINT_BYTES {
            let Some(byte) = self.message.bytes.get(self.next) else { return Err(self.damage(start, Why::Cut)) };
            self.next += 1;
            let bits = u64::from(byte & 0x7f);
            if place == MAX_VARINT_BYTES - 1 && bits > 1 {
                break;
            }
            value |= bits << (7 * place);
            if byte & 0x80 == 0 {
                return Ok(value);
            }
        }
        Err(self.damage(start, Why::LongVarint))
    }

    fn take(&mut self, count: u64) -> Result<Message<'a>, Damage> {
        let start = self.next;
        let left = self.message.bytes.len() - start;
        match usize::try_from(count).ok().filter(|count| *count <= left) {
            Some(count) => {
                self.next += count;
                Ok(Message { bytes: &self.message.bytes[start..start + count], at: self.message.at + start })
            }
            None => Err(self.damage(start, Why::Length { bytes: count, left })),
        }
    }

    fn field(&mut self) -> Result<Field<'a>, Damage> {
        let start = self.next;
        let tag = self.varint()?;
        let number = tag >> 3;
        if number == 0 || number > MAX_FIELD {
            return Err(self.damage(start, Why::Number(number)));
        }
        let value = match tag & 7 {
            0 => Value::Varint(self.varint()?),
            1 => {
                let mut bits = [0; 8];
                bits.copy_from_slice(self.take(8)?.bytes);
                Value::Eight(u64::from_le_bytes(bits))
            }
            2 => {
                let length = self.varint()?;
                Value::Bytes(self.take(length)?)
            }
            5 => {
                self.take(4)?;
                Value::Four
            }
            of => return Err(self.damage(start, Why::Type(of))),
        };
        Ok(Field { number: number as u32, at: self.message.at + start, value })
    }
}

impl<'a> Iterator for Fields<'a> {
    type Item = Result<Field<'a>, Damage>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.next >= self.message.bytes.len() {
            return None;
        }
        let field = self.field();
        if field.is_err() {
            self.next = self.message.bytes.len();
        }
        Some(field)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    type Read = Result<(u32, Option<i64>, usize), String>;

    fn read(bytes: &[u8]) -> Vec<Read> {
        let field = |field: Field<'_>| (field.number, field.integer().ok(), field.bytes().map_or(0, <[u8]>::len));
        Message::of(bytes).fields().map(|read| read.map(field).map_err(|damage| damage.to_string())).collect()
    }

    #[test]
    fn fields_have_numbers_and_values() {
        let bytes = [0x08, 0x96, 0x01, 0x12, 2, b'h', b'i', 0x19, 0, 0, 0, 0, 0, 0, 0xf8, 0x3f, 0x25, 1, 2, 3, 4];
        assert_eq!(read(&bytes), [Ok((1, Some(150), 0)), Ok((2, None, 2)), Ok((3, None, 0)), Ok((4, None, 0))]);
        let third = Message::of(&bytes).fields().nth(2).unwrap().unwrap();
        assert_eq!(third.double(), Ok(1.5));
        let minus_one = [0x08, 255, 255, 255, 255, 255, 255, 255, 255, 255, 1];
        assert_eq!(read(&minus_one), [Ok((1, Some(-1), 0))]);
    }

    #[test]
    fn what_is_no_field_ends_the_message_with_its_byte() {
        let check = |bytes: &[u8], why: &str| assert_eq!(read(bytes).last().unwrap().as_ref().unwrap_err(), why);
        check(&[0x08, 1, 0x12, 5, 1], "byte 4: a field claims 5 bytes, and 1 are left");
        check(&[0x08, 1, 0x08, 0x80], "byte 3: the message ends within a field");
        check(&[0x08, 255, 255, 255, 255, 255, 255, 255, 255, 255, 255, 1], "byte 1: a number has more than 64 bits");
        check(&[0x08, 255, 255, 255, 255, 255, 255, 255, 255, 255, 2], "byte 1: a number has more than 64 bits");
        check(&[0x0b, 1], "byte 0: no field has a value of type 3");
        check(&[0x0c], "byte 0: no field has a value of type 4");
        check(&[0x02, 1], "byte 0: no field has the number 0");
        check(&[0x09, 1], "byte 1: a field claims 8 bytes, and 1 are left");
        let number = [0x08, 1];
        let field = Message::of(&number).fields().next().unwrap().unwrap();
        assert_eq!(field.bytes().unwrap_err().to_string(), "byte 0: field 1 has a value of another type");
    }
}
