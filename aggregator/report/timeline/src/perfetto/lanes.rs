//! Lanes: rows of one thread or stream that overlap without nesting are drawn on several tracks.
//!
//! ```text
//!   rows          |--A---------|        |--D--|
//!                    |-B-|  |---C---|
//!   lane 0        |--A---------|        |--D--|
//!                    |-B-|
//!   lane 1                  |---C---|
//! ```

use std::cmp::Reverse;
use std::collections::BinaryHeap;

/// The lanes of one thread or stream.
#[derive(Debug, Default)]
pub(super) struct Lanes {
    lanes: Vec<Lane>,
    /// For each lane, the end of its innermost row that has not ended, or [`FREE`]. Only rows that cross another need
    /// it, so the first lane is left out.
    innermost: LargestFirst,
    /// The ends of the open rows behind the first lane, with their lanes, the first end first.
    next_ends: BinaryHeap<Reverse<(i64, usize)>>,
}

/// The end of no row.
const FREE: i64 = i64::MAX;

/// The open rows of a lane, by their ends. Each row lies inside of the one before.
#[derive(Debug, Default)]
struct Lane {
    open: Vec<i64>,
    /// Rows that have not ended: the first ones of `open`. The ends of the others are not yet reported.
    live: usize,
}

impl Lane {
    /// The end of the innermost row that ends after a time, or [`FREE`]. Times ascend.
    fn innermost(&mut self, at_ns: i64) -> i64 {
        while self.live > 0 && self.open[self.live - 1] <= at_ns {
            self.live -= 1;
        }
        self.live.checked_sub(1).map_or(FREE, |at| self.open[at])
    }

    /// Reports all rows that have ended, innermost first, and opens a row.
    fn open(&mut self, end_ns: i64, mut ended: impl FnMut(i64)) {
        self.open.drain(self.live..).rev().for_each(&mut ended);
        self.open.push(end_ns);
        self.live = self.open.len();
    }
}

impl Lanes {
    /// Finds the lane of a row from `start_ns` to `end_ns`; rows come by start, longest first. Calls `ended(lane,
    /// end_ns)` for every row of that lane that has ended by then, innermost first.
    pub(super) fn place(&mut self, start_ns: i64, end_ns: i64, mut ended: impl FnMut(usize, i64)) -> usize {
        if self.lanes.is_empty() {
            self.lanes.push(Lane::default());
        }
        if self.lanes[0].innermost(start_ns) >= end_ns {
            self.lanes[0].open(end_ns, |end| ended(0, end));
            return 0;
        }
        while let Some(Reverse((end, lane))) = self.next_ends.peek().copied()
            && end <= start_ns
        {
            self.next_ends.pop();
            self.note_innermost(lane, start_ns);
        }
        let lane = self.innermost.first_at_least(end_ns).unwrap_or(self.lanes.len() - 1) + 1;
        if lane == self.lanes.len() {
            self.lanes.push(Lane::default());
            self.innermost.push(FREE);
        }
        self.lanes[lane].open(end_ns, |end| ended(lane, end));
        self.next_ends.push(Reverse((end_ns, lane)));
        self.note_innermost(lane, start_ns);
        lane
    }

    /// Notes the innermost row of a lane behind the first.
    fn note_innermost(&mut self, lane: usize, at_ns: i64) {
        let end_ns = self.lanes[lane].innermost(at_ns);
        self.innermost.set(lane - 1, end_ns);
    }

    /// Ends all open rows, innermost first.
    pub(super) fn finish(&mut self, mut ended: impl FnMut(usize, i64)) {
        for (lane, rows) in self.lanes.iter_mut().enumerate() {
            rows.open.drain(..).rev().for_each(|end| ended(lane, end));
        }
    }
}

/// A list of numbers that finds the first one of at least some size: a tree with the largest number below each node.
#[derive(Debug, Default)]
struct LargestFirst {
    len: usize,
    /// The root is at 1, and the children of `i` at `2i` and `2i + 1`; the numbers are the second half.
    nodes: Vec<i64>,
}

impl LargestFirst {
    fn push(&mut self, value: i64) {
        if 2 * self.len >= self.nodes.len() {
            let leaves = (2 * self.len).max(1);
            let mut nodes = vec![i64::MIN; 2 * leaves];
            nodes[leaves..leaves + self.len].copy_from_slice(&self.nodes[self.nodes.len() / 2..][..self.len]);
            for at in (1..leaves).rev() {
                nodes[at] = nodes[2 * at].max(nodes[2 * at + 1]);
            }
            self.nodes = nodes;
        }
        self.len += 1;
        self.set(self.len - 1, value);
    }

    fn set(&mut self, at: usize, value: i64) {
        let mut at = at + self.nodes.len() / 2;
        self.nodes[at] = value;
        while at > 1 {
            at /= 2;
            self.nodes[at] = self.nodes[2 * at].max(self.nodes[2 * at + 1]);
        }
    }

    fn first_at_least(&self, least: i64) -> Option<usize> {
        let leaves = self.nodes.len() / 2;
        let mut at = 1;
        if self.nodes.get(at).is_none_or(|most| *most < least) {
            return None;
        }
        while at < leaves {
            at = if self.nodes[2 * at] >= least { 2 * at } else { 2 * at + 1 };
        }
        Some(at - leaves)
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

    /// The lanes from the definition: the first one in which the row crosses no open row.
    fn first_fit(rows: &[(i64, i64)]) -> (Vec<usize>, Vec<(usize, i64)>) {
        let (mut lanes, mut ends): (Vec<Vec<i64>>, Vec<(usize, i64)>) = Default::default();
        let place = |&(start, end): &(i64, i64)| {
            let fits = |open: &Vec<i64>| open.iter().all(|&other| other <= start || other >= end);
            let lane = lanes.iter().position(fits).unwrap_or(lanes.len());
            lanes.resize(lanes.len().max(lane + 1), Vec::new());
            while let Some(end) = lanes[lane].pop_if(|end| *end <= start) {
                ends.push((lane, end));
            }
            lanes[lane].push(end);
            lane
        };
        let places = rows.iter().map(place).collect();
        for (lane, open) in lanes.iter().enumerate() {
            ends.extend(open.iter().rev().map(|end| (lane, *end)));
        }
        (places, ends)
    }

    /// A search of all lanes for each row would look at 10¹¹ lanes.
    #[test]
    fn rows_that_all_cross_take_little_time() {
        const ROWS: i64 = 400_000;
        let (places, ends) = place(&(0..ROWS).map(|row| (row, ROWS + row)).collect::<Vec<_>>());
        assert!(places.iter().enumerate().all(|(row, lane)| row == *lane));
        assert_eq!(ends.len(), places.len());
    }

    proptest! {
        #[test]
        fn every_row_ends_once_and_lanes_nest(mut rows in prop::collection::vec((0..50_i64, 0..20_i64), 0..60)) {
            for row in &mut rows {
                row.1 += row.0;
            }
            rows.sort_by_key(|&(start, end)| (start, std::cmp::Reverse(end)));
            let (places, ends) = place(&rows);
            prop_assert_eq!((&places, &ends), (&first_fit(&rows).0, &first_fit(&rows).1));
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
