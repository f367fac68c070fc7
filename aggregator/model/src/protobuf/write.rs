//! Writes messages.

/// A message under construction.
#[derive(Debug, Default)]
pub struct Message {
    bytes: Vec<u8>,
}

impl Message {
    pub fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// Takes the written bytes and leaves the message empty.
    pub fn take(&mut self) -> Vec<u8> {
        std::mem::take(&mut self.bytes)
    }

    pub fn clear(&mut self) {
        self.bytes.clear();
    }

    fn varint(&mut self, mut value: u64) {
        if value < 0x80 {
            self.bytes.push(value as u8);
            return;
        }
        // The bytes are collected on the stack and copied once, because most varints are times of eight bytes.
        let (mut bytes, mut length) = ([0; 10], 0);
        while value >= 0x80 {
            bytes[length] = value as u8 | 0x80;
            value >>= 7;
            length += 1;
        }
        bytes[length] = value as u8;
        self.bytes.extend_from_slice(&bytes[..=length]);
    }

    fn tag(&mut self, field: u32, wire_type: u32) {
        self.varint(u64::from(field << 3 | wire_type));
    }

    pub fn unsigned(&mut self, field: u32, value: u64) {
        self.tag(field, 0);
        self.varint(value);
    }

    /// Writes a signed number as `int64`, by its bits.
    pub fn signed(&mut self, field: u32, value: i64) {
        self.unsigned(field, value.cast_unsigned());
    }

    pub fn fixed64(&mut self, field: u32, value: u64) {
        self.tag(field, 1);
        self.bytes.extend_from_slice(&value.to_le_bytes());
    }

    pub fn double(&mut self, field: u32, value: f64) {
        self.fixed64(field, value.to_bits());
    }

    pub fn string(&mut self, field: u32, value: &str) {
        self.blob(field, value.as_bytes());
    }

    /// Writes a nested message that is complete.
    pub fn message(&mut self, field: u32, message: &Self) {
        self.blob(field, &message.bytes);
    }

    /// Writes bytes.
    pub fn blob(&mut self, field: u32, bytes: &[u8]) {
        self.tag(field, 2);
        self.varint(bytes.len() as u64);
        self.bytes.extend_from_slice(bytes);
    }

    /// Writes a nested message with `fill`.
    pub fn nested(&mut self, field: u32, fill: impl FnOnce(&mut Self)) {
        self.tag(field, 2);
        // The length precedes the message but is known only after it. One byte is reserved, which suffices for nearly
        // all messages; longer messages are moved.
        let at = self.bytes.len();
        self.bytes.push(0);
        fill(self);
        let length = self.bytes.len() - at - 1;
        if length < 0x80 {
            self.bytes[at] = length as u8;
            return;
        }
        let end = self.bytes.len();
        self.varint(length as u64);
        let bytes_of_length = self.bytes.len() - end;
        self.bytes[at..].rotate_right(bytes_of_length);
        // Move the reserved byte behind the length.
        self.bytes.remove(at + bytes_of_length);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_and_strings_match_the_specification() {
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
    fn a_nested_message_follows_its_length() {
        let mut message = Message::default();
        message.nested(3, |m| m.unsigned(1, 150));
        assert_eq!(message.bytes(), [0x1a, 0x03, 0x08, 0x96, 0x01]);
        message.clear();
        message.nested(1, |m| m.string(1, &"x".repeat(300)));
        // 303 bytes: 0x2f + 2 · 128; then the string, whose length is 0x2c + 2 · 128.
        assert_eq!(message.bytes()[..7], [0x0a, 0xaf, 0x02, 0x0a, 0xac, 0x02, b'x']);
        assert_eq!(message.bytes().len(), 3 + 303);
    }

    proptest::proptest! {
        /// Holds for every depth and length, also where the length itself grows by a byte.
        #[test]
        fn a_nested_message_is_the_same_written_before_or_in_place(
            lengths in proptest::collection::vec(0_usize..40_000, 0..4),
        ) {
            let (mut inner, mut nested) = (Message::default(), Message::default());
            for length in &lengths {
                inner.string(1, &"y".repeat(*length));
            }
            let mut expected = Message::default();
            expected.message(7, &inner);
            let mut outer = Message::default();
            outer.message(9, &expected);
            nested.nested(9, |m| m.nested(7, |m| lengths.iter().for_each(|length| m.string(1, &"y".repeat(*length)))));
            proptest::prop_assert_eq!(nested.bytes(), outer.bytes());
        }
    }
}
