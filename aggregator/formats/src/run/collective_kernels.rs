//! Assigns kernels to collectives if NCCL recorded the collectives and CUPTI the kernels.
//!
//! ```text
//!  thread   [nccl:launch 7          ]        collectives.event_id = 7
//!             [cuLaunchKernelEx, c]          correlation_id c
//!  device                [ncclDevKernel…]    external_id = 7, or else correlation_id c
//! ```
//!
//! A kernel carries the id of its launch if the recorder could pass the id to CUPTI. Otherwise the driver call inside
//! the launch, on the same thread, identifies the kernel.
//!
//! NCCL 2.26 and 2.27 report a launch after its driver call:
//!
//! ```text
//!  thread   [cuLaunchKernelEx, c] [nccl:launch 7]        1 to 8 µs after the call
//! ```
//!
//! There the last call before the launch and after the previous launch of the thread identifies the kernel.
//!
//! If a launch has as many kernels as collectives, they are paired in order. One kernel may belong to all collectives
//! of a launch (a group that NCCL fused), and one collective may have several kernels. Any other combination is
//! ambiguous: it stays unassigned and is counted.

use std::collections::BTreeMap;

use rustc_hash::FxHashMap;
use trace::{OmissionRow, TimingSource};

use model::{Collective, Events, Kind, NONE, RankData};

/// A launch whose kernels do not carry its id.
#[derive(Clone, Copy, Debug)]
struct Launch {
    thread: i64,
    start_ns: i64,
    end_ns: i64,
    id: i64,
}

/// Gives collectives the times of their kernels. CUPTI converts kernel times to the host's clock, so no map is needed.
pub(super) fn join(data: &mut RankData) {
    let of_launch = launches(data);
    if of_launch.is_empty() {
        return;
    }
    let kernels = kernels_of(&data.events, &of_launch);
    let (mut joined, mut apart) = (false, 0);
    for (launch, collectives) in &of_launch {
        let none = Found::default();
        let found = kernels.get(launch).unwrap_or(&none);
        if let Some(pairs) = pair(collectives.len(), found.kernels.len()) {
            for (index, kernels) in collectives.iter().zip(pairs) {
                give(data, *index, &found.kernels[kernels], collectives.len() > found.kernels.len());
                let row = &mut data.outline.collectives[*index];
                row.set_enqueue_ns(row.enqueue_ns().into_iter().chain(found.called_ns).min());
            }
            joined = true;
        } else {
            apart += collectives.iter().filter(|index| data.outline.collectives[**index].end_ns().is_some()).count();
        }
    }
    let events = &data.events;
    let is_told = (0..events.len()).any(|row| events.kind[row] == Kind::Kernel && events.is_comm[row]);
    if is_told && apart > 0 {
        data.omissions.push(
            OmissionRow::left_out(
                "kernels of collectives",
                "the launch has no recorded kernels, or their number does not fit the collectives",
            )
            .rank(data.outline.info.rank)
            .amount(apart as i64),
        );
    }
    if joined {
        data.outline.collectives.sort_by_key(Collective::order);
    }
}

/// Whether [`join`] may change a row's times. If so, the rank's kernels are needed to know them.
pub(super) fn may_time(row: &Collective) -> bool {
    row.event_id().is_some() && row.timing_source != TimingSource::Cupti
}

/// Collectives by launch, in the order of enqueueing. A collective that a kernel has already timed refers to that
/// kernel instead.
fn launches(data: &RankData) -> BTreeMap<i64, Vec<usize>> {
    let mut of_launch: BTreeMap<i64, Vec<usize>> = BTreeMap::new();
    for (index, row) in data.outline.collectives.iter().enumerate() {
        if let Some(event) = row.event_id().filter(|_| may_time(row)) {
            of_launch.entry(event).or_default().push(index);
        }
    }
    for collectives in of_launch.values_mut() {
        collectives.sort_by_key(|index| (data.outline.collectives[*index].enqueue_ns(), *index));
    }
    of_launch
}

/// The kernels of a launch.
#[derive(Clone, Debug, Default)]
struct Found {
    kernels: Vec<usize>,
    /// Start of the call that launched them, if that call ended before the launch was reported.
    called_ns: Option<i64>,
}

/// A driver or runtime call that launched a kernel of the communication library.
#[derive(Clone, Copy, Debug)]
struct Call {
    thread: i64,
    start_ns: i64,
    end_ns: i64,
    correlation: i64,
}

/// Kernels of the communication library by launch. They are in order of start, because events are sorted.
fn kernels_of(events: &Events, of_launch: &BTreeMap<i64, Vec<usize>>) -> FxHashMap<i64, Found> {
    let is_kernel = |row: usize| events.kind[row] == Kind::Kernel && events.is_comm[row];
    let mut found: FxHashMap<i64, Found> = FxHashMap::default();
    let mut by_correlation: FxHashMap<i64, Vec<usize>> = FxHashMap::default();
    for row in (0..events.len()).filter(|row| is_kernel(*row)) {
        if of_launch.contains_key(&events.external[row]) {
            found.entry(events.external[row]).or_default().kernels.push(row);
        } else if events.correlation[row] != NONE {
            by_correlation.entry(events.correlation[row]).or_default().push(row);
        }
    }
    let mut rest: Vec<Launch> = (0..events.len())
        .filter(|row| !events.kind[*row].is_device_work())
        .filter(|row| of_launch.contains_key(&events.id[*row]) && !found.contains_key(&events.id[*row]))
        .map(|row| Launch {
            thread: events.thread[row],
            start_ns: events.ts_ns[row],
            end_ns: events.end_ns(row),
            id: events.id[row],
        })
        .filter(|launch| launch.thread != NONE)
        .collect();
    if rest.is_empty() || by_correlation.is_empty() {
        return found;
    }
    rest.sort_unstable_by_key(|launch| (launch.thread, launch.start_ns));
    let outside = calls_inside(calls_of(events, &by_correlation), &rest, &by_correlation, &mut found);
    // Launches of one NCCL are either around their calls or after them.
    if found.is_empty() {
        calls_before(&outside, &rest, &by_correlation, &mut found);
    }
    // A call of the runtime and its call of the driver may have one correlation id.
    found.values_mut().for_each(|found| {
        found.kernels.sort_unstable();
        found.kernels.dedup();
    });
    found
}

/// The calls that launched `kernels`, by thread and end.
fn calls_of(events: &Events, kernels: &FxHashMap<i64, Vec<usize>>) -> Vec<Call> {
    let mut calls: Vec<Call> = (0..events.len())
        .filter(|row| matches!(events.kind[*row], Kind::Driver | Kind::Runtime))
        .filter(|row| kernels.contains_key(&events.correlation[*row]))
        .map(|row| Call {
            thread: events.thread[row],
            start_ns: events.ts_ns[row],
            end_ns: events.end_ns(row),
            correlation: events.correlation[row],
        })
        .collect();
    calls.sort_unstable_by_key(|call| (call.thread, call.end_ns));
    calls
}

/// Gives launches the kernels of the calls inside them, on their thread. Returns the other calls. `launches` must be sorted by thread
/// and start.
fn calls_inside(
    calls: Vec<Call>,
    launches: &[Launch],
    kernels: &FxHashMap<i64, Vec<usize>>,
    found: &mut FxHashMap<i64, Found>,
) -> Vec<Call> {
    let mut outside = Vec::new();
    for call in calls {
        let after = launches.partition_point(|launch| (launch.thread, launch.start_ns) <= (call.thread, call.start_ns));
        let launch = after.checked_sub(1).map(|before| launches[before]);
        match launch.filter(|launch| launch.thread == call.thread && call.end_ns <= launch.end_ns) {
            Some(launch) => found.entry(launch.id).or_default().kernels.extend(&kernels[&call.correlation]),
            None => outside.push(call),
        }
    }
    outside
}

/// Gives launches the kernels of the last call before them. Both lists must be sorted by thread, `calls` then by
/// end and `launches` by start.
fn calls_before(
    calls: &[Call],
    launches: &[Launch],
    kernels: &FxHashMap<i64, Vec<usize>>,
    found: &mut FxHashMap<i64, Found>,
) {
    for (index, launch) in launches.iter().enumerate() {
        let after = calls.partition_point(|call| (call.thread, call.end_ns) <= (launch.thread, launch.start_ns));
        let previous =
            index.checked_sub(1).map(|before| launches[before]).filter(|before| before.thread == launch.thread);
        let is_its_own = |call: &&Call| {
            call.thread == launch.thread && previous.is_none_or(|previous| previous.end_ns <= call.start_ns)
        };
        if let Some(call) = after.checked_sub(1).map(|before| &calls[before]).filter(is_its_own) {
            let called = Found { kernels: kernels[&call.correlation].clone(), called_ns: Some(call.start_ns) };
            found.insert(launch.id, called);
        }
    }
}

/// The indices of the `kernels` of each collective; `None` if they are ambiguous.
fn pair(collectives: usize, kernels: usize) -> Option<Vec<std::ops::Range<usize>>> {
    match (collectives, kernels) {
        (_, 0) => None,
        (c, k) if c == k => Some((0..k).map(|each| each..each + 1).collect()),
        (c, 1) => Some(vec![0..1; c]),
        (1, k) => Some(vec![0..k; 1]),
        _ => None,
    }
}

/// Gives a collective the times of its kernels. If it shares a kernel, the GPU's own timestamps of its channels are
/// more accurate and stay.
fn give(data: &mut RankData, index: usize, kernels: &[usize], is_shared: bool) {
    let (events, row) = (&data.events, &mut data.outline.collectives[index]);
    let Some(first) = kernels.first().copied() else { return };
    let recorded = |value: i64| (value != NONE).then_some(value);
    row.set_event_id(Some(events.id[first]));
    row.stream_id = recorded(events.stream[first]);
    row.device_id = recorded(events.device[first]);
    if is_shared && row.timing_source == TimingSource::GpuTimer && row.end_ns().is_some() {
        return;
    }
    row.set_start_ns(Some(events.ts_ns[first]));
    row.set_end_ns(kernels.iter().map(|kernel| events.end_ns(*kernel)).max());
    row.state = "done".into();
    row.timing_source = "cupti".into();
    row.fused = Some(is_shared);
}

#[cfg(test)]
mod tests {
    use trace::CollectiveRow;

    use super::*;

    /// (kind, id, thread, start, length, correlation, external)
    type Drawn = (Kind, i64, i64, i64, i64, i64, i64);

    fn rank(events: &[Drawn], collectives: &[(i64, i64, &str)]) -> RankData {
        let mut data = RankData::default();
        let mut events = events.to_vec();
        events.sort_by_key(|(_, _, _, start, ..)| *start);
        for (kind, id, thread, start, length, correlation, external) in events {
            let to = &mut data.events;
            to.kind.push(kind);
            to.id.push(id);
            to.thread.push(thread);
            to.ts_ns.push(start);
            to.dur_ns.push(length);
            to.correlation.push(correlation);
            to.external.push(external);
            to.is_comm.push(kind != Kind::Driver);
            let on_device = kind == Kind::Kernel;
            to.device.push(if on_device { 0 } else { NONE });
            to.stream.push(if on_device { 7 } else { NONE });
        }
        let row = |(launch, seq, source): &(i64, i64, &str)| CollectiveRow {
            op: "allreduce".into(),
            seq: Some(*seq),
            event_id: Some(*launch),
            enqueue_ns: Some(*seq),
            start_ns: Some(1),
            end_ns: Some(2),
            state: "done".into(),
            timing_source: (*source).into(),
            ..CollectiveRow::default()
        };
        data.outline.collectives = collectives.iter().map(row).map(Collective::from).collect();
        data
    }

    /// (seq, event, start, end)
    type Timed = (i64, Option<i64>, i64, i64);

    fn joined(events: &[Drawn], collectives: &[(i64, i64, &str)]) -> (Vec<Timed>, i64) {
        let mut data = rank(events, collectives);
        join(&mut data);
        let mut rows: Vec<_> = data
            .outline
            .collectives
            .iter()
            .map(|c| (c.seq().unwrap(), c.event_id(), c.start_ns().unwrap(), c.end_ns().unwrap()))
            .collect();
        rows.sort_unstable();
        (rows, data.omissions.iter().filter_map(|o| o.amount).sum())
    }

    const LAUNCH: Kind = Kind::CpuOp;

    /// ```text
    /// thread 5   [launch 7][launch 8]
    /// device          [kernel 70, external 7][kernel 80, external 8]
    /// ```
    #[test]
    fn a_kernel_carries_the_id_of_its_launch() {
        let events = [
            (LAUNCH, 7, 5, 10, 10, NONE, 7),
            (LAUNCH, 8, 5, 20, 10, NONE, 8),
            (Kind::Kernel, 70, NONE, 25, 30, 1, 7),
            (Kind::Kernel, 80, NONE, 55, 5, 2, 8),
        ];
        let expected = vec![(0, Some(70), 25, 55), (1, Some(80), 55, 60)];
        assert_eq!(joined(&events, &[(7, 0, "gpu_timer"), (8, 1, "host")]), (expected, 0));
    }

    /// ```text
    /// thread 5   [launch 7  [call c1]]   [call c2]
    /// thread 6      [call c3]                          at the same time, on another thread
    /// device                       [k c1] [k c2] [k c3]
    /// ```
    #[test]
    fn without_an_id_the_call_inside_the_launch_identifies_the_kernel() {
        let events = [
            (LAUNCH, 7, 5, 10, 10, NONE, 7),
            (Kind::Driver, 71, 5, 12, 5, 1, NONE),
            (Kind::Driver, 72, 5, 21, 5, 2, NONE),
            (Kind::Driver, 73, 6, 12, 5, 3, NONE),
            (Kind::Kernel, 81, NONE, 30, 5, 1, NONE),
            (Kind::Kernel, 82, NONE, 35, 5, 2, NONE),
            (Kind::Kernel, 83, NONE, 40, 5, 3, NONE),
        ];
        assert_eq!(joined(&events, &[(7, 0, "enqueue")]), (vec![(0, Some(81), 30, 35)], 0));
    }

    /// ```text
    /// thread 5   [call c1][launch 7]  [call c2] [call c3][launch 8]  [launch 9]
    /// thread 6                 [call c4]
    /// device         [k c1]           [k c2] [k c3] [k c4]
    /// ```
    #[test]
    fn the_last_call_before_a_launch_identifies_the_kernel() {
        let events = [
            (Kind::Driver, 71, 5, 10, 5, 1, NONE),
            (LAUNCH, 7, 5, 16, 3, NONE, 7),
            (Kind::Driver, 74, 6, 17, 5, 4, NONE),
            (Kind::Driver, 72, 5, 20, 5, 2, NONE),
            (Kind::Driver, 73, 5, 26, 5, 3, NONE),
            (LAUNCH, 8, 5, 32, 3, NONE, 8),
            (LAUNCH, 9, 5, 40, 3, NONE, 9),
            (Kind::Kernel, 81, NONE, 14, 10, 1, NONE),
            (Kind::Kernel, 82, NONE, 30, 5, 2, NONE),
            (Kind::Kernel, 83, NONE, 35, 5, 3, NONE),
            (Kind::Kernel, 84, NONE, 40, 5, 4, NONE),
        ];
        let collectives = [(7, 17, "gpu_timer"), (8, 33, "host"), (9, 41, "host")];
        let expected = vec![(17, Some(81), 14, 24), (33, Some(83), 35, 40), (41, Some(9), 1, 2)];
        assert_eq!(joined(&events, &collectives), (expected, 1));
        let mut data = rank(&events, &collectives);
        join(&mut data);
        let mut enqueued: Vec<_> = data.outline.collectives.iter().map(|c| (c.seq(), c.enqueue_ns())).collect();
        enqueued.sort_unstable();
        assert_eq!(
            enqueued,
            [(Some(17), Some(10)), (Some(33), Some(26)), (Some(41), Some(41))],
            "the start of the call"
        );
    }

    /// Invariant (numbers): Kernels that cannot be assigned to one collective are counted.
    #[test]
    fn a_fused_kernel_times_all_its_collectives_and_ambiguous_ones_are_counted() {
        let launch = (LAUNCH, 7, 5, 10, 10, NONE, 7);
        let kernel = |id, start| (Kind::Kernel, id, NONE, start, 5, id, 7);
        let three = [(7, 0, "host"), (7, 1, "host"), (7, 2, "gpu_timer")];
        // The GPU's own timestamps of a part of a kernel are more accurate than the kernel's.
        let expected = vec![(0, Some(70), 30, 35), (1, Some(70), 30, 35), (2, Some(70), 1, 2)];
        assert_eq!(joined(&[launch, kernel(70, 30)], &three), (expected, 0));
        let mut data = rank(&[launch, kernel(70, 30)], &three);
        join(&mut data);
        let fused: BTreeMap<_, _> = data.outline.collectives.iter().map(|c| (c.seq().unwrap(), c.fused)).collect();
        let expected = BTreeMap::from([(0, Some(true)), (1, Some(true)), (2, None)]);
        assert_eq!(fused, expected, "NCCL says whether its own times are of several");
        // Two kernels for one collective.
        let expected = vec![(0, Some(70), 30, 45)];
        assert_eq!(joined(&[launch, kernel(70, 30), kernel(71, 40)], &three[..1]), (expected, 0));
        // Two kernels for three collectives.
        let (rows, apart) = joined(&[launch, kernel(70, 30), kernel(71, 40)], &three);
        assert!(rows.iter().all(|row| row.1 == Some(7)) && apart == 3, "{rows:?}");
        // CUPTI did not run, so nothing is missing.
        assert_eq!(joined(&[launch], &three).1, 0);
        // CUPTI ran, but not at the time of this launch.
        assert_eq!(joined(&[launch, (Kind::Kernel, 9, NONE, 1, 1, 1, NONE)], &three).1, 3);
    }

    #[test]
    fn existing_kernel_times_stay() {
        let events = [(LAUNCH, 7, 5, 10, 10, NONE, 7), (Kind::Kernel, 70, NONE, 30, 5, 1, 7)];
        assert_eq!(joined(&events, &[(7, 0, "cupti")]), (vec![(0, Some(7), 1, 2)], 0));
    }
}
