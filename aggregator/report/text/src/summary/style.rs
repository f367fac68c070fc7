//! Width and colour of the terminal, and the texts that every section is made of.

use anstyle::{AnsiColor, Style};
use trace::Verdict;

use model::analysis::Analysis;
use model::units::{ns, plural, wrap};

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
pub(super) const ROWS: usize = 12;

impl Default for TerminalStyle {
    /// 100 columns, no colour, the short summary.
    fn default() -> Self {
        Self { width: 100, colour: false, top: None, full: false, input: "RUN".into() }
    }
}

pub(super) fn paint(text: &str, style: Style, terminal: &TerminalStyle) -> String {
    if terminal.colour { format!("{style}{text}{style:#}") } else { text.to_string() }
}

impl TerminalStyle {
    /// The most rows of a table of a section.
    pub(crate) fn rows(&self) -> usize {
        self.top.unwrap_or(ROWS)
    }
}

/// Adds the title of a section and an explanation of its numbers.
pub(super) fn heading(text: &mut String, title: &str, meaning: &str, terminal: &TerminalStyle) {
    let style = Style::new().bold();
    text.push('\n');
    for (i, line) in wrap(&format!("{title} — {meaning}"), terminal.width).iter().enumerate() {
        let line = if i == 0 { line.replacen(title, &paint(title, style, terminal), 1) } else { line.clone() };
        text.push_str(&line);
        text.push('\n');
    }
}

/// Adds a sentence to a section, indented and wrapped.
pub(super) fn sentence(text: &mut String, words: &str, terminal: &TerminalStyle) {
    for (i, line) in wrap(words, terminal.width.saturating_sub(4)).iter().enumerate() {
        text.push_str(if i == 0 { "  " } else { "    " });
        text.push_str(line);
        text.push('\n');
    }
}

/// The colour of a rank.
pub(super) fn verdict_style(analysis: &Analysis, rank: i32) -> Style {
    let rows = &analysis.tables.stragglers;
    let row = rows.binary_search_by_key(&rank, |s| s.rank).ok().map(|at| &rows[at]);
    match row.and_then(|s| s.verdict.known()) {
        Some(Verdict::Cause) => Style::new().fg_color(Some(AnsiColor::Red.into())),
        Some(Verdict::Undecided) => Style::new().fg_color(Some(AnsiColor::Yellow.into())),
        _ => Style::new(),
    }
}

/// Returns the `top` most important keys, sorted.
pub(super) fn choose<K: Ord + Copy, I: Ord>(keys: Vec<K>, top: usize, importance: impl Fn(&K) -> I) -> Vec<K> {
    let mut chosen = keys;
    chosen.sort_by_cached_key(|k| (importance(k), *k));
    chosen.truncate(top);
    chosen.sort_unstable();
    chosen
}

/// Says how many rows are not shown, if any.
pub(super) fn not_shown(text: &mut String, n: usize, noun: &str, terminal: &TerminalStyle) {
    if n > 0 {
        sentence(text, &format!("{} not shown (--top)", plural(n, &format!("more {noun}"))), terminal);
    }
}

/// The largest further error of clocks in words; empty if it is not above `least_ns`.
pub(super) fn bias<'a>(fits: impl IntoIterator<Item = &'a trace::ClockFitRow>, least_ns: i64) -> String {
    let bias = fits.into_iter().filter_map(|fit| fit.bias_ns).max().filter(|bias| *bias > least_ns);
    bias.map_or(String::new(), |bias| format!(", up to {} more if a rank always leaves late", ns(bias)))
}
