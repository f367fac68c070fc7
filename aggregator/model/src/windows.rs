//! The windows of a rank: stretches of recording with a pause between them. A schedule of torch.profiler with `repeat`
//! above 1, a schedule of `exec` and `ctl` make them.
//!
//! The pause is no idle time, because no profiler observed it. A row belongs to the window that is nearer in time.
//!
//! ```text
//!  steps      |- 3 -|- 4 -|                       |- 9 -|- 10 -|
//!  windows    |-------- 1 --------¦--------------- 2 -----------      ¦ the cut, in the middle of the pause
//! ```

use trace::StepRow;

use crate::intervals::Interval;

/// The windows of one rank, in its clock.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Windows {
    /// Numbers of the windows, as their source gave them; `None` if it numbers no windows.
    numbers: Vec<Option<i32>>,
    /// Ends of all windows but the last.
    cuts: Vec<i64>,
}

impl Windows {
    /// Finds the windows in the steps of a rank, warm-up included.
    pub fn of(steps: &[StepRow]) -> Self {
        let mut steps: Vec<&StepRow> = steps.iter().collect();
        steps.sort_by_key(|step| step.start_ns);
        let mut windows =
            Self { numbers: steps.first().map(|step| step.window).into_iter().collect(), cuts: Vec::new() };
        let mut end_ns = i64::MIN;
        for pair in steps.windows(2) {
            let (step, next) = (pair[0], pair[1]);
            end_ns = end_ns.max(step.end_ns);
            if !continues(step, next) && next.start_ns >= end_ns {
                windows.cuts.push(end_ns + (next.start_ns - end_ns) / 2);
                windows.numbers.push(next.window);
            }
        }
        windows
    }

    /// The position of the window that holds a time.
    pub fn at(&self, t_ns: i64) -> usize {
        self.cuts.partition_point(|cut| *cut <= t_ns)
    }

    /// The number of the window that holds a time; `None` if the source numbers no windows.
    pub fn number_at(&self, t_ns: i64) -> Option<i32> {
        self.numbers.get(self.at(t_ns)).copied().flatten()
    }

    /// The hull of the spans in each window, ascending; a window without a span has none.
    pub fn hulls(&self, spans: impl Iterator<Item = Interval>) -> Vec<Interval> {
        let mut hulls: Vec<Option<Interval>> = vec![None; self.cuts.len() + 1];
        for span in spans {
            let hull = &mut hulls[self.at(span.start_ns)];
            *hull =
                Some(hull.map_or(span, |hull| {
                    Interval::new(hull.start_ns.min(span.start_ns), hull.end_ns.max(span.end_ns))
                }));
        }
        hulls.into_iter().flatten().collect()
    }
}

/// Whether two steps, one after the other, are in one window.
pub(crate) fn continues(step: &StepRow, next: &StepRow) -> bool {
    step.window == next.window && (next.window.is_some() || i64::from(next.step) <= i64::from(step.step) + 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn steps(rows: &[(i32, i64, i64, Option<i32>)]) -> Vec<StepRow> {
        rows.iter()
            .map(|(step, start_ns, end_ns, window)| StepRow {
                step: *step,
                start_ns: *start_ns,
                end_ns: *end_ns,
                window: *window,
                ..StepRow::default()
            })
            .collect()
    }

    #[test]
    fn a_gap_in_the_numbers_of_steps_begins_a_window() {
        let windows = Windows::of(&steps(&[(3, 0, 10, None), (4, 10, 20, None), (9, 60, 70, None)]));
        assert_eq!((windows.at(20), windows.at(39), windows.at(40), windows.at(99)), (0, 0, 1, 1));
        assert_eq!(windows.number_at(5), None);
        let spans = [(0, 25), (5, 12), (58, 80)].map(|(start, end)| Interval::new(start, end));
        assert_eq!(windows.hulls(spans.into_iter()), [Interval::new(0, 25), Interval::new(58, 80)]);
    }

    #[test]
    fn the_numbers_of_a_source_decide_where_it_has_them() {
        let windows = Windows::of(&steps(&[(0, 0, 10, Some(1)), (1, 30, 40, Some(2)), (3, 40, 50, Some(2))]));
        assert_eq!((windows.number_at(0), windows.number_at(20), windows.number_at(45)), (Some(1), Some(2), Some(2)));
        assert_eq!(Windows::of(&[]).at(7), 0);
    }
}
