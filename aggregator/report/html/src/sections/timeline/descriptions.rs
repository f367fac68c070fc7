//! What the page says about a bar besides its times: name, kind, arguments, stack, and the rows around it.
//!
//! Most bars of a training job are repetitions, in every step and on every rank. Equal descriptions are stored once, and a
//! description refers to that of the row around it, so that a call path is stored once, too. A kernel lies in its launch.
//!
//! ```text
//!  forward ◄── aten::linear ◄── aten::addmm ◄── cudaLaunchKernel ◄── gemm
//! ```

use rustc_hash::FxHashMap;
use serde::Serialize;
use trace::Text;
use trace::rank::{Details, Launches, enclosing};

use crate::string_pool::StringPool;
use model::{KernelUse, Kind, NONE, RankData};

/// The most frames of a stack that the page shows, the innermost ones.
const FRAMES: usize = 40;

/// A description of one rank. Equal descriptions are one.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Description {
    name: Text,
    kind: Option<Kind>,
    /// Index of the description of the row around it; of device work, that of its launch.
    inside: Option<u32>,
    more: More<Text>,
}

/// The parts of a description that most rows lack.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Serialize)]
pub(super) struct More<T> {
    #[serde(skip_serializing_if = "Option::is_none")]
    shapes: Option<T>,
    /// Element types of the inputs.
    #[serde(skip_serializing_if = "Option::is_none")]
    types: Option<T>,
    /// Values of the inputs that are not tensors.
    #[serde(skip_serializing_if = "Option::is_none")]
    values: Option<T>,
    /// Frames of the Python stack, outermost first.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    stack: Vec<T>,
    #[serde(skip_serializing_if = "Option::is_none")]
    module: Option<T>,
    #[serde(skip_serializing_if = "Option::is_none")]
    flops: Option<i64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    bytes: Option<i64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    stream: Option<i64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    blocks: Option<i64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    block_threads: Option<u16>,
    #[serde(skip_serializing_if = "Option::is_none")]
    registers: Option<u16>,
    #[serde(skip_serializing_if = "Option::is_none")]
    shared_mem_bytes: Option<u32>,
    /// Estimated achieved occupancy, in whole percent.
    #[serde(skip_serializing_if = "Option::is_none")]
    occupancy_pct: Option<u32>,
}

impl<T> More<T> {
    fn is_empty(&self) -> bool {
        let texts = [&self.shapes, &self.types, &self.values, &self.module].iter().all(|text| text.is_none());
        let numbers = [self.flops, self.bytes, self.stream, self.blocks].iter().all(Option::is_none);
        let kernel = self.block_threads.is_some() || self.registers.is_some() || self.shared_mem_bytes.is_some();
        texts && self.stack.is_empty() && numbers && !kernel && self.occupancy_pct.is_none()
    }

    fn map<U>(&self, mut text: impl FnMut(&T) -> U) -> More<U> {
        More {
            shapes: self.shapes.as_ref().map(&mut text),
            types: self.types.as_ref().map(&mut text),
            values: self.values.as_ref().map(&mut text),
            stack: self.stack.iter().map(&mut text).collect(),
            module: self.module.as_ref().map(&mut text),
            flops: self.flops,
            bytes: self.bytes,
            stream: self.stream,
            blocks: self.blocks,
            block_threads: self.block_threads,
            registers: self.registers,
            shared_mem_bytes: self.shared_mem_bytes,
            occupancy_pct: self.occupancy_pct,
        }
    }
}

/// Describes rows of one rank.
pub(super) struct Describer<'a> {
    data: &'a RankData,
    details: &'a Details,
    pub(super) launches: Launches,
    kernel_use: FxHashMap<i64, &'a KernelUse>,
    of_row: FxHashMap<u32, u32>,
    numbers: FxHashMap<Description, u32>,
    pub(super) list: Vec<Description>,
}

impl<'a> Describer<'a> {
    pub(super) fn of(data: &'a RankData, details: &'a Details) -> Self {
        Self {
            data,
            details,
            launches: Launches::collect(&data.events),
            kernel_use: data.kernel_use.iter().map(|kernel| (kernel.id, kernel)).collect(),
            of_row: FxHashMap::default(),
            numbers: FxHashMap::default(),
            list: Vec::new(),
        }
    }

    /// Describes a row of `events` and the rows around it. Returns the index in [`list`](Self::list).
    pub(super) fn row(&mut self, row: usize) -> u32 {
        // From the row outwards to one that is described already.
        let mut path = Vec::new();
        let (mut next, mut inside) = (Some(row), None);
        while let Some(row) = next {
            inside = self.of_row.get(&(row as u32)).copied();
            if inside.is_some() {
                break;
            }
            path.push(row);
            next = self.around(row);
        }
        for row in path.into_iter().rev() {
            let events = &self.data.events;
            let name = self.data.names[events.name[row] as usize].clone();
            let number = self.number(Description { name, kind: Some(events.kind[row]), inside, more: self.more(row) });
            self.of_row.insert(row as u32, number);
            inside = Some(number);
        }
        inside.unwrap_or_default()
    }

    /// Describes something that has no row.
    pub(super) fn named(&mut self, name: Text) -> u32 {
        self.number(Description { name, kind: None, inside: None, more: More::default() })
    }

    /// The host row around a row; of device work, its launch.
    fn around(&self, row: usize) -> Option<usize> {
        let events = &self.data.events;
        if events.kind[row].is_device_work() {
            return self.launches.of(events.correlation[row]).map(|row| row as usize);
        }
        enclosing(events, row)
    }

    fn number(&mut self, description: Description) -> u32 {
        let next = self.list.len() as u32;
        let number = *self.numbers.entry(description.clone()).or_insert(next);
        if number == next {
            self.list.push(description);
        }
        number
    }

    fn more(&self, row: usize) -> More<Text> {
        let events = &self.data.events;
        let known = |value: i64| (value != NONE).then_some(value);
        let kernel = self.kernel_use.get(&events.id[row]);
        let frames: Vec<&str> = self.details.stack(row).map_or(Vec::new(), |stack| stack.split(';').collect());
        More {
            shapes: self.details.shape(row).cloned(),
            types: self.details.types(row).cloned(),
            values: self.details.values(row).cloned(),
            stack: frames[frames.len().saturating_sub(FRAMES)..].iter().map(|frame| (*frame).into()).collect(),
            module: self.details.module(row).cloned(),
            flops: known(events.flops[row]),
            bytes: known(events.bytes[row]),
            stream: known(events.stream[row]).filter(|_| events.kind[row].is_device_work()),
            blocks: kernel.and_then(|kernel| kernel.blocks()),
            block_threads: kernel.and_then(|kernel| kernel.block_threads()),
            registers: kernel.and_then(|kernel| kernel.registers),
            shared_mem_bytes: kernel.and_then(|kernel| kernel.shared_mem_bytes),
            occupancy_pct: kernel.and_then(|kernel| kernel.occupancy_pct).map(|pct| pct.round() as u32),
        }
    }
}

/// A description in the page: number of the name, number of the kind's word, and index + 1 of the description around it.
#[derive(Debug, PartialEq, Eq, Hash, Clone, Serialize)]
struct Shown(usize, Option<usize>, usize, #[serde(skip_serializing_if = "More::is_empty")] More<usize>);

/// The descriptions of the page.
#[derive(Debug, Default, Serialize)]
#[serde(transparent)]
pub(super) struct Descriptions {
    list: Vec<Shown>,
    #[serde(skip)]
    numbers: FxHashMap<Shown, usize>,
}

impl Descriptions {
    /// Returns the index in the page of a rank's description `number`. `known` has the indices of those that are in the page
    /// already. Beyond `most` descriptions, only names and kinds are added; the second value is whether that shortens this one.
    pub(super) fn id(
        &mut self,
        list: &[Description],
        number: u32,
        known: &mut FxHashMap<u32, usize>,
        names: &mut StringPool,
        most: usize,
    ) -> (usize, bool) {
        let mut path = Vec::new();
        let (mut next, mut inside) = (Some(number), None);
        while let Some(number) = next {
            inside = known.get(&number).copied();
            if inside.is_some() {
                break;
            }
            path.push(number);
            next = list[number as usize].inside;
        }
        if self.list.len() + path.len() > most {
            let description = &list[number as usize];
            let is_shortened = description.inside.is_some() || !description.more.is_empty();
            let id = self.number(bare(description, names));
            known.insert(number, id);
            return (id, is_shortened);
        }
        for number in path.into_iter().rev() {
            let description = &list[number as usize];
            let mut shown = bare(description, names);
            shown.2 = inside.map_or(0, |id| id + 1);
            shown.3 = description.more.map(|text| names.id(text));
            let id = self.number(shown);
            known.insert(number, id);
            inside = Some(id);
        }
        (inside.unwrap_or_default(), false)
    }

    fn number(&mut self, shown: Shown) -> usize {
        if let Some(number) = self.numbers.get(&shown) {
            return *number;
        }
        let number = self.list.len();
        self.list.push(shown.clone());
        self.numbers.insert(shown, number);
        number
    }
}

/// Name and kind only.
fn bare(description: &Description, names: &mut StringPool) -> Shown {
    let kind = description.kind.map(|kind| names.id(trace::Vocabulary::as_str(kind)));
    Shown(names.id(&description.name), kind, 0, More::default())
}
