//! The kept events of one piece of a file, as columns with interned names.

use std::hash::BuildHasher;

use rustc_hash::{FxBuildHasher, FxHashMap};
use trace::name_rules::roles::RankName;
use trace::rank::{CopyRate, FlopsType, KernelUse, Kind, NONE};

use crate::bytes::json::Str;
use crate::bytes::layout::Layout;
use crate::bytes::text::shortened;
use crate::columns::args::Shape;
use crate::columns::by_text::{KnownFlops, NameRules};
use crate::columns::processes::Processes;
/// Memory of a row until an analysis has it: its columns here, its place in the order of the rows, and its columns there.
const ROW_BYTES: u64 = 160;
/// Memory of a row's arguments beside their texts, where all are kept.
const ROW_ARGS_BYTES: u64 = 32;
/// Memory of an entry of the sparse columns, with the row that an analysis makes of it.
const SPARSE_BYTES: u64 = 96;
/// As [`SPARSE_BYTES`], for allocations and for the arguments of collectives, which become long rows.
const SPARSE_ROW_BYTES: u64 = 384;
/// Copies of a text: here, in decoded form, and among the names of the rank.
const TEXT_COPIES: u64 = 3;
/// Memory of a text or a track beside its bytes, in all tables that look it up.
const ENTRY_BYTES: u64 = 160;

/// Strings seen by one worker, by their bytes in the file. Ids are dense and belong to this interner only.
#[derive(Debug, Default)]
pub(crate) struct Interner {
    /// The ids by hash. Where another string has the hash already, the next free number stands for it.
    ids: FxHashMap<u64, u32>,
    strings: Vec<Box<[u8]>>,
    /// Sum of the lengths.
    text_bytes: u64,
}

impl Interner {
    /// The id of a string.
    #[inline]
    pub(crate) fn id(&mut self, raw: &[u8]) -> u32 {
        let mut hash = FxBuildHasher.hash_one(raw);
        while let Some(id) = self.ids.get(&hash) {
            if *self.strings[*id as usize] == *raw {
                return *id;
            }
            hash = hash.wrapping_add(1);
        }
        let id = self.strings.len() as u32;
        self.ids.insert(hash, id);
        self.strings.push(raw.into());
        self.text_bytes += raw.len() as u64;
        id
    }

    fn memory_bytes(&self) -> u64 {
        self.text_bytes * TEXT_COPIES + self.strings.len() as u64 * ENTRY_BYTES
    }

    /// The strings, by id.
    pub(crate) fn into_strings(self) -> Vec<Box<[u8]>> {
        self.strings
    }
}

/// Guesses the template of a row's arguments: programs repeat, so it is mostly that of the last row with the same name after
/// a row with the same template, or else of the last row with the same name.
#[derive(Debug, Default)]
pub(crate) struct TemplateGuess {
    last: u32,
    /// By the hash of the last template and the name. A wrong guess costs time only, so the keys are not kept.
    after_last: Vec<u32>,
    of_name: Vec<u32>,
    /// By template, once a second row has it: where all rows differ, shapes would only take memory.
    shapes: Vec<Option<Shape>>,
    shapes_bytes: u64,
}

impl TemplateGuess {
    const PLACES: usize = 1 << 14;
    /// No template, in the tables.
    const NONE: u32 = u32::MAX;

    fn place(&self, name: u32) -> usize {
        (FxBuildHasher.hash_one((self.last, name)) >> 32) as usize % Self::PLACES
    }

    /// If a row with this name has arguments as guessed, which begin `bytes`: their template and length. Their integers are
    /// appended to `numbers`.
    #[inline]
    pub(crate) fn read(&self, name: u32, bytes: &[u8], numbers: &mut Vec<u8>) -> Option<(u32, usize)> {
        let find = |table: &[u32], at: usize| table.get(at).copied().unwrap_or(Self::NONE);
        let likely = find(&self.after_last, self.place(name));
        let mut read = |id: u32| Some((id, self.shapes.get(id as usize)?.as_ref()?.read(bytes, numbers)?));
        read(likely).or_else(|| {
            let other = find(&self.of_name, name as usize);
            if other == likely { None } else { read(other) }
        })
    }

    /// Learns the template of a row.
    #[inline]
    pub(crate) fn learn(&mut self, name: u32, template: u32) {
        if self.after_last.is_empty() {
            self.after_last = vec![Self::NONE; Self::PLACES];
        }
        if self.of_name.len() <= name as usize {
            self.of_name.resize(name as usize + 1, Self::NONE);
        }
        let place = self.place(name);
        self.after_last[place] = template;
        self.of_name[name as usize] = template;
        self.last = template;
    }

    /// Learns the shape of a template from the second row that has it.
    pub(crate) fn learn_shape(&mut self, template: u32, raw: &[u8]) {
        let at = template as usize;
        if self.shapes.len() <= at {
            self.shapes.resize_with(at + 1, || None);
        } else if self.shapes[at].is_none() {
            self.shapes[at] = Shape::of(raw);
            self.shapes_bytes += raw.len() as u64;
        }
    }
}

/// Ids of streams beyond 32 bits, seen by one worker. HIP names a stream by its address. In the narrow column, the first numbers above
/// [`NONE_32`] stand for them.
#[derive(Debug, Default)]
pub(crate) struct FarStreams {
    ids: Vec<i64>,
}

impl FarStreams {
    /// Most ids that are kept apart.
    const MAX: i32 = 1 << 12;

    /// A stream's number in the narrow column; [`NONE_32`] if there are too many.
    #[inline]
    pub(crate) fn narrow(&mut self, id: i64) -> i32 {
        match i32::try_from(id) {
            Ok(near) if near > NONE_32 + Self::MAX => near,
            _ if id == NONE => NONE_32,
            _ => self.number(id),
        }
    }

    /// The number of an id beyond the narrow column. A rank has few streams, so a search is fast.
    pub(crate) fn number(&mut self, id: i64) -> i32 {
        let place = self.ids.iter().position(|other| *other == id).unwrap_or(self.ids.len()) as i32;
        if place == Self::MAX {
            return NONE_32;
        }
        if place == self.ids.len() as i32 {
            self.ids.push(id);
        }
        NONE_32 + 1 + place
    }

    /// The id beyond the narrow column that a number stands for.
    #[inline]
    pub(crate) fn id(&self, number: i32) -> Option<i64> {
        self.ids.get(usize::try_from(i64::from(number) - i64::from(NONE_32 + 1)).ok()?).copied()
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.ids.is_empty()
    }
}

/// Threads and streams seen by one worker: pairs of process and thread.
#[derive(Debug, Default)]
pub(crate) struct Tracks {
    ids: FxHashMap<(i64, i64), u32>,
    last: Option<((i64, i64), u32)>,
}

impl Tracks {
    /// The id of a pair.
    #[inline]
    pub(crate) fn id(&mut self, pid: i64, tid: i64) -> u32 {
        let pair = (pid, tid);
        if let Some((last, id)) = self.last
            && last == pair
        {
            return id;
        }
        let next = self.ids.len() as u32;
        let id = *self.ids.entry(pair).or_insert(next);
        self.last = Some((pair, id));
        id
    }

    /// The pairs, by id.
    pub(crate) fn into_pairs(self) -> Vec<(i64, i64)> {
        let mut pairs: Vec<((i64, i64), u32)> = self.ids.into_iter().collect();
        pairs.sort_unstable_by_key(|(_, id)| *id);
        pairs.into_iter().map(|(pair, _)| pair).collect()
    }
}

/// An allocation or release.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Allocation {
    pub(crate) ts_ns: i64,
    pub(crate) track: u32,
    pub(crate) bytes: i64,
    pub(crate) address: i64,
    pub(crate) allocated: i64,
    pub(crate) reserved: i64,
    /// 0: host; torch's `DeviceType`.
    pub(crate) device_type: i64,
    pub(crate) device_id: i64,
}

/// One end of an arrow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct FlowEnd {
    pub(crate) id: i64,
    pub(crate) ts_ns: i64,
    pub(crate) track: u32,
    /// Whether this is the arrow's source.
    pub(crate) start: bool,
}

/// Counts of events that were left out or changed, by reason.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Tally {
    /// Events read, of any phase.
    pub(crate) events: u64,
    /// Complete events without a readable `ts`.
    pub(crate) no_start: u64,
    /// Complete events whose `ts` is in ns since 1970.
    pub(crate) in_ns: u64,
    /// Complete events without a readable `dur`.
    pub(crate) no_length: u64,
    /// Lengths below zero, taken as zero.
    pub(crate) negative: u64,
    /// Complete events that last longer than any job.
    pub(crate) too_long: u64,
    /// Complete events that begin too far from the others.
    pub(crate) far: u64,
    /// Sum of the lengths of the rows, saturated.
    pub(crate) length_ns: i64,
    /// Ids in arguments that cannot be read.
    pub(crate) no_ids: u64,
    /// Items of the list that are not objects.
    pub(crate) not_objects: u64,
    /// Begin and end events. Kineto does not write them, and this reader does not pair them.
    pub(crate) begin_end: u64,
    /// Begin, instant and end events of asynchronous work.
    pub(crate) asynchronous: u64,
    /// Counter events other than memory.
    pub(crate) counters: u64,
    /// Rows whose arguments are counters of CUPTI.
    pub(crate) profiler_ranges: u64,
    /// Rows without a category. Whether they are of the host or of a device is unknown.
    pub(crate) no_category: u64,
    /// Rows of Ascend's profiler that repeat others, or are parts of them.
    pub(crate) of_ascend: u64,
    /// Events of a phase that no trace of torch has.
    pub(crate) other_phases: u64,
    /// Events that no analysis needs: metadata, arrows that repeat a correlation, and instants.
    pub(crate) unused: u64,
    /// Memory events without a time or a size.
    pub(crate) bad_memory: u64,
    /// Names and arguments that were shortened.
    pub(crate) long_texts: u64,
    /// Arguments of collectives that are too long to be kept.
    pub(crate) long_args: u64,
}

impl Tally {
    pub(crate) fn add(&mut self, other: &Self) {
        let Self { events, no_start, in_ns, no_length, negative, too_long, far, length_ns, .. } = other;
        let Self { no_ids, not_objects, begin_end, asynchronous, counters, profiler_ranges, .. } = other;
        let Self { no_category, of_ascend, other_phases, unused, bad_memory, long_texts, long_args, .. } = other;
        self.events += events;
        self.no_start += no_start;
        self.in_ns += in_ns;
        self.no_length += no_length;
        self.negative += negative;
        self.too_long += too_long;
        self.far += far;
        self.length_ns = self.length_ns.saturating_add(*length_ns);
        self.no_ids += no_ids;
        self.not_objects += not_objects;
        self.begin_end += begin_end;
        self.asynchronous += asynchronous;
        self.counters += counters;
        self.profiler_ranges += profiler_ranges;
        self.no_category += no_category;
        self.of_ascend += of_ascend;
        self.other_phases += other_phases;
        self.unused += unused;
        self.bad_memory += bad_memory;
        self.long_texts += long_texts;
        self.long_args += long_args;
    }
}

/// One complete event, on its way into columns.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Row {
    pub(crate) kind: Kind,
    pub(crate) name: u32,
    pub(crate) ts_ns: i64,
    pub(crate) dur_ns: i64,
    pub(crate) track: u32,
    pub(crate) device: i32,
    pub(crate) stream: i32,
    pub(crate) correlation: i64,
    pub(crate) external: i64,
}

/// No device or stream, in the narrow columns.
pub(crate) const NONE_32: i32 = i32::MIN;

/// The kept events of one piece in the order of the file. Names and tracks are ids of the worker that parsed it.
#[derive(Debug, Default)]
pub(crate) struct Columns {
    pub(crate) kind: Vec<Kind>,
    pub(crate) name: Vec<u32>,
    pub(crate) ts_ns: Vec<i64>,
    pub(crate) dur_ns: Vec<i64>,
    pub(crate) track: Vec<u32>,
    pub(crate) device: Vec<i32>,
    pub(crate) stream: Vec<i32>,
    pub(crate) correlation: Vec<i64>,
    pub(crate) external: Vec<i64>,
    /// Shapes of the inputs, as ids of the shape interner plus one; 0 for none. Empty unless shapes are wanted.
    pub(crate) shape: Vec<u32>,
    /// Categories, as ids of the category interner; templates of arguments, as ids of their interner plus one (0 for
    /// none); and the start of each row's integers in `numbers`. Empty unless arguments are wanted.
    pub(crate) category: Vec<u32>,
    pub(crate) template: Vec<u32>,
    pub(crate) first_number: Vec<u32>,
    pub(crate) numbers: Vec<u8>,
    /// Bytes that rows moved, by row.
    pub(crate) bytes: Vec<(u32, i64)>,
    /// FLOPs of operators, by row.
    pub(crate) flops: Vec<(u32, i64)>,
    /// Element types of operators with FLOPs; the ids are rows of this piece.
    pub(crate) flops_types: Vec<FlopsType>,
    /// How kernels filled their device; the ids are rows of this piece.
    pub(crate) kernel_use: Vec<KernelUse>,
    pub(crate) copy_rates: Vec<CopyRate>,
    /// The arguments of rows that may belong to a collective, by row, as in the file.
    pub(crate) comm_args: Vec<(u32, Box<[u8]>)>,
    pub(crate) allocations: Vec<Allocation>,
    pub(crate) flows: Vec<FlowEnd>,
    /// Rows without a known category, and the category's id.
    pub(crate) unknown: Vec<(u32, u32)>,
    /// Processes of Ascend's profiler.
    pub(crate) ascend: Vec<(i64, AscendProcess)>,
    /// Processes whose names say a rank.
    pub(crate) ranks: Vec<(i64, RankName)>,
    /// Complete events of the processes that are not read, by process.
    pub(crate) other_processes: Vec<(i64, u64)>,
    pub(crate) tally: Tally,
}

/// A process of torch_npu's profiler.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum AscendProcess {
    Hardware,
    Communication,
}

impl AscendProcess {
    /// The process that the arguments of a `process_name` name.
    pub(crate) fn named_in(args: &[u8]) -> Option<Self> {
        let names = |name: &str| memchr::memmem::find(args, format!("\"{name}\"").as_bytes()).is_some();
        match () {
            () if names("Ascend Hardware") => Some(Self::Hardware),
            () if names("Communication") => Some(Self::Communication),
            () => None,
        }
    }
}

impl Columns {
    /// Events that became something or are counted by reason. Any other event would be lost without a word.
    #[cfg(test)]
    pub(crate) fn events_accounted_for(&self) -> u64 {
        let Tally { no_start, in_ns, no_length, too_long, begin_end, asynchronous, .. } = self.tally;
        let Tally { counters, other_phases, unused, bad_memory, .. } = self.tally;
        let kept = (self.len() + self.flows.len() + self.allocations.len()) as u64;
        kept + no_start
            + in_ns
            + no_length
            + too_long
            + begin_end
            + asynchronous
            + counters
            + other_phases
            + unused
            + bad_memory
    }

    /// Rows.
    pub(crate) fn len(&self) -> usize {
        self.ts_ns.len()
    }

    /// Memory that the rows take until an analysis has them, without the texts that rows share: an estimate.
    pub(crate) fn memory_bytes(&self) -> u64 {
        let count = |length: usize| length as u64;
        let args: u64 = self.comm_args.iter().map(|(_, args)| count(args.len())).sum();
        let sparse = count(self.bytes.len() + self.flops.len() + self.flops_types.len())
            + count(self.kernel_use.len() + self.copy_rates.len() + self.flows.len() + self.ranks.len());
        count(self.len()) * ROW_BYTES
            + count(self.shape.len() + self.template.len()) * ROW_ARGS_BYTES
            + count(self.numbers.len()) * 2
            + sparse * SPARSE_BYTES
            + count(self.allocations.len() + self.comm_args.len()) * SPARSE_ROW_BYTES
            + args * TEXT_COPIES
    }

    /// Counts a complete event of a process that is not read.
    pub(crate) fn count_other_process(&mut self, pid: i64) {
        match self.other_processes.iter_mut().find(|(other, _)| *other == pid) {
            Some((_, events)) => *events += 1,
            None => self.other_processes.push((pid, 1)),
        }
    }

    /// Adds a row.
    #[inline]
    pub(crate) fn push(&mut self, row: Row) {
        self.kind.push(row.kind);
        self.name.push(row.name);
        self.ts_ns.push(row.ts_ns);
        self.dur_ns.push(row.dur_ns);
        self.track.push(row.track);
        self.device.push(row.device);
        self.stream.push(row.stream);
        self.correlation.push(row.correlation);
        self.external.push(row.external);
    }

    /// Moves the rows to vectors without spare capacity. The capacity of `self` stays for the next piece.
    pub(crate) fn take_exact(&mut self) -> Self {
        macro_rules! exact {
            ($($column:ident)*) => { $( let $column = self.$column.clone(); self.$column.clear(); )* };
        }
        exact!(kind name ts_ns dur_ns track device stream correlation external);
        exact!(shape category template first_number numbers bytes flops flops_types kernel_use copy_rates allocations flows);
        exact!(unknown ascend ranks other_processes);
        Self {
            kind,
            name,
            ts_ns,
            dur_ns,
            track,
            device,
            stream,
            correlation,
            external,
            shape,
            category,
            template,
            first_number,
            numbers,
            bytes,
            flops,
            flops_types,
            kernel_use,
            copy_rates,
            comm_args: self.comm_args.drain(..).collect(),
            allocations,
            flows,
            unknown,
            ascend,
            ranks,
            other_processes,
            tally: std::mem::take(&mut self.tally),
        }
    }
}

/// A narrow id to the wide columns of the model.
pub(crate) fn widen(id: i32) -> i64 {
    if id == NONE_32 { NONE } else { i64::from(id) }
}

/// A device number; [`NONE_32`] if it does not fit.
#[inline]
pub(crate) fn narrow(id: i64) -> i32 {
    i32::try_from(id).unwrap_or(NONE_32)
}

/// The separators of objects seen so far, by kind.
#[derive(Debug, Default)]
pub(crate) struct Layouts {
    complete_event: Layout,
    other_event: Layout,
    args: [Layout; Kind::COUNT],
}

impl Layouts {
    /// The layout of complete events, or of other events.
    #[inline(always)]
    pub(crate) fn event(&mut self, is_complete: bool) -> &mut Layout {
        if is_complete { &mut self.complete_event } else { &mut self.other_event }
    }

    /// The layout of the arguments of rows of a kind.
    #[inline(always)]
    pub(crate) fn args(&mut self, kind: Kind) -> &mut Layout {
        &mut self.args[kind as usize]
    }
}

/// The state that one worker keeps between pieces.
#[derive(Debug, Default)]
pub(crate) struct Scratch {
    pub(crate) names: Interner,
    /// The rules of the names, by their ids.
    rules: Vec<NameRules>,
    pub(crate) flops: KnownFlops,
    pub(crate) shapes: Interner,
    pub(crate) categories: Interner,
    pub(crate) templates: Interner,
    pub(crate) guess: TemplateGuess,
    /// The template under construction.
    pub(crate) draft: Vec<u8>,
    pub(crate) tracks: Tracks,
    pub(crate) processes: Processes,
    pub(crate) streams: FarStreams,
    pub(crate) layouts: Layouts,
    /// The columns that a piece is read into; their capacity is used again.
    pub(crate) room: Columns,
    last_category: Vec<u8>,
    last_kind: Option<Kind>,
}

impl Scratch {
    pub(crate) fn of(processes: Processes) -> Self {
        Self { processes, ..Self::default() }
    }

    /// Memory of the texts and tracks, with what is made of them when the file is put together: an estimate.
    pub(crate) fn memory_bytes(&self) -> u64 {
        let texts = [&self.names, &self.shapes, &self.categories, &self.templates];
        let entries = (self.tracks.ids.len() + self.processes.named.len()) as u64 * ENTRY_BYTES;
        texts.into_iter().map(Interner::memory_bytes).sum::<u64>() + self.guess.shapes_bytes + entries
    }

    /// The kind of a category. Most events have the category of the event before, so that one is kept.
    #[inline]
    pub(crate) fn kind(&mut self, category: &[u8]) -> Kind {
        if let Some(kind) = self.last_kind
            && self.last_category == category
        {
            return kind;
        }
        let kind = std::str::from_utf8(category).map_or(Kind::Other, Kind::from_category);
        self.last_category.clear();
        self.last_category.extend_from_slice(category);
        self.last_kind = Some(kind);
        kind
    }

    /// The id of a name, and what the name says.
    #[inline]
    pub(crate) fn name(&mut self, name: Str<'_>, tally: &mut Tally) -> (u32, NameRules) {
        let raw = shortened(name.raw);
        tally.long_texts += u64::from(raw.len() < name.raw.len());
        let id = self.names.id(raw);
        if id as usize == self.rules.len() {
            self.rules.push(NameRules::of(raw));
        }
        (id, self.rules[id as usize])
    }
}
