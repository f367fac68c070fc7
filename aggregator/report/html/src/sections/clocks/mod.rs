//! The clocks that times of different ranks are compared by.

use trace::{ClockFitRow, Row};

use crate::columns::columns;
use crate::section::{Chart, PageData, ReportInput, Section, script};
use model::Error;
use model::units::ranks;

pub(crate) static SECTION: Section = Section {
    id: "clocks",
    title: "Clocks",
    lead: "The map from each rank's clock to global time.",
    proof: false,
    tables: &[ClockFitRow::table],
    data,
    scripts: &[script!("clocks.js")],
};

fn data(run: &ReportInput<'_>, page: &mut PageData) -> Result<Option<Chart>, Error> {
    let rows = &run.tables().clock_fit;
    run.note_ranks(rows, page);
    page.table(
        rows.iter().filter(|row| run.shown.has(row.rank)),
        columns!(ClockFitRow: rank clock method offset_ns drift_ppb error_ns bias_ns bound_ns residual_p95_ns samples violations),
    )?;
    let violations: i64 = rows.iter().map(|row| row.violations).sum();
    if violations > 0 {
        let text = "a rank left before another rank entered, by more than both bounds";
        page.remark(
            "undecided",
            format!("The clocks contradict the order of events in {violations} collectives: {text}"),
        );
    }
    let lead = rows.first().map(|first| {
        format!(
            "Global time is the clock of rank {}. A correction is added to a rank's clock, so it is below 0 for a clock that is \
             ahead. The error holds with 95 % confidence, the bound is guaranteed; both hold over the whole recording.",
            first.reference_rank
        )
    });
    let chart = Chart::drawn_if(!rows.is_empty(), missing(rows, run.analysis().facts.ranks.len()));
    Ok(Some(Chart { lead, ..chart }))
}

fn missing(rows: &[ClockFitRow], recorded_ranks: usize) -> Option<String> {
    let mut no_error: Vec<i32> = rows.iter().filter(|row| row.error_ns.is_none()).map(|row| row.rank).collect();
    no_error.dedup();
    if rows.is_empty() {
        Some("No clock was fitted.".to_string())
    } else if recorded_ranks < 2 {
        Some("Only one rank was recorded, so there is nothing to align.".to_string())
    } else if !no_error.is_empty() {
        Some(format!(
            "The clock error is unknown for ranks {}, because their clocks were not measured.",
            ranks(&no_error)
        ))
    } else {
        None
    }
}
