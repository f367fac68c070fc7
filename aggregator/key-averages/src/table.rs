//! torch.profiler's `key_averages`: the cost of operators, kernels and ranges, grouped by name and one more property.
//!
//! Rows, columns and sums equal those of PyTorch 2.15, including its nesting rules (module `functions`). Times are
//! integers in ns here; torch adds the same times as floating-point µs.

mod average;
mod functions;
mod groups;
mod sort;

pub use average::{Average, GroupBy, KeyAverages, TableOptions};
pub use sort::SortKey;

use std::ops::Range;

use rustc_hash::FxHashMap;
use trace::Text;

pub(crate) use functions::{Functions, Role, fold, side};

use groups::Groups;
use model::steps::step_at;
use model::{Kind, NONE, RankData};
use trace::rank::Details;

/// The key of a table row.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Key {
    name: u32,
    on_device: bool,
    is_user_annotation: bool,
    group: u32,
}

/// The table of a loaded rank.
pub fn key_averages(data: &RankData, details: &Details, options: &TableOptions) -> KeyAverages {
    let functions = Functions::of(data);
    let mut table = Table { data, functions: &functions, rows: Vec::new(), numbers: FxHashMap::default() };
    let names = folded_names(data);
    let mut groups = Groups::new(data, details, &functions, options);
    let loose = LooseMemory::new(data, &functions);
    let mut next_loose = 0;
    for row in 0..data.events.len() {
        if !counts(data, &functions, options, row) {
            continue;
        }
        // Memory rows are merged by time as in torch, because the order decides between equal rows of the sorted table.
        while loose.ts_ns(next_loose).is_some_and(|t| t < data.events.ts_ns[row]) {
            loose.count(next_loose, options, &mut table, names.memory);
            next_loose += 1;
        }
        let group = groups.of(row);
        table.count(row, names.ids[data.events.name[row] as usize], group);
    }
    while loose.ts_ns(next_loose).is_some() {
        loose.count(next_loose, options, &mut table, names.memory);
        next_loose += 1;
    }
    let mut rows = table.rows;
    for (key, row) in &mut rows {
        row.name = names.texts[key.name as usize].clone();
        row.group = groups.text(key.group);
    }
    let rows: Vec<Average> = rows.into_iter().map(|(_, row)| row).collect();
    let has_device = functions.role.contains(&Role::Device);
    KeyAverages {
        rank: data.outline.info.rank,
        device: has_device.then_some(if details.is_xpu { "XPU" } else { "CUDA" }),
        group_by: options.group_by,
        steps: options.steps.as_ref().map(|steps| (steps.start, steps.end)),
        self_cpu_time_total_ns: rows.iter().map(|r| r.self_cpu_time_total_ns).sum(),
        self_device_time_total_ns: rows
            .iter()
            .filter(|r| r.on_device && !r.is_user_annotation)
            .map(|r| r.self_device_time_total_ns)
            .sum(),
        rows,
    }
}

/// Whether a row passes the options.
fn counts(data: &RankData, functions: &Functions, options: &TableOptions, row: usize) -> bool {
    let is_there = functions.role[row] != Role::Absent;
    let is_python = data.events.kind[row] == Kind::PythonFunction;
    let in_step = options.steps.as_ref().is_none_or(|steps| steps.contains(&data.events.step[row]));
    is_there && in_step && (options.python_functions || !is_python)
}

/// Names as torch folds them.
struct Names {
    /// For each name of the rank, its index in `texts`.
    ids: Vec<u32>,
    texts: Vec<Text>,
    /// Index of `[memory]`.
    memory: u32,
}

fn folded_names(data: &RankData) -> Names {
    let mut id_of: FxHashMap<Text, u32> = FxHashMap::default();
    let mut texts: Vec<Text> = Vec::new();
    let mut number = |name: &str| {
        *id_of.entry(fold(name).into()).or_insert_with(|| {
            texts.push(fold(name).into());
            texts.len() as u32 - 1
        })
    };
    let ids = data.names.iter().map(|name| number(name)).collect();
    let memory = number("[memory]");
    Names { ids, texts, memory }
}

struct Table<'a> {
    data: &'a RankData,
    functions: &'a Functions,
    rows: Vec<(Key, Average)>,
    numbers: FxHashMap<Key, usize>,
}

impl Table<'_> {
    fn row(&mut self, key: Key) -> &mut Average {
        let has_memory = !self.functions.bytes.is_empty();
        let number = *self.numbers.entry(key).or_insert_with(|| {
            let bytes = has_memory.then_some(0);
            let average = Average {
                on_device: key.on_device,
                is_user_annotation: key.is_user_annotation,
                cpu_memory_usage_bytes: bytes,
                self_cpu_memory_usage_bytes: bytes,
                device_memory_usage_bytes: bytes,
                self_device_memory_usage_bytes: bytes,
                ..Average::default()
            };
            self.rows.push((key, average));
            self.rows.len() - 1
        });
        &mut self.rows[number].1
    }

    fn count(&mut self, row: usize, name: u32, group: u32) {
        let (events, functions) = (&self.data.events, self.functions);
        let (kind, role) = (events.kind[row], functions.role[row]);
        let on_device = role == Role::Device;
        let is_user_annotation = matches!(kind, Kind::UserAnnotation | Kind::GpuUserAnnotation);
        let average = self.row(Key { name, on_device, is_user_annotation, group });
        if average.calls == 0 {
            average.is_async = role == Role::Async;
        }
        average.calls += 1;
        grow(&mut average.device_time_total_ns, functions.device_ns[row]);
        grow(&mut average.self_device_time_total_ns, functions.kernel_ns[row]);
        if events.flops[row] != NONE {
            average.flops = Some(average.flops.unwrap_or(0).saturating_add(events.flops[row]));
        }
        if on_device {
            return;
        }
        grow(&mut average.cpu_time_total_ns, events.dur_ns[row]);
        grow(&mut average.self_cpu_time_total_ns, functions.self_ns[row]);
        if let Some([host, device]) = functions.bytes.get(row) {
            add(&mut average.cpu_memory_usage_bytes, *host);
            add(&mut average.device_memory_usage_bytes, *device);
        }
        if let Some([host, device]) = functions.self_bytes.get(row).filter(|_| role == Role::Host) {
            add(&mut average.self_cpu_memory_usage_bytes, *host);
            add(&mut average.self_device_memory_usage_bytes, *device);
        }
    }
}

/// Nested rows count their device rows several times, so these sums have no bound.
fn grow(sum_ns: &mut i64, more_ns: i64) {
    *sum_ns = sum_ns.saturating_add(more_ns);
}

fn add(sum: &mut Option<i64>, bytes: i64) {
    *sum = Some(sum.unwrap_or(0).saturating_add(bytes));
}

/// Memory records outside all rows. Torch turns them into rows named `[memory]`.
struct LooseMemory<'a> {
    data: &'a RankData,
    records: &'a [u32],
}

impl<'a> LooseMemory<'a> {
    fn new(data: &'a RankData, functions: &'a Functions) -> Self {
        Self { data, records: &functions.loose }
    }

    fn ts_ns(&self, at: usize) -> Option<i64> {
        Some(self.data.memory[*self.records.get(at)? as usize].ts_ns)
    }

    fn count(&self, at: usize, options: &TableOptions, table: &mut Table<'_>, name: u32) {
        let record = &self.data.memory[self.records[at] as usize];
        let in_step = |steps: &Range<i32>| steps.contains(&step_at(&self.data.outline.steps, record.ts_ns));
        if !options.steps.as_ref().is_none_or(in_step) {
            return;
        }
        let average = table.row(Key { name, on_device: false, is_user_annotation: false, group: 0 });
        average.calls += 1;
        let (all, own) = match side(record) {
            0 => (&mut average.cpu_memory_usage_bytes, &mut average.self_cpu_memory_usage_bytes),
            _ => (&mut average.device_memory_usage_bytes, &mut average.self_device_memory_usage_bytes),
        };
        add(all, record.delta_bytes);
        add(own, record.delta_bytes);
    }
}
