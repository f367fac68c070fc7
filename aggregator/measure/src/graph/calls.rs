//! The host of a rank with devices: its calls, in the order of their starts, the chains of threads that make them, and the work that
//! they launch.

use rustc_hash::FxHashMap;

use super::nodes::NEAR_NS;
use model::intervals::{Interval, IntervalSet};
use model::{Kind, NONE, RankData};
use trace::name_rules::is_step;
use trace::rank::{Launches, enclosing};

/// A call of another kind that lasts longer may have waited for the device.
const MAY_WAIT_NS: i64 = 20_000;
/// Threads whose common busy time is a smaller part of that of one of them are one chain: forward and autograd, for example.
const TOGETHER: f64 = 0.03;

/// What a call does.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum CallKind {
    /// Launches device work.
    Launch,
    /// Lets a stream wait for an event.
    LetWait,
    /// May have waited for the device, by its length.
    Block,
    /// Waits for the device.
    Sync,
}

/// A call. Times are those of the host.
#[derive(Clone, Copy, Debug)]
pub(super) struct Call {
    pub(super) row: u32,
    pub(super) start_ns: i64,
    pub(super) end_ns: i64,
    pub(super) chain: u32,
    pub(super) kind: CallKind,
    /// Whether it waits for all streams.
    pub(super) of_device: bool,
    /// The stream that it waits for, where a row says so.
    pub(super) stream: Option<(i64, i64)>,
    /// The work that it waits for, by position, where that is known.
    pub(super) awaits: Option<u32>,
}

/// A piece of work that a call launched: on a device, or a collective of the host on a thread of its own.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Work {
    pub(super) row: u32,
    pub(super) name: u32,
    pub(super) start_ns: i64,
    pub(super) end_ns: i64,
    /// Position of its stream among those of the rank.
    pub(super) stream: u32,
    pub(super) is_comm: bool,
    pub(super) is_copy: bool,
    /// Whether it copies from memory that the host stages while it calls.
    pub(super) is_pageable: bool,
    /// When the launching call began.
    pub(super) called_ns: Option<i64>,
    /// Position of that call.
    pub(super) call: Option<u32>,
    /// The collective that it carries out, by position.
    pub(super) collective: Option<u32>,
}

/// The calls of a rank, by start.
pub(super) struct Calls {
    pub(super) calls: Vec<Call>,
    /// For rows of calls, their position in `calls`.
    pub(super) of_row: FxHashMap<u32, u32>,
    /// For each chain, the stretches in which no row begins or ends, and whether a call that needs an event to be over follows.
    pub(super) quiet: Vec<Vec<(Interval, bool)>>,
}

/// A shorter stretch of a thread is no wait without a call.
const QUIET_NS: i64 = 1_000_000;

impl Calls {
    pub(super) fn of(rank: &RankData, launches: &Launches) -> Self {
        let events = &rank.events;
        let kinds: Vec<Option<CallKind>> = rank.names.iter().map(|name| kind_of(name)).collect();
        let launching = launching_rows(rank, launches);
        let is_call = |row: usize| matches!(events.kind[row], Kind::Runtime | Kind::Driver);
        let streams = awaited_streams(rank);
        let mut calls = Vec::new();
        for row in (0..events.len()).filter(|row| is_call(*row)) {
            let is_launch = launching.binary_search(&(row as u32)).is_ok();
            let named = kinds[events.name[row] as usize];
            let kind = match named {
                _ if is_launch => CallKind::Launch,
                Some(kind) => kind,
                // The outer of two calls is the one that waits.
                None if events.dur_ns[row] > MAY_WAIT_NS && !enclosing(events, row).is_some_and(is_call) => {
                    CallKind::Block
                }
                None => continue,
            };
            let name = &rank.names[events.name[row] as usize];
            if kind == CallKind::Block && name.ends_with("EventQuery") {
                continue;
            }
            calls.push(Call {
                row: row as u32,
                start_ns: events.ts_ns[row],
                end_ns: events.end_ns(row),
                chain: 0,
                kind,
                of_device: name.contains("Device") || name.contains("Ctx"),
                stream: streams.get(&events.correlation[row]).copied(),
                awaits: None,
            });
        }
        let threads = Threads::of(rank, &calls);
        for call in &mut calls {
            call.chain = threads.chain_of.get(&events.thread[call.row as usize]).copied().unwrap_or(0);
        }
        calls.sort_by_key(|call| (call.start_ns, call.kind == CallKind::Sync, std::cmp::Reverse(call.end_ns)));
        let of_row = (0..).zip(&calls).map(|(at, call)| (call.row, at)).collect();
        Self { of_row, quiet: threads.quiet(rank), calls }
    }

    /// Moves all times: the clock of the device is the one that counts.
    pub(super) fn shift(&mut self, ns: i64) {
        for call in &mut self.calls {
            (call.start_ns, call.end_ns) = (call.start_ns + ns, call.end_ns + ns);
        }
        for (quiet, _) in self.quiet.iter_mut().flatten() {
            *quiet = Interval::new(quiet.start_ns + ns, quiet.end_ns + ns);
        }
    }
}

fn kind_of(name: &str) -> Option<CallKind> {
    if name.contains("Synchronize") {
        Some(CallKind::Sync)
    } else if name.contains("StreamWaitEvent") {
        Some(CallKind::LetWait)
    } else {
        None
    }
}

/// The rows that launched device work, ascending.
fn launching_rows(rank: &RankData, launches: &Launches) -> Vec<u32> {
    let events = &rank.events;
    let work = (0..events.len()).filter(|row| events.kind[*row].is_device_work());
    let mut rows: Vec<u32> = work.filter_map(|row| launches.of(events.correlation[row])).collect();
    rows.sort_unstable();
    rows.dedup();
    rows
}

/// The stream that each synchronising call waited for, by correlation, where the profiler says so.
fn awaited_streams(rank: &RankData) -> FxHashMap<i64, (i64, i64)> {
    let events = &rank.events;
    let says_stream = |row: &usize| {
        events.kind[*row] == Kind::Sync
            && events.correlation[*row] != NONE
            && &*rank.names[events.name[*row] as usize] == "Stream Sync"
    };
    let rows = (0..events.len()).filter(says_stream);
    rows.map(|row| (events.correlation[row], (events.device[row], events.stream[row]))).collect()
}

/// Host threads that launch or wait, and the chain of each.
struct Threads {
    chain_of: FxHashMap<i64, u32>,
    chains: usize,
}

impl Threads {
    fn of(rank: &RankData, calls: &[Call]) -> Self {
        let events = &rank.events;
        let mut busy: FxHashMap<i64, IntervalSet> = FxHashMap::default();
        for call in calls.iter().filter(|call| call.kind != CallKind::LetWait) {
            busy.entry(events.thread[call.row as usize]).or_default();
        }
        for row in 0..events.len() {
            let counts = matches!(events.kind[row], Kind::CpuOp | Kind::Runtime | Kind::Driver)
                && !is_step(&rank.names[events.name[row] as usize]);
            if let Some(busy) = busy.get_mut(&events.thread[row]).filter(|_| counts) {
                busy.push(Interval::new(events.ts_ns[row], events.end_ns(row)));
            }
        }
        let mut threads: Vec<(i64, IntervalSet)> = busy.into_iter().collect();
        threads.sort_by_key(|(thread, busy)| (std::cmp::Reverse(busy.len_ns()), *thread));
        let mut chains: Vec<Vec<&IntervalSet>> = Vec::new();
        let mut chain_of = FxHashMap::default();
        for (thread, busy) in &threads {
            let is_apart =
                |other: &&IntervalSet| other.intersection(busy).len_ns() as f64 <= TOGETHER * busy.len_ns() as f64;
            let joins = chains.iter().position(|chain| chain.iter().all(is_apart));
            let chain = joins.unwrap_or(chains.len());
            if joins.is_none() {
                chains.push(Vec::new());
            }
            chains[chain].push(busy);
            chain_of.insert(*thread, chain as u32);
        }
        Self { chain_of, chains: chains.len() }
    }

    /// The stretches of each chain in which no row begins or ends.
    fn quiet(&self, rank: &RankData) -> Vec<Vec<(Interval, bool)>> {
        let events = &rank.events;
        let mut marks: Vec<Vec<(i64, bool)>> = vec![Vec::new(); self.chains];
        for row in 0..events.len() {
            let counts = matches!(
                events.kind[row],
                Kind::CpuOp | Kind::Runtime | Kind::Driver | Kind::UserAnnotation | Kind::PythonFunction
            );
            let Some(chain) = self.chain_of.get(&events.thread[row]).filter(|_| counts) else { continue };
            // It can only be asked for events that are over.
            let needs_event = rank.names[events.name[row] as usize].ends_with("EventElapsedTime");
            marks[*chain as usize].push((events.ts_ns[row], needs_event));
            marks[*chain as usize].push((events.end_ns(row), false));
        }
        let of_chain = |mut marks: Vec<(i64, bool)>| {
            marks.sort_unstable();
            let pairs = marks.windows(2).filter(|pair| pair[1].0 - pair[0].0 >= QUIET_NS);
            pairs.map(|pair| (Interval::new(pair[0].0, pair[1].0), pair[1].1)).collect()
        };
        marks.into_iter().map(of_chain).collect()
    }
}

/// Whether a call was still waiting when something ended.
pub(super) fn awaits(call: &Call, end_ns: i64) -> bool {
    end_ns <= call.end_ns + NEAR_NS
}
