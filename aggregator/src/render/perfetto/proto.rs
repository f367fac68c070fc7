//! Protocol buffers as far as a Perfetto trace needs them: varints, fixed 64-bit numbers, bytes and nested messages.
//!
//! The wire format is that of <https://protobuf.dev/programming-guides/encoding>. A dozen message types of a schema
//! with thousands do not justify a code generator: the field numbers stand where they are used.

/// Bytes of a nested message's length: a varint that is padded, so that it can be written before the length is known.
const LENGTH_BYTES: usize = 4;

/// A message under construction.
#[derive(Debug, Default)]
pub(super) struct Message {
    bytes: Vec<u8>,
}

impl Message {
    pub(super) fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    #[cfg(test)]
    fn clear(&mut self) {
        self.bytes.clear();
    }

    fn varint(&mut self, mut value: u64) {
        while value >= 0x80 {
            self.bytes.push(value as u8 | 0x80);
            value >>= 7;
        }
        self.bytes.push(value as u8);
    }

    fn tag(&mut self, field: u32, wire_type: u32) {
        self.varint(u64::from(field << 3 | wire_type));
    }

    pub(super) fn unsigned(&mut self, field: u32, value: u64) {
        self.tag(field, 0);
        self.varint(value);
    }

    /// A signed number as protocol buffers' `int64`: by its bits.
    pub(super) fn signed(&mut self, field: u32, value: i64) {
        self.unsigned(field, value.cast_unsigned());
    }

    pub(super) fn fixed64(&mut self, field: u32, value: u64) {
        self.tag(field, 1);
        self.bytes.extend_from_slice(&value.to_le_bytes());
    }

    pub(super) fn double(&mut self, field: u32, value: f64) {
        self.fixed64(field, value.to_bits());
    }

    pub(super) fn string(&mut self, field: u32, value: &str) {
        self.tag(field, 2);
        self.varint(value.len() as u64);
        self.bytes.extend_from_slice(value.as_bytes());
    }

    /// A nested message that is written already.
    pub(super) fn message(&mut self, field: u32, message: &Self) {
        self.tag(field, 2);
        self.varint(message.bytes.len() as u64);
        self.bytes.extend_from_slice(&message.bytes);
    }

    /// A nested message, written by `fill`. It may take up to 256 MiB.
    pub(super) fn nested(&mut self, field: u32, fill: impl FnOnce(&mut Self)) {
        self.tag(field, 2);
        let at = self.bytes.len();
        self.bytes.extend_from_slice(&[0; LENGTH_BYTES]);
        fill(self);
        let length = self.bytes.len() - at - LENGTH_BYTES;
        for (i, byte) in self.bytes[at..at + LENGTH_BYTES].iter_mut().enumerate() {
            let more = if i + 1 < LENGTH_BYTES { 0x80 } else { 0 };
            *byte = (length >> (7 * i)) as u8 & 0x7f | more;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_and_strings_are_on_the_wire_as_the_specification_says() {
        let mut message = Message::default();
        message.unsigned(1, 150);
        assert_eq!(message.bytes(), [0x08, 0x96, 0x01]);
        message.clear();
        message.string(2, "testing");
        assert_eq!(message.bytes(), b"\x12\x07testing");
        message.clear();
        message.signed(1, -2);
        assert_eq!(message.bytes(), [0x08, 0xfe, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x01]);
        message.clear();
        message.double(3, 1.0);
        assert_eq!(message.bytes(), [0x19, 0, 0, 0, 0, 0, 0, 0xf0, 0x3f]);
    }

    #[test]
    fn a_nested_message_has_its_length_before_it() {
        let mut message = Message::default();
        message.nested(3, |m| m.unsigned(1, 150));
        assert_eq!(message.bytes(), [0x1a, 0x83, 0x80, 0x80, 0x00, 0x08, 0x96, 0x01]);
        message.clear();
        message.nested(1, |m| m.string(1, &"x".repeat(300)));
        // 303 bytes: 0x2f + 2 · 128.
        assert_eq!(message.bytes()[..5], [0x0a, 0xaf, 0x82, 0x80, 0x00]);
        assert_eq!(message.bytes().len(), 5 + 303);
    }
}
