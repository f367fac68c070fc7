//! What the page says around its pictures: sections, what each lacks, and what the numbers do not cover.

use trace::ClockFitRow;

use super::names::{visible_name, visible_sentence};
use super::size::{Limits, Notes};
use super::tables::Roofline;
use crate::analysis::{Analysis, VerdictKind};
use crate::render::text::{count, ns, omission, plural, ranks};

/// A section with a picture or a table, or with what it lacks to have one.
#[derive(Debug, PartialEq)]
pub(super) struct Section {
    pub(super) id: &'static str,
    pub(super) title: &'static str,
    /// What it shows, and how to read it.
    pub(super) lead: String,
    /// Which data it lacks.
    pub(super) missing: Option<String>,
    /// Whether there is something to draw all the same.
    pub(super) drawn: bool,
    /// What was summarised in it.
    pub(super) notes: Vec<String>,
}

/// One thing that the numbers do not cover.
#[derive(Debug, PartialEq)]
pub(super) struct Uncovered {
    /// `lost`, `missing`, `undecided` or `summarised`.
    pub(super) kind: &'static str,
    pub(super) text: String,
    /// The section that it concerns.
    pub(super) section: Option<&'static str>,
    /// Its title.
    pub(super) section_title: &'static str,
}

/// A finding with the section that holds its evidence.
#[derive(Debug)]
pub(super) struct FindingView {
    pub(super) severity: String,
    pub(super) title: String,
    pub(super) evidence: String,
    pub(super) suggestion: String,
    pub(super) link: &'static str,
    pub(super) link_title: String,
}

/// What only the building of the page knows of its sections.
#[derive(Debug)]
pub(super) struct Found<'a> {
    pub(super) analysis: &'a Analysis,
    pub(super) roofline: &'a Roofline,
    pub(super) timeline: bool,
    pub(super) timeline_step: Option<i32>,
    pub(super) notes: &'a Notes,
}

/// All sections, in the order of the page.
pub(super) fn sections(found: &Found<'_>) -> Vec<Section> {
    let first = [steps(found), lateness(found), timeline(found), overlap(found), buckets(found), collectives(found)];
    let second =
        [skew(found), clocks(found), kernels(found), operators(found), idle(found), memory(found), roofline(found)];
    let mut sections: Vec<Section> = first.into_iter().chain(second).collect();
    sections.push(section("tables", "More tables", "What the sections above leave out; open one to see it.", None));
    for section in &mut sections {
        section.notes = found.notes.of(section.id).map(String::from).collect();
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
        notes: Vec::new(),
    }
}

fn steps(found: &Found<'_>) -> Section {
    let rows = &found.analysis.tables.step_breakdown;
    let none = !rows.iter().any(|r| r.step.is_some_and(|s| s >= 0));
    section(
        "steps",
        "Step time by rank",
        "Where each rank's step goes. The five parts sum to its length; communication that no compute hides includes waiting \
         for a late rank, so long exposed parts are often another rank's doing.",
        none.then_some("No active step was recorded; `--step-marker REGEX` makes ranges of the host steps."),
    )
}

fn lateness(found: &Found<'_>) -> Section {
    let tables = &found.analysis.tables;
    let missing = if tables.collective_instances.is_empty() {
        Some("No collective was recorded: nothing says when ranks were ready for each other.")
    } else if found.analysis.facts.ranks.len() < 2 {
        Some("One rank only: there is nobody to be later than.")
    } else if !tables.collective_instances.iter().any(|i| i.step.is_some_and(|s| s >= 0)) {
        Some("No collective lies in an active step.")
    } else if tables.collective_waits.is_empty() {
        Some("No collective was seen by several ranks.")
    } else {
        None
    };
    section(
        "lateness",
        "Lateness by rank and step",
        "Arrival: how far behind the first rank it came, on one clock. Own excess: its own work between collectives above the \
         others', without any clock. Suffered wait: how long it waited for others. A cause is dark in own excess, its \
         victims in suffered wait.",
        missing,
    )
}

fn timeline(found: &Found<'_>) -> Section {
    let lead = match found.timeline_step {
        Some(step) => format!(
            "Step {step} of all ranks on one clock (the one of median length; `--timeline STEP` chooses another). Three lanes \
             a rank: named ranges of the host, compute, communication."
        ),
        None => "One step of all ranks on one clock.".to_string(),
    };
    let missing = (!found.timeline).then_some("No rank has a row in the step that would be drawn.");
    section("timeline", "One step, all ranks", lead, missing)
}

fn overlap(found: &Found<'_>) -> Section {
    let rows = || found.analysis.tables.step_breakdown.iter().filter(|r| r.step.is_some_and(|s| s >= 0));
    let none = rows().all(|r| r.comm_total_ns == 0);
    section(
        "overlap",
        "Overlap",
        "How much of the communication runs under compute (100·|K ∩ C| / |C|), by rank and by step, and what stays exposed.",
        none.then_some("No rank communicates in an active step."),
    )
}

fn buckets(found: &Found<'_>) -> Section {
    section(
        "buckets",
        "Gradient buckets",
        "The way of each bucket: its last gradient is ready, it is handed over, it waits for its turn, then for the last rank, \
         then data moves. The line below a bar is the part that no compute hides.",
        found.analysis.tables.bucket_timing.is_empty().then_some(
            "No gradient bucket was recognised: no collective of a rank carries a bucket's number. rank-agent records them.",
        ),
    )
}

fn collectives(found: &Found<'_>) -> Section {
    let rows = &found.analysis.tables.collective_instances;
    let missing = if rows.is_empty() {
        Some("No collective was recorded.")
    } else if rows.iter().all(|r| r.bytes.is_none()) {
        Some("No collective says how many bytes it moves, so there is no bandwidth; durations and skew are below.")
    } else if rows.iter().all(|r| r.busbw_gbs.is_none() && r.busbw_incl_wait_gbs.is_none()) {
        Some(
            "No bandwidth: every collective lacks ranks, is one-sided, or moves its data in less time than the clocks' error, \
             if that is known.",
        )
    } else {
        None
    };
    let lead = "Bandwidth against size. Algorithm bandwidth is bytes over the time from the last arrival to the end; bus \
                bandwidth is that times the operation's factor (nccl-tests). With waits: over the ranks' whole durations.";
    Section { drawn: !rows.is_empty(), ..section("collectives", "Collectives", lead, missing) }
}

fn skew(found: &Found<'_>) -> Section {
    let rows = &found.analysis.tables.collective_instances;
    let several = rows.iter().any(|r| r.ranks_seen > 1);
    let unknown = several && rows.iter().filter(|r| r.ranks_seen > 1).any(|r| r.error_ns.is_none());
    let missing = if !several {
        Some("No collective was seen by several ranks.")
    } else if unknown {
        Some("The clocks' error is unknown for some collectives: they have no band, and their skew may be anything.")
    } else {
        None
    };
    let lead = "Last arrival minus first, for every collective. Inside the band, the clocks' error, an order of arrival \
                means nothing.";
    Section { drawn: several, ..section("skew", "Arrival skew", lead, missing) }
}

fn clocks(found: &Found<'_>) -> Section {
    let rows = &found.analysis.tables.clock_fit;
    let lead = match rows.first() {
        Some(first) => format!(
            "Global time is the clock of rank {}. Error: 95 % of the estimate; bound: guaranteed. Both over the whole recording.",
            first.reference_rank
        ),
        None => "How each rank's clock maps to global time.".to_string(),
    };
    let lacking = |f: fn(&ClockFitRow) -> bool| {
        let mut list: Vec<i32> = rows.iter().filter(|r| f(r)).map(|r| r.rank).collect();
        list.dedup();
        list
    };
    let no_error = lacking(|r| r.error_ns.is_none());
    let missing = if rows.is_empty() {
        Some("No clock was fitted.".to_string())
    } else if found.analysis.facts.ranks.len() < 2 {
        Some("One rank only: there is nothing to align.".to_string())
    } else if !no_error.is_empty() {
        Some(format!("Error unknown for ranks {}: nothing measured their clocks.", ranks(&no_error)))
    } else {
        None
    };
    Section { drawn: !rows.is_empty(), ..section("clocks", "Clocks", lead, missing.as_deref()) }
}

fn kernels(found: &Found<'_>) -> Section {
    section(
        "kernels",
        "Kernels",
        "Kernels, copies and fills by name, all ranks together. Slowest: the rank where a call takes longest, against the \
         median device.",
        found
            .analysis
            .tables
            .kernel_stats
            .is_empty()
            .then_some("No row of a device was recorded: the run used none, or its profiler recorded the CPU only."),
    )
}

fn operators(found: &Found<'_>) -> Section {
    section(
        "operators",
        "Operators and ranges",
        "Operators and named ranges of the host, all ranks together. Self is total less the time of what runs inside.",
        found.analysis.tables.op_stats.is_empty().then_some("No operator or range of the host was recorded."),
    )
}

fn idle(found: &Found<'_>) -> Section {
    section(
        "idle",
        "Idle gaps of devices",
        "Why streams were idle between two of their rows (HTA's categories): host: the next row was launched too late; kernel: \
         gaps below 30 µs between rows that were launched in time; other: waiting for another stream, mostly.",
        found.analysis.tables.idle_breakdown.is_empty().then_some(if found.analysis.facts.has_device_rows {
            "No stream has a gap between two rows."
        } else {
            "No row of a device was recorded."
        }),
    )
}

fn memory(found: &Found<'_>) -> Section {
    section(
        "memory",
        "Memory",
        "In use over time: in each span, the moment when most was in use.",
        found
            .analysis
            .tables
            .memory_curve
            .is_empty()
            .then_some("No allocation was recorded; torch.profiler does with `profile_memory=True`."),
    )
}

fn roofline(found: &Found<'_>) -> Section {
    let lead = "FLOP/s against arithmetic intensity (FLOPs by byte), with the limits of the devices. Below the slope, memory is \
                the limit; below the flat roof, arithmetic.";
    let missing = found.roofline.missing();
    Section { drawn: !found.roofline.is_empty(), ..section("roofline", "Roofline", lead, missing.as_deref()) }
}

/// Everything that the numbers do not cover: what was lost, what is missing, what is undecided, what is summarised.
pub(super) fn uncovered(found: &Found<'_>, sections: &[Section], limits: &Limits) -> Vec<Uncovered> {
    let mut all = Vec::new();
    let mut say = |kind, section: Option<&'static str>, text: String| {
        let title = section.and_then(|id| sections.iter().find(|s| s.id == id)).map_or("", |s| s.title);
        all.push(Uncovered { kind, text, section, section_title: title });
    };
    lost(found, limits, &mut say);
    undecided(found, &mut say);
    for (section, text) in found.notes.all() {
        say("summarised", Some(*section), text.clone());
    }
    for section in sections {
        if let Some(missing) = &section.missing {
            say("missing", Some(section.id), missing.clone());
        }
    }
    all
}

fn lost(found: &Found<'_>, limits: &Limits, say: &mut impl FnMut(&'static str, Option<&'static str>, String)) {
    let Analysis { facts, tables, .. } = found.analysis;
    if let Some(selection) = &facts.selection {
        say("missing", None, format!("Only a part of the run was asked for: {}", visible_sentence(selection)));
    }
    for why in &facts.nothing_because {
        say("missing", None, format!("No row was recorded: {}", visible_sentence(why)));
    }
    if !facts.missing_ranks.is_empty() {
        let list = ranks(&facts.missing_ranks);
        say("missing", None, format!("{} of the job not here: {list}", plural(facts.missing_ranks.len(), "rank")));
    }
    if facts.dropped > 0 {
        let (dropped, recorded) = (facts.dropped as u64, u64::try_from(facts.recorded).unwrap_or(0));
        say("lost", None, format!("{} rows were lost while recording, {} kept", count(dropped), count(recorded)));
    }
    for row in tables.omissions.iter().take(limits.omissions) {
        say("lost", None, visible_sentence(&omission(row)));
    }
    let rest = tables.omissions.len().saturating_sub(limits.omissions);
    if rest > 0 {
        let more = format!("{} more; analysis/omissions.parquet has them all", plural(rest, "omission"));
        say("lost", None, more);
    }
}

fn undecided(found: &Found<'_>, say: &mut impl FnMut(&'static str, Option<&'static str>, String)) {
    let tables = &found.analysis.tables;
    let undecided: Vec<i32> = tables.stragglers.iter().filter(|s| &*s.verdict == "undecided").map(|s| s.rank).collect();
    if !undecided.is_empty() {
        say("undecided", Some("steps"), format!("Whether ranks {} slow the others", ranks(&undecided)));
    }
    let rows = &tables.collective_instances;
    let incomplete = rows.iter().filter(|i| !i.complete).count();
    if incomplete > 0 {
        let text = "not complete: skew is a lower bound there, transfer and bandwidth unknown";
        say("missing", Some("collectives"), format!("{} {text}", plural(incomplete, "collective")));
    }
    let disagree = rows.iter().filter(|i| i.clocks_disagree).count();
    if disagree > 0 {
        let text = "waits by the clocks and by durations alone differ by more than the clocks' error: ranks did not leave together";
        say("undecided", Some("skew"), format!("{}: {text}", plural(disagree, "collective")));
    }
    let violations: i64 = tables.clock_fit.iter().map(|c| c.violations).sum();
    if violations > 0 {
        let text = "a rank left before another had entered, beyond both bounds";
        say("undecided", Some("clocks"), format!("Clocks contradict {violations} collectives: {text}"));
    }
}

/// The findings, each with where its evidence is.
pub(super) fn findings(analysis: &Analysis, sections: &[Section]) -> Vec<FindingView> {
    let view = |row: &trace::FindingRow| {
        let link = evidence(&row.evidence_table);
        let title = sections.iter().find(|s| s.id == link).map_or("What the numbers do not cover", |s| s.title);
        FindingView {
            severity: row.severity.to_string(),
            title: visible_sentence(&row.title),
            evidence: visible_sentence(&row.evidence),
            suggestion: visible_sentence(&row.suggestion),
            link,
            link_title: title.to_string(),
        }
    };
    analysis.tables.findings.iter().map(view).collect()
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
        "idle_breakdown" => "idle",
        "memory_peaks" | "memory_curve" => "memory",
        "counters" | "omissions" => "left-out",
        _ => "tables",
    }
}

/// The verdict's word, as the terminal's summary has it.
pub(super) fn word(kind: VerdictKind) -> &'static str {
    match kind {
        VerdictKind::Cause => "Cause found",
        VerdictKind::Undecided => "Undecided",
        VerdictKind::Balanced => "Balanced",
        VerdictKind::Nothing => "No verdict",
    }
}

/// The verdict's numbers, each with its name.
pub(super) fn tiles(analysis: &Analysis) -> Vec<(&'static str, String)> {
    let v = &analysis.verdict;
    let mut tiles = Vec::new();
    let mut tile = |name, value: Option<String>| tiles.extend(value.map(|value| (name, value)));
    let who = match v.kind {
        VerdictKind::Cause => "rank that slows the others",
        VerdictKind::Undecided => "rank that may",
        VerdictKind::Balanced | VerdictKind::Nothing => "rank with the most own work",
    };
    tile(who, v.rank.map(|r| r.to_string()));
    tile("delay of every step", v.step_delay_ns.filter(|_| v.kind == VerdictKind::Cause).map(ns));
    let share = |delay: i64| v.step_ns.filter(|s| *s > 0).map(|s| format!("{:.0} %", 100.0 * delay as f64 / s as f64));
    tile("of a step", v.step_delay_ns.filter(|_| v.kind == VerdictKind::Cause).and_then(share));
    tile("own excess a step", v.own_excess_ns.map(ns));
    let interval = v.own_excess_low_ns.zip(v.own_excess_high_ns);
    tile("its 95 % interval", interval.map(|(low, high)| format!("{} to {}", ns(low), ns(high))));
    tile("z", v.z.filter(|z| z.is_finite()).map(|z| if z > 100.0 { "above 100".into() } else { format!("{z:.1}") }));
    tile("of steps show it", v.persistence.map(|p| format!("{:.0} %", 100.0 * p)));
    tile("median step", v.step_ns.map(ns));
    tiles
}

/// What was analysed.
pub(super) fn facts(analysis: &Analysis) -> Vec<(&'static str, String)> {
    let facts = &analysis.facts;
    let mut list = Vec::new();
    if !facts.run_id.is_empty() {
        list.push(("run", visible_name(&facts.run_id)));
    }
    if !facts.tool.is_empty() {
        list.push(("written by", visible_name(&facts.tool)));
    }
    let read = match facts.world_size {
        Some(world) if world as usize != facts.ranks.len() => format!("{} of {world}", facts.ranks.len()),
        _ => facts.ranks.len().to_string(),
    };
    list.push(("ranks", read));
    let hosts: Vec<String> = facts.hosts.iter().take(4).map(|h| visible_name(h)).collect();
    let more = facts.hosts.len().saturating_sub(hosts.len());
    if !hosts.is_empty() {
        let more = if more > 0 { format!(" and {more} more") } else { String::new() };
        list.push(("hosts", format!("{}{more}", hosts.join(", "))));
    }
    list.push(("steps", if facts.steps.is_empty() { "none".into() } else { ranks(&facts.steps) }));
    list.push(("events", count(facts.events)));
    list.push(("collectives", count(analysis.tables.collective_instances.len() as u64)));
    if let Some(selection) = &facts.selection {
        list.push(("only", visible_sentence(selection)));
    }
    list
}
