//! Tables for terminals: aligned columns within a width; the least important columns are left out first. Cells show
//! control characters.

use std::fmt::Write as _;

use anstyle::Style;
use trace::terminal;

use model::units::shorten;

/// The alignment of a cell in its column.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Align {
    /// For text.
    Left,
    /// For numbers.
    Right,
}

/// One column.
#[derive(Clone, Debug)]
struct Column {
    title: String,
    align: Align,
    /// Columns with the highest number are left out first; columns with 0 always stay.
    dispensable: u8,
    cells: Vec<String>,
}

impl Column {
    fn width(&self) -> usize {
        self.cells.iter().chain([&self.title]).map(|c| c.chars().count()).max().unwrap_or(0)
    }
}

/// A table.
#[derive(Clone, Debug, Default)]
pub struct Grid {
    columns: Vec<Column>,
    styles: Vec<Style>,
    /// Titles of the columns that were left out.
    left_out: Vec<String>,
}

const GAP: usize = 2;
const INDENT: usize = 2;
/// Text is shortened to the first length before any column is left out, and to the second before further columns are.
const SHORT_TEXT: [usize; 2] = [24, 12];

impl Grid {
    /// Creates an empty table.
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds a column of text.
    #[must_use]
    pub fn text(self, title: &str, dispensable: u8, cells: Vec<String>) -> Self {
        self.column(title.into(), Align::Left, dispensable, cells)
    }

    /// Adds a column of formatted numbers.
    #[must_use]
    pub fn number(self, title: &str, dispensable: u8, cells: Vec<String>) -> Self {
        self.column(title.into(), Align::Right, dispensable, cells)
    }

    /// Adds a column of times in ms, with four digits of the largest time. Absent times are `–`.
    #[must_use]
    pub fn time(self, title: &str, dispensable: u8, times_ns: Vec<Option<i64>>) -> Self {
        let largest = times_ns.iter().flatten().map(|t| t.unsigned_abs()).max().unwrap_or(0);
        self.time_beside(title, dispensable, times_ns, largest)
    }

    /// Adds a column of times in ms with the digits of `largest`, so that columns that are compared have the same digits.
    #[must_use]
    pub fn time_beside(self, title: &str, dispensable: u8, times_ns: Vec<Option<i64>>, largest: u64) -> Self {
        self.milliseconds(&format!("{title} ms"), dispensable, times_ns, largest)
    }

    /// Adds a column of times in ms without the unit in the title. Columns with the same `largest` time have the same digits.
    #[must_use]
    pub fn milliseconds(self, title: &str, dispensable: u8, times_ns: Vec<Option<i64>>, largest_ns: u64) -> Self {
        let places = ms_places(largest_ns);
        let cells =
            times_ns.iter().map(|t| t.map_or("–".into(), |t| unsigned_zero(format!("{:.places$}", t as f64 / 1e6))));
        let cells = cells.collect();
        self.column(title.into(), Align::Right, dispensable, cells)
    }

    /// Adds a column of percentages.
    #[must_use]
    pub fn percent(self, title: &str, dispensable: u8, values: Vec<Option<f64>>) -> Self {
        let cells = values.iter().map(|v| v.map_or("–".into(), |v| unsigned_zero(format!("{v:.1}")))).collect();
        self.column(format!("{title} %"), Align::Right, dispensable, cells)
    }

    fn column(mut self, title: String, align: Align, dispensable: u8, cells: Vec<String>) -> Self {
        debug_assert!(self.columns.first().is_none_or(|c| c.cells.len() == cells.len()), "columns are equally long");
        let shown = |cell: String| terminal::line(&cell).into_owned();
        self.columns.push(Column { title, align, dispensable, cells: cells.into_iter().map(shown).collect() });
        self
    }

    /// Sets one style for each row.
    #[must_use]
    pub fn styled(mut self, styles: Vec<Style>) -> Self {
        self.styles = styles;
        self
    }

    /// Renders the table. Lines are at most `width` columns wide if possible.
    pub fn render(self, width: usize, colour: bool) -> String {
        self.render_with_left_out(width, colour).0
    }

    /// Renders the table like [`render`](Self::render) and returns the titles of the columns that were left out, in
    /// order.
    pub fn render_with_left_out(mut self, width: usize, colour: bool) -> (String, Vec<String>) {
        let all: Vec<String> = self.columns.iter().map(|c| c.title.clone()).collect();
        self.fit(width);
        let widths: Vec<usize> = self.columns.iter().map(Column::width).collect();
        let mut out = String::new();
        let titles: Vec<&str> = self.columns.iter().map(|c| c.title.as_str()).collect();
        self.line(&mut out, &titles, &widths, Style::new().dimmed(), colour);
        for row in 0..self.columns.first().map_or(0, |c| c.cells.len()) {
            let cells: Vec<&str> = self.columns.iter().map(|c| c.cells[row].as_str()).collect();
            let style = self.styles.get(row).copied().unwrap_or_default();
            self.line(&mut out, &cells, &widths, style, colour);
        }
        let left_out = all.into_iter().filter(|title| self.left_out.contains(title)).collect();
        (out, left_out)
    }

    /// The width of the table with nothing shortened or left out.
    pub fn width(&self) -> usize {
        total(&self.columns)
    }

    /// Shortens text and drops columns until the table fits.
    fn fit(&mut self, width: usize) {
        for shortest in SHORT_TEXT {
            loop {
                let excess = total(&self.columns).saturating_sub(width);
                if excess == 0 {
                    return;
                }
                if !self.shorten(excess, shortest) && (shortest != SHORT_TEXT[0] || !self.leave_out(1)) {
                    break;
                }
            }
        }
        while total(&self.columns) > width && self.leave_out(0) {}
    }

    /// Shortens the widest text column by `excess`, but not below `shortest`. Returns false if no column is wider.
    fn shorten(&mut self, excess: usize, shortest: usize) -> bool {
        let least = |c: &Column| shortest.max(c.title.chars().count());
        let texts = self.columns.iter_mut().filter(|c| c.align == Align::Left && c.width() > least(c));
        let Some(column) = texts.max_by_key(|c| c.width()) else { return false };
        let to = column.width().saturating_sub(excess).max(least(column));
        column.cells.iter_mut().for_each(|c| *c = shorten(c, to));
        true
    }

    /// Leaves out the most dispensable column above `level`. Returns false if there is none.
    fn leave_out(&mut self, level: u8) -> bool {
        let columns = self.columns.iter().enumerate().filter(|(_, c)| c.dispensable > level);
        let Some((index, _)) = columns.max_by_key(|(_, c)| c.dispensable) else { return false };
        let column = self.columns.remove(index);
        self.left_out.push(column.title);
        true
    }

    fn line(&self, out: &mut String, cells: &[&str], widths: &[usize], style: Style, colour: bool) {
        let mut line = " ".repeat(INDENT);
        for (i, (cell, width)) in cells.iter().zip(widths).enumerate() {
            let padding = " ".repeat(width - cell.chars().count());
            let gap = if i == 0 { "" } else { "  " };
            let _ = match self.columns[i].align {
                Align::Left => write!(line, "{gap}{cell}{padding}"),
                Align::Right => write!(line, "{gap}{padding}{cell}"),
            };
        }
        let line = line.trim_end();
        if colour && style != Style::new() {
            let _ = writeln!(out, "{style}{line}{style:#}");
        } else {
            let _ = writeln!(out, "{line}");
        }
    }
}

/// Digits after the point of times in ms: four digits of the largest, and no part of a ns.
fn ms_places(largest_ns: u64) -> usize {
    match largest_ns {
        1_000_000_000.. => 0,
        100_000_000.. => 1,
        10_000_000.. => 2,
        1_000_000.. => 3,
        100_000.. => 4,
        10_000.. => 5,
        _ => 6,
    }
}

fn total(columns: &[Column]) -> usize {
    INDENT + columns.iter().map(|c| c.width() + GAP).sum::<usize>().saturating_sub(GAP)
}

/// Removes the sign of a number that was rounded to `-0.0`.
fn unsigned_zero(text: String) -> String {
    let zero = text.strip_prefix('-').filter(|rest| rest.chars().all(|c| matches!(c, '0' | '.')));
    zero.map(String::from).unwrap_or(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn grid() -> Grid {
        Grid::new()
            .number("rank", 0, vec!["0".into(), "11".into()])
            .time("step", 0, vec![Some(1_500_000), Some(120_000_000)])
            .percent("hidden", 2, vec![Some(12.34), None])
            .text("range", 1, vec!["forward".into(), "ncclDevKernel_AllReduce_Sum_f32_RING_LL".into()])
    }

    /// Renders the table under an unindented line, because snapshots lose the indentation that all lines share.
    fn rendered(width: usize) -> String {
        format!("table\n{}", grid().render(width, false))
    }

    #[test]
    fn columns_are_aligned() {
        insta::assert_snapshot!(rendered(80), @r#"
            table
              rank  step ms  hidden %  range
                 0      1.5      12.3  forward
                11    120.0         –  ncclDevKernel_AllReduce_Sum_f32_RING_LL
        "#);
    }

    #[test]
    fn narrow_tables_lose_text_then_columns() {
        insta::assert_snapshot!(rendered(40), @r#"
            table
              rank  step ms  range
                 0      1.5  forward
                11    120.0  ncclDevKern…f32_RING_LL
        "#);
        insta::assert_snapshot!(rendered(34), @r#"
            table
              rank  step ms  range
                 0      1.5  forward
                11    120.0  ncclDevK…_RING_LL
        "#);
        insta::assert_snapshot!(rendered(20), @r#"
            table
              rank  step ms
                 0      1.5
                11    120.0
        "#);
    }
}
