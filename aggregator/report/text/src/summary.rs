//! Prints the summary on a terminal: the verdict, the parts of the steps, and the accuracy of the numbers.

mod brief;
mod critical;
mod devices;
mod exposed;
mod kernels;
mod memory;
mod modules;
mod sections;
#[cfg(test)]
mod tests;

use std::io::Write;

use anstyle::Style;

use model::analysis::Analysis;
use model::error::Error;
use model::units::{plural, ranks, wrap};

/// Width, colour and table length.
#[derive(Clone, Debug)]
pub struct TerminalStyle {
    /// Width in columns.
    pub width: usize,
    /// Whether to use colour.
    pub colour: bool,
    /// Maximum number of rows of each table; the rest is counted. `None`: as many ranks as the short summary has room for, and
    /// twelve rows in other tables.
    pub top: Option<usize>,
    /// Whether all sections are printed.
    pub full: bool,
    /// The input as on the command line.
    pub input: String,
}

/// The default of [`TerminalStyle::top`] for the sections of `--full`.
const ROWS: usize = 12;

impl Default for TerminalStyle {
    /// 100 columns, no colour, the short summary.
    fn default() -> Self {
        Self { width: 100, colour: false, top: None, full: false, input: "RUN".into() }
    }
}

/// The width is clamped to this range: tables need the minimum, and longer lines are hard to read.
const WIDTHS: std::ops::RangeInclusive<usize> = 60..=200;

/// Prints the summary.
///
/// # Errors
/// [`Error::Output`].
pub fn render(analysis: &Analysis, terminal: &TerminalStyle, mut out: impl Write) -> Result<(), Error> {
    let terminal = TerminalStyle {
        width: terminal.width.clamp(*WIDTHS.start(), *WIDTHS.end()),
        top: terminal.top.map(|top| top.max(1)),
        ..terminal.clone()
    };
    let mut text = String::new();
    brief::brief(&mut text, analysis, &terminal);
    if terminal.full {
        full(&mut text, analysis, &TerminalStyle { top: terminal.top.or(Some(ROWS)), ..terminal });
    }
    out.write_all(text.as_bytes())?;
    out.flush()?;
    Ok(())
}

/// The parts of a step, one line a rank, in at most `lines` lines; empty if there is no room for a rank.
pub(crate) fn step_lines(analysis: &Analysis, lines: usize, width: usize) -> Vec<String> {
    // A blank line, the title, the columns, and the number of ranks that are not shown.
    let Some(top) = lines.checked_sub(4).filter(|top| *top > 0) else { return Vec::new() };
    let width = width.clamp(*WIDTHS.start(), *WIDTHS.end());
    let mut text = String::new();
    brief::steps(&mut text, analysis, top, &TerminalStyle { width, ..TerminalStyle::default() });
    text.lines().map(String::from).collect()
}

/// All sections.
fn full(text: &mut String, analysis: &Analysis, terminal: &TerminalStyle) {
    facts(text, analysis, terminal);
    brief::overhead(text, analysis, terminal);
    sections::findings(text, analysis, terminal);
    sections::stragglers(text, analysis, terminal);
    critical::critical_path(text, analysis, terminal);
    sections::overlap(text, analysis, terminal);
    sections::buckets(text, analysis, terminal);
    devices::devices(text, analysis, terminal);
    kernels::kernels(text, analysis, terminal);
    kernels::roofline(text, analysis, terminal);
    modules::modules(text, analysis, terminal);
    memory::memory(text, analysis, terminal);
    sections::clocks(text, analysis, terminal);
    sections::left_out(text, analysis, terminal);
}

/// Prints the verdict in one sentence, and what was read.
fn facts(text: &mut String, analysis: &Analysis, terminal: &TerminalStyle) {
    let facts = &analysis.facts;
    heading(text, "Verdict", &analysis.verdict.sentence, terminal);
    let mut parts =
        vec![plural(facts.events as usize, "event"), plural(analysis.tables.collective_instances.len(), "collective")];
    if !facts.run_id.is_empty() {
        parts.insert(0, format!("run {}", facts.run_id));
    }
    sentence(text, &parts.join(", "), terminal);
    if !facts.missing_ranks.is_empty() {
        sentence(text, &format!("missing ranks: {}", ranks(&facts.missing_ranks)), terminal);
    }
    let counted = facts.communication.iter().map(|options| format!("communication as {options} says"));
    for words in counted.chain(facts.communication_by_name.clone()) {
        sentence(text, &words, terminal);
    }
}

fn paint(text: &str, style: Style, terminal: &TerminalStyle) -> String {
    if terminal.colour { format!("{style}{text}{style:#}") } else { text.to_string() }
}

impl TerminalStyle {
    /// The most rows of a table of a section.
    pub(super) fn rows(&self) -> usize {
        self.top.unwrap_or(ROWS)
    }
}

/// Adds the title of a section and an explanation of its numbers.
fn heading(text: &mut String, title: &str, meaning: &str, terminal: &TerminalStyle) {
    let style = Style::new().bold();
    text.push('\n');
    for (i, line) in wrap(&format!("{title} — {meaning}"), terminal.width).iter().enumerate() {
        let line = if i == 0 { line.replacen(title, &paint(title, style, terminal), 1) } else { line.clone() };
        text.push_str(&line);
        text.push('\n');
    }
}

/// Adds a sentence to a section, indented and wrapped.
fn sentence(text: &mut String, words: &str, terminal: &TerminalStyle) {
    for (i, line) in wrap(words, terminal.width.saturating_sub(4)).iter().enumerate() {
        text.push_str(if i == 0 { "  " } else { "    " });
        text.push_str(line);
        text.push('\n');
    }
}
