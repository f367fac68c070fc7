//! The modules of a rank (`torch.nn.Module`) as a tree: own and total time, forward and backward, of host and device.
//!
//! A call of a module is a Python function named `nn.Module: NAME_NUMBER` (`with_stack=True`). Its parent is the call
//! around it. Device work counts for the innermost call around its launch. An operator of the backward pass counts for
//! the module of its forward operator, by the arrows of the trace:
//!
//! ```text
//! thread 1  Block_0 ──────────────────────        forward: Block_0 has 24 in total and 8 of its own
//!             Linear_0 ────────────────
//!               addmm ───────
//! thread 2                 └──────────►  evaluate_function: AddmmBackward0 ────────    backward of Linear_0
//! ```

use rustc_hash::FxHashMap;
use trace::name_rules::{evaluates, module_name};
use trace::rank::{Launches, enclosing};
use trace::{FlowKind, ModuleStatsRow, Text};

use model::{Kind, RankData};

/// Calls nested deeper count for the module around them. A model has some ten levels.
pub const MOST_LEVELS: usize = 64;
/// No call, or no module.
const NONE: u32 = u32::MAX;

/// Calls and own times of one pass.
#[derive(Clone, Copy, Debug, Default)]
struct Pass {
    calls: i64,
    host_ns: i64,
    device_ns: i64,
}

/// A module below another.
#[derive(Debug)]
struct Node {
    parent: u32,
    level: usize,
    /// Index in the rank's names.
    name: u32,
    forward: Pass,
    backward: Pass,
}

/// A call of a module, or an operator of its backward pass. Calls inside it are cut at its end and do not overlap, so
/// that its own time and theirs sum to its length.
#[derive(Debug)]
struct Call {
    node: u32,
    is_backward: bool,
    is_kept: bool,
    /// The end of the last call inside, or its own start.
    free_from_ns: i64,
    end_ns: i64,
    own_ns: i64,
}

#[derive(Debug, Default)]
struct Tree {
    nodes: Vec<Node>,
    numbers: FxHashMap<(u32, u32), u32>,
    calls: Vec<Call>,
}

/// The modules of a rank, each after its parent, the longest first.
pub(crate) fn module_stats(data: &RankData, launches: &Launches, keep: &dyn Fn(usize) -> bool) -> Vec<ModuleStatsRow> {
    let is_module: Vec<bool> = data.names.iter().map(|name| module_name(name).is_some()).collect();
    if !is_module.contains(&true) {
        return Vec::new();
    }
    let events = &data.events;
    let forward_of = backward_units(data);
    let mut tree = Tree::default();
    // The innermost call around each row, or the row's own.
    let mut call_of = vec![NONE; events.len()];
    for row in (0..events.len()).filter(|row| !events.kind[*row].is_device_work()) {
        let around = enclosing(events, row).map_or(NONE, |parent| call_of[parent]);
        call_of[row] = around;
        let span = (events.ts_ns[row], events.end_ns(row));
        if events.kind[row] == Kind::PythonFunction && is_module[events.name[row] as usize] {
            call_of[row] = tree.call_module(around, events.name[row], span, keep(row));
        } else if let Some(forward) = forward_of.get(&(row as u32)) {
            call_of[row] = tree.call_backward(around, call_of[*forward as usize], span, keep(row));
        }
    }
    for row in (0..events.len()).filter(|row| events.kind[*row].is_device_work() && keep(*row)) {
        let Some(launch) = launches.of(events.correlation[row]) else { continue };
        if let Some(call) = tree.calls.get(call_of[launch as usize] as usize) {
            let (node, is_backward) = (call.node, call.is_backward);
            let pass = tree.pass(node, is_backward);
            pass.device_ns = pass.device_ns.saturating_add(events.dur_ns[row]);
        }
    }
    tree.add_calls();
    tree.rows(data)
}

/// The forward operator of each row that runs a backward operator: of the row in which autograd's engine evaluates it,
/// or of itself.
pub fn backward_units(data: &RankData) -> FxHashMap<u32, u32> {
    let arrows = || data.flows.iter().filter(|flow| flow.kind == FlowKind::Fwdbwd);
    let mut rows: FxHashMap<i64, u32> = arrows().flat_map(|flow| [(flow.src_id, NONE), (flow.dst_id, NONE)]).collect();
    for (row, id) in data.events.id.iter().enumerate() {
        if let Some(slot) = rows.get_mut(id) {
            *slot = row as u32;
        }
    }
    let row_of = |id: i64| rows.get(&id).copied().filter(|row| *row != NONE);
    let name = |row: usize| &*data.names[data.events.name[row] as usize];
    let unit = |row: u32| match enclosing(&data.events, row as usize) {
        Some(parent) if evaluates(name(parent), name(row as usize)) => parent as u32,
        _ => row,
    };
    let pairs = arrows().filter_map(|flow| Some((unit(row_of(flow.dst_id)?), row_of(flow.src_id)?)));
    // A forward operator begins before its backward operator. Other arrows are damaged.
    pairs.filter(|(backward, forward)| forward < backward).collect()
}

impl Tree {
    /// Adds a call of a module inside of the call `around`, and returns its number.
    fn call_module(&mut self, around: u32, name: u32, span: (i64, i64), is_kept: bool) -> u32 {
        let outer = self.calls.get(around as usize);
        // Modules that are called while a backward operator runs compute again what the forward pass dropped.
        let is_backward = outer.is_some_and(|outer| outer.is_backward);
        let parent = outer.map_or(NONE, |outer| outer.node);
        let level = self.nodes.get(parent as usize).map_or(0, |parent| parent.level + 1);
        if level >= MOST_LEVELS {
            return around;
        }
        let next = self.nodes.len() as u32;
        let node = *self.numbers.entry((parent, name)).or_insert(next);
        if node == next {
            let (forward, backward) = (Pass::default(), Pass::default());
            self.nodes.push(Node { parent, level, name, forward, backward });
        }
        self.call(around, node, is_backward, span, is_kept)
    }

    /// Adds a backward operator, whose forward operator ran in the call `forward`.
    fn call_backward(&mut self, around: u32, forward: u32, span: (i64, i64), is_kept: bool) -> u32 {
        match self.calls.get(forward as usize) {
            Some(forward) => self.call(around, forward.node, true, span, is_kept),
            None => around,
        }
    }

    fn call(&mut self, around: u32, node: u32, is_backward: bool, (start, end): (i64, i64), is_kept: bool) -> u32 {
        let (mut start_ns, mut end_ns) = (start, end);
        if let Some(outer) = self.calls.get_mut(around as usize) {
            start_ns = start.max(outer.free_from_ns).min(outer.end_ns);
            end_ns = end.min(outer.end_ns).max(start_ns);
            outer.own_ns -= end_ns - start_ns;
            outer.free_from_ns = end_ns;
        }
        let own_ns = end_ns.saturating_sub(start_ns);
        self.calls.push(Call { node, is_backward, is_kept, free_from_ns: start_ns, end_ns, own_ns });
        self.calls.len() as u32 - 1
    }

    fn pass(&mut self, node: u32, is_backward: bool) -> &mut Pass {
        let node = &mut self.nodes[node as usize];
        if is_backward { &mut node.backward } else { &mut node.forward }
    }

    /// Adds the kept calls to their modules.
    fn add_calls(&mut self) {
        for call in std::mem::take(&mut self.calls).into_iter().filter(|call| call.is_kept) {
            let pass = self.pass(call.node, call.is_backward);
            pass.calls += 1;
            pass.host_ns = pass.host_ns.saturating_add(call.own_ns);
        }
    }

    /// The rows of all modules with calls or time.
    fn rows(self, data: &RankData) -> Vec<ModuleStatsRow> {
        let name = |node: &Node| module_name(&data.names[node.name as usize]).unwrap_or_default();
        let mut rows: Vec<ModuleStatsRow> = Vec::with_capacity(self.nodes.len());
        // A parent precedes its children.
        for node in &self.nodes {
            let parent_path: Option<Text> = rows.get(node.parent as usize).map(|parent| parent.path.clone());
            let path = parent_path.as_ref().map_or_else(|| name(node).into(), |p| format!("{p}.{}", name(node)).into());
            rows.push(ModuleStatsRow {
                rank: data.outline.info.rank,
                path,
                parent_path,
                depth: node.level as i32,
                module: name(node).into(),
                calls: node.forward.calls,
                host_total_ns: node.forward.host_ns,
                host_self_ns: node.forward.host_ns,
                device_total_ns: node.forward.device_ns,
                device_self_ns: node.forward.device_ns,
                backward_calls: node.backward.calls,
                backward_host_total_ns: node.backward.host_ns,
                backward_host_self_ns: node.backward.host_ns,
                backward_device_total_ns: node.backward.device_ns,
                backward_device_self_ns: node.backward.device_ns,
            });
        }
        let mut children: Vec<Vec<usize>> = vec![Vec::new(); rows.len()];
        let mut roots = Vec::new();
        for (at, node) in self.nodes.iter().enumerate().rev() {
            if node.parent == NONE {
                roots.push(at);
            } else {
                add_totals(&mut rows, node.parent as usize, at);
                children[node.parent as usize].push(at);
            }
        }
        in_order(rows, roots, children)
    }
}

/// Adds the totals of a child to those of its parent.
fn add_totals(rows: &mut [ModuleStatsRow], parent: usize, child: usize) {
    let totals: [fn(&mut ModuleStatsRow) -> &mut i64; 4] = [
        |row| &mut row.host_total_ns,
        |row| &mut row.device_total_ns,
        |row| &mut row.backward_host_total_ns,
        |row| &mut row.backward_device_total_ns,
    ];
    for total in totals {
        let more = *total(&mut rows[child]);
        let sum = total(&mut rows[parent]);
        *sum = sum.saturating_add(more);
    }
}

/// Each module after its parent, the longest first. Modules without time, of steps that were not chosen, are left out.
fn in_order(rows: Vec<ModuleStatsRow>, roots: Vec<usize>, children: Vec<Vec<usize>>) -> Vec<ModuleStatsRow> {
    let time_ns = |at: &usize| {
        let row = &rows[*at];
        let host = row.host_total_ns.saturating_add(row.backward_host_total_ns);
        host.saturating_add(row.device_total_ns).saturating_add(row.backward_device_total_ns)
    };
    let is_used = |at: &usize| time_ns(at) > 0 || rows[*at].calls > 0 || rows[*at].backward_calls > 0;
    let mut ordered = Vec::with_capacity(rows.len());
    let mut next = roots;
    let by_time = |list: &mut Vec<usize>| {
        list.retain(is_used);
        // The last is taken first.
        list.sort_by(|a, b| time_ns(a).cmp(&time_ns(b)).then_with(|| rows[*b].path.cmp(&rows[*a].path)));
    };
    by_time(&mut next);
    while let Some(at) = next.pop() {
        ordered.push(rows[at].clone());
        let mut inside = children[at].clone();
        by_time(&mut inside);
        next.append(&mut inside);
    }
    ordered
}

#[cfg(test)]
mod tests {
    use trace::FlowRow;

    use super::*;
    use drawn::Drawn;

    fn rows(data: &RankData) -> Vec<ModuleStatsRow> {
        module_stats(data, &Launches::collect(&data.events), &|_| true)
    }

    fn host(row: &ModuleStatsRow) -> (&str, i64, i64, i64) {
        (&row.path, row.calls, row.host_total_ns, row.host_self_ns)
    }

    #[test]
    fn own_and_inner_times_sum_to_the_total() {
        let data = Drawn::rank(3)
            .host(Kind::PythonFunction, "train.py(7): step", 1, "####################..####")
            .host(Kind::PythonFunction, "nn.Module: Block_0", 1, ".###############......####")
            .host(Kind::PythonFunction, "nn.Module: Norm_0", 1, "..##......................")
            .host(Kind::PythonFunction, "nn.Module: Linear_0", 1, ".....#######...........##.")
            .host(Kind::CpuOp, "aten::addmm", 1, "......####................")
            .data();
        let rows = rows(&data);
        let found: Vec<_> = rows.iter().map(host).collect();
        assert_eq!(found, [("Block_0", 2, 19, 8), ("Block_0.Linear_0", 2, 9, 9), ("Block_0.Norm_0", 1, 2, 2)]);
        assert_eq!((rows[1].rank, rows[1].depth, rows[1].parent_path.as_deref()), (3, 1, Some("Block_0")));
    }

    #[test]
    fn device_work_counts_for_the_module_that_launched_it() {
        let data = Drawn::rank(0)
            .host(Kind::PythonFunction, "nn.Module: Block_0", 1, "##########......")
            .host(Kind::PythonFunction, "nn.Module: Linear_0", 1, ".####...........")
            .launches(1, "..#...#.....#...")
            .device(Kind::Kernel, "gemm", (0, 7), 1, ".......###......")
            .device(Kind::Kernel, "add", (0, 7), 2, "..........##....")
            .device(Kind::Kernel, "adam", (0, 7), 3, ".............##.")
            .data();
        let rows = rows(&data);
        let found: Vec<_> = rows.iter().map(|row| (&*row.module, row.device_total_ns, row.device_self_ns)).collect();
        assert_eq!(found, [("Block_0", 5, 2), ("Linear_0", 3, 3)]);
    }

    /// The backward operator of `addmm` runs on autograd's thread, and launches a kernel.
    #[test]
    fn a_backward_operator_counts_for_the_module_of_its_forward_operator() {
        let mut data = Drawn::rank(0)
            .host(Kind::PythonFunction, "nn.Module: Block_0", 1, "########..............")
            .host(Kind::PythonFunction, "nn.Module: Linear_0", 1, ".#####................")
            .host(Kind::CpuOp, "aten::addmm", 1, "..###.................")
            .host(Kind::CpuOp, "autograd::engine::evaluate_function: AddmmBackward0", 1, ".........########.....")
            .host(Kind::CpuOp, "AddmmBackward0", 1, "..........######......")
            .host(Kind::CpuOp, "autograd::engine::evaluate_function: AccumulateGrad", 1, "..................###.")
            .launches(1, "............#......#..")
            .device(Kind::Kernel, "gemm", (0, 7), 1, ".............####.....")
            .device(Kind::Kernel, "add", (0, 7), 2, "....................#.")
            .data();
        let id = |name: &str| {
            let row = (0..data.events.len()).find(|row| &*data.names[data.events.name[*row] as usize] == name);
            data.events.id[row.unwrap()]
        };
        let (src_id, dst_id) = (id("aten::addmm"), id("AddmmBackward0"));
        data.flows = vec![FlowRow { src_id, dst_id, kind: FlowKind::Fwdbwd.into(), ..FlowRow::default() }];
        let rows = rows(&data);
        let backward: Vec<_> = rows
            .iter()
            .map(|row| (&*row.module, row.backward_calls, row.backward_host_total_ns, row.backward_host_self_ns))
            .collect();
        assert_eq!(backward, [("Block_0", 0, 8, 0), ("Linear_0", 1, 8, 8)]);
        let device: Vec<_> = rows.iter().map(|r| (r.backward_device_total_ns, r.backward_device_self_ns)).collect();
        assert_eq!(device, [(4, 0), (4, 4)]);
        assert_eq!((rows[1].host_total_ns, rows[1].device_total_ns), (5, 0));
    }

    #[test]
    fn a_rank_without_modules_has_no_rows() {
        let data = Drawn::rank(0).host(Kind::PythonFunction, "train.py(1): step", 1, "####").data();
        assert_eq!(rows(&data), []);
    }

    #[test]
    fn endless_recursion_has_bounded_paths() {
        let mut data = Drawn::rank(0).data();
        data.names = vec!["nn.Module: Deep_0".into()];
        for row in 0..5000_i64 {
            let events = &mut data.events;
            events.kind.push(Kind::PythonFunction);
            events.name.push(0);
            events.ts_ns.push(row);
            events.dur_ns.push(20_000 - 2 * row);
            events.id.push(row);
            events.parent.push(u32::try_from(row - 1).unwrap_or(model::NO_PARENT));
            for column in [&mut events.thread, &mut events.device, &mut events.stream, &mut events.correlation] {
                column.push(model::NONE);
            }
        }
        let rows = rows(&data);
        assert_eq!((rows.len(), rows[0].host_total_ns), (MOST_LEVELS, 20_000));
    }

    proptest::proptest! {
        /// Invariant (numbers): The self times of modules sum to the total.
        ///
        /// Calls of random spans and parents, some beyond their parents.
        #[test]
        fn own_times_are_never_negative_and_sum_to_the_roots(
            spans in proptest::collection::vec((0_i64..100, 0_i64..100, 0_usize..40, 0_u32..4), 1..40)
        ) {
            let mut data = Drawn::rank(0).data();
            data.names = (0..4).map(|i| format!("nn.Module: M_{i}").into()).collect();
            let mut spans = spans;
            spans.sort_by_key(|(start, length, ..)| (*start, -*length));
            for (row, (start, length, parent, name)) in spans.iter().enumerate() {
                let events = &mut data.events;
                events.kind.push(Kind::PythonFunction);
                events.name.push(*name);
                events.ts_ns.push(*start);
                events.dur_ns.push(*length);
                events.id.push(row as i64);
                events.parent.push(if *parent < row { *parent as u32 } else { model::NO_PARENT });
                for column in [&mut events.thread, &mut events.device, &mut events.stream, &mut events.correlation] {
                    column.push(model::NONE);
                }
            }
            let rows = rows(&data);
            for row in &rows {
                let inside: i64 = rows
                    .iter()
                    .filter(|child| child.parent_path.as_ref() == Some(&row.path))
                    .map(|child| child.host_total_ns)
                    .sum();
                proptest::prop_assert!(row.host_self_ns >= 0);
                proptest::prop_assert_eq!(row.host_self_ns + inside, row.host_total_ns);
            }
            let own: i64 = rows.iter().map(|row| row.host_self_ns).sum();
            let of_roots: i64 = rows.iter().filter(|row| row.depth == 0).map(|row| row.host_total_ns).sum();
            proptest::prop_assert_eq!(own, of_roots);
            let roots = spans.iter().enumerate().filter(|(row, span)| span.2 >= *row);
            proptest::prop_assert_eq!(of_roots, roots.map(|(_, span)| span.1).sum::<i64>());
        }
    }
}
