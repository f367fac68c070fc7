//! The data that the numbers of the page do not cover.

use crate::page_limits::Limits;
use crate::section::{Remark, SUMMARISED};
use crate::sections::SectionView;
use crate::string_pool::visible_sentence;
use model::analysis::Analysis;
use model::units::{omission, omission_kind, plural, ranks};

/// Data that the numbers do not cover.
#[derive(Debug, PartialEq)]
pub(crate) struct Uncovered {
    /// `lost`, `left out`, `note`, `missing`, `undecided` or `summarised`.
    pub(crate) kind: &'static str,
    pub(crate) text: String,
    /// The affected section.
    pub(crate) section: Option<&'static str>,
    /// Title of the affected section.
    pub(crate) section_title: &'static str,
}

/// Lists the data that the numbers do not cover: lost, left out, missing, undecided and summarised data.
pub(crate) fn uncovered(
    analysis: &Analysis,
    sections: &[SectionView],
    remarks: &[Remark],
    limits: &Limits,
) -> Vec<Uncovered> {
    let mut all = Vec::new();
    let mut add = |kind, section: Option<&'static str>, text: String| {
        let found = section.and_then(|id| sections.iter().find(|s| s.id == id && s.drawn));
        let (section, section_title) = (found.map(|s| s.id), found.map_or("", |s| s.title));
        all.push(Uncovered { kind, text, section, section_title });
    };
    lost(analysis, limits, &mut |kind, text| add(kind, None, text));
    let (summarised, others): (Vec<&Remark>, Vec<_>) = remarks.iter().partition(|remark| remark.kind == SUMMARISED);
    for remark in others.into_iter().chain(summarised) {
        add(remark.kind, Some(remark.section), remark.text.clone());
    }
    for section in sections.iter().filter(|section| section.drawn) {
        if let Some(missing) = &section.missing {
            add("missing", Some(section.id), missing.clone());
        }
    }
    all
}

fn lost(analysis: &Analysis, limits: &Limits, add: &mut impl FnMut(&'static str, String)) {
    let Analysis { facts, tables, .. } = analysis;
    if let Some(selection) = &facts.selection {
        add("missing", format!("Only a part of the run is selected: {}", visible_sentence(selection)));
    }
    for why in &facts.nothing_because {
        add("missing", format!("No row was recorded: {}", visible_sentence(why)));
    }
    if !facts.missing_ranks.is_empty() {
        let (list, are) = (ranks(&facts.missing_ranks), if facts.missing_ranks.len() == 1 { "is" } else { "are" });
        let word = if facts.has_chosen_ranks() { "left out" } else { "missing" };
        add("missing", format!("{} of the job {are} {word}: {list}", plural(facts.missing_ranks.len(), "rank")));
    }
    for row in tables.omissions.iter().take(limits.omissions) {
        add(omission_kind(row), visible_sentence(&omission(row)));
    }
    let rest = tables.omissions.get(limits.omissions..).unwrap_or_default();
    if let Some(worst) = rest.iter().min_by_key(|row| row.kind.known()) {
        let more = format!("{} not shown; the table omissions has them all", plural(rest.len(), "more omission"));
        add(omission_kind(worst), more);
    }
}
