//! A rank's rows as torch.profiler's function events: their nesting, their kernels, their memory.
//!
//! The rules are those of `torch.autograd.profiler` (`_parse_kineto_results`) and `profiler_util.EventList` of PyTorch
//! 2.15:
//!
//! ```text
//! thread   outer  |----------------------------|      a parent contains its child completely; a row that outlives its
//!            child   |-----------|                    enclosing row is not its child, and that row is popped
//!              same     |-----|                       an only child with its parent's name is merged into the parent
//! device                   |kernel|                   belongs to the deepest operator with its External id
//! memory            +    −                            counts for every row that contains it, on any thread
//! ```

use rustc_hash::FxHashMap;
use trace::{MemoryRow, name_rules};

use model::{Kind, NO_PARENT, NONE, RankData};
use trace::rank::Launches;

/// Names that torch filters out (`_filter_name`), as if the rows did not exist.
const LEFT_OUT: [&str; 7] = [
    "[OutOfMemory]",
    "profiler::_record_function_enter",
    "profiler::_record_function_enter_new",
    "profiler::_record_function_exit",
    "aten::is_leaf",
    "aten::output_nr",
    "aten::_version",
];

/// The role of a row in torch's event list.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Role {
    /// Filtered out.
    #[default]
    Absent,
    /// On a thread of the host.
    Host,
    /// On the host, but begins and ends on different threads.
    Async,
    /// On a device.
    Device,
}

/// Rows with their nesting, device time and memory. Each column has one entry for each event row of the rank.
#[derive(Clone, Debug, Default)]
pub(crate) struct Functions {
    pub(crate) role: Vec<Role>,
    /// The enclosing row, or [`NO_PARENT`].
    pub(crate) parent: Vec<u32>,
    /// Duration without that of the children.
    pub(crate) self_ns: Vec<i64>,
    /// Time of the device work that the row launched itself.
    pub(crate) kernel_ns: Vec<i64>,
    /// Time of the device work that the row and all rows inside it launched.
    pub(crate) device_ns: Vec<i64>,
    /// Bytes allocated minus released during the row, on the host and on devices; then without the children's. Empty
    /// without memory rows.
    pub(crate) bytes: Vec<[i64; 2]>,
    pub(crate) self_bytes: Vec<[i64; 2]>,
    /// The operator of each device row, or [`NO_PARENT`].
    pub(crate) operator: Vec<u32>,
    /// Indices of the memory rows that no row contains.
    pub(crate) loose: Vec<u32>,
}

impl Functions {
    /// Computes nesting, device time and memory of all rows.
    pub(crate) fn of(data: &RankData) -> Self {
        let events = &data.events;
        let rows = events.len();
        let mut functions = Self { role: roles(data), ..Self::default() };
        functions.parent = parents(data, &functions.role);
        functions.operator = operators(data, &functions.role, &functions.parent);
        functions.kernel_ns = vec![0; rows];
        for row in 0..rows {
            if let Some(operator) = row_of(functions.operator[row]) {
                functions.kernel_ns[operator] += events.dur_ns[row];
            }
        }
        if !data.memory.is_empty() {
            functions.count_memory(data);
        }
        functions.sum_children(data);
        functions
    }

    /// Merges each only child with its parent's name into the parent, then sums over the children. The sums come last,
    /// because a merged child hands its own children on.
    fn sum_children(&mut self, data: &RankData) {
        let events = &data.events;
        let mut children = Children::of(self, data);
        for row in 0..events.len() {
            let Some(parent) = self.alive_parent(row) else { continue };
            if children.count[parent] == 1 && same_name(data, row, parent) {
                self.kernel_ns[parent] = self.kernel_ns[row];
                children.replace(parent, row);
                self.role[row] = Role::Absent;
            }
        }
        self.self_ns = (0..events.len()).map(|row| events.dur_ns[row] - children.ns[row]).collect();
        self.self_bytes = self.bytes.clone();
        for (own, inside) in self.self_bytes.iter_mut().zip(&children.bytes) {
            own[0] -= inside[0];
            own[1] -= inside[1];
        }
        self.device_ns = self.kernel_ns.clone();
        // Children follow their parents.
        for row in (0..events.len()).rev() {
            if self.role[row] == Role::Host
                && let Some(parent) = row_of(self.parent[row])
            {
                self.device_ns[parent] += self.device_ns[row];
            }
        }
        for row in 0..events.len() {
            match self.role[row] {
                Role::Device => (self.device_ns[row], self.kernel_ns[row]) = (events.dur_ns[row], events.dur_ns[row]),
                Role::Async => (self.device_ns[row], self.kernel_ns[row], self.self_ns[row]) = (0, 0, 0),
                Role::Absent | Role::Host => {}
            }
        }
    }

    /// The row that encloses `row`, skipping rows that were merged into their parents.
    fn alive_parent(&mut self, row: usize) -> Option<usize> {
        let mut parent = row_of(self.parent[row])?;
        while self.role[parent] == Role::Absent {
            parent = row_of(self.parent[parent])?;
        }
        self.parent[row] = parent as u32;
        Some(parent)
    }

    /// Sums the memory within each host row by prefix sums, which may wrap as their differences do not, and collects the records outside all rows.
    fn count_memory(&mut self, data: &RankData) {
        let events = &data.events;
        let times: Vec<i64> = data.memory.iter().map(|m| m.ts_ns).collect();
        let mut sums = vec![[0_i64; 2]];
        for record in &data.memory {
            let mut sum = sums.last().copied().unwrap_or_default();
            let of_side = &mut sum[side(record)];
            *of_side = of_side.wrapping_add(record.delta_bytes);
            sums.push(sum);
        }
        self.bytes = vec![[0; 2]; events.len()];
        let mut reach = i64::MIN;
        let mut next = 0;
        for row in (0..events.len()).filter(|row| matches!(self.role[*row], Role::Host | Role::Async)) {
            let (start, end) = (events.ts_ns[row], events.end_ns(row));
            while times.get(next).is_some_and(|t| *t < start) {
                if times[next] > reach {
                    self.loose.push(next as u32);
                }
                next += 1;
            }
            reach = reach.max(end);
            // Both ends are inclusive.
            let from = sums[times.partition_point(|t| *t < start)];
            let to = sums[times.partition_point(|t| *t <= end)];
            self.bytes[row] = [to[0].wrapping_sub(from[0]), to[1].wrapping_sub(from[1])];
        }
        let rest = next..times.len();
        self.loose.extend(rest.filter(|at| times[*at] > reach).map(|at| at as u32));
    }
}

/// Side of a memory row: 0 is the host, 1 a device.
pub(crate) fn side(record: &MemoryRow) -> usize {
    usize::from(record.device_id.is_some())
}

fn row_of(row: u32) -> Option<usize> {
    (row != NO_PARENT).then_some(row as usize)
}

fn same_name(data: &RankData, a: usize, b: usize) -> bool {
    let name = |row: usize| fold(&data.names[data.events.name[row] as usize]);
    data.events.name[a] == data.events.name[b] || name(a) == name(b)
}

/// The name under which torch counts a row: all steps share one name.
pub(crate) fn fold(name: &str) -> &str {
    if name_rules::is_step(name) { name_rules::ALL_STEPS } else { name }
}

/// Sums over the children of each row.
struct Children {
    count: Vec<u32>,
    ns: Vec<i64>,
    bytes: Vec<[i64; 2]>,
}

impl Children {
    fn of(functions: &Functions, data: &RankData) -> Self {
        let rows = data.events.len();
        let mut children = Self { count: vec![0; rows], ns: vec![0; rows], bytes: vec![[0; 2]; functions.bytes.len()] };
        for row in 0..rows {
            let Some(parent) = row_of(functions.parent[row]) else { continue };
            children.count[parent] += 1;
            children.ns[parent] += data.events.dur_ns[row];
            if let Some(bytes) = functions.bytes.get(row) {
                children.bytes[parent][0] += bytes[0];
                children.bytes[parent][1] += bytes[1];
            }
        }
        children
    }

    /// Makes the children of `child` those of `parent`.
    fn replace(&mut self, parent: usize, child: usize) {
        self.count[parent] = self.count[child];
        self.ns[parent] = self.ns[child];
        if !self.bytes.is_empty() {
            self.bytes[parent] = self.bytes[child];
        }
    }
}

fn roles(data: &RankData) -> Vec<Role> {
    let left_out: Vec<bool> = data.names.iter().map(|name| LEFT_OUT.contains(&&**name)).collect();
    // A range of a back end takes part in no nesting and has no time of its own.
    let is_async: Vec<bool> = data.names.iter().map(|name| name_rules::is_backend_range(name)).collect();
    let events = &data.events;
    let role = |(kind, name): (&Kind, &u32)| match kind {
        _ if left_out[*name as usize] => Role::Absent,
        Kind::CpuOp | Kind::UserAnnotation if is_async[*name as usize] => Role::Async,
        Kind::CpuOp | Kind::UserAnnotation | Kind::PythonFunction | Kind::Runtime | Kind::Driver | Kind::Overhead => {
            Role::Host
        }
        Kind::Kernel | Kind::GpuMemcpy | Kind::GpuMemset | Kind::GpuUserAnnotation | Kind::Sync => Role::Device,
        Kind::Other => Role::Absent,
    };
    events.kind.iter().zip(&events.name).map(role).collect()
}

/// Torch's nesting (`_populate_cpu_children`). Rows must be sorted by start, then longest first.
fn parents(data: &RankData, role: &[Role]) -> Vec<u32> {
    let events = &data.events;
    let mut parents = vec![NO_PARENT; events.len()];
    let mut stacks: FxHashMap<i64, Vec<u32>> = FxHashMap::default();
    for row in (0..events.len()).filter(|row| role[*row] == Role::Host) {
        let stack = stacks.entry(events.thread[row]).or_default();
        let (start, end) = (events.ts_ns[row], events.end_ns(row));
        while let Some(top) = stack.last() {
            let top_end = events.end_ns(*top as usize);
            if start < top_end && end <= top_end {
                parents[row] = *top;
                break;
            }
            stack.pop();
        }
        stack.push(row as u32);
    }
    parents
}

/// The operator of each device row: the one with its External id, as in torch.
///
/// In traces of 2023 a kernel's External id names no operator, or by accident an unrelated one. The operator must
/// therefore also enclose the launch. If it does not, or if the run has no External ids, the innermost operator or
/// range around the launch is used: torch took the id from it. In a trace with ids, a row without an id or with id 0
/// has no operator.
///
/// The work of a CUDA graph belongs to the call that launched the graph if no operator is around that call. Torch gives it
/// to nobody, so this differs from torch.
fn operators(data: &RankData, role: &[Role], parent: &[u32]) -> Vec<u32> {
    let events = &data.events;
    let mut operators = vec![NO_PARENT; events.len()];
    let is_operator =
        |row: usize| role[row] == Role::Host && matches!(events.kind[row], Kind::CpuOp | Kind::UserAnnotation);
    let is_linked = |row: usize| events.external[row] != NONE && events.external[row] != 0;
    let mut by_id: FxHashMap<i64, u32> = FxHashMap::default();
    let launches = Launches::collect(events);
    for row in 0..events.len() {
        if is_operator(row) && is_linked(row) {
            by_id.entry(events.external[row]).or_insert(row as u32);
        }
    }
    // The operator or range around each row, itself included. Children follow their parents.
    let mut innermost = vec![NO_PARENT; events.len()];
    for row in 0..events.len() {
        let around = row_of(parent[row]).map_or(NO_PARENT, |parent| innermost[parent]);
        innermost[row] = if is_operator(row) { row as u32 } else { around };
    }
    let is_device = |row: &usize| role[*row] == Role::Device;
    let any_linked = (0..events.len()).filter(is_device).any(is_linked);
    let launches_graph: Vec<bool> = data.names.iter().map(|name| name_rules::launches_graph(name)).collect();
    let is_alone = |launch: &usize| {
        launches_graph[events.name[*launch] as usize]
            && role[*launch] == Role::Host
            && !in_operator(data, parent, *launch)
    };
    for row in (0..events.len()).filter(is_device) {
        let launch = launches.of(events.correlation[row]).map(|launch| launch as usize);
        if let Some(launch) = launch.filter(is_alone) {
            operators[row] = launch as u32;
            continue;
        }
        if !is_linked(row) && any_linked {
            continue;
        }
        let named = if is_linked(row) { by_id.get(&events.external[row]).copied() } else { None };
        let around = |op: &u32| launch.is_none_or(|launch| encloses(data, *op as usize, launch));
        if let Some(op) = named.filter(around) {
            operators[row] = op;
            continue;
        }
        operators[row] = launch.map_or(NO_PARENT, |launch| innermost[launch]);
    }
    operators
}

/// Whether an operator is around the row.
fn in_operator(data: &RankData, parent: &[u32], row: usize) -> bool {
    let around = std::iter::successors(row_of(parent[row]), |row| row_of(parent[*row]));
    around.into_iter().any(|row| data.events.kind[row] == Kind::CpuOp)
}

fn encloses(data: &RankData, outer: usize, inner: usize) -> bool {
    let events = &data.events;
    let starts_in = events.ts_ns[outer] <= events.ts_ns[inner] && events.ts_ns[inner] < events.end_ns(outer);
    starts_in && events.thread[outer] == events.thread[inner]
}

#[cfg(test)]
mod tests {
    use super::*;
    use drawn::Drawn;

    fn find(data: &RankData, name: &str) -> usize {
        (0..data.events.len()).find(|row| &*data.names[data.events.name[*row] as usize] == name).unwrap()
    }

    /// `late` begins in `inner` and outlives it, so it has no parent. `after` lies in `outer` by time but has no parent
    /// either.
    #[test]
    fn a_row_that_outlives_its_parent_is_not_a_child() {
        let data = Drawn::rank(0)
            .host(Kind::CpuOp, "outer", 1, "############...")
            .host(Kind::CpuOp, "inner", 1, ".####..........")
            .host(Kind::CpuOp, "late", 1, "...###########.")
            .host(Kind::CpuOp, "after", 1, "......##.......")
            .data();
        let functions = Functions::of(&data);
        let parent = |name: &str| row_of(functions.parent[find(&data, name)]);
        assert_eq!(parent("inner"), Some(find(&data, "outer")));
        assert_eq!(parent("late"), None);
        assert_eq!(parent("after"), Some(find(&data, "late")));
        assert_eq!(functions.self_ns[find(&data, "outer")], 8);
        assert_eq!(functions.self_ns[find(&data, "late")], 9);
    }

    #[test]
    fn an_only_child_with_its_parents_name_is_merged() {
        let data = Drawn::rank(0)
            .host(Kind::CpuOp, "add", 1, "########")
            .host(Kind::CpuOp, "add", 1, ".######.")
            .host(Kind::CpuOp, "add", 1, "..####..")
            .host(Kind::CpuOp, "copy", 1, "...##...")
            .data();
        let functions = Functions::of(&data);
        assert_eq!(functions.role, [Role::Host, Role::Absent, Role::Absent, Role::Host]);
        assert_eq!(functions.self_ns[0], 6);
        assert_eq!(functions.parent[3], 0);
    }

    #[test]
    fn collectives_that_end_on_another_thread_do_not_nest() {
        let data = Drawn::rank(0)
            .host(Kind::UserAnnotation, "gloo:all_reduce", 1, "########")
            .host(Kind::CpuOp, "add", 1, ".##.....")
            .data();
        let functions = Functions::of(&data);
        assert_eq!(functions.role[0], Role::Async);
        assert_eq!((functions.self_ns[0], functions.parent[1]), (0, NO_PARENT));
    }

    /// Without External ids a kernel belongs to the innermost operator around its launch. The total of `outer` includes
    /// it.
    #[test]
    fn device_time_goes_to_the_deepest_operator() {
        let data = Drawn::rank(0)
            .host(Kind::CpuOp, "outer", 1, "##########..")
            .host(Kind::CpuOp, "inner", 1, ".####.......")
            .launches(7, "..#.........")
            .device(Kind::Kernel, "gemm", (0, 7), 7, "......#####.")
            .data();
        let functions = Functions::of(&data);
        let (outer, inner, kernel) = (find(&data, "outer"), find(&data, "inner"), find(&data, "gemm"));
        assert_eq!(functions.operator[kernel], inner as u32);
        assert_eq!((functions.kernel_ns[outer], functions.device_ns[outer]), (0, 5));
        assert_eq!((functions.kernel_ns[inner], functions.device_ns[inner]), (5, 5));
        assert_eq!((functions.kernel_ns[kernel], functions.device_ns[kernel]), (5, 5));
    }

    /// The call has its kernels' time, and so has the range around it in total. In an operator, the operator has it.
    #[test]
    fn a_graph_outside_of_operators_belongs_to_its_call() {
        let graph = |kind| {
            Drawn::rank(0)
                .host(kind, "around", 1, "######......")
                .host(Kind::Runtime, "cudaGraphLaunch", 1, "..#.........")
                .device(Kind::Kernel, "gemm", (0, 7), 2, "......##.##.")
                .data()
        };
        let times = |mut data: RankData| {
            let call = find(&data, "cudaGraphLaunch");
            data.events.correlation.fill(2);
            let around = find(&data, "around");
            data.events.correlation[around] = NONE;
            let functions = Functions::of(&data);
            [call, around].map(|row| (functions.kernel_ns[row], functions.device_ns[row]))
        };
        assert_eq!(times(graph(Kind::UserAnnotation)), [(4, 4), (0, 4)]);
        assert_eq!(times(graph(Kind::CpuOp)), [(0, 0), (4, 4)]);
    }

    /// The kernel's External id is by accident that of `far`, which does not enclose its launch.
    #[test]
    fn an_impossible_external_id_is_ignored() {
        let mut data = Drawn::rank(0)
            .host(Kind::CpuOp, "near", 1, "####......")
            .host(Kind::CpuOp, "far", 1, ".....####.")
            .launches(7, "..#.......")
            .device(Kind::Kernel, "gemm", (0, 7), 7, "....####..")
            .data();
        let (near, far, kernel) = (find(&data, "near"), find(&data, "far"), find(&data, "gemm"));
        (data.events.external[far], data.events.external[kernel]) = (5, 5);
        assert_eq!(Functions::of(&data).operator[kernel], near as u32);
        (data.events.external[far], data.events.external[near]) = (6, 5);
        assert_eq!(Functions::of(&data).operator[kernel], near as u32);
    }

    /// Memory counts for all rows that contain it, on any thread. Both ends of a row are inclusive.
    #[test]
    fn memory_counts_for_every_row_that_contains_it() {
        let mut data = Drawn::rank(0)
            .host(Kind::CpuOp, "outer", 1, ".#######....")
            .host(Kind::CpuOp, "inner", 1, "..##........")
            .host(Kind::CpuOp, "other", 2, "...##.......")
            .data();
        let record = |ts_ns, delta_bytes| MemoryRow { ts_ns, delta_bytes, ..MemoryRow::default() };
        data.memory = vec![record(0, 1), record(2, 10), record(4, 100), record(8, 1000), record(9, 10_000)];
        let functions = Functions::of(&data);
        let bytes = |name: &str| (functions.bytes[find(&data, name)][0], functions.self_bytes[find(&data, name)][0]);
        assert_eq!(bytes("outer"), (1110, 1000));
        assert_eq!(bytes("inner"), (110, 110));
        assert_eq!(bytes("other"), (100, 100));
        assert_eq!(functions.loose, [0, 4]);
    }
}
