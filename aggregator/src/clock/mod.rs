//! One clock for all ranks, with its error.
//!
//! Evidence, best first: round trips (`ping`), equal clock domains (`identity`), the barrier rule of collectives
//! (`collective`), wall clocks. Better evidence is never overruled by worse: worse only joins what better left apart.
//! The clock of the reference rank, the lowest of the largest group that evidence joins, is global time.
//!
//! ```text
//!   rank 3 ──ping──▸ rank 2 ──ping──▸ rank 0 ◂──ping── rank 1        a tree: offsets, drifts and errors add up along its paths
//!   rank 5 ──same_host──▸ rank 4 ──collective──▸ rank 0
//! ```
//!
//! Device rows get fits of their own from device-timed collectives: CUPTI turns device time into host time with an
//! error that differs by device.

mod affine;
mod barrier;
mod choice;
mod collective;
mod evidence;
mod fit;
mod identity;
mod lines;
mod ping;
mod tree;

#[cfg(test)]
pub(crate) mod tests;

use std::cmp::Reverse;
use std::collections::BTreeMap;

use trace::{ClockFitRow, ClockSampleRow, OmissionRow};

pub use affine::Affine;
pub use choice::Choice;
pub use fit::Method;

use crate::model::{Instance, RankData, RankInfo};
use fit::Fit;
use tree::{Forest, Joint, Node, Reached};

/// What the fit needs of one rank: small enough to hold for every rank of a run.
#[derive(Clone, Copy, Debug)]
pub struct RankClock<'a> {
    /// Who it is, and its clock domain.
    pub info: &'a RankInfo,
    /// Its clock comparisons.
    pub samples: &'a [ClockSampleRow],
    /// First and last time recorded, in the rank's clock; the errors hold in between. `None`: nothing was recorded.
    pub window_ns: Option<(i64, i64)>,
    /// Whether some rows carry a device's times.
    pub has_device_rows: bool,
}

impl<'a> RankClock<'a> {
    /// The part of a loaded rank that the fit needs.
    pub fn of(data: &'a RankData) -> Self {
        let events = &data.events;
        let rows = events.ts_ns.iter().copied().min().zip((0..events.len()).map(|row| events.end_ns(row)).max());
        let collectives = data.collectives.iter().flat_map(|c| [c.start_ns, c.end_ns]).flatten();
        let steps = data.steps.iter().flat_map(|s| [s.start_ns, s.end_ns]);
        let rows = rows.into_iter().flat_map(|(from, to)| [from, to]);
        let mut window_ns: Option<(i64, i64)> = None;
        for t in rows.chain(collectives).chain(steps) {
            let (from, to) = window_ns.unwrap_or((t, t));
            window_ns = Some((from.min(t), to.max(t)));
        }
        let has_device_rows = events.kind.iter().any(|k| k.is_device_work());
        Self { info: &data.info, samples: &data.clock_samples, window_ns, has_device_rows }
    }
}

/// How good one fit is in the window of a run.
#[derive(Clone, Debug)]
struct Goodness {
    /// The clock that the fit maps to.
    to: Node,
    error_ns: Option<i64>,
    bound_ns: Option<i64>,
    /// The part of the error that is not in common with another fit to the same clock; none: nobody knows.
    unshared_ns: Option<i64>,
}

impl Goodness {
    fn of(fit: &Fit, to: Node, map: &Affine, window: (i64, i64)) -> Self {
        let back = map.inverse();
        let local = (back.apply(window.0), back.apply(window.1));
        let (error_ns, bound_ns) = (fit.error_ns(local), fit.bound_ns(local));
        Self { to, error_ns, bound_ns, unshared_ns: fit.unshared_ns(local) }
    }

    /// 95 % of the error between two clocks that are fitted to the same. What no scatter shows, how much earlier one
    /// rank leaves than another throughout, is the same for any pair of ranks, so it counts once, and what the samples
    /// show adds up.
    fn error_between(&self, other: &Self) -> Option<i64> {
        let (a, b) = (self.error_ns?, other.error_ns?);
        let sum = a.saturating_add(b);
        let unshared = self.unshared_ns.zip(other.unshared_ns).map(|(s, t)| s.saturating_add(t));
        Some(unshared.map_or(sum, |unshared| a.max(b).max(unshared).min(sum)))
    }
}

/// A rank, the rank whose device clock its own is mapped to, and how.
type DeviceFit = (i32, i32, Fit);

/// How every rank's clocks map to global time, the clock of the reference rank.
#[derive(Clone, Debug, Default)]
pub struct Clocks {
    rows: Vec<ClockFitRow>,
    /// Position in `rows`, and the map, by rank and whether it is the devices'.
    by_clock: BTreeMap<(i32, bool), (usize, Affine)>,
    reached: BTreeMap<Node, Reached>,
    joints: Vec<Goodness>,
    /// For devices that collectives joined, fitted to the device of a rank.
    devices: BTreeMap<i32, Goodness>,
    /// Evidence that contradicts itself, with what makes it, never averaged away; and ranks that the chosen evidence
    /// does not join.
    pub contradictions: Vec<OmissionRow>,
}

/// Fits the clocks of all ranks by the evidence of `choice`. The result does not depend on the order of `ranks`.
pub fn fit(ranks: &[RankClock<'_>], instances: &[Instance], choice: Choice) -> Clocks {
    let mut ranks = ranks.to_vec();
    ranks.sort_by_key(|r| r.info.rank);
    ranks.dedup_by_key(|r| r.info.rank);
    let mut contradictions = Vec::new();
    let (devices, problems) = if choice.allows(Method::Collective) {
        evidence::by_device_collectives(&ranks, instances)
    } else {
        Default::default()
    };
    let mut forest = join_all(&ranks, instances, &devices, choice, &mut contradictions);
    contradictions.extend(problems);
    let Some(reference) = reference(&mut forest, &ranks) else { return Clocks { contradictions, ..Clocks::default() } };
    let reached = forest.reached(Node::Rank(reference));
    let window = global_window(&ranks, &reached);
    let map = |node: Node| reached.get(&node).map_or(Affine::IDENTITY, |at| at.map);
    let joints = forest.joints.iter().map(|j| Goodness::of(&j.fit, j.to, &map(j.from), window)).collect();
    let mut clocks = Clocks { joints, reached, contradictions, ..Clocks::default() };
    for rank in &ranks {
        clocks.push_host(&forest, reference, rank.info.rank);
    }
    let best = clocks.rows.iter().filter(|r| r.rank != reference).map(|r| r.method.clone()).min_by_key(|m| order(m));
    if let Some(row) = clocks.rows.iter_mut().find(|r| r.rank == reference) {
        // Identity; named like the best fit to it.
        row.method = best.unwrap_or_else(|| Method::SameHost.as_str().into());
    }
    clocks.push_devices(&ranks, instances, devices, reference, window);
    clocks.number_rows();
    evidence::count_violations(&mut clocks, instances);
    let alone = clocks.left_alone(choice, &ranks);
    clocks.contradictions.extend(alone);
    clocks
}

/// Sorts instances by global time (the last arrival, then the members) and numbers them anew.
pub fn number_by_time(instances: &mut [Instance], clocks: &Clocks) {
    instances.sort_by_cached_key(|i| {
        let arrivals = i.members.iter().map(|m| clocks.global(m.rank, m.device_clock, m.start_ns));
        (arrivals.max(), i.comm_id, i.seq, i.members.first().map(|m| (m.rank, m.index)))
    });
    for (id, instance) in instances.iter_mut().enumerate() {
        instance.id = id as i64;
    }
}

fn order(method: &str) -> usize {
    let all = [Method::Ping, Method::SameHost, Method::Collective, Method::CollectiveWeak, Method::Utc, Method::None];
    all.iter().position(|m| m.as_str() == method).unwrap_or(all.len())
}

/// Joins the ranks by all evidence that may be used, best first.
fn join_all(
    ranks: &[RankClock<'_>],
    instances: &[Instance],
    devices: &[DeviceFit],
    choice: Choice,
    contradictions: &mut Vec<OmissionRow>,
) -> Forest {
    let mut forest = Forest::default();
    if choice.allows(Method::Ping) {
        join_by_pings(&mut forest, ranks, contradictions);
    }
    if choice.allows(Method::SameHost) {
        let (shared, problems) = identity::shared_clocks(ranks, instances);
        contradictions.extend(problems);
        for (rank, lowest) in shared {
            let fit = Fit::identity(Method::SameHost);
            forest.join(Joint { from: Node::Rank(rank), to: Node::Rank(lowest), fit });
        }
    }
    if choice.allows(Method::Collective) {
        let (joints, problems) = evidence::by_collectives(&forest, ranks, instances);
        contradictions.extend(problems);
        for joint in joints {
            forest.join(joint);
        }
        for (rank, to, fit) in devices {
            // CUPTI's device times are converted to host times, so they also say how far the hosts are apart.
            let fit = fit.borrowed(identity::DEVICE_ERROR_NS);
            forest.join(Joint { from: Node::Rank(*rank), to: Node::Rank(*to), fit });
        }
    }
    for rank in ranks.iter().filter(|_| choice.allows(Method::Utc)) {
        if let Some(fit) = utc_fit(rank) {
            forest.join(Joint { from: Node::Rank(rank.info.rank), to: Node::Utc, fit });
        }
    }
    forest
}

/// Joins by round trips, the quickest first; slower ones must agree.
fn join_by_pings(forest: &mut Forest, ranks: &[RankClock<'_>], contradictions: &mut Vec<OmissionRow>) {
    let (mut pings, problems) = ping::fit_all(ranks);
    contradictions.extend(problems);
    pings.sort_by_key(|p| (p.half_rtt_ns, p.from, p.to));
    let mut spare = Vec::new();
    for ping::PingFit { from, to, fit, .. } in pings {
        let joint = Joint { from: Node::Rank(from), to: Node::Rank(to), fit };
        if !forest.join(joint.clone()) {
            spare.push(joint);
        }
    }
    contradictions.extend(evidence::open_loops(forest, &spare));
}

/// From a rank's clock to the wall clock, by the quickest of its readings; its error nobody knows.
fn utc_fit(rank: &RankClock<'_>) -> Option<Fit> {
    let samples = || rank.samples.iter().filter(|s| &*s.kind == "utc");
    if let Some(best) = samples().min_by_key(|s| (s.rtt_ns, s.local_ns)) {
        let offset_ns = best.remote_ns.checked_sub(best.local_ns)?;
        return Some(Fit::unknown(Method::Utc, offset_ns, samples().count() as i64));
    }
    identity::is_utc(&rank.info.clock_domain).then(|| Fit::unknown(Method::Utc, 0, 0))
}

/// The lowest rank of the tree with most loaded ranks; of equal trees the one with the lowest rank.
fn reference(forest: &mut Forest, ranks: &[RankClock<'_>]) -> Option<i32> {
    let mut trees: BTreeMap<Node, (usize, Reverse<i32>)> = BTreeMap::new();
    for rank in ranks.iter().map(|r| r.info.rank) {
        let tree = trees.entry(forest.tree_of(Node::Rank(rank))).or_insert((0, Reverse(rank)));
        tree.0 += 1;
    }
    trees.into_values().max().map(|(_, lowest)| lowest.0)
}

/// From the first to the last time that any rank recorded, or compared clocks if none recorded anything. Clocks are
/// mapped with an error, and the window must hold in spite of it.
fn global_window(ranks: &[RankClock<'_>], reached: &BTreeMap<Node, Reached>) -> (i64, i64) {
    const MARGIN_NS: i64 = 1_000_000;
    let compared = |rank: &RankClock<'_>| {
        let times = || rank.samples.iter().map(|sample| sample.local_ns);
        Some((times().min()?, times().max()?))
    };
    let is_empty = ranks.iter().all(|rank| rank.window_ns.is_none());
    let mut window: Option<(i64, i64)> = None;
    for rank in ranks {
        let times = if is_empty { compared(rank) } else { rank.window_ns };
        let (Some((from, to)), Some(at)) = (times, reached.get(&Node::Rank(rank.info.rank))) else { continue };
        let (from, to) = (at.map.apply(from), at.map.apply(to));
        let (first, last) = window.unwrap_or((from, to));
        window = Some((first.min(from), last.max(to)));
    }
    let (from, to) = window.unwrap_or_default();
    let margin = MARGIN_NS.saturating_add(to.saturating_sub(from) / 1_000);
    (from.saturating_sub(margin), to.saturating_add(margin))
}

impl Clocks {
    /// Global time of `t_ns`, a time in the host's clock of `rank`, or in its devices'. Exact where drift is null or
    /// zero. A rank that was not fitted maps to itself; a rank without a device fit uses the host's.
    pub fn global(&self, rank: i32, device: bool, t_ns: i64) -> i64 {
        self.map(rank, device).apply(t_ns)
    }

    /// The map behind [`global`](Self::global), for many times of one clock.
    pub fn map(&self, rank: i32, device: bool) -> Affine {
        let fitted = self.by_clock.get(&(rank, device)).or_else(|| self.by_clock.get(&(rank, false)));
        fitted.map_or(Affine::IDENTITY, |(_, map)| *map)
    }

    /// 95 % of the error of a difference of global times between two ranks' host clocks, or device clocks; `None`:
    /// unknown.
    pub fn error_between(&self, a: i32, b: i32, device: bool) -> Option<i64> {
        let mut path = self.between(a, b, device)?;
        // A clock that is another's by identity adds nothing.
        path.retain(|g| g.error_ns != Some(0));
        match path.as_slice() {
            [x, y] if x.to == y.to => x.error_between(y),
            path => along(path.iter().map(|g| g.error_ns)),
        }
    }

    /// Guaranteed error of a difference of global times between two ranks; `None`: there is no guarantee.
    pub fn bound_between(&self, a: i32, b: i32, device: bool) -> Option<i64> {
        along(self.between(a, b, device)?.iter().map(|g| g.bound_ns))
    }

    /// The fits on the way between two clocks; none if there is no way.
    fn between(&self, a: i32, b: i32, device: bool) -> Option<Vec<&Goodness>> {
        if a == b {
            return Some(Vec::new());
        }
        if device && (self.by_clock.contains_key(&(a, true)) || self.by_clock.contains_key(&(b, true))) {
            let (x, y) = (self.devices.get(&a)?, self.devices.get(&b)?);
            return (x.to == y.to).then(|| vec![x, y]);
        }
        let joints = tree::path(&self.reached, Node::Rank(a), Node::Rank(b))?;
        Some(joints.iter().map(|j| &self.joints[*j]).collect())
    }

    /// The fit of one clock.
    pub fn row(&self, rank: i32, device: bool) -> Option<&ClockFitRow> {
        self.by_clock.get(&(rank, device)).and_then(|(i, _)| self.rows.get(*i))
    }

    /// All fits: by rank, the host's clock before the device's.
    pub fn rows(&self) -> &[ClockFitRow] {
        &self.rows
    }

    /// The rank whose host clock is global time.
    pub fn reference_rank(&self) -> Option<i32> {
        self.rows.first().map(|r| r.reference_rank)
    }

    fn push_host(&mut self, forest: &Forest, reference: i32, rank: i32) {
        let node = Node::Rank(rank);
        let joints = tree::path(&self.reached, node, Node::Rank(reference));
        let map = self.reached.get(&node).map_or(Affine::IDENTITY, |at| at.map);
        let fits: Vec<&Fit> = joints.iter().flatten().map(|j| &forest.joints[*j].fit).collect();
        let sum = |which: fn(&Goodness) -> Option<i64>| along(joints.as_ref()?.iter().map(|j| which(&self.joints[*j])));
        let method = joints.as_ref().map_or(Some(Method::None), |j| tree::worst(forest, j)).unwrap_or(Method::SameHost);
        let row = ClockFitRow {
            rank,
            clock: "host".into(),
            reference_rank: reference,
            offset_ns: map.offset_ns,
            drift_ppb: drift_ppb(&map, joints.is_some() && fits.iter().all(|f| f.drift_known)),
            origin_ns: map.origin_ns,
            error_ns: sum(|g| g.error_ns),
            bound_ns: sum(|g| g.bound_ns),
            method: method.as_str().into(),
            samples: fits.iter().map(|f| f.samples).sum(),
            residual_p95_ns: fits.iter().filter_map(|f| f.residual_p95_ns).max(),
            violations: 0,
        };
        self.push(row, map);
    }

    /// A row for the devices of each rank that has any: from device-timed collectives, or else as good as its host's
    /// clock, with an error that is unknown.
    fn push_devices(
        &mut self,
        ranks: &[RankClock<'_>],
        instances: &[Instance],
        fits: Vec<DeviceFit>,
        reference: i32,
        window: (i64, i64),
    ) {
        let mut fitted: BTreeMap<i32, (i32, Fit)> = BTreeMap::new();
        for (rank, to, fit) in fits {
            fitted.entry(to).or_insert_with(|| (to, Fit::identity(fit.method)));
            fitted.insert(rank, (to, fit));
        }
        let timed = |rank: i32| instances.iter().any(|i| i.members.iter().any(|m| m.rank == rank && m.device_clock));
        for rank in ranks {
            let id = rank.info.rank;
            let Some(host) = self.row(id, false).cloned() else { continue };
            let clock = "device".into();
            if let Some((to, fit)) = fitted.get(&id) {
                let base = self.map(*to, false);
                let map = fit.map.then(&base);
                let good = Goodness::of(fit, Node::Rank(*to), &map, window);
                let known = *to == reference;
                let row = ClockFitRow {
                    clock,
                    offset_ns: map.offset_ns,
                    drift_ppb: drift_ppb(&map, fit.drift_known),
                    origin_ns: map.origin_ns,
                    error_ns: good.error_ns.filter(|_| known),
                    bound_ns: good.bound_ns.filter(|_| known),
                    method: fit.method.as_str().into(),
                    samples: fit.samples,
                    residual_p95_ns: fit.residual_p95_ns,
                    ..host
                };
                self.devices.insert(id, good);
                self.push(row, map);
            } else if rank.has_device_rows || timed(id) {
                let own = Some(0).filter(|_| id == reference);
                let map = self.map(id, false);
                self.push(ClockFitRow { clock, error_ns: own, bound_ns: own, ..host }, map);
            }
        }
    }

    fn push(&mut self, row: ClockFitRow, map: Affine) {
        self.by_clock.insert((row.rank, &*row.clock == "device"), (self.rows.len(), map));
        self.rows.push(row);
    }

    fn number_rows(&mut self) {
        self.rows.sort_by_key(|r| (r.rank, &*r.clock == "device"));
        for (position, row) in self.rows.iter().enumerate() {
            if let Some(entry) = self.by_clock.get_mut(&(row.rank, &*row.clock == "device")) {
                entry.0 = position;
            }
        }
    }
}

fn drift_ppb(map: &Affine, known: bool) -> Option<f64> {
    (known || map.drift != 0.0).then_some(map.drift * 1e9)
}

/// Errors add up along a path, with one ns per joint for the rounding of what drift adds; unknown if one is.
fn along(errors: impl Iterator<Item = Option<i64>>) -> Option<i64> {
    let mut sum: i64 = 0;
    for error in errors {
        let error = error?;
        // A later map stretches an earlier error by its drift: under one part in a thousand.
        let stretched = if error == 0 { 0 } else { error.saturating_add(error / 1_000 + 1) };
        sum = sum.saturating_add(stretched);
    }
    Some(sum)
}
