//! The rows of kind `overhead`: work of the profiler itself, and of the driver that loads functions, on the host.

use std::collections::BTreeMap;

use trace::Text;
use trace::name_rules::waits_for_device;

use model::intervals::{Interval, IntervalSet};
use model::{Kind, RankData};

/// The overhead in one step.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct StepOverhead {
    /// The time of all rows; no instant counts twice.
    pub total_ns: i64,
    /// Calls and time of the rows of each name. Rows on different threads may overlap.
    pub by_name: BTreeMap<Text, (i64, i64)>,
}

/// The overhead in each active step that has some, by number of the step, from the rows for which `keep` returns true.
/// Waits for the device are none.
pub(crate) fn overhead_of_steps(data: &RankData, keep: &dyn Fn(usize) -> bool) -> BTreeMap<i32, StepOverhead> {
    let events = &data.events;
    let mut steps: BTreeMap<i32, (IntervalSet, StepOverhead)> = BTreeMap::new();
    for row in (0..events.len()).filter(|row| events.kind[*row] == Kind::Overhead && keep(*row)) {
        let name = &data.names[events.name[row] as usize];
        if events.step[row] < 0 || waits_for_device(name) {
            continue;
        }
        let (time, step) = steps.entry(events.step[row]).or_default();
        time.push(Interval::new(events.ts_ns[row], events.end_ns(row)));
        let (calls, ns) = step.by_name.entry(name.clone()).or_default();
        *calls += 1;
        *ns = ns.saturating_add(events.dur_ns[row]);
    }
    let with_total = |(number, (time, step))| (number, StepOverhead { total_ns: IntervalSet::len_ns(&time), ..step });
    steps.into_iter().map(with_total).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use drawn::Drawn;

    #[test]
    fn each_step_has_its_overhead_by_name() {
        let data = Drawn::rank(0)
            .steps("########..########..")
            .host(Kind::Overhead, "Buffer Flush", 9, ".####...##.##.......")
            .host(Kind::Overhead, "Instrumentation", 8, "....##..............")
            .host(Kind::Overhead, "Command Buffer Full", 7, "...........####.....")
            .host(Kind::CpuOp, "aten::mm", 1, "########..########..")
            .data();
        let found = overhead_of_steps(&data, &|_| true);
        let named = |step: i32| found[&step].by_name.iter().map(|(name, sums)| (&**name, *sums)).collect::<Vec<_>>();
        assert_eq!(found.iter().map(|(step, o)| (*step, o.total_ns)).collect::<Vec<_>>(), [(1, 5), (2, 2)]);
        assert_eq!(named(1), [("Buffer Flush", (1, 4)), ("Instrumentation", (1, 2))]);
        assert_eq!(named(2), [("Buffer Flush", (1, 2))]);
    }
}
