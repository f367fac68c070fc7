//! JSON as bytes: what is written millions of times, without a value or a string of its own for each.

use serde::Serialize;

/// Anything that serde writes. It cannot fail into memory, but for values that are no JSON, which are then `null`.
pub(super) fn value(out: &mut Vec<u8>, value: &(impl Serialize + ?Sized)) {
    let before = out.len();
    if serde_json::to_writer(&mut *out, value).is_err() {
        out.truncate(before);
        out.extend_from_slice(b"null");
    }
}

/// µs with all three decimals, which no double passes on.
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
    fn what_is_no_json_is_null() {
        let mut out = b"[".to_vec();
        value(&mut out, &f64::NAN);
        assert_eq!(out, b"[null");
    }
}
