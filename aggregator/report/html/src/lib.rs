//! Writes the report: one page that needs only a browser.
//!
//! ```text
//!  Analysis, one step of all ranks
//!     │  sections: each shortens its data to the limits of a page, and says what it shortens
//!     ▼
//!  PageData ── JSON ──► <script type="application/json">   data, never markup: tables as columns, which the scripts shape
//!  templates (escaping) ─► the page: verdict, findings, what is not covered, a place for each chart
//!  templates/report/*.js, sections/*/*.js ─► one script, *.css ─► one style: the page's security policy has their hashes
//! ```
//!
//! The page's own modules draw the charts: in SVG if a chart has hundreds of marks, on canvas if it has tens of
//! thousands. `aggregator/report/html/README.md` compares them with chart libraries.
//!
//! The security policy forbids all requests and all foreign scripts, whatever strings a trace contains.

mod by_name;
mod columns;
mod compare;
mod findings;
mod hung;
mod identity;
mod page;
mod page_limits;
mod section;
mod sections;
mod stragglers;
mod string_pool;
#[cfg(test)]
mod tests;
mod uncovered;
mod verdict;

use std::collections::BTreeSet;
use std::io::Write;

use trace::{OmissionKind, OmissionRow, Text, worst_omission};

use self::by_name::{kernels, operators};
use self::findings::findings;
use self::hung::{Hung, said};
use self::page::{Frame, Input, RunPage, Tab, write_page};
pub use self::page_limits::Limits;
use self::section::{ReportInput, SUMMARISED};
use self::sections::fill;
use self::string_pool::visible_sentence;
use self::uncovered::uncovered;
use self::verdict::{answers, headline, parts, tiles};
use align::aligned::Analyzed;
use diff::Diff;
use hang::report::Hang;
use model::Error;
use model::analysis::Analysis;
use model::options::Options;
use model::shown_ranks::ShownRanks;
use model::source::{Source, SourceInfo};

/// Settings of a report.
#[derive(Clone, Debug, Default)]
pub struct Settings {
    /// The step of the timeline; `None` selects the step of median length.
    pub timeline_step: Option<i32>,
    /// Size limits of the page.
    pub limits: Limits,
    /// The command that makes the page, for its last line; empty without one.
    pub command: String,
}

/// The result of a report.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Reported {
    /// Bytes written.
    pub bytes: u64,
    /// Number of ranks in the report.
    pub ranks: usize,
    /// Data of the analysis that the page shortens or leaves out, one sentence each. The page shows these sentences,
    /// too.
    pub summarised: Vec<String>,
    /// Data that was left out of the input.
    pub omissions: Vec<OmissionRow>,
    /// The worst kind of these, and of those of the comparison.
    pub worst: Option<OmissionKind>,
}

/// An analyzed run.
#[derive(Clone, Copy)]
pub struct ReportedRun<'a> {
    /// Gives the rows of the timeline.
    pub source: &'a dyn Source,
    /// The selection of the analysis.
    pub options: &'a Options,
    /// The analysis and its clocks.
    pub analyzed: &'a Analyzed,
    /// The ranks that hold the job up, if it hangs; or why they are not known.
    pub hang: Result<Option<&'a Hang>, &'a OmissionRow>,
}

/// Writes the page of a run.
///
/// # Errors
/// [`Error::Option`] for a timeline of a step that was not recorded, and [`Error::Output`].
pub fn report(run: &ReportedRun<'_>, settings: &Settings, out: &mut impl Write) -> Result<Reported, Error> {
    let tab = run_tab(run, settings, "Run")?;
    let info = run.source.info();
    let name = identity::name(&info);
    let frame = Frame {
        title: title(&name, &run.analyzed.analysis),
        inputs: vec![Input { letter: "", name, path: identity::path(&info) }],
        command: visible_sentence(&settings.command),
    };
    let bytes = write_page(&frame, &[tab.tab], out)?;
    Ok(reported(&run.analyzed.analysis, tab.summarised, tab.omissions, bytes))
}

/// Writes the page of the run `after` behind a first tab, which has its `changes` since the run `before`.
///
/// # Errors
/// The errors of [`report`].
pub fn report_with(
    before: &SourceInfo,
    changes: &Diff,
    after: &ReportedRun<'_>,
    settings: &Settings,
    out: &mut impl Write,
) -> Result<Reported, Error> {
    let run = run_tab(after, settings, "Run B")?;
    let compared = compare::compare_tab(changes, &settings.limits)?;
    let info = after.source.info();
    let input = |letter, info| Input { letter, name: identity::name(info), path: identity::path(info) };
    let frame = Frame {
        title: format!("{} against {} · rankscope", identity::name(before), identity::name(&info)),
        inputs: vec![input("A", before), input("B", &info)],
        command: visible_sentence(&settings.command),
    };
    let bytes = write_page(&frame, &[compared, run.tab], out)?;
    let mut reported = reported(&after.analyzed.analysis, run.summarised, run.omissions, bytes);
    reported.worst = reported.worst.into_iter().chain(worst_omission(&changes.omissions)).min();
    // The omissions of the comparison include those of B, which was read twice.
    let listed: BTreeSet<(Option<i32>, Text, Text)> = reported.omissions.iter().map(said).collect();
    reported.omissions.extend(changes.omissions.iter().filter(|row| !listed.contains(&said(row))).cloned());
    Ok(reported)
}

fn reported(analysis: &Analysis, summarised: Vec<String>, of_tab: Vec<OmissionRow>, bytes: u64) -> Reported {
    let worst = analysis.worst_omission().into_iter().chain(worst_omission(&of_tab)).min();
    let (ranks, mut omissions) = (analysis.facts.ranks.len(), analysis.tables.omissions.clone());
    omissions.extend(of_tab);
    Reported { bytes, ranks, summarised, omissions, worst }
}

fn title(name: &str, analysis: &Analysis) -> String {
    format!("{name} · {} · rankscope", visible_sentence(analysis.title()))
}

/// A run as a tab of the page.
struct RunTab {
    tab: Tab,
    summarised: Vec<String>,
    /// Of the timeline, and of the waits of a job that hangs.
    omissions: Vec<OmissionRow>,
}

fn run_tab(run: &ReportedRun<'_>, settings: &Settings, name: &str) -> Result<RunTab, Error> {
    let ReportedRun { source, options, analyzed, hang } = *run;
    let (analysis, limits) = (&analyzed.analysis, &settings.limits);
    let (sections, data) = fill(&ReportInput {
        source,
        options,
        analyzed,
        limits,
        timeline_step: settings.timeline_step,
        shown: &ShownRanks::of(analysis, limits.ranks),
        kernels: &kernels(&analysis.tables, limits),
        operators: &operators(&analysis.tables, limits),
    })?;
    let json = data.json(analysis)?;
    let (hung, of_hang) = Hung::of(hang, analysis)?;
    let mut omissions = data.omissions;
    omissions.extend(of_hang);
    let uncovered = uncovered(analysis, &sections, &data.remarks, limits);
    let findings = findings(analysis, &sections);
    let ids: Vec<&'static str> = sections.iter().filter(|section| section.drawn).map(|section| section.id).collect();
    let (drawn, absent): (Vec<_>, Vec<_>) = sections.into_iter().partition(|section| section.drawn);
    let (proof, details) = drawn.into_iter().partition(|section| section.proof);
    let page = RunPage {
        kind: analysis.verdict.kind.as_str(),
        word: visible_sentence(analysis.title()),
        headline: headline(analysis),
        answers: answers(analysis),
        tiles: tiles(analysis),
        parts: parts(analysis, &ids),
        facts: identity::facts(&source.info(), analyzed),
        hung,
        uncovered,
        findings,
        proof,
        details,
        absent,
        data: page::script_json(&json),
    };
    let summarised = data.remarks.into_iter().filter(|remark| remark.kind == SUMMARISED).map(|remark| remark.text);
    Ok(RunTab { tab: page.into_tab(name)?, summarised: summarised.collect(), omissions })
}
