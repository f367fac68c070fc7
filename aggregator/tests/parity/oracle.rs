//! Recomputes HTA's tables from raw traces in the simplest way. By HTA's own rules they must equal its files to the
//! last digit, by the definitions alone they must equal ours.

use std::collections::{BTreeMap, HashMap};

use crate::raw::{Event, Rank, Rules, Split};
use crate::table::{Table, describe, numbered, put_loose};

/// All ranks of a folder.
pub(crate) struct Folder {
    pub(crate) ranks: Vec<Rank>,
    several_steps: bool,
}

impl Folder {
    pub(crate) fn new(ranks: Vec<Rank>) -> Self {
        let names = ranks.iter().flat_map(|r| &r.events).map(|e| &e.name).filter(|n| n.starts_with("ProfilerStep"));
        let steps: std::collections::BTreeSet<&String> = names.collect();
        let several_steps = steps.len() > 1;
        Self { ranks, several_steps }
    }

    /// The table that HTA writes to the file of this name, computed by these rules.
    pub(crate) fn table(&self, file: &str, rules: Rules) -> Table {
        let mut table = Table::new();
        if file == "kernel_breakdown_full.0.csv" {
            kernel_types(self, rules, &mut table);
            return table;
        }
        let fill: fn(&Rank, &Split, Rules, &mut Table) = match file {
            "temporal_breakdown.csv" => temporal,
            "comm_comp_overlap.csv" => overlap,
            "kernel_breakdown_full.1.csv" => kernels,
            "idle_time.0.csv" => idle,
            "kernel_launch_stats.csv" => launches,
            "queue_length_summary.csv" => queues,
            "memory_bw_summary.csv" => bandwidths,
            "user_annotation_breakdown_cpu.csv" => host_annotations,
            "gpu_user_annotation_breakdown.csv" => device_annotations,
            other => panic!("unknown file: {other}"),
        };
        for rank in &self.ranks {
            fill(rank, &rank.split(rules, self.several_steps), rules, &mut table);
        }
        table
    }
}

/// Merges intervals that touch, as HTA's `merge_kernel_intervals` does.
fn merged<'a>(events: impl Iterator<Item = &'a Event>) -> Vec<(f64, f64)> {
    let mut all: Vec<(f64, f64)> = events.map(|e| (e.ts, e.end())).collect();
    all.sort_by(|a, b| a.0.total_cmp(&b.0));
    let mut merged: Vec<(f64, f64)> = Vec::new();
    let mut reached = f64::NEG_INFINITY;
    for (ts, end) in all {
        match merged.last_mut() {
            Some(last) if ts <= reached => last.1 = last.1.max(end),
            _ => merged.push((ts, end)),
        }
        reached = reached.max(end);
    }
    merged
}

fn total(intervals: &[(f64, f64)]) -> f64 {
    intervals.iter().map(|(ts, end)| end - ts).sum()
}

/// Time in each state. A state is the sum of the weights of the sets that contain a point.
fn states(sets: &[(Vec<(f64, f64)>, i64)]) -> BTreeMap<i64, f64> {
    let mut changes: Vec<(f64, i64)> = Vec::new();
    for (set, weight) in sets {
        changes.extend(set.iter().flat_map(|(ts, end)| [(*ts, *weight), (*end, -*weight)]));
    }
    changes.sort_by(|a, b| a.0.total_cmp(&b.0));
    let mut states = BTreeMap::new();
    let mut state = 0;
    for pair in changes.windows(2) {
        state += pair[0].1;
        *states.entry(state).or_default() += pair[1].0 - pair[0].0;
    }
    states
}

fn of_type<'a>(split: &'a Split, rules: Rules, work: &'static str) -> impl Iterator<Item = &'a Event> {
    split.gpu.iter().filter(move |e| e.work_type(rules) == work)
}

fn temporal(rank: &Rank, split: &Split, rules: Rules, table: &mut Table) {
    let busy = merged(split.gpu.iter());
    let kernel_time = busy[busy.len() - 1].1 - busy[0].0;
    let idle = kernel_time - total(&busy);
    let compute = total(&merged(of_type(split, rules, "COMPUTATION")));
    let non_compute = kernel_time - compute - idle;
    let row = rank.rank.to_string();
    let slack = rank.slack_us() * split.gpu.len() as f64;
    let share = |value: f64| 100.0 * value / kernel_time;
    for (name, value) in [("idle_time", idle), ("compute_time", compute), ("non_compute_time", non_compute)] {
        put_loose(table, &row, &format!("{name}(us)"), value, slack);
        put_loose(table, &row, &format!("{name}_pctg"), share(value), 100.0 * (slack + rank.slack_us()) / kernel_time);
    }
    put_loose(table, &row, "kernel_time(us)", kernel_time, rank.slack_us());
}

fn overlap(rank: &Rank, split: &Split, rules: Rules, table: &mut Table) {
    let comm = merged(of_type(split, rules, "COMMUNICATION"));
    let compute = merged(of_type(split, rules, "COMPUTATION"));
    let both = states(&[(comm.clone(), 1), (compute, 2)]).get(&3).copied().unwrap_or(0.0);
    let rows = of_type(split, rules, "COMMUNICATION").count() + of_type(split, rules, "COMPUTATION").count();
    // Error of a percentage of durations, each with the error of its rows.
    let slack = 100.0 * 2.0 * rank.slack_us() * rows as f64 / total(&comm).max(1.0);
    let share = 100.0 * both / total(&comm);
    put_loose(table, &rank.rank.to_string(), "comp_comm_overlap_pctg", share, slack);
}

fn kernel_types(folder: &Folder, rules: Rules, table: &mut Table) {
    const TYPES: [(&str, i64); 3] = [("COMPUTATION", 1), ("COMMUNICATION", 2), ("MEMORY", 4)];
    let mut sums: BTreeMap<String, f64> = BTreeMap::new();
    let mut slack = 0.0;
    for rank in &folder.ranks {
        let split = rank.split(rules, folder.several_steps);
        slack += rank.slack_us() * split.gpu.len() as f64;
        let sets = TYPES.map(|(work, weight)| (merged(of_type(&split, rules, work)), weight));
        for (state, time) in states(&sets).into_iter().filter(|(state, _)| *state > 0) {
            let words: Vec<&str> = TYPES.iter().filter(|(_, weight)| state & weight != 0).map(|(w, _)| *w).collect();
            *sums.entry(words.join(" overlapping ")).or_default() += time;
        }
    }
    let all: f64 = sums.values().sum();
    for (row, sum) in sums {
        put_loose(table, &row, "sum", sum, slack);
        put_loose(table, &row, "percentage", 100.0 * sum / all, 100.0 * 2.0 * slack / all);
    }
}

/// HTA's statistics of durations by name.
fn lengths<'a>(rank: &Rank, rows: impl Iterator<Item = (String, &'a Event)>, table: &mut Table) {
    let mut by_name: BTreeMap<String, Vec<f64>> = BTreeMap::new();
    for (row, event) in rows {
        by_name.entry(row).or_default().push(event.dur);
    }
    for (row, values) in by_name {
        let (n, slack) = (values.len() as f64, rank.slack_us());
        let sum: f64 = values.iter().sum();
        let std = if values.len() > 1 { describe(values.clone())[2].1 } else { 0.0 };
        put_loose(table, &row, "sum (us)", sum, slack * n);
        put_loose(table, &row, "max (us)", values.iter().copied().fold(f64::MIN, f64::max), slack);
        put_loose(table, &row, "min (us)", values.iter().copied().fold(f64::MAX, f64::min), slack);
        put_loose(table, &row, "mean (us)", sum / n, slack);
        // The standard deviation is a seminorm: it changes by at most the standard deviation of the errors, which lie
        // within `slack`.
        put_loose(table, &row, "stddev", std, slack / 2.0 * (n / (n - 1.0).max(1.0)).sqrt());
    }
}

fn kernels(rank: &Rank, split: &Split, rules: Rules, table: &mut Table) {
    let named = |e: &Event| format!("{} | {} | {}", rank.rank, e.work_type(rules), e.name);
    let rows = split.gpu.iter().filter(|e| e.work_type(rules) != "OTHER");
    lengths(rank, rows.map(|e| (named(e), e)), table);
}

fn annotations(rank: &Rank, split: &Split, category: &str, table: &mut Table) {
    let name = |e: &Event| if e.name.starts_with("ProfilerStep#") { "ProfilerStep*".into() } else { e.name.clone() };
    let rows = split.gpu.iter().chain(&split.cpu).filter(|e| e.category == category);
    lengths(rank, rows.map(|e| (format!("{} | {}", rank.rank, name(e)), e)), table);
}

fn host_annotations(rank: &Rank, split: &Split, _: Rules, table: &mut Table) {
    annotations(rank, split, "user_annotation", table);
}

fn device_annotations(rank: &Rank, split: &Split, _: Rules, table: &mut Table) {
    annotations(rank, split, "gpu_user_annotation", table);
}

/// The outermost call for each correlation id.
fn calls(split: &Split) -> HashMap<i64, &Event> {
    let mut calls: HashMap<i64, &Event> = HashMap::new();
    for event in split.cpu.iter().filter(|e| e.is_call() && e.correlation >= 0) {
        let call = calls.entry(event.correlation).or_insert(event);
        if event.ts < call.ts || event.ts == call.ts && event.dur > call.dur {
            *call = event;
        }
    }
    calls
}

fn idle(rank: &Rank, split: &Split, rules: Rules, table: &mut Table) {
    let calls = calls(split);
    let first_row = split.gpu.iter().chain(&split.cpu).find(|e| e.index == 0).map(|e| e.ts);
    let launched = |event: &Event| -> Option<f64> {
        let call = calls.get(&event.correlation).map(|call| call.ts);
        call.or(first_row.filter(|_| rules.first_row))
    };
    let mut streams: BTreeMap<i64, Vec<&Event>> = BTreeMap::new();
    // HTA also excludes synchronisations from the idle breakdown.
    for event in split.gpu.iter().filter(|e| e.is_work()) {
        streams.entry(event.stream).or_default().push(event);
    }
    for (stream, mut events) in streams {
        events.sort_by(|a, b| a.ts.total_cmp(&b.ts));
        let mut sums = [0.0; 3];
        // A gap near a limit may belong to either category, within the error of its times.
        let mut open = 0.0;
        let mut reached = events[0].end();
        for event in &events[1..] {
            let gap = event.ts - reached;
            let call = launched(event);
            let near = |a: f64, b: f64| rank.fractional && (a - b).abs() <= rank.slack_us();
            if near(gap, 30.0) || call.is_some_and(|ts| near(ts, reached)) {
                open += gap.abs() + rank.slack_us();
            }
            let category = match call {
                Some(ts) if ts > reached => 0,
                _ if gap < 30.0 => 1,
                _ => 2,
            };
            if rules.gaps || gap > 0.0 {
                sums[category] += gap;
            }
            reached = if rules.gaps { event.end() } else { reached.max(event.end()) };
        }
        let slack = rank.slack_us() * events.len() as f64 + open;
        let all: f64 = sums.iter().sum();
        for (category, sum) in ["host_wait", "kernel_wait", "other"].iter().zip(sums) {
            let row = format!("{} | {stream} | {category}", rank.rank);
            put_loose(table, &row, "idle_time", sum, slack);
            let (share, slack) = if all == 0.0 { (0.0, 0.0) } else { (sum / all, 2.0 * slack / all.abs()) };
            put_loose(table, &row, "idle_time_ratio", share, slack);
        }
    }
}

const STATS_NAMES: [&str; 4] = ["cudaLaunchKernel", "cudaLaunchKernelExC", "cudaMemcpyAsync", "cudaMemsetAsync"];
const QUEUE_NAMES: [&str; 6] = [
    "cudaLaunchKernel",
    "cudaLaunchKernelExC",
    "cuLaunchKernel",
    "cuLaunchKernelEx",
    "cudaMemcpyAsync",
    "cudaMemsetAsync",
];

/// Pairs of a launch and its work: by HTA's names, or any row that launched something.
fn joined<'a>(split: &'a Split, rules: Rules, names: &[&str], every_host_row: bool) -> Vec<(&'a Event, &'a Event)> {
    let mut work: HashMap<i64, Vec<&Event>> = HashMap::new();
    for event in split.gpu.iter().filter(|e| e.correlation >= 0) {
        work.entry(event.correlation).or_default().push(event);
    }
    let none = Vec::new();
    if !rules.names {
        let calls = calls(split);
        let launch = |e: &'a Event| Some((*calls.get(&e.correlation)?, e));
        return split.gpu.iter().filter_map(launch).collect();
    }
    let launched: std::collections::HashSet<i64> =
        split.cpu.iter().filter(|e| names.contains(&e.name.as_str())).map(|e| e.correlation).collect();
    let is_launch = |e: &&Event| {
        if every_host_row { launched.contains(&e.correlation) } else { names.contains(&e.name.as_str()) }
    };
    let launches = split.cpu.iter().filter(is_launch);
    launches.flat_map(|call| work.get(&call.correlation).unwrap_or(&none).iter().map(move |e| (call, *e))).collect()
}

fn launches(rank: &Rank, split: &Split, rules: Rules, table: &mut Table) {
    let mut seen = BTreeMap::new();
    let slack = rank.slack_us();
    for (call, event) in joined(split, rules, &STATS_NAMES, true) {
        let row = numbered(&format!("{} | {}", rank.rank, event.correlation), &mut seen);
        put_loose(table, &row, "cpu_duration", call.dur, slack);
        put_loose(table, &row, "gpu_duration", event.dur, slack);
        put_loose(table, &row, "launch_delay", (event.ts - call.end()).max(0.0), slack);
    }
}

/// The queue length after each change. `launches_first` orders simultaneous changes.
fn queue_lengths(changes: &[(f64, i64)], launches_first: bool) -> Vec<f64> {
    let mut changes = changes.to_vec();
    let tie = |delta: i64| if launches_first { -delta } else { delta };
    changes.sort_by(|a, b| a.0.total_cmp(&b.0).then(tie(a.1).cmp(&tie(b.1))));
    let mut length = 0;
    changes
        .iter()
        .map(|(_, delta)| {
            length += delta;
            length as f64
        })
        .collect()
}

fn queues(rank: &Rank, split: &Split, rules: Rules, table: &mut Table) {
    let mut streams: BTreeMap<i64, Vec<(f64, i64)>> = BTreeMap::new();
    for (call, event) in joined(split, rules, &QUEUE_NAMES, false) {
        let changes = streams.entry(event.stream).or_default();
        changes.push((call.ts, 1));
        changes.push((if rules.series { event.ts } else { event.ts.max(call.ts) }, -1));
    }
    for (stream, changes) in streams {
        let lengths = queue_lengths(&changes, true);
        // HTA's sorting does not determine the order of changes within one µs. The lengths lie between the two
        // extremes.
        let whole: Vec<(f64, i64)> = changes.iter().map(|(t, delta)| (t.ceil(), *delta)).collect();
        let (most, least) = (queue_lengths(&whole, true), queue_lengths(&whole, false));
        let open: Vec<f64> = most.iter().zip(&least).map(|(a, b)| a - b).collect();
        let n = lengths.len() as f64;
        let widest = open.iter().copied().fold(0.0, f64::max);
        let squares: f64 = open.iter().map(|d| d * d).sum();
        for (column, value) in describe(lengths) {
            let slack = match column {
                "count" => 0.0,
                "mean" => open.iter().sum::<f64>() / n,
                "std" => (squares / (n - 1.0).max(1.0)).sqrt(),
                _ => widest,
            };
            put_loose(table, &format!("{} | {stream}", rank.rank), column, value, slack);
        }
    }
}

/// The sum of bandwidths after each change, where it is not 0. `starts_first` orders simultaneous changes.
fn bandwidth_sums(events: &[&Event], starts_first: bool, running: bool) -> Vec<f64> {
    let mut changes: Vec<(f64, bool, f64)> = Vec::new();
    for e in events {
        let dur = if e.dur == 0.0 { 1.0 } else { e.dur };
        changes.push((e.ts, true, e.bandwidth));
        changes.push((e.ts + dur, false, e.bandwidth));
    }
    changes.sort_by(|a, b| a.0.total_cmp(&b.0).then((a.1 != starts_first).cmp(&(b.1 != starts_first))));
    let (mut sum, mut under_way) = (0.0, 0);
    let mut points = Vec::new();
    for (_, begins, bandwidth) in changes {
        sum += if begins { bandwidth } else { -bandwidth };
        under_way += if begins { 1 } else { -1 };
        if !running && under_way == 0 {
            sum = 0.0;
        }
        if sum > 0.0 {
            points.push(sum);
        }
    }
    points
}

fn bandwidths(rank: &Rank, split: &Split, rules: Rules, table: &mut Table) {
    let mut kinds: BTreeMap<String, Vec<&Event>> = BTreeMap::new();
    for event in of_type(split, rules, "MEMORY") {
        let kind = event.name.split(" (").next().unwrap().to_string();
        kinds.entry(kind).or_default().push(event);
    }
    for (kind, events) in kinds {
        let points = bandwidth_sums(&events, rules.series, rules.series);
        if points.is_empty() {
            continue;
        }
        // HTA's sorting does not determine the order of simultaneous changes. Its numbers lie between those of the
        // extremes.
        let other = describe(bandwidth_sums(&events, false, rules.series));
        for ((column, value), (_, other)) in describe(points).into_iter().zip(other) {
            let open = if rules.series && value.is_finite() { (value - other).abs() } else { 0.0 };
            put_loose(table, &format!("{} | {kind}", rank.rank), column, value, open);
        }
    }
}
