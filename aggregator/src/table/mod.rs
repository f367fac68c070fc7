//! torch.profiler's `key_averages`: what operators, kernels and ranges cost, by name and what else one wants to tell
//! apart.
//!
//! Rows, columns and sums are those of PyTorch 2.15, down to its rules of who encloses whom (module `functions`). Times are
//! integers in ns here; torch adds the same times as floating-point µs.

mod functions;
mod groups;
mod sort;

pub use sort::SortKey;

use std::ops::Range;

use rustc_hash::FxHashMap;
use serde::Serialize;
use trace::Text;

pub(crate) use functions::{Functions, Role, fold, side};

use crate::details::Details;
use crate::model::{Kind, NONE, RankData};
use crate::steps::step_at;
use groups::Groups;

/// What is told apart besides names.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, clap::ValueEnum)]
#[serde(rename_all = "snake_case")]
#[value(rename_all = "snake_case")]
pub enum GroupBy {
    /// Nothing.
    #[default]
    Name,
    /// Shapes of the inputs (recorded with `record_shapes=True`).
    InputShape,
    /// The nn.Module whose call it is part of (`with_stack=True` or `with_modules=True`).
    Module,
    /// The innermost Python frames (`with_stack=True`).
    Stack,
}

/// What to count, and how.
#[derive(Clone, Debug)]
pub struct TableOptions {
    /// What is told apart.
    pub group_by: GroupBy,
    /// Frames of a stack that are told apart.
    pub stack_frames: usize,
    /// Only rows of these steps.
    pub steps: Option<Range<i32>>,
    /// Python functions are rows too.
    pub python_functions: bool,
}

impl Default for TableOptions {
    fn default() -> Self {
        Self { group_by: GroupBy::Name, stack_frames: 5, steps: None, python_functions: false }
    }
}

/// All calls of one name and group.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Average {
    /// Operator, range, kernel; `ProfilerStep*` for all steps.
    pub name: Text,
    /// The rows are a device's.
    pub on_device: bool,
    /// The rows are ranges of the user.
    pub is_user_annotation: bool,
    /// The calls begin and end on different threads: they have a length but no time of their own.
    pub is_async: bool,
    /// Shapes, module, or frames separated by `;` with the innermost first; empty: not known, or not asked for.
    pub group: Text,
    /// Calls.
    pub calls: i64,
    /// Time on the host.
    pub cpu_time_total_ns: i64,
    /// Less that of what it called.
    pub self_cpu_time_total_ns: i64,
    /// Time on devices of what it and those it called launched; of a device's row its own length.
    pub device_time_total_ns: i64,
    /// Of what it launched itself.
    pub self_device_time_total_ns: i64,
    /// Host memory allocated less released; null where no memory was recorded.
    pub cpu_memory_usage_bytes: Option<i64>,
    /// Less that of what it called.
    pub self_cpu_memory_usage_bytes: Option<i64>,
    /// The same on devices.
    pub device_memory_usage_bytes: Option<i64>,
    /// Less that of what it called.
    pub self_device_memory_usage_bytes: Option<i64>,
    /// FLOPs, by torch's formulas; null where the operator is none that torch counts, or shapes were not recorded.
    pub flops: Option<i64>,
}

/// The table of one rank.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct KeyAverages {
    /// Global rank.
    pub rank: i32,
    /// `CUDA` or `XPU`, as torch names the columns; null without device rows.
    pub device: Option<&'static str>,
    /// What is told apart besides names.
    pub group_by: GroupBy,
    /// Steps that were chosen, as from and up to; null: everything.
    pub steps: Option<(i32, i32)>,
    /// Sum of the self times on the host: what percentages are of.
    pub self_cpu_time_total_ns: i64,
    /// Sum of the lengths of device rows that are no ranges.
    pub self_device_time_total_ns: i64,
    /// In the order of their first row.
    pub rows: Vec<Average>,
}

/// What tells rows of the table apart.
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
        // In the order of time, as torch has them: it decides which of two equal rows of the table comes first.
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
        rank: data.info.rank,
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

/// Whether a row is one of those that are asked for.
fn counts(data: &RankData, functions: &Functions, options: &TableOptions, row: usize) -> bool {
    let is_there = functions.role[row] != Role::Absent;
    let is_python = data.events.kind[row] == Kind::PythonFunction;
    let in_step = options.steps.as_ref().is_none_or(|steps| steps.contains(&data.events.step[row]));
    is_there && in_step && (options.python_functions || !is_python)
}

/// Names as torch counts them.
struct Names {
    /// Number of each of the rank's names among `texts`.
    ids: Vec<u32>,
    texts: Vec<Text>,
    /// The number of `[memory]`.
    memory: u32,
}

fn folded_names(data: &RankData) -> Names {
    let mut known: FxHashMap<Text, u32> = FxHashMap::default();
    let mut texts: Vec<Text> = Vec::new();
    let mut number = |name: &str| {
        *known.entry(fold(name).into()).or_insert_with(|| {
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

/// Rows inside each other count their device rows several times over, so these sums have no bound.
fn grow(sum_ns: &mut i64, more_ns: i64) {
    *sum_ns = sum_ns.saturating_add(more_ns);
}

fn add(sum: &mut Option<i64>, bytes: i64) {
    *sum = Some(sum.unwrap_or(0).saturating_add(bytes));
}

/// Memory records outside every row: torch makes rows named `[memory]` of them.
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
        let in_step = |steps: &Range<i32>| steps.contains(&step_at(&self.data.steps, record.ts_ns));
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
