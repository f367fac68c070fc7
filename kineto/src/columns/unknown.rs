//! Rows whose category is none or unknown: what they are by their process, or why nothing is made of them.
//!
//! torch_npu's `trace_view.json` has rows without a category. The names of its processes tell what they are: kernels of
//! `Ascend Hardware`, collectives (`hcom_…`) of `Communication`; the others are calls of CANN and sums of these.

use std::collections::BTreeMap;

use rustc_hash::{FxHashMap, FxHashSet};
use trace::Text;
use trace::name_rules::kind_on_ascend;

use crate::columns::batch::{AscendProcess, Columns, FarStreams, Tally};
use crate::columns::event::is_device_row;

/// What a worker's ids of tracks and categories mean.
pub(crate) struct Meanings<'a> {
    pub(crate) tracks: &'a [(i64, i64)],
    pub(crate) categories: &'a [Text],
}

/// Makes rows of Ascend's devices such, and counts the other rows. Returns those of unknown categories in processes that
/// have device rows, by category: work of a device that is not read as such.
pub(crate) fn settle_unknown<'a>(
    pieces: &mut [(u32, Columns)],
    meanings: impl Fn(u32) -> Option<Meanings<'a>>,
    names: &[Text],
    (tally, streams): (&mut Tally, &mut FarStreams),
) -> BTreeMap<Text, u64> {
    let mut found = BTreeMap::new();
    if pieces.iter().all(|(_, piece)| piece.unknown.is_empty()) {
        return found;
    }
    let processes: FxHashMap<i64, AscendProcess> = pieces.iter().flat_map(|(_, piece)| piece.ascend.clone()).collect();
    let is_ascend = processes.values().any(|process| *process == AscendProcess::Hardware);
    let mut by_category: FxHashMap<(i64, Text), u64> = FxHashMap::default();
    let mut of_devices: FxHashSet<i64> = FxHashSet::default();
    for (number, piece) in pieces {
        let Some(Meanings { tracks, categories }) = meanings(*number) else { continue };
        for (row, category) in std::mem::take(&mut piece.unknown) {
            let (at, category) = (row as usize, &categories[category as usize]);
            let (pid, tid) = tracks[piece.track[at] as usize];
            match processes.get(&pid).filter(|_| is_ascend) {
                _ if !category.is_empty() => *by_category.entry((pid, category.clone())).or_default() += 1,
                None if is_ascend => tally.of_ascend += 1,
                None => tally.no_category += 1,
                Some(process) => {
                    let name = &*names[piece.name[at] as usize];
                    let is_part = *process == AscendProcess::Communication && !name.starts_with("hcom_");
                    match kind_on_ascend(name.as_bytes()) {
                        kind if is_device_row(kind) && !is_part => {
                            // The file has one device, and no number of it.
                            (piece.kind[at], piece.device[at], piece.stream[at]) = (kind, 0, streams.narrow(tid));
                        }
                        _ => tally.of_ascend += 1,
                    }
                }
            }
        }
        let rows = piece.kind.iter().zip(&piece.track).filter(|(kind, _)| is_device_row(**kind));
        of_devices.extend(rows.map(|(_, track)| tracks[*track as usize].0));
    }
    for ((_, category), rows) in by_category.into_iter().filter(|((pid, _), _)| of_devices.contains(pid)) {
        *found.entry(category).or_default() += rows;
    }
    found
}
