//! The calls and the work of a rank with devices.

use rustc_hash::FxHashMap;

use super::calls::{Calls, Work};
use super::input::Input;
use super::usual::Usual;
use model::intervals::Interval;
use model::steps::host_windows;
use model::{Kind, RankData};
use trace::rank::Launches;

/// What the graph of a rank with device rows is built from; `None` if nothing was recorded.
pub(super) fn input(rank: &RankData, launches: &Launches) -> Option<Input> {
    let mut calls = Calls::of(rank, launches);
    let (mut works, streams) = works(rank, launches, &calls);
    // What launched the communication says what it waited for.
    let of_comm = |is_known: bool| works.iter().filter(|work| work.is_comm && work.call.is_some() == is_known).count();
    if of_comm(false) > of_comm(true) {
        return None;
    }
    let (mut usual, early_ns) = Usual::of(&works);
    if early_ns > 0 {
        calls.shift(-early_ns);
        works.iter_mut().for_each(|work| work.called_ns = work.called_ns.map(|ns| ns - early_ns));
        usual = Usual::of(&works).0;
    }
    let (begin_ns, _) = rank.outline.recorded_ns?;
    Some(Input {
        begin_ns: begin_ns - early_ns,
        host_end_ns: host_end_ns(rank)? - early_ns,
        collectives: rank.outline.collectives.len(),
        step_starts_ns: step_starts_ns(rank).into_iter().map(|ns| ns - early_ns).collect(),
        step_begins_ns: rank.outline.steps.iter().map(|step| step.start_ns - early_ns).collect(),
        calls,
        works,
        streams,
        usual,
        early_ns,
        has_device: true,
    })
}

/// The begins of the first active step and of those that do not follow the one before closely, ascending: what is before them is in no
/// step.
pub(super) fn step_starts_ns(rank: &RankData) -> Vec<i64> {
    let mut windows: Vec<Interval> = host_windows(&rank.outline.steps).iter().map(|step| step.window).collect();
    windows.sort_unstable_by_key(|window| (window.start_ns, window.end_ns));
    let apart = windows.windows(2).filter(|pair| !follows(pair[0], pair[1])).map(|pair| pair[1].start_ns);
    windows.first().map(|first| first.start_ns).into_iter().chain(apart).collect()
}

/// Whether a step follows another one closely: not after more than the time of that one.
pub fn follows(before: Interval, step: Interval) -> bool {
    step.start_ns - before.end_ns <= before.len_ns()
}

/// When the host did the last that was recorded, or its last step ended; before everything if it recorded nothing.
pub(super) fn host_end_ns(rank: &RankData) -> Option<i64> {
    let events = &rank.events;
    let is_host =
        |row: &usize| matches!(events.kind[*row], Kind::CpuOp | Kind::Runtime | Kind::Driver | Kind::UserAnnotation);
    let step_ends_ns = host_windows(&rank.outline.steps).into_iter().map(|step| step.window.end_ns);
    let ends_ns = (0..events.len()).filter(is_host).map(|row| events.end_ns(row)).chain(step_ends_ns);
    Some(ends_ns.max().unwrap_or(rank.outline.recorded_ns?.0))
}

/// All device work in the order of launches, and device and number of each stream. Work whose call was not recorded comes first.
fn works(rank: &RankData, launches: &Launches, calls: &Calls) -> (Vec<Work>, Vec<(i64, i64)>) {
    let events = &rank.events;
    let collectives: FxHashMap<i64, u32> = (0..)
        .zip(&rank.outline.collectives)
        .filter(|(_, row)| row.start_ns().is_some() && row.end_ns().is_some())
        .filter_map(|(at, row)| Some((row.event_id()?, at)))
        .collect();
    let is_pageable: Vec<bool> = rank.names.iter().map(|name| name.contains("Pageable ->")).collect();
    let mut streams: FxHashMap<(i64, i64), u32> = FxHashMap::default();
    let mut known = Vec::new();
    let mut works = Vec::new();
    for row in (0..events.len()).filter(|row| events.kind[*row].is_device_work()) {
        let stream = *streams.entry((events.device[row], events.stream[row])).or_insert_with(|| {
            known.push((events.device[row], events.stream[row]));
            known.len() as u32 - 1
        });
        let call = launches.of(events.correlation[row]).and_then(|host| calls.of_row.get(&host)).copied();
        works.push(Work {
            row: row as u32,
            name: events.name[row],
            start_ns: events.ts_ns[row],
            end_ns: events.end_ns(row),
            stream,
            is_comm: events.is_comm[row],
            is_copy: events.kind[row] != Kind::Kernel,
            is_pageable: is_pageable[events.name[row] as usize],
            called_ns: call.map(|call| calls.calls[call as usize].start_ns),
            call,
            collective: collectives.get(&events.id[row]).copied(),
        });
    }
    works.sort_by_key(|work| (work.call, work.start_ns, work.row));
    (works, known)
}
