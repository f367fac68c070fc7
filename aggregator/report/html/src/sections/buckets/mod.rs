//! Times of every gradient bucket, relative to the start of its step.

use std::collections::{BTreeMap, BTreeSet};

use trace::{BucketTimingRow, Row};

use crate::columns::columns;
use crate::page_limits::{Limits, unit_ns};
use crate::section::{Chart, PageData, ReportInput, Section, script};
use model::Error;
use model::analysis::Tables;
use model::stats::lower_median;
use model::units::plural;

pub(crate) static SECTION: Section = Section {
    id: "buckets",
    title: "Gradient buckets",
    lead: "The phases of each bucket: its last gradient is ready, it is enqueued, it waits in the queue, it waits for the last rank, it \
           transfers data. The line below a bar shows the exposed time.",
    proof: false,
    tables: &[BucketTimingRow::table],
    data,
    scripts: &[script!("buckets.js")],
};

fn data(run: &ReportInput<'_>, page: &mut PageData) -> Result<Option<Chart>, Error> {
    let (unit_ns, buckets) = buckets(run.tables(), run.limits, page);
    page.table(
        &buckets,
        columns!(BucketTimingRow: step bucket rank bytes ready_ns enqueue_ns start_ns wait_ns end_ns exposed_ns),
    )?;
    // The unit of the times.
    page.value("bucket_unit_ns", &unit_ns)?;
    Ok(Some(Chart::unless(run.tables().bucket_timing.is_empty().then_some(
        "No gradient bucket was recorded: no collective has a bucket number. rank-agent records these numbers.",
    ))))
}

/// The unit of times in ns, and the buckets of every step in that unit, from the first time of the step's buckets: for
/// every rank while they fit into the limits, medians over ranks (rank −1) for further steps.
fn buckets(tables: &Tables, limits: &Limits, page: &mut PageData) -> (i64, Vec<BucketTimingRow>) {
    let mut by_step: BTreeMap<i32, Vec<&BucketTimingRow>> = BTreeMap::new();
    for row in tables.bucket_timing.iter().filter(|r| r.step >= 0) {
        by_step.entry(row.step).or_default().push(row);
    }
    let first = |rows: &[&BucketTimingRow]| rows.iter().map(|r| begin(r)).min().unwrap_or(0);
    let span = |rows: &Vec<&BucketTimingRow>| rows.iter().map(|r| r.end_ns).max().unwrap_or(0) - first(rows);
    let unit_ns = unit_ns(by_step.values().map(span).max().unwrap_or(0));
    let shown = whole_steps(&by_step, limits);
    if shown.len() < by_step.len() {
        page.note(format!(
            "{} are too many to show the buckets of every rank: {} show every rank, the others show medians over ranks. The \
             table bucket_timing has them all.",
            plural(by_step.len(), "step"),
            shown.len()
        ));
    }
    let of_step = |(step, rows): (&i32, &Vec<&BucketTimingRow>)| -> Vec<BucketTimingRow> {
        let origin = first(rows);
        if shown.contains(step) {
            return rows.iter().map(|r| relative(r, origin, unit_ns)).collect();
        }
        medians(rows, origin).iter().map(|r| relative(r, origin, unit_ns)).collect()
    };
    (unit_ns, by_step.iter().flat_map(of_step).collect())
}

fn begin(row: &BucketTimingRow) -> i64 {
    [row.ready_ns, row.enqueue_ns].into_iter().flatten().fold(row.start_ns, i64::min)
}

/// Steps whose buckets are shown for every rank: the longest, the shortest, and others at equal distances.
fn whole_steps(by_step: &BTreeMap<i32, Vec<&BucketTimingRow>>, limits: &Limits) -> BTreeSet<i32> {
    let mut left = limits.bucket_rows;
    let mut order: Vec<(i32, usize)> = Vec::new();
    let all: Vec<(i32, usize)> = by_step.iter().map(|(step, rows)| (*step, rows.len())).collect();
    let length = |step: &i32| by_step.get(step).map_or(0, |rows| rows.iter().map(|r| r.exposed_ns).sum::<i64>());
    order.extend(all.iter().max_by_key(|(step, _)| length(step)));
    order.extend(all.iter().min_by_key(|(step, _)| length(step)));
    let mut stride = all.len();
    while stride > 0 {
        order.extend(all.iter().step_by(stride));
        stride /= 2;
    }
    let mut shown = BTreeSet::new();
    for (step, rows) in order {
        if !shown.contains(&step) && rows <= left {
            left -= rows;
            shown.insert(step);
        }
    }
    shown
}

fn relative(row: &BucketTimingRow, origin: i64, unit: i64) -> BucketTimingRow {
    let at = |t: i64| (t - origin) / unit;
    BucketTimingRow {
        ready_ns: row.ready_ns.map(at),
        enqueue_ns: row.enqueue_ns.map(at),
        start_ns: at(row.start_ns),
        wait_ns: row.wait_ns.map(|w| w / unit),
        end_ns: at(row.end_ns),
        exposed_ns: row.exposed_ns / unit,
        ..row.clone()
    }
}

fn medians(rows: &[&BucketTimingRow], origin: i64) -> Vec<BucketTimingRow> {
    let mut by_bucket: BTreeMap<i32, Vec<&BucketTimingRow>> = BTreeMap::new();
    for row in rows {
        by_bucket.entry(row.bucket).or_default().push(row);
    }
    let of = |rows: &[&BucketTimingRow], f: fn(&BucketTimingRow) -> Option<i64>| {
        lower_median(rows.iter().filter_map(|r| f(r)))
    };
    by_bucket
        .into_iter()
        .map(|(bucket, rows)| BucketTimingRow {
            step: rows.first().map_or(0, |r| r.step),
            bucket,
            rank: -1,
            bytes: of(&rows, |r| r.bytes),
            ready_ns: of(&rows, |r| r.ready_ns),
            enqueue_ns: of(&rows, |r| r.enqueue_ns),
            start_ns: of(&rows, |r| Some(r.start_ns)).unwrap_or(origin),
            end_ns: of(&rows, |r| Some(r.end_ns)).unwrap_or(origin),
            wait_ns: of(&rows, |r| r.wait_ns),
            exposed_ns: of(&rows, |r| Some(r.exposed_ns)).unwrap_or(0),
            ..BucketTimingRow::default()
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tables(steps: i32, ranks: i32) -> Tables {
        let row = |step, rank| BucketTimingRow {
            step,
            rank,
            ready_ns: Some(1_000),
            enqueue_ns: Some(1_010),
            start_ns: 1_020 + i64::from(rank),
            end_ns: 1_100,
            wait_ns: Some(30),
            exposed_ns: 40,
            ..Default::default()
        };
        Tables {
            bucket_timing: (0..steps).flat_map(|s| (0..ranks).map(move |r| row(s, r))).collect(),
            ..Tables::default()
        }
    }

    fn times(row: &BucketTimingRow) -> (Option<i64>, Option<i64>, i64, Option<i64>, i64, i64) {
        (row.ready_ns, row.enqueue_ns, row.start_ns, row.wait_ns, row.end_ns, row.exposed_ns)
    }

    #[test]
    fn times_count_from_the_step() {
        let mut page = PageData::default();
        let (unit, found) = buckets(&tables(2, 3), &Limits::default(), &mut page);
        assert_eq!((unit, found[5].step, found[5].rank), (1, 1, 2));
        assert_eq!(times(&found[5]), (Some(0), Some(10), 22, Some(30), 100, 40));
        assert!(page.remarks.is_empty());
    }

    #[test]
    fn steps_beyond_the_limit_show_medians() {
        let mut page = PageData::default();
        let (_, found) = buckets(&tables(20, 3), &Limits { bucket_rows: 30, ..Limits::default() }, &mut page);
        let medians: Vec<_> = found.iter().filter(|r| r.rank == -1).collect();
        assert_eq!((medians.len(), found.len()), (10, 40));
        assert_eq!(times(medians[0]), (Some(0), Some(10), 21, Some(30), 100, 40));
        assert!(!page.remarks.is_empty());
    }
}
