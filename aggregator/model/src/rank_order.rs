//! The order of ranks in tables for people.

use std::cmp::Reverse;

use trace::{StragglerRow, Verdict};

/// The rows of stragglers: causes first, then undecided ranks, ranks that stand out without a cost, victims, and the others;
/// within each group the most expensive first. The others have no cost and come by their own excess.
pub fn by_prominence(rows: &[StragglerRow]) -> Vec<&StragglerRow> {
    let group = |row: &StragglerRow| match row.verdict.known() {
        Some(Verdict::Cause) => 0,
        Some(Verdict::Undecided) => 1,
        _ if row.stands_on.is_some() => 2,
        Some(Verdict::Victim) => 3,
        _ => 4,
    };
    let mut rows: Vec<&StragglerRow> = rows.iter().collect();
    let cost_ns = |row: &StragglerRow| if group(row) == 4 { row.own_excess_ns } else { row.step_delay_ns };
    rows.sort_by_key(|r| (group(r), Reverse(cost_ns(r)), Reverse(r.suffered_wait_ns), r.rank));
    rows
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn causes_come_before_suspects_and_victims() {
        let row = |rank, verdict: &str, step_delay_ns, suffered_wait_ns| StragglerRow {
            rank,
            verdict: verdict.into(),
            step_delay_ns,
            suffered_wait_ns,
            ..StragglerRow::default()
        };
        let rows = [
            row(0, "ok", 0, 9),
            row(1, "victim", 0, 5),
            row(2, "cause", 4, 0),
            row(3, "victim", 0, 8),
            row(4, "undecided", 9, 0),
            row(5, "cause", 7, 0),
        ];
        assert_eq!(by_prominence(&rows).iter().map(|r| r.rank).collect::<Vec<_>>(), [5, 2, 4, 3, 1, 0]);
    }
}
