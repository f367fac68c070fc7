//! The first lines: which rank, what it costs, where, what to do, and one line a rank.

use std::collections::BTreeMap;

use anstyle::{AnsiColor, Style};
use trace::{FindingRow, LostPart, OmissionKind, OmissionRow, Severity};

use crate::grid::Grid;
use crate::summary::style::{TerminalStyle, bias, not_shown, paint, sentence, verdict_style};
use model::analysis::{Analysis, RankIdentity, VerdictKind};
use model::parts_of_step::PartOfStep;
use model::rank_order::by_prominence;
use model::units::{ns, omission as omission_line, omission_kind, plural, ranks, ranks_named, shorten, wrap};

/// The most lines of the summary, unless `--top` or `--full` asks for more: those of a small terminal.
const LINES: usize = 24;
/// Lines of the table that are not rows: the blank line, the title, the columns, and the number of rows that are not shown.
const TABLE_LINES: usize = 4;
/// At least so many ranks are shown, if need be beyond [`LINES`].
const LEAST_ROWS: usize = 2;
/// Columns before the text of a labelled line.
const LABEL: usize = 10;
/// The most letters of a file's name; JSON and the report have all.
const FILE: usize = 40;
/// Parts of a step with a smaller share are shown together.
const LEAST_SHARE: f64 = 0.005;
/// Parts of a step that have a line.
const MOST_PARTS: usize = 5;
/// Findings that are named beside the verdict.
const ALSO: usize = 2;

/// Prints the lines.
pub(super) fn brief(text: &mut String, analysis: &Analysis, terminal: &TerminalStyle) {
    let head = head(analysis, terminal);
    let foot = foot(analysis, terminal);
    let all = sums(analysis).len();
    let room = LINES.saturating_sub(head.lines().count() + foot.lines().count() + TABLE_LINES);
    let mut also = also(analysis, terminal);
    let lines = |also: &[String]| also.iter().map(|text| text.lines().count()).sum::<usize>();
    // A rank that can be shown is worth more than a second finding, and the named ranks more than any.
    while !also.is_empty() && room < lines(&also) + if also.len() > 1 { all } else { all.min(LEAST_ROWS) } {
        also.pop();
    }
    let rows = terminal.top.unwrap_or(room.saturating_sub(lines(&also))).max(LEAST_ROWS);
    text.push_str(&head);
    text.push_str(&also.concat());
    steps(text, analysis, rows, terminal);
    text.push_str(&foot);
}

fn head(analysis: &Analysis, terminal: &TerminalStyle) -> String {
    let verdict = &analysis.verdict;
    let colour = match verdict.kind {
        VerdictKind::Cause | VerdictKind::Hung => AnsiColor::Red,
        VerdictKind::Balanced => AnsiColor::Green,
        VerdictKind::Nothing if analysis.headlines_finding() && analysis.tables.findings.is_empty() => AnsiColor::Green,
        VerdictKind::Undecided | VerdictKind::Jitter | VerdictKind::Lost | VerdictKind::Nothing => AnsiColor::Yellow,
    };
    let mut rest = match (&verdict.cost, verdict.rank.and_then(|rank| analysis.identity(rank))) {
        (Some(_), Some(identity)) => place(identity),
        (Some(_), None) => String::new(),
        (None, _) => verdict.sentence.clone(),
    };
    if verdict.causes.len().max(verdict.suspects.len()) > 1 && !rest.is_empty() {
        rest = format!("rank {}: {rest}", verdict.rank.unwrap_or_default());
    }
    let mut text = String::new();
    let style = Style::new().bold().fg_color(Some(colour.into()));
    let separator = if rest.is_empty() { "" } else { " — " };
    for (i, line) in wrap(&format!("{}{separator}{rest}", analysis.title()), terminal.width).iter().enumerate() {
        let is_first = i == 0 && line.starts_with(analysis.title());
        let line = if is_first {
            line.replacen(analysis.title(), &paint(analysis.title(), style, terminal), 1)
        } else {
            line.clone()
        };
        text.push_str(&line);
        text.push('\n');
    }
    if let [only] = &analysis.facts.identities[..] {
        labelled(&mut text, "rank", &format!("{}: {}", only.rank, place(only)), terminal);
    }
    let first = analysis.other_findings().filter(|finding| finding.severity == Severity::Critical);
    let mut first: Vec<String> = first.map(|finding| format!("{} → {}", finding.title, finding.suggestion)).collect();
    let cut = &analysis.facts.recording_was_cut;
    if first.is_empty() && !cut.is_empty() {
        first.push(format!("the recording was cut on {}: these numbers are of the part before", ranks_named(cut)));
    }
    first.iter().for_each(|words| labelled(&mut text, "first", words, terminal));
    let lines = [("cost", &verdict.cost), ("where", &verdict.location), ("do", &verdict.action)];
    for (label, words) in lines.into_iter().filter_map(|(label, words)| Some((label, words.as_ref()?))) {
        labelled(&mut text, label, words, terminal);
    }
    parts(&mut text, analysis, terminal);
    text
}

/// Adds the account of lost time: a line for each part of a step that can be seen. The largest come first after the work.
fn parts(text: &mut String, analysis: &Analysis, terminal: &TerminalStyle) {
    let mut parts = analysis.parts_of_step();
    let is_seen = |part: &PartOfStep| part.share.abs() >= LEAST_SHARE;
    parts.sort_by_key(|part| (!is_seen(part), std::cmp::Reverse(part.ns)));
    let seen = parts.iter().filter(|part| is_seen(part)).count().min(MOST_PARTS);
    let (seen, unseen) = parts.split_at(seen);
    let rest: i64 = unseen.iter().map(|part| part.ns).sum();
    let share = unseen.iter().map(|part| part.share).sum();
    let rest = PartOfStep { part: LostPart::Dependencies, words: "all else".into(), ns: rest, share };
    for (i, part) in seen.iter().chain((rest.ns != 0).then_some(&rest)).enumerate() {
        let label = if i == 0 { "step" } else { "" };
        let label = paint(&format!("  {label:<8}"), Style::new().dimmed(), terminal);
        text.push_str(&format!("{label}{:>8} {:>4.0} %  {}\n", ns(part.ns), 100.0 * part.share, part.words));
    }
    if let Some((between_ns, share)) = analysis.between_steps().filter(|_| !parts.is_empty()) {
        let words = format!("{}, {:.0} % of the recording, lie between steps", ns(between_ns), 100.0 * share);
        labelled(text, "beside", &words, terminal);
    }
}

/// Where a rank ran, with a short name of its file.
fn place(identity: &RankIdentity) -> String {
    let file = identity.file.as_ref().map(|file| shorten(file, FILE));
    RankIdentity { file, ..identity.clone() }.words().join(" · ")
}

/// Adds a line with a label, wrapped.
fn labelled(text: &mut String, label: &str, words: &str, terminal: &TerminalStyle) {
    for (i, line) in wrap(words, terminal.width.saturating_sub(LABEL)).iter().enumerate() {
        let label =
            if i == 0 { paint(&format!("  {label:<8}"), Style::new().dimmed(), terminal) } else { " ".repeat(LABEL) };
        text.push_str(&format!("{label}{line}\n"));
    }
}

/// The next findings. Critical ones come before the verdict.
fn also(analysis: &Analysis, terminal: &TerminalStyle) -> Vec<String> {
    let others = analysis.other_findings().filter(|finding| finding.severity != Severity::Critical);
    let line = |(i, finding): (usize, &FindingRow)| {
        let mut text = String::new();
        labelled(&mut text, if i == 0 { "also" } else { "" }, &trace::terminal::line(&finding.title), terminal);
        text
    };
    others.take(ALSO).enumerate().map(line).collect()
}

/// Sums over the steps of one rank and device.
#[derive(Clone, Copy, Default)]
pub(super) struct Sums {
    pub(super) steps: i64,
    pub(super) wall: i64,
    pub(super) compute: i64,
    pub(super) overlap: i64,
    pub(super) exposed: i64,
    /// Part of `exposed`; `None` if it is unknown in a step.
    pub(super) waiting: Option<i64>,
    pub(super) memory: i64,
    pub(super) idle: i64,
    /// Part of `idle`.
    pub(super) overhead: i64,
}

impl Sums {
    /// The mean over the steps.
    fn mean(&self, sum: i64) -> Option<i64> {
        sum.checked_div(self.steps)
    }

    fn transfer(&self) -> Option<i64> {
        self.waiting.map(|waiting| self.exposed - waiting)
    }
}

/// The sums of each rank and device over its steps.
pub(super) fn sums(analysis: &Analysis) -> BTreeMap<(i32, Option<i64>), Sums> {
    let mut sums: BTreeMap<(i32, Option<i64>), Sums> = BTreeMap::new();
    for row in analysis.tables.step_breakdown.iter().filter(|r| r.step.is_some_and(|s| s >= 0)) {
        let start = || Sums { waiting: Some(0), ..Sums::default() };
        let m = sums.entry((row.rank, row.device_id)).or_insert_with(start);
        m.steps += 1;
        m.wall += row.wall_ns;
        m.compute += row.compute_ns;
        m.overlap += row.overlap_ns;
        m.exposed += row.exposed_comm_ns;
        let waiting = if row.exposed_comm_ns == 0 { Some(0) } else { row.exposed_wait_ns };
        m.waiting = m.waiting.zip(waiting).map(|(sum, ns)| sum + ns);
        m.memory += row.memory_ns;
        m.idle += row.idle_ns;
        m.overhead += row.overhead_ns;
    }
    sums
}

/// Prints the parts of a step, one line a rank and device: first the ranks that the verdict names.
pub(super) fn steps(text: &mut String, analysis: &Analysis, most: usize, terminal: &TerminalStyle) {
    let sums = sums(analysis);
    if sums.is_empty() {
        return;
    }
    let prominent: Vec<i32> = by_prominence(&analysis.tables.stragglers)
        .iter()
        .filter(|row| row.stands_on.is_some())
        .map(|row| row.rank)
        .collect();
    let mut rows: Vec<((i32, Option<i64>), Sums)> = sums.iter().map(|(key, sums)| (*key, *sums)).collect();
    rows.sort_by_key(|((rank, device), _)| {
        (prominent.iter().position(|r| r == rank).unwrap_or(prominent.len()), *rank, *device)
    });
    rows.truncate(most);
    text.push('\n');
    let title = "Step, mean over steps, in ms; the parts sum to the step";
    let note = if terminal.width > 120 { ". A dot is idle time" } else { "" };
    text.push_str(&format!("{}{note}\n", paint("Step", Style::new().bold(), terminal) + &title[4..]));
    let times = |f: &dyn Fn(&Sums) -> Option<i64>| {
        rows.iter().map(|(_, m)| f(m).and_then(|sum| m.mean(sum))).collect::<Vec<_>>()
    };
    let largest = times(&|m| Some(m.wall)).iter().flatten().map(|ns| ns.unsigned_abs()).max().unwrap_or(0);
    let mut grid = Grid::new().number("rank", 0, rows.iter().map(|((rank, _), _)| rank.to_string()).collect());
    if rows.iter().any(|((_, device), _)| device.is_some()) {
        let device = |d: Option<i64>| d.map_or("–".into(), |d| d.to_string());
        grid = grid.number("GPU", 3, rows.iter().map(|((_, d), _)| device(*d)).collect());
    }
    let mut column = |title: &str, f: &dyn Fn(&Sums) -> Option<i64>| {
        grid = std::mem::take(&mut grid).milliseconds(title, 0, times(f), largest);
    };
    let is_split = rows.iter().any(|(_, m)| m.exposed > 0 && m.waiting.is_some());
    let is_whole = rows.iter().any(|(_, m)| m.waiting.is_none());
    let has_memory = rows.iter().any(|(_, m)| m.memory > 0);
    column("step", &|m| Some(m.wall));
    column("compute", &|m| Some(m.compute));
    column("overlap", &|m| Some(m.overlap));
    if is_whole {
        column("exposed", &|m| Some(m.exposed));
    }
    if is_split {
        column("waiting", &|m| m.waiting);
        column("transfer", &Sums::transfer);
    }
    if has_memory {
        column("copies", &|m| Some(m.memory));
    }
    column("idle", &|m| Some(m.idle));
    let letters = [
        "c=compute o=overlap",
        if is_whole { " x=exposed" } else { "" },
        if is_split { " w=waiting t=transfer" } else { "" },
        if has_memory { " m=copies" } else { "" },
    ]
    .concat();
    // The bar is left out unless the whole bar fits.
    if terminal.width >= grid.width() + 2 + BAR.max(letters.len()) {
        grid = grid.text(&letters, 1, rows.iter().map(|(_, m)| bar(m)).collect());
    }
    let styles = rows.iter().map(|((rank, _), _)| verdict_style(analysis, *rank)).collect();
    text.push_str(&grid.styled(styles).render(terminal.width, terminal.colour));
    not_shown(text, sums.len() - rows.len(), "rank", terminal);
}

/// Says how much of the idle time is the profiler's.
pub(super) fn overhead(text: &mut String, analysis: &Analysis, terminal: &TerminalStyle) {
    let pct = |m: &Sums| if m.wall > 0 { 100.0 * m.overhead as f64 / m.wall as f64 } else { 0.0 };
    let most_pct = sums(analysis).values().map(pct).fold(0.0, f64::max);
    if most_pct >= LEAST_OVERHEAD_PCT {
        let words = format!(
            "idle includes overhead of the profiler and the driver, up to {most_pct:.1} % of the steps of a device"
        );
        sentence(text, &words, terminal);
    }
}

/// Overhead below this share of the steps, in percent, would be printed as 0.0 %.
const LEAST_OVERHEAD_PCT: f64 = 0.05;

const BAR: usize = 32;

/// Draws the parts of a step as a bar.
fn bar(m: &Sums) -> String {
    let (waiting, transfer, exposed) = match m.waiting {
        Some(waiting) => (waiting, m.exposed - waiting, 0),
        None => (0, 0, m.exposed),
    };
    let parts = [
        ('c', m.compute),
        ('o', m.overlap),
        ('x', exposed),
        ('w', waiting),
        ('t', transfer),
        ('m', m.memory),
        ('.', m.idle),
    ];
    let mut text = String::new();
    let mut sum = 0_i64;
    for (letter, part) in parts {
        sum += part;
        let end = if m.wall > 0 { (BAR as f64 * sum as f64 / m.wall as f64).round() as usize } else { 0 };
        while text.len() < end.min(BAR) {
            text.push(letter);
        }
    }
    text
}

/// The extent of the input, what was left out, the error of the clocks, and where to see more.
fn foot(analysis: &Analysis, terminal: &TerminalStyle) -> String {
    let facts = &analysis.facts;
    let read = match facts.world_size {
        Some(world) if world as usize != facts.ranks.len() => format!("{} of {world} ranks", facts.ranks.len()),
        _ => plural(facts.ranks.len(), "rank"),
    };
    let mut parts = vec![read];
    if !facts.missing_ranks.is_empty() {
        let word = if facts.has_chosen_ranks() { "without" } else { "missing:" };
        parts[0].push_str(&format!(" ({word} {})", shorten(&ranks(&facts.missing_ranks), 40)));
    }
    if !facts.hosts.is_empty() {
        parts.push(plural(facts.hosts.len(), "host"));
    }
    parts.push(plural(facts.steps.len(), "step"));
    parts.extend(facts.selection.as_ref().map(|selection| format!("only {selection}")));
    parts.extend(clock_error(analysis));
    let of = |kind: &str| -> Vec<&OmissionRow> {
        analysis.tables.omissions.iter().filter(|omission| omission_kind(omission) == kind).collect()
    };
    let (lost, left_out) = (of("lost"), of("left out"));
    match left_out.len() {
        0 if lost.is_empty() => parts.push("nothing left out".into()),
        0 => {}
        n => parts.push(format!("{} left out", plural(n, "item"))),
    }
    let mut lines = Vec::new();
    if let Some(first) = lost.first() {
        let more = if lost.len() > 1 { format!(" (and {} more)", lost.len() - 1) } else { String::new() };
        lines.push(format!("LOST {}{more}", omission_line(first)));
    }
    for line in of("note").into_iter().chain(left_out).filter_map(assumed) {
        // Several ranks say the same.
        if !lines.contains(&line) {
            lines.push(line);
        }
    }
    lines.push(parts.join(" · "));
    if !terminal.full {
        lines.push(format!("More: --full, or rankscope report {} -o report.html", terminal.input));
    }
    let mut text = String::new();
    for line in lines.iter().flat_map(|line| wrap(line, terminal.width)) {
        text.push_str(&line);
        text.push('\n');
    }
    text
}

/// A note on which all numbers rest, so that it is on the first screen: where ranks come from, and which files are the job.
fn assumed(note: &OmissionRow) -> Option<String> {
    match (&*note.what, note.amount) {
        ("windows of the profiler", Some(count)) => {
            Some(format!("{count} recordings (windows of the profiler) are put together: {}", note.why))
        }
        ("marks of steps", _) => Some(format!("steps: {}", note.why)),
        ("ranks", _) if note.kind != OmissionKind::Note => None,
        ("ranks" | "ranks of processes" | "replicas" | "files without traces", _) => Some(omission_line(note)),
        _ => None,
    }
}

/// The largest error of a clock in words; `None` for a single rank.
fn clock_error(analysis: &Analysis) -> Option<String> {
    let fits = &analysis.tables.clock_fit;
    if analysis.facts.ranks.len() < 2 || fits.is_empty() {
        return None;
    }
    let errors: Option<Vec<i64>> = fits.iter().map(|fit| fit.error_ns).collect();
    Some(match errors.and_then(|errors| errors.into_iter().max()) {
        Some(0) => "one clock".into(),
        Some(error) => format!("clocks within {} (95 %){}", ns(error), bias(fits, error)),
        None => "clock error unknown".into(),
    })
}
