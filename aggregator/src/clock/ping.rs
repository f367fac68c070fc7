//! Fits from round trips.
//!
//! A ping says: when my clock was between *send* and *receive*, yours said *remote*. So, whatever way the network was
//! slow, the true offset at the middle lies within half a round trip of `remote − middle`:
//!
//! ```text
//! peer          ─────────R────────────────
//!                      ↗   ↘                      offset = R − (send + receive)/2, give or take (receive − send)/2
//! this rank     ──S────┼─────────────V────
//!                    middle
//! ```
//!
//! Each ping is a gate of [`Feasible`]; its guarantee is that of all pings together. The estimate is a line through the
//! best round trip of each burst, because the real error of a ping is far below half its round trip where both ways are
//! equally quick.

use std::collections::BTreeMap;

use trace::OmissionRow;

use super::RankClock;
use super::fit::{Estimate, Fit, Method, Support, median, quantile};
use super::lines::{Feasible, Gate, Line};

/// Two clocks drift apart by at most this: the most by which NTP lets a clock be bent (500 ppm, RFC 5905), and many
/// times what quartzes differ (±50 ppm). It matters for the guarantee only where one burst is all there is, and outside
/// the bursts.
pub(crate) const DRIFT_LIMIT: f64 = 500e-6;
/// Drift is told if it is known to better than this, or is certainly not zero: else the bursts are too near each other.
const DRIFT_PRECISION: f64 = 50e-6;
/// Pings of a burst follow each other at once; bursts are at least so far apart, or twenty times the usual gap.
const BURST_GAP_NS: i64 = 20_000_000;
/// The share of a round trip by which two ways may differ without any spread in the samples to show it. Measured over
/// loopback TCP: 100 pings, best round trip 13.2 µs, 95 % of errors within 0.18 µs (1.4 %); the rest is caution.
const ASYMMETRY: f64 = 0.05;
/// A round trip that takes longer than this went over more than one host and a switch: over routes, queues and links whose
/// two directions may differ by anything, and no ping can tell. (Loopback TCP: 10 to 13 µs; hosts of one rack: below
/// 100 µs.)
const NEARBY_RTT_NS: i64 = 100_000;
/// What is beyond that may lie on one way wholly, on the other, or between: 95 % of a uniform ± half.
const ROUTE_ASYMMETRY: f64 = 0.475;

/// A fit between two ranks' clocks, from the clock of `from` to that of `to`.
#[derive(Debug)]
pub(crate) struct PingFit {
    pub(crate) from: i32,
    pub(crate) to: i32,
    /// Half the smallest round trip: how good it can be.
    pub(crate) half_rtt_ns: i64,
    pub(crate) fit: Fit,
}

/// One ping, seen from the rank whose clock is mapped.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Ping {
    local_ns: i64,
    rtt_ns: i64,
    offset_ns: i64,
}

/// Fits every pair of ranks that compared clocks; the higher rank's clock is mapped to the lower's.
pub(crate) fn fit_all(ranks: &[RankClock<'_>]) -> (Vec<PingFit>, Vec<OmissionRow>) {
    let mut pairs: BTreeMap<(i32, i32), Vec<Ping>> = BTreeMap::new();
    let mut omissions = Vec::new();
    for rank in ranks {
        let me = rank.info.rank;
        let mut bad = 0;
        for sample in rank.samples.iter().filter(|s| &*s.kind == "ping") {
            let Some(peer) = sample.peer_rank.filter(|p| *p != me) else { continue };
            let offset = sample.remote_ns.checked_sub(sample.local_ns);
            let Some(offset_ns) = offset.filter(|_| sample.rtt_ns >= 0) else {
                bad += 1;
                continue;
            };
            let ping = if me > peer {
                Ping { local_ns: sample.local_ns, rtt_ns: sample.rtt_ns, offset_ns }
            } else {
                // Seen from the peer: its clock said `remote` when ours was the middle, give or take the same half.
                Ping { local_ns: sample.remote_ns, rtt_ns: sample.rtt_ns, offset_ns: -offset_ns }
            };
            pairs.entry((me.max(peer), me.min(peer))).or_default().push(ping);
        }
        if bad > 0 {
            omissions.push(note(
                me,
                "clock samples",
                bad,
                "a round trip shorter than nothing, or an offset beyond 64 bits",
            ));
        }
    }
    let mut fits = Vec::new();
    for ((from, to), mut pings) in pairs {
        pings.sort_unstable();
        let (fit, half_rtt_ns, contradiction) = fit_pair(&pings);
        if let Some(local_ns) = contradiction {
            let why = format!(
                "no evenly drifting clock fits the round trips between rank {from} and rank {to}: those up to {local_ns} ns of \
                 rank {from} exclude each other (a clock that jumped, or drifts unevenly); there is no guaranteed error"
            );
            omissions.push(note(from, "clock contradiction", 1, &why));
        }
        fits.push(PingFit { from, to, half_rtt_ns, fit });
    }
    (fits, omissions)
}

pub(crate) fn note(rank: i32, what: &str, amount: i64, why: &str) -> OmissionRow {
    OmissionRow { file: None, rank: Some(rank), what: what.into(), amount: Some(amount), why: why.into() }
}

/// The fit, half its smallest round trip, and where its pings contradict each other, if they do. `pings` is sorted and
/// not empty.
fn fit_pair(pings: &[Ping]) -> (Fit, i64, Option<i64>) {
    let bursts = bursts(pings);
    let best: Vec<Ping> =
        bursts.iter().filter_map(|b| b.iter().min_by_key(|p| (p.rtt_ns, p.local_ns)).copied()).collect();
    let (origin_ns, base_ns) = (best[0].local_ns, best[0].offset_ns);
    let t = |p: &Ping| p.local_ns.saturating_sub(origin_ns) as f64;
    let offset = |p: &Ping| p.offset_ns.saturating_sub(base_ns) as f64;

    let gates: Vec<Gate> = pings
        .iter()
        .map(|p| {
            // The middle and its half are rounded to the ns, and the other clock may run faster than this one
            // meanwhile.
            let half = 0.5 * p.rtt_ns as f64 * (1.0 + DRIFT_LIMIT) + 1.0;
            Gate { t: t(p), low: offset(p) - half, high: offset(p) + half }
        })
        .collect();
    let feasible = Feasible::through(&gates, DRIFT_LIMIT);
    let contradiction = feasible.as_ref().err().map(|position| pings[*position].local_ns);
    let feasible = feasible.ok();

    let points: Vec<(f64, f64, f64)> = best.iter().map(|p| (t(p), offset(p), 1.0 / p.rtt_ns.max(1) as f64)).collect();
    let (line, drift_known) = choose(&points, feasible.as_ref());
    let mut distances: Vec<f64> = pings.iter().map(|p| (offset(p) - line.at(t(p))).abs()).collect();
    let estimate = Estimate {
        method: Method::Ping,
        origin_ns,
        base_ns,
        line,
        drift_known,
        feasible,
        spread_ns: spread(&bursts, |p| (offset(p) - line.at(t(p))).abs()),
        scatter_ns: None,
        support: Support::of(&points.iter().map(|p| p.0).collect::<Vec<_>>()),
        samples: pings.len() as i64,
        residual_p95_ns: Some(quantile(&mut distances, 0.95).ceil() as i64),
    };
    let half_rtt_ns = best.iter().map(|p| p.rtt_ns / 2).min().unwrap_or(i64::MAX);
    (Fit::of(estimate), half_rtt_ns, contradiction)
}

/// Cuts sorted pings where nothing was measured for long.
fn bursts(pings: &[Ping]) -> Vec<&[Ping]> {
    let gap = |a: &Ping, b: &Ping| b.local_ns.saturating_sub(a.local_ns);
    let mut gaps: Vec<i64> = pings.windows(2).map(|w| gap(&w[0], &w[1])).collect();
    gaps.sort_unstable();
    let usual = gaps.get(gaps.len() / 2).copied().unwrap_or(0);
    // Where bursts are of one ping each, the usual gap is that between bursts.
    let far = usual.saturating_mul(20).max(BURST_GAP_NS);
    let far = if usual > BURST_GAP_NS { BURST_GAP_NS } else { far };
    pings.chunk_by(|a, b| gap(a, b) < far).collect()
}

/// The line through (time, offset, weight), brought into what is feasible, and whether its drift says anything.
fn choose(points: &[(f64, f64, f64)], feasible: Option<&Feasible>) -> (Line, bool) {
    let line = robust_line(points);
    let Some(feasible) = feasible else { return (line, points.len() > 1) };
    let (low, high) = feasible.drift_range();
    let known = high - low <= 2.0 * DRIFT_PRECISION || low > 0.0 || high < 0.0;
    if !known {
        let offsets: Vec<(f64, f64)> = points.iter().map(|p| (p.1, p.2)).collect();
        if let Some(offset) = feasible.clamp_constant(weighted_median(offsets)) {
            return (Line { offset, drift: 0.0 }, false);
        }
    }
    (feasible.clamp(line), true)
}

/// Theil and Sen's line with weights: the weighted median of the slopes of all pairs, then that of the offsets.
fn robust_line(points: &[(f64, f64, f64)]) -> Line {
    // Beyond this many bursts, pairs at half the length tell as much as all pairs (Theil's incomplete method).
    const ALL_PAIRS_MAX: usize = 256;
    let n = points.len();
    let far = |i: usize| if n <= ALL_PAIRS_MAX { i + 1..n } else { (i + n / 2).min(n)..(i + n / 2 + 1).min(n) };
    let mut slopes = Vec::new();
    for i in 0..n {
        for j in far(i) {
            let (p, q) = (points[i], points[j]);
            let apart = q.0 - p.0;
            if apart > 0.0 {
                slopes.push(((q.1 - p.1) / apart, apart / (1.0 / p.2 + 1.0 / q.2)));
            }
        }
    }
    let drift = if slopes.is_empty() { 0.0 } else { weighted_median(slopes) };
    let offset = weighted_median(points.iter().map(|p| (p.1 - drift * p.0, p.2)).collect());
    Line { offset, drift }
}

/// The value at half the weight; between two values where the half falls between them.
fn weighted_median(mut values: Vec<(f64, f64)>) -> f64 {
    values.sort_by(|a, b| a.0.total_cmp(&b.0));
    let half = 0.5 * values.iter().map(|v| v.1).sum::<f64>();
    let mut below = 0.0;
    for (i, (value, weight)) in values.iter().enumerate() {
        below += weight;
        if below > half * (1.0 + 1e-12) {
            return *value;
        }
        if below >= half * (1.0 - 1e-12) {
            return values.get(i + 1).map_or(*value, |next| 0.5 * (value + next.0));
        }
    }
    0.0
}

/// 95 % of how far the good round trips lie from the line; at least what asymmetry could hide. None: too few to tell.
fn spread(bursts: &[&[Ping]], distance: impl Fn(&Ping) -> f64) -> Option<f64> {
    let smallest = |b: &[Ping]| b.iter().map(|p| p.rtt_ns).min().unwrap_or(i64::MAX);
    let least = bursts.iter().map(|b| smallest(b)).min()?;
    // A burst in which the network or the processor was busy has no good round trip.
    let good_bursts = bursts.iter().filter(|b| smallest(b) <= least.saturating_mul(3));
    let mut distances = Vec::new();
    for burst in good_bursts {
        let limit = smallest(burst).saturating_add(smallest(burst) / 5);
        distances.extend(burst.iter().filter(|p| p.rtt_ns <= limit).map(&distance));
    }
    let few = distances.len() < 3;
    let spread = quantile(&mut distances, 0.95).max(median(&mut distances)).max(hidden_asymmetry(least));
    (!few).then_some(spread)
}

/// 95 % of the error that two unequal ways can hide from every ping, by the smallest round trip.
fn hidden_asymmetry(least_rtt_ns: i64) -> f64 {
    let of_routes = ROUTE_ASYMMETRY * least_rtt_ns.saturating_sub(NEARBY_RTT_NS).max(0) as f64;
    of_routes.max(ASYMMETRY * least_rtt_ns as f64)
}
