//! Phrases about a row of `stragglers` that the sentence and the lines of a verdict share.

use trace::{Reason, StandsOn, StragglerRow, Word};

use model::analysis::Facts;
use model::thresholds::Thresholds;
use model::units::{ns, ordinal, plural};

/// Causes hide each other if all together cost more than this many times the largest of them alone.
pub(super) const HIDING: i64 = 3;

/// Steps with a period in words.
pub(super) fn every(steps: i32, first: i32) -> String {
    format!("every {} from step {first}", ordinal(steps))
}

pub(super) fn stands_on_range(row: &StragglerRow) -> bool {
    row.stands_on.as_ref().is_some_and(|basis| *basis == StandsOn::Range)
}

pub(super) fn stands_on_transfers(row: &StragglerRow) -> bool {
    row.stands_on.as_ref().is_some_and(|basis| *basis == StandsOn::Transfers)
}

/// The ranks with their delays in a sentence; empty without ranks. The delay of a rank may be hidden by a slower one.
pub(super) fn named(title: &str, rows: &[&StragglerRow]) -> String {
    const NAMED: usize = 3;
    if rows.is_empty() {
        return String::new();
    }
    let one = |row: &&StragglerRow| match row.step_delay_ns {
        0 => format!("rank {} (hidden by slower ranks)", row.rank),
        delay_ns => format!("rank {} ({})", row.rank, ns(delay_ns)),
    };
    let mut ranks: Vec<String> = rows.iter().take(NAMED).map(one).collect();
    if rows.len() > NAMED {
        ranks.push(plural(rows.len() - NAMED, "more rank"));
    }
    format!(" {title}: {}.", ranks.join(", "))
}

/// The excess of the rank in what the verdict stands on, and where it is: `30.0 ms longer in `forward``.
pub fn place(row: &StragglerRow) -> String {
    match row.evidence_excess_ns {
        Some(excess) if stands_on_range(row) => format!("{} longer {}", ns(excess), range_of(row)),
        Some(excess) if stands_on_transfers(row) => format!("{} longer in collectives", ns(excess)),
        _ => format!("{} longer between collectives", ns(row.own_excess_ns)),
    }
}

fn range_of(row: &StragglerRow) -> String {
    row.evidence_range.as_ref().map_or("outside of all recorded ranges".into(), |range| format!("in `{range}`"))
}

/// The work that takes longer on the rank, and the excess in what the verdict stands on.
pub(super) fn why(row: &StragglerRow, facts: &Facts) -> String {
    let place = place(row);
    // The range is where a part of the excess is.
    let part = match row.evidence_excess_ns.filter(|_| !stands_on_range(row)) {
        Some(excess) => format!(", {} of it {}", ns(excess.min(row.own_excess_ns)), range_of(row)),
        None => String::new(),
    };
    let transfers = || ns(row.evidence_excess_ns.unwrap_or(0));
    match row.reason.as_ref().and_then(Word::known) {
        Some(Reason::Host) if facts.has_device_rows => {
            format!(
                "its host process spends {place} than the other ranks do{part}, and its GPU idles for most of that time"
            )
        }
        Some(Reason::Host) => format!(
            "its host process spends {place} than the other ranks do{part}, and no recorded work explains that time"
        ),
        Some(Reason::Compute) => format!("it computes {place} than the other ranks do{part}"),
        Some(Reason::Device) => format!("its GPU computes {place} than the other ranks do{part}"),
        Some(Reason::Input) => format!("its input takes {place} than on the other ranks{part}"),
        Some(Reason::Waiting) => format!("it waits {place} than the other ranks do{part}"),
        Some(Reason::Network) if row.slow_comm_id.is_some() => {
            format!("they take {} longer per step than those of communicators of the same size", transfers())
        }
        Some(Reason::Network) => {
            format!("its transfers take {} longer per step than those of the other ranks", transfers())
        }
        None => format!("it spends {place} than the other ranks do{part}"),
    }
}

/// Where in the user's Python that time goes, as the end of a sentence.
pub(super) fn in_python(row: &StragglerRow) -> String {
    row.evidence_code.as_ref().map_or(String::new(), |code| format!("; most of that range is in Python's `{code}`"))
}

/// The distance of the basis of the verdict from the other ranks, in standard errors, and the share of steps that show it.
pub(super) fn certainty_of(row: &StragglerRow) -> (Option<f64>, Option<f64>) {
    if stands_on_range(row) { (row.evidence_z, row.evidence_persistence) } else { (row.z, row.persistence) }
}

/// The distance in words.
pub(super) fn variation(z: f64, t: &Thresholds) -> &'static str {
    match () {
        () if z >= 2.0 * t.min_z => "far outside",
        () if z >= t.min_z => "outside",
        () => "within",
    }
}
