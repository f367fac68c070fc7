//! Collectives: bandwidth by operation and size.

use std::collections::BTreeMap;

use serde::Serialize;
use trace::{InstanceRow, Row};

use crate::columns::{columns, five_digits};
use crate::page_limits::Limits;
use crate::section::{Chart, PageData, ReportInput, Section, script};
use crate::string_pool::StringPool;
use model::Error;
use model::stats::lower_median;
use model::units::plural;

pub(crate) static SECTION: Section = Section {
    id: "collectives",
    title: "Collectives",
    lead: "Bandwidth by operation and size. Algorithm bandwidth is bytes divided by the time from the last arrival to the end. Bus \
           bandwidth is algorithm bandwidth times the factor of the operation (nccl-tests). Bandwidth with waits divides by the \
           whole durations of the ranks.",
    proof: false,
    tables: &[],
    data,
    scripts: &[script!("collectives.js")],
};

fn data(run: &ReportInput<'_>, page: &mut PageData) -> Result<Option<Chart>, Error> {
    let rows = &run.tables().collective_instances;
    // The number of collectives by way of matching.
    let mut matched: BTreeMap<&str, usize> = BTreeMap::new();
    for row in rows {
        *matched.entry(&*row.r#match).or_default() += 1;
    }
    let groups = groups(rows, &mut page.names);
    page.value("collective_groups", &groups)?;
    page.value("matched", &matched)?;
    add_instances(run, page)?;
    let missing = if rows.is_empty() {
        Some("No collective was recorded.")
    } else if rows.iter().all(|r| r.bytes.is_none()) {
        Some("No collective has a size in bytes, so bandwidth is unknown. Durations and skew are below.")
    } else if rows.iter().all(|r| r.busbw_gbs.is_none() && r.busbw_incl_wait_gbs.is_none()) {
        Some(
            "Bandwidth is unknown: every collective lacks ranks, is one-sided, or is shorter than the clock error, or the clock \
             error is unknown.",
        )
    } else {
        None
    };
    let incomplete = rows.iter().filter(|row| !row.complete).count();
    if incomplete > 0 {
        let text = "incomplete: skew is a lower bound, transfer time and bandwidth are unknown";
        page.remark("missing", format!("{} {text}", plural(incomplete, "collective")));
    }
    Ok(Some(Chart::drawn_if(!rows.is_empty(), missing)))
}

/// Adds the collectives that are drawn, by time. The first arrival counts from the first arrival of all collectives.
pub(super) fn add_instances(run: &ReportInput<'_>, page: &mut PageData) -> Result<(), Error> {
    if page.has_table(&InstanceRow::table()) {
        return Ok(());
    }
    let rows = &run.tables().collective_instances;
    let shown = shown(rows, run.limits);
    if shown.len() < rows.len() {
        page.note(format!(
            "{} of {} are drawn: those with the largest skew, and a regular sample of the others. The table covers all.",
            shown.len(),
            plural(rows.len(), "collective")
        ));
    }
    let wanted = columns!(InstanceRow: op bytes step first_start_ns skew_ns error_ns transfer_ns algbw_gbs busbw_gbs
        busbw_incl_wait_gbs last_rank ranks_seen complete clocks_disagree);
    page.table(&shown, wanted)
}

/// The collectives of one operation and size: medians, and the 10th and 90th percentile of the bus bandwidth.
#[derive(Debug, Serialize)]
struct Group {
    op: usize,
    bytes: Option<i64>,
    count: usize,
    incomplete: usize,
    skew_ns: Option<i64>,
    transfer_ns: Option<i64>,
    algbw: Option<f64>,
    busbw: Option<f64>,
    busbw_p10: Option<f64>,
    busbw_p90: Option<f64>,
    busbw_wait: Option<f64>,
}

/// The collectives to draw, by time, which counts from the first arrival of all.
fn shown(rows: &[InstanceRow], limits: &Limits) -> Vec<InstanceRow> {
    let mut order: Vec<usize> = (0..rows.len()).collect();
    if rows.len() > limits.instances {
        let most = limits.instances / 5;
        order.sort_by_key(|i| (std::cmp::Reverse(rows[*i].skew_ns), *i));
        let mut kept: Vec<usize> = order.drain(..most).collect();
        order.sort_unstable();
        let rest = limits.instances - most;
        kept.extend((0..rest).map(|i| order[i * order.len() / rest]));
        order = kept;
    }
    let mut shown: Vec<&InstanceRow> = order.into_iter().map(|i| &rows[i]).collect();
    shown.sort_by_key(|r| (r.first_start_ns, r.instance));
    let origin = rows.iter().map(|r| r.first_start_ns).min().unwrap_or(0);
    let relative = |r: &InstanceRow| InstanceRow { first_start_ns: r.first_start_ns - origin, ..r.clone() };
    shown.into_iter().map(relative).collect()
}

fn groups(rows: &[InstanceRow], names: &mut StringPool) -> Vec<Group> {
    let mut by_kind: BTreeMap<(&str, Option<i64>), Vec<&InstanceRow>> = BTreeMap::new();
    for row in rows {
        by_kind.entry((&row.op, row.bytes)).or_default().push(row);
    }
    by_kind
        .into_iter()
        .map(|((op, bytes), rows)| {
            let rates = |f: fn(&InstanceRow) -> Option<f64>| {
                let mut rates: Vec<f64> = rows.iter().filter_map(|r| f(r)).collect();
                rates.sort_by(f64::total_cmp);
                rates
            };
            let busbw = rates(|r| r.busbw_gbs);
            Group {
                op: names.id(op),
                bytes,
                count: rows.len(),
                incomplete: rows.iter().filter(|r| !r.complete).count(),
                skew_ns: lower_median(rows.iter().filter(|r| r.ranks_seen > 1).map(|r| r.skew_ns)),
                transfer_ns: lower_median(rows.iter().filter_map(|r| r.transfer_ns)),
                algbw: at(&rates(|r| r.algbw_gbs), 50),
                busbw: at(&busbw, 50),
                busbw_p10: at(&busbw, 10),
                busbw_p90: at(&busbw, 90),
                busbw_wait: at(&rates(|r| r.busbw_incl_wait_gbs), 50),
            }
        })
        .collect()
}

/// A percentile of sorted values; the lower one of two middle values.
fn at(sorted: &[f64], pct: usize) -> Option<f64> {
    let last = sorted.len().checked_sub(1)?;
    sorted.get(last * pct / 100).copied().map(five_digits)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn instance(instance: i64, skew_ns: i64, busbw: Option<f64>) -> InstanceRow {
        InstanceRow {
            instance,
            op: "allreduce".into(),
            bytes: Some(1024),
            ranks_seen: 2,
            complete: busbw.is_some(),
            first_start_ns: 1_700_000_000_000_000_000 + instance,
            skew_ns,
            busbw_gbs: busbw,
            r#match: "seq".into(),
            ..Default::default()
        }
    }

    #[test]
    fn times_of_day_fit_in_a_double() {
        let rows = [instance(0, 5, None), instance(9, 7, None)];
        let found = shown(&rows, &Limits::default());
        assert_eq!(found.iter().map(|r| r.first_start_ns).collect::<Vec<_>>(), [0, 9]);
        assert_eq!(groups(&rows, &mut StringPool::default())[0].incomplete, 2);
    }

    #[test]
    fn the_largest_skews_are_always_drawn() {
        let rows: Vec<InstanceRow> = (0..1000).map(|i| instance(i, (i * 7919) % 1000, Some(1.0))).collect();
        let found = shown(&rows, &Limits { instances: 100, ..Limits::default() });
        assert_eq!(found.len(), 100);
        assert!((980..1000).all(|skew| found.iter().any(|r| r.skew_ns == skew)));
        assert!(found.is_sorted_by_key(|r| r.first_start_ns));
        assert_eq!(groups(&rows, &mut StringPool::default())[0].count, 1000);
    }
}
