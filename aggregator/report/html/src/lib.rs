//! Writes the report: one page that needs only a browser.
//!
//! ```text
//!  Analysis, one step of all ranks
//!     │  shortened to the limits of a page; the page lists what it shortens
//!     ▼
//!  Document ── JSON ──► <script type="application/json">   data, never markup: tables as columns, which the scripts shape
//!  templates (escaping) ─► the page: verdict, findings, what is not covered, a place for each chart
//!  templates/report/*.js ─► one script, *.css ─► one style, both named by hash in the page's security policy
//! ```
//!
//! The page's own modules draw the charts: in SVG if a chart has hundreds of marks, on canvas if it has tens of
//! thousands. `aggregator/report/html/README.md` compares them with chart libraries.
//!
//! The security policy forbids all requests and all foreign scripts, whatever strings a trace contains.

mod buckets;
mod collectives;
mod columns;
mod compare;
mod devices;
mod hung;
mod identity;
mod modules;
mod page;
mod page_limits;
mod plain_tables;
mod roles;
mod section_texts;
mod steps;
mod string_pool;
mod tables;
#[cfg(test)]
mod tests;
mod timeline;

use std::collections::{BTreeMap, BTreeSet};
use std::io::Write;

use serde::Serialize;
use trace::{OmissionKind, OmissionRow, Text, worst_omission};

use self::columns::Columns;
use self::hung::{Hung, said};
use self::page::{Frame, RunPage, Tab, write_page};
pub use self::page_limits::Limits;
use self::page_limits::Shortenings;
use self::roles::{Roles, roles};
use self::section_texts::{PageContent, answers, findings, headline, sections, tiles, uncovered};
use self::string_pool::{StringPool, visible_sentence};
use self::tables::Roofline;
use self::timeline::{Timelines, timelines};
use align::aligned::Analyzed;
use diff::Diff;
use hang::report::Hang;
use model::Error;
use model::analysis::{Analysis, VerdictKind};
use model::options::Options;
use model::rank_order::by_prominence;
use model::shown_ranks::ShownRanks;
use model::source::{Source, SourceInfo};

/// Version of the JSON in the page.
const VERSION: u32 = 2;

// The columns of each table that the scripts use.
const BREAKDOWN: &str = "rank device_id step compute_ns overlap_ns exposed_comm_ns exposed_wait_ns memory_ns idle_ns";
const STRAGGLERS: &str = "rank verdict own_excess_ns own_excess_low_ns own_excess_high_ns step_delay_ns caused_wait_ns \
     suffered_wait_ns inherited_ns z persistence slowdown reason evidence_range evidence_excess_ns evidence_z \
     evidence_persistence stands_on host pid device_id file";
const BUCKETS: &str = "step bucket rank bytes ready_ns enqueue_ns start_ns wait_ns end_ns exposed_ns";
const COLLECTIVES: &str = "op bytes step first_start_ns skew_ns error_ns transfer_ns algbw_gbs busbw_gbs busbw_incl_wait_gbs \
     last_rank ranks_seen complete clocks_disagree";
const CLOCKS: &str =
    "rank clock method offset_ns drift_ppb error_ns bias_ns bound_ns residual_p95_ns samples violations";
const IDLE: &str = "rank device_id stream_id category gaps idle_ns";
const MEMORY: &str = "rank device_id ts_ns in_use_bytes reserved_bytes";
const PEAKS: &str = "rank device_id peak_bytes fragmentation_bytes parameters_bytes gradients_bytes optimizer_state_bytes \
                     activations_bytes temporary_bytes unknown_bytes";
const BLOCKS: &str = "rank device_id bytes blocks category operator stack";
const DEVICES: &str = "name peak_flops peak_bytes_per_s";

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
        inputs: vec![("", name, identity::path(&info))],
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
    let input = |letter, info| (letter, identity::name(info), identity::path(info));
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

/// The data of the scripts.
#[derive(Serialize)]
struct Document<'a> {
    format: &'static str,
    version: u32,
    verdict: VerdictKind,
    causes: &'a [i32],
    /// Tables of the analysis, shortened to the limits of the page.
    tables: BTreeMap<&'static str, Columns>,
    /// Unit of the times of `bucket_timing`, in ns.
    bucket_unit_ns: i64,
    /// Medians of `collective_instances`, and the number of collectives by way of matching.
    collective_groups: Vec<collectives::Group>,
    matched: BTreeMap<String, usize>,
    heat: steps::Heat,
    timeline: Timelines,
    roles: Option<Roles>,
    /// The end of the recording, in ns since the first point of all curves of memory.
    memory_end_ns: i64,
    /// The rows that the roofline shows: `kernel` or `operator`.
    roofline_of: &'static str,
    extras: Vec<plain_tables::PlainTable>,
    /// The last field, because the other fields fill it.
    names: StringPool,
}

fn run_tab(run: &ReportedRun<'_>, settings: &Settings, name: &str) -> Result<RunTab, Error> {
    let ReportedRun { source, options, analyzed, hang } = *run;
    let analysis = &analyzed.analysis;
    let (mut names, mut notes, limits) = (StringPool::default(), Shortenings::default(), &settings.limits);
    let step = timeline_step(analysis, settings)?;
    let (timeline, mut omissions) = match step {
        Some(step) => timelines(source, options, analyzed, step, limits, (&mut names, &mut notes)),
        None => Default::default(),
    };
    let (document, roofline) = document(analyzed, timeline, limits, names, &mut notes)?;
    let (hung, of_hang) = Hung::of(hang, analysis)?;
    omissions.extend(of_hang);
    let content = PageContent {
        analysis,
        roofline: &roofline,
        timeline: !document.timeline.is_empty(),
        timeline_step: step,
        roles: document.roles.is_some(),
        tables: !document.extras.is_empty(),
        notes: &notes,
    };
    let sections = sections(&content);
    let uncovered = uncovered(&content, &sections, limits);
    let findings = findings(analysis, &sections);
    let (drawn, absent): (Vec<_>, Vec<_>) = sections.into_iter().partition(|section| section.drawn);
    let (proof, details) = drawn.into_iter().partition(|section| section.proof);
    let page = RunPage {
        kind: analysis.verdict.kind.as_str(),
        word: visible_sentence(analysis.title()),
        headline: headline(analysis),
        answers: answers(analysis),
        tiles: tiles(analysis),
        facts: identity::facts(&source.info(), analyzed),
        hung,
        uncovered,
        findings,
        proof,
        details,
        absent,
        data: page::script_json(&document)?,
    };
    let summarised = notes.all().iter().map(|(_, text)| text.clone()).collect();
    Ok(RunTab { tab: page.into_tab(name)?, summarised, omissions })
}

/// The requested step, or a typical one.
fn timeline_step(analysis: &Analysis, settings: &Settings) -> Result<Option<i32>, Error> {
    match settings.timeline_step {
        None => Ok(steps::typical_step(analysis)),
        Some(step) if analysis.facts.steps.contains(&step) => Ok(Some(step)),
        Some(step) => {
            let recorded = model::units::ranks(&analysis.facts.steps);
            let why = format!("this step was not recorded; recorded steps: {recorded}");
            Err(Error::Option { option: "timeline", value: step.to_string(), why })
        }
    }
}

/// Says which ranks the sections with a row for each rank show.
fn note_ranks(shown: &ShownRanks, analysis: &Analysis, notes: &mut Shortenings) {
    let Some(sentence) = shown.sentence() else { return };
    for (section, table) in [("steps", "step_breakdown"), ("clocks", "clock_fit"), ("idle", "idle_breakdown")] {
        if analysis.tables.all().iter().any(|rows| rows.table().name == table && rows.row_count() > 0) {
            notes.add(
                section,
                format!("{sentence} The table {table} has them all; rank_groups sums them by host and role."),
            );
        }
    }
}

fn document<'a>(
    analyzed: &'a Analyzed,
    timeline: Timelines,
    limits: &Limits,
    mut names: StringPool,
    notes: &mut Shortenings,
) -> Result<(Document<'a>, Roofline), Error> {
    let Analysis { verdict, tables, .. } = &analyzed.analysis;
    let kernels = tables::kernels(tables, limits, notes);
    let operators = tables::operators(tables, limits, notes);
    let roofline = tables::roofline(&kernels, &operators, &analyzed.devices);
    let shown = ShownRanks::of(&analyzed.analysis, limits.ranks);
    note_ranks(&shown, &analyzed.analysis, notes);
    let of_shown = |rank: &i32| shown.has(*rank);
    let mut breakdown = steps::breakdown(tables, limits, notes);
    // Rank −1 has the means of the steps.
    breakdown.retain(|row| row.rank < 0 || shown.has(row.rank));
    let heat = steps::heat(tables, limits, notes);
    let (bucket_unit_ns, buckets) = buckets::buckets(tables, limits, notes);
    let collectives = collectives::collectives(tables, &mut names, limits, notes);
    let (idle, idle_pct) = devices::idle(tables, &shown);
    let memory = devices::memory(tables, limits, notes);
    let peaks = devices::peaks(tables);
    let alive: Vec<String> = peaks.iter().map(|p| visible_sentence(&p.alive)).collect();
    let columns = BTreeMap::from([
        ("step_breakdown", Columns::of(&breakdown, BREAKDOWN, &mut names)?),
        (
            "stragglers",
            Columns::of(
                by_prominence(&tables.stragglers).into_iter().filter(|r| of_shown(&r.rank)),
                STRAGGLERS,
                &mut names,
            )?,
        ),
        ("bucket_timing", Columns::of(&buckets, BUCKETS, &mut names)?),
        ("collective_instances", Columns::of(&collectives.shown, COLLECTIVES, &mut names)?),
        ("clock_fit", Columns::of(tables.clock_fit.iter().filter(|r| of_shown(&r.rank)), CLOCKS, &mut names)?),
        ("kernel_stats", kernels.columns(&mut names)?),
        ("op_stats", operators.columns(&mut names)?),
        ("module_stats", modules::modules(tables, &mut names, limits, notes)?),
        ("idle_breakdown", Columns::of(idle, IDLE, &mut names)?.with("share_pct", idle_pct)),
        ("memory_curve", Columns::of(&memory, MEMORY, &mut names)?),
        ("memory_peaks", Columns::of(peaks, PEAKS, &mut names)?.with("alive", alive)),
        ("memory_at_peak", Columns::of(devices::blocks(tables), BLOCKS, &mut names)?),
        ("devices", Columns::of(&roofline.devices, DEVICES, &mut names)?),
    ]);
    let document = Document {
        format: "rankscope.report",
        version: VERSION,
        verdict: verdict.kind,
        causes: &verdict.causes,
        tables: columns,
        bucket_unit_ns,
        collective_groups: collectives.groups,
        matched: collectives.matched,
        heat,
        timeline,
        roles: roles(&analyzed.analysis),
        memory_end_ns: devices::memory_end_ns(tables, analyzed.recorded_ns),
        roofline_of: roofline.of,
        extras: plain_tables::plain_tables(tables, &mut names, (limits, &shown), notes)?,
        names,
    };
    Ok((document, roofline))
}
