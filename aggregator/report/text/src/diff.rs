//! Prints a comparison of two runs on a terminal or as JSON.
//!
//! ```text
//! {
//!   "format": "rankscope.diff",
//!   "version": 2,                      raised if a key is removed or changes its meaning; new keys may appear
//!   "a", "b":  [ the runs: path, ranks, steps, length of a step ],
//!   "method":  { the statistics behind the judgement },
//!   "verdict": { "changed", "sentence", "row", "detectable_step_pct" },
//!   "differences": [ { "what", "a", "b" }, … ],  "not_compared": [ sentences ],
//!   "rows":    [ { "key", "place", "a_ns", "b_ns", "change": { "delta_ns", "low_ns", "high_ns", … }, "judgement" }, … ],
//!   "kernels": { "a", "b": { "kernels_per_step", "launches_per_step" }, "changes": [ { "name", "a_per_step", "b_per_step" }, … ] },
//!   "appeared", "vanished": [ … ],  "other_shapes": [ … ],  "omissions": [ … ]
//! }
//! ```

use std::io::Write;

use anstyle::{AnsiColor, Style};
use serde::Serialize;

use crate::grid::Grid;
use crate::summary::TerminalStyle;
use diff::{
    Diff, DiffRow, Difference, Group, Heading, Judgement, KernelCounts, NameCount, OneSided, Place, RunFacts,
    SideKernels,
};
use model::error::Error;
use model::units::{ns, plural, ranks, shorten, wrap};

/// Version of the JSON.
pub const VERSION: u32 = 2;

/// The width of lines is clamped to this range.
const WIDTHS: std::ops::RangeInclusive<usize> = 60..=200;

#[derive(Serialize)]
struct Document<'a> {
    format: &'static str,
    version: u32,
    #[serde(flatten)]
    diff: &'a Diff,
}

/// Writes the JSON and a final newline.
///
/// # Errors
/// [`Error::Json`] or [`Error::Output`].
pub fn json(diff: &Diff, mut out: impl Write) -> Result<(), Error> {
    serde_json::to_writer_pretty(&mut out, &Document { format: "rankscope.diff", version: VERSION, diff })?;
    writeln!(out)?;
    Ok(out.flush()?)
}

/// Prints the verdict, the two sides and what differs between them, the changes, and the names that only one side has.
///
/// # Errors
/// [`Error::Output`].
pub fn render(diff: &Diff, terminal: &TerminalStyle, mut out: impl Write) -> Result<(), Error> {
    let terminal = TerminalStyle {
        width: terminal.width.clamp(*WIDTHS.start(), *WIDTHS.end()),
        top: terminal.top.map(|top| top.max(1)),
        ..terminal.clone()
    };
    let mut text = String::new();
    verdict(&mut text, diff, &terminal);
    sides(&mut text, diff, &terminal);
    unlike(&mut text, diff, &terminal);
    // One name of many is no reason for the difference of unlike runs, so what sums to the step comes first.
    let one_sided_keys = diff.appeared.iter().chain(&diff.vanished).map(|one| &one.key);
    if diff.rows.iter().map(|row| &row.key).chain(one_sided_keys).any(|key| key.group.is_cut()) {
        steps(&mut text, diff, &terminal);
        cuts(&mut text, diff, &terminal);
        changes(&mut text, diff, &terminal);
    } else {
        changes(&mut text, diff, &terminal);
        steps(&mut text, diff, &terminal);
    }
    kernels(&mut text, diff, &terminal);
    one_sided(&mut text, "New in B", &diff.appeared, &terminal);
    one_sided(&mut text, "Gone in B", &diff.vanished, &terminal);
    method(&mut text, diff, &terminal);
    out.write_all(text.as_bytes())?;
    Ok(out.flush()?)
}

/// Describes a row in words.
pub fn row_in_words(row: &DiffRow) -> String {
    let change = ns(row.change.delta_ns.round() as i64);
    format!(
        "{}, {} ({}): +{change}, {:.1} % of a step",
        who(row.place),
        what(row),
        row.key.measure.as_str(),
        row.step_pct
    )
}

fn paint(text: &str, style: Style, terminal: &TerminalStyle) -> String {
    if terminal.colour { format!("{style}{text}{style:#}") } else { text.to_string() }
}

fn paragraph(text: &mut String, words: &str, first: &str, rest: &str, terminal: &TerminalStyle) {
    for (i, line) in wrap(words, terminal.width.saturating_sub(rest.len())).iter().enumerate() {
        text.push_str(if i == 0 { first } else { rest });
        text.push_str(line);
        text.push('\n');
    }
}

fn heading(text: &mut String, title: &str, meaning: &str, terminal: &TerminalStyle) {
    text.push('\n');
    let line = format!("{title} — {meaning}");
    for (i, line) in wrap(&line, terminal.width).iter().enumerate() {
        let line =
            if i == 0 { line.replacen(title, &paint(title, Style::new().bold(), terminal), 1) } else { line.clone() };
        text.push_str(&line);
        text.push('\n');
    }
}

fn verdict(text: &mut String, diff: &Diff, terminal: &TerminalStyle) {
    let heading = diff.heading();
    let colour = match heading {
        Heading::Slower => AnsiColor::Red,
        Heading::Faster | Heading::NoChange => AnsiColor::Green,
        Heading::TooFewSteps | Heading::Undecided => AnsiColor::Yellow,
    };
    let word = &heading.words().to_uppercase();
    let style = Style::new().bold().fg_color(Some(colour.into()));
    for (i, line) in wrap(&format!("{word}  {}", diff.verdict.sentence), terminal.width).iter().enumerate() {
        let line = if i == 0 { line.replacen(word, &paint(word, style, terminal), 1) } else { line.clone() };
        text.push_str(&line);
        text.push('\n');
    }
}

fn sides(text: &mut String, diff: &Diff, terminal: &TerminalStyle) {
    let side = |text: &mut String, letter: &str, runs: &[RunFacts]| {
        for run in runs {
            let step = ns(run.step_ns.round() as i64);
            let path = shorten(&run.path, terminal.width.saturating_sub(24).max(30));
            let words = format!("{path}: ranks {}, {} of {step}", ranks(&run.ranks), plural(run.steps, "step"));
            paragraph(text, &words, &format!("{letter}: "), "   ", terminal);
        }
    };
    side(text, "A", &diff.a);
    side(text, "B", &diff.b);
}

/// What differs between the sides, and what is therefore not compared.
fn unlike(text: &mut String, diff: &Diff, terminal: &TerminalStyle) {
    let differences: Vec<String> = diff.differences.iter().map(Difference::words).collect();
    for (title, items) in [("Differs", &differences), ("Not compared", &diff.not_compared)] {
        if !items.is_empty() {
            paragraph(text, &format!("{title}: {}", items.join("; ")), "", "   ", terminal);
        }
    }
}

fn who(place: Place) -> String {
    match place {
        Place::AllRanks => "all ranks".into(),
        Place::Rank(rank) => format!("rank {rank}"),
    }
}

/// The name of a row without its measure.
fn what(row: &DiffRow) -> String {
    let shape = row.key.shape.as_deref().map(|shape| format!(" {shape}")).unwrap_or_default();
    match row.key.group {
        Group::Step if &*row.key.name == "wall" => "step".into(),
        Group::Step => format!("step: {}", row.key.name),
        Group::Account => diff::plain_name(&row.key),
        Group::Bucket => format!("bucket {}", row.key.name),
        _ => format!("{}{shape}", row.key.name),
    }
}

/// The parts of a step, in the order of the summary of a run.
const PARTS: [&str; 7] = ["wall", "compute", "overlap", "exposed communication", "memory", "idle", "unknown"];

fn part(row: &DiffRow) -> String {
    match &*row.key.name {
        "wall" => "step".into(),
        "exposed communication" => "exposed".into(),
        name => name.into(),
    }
}

/// Renders rows as a table with one unit for all times. With `places`, the table has columns for the rank and the
/// measure.
fn table(rows: &[&DiffRow], places: bool, terminal: &TerminalStyle) -> String {
    let largest =
        rows.iter().map(|r| [r.a_ns, r.b_ns, r.change.delta_ns].map(f64::abs).into_iter().fold(0.0, f64::max));
    let largest = largest.fold(0.0, f64::max) as u64;
    let column = |grid: Grid, title: &str, level: u8, f: fn(&DiffRow) -> f64| {
        let times = rows.iter().map(|row| Some(f(row).round() as i64)).collect();
        grid.time_beside(title, level, times, largest)
    };
    let mut grid = Grid::new();
    if places {
        grid = grid.text("where", 0, rows.iter().map(|row| who(row.place)).collect());
    }
    grid = grid.text("what", 0, rows.iter().map(|row| if places { what(row) } else { part(row) }).collect());
    if places {
        grid = grid.text("time", 1, rows.iter().map(|row| row.key.measure.as_str().into()).collect());
    }
    grid = column(grid, "A", 2, |row| row.a_ns);
    grid = column(grid, "B", 2, |row| row.b_ns);
    grid = column(grid, "change", 0, |row| row.change.delta_ns);
    grid = column(grid, "from", 1, |row| row.change.low_ns);
    grid = column(grid, "to", 1, |row| row.change.high_ns);
    grid.percent("of step", 3, rows.iter().map(|row| Some(row.step_pct)).collect())
        .styled(rows.iter().map(|row| style_of(row)).collect())
        .render(terminal.width, terminal.colour)
}

fn changes(text: &mut String, diff: &Diff, terminal: &TerminalStyle) {
    let is_shown = |row: &&DiffRow| row.judgement != Judgement::Unclear && !row.key.group.is_cut();
    let certain: Vec<&DiffRow> = diff.rows.iter().filter(is_shown).collect();
    if certain.is_empty() {
        return;
    }
    heading(text, "Changes", "significant changes per step; for one rank: relative to the other ranks", terminal);
    text.push_str(&table(&certain[..certain.len().min(terminal.rows())], true, terminal));
    more(text, certain.len(), "change", terminal);
}

fn more(text: &mut String, rows: usize, noun: &str, terminal: &TerminalStyle) {
    if rows > terminal.rows() {
        let words = format!("{} not shown (--top)", plural(rows - terminal.rows(), &format!("more {noun}")));
        paragraph(text, &words, "  ", "    ", terminal);
    }
}

/// The step and its parts, also without a significant change.
fn steps(text: &mut String, diff: &Diff, terminal: &TerminalStyle) {
    let is_step = |row: &&DiffRow| row.key.group == Group::Step && row.place == Place::AllRanks;
    let mut rows: Vec<&DiffRow> = diff.rows.iter().filter(is_step).collect();
    if rows.is_empty() {
        return;
    }
    rows.sort_by_key(|row| PARTS.iter().position(|part| **part == *row.key.name));
    heading(
        text,
        "Step",
        "mean over ranks and over the middle half of steps; from and to: 95 % interval of the change",
        terminal,
    );
    text.push_str(&table(&rows, false, terminal));
}

/// The work by category, by module and by source line.
fn cuts(text: &mut String, diff: &Diff, terminal: &TerminalStyle) {
    for (group, title, meaning) in [
        (Group::Category, "Device work by kind", "time per step; –: this side has none"),
        (Group::Module, "Modules", "time of the work that each launched, modules inside it included"),
        (Group::Source, "Source lines", "time of the work that each Python function launched"),
    ] {
        let lines = cut_lines(diff, group);
        if !lines.is_empty() {
            heading(text, title, meaning, terminal);
            let shown = &lines[..lines.len().min(terminal.rows())];
            text.push_str(&cut_table(shown, terminal));
            more(text, lines.len(), "row", terminal);
        }
    }
}

/// A sum of work on both sides, or on one.
struct CutLine<'a> {
    name: &'a str,
    a_ns: Option<f64>,
    b_ns: Option<f64>,
    row: Option<&'a DiffRow>,
}

impl<'a> CutLine<'a> {
    /// The line of a sum that only one side has.
    fn alone(one: &'a OneSided, a_ns: Option<f64>, b_ns: Option<f64>) -> Self {
        Self { name: &one.key.name, a_ns, b_ns, row: None }
    }
}

/// The sums of one cut, the longest first.
fn cut_lines(diff: &Diff, group: Group) -> Vec<CutLine<'_>> {
    let rows = diff.rows.iter().filter(|row| row.key.group == group);
    let of_both =
        rows.map(|row| CutLine { name: &row.key.name, a_ns: Some(row.a_ns), b_ns: Some(row.b_ns), row: Some(row) });
    let is_of_group = |one: &&OneSided| one.key.group == group;
    let in_a = diff.vanished.iter().filter(is_of_group).map(|one| CutLine::alone(one, Some(one.step_ns), None));
    let in_b = diff.appeared.iter().filter(is_of_group).map(|one| CutLine::alone(one, None, Some(one.step_ns)));
    let mut lines: Vec<CutLine<'_>> = of_both.chain(in_a).chain(in_b).collect();
    let longest = |line: &CutLine<'_>| line.a_ns.into_iter().chain(line.b_ns).fold(0.0, f64::max);
    lines.sort_by(|x, y| longest(y).total_cmp(&longest(x)).then_with(|| x.name.cmp(y.name)));
    lines
}

fn cut_table(lines: &[CutLine<'_>], terminal: &TerminalStyle) -> String {
    let rounded = |value: f64| value.round() as i64;
    let change = |f: fn(&DiffRow) -> f64| lines.iter().map(|line| line.row.map(f).map(rounded)).collect::<Vec<_>>();
    let columns = [
        ("A", 2, lines.iter().map(|line| line.a_ns.map(rounded)).collect::<Vec<_>>()),
        ("B", 2, lines.iter().map(|line| line.b_ns.map(rounded)).collect()),
        ("change", 0, change(|row| row.change.delta_ns)),
        ("from", 1, change(|row| row.change.low_ns)),
        ("to", 1, change(|row| row.change.high_ns)),
    ];
    let levels = columns.iter().take(3).flat_map(|(.., times)| times).flatten();
    let largest = levels.map(|ns| ns.unsigned_abs()).max().unwrap_or(0);
    let mut grid = Grid::new().text("what", 0, lines.iter().map(|line| line.name.into()).collect());
    for (title, level, times) in columns {
        grid = grid.time_beside(title, level, times, largest);
    }
    grid.percent("of step", 3, lines.iter().map(|line| line.row.map(|row| row.step_pct)).collect())
        .styled(lines.iter().map(|line| line.row.map_or(Style::new(), style_of)).collect())
        .render(terminal.width, terminal.colour)
}

fn style_of(row: &DiffRow) -> Style {
    match row.judgement {
        Judgement::Slower => Style::new().fg_color(Some(AnsiColor::Red.into())),
        Judgement::Faster => Style::new().fg_color(Some(AnsiColor::Green.into())),
        Judgement::Unclear => Style::new(),
    }
}

/// The kernels and launches of a step, and the names whose count changed.
fn kernels(text: &mut String, diff: &Diff, terminal: &TerminalStyle) {
    let Some(counts) = &diff.kernels else { return };
    heading(text, "Kernels", "number per rank and step, mean over ranks and steps", terminal);
    paragraph(text, &kernel_sentence(counts), "  ", "    ", terminal);
    if counts.changes.is_empty() {
        return;
    }
    let shown = &counts.changes[..counts.changes.len().min(terminal.rows())];
    let column = |f: fn(&NameCount) -> f64| shown.iter().map(|one| per_step(f(one))).collect();
    let sign = |one: &NameCount| if one.change() > 0.0 { "+" } else { "" };
    let grid = Grid::new()
        .text("kernel", 0, shown.iter().map(|one| one.name.to_string()).collect())
        .number("A", 1, column(|one| one.a_per_step))
        .number("B", 1, column(|one| one.b_per_step))
        .number("change", 0, shown.iter().map(|one| format!("{}{}", sign(one), per_step(one.change()))).collect());
    text.push_str(&grid.render(terminal.width, terminal.colour));
    more(text, counts.changes.len(), "kernel", terminal);
}

/// The kernels and launches of a step on both sides.
pub fn kernel_sentence(counts: &KernelCounts) -> String {
    let side = |side: &SideKernels| {
        let launches =
            side.launches_per_step.map_or("unknown launches".into(), |n| format!("{} launches", per_step(n)));
        format!("{} kernels in {launches}", per_step(side.kernels_per_step))
    };
    let changed =
        |noun: &str, a: f64, b: f64| (a > 0.0 && a != b).then(|| format!("{:+.1} % {noun}", 100.0 * (b / a - 1.0)));
    let KernelCounts { a, b, .. } = counts;
    let launches = a.launches_per_step.zip(b.launches_per_step).and_then(|(a, b)| changed("launches", a, b));
    let changes: Vec<String> =
        changed("kernels", a.kernels_per_step, b.kernels_per_step).into_iter().chain(launches).collect();
    let changes = if changes.is_empty() { String::new() } else { format!(": {}", changes.join(", ")) };
    format!("A has {}, B has {}{changes}", side(a), side(b))
}

/// A mean count, as in `12` or `0.25`.
fn per_step(count: f64) -> String {
    format!("{count:.2}").trim_end_matches('0').trim_end_matches('.').to_string()
}

fn one_sided(text: &mut String, title: &str, side: &[OneSided], terminal: &TerminalStyle) {
    let side: Vec<&OneSided> = side.iter().filter(|one| !one.key.group.is_cut()).collect();
    if side.is_empty() {
        return;
    }
    heading(text, title, "only one side has these names; number and time per step, mean over ranks", terminal);
    let shown = &side[..side.len().min(terminal.rows())];
    let shape = |one: &&OneSided| one.key.shape.as_deref().unwrap_or_default().to_string();
    let calls = |one: &&OneSided| one.calls.map_or(String::new(), per_step);
    let grid = Grid::new()
        .text("kind", 1, shown.iter().map(|one| one.key.group.word().into()).collect())
        .text("name", 0, shown.iter().map(|one| one.key.name.to_string()).collect())
        .text("shape", 3, shown.iter().map(shape).collect())
        .number("number", 2, shown.iter().map(calls).collect())
        .time("time", 0, shown.iter().map(|one| Some(one.step_ns.round() as i64)).collect());
    text.push_str(&grid.render(terminal.width, terminal.colour));
    more(text, side.len(), "row", terminal);
}

/// The statistical method and the smallest change that could have been detected.
fn method(text: &mut String, diff: &Diff, terminal: &TerminalStyle) {
    let words = method_sentences(diff);
    let Some((first, rest)) = words.split_first() else { return };
    heading(text, "How sure", first, terminal);
    for words in rest {
        paragraph(text, words, "  ", "    ", terminal);
    }
}

/// The sentences about the method.
pub fn method_sentences(diff: &Diff) -> Vec<String> {
    let method = &diff.method;
    let percent = |share: f64| format!("{:.3}", 100.0 * share).trim_end_matches('0').trim_end_matches('.').to_string();
    let mut all = vec![method.words.clone()];
    all.push(format!(
        "{} compared, {} below {} % of a step skipped; {} % intervals, at most {} % false discoveries",
        plural(diff.rows.len(), "row"),
        diff.too_small,
        percent(method.smallest_share),
        percent(method.confidence),
        percent(method.false_discoveries),
    ));
    if diff.verdict.too_few_steps {
        all.push(format!(
            "a run has fewer than {} steps, too few to measure how much steps vary, so no change is called significant; record \
             more steps (--schedule active=20), or three runs per side",
            method.least_steps
        ));
    }
    if let Some(detectable) = diff.verdict.detectable_step_pct {
        all.push(format!("smallest change of all ranks' step that this comparison can detect: {detectable:.0} %"));
    }
    all.push(if diff.a.len() + diff.b.len() > 2 {
        format!("{} and {} runs: the difference between runs of one side is measured", diff.a.len(), diff.b.len())
    } else {
        format!(
            "one run per side: the difference between runs is assumed to be {:.1} times the spread of a run's steps plus {} %; \
             several runs per side (diff A1,A2,A3 B1,B2,B3), recorded in turns, measure it and detect smaller changes of \
             all ranks",
            method.between_runs.sqrt(),
            percent(method.between_runs_relative),
        )
    });
    all
}

#[cfg(test)]
mod tests;
