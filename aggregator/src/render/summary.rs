//! Prints the summary on a terminal: the verdict, the parts of the steps, and the accuracy of the numbers.

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

use anstyle::{AnsiColor, Style};

use crate::base::units::{plural, ranks, wrap};
use crate::error::Error;
use crate::model::analysis::{Analysis, VerdictKind};

/// Width, colour and table length.
#[derive(Clone, Debug)]
pub struct TerminalStyle {
    /// Width in columns.
    pub width: usize,
    /// Whether to use colour.
    pub colour: bool,
    /// Maximum number of rows of each table; the rest is counted.
    pub top: usize,
    /// Whether kernels, operators with FLOPs and modules are printed too.
    pub full: bool,
}

impl Default for TerminalStyle {
    /// 100 columns, no colour, twelve rows.
    fn default() -> Self {
        Self { width: 100, colour: false, top: 12, full: false }
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
        top: terminal.top.max(1),
        ..terminal.clone()
    };
    let mut text = String::new();
    verdict(&mut text, analysis, &terminal);
    facts(&mut text, analysis, &terminal);
    sections::step_breakdown(&mut text, analysis, &terminal);
    critical::critical_path(&mut text, analysis, &terminal);
    devices::devices(&mut text, analysis, &terminal);
    memory::memory(&mut text, analysis, &terminal);
    if terminal.full {
        kernels::kernels(&mut text, analysis, &terminal);
        kernels::roofline(&mut text, analysis, &terminal);
        modules::modules(&mut text, analysis, &terminal);
    }
    sections::overlap(&mut text, analysis, &terminal);
    sections::buckets(&mut text, analysis, &terminal);
    sections::stragglers(&mut text, analysis, &terminal);
    sections::clocks(&mut text, analysis, &terminal);
    sections::left_out(&mut text, analysis, &terminal);
    sections::findings(&mut text, analysis, &terminal);
    out.write_all(text.as_bytes())?;
    out.flush()?;
    Ok(())
}

fn verdict(text: &mut String, analysis: &Analysis, terminal: &TerminalStyle) {
    let (word, colour) = match analysis.verdict.kind {
        VerdictKind::Cause => ("CAUSE", AnsiColor::Red),
        VerdictKind::Undecided => ("UNDECIDED", AnsiColor::Yellow),
        VerdictKind::Balanced => ("BALANCED", AnsiColor::Green),
        VerdictKind::Nothing if !analysis.headlines_finding() => ("NO VERDICT", AnsiColor::Yellow),
        VerdictKind::Nothing if analysis.tables.findings.is_empty() => ("NO FINDING", AnsiColor::Green),
        VerdictKind::Nothing => ("TOP FINDING", AnsiColor::Yellow),
    };
    let style = Style::new().bold().fg_color(Some(colour.into()));
    let sentence = format!("{word}  {}", analysis.verdict.sentence);
    for (i, line) in wrap(&sentence, terminal.width).iter().enumerate() {
        // Only the word is coloured.
        let line = if i == 0 { line.replacen(word, &paint(word, style, terminal), 1) } else { line.clone() };
        text.push_str(&line);
        text.push('\n');
    }
}

fn facts(text: &mut String, analysis: &Analysis, terminal: &TerminalStyle) {
    let facts = &analysis.facts;
    let read = match facts.world_size {
        Some(world) if world as usize != facts.ranks.len() => format!("{} of {world} ranks", facts.ranks.len()),
        _ => plural(facts.ranks.len(), "rank"),
    };
    let mut parts = vec![read];
    if !facts.hosts.is_empty() {
        parts.push(plural(facts.hosts.len(), "host"));
    }
    parts.push(plural(facts.steps.len(), "step"));
    parts.push(plural(facts.events as usize, "event"));
    parts.push(plural(analysis.tables.collective_instances.len(), "collective"));
    if let Some(selection) = &facts.selection {
        parts.push(format!("only {selection}"));
    }
    let line =
        if facts.run_id.is_empty() { parts.join(", ") } else { format!("run {}: {}", facts.run_id, parts.join(", ")) };
    for line in wrap(&line, terminal.width) {
        text.push_str(&line);
        text.push('\n');
    }
    if !facts.missing_ranks.is_empty() {
        for line in wrap(&format!("missing ranks: {}", ranks(&facts.missing_ranks)), terminal.width) {
            text.push_str(&line);
            text.push('\n');
        }
    }
    let counted = facts.communication.iter().map(|options| format!("communication as {options} says"));
    for words in counted.chain(facts.communication_by_name.clone()) {
        for line in wrap(&words, terminal.width) {
            text.push_str(&line);
            text.push('\n');
        }
    }
}

fn paint(text: &str, style: Style, terminal: &TerminalStyle) -> String {
    if terminal.colour { format!("{style}{text}{style:#}") } else { text.to_string() }
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
