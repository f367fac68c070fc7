//! Decimal text to integers, without floating point in between.
//!
//! Absolute times in µs since 1970 have 16 digits before the point; a double holds them to 0.25 µs only.

/// Largest exponent that is told apart: a number with a larger one is out of range or zero anyway.
const MAX_EXPONENT: i32 = 400;

/// A number of this many digits always fits `u64`. Microseconds since 1970 with three decimals have 19.
const MOST_DIGITS: usize = 19;

/// The number in `text`, in units of 10⁻`scale`, rounded to nearest (halves away from zero). `None`: not a number, or
/// beyond `i64`.
///
/// `scaled("1.5", 3)` is 1500: µs to ns.
#[inline]
pub(crate) fn scaled(text: &[u8], scale: i32) -> Option<i64> {
    let (negative, digits) = match text.split_first()? {
        (b'-', rest) => (true, rest),
        (b'+', rest) => (false, rest),
        _ => (false, text),
    };
    let magnitude = plain(digits, scale).or_else(|| general(digits, scale))?;
    // The magnitude of i64::MIN has no positive counterpart; times that large are not times.
    let magnitude = i64::try_from(magnitude).ok()?;
    Some(if negative { -magnitude } else { magnitude })
}

/// An integer of up to 64 bits; `None` if the text is not one.
pub(crate) fn unsigned(text: &[u8]) -> Option<u64> {
    if text.is_empty() || text.len() > 20 {
        return None;
    }
    text.iter().try_fold(0u64, |sum, byte| {
        let digit = byte.wrapping_sub(b'0');
        if digit > 9 { None } else { sum.checked_mul(10)?.checked_add(u64::from(digit)) }
    })
}

/// An integer. A uint64 beyond i64 keeps its bits.
#[inline]
pub(crate) fn integer(text: &[u8]) -> Option<i64> {
    if text.len() <= 18 {
        // Nearly every number of a trace is this short, and none of them can overflow.
        let mut sum = 0i64;
        for byte in text {
            let digit = byte.wrapping_sub(b'0');
            if digit > 9 {
                return any_integer(text);
            }
            sum = sum * 10 + i64::from(digit);
        }
        return if text.is_empty() { None } else { Some(sum) };
    }
    any_integer(text)
}

/// A number of up to 64 bits as pointers are written, `0x55d0c0ffee00`; it keeps its bits.
pub(crate) fn hexadecimal(text: &[u8]) -> Option<i64> {
    let digits = std::str::from_utf8(text.strip_prefix(b"0x")?).ok()?;
    u64::from_str_radix(digits, 16).ok().filter(|_| !digits.starts_with('+')).map(|bits| bits as i64)
}

/// A finite decimal number as a double; `None` for other text.
pub(crate) fn decimal(text: &[u8]) -> Option<f64> {
    std::str::from_utf8(text).ok()?.parse().ok().filter(|number: &f64| number.is_finite())
}

/// An array of three integers, such as the sides of a grid.
pub(crate) fn sides<N: TryFrom<i64>>(list: &[u8]) -> Option<[N; 3]> {
    let mut items = list.strip_prefix(b"[")?.strip_suffix(b"]")?.split(|byte| *byte == b',');
    let mut next = || N::try_from(integer(items.next()?.trim_ascii())?).ok();
    let sides = [next()?, next()?, next()?];
    items.next().is_none().then_some(sides)
}

fn any_integer(text: &[u8]) -> Option<i64> {
    match text.split_first()? {
        // The name of a stream or thread.
        (first, _) if first.is_ascii_alphabetic() => None,
        (b'-', rest) => unsigned(rest).and_then(|n| 0i64.checked_sub_unsigned(n)),
        _ => unsigned(text).map(|n| n as i64).or_else(|| scaled(text, 0)),
    }
}

/// Reads the common form: up to 19 digits, one point among them, and at most `scale` decimals.
#[inline]
fn plain(digits: &[u8], scale: i32) -> Option<u64> {
    if digits.len() > MOST_DIGITS + 1 {
        return None;
    }
    let mut sum = 0u64;
    let mut decimals = -1i32;
    let mut seen = 0;
    let mut digits = digits;
    // Times since 1970 or since the start of the machine have eight digits and more before their point.
    while let Some((eight, rest)) = digits.split_first_chunk::<8>()
        && decimals < 0
        && let Some(value) = eight_digits(*eight)
    {
        sum = sum.wrapping_mul(100_000_000).wrapping_add(value);
        seen += 8;
        digits = rest;
    }
    for byte in digits {
        let digit = byte.wrapping_sub(b'0');
        if digit <= 9 {
            sum = sum.wrapping_mul(10).wrapping_add(u64::from(digit));
            decimals += i32::from(decimals >= 0);
            seen += 1;
        } else if *byte == b'.' && decimals < 0 {
            decimals = 0;
        } else {
            return None;
        }
    }
    let missing = scale - decimals.max(0);
    let power = 10u64.checked_pow(u32::try_from(missing).ok()?)?;
    // With more digits the sum may have wrapped.
    if (1..=MOST_DIGITS).contains(&seen) { sum.checked_mul(power) } else { None }
}

/// The value of eight digits. Neighbours are joined to pairs, pairs to fours, and fours to the whole.
#[inline]
fn eight_digits(text: [u8; 8]) -> Option<u64> {
    const LOW: u64 = u64::from_ne_bytes([0x0f; 8]);
    let word = u64::from_le_bytes(text);
    let digits = word ^ u64::from_ne_bytes([b'0'; 8]);
    // A digit has an empty high half, also after six is added.
    if (digits | (digits.wrapping_add(u64::from_ne_bytes([6; 8])))) & !LOW != 0 {
        return None;
    }
    let pairs = (digits * 10 + (digits >> 8)) & 0x00ff_00ff_00ff_00ff;
    let fours = (pairs * 100 + (pairs >> 16)) & 0x0000_ffff_0000_ffff;
    Some((fours * 10_000 + (fours >> 32)) & 0xffff_ffff)
}

/// Reads any decimal number: more decimals than are kept, exponents, leading zeros.
#[cold]
fn general(digits: &[u8], scale: i32) -> Option<u64> {
    let split = digits.iter().position(|b| matches!(b, b'e' | b'E')).unwrap_or(digits.len());
    let (mantissa, exponent) = digits.split_at(split);
    let exponent = match exponent.split_first() {
        None => 0,
        Some((_, text)) => parse_exponent(text)?,
    };
    let point = mantissa.iter().position(|b| *b == b'.').unwrap_or(mantissa.len());
    let decimals = mantissa.len().saturating_sub(point + 1);
    if mantissa.len() == usize::from(decimals > 0 || point < mantissa.len()) {
        return None;
    }
    // Digits that stay before the point once the number is scaled.
    let keep = point as i64 + i64::from(exponent) + i64::from(scale);
    let mut sum = 0u64;
    let mut taken = 0i64;
    let mut round_up = false;
    for byte in mantissa.iter().filter(|b| **b != b'.') {
        let digit = byte.wrapping_sub(b'0');
        if digit > 9 {
            return None;
        }
        if taken < keep {
            sum = sum.checked_mul(10)?.checked_add(u64::from(digit))?;
        } else if taken == keep {
            round_up = digit >= 5;
        }
        taken += 1;
    }
    if mantissa.iter().filter(|b| **b == b'.').count() > 1 {
        return None;
    }
    while taken < keep && sum != 0 {
        sum = sum.checked_mul(10)?;
        taken += 1;
    }
    sum.checked_add(u64::from(round_up))
}

fn parse_exponent(text: &[u8]) -> Option<i32> {
    let value = integer(text.strip_prefix(b"+").unwrap_or(text))?;
    Some(value.clamp(i64::from(-MAX_EXPONENT), i64::from(MAX_EXPONENT)) as i32)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(text: &str, ns: Option<i64>) {
        assert_eq!(scaled(text.as_bytes(), 3), ns, "{text}");
    }

    #[test]
    fn microseconds_become_nanoseconds() {
        check("0", Some(0));
        check("1.5", Some(1500));
        check("4379189648448.045", Some(4_379_189_648_448_045));
        check("1728000000123456.789", Some(1_728_000_000_123_456_789));
        check("9223372036854775.807", Some(i64::MAX));
        check("9223372036854775.808", None);
        check("0000000000000001.5", Some(1500));
        check("12345678", Some(12_345_678_000));
        check("12345678.9", Some(12_345_678_900));
        check("1698955060099003", Some(1_698_955_060_099_003_000));
        check("-3.25", Some(-3250));
        check("1.698955060099003e15", Some(1_698_955_060_099_003_000));
        check("1E-3", Some(1));
        check("100.10000000000001", Some(100_100));
        check("0.0004", Some(0));
        check("0.0005", Some(1));
        check("2.5e+2", Some(250_000));
        check("0e999999999999", Some(0));
    }

    #[test]
    fn other_text_and_too_large_numbers_are_refused() {
        let large = ["99999999999999999999", "9999999999999999999", "18446744073709551617.0", "1e300"];
        let other = ["", "-", ".", "NaN", "N/A", "1.2.3", "1e", "0x10", "1-2", "true", "1234:678", "1234567/"];
        for text in large.into_iter().chain(other) {
            check(text, None);
        }
    }

    #[test]
    fn integers_keep_all_their_bits() {
        assert_eq!(integer(b"18446744073709551615"), Some(-1));
        assert_eq!(integer(b"10159970886766084423").map(|i| i as u64), Some(10_159_970_886_766_084_423));
        assert_eq!(integer(b"-9223372036854775808"), Some(i64::MIN));
        assert_eq!(integer(b"18446744073709551616"), None);
        assert_eq!(integer(b"12.0"), Some(12));
        assert_eq!(unsigned(b"18446744073709551616"), None);
    }

    proptest::proptest! {
        #[test]
        fn agrees_with_integer_arithmetic(ns in -9_000_000_000_000_000_000i64..9_000_000_000_000_000_000) {
            let text = format!("{}{}.{:03}", if ns < 0 { "-" } else { "" }, (ns / 1000).abs(), (ns % 1000).abs());
            proptest::prop_assert_eq!(scaled(text.as_bytes(), 3), Some(ns));
        }

        #[test]
        fn an_exponent_changes_nothing(mantissa in 0i64..1_000_000, decimals in 0usize..6) {
            let digits = format!("{mantissa:07}");
            let (whole, part) = digits.split_at(7 - decimals);
            let plain = format!("{whole}.{part}0");
            let shifted = format!("{mantissa}e-{decimals}");
            proptest::prop_assert_eq!(scaled(plain.as_bytes(), 9), scaled(shifted.as_bytes(), 9));
        }

        #[test]
        fn no_bytes_make_it_panic(bytes: Vec<u8>, scale in -30i32..30) {
            let _ = scaled(&bytes, scale);
            let _ = integer(&bytes);
        }
    }
}
