//! Operators and ranges of the host by name, as a table.

use trace::{OpStatsRow, Row};

use crate::section::{Chart, PageData, ReportInput, Section, script};
use model::Error;

pub(crate) static SECTION: Section = Section {
    id: "operators",
    title: "Operators and ranges",
    lead: "Operators and named ranges of the host, summed over all ranks. Self is the total without nested operators and ranges.",
    proof: false,
    tables: &[OpStatsRow::table],
    data,
    scripts: &[script!("operators.js")],
};

fn data(run: &ReportInput<'_>, page: &mut PageData) -> Result<Option<Chart>, Error> {
    add_operators(run, page)?;
    Ok(Some(Chart::unless(run.operators.is_empty().then_some("No host operator or range was recorded."))))
}

/// Adds the sums over all ranks, unless a section before has done it.
pub(super) fn add_operators(run: &ReportInput<'_>, page: &mut PageData) -> Result<(), Error> {
    if page.has_table(&OpStatsRow::table()) {
        return Ok(());
    }
    let columns = run.operators.columns(&mut page.names)?;
    page.add_columns(OpStatsRow::table().name, columns);
    run.operators.note.iter().for_each(|note| page.note(note.clone()));
    Ok(())
}
