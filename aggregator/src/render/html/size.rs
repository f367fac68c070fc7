//! How much goes into a page, and what is said where that is less than all.

use serde::Serialize;

/// What a page holds at most. The defaults keep 64 ranks of 100 steps under 3 MB, with everything in.
#[derive(Clone, Debug)]
pub struct Limits {
    /// Breakdowns of one rank in one step.
    pub lane_steps: usize,
    /// Rows of the heat map.
    pub heat_rows: usize,
    /// Its cells.
    pub heat_cells: usize,
    /// Ways of one bucket of one rank in one step.
    pub bucket_rows: usize,
    /// Collectives that are drawn.
    pub instances: usize,
    /// Kernels, and as many operators.
    pub names: usize,
    /// Bars of the timeline.
    pub slices: usize,
    /// Points of all memory curves.
    pub memory_points: usize,
    /// Streams of devices whose gaps are drawn.
    pub streams: usize,
    /// Rows of a comparison with another run.
    pub diff_rows: usize,
    /// Sentences of what was left out.
    pub omissions: usize,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            lane_steps: 10_000,
            heat_rows: 1_024,
            heat_cells: 26_000,
            bucket_rows: 20_000,
            instances: 5_000,
            names: 600,
            slices: 24_000,
            memory_points: 12_800,
            streams: 2_000,
            diff_rows: 4_000,
            omissions: 200,
        }
    }
}

/// Sentences about what was summarised, each in the section that it belongs to.
#[derive(Debug, Default, Serialize)]
#[serde(transparent)]
pub(super) struct Notes(Vec<(&'static str, String)>);

impl Notes {
    /// Says something in a section.
    pub(super) fn say(&mut self, section: &'static str, text: String) {
        self.0.push((section, text));
    }

    /// What is said in a section.
    pub(super) fn of<'a>(&'a self, section: &'a str) -> impl Iterator<Item = &'a str> {
        self.0.iter().filter(move |(s, _)| *s == section).map(|(_, text)| text.as_str())
    }

    /// Everything that is said, with its section.
    pub(super) fn all(&self) -> &[(&'static str, String)] {
        &self.0
    }

    #[cfg(test)]
    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

/// The power of ten ns that leaves six digits of the largest value: more are not seen, and cost bytes.
pub(super) fn unit_ns(largest_ns: i64) -> i64 {
    let mut unit = 1;
    while largest_ns / unit >= 1_000_000 {
        unit *= 10;
    }
    unit
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn six_digits_are_left() {
        assert_eq!(unit_ns(0), 1);
        assert_eq!(unit_ns(999_999), 1);
        assert_eq!(unit_ns(1_000_000), 10);
        assert_eq!(unit_ns(1_500_000_000), 10_000);
        assert_eq!(i64::MAX / unit_ns(i64::MAX) / 1_000_000, 0);
    }
}
