//! Kernels whose durations are wrong: they end after a later kernel of their stream has ended.
//!
//! A stream runs its kernels one after another. Durations of ROCm sometimes overflow by seconds. Such a kernel ends
//! where the next one begins, at the latest:
//!
//! ```text
//! recorded   a ───────────────────────────────
//!               b ──      c ───
//! kept       a ─b ──      c ───
//! ```
//!
//! Kernels of a graph, and those that may begin before the kernel before them has ended (programmatic dependent launch),
//! keep their durations.

use rustc_hash::FxHashMap;
use trace::Text;
use trace::name_rules::launches_graph;
use trace::rank::{Events, Kind, Launches, NONE};

/// Cuts such kernels; returns their number. `events` are in the order of time.
pub(crate) fn cut_overlong_kernels(events: &mut Events, names: &[Text], launches: &Launches) -> i64 {
    let in_order: Vec<bool> = names.iter().map(|name| launches_in_order(name)).collect();
    let mut last: FxHashMap<(i64, i64), usize> = FxHashMap::default();
    let mut cut = 0;
    for row in 0..events.len() {
        if events.kind[row] != Kind::Kernel || events.stream[row] == NONE || events.dur_ns[row] == 0 {
            continue;
        }
        let Some(before) = last.insert((events.device[row], events.stream[row]), row) else { continue };
        if events.end_ns(before) <= events.end_ns(row) || events.ts_ns[before] == events.ts_ns[row] {
            continue;
        }
        let launch = launches.of(events.correlation[before]);
        if launch.is_some_and(|launch| in_order[events.name[launch as usize] as usize]) {
            events.dur_ns[before] = events.ts_ns[row] - events.ts_ns[before];
            cut += 1;
        }
    }
    cut
}

/// Whether the kernel of a call begins after the kernel before it on the stream has ended.
fn launches_in_order(call: &str) -> bool {
    let may_overlap = launches_graph(call) || call.starts_with("cu") && call.contains("Ex");
    (call.starts_with("hip") || call.starts_with("cu")) && !may_overlap
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Kernels as (start, length) on one stream, launched by `call`; their lengths after the cut, and the number of cuts.
    fn cut(call: &str, kernels: &[(i64, i64)]) -> (Vec<i64>, i64) {
        let n = kernels.len();
        let of = |host: i64, device: i64| [vec![host; n], vec![device; n]].concat();
        let mut events = Events {
            kind: [vec![Kind::Runtime; n], vec![Kind::Kernel; n]].concat(),
            name: [vec![0; n], vec![1; n]].concat(),
            ts_ns: (0..n).map(|_| 0).chain(kernels.iter().map(|k| k.0)).collect(),
            dur_ns: (0..n).map(|_| 1).chain(kernels.iter().map(|k| k.1)).collect(),
            correlation: (0..n as i64).chain(0..n as i64).collect(),
            device: of(NONE, 0),
            stream: of(NONE, 7),
            ..Events::default()
        };
        let launches = Launches::collect(&events);
        let cut = cut_overlong_kernels(&mut events, &[call.into(), "k".into()], &launches);
        (events.dur_ns[n..].to_vec(), cut)
    }

    #[test]
    fn a_kernel_that_ends_after_its_successor_is_cut_where_that_begins() {
        let overflow = [(0, 1_600), (10, 4), (20, 9), (30, 1_600), (40, 5)];
        assert_eq!(cut("hipExtModuleLaunchKernel", &overflow), (vec![10, 4, 9, 10, 5], 2));
        assert_eq!(cut("cudaLaunchKernel", &overflow).1, 2);
        for call in ["hipGraphLaunch", "cudaGraphLaunch", "cudaLaunchKernelExC", "urEnqueueKernelLaunch", "runFunction"]
        {
            assert_eq!(cut(call, &overflow).1, 0, "{call}");
        }
        // An overlap at the end is possible, and a kernel without a length says nothing.
        assert_eq!(cut("hipLaunchKernel", &[(0, 12), (10, 4), (13, 0), (13, 9)]), (vec![12, 4, 0, 9], 0));
    }
}
