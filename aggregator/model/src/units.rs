//! Formats numbers for people: three digits and a readable unit.

use trace::{OmissionKind, OmissionRow, terminal};

/// Time units, largest first: (length in ns, name).
const TIME_UNITS: [(f64, &str); 4] = [(1e9, "s"), (1e6, "ms"), (1e3, "µs"), (1.0, "ns")];

/// A time, as in `12.3 ms`.
pub fn ns(ns: i64) -> String {
    let (scale, unit) = time_unit(ns.unsigned_abs());
    format!("{} {unit}", digits(ns as f64 / scale, scale))
}

/// The unit for times up to `largest_ns`: its length in ns, and its name.
pub fn time_unit(largest_ns: u64) -> (f64, &'static str) {
    let fits = |(scale, _): &&(f64, &str)| largest_ns as f64 >= *scale;
    TIME_UNITS.iter().find(fits).copied().unwrap_or((1.0, "ns"))
}

/// Three significant digits; whole ns have no fraction.
fn digits(value: f64, scale: f64) -> String {
    let size = value.abs();
    let places = if scale <= 1.0 || size >= 100.0 {
        0
    } else if size >= 10.0 {
        1
    } else {
        2
    };
    format!("{value:.places$}")
}

/// A size, as in `25.0 MiB`.
pub fn bytes(bytes: i64) -> String {
    const UNITS: [(f64, &str); 4] =
        [(1_099_511_627_776.0, "TiB"), (1_073_741_824.0, "GiB"), (1_048_576.0, "MiB"), (1024.0, "KiB")];
    let value = bytes as f64;
    match UNITS.iter().find(|(scale, _)| value.abs() >= *scale) {
        Some((scale, unit)) => format!("{} {unit}", digits(value / scale, *scale)),
        None => format!("{bytes} B"),
    }
}

/// A count, as in `12 345 678`.
pub fn count(n: u64) -> String {
    let digits = n.to_string();
    let mut text = String::with_capacity(digits.len() + digits.len() / 3);
    for (i, digit) in digits.chars().enumerate() {
        if i > 0 && (digits.len() - i).is_multiple_of(3) {
            text.push(' ');
        }
        text.push(digit);
    }
    text
}

/// `1 step`, `2 steps`.
pub fn plural(n: usize, noun: &str) -> String {
    format!("{} {noun}{}", count(n as u64), if n == 1 { "" } else { "s" })
}

/// Formats an omission: `rank 2: 3 rows: why (file)`.
pub fn omission(omission: &OmissionRow) -> String {
    let rank = omission.rank.map(|r| format!("rank {r}: ")).unwrap_or_default();
    let file = omission.file.as_deref().map(|f| format!(" ({f})")).unwrap_or_default();
    let what = match omission.amount {
        None => omission.what.to_string(),
        Some(1) => format!("1 {}", singular(&omission.what)),
        Some(n) => format!("{} {}", u64::try_from(n).map_or_else(|_| n.to_string(), count), omission.what),
    };
    format!("{rank}{what}: {}{file}", omission.why)
}

/// The kind of an omission, in words.
pub fn omission_kind(omission: &OmissionRow) -> &'static str {
    match omission.kind.known() {
        Some(OmissionKind::LeftOut) => "left out",
        Some(OmissionKind::Note) => "note",
        Some(OmissionKind::Lost) | None => "lost",
    }
}

/// The singular of an omission's noun: drops the `s` or `es` of the first word that ends in a single `s`, as in `host ranges in
/// evidence`.
fn singular(what: &str) -> String {
    let mut done = false;
    let one = |word: &str| match word.strip_suffix('s').filter(|stem| !done && !stem.ends_with('s')) {
        Some(stem) => {
            done = true;
            // `launches`.
            stem.strip_suffix('e').filter(|stem| stem.ends_with("ch")).unwrap_or(stem).to_string()
        }
        None => word.to_string(),
    };
    what.split(' ').map(one).collect::<Vec<_>>().join(" ")
}

/// Ranks as ranges: `0–3, 5`.
pub fn ranks(ranks: &[i32]) -> String {
    let mut spans: Vec<(i32, i32)> = Vec::new();
    for rank in ranks {
        match spans.last_mut() {
            Some((_, last)) if *last + 1 == *rank => *last = *rank,
            _ => spans.push((*rank, *rank)),
        }
    }
    let span = |(first, last): &(i32, i32)| if first == last { first.to_string() } else { format!("{first}–{last}") };
    spans.iter().map(span).collect::<Vec<_>>().join(", ")
}

/// `rank 3`, `ranks 0–3, 5`.
pub fn ranks_named(list: &[i32]) -> String {
    format!("{} {}", if list.len() == 1 { "rank" } else { "ranks" }, ranks(list))
}

/// Breaks a text into lines of at most `width` columns, with controls shown. A longer word gets a line of its own.
pub fn wrap(text: &str, width: usize) -> Vec<String> {
    let mut words: Vec<String> = Vec::new();
    for word in terminal::line(text).split_whitespace() {
        match words.last_mut() {
            // Keep a number and its unit on one line.
            Some(last) if is_unit(word) && last.ends_with(|c: char| c.is_ascii_digit()) => {
                last.push(' ');
                last.push_str(word);
            }
            _ => words.push(word.to_string()),
        }
    }
    let mut lines: Vec<String> = Vec::new();
    for word in words {
        match lines.last_mut() {
            Some(line) if line.chars().count() + 1 + word.chars().count() <= width => {
                line.push(' ');
                line.push_str(&word);
            }
            _ => lines.push(word),
        }
    }
    lines
}

fn is_unit(word: &str) -> bool {
    let bare = word.trim_end_matches(['.', ',', ';', ':', ')']);
    matches!(bare, "%" | "ns" | "µs" | "ms" | "s" | "ppm" | "B" | "KiB" | "MiB" | "GiB" | "TiB" | "GB/s")
}

/// Shortens a text to `width` columns by replacing its middle with `…`, because names differ at their ends.
pub fn shorten(text: &str, width: usize) -> String {
    let length = text.chars().count();
    if length <= width {
        return text.to_string();
    }
    let visible = width.saturating_sub(1);
    let (head, tail) = (visible.div_ceil(2), visible / 2);
    let start: String = text.chars().take(head).collect();
    let end: String = text.chars().skip(length - tail).collect();
    format!("{start}…{end}")
}

/// A distance in standard errors, in words. Distances above a hundred have no digits, because the standard error of a
/// few steps is not that accurate.
pub fn spoken_z(z: f64) -> String {
    if z.abs() < 100.0 { format!("z {z:.1}") } else { format!("z {}100", if z > 0.0 { "above " } else { "below −" }) }
}

/// `1st`, `2nd`, `13th`.
pub fn ordinal(number: i32) -> String {
    let ending = match (number % 100, number % 10) {
        (11..=13, _) => "th",
        (_, 1) => "st",
        (_, 2) => "nd",
        (_, 3) => "rd",
        _ => "th",
    };
    format!("{number}{ending}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_have_their_endings() {
        assert_eq!([1, 2, 3, 4, 11, 12, 21, 112].map(ordinal).join(" "), "1st 2nd 3rd 4th 11th 12th 21st 112th");
    }

    #[test]
    fn times() {
        let cases = [
            (0, "0 ns"),
            (999, "999 ns"),
            (1_000, "1.00 µs"),
            (12_345, "12.3 µs"),
            (30_000_000, "30.0 ms"),
            (-1_500_000, "-1.50 ms"),
            (123_456_789_000, "123 s"),
        ];
        for (value, expected) in cases {
            assert_eq!(ns(value), expected);
        }
    }

    #[test]
    fn sizes_counts_and_ranks() {
        assert_eq!(bytes(512), "512 B");
        assert_eq!(bytes(26_214_400), "25.0 MiB");
        assert_eq!(count(1_234_567), "1 234 567");
        assert_eq!(ranks(&[0, 1, 2, 5, 7, 8]), "0–2, 5, 7–8");
        assert_eq!(plural(1, "step"), "1 step");
        let left_out = |amount, what: &str| omission(&OmissionRow::lost(what, "why").rank(3).amount(amount));
        assert_eq!(left_out(Some(1), "host ranges in evidence"), "rank 3: 1 host range in evidence: why");
        assert_eq!(left_out(Some(12_000), "rows"), "rank 3: 12 000 rows: why");
        assert_eq!(left_out(None, "ranks"), "rank 3: ranks: why");
    }

    #[test]
    fn lines() {
        assert_eq!(wrap("a bb ccc dddd", 6), ["a bb", "ccc", "dddd"]);
        assert_eq!(wrap("abcdefghij k", 4), ["abcdefghij", "k"]);
        assert_eq!(shorten("ncclDevKernel_AllReduce_Sum_f32_RING_LL", 15), "ncclDev…RING_LL");
        assert_eq!(shorten("gemm", 15), "gemm");
        assert_eq!(wrap("a\u{1b}[31mb\nc d", 30), [r"a\u{1b}[31mb\nc d"]);
    }

    #[test]
    fn distances_above_a_hundred_have_no_digits() {
        assert_eq!([12.34, 99.9, 118_024.2, -300.0].map(spoken_z), ["z 12.3", "z 99.9", "z above 100", "z below −100"]);
    }
}
