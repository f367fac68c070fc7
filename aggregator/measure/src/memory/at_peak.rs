//! The memory in use at the peak: blocks with the operator and the stack that allocated them.

use std::cmp::Reverse;
use std::collections::BTreeMap;

use rayon::prelude::*;
use rustc_hash::FxHashMap;
use trace::{MemoryAtPeakRow, MemoryCategory, MemoryRow, Text};

use crate::memory::blocks::Block;
use crate::memory::phases::Phases;
use model::RankData;
use model::steps::step_at;

/// Blocks of a device that have a row of their own. Smaller blocks are summed by category and operator.
const SINGLE_BLOCKS: usize = 100;
/// Innermost frames of a stack that are kept.
const FRAMES: usize = 24;
/// The name of the holder for memory that was allocated before the recording began.
pub(super) const BEFORE: &str = "before the recording";
/// The name of the holder for all memory, if no allocation could be joined with its release.
pub(super) const UNKNOWN: &str = "unknown";
/// The most holders that a row of `memory_peaks` lists.
const NAMED: usize = 5;

/// The rows of one device at its peak. Their bytes sum to `in_use`, the bytes in use after the row `at`.
pub(super) fn rows(
    data: &RankData,
    phases: &Phases<'_>,
    blocks: &[Block],
    (at, in_use): (u32, i64),
) -> Vec<MemoryAtPeakRow> {
    let mut alive: Vec<&Block> = blocks.iter().filter(|block| block.alive.contains(&at)).collect();
    alive.sort_by_key(|block| (Reverse(block.bytes), block.alive.start));
    let known = alive.iter().fold(0_i64, |sum, block| sum.saturating_add(block.bytes));
    let (single, rest) = alive.split_at(alive.len().min(SINGLE_BLOCKS));
    let mut rows: Vec<MemoryAtPeakRow> = single.iter().map(|block| row_of(data, phases, block)).collect();
    let categories: Vec<MemoryCategory> = rest.par_iter().map(|block| phases.category(block)).collect();
    let mut sums: FxHashMap<(&str, Option<&Text>), MemoryAtPeakRow> = FxHashMap::default();
    for (block, category) in rest.iter().zip(categories) {
        let operator = operator(&data.memory, block);
        let none = || MemoryAtPeakRow {
            blocks: Some(0),
            category: category.into(),
            operator: operator.cloned(),
            ..MemoryAtPeakRow::default()
        };
        let sum = sums.entry((category.as_str(), operator)).or_insert_with(none);
        sum.bytes = sum.bytes.saturating_add(block.bytes);
        sum.blocks = sum.blocks.map(|blocks| blocks + 1);
    }
    let mut sums: Vec<_> = sums.into_iter().collect();
    sums.sort_unstable_by_key(|(key, _)| *key);
    rows.extend(sums.into_iter().map(|(_, row)| row));
    rows.sort_by_key(|row| Reverse(row.bytes));
    let unknown = in_use.saturating_sub(known);
    if unknown != 0 {
        rows.push(MemoryAtPeakRow {
            bytes: unknown,
            category: MemoryCategory::Unknown.into(),
            ..MemoryAtPeakRow::default()
        });
    }
    rows
}

fn row_of(data: &RankData, phases: &Phases<'_>, block: &Block) -> MemoryAtPeakRow {
    let seen = block.allocated.or(block.released).and_then(|row| data.memory.get(row as usize));
    let ts_ns = block.allocated.and_then(|row| data.memory.get(row as usize)).map(|row| row.ts_ns);
    MemoryAtPeakRow {
        bytes: block.bytes,
        blocks: Some(1),
        category: phases.category(block).into(),
        operator: operator(&data.memory, block).cloned(),
        stack: block.allocated.and_then(|row| stack(data, phases, row)),
        address: seen.and_then(|row| row.address),
        ts_ns,
        step: ts_ns.map(|ts_ns| step_at(&data.outline.steps, ts_ns)),
        ..MemoryAtPeakRow::default()
    }
}

/// The operator that allocated a block.
fn operator<'a>(rows: &'a [MemoryRow], block: &Block) -> Option<&'a Text> {
    rows.get(block.allocated? as usize)?.name.as_ref()
}

/// The frames of a stack, innermost first, as indices of names.
fn frames(data: &RankData, phases: &Phases<'_>, row: u32) -> Vec<u32> {
    phases.frames(row).take(FRAMES).map(|at| data.events.name[at]).collect()
}

fn text(data: &RankData, frames: &[u32]) -> Option<Text> {
    let names: Vec<&str> = frames.iter().rev().map(|name| &*data.names[*name as usize]).collect();
    (!names.is_empty()).then(|| names.join(";").into())
}

/// The stack that came with a row, or else the ranges and Python functions around it.
fn stack(data: &RankData, phases: &Phases<'_>, row: u32) -> Option<Text> {
    let own = data.memory.get(row as usize).and_then(|row| row.stack.clone());
    own.or_else(|| text(data, &frames(data, phases, row)))
}

/// A place of the program that allocates, and how many bytes more of it are in use.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Growing {
    pub(super) operator: Option<Text>,
    pub(super) stack: Option<Text>,
    pub(super) bytes: i64,
}

/// The operator and stack whose blocks grew most from one row of `memory` to a later one.
pub(super) fn most_grown(
    data: &RankData,
    phases: &Phases<'_>,
    blocks: &[Block],
    (from, to): (u32, u32),
) -> Option<Growing> {
    let mut grown: FxHashMap<(Option<&Text>, Vec<u32>), i64> = FxHashMap::default();
    for block in blocks {
        let Some(row) = block.allocated else { continue };
        let change = i64::from(block.alive.contains(&to)) - i64::from(block.alive.contains(&from));
        if change != 0 {
            let sum = grown.entry((operator(&data.memory, block), frames(data, phases, row))).or_default();
            *sum = sum.saturating_add(change * block.bytes);
        }
    }
    let ((operator, frames), bytes) = grown.into_iter().max_by(|a, b| (a.1, &a.0).cmp(&(b.1, &b.0)))?;
    (bytes > 0).then(|| Growing { operator: operator.cloned(), stack: text(data, &frames), bytes })
}

/// The operators that hold most at the peak, as `name=bytes`, separated by `; `. `rest` is the name of memory in no block.
pub(super) fn holders(rows: &[MemoryAtPeakRow], rest: &str) -> Text {
    let mut held: BTreeMap<&str, i64> = BTreeMap::new();
    for row in rows {
        let is_known = row.operator.is_some() || row.ts_ns.is_some() || row.blocks.is_some_and(|blocks| blocks > 1);
        let name = row.operator.as_deref().unwrap_or(if is_known { "unnamed" } else { rest });
        let sum = held.entry(name).or_default();
        *sum = sum.saturating_add(row.bytes);
    }
    let mut held: Vec<(&str, i64)> = held.into_iter().filter(|(_, bytes)| *bytes > 0).collect();
    held.sort_by_key(|(_, bytes)| Reverse(*bytes));
    let named: Vec<String> = held.iter().take(NAMED).map(|(name, bytes)| format!("{name}={bytes}")).collect();
    named.join("; ").into()
}
