//! How a rank's communication was recognised, and which of its other kernels may communicate too.
//!
//! A kernel may communicate if nothing is known of it, its stream is not one of computation, and it runs while others
//! compute:
//!
//! ```text
//!  stream 7   [gemm][gemm][ norm ][gemm]     computation
//!  stream 27  [ exchange       ]..[ cast ]   exchange: unknown, and most of its time lies under that of stream 7
//! ```

use std::collections::BTreeMap;

use rustc_hash::{FxHashMap, FxHashSet};
use trace::Text;
use trace::name_rules::is_known_compute;
use trace::rank::{BelowOperators, Launches};

use model::intervals::{Coverage, Interval, IntervalSet};
use model::{Kind, RankData};

/// Share of a device's time from its first to its last row, in percent, from which a kernel is worth a suspicion.
pub const SUSPECT_TIME_PCT: f64 = 1.0;
/// Share of a suspect's time during which other streams compute, in percent.
pub const SUSPECT_OVERLAP_PCT: f64 = 50.0;
/// Known computation may take at most this share of the time of a suspect's stream.
const KNOWN_COMPUTE_SHARE: f64 = 0.5;

/// How the communication of a rank was recognised. Times are sums over kernels.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct CommunicationEvidence {
    /// Time of all kernels that communicate.
    pub total_ns: i64,
    /// Time of those that only their names tell, by name: no collective refers to them, and no communicating operator
    /// launched them.
    pub by_name_ns: BTreeMap<Text, i64>,
    /// Kernels that may communicate, by name.
    pub suspects: BTreeMap<Text, Suspect>,
}

/// A kernel that may communicate.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Suspect {
    /// Its time.
    pub total_ns: i64,
    /// The part of it during which other streams compute.
    pub overlap_ns: i64,
    /// Time from the first to the last row of its device.
    pub device_ns: i64,
}

/// Examines the kernels that pass `keep`.
pub(crate) fn evidence(data: &RankData, launches: &Launches, keep: &dyn Fn(usize) -> bool) -> CommunicationEvidence {
    let events = &data.events;
    let kernels = || (0..events.len()).filter(|row| events.kind[*row] == Kind::Kernel && keep(*row));
    let mut found = CommunicationEvidence { suspects: suspects(data, kernels()), ..Default::default() };
    if !kernels().any(|row| events.is_comm[row]) {
        return found;
    }
    let told: FxHashSet<i64> = data.outline.collectives.iter().filter_map(|c| c.event_id()).collect();
    let below = BelowOperators::find(events, &data.names);
    let launched = |row| below.as_ref().is_some_and(|below| below.launched(events, launches, row));
    let mut by_name: FxHashMap<u32, i64> = FxHashMap::default();
    for row in kernels().filter(|row| events.is_comm[*row]) {
        found.total_ns = found.total_ns.saturating_add(events.dur_ns[row]);
        if !told.contains(&events.id[row]) && !launched(row) {
            let sum = by_name.entry(events.name[row]).or_default();
            *sum = sum.saturating_add(events.dur_ns[row]);
        }
    }
    found.by_name_ns = by_name.into_iter().map(|(name, ns)| (data.names[name as usize].clone(), ns)).collect();
    found
}

/// Sums of a stream.
#[derive(Default)]
struct Stream {
    /// Time of known computation.
    known_ns: i64,
    /// Time of all kernels that do not communicate.
    all_ns: i64,
    /// Time of the unknown kernels by name.
    unknown_ns: FxHashMap<u32, i64>,
}

fn suspects(data: &RankData, kernels: impl Iterator<Item = usize> + Clone) -> BTreeMap<Text, Suspect> {
    let events = &data.events;
    let place = |row: usize| (events.device[row], events.stream[row]);
    let others = || kernels.clone().filter(|row| !events.is_comm[*row]);
    // Most names are not of kernels.
    let mut known: FxHashMap<u32, bool> = FxHashMap::default();
    let mut streams: BTreeMap<(i64, i64), Stream> = BTreeMap::new();
    let mut hulls: BTreeMap<i64, Interval> = BTreeMap::new();
    for row in kernels.clone() {
        let span = Interval::new(events.ts_ns[row], events.end_ns(row));
        hulls.entry(events.device[row]).and_modify(|hull| *hull = hull.hull(span)).or_insert(span);
    }
    for row in others() {
        let (name, dur_ns) = (events.name[row], events.dur_ns[row]);
        let stream = streams.entry(place(row)).or_default();
        stream.all_ns = stream.all_ns.saturating_add(dur_ns);
        let computes = *known.entry(name).or_insert_with(|| is_known_compute(&data.names[name as usize]));
        let sum = if computes { &mut stream.known_ns } else { stream.unknown_ns.entry(name).or_default() };
        *sum = sum.saturating_add(dur_ns);
    }
    let candidates = candidates(&streams, &hulls);
    if candidates.is_empty() {
        return BTreeMap::new();
    }
    let interval = |row: usize| Interval::new(events.ts_ns[row], events.end_ns(row));
    let concurrent = concurrent(others().map(|row| (place(row), interval(row))));
    let mut overlaps_ns: BTreeMap<((i64, i64), u32), i64> = BTreeMap::new();
    for row in others().filter(|row| candidates.contains_key(&(place(*row), events.name[*row]))) {
        // While a kernel runs, its stream is one of those that run at the same time.
        let ns = concurrent.get(&events.device[row]).map_or(0, |time| time.within_ns(interval(row)));
        let sum = overlaps_ns.entry((place(row), events.name[row])).or_default();
        *sum = sum.saturating_add(ns);
    }
    let mut found: BTreeMap<Text, Suspect> = BTreeMap::new();
    for ((place, name), overlap_ns) in overlaps_ns {
        let total_ns = streams.get(&place).and_then(|sums| sums.unknown_ns.get(&name)).copied().unwrap_or(0);
        if overlap_ns as f64 >= SUSPECT_OVERLAP_PCT / 100.0 * total_ns as f64 {
            let device_ns = candidates.get(&(place, name)).copied().unwrap_or(0);
            let suspect = found.entry(data.names[name as usize].clone()).or_default();
            suspect.total_ns = suspect.total_ns.saturating_add(total_ns);
            suspect.overlap_ns = suspect.overlap_ns.saturating_add(overlap_ns);
            suspect.device_ns = suspect.device_ns.saturating_add(device_ns);
        }
    }
    found
}

/// The unknown kernels that take long on streams that do not compute beside others, by stream and name, with the time of
/// their device.
fn candidates(
    streams: &BTreeMap<(i64, i64), Stream>,
    hulls: &BTreeMap<i64, Interval>,
) -> FxHashMap<((i64, i64), u32), i64> {
    let mut streams_of: BTreeMap<i64, usize> = BTreeMap::new();
    streams.keys().for_each(|(device, _)| *streams_of.entry(*device).or_default() += 1);
    let mut candidates: FxHashMap<((i64, i64), u32), i64> = FxHashMap::default();
    for (place, sums) in streams {
        let device_ns = hulls.get(&place.0).map_or(0, |hull| hull.len_ns());
        let alone = streams_of.get(&place.0) == Some(&1);
        if alone || sums.known_ns as f64 > KNOWN_COMPUTE_SHARE * sums.all_ns as f64 {
            continue;
        }
        let long = |ns: i64| ns as f64 >= SUSPECT_TIME_PCT / 100.0 * device_ns as f64 && ns > 0;
        let long = sums.unknown_ns.iter().filter(|(_, ns)| long(**ns));
        candidates.extend(long.map(|(name, _)| ((*place, *name), device_ns)));
    }
    candidates
}

/// For each device, the time in which two or more of its streams run. `rows` have device and stream, and are sorted by
/// start.
fn concurrent(rows: impl Iterator<Item = ((i64, i64), Interval)>) -> BTreeMap<i64, Coverage> {
    let mut streams: BTreeMap<(i64, i64), IntervalSet> = BTreeMap::new();
    rows.for_each(|(place, row)| streams.entry(place).or_default().push(row));
    let mut devices: BTreeMap<i64, Vec<Interval>> = BTreeMap::new();
    for ((device, _), set) in streams {
        devices.entry(device).or_default().extend(set.intervals());
    }
    let of_device = |mut intervals: Vec<Interval>| {
        intervals.sort_unstable();
        let mut covered_until_ns = i64::MIN;
        let twice = intervals.into_iter().map(|interval| {
            let again = Interval::new(interval.start_ns, interval.end_ns.min(covered_until_ns));
            covered_until_ns = covered_until_ns.max(interval.end_ns);
            again
        });
        Coverage::new(twice.collect())
    };
    devices.into_iter().map(|(device, intervals)| (device, of_device(intervals))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use drawn::Drawn;

    fn of(data: &RankData) -> CommunicationEvidence {
        evidence(data, &Launches::collect(&data.events), &|_| true)
    }

    #[test]
    fn a_kernel_below_an_operator_is_not_known_by_name_alone() {
        let mut data = Drawn::rank(0)
            .host(Kind::CpuOp, "symm_mem::multimem_all_reduce_", 1, "####........")
            .launches(1, ".#...#......")
            .device(Kind::Kernel, "multimem_all_reduce_kernel", (0, 7), 1, "...###.##...")
            .device(Kind::Kernel, "void deep_ep::intranode::combine<2>()", (0, 9), 8, ".........##.")
            .device(Kind::Kernel, "sgemm", (0, 7), 50, "#...........")
            .data();
        let found = of(&data);
        assert_eq!(found.total_ns, 7);
        // The second call of the first kernel was not launched in the operator.
        let by_name: Vec<(&str, i64)> = found.by_name_ns.iter().map(|(name, ns)| (&**name, *ns)).collect();
        assert_eq!(by_name, [("multimem_all_reduce_kernel", 2), ("void deep_ep::intranode::combine<2>()", 2)]);
        data.events.is_comm.fill(false);
        assert_eq!(of(&data).by_name_ns.len(), 0);
    }

    /// The suspects of a rank whose stream 7 computes, and whose stream 27 runs `name` as drawn.
    fn suspected(name: &str, compute: &str, line: &str, also: &str) -> Vec<(i64, i64, i64)> {
        let data = Drawn::rank(0)
            .device(Kind::Kernel, "sgemm", (0, 7), 1, compute)
            .device(Kind::Kernel, name, (0, 27), 50, line)
            .device(Kind::Kernel, "per_token_cast", (0, 27), 80, also)
            .data();
        of(&data).suspects.values().map(|s| (s.total_ns, s.overlap_ns, s.device_ns)).collect()
    }

    #[test]
    fn an_unknown_kernel_that_runs_under_compute_of_other_streams_is_suspected() {
        let compute = "##########..........";
        let none = "....................";
        assert_eq!(suspected("exchange", compute, "..######............", none), [(6, 6, 10)]);
        // Half of its time is enough, less is not.
        assert_eq!(suspected("exchange", compute, "........####........", none), [(4, 2, 12)]);
        assert_eq!(suspected("exchange", compute, "........#####.......", none), []);
        // Known computation, communication, and kernels of a stream that computes are not suspected.
        assert_eq!(suspected("my_gemm", compute, "..######............", none), []);
        assert_eq!(suspected("ncclKernel", compute, "..######............", none), []);
        assert_eq!(suspected("exchange", compute, "..####..............", "..........####......"), [(4, 4, 14)]);
        assert_eq!(suspected("exchange", compute, "..####..............", "..........#####....."), []);
        // One stream alone overlaps nothing.
        assert_eq!(suspected("exchange", none, "..######............", none), []);
    }

    #[test]
    fn short_kernels_are_not_suspected() {
        let compute = "#".repeat(200);
        let none = ".".repeat(200);
        let line = |length: usize| format!("{}{}", "#".repeat(length), ".".repeat(200 - length));
        assert_eq!(suspected("exchange", &compute, &line(2), &none), [(2, 2, 200)]);
        assert_eq!(suspected("exchange", &compute, &line(1), &none), []);
    }
}
