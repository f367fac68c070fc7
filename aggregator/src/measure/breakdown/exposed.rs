//! Where exposed communication comes from: the collectives of a device, and what of each no compute hides.
//!
//! ```text
//!  K compute       ####....####......
//!  dp              ..######..........      began first: 2 hidden, 2 exposed alone, 2 shared that count for it
//!  tp              ......########....      6 that dp does not cover: 4 hidden, 2 exposed
//!  exposed         ....dddd....tt....
//! ```

use std::collections::BTreeMap;

use trace::{CollectiveRow, ExposedCommRow, Op, StepBreakdownRow, Word};

use crate::base::intervals::{Interval, IntervalSet};
use crate::measure::breakdown::Parts;
use crate::model::RankData;
use crate::model::steps::StepWindow;

/// What collectives are told apart by: communicator, operation and bucket.
type Key = (i64, Word<Op>, Option<i32>);

/// The time of one collective that no collective that began before covers.
struct Piece<'a> {
    collective: &'a CollectiveRow,
    window: Interval,
}

/// The rows of one device. `breakdown` are its rows, and `windows` its steps.
pub(crate) fn exposed_communication(
    data: &RankData,
    parts: &Parts,
    (breakdown, windows): (&[StepBreakdownRow], &[StepWindow]),
    scope: Option<&IntervalSet>,
) -> Vec<ExposedCommRow> {
    let Some((rank, device_id)) = breakdown.first().map(|row| (row.rank, row.device_id)) else { return Vec::new() };
    let pieces = pieces(data, device_id);
    let nodes: BTreeMap<i64, i32> =
        data.outline.comms.iter().filter_map(|comm| Some((comm.comm_id, comm.nodes?))).collect();
    let mut rows = Vec::new();
    for step in windows {
        let Some(all) = breakdown.iter().find(|row| row.step == Some(step.step)) else { continue };
        let of_step = match scope {
            None => vec![step.window],
            Some(scope) => scope.clip(step.window).intervals().to_vec(),
        };
        let mut left_ns = all.exposed_comm_ns;
        for (key, (sample, collectives, comm_ns, exposed_ns)) in by_key(&pieces, &of_step, parts) {
            left_ns -= exposed_ns;
            rows.push(ExposedCommRow {
                rank,
                device_id,
                step: step.step,
                comm_id: Some(key.0),
                comm_name: sample.comm_name.clone(),
                nodes: nodes.get(&key.0).copied(),
                op: Some(key.1),
                bucket: key.2,
                collectives,
                comm_ns,
                exposed_ns,
            });
        }
        if left_ns > 0 {
            let (comm_ns, exposed_ns) = (left_ns, left_ns);
            rows.push(ExposedCommRow { rank, device_id, step: step.step, comm_ns, exposed_ns, ..Default::default() });
        }
    }
    rows
}

/// A collective of the key, their number, their time, and what of it is exposed.
type Sum<'a> = (&'a CollectiveRow, i64, i64, i64);

fn by_key<'a>(pieces: &[Piece<'a>], windows: &[Interval], parts: &Parts) -> BTreeMap<Key, Sum<'a>> {
    let mut sums: BTreeMap<Key, Sum<'a>> = BTreeMap::new();
    for window in windows {
        let from = pieces.partition_point(|piece| piece.window.end_ns <= window.start_ns);
        for piece in pieces[from..].iter().take_while(|piece| piece.window.start_ns < window.end_ns) {
            let here =
                Interval::new(piece.window.start_ns.max(window.start_ns), piece.window.end_ns.min(window.end_ns));
            let split = parts.split(here);
            let row = piece.collective;
            let sum = sums.entry((row.comm_id, row.op.clone(), row.bucket)).or_insert((row, 0, 0, 0));
            // A collective that crosses the end of a step is one of the step in which it begins.
            sum.1 += i64::from(row.start_ns.is_some_and(|start| (window.start_ns..window.end_ns).contains(&start)));
            sum.2 += split.overlap_ns + split.exposed_comm_ns;
            sum.3 += split.exposed_comm_ns;
        }
    }
    sums
}

/// The collectives of a device by time, without what those before cover.
fn pieces(data: &RankData, device: Option<i64>) -> Vec<Piece<'_>> {
    let on_device = |row: &&CollectiveRow| device.is_none() || row.device_id.is_none() || row.device_id == device;
    let rows = data.outline.collectives.iter().map(|collective| &collective.row).filter(on_device);
    let mut timed: Vec<(i64, i64, &CollectiveRow)> =
        rows.filter_map(|row| Some((row.start_ns?, row.end_ns?, row))).collect();
    timed.sort_by_key(|(start, end, _)| (*start, *end));
    let mut covered = i64::MIN;
    let mut pieces = Vec::with_capacity(timed.len());
    for (start, end, collective) in timed {
        let from = start.max(covered);
        if from < end {
            pieces.push(Piece { collective, window: Interval::new(from, end) });
            covered = end;
        }
    }
    pieces
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::measure::breakdown::breakdown;
    use crate::model::Kind;
    use crate::model::drawn::Drawn;
    use crate::model::scope::Scope;

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
            row.row.comm_id = 7;
            row.row.op = Op::AllGather.into();
            row
        }));
        let found = breakdown(&data, &Scope::default());
        let rows: Vec<_> =
            found.exposed.iter().map(|r| (r.step, r.comm_id, r.collectives, r.comm_ns, r.exposed_ns)).collect();
        let exposed: Vec<_> = found.rows.iter().filter(|r| r.step >= Some(0)).map(|r| r.exposed_comm_ns).collect();
        assert_eq!(exposed, [6, 2]);
        assert_eq!(rows, [(1, Some(0), 1, 6, 4), (1, Some(7), 1, 6, 2), (2, Some(0), 1, 2, 2)]);
    }
}
