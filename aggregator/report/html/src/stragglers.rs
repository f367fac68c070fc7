//! The verdict on each rank, which several sections show.

use trace::{Row, StragglerRow};

use crate::columns::columns;
use crate::section::{PageData, ReportInput};
use model::Error;
use model::rank_order::by_prominence;

/// Adds the rows of the shown ranks, the most prominent first, unless a section before has done it.
pub(crate) fn add_stragglers(run: &ReportInput<'_>, page: &mut PageData) -> Result<(), Error> {
    if page.has_table(&StragglerRow::table()) {
        return Ok(());
    }
    let wanted = columns!(StragglerRow: rank verdict own_excess_ns own_excess_low_ns own_excess_high_ns step_delay_ns
        caused_wait_ns suffered_wait_ns inherited_ns z persistence slowdown reason evidence_range evidence_excess_ns evidence_z
        evidence_persistence stands_on host pid device_id file);
    let rows = by_prominence(&run.tables().stragglers).into_iter().filter(|row| run.shown.has(row.rank));
    page.table(rows, wanted)
}
