//! The texts around the charts: sections, the data that each lacks, and the data that the numbers do not cover.

use trace::{ClockFitRow, Verdict};

use crate::page_limits::{Limits, Shortenings};
use crate::string_pool::visible_sentence;
use crate::tables::Roofline;
use model::analysis::{Analysis, RankIdentity, VerdictKind};
use model::units::{ns, omission, omission_kind, plural, ranks};

/// A section with a chart or table, or with the reason why it has none.
#[derive(Debug, PartialEq)]
pub(super) struct Section {
    pub(super) id: &'static str,
    pub(super) title: &'static str,
    /// Explains the chart.
    pub(super) lead: String,
    /// Names the data that the section lacks.
    pub(super) missing: Option<String>,
    /// Whether the section has a chart nevertheless. The others are one line together.
    pub(super) drawn: bool,
    /// Whether the section shows what the verdict stands on. The findings follow these sections.
    pub(super) proof: bool,
    /// Sentences about summarised data.
    pub(super) notes: Vec<String>,
}

impl Section {
    /// The data that the section lacks; empty if it lacks none.
    pub(super) fn missing(&self) -> &str {
        self.missing.as_deref().unwrap_or_default()
    }
}

/// Data that the numbers do not cover.
#[derive(Debug, PartialEq)]
pub(super) struct Uncovered {
    /// `lost`, `left out`, `note`, `missing`, `undecided` or `summarised`.
    pub(super) kind: &'static str,
    pub(super) text: String,
    /// The affected section.
    pub(super) section: Option<&'static str>,
    /// Title of the affected section.
    pub(super) section_title: &'static str,
}

/// A finding with a link to its evidence.
#[derive(Debug)]
pub(super) struct FindingView {
    pub(super) severity: String,
    /// The predicted saving.
    pub(super) saving: Option<String>,
    pub(super) title: String,
    pub(super) evidence: String,
    pub(super) suggestion: String,
    pub(super) link: &'static str,
    pub(super) link_title: String,
}

/// The content of a page, from which the sections take their texts.
#[derive(Debug)]
pub(super) struct PageContent<'a> {
    pub(super) analysis: &'a Analysis,
    pub(super) roofline: &'a Roofline,
    pub(super) timeline: bool,
    pub(super) timeline_step: Option<i32>,
    /// Whether the ranks have several roles.
    pub(super) roles: bool,
    /// Whether a table without a chart has rows.
    pub(super) tables: bool,
    pub(super) notes: &'a Shortenings,
}

/// All sections, in the order of the page.
pub(super) fn sections(content: &PageContent<'_>) -> Vec<Section> {
    let first = [timeline(content), lateness(content)].into_iter().chain(roles(content)).chain([steps(content)]);
    let first = first.map(|section| Section { proof: true, ..section });
    let second = [
        buckets(content),
        collectives(content),
        skew(content),
        clocks(content),
        kernels(content),
        operators(content),
        modules(content),
        idle(content),
        memory(content),
        roofline(content),
    ];
    let mut sections: Vec<Section> = first.chain(second).collect();
    let none = (!content.tables).then_some("No other table has rows.");
    sections.push(section("tables", "More tables", "Tables without a chart. Click a title to open its table.", none));
    for section in &mut sections {
        section.notes = content.notes.of(section.id).map(String::from).collect();
    }
    sections
}

fn section(id: &'static str, title: &'static str, lead: impl Into<String>, missing: Option<&str>) -> Section {
    Section {
        id,
        title,
        lead: lead.into(),
        missing: missing.map(String::from),
        drawn: missing.is_none(),
        proof: false,
        notes: Vec::new(),
    }
}

fn steps(content: &PageContent<'_>) -> Section {
    let rows = &content.analysis.tables.step_breakdown;
    let none = !rows.iter().any(|r| r.step.is_some_and(|s| s >= 0));
    section(
        "steps",
        "Step time",
        "The time of each rank's step by activity. The parts sum to the length of the step. Communication that no compute hides is \
         waiting for other ranks (at least) or transfer.",
        none.then_some("No active step was recorded. Use `--step-marker REGEX` to take host ranges as steps."),
    )
}

fn lateness(content: &PageContent<'_>) -> Section {
    let tables = &content.analysis.tables;
    let missing = if tables.collective_instances.is_empty() {
        Some("No collective was recorded, so arrival times are unknown.")
    } else if content.analysis.facts.ranks.len() < 2 {
        Some("Only one rank was recorded, so there is no other rank to compare it with.")
    } else if !tables.collective_instances.iter().any(|i| i.step.is_some_and(|s| s >= 0)) {
        Some("No collective lies in an active step.")
    } else if tables.collective_waits.is_empty() {
        Some("No collective was recorded on several ranks.")
    } else {
        None
    };
    section(
        "lateness",
        "The proof: lateness by rank and step",
        "Time in the range that the verdict stands on, or all own work between collectives, compared with the other ranks. Neither \
         needs a common clock, and a cause stands out in one of them.",
        missing,
    )
}

/// Only of jobs whose ranks have several roles: others do not lack it.
fn roles(content: &PageContent<'_>) -> Option<Section> {
    let lead = "Each rank at its place in the job: its stage of the pipeline, and its position in the other communicators. The further \
                a cell's colour is from the page, the more time the rank costs. A rank is compared with the ranks of its role.";
    content.roles.then(|| section("roles", "Ranks by role", lead, None))
}

fn timeline(content: &PageContent<'_>) -> Section {
    let facts = &content.analysis.facts;
    let of = if facts.ranks.len() > 1 { " of all ranks on one clock, the ranks of the verdict first" } else { "" };
    let others = if facts.steps.len() > 1 { "; other steps can be chosen" } else { "" };
    let step = content.timeline_step.map_or("One step".into(), |step| format!("Step {step}"));
    let lead = format!(
        "{step}{of}{others}. Lanes of a rank: ranges of the host, operators, kernels, communication. Solid bars work or transfer \
         data, hatched bars wait. The line under the lanes is the critical path of the job: it leads to the rank that the job waits for."
    );
    let missing = (!content.timeline).then_some("No rank has a row in the selected step.");
    section("timeline", if facts.ranks.len() > 1 { "One step, all ranks" } else { "One step" }, lead, missing)
}

fn buckets(content: &PageContent<'_>) -> Section {
    section(
        "buckets",
        "Gradient buckets",
        "The phases of each bucket: its last gradient is ready, it is enqueued, it waits in the queue, it waits for the last \
         rank, it transfers data. The line below a bar shows the exposed time.",
        content.analysis.tables.bucket_timing.is_empty().then_some(
            "No gradient bucket was recorded: no collective has a bucket number. rank-agent records these numbers.",
        ),
    )
}

fn collectives(content: &PageContent<'_>) -> Section {
    let rows = &content.analysis.tables.collective_instances;
    let missing = if rows.is_empty() {
        Some("No collective was recorded.")
    } else if rows.iter().all(|r| r.bytes.is_none()) {
        Some("No collective has a size in bytes, so bandwidth is unknown. Durations and skew are below.")
    } else if rows.iter().all(|r| r.busbw_gbs.is_none() && r.busbw_incl_wait_gbs.is_none()) {
        Some(
            "Bandwidth is unknown: every collective lacks ranks, is one-sided, or is shorter than the clock error, or the clock \
             error is unknown.",
        )
    } else {
        None
    };
    let lead = "Bandwidth by operation and size. Algorithm bandwidth is bytes divided by the time from the last arrival to the end. Bus \
                bandwidth is algorithm bandwidth times the factor of the operation (nccl-tests). Bandwidth with waits divides by \
                the whole durations of the ranks.";
    Section { drawn: !rows.is_empty(), ..section("collectives", "Collectives", lead, missing) }
}

fn skew(content: &PageContent<'_>) -> Section {
    let rows = &content.analysis.tables.collective_instances;
    let several = rows.iter().any(|r| r.ranks_seen > 1);
    let unknown = several && rows.iter().filter(|r| r.ranks_seen > 1).any(|r| r.error_ns.is_none());
    let missing = if !several {
        Some("No collective was recorded on several ranks.")
    } else if unknown {
        Some(
            "The clock error is unknown for some collectives. They have no band, and their skew may be wrong by any amount.",
        )
    } else {
        None
    };
    let lead = "Last arrival minus first arrival of every collective, coloured by the rank that arrived last. The band is the clock \
                error: inside it, the order of arrival is unknown.";
    Section { drawn: several, ..section("skew", "Arrival skew", lead, missing) }
}

fn clocks(content: &PageContent<'_>) -> Section {
    let rows = &content.analysis.tables.clock_fit;
    let lead = match rows.first() {
        Some(first) => format!(
            "Global time is the clock of rank {}. A correction is added to a rank's clock, so it is below 0 for a clock that is \
             ahead. The error holds with 95 % confidence, the bound is guaranteed; both hold over the whole recording.",
            first.reference_rank
        ),
        None => "The map from each rank's clock to global time.".to_string(),
    };
    let lacking = |f: fn(&ClockFitRow) -> bool| {
        let mut list: Vec<i32> = rows.iter().filter(|r| f(r)).map(|r| r.rank).collect();
        list.dedup();
        list
    };
    let no_error = lacking(|r| r.error_ns.is_none());
    let missing = if rows.is_empty() {
        Some("No clock was fitted.".to_string())
    } else if content.analysis.facts.ranks.len() < 2 {
        Some("Only one rank was recorded, so there is nothing to align.".to_string())
    } else if !no_error.is_empty() {
        Some(format!(
            "The clock error is unknown for ranks {}, because their clocks were not measured.",
            ranks(&no_error)
        ))
    } else {
        None
    };
    Section { drawn: !rows.is_empty(), ..section("clocks", "Clocks", lead, missing.as_deref()) }
}

fn kernels(content: &PageContent<'_>) -> Section {
    section(
        "kernels",
        "Kernels",
        "Kernels, copies and fills by name, summed over all ranks. Slowest: the rank whose calls take longest, compared with \
         the median device.",
        content
            .analysis
            .tables
            .kernel_stats
            .is_empty()
            .then_some("No device row was recorded: the run used no device, or the profiler recorded only the CPU."),
    )
}

fn operators(content: &PageContent<'_>) -> Section {
    section(
        "operators",
        "Operators and ranges",
        "Operators and named ranges of the host, summed over all ranks. Self is the total without nested operators and ranges.",
        content.analysis.tables.op_stats.is_empty().then_some("No host operator or range was recorded."),
    )
}

fn modules(content: &PageContent<'_>) -> Section {
    section(
        "modules",
        "Modules",
        "The modules of the model, summed over all ranks. Own is the total without the modules inside. Device time is that of the \
         work which a module launched; backward is that of the backward operators of its forward operators.",
        content
            .analysis
            .tables
            .module_stats
            .is_empty()
            .then_some("No call of a module was recorded. torch.profiler records them with `with_stack=True`."),
    )
}

fn idle(content: &PageContent<'_>) -> Section {
    section(
        "idle",
        "Idle gaps of devices",
        "The share of the recorded time in which the busiest stream of each device had nothing to do, by cause (categories of HTA). \
         Host: the next row was launched too late. Kernel: gaps below 30 µs between rows that were launched in time. Other: mostly \
         waits for another stream.",
        content.analysis.tables.idle_breakdown.is_empty().then_some(if content.analysis.facts.has_device_rows {
            "No stream has a gap between two rows."
        } else {
            "No device row was recorded."
        }),
    )
}

fn memory(content: &PageContent<'_>) -> Section {
    section(
        "memory",
        "Memory",
        "Memory in use over time. Each point is the maximum within its span; the last one holds until the end of the recording.",
        content
            .analysis
            .tables
            .memory_curve
            .is_empty()
            .then_some("No allocation was recorded. torch.profiler records allocations with `profile_memory=True`."),
    )
}

fn roofline(content: &PageContent<'_>) -> Section {
    let lead = "FLOP/s by arithmetic intensity (FLOPs per byte), with the limits of the devices. Points below the slope are \
                limited by memory, points below the flat roof by arithmetic. The bytes of torch's operators are a lower \
                bound (each factor and result once), so their points may lie further left.";
    let missing = content.roofline.missing();
    Section { drawn: !content.roofline.is_empty(), ..section("roofline", "Roofline", lead, missing.as_deref()) }
}

/// Lists the data that the numbers do not cover: lost, left out, missing, undecided and summarised data.
pub(super) fn uncovered(content: &PageContent<'_>, sections: &[Section], limits: &Limits) -> Vec<Uncovered> {
    let mut all = Vec::new();
    let mut add = |kind, section: Option<&'static str>, text: String| {
        let found = section.and_then(|id| sections.iter().find(|s| s.id == id && s.drawn));
        let (section, section_title) = (found.map(|s| s.id), found.map_or("", |s| s.title));
        all.push(Uncovered { kind, text, section, section_title });
    };
    lost(content, limits, &mut add);
    undecided(content, &mut add);
    for (section, text) in content.notes.all() {
        add("summarised", Some(*section), text.clone());
    }
    for section in sections.iter().filter(|section| section.drawn) {
        if let Some(missing) = &section.missing {
            add("missing", Some(section.id), missing.clone());
        }
    }
    all
}

fn lost(content: &PageContent<'_>, limits: &Limits, add: &mut impl FnMut(&'static str, Option<&'static str>, String)) {
    let Analysis { facts, tables, .. } = content.analysis;
    if let Some(selection) = &facts.selection {
        add("missing", None, format!("Only a part of the run is selected: {}", visible_sentence(selection)));
    }
    for why in &facts.nothing_because {
        add("missing", None, format!("No row was recorded: {}", visible_sentence(why)));
    }
    if !facts.missing_ranks.is_empty() {
        let (list, are) = (ranks(&facts.missing_ranks), if facts.missing_ranks.len() == 1 { "is" } else { "are" });
        add("missing", None, format!("{} of the job {are} missing: {list}", plural(facts.missing_ranks.len(), "rank")));
    }
    for row in tables.omissions.iter().take(limits.omissions) {
        add(omission_kind(row), None, visible_sentence(&omission(row)));
    }
    let rest = tables.omissions.get(limits.omissions..).unwrap_or_default();
    if let Some(worst) = rest.iter().min_by_key(|row| row.kind.known()) {
        let more = format!("{} not shown; the table omissions has them all", plural(rest.len(), "more omission"));
        add(omission_kind(worst), None, more);
    }
}

fn undecided(content: &PageContent<'_>, add: &mut impl FnMut(&'static str, Option<&'static str>, String)) {
    let tables = &content.analysis.tables;
    let undecided: Vec<i32> =
        tables.stragglers.iter().filter(|s| s.verdict == Verdict::Undecided).map(|s| s.rank).collect();
    if !undecided.is_empty() {
        add("undecided", Some("steps"), format!("It is undecided whether ranks {} slow the others", ranks(&undecided)));
    }
    let rows = &tables.collective_instances;
    let incomplete = rows.iter().filter(|i| !i.complete).count();
    if incomplete > 0 {
        let text = "incomplete: skew is a lower bound, transfer time and bandwidth are unknown";
        add("missing", Some("collectives"), format!("{} {text}", plural(incomplete, "collective")));
    }
    let disagree = rows.iter().filter(|i| i.clocks_disagree).count();
    if disagree > 0 {
        let text = "waits by clocks and waits by durations alone differ by more than the clock error, so ranks did not leave together";
        add("undecided", Some("skew"), format!("{}: {text}", plural(disagree, "collective")));
    }
    let violations: i64 = tables.clock_fit.iter().map(|c| c.violations).sum();
    if violations > 0 {
        let text = "a rank left before another rank entered, by more than both bounds";
        add(
            "undecided",
            Some("clocks"),
            format!("The clocks contradict the order of events in {violations} collectives: {text}"),
        );
    }
}

/// The findings, those with the largest predicted saving first, each with a link to its evidence.
pub(super) fn findings(analysis: &Analysis, sections: &[Section]) -> Vec<FindingView> {
    let view = |row: &trace::FindingRow| {
        let of_table = evidence(&row.evidence_table);
        let is_drawn = sections.iter().any(|section| section.id == of_table && section.drawn);
        let link = if is_drawn { of_table } else { "left-out" };
        let title = sections.iter().find(|s| s.id == link).map_or("What the numbers do not cover", |s| s.title);
        FindingView {
            severity: row.severity.to_string(),
            saving: analysis.saving(row),
            title: visible_sentence(&row.title),
            evidence: visible_sentence(&row.evidence),
            suggestion: visible_sentence(&row.suggestion),
            link,
            link_title: title.to_string(),
        }
    };
    let mut rows: Vec<&trace::FindingRow> = analysis.tables.findings.iter().collect();
    rows.sort_by_key(|row| std::cmp::Reverse(row.saving_ns));
    rows.into_iter().map(view).collect()
}

/// The section that shows a table.
fn evidence(table: &str) -> &'static str {
    match table {
        "stragglers" | "step_breakdown" => "steps",
        "collective_waits" => "lateness",
        "bucket_timing" => "buckets",
        "collective_instances" => "skew",
        "clock_fit" => "clocks",
        "kernel_stats" => "kernels",
        "op_stats" => "operators",
        "module_stats" => "modules",
        "idle_breakdown" => "idle",
        "memory_peaks" | "memory_curve" | "memory_growth" | "memory_at_peak" => "memory",
        "counters" | "omissions" => "left-out",
        _ => "tables",
    }
}

/// The ranks whose places are listed; others are counted.
const PLACES: usize = 4;

/// The lines below the title of the verdict: machine, cost, location, action.
pub(super) fn answers(analysis: &Analysis) -> Vec<(&'static str, String)> {
    let v = &analysis.verdict;
    let machine = match v.kind {
        VerdictKind::Cause | VerdictKind::Hung => places(analysis, &v.causes),
        VerdictKind::Undecided => places(analysis, &v.suspects),
        VerdictKind::Balanced => Some("none: no rank slows the others".into()),
        VerdictKind::Nothing if analysis.facts.ranks.len() == 1 => places(analysis, &analysis.facts.ranks),
        VerdictKind::Nothing => None,
    };
    let top = analysis.tables.findings.iter().max_by_key(|row| row.saving_ns);
    let of_finding = top.filter(|_| v.kind == VerdictKind::Balanced);
    let of_finding = of_finding.map(|row| format!("nothing about a single rank; the largest finding: {}", row.title));
    let action = v.action.clone().or(of_finding);
    let lines = [
        ("machine", machine),
        ("cost", v.cost.clone()),
        ("where", v.location.clone()),
        ("what to do", action),
        ("recorded in", file_of(analysis)),
    ];
    lines.into_iter().filter_map(|(name, text)| Some((name, visible_sentence(&text?)))).collect()
}

/// The file of the rank that the page is about.
fn file_of(analysis: &Analysis) -> Option<String> {
    let v = &analysis.verdict;
    let rank = match v.kind {
        VerdictKind::Cause | VerdictKind::Undecided => v.rank,
        VerdictKind::Balanced | VerdictKind::Hung => None,
        VerdictKind::Nothing => analysis.facts.ranks.first().copied().filter(|_| analysis.facts.ranks.len() == 1),
    };
    analysis.identity(rank?)?.file.clone()
}

/// Where ranks ran, in words; `None` without ranks.
fn places(analysis: &Analysis, of: &[i32]) -> Option<String> {
    let place = |rank: &i32| {
        let identity = analysis.identity(*rank).cloned().map(|identity| RankIdentity { file: None, ..identity });
        let words = identity.map(|identity| identity.words()).unwrap_or_default();
        let host = analysis.identity(*rank).and_then(|identity| identity.host.as_ref());
        let known = match (words.is_empty(), host) {
            (true, _) => "not recorded".to_string(),
            (_, Some(_)) => format!("host {}", words.join(" · ")),
            (_, None) => format!("host not recorded · {}", words.join(" · ")),
        };
        if of.len() > 1 { format!("rank {rank}: {known}") } else { known }
    };
    let mut places: Vec<String> = of.iter().take(PLACES).map(place).collect();
    if of.len() > PLACES {
        places.push(plural(of.len() - PLACES, "more rank"));
    }
    (!places.is_empty()).then(|| places.join("; "))
}

/// Beside the title: the verdict as a sentence, where no lines say it.
pub(super) fn headline(analysis: &Analysis) -> Option<String> {
    analysis.verdict.cost.is_none().then(|| visible_sentence(&analysis.verdict.sentence))
}

/// Three numbers of the verdict, each with its name.
pub(super) fn tiles(analysis: &Analysis) -> Vec<(String, String)> {
    let v = &analysis.verdict;
    let mut tiles = Vec::new();
    let mut tile = |name: &str, value: Option<String>| tiles.extend(value.map(|value| (name.to_string(), value)));
    if v.cost.is_none() {
        tile("median step", v.step_ns.map(ns));
        let steps = plural(analysis.facts.steps.len(), "step");
        let (sure, value) = match v.kind {
            VerdictKind::Balanced => (format!("how sure: over {steps}, no rank stands out"), "none found".into()),
            VerdictKind::Undecided => (format!("how sure: over {steps}"), "not certain".into()),
            VerdictKind::Hung => ("a collective did not end".into(), plural(v.causes.len(), "missing rank")),
            _ => (format!("how sure: over {steps}; there is no rank to compare with"), "not compared".into()),
        };
        tile(&sure, Some(value).filter(|_| analysis.facts.events > 0));
        return tiles;
    }
    let name = match v.kind {
        VerdictKind::Cause if v.delayed_steps.is_some() => "mean delay of a step",
        VerdictKind::Cause => "delay of every step",
        _ => "possible delay of every step",
    };
    tile(name, v.step_delay_ns.map(ns));
    let share = |delay: i64| v.step_ns.filter(|s| *s > 0).map(|s| format!("{:.0} %", 100.0 * delay as f64 / s as f64));
    tile("share of a step", v.step_delay_ns.and_then(share));
    let shown = v
        .persistence
        .map(|share| format!("{:.0} of {}", share * f64::from(v.steps), plural(v.steps.max(0) as usize, "step")));
    let (sure, seen) = match v.kind {
        VerdictKind::Cause => ("certain", "seen in"),
        _ => ("not certain", "perhaps in"),
    };
    tile(&shown.map_or("how sure".into(), |shown| format!("how sure: {seen} {shown}")), Some(sure.into()));
    tiles
}
