//! Fits from collectives, for ranks that exchanged no clock pings. The barrier rule ([`barrier`](super::barrier)) gives
//! the guarantee. The estimate lies inside it and assumes that ranks leave a synchronising collective nearly together.
//!
//! ```text
//! rank 0    ──────────|0═════════6|───────    wait: an early arrival says little about the offset,
//! rank 1    ──|0═════════════════14|──────    a late one (rank 0's) holds from the left,
//!                                              the first departure holds from the right,
//!                      ├─ allowed ─┤           and the departures are equal at the estimate
//! ```

use std::cell::OnceCell;
use std::collections::{BTreeMap, BTreeSet};

use trace::{ClockMethod, MaybeNs};

use crate::clock::barrier::{Contradiction, Entry, UNREACHED, greatest_offsets, least_offsets};
use crate::clock::bend::Bend;
use crate::clock::drift::{GRAIN_NS, drift_of};
use crate::clock::fit::{Estimate, Fit, Support};
use crate::clock::identity::DEVICE_ERROR_NS;
use crate::clock::lines::{Feasible, Gate, Line};
use crate::clock::misfit;
use model::stats::{median_in_place, nearest_rank};

/// Drift limit for two host clocks that no pings compared: two quartz oscillators at ±50 ppm.
pub(crate) const DRIFT_LIMIT: f64 = 100e-6;
/// Contradictions that are removed one by one before the evidence loses its guarantee.
const CONTRADICTIONS_MAX: usize = 32;
/// The span is divided into at most 2⁶ windows.
const LEVELS: u32 = 6;
/// Resolution of departures: many traces hold whole microseconds. Others hold nanoseconds of clocks that tick less often.
const MICROSECOND_NS: i64 = 1_000;
const TICK_NS: f64 = 100.0;

/// One clock's part in one instance. Several ranks may share the clock.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Part {
    pub(crate) clock: usize,
    /// Earliest time of entry.
    pub(crate) start_ns: i64,
    /// Latest time of departure; unknown if it never left.
    pub(crate) end_ns: MaybeNs,
    /// Time of departure as recorded.
    pub(crate) left_ns: MaybeNs,
}

/// The clock evidence of one instance; each clock at most once.
#[derive(Clone, Debug)]
pub(crate) struct Evidence {
    /// Position in the list of instances.
    pub(crate) instance: i64,
    pub(crate) weak: bool,
    pub(crate) parts: Vec<Part>,
}

/// The fits to a reference clock, and the contradictions in the evidence.
#[derive(Debug, Default)]
pub(crate) struct Fitted {
    /// Source clock, target clock, and the fit between them.
    pub(crate) fits: Vec<(usize, usize, Fit)>,
    /// Indices of instances, and the clocks involved.
    pub(crate) contradictions: Vec<(Vec<i64>, Vec<usize>)>,
}

/// The host clock from which a driver converts a clock, with an error of at most [`DEVICE_ERROR_NS`].
#[derive(Clone, Copy, Debug)]
pub(crate) struct Driven {
    /// Number of the host clock, to which the times of all clocks with this number are mapped.
    pub(crate) host: usize,
    /// The error of that map.
    pub(crate) error_ns: i64,
}

/// Fits every clock to the lowest clock that instances connect it to. `hosts` has the host clock of each clock that a driver
/// converts. For host clocks it is empty.
pub(crate) fn fit_all(evidence: Vec<Evidence>, clocks: usize, hosts: &[Driven]) -> Fitted {
    let strict = connected(evidence.iter().filter(|e| !e.weak), clocks);
    let any = connected(evidence.iter(), clocks);
    // The clocks of each group, ascending, and the position of each clock in its group.
    let mut groups: BTreeMap<usize, (Vec<usize>, Vec<Evidence>)> = BTreeMap::new();
    let mut place = vec![0; clocks];
    for (clock, reference) in any.iter().enumerate() {
        let (members, _) = groups.entry(*reference).or_default();
        place[clock] = members.len();
        members.push(clock);
    }
    for mut e in evidence.into_iter().filter(|e| e.parts.len() > 1) {
        let Some((_, of_group)) = groups.get_mut(&any[e.parts[0].clock]) else { continue };
        e.parts.iter_mut().for_each(|part| part.clock = place[part.clock]);
        of_group.push(e);
    }
    let mut fitted = Fitted::default();
    for (reference, (members, mut chosen)) in groups.into_iter().filter(|(_, (members, _))| members.len() > 1) {
        // All-to-alls count only where strict barriers do not connect the clocks.
        let weak = members.iter().any(|c| strict[*c] != strict[reference]);
        chosen.retain(|e| weak || !e.weak);
        let method = |clock: usize| {
            let is_strict = strict[members[clock]] == strict[reference];
            if is_strict { ClockMethod::Collective } else { ClockMethod::CollectiveWeak }
        };
        let hosts: Vec<Driven> = members.iter().filter_map(|clock| hosts.get(*clock).copied()).collect();
        let Fitted { fits, contradictions } = Group::new(chosen, members.len()).solve(method, &hosts);
        fitted.fits.extend(fits.into_iter().map(|(clock, to, fit)| (members[clock], members[to], fit)));
        let of_members = |clocks: Vec<usize>| clocks.into_iter().map(|clock| members[clock]).collect();
        fitted.contradictions.extend(contradictions.into_iter().map(|(found, clocks)| (found, of_members(clocks))));
    }
    fitted
}

/// For each clock, the lowest clock that it is connected to.
fn connected<'a>(evidence: impl Iterator<Item = &'a Evidence>, clocks: usize) -> Vec<usize> {
    let mut lowest: Vec<usize> = (0..clocks).collect();
    fn find(lowest: &mut [usize], clock: usize) -> usize {
        let mut root = clock;
        while lowest[root] != root {
            lowest[root] = lowest[lowest[root]];
            root = lowest[root];
        }
        root
    }
    for e in evidence {
        for pair in e.parts.windows(2) {
            let (a, b) = (find(&mut lowest, pair[0].clock), find(&mut lowest, pair[1].clock));
            lowest[a.max(b)] = a.min(b);
        }
    }
    (0..clocks).map(|c| find(&mut lowest, c)).collect()
}

/// The reference clock of a group: the lowest one.
const REFERENCE: usize = 0;

/// Clocks that instances connect, by their position in the group. Times are in ns from each clock's first time.
struct Group {
    evidence: Vec<Evidence>,
    /// First time of each clock.
    origin_ns: Vec<i64>,
    /// Frame − clock, both counted from their origins; as accurate as the scatter of departures. `None`: not connected.
    rough_ns: Vec<Option<i64>>,
}

/// A gate, and its instance if it comes from a single one.
type SourcedGate = (Gate, Option<i64>);

/// A departure: time from the clock's origin, and the instance.
struct Departure {
    t: f64,
    instance: u32,
}

/// The departures of a clock.
#[derive(Default)]
struct Departures {
    /// Frame − clock, both counted from their origins.
    rough: f64,
    list: Vec<Departure>,
}

impl Departures {
    /// The instances, with the times of departure in the frame.
    fn in_frame(&self) -> impl Iterator<Item = (usize, f64)> {
        self.list.iter().map(|d| (d.instance as usize, d.t + self.rough))
    }
}

/// The facts that the estimates of all clocks use.
struct Measured {
    /// The departures of each clock.
    departures: Vec<Departures>,
    /// The correction to each clock in the frame.
    shift: Vec<f64>,
    /// When the reference left each instance, in the frame.
    reference: Vec<Option<f64>>,
    /// The median departure of each instance; not computed unless a clock needs it.
    together: OnceCell<Vec<Option<f64>>>,
    /// For each clock, the shortest time between the last arrival and a departure, over its instances: the operation
    /// itself. A rank may leave every instance earlier than another rank by about this much, and no scatter shows it.
    /// For an all-to-all the slack is included, because its start is taken that much earlier. (Measured: devices of one
    /// host that always leave all-to-alls 26 µs apart.)
    quickest_ns: Vec<Option<i64>>,
}

impl Group {
    fn new(evidence: Vec<Evidence>, clocks: usize) -> Self {
        let mut origin_ns = vec![i64::MAX; clocks];
        for part in evidence.iter().flat_map(|e| &e.parts) {
            origin_ns[part.clock] = origin_ns[part.clock].min(part.start_ns);
        }
        let mut group = Self { evidence, origin_ns, rough_ns: vec![None; clocks] };
        group.find_rough();
        group
    }

    fn since_origin(&self, clock: usize, t_ns: i64) -> i64 {
        t_ns.saturating_sub(self.origin_ns[clock])
    }

    /// Walks outward from the reference. Each clock that shares instances with known clocks is set so that it leaves
    /// with them, at the median.
    fn find_rough(&mut self) {
        self.rough_ns.fill(None);
        self.rough_ns[REFERENCE] = Some(0);
        let mut of_clock: Vec<Vec<usize>> = vec![Vec::new(); self.rough_ns.len()];
        for (position, e) in self.evidence.iter().enumerate() {
            e.parts.iter().for_each(|part| of_clock[part.clock].push(position));
        }
        let mut new = vec![REFERENCE];
        while !new.is_empty() {
            // Only an instance of a clock that has become known can make others known.
            let shared: BTreeSet<usize> = new.drain(..).flat_map(|clock| of_clock[clock].iter().copied()).collect();
            let mut differences: BTreeMap<usize, Vec<f64>> = BTreeMap::new();
            for e in shared.into_iter().map(|position| &self.evidence[position]) {
                let on_frame = |p: &Part| {
                    let left = self.since_origin(p.clock, p.left_ns.get()?);
                    self.rough_ns[p.clock].map(|rough| left.saturating_add(rough) as f64)
                };
                let mut departures: Vec<f64> = e.parts.iter().filter_map(on_frame).collect();
                let Some(together) = median_in_place(&mut departures) else { continue };
                for part in e.parts.iter().filter(|p| self.rough_ns[p.clock].is_none()) {
                    let Some(left) = part.left_ns.get().map(|left| self.since_origin(part.clock, left)) else {
                        continue;
                    };
                    differences.entry(part.clock).or_default().push(together - left as f64);
                }
            }
            for (clock, mut differences) in differences {
                self.rough_ns[clock] = median_in_place(&mut differences).map(|offset| offset.round() as i64);
                new.push(clock);
            }
        }
    }

    fn solve(&mut self, method: impl Fn(usize) -> ClockMethod, hosts: &[Driven]) -> Fitted {
        let mut fitted = Fitted::default();
        let mut suspects = vec![false; self.rough_ns.len()];
        let mut gates = None;
        for _ in 0..CONTRADICTIONS_MAX {
            match self.gates() {
                Ok(found) => {
                    gates = Some(found);
                    break;
                }
                Err(contradiction) => self.take_out(contradiction, &mut suspects, &mut fitted),
            }
        }
        if gates.is_none() {
            suspects.fill(true);
        }
        let measured = self.measured();
        let sourced = |clock: usize| gates.as_ref().filter(|_| !suspects[clock]).map(|gates| gates[clock].as_slice());
        let gates_of = |clock: usize| -> Vec<Gate> { sourced(clock).unwrap_or_default().iter().map(|g| g.0).collect() };
        let draw_one = |clock: usize| {
            self.rough_ns[clock].filter(|_| clock != REFERENCE)?;
            let feasible = sourced(clock).and_then(|_| Feasible::through(&gates_of(clock), DRIFT_LIMIT).ok());
            Some(draw(&measured, clock, feasible))
        };
        let mut lines: Vec<Option<Drawn>> = (0..self.rough_ns.len()).map(draw_one).collect();
        self.hold_to_hosts(&mut lines, hosts, &measured);
        for (clock, drawn) in lines.into_iter().enumerate() {
            let Some(mut drawn) = drawn else { continue };
            let (sourced, gates, feasible) = (sourced(clock), gates_of(clock), drawn.feasible.take());
            let mut estimate = self.estimate(clock, method(clock), drawn, &measured);
            match Bend::through(&gates, estimate.line, None, feasible.as_ref()) {
                Ok(bend) => estimate.bend = bend,
                Err(position) => {
                    let source = sourced.and_then(|gates| gates.get(position)?.1);
                    fitted.contradictions.push((source.into_iter().collect(), vec![REFERENCE, clock]));
                }
            }
            fitted.fits.push((clock, REFERENCE, Fit::of(estimate)));
        }
        fitted
    }

    /// Reports a contradiction and removes its instances from the evidence. Its clocks lose their guarantee, because
    /// nothing tells which of the instances is the false match.
    fn take_out(&mut self, contradiction: Contradiction, suspects: &mut [bool], fitted: &mut Fitted) {
        let Contradiction { instances, clocks } = contradiction;
        for clock in clocks.iter().filter(|c| **c != REFERENCE) {
            suspects[*clock] = true;
        }
        fitted.contradictions.push((instances.iter().map(|k| self.evidence[*k].instance).collect(), clocks));
        let instances: BTreeSet<usize> = instances.into_iter().collect();
        let mut positions = 0..;
        self.evidence.retain(|_| positions.next().is_some_and(|position| !instances.contains(&position)));
        self.find_rough();
    }

    /// The gates of every clock against the reference: from instances that both took part in, and from shortest paths
    /// within windows of time.
    fn gates(&self) -> Result<Vec<Vec<SourcedGate>>, Contradiction> {
        let frame = self.frame();
        let instances: Vec<&[Entry]> = frame.iter().map(Vec::as_slice).collect();
        let clocks = self.rough_ns.len();
        let times = || frame.iter().flatten().flat_map(|e| [Some(e.start), e.end.get()]).flatten();
        let (Some(from), Some(to)) = (times().min(), times().max()) else { return Ok(vec![Vec::new(); clocks]) };
        let mut gates: Vec<Vec<SourcedGate>> = vec![Vec::new(); clocks];
        let arrivals: Vec<Option<i64>> = frame.iter().map(|entries| entries.iter().map(|e| e.start).max()).collect();
        for level in 0..=LEVELS {
            let windows = 1_i64 << level;
            let length = (to - from) / windows + 1;
            // A short window leaves no room for drift. With one instance in a window, a path adds nothing to the
            // instance itself.
            let narrow = (length as f64) * DRIFT_LIMIT < 1_000.0;
            if level > 0 && (narrow || instances.len() < 2 * windows as usize) {
                break;
            }
            for window in 0..windows {
                let start = from + window * length;
                let in_window = |k: &usize| arrivals[*k].is_some_and(|t| (start..start + length).contains(&t));
                let inside: Vec<usize> = (0..frame.len()).filter(in_window).collect();
                self.window_gates(&instances, &inside, start + length / 2, &mut gates)?;
            }
        }
        self.direct_gates(&frame, &mut gates);
        Ok(gates)
    }

    /// The evidence in the frame, where all clocks nearly agree.
    fn frame(&self) -> Vec<Vec<Entry>> {
        let on_frame = |clock: usize, t: i64| Some(self.since_origin(clock, t).saturating_add(self.rough_ns[clock]?));
        let entry = |p: &Part| {
            let end = p.end_ns.get().and_then(|end| on_frame(p.clock, end));
            Some(Entry { clock: p.clock, start: on_frame(p.clock, p.start_ns)?, end: MaybeNs::of(end) })
        };
        self.evidence.iter().map(|e| e.parts.iter().filter_map(entry).collect()).collect()
    }

    fn window_gates(
        &self,
        instances: &[&[Entry]],
        inside: &[usize],
        center: i64,
        gates: &mut [Vec<SourcedGate>],
    ) -> Result<(), Contradiction> {
        let chosen: Vec<&[Entry]> = inside.iter().map(|k| instances[*k]).collect();
        // Each of two clocks may drift by half of the limit for the pair.
        let relax = |t: i64| (0.5 * DRIFT_LIMIT * (t - center).abs() as f64).ceil() as i64;
        let named = |c: Contradiction| Contradiction {
            instances: c.instances.iter().map(|k| inside[*k]).collect(),
            clocks: c.clocks,
        };
        let clocks = gates.len();
        let greatest = greatest_offsets(&chosen, clocks, REFERENCE, relax).map_err(named)?;
        let least = least_offsets(&chosen, clocks, REFERENCE, relax).map_err(named)?;
        for clock in 0..clocks {
            let (Some(rough), low, high) = (self.rough_ns[clock], least[clock], greatest[clock]) else { continue };
            if clock == REFERENCE || low == -UNREACHED || high == UNREACHED {
                continue;
            }
            // The center is a time in the frame. The corresponding time on the clock has the uncertainty of the range
            // itself.
            let unsure = DRIFT_LIMIT * low.abs().max(high.abs()) as f64;
            let gate = Gate { t: (center - rough) as f64, low: low as f64 - unsure, high: high as f64 + unsure };
            gates[clock].push((gate, None));
        }
        Ok(())
    }

    /// A clock enters before the reference leaves, and leaves after the reference has entered. Each gate has its own
    /// time.
    fn direct_gates(&self, frame: &[Vec<Entry>], gates: &mut [Vec<SourcedGate>]) {
        for (entries, e) in frame.iter().zip(&self.evidence) {
            let Some(reference) = entries.iter().find(|x| x.clock == REFERENCE) else { continue };
            for entry in entries.iter().filter(|x| x.clock != REFERENCE) {
                let rough = self.rough_ns[entry.clock].unwrap_or_default();
                let mut push = |t: i64, low: f64, high: f64| {
                    gates[entry.clock].push((Gate { t: (t - rough) as f64, low, high }, Some(e.instance)));
                };
                if let Some(end) = reference.end.get() {
                    push(entry.start, f64::NEG_INFINITY, (end - entry.start) as f64);
                }
                if let Some(end) = entry.end.get() {
                    push(end, (reference.start - end) as f64, f64::INFINITY);
                }
            }
        }
    }

    fn measured(&self) -> Measured {
        let departures = self.departures();
        let shift = self.equal_departures(&departures);
        let mut reference: Vec<Option<f64>> = vec![None; self.evidence.len()];
        for (instance, frame) in departures[REFERENCE].in_frame() {
            reference[instance] = Some(frame);
        }
        let mut quickest_ns: Vec<Option<i64>> = vec![None; self.rough_ns.len()];
        for e in &self.evidence {
            let spent =
                e.parts.iter().filter_map(|p| p.left_ns.get().map(|left| left.saturating_sub(p.start_ns))).min();
            for part in &e.parts {
                let quickest = &mut quickest_ns[part.clock];
                *quickest = (*quickest).into_iter().chain(spent).min();
            }
        }
        Measured { departures, shift, reference, together: OnceCell::new(), quickest_ns }
    }

    fn departures(&self) -> Vec<Departures> {
        let none = |rough: &Option<i64>| Departures { rough: rough.unwrap_or(0) as f64, list: Vec::new() };
        let mut departures: Vec<Departures> = self.rough_ns.iter().map(none).collect();
        for (instance, e) in (0..).zip(&self.evidence) {
            for part in e.parts.iter().filter(|part| self.rough_ns[part.clock].is_some()) {
                let Some(left) = part.left_ns.get() else { continue };
                let t = self.since_origin(part.clock, left) as f64;
                departures[part.clock].list.push(Departure { t, instance });
            }
        }
        departures
    }

    /// Moves the lines of clocks that are converted from one host clock to within the driver's error of that clock. A rank
    /// that always leaves late looks like a clock that is late; a driver is not that wrong. The host clock is that of the
    /// reference, or else the median of its clocks.
    fn hold_to_hosts(&self, lines: &mut [Option<Drawn>], hosts: &[Driven], measured: &Measured) {
        let mut of_host: BTreeMap<usize, Vec<usize>> = BTreeMap::new();
        for (clock, host) in
            hosts.iter().enumerate().filter(|(clock, _)| *clock == REFERENCE || lines[*clock].is_some())
        {
            of_host.entry(host.host).or_default().push(clock);
        }
        for clocks in of_host.into_values().filter(|clocks| clocks.len() > 1) {
            let first = clocks[0];
            let line_of = |clock: usize| lines[clock].as_ref().map_or(Line::default(), |drawn| drawn.line);
            // The first clock's line in the terms of another one: the clocks show the same times.
            let moved = |from: usize, line: Line, to: usize| {
                let later = self.origin_ns[to].saturating_sub(self.origin_ns[from]) as f64;
                let base_ns = self.base_ns(from).saturating_sub(self.base_ns(to));
                Line { offset: base_ns as f64 + line.at(later), drift: line.drift }
            };
            let host = if first == REFERENCE {
                Line::default()
            } else {
                let mut offsets: Vec<(f64, usize)> =
                    clocks.iter().map(|clock| (moved(*clock, line_of(*clock), first).offset, *clock)).collect();
                offsets.sort_by(|a, b| a.0.total_cmp(&b.0));
                let middle = offsets[(offsets.len() - 1) / 2].1;
                moved(middle, line_of(middle), first)
            };
            let errors = |clock: usize| hosts[clock].error_ns.saturating_add(hosts[first].error_ns);
            for clock in clocks.into_iter().filter(|clock| *clock != REFERENCE) {
                let host = moved(first, host, clock);
                if let Some(drawn) = &mut lines[clock] {
                    drawn.hold_to(host, errors(clock), &measured.points(clock));
                }
            }
        }
    }

    /// The offset of a clock from the reference that its line counts from.
    fn base_ns(&self, clock: usize) -> i64 {
        let there = self.origin_ns[REFERENCE].saturating_sub(self.origin_ns[clock]);
        self.rough_ns[clock].unwrap_or_default().saturating_add(there)
    }

    /// The least error that departures can show.
    fn grain_ns(&self) -> f64 {
        let mut left = self.evidence.iter().flat_map(|e| &e.parts).filter_map(|part| part.left_ns.get());
        if left.all(|t| t % MICROSECOND_NS == 0) { GRAIN_NS } else { TICK_NS }
    }

    /// Corrections to the clocks in the frame so that, at the median of each clock, ranks leave together.
    fn equal_departures(&self, departures: &[Departures]) -> Vec<f64> {
        const ROUNDS: usize = 40;
        let mut shift = vec![0.0; departures.len()];
        for _ in 0..ROUNDS {
            let together = together(departures, &shift, self.evidence.len());
            let mut moved: f64 = 0.0;
            for (clock, departures) in departures.iter().enumerate().filter(|(_, d)| !d.list.is_empty()) {
                let mut late: Vec<f64> =
                    departures.in_frame().filter_map(|(instance, frame)| Some(together[instance]? - frame)).collect();
                let next = median_in_place(&mut late).unwrap_or(0.0);
                moved = moved.max((next - shift[clock]).abs());
                shift[clock] = next;
            }
            if moved < 0.5 {
                break;
            }
        }
        let reference = shift[REFERENCE];
        shift.iter().map(|s| s - reference).collect()
    }

    fn estimate(
        &self,
        clock: usize,
        method: ClockMethod,
        Drawn { line, drift_known, driver_error_ns, .. }: Drawn,
        measured: &Measured,
    ) -> Estimate {
        let points = measured.points(clock);
        let times: Vec<f64> = points.iter().map(|p| p.0).collect();
        let line = line.rounded();
        let mut distances: Vec<f64> = points.iter().map(|p| (p.1 - line.at(p.0)).abs()).collect();
        let p95 = nearest_rank(&mut distances, 0.95).unwrap_or(0.0);
        let limit_ns = driver_error_ns.unwrap_or(f64::INFINITY);
        let misfit_ns = misfit::of_line(points.iter().map(|p| (p.0, p.1 - line.at(p.0))).collect());
        let bias_ns = (measured.quickest_ns[clock].unwrap_or(0).max(0) as f64).min(limit_ns);
        // One or two departures show no scatter. A collective lasts longer than ranks differ in leaving it.
        let unknown = (!points.is_empty()).then_some(bias_ns);
        let spread_ns = misfit_ns.map(|misfit| misfit.max(self.grain_ns()).min(limit_ns)).or(unknown);
        Estimate {
            method,
            origin_ns: self.origin_ns[clock],
            base_ns: self.base_ns(clock),
            line,
            drift_known,
            bend: None,
            spread_ns,
            bias_ns,
            // The driver's error is the same at all times.
            support: driver_error_ns.map_or_else(|| Support::of(&times), |_| Support::default()),
            samples: points.len() as i64,
            curved: None,
            residual_p95_ns: (!points.is_empty()).then_some(p95.ceil() as i64),
        }
    }
}

impl Measured {
    /// (Time on the clock, lead of the reference at departure), from instances that both took part in; if these are
    /// few, against the median departure of all clocks.
    fn points(&self, clock: usize) -> Vec<(f64, f64)> {
        let own = &self.departures[clock];
        let points = |leader: &[Option<f64>]| -> Vec<(f64, f64)> {
            let times = own.list.iter().zip(own.in_frame());
            times.filter_map(|(d, (instance, frame))| Some((d.t, leader[instance]? - frame))).collect()
        };
        let direct = points(&self.reference);
        if direct.len() >= 3 {
            return direct;
        }
        let together = self.together.get_or_init(|| together(&self.departures, &self.shift, self.reference.len()));
        points(together)
    }
}

/// The estimate of a clock before its errors are known.
struct Drawn {
    line: Line,
    drift_known: bool,
    /// The largest error, if a driver converts this clock from the host clock of another one.
    driver_error_ns: Option<f64>,
    /// The lines that the barriers allow; `None` if they contradict each other.
    feasible: Option<Feasible>,
}

impl Drawn {
    /// Replaces the line by that of the host clock, moved to where the clock leaves instances together with the reference, by
    /// at most [`DEVICE_ERROR_NS`] and the error of the map to the host clock. The farther the departures lie beyond this limit,
    /// or scatter, the less they say about the driver: then the rank leaves at another time. One clock does not drift from itself.
    fn hold_to(&mut self, host: Line, map_error_ns: i64, points: &[(f64, f64)]) {
        let limit = DEVICE_ERROR_NS.saturating_add(map_error_ns) as f64;
        let above = |p: &(f64, f64)| p.1 - host.at(p.0);
        let shift = median_in_place(&mut points.iter().map(above).collect::<Vec<_>>()).unwrap_or(0.0);
        let scatter = misfit::of_line(points.iter().map(|p| (p.0, above(p) - shift)).collect()).unwrap_or(0.0);
        let beyond = scatter.max(shift.abs() - limit).max(0.0);
        let trust = limit * limit / (limit * limit + beyond * beyond);
        self.line = Line { offset: host.offset + trust * shift.clamp(-limit, limit), drift: host.drift };
        self.drift_known = true;
        self.driver_error_ns = Some(2.0 * limit);
    }
}

/// The line on which a clock leaves instances together with the reference, moved to where barriers allow it.
fn draw(measured: &Measured, clock: usize, feasible: Option<Feasible>) -> Drawn {
    let points = measured.points(clock);
    let mut line = Line { offset: measured.shift[clock], drift: 0.0 };
    let drifting = drift_of(&points);
    if let Some(drift) = drifting {
        let mut offsets: Vec<f64> = points.iter().map(|p| p.1 - drift * p.0).collect();
        line = Line { offset: median_in_place(&mut offsets).unwrap_or(0.0), drift };
    }
    let mut drift_known = drifting.is_some();
    if let Some(feasible) = &feasible {
        let constant = feasible.clamp_constant(line.offset).filter(|_| !drift_known);
        drift_known |= constant.is_none();
        line = constant.map_or_else(|| feasible.clamp(line), |offset| Line { offset, drift: 0.0 });
    }
    Drawn { line, drift_known, driver_error_ns: None, feasible }
}

/// The median departure of each instance that at least two clocks left.
fn together(departures: &[Departures], shift: &[f64], instances: usize) -> Vec<Option<f64>> {
    let mut by_instance: Vec<Vec<f64>> = vec![Vec::new(); instances];
    for (departures, shift) in departures.iter().zip(shift) {
        for (instance, frame) in departures.in_frame() {
            by_instance[instance].push(frame + shift);
        }
    }
    by_instance.into_iter().map(|mut frames| median_in_place(&mut frames).filter(|_| frames.len() > 1)).collect()
}
