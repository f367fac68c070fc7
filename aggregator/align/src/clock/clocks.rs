//! The clocks of all ranks: the map of each to global time, and how far it may be off.

use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet};

use trace::{ClockFitRow, ClockMethod, ClockSide, OmissionRow};

use crate::clock::affine::Affine;
use crate::clock::errors::{along, independent};
use crate::clock::fit::Fit;
use crate::clock::hosts::Hosts;
use crate::clock::identity;
use crate::clock::jump::{self, Jumps};
use crate::clock::map::Map;
use crate::clock::tree::{self, Forest, Joint, Node, Reached};
use model::{Instance, RankOutline};

/// The accuracy of one fit in the window of a run.
#[derive(Clone, Debug)]
pub(super) struct Goodness {
    /// The clock to which the fit maps.
    to: Node,
    /// The part of the error that the samples show. It is not shared with other fits to the same clock.
    error_ns: Option<i64>,
    /// The largest part that no sample shows.
    bias_ns: Option<i64>,
    bound_ns: Option<i64>,
}

impl Goodness {
    pub(super) fn of(fit: &Fit, to: Node, map: &Affine, window: (i64, i64)) -> Self {
        let back = map.inverse();
        let local = (back.apply(window.0), back.apply(window.1));
        Self { to, error_ns: fit.best_error_ns(local), bias_ns: fit.bias_ns(local), bound_ns: fit.best_bound_ns(local) }
    }

    /// Adds an error that no fit has.
    fn widen(&mut self, error_ns: i64, bound_ns: i64) {
        for (error, by_ns) in [(&mut self.error_ns, error_ns), (&mut self.bound_ns, bound_ns)] {
            *error = error.map(|error| error.saturating_add(by_ns));
        }
    }

    /// Bounds 95 % of the error, the bias included.
    fn total_ns(&self) -> Option<i64> {
        Some(self.error_ns?.max(self.bias_ns?))
    }

    /// Bounds 95 % of the error between two clocks that are fitted to the same clock. The samples cannot show by how
    /// much one rank always leaves earlier than another; this part is the same for any pair of ranks, so it counts
    /// once. The parts that the samples show add up.
    fn error_between(&self, other: &Self) -> Option<i64> {
        let bias_ns = self.bias_ns?.max(other.bias_ns?);
        Some(self.error_ns?.saturating_add(other.error_ns?).max(bias_ns))
    }
}

/// The driver's conversion of device time to host time.
static BY_DRIVER: Goodness = Goodness {
    to: Node::Utc,
    error_ns: Some(identity::DEVICE_ERROR_NS),
    bias_ns: Some(0),
    bound_ns: Some(identity::DEVICE_ERROR_NS),
};

/// Knots of different fits that are closer than one part in so many of their span are one.
const KNOTS_APART: i64 = 1024;

/// The fit of a device's clock.
pub(super) struct DeviceFit {
    pub(super) rank: i32,
    /// The rank to whose device clock it is mapped.
    pub(super) to: i32,
    /// In the time of the groups of their hosts.
    pub(super) fit: Fit,
}

/// The maps from every rank's clocks to global time, which is the clock of the reference rank.
#[derive(Clone, Debug, Default)]
pub struct Clocks {
    pub(super) rows: Vec<ClockFitRow>,
    /// Position in `rows` and the map, by rank and whether it is the clock of its devices.
    pub(super) by_clock: BTreeMap<(i32, bool), (usize, Map)>,
    pub(super) reached: BTreeMap<Node, Reached>,
    pub(super) joints: Vec<Goodness>,
    /// Accuracy of the fits of devices that collectives joined.
    pub(super) devices: BTreeMap<i32, Goodness>,
    /// Contradictions in the evidence, which are reported instead of averaged; and ranks that the chosen evidence does
    /// not join.
    pub contradictions: Vec<OmissionRow>,
}

impl Clocks {
    /// Converts `t_ns` from the host or device clock of `rank` to global time. The result is exact if drift is null or
    /// zero. Times of a rank without a fit are returned as they are; a rank without a device fit uses the host's fit.
    pub fn global(&self, rank: i32, device: bool, t_ns: i64) -> i64 {
        self.map(rank, device).apply(t_ns)
    }

    /// Returns the map of [`global`](Self::global), for converting many times of one clock.
    pub fn map(&self, rank: i32, device: bool) -> Cow<'_, Map> {
        let fitted = self.by_clock.get(&(rank, device)).or_else(|| self.by_clock.get(&(rank, false)));
        fitted.map_or_else(|| Cow::Owned(Map::default()), |(_, map)| Cow::Borrowed(map))
    }

    /// Bounds 95 % of the error of a difference between global times of two ranks' host clocks or device clocks; `None`
    /// if unknown.
    pub fn error_between(&self, a: i32, b: i32, device: bool) -> Option<i64> {
        let mut path = self.between(a, b, device)?;
        // Clocks that are equal by identity add no error.
        path.retain(|g| g.error_ns != Some(0));
        match path.as_slice() {
            [x, y] if x.to == y.to => x.error_between(y),
            path => along(path.iter().map(|g| g.total_ns())),
        }
    }

    /// Bounds the error of a difference between global times of two ranks for certain; `None` without a guarantee.
    pub fn bound_between(&self, a: i32, b: i32, device: bool) -> Option<i64> {
        along(self.between(a, b, device)?.iter().map(|g| g.bound_ns))
    }

    /// The fits on the path between two clocks; `None` without a path.
    fn between(&self, a: i32, b: i32, device: bool) -> Option<Vec<&Goodness>> {
        if a == b {
            return Some(Vec::new());
        }
        if device && (self.by_clock.contains_key(&(a, true)) || self.by_clock.contains_key(&(b, true))) {
            let (x, y) = (self.devices.get(&a)?, self.devices.get(&b)?);
            if x.to == y.to {
                return Some(vec![x, y]);
            }
            // No collectives join these devices, but the driver converts the time of each to that of its host.
            let hosts = tree::path(&self.reached, x.to, y.to)?;
            let hosts = hosts.iter().map(|j| &self.joints[*j]);
            return Some([x, &BY_DRIVER].into_iter().chain(hosts).chain([&BY_DRIVER, y]).collect());
        }
        let joints = tree::path(&self.reached, Node::Rank(a), Node::Rank(b))?;
        Some(joints.iter().map(|j| &self.joints[*j]).collect())
    }

    /// The fit of one clock.
    pub fn row(&self, rank: i32, device: bool) -> Option<&ClockFitRow> {
        self.by_clock.get(&(rank, device)).and_then(|(i, _)| self.rows.get(*i))
    }

    /// The error of global times of a rank's host or device clock, at 95 %; `None` if it is unknown.
    pub fn error_ns(&self, rank: i32, device: bool) -> Option<i64> {
        let row = self.row(rank, device).or(self.row(rank, false))?;
        Some(row.error_ns?.max(row.bias_ns?))
    }

    /// All fits by rank, the host clock before the device clock.
    pub fn rows(&self) -> &[ClockFitRow] {
        &self.rows
    }

    /// The rank whose host clock is global time.
    pub fn reference_rank(&self) -> Option<i32> {
        self.rows.first().map(|r| r.reference_rank)
    }

    pub(super) fn push_host(&mut self, forest: &Forest, reference: i32, rank: i32) {
        let node = Node::Rank(rank);
        let joints = tree::path(&self.reached, node, Node::Rank(reference));
        let map = self.reached.get(&node).map_or(Affine::IDENTITY, |at| at.map);
        let fits: Vec<&Fit> = joints.iter().flatten().map(|j| &forest.joints[*j].fit).collect();
        let errors = joints.as_ref().and_then(|path| {
            let all: Option<Vec<i64>> = path.iter().map(|j| self.joints[*j].error_ns).collect();
            Some(independent(&all?))
        });
        let sum = |which: fn(&Goodness) -> Option<i64>| along(joints.as_ref()?.iter().map(|j| which(&self.joints[*j])));
        let method = joints
            .as_ref()
            .map_or(Some(ClockMethod::None), |j| tree::worst(forest, j))
            .unwrap_or(ClockMethod::SameHost);
        let row = ClockFitRow {
            rank,
            clock: ClockSide::Host.into(),
            reference_rank: reference,
            offset_ns: map.offset_ns,
            drift_ppb: drift_ppb(&map, joints.is_some() && fits.iter().all(|f| f.drift_known)),
            origin_ns: map.origin_ns,
            error_ns: errors,
            bias_ns: sum(|g| g.bias_ns),
            bound_ns: sum(|g| g.bound_ns),
            method: method.into(),
            samples: fits.iter().map(|f| f.samples).sum(),
            residual_p95_ns: fits.iter().filter_map(|f| f.residual_p95_ns).max(),
            violations: 0,
        };
        let map = joints.map_or_else(Map::default, |path| self.best_map(forest, node, &path));
        self.push(row, map);
    }

    /// The map from a clock along the best estimates of `path` to the reference, linear between the knots of all of them.
    fn best_map(&self, forest: &Forest, node: Node, path: &[usize]) -> Map {
        let even = |node: Node| self.reached.get(&node).map_or(Affine::IDENTITY, |at| at.map);
        let (line, back) = (even(node), even(node).inverse());
        let knots = |joint: &usize| {
            let Joint { from, fit, .. } = &forest.joints[*joint];
            let global = even(*from);
            fit.knots_ns().map(move |t| back.apply(global.apply(t)))
        };
        let mut times: Vec<i64> = path.iter().flat_map(knots).collect();
        times.sort_unstable();
        // Bursts of all ranks are at about the same times.
        let span_ns = times.last().zip(times.first()).map_or(0, |(last, first)| last.saturating_sub(*first));
        times.dedup_by(|later, earlier| later.saturating_sub(*earlier) <= span_ns / KNOTS_APART);
        let to_reference = |t_ns: i64| {
            let step = |(at, t_ns): (Node, i64), joint: &usize| {
                let Joint { from, to, fit } = &forest.joints[*joint];
                if *from == at { (*to, fit.apply(t_ns)) } else { (*from, fit.apply_back(t_ns)) }
            };
            path.iter().fold((node, t_ns), step).1
        };
        Map::through(line, &times.into_iter().map(|t| (t, to_reference(t))).collect::<Vec<_>>())
    }

    /// Adds a row for the devices of each rank that has any. Without a fit from device-timed collectives, the row
    /// repeats the fit of the host, with an unknown error.
    pub(super) fn push_devices(
        &mut self,
        ranks: &[&RankOutline],
        instances: &[Instance],
        hosts: &Hosts,
        fits: Vec<DeviceFit>,
        reference: i32,
        window: (i64, i64),
    ) {
        let mut fitted: BTreeMap<i32, (i32, Fit)> = BTreeMap::new();
        for DeviceFit { rank, to, fit } in fits {
            fitted.entry(to).or_insert_with(|| (to, Fit::identity(fit.method)));
            fitted.insert(rank, (to, fit));
        }
        let members = instances.iter().flat_map(|i| &i.members);
        let timed: BTreeSet<i32> = members.filter(|m| m.device_clock).map(|m| m.rank).collect();
        for rank in ranks {
            let id = rank.info.rank;
            let Some(host) = self.row(id, false).cloned() else { continue };
            let clock = ClockSide::Device.into();
            if let Some((to, fit)) = fitted.get(&id) {
                let even = |rank: i32| self.reached.get(&Node::Rank(rank)).map_or(Affine::IDENTITY, |at| at.map);
                let ((own, root), (_, to_root)) = (hosts.root(id), hosts.root(*to));
                let of_group = fit.map.then(&even(to_root));
                let good = Goodness::of(fit, Node::Rank(*to), &of_group, window);
                let map = own.then(&of_group);
                // A device bends with the clock of its host.
                let host_map = self.map(id, false);
                let bent = match host_map.as_line() {
                    Some(_) => Map::line(map),
                    None => host_map.then(&even(root).inverse().then(&of_group)),
                };
                let to_host = self.row(*to, false).map(|row| (row.error_ns, row.bias_ns, row.bound_ns));
                // Devices that no collectives join to those of the reference are as good as the hosts, and the driver's
                // conversion at both ends.
                let joined = |own: Option<i64>, of_host: Option<i64>, of_driver: Option<i64>| match *to == reference {
                    true => own,
                    false => along([own, of_host, of_driver, of_driver].into_iter()),
                };
                let (error_ns, bias_ns, bound_ns) = to_host.unwrap_or_default();
                let row = ClockFitRow {
                    clock,
                    offset_ns: map.offset_ns,
                    drift_ppb: drift_ppb(&map, fit.drift_known),
                    origin_ns: map.origin_ns,
                    error_ns: joined(good.error_ns, error_ns, BY_DRIVER.error_ns),
                    bias_ns: joined(good.bias_ns, bias_ns, BY_DRIVER.bias_ns),
                    bound_ns: joined(good.bound_ns, bound_ns, BY_DRIVER.bound_ns),
                    method: fit.method.into(),
                    samples: fit.samples,
                    residual_p95_ns: fit.residual_p95_ns,
                    ..host
                };
                self.devices.insert(id, good);
                self.push(row, bent);
            } else if rank.has_device_rows || timed.contains(&id) {
                let own = Some(0).filter(|_| id == reference);
                let map = self.map(id, false).into_owned();
                self.push(ClockFitRow { clock, error_ns: own, bias_ns: own, bound_ns: own, ..host }, map);
            }
        }
    }

    fn push(&mut self, row: ClockFitRow, map: Map) {
        self.by_clock.insert((row.rank, row.clock == ClockSide::Device), (self.rows.len(), map));
        self.rows.push(row);
    }

    /// The same fits for clocks that jumped.
    pub(super) fn with_jumps(mut self, jumps: &Jumps, ranks: &[&RankOutline]) -> Self {
        for (rank, jumps) in jumps {
            let (error_ns, bound_ns) = jump::errors(jumps);
            self.touching(*rank).into_iter().for_each(|joint| self.joints[joint].widen(error_ns, bound_ns));
            if let Some(good) = self.devices.get_mut(rank) {
                good.widen(error_ns, bound_ns);
            }
            for device in [false, true] {
                if let Some((_, map)) = self.by_clock.get_mut(&(*rank, device)) {
                    *map = jump::with_jumps(map, jumps);
                }
            }
        }
        // Every clock is compared with both sides of the reference.
        for row in self.rows.iter_mut().filter(|row| row.rank != row.reference_rank) {
            let of_reference = jumps.get(&row.reference_rank).map(Vec::as_slice).unwrap_or_default();
            let (error_ns, bound_ns) = jump::errors(of_reference);
            row.error_ns = row.error_ns.map(|error| error.saturating_add(error_ns));
            row.bound_ns = row.bound_ns.map(|bound| bound.saturating_add(bound_ns));
        }
        let mut listed = jump::described(jumps, ranks);
        listed.append(&mut self.contradictions);
        self.contradictions = listed;
        self
    }

    /// Replaces the row of each clock by a row for each part of its time.
    pub(super) fn list_parts(&mut self, jumps: &Jumps) {
        let parts = |row: &ClockFitRow| {
            let of_rank = jumps.get(&row.rank).map(Vec::as_slice).unwrap_or_default();
            jump::rows(row, &self.map(row.rank, row.clock == ClockSide::Device), of_rank)
        };
        self.rows = self.rows.iter().flat_map(parts).collect();
        self.rows.shrink_to_fit();
        self.number_rows();
    }

    /// The joints at a rank's host clock.
    fn touching(&self, rank: i32) -> Vec<usize> {
        let node = Node::Rank(rank);
        let touches = |(at, reached): (&Node, &Reached)| {
            reached.up.filter(|(up, _)| *at == node || *up == node).map(|(_, joint)| joint)
        };
        self.reached.iter().filter_map(touches).collect()
    }

    /// Widens the guarantee of all that goes through clocks that may have jumped.
    pub(super) fn widen_bounds(&mut self, jumps: &Jumps) {
        for (rank, jumps) in jumps {
            let by_ns = jumps.iter().fold(0, |sum: i64, jump| sum.saturating_add(jump.by_ns.saturating_abs()));
            // Ranks that share a clock jump together.
            let joints: Vec<usize> =
                self.touching(*rank).into_iter().filter(|joint| self.joints[*joint].bound_ns != Some(0)).collect();
            joints.iter().for_each(|joint| self.joints[*joint].widen(0, by_ns));
            let through = |good: &Goodness, id: i32| id == *rank || good.to == Node::Rank(*rank);
            self.devices.iter_mut().filter(|(id, good)| through(good, **id)).for_each(|(_, good)| good.widen(0, by_ns));
            for row in self.rows.iter_mut().filter(|row| row.rank != row.reference_rank) {
                let path = tree::path(&self.reached, Node::Rank(row.rank), Node::Rank(row.reference_rank));
                let is_wider = path.is_some_and(|path| path.iter().any(|joint| joints.contains(joint)));
                let device = self.devices.get(&row.rank).filter(|_| row.clock == ClockSide::Device);
                if device.map_or(is_wider, |good| through(good, row.rank)) {
                    row.bound_ns = row.bound_ns.map(|bound| bound.saturating_add(by_ns));
                }
            }
        }
    }

    /// Takes the guarantee from all that goes through a rank's clock.
    pub(super) fn drop_bounds(&mut self, rank: i32) {
        for joint in self.touching(rank) {
            self.joints[joint].bound_ns = None;
        }
        let through = |good: &Goodness, id: i32| id == rank || good.to == Node::Rank(rank);
        self.devices.iter_mut().filter(|(id, good)| through(good, **id)).for_each(|(_, good)| good.bound_ns = None);
        for row in self.rows.iter_mut().filter(|row| row.rank != row.reference_rank) {
            let path = tree::path(&self.reached, Node::Rank(row.rank), Node::Rank(row.reference_rank));
            let is_bound = path.is_some_and(|path| path.iter().all(|joint| self.joints[*joint].bound_ns.is_some()));
            let device = self.devices.get(&row.rank).filter(|_| row.clock == ClockSide::Device);
            let is_bound = device.map_or(is_bound, |good| good.bound_ns.is_some());
            row.bound_ns = row.bound_ns.filter(|_| is_bound);
        }
    }

    pub(super) fn number_rows(&mut self) {
        self.rows.sort_by_key(|r| (r.rank, r.clock == ClockSide::Device));
        // The first row of a clock stands for it.
        for (position, row) in self.rows.iter().enumerate().rev() {
            if let Some(entry) = self.by_clock.get_mut(&(row.rank, row.clock == ClockSide::Device)) {
                entry.0 = position;
            }
        }
    }
}

fn drift_ppb(map: &Affine, known: bool) -> Option<f64> {
    (known || map.drift != 0.0).then_some(map.drift * 1e9)
}
