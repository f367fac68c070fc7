//! The rows of the spine and of a rank, by token.

use std::collections::BTreeMap;

/// Drift limit between two clocks: two quartz oscillators at ±50 ppm. In parts per 10⁶.
const DRIFT_LIMIT_PPM: i64 = 100;
/// Cost of a pair whose rows name different steps, in nats (a likelihood ratio of e).
const STEPS_DIFFER: f64 = 1.0;

/// One row. Times are in its rank's clock, or in the spine's clock.
#[derive(Clone, Debug)]
pub(super) struct Item {
    /// Rows can be one collective only if their tokens are equal: the number of a group that a key has matched, which is
    /// evidence for the offset, or above those a number for the likeness.
    pub(super) token: u32,
    pub(super) start_ns: i64,
    pub(super) end_ns: i64,
    pub(super) slack_ns: i64,
    pub(super) step: Option<i32>,
    /// The rows that this item represents, as positions of the rank and of its row: one, or on the spine all rows that were
    /// merged into it.
    pub(super) rows: Vec<(usize, usize)>,
}

/// An item of the spine or of the rank.
#[derive(Clone, Copy, Debug)]
pub(super) struct Row {
    pub(super) start_ns: i64,
    pub(super) end_ns: i64,
    slack_ns: i64,
    /// On the spine: drift can move its time by this much, beyond a constant offset.
    drift_ns: i64,
    step: Option<i32>,
    /// Position of the item.
    pub(super) at: u32,
}

impl Row {
    fn new(at: usize, item: &Item, drift_ns: i64) -> Self {
        let Item { start_ns, end_ns, slack_ns, step, .. } = *item;
        Self { start_ns, end_ns, slack_ns, drift_ns, step, at: at as u32 }
    }

    /// A row of the spine may lie this far from its partner without overlap.
    pub(super) fn slack_with(&self, partner: &Self) -> i64 {
        self.slack_ns.max(partner.slack_ns) + self.drift_ns
    }

    /// The cost of pairing a row of the spine with one of the rank, whose clock is `offset_ns` behind. Infinite if they
    /// do not overlap.
    pub(super) fn cost_with(&self, partner: &Self, offset_ns: i64) -> f64 {
        let slack = self.slack_with(partner);
        let on_spine = |t: i64| t.saturating_add(offset_ns);
        let overlap = self.start_ns <= on_spine(partner.end_ns).saturating_add(slack)
            && on_spine(partner.start_ns) <= self.end_ns.saturating_add(slack);
        if !overlap {
            return f64::INFINITY;
        }
        // Each program counts its own steps, so a step number is a hint and not a key.
        let steps_differ = self.step.is_some() && partner.step.is_some() && self.step != partner.step;
        cost_of(self.end_ns.saturating_sub(on_spine(partner.end_ns))) + if steps_differ { STEPS_DIFFER } else { 0.0 }
    }
}

fn cost_of(distance_ns: i64) -> f64 {
    (1.0 + distance_ns.unsigned_abs() as f64 / 1_000.0).ln()
}

/// The rows of one token. Both sides have some.
#[derive(Debug)]
pub(super) struct Shared {
    pub(super) on_spine: Vec<Row>,
    pub(super) in_rank: Vec<Row>,
    /// The ends of the rank's rows, ascending.
    pub(super) rank_ends: Vec<i64>,
}

/// All rows of tokens that both sides have.
#[derive(Debug)]
pub(super) struct Lists {
    pub(super) tokens: Vec<Shared>,
    /// Cost of a row without a partner.
    pub(super) alone: f64,
    /// The first and the last end on the spine, and in the rank.
    hulls: Option<[(i64, i64); 2]>,
}

impl Lists {
    pub(super) fn new(spine: &[Item], items: &[Item]) -> Self {
        let mut by_token: BTreeMap<u32, (Vec<usize>, Vec<usize>)> = BTreeMap::new();
        for (i, item) in spine.iter().enumerate() {
            by_token.entry(item.token).or_default().0.push(i);
        }
        for (j, item) in items.iter().enumerate() {
            by_token.entry(item.token).or_default().1.push(j);
        }
        by_token.retain(|_, (on_spine, in_rank)| !on_spine.is_empty() && !in_rank.is_empty());
        let mut ends: Vec<i64> = by_token.values().flat_map(|(s, _)| s.iter().map(|i| spine[*i].end_ns)).collect();
        ends.sort_unstable();
        let mut gaps: Vec<i64> = ends.windows(2).map(|w| w[1].saturating_sub(w[0])).collect();
        gaps.sort_unstable();
        let spacing = gaps.get(gaps.len() / 2).copied().unwrap_or(1_000_000);
        let center_ns = ends.get(ends.len() / 2).copied().unwrap_or(0);
        let drift_ns =
            |item: &Item| item.end_ns.abs_diff(center_ns).min(i64::MAX as u64) as i64 / 1_000_000 * DRIFT_LIMIT_PPM;
        let shared = |(on_spine, in_rank): (Vec<usize>, Vec<usize>)| {
            let mut rank_ends: Vec<i64> = in_rank.iter().map(|j| items[*j].end_ns).collect();
            rank_ends.sort_unstable();
            Shared {
                on_spine: on_spine.into_iter().map(|i| Row::new(i, &spine[i], drift_ns(&spine[i]))).collect(),
                in_rank: in_rank.into_iter().map(|j| Row::new(j, &items[j], 0)).collect(),
                rank_ends,
            }
        };
        let tokens: Vec<Shared> = by_token.into_values().map(shared).collect();
        let of_rank = || tokens.iter().flat_map(|rows| [rows.rank_ends.first(), rows.rank_ends.last()]).flatten();
        let hulls = ends.first().zip(ends.last()).zip(of_rank().min().zip(of_rank().max()));
        let hulls = hulls.map(|(s, r)| [(*s.0, *s.1), (*r.0, *r.1)]);
        Self { tokens, alone: cost_of(spacing.max(1_000)), hulls }
    }

    /// The time span in which both sides recorded, on the spine's clock.
    pub(super) fn both_record(&self, offset_ns: i64) -> (i64, i64) {
        let Some([spine, rank]) = self.hulls else { return (0, 0) };
        (spine.0.max(rank.0.saturating_add(offset_ns)), spine.1.min(rank.1.saturating_add(offset_ns)))
    }
}
