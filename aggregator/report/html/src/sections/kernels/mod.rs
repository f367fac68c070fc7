//! Kernels by name, as a table.

use trace::{KernelStatsRow, Row};

use crate::section::{Chart, PageData, ReportInput, Section, script};
use model::Error;

pub(crate) static SECTION: Section = Section {
    id: "kernels",
    title: "Kernels",
    lead: "Kernels, copies and fills by name, summed over all ranks. Slowest: the rank whose calls take longest, compared with \
           the median device.",
    proof: false,
    tables: &[KernelStatsRow::table],
    data,
    scripts: &[script!("kernels.js")],
};

fn data(run: &ReportInput<'_>, page: &mut PageData) -> Result<Option<Chart>, Error> {
    add_kernels(run, page)?;
    Ok(Some(Chart::unless(
        run.kernels
            .is_empty()
            .then_some("No device row was recorded: the run used no device, or the profiler recorded only the CPU."),
    )))
}

/// Adds the sums over all ranks, unless a section before has done it.
pub(super) fn add_kernels(run: &ReportInput<'_>, page: &mut PageData) -> Result<(), Error> {
    if page.has_table(&KernelStatsRow::table()) {
        return Ok(());
    }
    let columns = run.kernels.columns(&mut page.names)?;
    page.add_columns(KernelStatsRow::table().name, columns);
    run.kernels.note.iter().for_each(|note| page.note(note.clone()));
    Ok(())
}
