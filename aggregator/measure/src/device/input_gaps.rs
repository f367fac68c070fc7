//! The gaps between an optimizer step and the next forward pass, on ranks where no range names the loading of input.
//!
//! ```text
//!  host     [Optimizer.step]            [zero_grad]       [forward
//!  calls       l   l   l         [sync]    l                 l
//!  gap                      |-----------------------------|
//!  quiet                    #####      #           #######
//! ```
//!
//! A loop of its own, or a loader that is not PyTorch's, loads the next batch there. Other work without a name is there
//! too, such as a checkpoint, so the gap is likely input and no more.

use rustc_hash::FxHashMap;
use trace::InputGapRow;
use trace::name_rules::{is_data_loading, is_forward, is_input, is_optimizer, is_optimizer_step, is_step};
use trace::rank::{Launch, enclosing};

use crate::breakdown::overhead;
use crate::device::View;
use model::intervals::{Coverage, Interval, IntervalSet};
use model::windows::Windows;
use model::{Events, Kind, NONE, RankData};

/// Shorter quiet time is the interpreter between two operators, not a wait for input: HTA's limit for the delay of a
/// launch.
const LEAST_QUIET_NS: i64 = super::LAUNCH_DELAY_CUTOFF_NS;

/// The meanings of each name.
struct Meanings {
    loading: bool,
    input: Vec<bool>,
    forward: Vec<bool>,
    optimizer: Vec<bool>,
    optimizer_step: Vec<bool>,
    step: Vec<bool>,
}

impl Meanings {
    fn of(data: &RankData) -> Self {
        let all = |rule: fn(&str) -> bool| data.names.iter().map(|name| rule(name)).collect::<Vec<bool>>();
        Self {
            loading: data.names.iter().any(|name| is_data_loading(name)),
            input: all(is_input),
            forward: all(is_forward),
            optimizer: all(is_optimizer),
            optimizer_step: all(is_optimizer_step),
            step: all(is_step),
        }
    }
}

/// The rows of a rank, and what is known of them.
struct Rows<'a> {
    events: &'a Events,
    meanings: Meanings,
    /// Whether a row is a call that launched a kernel.
    launches_kernel: Vec<bool>,
    /// Whether a row is inside of an optimizer, or is one.
    in_optimizer: Vec<bool>,
    has_devices: bool,
    /// The rows of each thread that has a gap, in order of time.
    by_thread: FxHashMap<i64, Vec<u32>>,
}

/// Makes one row for each gap. `launched` holds the launch of each device row.
pub(super) fn input_gaps(view: &View<'_>, busy: Option<&Coverage>, launched: &[Launch]) -> Vec<InputGapRow> {
    let events = &view.data.events;
    let meanings = Meanings::of(view.data);
    if meanings.loading || !meanings.optimizer_step.contains(&true) {
        return Vec::new();
    }
    let mut launches_kernel = vec![false; events.len()];
    for launch in launched.iter().filter(|launch| events.kind[launch.device as usize] == Kind::Kernel) {
        launches_kernel[launch.host as usize] = true;
    }
    let mut in_optimizer: Vec<bool> = Vec::with_capacity(events.len());
    for (row, name) in events.name.iter().enumerate() {
        let is_inside = enclosing(events, row).is_some_and(|around| in_optimizer[around]);
        in_optimizer.push(is_inside || meanings.optimizer[*name as usize]);
    }
    let mut rows = Rows {
        events,
        meanings,
        launches_kernel,
        in_optimizer,
        has_devices: busy.is_some(),
        by_thread: FxHashMap::default(),
    };
    let gaps = rows.gaps(view.keep);
    rows.collect_threads(&gaps);
    let windows = Windows::of(&view.data.outline.steps);
    let overhead = overhead(events);
    let row = |gap: &Gap| {
        let quiet = rows.quiet(gap, &overhead);
        let quiet_ns = quiet.len_ns();
        InputGapRow {
            rank: view.data.outline.info.rank,
            step: Some(events.step[gap.forward]).filter(|step| *step >= 0),
            gap_ns: gap.time.len_ns(),
            quiet_ns,
            named_ns: quiet.intersection(&rows.input(gap)).len_ns(),
            device_idle_ns: busy
                .map(|busy| quiet_ns - quiet.intervals().iter().map(|stretch| busy.within_ns(*stretch)).sum::<i64>()),
        }
    };
    let in_one_window = |gap: &&Gap| windows.at(gap.time.start_ns) == windows.at(gap.time.end_ns);
    gaps.iter().filter(in_one_window).map(row).collect()
}

/// A gap on a host thread, and the row with which the forward pass begins.
struct Gap {
    thread: i64,
    time: Interval,
    forward: usize,
}

impl Rows<'_> {
    /// The gaps in order of time.
    fn gaps(&self, keep: &dyn Fn(usize) -> bool) -> Vec<Gap> {
        let Rows { events, meanings, .. } = self;
        let is_forward_range =
            |row: usize| events.kind[row] == Kind::UserAnnotation && meanings.forward[events.name[row] as usize];
        let mut named_threads: Vec<i64> =
            (0..events.len()).filter(|row| is_forward_range(*row)).map(|row| events.thread[row]).collect();
        named_threads.sort_unstable();
        named_threads.dedup();
        let mut gaps = Vec::new();
        // The latest optimizer step of each thread without a forward pass after it: end, number of the step.
        let mut ended: FxHashMap<i64, (i64, i32)> = FxHashMap::default();
        for row in (0..events.len()).filter(|row| events.thread[*row] != NONE && keep(*row)) {
            let thread = events.thread[row];
            let last = ended.get(&thread).copied();
            if is_range(events.kind[row]) && meanings.optimizer_step[events.name[row] as usize] {
                let end_ns = events.end_ns(row).max(last.map_or(i64::MIN, |(end_ns, _)| end_ns));
                ended.insert(thread, (end_ns, events.step[row]));
                continue;
            }
            let Some((end_ns, step)) = last else { continue };
            let begins = match named_threads.binary_search(&thread) {
                Ok(_) => is_forward_range(row),
                Err(_) => (step < 0 || events.step[row] > step) && self.begins_forward(row),
            };
            if begins && events.ts_ns[row] >= end_ns {
                ended.remove(&thread);
                gaps.push(Gap { thread, time: Interval::new(end_ns, events.ts_ns[row]), forward: row });
            }
        }
        gaps
    }

    /// Whether a row may begin a forward pass that has no range: it launches a kernel or, without devices, computes,
    /// outside of any optimizer.
    fn begins_forward(&self, row: usize) -> bool {
        let events = self.events;
        let begins = match self.has_devices {
            true => self.launches_kernel[row],
            false => events.kind[row] == Kind::CpuOp && !events.is_comm[row],
        };
        begins && !self.in_optimizer[row]
    }

    fn collect_threads(&mut self, gaps: &[Gap]) {
        self.by_thread = gaps.iter().map(|gap| (gap.thread, Vec::new())).collect();
        for row in (0..self.events.len()).filter(|_| !gaps.is_empty()) {
            if let Some(rows) = self.by_thread.get_mut(&self.events.thread[row]) {
                rows.push(row as u32);
            }
        }
    }

    /// The rows that begin in a gap, on its thread.
    fn within(&self, gap: &Gap) -> impl Iterator<Item = usize> {
        let rows = self.by_thread.get(&gap.thread).map(Vec::as_slice).unwrap_or_default();
        let from = rows.partition_point(|row| self.events.ts_ns[*row as usize] < gap.time.start_ns);
        let to = rows.partition_point(|row| (*row as usize) < gap.forward);
        rows.get(from..to).unwrap_or_default().iter().map(|row| *row as usize)
    }

    /// The outermost operator in a gap around a row of it. `known` keeps the answers for the rows of one gap.
    fn operator_in(&self, gap: &Gap, row: usize, known: &mut FxHashMap<usize, Option<usize>>) -> Option<usize> {
        let events = self.events;
        let mut path = Vec::new();
        let mut at = Some(row);
        let mut found = None;
        while let Some(row) = at {
            if let Some(outermost) = known.get(&row) {
                found = *outermost;
                break;
            }
            path.push(row);
            // A row around one that begins before the gap begins before the gap too.
            at = enclosing(events, row).filter(|around| events.ts_ns[*around] >= gap.time.start_ns);
        }
        let is_in_gap = |row: &usize| events.kind[*row] == Kind::CpuOp && events.end_ns(*row) <= gap.time.end_ns;
        for row in path.into_iter().rev() {
            found = found.or(Some(row).filter(is_in_gap));
            known.insert(row, found);
        }
        found
    }

    /// The time of a gap in which the host does nothing that was recorded.
    fn quiet(&self, gap: &Gap, overhead: &IntervalSet) -> IntervalSet {
        let Rows { events, meanings, .. } = self;
        let time = |row: usize| Interval::new(events.ts_ns[row], events.end_ns(row));
        let mut known = FxHashMap::default();
        let work = |row: usize| match events.kind[row] {
            // An operator that calls the runtime launches or waits. Older traces have steps as operators, which reach
            // beyond the gap.
            Kind::Runtime | Kind::Driver => Some(time(self.operator_in(gap, row, &mut known).unwrap_or(row))),
            Kind::CpuOp if !self.has_devices || events.is_comm[row] => Some(time(row)),
            // A range that reaches beyond the gap does not say what the gap is.
            Kind::UserAnnotation if events.end_ns(row) <= gap.time.end_ns => {
                let name = events.name[row] as usize;
                Some(time(row)).filter(|_| !meanings.step[name] && !meanings.input[name])
            }
            _ => None,
        };
        let work: IntervalSet = self.within(gap).filter_map(work).collect();
        let quiet = work.union(&overhead.clip(gap.time)).gaps(gap.time);
        quiet.intervals().iter().copied().filter(|stretch| stretch.len_ns() >= LEAST_QUIET_NS).collect()
    }

    /// The time of a gap in ranges and frames that load input by their name.
    fn input(&self, gap: &Gap) -> IntervalSet {
        let Rows { events, meanings, .. } = self;
        let loads = |row: &usize| {
            (is_range(events.kind[*row]) || events.kind[*row] == Kind::PythonFunction)
                && meanings.input[events.name[*row] as usize]
        };
        let time = |row: usize| Interval::new(events.ts_ns[row], events.end_ns(row));
        self.within(gap).filter(loads).map(time).collect()
    }
}

fn is_range(kind: Kind) -> bool {
    matches!(kind, Kind::UserAnnotation | Kind::CpuOp)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::device::tests::tables;
    use drawn::Drawn;

    /// The step, the gap with its quiet and its named part, and the part in which devices are idle.
    type Found = (Option<i32>, [i64; 3], Option<i64>);

    /// The gaps, in columns of 100 µs.
    fn gaps(drawn: Drawn) -> Vec<Found> {
        let mut data = drawn.data();
        data.events.ts_ns.iter_mut().chain(&mut data.events.dur_ns).for_each(|t| *t *= LEAST_QUIET_NS);
        data.outline.steps.iter_mut().for_each(|s| {
            s.start_ns *= LEAST_QUIET_NS;
            s.end_ns *= LEAST_QUIET_NS;
        });
        let columns = |ns: i64| ns / LEAST_QUIET_NS;
        let rows = tables(&data).input_gaps;
        rows.iter()
            .map(|r| {
                let idle = r.device_idle_ns.map(columns);
                (r.step, [r.gap_ns, r.quiet_ns, r.named_ns].map(columns), idle)
            })
            .collect()
    }

    /// Without a named forward pass, it begins with the first kernel of the next step outside of the optimizer.
    fn loop_on_a_device() -> Drawn {
        Drawn::rank(3)
            .steps("#############..##############")
            .host(Kind::UserAnnotation, "Optimizer.step#SGD.step", 1, "....####.............####....")
            .host(Kind::CpuOp, "aten::item", 1, "........###..................")
            .host(Kind::Runtime, "cudaStreamSynchronize", 1, ".........#...................")
            .host(Kind::UserAnnotation, "Optimizer.zero_grad#SGD.zero_grad", 1, "...............##............")
            .launches(1, ".....#..........#...#.#......")
            .device(Kind::Kernel, "sgd", (0, 7), 1, "......####......#............")
            .device(Kind::Kernel, "mm", (0, 7), 3, "....................#........")
    }

    #[test]
    fn the_quiet_time_before_a_forward_pass_is_likely_input() {
        // The gap is [8, 20). The operator that waits takes 3 of it, zero_grad 2, and the device works in 1 of the rest.
        assert_eq!(gaps(loop_on_a_device()), [(Some(2), [12, 7, 0], Some(7))]);
        let busy =
            loop_on_a_device().device(Kind::GpuMemcpy, "Memcpy HtoD", (0, 9), 90, ".................##..........");
        assert_eq!(gaps(busy), [(Some(2), [12, 7, 0], Some(5))]);
        let covered = loop_on_a_device().host(Kind::Overhead, "Buffer Flush", 5, "...........####..............");
        assert_eq!(gaps(covered), [(Some(2), [12, 3, 0], Some(3))]);
    }

    /// The copy counts with the operator around it, but not with the epoch, which reaches beyond the gap.
    #[test]
    fn the_outermost_operator_in_a_gap_is_no_quiet_time() {
        let nested = loop_on_a_device()
            .host(Kind::CpuOp, "epoch", 1, "...........##################")
            .host(Kind::CpuOp, "aten::to", 1, "...........###...............")
            .host(Kind::CpuOp, "aten::copy_", 1, "............##...............")
            .host(Kind::Runtime, "cudaMemcpyAsync", 1, "............#................");
        assert_eq!(gaps(nested), [(Some(2), [12, 4, 0], Some(4))]);
    }

    #[test]
    fn ranges_of_other_names_are_no_input() {
        let checkpoint =
            loop_on_a_device().host(Kind::UserAnnotation, "checkpoint", 1, ".................##..........");
        assert_eq!(gaps(checkpoint), [(Some(2), [12, 5, 0], Some(5))]);
        let loader = loop_on_a_device().host(Kind::UserAnnotation, "my dataloader", 1, ".................##..........");
        assert_eq!(gaps(loader), [(Some(2), [12, 7, 2], Some(7))]);
        let epoch = loop_on_a_device().host(Kind::UserAnnotation, "epoch", 1, ".................###########.");
        assert_eq!(gaps(epoch), [(Some(2), [12, 7, 0], Some(7))]);
        let forward =
            loop_on_a_device().host(Kind::UserAnnotation, "## forward ##", 1, "..................##.........");
        assert_eq!(gaps(forward), [(Some(2), [10, 5, 0], Some(5))]);
    }

    #[test]
    fn a_named_loader_leaves_nothing_to_guess() {
        let loader = "enumerate(DataLoader)#It.__next__";
        let named = loop_on_a_device().host(Kind::UserAnnotation, loader, 1, ".................##..........");
        assert_eq!(gaps(named), []);
        let no_optimizer = Drawn::rank(0).steps("####.####").host(Kind::CpuOp, "aten::mm", 1, "#......#.");
        assert_eq!(gaps(no_optimizer), []);
    }

    #[test]
    fn without_devices_operators_are_no_quiet_time() {
        let drawn = Drawn::rank(0)
            .steps("##########..########")
            .host(Kind::UserAnnotation, "Optimizer.step#SGD.step", 1, "....##..............")
            .host(Kind::CpuOp, "aten::add", 1, ".......#............")
            .host(Kind::CpuOp, "aten::mm", 1, "................##..");
        assert_eq!(gaps(drawn), [(Some(2), [10, 9, 0], None)]);
    }
}
