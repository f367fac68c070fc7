//! Affine maps from one clock to another.

/// A map between clocks: `to = t + offset + drift·(t − origin)`, in ns. Drift is a ratio (1e-6 is 1 ppm). Exact where
/// drift is zero.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Affine {
    /// Offset at `origin_ns`.
    pub offset_ns: i64,
    /// Growth of the offset per ns.
    pub drift: f64,
    /// Time in the source clock at which drift contributes nothing.
    pub origin_ns: i64,
}

impl Affine {
    /// The map of a clock to itself.
    pub const IDENTITY: Self = Self { offset_ns: 0, drift: 0.0, origin_ns: 0 };

    /// Converts a time to the target clock.
    pub fn apply(&self, t_ns: i64) -> i64 {
        t_ns.saturating_add(self.offset_ns).saturating_add(self.gain_ns(t_ns))
    }

    /// Contribution of drift at a time, rounded to ns.
    fn gain_ns(&self, t_ns: i64) -> i64 {
        if self.drift == 0.0 { 0 } else { (self.drift * t_ns.saturating_sub(self.origin_ns) as f64).round() as i64 }
    }

    /// Composes this map with `next`. Exact if at most one of the two drifts; otherwise rounded once to the ns.
    pub fn then(&self, next: &Self) -> Self {
        let offset_ns = self.offset_ns.saturating_add(next.offset_ns);
        if self.drift == 0.0 && next.drift == 0.0 {
            return Self { offset_ns, ..*self };
        }
        if self.drift == 0.0 {
            // Keep the origin of the drift: far from it, an f64 would lose the contribution of drift.
            return Self { offset_ns, drift: next.drift, origin_ns: next.origin_ns.saturating_sub(self.offset_ns) };
        }
        let there = self.origin_ns.saturating_add(self.offset_ns);
        Self {
            offset_ns: offset_ns.saturating_add(next.gain_ns(there)),
            drift: self.drift + next.drift + self.drift * next.drift,
            origin_ns: self.origin_ns,
        }
    }

    /// The inverse map.
    pub fn inverse(&self) -> Self {
        Self {
            offset_ns: self.offset_ns.saturating_neg(),
            drift: if self.drift == 0.0 { 0.0 } else { 1.0 / (1.0 + self.drift) - 1.0 },
            origin_ns: self.origin_ns.saturating_add(self.offset_ns),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_shift_is_exact_even_for_times_of_day() {
        let map = Affine { offset_ns: -1_790_857_026_000_000_001, drift: 0.0, origin_ns: 5 };
        assert_eq!(map.apply(1_790_857_026_000_000_003), 2);
        assert_eq!(map.inverse().apply(2), 1_790_857_026_000_000_003);
    }

    #[test]
    fn an_inverse_returns_the_time_within_rounding() {
        let a = Affine { offset_ns: 250_000_000, drift: 40e-6, origin_ns: 1_000_000_000 };
        let b = Affine { offset_ns: -77_000, drift: -13e-6, origin_ns: 1_200_000_000 };
        for t in [0, 1_000_000_000, 61_234_567_891] {
            assert!((a.inverse().apply(a.apply(t)) - t).abs() <= 1);
            assert!((a.then(&b).apply(t) - b.apply(a.apply(t))).abs() <= 2);
        }
    }

    #[test]
    fn a_shift_before_or_after_a_drift_is_exact() {
        let shift = Affine { offset_ns: 1_790_857_026_000_000_001, ..Affine::IDENTITY };
        let drift = Affine { offset_ns: -3, drift: 31e-6, origin_ns: 1_790_857_026_000_000_000 };
        for t in [0, 17, 60_123_456_789] {
            assert_eq!(shift.then(&drift).apply(t), drift.apply(shift.apply(t)));
            let late = t + drift.origin_ns;
            assert_eq!(drift.then(&shift.inverse()).apply(late), shift.inverse().apply(drift.apply(late)));
        }
    }

    #[test]
    fn extreme_times_saturate() {
        let map = Affine { offset_ns: i64::MAX, drift: 1e-3, origin_ns: i64::MIN };
        assert_eq!(map.apply(i64::MAX), i64::MAX);
    }
}
