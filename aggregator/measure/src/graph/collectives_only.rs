//! The graph of a rank of which only collectives were recorded, or of which rows do not say what launched its communication.
//!
//! ```text
//!   rank   |--own--[A~~~~]-own-[B~~~]--own--|        own: the time without exposed communication
//! ```
//!
//! A rank calls a collective its own work after it called the one before, and not before the work is done that waited for another
//! one. A collective that began as soon as the one before it ended stood in a queue. It waits for that one alone: the work beside the
//! queue belongs to the first collective behind it.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use super::condensed::{Condensed, Kept, LATE_NS, Segment};
use super::nodes::NodeKind;
use super::paths::Path;
use crate::own_time::{OwnTime, Stretch};

/// A rank that waited for a collective goes on after this time at most.
const RESUMED_NS: i64 = 500_000;

/// The end of a collective: the time, and its node.
type Passed = (i64, u32);

impl Condensed {
    /// The graph of a rank's collectives, by its own time between them. A collective that begins up to `max_queue_gap_ns` after the end
    /// of the one before it stood in a queue.
    pub fn of_collectives(own_time: &OwnTime, max_queue_gap_ns: i64) -> Self {
        let starts_ns = own_time.stretches.iter().map(|stretch| stretch.since_ns.min(stretch.start_ns));
        let steps_ns = own_time.path_steps.iter().map(|step| step.window.start_ns);
        let begin_ns = starts_ns.chain(steps_ns).min().unwrap_or(0);
        let mut graph = Self { segments: marked(own_time), ..Self::default() };
        graph.add(NodeKind::Begin, (begin_ns, begin_ns), None, &[]);
        let mut passed: Vec<Option<Passed>> = vec![None; own_time.stretches.len()];
        let mut order: Vec<usize> = (0..passed.len()).filter(|at| own_time.stretches[*at].end_ns.is_some()).collect();
        order.sort_by_key(|at| own_time.stretches[*at].start_ns);
        let mut before =
            Before { at: 0, at_ns: begin_ns, work_ns: 0, end: (0, begin_ns), open: BinaryHeap::new(), ended: None };
        for at in order {
            passed[at] =
                Some(graph.add_collective((at, &own_time.stretches[at]), &passed, &mut before, max_queue_gap_ns));
        }
        // The work after the last collective.
        let last_ns = own_time.path_steps.iter().map(|step| step.window.end_ns).max();
        if let Some(end_ns) = last_ns.filter(|end_ns| *end_ns > before.end.1) {
            let host = Path { from: before.end.0, host_ns: end_ns - before.end.1, ..Path::default() };
            graph.add(NodeKind::Host, (end_ns, end_ns), None, &[host]);
        }
        graph.shrink_to_fit();
        graph
    }

    fn add_collective(
        &mut self,
        (at, stretch): (usize, &Stretch),
        passed: &[Option<Passed>],
        before: &mut Before,
        max_queue_gap_ns: i64,
    ) -> Passed {
        let (start_ns, end_ns) = (stretch.start_ns, stretch.end_ns.unwrap_or(stretch.start_ns));
        while let Some(Reverse(ended)) = before.open.peek().copied().filter(|Reverse(ended)| ended.0 <= start_ns) {
            before.ended = Some(ended);
            before.open.pop();
        }
        let after_ended =
            before.ended.map(|(ended_ns, from)| Path { from, fixed_ns: start_ns - ended_ns, ..Path::default() });
        let queued = after_ended.filter(|path| path.fixed_ns <= max_queue_gap_ns);
        before.work_ns += stretch.own_ns.unwrap_or(0).max(0);
        let mut paths = Vec::with_capacity(3);
        if let Some(path) = queued {
            paths.push(path);
        } else {
            // No events were recorded between two windows of steps. Work that is not known stays as it is.
            let is_first = stretch.entered.is_none();
            let (from, from_ns) = if is_first { before.end } else { (before.at, before.at_ns) };
            let fixed_ns = match stretch.own_ns {
                None => start_ns - from_ns,
                Some(_) if is_first => (start_ns - from_ns - before.work_ns).max(0),
                Some(_) => 0,
            };
            let mut own = Path { from, host_ns: before.work_ns, fixed_ns, ..Path::default() };
            let waited =
                stretch.waited.and_then(|at| *passed.get(at as usize)?).filter(|(end_ns, _)| *end_ns <= start_ns);
            // Since that wait, the rank may have waited again.
            let after_wait = |(end_ns, from): Passed| {
                let host_ns = (start_ns - end_ns).min(before.work_ns);
                (end_ns + host_ns, Path { from, host_ns, ..Path::default() })
            };
            let waited = waited.map(after_wait);
            let ready_ns = waited.map_or(i64::MIN, |(ns, _)| ns).max(from_ns + own.host_ns + own.fixed_ns);
            // Communication that ended while other communication went on may have been waited for.
            let is_explained = ready_ns + LATE_NS >= start_ns;
            let resumed = after_ended.filter(|path| !is_explained && path.fixed_ns <= RESUMED_NS);
            if !is_explained && resumed.is_none() {
                own.late_ns = start_ns - (from_ns + own.host_ns + own.fixed_ns);
            }
            paths.push(own);
            paths.extend(waited.map(|(_, path)| path).into_iter().chain(resumed));
        }
        let call = self.add(NodeKind::Host, (start_ns, start_ns), None, &paths);
        let collective = Some(at as u32);
        let arrive = [Path { from: call, ..Path::default() }];
        let arrive = self.add(NodeKind::Arrive, (start_ns, start_ns), collective, &arrive);
        let leave = [Path { from: arrive, fixed_ns: end_ns - start_ns, ..Path::default() }];
        let leave = self.add(NodeKind::Leave, (start_ns, end_ns), collective, &leave);
        if queued.is_none() {
            (before.at, before.at_ns, before.work_ns) = (arrive, start_ns, 0);
        }
        before.open.push(Reverse((end_ns, leave)));
        if end_ns >= before.end.1 {
            before.end = (leave, end_ns);
        }
        (end_ns, leave)
    }

    /// Adds a node with the paths to it. The host of its segment is as long as the longest of them.
    fn add(&mut self, kind: NodeKind, (at_ns, end_ns): (i64, i64), collective: Option<u32>, paths: &[Path]) -> u32 {
        let is_before = |mark: &Segment| mark.at_ns < at_ns || kind != NodeKind::Host && mark.at_ns == at_ns;
        let segment = self.segments.partition_point(is_before).saturating_sub(1);
        self.segments[segment].host_ns += paths.iter().map(|path| path.host_ns).max().unwrap_or(0);
        self.segments[segment].late_ns += paths.iter().map(|path| path.late_ns).max().unwrap_or(0);
        self.paths.extend(paths.iter().copied());
        let (segment, paths_end) = (segment as u32, self.paths.len() as u32);
        self.nodes.push(Kept { kind, segment, at_ns, end_ns, collective, paths_end });
        self.nodes.len() as u32 - 1
    }
}

/// What comes before a collective.
struct Before {
    /// The last arrival at a collective that stood in no queue, and when that was.
    at: u32,
    at_ns: i64,
    /// The work since.
    work_ns: i64,
    /// The last end.
    end: (u32, i64),
    /// The collectives that have not ended.
    open: BinaryHeap<Reverse<Passed>>,
    /// The last one that has.
    ended: Option<Passed>,
}

fn marked(own_time: &OwnTime) -> Vec<Segment> {
    let mut segments = vec![Segment { at_ns: i64::MIN, ..Segment::default() }];
    segments.extend(own_time.path_steps.iter().map(|step| Segment {
        at_ns: step.window.start_ns,
        step: Some(step.step),
        step_end_ns: Some(step.window.end_ns),
        ..Segment::default()
    }));
    let collectives = (0..).zip(&own_time.stretches).filter(|(_, stretch)| stretch.end_ns.is_some());
    segments.extend(collectives.map(|(at, stretch)| Segment {
        at_ns: stretch.start_ns,
        collective: Some(at),
        ..Segment::default()
    }));
    segments.sort_by_key(|segment| (segment.at_ns, segment.collective));
    segments
}
