//! Statistics by name: host operators and ranges, annotations, and kernels.
//!
//! The self time of a row is its length, minus the lengths of the rows directly inside it on the same thread:
//!
//! ```text
//!  forward   |------------------|
//!  gemm          |----|  |--|
//!  self      ffffggggggfffgggfff      forward: 20 − 6 − 4
//! ```

use rustc_hash::FxHashMap;
use trace::kernel_rules::{kernel_category, names_tensor_cores};
use trace::rank::{DevicesById, Launches, outermost};
use trace::{AnnotationStatsRow, DeviceRow, KernelCategory, KernelStatsRow, OpStatsRow, Tables, Text, name_rules};

use crate::device::work_type;
use crate::occupancy::{Uses, occupancy_limit, occupancy_pct};
use crate::roofline::Roofline;
use model::stats::{is_covered, median_of_sorted};
use model::{Events, KernelUse, Kind, NO_PARENT, NONE, RankData};

/// Sums over the rows of one name.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
struct Tally {
    calls: i64,
    total_ns: i64,
    self_ns: i64,
    min_ns: i64,
    max_ns: i64,
    /// The length of the first row. Sums of squares are taken around it, so that the spread of long, nearly equal rows
    /// keeps its digits.
    pivot_ns: i64,
    sum: f64,
    sum_of_squares: f64,
    bytes: Option<i64>,
    flops: Option<i64>,
    /// Time in which the FLOPs of an operator were computed, and the FLOPs of the calls that have such a time.
    flops_ns: Option<i64>,
    timed_flops: i64,
    /// The sum of the occupancies of a kernel, weighted by time, and the time of the calls that have one.
    occupancy_pct_ns: f64,
    occupancy_ns: f64,
    /// The sum of the blocks of a kernel, and the number of calls that have them; the same weighted by time.
    blocks: f64,
    with_blocks: f64,
    blocks_ns: f64,
    with_blocks_ns: f64,
    /// The longest call with launch parameters: its length, and its place in the list of them plus one; 0 for none.
    longest_use_ns: i64,
    longest_use: u32,
    /// The type of device work; empty for host rows.
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

    /// Adds the use of the device by one call, which is the entry `at` of the list of uses, and its occupancy.
    fn add_use(&mut self, dur_ns: i64, used: &KernelUse, at: usize, occupancy_pct: Option<f64>) {
        // A call without length still has an occupancy.
        let weight = dur_ns.max(1) as f64;
        if self.longest_use == 0 || dur_ns > self.longest_use_ns {
            (self.longest_use, self.longest_use_ns) = (at as u32 + 1, dur_ns);
        }
        if let Some(pct) = occupancy_pct {
            self.occupancy_pct_ns += weight * pct;
            self.occupancy_ns += weight;
        }
        if let Some(blocks) = used.blocks() {
            self.blocks += blocks as f64;
            self.with_blocks += 1.0;
            self.blocks_ns += weight * blocks as f64;
            self.with_blocks_ns += weight;
        }
    }

    /// The weight of all calls, as [`Tally::add_use`] weighs them.
    fn weight(&self) -> f64 {
        self.total_ns.max(self.calls) as f64
    }

    /// The rate of the calls whose time is known.
    fn flops_per_s(&self) -> Option<f64> {
        let seconds = self.flops_ns.filter(|ns| *ns > 0)? as f64 * 1e-9;
        is_covered(self.timed_flops as f64, self.flops? as f64).then(|| self.timed_flops as f64 / seconds)
    }

    fn mean_ns(&self) -> f64 {
        self.total_ns as f64 / self.calls as f64
    }

    /// The standard deviation of the sample, as in pandas and HTA; 0 for a single call.
    fn std_ns(&self) -> f64 {
        if self.calls < 2 {
            return 0.0;
        }
        let n = self.calls as f64;
        ((self.sum_of_squares - self.sum * self.sum / n) / (n - 1.0)).max(0.0).sqrt()
    }
}

/// The tallies of one device or of the host, indexed by name.
#[derive(Debug)]
struct ByName {
    device: i64,
    tallies: Vec<Tally>,
}

/// The most devices with a dense column. The limit is small because columns are found by linear search.
const MAX_DENSE: usize = 32;
/// The most cells of all dense columns except the first. The limit bounds the memory for traces with very many names.
const MAX_DENSE_CELLS: usize = 1 << 20;

/// The tallies of one table. Each device has a dense column by name, so that adding a row needs no hashing. Further
/// devices share a map that holds only the names in use.
#[derive(Debug, Default)]
struct Tallies {
    dense: Vec<ByName>,
    sparse: FxHashMap<(i64, usize), Tally>,
}

impl Tallies {
    /// The tally of a device and name. `names` is the number of all names.
    fn entry(&mut self, device: i64, name: usize, names: usize) -> &mut Tally {
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

    /// Whether one more dense column fits the limits.
    fn has_room(&self, names: usize) -> bool {
        let columns = self.dense.len();
        columns == 0 || columns < MAX_DENSE && columns.saturating_mul(names) <= MAX_DENSE_CELLS
    }

    /// The device, name and tally of all called names, by device, then by total time, the longest first.
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

/// The statistics of the rows for which `keep` returns true.
pub(crate) fn stats(data: &RankData, launches: &Launches, keep: &dyn Fn(usize) -> bool) -> Tables {
    let (names, folded) = fold_step_numbers(&data.names);
    let events = &data.events;
    let inside = inside_ns(events);
    let devices = DevicesById::of(&data.devices);
    let mut uses = Uses::of(&data.kernel_use);
    let (mut ops, mut annotations, mut kernels) = (Tallies::default(), Tallies::default(), Tallies::default());
    for row in 0..events.len() {
        let kind = events.kind[row];
        let (host, device) = (NONE, events.device[row]);
        let name = folded[events.name[row] as usize] as usize;
        let dur_ns = events.dur_ns[row];
        let self_ns = (dur_ns - inside[row]).max(0);
        let add = |to: &mut Tallies, device: i64| {
            to.entry(device, name, names.len()).add(dur_ns, self_ns, events.bytes[row], events.flops[row]);
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
                let tally = kernels.entry(device, name, names.len());
                if tally.calls == 1 {
                    tally.work = work_type(kind, events.is_comm[row]);
                }
                if let Some(at) = uses.find(events.id[row]) {
                    let used = &data.kernel_use[at];
                    tally.add_use(dur_ns, used, at, occupancy_pct(used, devices.get(device)));
                }
            }
            _ => {}
        }
    }
    add_flops_ns(events, launches, keep, |row, ns, is_first| {
        let tally = ops.entry(NONE, folded[events.name[row] as usize] as usize, names.len());
        tally.timed_flops = tally.timed_flops.saturating_add(if is_first { events.flops[row] } else { 0 });
        tally.flops_ns = Some(tally.flops_ns.unwrap_or(0).saturating_add(ns));
    });
    let rank = data.outline.info.rank;
    let roofline = Roofline::of(data, keep);
    Tables {
        op_stats: ops.sorted(&names).into_iter().map(|(d, n, t)| op_row(rank, d, n, &t, &roofline)).collect(),
        annotation_stats: annotations
            .sorted(&names)
            .into_iter()
            .map(|(d, n, t)| annotation_row(rank, d, n, &t))
            .collect(),
        kernel_stats: kernels
            .sorted(&names)
            .into_iter()
            .map(|(d, n, t)| kernel_row(data, d.and_then(|d| devices.get(d)), d, n, &t))
            .collect(),
        ..Tables::default()
    }
}

/// Calls `add` with each operator that has FLOPs and the time in which they were computed: of each kernel that it
/// launched, or its own on a rank without device work. The flag says whether it is the first kernel of the operator.
fn add_flops_ns(
    events: &Events,
    launches: &Launches,
    keep: &dyn Fn(usize) -> bool,
    mut add: impl FnMut(usize, i64, bool),
) {
    let computes = |row: usize| events.kind[row] == Kind::CpuOp && events.flops[row] != NONE;
    if !(0..events.len()).any(computes) {
        return;
    }
    if !events.kind.iter().any(|kind| kind.is_device_work()) {
        (0..events.len()).filter(|row| computes(*row) && keep(*row)).for_each(|row| add(row, events.dur_ns[row], true));
        return;
    }
    let around = outermost(events, &computes);
    let mut has_time = vec![false; events.len()];
    for row in (0..events.len()).filter(|row| events.kind[*row] == Kind::Kernel && keep(*row)) {
        let Some(launch) = launches.of(events.correlation[row]) else { continue };
        let operator = around[launch as usize];
        if operator != NO_PARENT && keep(operator as usize) {
            let is_first = !std::mem::replace(&mut has_time[operator as usize], true);
            add(operator as usize, events.dur_ns[row], is_first);
        }
    }
}

/// For each row, the time of the rows directly inside it. Time beyond the end of the outer row does not count.
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

/// Replaces all names `ProfilerStep#N` by one name, `ProfilerStep*`, as in torch.profiler's tables. Returns the new
/// names, and for each old name the index of its new name.
fn fold_step_numbers(names: &[Text]) -> (Vec<Text>, Vec<u32>) {
    let mut folded: Vec<Text> = names.to_vec();
    let step = folded.len() as u32;
    folded.push(name_rules::ALL_STEPS.into());
    let number = |(i, name): (usize, &Text)| if name_rules::is_step(name) { step } else { i as u32 };
    let numbers = names.iter().enumerate().map(number).collect();
    (folded, numbers)
}

fn op_row(rank: i32, device_id: Option<i64>, name: Text, t: &Tally, roofline: &Roofline) -> OpStatsRow {
    let mut row = OpStatsRow {
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
        flops_ns: t.flops_ns,
        flops_per_s: t.flops_per_s(),
        ..OpStatsRow::default()
    };
    roofline.fill(&mut row);
    row
}

fn kernel_row(
    data: &RankData,
    device: Option<&DeviceRow>,
    device_id: Option<i64>,
    name: Text,
    t: &Tally,
) -> KernelStatsRow {
    let longest = (t.longest_use as usize).checked_sub(1).and_then(|at| data.kernel_use.get(at));
    let sms = device.and_then(|device| device.sm_count).filter(|sms| *sms > 0);
    let category = match t.work {
        "communication" => KernelCategory::Communication,
        "memory" => KernelCategory::Copy,
        _ => kernel_category(&name),
    };
    let is_product = matches!(
        category,
        KernelCategory::Gemm | KernelCategory::Convolution | KernelCategory::Attention | KernelCategory::Other
    );
    KernelStatsRow {
        rank: data.outline.info.rank,
        device_id,
        tensor_cores: is_product && names_tensor_cores(&name),
        name,
        work: t.work.into(),
        category: category.into(),
        calls: t.calls,
        total_ns: t.total_ns,
        self_ns: t.self_ns,
        min_ns: t.min_ns,
        mean_ns: t.mean_ns(),
        max_ns: t.max_ns,
        std_ns: t.std_ns(),
        bytes: t.bytes,
        flops: t.flops,
        occupancy_pct: is_covered(t.occupancy_ns, t.weight()).then(|| t.occupancy_pct_ns / t.occupancy_ns),
        occupancy_limit: longest.zip(device).and_then(|(used, device)| occupancy_limit(used, device)).map(Into::into),
        mean_blocks: is_covered(t.with_blocks, t.calls as f64).then(|| t.blocks / t.with_blocks),
        blocks_per_sm: sms
            .filter(|_| is_covered(t.with_blocks_ns, t.weight()))
            .map(|sms| t.blocks_ns / t.with_blocks_ns / f64::from(sms)),
        block_threads: longest.and_then(|used| used.block_threads()).map(Into::into),
        registers: longest.and_then(|used| used.registers).map(Into::into),
        shared_mem_bytes: longest.and_then(|used| used.shared_mem_bytes).map(Into::into),
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

/// Fills in the ratio of each operator's mean to that of the ranks to compare with, if at least two ranks have the
/// operator.
pub fn compare_ops(rows: &mut [OpStatsRow]) {
    compare(rows, |r| (r.name.clone(), r.mean_ns), |r, ratio| r.vs_median_rank = ratio);
}

/// Fills in the ratio of each kernel's mean to that of the devices to compare with. A slow device has high ratios.
pub fn compare_kernels(rows: &mut [KernelStatsRow]) {
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
        let usual = means.get(&name).and_then(|means| usual(means));
        set(row, usual.filter(|usual| *usual > 0.0).map(|usual| mean / usual));
    }
}

/// The mean to compare with: the median of the sorted means. Two means have no usual one, so the smaller of them is
/// taken. `None` if there is nothing to compare.
pub fn usual(means: &[f64]) -> Option<f64> {
    match means {
        [] | [_] => None,
        [faster, _] => Some(*faster),
        more => median_of_sorted(more),
    }
}

#[cfg(test)]
mod tests {
    use trace::DeviceRow;

    use super::*;
    use drawn::Drawn;

    #[test]
    fn self_time_excludes_the_rows_inside() {
        let data = Drawn::rank(0)
            .host(Kind::UserAnnotation, "ProfilerStep#3", 1, "####################..")
            .host(Kind::UserAnnotation, "forward", 1, "..###############.....")
            .host(Kind::CpuOp, "gemm", 1, "....######..####......")
            .host(Kind::CpuOp, "copy", 1, ".....##...............")
            .host(Kind::CpuOp, "elsewhere", 2, "..########............")
            .data();
        let rows = stats(&data, &Launches::collect(&data.events), &|_| true).op_stats;
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
        let Tables { op_stats: ops, annotation_stats: annotations, kernel_stats: kernels, .. } =
            stats(&data, &Launches::collect(&data.events), &|_| true);
        assert_eq!(ops.iter().map(|r| &*r.name).collect::<Vec<_>>(), ["forward", "gemm"]);
        let found: Vec<_> = annotations.iter().map(|r| (r.device_id, &*r.name, r.total_ns)).collect();
        assert_eq!(found, [(None, "forward", 5), (Some(2), "forward", 4)]);
        assert_eq!(kernels.iter().map(|r| (r.device_id, &*r.name)).collect::<Vec<_>>(), [(Some(2), "sgemm")]);
    }

    /// Of the kernels of two products, one is launched inside of an operator that a product calls.
    #[test]
    fn flops_are_computed_in_the_time_of_the_launched_kernels() {
        let mut data = Drawn::rank(0)
            .host(Kind::CpuOp, "aten::mm", 1, "######.#####........")
            .host(Kind::CpuOp, "inner", 1, "........##..........")
            .launches(1, "..#......#..........")
            .device(Kind::Kernel, "nvjet_tst", (0, 7), 1, "...####......######.")
            .data();
        for row in 0..data.events.len() {
            if data.events.kind[row] == Kind::CpuOp && &*data.names[data.events.name[row] as usize] == "aten::mm" {
                data.events.flops[row] = 1000;
            }
        }
        let kernels = data.events.id.iter().zip(&data.events.kind).filter(|(_, kind)| **kind == Kind::Kernel);
        data.kernel_use = kernels
            .zip([20.0, 40.0])
            .zip([2, 8])
            .map(|(((id, _), pct), blocks)| KernelUse {
                grid: [blocks, 1, 1],
                block: [128, 1, 1],
                registers: Some(40),
                occupancy_pct: Some(pct),
                ..KernelUse::unknown(*id)
            })
            .collect();
        data.devices = vec![DeviceRow { sm_count: Some(10), max_threads_per_sm: Some(256), ..DeviceRow::default() }];
        let tables = stats(&data, &Launches::collect(&data.events), &|_| true);
        let of = |name: &str| tables.op_stats.iter().find(|row| &*row.name == name).unwrap();
        assert_eq!((of("aten::mm").flops, of("aten::mm").flops_ns), (Some(2000), Some(10)));
        assert!((of("aten::mm").flops_per_s.unwrap() - 2e11).abs() < 1.0);
        assert_eq!((of("inner").flops_ns, of("inner").flops_per_s), (None, None));
        let kernel = &tables.kernel_stats[0];
        assert_eq!((&*kernel.category, kernel.tensor_cores, kernel.mean_blocks), ("gemm", true, Some(5.0)));
        assert_eq!(kernel.occupancy_pct, Some(0.4 * 20.0 + 0.6 * 40.0));
        assert!((kernel.blocks_per_sm.unwrap() - (0.4 * 0.2 + 0.6 * 0.8)).abs() < 1e-12);
        assert_eq!((kernel.block_threads, kernel.registers, kernel.shared_mem_bytes), (Some(128), Some(40), None));
        // 0.8 blocks of 128 threads on 256 places are 40 %: the longest call has no more blocks.
        assert_eq!(kernel.occupancy_limit.as_deref(), Some("grid"));
    }

    /// With more devices than dense columns, the rows and their order stay the same.
    #[test]
    fn devices_beyond_the_dense_columns_are_counted_in_bounded_memory() {
        let names: Vec<Text> = (0..16_000).map(|i| format!("k{i:05}").into()).collect();
        let mut tallies = Tallies::default();
        for row in 0..40_000 {
            let (device, name) = ((row * 7 % 4000) as i64, row * 13 % 16_000);
            tallies.entry(device, name, names.len()).add(1 + (row % 3) as i64, 0, NONE, NONE);
        }
        assert!(tallies.dense.len() <= MAX_DENSE && tallies.dense.len() * names.len() <= 2 * MAX_DENSE_CELLS);
        let rows = tallies.sorted(&names);
        assert_eq!(rows.iter().map(|(_, _, t)| t.calls).sum::<i64>(), 40_000);
        let key = |(device, name, t): &(Option<i64>, Text, Tally)| (*device, -t.total_ns, name.clone());
        assert!(rows.is_sorted_by_key(key));
        assert_eq!(rows.iter().filter_map(|(device, ..)| *device).max(), Some(3999));
    }

    #[test]
    fn a_slow_device_exceeds_the_median() {
        let row = |rank, mean_ns| KernelStatsRow { rank, name: "sgemm".into(), mean_ns, ..KernelStatsRow::default() };
        let mut rows = vec![row(0, 10.0), row(1, 10.0), row(2, 15.0)];
        compare_kernels(&mut rows);
        assert_eq!(rows.iter().map(|r| r.vs_median_device).collect::<Vec<_>>(), [Some(1.0), Some(1.0), Some(1.5)]);
        // Of two devices, none is usual.
        let mut two = vec![row(0, 15.0), row(1, 10.0)];
        compare_kernels(&mut two);
        assert_eq!(two.iter().map(|r| r.vs_median_device).collect::<Vec<_>>(), [Some(1.5), Some(1.0)]);
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
