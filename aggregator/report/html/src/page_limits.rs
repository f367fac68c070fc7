//! Size limits of a page.

use model::shown_ranks::MOST_RANKS;

/// Size limits of a page. With the defaults, a page with 64 ranks and 100 short steps is below 4 MB, and one with a million bars below
/// 20 MB.
#[derive(Clone, Debug)]
pub struct Limits {
    /// Ranks in the tables and in the timeline.
    pub ranks: usize,
    /// Breakdowns, one per rank and step.
    pub lane_steps: usize,
    /// Rows of the heat map.
    pub heat_rows: usize,
    /// Cells of the heat map.
    pub heat_cells: usize,
    /// Rows of buckets, one per bucket, rank and step.
    pub bucket_rows: usize,
    /// Collectives that are drawn.
    pub instances: usize,
    /// Kernels; the same limit applies to operators.
    pub names: usize,
    /// Bars of the timeline: all of all steps if there are no more, else those of the step that is shown first.
    pub slices: usize,
    /// Bars of the timeline in all other steps, if there is no room for all bars.
    pub other_slices: usize,
    /// Descriptions of bars; further ones have only a name.
    pub descriptions: usize,
    /// Arrivals of ranks at the collectives of the timeline.
    pub arrivals: usize,
    /// Points of all memory curves.
    pub memory_points: usize,
    /// Rows of a comparison with another run.
    pub diff_rows: usize,
    /// Sentences about omissions.
    pub omissions: usize,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            ranks: MOST_RANKS,
            lane_steps: 10_000,
            heat_rows: 1_024,
            heat_cells: 26_000,
            bucket_rows: 20_000,
            instances: 5_000,
            names: 600,
            slices: 1_000_000,
            other_slices: 50_000,
            descriptions: 12_000,
            arrivals: 40_000,
            memory_points: 12_800,
            diff_rows: 4_000,
            omissions: 200,
        }
    }
}

/// The power of ten in ns that leaves six digits of the largest value. Further digits are invisible and cost bytes.
pub(crate) fn unit_ns(largest_ns: i64) -> i64 {
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
