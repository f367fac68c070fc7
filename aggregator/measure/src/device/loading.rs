//! The time in which a step waits for input. PyTorch's data loaders mark it with ranges
//! (`enumerate(DataLoader)#….__next__`, the role "DataLoader" of the TensorBoard plugin), and the reference workload
//! marks it with `input`.

use trace::DataLoadingRow;
use trace::name_rules::is_data_loading;

use crate::device::View;
use model::intervals::{Coverage, Interval, IntervalSet};
use model::steps::{host_windows, recorded};
use model::{Kind, RankData};

/// Makes one row for the whole recording and one for each active step; no row without an input range.
pub(super) fn data_loading(view: &View<'_>, busy: Option<&Coverage>) -> Vec<DataLoadingRow> {
    let data = view.data;
    let (starts, loading) = ranges(view);
    let all: IntervalSet = recorded(data).into_iter().collect();
    if starts.is_empty() || all.is_empty() {
        return Vec::new();
    }
    let loading = Coverage::new(loading);
    // The starts ascend, because all rows are sorted by start.
    let starts_before = |ts_ns: i64| starts.partition_point(|start| *start < ts_ns);
    let steps = view.scope.chosen(host_windows(&data.outline.steps));
    let within = view.scope.within(&steps);
    let row = |step: Option<i32>, time: IntervalSet| {
        let calls = |i: &Interval| starts_before(i.end_ns) - starts_before(i.start_ns);
        let calls = time.intervals().iter().map(calls).sum::<usize>() as i64;
        let pieces = match &within {
            Some(scope) => scope.intersection(&time),
            None => time,
        };
        let wall_ns = pieces.len_ns();
        let sum = |f: &dyn Fn(Interval) -> i64| pieces.intervals().iter().map(|piece| f(*piece)).sum::<i64>();
        let total_ns = sum(&|piece| loading.within_ns(piece));
        let idle = |busy: &Coverage| {
            sum(&|piece| {
                let here = loading.set().clip(piece);
                let worked: i64 = here.intervals().iter().map(|i| busy.within_ns(*i)).sum();
                here.len_ns() - worked
            })
        };
        DataLoadingRow {
            rank: data.outline.info.rank,
            step,
            calls,
            total_ns,
            wall_ns,
            wall_pct: if wall_ns > 0 { 100.0 * total_ns as f64 / wall_ns as f64 } else { 0.0 },
            device_idle_ns: busy.map(idle),
        }
    };
    let one = |window: Interval| [window].into_iter().collect();
    std::iter::once(row(None, all)).chain(steps.iter().map(|s| row(Some(s.step), one(s.window)))).collect()
}

/// The starts of the input ranges, and the time in them.
fn ranges(view: &View<'_>) -> (Vec<i64>, IntervalSet) {
    let RankData { events, names, .. } = view.data;
    let input: Vec<bool> = names.iter().map(|name| is_data_loading(name)).collect();
    let mut set = IntervalSet::new();
    let mut starts = Vec::new();
    if !input.contains(&true) {
        return (starts, set);
    }
    for row in 0..events.len() {
        let range = matches!(events.kind[row], Kind::UserAnnotation | Kind::CpuOp);
        if range && input[events.name[row] as usize] && (view.keep)(row) {
            starts.push(events.ts_ns[row]);
            set.push(Interval::new(events.ts_ns[row], events.end_ns(row)));
        }
    }
    (starts, set)
}
