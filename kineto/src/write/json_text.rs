//! Writes JSON values as bytes, without an allocation for each.

use serde::Serialize;

/// Writes a value by serde. Values without a JSON form become `null`; no other error is possible in memory.
pub(super) fn value(out: &mut Vec<u8>, value: &(impl Serialize + ?Sized)) {
    let before = out.len();
    if serde_json::to_writer(&mut *out, value).is_err() {
        out.truncate(before);
        out.extend_from_slice(b"null");
    }
}

/// Writes ns as µs with three decimals, as text: a double would lose them.
pub(super) fn us(out: &mut Vec<u8>, ns: i64) {
    if ns < 0 {
        out.push(b'-');
    }
    let ns = ns.unsigned_abs();
    value(out, &(ns / 1000));
    let below = (ns % 1000) as u16;
    let digit = |n: u16| b'0' + (n % 10) as u8;
    out.extend_from_slice(&[b'.', digit(below / 100), digit(below / 10), digit(below)]);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_keep_their_ns() {
        let text = |ns| {
            let mut out = Vec::new();
            us(&mut out, ns);
            String::from_utf8(out).unwrap()
        };
        assert_eq!([1_234_567, 5, -1_500, 0].map(text), ["1234.567", "0.005", "-1.500", "0.000"]);
        assert_eq!(text(i64::MIN), "-9223372036854775.808");
    }

    #[test]
    fn a_value_without_a_json_form_is_null() {
        let mut out = b"[".to_vec();
        value(&mut out, &f64::NAN);
        assert_eq!(out, b"[null");
    }
}
