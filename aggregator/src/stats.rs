//! Statistics by name: operators and ranges of the host, annotations, kernels.
//!
//! Self time is a row's length less that of the rows directly inside it on the same thread:
//!
//! ```text
//!  forward   |------------------|
//!  gemm          |----|  |--|
//!  self      ffffggggggfffgggfff      forward: 20 − 6 − 4
//! ```

use rustc_hash::FxHashMap;
use trace::{AnnotationStatsRow, KernelStatsRow, OpStatsRow, Text};

use crate::device::work_type;
use crate::model::{Events, Kind, NO_PARENT, NONE, RankData};

/// The statistics of one rank.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Stats {
    pub(crate) ops: Vec<OpStatsRow>,
    pub(crate) annotations: Vec<AnnotationStatsRow>,
    pub(crate) kernels: Vec<KernelStatsRow>,
}

/// Sums over the rows of one name.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
struct Tally {
    calls: i64,
    total_ns: i64,
    self_ns: i64,
    min_ns: i64,
    max_ns: i64,
    /// The first length: sums of squares are taken around it, so that long and nearly equal rows lose no digits.
    pivot_ns: i64,
    sum: f64,
    sum_of_squares: f64,
    bytes: Option<i64>,
    flops: Option<i64>,
    /// What kind of device work; host rows are none.
    work: &'static str,
}

impl Tally {
    fn add(&mut self, dur_ns: i64, self_ns: i64, bytes: i64, flops: i64) {
        if self.calls == 0 {
            (self.pivot_ns, self.min_ns, self.max_ns) = (dur_ns, dur_ns, dur_ns);
        }
        self.calls += 1;
        self.total_ns = self.total_ns.saturating_add(dur_ns);
        self.self_ns = self.self_ns.saturating_add(self_ns);
        self.min_ns = self.min_ns.min(dur_ns);
        self.max_ns = self.max_ns.max(dur_ns);
        let distance = dur_ns.wrapping_sub(self.pivot_ns) as f64;
        self.sum += distance;
        self.sum_of_squares += distance * distance;
        if bytes != NONE {
            self.bytes = Some(self.bytes.unwrap_or(0).saturating_add(bytes));
        }
        if flops != NONE {
            self.flops = Some(self.flops.unwrap_or(0).saturating_add(flops));
        }
    }

    fn mean_ns(&self) -> f64 {
        self.total_ns as f64 / self.calls as f64
    }

    /// Of the sample, as pandas and so HTA have it; 0 for a single call.
    fn std_ns(&self) -> f64 {
        if self.calls < 2 {
            return 0.0;
        }
        let n = self.calls as f64;
        ((self.sum_of_squares - self.sum * self.sum / n) / (n - 1.0)).max(0.0).sqrt()
    }
}

/// Tallies by name for one device, or the host.
#[derive(Debug)]
struct ByName {
    device: i64,
    tallies: Vec<Tally>,
}

/// Devices with a dense column, at most; they are found one after the other.
const MAX_DENSE: usize = 32;
/// Cells of all dense columns but the first, at most: their memory has a bound whatever a trace names.
const MAX_DENSE_CELLS: usize = 1 << 20;

/// The tallies of one of the tables: a dense column by name for each device, so that a row costs an index and no
/// hashing. Beyond some tens of devices only the names that a device really runs have a place.
#[derive(Debug, Default)]
struct Tallies {
    dense: Vec<ByName>,
    sparse: FxHashMap<(i64, usize), Tally>,
}

impl Tallies {
    fn of(&mut self, device: i64, name: usize, names: usize) -> &mut Tally {
        let found = self.dense.iter().position(|d| d.device == device);
        let at = match found {
            Some(at) => at,
            None if self.has_room(names) => {
                self.dense.push(ByName { device, tallies: vec![Tally::default(); names] });
                self.dense.len() - 1
            }
            None => return self.sparse.entry((device, name)).or_default(),
        };
        &mut self.dense[at].tallies[name]
    }

    /// For one more dense column.
    fn has_room(&self, names: usize) -> bool {
        let columns = self.dense.len();
        columns == 0 || columns < MAX_DENSE && columns.saturating_mul(names) <= MAX_DENSE_CELLS
    }

    /// Device, name and tally of all that were called: by device, then the longest total first.
    fn sorted(self, names: &[Text]) -> Vec<(Option<i64>, Text, Tally)> {
        let mut rows: Vec<(i64, Text, Tally)> = Vec::new();
        for ByName { device, tallies } in self.dense {
            let called = tallies.into_iter().enumerate().filter(|(_, t)| t.calls > 0);
            rows.extend(called.map(|(name, tally)| (device, names[name].clone(), tally)));
        }
        rows.extend(self.sparse.into_iter().map(|((device, name), tally)| (device, names[name].clone(), tally)));
        rows.sort_by(|(d, a, x), (e, b, y)| (d, y.total_ns).cmp(&(e, x.total_ns)).then_with(|| a.cmp(b)));
        rows.into_iter().map(|(device, name, tally)| (Some(device).filter(|d| *d != NONE), name, tally)).collect()
    }
}

/// The statistics of the rows that `keep`.
pub(crate) fn stats(data: &RankData, keep: &dyn Fn(usize) -> bool) -> Stats {
    let (names, folded) = fold_step_numbers(&data.names);
    let events = &data.events;
    let inside = inside_ns(events);
    let (mut ops, mut annotations, mut kernels) = (Tallies::default(), Tallies::default(), Tallies::default());
    for row in 0..events.len() {
        let kind = events.kind[row];
        let (host, device) = (NONE, events.device[row]);
        let name = folded[events.name[row] as usize] as usize;
        let dur_ns = events.dur_ns[row];
        let self_ns = (dur_ns - inside[row]).max(0);
        let add = |to: &mut Tallies, device: i64| {
            to.of(device, name, names.len()).add(dur_ns, self_ns, events.bytes[row], events.flops[row]);
        };
        match kind {
            _ if !keep(row) => {}
            Kind::CpuOp => add(&mut ops, host),
            Kind::UserAnnotation => {
                add(&mut ops, host);
                add(&mut annotations, host);
            }
            Kind::GpuUserAnnotation => add(&mut annotations, device),
            Kind::Kernel | Kind::GpuMemcpy | Kind::GpuMemset => {
                add(&mut kernels, device);
                let tally = kernels.of(device, name, names.len());
                if tally.calls == 1 {
                    tally.work = work_type(kind, events.is_comm[row]);
                }
            }
            _ => {}
        }
    }
    let rank = data.info.rank;
    Stats {
        ops: ops.sorted(&names).into_iter().map(|(d, n, t)| op_row(rank, d, n, &t)).collect(),
        annotations: annotations.sorted(&names).into_iter().map(|(d, n, t)| annotation_row(rank, d, n, &t)).collect(),
        kernels: kernels.sorted(&names).into_iter().map(|(d, n, t)| kernel_row(rank, d, n, &t)).collect(),
    }
}

/// Time of the rows directly inside each row, as far as it lies in it.
fn inside_ns(events: &Events) -> Vec<i64> {
    let mut inside = vec![0_i64; events.len()];
    for (row, parent) in events.parent.iter().enumerate() {
        if *parent != NO_PARENT {
            let parent = *parent as usize;
            let start = events.ts_ns[row].max(events.ts_ns[parent]);
            let end = events.end_ns(row).min(events.end_ns(parent));
            inside[parent] = inside[parent].saturating_add((end - start).max(0));
        }
    }
    inside
}

const STEP_RANGE: &str = "ProfilerStep#";

/// All `ProfilerStep#N` count under one name, `ProfilerStep*`, as torch.profiler's tables have it. Returns the names
/// and, for each old one, its number among them.
fn fold_step_numbers(names: &[Text]) -> (Vec<Text>, Vec<u32>) {
    let mut folded: Vec<Text> = names.to_vec();
    let step = folded.len() as u32;
    folded.push("ProfilerStep*".into());
    let number = |(i, name): (usize, &Text)| if name.starts_with(STEP_RANGE) { step } else { i as u32 };
    let numbers = names.iter().enumerate().map(number).collect();
    (folded, numbers)
}

fn op_row(rank: i32, device_id: Option<i64>, name: Text, t: &Tally) -> OpStatsRow {
    OpStatsRow {
        rank,
        device_id,
        name,
        calls: t.calls,
        total_ns: t.total_ns,
        self_ns: t.self_ns,
        min_ns: t.min_ns,
        mean_ns: t.mean_ns(),
        max_ns: t.max_ns,
        std_ns: t.std_ns(),
        bytes: t.bytes,
        flops: t.flops,
        vs_median_rank: None,
    }
}

fn kernel_row(rank: i32, device_id: Option<i64>, name: Text, t: &Tally) -> KernelStatsRow {
    KernelStatsRow {
        rank,
        device_id,
        name,
        work: t.work.into(),
        calls: t.calls,
        total_ns: t.total_ns,
        self_ns: t.self_ns,
        min_ns: t.min_ns,
        mean_ns: t.mean_ns(),
        max_ns: t.max_ns,
        std_ns: t.std_ns(),
        bytes: t.bytes,
        flops: t.flops,
        vs_median_device: None,
    }
}

fn annotation_row(rank: i32, device_id: Option<i64>, name: Text, t: &Tally) -> AnnotationStatsRow {
    AnnotationStatsRow {
        rank,
        device_id,
        name,
        calls: t.calls,
        total_ns: t.total_ns,
        min_ns: t.min_ns,
        mean_ns: t.mean_ns(),
        max_ns: t.max_ns,
        std_ns: t.std_ns(),
    }
}

/// Fills how each operator's mean compares with the median of the ranks' means, where there are two ranks or more.
pub(crate) fn compare_ops(rows: &mut [OpStatsRow]) {
    compare(rows, |r| (r.name.clone(), r.mean_ns), |r, ratio| r.vs_median_rank = ratio);
}

/// The same for kernels and devices: a slow device shows here.
pub(crate) fn compare_kernels(rows: &mut [KernelStatsRow]) {
    compare(rows, |r| (r.name.clone(), r.mean_ns), |r, ratio| r.vs_median_device = ratio);
}

fn compare<R>(rows: &mut [R], key: impl Fn(&R) -> (Text, f64), set: impl Fn(&mut R, Option<f64>)) {
    let mut means: std::collections::BTreeMap<Text, Vec<f64>> = std::collections::BTreeMap::new();
    for row in rows.iter() {
        let (name, mean) = key(row);
        means.entry(name).or_default().push(mean);
    }
    for list in means.values_mut() {
        list.sort_by(f64::total_cmp);
    }
    for row in rows {
        let (name, mean) = key(row);
        let median = means.get(&name).filter(|m| m.len() > 1).map(|m| median(m));
        set(row, median.filter(|m| *m > 0.0).map(|median| mean / median));
    }
}

/// The median of sorted values; of an even number, the mean of the two in the middle.
fn median(sorted: &[f64]) -> f64 {
    let middle = sorted.len() / 2;
    if sorted.len() % 2 == 1 { sorted[middle] } else { f64::midpoint(sorted[middle - 1], sorted[middle]) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::drawn::Drawn;

    #[test]
    fn self_time_is_net_of_what_is_inside() {
        let data = Drawn::rank(0)
            .host(Kind::UserAnnotation, "ProfilerStep#3", 1, "####################..")
            .host(Kind::UserAnnotation, "forward", 1, "..###############.....")
            .host(Kind::CpuOp, "gemm", 1, "....######..####......")
            .host(Kind::CpuOp, "copy", 1, ".....##...............")
            .host(Kind::CpuOp, "elsewhere", 2, "..########............")
            .data();
        let rows = stats(&data, &|_| true).ops;
        let found: Vec<_> = rows.iter().map(|r| (&*r.name, r.calls, r.total_ns, r.self_ns)).collect();
        assert_eq!(
            found,
            [
                ("ProfilerStep*", 1, 20, 5),
                ("forward", 1, 15, 5),
                ("gemm", 2, 10, 8),
                ("elsewhere", 1, 8, 8),
                ("copy", 1, 2, 2),
            ]
        );
        let gemm = &rows[2];
        assert_eq!((gemm.min_ns, gemm.max_ns, gemm.mean_ns), (4, 6, 5.0));
        assert!((gemm.std_ns - 2.0_f64.sqrt()).abs() < 1e-12);
    }

    #[test]
    fn only_ranges_are_annotations_and_only_device_work_is_kernels() {
        let data = Drawn::rank(0)
            .host(Kind::UserAnnotation, "forward", 1, "#####")
            .host(Kind::CpuOp, "gemm", 1, ".##..")
            .device(Kind::GpuUserAnnotation, "forward", (2, 7), 1, ".####")
            .device(Kind::Kernel, "sgemm", (2, 7), 1, "..##.")
            .data();
        let Stats { ops, annotations, kernels } = stats(&data, &|_| true);
        assert_eq!(ops.iter().map(|r| &*r.name).collect::<Vec<_>>(), ["forward", "gemm"]);
        let found: Vec<_> = annotations.iter().map(|r| (r.device_id, &*r.name, r.total_ns)).collect();
        assert_eq!(found, [(None, "forward", 5), (Some(2), "forward", 4)]);
        assert_eq!(kernels.iter().map(|r| (r.device_id, &*r.name)).collect::<Vec<_>>(), [(Some(2), "sgemm")]);
    }

    /// More devices than have a dense column: the same rows in the same order.
    #[test]
    fn many_devices_and_names_are_counted_alike_and_take_little() {
        let names: Vec<Text> = (0..16_000).map(|i| format!("k{i:05}").into()).collect();
        let mut tallies = Tallies::default();
        for row in 0..40_000 {
            let (device, name) = ((row * 7 % 4000) as i64, row * 13 % 16_000);
            tallies.of(device, name, names.len()).add(1 + (row % 3) as i64, 0, NONE, NONE);
        }
        assert!(tallies.dense.len() <= MAX_DENSE && tallies.dense.len() * names.len() <= 2 * MAX_DENSE_CELLS);
        let rows = tallies.sorted(&names);
        assert_eq!(rows.iter().map(|(_, _, t)| t.calls).sum::<i64>(), 40_000);
        let key = |(device, name, t): &(Option<i64>, Text, Tally)| (*device, -t.total_ns, name.clone());
        assert!(rows.is_sorted_by_key(key));
        assert_eq!(rows.iter().filter_map(|(device, ..)| *device).max(), Some(3999));
    }

    #[test]
    fn a_slow_device_shows_against_the_median() {
        let row = |rank, mean_ns| KernelStatsRow { rank, name: "sgemm".into(), mean_ns, ..KernelStatsRow::default() };
        let mut rows = vec![row(0, 10.0), row(1, 10.0), row(2, 15.0)];
        compare_kernels(&mut rows);
        assert_eq!(rows.iter().map(|r| r.vs_median_device).collect::<Vec<_>>(), [Some(1.0), Some(1.0), Some(1.5)]);
        let mut alone = vec![row(0, 10.0)];
        compare_kernels(&mut alone);
        assert_eq!(alone[0].vs_median_device, None);
    }

    #[test]
    fn long_and_nearly_equal_rows_keep_their_spread() {
        let mut tally = Tally::default();
        for dur_ns in [4_000_000_000_000_000, 4_000_000_000_000_002] {
            tally.add(dur_ns, dur_ns, NONE, NONE);
        }
        assert!((tally.std_ns() - 2.0_f64.sqrt()).abs() < 1e-12);
    }
}
