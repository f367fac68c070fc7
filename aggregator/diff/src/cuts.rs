//! The work of a rank by category, by module and by source line. A compiler, another device and another size give kernels
//! other names and shapes; these sums can still be compared.
//!
//! Work is what devices do. On a rank without devices it is the operators by themselves. It belongs to the modules and to the
//! innermost Python function of the user around its launch. Work of the backward pass belongs to those of its forward operator:
//!
//! ```text
//! thread 1  train.py(7): step ─────────         addmm's kernel: train.py(7), Block_0, Block_0.Linear_0
//!             Block_0 ───────────────
//!               Linear_0 ───────────
//!                 addmm ──────
//! thread 2             └──────────►  AddmmBackward0 ───        its kernel: the same
//! ```

use std::collections::{BTreeMap, BTreeSet};

use measure::modules::{MOST_LEVELS, backward_units};
use rustc_hash::{FxHashMap, FxHashSet};
use trace::kernel_rules::kernel_category;
use trace::name_rules::{self, module_name};
use trace::rank::{Details, Launches, enclosing};
use trace::{KernelCategory, Text, fnv_1a};

use crate::key::{Group, Key, Measure, RankProfile};
use crate::series::Series;
use model::{Kind, NONE, RankData};

/// No module, or no function.
const NOWHERE: u32 = u32::MAX;

/// A module below another one.
struct Node {
    parent: u32,
    level: usize,
    name: u32,
}

/// For each row of the host, the innermost module and the innermost function of the user around it.
struct Origins {
    nodes: Vec<Node>,
    module: Vec<u32>,
    functions: Vec<Text>,
    function: Vec<u32>,
}

impl Origins {
    fn of(data: &RankData, details: &Details) -> Self {
        let events = &data.events;
        let nowhere = || vec![NOWHERE; events.len()];
        let mut found = Self { nodes: Vec::new(), module: nowhere(), functions: Vec::new(), function: nowhere() };
        let forward_of = backward_units(data);
        let is_module: Vec<bool> = data.names.iter().map(|name| module_name(name).is_some()).collect();
        let is_own: Vec<bool> = data.names.iter().map(|name| name_rules::is_users_python(name)).collect();
        let mut numbers: FxHashMap<(u32, u32), u32> = FxHashMap::default();
        let mut functions: FxHashMap<Text, u32> = FxHashMap::default();
        for row in (0..events.len()).filter(|row| !events.kind[*row].is_device_work()) {
            let around = forward_of.get(&(row as u32)).map(|row| *row as usize).or_else(|| enclosing(events, row));
            let (mut module, mut function) =
                around.map_or((NOWHERE, NOWHERE), |row| (found.module[row], found.function[row]));
            let name = events.name[row];
            let calls = events.kind[row] == Kind::PythonFunction;
            let level = found.nodes.get(module as usize).map_or(0, |node| node.level + 1);
            if calls && is_module[name as usize] && level < MOST_LEVELS {
                let next = found.nodes.len() as u32;
                let number = *numbers.entry((module, name)).or_insert(next);
                if number == next {
                    found.nodes.push(Node { parent: module, level, name });
                }
                module = number;
            }
            let stack =
                || details.stack(row).and_then(|s| s.rsplit(';').find(|frame| name_rules::is_users_python(frame)));
            let text = if calls && is_own[name as usize] {
                Some(data.names[name as usize].clone())
            } else if function == NOWHERE {
                stack().map(Text::from)
            } else {
                None
            };
            if let Some(text) = text {
                let next = found.functions.len() as u32;
                function = *functions.entry(text.clone()).or_insert(next);
                if function == next {
                    found.functions.push(text);
                }
            }
            (found.module[row], found.function[row]) = (module, function);
        }
        found
    }

    /// The paths of the modules: `Model_0.Block_3.Linear_7`.
    fn paths(&self, data: &RankData) -> Vec<Text> {
        let mut paths: Vec<Text> = Vec::with_capacity(self.nodes.len());
        for node in &self.nodes {
            let name = module_name(&data.names[node.name as usize]).unwrap_or_default();
            // A parent precedes its children.
            let path = paths.get(node.parent as usize).map_or_else(|| name.into(), |above| format!("{above}.{name}"));
            paths.push(path.into());
        }
        paths
    }
}

/// Adds the sums of a rank's work to its profile. `own_ns` has the time of each row by itself.
pub(crate) fn add(profile: &mut RankProfile, data: &RankData, details: &Details, own_ns: &[i64]) {
    let events = &data.events;
    let has_devices = events.kind.iter().any(|kind| kind.is_device_work());
    let launches = Launches::collect(events);
    let origins = Origins::of(data, details);
    let mut sums: FxHashMap<(Group, u32), Series> = FxHashMap::default();
    let categories: Vec<KernelCategory> = data.names.iter().map(|name| kernel_category(name)).collect();
    for row in 0..events.len() {
        let Ok(at) = profile.steps.binary_search(&events.step[row]) else { continue };
        let kind = events.kind[row];
        let host = match kind {
            _ if kind.is_device_work() => launches.of(events.correlation[row]).map(|launch| launch as usize),
            Kind::CpuOp if !has_devices => Some(row),
            _ => continue,
        };
        let ns = if kind.is_device_work() { events.dur_ns[row] } else { own_ns[row] } as f64;
        let mut add = |group: Group, number: u32| sums.entry((group, number)).or_default().add(at, ns);
        if kind.is_device_work() {
            let category = match kind {
                _ if events.is_comm[row] => KernelCategory::Communication,
                Kind::Kernel => categories[events.name[row] as usize],
                _ => KernelCategory::Copy,
            };
            add(Group::Category, category as u32);
        }
        // A collective waits for other ranks. That time is not work of a module.
        let Some(host) = host.filter(|_| !events.is_comm[row]) else { continue };
        let mut module = origins.module[host];
        while let Some(node) = origins.nodes.get(module as usize) {
            add(Group::Module, module);
            module = node.parent;
        }
        if origins.function[host] != NOWHERE {
            add(Group::Source, origins.function[host]);
        }
    }
    let paths = origins.paths(data);
    let measure = if has_devices { Measure::Device } else { Measure::SelfTime };
    let sums: Vec<_> = sums.into_iter().collect();
    for ((group, number), mut series) in sums {
        let name = match group {
            Group::Module => paths.get(number as usize).cloned(),
            Group::Source => origins.functions.get(number as usize).cloned(),
            _ => KernelCategory::ALL.get(number as usize).map(|category| category.as_str().into()),
        };
        let Some(name) = name else { continue };
        series.settle();
        profile.series.insert(Key { name, ..Key::new(group, "", measure) }, series);
    }
}

/// Hashes of the shapes of the operators that launched the kernels of each name and number of blocks.
pub(crate) fn inputs(
    data: &RankData,
    details: &Details,
    blocks: &FxHashMap<i64, i64>,
) -> BTreeMap<(u32, i64), BTreeSet<u64>> {
    let events = &data.events;
    let launches = Launches::collect(events);
    let mut shapes: BTreeMap<(u32, i64), FxHashSet<&Text>> = BTreeMap::new();
    for row in (0..events.len()).filter(|row| events.kind[*row] == Kind::Kernel) {
        let mut host = launches.of(events.correlation[row]).map(|launch| launch as usize);
        while let Some(at) = host {
            if let Some(shape) = details.shape(at).filter(|_| events.kind[at] == Kind::CpuOp) {
                let blocks = blocks.get(&events.id[row]).copied().unwrap_or(NONE);
                shapes.entry((events.name[row], blocks)).or_default().insert(shape);
                break;
            }
            host = enclosing(events, at);
        }
    }
    let hashed = |shapes: FxHashSet<&Text>| shapes.into_iter().map(|shape| fnv_1a(shape.bytes())).collect();
    shapes.into_iter().map(|(kernel, shapes)| (kernel, hashed(shapes))).collect()
}

#[cfg(test)]
mod tests {
    use trace::{FlowKind, FlowRow};

    use super::*;
    use crate::profile::profile_rank;
    use drawn::Drawn;
    use model::options::Options;

    /// The rows of a cut and their sums in the only step.
    fn sums(data: &RankData, group: Group) -> Vec<(String, Measure, f64)> {
        let profile = profile_rank(data, &Details::default(), &Options::default());
        let of_group = profile.series.iter().filter(|(key, _)| key.group == group);
        of_group.map(|(key, series)| (key.name.to_string(), key.measure, series.values().sum())).collect()
    }

    /// `step` calls a block with a product, whose backward operator runs later.
    fn drawn() -> Drawn {
        Drawn::rank(0)
            .steps("##########################")
            .host(Kind::PythonFunction, "train.py(7): step", 1, "############..............")
            .host(Kind::PythonFunction, "nn.Module: Block_0", 1, ".########.................")
            .host(Kind::PythonFunction, "nn.Module: Linear_0", 1, "..######..................")
            .host(Kind::PythonFunction, "torch/nn/functional.py(9): linear", 1, "..######..................")
            .host(Kind::CpuOp, "aten::addmm", 1, "...####...................")
            .host(Kind::CpuOp, "AddmmBackward0", 1, "............######........")
    }

    fn with_arrow(mut data: RankData) -> RankData {
        let id = |name: &str| {
            let row = (0..data.events.len()).find(|row| &*data.names[data.events.name[*row] as usize] == name);
            data.events.id[row.unwrap()]
        };
        let (src_id, dst_id) = (id("aten::addmm"), id("AddmmBackward0"));
        data.flows = vec![FlowRow { src_id, dst_id, kind: FlowKind::Fwdbwd.into(), ..FlowRow::default() }];
        data
    }

    #[test]
    fn work_of_devices_is_summed_by_category_module_and_function() {
        let data = drawn()
            .launches(1, "....#.....#...#...........")
            .device(Kind::Kernel, "sgemm", (0, 7), 1, "......###.................")
            .device(Kind::GpuMemcpy, "Memcpy HtoD", (0, 7), 2, "...........##.............")
            .device(Kind::Kernel, "sgemm", (0, 7), 3, "...............####.......")
            .device(Kind::Kernel, "lost", (0, 7), 9, "....................##....")
            .data();
        let data = with_arrow(data);
        let of_device = |name: &str, ns: f64| (name.to_string(), Measure::Device, ns);
        let modules = [of_device("Block_0", 7.0), of_device("Block_0.Linear_0", 7.0)];
        assert_eq!(sums(&data, Group::Module), modules);
        // The copy has no module, and the work without a launch has no place.
        assert_eq!(sums(&data, Group::Source), [of_device("train.py(7): step", 9.0)]);
        let categories = [of_device("copy", 2.0), of_device("gemm", 7.0), of_device("other", 2.0)];
        assert_eq!(sums(&data, Group::Category), categories);
    }

    #[test]
    fn without_a_device_operators_are_summed_by_themselves() {
        let data = with_arrow(drawn().data());
        let own = |name: &str, ns: f64| (name.to_string(), Measure::SelfTime, ns);
        assert_eq!(sums(&data, Group::Module), [own("Block_0", 10.0), own("Block_0.Linear_0", 10.0)]);
        assert_eq!(sums(&data, Group::Source), [own("train.py(7): step", 10.0)]);
        assert_eq!(sums(&data, Group::Category), []);
    }
}
