//! Blocks of memory: each allocation with its release.

use std::ops::Range;

use rustc_hash::FxHashMap;
use trace::{MemoryRow, Text};

use model::windows::Windows;

/// A block of memory. The numbers are rows of `memory`, which are sorted by time.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Block {
    /// Size, above zero.
    pub(super) bytes: i64,
    /// Rows during which it is in use, as far as the recording tells.
    pub(super) alive: Range<u32>,
    /// Its allocation; `None`: before the recording.
    pub(super) allocated: Option<u32>,
    /// Its release; `None`: after the recording, or not recorded.
    pub(super) released: Option<u32>,
}

/// The key that joins a release with its allocation.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
enum Key<'a> {
    Address(i64),
    /// Without addresses, the latest block of the same name and size, if names tell blocks apart.
    Purpose(Option<&'a Text>, i64),
}

impl<'a> Key<'a> {
    fn of(row: &'a MemoryRow) -> Self {
        match row.address {
            Some(address) => Self::Address(address),
            None => Self::Purpose(row.name.as_ref(), row.delta_bytes.saturating_abs()),
        }
    }
}

/// Whether each release without an address follows an allocation of its name and size that no other release took. Only
/// then do names say what blocks are for. In traces of 2021 the name is that of the operator, and most blocks are released
/// by another one.
fn names_join(rows: &[MemoryRow], window: &[u32]) -> bool {
    let mut open: FxHashMap<Key<'_>, i64> = FxHashMap::default();
    let rows = window.iter().map(|number| &rows[*number as usize]);
    rows.filter(|row| row.address.is_none()).all(|row| {
        let count = open.entry(Key::of(row)).or_default();
        *count += row.delta_bytes.signum();
        *count >= 0
    })
}

/// The blocks of one device; `of_device` has the numbers of its rows, ascending.
///
/// Blocks end with the window of the profiler in which they began, because a release in the pause is not recorded. An
/// allocation at the address of a block ends that block: its release was not recorded. Rows without addresses make no
/// blocks in a window in which [names do not join](names_join) them.
///
/// ```text
/// 0x1   ####....####        two blocks
/// 0x2   ....########>       not released
/// 0x3  <####                allocated before the recording
/// ```
pub(super) fn blocks(rows: &[MemoryRow], of_device: &[u32], windows: &Windows) -> Vec<Block> {
    let mut blocks: Vec<Block> = Vec::new();
    let window_of = |row: u32| windows.at(rows[row as usize].ts_ns);
    for window in of_device.chunk_by(|a, b| window_of(*a) == window_of(*b)) {
        let (Some(first), Some(last)) = (window.first(), window.last()) else { continue };
        let (first, end) = (*first, last + 1);
        let mut open: FxHashMap<Key<'_>, Vec<usize>> = FxHashMap::default();
        let names_join = names_join(rows, window);
        for number in window {
            let row = &rows[*number as usize];
            if row.address.is_none() && !names_join {
                continue;
            }
            let same = open.entry(Key::of(row)).or_default();
            if row.delta_bytes > 0 {
                if let (Some(_), Some(block)) = (row.address, same.pop()) {
                    blocks[block].alive.end = *number;
                }
                same.push(blocks.len());
                blocks.push(Block {
                    bytes: row.delta_bytes,
                    alive: *number..end,
                    allocated: Some(*number),
                    released: None,
                });
            } else if let Some(block) = same.pop() {
                blocks[block].alive.end = *number;
                blocks[block].released = Some(*number);
            } else if row.delta_bytes < 0 {
                let bytes = row.delta_bytes.saturating_neg();
                blocks.push(Block { bytes, alive: first..*number, allocated: None, released: Some(*number) });
            }
        }
    }
    blocks
}

#[cfg(test)]
mod tests {
    use trace::StepRow;

    use super::*;

    fn row(ts_ns: i64, address: i64, delta_bytes: i64) -> MemoryRow {
        MemoryRow { ts_ns, address: Some(address), delta_bytes, ..MemoryRow::default() }
    }

    fn drawn(rows: &[MemoryRow], steps: &[StepRow]) -> Vec<String> {
        let all: Vec<u32> = (0..rows.len() as u32).collect();
        let blocks = blocks(rows, &all, &Windows::of(steps));
        let text = |block: Block| {
            let known = |row: Option<u32>| row.map_or("?".to_string(), |row| row.to_string());
            format!("{} B {:?} {}-{}", block.bytes, block.alive, known(block.allocated), known(block.released))
        };
        blocks.into_iter().map(text).collect()
    }

    #[test]
    fn a_release_is_joined_with_its_allocation() {
        //  row    0   1   2   3   4   5
        //  0x1    ########....####>         the address is used again
        //  0x2    ....>                     not released
        //  0x3   <################          allocated before the recording
        let rows = [row(0, 1, 10), row(1, 2, 20), row(2, 1, -10), row(3, 1, 30), row(4, 3, -7), row(5, 9, 0)];
        assert_eq!(drawn(&rows, &[]), ["10 B 0..2 0-2", "20 B 1..6 1-?", "30 B 3..6 3-?", "7 B 0..4 ?-4"]);
    }

    #[test]
    fn a_block_ends_where_its_address_is_allocated_again() {
        assert_eq!(drawn(&[row(0, 1, 10), row(1, 1, 20)], &[]), ["10 B 0..1 0-?", "20 B 1..2 1-?"]);
    }

    #[test]
    fn no_block_outlives_its_window() {
        let step = |step, start_ns, end_ns| StepRow { step, start_ns, end_ns, ..StepRow::default() };
        let rows = [row(0, 1, 10), row(5, 2, 20), row(100, 2, -20), row(101, 3, 5)];
        let steps = [step(0, 0, 10), step(7, 100, 110)];
        assert_eq!(drawn(&rows, &steps), ["10 B 0..2 0-?", "20 B 1..2 1-?", "20 B 2..2 ?-2", "5 B 3..4 3-?"]);
    }

    #[test]
    fn without_addresses_name_and_size_join_if_they_join_all() {
        let named = |name: &str, delta_bytes| MemoryRow {
            name: Some(name.into()),
            address: None,
            delta_bytes,
            ..MemoryRow::default()
        };
        let rows = [named("a", 10), named("b", 10), named("a", -10), named("a", 3)];
        assert_eq!(drawn(&rows, &[]), ["10 B 0..2 0-2", "10 B 1..4 1-?", "3 B 3..4 3-?"]);
        // Another operator releases the block.
        let rows = [named("a", 10), named("b", 10), named("b", -10), named("b", -10)];
        assert_eq!(drawn(&rows, &[]), [""; 0]);
    }
}
