//! The findings as the page shows them.

use trace::FindingRow;

use crate::sections::{SectionView, section_of};
use crate::string_pool::visible_sentence;
use model::analysis::Analysis;

/// The element that lists what the numbers do not cover, and its title in links.
const LEFT_OUT: (&str, &str) = ("left-out", "What the numbers do not cover");

/// Tables that the page shows among what the numbers do not cover.
const OF_LEFT_OUT: [&str; 2] = ["counters", "omissions"];

/// A finding with a link to its evidence.
#[derive(Debug)]
pub(crate) struct FindingView {
    pub(crate) severity: String,
    pub(crate) title: String,
    pub(crate) evidence: String,
    pub(crate) suggestion: String,
    pub(crate) link: &'static str,
    pub(crate) link_title: String,
}

/// The findings, those with the largest predicted saving first, each with a link to its evidence.
pub(crate) fn findings(analysis: &Analysis, sections: &[SectionView]) -> Vec<FindingView> {
    let view = |row: &FindingRow| {
        let table = &*row.evidence_table;
        let of_table = Some(section_of(table)).filter(|_| !OF_LEFT_OUT.contains(&table));
        let drawn = sections.iter().find(|section| Some(section.id) == of_table && section.drawn);
        let (link, title) = drawn.map_or(LEFT_OUT, |section| (section.id, section.title));
        FindingView {
            severity: row.severity.to_string(),
            title: visible_sentence(&row.title),
            evidence: visible_sentence(&row.evidence),
            suggestion: visible_sentence(&row.suggestion),
            link,
            link_title: title.to_string(),
        }
    };
    let mut rows: Vec<&FindingRow> = analysis.tables.findings.iter().collect();
    rows.sort_by_key(|row| std::cmp::Reverse(row.saving_ns));
    rows.into_iter().map(view).collect()
}
