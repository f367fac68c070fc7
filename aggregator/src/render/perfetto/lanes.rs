//! Lanes: rows of one thread or stream that overlap without nesting are drawn on several tracks.
//!
//! ```text
//!   rows          |--A---------|        |--D--|
//!                    |-B-|  |---C---|
//!   lane 0        |--A---------|        |--D--|
//!                    |-B-|
//!   lane 1                  |---C---|
//! ```

/// The lanes of one thread or stream.
#[derive(Debug, Default)]
pub(super) struct Lanes {
    lanes: Vec<Vec<i64>>,
}

impl Lanes {
    /// Finds the lane of a row from `start_ns` to `end_ns`; rows come by start, longest first. Calls `ended(lane,
    /// end_ns)` for every row of that lane that has ended by then, innermost first.
    pub(super) fn place(&mut self, start_ns: i64, end_ns: i64, mut ended: impl FnMut(usize, i64)) -> usize {
        let fits = |open: &Vec<i64>| open.iter().all(|&end| end <= start_ns || end >= end_ns);
        let lane = self.lanes.iter().position(fits).unwrap_or_else(|| {
            self.lanes.push(Vec::new());
            self.lanes.len() - 1
        });
        let open = &mut self.lanes[lane];
        while let Some(end) = open.pop_if(|end| *end <= start_ns) {
            ended(lane, end);
        }
        open.push(end_ns);
        lane
    }

    /// Ends all open rows, innermost first.
    pub(super) fn finish(&mut self, mut ended: impl FnMut(usize, i64)) {
        for (lane, open) in self.lanes.iter_mut().enumerate() {
            while let Some(end) = open.pop() {
                ended(lane, end);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Places rows. Returns the lane of each row, and the reported ends in order.
    fn place(rows: &[(i64, i64)]) -> (Vec<usize>, Vec<(usize, i64)>) {
        let (mut lanes, mut ends) = (Lanes::default(), Vec::new());
        let places = rows.iter().map(|&(start, end)| lanes.place(start, end, |l, e| ends.push((l, e)))).collect();
        lanes.finish(|l, e| ends.push((l, e)));
        (places, ends)
    }

    #[test]
    fn nested_rows_share_a_lane_and_crossing_rows_do_not() {
        // The drawing at the head of the module.
        let (places, ends) = place(&[(0, 13), (3, 6), (10, 17), (22, 27)]);
        assert_eq!(places, [0, 0, 1, 0]);
        assert_eq!(ends, [(0, 6), (0, 13), (0, 27), (1, 17)]);
    }

    #[test]
    fn rows_that_touch_or_take_no_time_share_a_lane() {
        let (places, ends) = place(&[(0, 5), (5, 5), (5, 8), (8, 8)]);
        assert_eq!(places, [0, 0, 0, 0]);
        assert_eq!(ends, [(0, 5), (0, 5), (0, 8), (0, 8)]);
    }

    proptest! {
        #[test]
        fn every_row_ends_once_and_lanes_nest(mut rows in prop::collection::vec((0..50_i64, 0..20_i64), 0..60)) {
            for row in &mut rows {
                row.1 += row.0;
            }
            rows.sort_by_key(|&(start, end)| (start, std::cmp::Reverse(end)));
            let (places, ends) = place(&rows);
            prop_assert_eq!(ends.len(), rows.len());
            for (i, a) in rows.iter().enumerate() {
                for (j, b) in rows.iter().enumerate().skip(i + 1) {
                    let apart = a.1 <= b.0;
                    let inside = b.1 <= a.1;
                    prop_assert!(places[i] != places[j] || apart || inside);
                }
            }
        }
    }
}
