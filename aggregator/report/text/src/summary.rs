//! Prints the summary on a terminal: the verdict, the parts of the steps, and the accuracy of the numbers.

mod brief;
mod critical;
mod devices;
mod exposed;
mod kernels;
mod memory;
mod modules;
mod sections;
mod style;
#[cfg(test)]
mod tests;

use std::io::Write;

use model::analysis::Analysis;
use model::error::Error;
use model::units::{plural, ranks};
use style::{ROWS, heading, sentence};

pub use style::TerminalStyle;

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
        let word = if facts.has_chosen_ranks() { "left out" } else { "missing" };
        sentence(text, &format!("{word} ranks: {}", ranks(&facts.missing_ranks)), terminal);
    }
    let counted = facts.communication.iter().map(|options| format!("communication as {options} says"));
    for words in counted.chain(facts.communication_by_name.clone()) {
        sentence(text, &words, terminal);
    }
}
