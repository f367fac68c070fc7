//! Where exposed communication comes from: the collectives of a device, and what of each no compute hides.
//!
//! ```text
//!  K compute       ####....####......
//!  dp              ..######..........      began first: 2 hidden, 2 exposed alone, 2 shared that count for it
//!  tp              ......########....      6 that dp does not cover: 4 hidden, 2 exposed
//!  exposed         ....dddd....tt....
//! ```

use std::collections::BTreeMap;

use rustc_hash::FxHashMap;
use trace::{CommRow, ExposedCommRow, Op, StepBreakdownRow, Text, Word};

use crate::breakdown::Parts;
use crate::breakdown::callers::Callers;
use model::intervals::{Interval, IntervalSet};
use model::steps::StepWindow;
use model::{Collective, RankData};

/// The key of collectives: communicator, operation, bucket and module.
type Key = (i64, Word<Op>, Option<i32>, Option<Text>);

/// The time of one collective that no collective that began before covers.
struct Piece<'a> {
    collective: &'a Collective,
    module: Option<Text>,
    /// For an all-gather of an FSDP unit, the compute since the collective before.
    hides_ns: Option<i64>,
    window: Interval,
}

/// The collectives of a rank that ended, with their callers and communicators.
pub(crate) struct Calls<'a> {
    callers: Callers,
    comms: FxHashMap<i64, &'a CommRow>,
    /// By device, with the begin, the end and the position of each.
    of_device: BTreeMap<Option<i64>, Vec<(i64, i64, usize)>>,
    collectives: &'a [Collective],
}

impl<'a> Calls<'a> {
    pub(crate) fn of(data: &'a RankData) -> Self {
        let collectives = &*data.outline.collectives;
        let mut of_device: BTreeMap<Option<i64>, Vec<(i64, i64, usize)>> = BTreeMap::new();
        for (at, row) in collectives.iter().enumerate() {
            let timed = row.start_ns().zip(row.end_ns()).map(|(start, end)| (start, end, at));
            of_device.entry(row.device_id).or_default().extend(timed);
        }
        let comms = data.outline.comms.iter().map(|comm| (comm.comm_id, comm)).collect();
        Self { callers: Callers::of(data), comms, of_device, collectives }
    }

    /// The collectives of a device by time. Those that name no device are of each, and all are of the CPU.
    fn by_time(&self, device: Option<i64>) -> Vec<(i64, i64, usize)> {
        let mut timed: Vec<(i64, i64, usize)> = match device {
            Some(_) => [None, device].iter().filter_map(|of| self.of_device.get(of)).flatten().copied().collect(),
            None => self.of_device.values().flatten().copied().collect(),
        };
        timed.sort_unstable();
        timed
    }
}

/// The rows of one device. `breakdown` are its rows, and `windows` its steps.
pub(crate) fn exposed_communication(
    calls: &Calls<'_>,
    parts: &Parts,
    (breakdown, windows): (&[StepBreakdownRow], &[StepWindow]),
    scope: Option<&IntervalSet>,
) -> Vec<ExposedCommRow> {
    let Some((rank, device_id)) = breakdown.first().map(|row| (row.rank, row.device_id)) else { return Vec::new() };
    let pieces = pieces(calls, device_id, parts);
    let comms = &calls.comms;
    let of_steps: FxHashMap<Option<i32>, &StepBreakdownRow> =
        breakdown.iter().rev().map(|row| (row.step, row)).collect();
    let mut rows = Vec::new();
    for step in windows {
        let Some(all) = of_steps.get(&Some(step.step)) else { continue };
        let of_step = match scope {
            None => vec![step.window],
            Some(scope) => scope.clip(step.window).intervals().to_vec(),
        };
        let mut left_ns = all.exposed_comm_ns;
        for (key, sum) in by_key(&pieces, &of_step, parts) {
            left_ns -= sum.exposed_ns;
            rows.push(ExposedCommRow {
                rank,
                device_id,
                step: step.step,
                comm_id: Some(key.0),
                comm_name: sum.sample.comm_name.clone(),
                comm_description: comms.get(&key.0).and_then(|comm| comm.description.clone()),
                nodes: comms.get(&key.0).and_then(|comm| comm.nodes),
                op: Some(key.1),
                bucket: key.2,
                module: key.3,
                collectives: sum.collectives,
                comm_ns: sum.comm_ns,
                exposed_ns: sum.exposed_ns,
                late_ns: sum.late_ns,
            });
        }
        if left_ns > 0 {
            let (comm_ns, exposed_ns) = (left_ns, left_ns);
            rows.push(ExposedCommRow { rank, device_id, step: step.step, comm_ns, exposed_ns, ..Default::default() });
        }
    }
    rows
}

/// The collectives of a key.
struct Sum<'a> {
    sample: &'a Collective,
    collectives: i64,
    comm_ns: i64,
    exposed_ns: i64,
    late_ns: Option<i64>,
}

fn by_key<'a>(pieces: &[Piece<'a>], windows: &[Interval], parts: &Parts) -> BTreeMap<Key, Sum<'a>> {
    let mut sums: BTreeMap<Key, Sum<'a>> = BTreeMap::new();
    for window in windows {
        let from = pieces.partition_point(|piece| piece.window.end_ns <= window.start_ns);
        for piece in pieces[from..].iter().take_while(|piece| piece.window.start_ns < window.end_ns) {
            let here =
                Interval::new(piece.window.start_ns.max(window.start_ns), piece.window.end_ns.min(window.end_ns));
            let split = parts.split(here);
            let row = piece.collective;
            let sum = sums.entry((row.comm_id, row.op.clone(), row.bucket(), piece.module.clone())).or_insert(Sum {
                sample: row,
                collectives: 0,
                comm_ns: 0,
                exposed_ns: 0,
                late_ns: None,
            });
            // A collective that crosses the end of a step is one of the step in which it begins.
            sum.collectives +=
                i64::from(row.start_ns().is_some_and(|start| (window.start_ns..window.end_ns).contains(&start)));
            sum.comm_ns += split.overlap_ns + split.exposed_comm_ns;
            sum.exposed_ns += split.exposed_comm_ns;
            if let Some(hides_ns) = piece.hides_ns {
                *sum.late_ns.get_or_insert(0) += hides_ns.min(split.exposed_comm_ns);
            }
        }
    }
    sums
}

/// The collectives of a device by time, without what those before cover.
fn pieces<'a>(calls: &Calls<'a>, device: Option<i64>, parts: &Parts) -> Vec<Piece<'a>> {
    let timed = calls.by_time(device);
    let (first, mut covered) = (timed.first().map_or(0, |(start, ..)| *start), i64::MIN);
    let mut pieces = Vec::with_capacity(timed.len());
    for (start, end, at) in timed {
        let from = start.max(covered);
        if from < end {
            let collective = &calls.collectives[at];
            let (module, is_of_unit) = calls.callers.of_collective(collective).unzip();
            let is_gather = collective.op == Op::AllGather && is_of_unit == Some(true) && covered < start;
            let hides_ns = is_gather.then(|| parts.compute.within_ns(Interval::new(covered.max(first), start)));
            pieces.push(Piece { collective, module, hides_ns, window: Interval::new(from, end) });
            covered = end;
        }
    }
    pieces
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::breakdown::breakdown;
    use crate::lost_launches::LostLaunches;
    use drawn::Drawn;
    use model::Kind;
    use model::scope::Scope;

    /// Invariant (numbers): The parts of exposed communication sum to it.
    #[test]
    fn the_rows_of_a_step_sum_to_its_exposed_communication() {
        let mut data = Drawn::rank(0)
            .steps("##################....####")
            .host(Kind::CpuOp, "gemm", 1, "####....####..........##..")
            .collectives("..######................##")
            .data();
        let second =
            Drawn::rank(0).steps("##################....####").collectives("......########............").data();
        data.outline.collectives.extend(second.outline.collectives.into_iter().map(|mut row| {
            row.comm_id = 7;
            row.op = Op::AllGather.into();
            row
        }));
        let found = breakdown(&data, &LostLaunches::default(), &Scope::default());
        let rows: Vec<_> =
            found.exposed.iter().map(|r| (r.step, r.comm_id, r.collectives, r.comm_ns, r.exposed_ns)).collect();
        let exposed: Vec<_> = found.rows.iter().filter(|r| r.step >= Some(0)).map(|r| r.exposed_comm_ns).collect();
        assert_eq!(exposed, [6, 2]);
        assert_eq!(rows, [(1, Some(0), 1, 6, 4), (1, Some(7), 1, 6, 2), (2, Some(0), 1, 2, 2)]);
    }
}
