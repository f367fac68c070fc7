//! The offsets that the evidence allows a clock whose drift changes.
//!
//! A gate limits the offset at its own time. Away from its time, only the clock itself limits it: the offset leaves the
//! estimate no faster than the clock's drift may differ from the drift of the estimate.
//!
//! ```text
//! offset │            ,-´`-,                 highest offset
//!        │      ┬  ,-´      `-, ┬
//!        │ ─ ─ ─│─ ─ ─ ─ ─ ─ ─ ─│─ ─ ─ ─      estimate
//!        │      ┴ `-,       ,-´ ┴ `-,
//!        │           `-,,-´          `-      lowest offset
//!        └──────────────────────────────── time
//! ```
//!
//! A line that two gates permit says nothing about the time between them: a clock that runs fast first and slow later
//! passes both.

use crate::clock::curve::Curve;
use crate::clock::lines::{Feasible, Gate, Line};

/// Largest difference between the drift of a clock at any time and its mean drift. A quartz oscillator changes by up to
/// 0.1 ppm for each °C near room temperature, and NTP corrects the frequency of a clock that it disciplines in steps
/// of a few ppm.
pub(crate) const BEND_LIMIT: f64 = 10e-6;

/// The largest distance of the true offset from an estimate.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Bend {
    /// Between the first and the last gate.
    within: f64,
    /// At the first and at the last gate: time, distance.
    ends: [(f64, f64); 2],
    /// Growth of the distance beyond the gates.
    limit: f64,
}

impl Bend {
    /// The region that `gates` allow around `line`. The drift of the clock may differ from its mean by [`BEND_LIMIT`],
    /// and its mean from that of `line` by as much as `feasible`, the lines through all gates, allows. With a curve, the region
    /// is around `line` and the curve. `None` if the gates do not limit the offset on both sides.
    ///
    /// # Errors
    /// The index of a gate that no such clock can pass after it passed all gates of earlier times.
    pub(crate) fn through(
        gates: &[Gate],
        line: Line,
        curve: Option<&Curve>,
        feasible: Option<&Feasible>,
    ) -> Result<Option<Self>, usize> {
        let of_lines = feasible.map_or(BEND_LIMIT, |lines| farthest_drift(lines, line));
        let limit = BEND_LIMIT + of_lines + curve.map_or(0.0, Curve::steepest);
        let mut order: Vec<usize> = (0..gates.len()).collect();
        order.sort_by(|a, b| gates[*a].t.total_cmp(&gates[*b].t));
        let mut limits: Vec<Gate> = order.iter().map(|at| relative(gates[*at], line, curve)).collect();
        for at in 1..limits.len() {
            limits[at] = tighten(limits[at], limits[at - 1], limit);
            if limits[at].low > limits[at].high {
                return Err(order[at]);
            }
        }
        for at in (1..limits.len()).rev() {
            limits[at - 1] = tighten(limits[at - 1], limits[at], limit);
        }
        let (Some(first), Some(last)) = (limits.first(), limits.last()) else { return Ok(None) };
        let between = limits.windows(2).map(|pair| {
            // The region is widest where the limits of two neighbours meet.
            let apart = limit * (pair[1].t - pair[0].t);
            0.5 * (apart + (pair[0].high + pair[1].high).max(-pair[0].low - pair[1].low))
        });
        let within = between.fold(distance(first).max(distance(last)), f64::max);
        let ends = [first, last].map(|gate| (gate.t, distance(gate)));
        Ok(within.is_finite().then_some(Self { within, ends, limit }))
    }

    /// The largest distance between two times, in ns.
    pub(crate) fn deviation(&self, from: f64, to: f64) -> f64 {
        let [(first, at_first), (last, at_last)] = self.ends;
        let before = at_first + self.limit * (first - from).max(0.0);
        let after = at_last + self.limit * (to - last).max(0.0);
        self.within.max(before).max(after)
    }
}

/// The largest difference between the drift of `line` and that of a feasible line.
fn farthest_drift(feasible: &Feasible, line: Line) -> f64 {
    let (low, high) = feasible.drift_range();
    (line.drift - low).max(high - line.drift)
}

/// The limits of a gate, above `line` and the curve.
fn relative(gate: Gate, line: Line, curve: Option<&Curve>) -> Gate {
    let at = line.at(gate.t) + curve.map_or(0.0, |curve| curve.at(gate.t));
    Gate { low: gate.low - at, high: gate.high - at, ..gate }
}

/// The limits of a gate, as narrow as those of a neighbour permit.
fn tighten(gate: Gate, neighbour: Gate, limit: f64) -> Gate {
    let apart = limit * (gate.t - neighbour.t).abs();
    Gate { low: gate.low.max(neighbour.low - apart), high: gate.high.min(neighbour.high + apart), ..gate }
}

fn distance(gate: &Gate) -> f64 {
    gate.high.max(-gate.low)
}

#[cfg(test)]
mod tests {
    use super::*;

    const S: f64 = 1e9;

    fn gate(t: f64, half: f64, offset: f64) -> Gate {
        Gate { t, low: offset - half, high: offset + half }
    }

    fn bend(gates: &[Gate], line: Line) -> Option<Bend> {
        let feasible = Feasible::through(gates, 500e-6).ok();
        Bend::through(gates, line, None, feasible.as_ref()).unwrap()
    }

    // ±1 µs ┬                     ┬     300 s apart: between them the clock may run 10 ppm faster, then 10 ppm slower
    //       ┴                     ┴
    #[test]
    fn two_gates_guarantee_little_in_the_time_between_them() {
        let found = bend(&[gate(0.0, 1e3, 0.0), gate(300.0 * S, 1e3, 0.0)], Line::default()).unwrap();
        let deviation = found.deviation(0.0, 300.0 * S);
        assert!((1.5e6..1.6e6).contains(&deviation), "10 ppm for 150 s are 1.5 ms: {deviation}");
        let often: Vec<Gate> = (0..=20).map(|k| gate(15.0 * S * f64::from(k), 1e3, 0.0)).collect();
        let deviation = bend(&often, Line::default()).unwrap().deviation(0.0, 300.0 * S);
        assert!((75e3..78e3).contains(&deviation), "10 ppm for 7.5 s are 75 µs: {deviation}");
    }

    // offset     ┬
    //            ┴   ┬         40 ppm straight, then 8 ppm less: no line passes all three
    //       ┬        ┴
    //       ┴
    #[test]
    fn a_clock_that_bends_keeps_its_guarantee() {
        let bent = |t: f64| 40e-6 * t - 8e-6 * (t - 10.0 * S).max(0.0);
        let gates: Vec<Gate> = [0.0, 10.0, 20.0].map(|s| gate(s * S, 1e3, bent(s * S))).to_vec();
        assert!(Feasible::through(&gates, 500e-6).is_err());
        let line = Line { offset: 20e3, drift: 36e-6 };
        let found = bend(&gates, line).unwrap();
        for t in (0..=20).map(|s| f64::from(s) * S) {
            assert!((bent(t) - line.at(t)).abs() <= found.deviation(0.0, 20.0 * S));
        }
    }

    #[test]
    fn beyond_the_gates_the_distance_grows_with_time() {
        let gates = [gate(0.0, 1e3, 0.0), gate(S, 1e3, 0.0), gate(2.0 * S, 1e3, 0.0)];
        let found = bend(&gates, Line::default()).unwrap();
        let near = found.deviation(0.0, 2.0 * S);
        let far = found.deviation(0.0, 12.0 * S);
        assert!(far > near + 90e3 && far < near + 130e3, "{near} {far}");
        assert_eq!(found.deviation(-10.0 * S, 2.0 * S), far);
    }

    #[test]
    fn a_jump_is_no_bend() {
        let gates = [gate(0.0, 1e3, 0.0), gate(S, 1e3, 0.0), gate(2.0 * S, 1e3, 1e6), gate(3.0 * S, 1e3, 1e6)];
        assert_eq!(Bend::through(&gates, Line::default(), None, None), Err(2));
    }

    #[test]
    fn gates_of_one_side_guarantee_nothing() {
        let open = Gate { t: 0.0, low: 3.0, high: f64::INFINITY };
        assert_eq!(bend(&[open], Line::default()), None);
        assert_eq!(bend(&[], Line::default()), None);
    }
}
