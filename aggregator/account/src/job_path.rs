//! The critical path of the job: from the end of its last step back to the begin of its first one, through all ranks.
//!
//! ```text
//!   rank 0   ####[~~~~~~~~~AA]##[~~BB]##|        the step ends on rank 0
//!   rank 1   #############[AA]#####[BB]#|
//!   path     1111111111111aaaa11111bbbb00        1, 0: own work of a rank; a, b: transfers
//! ```
//!
//! It is the longest path of the [graph](crate::graph) of the run, which ends when the job ends, with one exception: if two ranks
//! arrived within the error of their clocks, the path stays on its rank.
//!
//! A step begins on the path where the rank on the path begins it. The pieces of the path therefore cover the time from the first
//! step to the end of the last one without a gap.

use std::sync::Arc;

use measure::graph::NodeKind;
use trace::{JobPathRow, PathKind, Unexplained};

use crate::graph::Node;
use crate::scaled::Scaled;
use measure::own_time::{Done, OwnTime, PathWork};
use measure::part::OnPaths;
use model::intervals::Interval;
use topology::join::Join;
use topology::{ClockError, ToGlobal};

/// Time of the host between steps that has no number.
const BETWEEN: i32 = -1;

struct Walk<'a> {
    run: &'a Scaled,
    /// When each node of the run ended, in global time.
    ends_ns: Vec<i64>,
    parts: &'a [&'a OwnTime],
    join: &'a Join,
    to_global: ToGlobal<'a>,
    clock_error_ns: ClockError<'a>,
    on_paths: Option<&'a dyn OnPaths>,
    /// From the last one to the first.
    rows: Vec<JobPathRow>,
    /// The step of the path: the lowest one so far.
    step: i32,
    /// The start of the path so far.
    from_ns: i64,
}

/// The critical path of a run, by time. The clocks must be those of the joined collectives. Without `on_paths`, the own time of
/// the ranks has their work. There is none without steps.
pub(crate) fn job_path(
    run: &Scaled,
    parts: &[&OwnTime],
    join: &Join,
    (to_global, clock_error_ns): (ToGlobal<'_>, ClockError<'_>),
    on_paths: Option<&dyn OnPaths>,
) -> Vec<JobPathRow> {
    let mut ends_ns = Vec::new();
    run.graph.replay(&run.graph.recorded_ns(), &mut ends_ns);
    ends_ns.iter_mut().for_each(|ns| *ns += run.graph.origin_ns);
    let (rows, step, from_ns) = (Vec::new(), i32::MAX, i64::MAX);
    let mut walk = Walk { run, ends_ns, parts, join, to_global, clock_error_ns, on_paths, rows, step, from_ns };
    walk.follow();
    walk.rows.reverse();
    walk.rows
}

impl<'a> Walk<'a> {
    /// Global time of a rank's clock.
    fn global(&self, rank: usize, ns: i64) -> i64 {
        (self.to_global)(self.parts[rank].rank, self.parts[rank].has_device, ns)
    }

    /// Time of a rank's clock. Clocks drift by far less than a thousandth, so each turn has three more digits right.
    fn local(&self, rank: usize, global_ns: i64) -> i64 {
        let closer = |ns: i64, _| ns.saturating_sub(self.global(rank, ns).saturating_sub(global_ns));
        (0..4).fold(global_ns, closer)
    }

    /// When a rank began a step that all have, and when it ended it.
    fn step_of(&self, rank: usize, step: Option<&i32>) -> Option<Interval> {
        let steps = &self.parts[rank].path_steps;
        let at = steps.binary_search_by_key(step?, |window| window.step).ok()?;
        let Interval { start_ns, end_ns } = steps[at].window;
        Some(Interval::new(self.global(rank, start_ns), self.global(rank, end_ns)))
    }

    /// When a rank began the first step that all have.
    fn begin_ns(&self, rank: usize) -> Option<i64> {
        self.step_of(rank, self.run.steps.first()).map(|window| window.start_ns)
    }

    /// Follows the path to where nothing earlier is known.
    fn follow(&mut self) {
        let ranks = 0..self.parts.len();
        let ends = ranks.clone().filter_map(|rank| Some((self.step_of(rank, self.run.steps.last())?.end_ns, rank)));
        let Some((end_ns, mut rank)) = ends.max() else { return };
        self.from_ns = end_ns;
        let nodes = self.run.graph.nodes.iter().zip(&self.run.passed).enumerate();
        let of_rank = |at: &(usize, (&Node, &u32))| {
            let (_, (node, passed)) = *at;
            node.rank as usize == rank && node.kind.is_some() && (*passed as usize) < self.run.begins_step.len()
        };
        let mut at = nodes.filter(of_rank).map(|(at, _)| at).max_by_key(|at| self.ends_ns[*at]);
        while let Some(node) = at {
            rank = self.run.graph.nodes[node].rank as usize;
            let (begin, before) = self.back_over_work(node);
            self.work(rank, self.ends_ns[begin]);
            let is_in_steps = self.begin_ns(rank).is_none_or(|ns| ns < self.from_ns);
            at = before.filter(|_| is_in_steps).and_then(|before| self.transfer(begin, before));
        }
        // Nothing tells what the rank waited for before.
        if let Some(first_ns) = ranks.filter_map(|rank| self.begin_ns(rank)).min().filter(|ns| *ns < self.from_ns)
            && self.begin_ns(rank).is_none_or(|ns| ns < self.from_ns)
        {
            self.work(rank, first_ns);
        }
    }

    /// Goes back over the nodes of a rank: to the end of a collective, and the arrival or the transfer that it follows; or to the
    /// begin of the recording, or to that of the rank's first step.
    fn back_over_work(&self, mut at: usize) -> (usize, Option<usize>) {
        let nodes = &self.run.graph.nodes;
        loop {
            let Some(path) = self.run.graph.last_path(at, &self.ends_ns) else { return (at, None) };
            let from = path.from as usize;
            if nodes[at].kind == Some(NodeKind::Leave) {
                return (at, Some(from));
            }
            if self.begin_ns(nodes[at].rank as usize).is_some_and(|begin_ns| self.ends_ns[from] <= begin_ns) {
                return (from, None);
            }
            at = from;
        }
    }

    /// Goes from the end of a collective to the arrival that the rank waited for. `before` is the transfer, or the own arrival where
    /// nothing is known of other ranks.
    fn transfer(&mut self, leave: usize, before: usize) -> Option<usize> {
        let run = self.run;
        let nodes = &run.graph.nodes;
        let node = nodes[leave];
        let arrivals = || run.graph.paths_to(before).map(|path| path.from as usize);
        let (own, last) = match nodes[before].kind {
            Some(_) => (before, before),
            None => {
                let last = arrivals().max_by_key(|at| self.ends_ns[*at])?;
                (arrivals().find(|at| nodes[*at].rank == node.rank).unwrap_or(last), last)
            }
        };
        let error_ns = |at: usize| {
            let part = self.parts[nodes[at].rank as usize];
            (self.clock_error_ns)(part.rank, part.has_device)
        };
        let late_ns = self.ends_ns[last] - self.ends_ns[own];
        let (unexplained, awaited) = match error_ns(own).zip(error_ns(last)) {
            _ if last == own => (None, own),
            Some((own_ns, last_ns)) if late_ns <= own_ns.saturating_add(last_ns) => (None, own),
            Some(_) => (None, last),
            None => (Some(Unexplained::Clock), own),
        };
        self.add_transfer(&node, self.ends_ns[awaited], unexplained);
        Some(awaited)
    }

    fn add_transfer(&mut self, node: &Node, from_ns: i64, unexplained: Option<Unexplained>) {
        let instance = self.join.instances.get(node.instance as usize);
        let is_known = instance.is_some_and(|instance| instance.whole && instance.arrivals.len() > 1);
        let unexplained = if is_known { unexplained } else { Some(Unexplained::Unmatched) };
        let global = self.back_to(from_ns);
        let rank = node.rank as usize;
        for (step, global, _) in self.by_step(rank, global) {
            let len_ns = global.len_ns();
            let step = self.count(step);
            // A collective that was never matched has no operation that ranks have in common.
            let kind = if instance.is_some() { PathKind::Transfer } else { PathKind::Work };
            let row = JobPathRow {
                step,
                rank: self.parts[rank].rank,
                kind: kind.into(),
                instance: instance.map(|instance| instance.id),
                comm_id: instance.map(|instance| instance.comm_id),
                op: instance.map(|instance| instance.op.clone()),
                ts_ns: global.start_ns,
                dur_ns: len_ns,
                transfer_ns: if unexplained.is_none() { len_ns } else { 0 },
                unexplained_ns: if unexplained.is_none() { 0 } else { len_ns },
                unexplained: unexplained.map(Into::into),
                ..JobPathRow::default()
            };
            self.rows.push(row);
        }
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
        let before = steps.partition_point(|step| self.global(rank, step.window.start_ns) < until_ns);
        for step in steps[..before].iter().rev() {
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

    /// Goes back over own work of a rank, and splits it at the borders of its steps.
    fn work(&mut self, rank: usize, from_ns: i64) {
        let global = self.back_to(from_ns.max(self.begin_ns(rank).unwrap_or(from_ns)));
        if global.len_ns() == 0 {
            return;
        }
        let own_time = self.parts[rank];
        let work: Arc<PathWork> = self.on_paths.map_or_else(|| own_time.path.clone(), |paths| paths.of(own_time));
        let mut until_ns = self.local(rank, global.end_ns);
        for (step, global, begin_ns) in self.by_step(rank, global) {
            let from_ns = begin_ns.unwrap_or_else(|| self.local(rank, global.start_ns)).min(until_ns);
            let done = work.between(from_ns, until_ns);
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
        row.unexplained_ns = row.dur_ns - done.sum_ns();
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
        row.unexplained = (row.unexplained_ns > 0).then(|| Unexplained::NotRecorded.into());
        let is_same = |after: &JobPathRow| {
            let ends = after.ts_ns == row.ts_ns + row.dur_ns && after.unexplained == row.unexplained;
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
