//! The critical path of the job: from the end of each step back to its start, through all ranks.
//!
//! ```text
//!   rank 0   ####[~~~~~~~~~AA]##[~~BB]##|        the step ends on rank 0
//!   rank 1   #############[AA]#####[BB]#|
//!   path     1111111111111aaaa11111bbbb00        1, 0: own work of a rank; a, b: transfers
//! ```
//!
//! The path goes from the end of a collective to the rank that arrived last, and from the arrival of that rank to the collective
//! that its own work waited for. These dependencies are those of the [replay](crate::replay). If two ranks arrived
//! within the error of their clocks, the path stays on its rank.
//!
//! A step begins on the path where the rank on the path begins it. The pieces of the path therefore cover the time from the first
//! step to the end of the last one without a gap.

use std::collections::BTreeSet;
use std::sync::Arc;

use rustc_hash::FxHashMap;
use trace::{JobPathRow, PathKind, Unexplained};

use crate::nodes::{Leave, NONE};
use crate::replay::Replay;
use measure::own_time::{Done, OnPath, OwnTime, PathWork, Stretch};
use measure::part::OnPaths;
use model::Instance;
use model::intervals::Interval;
use model::steps::StepWindow;
use model::thresholds::Thresholds;
use topology::join::{Join, by_rank};
use topology::{ClockError, ToGlobal};

/// Time of the host between steps that has no number.
const BETWEEN: i32 = -1;

/// A place of the path.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Place {
    /// A rank leaves the collective of this node.
    Leaves(u32),
    /// A rank enters the collective of this node.
    Enters(u32),
}

/// The data of a rank on the path.
enum RankOnPath<'a> {
    Own(&'a OwnTime),
    Read(Arc<OnPath>),
}

impl RankOnPath<'_> {
    fn stretches(&self) -> &[Stretch] {
        match self {
            Self::Own(own_time) => &own_time.stretches,
            Self::Read(read) => &read.stretches,
        }
    }

    fn work(&self) -> &PathWork {
        match self {
            Self::Own(own_time) => &own_time.path,
            Self::Read(read) => &read.work,
        }
    }
}

struct Walk<'a> {
    parts: &'a [&'a OwnTime],
    join: &'a Join,
    replay: &'a Replay,
    to_global: ToGlobal<'a>,
    on_paths: Option<&'a dyn OnPaths>,
    /// The ends of collectives of ranks on the path, ascending, with their positions in the rank's list.
    ends_of: FxHashMap<usize, Vec<(i64, u32)>>,
    /// For each rank, the error of its global times.
    clock_error_ns: &'a [Option<i64>],
    /// For each rank and each of its collectives, the node.
    node_of: Vec<Vec<u32>>,
    /// From the last one to the first.
    rows: Vec<JobPathRow>,
    /// The step of the path: the lowest one so far.
    step: i32,
    /// The start of the path so far.
    from_ns: i64,
}

/// The critical path of the job, by time, without a verdict. The arguments are those of
/// [`reduce`](crate::reduce).
pub fn critical_path_of_job(
    parts: &[OwnTime],
    instances: Vec<Instance>,
    (to_global, clock_error): (ToGlobal<'_>, ClockError<'_>),
    thresholds: &Thresholds,
) -> Vec<JobPathRow> {
    let parts = by_rank(parts);
    let join = Join::of(&parts, instances, to_global);
    let replay = Replay::of(&join, &BTreeSet::new(), thresholds.max_queue_gap_ns);
    let errors_ns: Vec<Option<i64>> = parts.iter().map(|part| clock_error(part.rank, part.has_device)).collect();
    job_path(&parts, &join, &replay, (to_global, &errors_ns), None)
}

/// The critical path of the job, by time. The clocks must be those of the joined collectives. Without `on_paths`, the own time of
/// the ranks has their stretches and their work.
pub(super) fn job_path(
    parts: &[&OwnTime],
    join: &Join,
    replay: &Replay,
    (to_global, clock_error_ns): (ToGlobal<'_>, &[Option<i64>]),
    on_paths: Option<&dyn OnPaths>,
) -> Vec<JobPathRow> {
    let mut node_of: Vec<Vec<u32>> = join.stretches().map(|stretches| vec![NONE; stretches]).collect();
    for (at, node) in (0..).zip(&replay.nodes) {
        let arrival = join.instances[node.instance as usize].arrival_of(node.rank as usize);
        if let Some(node) = arrival.and_then(|a| node_of[a.rank].get_mut(a.stretch as usize)) {
            *node = at;
        }
    }
    let mut walk = Walk {
        parts,
        join,
        replay,
        to_global,
        on_paths,
        ends_of: FxHashMap::default(),
        clock_error_ns,
        node_of,
        rows: Vec::new(),
        step: i32::MAX,
        from_ns: i64::MAX,
    };
    while let Some((rank, step)) = walk.last_to_end() {
        walk.follow(rank, step);
    }
    walk.rows.reverse();
    walk.rows
}

impl<'a> Walk<'a> {
    /// The rank that is the last one to end the last step before `self.step`, and the position of that step in its list.
    fn last_to_end(&self) -> Option<(usize, usize)> {
        let before = |part: &&OwnTime| {
            let steps = part.path_steps.partition_point(|(step, _)| step.step < self.step);
            steps.checked_sub(1)
        };
        let steps = self.parts.iter().enumerate().filter_map(|(rank, part)| Some((rank, before(part)?)));
        let order = |(rank, at): &(usize, usize)| {
            let (step, _) = self.parts[*rank].path_steps[*at];
            (step.step, self.global(*rank, step.window.end_ns))
        };
        steps.max_by_key(order)
    }

    fn global(&self, rank: usize, host_ns: i64) -> i64 {
        (self.to_global)(self.parts[rank].rank, false, host_ns)
    }

    /// Follows the path from the end of a step of a rank to where nothing earlier is known.
    fn follow(&mut self, rank: usize, step: usize) {
        let part = self.parts[rank];
        let (StepWindow { step, window }, waited) = part.path_steps[step];
        self.step = step;
        let end_ns = window.end_ns;
        let on_path = self.on_path(rank);
        let entered = on_path.stretches().partition_point(|s| s.start_ns < end_ns).checked_sub(1);
        let entered = entered.map(|at| at as u32);
        let node_of = |at: Option<u32>| self.node_of[rank].get(at? as usize).copied().filter(|node| *node != NONE);
        let (waited, entered) = (node_of(waited), node_of(entered));
        let place = match (waited, entered) {
            (Some(waited), _) => Some(Place::Leaves(waited)),
            (None, entered) => self.entered_or_left(entered, rank, end_ns),
        };
        let global_end_ns = self.global(rank, end_ns);
        let from = place.map(|place| self.time(place)).filter(|(local_ns, _)| *local_ns <= end_ns);
        let (from_ns, global_ns) = from.unwrap_or((window.start_ns, self.global(rank, window.start_ns)));
        if global_end_ns < self.from_ns && !self.rows.is_empty() {
            // Nothing tells what the later part of the path waited for.
            let gap = self.back_to(global_end_ns);
            self.add_work(rank, BETWEEN, gap, Done::default());
        }
        self.from_ns = self.from_ns.min(global_end_ns);
        self.work(rank, Interval::new(from_ns, end_ns), global_ns);
        if from.is_none() {
            return;
        }
        let mut place = place;
        // Each turn goes back in time or to an earlier collective. The limit guards against clocks that contradict each other.
        let mut turns = 2 * self.replay.nodes.len();
        while let Some(at) = place.filter(|_| turns > 0) {
            place = match at {
                Place::Leaves(node) => Some(self.transfer(node)),
                Place::Enters(node) => self.before(node),
            };
            turns -= 1;
        }
    }

    /// The time of a place, in the rank's clock and in global time.
    fn time(&self, place: Place) -> (i64, i64) {
        let (Place::Leaves(at) | Place::Enters(at)) = place;
        let node = &self.replay.nodes[at as usize];
        let stretch = self.stretch(at);
        match place {
            Place::Leaves(_) => (stretch.1, node.end_ns),
            Place::Enters(_) => (stretch.0, node.arrival_ns),
        }
    }

    /// When the rank of a node entered and left the collective, in its clock.
    fn stretch(&self, at: u32) -> (i64, i64) {
        let times = |stretch: Stretch| (stretch.start_ns, stretch.end_ns.unwrap_or(stretch.start_ns));
        self.recorded(at).map_or((0, 0), times)
    }

    fn recorded(&self, at: u32) -> Option<Stretch> {
        let node = &self.replay.nodes[at as usize];
        let arrival = self.join.instances[node.instance as usize].arrival_of(node.rank as usize)?;
        self.on_path(arrival.rank).stretches().get(arrival.stretch as usize).copied()
    }

    fn on_path(&self, rank: usize) -> RankOnPath<'a> {
        let own_time = self.parts[rank];
        self.on_paths.map_or(RankOnPath::Own(own_time), |on_paths| RankOnPath::Read(on_paths.of(own_time)))
    }

    /// The place where the work of a rank up to a time began, if it waited for no collective: the entry into a collective. If
    /// communication of the time since then was not hidden, the rank waited for the last collective that it left.
    fn entered_or_left(&mut self, entered: Option<u32>, rank: usize, until_ns: i64) -> Option<Place> {
        let entered = entered.map(Place::Enters);
        let left = self.left(rank, until_ns).and_then(|at| self.node_of[rank].get(at as usize).copied());
        let left = left.filter(|node| *node != NONE).map(Place::Leaves);
        let since_ns = entered.map_or(i64::MIN, |entered| self.time(entered).0);
        let waited = || self.on_path(rank).work().between(since_ns, until_ns).communication_ns > 0;
        left.filter(|left| self.time(*left).0 > since_ns && waited()).or(entered)
    }

    /// The last collective that a rank left, up to a time in its clock.
    fn left(&mut self, rank: usize, until_ns: i64) -> Option<u32> {
        if !self.ends_of.contains_key(&rank) {
            let on_path = self.on_path(rank);
            let ends = (0..).zip(on_path.stretches()).filter_map(|(at, stretch)| Some((stretch.end_ns?, at)));
            let mut ends: Vec<(i64, u32)> = ends.collect();
            ends.sort_unstable();
            self.ends_of.insert(rank, ends);
        }
        let ends = self.ends_of.get(&rank)?;
        let after = ends.partition_point(|(end_ns, _)| *end_ns <= until_ns);
        after.checked_sub(1).map(|at| ends[at].1)
    }

    /// Goes from the end of a collective to the arrival that the rank waited for.
    fn transfer(&mut self, at: u32) -> Place {
        let node = self.replay.nodes[at as usize];
        let instance = &self.join.instances[node.instance as usize];
        let blocker = instance.blocker();
        let awaited = match node.leave {
            Leave::After(awaited, _) => awaited,
            Leave::AfterLast(_) => self.node_of[blocker.rank].get(blocker.stretch as usize).copied().unwrap_or(at),
        };
        let awaited = if awaited == NONE { at } else { awaited };
        let error_ns = |at: u32| self.clock_error_ns[self.replay.nodes[at as usize].rank as usize];
        let late_ns = self.replay.nodes[awaited as usize].arrival_ns - node.arrival_ns;
        let (unexplained, awaited) = match error_ns(at).zip(error_ns(awaited)) {
            _ if awaited == at => (None, at),
            Some((own_ns, other_ns)) if late_ns <= own_ns.saturating_add(other_ns) => (None, at),
            Some(_) => (None, awaited),
            None => (Some(Unexplained::Clock), at),
        };
        let unexplained =
            if instance.whole && instance.arrivals.len() > 1 { unexplained } else { Some(Unexplained::Unmatched) };
        let global = self.back_to(self.replay.nodes[awaited as usize].arrival_ns);
        let rank = node.rank as usize;
        for (step, global, _) in self.by_step(rank, global) {
            let len_ns = global.len_ns();
            let step = self.count(step);
            let row = JobPathRow {
                step,
                rank: self.parts[rank].rank,
                kind: PathKind::Transfer.into(),
                instance: Some(instance.id),
                comm_id: Some(instance.comm_id),
                op: Some(instance.op.clone()),
                ts_ns: global.start_ns,
                dur_ns: len_ns,
                transfer_ns: if unexplained.is_none() { len_ns } else { 0 },
                unexplained_ns: if unexplained.is_none() { 0 } else { len_ns },
                unexplained: unexplained.map(Into::into),
                ..JobPathRow::default()
            };
            self.rows.push(row);
        }
        Place::Enters(awaited)
    }

    /// Goes from the arrival at a collective over the rank's own work to the place where that began.
    fn before(&mut self, at: u32) -> Option<Place> {
        let node = self.replay.nodes[at as usize];
        let rank = node.rank as usize;
        let is_queued = node.before != NONE && node.queued_ns <= self.replay.max_queue_gap_ns;
        let (start_ns, _) = self.stretch(at);
        let place = match (node.before, node.waited) {
            (before, _) if is_queued => Some(Place::Leaves(before)),
            (_, waited) if waited != NONE => Some(Place::Leaves(waited)),
            _ => {
                let known = |node: u32| Some(node).filter(|node| *node != NONE);
                self.entered_or_left(known(node.entered), rank, start_ns)
            }
        };
        let (from_ns, global_ns) = match place {
            Some(place) => self.time(place),
            // The begin of the first step of a recording.
            None => {
                let since_ns = self.recorded(at).map_or(start_ns, |stretch| stretch.since_ns.min(start_ns));
                (since_ns, node.arrival_ns - (start_ns - since_ns))
            }
        };
        let local = Interval::new(from_ns.min(start_ns), start_ns);
        self.work(rank, local, global_ns);
        place
    }

    /// The step to which a time counts that lies in this step of its rank.
    fn count(&mut self, step: i32) -> i32 {
        if step == BETWEEN {
            return step;
        }
        self.step = self.step.min(step);
        self.step
    }

    /// Splits global time of a rank at the borders of its steps, the last part first: the step, its time, and its begin in the
    /// rank's clock if that is such a border.
    fn by_step(&self, rank: usize, global: Interval) -> Vec<(i32, Interval, Option<i64>)> {
        let border = |at_ns: i64, local_ns: i64| (at_ns > global.start_ns).then_some(local_ns);
        let steps = &self.parts[rank].path_steps;
        let mut split = Vec::with_capacity(1);
        let mut until_ns = global.end_ns;
        let before = steps.partition_point(|(step, _)| self.global(rank, step.window.start_ns) < until_ns);
        for (step, _) in steps[..before].iter().rev() {
            if until_ns <= global.start_ns {
                break;
            }
            let (start_ns, end_ns) = (self.global(rank, step.window.start_ns), self.global(rank, step.window.end_ns));
            let end_ns = end_ns.clamp(global.start_ns, until_ns);
            if end_ns < until_ns {
                split.push((BETWEEN, Interval::new(end_ns, until_ns), border(end_ns, step.window.end_ns)));
            }
            let start_ns = start_ns.clamp(global.start_ns, end_ns);
            if start_ns < end_ns {
                let begin_ns = border(start_ns, step.window.start_ns);
                split.push((step.step, Interval::new(start_ns, end_ns), begin_ns));
            }
            until_ns = start_ns;
        }
        if until_ns > global.start_ns {
            split.push((BETWEEN, Interval::new(global.start_ns, until_ns), None));
        }
        split
    }

    /// Goes back to a time. Where clocks contradict the order of events, it may be later, and the path stays where it is.
    fn back_to(&mut self, from_ns: i64) -> Interval {
        let until_ns = self.from_ns;
        self.from_ns = from_ns.min(until_ns);
        Interval::new(self.from_ns, until_ns)
    }

    /// Goes back over own work of a rank, of this time in its clock, and splits it at the borders of its steps.
    fn work(&mut self, rank: usize, local: Interval, from_ns: i64) {
        let global = self.back_to(from_ns);
        let on_path = self.on_path(rank);
        let mut until_ns = local.end_ns;
        for (step, global, begin_ns) in self.by_step(rank, global) {
            let from_ns = begin_ns.unwrap_or(local.start_ns).min(until_ns);
            let done = on_path.work().between(from_ns, until_ns);
            until_ns = from_ns;
            let step = self.count(step);
            self.add_work(rank, step, global, done);
        }
    }

    fn add_work(&mut self, rank: usize, step: i32, global: Interval, done: Done) {
        let mut row = JobPathRow {
            step,
            rank: self.parts[rank].rank,
            kind: PathKind::Work.into(),
            ts_ns: global.start_ns,
            dur_ns: global.len_ns(),
            cpu_ns: done.cpu_ns,
            host_gap_ns: done.host_gap_ns,
            data_loading_ns: done.data_loading_ns,
            gpu_compute_ns: done.gpu_compute_ns,
            gpu_memory_ns: done.gpu_memory_ns,
            ..JobPathRow::default()
        };
        let known_ns = done.sum_ns() - done.communication_ns;
        row.unexplained_ns = row.dur_ns - known_ns;
        if row.unexplained_ns < 0 {
            // The clock of the rank drifts against global time, or clocks contradict each other.
            let parts = [
                &mut row.cpu_ns,
                &mut row.host_gap_ns,
                &mut row.data_loading_ns,
                &mut row.gpu_compute_ns,
                &mut row.gpu_memory_ns,
            ];
            let mut beyond_ns = -row.unexplained_ns;
            for part in parts {
                let ns = beyond_ns.min(*part);
                *part -= ns;
                beyond_ns -= ns;
            }
            row.unexplained_ns = 0;
        }
        let why = if done.communication_ns > 0 { Unexplained::Unmatched } else { Unexplained::NotRecorded };
        row.unexplained = (row.unexplained_ns > 0).then(|| why.into());
        let is_same = |after: &JobPathRow| {
            let ends =
                after.ts_ns == row.ts_ns + row.dur_ns && after.unexplained.is_none() == row.unexplained.is_none();
            ends && after.kind == PathKind::Work && (after.rank, after.step) == (row.rank, row.step)
        };
        match self.rows.last_mut().filter(|after| is_same(after)) {
            Some(after) => join_rows(after, &row),
            None if row.dur_ns > 0 => self.rows.push(row),
            None => (),
        }
    }
}

/// Puts a piece of work before one that follows it.
fn join_rows(after: &mut JobPathRow, before: &JobPathRow) {
    after.ts_ns = before.ts_ns;
    after.dur_ns += before.dur_ns;
    after.cpu_ns += before.cpu_ns;
    after.host_gap_ns += before.host_gap_ns;
    after.data_loading_ns += before.data_loading_ns;
    after.gpu_compute_ns += before.gpu_compute_ns;
    after.gpu_memory_ns += before.gpu_memory_ns;
    after.unexplained_ns += before.unexplained_ns;
}
