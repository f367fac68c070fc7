//! Clocks that jump: found in the departures from collectives, so that both sides are fitted as one clock.
//!
//! Between two collectives of one communicator, all clocks count the same time, up to drift and scatter. A clock that
//! jumps counts more or less than the others, once, and keeps the difference:
//!
//! ```text
//! rank 0   ═|      ═|      ═|      ═|      ═|        counts 8, 8, 8, 8 between departures
//! rank 1   ═|      ═|             ═|      ═|         counts 8, 15, 8, 8: its clock jumped by 7
//! rank 2   ═|      ═|     ═|        ═|      ═|       counts 8, 7, 10, 8: it left one collective early
//! ```
//!
//! A rank that leaves later from some collective on looks the same. So jumps are sought only where the evidence
//! contradicts itself, and only jumps that remove contradictions are believed.

use std::collections::BTreeMap;

use trace::{ClockFitRow, OmissionRow};

use crate::clock::affine::Affine;
use crate::clock::collective::DRIFT_LIMIT;
use crate::clock::map::Map;
use model::stats::{SIGMA_PER_MAD, median_in_place, weighted_median};
use model::{Barrier, Instance, RankOutline};

/// The most jumps of one clock.
const JUMPS_MAX: usize = 4;
/// The most jumps of all clocks.
const ALL_MAX: usize = 64;
/// Departures on either side that a jump must keep.
const SIDE: usize = 4;
/// Least jump, in standard deviations of the counts between departures, and in ns.
const SIGMAS: f64 = 10.0;
const LEAST_NS: f64 = 100_000.0;

/// A jump of a rank's clock. The times that its devices record follow it.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct Jump {
    /// Time of the clock from which on it has jumped.
    pub(crate) from_ns: i64,
    /// Last time that is certainly before the jump, and the first that is certainly after it.
    pub(crate) between_ns: (i64, i64),
    /// How far the clock leapt ahead.
    pub(crate) by_ns: i64,
    /// Error of `by_ns`.
    pub(crate) error_ns: i64,
    /// Guaranteed error of `by_ns`: no rank leaves before all have entered, on either side.
    pub(crate) bound_ns: i64,
}

impl Jump {
    /// The times that may lie on either side, if there are any: a clock that leaps farther ahead than the time between two
    /// departures never shows the same time on both sides, and one that leaps back shows times before it leapt again.
    fn unsure_ns(&self) -> Option<(i64, i64)> {
        let (before, after) = self.between_ns;
        let true_gap_ns = after.saturating_sub(before).saturating_sub(self.by_ns);
        let again_ns = self.by_ns.min(0);
        let unsure = (before.saturating_add(again_ns), after.saturating_sub(again_ns));
        (self.by_ns < true_gap_ns).then_some(unsure)
    }
}

/// The jumps of each rank's clock, ascending.
pub(crate) type Jumps = BTreeMap<i32, Vec<Jump>>;

/// A stretch of a clock's time, from its begin on, with its own offset.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Piece {
    /// The first time; `None`: the clock's first.
    pub(crate) from_ns: Option<i64>,
    /// How far the clock is ahead.
    pub(crate) ahead_ns: i64,
    /// Error and bound by jumps, beside those of the fit.
    pub(crate) error_ns: i64,
    pub(crate) bound_ns: i64,
}

/// The map of a clock that also jumped.
pub(crate) fn with_jumps(map: &Map, jumps: &[Jump]) -> Map {
    map.with_jumps(jumps.iter().map(|jump| (jump.from_ns, jump.by_ns)))
}

/// Sums of the errors and bounds of jumps. The size of a jump enters the fit of both sides.
pub(crate) fn errors(jumps: &[Jump]) -> (i64, i64) {
    let sum = |of: fn(&Jump) -> i64| jumps.iter().fold(0, |sum: i64, jump| sum.saturating_add(of(jump)));
    (sum(|jump| jump.error_ns), sum(|jump| jump.bound_ns))
}

/// The pieces of a clock with these jumps: one, and for each jump the time that may lie on either side and the time after it.
pub(crate) fn pieces(jumps: &[Jump]) -> Vec<Piece> {
    let (error_ns, bound_ns) = errors(jumps);
    let mut pieces = vec![Piece { from_ns: None, ahead_ns: 0, error_ns, bound_ns }];
    let mut ahead_ns: i64 = 0;
    for jump in jumps {
        let unsure = |from_ns: i64, ahead_ns| {
            let [error_ns, bound_ns] = [error_ns, bound_ns].map(|e| e.saturating_add(jump.by_ns.saturating_abs()));
            Piece { from_ns: Some(from_ns), ahead_ns, error_ns, bound_ns }
        };
        let before_ns = ahead_ns;
        ahead_ns = ahead_ns.saturating_add(jump.by_ns);
        let mut from_ns = jump.from_ns;
        if let Some((before, after)) = jump.unsure_ns() {
            pieces.push(unsure(before.saturating_add(1), before_ns));
            pieces.push(unsure(jump.from_ns, ahead_ns));
            from_ns = after;
        }
        pieces.push(Piece { from_ns: Some(from_ns), ahead_ns, error_ns, bound_ns });
    }
    pieces
}

/// The rows of a clock with these jumps: from the row of the clock without them, and from its map. Each row but the first holds
/// from its `origin_ns` on.
pub(crate) fn rows(even: &ClockFitRow, map: &Map, jumps: &[Jump]) -> Vec<ClockFitRow> {
    if jumps.is_empty() && map.as_line().is_some() {
        return vec![even.clone()];
    }
    let pieces = pieces(jumps);
    let untils = pieces.iter().skip(1).map(|piece| piece.from_ns).chain([None]);
    let lines = |(piece, until_ns): (&Piece, Option<i64>)| -> Vec<(Option<i64>, Piece, Affine)> {
        let even_ns = |shown: Option<i64>| shown.map(|t| t.saturating_sub(piece.ahead_ns));
        let lines = map.within(even_ns(piece.from_ns), even_ns(until_ns)).into_iter();
        lines.map(|(from, line)| (from.map(|t| t.saturating_add(piece.ahead_ns)), *piece, line)).collect()
    };
    let parts: Vec<(Option<i64>, Piece, Affine)> = pieces.iter().zip(untils).flat_map(lines).collect();
    let second_ns = parts.get(1).and_then(|part| part.0);
    let row = |(from_ns, piece, line): (Option<i64>, Piece, Affine)| {
        let until_second = second_ns.map_or(even.origin_ns, |second| even.origin_ns.min(second.saturating_sub(1)));
        let origin_ns = from_ns.unwrap_or(until_second);
        let more = |error: Option<i64>, by_ns: i64| error.map(|error| error.saturating_add(by_ns));
        ClockFitRow {
            offset_ns: line.apply(origin_ns.saturating_sub(piece.ahead_ns)).saturating_sub(origin_ns),
            drift_ppb: if map.as_line().is_some() { even.drift_ppb } else { Some(line.drift * 1e9) },
            origin_ns,
            error_ns: more(even.error_ns, piece.error_ns),
            bound_ns: more(even.bound_ns, piece.bound_ns),
            violations: if from_ns.is_none() { even.violations } else { 0 },
            ..even.clone()
        }
    };
    parts.into_iter().map(row).collect()
}

/// The jumps that the collectives show, the largest first.
pub(crate) fn find(instances: &[Instance]) -> Jumps {
    let mut jumps = Jumps::new();
    let mut series = departures(instances);
    for _ in 0..ALL_MAX {
        let candidates = series.values().filter_map(|ranks| largest(ranks));
        let Some((rank, jump)) = candidates.max_by_key(|(rank, jump)| (jump.by_ns.saturating_abs(), -rank)) else {
            break;
        };
        let of_rank = jumps.entry(rank).or_default();
        if of_rank.len() == JUMPS_MAX {
            break;
        }
        // The series are without the jumps found so far; the time of a jump is one that the clock shows.
        let (mut ahead_ns, mut place): (i64, usize) = (0, 0);
        while let Some(earlier) =
            of_rank.get(place).filter(|j| j.between_ns.0 < jump.between_ns.0.saturating_add(ahead_ns))
        {
            ahead_ns = ahead_ns.saturating_add(earlier.by_ns);
            place += 1;
        }
        let shown = |t: i64| t.saturating_add(ahead_ns);
        let between_ns = (shown(jump.between_ns.0), shown(jump.between_ns.1));
        of_rank.insert(place, Jump { from_ns: shown(jump.from_ns), between_ns, ..jump });
        for ranks in series.values_mut() {
            for row in ranks.iter_mut().filter(|row| row.rank == rank) {
                let late = row.left_ns.iter_mut().chain(&mut row.entered_ns).filter(|t| **t >= jump.from_ns);
                late.for_each(|t| *t = t.saturating_sub(jump.by_ns));
            }
        }
    }
    jumps.retain(|_, of_rank| !of_rank.is_empty());
    jumps
}

/// When a rank entered and left the collectives of a communicator.
struct Left {
    rank: i32,
    entered_ns: Vec<i64>,
    left_ns: Vec<i64>,
}

/// The departures of the ranks of each communicator, by clock side, from instances that the same ranks left.
fn departures(instances: &[Instance]) -> BTreeMap<(i64, bool, Vec<i32>), Vec<Left>> {
    let mut series: BTreeMap<(i64, bool, Vec<i32>), Vec<Left>> = BTreeMap::new();
    for instance in instances.iter().filter(|i| i.barrier != Barrier::OneSided) {
        for device in [false, true] {
            let members = || instance.members.iter().filter(move |m| m.device_clock == device);
            if members().count() < 2 || members().any(|m| m.end_ns.is_none()) {
                continue;
            }
            let ranks: Vec<i32> = members().map(|m| m.rank).collect();
            let key = (instance.comm_id, device, ranks);
            let rows = series.entry(key).or_insert_with(|| {
                members().map(|m| Left { rank: m.rank, entered_ns: Vec::new(), left_ns: Vec::new() }).collect()
            });
            for (row, (start_ns, end_ns)) in
                rows.iter_mut().zip(members().filter_map(|m| Some((m.start_ns, m.end_ns?))))
            {
                row.entered_ns.push(start_ns);
                row.left_ns.push(end_ns);
            }
        }
    }
    series.retain(|_, rows| rows.iter().all(|row| row.left_ns.len() > 2 * SIDE));
    // Instances are listed in the order of one of their clocks at best; that of the first rank is kept.
    for rows in series.values_mut() {
        let mut order: Vec<usize> = (0..rows[0].left_ns.len()).collect();
        order.sort_by_key(|at| rows[0].left_ns[*at]);
        for row in rows {
            row.entered_ns = order.iter().map(|at| row.entered_ns[*at]).collect();
            row.left_ns = order.iter().map(|at| row.left_ns[*at]).collect();
        }
    }
    series
}

/// The largest jump in one communicator.
fn largest(ranks: &[Left]) -> Option<(i32, Jump)> {
    let departures = ranks.first()?.left_ns.len();
    // By how much each clock counts more than the median clock, departure by departure.
    let mut ahead: Vec<Vec<f64>> = ranks.iter().map(|_| vec![0.0]).collect();
    for at in 1..departures {
        let counts: Vec<f64> =
            ranks.iter().map(|row| row.left_ns[at].saturating_sub(row.left_ns[at - 1]) as f64).collect();
        let middle = median_in_place(&mut counts.clone()).unwrap_or(0.0);
        for (ahead, count) in ahead.iter_mut().zip(&counts) {
            ahead.push(count - middle);
        }
    }
    let found = ranks.iter().zip(&ahead).filter_map(|(row, ahead)| {
        let (at, jump) = jump_of(&row.left_ns, ahead)?;
        let bound_ns = size_bound_ns(ranks, row, at, jump.by_ns)?;
        Some((row.rank, Jump { bound_ns, error_ns: jump.error_ns.min(bound_ns), ..jump }))
    });
    // With two ranks, the collectives do not show which of the clocks jumped. The jump is given to the higher rank, because
    // all clocks are mapped to that of the lowest.
    found.max_by_key(|(rank, jump)| (jump.by_ns.saturating_abs(), *rank))
}

/// The largest jump of a clock that left collectives at `left_ns`, and counted `counts` more than others since the last.
fn jump_of(left_ns: &[i64], counts: &[f64]) -> Option<(usize, Jump)> {
    let gap = |at: usize| left_ns[at].saturating_sub(left_ns[at - 1]).max(1) as f64;
    let rate = weighted_median((1..counts.len()).map(|at| (counts[at] / gap(at), gap(at))).collect());
    let excess = |at: usize| counts[at] - rate * gap(at);
    let mut distances: Vec<f64> = (1..counts.len()).map(|at| excess(at).abs()).collect();
    let sigma = SIGMA_PER_MAD * median_in_place(&mut distances)?;
    let least = (SIGMAS * sigma).max(LEAST_NS);
    let at = (SIDE..counts.len() - SIDE).max_by(|a, b| excess(*a).abs().total_cmp(&excess(*b).abs()))?;
    if excess(at).abs() < least {
        return None;
    }
    // How far ahead the clock is at each departure near the jump, counted from the last one before it.
    let counted = |departures: &mut dyn Iterator<Item = usize>, sign: f64| -> Vec<f64> {
        let sums = departures.scan(0.0, |sum, k| {
            *sum += sign * excess(k);
            Some(*sum)
        });
        sums.collect()
    };
    let mut after = counted(&mut (at..at + SIDE), 1.0);
    let mut before = counted(&mut (at - SIDE + 1..at).rev(), -1.0);
    before.push(0.0);
    let spread = |values: &[f64]| {
        let limits = values.iter().fold((f64::INFINITY, f64::NEG_INFINITY), |l, v| (l.0.min(*v), l.1.max(*v)));
        limits.1 - limits.0
    };
    let error = spread(&before) + spread(&after) + sigma;
    let by = median_in_place(&mut after)? - median_in_place(&mut before)?;
    let (from, to) = (left_ns[at - 1], left_ns[at]);
    // A rank that leaves late once comes back: the clock does not keep the difference.
    let jump = Jump {
        from_ns: from.saturating_add(to.saturating_sub(from) / 2).saturating_add(1),
        between_ns: (from, to),
        by_ns: by.round() as i64,
        error_ns: error.ceil() as i64,
        bound_ns: 0,
    };
    (by.abs() >= least && error < by.abs() / 2.0 && from < to).then_some((at, jump))
}

/// The guaranteed error of a jump between departures `at − 1` and `at` of a clock: no rank leaves before all have entered, so
/// each collective limits the offset of any two clocks. `None`: no jump of any size satisfies all clocks.
fn size_bound_ns(ranks: &[Left], jumped: &Left, at: usize, by_ns: i64) -> Option<i64> {
    let place_ns = jumped.left_ns[at - 1];
    let true_ns = |k: usize| jumped.left_ns[k].saturating_sub(if k < at { 0 } else { by_ns });
    let (mut low, mut high) = (i64::MIN, i64::MAX);
    for other in ranks.iter().filter(|other| other.rank != jumped.rank) {
        // The offset that leads from the clock to the other one, at the jump.
        let limits = |collectives: std::ops::Range<usize>| {
            collectives.fold((i64::MIN, i64::MAX), |(low, high): (i64, i64), k| {
                let drift_ns = (DRIFT_LIMIT * true_ns(k).saturating_sub(place_ns).abs() as f64).ceil() as i64;
                let least = other.entered_ns[k].saturating_sub(jumped.left_ns[k]).saturating_sub(drift_ns);
                let most = other.left_ns[k].saturating_sub(jumped.entered_ns[k]).saturating_add(drift_ns);
                (low.max(least), high.min(most))
            })
        };
        let (before, after) = (limits(at - SIDE..at), limits(at..at + SIDE));
        low = low.max(before.0.saturating_sub(after.1));
        high = high.min(before.1.saturating_sub(after.0));
    }
    (low <= high).then(|| high.saturating_sub(by_ns).max(by_ns.saturating_sub(low)))
}

/// The ranks and instances as if no clock had jumped. Of the ranks, only what fits of clocks use is kept.
pub(crate) fn without(
    jumps: &Jumps,
    ranks: &[&RankOutline],
    instances: &[Instance],
) -> (Vec<RankOutline>, Vec<Instance>) {
    let maps: BTreeMap<i32, Map> =
        jumps.iter().map(|(rank, jumps)| (*rank, with_jumps(&Map::default(), jumps))).collect();
    let even = |rank: i32, t_ns: i64| maps.get(&rank).map_or(t_ns, |map| map.apply(t_ns));
    let outline = |rank: &&RankOutline| {
        let id = rank.info.rank;
        let mut clock_samples = rank.clock_samples.clone();
        for sample in &mut clock_samples {
            sample.local_ns = even(id, sample.local_ns);
            sample.remote_ns = sample.peer_rank.map_or(sample.remote_ns, |peer| even(peer, sample.remote_ns));
        }
        RankOutline {
            info: rank.info.clone(),
            recorded_ns: rank.recorded_ns.map(|(from, to)| (even(id, from), even(id, to))),
            has_device_rows: rank.has_device_rows,
            clock_samples,
            ..RankOutline::default()
        }
    };
    let mut instances = instances.to_vec();
    for member in instances.iter_mut().flat_map(|i| &mut i.members) {
        member.start_ns = even(member.rank, member.start_ns);
        member.end_ns = member.end_ns.map(|end| even(member.rank, end));
    }
    (ranks.iter().map(outline).collect(), instances)
}

/// A line for each clock that jumped.
pub(crate) fn described(jumps: &Jumps, ranks: &[&RankOutline]) -> Vec<OmissionRow> {
    listed(jumps, ranks, "clock jump", |rank, shifts| {
        format!(
            "the clock of rank {rank} jumped {shifts}; the times on both sides are fitted, and a time in between may be wrong by the jump"
        )
    })
}

/// A line for each clock that may have jumped.
pub(crate) fn suspected(jumps: &Jumps, ranks: &[&RankOutline]) -> Vec<OmissionRow> {
    listed(jumps, ranks, "possible clock jump", |rank, shifts| {
        format!(
            "the departures of rank {rank} from collectives shift {shifts}: its clock jumped, or it leaves at another time since; no \
             collective shows which, so bound_ns includes the shift"
        )
    })
}

fn listed(jumps: &Jumps, ranks: &[&RankOutline], what: &str, why: impl Fn(i32, &str) -> String) -> Vec<OmissionRow> {
    let begin = |rank: i32| ranks.iter().find(|r| r.info.rank == rank).and_then(|r| r.recorded_ns).map_or(0, |r| r.0);
    let one = |(rank, jumps): (&i32, &Vec<Jump>)| {
        let since = |t_ns: i64| t_ns.saturating_sub(begin(*rank)) as f64 / 1e9;
        let at = |jump: &Jump| {
            let (from, to) = (since(jump.between_ns.0), since(jump.between_ns.1));
            let (by, error) = (jump.by_ns as f64 / 1e6, jump.error_ns as f64 / 1e6);
            format!("by {by:+.3} ms (± {error:.3}) between {from:.3} and {to:.3} s of its recording")
        };
        let all: Vec<String> = jumps.iter().map(at).collect();
        OmissionRow::note(what, why(*rank, &all.join(", "))).rank(*rank).amount(jumps.len() as i64)
    };
    jumps.iter().map(one).collect()
}
