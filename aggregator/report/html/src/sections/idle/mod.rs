//! Why devices are idle.

use std::collections::BTreeMap;

use trace::{IdleBreakdownRow, Row};

use crate::columns::{columns, five_digits};
use crate::section::{Chart, PageData, ReportInput, Section, script};
use model::Error;
use model::analysis::Tables;
use model::shown_ranks::ShownRanks;

pub(crate) static SECTION: Section = Section {
    id: "idle",
    title: "Idle gaps of devices",
    lead: "The share of the recorded time in which the busiest stream of each device had nothing to do, by cause (categories of HTA). \
           Host: the next row was launched too late. Kernel: gaps below 30 µs between rows that were launched in time. Other: mostly \
           waits for another stream.",
    proof: false,
    tables: &[IdleBreakdownRow::table],
    data,
    scripts: &[script!("idle.js")],
};

fn data(run: &ReportInput<'_>, page: &mut PageData) -> Result<Option<Chart>, Error> {
    let all = &run.tables().idle_breakdown;
    run.note_ranks(all, page);
    let (rows, shares) = idle(run.tables(), run.shown);
    let columns = page.columns(rows, columns!(IdleBreakdownRow: rank device_id stream_id category gaps idle_ns))?;
    page.add_columns(IdleBreakdownRow::table().name, columns.with("share_pct", shares));
    Ok(Some(Chart::unless(all.is_empty().then_some(if run.analysis().facts.has_device_rows {
        "No stream has a gap between two rows."
    } else {
        "No device row was recorded."
    }))))
}

/// The gaps of the busiest stream of each device: of the one with the most gaps, which is the one that computes. Also their
/// share of the recorded time, in percent.
fn idle<'a>(tables: &'a Tables, shown: &ShownRanks) -> (Vec<&'a IdleBreakdownRow>, Vec<Option<f64>>) {
    let mut gaps: BTreeMap<(i32, Option<i64>, Option<i64>), i64> = BTreeMap::new();
    for row in &tables.idle_breakdown {
        *gaps.entry((row.rank, row.device_id, row.stream_id)).or_default() += row.gaps;
    }
    let mut busiest: BTreeMap<(i32, Option<i64>), (i64, Option<i64>)> = BTreeMap::new();
    for ((rank, device, stream), gaps) in gaps {
        let most = busiest.entry((rank, device)).or_insert((gaps, stream));
        if gaps > most.0 {
            *most = (gaps, stream);
        }
    }
    let is_busiest = |row: &&IdleBreakdownRow| {
        busiest.get(&(row.rank, row.device_id)).is_some_and(|(_, stream)| *stream == row.stream_id)
    };
    let of_shown = tables.idle_breakdown.iter().filter(|row| shown.has(row.rank));
    let rows: Vec<&IdleBreakdownRow> = of_shown.filter(is_busiest).collect();
    let whole = tables.step_breakdown.iter().filter(|row| row.step.is_none() && row.wall_ns > 0);
    let recorded: BTreeMap<(i32, Option<i64>), i64> =
        whole.map(|row| ((row.rank, row.device_id), row.wall_ns)).collect();
    let share = |row: &&IdleBreakdownRow| {
        let wall_ns = recorded.get(&(row.rank, row.device_id))?;
        Some(five_digits(100.0 * row.idle_ns as f64 / *wall_ns as f64))
    };
    let shares = rows.iter().map(share).collect();
    (rows, shares)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn gaps_of_the_busiest_stream_are_shares_of_the_recording() {
        let gap = |stream, category: &str, gaps, idle_ns| IdleBreakdownRow {
            stream_id: Some(stream),
            category: category.into(),
            gaps,
            idle_ns,
            ..Default::default()
        };
        let whole = trace::StepBreakdownRow { wall_ns: 200, ..Default::default() };
        let tables = Tables {
            idle_breakdown: vec![gap(7, "host_wait", 2, 5), gap(7, "other", 2, 6), gap(9, "host_wait", 3, 90)],
            step_breakdown: vec![whole],
            ..Tables::default()
        };
        let (rows, shares) = idle(&tables, &ShownRanks::default());
        assert_eq!(rows.iter().map(|r| (r.stream_id, r.idle_ns)).collect::<Vec<_>>(), [(Some(7), 5), (Some(7), 6)]);
        assert_eq!(shares, [Some(2.5), Some(3.0)]);
    }
}
