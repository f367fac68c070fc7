//! The sections of the page, in its order.

mod buckets;
mod clocks;
mod collectives;
mod idle;
mod kernels;
mod lateness;
mod memory;
mod modules;
mod operators;
mod roles;
mod roofline;
mod skew;
mod steps;
mod tables;
#[cfg(test)]
mod tests;
mod timeline;

use crate::section::{PageData, ReportInput, Section};
use model::Error;

/// All sections, in the order of the page.
pub(crate) static SECTIONS: &[&Section] = &[
    &timeline::SECTION,
    &lateness::SECTION,
    &roles::SECTION,
    &steps::SECTION,
    &buckets::SECTION,
    &collectives::SECTION,
    &skew::SECTION,
    &clocks::SECTION,
    &kernels::SECTION,
    &operators::SECTION,
    &modules::SECTION,
    &idle::SECTION,
    &memory::SECTION,
    &roofline::SECTION,
    &tables::SECTION,
];

/// A section as the page has it: with a chart or table, or with the reason why it has none.
#[derive(Debug, PartialEq)]
pub(crate) struct SectionView {
    pub(crate) id: &'static str,
    pub(crate) title: &'static str,
    pub(crate) lead: String,
    /// Names the data that the section lacks.
    pub(crate) missing: Option<String>,
    /// Whether the section has a chart nevertheless. The others are one line together.
    pub(crate) drawn: bool,
    pub(crate) proof: bool,
    /// Sentences about summarised data.
    pub(crate) notes: Vec<String>,
}

impl SectionView {
    /// The data that the section lacks; empty if it lacks none.
    pub(crate) fn missing(&self) -> &str {
        self.missing.as_deref().unwrap_or_default()
    }
}

/// Fills the page, section by section.
///
/// # Errors
/// [`Error::Option`] for a timeline of a step that was not recorded.
pub(crate) fn fill(run: &ReportInput<'_>) -> Result<(Vec<SectionView>, PageData), Error> {
    let (mut views, mut page) = (Vec::new(), PageData::default());
    for section in SECTIONS {
        page.section = section.id;
        let Some(chart) = (section.data)(run, &mut page)? else { continue };
        views.push(SectionView {
            id: section.id,
            title: chart.title.unwrap_or(section.title),
            lead: chart.lead.unwrap_or_else(|| section.lead.into()),
            missing: chart.missing,
            drawn: chart.drawn,
            proof: section.proof,
            notes: page.notes_of(section.id),
        });
    }
    Ok((views, page))
}

/// The section that shows a table of the analysis: the one that names it, or that of the tables without a chart.
pub(crate) fn section_of(table: &str) -> &'static str {
    let shows = |section: &&&Section| section.tables.iter().any(|of| of().name == table);
    SECTIONS.iter().find(shows).map_or(tables::SECTION.id, |section| section.id)
}
