//! The calls and the work of a rank without devices, whose collectives run on threads of their own.
//!
//! ```text
//!   main thread   |###a###|~~~~wait~~~~|##b##      a calls R; the host waits until R has ended
//!   worker            |~~~~~~~R~~~~~~~~|
//! ```
//!
//! The host waits in rows that say so, and in stretches in which no row begins or ends and that end just after a collective did. A
//! stretch that is one row without others inside is work: the row says what it does.

use rustc_hash::FxHashMap;

use super::calls::{Call, CallKind, Calls, Work};
use super::device::host_end_ns;
use super::input::Input;
use super::nodes::{NEAR_NS, NO_ROW};
use super::usual::Usual;
use model::intervals::Interval;
use model::{Kind, NONE, RankData};
use trace::Op;
use trace::name_rules;

/// A shorter stretch without rows is no wait.
const QUIET_NS: i64 = 100_000;
/// The host goes on this soon after the collective that it waited for, or within a tenth of the wait.
const GOES_ON_NS: i64 = 300_000;
/// The row of a send ends when the program asks for it, long after it was sent.
const SENT_NS: i64 = 100_000;
/// A collective that begins this late after its call waited for nothing else.
const CALL_NS: i64 = 3_000_000;

/// What the graph of a rank without device rows is built from; `None` without collectives.
pub(super) fn input(rank: &RankData) -> Option<Input> {
    let (begin_ns, _) = rank.outline.recorded_ns.filter(|_| !rank.outline.collectives.is_empty())?;
    let main = main_thread(rank);
    let (mut works, streams) = works(rank, main);
    let waits = waits(rank, main, &works, streams.threads);
    let launches = (0..).zip(&works).map(|(at, work)| (call(CallKind::Launch, (called_ns(work), called_ns(work))), at));
    let mut calls: Vec<(Call, u32)> = launches.chain(waits).collect();
    // Works are in the order of their calls, which a stable sort keeps.
    calls.sort_by_key(|(call, _)| (call.start_ns, call.kind == CallKind::Sync));
    for (at, (call, work)) in (0..).zip(&mut calls) {
        match call.kind {
            CallKind::Launch => works[*work as usize].call = Some(at),
            _ => call.awaits = Some(*work),
        }
    }
    Some(Input {
        begin_ns,
        host_end_ns: host_end_ns(rank)?,
        collectives: rank.outline.collectives.len(),
        step_starts_ns: super::device::step_starts_ns(rank),
        step_begins_ns: Vec::new(),
        calls: Calls {
            calls: calls.into_iter().map(|(call, _)| call).collect(),
            of_row: FxHashMap::default(),
            quiet: Vec::new(),
        },
        works,
        streams: vec![(0, 0); streams.all as usize],
        usual: Usual { launch_ns: [0; 2], fine_ns: [CALL_NS; 2], stream_ns: CALL_NS, across_ns: CALL_NS },
        early_ns: 0,
        has_device: false,
    })
}

fn call(kind: CallKind, (start_ns, end_ns): (i64, i64)) -> Call {
    Call { row: NO_ROW, start_ns, end_ns, chain: 0, kind, of_device: false, stream: None, awaits: None }
}

fn called_ns(work: &Work) -> i64 {
    work.called_ns.unwrap_or(work.start_ns)
}

/// The thread with most operators.
fn main_thread(rank: &RankData) -> i64 {
    let events = &rank.events;
    let mut operators: FxHashMap<i64, usize> = FxHashMap::default();
    for row in (0..events.len()).filter(|row| events.kind[*row] == Kind::CpuOp) {
        *operators.entry(events.thread[row]).or_default() += 1;
    }
    operators.into_iter().max_by_key(|(thread, count)| (*count, *thread)).map_or(NONE, |(thread, _)| thread)
}

/// The numbers of streams. The threads of communication come first, or communicators where threads are unknown. What the main thread
/// carries out has a stream of its own, because messages that it sends and receives do not wait for each other.
struct Streams {
    threads: u32,
    all: u32,
}

/// The collectives in the order of their calls, and their streams.
fn works(rank: &RankData, main: i64) -> (Vec<Work>, Streams) {
    let events = &rank.events;
    let rows: FxHashMap<i64, u32> = (0..events.len()).map(|row| (events.id[row], row as u32)).collect();
    let called = called(rank);
    let mut streams: FxHashMap<i64, u32> = FxHashMap::default();
    let mut works = Vec::new();
    for ((at, row), called_ns) in (0..).zip(&rank.outline.collectives).zip(called) {
        let Some((start_ns, end_ns)) = row.start_ns().zip(row.end_ns()) else { continue };
        let event = row.event_id().and_then(|id| rows.get(&id)).copied();
        let thread = event.map(|row| events.thread[row as usize]).filter(|thread| *thread != NONE);
        let called_ns = called_ns.filter(|called_ns| *called_ns <= start_ns);
        // What is sent is ready at the call. The row may begin when the receiver has it already, where threads lack cores.
        let is_send = row.op == Op::Send;
        let start_ns = called_ns.filter(|_| is_send).unwrap_or(start_ns);
        let is_on_main = thread == Some(main);
        let next = streams.len() as u32;
        let thread =
            if is_on_main { None } else { Some(*streams.entry(thread.unwrap_or(row.comm_id)).or_insert(next)) };
        works.push(Work {
            row: event.unwrap_or(NO_ROW),
            start_ns,
            end_ns: if is_send { end_ns.min(start_ns + SENT_NS) } else { end_ns },
            stream: thread.unwrap_or(u32::MAX),
            is_comm: true,
            called_ns,
            collective: Some(at),
            ..Work::default()
        });
    }
    works.sort_by_key(|work| (called_ns(work), work.start_ns, work.collective));
    let threads = streams.len() as u32;
    let own = threads..;
    works.iter_mut().filter(|work| work.stream == u32::MAX).zip(own).for_each(|(work, own)| work.stream = own);
    let all = works.iter().map(|work| work.stream + 1).max().unwrap_or(0).max(threads);
    (works, Streams { threads, all })
}

/// When each collective was called. Where the trace does not say so, the calls of its kind are in the same order.
fn called(rank: &RankData) -> Vec<Option<i64>> {
    let events = &rank.events;
    let hands_over: Vec<Option<usize>> = rank.names.iter().map(|name| kind_of_call(name)).collect();
    let mut calls: [Vec<i64>; 3] = Default::default();
    for row in (0..events.len()).filter(|row| events.kind[*row] == Kind::CpuOp) {
        if let Some(kind) = hands_over[events.name[row] as usize] {
            calls[kind].push(events.ts_ns[row]);
        }
    }
    let collectives = &rank.outline.collectives;
    let kind_of = |op: &trace::Word<Op>| {
        if *op == Op::Send {
            1
        } else if *op == Op::Recv {
            2
        } else {
            0
        }
    };
    let mut left = [0_usize; 3];
    collectives.iter().for_each(|row| left[kind_of(&row.op)] += 1);
    let of_collective = |row: &model::Collective| {
        let kind = kind_of(&row.op);
        // Calls before the recording have no row here, so both are counted from the end.
        let at = calls[kind].len().checked_sub(left[kind]);
        left[kind] -= 1;
        row.enqueue_ns().or(row.ready_ns()).or_else(|| calls[kind].get(at?).copied())
    };
    collectives.iter().map(of_collective).collect()
}

fn kind_of_call(name: &str) -> Option<usize> {
    let is_call = name_rules::hands_over_collective(name) && !name_rules::waits(name);
    is_call.then(|| {
        if name.contains("send") {
            1
        } else if name.contains("recv") {
            2
        } else {
            0
        }
    })
}

/// The waits of the main thread, each with the work that it waits for.
fn waits(rank: &RankData, main: i64, works: &[Work], threads: u32) -> Vec<(Call, u32)> {
    let is_on_main = |work: &Work| work.stream >= threads;
    let mut ends: Vec<(i64, u32)> =
        (0..).zip(works).filter(|(_, work)| !is_on_main(work)).map(|(at, work)| (work.end_ns, at)).collect();
    ends.sort_unstable();
    let ended =
        |until_ns: i64| ends.partition_point(|(end_ns, _)| *end_ns <= until_ns).checked_sub(1).map(|at| ends[at]);
    let mut waits: Vec<(Call, u32)> = Vec::new();
    // A collective on the thread itself blocks it.
    for (at, work) in (0..).zip(works).filter(|(_, work)| is_on_main(work)) {
        if work.collective.is_some_and(|at| rank.outline.collectives[at as usize].op != Op::Send) {
            waits.push((call(CallKind::Sync, (called_ns(work).max(work.start_ns), work.end_ns)), at));
        }
    }
    let mut said: Vec<Interval> = Vec::new();
    for (row, wait) in waiting_rows(rank, main) {
        if said.last().is_some_and(|last| wait.start_ns < last.end_ns) {
            continue;
        }
        said.push(wait);
        if let Some((_, work)) = ended(wait.end_ns + NEAR_NS) {
            waits.push((Call { row, ..call(CallKind::Sync, (wait.start_ns, wait.end_ns)) }, work));
        }
    }
    for quiet in quiet(rank, main, works) {
        let from = said.partition_point(|wait| wait.end_ns <= quiet.start_ns);
        let is_said = said.get(from).is_some_and(|wait| wait.start_ns < quiet.end_ns);
        let Some((end_ns, work)) = ended(quiet.end_ns).filter(|_| !is_said) else { continue };
        let soon_ns = GOES_ON_NS.max(quiet.len_ns() / 10);
        if quiet.start_ns < end_ns
            && quiet.end_ns - end_ns <= soon_ns
            && called_ns(&works[work as usize]) <= quiet.start_ns
        {
            waits.push((call(CallKind::Sync, (quiet.start_ns, quiet.end_ns)), work));
        }
    }
    waits
}

/// The rows of the main thread that say that they wait.
fn waiting_rows(rank: &RankData, main: i64) -> impl Iterator<Item = (u32, Interval)> {
    let events = &rank.events;
    let waits: Vec<[bool; 2]> = rank
        .names
        .iter()
        .map(|name| {
            let waits = name_rules::waits(name);
            [waits, waits && (name_rules::is_backend_range(name) || name.starts_with("## "))]
        })
        .collect();
    let is_wait = move |row: &usize| {
        let [as_operator, as_range] = waits[events.name[*row] as usize];
        events.thread[*row] == main
            && match events.kind[*row] {
                Kind::CpuOp => as_operator,
                Kind::UserAnnotation => as_range,
                _ => false,
            }
    };
    let rows = (0..events.len()).filter(is_wait);
    rows.map(|row| (row as u32, Interval::new(events.ts_ns[row], events.end_ns(row))))
}

/// The stretches of the main thread in which no row begins or ends, without those that are one row which says what it does.
fn quiet(rank: &RankData, main: i64, works: &[Work]) -> Vec<Interval> {
    let events = &rank.events;
    let mut marks: Vec<(i64, Option<usize>)> = Vec::new();
    for row in (0..events.len()).filter(|row| events.thread[*row] == main) {
        if matches!(events.kind[row], Kind::CpuOp | Kind::UserAnnotation | Kind::PythonFunction) {
            marks.extend([(events.ts_ns[row], Some(row)), (events.end_ns(row), Some(row))]);
        }
    }
    // A run of rank-agent has no rows of calls. Its main thread makes them all.
    if !rank.names.iter().any(|name| name_rules::hands_over_collective(name)) {
        marks.extend(works.iter().filter_map(|work| Some((work.called_ns?, None))));
    }
    marks.sort_unstable();
    let says = |row: Option<usize>| {
        let Some(row) = row else { return false };
        let name = &*rank.names[events.name[row] as usize];
        let is_work = events.kind[row] == Kind::UserAnnotation || name.starts_with("aten::") || name.contains("sleep");
        is_work && !name_rules::waits(name)
    };
    let pairs = marks.windows(2).filter(|pair| pair[1].0 - pair[0].0 >= QUIET_NS);
    let pairs = pairs.filter(|pair| pair[0].1 != pair[1].1 || !says(pair[0].1));
    pairs.map(|pair| Interval::new(pair[0].0, pair[1].0)).collect()
}
