//! The map: reduces one rank to a part that is small enough to hold for every rank of a large run.

use std::sync::Arc;

use trace::Tables;

use crate::breakdown::{Activity, Breakdown, Parts, breakdown, hta_temporal};
use crate::by_name::stats;
use crate::communication::{CommunicationEvidence, evidence};
use crate::critical::critical_path;
use crate::device::{View, device_tables};
use crate::graph::{Condensed, RankGraph};
use crate::idle::idle_breakdown;
use crate::lost_launches::LostLaunches;
use crate::memory::memory_tables;
use crate::modules::module_stats;
use crate::overhead::overhead_of_steps;
use crate::own_time::{self, OwnTime};
use crate::part::RankPart;
use crate::recurring::recurring_ranges;
use crate::select_steps::select_steps;
use crate::step_flops::step_flops;
use model::intervals::Interval;
use model::options::Options;
use model::scope::{Scope, narrow_to_time};
use model::steps::{active_numbers, mark_steps, one_step_if_none};
use model::windows::Windows;
use model::{Collective, RankData};
use trace::rank::Launches;

/// A map: [`map_rank`] or [`map_only_rank`].
pub type MapRank = fn(RankData, &Options, Option<Interval>) -> RankPart;

/// The map for ranks of an input with this many. The graph of an only rank would serve nothing.
pub fn map_of(ranks: usize) -> MapRank {
    if ranks > 1 { map_rank } else { map_only_rank }
}

/// Reduces a rank to its part. `time` is the selected span in the rank's clock.
pub fn map_rank(data: RankData, options: &Options, time: Option<Interval>) -> RankPart {
    map(data, options, time, true)
}

/// The same without the graph of the rank's work.
pub fn map_only_rank(data: RankData, options: &Options, time: Option<Interval>) -> RankPart {
    map(data, options, time, false)
}

fn map(mut data: RankData, options: &Options, time: Option<Interval>, keeps_graph: bool) -> RankPart {
    if let Some(marker) = &options.step_marker {
        mark_steps(&mut data, marker);
    }
    let (recurring, has_marked_steps) = (recurring_ranges(&data), !data.outline.steps.is_empty());
    let marked_steps = active_numbers(&data.outline.steps);
    one_step_if_none(&mut data);
    options.communication.decide(&mut data);
    let recorded_steps = if options.step_marker.is_some() { marked_steps } else { active_numbers(&data.outline.steps) };
    let scope = Scope::of(&data, options, time);
    narrow_to_time(&mut data.outline, &scope);
    data.measure_outline();
    let has_selected_time = scope.meets(data.outline.recorded_ns);
    let launches = Launches::collect(&data.events);
    // Halves of about equal length, divided again, keep all cores busy even for a single rank.
    let ((of_device, exposed_ns), (of_host, mut straggler, communication)) =
        rayon::join(|| of_devices(&data, options, &scope, &launches), || of_host(&data, options, &scope, &launches));
    if keeps_graph {
        straggler.graph = RankGraph::of(&data, &launches).map(|graph| Arc::new(Condensed::of(&graph)));
    }
    let overhead = overhead_of_steps(&data, &|row| scope.keeps_row(&data.events, row));
    let mut tables = Tables { omissions: data.omissions, ..Tables::default() };
    tables.append(of_device);
    tables.append(of_host);
    let mut outline = data.outline;
    for (collective, exposed_ns) in outline.collectives.iter_mut().zip(exposed_ns) {
        collective.set_exposed_ns(exposed_ns);
    }
    let mut part = RankPart {
        rows: data.events.len() as u64,
        outline,
        tables: Some(Box::new(tables)),
        overhead,
        communication,
        recurring,
        straggler: Some(Box::new(straggler)),
        recorded_steps,
        has_selected_time,
        has_marked_steps,
        buckets: data.buckets,
        devices: data.devices,
        counters: data.counters,
    };
    // A rank with a million allocations takes long to drop.
    rayon::join(|| drop(data.memory), || drop(data.events));
    // Steps are selected last, because the neighbouring steps bound the selected ones.
    select_steps(&mut part, &scope);
    part
}

/// The tables of device rows and of steps, and the time of each collective that nothing hides.
fn of_devices(data: &RankData, options: &Options, scope: &Scope, launches: &Launches) -> (Tables, Vec<Option<i64>>) {
    let keep = |row: usize| scope.keeps_row(&data.events, row);
    let (rank, windows) = (data.outline.info.rank, Windows::of(&data.outline.steps));
    let lost = LostLaunches::of(data, launches);
    let breakdown = breakdown(data, &lost, scope);
    let (parts, chosen) = (&*breakdown.parts, breakdown.chosen());
    let exposed_ns = data.outline.collectives.iter().map(|c| exposed_ns(c, parts)).collect();
    let sequences_of = options.sequences_of.as_ref();
    let view = View { data, keep: &keep, scope, launches, sequences_of, unknown: &lost.unknown, parts, chosen };
    let tables = Tables {
        idle_breakdown: idle_breakdown(data, launches, &keep),
        omissions: lost.omission(rank).into_iter().collect(),
        hta_temporal_breakdown: hta_temporal(rank, chosen, &windows).into_iter().collect(),
        ..device_tables(&view)
    };
    let step_flops = step_flops(data, &keep, &breakdown.rows);
    let Breakdown { rows, exposed, .. } = breakdown;
    (Tables { step_breakdown: rows, exposed_communication: exposed, step_flops, ..tables }, exposed_ns)
}

/// The tables of host rows and of memory, the rank's own time, and the evidence on what communicates.
fn of_host(
    data: &RankData,
    options: &Options,
    scope: &Scope,
    launches: &Launches,
) -> (Tables, OwnTime, CommunicationEvidence) {
    let keep = |row: usize| scope.keeps_row(&data.events, row);
    let keep_time = |ts_ns| scope.keeps_host_time(&data.outline.steps, ts_ns);
    let ((critical_path, by_name), (memory, (own_time, communication))) = rayon::join(
        || {
            let module_stats = || module_stats(data, launches, &keep);
            let by_name = || Tables { module_stats: module_stats(), ..stats(data, launches, &keep) };
            rayon::join(|| critical_path(data, launches, scope), by_name)
        },
        || {
            let own_time = || own_time::map_rank(data, &options.thresholds);
            let communication = || evidence(data, launches, &keep);
            rayon::join(|| memory_tables(data, &keep_time), || rayon::join(own_time, communication))
        },
    );
    let mut tables = Tables { critical_path, ..by_name };
    tables.append(memory);
    (tables, own_time, communication)
}

/// The time of a collective that is not hidden by compute on its device.
fn exposed_ns(collective: &Collective, parts: &[(Activity, Parts)]) -> Option<i64> {
    let window = Interval::new(collective.start_ns()?, collective.end_ns()?);
    // The parts are sorted by device.
    let own = collective.device_id.and_then(|id| parts.binary_search_by_key(&Some(id), |(a, _)| a.device).ok());
    let (_, parts) = parts.get(own.unwrap_or(0))?;
    Some(window.len_ns() - parts.compute.within_ns(window))
}
