//! Collectives: bandwidth by operation and size, and arrival skew.

use std::collections::BTreeMap;

use serde::Serialize;
use trace::InstanceRow;

use crate::columns::five_digits;
use crate::page_limits::{Limits, Shortenings};
use crate::string_pool::StringPool;
use model::analysis::Tables;
use model::stats::lower_median;
use model::units::plural;

/// Medians by operation and size over all collectives, and the collectives to draw.
#[derive(Debug, Default)]
pub(super) struct Collectives {
    pub(super) groups: Vec<Group>,
    /// By time. The first arrival counts from the first arrival of all collectives.
    pub(super) shown: Vec<InstanceRow>,
    /// Number of matches for each way of matching.
    pub(super) matched: BTreeMap<String, usize>,
}

/// The collectives of one operation and size: medians, and the 10th and 90th percentile of the bus bandwidth.
#[derive(Debug, Serialize)]
pub(super) struct Group {
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

/// Summarizes the collectives for the page.
pub(super) fn collectives(
    tables: &Tables,
    names: &mut StringPool,
    limits: &Limits,
    notes: &mut Shortenings,
) -> Collectives {
    let rows = &tables.collective_instances;
    let mut matched = BTreeMap::new();
    for row in rows {
        *matched.entry(row.r#match.to_string()).or_default() += 1;
    }
    let shown = shown(rows, limits);
    if shown.len() < rows.len() {
        notes.add(
            "collectives",
            format!(
                "{} of {} are drawn: those with the largest skew, and a regular sample of the others. The table covers all.",
                shown.len(),
                plural(rows.len(), "collective")
            ),
        );
    }
    let origin = rows.iter().map(|r| r.first_start_ns).min().unwrap_or(0);
    let relative = |r: &InstanceRow| InstanceRow { first_start_ns: r.first_start_ns - origin, ..r.clone() };
    Collectives { groups: groups(rows, names), shown: shown.into_iter().map(relative).collect(), matched }
}

/// The collectives to draw, by time.
fn shown<'a>(rows: &'a [InstanceRow], limits: &Limits) -> Vec<&'a InstanceRow> {
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
    shown
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
        let tables =
            Tables { collective_instances: vec![instance(0, 5, None), instance(9, 7, None)], ..Tables::default() };
        let found = collectives(&tables, &mut StringPool::default(), &Limits::default(), &mut Shortenings::default());
        assert_eq!(found.shown.iter().map(|r| r.first_start_ns).collect::<Vec<_>>(), [0, 9]);
        assert_eq!((found.groups[0].incomplete, found.matched["seq"]), (2, 2));
    }

    #[test]
    fn the_largest_skews_are_always_drawn() {
        let rows: Vec<InstanceRow> = (0..1000).map(|i| instance(i, (i * 7919) % 1000, Some(1.0))).collect();
        let tables = Tables { collective_instances: rows, ..Tables::default() };
        let mut notes = Shortenings::default();
        let limits = Limits { instances: 100, ..Limits::default() };
        let found = collectives(&tables, &mut StringPool::default(), &limits, &mut notes);
        assert_eq!(found.shown.len(), 100);
        assert!((980..1000).all(|skew| found.shown.iter().any(|r| r.skew_ns == skew)));
        assert!(found.shown.is_sorted_by_key(|r| r.first_start_ns) && !notes.is_empty());
        assert_eq!(found.groups[0].count, 1000);
    }
}
