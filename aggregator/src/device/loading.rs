//! Time in which a step waits for input. PyTorch's data loaders mark it (`enumerate(DataLoader)#….__next__`, the role
//! "DataLoader" of the TensorBoard plugin), and so does the reference workload (`input`).

use trace::DataLoadingRow;

use super::View;
use crate::intervals::{Coverage, Interval, IntervalSet};
use crate::model::{Kind, RankData};
use crate::steps::{host_windows, recorded};

/// Ranges of the host that bring in data: this program's phase, and PyTorch's data loaders.
const INPUT_RANGES: [&str; 3] = ["input", "enumerate(DataLoader)#", "enumerate(DataPipe)#"];

/// Whether a range of this name brings in data.
pub(crate) fn is_input(name: &str) -> bool {
    INPUT_RANGES.iter().any(|range| name == *range || (range.ends_with('#') && name.starts_with(range)))
}

/// One row for everything and one for each active step; none without any such range.
pub(super) fn data_loading(view: &View<'_>, busy: Option<&Coverage>) -> Vec<DataLoadingRow> {
    let data = view.data;
    let (starts, loading) = ranges(view);
    let Some(all) = recorded(data).filter(|_| !starts.is_empty()) else { return Vec::new() };
    let loading = Coverage::new(loading);
    // The starts ascend, as all rows do.
    let before = |ts_ns: i64| starts.partition_point(|start| *start < ts_ns);
    let steps = view.scope.chosen(host_windows(&data.steps));
    let within = view.scope.within(&steps);
    let row = |step: Option<i32>, window: Interval| {
        let pieces = match &within {
            Some(scope) => scope.clip(window),
            None => [window].into_iter().collect(),
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
            rank: data.info.rank,
            step,
            calls: (before(window.end_ns) - before(window.start_ns)) as i64,
            total_ns,
            wall_ns,
            wall_pct: if wall_ns > 0 { 100.0 * total_ns as f64 / wall_ns as f64 } else { 0.0 },
            device_idle_ns: busy.map(idle),
        }
    };
    std::iter::once(row(None, all)).chain(steps.iter().map(|s| row(Some(s.step), s.window))).collect()
}

/// Starts of the outermost input ranges, and the time in them.
fn ranges(view: &View<'_>) -> (Vec<i64>, IntervalSet) {
    let RankData { events, names, .. } = view.data;
    let input: Vec<bool> = names.iter().map(|name| is_input(name)).collect();
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
