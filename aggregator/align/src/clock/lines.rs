//! All lines that pass through a set of gates: the offsets and drifts that the evidence allows.
//!
//! Each piece of evidence is a gate: at this time, the offset was at least *low* and at most *high*. A clock that
//! drifts evenly is a line through all gates. In the plane of (offset at the origin, drift) these lines form a convex
//! polygon. Its corners limit the mean drift of a clock, and an estimate outside of it is moved into it. The guaranteed
//! error does not come from these lines, because clocks bend (`bend`).
//!
//! ```text
//! offset │      ┬                          ┬ ···/ highest feasible line
//!        │      │             ┬        ···/│
//!        │      │  ─ ─ ─ ─ ─ ─│─ ─··─/─ ─ ─│─ ─   estimate
//!        │      │         ··/ │            │
//!        │      │   ···/      │            ┴
//!        │      ┴/            ┴
//!        └──────────────────────────────────── time
//! ```

use crate::clock::polygon::{Polygon, Side};

/// An offset that changes evenly: `offset + drift·t`, t in ns from the origin.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct Line {
    pub(crate) offset: f64,
    pub(crate) drift: f64,
}

impl Line {
    pub(crate) fn at(&self, t: f64) -> f64 {
        self.offset + self.drift * t
    }

    /// The line with its offset rounded to ns.
    pub(crate) fn rounded(self) -> Self {
        Self { offset: self.offset.round(), ..self }
    }
}

/// Evidence: at time `t` (ns from the origin) the offset lies in `low..=high`; either limit may be infinite.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Gate {
    pub(crate) t: f64,
    pub(crate) low: f64,
    pub(crate) high: f64,
}

/// The lines through all gates whose drift is within a limit: a convex polygon, never empty.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Feasible {
    /// Corners in order: offset at the origin, and drift times `scale`. Both are in ns, so f64 loses neither.
    corners: Vec<(f64, f64)>,
    scale: f64,
}

impl Feasible {
    /// The lines through all gates with |drift| ≤ `drift_limit`.
    ///
    /// # Errors
    /// The index of a gate that excludes every line through all gates before it.
    pub(crate) fn through(gates: &[Gate], drift_limit: f64) -> Result<Self, usize> {
        let scale = gates.iter().map(|g| g.t.abs()).fold(1.0, f64::max);
        let finite = |x: f64| if x.is_finite() { x.abs() } else { 0.0 };
        let reach = gates.iter().map(|g| finite(g.low).max(finite(g.high))).fold(1.0, f64::max);
        let (width, height) = (4.0 * (reach + drift_limit * scale), drift_limit * scale);
        let mut polygon = Polygon::rectangle(width, height);
        for (position, gate) in gates.iter().enumerate() {
            let slope = gate.t / scale;
            let mut cut = |side: Side, limit: f64| !limit.is_finite() || polygon.cut(side, slope, limit);
            if !(cut(Side::Greatest, gate.high) && cut(Side::Least, gate.low)) {
                return Err(position);
            }
        }
        Ok(Self { corners: polygon.corners(), scale })
    }

    /// Smallest and largest feasible drift.
    pub(crate) fn drift_range(&self) -> (f64, f64) {
        let drifts = || self.corners.iter().map(|c| c.1 / self.scale);
        (drifts().fold(f64::INFINITY, f64::min), drifts().fold(f64::NEG_INFINITY, f64::max))
    }

    /// Returns a feasible line unchanged; moves any other line toward the middle of the polygon until it is feasible.
    pub(crate) fn clamp(&self, line: Line) -> Line {
        let n = self.corners.len() as f64;
        let middle = self.corners.iter().fold((0.0, 0.0), |m, c| (m.0 + c.0 / n, m.1 + c.1 / n));
        let start = (line.offset, line.drift * self.scale);
        let toward = |x: f64| (start.0 + x * (middle.0 - start.0), start.1 + x * (middle.1 - start.1));
        if self.contains(start) {
            return line;
        }
        let (mut outside, mut inside) = (0.0, 1.0);
        for _ in 0..60 {
            let x = 0.5 * (outside + inside);
            if self.contains(toward(x)) { inside = x } else { outside = x }
        }
        let point = toward(inside);
        Line { offset: point.0, drift: point.1 / self.scale }
    }

    /// The nearest constant offset that is feasible without drift; `None` if there is none.
    pub(crate) fn clamp_constant(&self, offset: f64) -> Option<f64> {
        let (mut low, mut high) = (f64::INFINITY, f64::NEG_INFINITY);
        for (p, q) in edges(&self.corners) {
            if p.1 * q.1 > 0.0 {
                continue;
            }
            let x = if p.1 == q.1 { p.0 } else { p.0 + (q.0 - p.0) * (p.1 / (p.1 - q.1)) };
            let ends = if p.1 == q.1 { [p.0, q.0] } else { [x, x] };
            low = low.min(ends[0]).min(ends[1]);
            high = high.max(ends[0]).max(ends[1]);
        }
        (low <= high).then(|| offset.clamp(low, high))
    }

    fn contains(&self, point: (f64, f64)) -> bool {
        edges(&self.corners).all(|(p, q)| (q.0 - p.0) * (point.1 - p.1) - (q.1 - p.1) * (point.0 - p.0) >= 0.0)
    }
}

fn edges(corners: &[(f64, f64)]) -> impl Iterator<Item = ((f64, f64), (f64, f64))> + '_ {
    let next = corners.iter().cycle().skip(1);
    corners.iter().zip(next).map(|(p, q)| (*p, *q))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn gate(t: f64, low: f64, high: f64) -> Gate {
        Gate { t, low, high }
    }

    // offset 10 │ ┬
    //           │ │         ┬  6
    //         0 │ ┴         ┴ −4      the steepest lines run from 10 to −4 and from 0 to 6
    //             0        100
    #[test]
    fn two_gates_make_a_parallelogram() {
        let feasible = Feasible::through(&[gate(0.0, 0.0, 10.0), gate(100.0, -4.0, 6.0)], 1.0).unwrap();
        let (low, high) = feasible.drift_range();
        assert!((low + 0.14).abs() < 1e-12 && (high - 0.06).abs() < 1e-12);
    }

    #[test]
    fn one_gate_leaves_the_drift_to_its_limit() {
        let feasible = Feasible::through(&[gate(0.0, -5.0, 5.0)], 0.5).unwrap();
        assert_eq!(feasible.drift_range(), (-0.5, 0.5));
    }

    #[test]
    fn a_gate_that_no_line_reaches_is_reported() {
        let gates = [gate(0.0, -1.0, 1.0), gate(50.0, -1.0, 1.0), gate(100.0, 90.0, 91.0)];
        assert_eq!(Feasible::through(&gates, 1.0), Err(2));
        // Two gates already contradict each other if the drift limit is small:
        assert_eq!(Feasible::through(&gates[1..], 0.1), Err(1));
    }

    #[test]
    fn an_estimate_outside_is_moved_to_the_edge() {
        let feasible = Feasible::through(&[gate(0.0, 0.0, 10.0), gate(100.0, 0.0, 10.0)], 1.0).unwrap();
        let inside = Line { offset: 9.0, drift: 0.0 };
        assert_eq!(feasible.clamp(inside), inside);
        let clamped = feasible.clamp(Line { offset: 30.0, drift: 0.0 });
        assert!((clamped.offset - 10.0).abs() < 1e-6 && clamped.drift.abs() < 1e-9, "{clamped:?}");
        assert_eq!(feasible.clamp_constant(-7.0), Some(0.0));
        let tilted = Feasible::through(&[gate(0.0, 0.0, 1.0), gate(100.0, 50.0, 51.0)], 1.0).unwrap();
        assert_eq!(tilted.clamp_constant(0.5), None);
    }
}
