//! The rows of a window as batches of `events`, column by column. A text is stored once for each window, and rows refer to
//! it by number.

use std::ops::Range;
use std::sync::Arc;

use arrow_array::builder::{Int32Builder, ListBuilder};
use arrow_array::types::{ArrowPrimitiveType, Float64Type, Int32Type, Int64Type};
use arrow_array::{ArrayRef, BooleanArray, DictionaryArray, Int32Array, PrimitiveArray, StringArray, new_null_array};
use arrow_buffer::{BooleanBuffer, NullBuffer};
use rayon::prelude::*;
use rustc_hash::FxHashMap;
use trace::rank::{Events, KernelUse, Kind, NO_PARENT, NO_STEP, NONE, RankData};
use trace::{EventRow, RecordBatch, Row, Text, Word};

use crate::Error;
use crate::columns::args::Template;
use crate::columns::rows::Extras;
use crate::write::placement::{
    Cells, INPUT_DIMS, INPUT_TYPES, LONGS, Long, MODULE, Placement, ReadCells, STACK, SYNC_KIND, Sink, TEXTS,
};

/// No text, among the numbers of texts.
const NO_TEXT: u32 = u32::MAX;

/// The rows of a window, with what all of its batches share.
pub(super) struct Window<'a> {
    data: &'a RankData,
    extras: &'a Extras,
    /// The rows are of a trace, whose arguments are in `extras`. Rows of other formats have no arguments.
    is_of_trace: bool,
    /// Id of the first row of the window's file.
    first_id: i64,
    /// The words of the column `kind`: those of [`KIND_WORDS`], then one for each category of a trace, or else each [`Kind`].
    kinds: Vec<Text>,
    /// Direction of a copy, by the number of its name.
    copy_kinds: Texts,
    /// For each template, where the arguments of device rows and of host rows go; `None` if it has no such rows.
    placements: Vec<[Option<u32>; 2]>,
    placed: Vec<(Placement, Fixed)>,
    /// Texts from arguments, by column, then by placement.
    texts: [Texts; TEXTS],
}

/// Numbers of texts by what they belong to, and the texts by their numbers.
#[derive(Default)]
struct Texts {
    number: Vec<u32>,
    values: Vec<Text>,
}

impl Texts {
    /// Stores equal texts once.
    fn of<'t>(texts: impl Iterator<Item = Option<&'t str>>) -> Self {
        let mut known: FxHashMap<&str, u32> = FxHashMap::default();
        let mut values = Vec::new();
        let mut number_of = |text: Option<&'t str>| {
            let Some(text) = text else { return NO_TEXT };
            *known.entry(text).or_insert_with(|| {
                values.push(Text::from(text));
                values.len() as u32 - 1
            })
        };
        let number = texts.map(&mut number_of).collect();
        Self { number, values }
    }
}

/// Cells, other than texts, that all rows of a placement have in common.
struct Fixed {
    grid: Option<[i32; 3]>,
    block: Option<[i32; 3]>,
    occupancy_pct: Option<f64>,
    bandwidth_gbs: Option<f64>,
}

/// Kineto's present words for kinds that older files spell in other ways.
const KIND_WORDS: [&str; 6] = ["cpu_op", "kernel", "gpu_memcpy", "gpu_memset", "cuda_runtime", ""];

impl<'a> Window<'a> {
    pub(super) fn of(data: &'a RankData, extras: &'a mut Extras, first_id: i64) -> Self {
        let templates = std::mem::take(&mut extras.templates);
        let extras: &Extras = extras;
        let word = |text: &Text| Word::<Kind>::from(text.clone()).text();
        let is_of_trace = !extras.categories.is_empty();
        let all = Kind::ALL.iter().filter(|_| !is_of_trace).map(|kind| Text::from(kind.as_str()));
        let kinds = KIND_WORDS.into_iter().map(Text::from).chain(extras.categories.iter().map(word)).chain(all);
        let copy_kind = |name: &'a Text| name.split(' ').nth(1);
        let mut window = Self {
            data,
            extras,
            is_of_trace,
            first_id,
            kinds: kinds.collect(),
            copy_kinds: Texts::of(data.names.iter().map(copy_kind)),
            placements: Vec::new(),
            placed: Vec::new(),
            texts: Default::default(),
        };
        window.place(templates);
        window
    }

    /// Decides where the arguments of each template go.
    fn place(&mut self, templates: Vec<Template>) {
        let mut used = vec![[false; 2]; templates.len()];
        for row in 0..self.data.events.len() {
            if let Some(template) = self.template(row) {
                used[template][usize::from(self.is_on_host(row))] = true;
            }
        }
        let both = templates.into_par_iter().zip(&used);
        let placed: Vec<[Option<(Placement, Cells)>; 2]> = both
            .map(|(template, used)| [0, 1].map(|host| used[host].then(|| Placement::of(&template, host == 1))))
            .collect();
        let mut cells = Vec::new();
        for of_template in placed {
            let place = |placed: Option<(Placement, Cells)>| {
                let (placement, own) = placed?;
                let Cells { grid, block, occupancy_pct, bandwidth_gbs, texts } = own;
                self.placed.push((placement, Fixed { grid, block, occupancy_pct, bandwidth_gbs }));
                cells.push(texts);
                Some(self.placed.len() as u32 - 1)
            };
            self.placements.push(of_template.map(place));
        }
        let column = |column: usize| Texts::of(cells.iter().map(|texts| texts[column].as_deref()));
        self.texts.par_iter_mut().enumerate().for_each(|(number, texts)| *texts = column(number));
    }

    /// The place of a row in its file.
    fn place_in_file(&self, row: usize) -> usize {
        (self.data.events.id[row] - self.first_id) as usize
    }

    fn is_on_host(&self, row: usize) -> bool {
        self.data.events.thread[row] != NONE
    }

    fn template(&self, row: usize) -> Option<usize> {
        let number = self.extras.template.get(self.place_in_file(row))?;
        number.checked_sub(1).map(|number| number as usize)
    }

    /// The number of a row's word in `kinds`.
    fn kind(&self, row: usize) -> u32 {
        if !self.is_of_trace {
            return KIND_WORDS.len() as u32 + self.data.events.kind[row] as u32;
        }
        let written = self.extras.category.get(self.place_in_file(row)).copied();
        let written = written.filter(|number| (*number as usize) < self.extras.categories.len());
        match (self.data.events.kind[row], written) {
            (Kind::CpuOp, _) => 0,
            (Kind::Kernel, _) => 1,
            (Kind::GpuMemcpy, _) => 2,
            (Kind::GpuMemset, _) => 3,
            (Kind::Runtime, Some(word)) if &*self.extras.categories[word as usize] == "Runtime" => 4,
            (_, Some(word)) => KIND_WORDS.len() as u32 + word,
            (_, None) => 5,
        }
    }

    /// Rows as a batch.
    ///
    /// # Errors
    /// [`Error::Trace`] if Arrow refuses the columns.
    pub(super) fn batch(&self, rows: Range<usize>) -> Result<RecordBatch, Error> {
        let Events { name, ts_ns, dur_ns, id, step, thread, device, stream, .. } = &self.data.events;
        let Events { kind, correlation, external, parent, is_comm, bytes, flops, .. } = &self.data.events;
        let count = rows.len();
        let args = self.arguments(rows.clone());
        let first = rows.start;
        let long = |column: &[i64]| optional::<Int64Type>(count, |at| known(column[first + at]));
        let required =
            |column: &[i64]| Arc::new(PrimitiveArray::<Int64Type>::from(column[rows.clone()].to_vec())) as ArrayRef;
        // Kineto's process of a device row is the device.
        let pid = |row: usize| {
            let of_rank = Some(self.data.outline.info.pid).filter(|pid| !self.is_of_trace && *pid != 0);
            let pid = self.extras.pid.get(self.place_in_file(row)).copied().and_then(known).or(of_rank);
            pid.filter(|_| self.is_on_host(row))
        };
        let parent_id = |row: usize| Some(parent[row]).filter(|p| *p != NO_PARENT).map(|p| id[p as usize]);
        let copy_kind = |row: usize| match kind[row] {
            Kind::GpuMemcpy => self.copy_kinds.number[name[row] as usize],
            _ => NO_TEXT,
        };
        let column = |column: &str| -> Option<ArrayRef> {
            Some(match column {
                "rank" => Arc::new(Int32Array::from_value(self.data.outline.info.rank, count)),
                "kind" => texts(rows.clone().map(|row| self.kind(row)), &self.kinds)?,
                "name" => texts(name[rows.clone()].iter().copied(), &self.data.names)?,
                "ts_ns" => required(ts_ns),
                "dur_ns" => required(dur_ns),
                "id" => required(id),
                "step" => optional::<Int32Type>(count, |at| Some(step[first + at]).filter(|step| *step != NO_STEP)),
                "pid" => optional::<Int64Type>(count, |at| pid(first + at)),
                "thread_id" => long(thread),
                "device_id" => long(device),
                "stream_id" => long(stream),
                "correlation_id" => long(correlation),
                "external_id" => long(external),
                "parent_id" => optional::<Int64Type>(count, |at| parent_id(first + at)),
                "is_comm" => Arc::new(BooleanArray::from(is_comm[rows.clone()].to_vec())),
                "copy_kind" => texts(rows.clone().map(copy_kind), &self.copy_kinds.values)?,
                "bytes" => long(bytes),
                "flops" => long(flops),
                "min_bytes" => optional::<Int64Type>(count, |at| self.min_bytes(first + at)),
                _ => return args.column(column, count, &self.texts),
            })
        };
        let table = EventRow::table();
        let columns = table
            .columns
            .iter()
            .map(|info| column(info.name).unwrap_or_else(|| new_null_array(&info.data_type, count)));
        let columns = columns.collect();
        RecordBatch::try_new(table.schema(), columns).map_err(|error| Error::Trace(error.into()))
    }

    fn min_bytes(&self, row: usize) -> Option<i64> {
        let Events { id, flops, .. } = &self.data.events;
        let types = &self.data.flops_types;
        known(flops[row])?;
        let at = types.binary_search_by_key(&id[row], |known| known.id).ok()?;
        types[at].min_bytes
    }

    /// The columns that come from arguments.
    fn arguments(&self, rows: Range<usize>) -> Arguments {
        let events = &self.data.events;
        let mut columns = Arguments::default();
        // The last text in `args` of each placement, by its number: it mostly comes again.
        let mut last: FxHashMap<u32, u32> = FxHashMap::default();
        let mut rest = Vec::new();
        for (at, row) in rows.enumerate() {
            columns.row = at as u32;
            let placement =
                self.template(row).and_then(|template| self.placements[template][usize::from(self.is_on_host(row))]);
            let Some(placement) = placement else {
                columns.placement.push(NO_TEXT);
                columns.rest.push(NO_TEXT);
                if !self.is_of_trace {
                    columns.measured(self.data, events.id[row]);
                }
                continue;
            };
            columns.placement.push(placement);
            let (place, fixed) = &self.placed[placement as usize];
            columns.fixed(fixed);
            let place_in_file = self.place_in_file(row);
            let numbers = usize::try_from(self.extras.first_number[place_in_file]).ok();
            let numbers = numbers.and_then(|first| self.extras.numbers.get(first..)).unwrap_or_default();
            let read = ReadCells {
                external: events.external[row],
                correlation: events.correlation[row],
                device: events.device[row],
                stream: events.stream[row],
                bytes: events.bytes[row],
            };
            place.place(numbers, &read, &mut columns, &mut rest);
            let number = match rest.first_mut() {
                None => NO_TEXT,
                Some(first) => {
                    *first = b'{';
                    rest.push(b'}');
                    let Arguments { rest_values, .. } = &mut columns;
                    let number = last.entry(placement).or_insert(NO_TEXT);
                    if rest_values.get(*number as usize).is_none_or(|text| text.as_bytes() != rest) {
                        *number = rest_values.len() as u32;
                        // JSON is valid UTF-8.
                        rest_values.push(std::str::from_utf8(&rest).unwrap_or_default().into());
                    }
                    *number
                }
            };
            columns.rest.push(number);
        }
        columns
    }
}

/// The columns of a batch that come from arguments. Sparse columns are lists of places and values; of equal places the last
/// counts.
#[derive(Default)]
struct Arguments {
    /// Place of the present row in the batch.
    row: u32,
    /// Placement of each row.
    placement: Vec<u32>,
    longs: [Vec<(u32, i64)>; LONGS],
    registers: Vec<(u32, Option<i32>)>,
    occupancy_pct: Vec<(u32, f64)>,
    bandwidth_gbs: Vec<(u32, f64)>,
    grid: Vec<(u32, [i32; 3])>,
    block: Vec<(u32, [i32; 3])>,
    /// Number of each row's text in the column `args`.
    rest: Vec<u32>,
    rest_values: Vec<Text>,
}

impl Sink for Arguments {
    fn long(&mut self, column: Long, value: i64) {
        self.longs[column as usize].push((self.row, value));
    }

    fn registers(&mut self, value: Option<i32>) {
        self.registers.push((self.row, value));
    }

    fn occupancy_pct(&mut self, value: f64) {
        self.occupancy_pct.push((self.row, value));
    }

    fn bandwidth_gbs(&mut self, value: f64) {
        self.bandwidth_gbs.push((self.row, value));
    }
}

impl Arguments {
    /// Adds the cells that all rows of a placement have in common.
    fn fixed(&mut self, fixed: &Fixed) {
        let row = self.row;
        self.grid.extend(fixed.grid.map(|grid| (row, grid)));
        self.block.extend(fixed.block.map(|block| (row, block)));
        self.occupancy_pct.extend(fixed.occupancy_pct.map(|pct| (row, pct)));
        self.bandwidth_gbs.extend(fixed.bandwidth_gbs.map(|gbs| (row, gbs)));
    }

    /// Adds what was measured of the kernel or copy with this id.
    fn measured(&mut self, data: &RankData, id: i64) {
        let row = self.row;
        if let Ok(at) = data.kernel_use.binary_search_by_key(&id, |used| used.id) {
            let KernelUse { grid, block, registers, shared_mem_bytes, occupancy_pct, .. } = data.kernel_use[at];
            let known = |sides: [i32; 3]| Some((row, sides)).filter(|_| sides != [0; 3]);
            self.grid.extend(known(grid.map(|side| side.try_into().unwrap_or_default())));
            self.block.extend(known(block.map(i32::from)));
            self.registers.extend(registers.map(|number| (row, Some(number.into()))));
            self.longs[Long::SharedMemory as usize].extend(shared_mem_bytes.map(|bytes| (row, bytes.into())));
            self.occupancy_pct.extend(occupancy_pct.map(|pct| (row, pct.into())));
        }
        if let Ok(at) = data.copy_rates.binary_search_by_key(&id, |copy| copy.id) {
            self.bandwidth_gbs.push((row, data.copy_rates[at].bandwidth_gbs));
        }
    }

    /// A column by its name; `None` if it has no values.
    fn column(&self, name: &str, count: usize, of_arguments: &[Texts; TEXTS]) -> Option<ArrayRef> {
        let text = |column: usize| {
            let Texts { number, values } = &of_arguments[column];
            let of_placement = |placement: &u32| number.get(*placement as usize).copied().unwrap_or(NO_TEXT);
            texts(self.placement.iter().map(of_placement), values)
        };
        let long = |column: Long| sparse::<Int64Type>(&self.longs[column as usize], count);
        match name {
            "context_id" => long(Long::Context),
            "src_device" => long(Long::SourceDevice),
            "dst_device" => long(Long::TargetDevice),
            "graph_id" => long(Long::GraphId),
            "graph_node_id" => long(Long::GraphNodeId),
            "shared_mem_bytes" => long(Long::SharedMemory),
            "registers" => (!self.registers.is_empty()).then(|| {
                let mut cells = vec![None; count];
                self.registers.iter().for_each(|(row, value)| cells[*row as usize] = *value);
                optional::<Int32Type>(count, |at| cells[at])
            }),
            "occupancy_pct" => sparse::<Float64Type>(&self.occupancy_pct, count),
            "bandwidth_gbs" => sparse::<Float64Type>(&self.bandwidth_gbs, count),
            "grid" => triples(&self.grid, count),
            "block" => triples(&self.block, count),
            "input_dims" => text(INPUT_DIMS),
            "input_types" => text(INPUT_TYPES),
            "sync_kind" => text(SYNC_KIND),
            "stack" => text(STACK),
            "module" => text(MODULE),
            "args" => texts(self.rest.iter().copied(), &self.rest_values),
            _ => None,
        }
    }
}

fn known(value: i64) -> Option<i64> {
    Some(value).filter(|value| *value != NONE)
}

/// A column from a function of the place. The function is called twice for each place, once for the values and once for the
/// nulls, because loops over one of them run on vectors.
fn optional<T: ArrowPrimitiveType>(count: usize, cell: impl Fn(usize) -> Option<T::Native>) -> ArrayRef {
    let values: Vec<T::Native> = (0..count).map(|at| cell(at).unwrap_or_default()).collect();
    let valid = NullBuffer::new(BooleanBuffer::collect_bool(count, |at| cell(at).is_some()));
    Arc::new(PrimitiveArray::<T>::new(values.into(), Some(valid)))
}

/// A column from places and values; `None` if it has no values.
fn sparse<T: ArrowPrimitiveType>(values: &[(u32, T::Native)], count: usize) -> Option<ArrayRef> {
    (!values.is_empty()).then(|| {
        let mut cells = vec![None; count];
        values.iter().for_each(|(row, value)| cells[*row as usize] = Some(*value));
        optional::<T>(count, |at| cells[at])
    })
}

/// A column of lists; `None` if it has no values.
fn triples(values: &[(u32, [i32; 3])], count: usize) -> Option<ArrayRef> {
    if values.is_empty() {
        return None;
    }
    let mut builder = ListBuilder::new(Int32Builder::with_capacity(3 * values.len()));
    let mut next = 0;
    for (row, value) in values {
        (next..*row).for_each(|_| builder.append(false));
        builder.values().append_slice(value);
        builder.append(true);
        next = row + 1;
    }
    (next..count as u32).for_each(|_| builder.append(false));
    Some(Arc::new(builder.finish()))
}

/// A column of texts from their numbers; `None` if it has no values. Only the texts of these rows become its dictionary.
fn texts(numbers: impl Iterator<Item = u32>, values: &[Text]) -> Option<ArrayRef> {
    let mut key_of = vec![-1; values.len()];
    let mut used: Vec<&str> = Vec::new();
    let key = |number: u32| {
        let Some(key) = key_of.get_mut(number as usize) else { return -1 };
        if *key < 0 {
            *key = used.len() as i32;
            used.push(&values[number as usize]);
        }
        *key
    };
    let keys: Vec<i32> = numbers.map(key).collect();
    if used.is_empty() {
        return None;
    }
    let valid = NullBuffer::new(BooleanBuffer::collect_bool(keys.len(), |at| keys[at] >= 0));
    let keys = Int32Array::new(keys.into(), Some(valid));
    let strings = Arc::new(StringArray::from_iter_values(used));
    // Every key is below the number of strings.
    DictionaryArray::<Int32Type>::try_new(keys, strings).ok().map(|column| Arc::new(column) as ArrayRef)
}
