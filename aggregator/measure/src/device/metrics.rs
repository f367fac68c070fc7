//! Hardware metrics of devices, as a profiler samples them.

use std::collections::BTreeMap;

use trace::GpuMetricRow;

use crate::device::View;
use model::steps::step_at;

#[derive(Clone, Copy, Debug)]
struct Tally {
    samples: i64,
    /// Sums of values of 64 bits fit into 128.
    sum: i128,
    min: i64,
    max: i64,
}

impl Tally {
    fn of(value: i64) -> Self {
        Self { samples: 1, sum: i128::from(value), min: value, max: value }
    }

    fn add(&mut self, value: i64) {
        self.samples += 1;
        self.sum += i128::from(value);
        (self.min, self.max) = (self.min.min(value), self.max.max(value));
    }
}

/// Makes one row for all samples of each metric, and one row for each step in which some lie.
pub(super) fn gpu_metrics(view: &View<'_>) -> Vec<GpuMetricRow> {
    let data = view.data;
    let steps = &data.outline.steps;
    // `None` sorts before all steps.
    let mut tallies: BTreeMap<(u32, Option<i32>), Tally> = BTreeMap::new();
    for sample in data.metric_samples.iter().filter(|sample| view.scope.keeps_host_time(steps, sample.ts_ns)) {
        let step = Some(step_at(steps, sample.ts_ns)).filter(|step| *step >= 0);
        for step in [None].into_iter().chain(step.map(Some)) {
            let tally = tallies.entry((sample.metric, step));
            tally.and_modify(|tally| tally.add(sample.value)).or_insert_with(|| Tally::of(sample.value));
        }
    }
    let row = |((metric, step), tally): ((u32, Option<i32>), Tally)| {
        let metric = data.metrics.get(metric as usize)?;
        Some(GpuMetricRow {
            rank: data.outline.info.rank,
            device_id: metric.device_id,
            metric: metric.name.clone(),
            step,
            samples: tally.samples,
            mean_value: tally.sum as f64 / tally.samples as f64,
            min_value: tally.min,
            max_value: tally.max,
        })
    };
    let mut rows: Vec<GpuMetricRow> = tallies.into_iter().filter_map(row).collect();
    rows.sort_by(|a, b| (a.device_id, &a.metric, a.step).cmp(&(b.device_id, &b.metric, b.step)));
    rows
}

#[cfg(test)]
mod tests {
    use trace::StepRow;
    use trace::rank::{Metric, MetricSample};

    use crate::device::tests::tables;
    use model::RankData;

    /// Steps 4 and 5 last 100 ns each.
    ///
    /// ```text
    ///  step     -  |     4     |      5      |  -
    ///  samples  1    10   30      20            9
    /// ```
    #[test]
    fn samples_are_summed_over_each_step_and_over_everything() {
        let mut data = RankData::default();
        data.outline.steps = [4, 5]
            .map(|step| StepRow {
                step,
                start_ns: i64::from(step) * 100,
                end_ns: i64::from(step) * 100 + 100,
                ..StepRow::default()
            })
            .into();
        data.metrics = vec![Metric { device_id: 1, name: "SMs Active [Throughput %]".into() }];
        data.metric_samples = [(50, 1), (400, 10), (450, 30), (500, 20), (600, 9)]
            .map(|(ts_ns, value)| MetricSample { ts_ns, metric: 0, value })
            .into();
        let rows = tables(&data).gpu_metrics;
        let found: Vec<_> =
            rows.iter().map(|r| (r.device_id, r.step, r.samples, r.mean_value, r.min_value, r.max_value)).collect();
        let expected = [(1, None, 5, 14.0, 1, 30), (1, Some(4), 2, 20.0, 10, 30), (1, Some(5), 1, 20.0, 20, 20)];
        assert_eq!(found, expected);
    }
}
