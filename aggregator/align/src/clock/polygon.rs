//! A convex polygon that half-planes cut one after the other.
//!
//! Points are (a, b). A cut leaves the points below or above a line `a + slope·b = limit`. Lines of one side bound the
//! polygon in the order of their slopes, so the corner that a new line cuts first is found by its slope:
//!
//! ```text
//!  b │     _____________
//!    │    /             \   slope  0.4
//!    │   |               \
//!    │   |                |        0.0     a line of slope 0.2 that cuts anything
//!    │    \              /                 cuts the corner between 0.0 and 0.4
//!    │     \____________/         −0.3
//!    └──────────────────────────── a
//! ```
//!
//! A cut adds two corners and removes those that lie outside, so n cuts take n log n.

use std::cmp::Ordering;
use std::collections::BTreeMap;

/// The side on which a line bounds the polygon.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Side {
    /// `a + slope·b` is at least the limit.
    Least,
    /// `a + slope·b` is at most the limit.
    Greatest,
}

/// A line: its slope, and the number of its cut, because lines may be parallel.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Line(f64, usize);

impl Eq for Line {}

impl Ord for Line {
    fn cmp(&self, other: &Self) -> Ordering {
        self.0.total_cmp(&other.0).then(self.1.cmp(&other.1))
    }
}

impl PartialOrd for Line {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

/// A corner, with its neighbours and the edge to the next one.
#[derive(Clone, Copy, Debug)]
struct Corner {
    at: (f64, f64),
    previous: usize,
    next: usize,
    /// The side and the line of the edge; `None` for the edges of the first rectangle along which only `a` changes.
    edge: Option<(Side, Line)>,
}

/// A convex polygon. Its corners have a direction of rotation and a first one, so that they are listed in a fixed order.
#[derive(Debug)]
pub(super) struct Polygon {
    /// All corners that ever were.
    corners: Vec<Corner>,
    first: usize,
    /// The edges of each side by their lines, as the corner where they begin.
    least: BTreeMap<Line, usize>,
    greatest: BTreeMap<Line, usize>,
    cuts: usize,
}

impl Polygon {
    /// The points with |a| ≤ `width` and |b| ≤ `height`.
    pub(super) fn rectangle(width: f64, height: f64) -> Self {
        let line = Line(0.0, 0);
        let corner =
            |at: (f64, f64), place: usize, edge| Corner { at, previous: (place + 3) % 4, next: (place + 1) % 4, edge };
        let corners = vec![
            corner((-width, -height), 0, None),
            corner((width, -height), 1, Some((Side::Greatest, line))),
            corner((width, height), 2, None),
            corner((-width, height), 3, Some((Side::Least, line))),
        ];
        let (least, greatest) = (BTreeMap::from([(line, 3)]), BTreeMap::from([(line, 1)]));
        Self { corners, first: 0, least, greatest, cuts: 0 }
    }

    /// Removes the points beyond a line. Returns whether any are left; if not, the polygon must not be used again.
    pub(super) fn cut(&mut self, side: Side, slope: f64, limit: f64) -> bool {
        let inside = |(a, b): (f64, f64)| match side {
            Side::Greatest => limit - (a + slope * b),
            Side::Least => (a + slope * b) - limit,
        };
        let outermost = self.outermost(side, slope, &inside);
        let is_outside = |corner: usize| inside(self.corners[corner].at) < 0.0;
        if !is_outside(outermost) {
            return true;
        }
        let mut last = self.corners[outermost].previous;
        while last != outermost && is_outside(last) {
            last = self.corners[last].previous;
        }
        if last == outermost {
            return false;
        }
        let mut first = self.corners[outermost].next;
        while is_outside(first) {
            first = self.corners[first].next;
        }
        let crossing = |from: usize| {
            let (p, q) = (self.corners[from].at, self.corners[self.corners[from].next].at);
            let (at_p, at_q) = (inside(p), inside(q));
            let x = at_p / (at_p - at_q);
            (p.0 + x * (q.0 - p.0), p.1 + x * (q.1 - p.1))
        };
        self.cuts += 1;
        let line = Line(slope, self.cuts);
        let (leaves, enters) = (self.corners.len(), self.corners.len() + 1);
        let entering = self.corners[first].previous;
        let new = [
            Corner { at: crossing(last), previous: last, next: enters, edge: Some((side, line)) },
            Corner { at: crossing(entering), previous: leaves, next: first, edge: self.corners[entering].edge },
        ];
        self.remove_between(last, first, enters);
        self.corners.extend(new);
        self.corners[last].next = leaves;
        self.corners[first].previous = enters;
        self.edges(side).insert(line, leaves);
        if let Some((side, line)) = self.corners[enters].edge {
            self.edges(side).insert(line, enters);
        }
        true
    }

    /// The corners in order.
    pub(super) fn corners(&self) -> Vec<(f64, f64)> {
        let mut listed = vec![self.corners[self.first].at];
        let mut corner = self.corners[self.first].next;
        while corner != self.first {
            listed.push(self.corners[corner].at);
            corner = self.corners[corner].next;
        }
        listed
    }

    fn edges(&mut self, side: Side) -> &mut BTreeMap<Line, usize> {
        match side {
            Side::Least => &mut self.least,
            Side::Greatest => &mut self.greatest,
        }
    }

    /// The corner for which `inside` is least: it lies between the edges with smaller and those with larger slopes.
    fn outermost(&self, side: Side, slope: f64, inside: &impl Fn((f64, f64)) -> f64) -> usize {
        let edges = match side {
            Side::Least => &self.least,
            Side::Greatest => &self.greatest,
        };
        let steeper = edges.range(Line(slope, usize::MAX)..).next().map(|(_, corner)| *corner);
        let end_of_last = || edges.last_key_value().map(|(_, corner)| self.corners[*corner].next);
        let mut outermost = steeper.or_else(end_of_last).unwrap_or(self.first);
        // Rounding moves corners, so a neighbour may lie farther out. A polygon that has become a point may have lost
        // all edges of a side.
        for step in [|corner: &Corner| corner.next, |corner: &Corner| corner.previous] {
            let at = |corner: usize| inside(self.corners[corner].at);
            let mut neighbour = step(&self.corners[outermost]);
            while at(neighbour) < at(outermost) {
                outermost = neighbour;
                neighbour = step(&self.corners[outermost]);
            }
        }
        outermost
    }

    /// Removes the edges of the corners between two others. If the first of all corners is among them, `first_instead`
    /// takes its place.
    fn remove_between(&mut self, from: usize, to: usize, first_instead: usize) {
        let mut corner = self.corners[from].next;
        while corner != to {
            if corner == self.first {
                self.first = first_instead;
            }
            let Corner { next, edge, .. } = self.corners[corner];
            if let Some((side, line)) = edge {
                self.edges(side).remove(&line);
            }
            corner = next;
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// The definition: keeps the corners inside, and adds those where an edge crosses the line (Sutherland and Hodgman).
    fn clip(corners: Vec<(f64, f64)>, inside: impl Fn((f64, f64)) -> f64) -> Vec<(f64, f64)> {
        let mut clipped = Vec::new();
        for (p, q) in corners.iter().zip(corners.iter().cycle().skip(1)) {
            let (at_p, at_q) = (inside(*p), inside(*q));
            if at_p >= 0.0 {
                clipped.push(*p);
            }
            if (at_p >= 0.0) != (at_q >= 0.0) {
                let x = at_p / (at_p - at_q);
                clipped.push((p.0 + x * (q.0 - p.0), p.1 + x * (q.1 - p.1)));
            }
        }
        clipped
    }

    fn lines() -> impl Strategy<Value = Vec<(bool, f64, f64)>> {
        // Few slopes, so that lines are parallel or equal; each leaves the middle of the rectangle inside.
        let line = (any::<bool>(), -8..=8_i32, 1..60_i32);
        prop::collection::vec(
            line.prop_map(|(least, slope, limit)| (least, f64::from(slope) / 8.0, f64::from(limit))),
            0..60,
        )
    }

    proptest! {
        #[test]
        fn cuts_are_those_of_the_definition(lines in lines(), last in -200..200_i32) {
            let mut polygon = Polygon::rectangle(50.0, 70.0);
            let mut corners = vec![(-50.0, -70.0), (50.0, -70.0), (50.0, 70.0), (-50.0, 70.0)];
            for (least, slope, limit) in lines {
                let sign = if least { -1.0 } else { 1.0 };
                let side = if least { Side::Least } else { Side::Greatest };
                corners = clip(corners, |(a, b)| sign * (sign * limit - (a + slope * b)));
                prop_assert!(polygon.cut(side, slope, sign * limit));
            }
            let found = polygon.corners();
            // Where three lines meet, rounding decides how many corners there are.
            let near = |a: &(f64, f64), b: &(f64, f64)| (a.0 - b.0).abs() < 1e-9 && (a.1 - b.1).abs() < 1e-9;
            for (some, others) in [(&found, &corners), (&corners, &found)] {
                prop_assert!(some.iter().all(|a| others.iter().any(|b| near(a, b))), "{:?} {:?}", found, corners);
            }
            prop_assert!(near(&found[0], &corners[0]));
            // A last cut may leave nothing.
            let limit = f64::from(last) + 0.123;
            let left = clip(corners, |(a, _)| limit - a);
            prop_assert_eq!(polygon.cut(Side::Greatest, 0.0, limit), !left.is_empty());
        }
    }

    /// Tangents of a parabola, in an order that jumps: each cuts one corner, so that there are 10⁵. Passing all corners
    /// for each cut would take 10¹⁰ steps.
    #[test]
    fn many_corners_take_little_time() {
        const CUTS: usize = 100_000;
        let mut polygon = Polygon::rectangle(1e6, 1e5);
        for at in 0..CUTS {
            let slope = ((at * 61_803) % CUTS) as f64 / CUTS as f64 - 0.5;
            assert!(polygon.cut(Side::Greatest, slope, 4e4 * slope * slope));
        }
        assert_eq!(polygon.corners().len(), CUTS + 3);
        // Lines through one point may leave as many corners there as rounding wants.
        for at in 0..CUTS {
            assert!(polygon.cut(Side::Least, at as f64 / CUTS as f64 - 0.5, -7.0));
        }
        assert!(!polygon.cut(Side::Least, 0.0, 1.0));
    }
}
