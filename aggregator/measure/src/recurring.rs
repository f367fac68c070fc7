//! Ranges that may be the steps of a recording that marks none.
//!
//! ```text
//!   host    [ batch    ] [ batch    ] [ batch    ]      one after the other,
//!              ar           ar           ar             with a collective in each: a candidate
//!             [opt]        [opt]        [opt]           no collective: no candidate
//! ```

use std::collections::BTreeMap;

use trace::RecurringRangeRow;

use model::{Kind, RankData};

/// A range that occurs less often shows no steps.
const LEAST_CALLS: i64 = 3;
/// Candidates of a rank: those with the longest calls.
const MOST: usize = 16;

/// The calls of one name so far. `is_candidate` ends when one of them begins before the last ended, or holds no collective.
#[derive(Debug)]
struct Calls {
    calls: i64,
    total_ns: i64,
    end_ns: i64,
    is_candidate: bool,
}

/// The candidates of a rank; none if it has marked steps. Names that differ in digits only are one.
pub(super) fn recurring_ranges(data: &RankData) -> Vec<RecurringRangeRow> {
    if !data.outline.steps.is_empty() {
        return Vec::new();
    }
    let events = &data.events;
    let mut begins: Vec<i64> =
        data.outline.collectives.iter().filter_map(|c| c.enqueue_ns().or(c.start_ns())).collect();
    begins.sort_unstable();
    let holds_collective = |start_ns: i64, end_ns: i64| {
        let first = begins.partition_point(|begin| *begin < start_ns);
        begins.get(first).is_some_and(|begin| *begin < end_ns)
    };
    let patterns: Vec<String> = data.names.iter().map(|name| pattern_of(name)).collect();
    let mut by_name: BTreeMap<&str, Calls> = BTreeMap::new();
    for row in 0..events.len() {
        if events.kind[row] != Kind::UserAnnotation {
            continue;
        }
        let (start_ns, end_ns) = (events.ts_ns[row], events.end_ns(row));
        let calls = by_name.entry(&patterns[events.name[row] as usize]).or_insert(Calls {
            calls: 0,
            total_ns: 0,
            end_ns: i64::MIN,
            is_candidate: true,
        });
        calls.is_candidate &= start_ns >= calls.end_ns && holds_collective(start_ns, end_ns);
        calls.calls += 1;
        calls.total_ns = calls.total_ns.saturating_add(end_ns.saturating_sub(start_ns));
        calls.end_ns = end_ns;
    }
    let candidates = by_name.into_iter().filter(|(_, calls)| calls.is_candidate && calls.calls >= LEAST_CALLS);
    let rank = data.outline.info.rank;
    let row = |(name, calls): (&str, Calls)| RecurringRangeRow {
        rank,
        pattern: name.into(),
        calls: calls.calls,
        mean_ns: calls.total_ns / calls.calls,
    };
    let mut rows: Vec<RecurringRangeRow> = candidates.map(row).collect();
    rows.sort_by_key(|row| std::cmp::Reverse(row.mean_ns));
    rows.truncate(MOST);
    rows
}

/// A regular expression for a name, in which numbers may differ.
fn pattern_of(name: &str) -> String {
    let mut pattern = String::from("^");
    let mut is_number = false;
    for letter in name.chars() {
        if letter.is_ascii_digit() {
            if !is_number {
                pattern.push_str("[0-9]+");
            }
        } else {
            pattern.push_str(&regex::escape(letter.encode_utf8(&mut [0; 4])));
        }
        is_number = letter.is_ascii_digit();
    }
    pattern + "$"
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_in_names_may_differ() {
        let pattern = pattern_of("execute_context_1(64)");
        assert_eq!(pattern, r"^execute_context_[0-9]+\([0-9]+\)$");
        assert!(regex::Regex::new(&pattern).unwrap().is_match("execute_context_12(8)"));
    }
}
