//! The types of device work that ran at the same time, as in the table of types of HTA's
//! `trace_analysis.get_gpu_kernel_breakdown`.
//!
//! ```text
//!  compute        ######......
//!  communication  ...######...
//!  memory         ........###.
//!                 ccc+++xxmmm.      c compute, + compute+communication, x communication, m (one) communication+memory, then memory
//! ```

use trace::KernelBreakdownRow;

use crate::breakdown::{Activity, Parts};
use model::Kind;
use model::intervals::IntervalSet;

/// The type of a device row: `communication`, `compute` or `memory`.
pub fn work_type(kind: Kind, is_comm: bool) -> &'static str {
    match kind {
        _ if is_comm => "communication",
        Kind::Kernel => "compute",
        _ => "memory",
    }
}

/// Makes up to seven rows for each device: for each type alone, for each pair of types, and for all three.
pub(super) fn kernel_breakdown(rank: i32, parts: &[(Activity, Parts)]) -> Vec<KernelBreakdownRow> {
    let devices = parts.iter().filter_map(|(activity, _)| Some((activity.device?, activity)));
    devices.flat_map(|(device, activity)| device_rows(rank, device, activity)).collect()
}

fn device_rows(rank: i32, device_id: i64, activity: &Activity) -> Vec<KernelBreakdownRow> {
    let Activity { compute, comm, memory, .. } = activity;
    let overlap = |a: &IntervalSet, b: &IntervalSet| a.intersection(b);
    let compute_comm = overlap(compute, comm);
    let all = overlap(&compute_comm, memory).len_ns();
    let cc = compute_comm.len_ns() - all;
    let cm = overlap(compute, memory).len_ns() - all;
    let xm = overlap(comm, memory).len_ns() - all;
    let rows = [
        ("compute", compute.len_ns() - cc - cm - all),
        ("communication", comm.len_ns() - cc - xm - all),
        ("memory", memory.len_ns() - cm - xm - all),
        ("compute+communication", cc),
        ("compute+memory", cm),
        ("communication+memory", xm),
        ("compute+communication+memory", all),
    ];
    let busy: i64 = rows.iter().map(|(_, ns)| ns).sum();
    let share = |ns: i64| 100.0 * ns as f64 / busy.max(1) as f64;
    let row = |(running, total_ns): (&str, i64)| KernelBreakdownRow {
        rank,
        device_id,
        running: running.into(),
        total_ns,
        busy_pct: share(total_ns),
    };
    rows.into_iter().filter(|(_, ns)| *ns > 0).map(row).collect()
}
