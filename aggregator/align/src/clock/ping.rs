//! Fits from round trips (pings).
//!
//! A ping is a statement by this rank: while my clock ran from *send* to *receive*, the peer's clock showed *remote*.
//! The true offset at the middle therefore lies within half a round trip of `remote − middle`, no matter which
//! direction of the network was slow:
//!
//! ```text
//! peer          ─────────R────────────────
//!                      ↗   ↘                      offset = R − (send + receive)/2, give or take (receive − send)/2
//! this rank     ──S────┼─────────────V────
//!                    middle
//! ```
//!
//! Each ping is a gate of [`Feasible`] and of [`Bend`]. The guarantee follows from all pings together. The estimate is a line through
//! the best round trip of each burst, because a ping's real error is far below half its round trip where both
//! directions are equally fast. If the bursts show that the clock bends, a [`Curve`] follows it.

use std::collections::BTreeMap;

use trace::{ClockMethod, OmissionRow, SampleKind};

use crate::clock::bend::Bend;
use crate::clock::curve::Curve;
use crate::clock::fit::{Curved, Estimate, Fit, Support};
use crate::clock::lines::{Feasible, Gate, Line};
use crate::clock::misfit;
use model::RankOutline;
use model::stats::{median_in_place, nearest_rank, weighted_median};

/// Drift limit between two clocks: NTP slews a clock by at most 500 ppm (RFC 5905), many times the difference of quartz
/// oscillators (±50 ppm). It affects the guarantee only with a single burst.
pub(crate) const DRIFT_LIMIT: f64 = 500e-6;
/// Drift is reported if its uncertainty is below this, or if it is certainly not zero. Otherwise the bursts are too
/// close.
const DRIFT_PRECISION: f64 = 50e-6;
/// Minimum gap between bursts, unless twenty times the usual gap is longer. Pings within a burst follow each other at
/// once.
const BURST_GAP_NS: i64 = 20_000_000;
/// Share of a round trip by which its two directions may differ although the samples show no spread. Measured over
/// loopback TCP: 100 pings, best round trip 13.2 µs, 95 % of errors within 0.18 µs (1.4 %). The rest is a margin.
const ASYMMETRY: f64 = 0.05;
/// Round trips longer than this crossed more than a host and a switch. The two directions of such routes, queues and
/// links may differ by any amount, and no ping shows it. (Loopback TCP: 10 to 13 µs; hosts of one rack: below 100 µs.)
const NEARBY_RTT_NS: i64 = 100_000;
/// The excess over that may belong to either direction: 95 % of a uniform ± half.
const ROUTE_ASYMMETRY: f64 = 0.475;

/// Bursts that show how a clock bends between them.
const BURSTS_MIN: usize = 4;

/// A fit between two ranks' clocks, from the clock of `from` to that of `to`.
#[derive(Debug)]
pub(crate) struct PingFit {
    pub(crate) from: i32,
    pub(crate) to: i32,
    /// Half the smallest round trip: the limit of the fit's accuracy.
    pub(crate) half_rtt_ns: i64,
    pub(crate) fit: Fit,
}

/// One ping, from the view of the rank whose clock is mapped.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Ping {
    local_ns: i64,
    rtt_ns: i64,
    offset_ns: i64,
}

/// Fits every pair of ranks that exchanged pings. Maps the higher rank's clock to the lower rank's.
pub(crate) fn fit_all(ranks: &[&RankOutline]) -> (Vec<PingFit>, Vec<OmissionRow>) {
    let mut pairs: BTreeMap<(i32, i32), Vec<Ping>> = BTreeMap::new();
    let mut omissions = Vec::new();
    for rank in ranks {
        let me = rank.info.rank;
        let mut bad = 0;
        for sample in rank.clock_samples.iter().filter(|s| s.kind == SampleKind::Ping) {
            let Some(peer) = sample.peer_rank.filter(|p| *p != me) else { continue };
            let offset = sample.remote_ns.checked_sub(sample.local_ns);
            let Some(offset_ns) = offset.filter(|_| sample.rtt_ns >= 0) else {
                bad += 1;
                continue;
            };
            let ping = if me > peer {
                Ping { local_ns: sample.local_ns, rtt_ns: sample.rtt_ns, offset_ns }
            } else {
                // Seen from the peer: its clock showed `remote` at the middle of ours, within the same half round trip.
                Ping { local_ns: sample.remote_ns, rtt_ns: sample.rtt_ns, offset_ns: -offset_ns }
            };
            pairs.entry((me.max(peer), me.min(peer))).or_default().push(ping);
        }
        if bad > 0 {
            let why = "negative round trip, or an offset beyond 64 bits";
            omissions.push(OmissionRow::lost("clock samples", why).rank(me).amount(bad));
        }
    }
    let mut fits = Vec::new();
    for ((from, to), mut pings) in pairs {
        pings.sort_unstable();
        let (fit, half_rtt_ns, contradicted) = fit_pair(&pings);
        if let Some(local_ns) = contradicted {
            let why = format!(
                "the round trips between rank {from} and rank {to} contradict each other, up to {local_ns} ns of the clock of \
                 rank {from}: a clock jumped or drifts unevenly, so there is no guaranteed error"
            );
            omissions.push(contradiction(from, 1, &why));
        }
        fits.push(PingFit { from, to, half_rtt_ns, fit });
    }
    (fits, omissions)
}

/// Evidence on a clock that other evidence contradicts, so that it is not used or guarantees no error.
pub(crate) fn contradiction(rank: impl Into<Option<i32>>, amount: i64, why: &str) -> OmissionRow {
    OmissionRow::left_out("clock contradiction", why).rank(rank).amount(amount)
}

/// The fit, half its smallest round trip, and the time at which its pings first contradict each other, if they do.
/// `pings` must be sorted and not empty.
fn fit_pair(pings: &[Ping]) -> (Fit, i64, Option<i64>) {
    let bursts = bursts(pings);
    let best: Vec<Ping> = bursts.iter().filter_map(|burst| best_of(burst)).collect();
    let (origin_ns, base_ns) = (best[0].local_ns, best[0].offset_ns);
    let t = |p: &Ping| p.local_ns.saturating_sub(origin_ns) as f64;
    let offset = |p: &Ping| p.offset_ns.saturating_sub(base_ns) as f64;

    let gates: Vec<Gate> = pings
        .iter()
        .map(|p| {
            // The middle and the half are rounded to ns, and the peer's clock may run faster than this one during the
            // round trip.
            let half = 0.5 * p.rtt_ns as f64 * (1.0 + DRIFT_LIMIT) + 1.0;
            Gate { t: t(p), low: offset(p) - half, high: offset(p) + half }
        })
        .collect();
    let feasible = Feasible::through(&gates, DRIFT_LIMIT).ok();

    let points: Vec<(f64, f64, f64)> = best.iter().map(|p| (t(p), offset(p), 1.0 / p.rtt_ns.max(1) as f64)).collect();
    let (line, drift_known) = choose(&points, feasible.as_ref());
    let line = line.rounded();
    let bend = Bend::through(&gates, line, None, feasible.as_ref());
    let contradiction = bend.as_ref().err().map(|position| pings[*position].local_ns);
    let mut distances: Vec<f64> = pings.iter().map(|p| (offset(p) - line.at(t(p))).abs()).collect();
    let support = Support::of(&points.iter().map(|p| p.0).collect::<Vec<_>>());
    let distance = |p: &Ping| (t(p), offset(p) - line.at(t(p)));
    let spread_ns = spread(&bursts, distance);
    let curved = spread_ns.filter(|_| bend.is_ok()).and_then(|line_ns| {
        let good: Vec<(f64, f64)> = good_bursts(&bursts).filter_map(best_of).map(|p| distance(&p)).collect();
        let (curve, spread_ns) = Curve::through(&good, line_ns, hidden_asymmetry(least_rtt_ns(pings)))?;
        let bend = Bend::through(&gates, line, Some(&curve), feasible.as_ref()).ok().flatten();
        Some(Curved { curve, bend, spread_ns })
    });
    let estimate = Estimate {
        method: ClockMethod::Ping,
        origin_ns,
        base_ns,
        line,
        drift_known,
        bend: bend.ok().flatten(),
        spread_ns,
        bias_ns: 0.0,
        support: if best.len() < BURSTS_MIN { support } else { support.shown() },
        curved,
        samples: pings.len() as i64,
        residual_p95_ns: Some(nearest_rank(&mut distances, 0.95).unwrap_or(0.0).ceil() as i64),
    };
    let half_rtt_ns = best.iter().map(|p| p.rtt_ns / 2).min().unwrap_or(i64::MAX);
    (Fit::of(estimate), half_rtt_ns, contradiction)
}

/// Splits sorted pings at long gaps.
fn bursts(pings: &[Ping]) -> Vec<&[Ping]> {
    let gap = |a: &Ping, b: &Ping| b.local_ns.saturating_sub(a.local_ns);
    let mut gaps: Vec<i64> = pings.windows(2).map(|w| gap(&w[0], &w[1])).collect();
    gaps.sort_unstable();
    let usual = gaps.get(gaps.len() / 2).copied().unwrap_or(0);
    // If each burst is a single ping, the usual gap is the gap between bursts.
    let far = usual.saturating_mul(20).max(BURST_GAP_NS);
    let far = if usual > BURST_GAP_NS { BURST_GAP_NS } else { far };
    pings.chunk_by(|a, b| gap(a, b) < far).collect()
}

/// The line through (time, offset, weight), moved into the feasible region, and whether its drift is significant.
fn choose(points: &[(f64, f64, f64)], feasible: Option<&Feasible>) -> (Line, bool) {
    let line = robust_line(points);
    let Some(feasible) = feasible else { return (line, points.len() > 1) };
    let (low, high) = feasible.drift_range();
    let drift_known = high - low <= 2.0 * DRIFT_PRECISION || low > 0.0 || high < 0.0;
    if !drift_known {
        let offsets: Vec<(f64, f64)> = points.iter().map(|p| (p.1, p.2)).collect();
        if let Some(offset) = feasible.clamp_constant(weighted_median(offsets)) {
            return (Line { offset, drift: 0.0 }, false);
        }
    }
    (feasible.clamp(line), true)
}

/// Weighted Theil–Sen line: the weighted median of the slopes of all pairs, then that of the offsets.
fn robust_line(points: &[(f64, f64, f64)]) -> Line {
    // With more bursts, pairs half the length apart are as accurate as all pairs (Theil's incomplete method).
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

fn best_of(burst: &[Ping]) -> Option<Ping> {
    burst.iter().min_by_key(|p| (p.rtt_ns, p.local_ns)).copied()
}

fn least_rtt_ns(pings: &[Ping]) -> i64 {
    pings.iter().map(|p| p.rtt_ns).min().unwrap_or(i64::MAX)
}

/// The bursts with a good round trip. The network or the processor was busy in the others.
fn good_bursts<'a>(bursts: &'a [&'a [Ping]]) -> impl Iterator<Item = &'a [Ping]> {
    let least_ns = bursts.iter().map(|burst| least_rtt_ns(burst)).min().unwrap_or(i64::MAX);
    bursts.iter().copied().filter(move |burst| least_rtt_ns(burst) <= least_ns.saturating_mul(3))
}

/// 95 % of the error of the line: by the best round trip of each burst, or by all good round trips where bursts are few; at
/// least the possible asymmetry. `None`: too few samples.
fn spread(bursts: &[&[Ping]], distance: impl Fn(&Ping) -> (f64, f64)) -> Option<f64> {
    let asymmetry = hidden_asymmetry(bursts.iter().map(|burst| least_rtt_ns(burst)).min()?);
    if good_bursts(bursts).count() >= BURSTS_MIN {
        let best = good_bursts(bursts).filter_map(best_of);
        return Some(misfit::of_line(best.map(|p| distance(&p)).collect())?.max(asymmetry));
    }
    let mut distances = Vec::new();
    for burst in good_bursts(bursts) {
        let least_ns = least_rtt_ns(burst);
        let limit = least_ns.saturating_add(least_ns / 5);
        distances.extend(burst.iter().filter(|p| p.rtt_ns <= limit).map(|p| distance(p).1.abs()));
    }
    let few = distances.len() < 3;
    let spread = nearest_rank(&mut distances, 0.95)?.max(median_in_place(&mut distances)?);
    (!few).then_some(spread.max(asymmetry))
}

/// 95 % of the error that unequal directions can hide from every ping, given the smallest round trip.
fn hidden_asymmetry(least_rtt_ns: i64) -> f64 {
    let of_routes = ROUTE_ASYMMETRY * least_rtt_ns.saturating_sub(NEARBY_RTT_NS).max(0) as f64;
    of_routes.max(ASYMMETRY * least_rtt_ns as f64)
}
