//! The inside of a JSON string to UTF-8. Decoding never fails: bytes that cannot be decoded become U+FFFD.

use trace::MAX_TEXT_BYTES;

use crate::bytes::json::Str;

/// The first bytes of a text that is too long.
pub(crate) fn shortened(raw: &[u8]) -> &[u8] {
    &raw[..raw.len().min(MAX_TEXT_BYTES)]
}

/// The string's text. A lone surrogate or invalid UTF-8 becomes U+FFFD; an unknown escape becomes its letter.
pub(crate) fn decode(string: Str<'_>) -> String {
    if !string.escaped {
        return String::from_utf8_lossy(string.raw).into_owned();
    }
    let raw = string.raw;
    let mut bytes = Vec::with_capacity(raw.len());
    let mut at = 0;
    while let Some(hit) = memchr::memchr(b'\\', &raw[at..]) {
        bytes.extend_from_slice(&raw[at..at + hit]);
        at += hit + 1;
        at += unescape(&raw[at..], &mut bytes);
    }
    bytes.extend_from_slice(&raw[at..]);
    String::from_utf8(bytes).unwrap_or_else(|error| String::from_utf8_lossy(error.as_bytes()).into_owned())
}

/// Decodes one escape without its backslash; returns its length in bytes.
fn unescape(rest: &[u8], out: &mut Vec<u8>) -> usize {
    let Some(letter) = rest.first() else { return 0 };
    let plain = match letter {
        b'n' => b'\n',
        b't' => b'\t',
        b'r' => b'\r',
        b'b' => 8,
        b'f' => 12,
        b'u' => return unescape_unicode(rest, out),
        other => *other,
    };
    out.push(plain);
    1
}

fn unescape_unicode(rest: &[u8], out: &mut Vec<u8>) -> usize {
    let Some(first) = rest.get(1..5).and_then(hex) else {
        out.extend_from_slice("\u{FFFD}".as_bytes());
        return 1;
    };
    let mut used = 5;
    let mut code = first;
    if (0xD800..0xDC00).contains(&first)
        && rest.get(5..7) == Some(b"\\u")
        && let Some(second) = rest.get(7..11).and_then(hex)
        && (0xDC00..0xE000).contains(&second)
    {
        code = 0x10000 + ((first - 0xD800) << 10) + (second - 0xDC00);
        used = 11;
    }
    let character = char::from_u32(code).unwrap_or('\u{FFFD}');
    out.extend_from_slice(character.encode_utf8(&mut [0; 4]).as_bytes());
    used
}

fn hex(digits: &[u8]) -> Option<u32> {
    digits.iter().try_fold(0, |sum, byte| Some(sum * 16 + (*byte as char).to_digit(16)?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(raw: &[u8], text: &str) {
        let escaped = raw.contains(&b'\\');
        assert_eq!(decode(Str { raw, escaped }), text);
    }

    #[test]
    fn escapes_are_decoded() {
        check(br"a\n\t\r\b\f\/\\\q", "a\n\t\r\u{8}\u{c}/\\q");
        check(br"\u00e9\u20ac\ud83d\ude00", "é€😀");
        check("raw é".as_bytes(), "raw é");
        check(b"tab\tand\x01control", "tab\tand\u{1}control");
    }

    #[test]
    fn undecodable_bytes_become_replacement_characters() {
        check(br"\ud83d!", "\u{FFFD}!");
        check(br"\ud83d\u0041", "\u{FFFD}A");
        check(br"\ude00", "\u{FFFD}");
        check(br"\u12", "\u{FFFD}12");
        check(b"\xff\xfe", "\u{FFFD}\u{FFFD}");
        check(b"\xff\\n", "\u{FFFD}\n");
        check(b"end\\", "end");
    }

    proptest::proptest! {
        #[test]
        fn agrees_with_serde_json(text: String) {
            let json = serde_json::to_string(&text).unwrap();
            let raw = &json.as_bytes()[1..json.len() - 1];
            proptest::prop_assert_eq!(decode(Str { raw, escaped: raw.contains(&b'\\') }), text);
        }
    }
}
