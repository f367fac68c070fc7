//! The terminal: the verdict first, then where the time went, and how far each number can be trusted.

mod devices;
mod sections;
#[cfg(test)]
mod tests;

use std::io::Write;

use anstyle::{AnsiColor, Style};

use super::text::{plain, plural, ranks, wrap};
use crate::analysis::{Analysis, VerdictKind};
use crate::error::Error;

/// How to print.
#[derive(Clone, Debug)]
pub struct Look {
    /// Columns.
    pub width: usize,
    /// Whether to use colour.
    pub colour: bool,
    /// Rows of each table before the rest is only counted.
    pub top: usize,
}

impl Default for Look {
    /// 100 columns, no colour, twelve rows.
    fn default() -> Self {
        Self { width: 100, colour: false, top: 12 }
    }
}

/// Narrower than this, lines run over the edge; wider, they are hard to read.
const WIDTHS: std::ops::RangeInclusive<usize> = 60..=200;

/// Prints the summary.
///
/// # Errors
/// [`Error::Output`].
pub fn render(analysis: &Analysis, look: &Look, mut out: impl Write) -> Result<(), Error> {
    let look = Look { width: look.width.clamp(*WIDTHS.start(), *WIDTHS.end()), top: look.top.max(1), ..look.clone() };
    let mut text = String::new();
    verdict(&mut text, analysis, &look);
    facts(&mut text, analysis, &look);
    sections::step_breakdown(&mut text, analysis, &look);
    devices::devices(&mut text, analysis, &look);
    sections::overlap(&mut text, analysis, &look);
    sections::buckets(&mut text, analysis, &look);
    sections::stragglers(&mut text, analysis, &look);
    sections::clocks(&mut text, analysis, &look);
    sections::left_out(&mut text, analysis, &look);
    sections::findings(&mut text, analysis, &look);
    out.write_all(text.as_bytes())?;
    out.flush()?;
    Ok(())
}

fn verdict(text: &mut String, analysis: &Analysis, look: &Look) {
    let (word, colour) = match analysis.verdict.kind {
        VerdictKind::Cause => ("CAUSE", AnsiColor::Red),
        VerdictKind::Undecided => ("UNDECIDED", AnsiColor::Yellow),
        VerdictKind::Balanced => ("BALANCED", AnsiColor::Green),
        VerdictKind::Nothing => ("NO VERDICT", AnsiColor::Yellow),
    };
    let style = Style::new().bold().fg_color(Some(colour.into()));
    let sentence = format!("{word}  {}", plain(&analysis.verdict.sentence));
    for (i, line) in wrap(&sentence, look.width).iter().enumerate() {
        // The word alone is coloured: colour marks, it does not decorate.
        let line = if i == 0 { line.replacen(word, &paint(word, style, look), 1) } else { line.clone() };
        text.push_str(&line);
        text.push('\n');
    }
}

fn facts(text: &mut String, analysis: &Analysis, look: &Look) {
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
        parts.push(format!("only {}", plain(selection)));
    }
    let line = if facts.run_id.is_empty() {
        parts.join(", ")
    } else {
        format!("run {}: {}", plain(&facts.run_id), parts.join(", "))
    };
    for line in wrap(&line, look.width) {
        text.push_str(&line);
        text.push('\n');
    }
    if !facts.missing_ranks.is_empty() {
        for line in wrap(&format!("missing ranks: {}", ranks(&facts.missing_ranks)), look.width) {
            text.push_str(&line);
            text.push('\n');
        }
    }
}

fn paint(text: &str, style: Style, look: &Look) -> String {
    if look.colour { format!("{style}{text}{style:#}") } else { text.to_string() }
}

/// A section's title, and what its numbers are.
fn heading(text: &mut String, title: &str, meaning: &str, look: &Look) {
    let style = Style::new().bold();
    text.push('\n');
    for (i, line) in wrap(&format!("{title} — {meaning}"), look.width).iter().enumerate() {
        let line = if i == 0 { line.replacen(title, &paint(title, style, look), 1) } else { line.clone() };
        text.push_str(&line);
        text.push('\n');
    }
}

/// A sentence of a section, indented and wrapped.
fn sentence(text: &mut String, words: &str, look: &Look) {
    for (i, line) in wrap(&plain(words), look.width.saturating_sub(4)).iter().enumerate() {
        text.push_str(if i == 0 { "  " } else { "    " });
        text.push_str(line);
        text.push('\n');
    }
}
