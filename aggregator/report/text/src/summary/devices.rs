//! The section on devices: utilization, launches, and waits of the host.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};

use trace::GpuUtilizationRow;

use crate::grid::Grid;
use crate::summary::style::{TerminalStyle, choose, heading, not_shown, sentence};
use model::analysis::{Analysis, Tables};
use model::peaks::Peaks;
use model::stats::median_of_sorted;

/// Prints the utilization of devices by rank; nothing without devices.
pub(super) fn devices(text: &mut String, analysis: &Analysis, terminal: &TerminalStyle) {
    let tables = &analysis.tables;
    let totals = tables.gpu_utilization.iter().filter(|r| r.step.is_none());
    let by_device: BTreeMap<(i32, i64), &GpuUtilizationRow> = totals.map(|r| ((r.rank, r.device_id), r)).collect();
    if by_device.is_empty() {
        return;
    }
    heading(
        text,
        "Devices",
        "a device that runs kernels for a small share of the time waits for its host or for other ranks; over active steps, short \
         kernels and launch delay (median) over the whole recording",
        terminal,
    );
    let least = |key: &(i32, i64)| by_device.get(key).map_or(0, |r| (r.utilization_pct * 1e6) as i64);
    let shown = choose(by_device.keys().copied().collect(), terminal.rows(), |key| (least(key), Reverse(key.0)));
    let rows: Vec<_> = shown.iter().filter_map(|key| Some((*key, *by_device.get(key)?))).collect();
    let launches = |key: &(i32, i64)| {
        let own = |r: &&trace::LaunchStatsRow| r.rank == key.0 && r.device_id == Some(key.1) && r.name.is_none();
        tables.launch_stats.iter().find(own)
    };
    let stalls = |rank: i32| tables.sync_stalls.iter().filter(|r| r.rank == rank).map(|r| r.in_steps_ns).sum::<i64>();
    let short = |key: &(i32, i64)| launches(key).map(|r| 100.0 * r.short_kernels as f64 / r.launches.max(1) as f64);
    let grid = Grid::new()
        .number("rank", 0, rows.iter().map(|(key, _)| key.0.to_string()).collect())
        .number("device", 3, rows.iter().map(|(key, _)| key.1.to_string()).collect())
        .percent("kernels run", 0, rows.iter().map(|(_, r)| Some(r.utilization_pct)).collect())
        .percent("SM efficiency", 0, rows.iter().map(|(_, r)| r.sm_efficiency_pct).collect())
        .percent("occupancy", 1, rows.iter().map(|(_, r)| r.occupancy_pct).collect())
        .percent("short kernels", 1, rows.iter().map(|(key, _)| short(key)).collect())
        .time("launch delay", 2, rows.iter().map(|(key, _)| launches(key)?.delay_p50_ns).collect())
        .time("host waits", 2, rows.iter().map(|(key, _)| Some(stalls(key.0))).collect());
    let mfu: Vec<Option<f64>> = rows.iter().map(|(key, _)| median_mfu(tables, key.0)).collect();
    let knows_mfu = mfu.iter().any(Option::is_some);
    let grid = if knows_mfu { grid.percent("MFU", 1, mfu) } else { grid };
    text.push_str(&grid.render(terminal.width, terminal.colour));
    not_shown(text, by_device.len() - rows.len(), "device", terminal);
    if !tables.step_flops.is_empty() {
        match &without_peaks(analysis)[..] {
            [] if knows_mfu => {}
            [] => sentence(
                text,
                "MFU is unknown: the peak rate of the devices or the FLOPs of some operators are unknown",
                terminal,
            ),
            names => sentence(
                text,
                &format!("MFU is unknown on {}: its peak rates are not known", names.join(", ")),
                terminal,
            ),
        }
    }
}

/// The models of devices whose peak rates are unknown.
fn without_peaks(analysis: &Analysis) -> Vec<&str> {
    let names = analysis.facts.identities.iter().filter_map(|identity| identity.device_name.as_deref());
    let unknown: BTreeSet<&str> = names.filter(|name| Peaks::of(name).is_none()).collect();
    unknown.into_iter().collect()
}

/// The median MFU of a rank's steps.
fn median_mfu(tables: &Tables, rank: i32) -> Option<f64> {
    let mut mfu: Vec<f64> = tables.step_flops.iter().filter(|r| r.rank == rank).filter_map(|r| r.mfu_pct).collect();
    mfu.sort_by(f64::total_cmp);
    median_of_sorted(&mfu)
}
