//! Writes the report: one page that needs only a browser.
//!
//! ```text
//!  Analysis, one step of all ranks
//!     │  shortened to the limits of a page; the page lists what it shortens
//!     ▼
//!  Document ── JSON ──► <script type="application/json">   data, never markup
//!  templates (escaping) ─► the page: verdict, findings, what is not covered, a place for each chart
//!  templates/report/*.js ─► one script, *.css ─► one style, both named by hash in the page's security policy
//! ```
//!
//! The page's own modules draw the charts: in SVG if a chart has hundreds of marks, on canvas if it has tens of
//! thousands. A chart library would come from npm, so the build would need a second package manager and a network, or a
//! copy of the library in this repository. Screen readers, sharp printing and the tests that count marks also need SVG.
//!
//! The security policy forbids all requests and all foreign scripts, whatever strings a trace contains.

mod buckets;
mod collectives;
mod compare;
mod devices;
mod page;
mod page_limits;
mod plain_tables;
mod section_texts;
mod steps;
mod string_pool;
mod tables;
#[cfg(test)]
mod tests;
mod timeline;

use std::io::Write;

use serde::Serialize;
use trace::OmissionRow;

use self::page::{RunPage, Tab, write_page};
pub use self::page_limits::Limits;
use self::page_limits::Shortenings;
use self::section_texts::{PageContent, facts, findings, sections, tiles, uncovered, word};
use self::string_pool::{StringPool, visible_sentence};
use self::timeline::{Timeline, timeline};
use crate::Error;
use crate::compare::{Method, diff};
use crate::ingest::source::Source;
use crate::judge::reduce::{Analyzed, analyze_aligned};
use crate::model::analysis::{Analysis, Facts, Verdict};
use crate::model::options::Options;

/// Version of the JSON in the page.
const VERSION: u32 = 1;

/// Settings of a report.
#[derive(Clone, Debug, Default)]
pub struct Settings {
    /// The step of the timeline; `None` selects the step of median length.
    pub timeline_step: Option<i32>,
    /// Size limits of the page.
    pub limits: Limits,
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
    /// Whether ranks or rows were left out of the input.
    pub partial: bool,
}

/// Analyzes the part of `source` that `options` select, and writes the page. Calls `progress` after each rank.
///
/// # Errors
/// The errors of [`analyze`](crate::analyze), [`Error::Option`] for a timeline of a step that was not recorded, and
/// [`Error::Output`].
pub fn report(
    source: &dyn Source,
    options: &Options,
    settings: &Settings,
    mut out: impl Write,
    progress: &(dyn Fn(usize, usize) + Sync),
) -> Result<Reported, Error> {
    let analyzed = analyze_aligned(source, options, progress)?;
    let run = run_tab(source, options, settings, &analyzed, "Run")?;
    let title = title(&analyzed.analysis);
    let bytes = write_page(&title, &[run.tab], &mut out)?;
    Ok(reported(analyzed.analysis, run.summarised, bytes))
}

/// Writes the report of the run `after`, with the changes since `before` in a second tab.
///
/// # Errors
/// The errors of [`report`] and [`diff`].
pub fn report_with(
    before: &dyn Source,
    after: &dyn Source,
    options: &Options,
    settings: &Settings,
    mut out: impl Write,
    progress: &(dyn Fn(usize, usize) + Sync),
) -> Result<Reported, Error> {
    let method = Method::default();
    let changes = diff(&[before], &[after], options, &method, &|done, total| progress(done, 2 * total))?;
    let analyzed = analyze_aligned(after, options, &|done, total| progress(total + done, 2 * total))?;
    let run = run_tab(after, options, settings, &analyzed, "Run B")?;
    let compared = compare::compare_tab(&changes, &settings.limits)?;
    let title = format!("{} · compared", title(&analyzed.analysis));
    let bytes = write_page(&title, &[run.tab, compared], &mut out)?;
    let mut reported = reported(analyzed.analysis, run.summarised, bytes);
    reported.partial |= !changes.omissions.is_empty();
    // The omissions of the comparison include those of B.
    let of_a = before.info().path.display().to_string();
    let since = |row: &&OmissionRow| row.file.as_deref().is_some_and(|file| file.starts_with(&of_a));
    reported.omissions.extend(changes.omissions.iter().filter(since).cloned());
    Ok(reported)
}

fn reported(analysis: Analysis, summarised: Vec<String>, bytes: u64) -> Reported {
    Reported {
        bytes,
        ranks: analysis.facts.ranks.len(),
        summarised,
        partial: analysis.is_partial(),
        omissions: analysis.tables.omissions,
    }
}

fn title(analysis: &Analysis) -> String {
    let name = if analysis.facts.run_id.is_empty() { "traces" } else { &analysis.facts.run_id };
    format!("{} · {} · rankscope", visible_sentence(name), word(analysis.verdict.kind))
}

/// A run as a tab of the page.
struct RunTab {
    tab: Tab,
    summarised: Vec<String>,
}

/// The data of the scripts.
#[derive(Serialize)]
struct Document<'a> {
    format: &'static str,
    version: u32,
    facts: DocumentFacts<'a>,
    verdict: DocumentVerdict<'a>,
    breakdown: steps::Breakdown,
    stragglers: Vec<Straggler>,
    heat: steps::Heat,
    timeline: Timeline,
    buckets: buckets::Buckets,
    collectives: collectives::Collectives,
    clocks: Vec<Clock>,
    kernels: Vec<tables::NameRow>,
    operators: Vec<tables::NameRow>,
    idle: Vec<devices::StreamGaps>,
    memory: Vec<devices::MemoryCurve>,
    roofline: tables::Roofline,
    extras: Vec<plain_tables::PlainTable>,
    /// The last field, because the other fields fill it.
    names: StringPool,
}

#[derive(Serialize)]
struct DocumentFacts<'a> {
    ranks: &'a [i32],
    steps: &'a [i32],
    has_device_rows: bool,
}

#[derive(Serialize)]
struct DocumentVerdict<'a> {
    kind: crate::model::analysis::VerdictKind,
    causes: &'a [i32],
    rank: Option<i32>,
}

/// A rank compared with the others; times per step.
#[derive(Serialize)]
struct Straggler {
    rank: i32,
    verdict: String,
    own_excess_ns: i64,
    low_ns: Option<i64>,
    high_ns: Option<i64>,
    delay_ns: i64,
    caused_ns: i64,
    suffered_ns: i64,
    inherited_ns: i64,
    z: Option<f64>,
    persistence: Option<f64>,
    slowdown: Option<f64>,
    why: String,
    evidence: String,
}

/// The fit of one clock.
#[derive(Serialize)]
struct Clock {
    rank: i32,
    clock: String,
    method: String,
    reference_rank: i32,
    offset_ns: i64,
    drift_ppb: Option<f64>,
    error_ns: Option<i64>,
    bound_ns: Option<i64>,
    residual_p95_ns: Option<i64>,
    samples: i64,
    violations: i64,
}

fn run_tab(
    source: &dyn Source,
    options: &Options,
    settings: &Settings,
    analyzed: &Analyzed,
    name: &str,
) -> Result<RunTab, Error> {
    let analysis = &analyzed.analysis;
    let (mut names, mut notes, limits) = (StringPool::default(), Shortenings::default(), &settings.limits);
    let step = timeline_step(analysis, settings)?;
    let timeline = match step {
        Some(step) => timeline(source, options, analyzed, step, limits, (&mut names, &mut notes)),
        None => Timeline::default(),
    };
    let document = document(analyzed, timeline, limits, names, &mut notes)?;
    let content = PageContent {
        analysis,
        roofline: &document.roofline,
        timeline: !document.timeline.is_empty(),
        timeline_step: step,
        notes: &notes,
    };
    let sections = sections(&content);
    let page = RunPage {
        kind: analysis.verdict.kind.as_str(),
        word: word(analysis.verdict.kind),
        sentence: visible_sentence(&analysis.verdict.sentence),
        tiles: tiles(analysis),
        facts: facts(analysis),
        uncovered: uncovered(&content, &sections, limits),
        findings: findings(analysis, &sections),
        sections,
        data: page::script_json(&document)?,
    };
    let summarised = notes.all().iter().map(|(_, text)| text.clone()).collect();
    Ok(RunTab { tab: page.into_tab(name)?, summarised })
}

/// The requested step, or a typical one.
fn timeline_step(analysis: &Analysis, settings: &Settings) -> Result<Option<i32>, Error> {
    match settings.timeline_step {
        None => Ok(steps::typical_step(analysis)),
        Some(step) if analysis.facts.steps.contains(&step) => Ok(Some(step)),
        Some(step) => {
            let recorded = crate::base::units::ranks(&analysis.facts.steps);
            let why = format!("this step was not recorded; recorded steps: {recorded}");
            Err(Error::Option { option: "timeline", value: step.to_string(), why })
        }
    }
}

fn document<'a>(
    analyzed: &'a Analyzed,
    timeline: Timeline,
    limits: &Limits,
    mut names: StringPool,
    notes: &mut Shortenings,
) -> Result<Document<'a>, Error> {
    let Analysis { facts, verdict, tables } = &analyzed.analysis;
    let kernels = tables::kernels(tables, &mut names, limits, notes);
    let operators = tables::operators(tables, &mut names, limits, notes);
    let roofline = tables::roofline(&kernels, &operators, &analyzed.devices, &mut names);
    Ok(Document {
        format: "rankscope.report",
        version: VERSION,
        facts: DocumentFacts { ranks: &facts.ranks, steps: &facts.steps, has_device_rows: facts.has_device_rows },
        verdict: DocumentVerdict { kind: verdict.kind, causes: &verdict.causes, rank: verdict_rank(verdict, facts) },
        breakdown: steps::breakdown(tables, limits, notes),
        stragglers: tables.stragglers.iter().map(straggler).collect(),
        heat: steps::heat(tables, limits, notes),
        timeline,
        buckets: buckets::buckets(tables, limits, notes),
        collectives: collectives::collectives(tables, &mut names, limits, notes),
        clocks: tables.clock_fit.iter().map(clock).collect(),
        kernels,
        operators,
        idle: devices::idle(tables, limits, notes),
        memory: devices::memory(tables, limits, notes),
        roofline,
        extras: plain_tables::plain_tables(tables, limits, notes)?,
        names,
    })
}

/// The rank that charts highlight.
fn verdict_rank(verdict: &Verdict, facts: &Facts) -> Option<i32> {
    verdict.rank.filter(|rank| facts.ranks.contains(rank))
}

fn straggler(row: &trace::StragglerRow) -> Straggler {
    let parts = [row.reason.as_deref(), row.evidence_range.as_deref()];
    let finite = |value: Option<f64>| value.filter(|v| v.is_finite()).map(collectives::five_digits);
    Straggler {
        rank: row.rank,
        verdict: row.verdict.to_string(),
        own_excess_ns: row.own_excess_ns,
        low_ns: row.own_excess_low_ns,
        high_ns: row.own_excess_high_ns,
        delay_ns: row.step_delay_ns,
        caused_ns: row.caused_wait_ns,
        suffered_ns: row.suffered_wait_ns,
        inherited_ns: row.inherited_ns,
        z: finite(row.z),
        persistence: finite(row.persistence),
        slowdown: finite(row.slowdown),
        why: string_pool::visible_name(&parts.into_iter().flatten().collect::<Vec<_>>().join(" in ")),
        evidence: visible_sentence(row.evidence.as_deref().unwrap_or("")),
    }
}

fn clock(row: &trace::ClockFitRow) -> Clock {
    Clock {
        rank: row.rank,
        clock: row.clock.to_string(),
        method: row.method.to_string(),
        reference_rank: row.reference_rank,
        offset_ns: row.offset_ns,
        drift_ppb: row.drift_ppb.filter(|d| d.is_finite()).map(collectives::five_digits),
        error_ns: row.error_ns,
        bound_ns: row.bound_ns,
        residual_p95_ns: row.residual_p95_ns,
        samples: row.samples,
        violations: row.violations,
    }
}
