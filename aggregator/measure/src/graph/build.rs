//! Builds the graph of a rank from its calls and the work that they launched.
//!
//! | a piece of device work begins after | known from |
//! |---|---|
//! | its launch | the call, and the usual time from call to start |
//! | the work before it on its stream | streams are queues |
//! | computation, or a collective before a call that lets a stream wait | a guess, see [`Order`] |
//! | the end of work on another stream | times, where nothing else explains the start |
//! | room on the device | a kernel of another stream fills it until about then |
//!
//! An edge that contradicts the recording is left out: the work had begun long before its cause ended.
//!
//! The host waits for the device in calls that synchronise, in copies of pageable memory, where the queue of launches is full, and
//! in stretches in which no row begins or ends and that end with the last work of a stream.

use std::ops::Range;

use rustc_hash::FxHashMap;

use super::calls::{Call, CallKind, Work, awaits};
use super::input::Input;
use super::nodes::{BETTER_THAN_CHANCE, Edge, NEAR_NS, NO_ROW, NodeKind, RankGraph, SHIFTED_NS};
use super::order::Order;

/// A start that nothing explains by this much may have waited for room on the device.
const NO_ROOM_NS: i64 = 25_000;
/// The last blocks of a kernel leave room this long before its end, and a tenth of its length.
const LEAVES_ROOM_NS: i64 = 20_000;
/// A kernel that ends later than this after a start gave no room to it.
const LOOKS_AHEAD_NS: i64 = 1_000_000;
/// A host that goes on this long after or before the end of work waited for it.
const GOES_ON_NS: i64 = 100_000;
/// Who waited long may take so long to go on, and a tenth of the wait.
const GOES_ON_LATE_NS: i64 = 500_000;
/// A stretch of the host that ends with work is a wait, whatever others are, if that has at most this probability by chance.
const SURE: f64 = 0.05;
/// A call that returns this soon after work ended waited for it.
const RETURNS_NS: i64 = 30_000;
/// A launching call that lasts longer may wait for a place in the queue.
const MAY_BE_FULL_NS: i64 = 20_000;
/// So many launches are in flight before a call may have to wait for one of them. CUDA has room for 1 021 or so.
const FULL_QUEUE: usize = 600;
/// A call returns this soon after its place in the queue becomes free.
const QUEUE_RETURNS_NS: i64 = 15_000;

/// How often a rule by times found something, and how often it does by chance.
#[derive(Clone, Copy, Debug, Default)]
struct Rule {
    found: f64,
    by_chance: f64,
    is_off: bool,
}

impl Rule {
    fn is_chance(&self) -> bool {
        !self.is_off && self.found < BETTER_THAN_CHANCE * self.by_chance
    }
}

/// The rules that infer from times alone.
#[derive(Clone, Copy, Debug, Default)]
struct Rules {
    quiet: Rule,
    other_stream: Rule,
    room: Rule,
}

impl Rules {
    fn all(&mut self) -> [&mut Rule; 3] {
        [&mut self.quiet, &mut self.other_stream, &mut self.room]
    }
}

/// Builds the graph. A rule that finds by chance is dropped, and all is built again.
pub(super) fn build(input: &Input) -> RankGraph {
    let mut ends: Vec<(i64, u32)> = (0..).zip(&input.works).map(|(at, work)| (work.end_ns, at)).collect();
    ends.sort_unstable();
    let mut rules = Rules::default();
    let order = Order::of(input);
    loop {
        let mut builder = Builder {
            graph: RankGraph::new(input.begin_ns, input.collectives),
            rules,
            input,
            ends: &ends,
            node_of: vec![None; input.works.len()],
            last: vec![None; input.streams.len()],
            flights: vec![Vec::new(); input.streams.len()],
            hosts: FxHashMap::default(),
            order: &order,
        };
        builder.run();
        let mut found = builder.rules;
        if !found.all().iter().any(|rule| rule.is_chance()) {
            return builder.graph;
        }
        rules = Rules::default();
        for (rule, found) in rules.all().into_iter().zip(found.all()) {
            rule.is_off = found.is_off || found.is_chance();
        }
    }
}

/// The last work of a stream in the order of launches.
#[derive(Clone, Copy, Debug)]
struct Last {
    node: u32,
    end_ns: i64,
}

struct Builder<'a> {
    graph: RankGraph,
    rules: Rules,
    input: &'a Input,
    /// Ends of all work, ascending, with its position.
    ends: &'a [(i64, u32)],
    /// The node at whose end each work ended.
    node_of: Vec<Option<u32>>,
    /// The last work of each stream.
    last: Vec<Option<Last>>,
    /// The ends and nodes of what was launched on each stream.
    flights: Vec<Vec<(i64, u32)>>,
    /// The last node of each chain of threads.
    hosts: FxHashMap<u32, u32>,
    order: &'a Order,
}

impl Builder<'_> {
    fn run(&mut self) {
        let without_call = self.input.works.partition_point(|work| work.call.is_none());
        (0..without_call).for_each(|work| self.device(work, None));
        let mut next = without_call;
        for at in 0..self.input.calls.calls.len() {
            let call = self.input.calls.calls[at];
            if call.kind == CallKind::LetWait {
                continue;
            }
            let first = next;
            while self.input.works.get(next).is_some_and(|work| work.call == Some(at as u32)) {
                next += 1;
            }
            let host = self.host(&call);
            let node = match call.kind {
                CallKind::Launch => self.launch(&call, host, first..next),
                _ => self.awaited(&call, host),
            };
            self.hosts.insert(call.chain, node);
        }
        let end_ns = |node: &u32| self.graph.nodes[*node as usize].end_ns;
        if let Some(last) = self.hosts.values().copied().max_by_key(|node| (end_ns(node), *node))
            && end_ns(&last) < self.input.host_end_ns
        {
            self.host_until(last, self.input.host_end_ns);
        }
    }

    /// The node of the host up to a call.
    fn host(&mut self, call: &Call) -> u32 {
        let end_ns = |node: &u32| self.graph.nodes[*node as usize].end_ns;
        let before = match self.hosts.get(&call.chain) {
            Some(node) => *node,
            // A chain that begins follows from what another one did last.
            None => {
                let others = self.hosts.values().filter(|node| end_ns(node) <= call.start_ns);
                others.max_by_key(|node| (end_ns(node), **node)).copied().unwrap_or(0)
            }
        };
        let is_first = !self.hosts.contains_key(&call.chain);
        let rest = if is_first { None } else { self.rest(call, end_ns(&before)) };
        let Some((node, from_ns)) = rest else { return self.host_until(before, call.start_ns) };
        let asleep = self.host_until(before, from_ns);
        let to_ns = self.graph.nodes[node as usize].end_ns.min(call.start_ns).max(from_ns);
        let at_ns = call.start_ns + self.input.early_ns;
        let awake = self.graph.add_wait(NO_ROW, at_ns, to_ns, [asleep, node].into_iter());
        self.host_until(awake, call.start_ns)
    }

    /// The host until a call. It is divided where the first step begins, and one after a pause.
    fn host_until(&mut self, mut before: u32, to_ns: i64) -> u32 {
        let since_ns = self.graph.nodes[before as usize].end_ns;
        let starts_ns = &self.input.step_starts_ns;
        let first = starts_ns.partition_point(|start_ns| *start_ns <= since_ns);
        for start_ns in starts_ns[first..].iter().take_while(|start_ns| **start_ns < to_ns) {
            before = self.graph.add_host(before, *start_ns, start_ns + self.input.early_ns);
        }
        self.graph.add_host(before, to_ns, to_ns + self.input.early_ns)
    }

    /// A wait without a call: the last work whose end ended a quiet stretch of the host, and when that stretch began.
    fn rest(&mut self, call: &Call, since_ns: i64) -> Option<(u32, i64)> {
        if !self.input.has_device || call.start_ns - since_ns < GOES_ON_NS {
            return None;
        }
        let all = self.input.calls.quiet.get(call.chain as usize)?;
        let first = all.partition_point(|(quiet, _)| quiet.start_ns < since_ns - 5_000);
        let mut waits = None;
        for (quiet, needs_event) in all[first..].iter().take_while(|(quiet, _)| quiet.end_ns <= call.start_ns + 5_000) {
            let lasts = self.last.iter().flatten();
            let soon_ns = (quiet.len_ns() / 10).clamp(GOES_ON_NS, GOES_ON_LATE_NS);
            let ends_with = |end_ns: i64| {
                let is_in_it = quiet.start_ns < end_ns && end_ns <= call.start_ns;
                is_in_it && (-GOES_ON_NS..=soon_ns).contains(&(quiet.end_ns - end_ns))
            };
            // Ends anywhere in the stretch are as likely as those at its end.
            let ends =
                lasts.clone().filter(|last| quiet.start_ns < last.end_ns && last.end_ns <= call.start_ns).count();
            let chance = ends as f64 * (GOES_ON_NS + soon_ns) as f64 / quiet.len_ns() as f64;
            let is_sure = chance <= SURE;
            if !is_sure {
                self.rules.quiet.by_chance += chance.min(1.0);
                if self.rules.quiet.is_off {
                    continue;
                }
            }
            let awaited = lasts.filter(|last| ends_with(last.end_ns)).max_by_key(|last| last.end_ns);
            let awaited = awaited.map(|last| (last.node, last.end_ns)).or_else(|| {
                // cudaEventSynchronize has no row in older files.
                let ended = self.ends.partition_point(|(end_ns, _)| *end_ns <= quiet.end_ns);
                let (end_ns, work) = *self.ends.get(ended.checked_sub(1)?)?;
                let is_it = *needs_event && quiet.end_ns - end_ns < GOES_ON_NS;
                self.node_of[work as usize].filter(|_| is_it).map(|node| (node, end_ns))
            });
            if let Some((node, end_ns)) = awaited {
                self.rules.quiet.found += f64::from(u8::from(!is_sure));
                let later = waits.is_none_or(|(_, other_ns, _): (u32, i64, i64)| other_ns <= end_ns);
                waits = if later { Some((node, end_ns, quiet.start_ns.max(since_ns))) } else { waits };
            }
        }
        waits.map(|(node, _, from_ns)| (node, from_ns))
    }

    /// The host after a call that may have waited for the device.
    fn awaited(&mut self, call: &Call, host: u32) -> u32 {
        if let Some(work) = call.awaits {
            let awaited = [Some(host), self.node_of[work as usize]].into_iter().flatten();
            return self.graph.add_wait(call.row, call.start_ns + self.input.early_ns, call.end_ns, awaited);
        }
        let is_sync = call.kind == CallKind::Sync;
        let of_stream = |stream: usize| call.stream.is_none_or(|awaited| awaited == self.input.streams[stream]);
        let lasts = self.last.iter().enumerate().filter(|(stream, _)| of_stream(*stream));
        let mut lasts: Vec<Last> = lasts.filter_map(|(_, last)| *last).collect();
        lasts.retain(|last| {
            let is_late = call.start_ns < last.end_ns && last.end_ns >= call.end_ns - RETURNS_NS;
            awaits(call, last.end_ns) && (is_sync || is_late)
        });
        if !call.of_device {
            lasts = lasts.into_iter().max_by_key(|last| last.end_ns).into_iter().collect();
        }
        if lasts.is_empty() {
            return host;
        }
        let awaited = std::iter::once(host).chain(lasts.into_iter().map(|last| last.node));
        self.graph.add_wait(call.row, call.start_ns + self.input.early_ns, call.end_ns, awaited)
    }

    /// The host after a call that launched work.
    fn launch(&mut self, call: &Call, host: u32, works: Range<usize>) -> u32 {
        works.clone().for_each(|work| self.device(work, Some((host, call))));
        let Some(work) = works.clone().last() else { return host };
        let (copied, stream) = (self.input.works[work], self.input.works[work].stream as usize);
        let end_of = |node: Option<u32>| node.map(|node| (self.graph.nodes[node as usize].end_ns, node));
        let mut awaited = None;
        if copied.is_copy && call.start_ns < copied.end_ns && awaits(call, copied.end_ns) {
            // A copy of pageable memory returns when it is done.
            awaited = end_of(self.node_of[work]);
        } else if self.input.has_device
            && call.end_ns - call.start_ns > MAY_BE_FULL_NS
            && self.flights[stream].len() > FULL_QUEUE
        {
            let flights = &self.flights[stream];
            let ended = flights.partition_point(|(end_ns, _)| awaits(call, *end_ns));
            let freed = ended.checked_sub(1).map(|at| flights[at]);
            let is_it = |(end_ns, _): &(i64, u32)| {
                flights.len() - ended + 1 > FULL_QUEUE && *end_ns > call.start_ns.max(call.end_ns - QUEUE_RETURNS_NS)
            };
            awaited = freed.filter(is_it);
        }
        for work in works {
            let flight = end_of(self.node_of[work]);
            self.flights[self.input.works[work].stream as usize].extend(flight);
        }
        let Some((_, node)) = awaited else { return host };
        self.graph.add_wait(call.row, call.start_ns + self.input.early_ns, call.end_ns, [host, node].into_iter())
    }

    /// Adds a piece of work; `launched` is the host at its call, and that call.
    fn device(&mut self, at: usize, launched: Option<(u32, &Call)>) {
        let work = self.input.works[at];
        let (stream, start_ns) = (work.stream as usize, work.start_ns);
        let mut causes = Causes { start_ns, found: Vec::with_capacity(4) };
        let what = usize::from(work.is_copy);
        match launched {
            // It was launched before the recording began.
            None => causes.launched((0, self.graph.nodes[0].end_ns), start_ns, NEAR_NS),
            Some((host, call)) => {
                let ready_ns = call.start_ns + self.input.usual.launch_ns[what];
                causes.launched((host, call.start_ns), ready_ns, self.input.usual.fine_ns[what]);
            }
        }
        // Without a call nothing says when the work could begin.
        if launched.is_none() && self.last[stream].is_some() && self.input.calls.calls.is_empty() {
            causes.found.clear();
        }
        if let Some(last) = self.last[stream] {
            causes.after((last.node, last.end_ns), self.input.usual.stream_ns);
        }
        if self.input.has_device {
            self.ordered(at, &mut causes);
        }
        if let Some((host, call)) = launched {
            // It was handed over during a long call.
            let fine_ns = self.input.usual.fine_ns[what];
            if start_ns - causes.ready_ns() > fine_ns && start_ns <= call.end_ns + fine_ns {
                causes.launched((host, call.start_ns), start_ns.min(call.end_ns), fine_ns);
            }
        }
        if self.input.has_device
            && (launched.is_some() || self.input.calls.calls.is_empty())
            && start_ns - causes.ready_ns() > self.input.usual.across_ns.max(self.input.usual.stream_ns)
        {
            self.by_times(&work, &mut causes);
        }
        let called_ns = launched.map_or(start_ns, |(_, call)| call.start_ns);
        let at_ns = called_ns + self.input.early_ns;
        self.graph.starts.all += 1;
        self.graph.starts.explained += u64::from(causes.is_explained());
        let (row, times) = (work.row, (start_ns, work.end_ns));
        let node = match work.collective {
            Some(collective) => self.graph.add_collective((collective as usize, row), at_ns, times, &causes.edges())[1],
            None => self.graph.add(NodeKind::Work, row, at_ns, times, &causes.edges()),
        };
        self.node_of[at] = Some(node);
        self.last[stream] = Some(Last { node, end_ns: work.end_ns });
    }

    /// Adds the work that a piece of work follows by the usual order of programs.
    fn ordered(&self, at: usize, causes: &mut Causes) {
        for before in self.order.before(at) {
            let end_ns = self.input.works[*before as usize].end_ns;
            if let Some(node) = self.node_of[*before as usize] {
                causes.after((node, end_ns), self.input.usual.across_ns);
            }
        }
    }

    /// Adds the work that ended just before a start that nothing else explains, or that filled the device until then.
    fn by_times(&mut self, work: &Work, causes: &mut Causes) {
        let near_ns = self.input.usual.across_ns.max(self.input.usual.stream_ns);
        let gap_ns = work.start_ns - causes.ready_ns();
        for shift_ns in [0, SHIFTED_NS] {
            let start_ns = work.start_ns - shift_ns;
            let from = self.ends.partition_point(|(end_ns, _)| *end_ns < start_ns - near_ns);
            let to = self.ends.partition_point(|(end_ns, _)| *end_ns < start_ns + LOOKS_AHEAD_NS);
            let (device, _) = self.input.streams[work.stream as usize];
            let (mut ended, mut filled) = (None, None);
            for (end_ns, at) in &self.ends[from..to] {
                let other = &self.input.works[*at as usize];
                if other.stream == work.stream || self.input.streams[other.stream as usize].0 != device {
                    continue;
                }
                let gives_room = end_ns - start_ns < LEAVES_ROOM_NS + (end_ns - other.start_ns) / 10
                    && other.start_ns < start_ns - (gap_ns / 2).max(NO_ROOM_NS);
                let Some(node) = self.node_of[*at as usize] else { continue };
                if *end_ns <= start_ns + 1_000 {
                    ended = Some((node, *end_ns));
                } else if filled.is_none() && ended.is_none() && gives_room {
                    filled = Some((node, *end_ns));
                }
            }
            let (streams, room) = (&mut self.rules.other_stream, &mut self.rules.room);
            if shift_ns > 0 {
                streams.by_chance += f64::from(u8::from(ended.is_some()));
                room.by_chance += f64::from(u8::from(ended.is_none() && filled.is_some()));
            } else if let Some((node, end_ns)) = ended {
                streams.found += 1.0;
                if !streams.is_off {
                    causes.add(node, end_ns, 0, near_ns);
                }
            } else if let Some((node, end_ns)) = filled {
                room.found += 1.0;
                if !room.is_off {
                    causes.add(node, end_ns, work.start_ns - end_ns, near_ns);
                }
            }
        }
    }
}

/// The causes that may have let a piece of work begin.
struct Causes {
    start_ns: i64,
    /// When each allowed it, the edge, and how late a start is still explained by it.
    found: Vec<(i64, Edge, i64)>,
}

impl Causes {
    /// The end of `from` at `ended_ns` allows a start at `ready_ns`.
    fn launched(&mut self, (from, ended_ns): (u32, i64), ready_ns: i64, near_ns: i64) {
        self.found.push((ready_ns, Edge { from, after_ns: ready_ns - ended_ns }, near_ns));
    }

    fn add(&mut self, from: u32, end_ns: i64, after_ns: i64, near_ns: i64) {
        self.found.push((end_ns + after_ns, Edge { from, after_ns }, near_ns));
    }

    /// The end of other work, if the recording does not contradict that.
    fn after(&mut self, (node, end_ns): (u32, i64), near_ns: i64) {
        if end_ns <= self.start_ns + 2 * NEAR_NS {
            self.add(node, end_ns, 0, near_ns);
        }
    }

    fn ready_ns(&self) -> i64 {
        self.found.iter().map(|(ready_ns, ..)| *ready_ns).max().unwrap_or(i64::MIN / 2)
    }

    fn is_explained(&self) -> bool {
        let last = self.found.iter().max_by_key(|(ready_ns, ..)| *ready_ns);
        last.is_some_and(|(ready_ns, _, near_ns)| self.start_ns - ready_ns <= *near_ns)
    }

    fn edges(&self) -> Vec<Edge> {
        self.found.iter().map(|(_, edge, _)| *edge).collect()
    }
}
