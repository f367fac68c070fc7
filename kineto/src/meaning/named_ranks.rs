//! The ranks that the names of a file's processes say.

use std::collections::{BTreeMap, BTreeSet};

use rustc_hash::FxHashMap;
use trace::name_rules::roles::RankName;

use crate::columns::processes::is_from_text;
use crate::columns::stream::Streamed;

/// The ranks that the processes of a file say, with the processes of each. A process that says two is none of them.
pub(crate) fn named_ranks(streamed: &Streamed) -> BTreeMap<RankName, Vec<i64>> {
    let texts = streamed.scratches.values().flat_map(|scratch| &scratch.processes.named);
    let of_texts: BTreeMap<i64, RankName> = texts.filter_map(|(id, process)| Some((*id, process.rank?))).collect();
    let rows = streamed.pieces.iter().flat_map(|(_, piece)| piece.ranks.iter().copied());
    let mut names: BTreeMap<i64, BTreeSet<RankName>> = BTreeMap::new();
    // A text is written in every event. So it is surer than a row.
    for (id, rank) in rows.filter(|(id, _)| !of_texts.contains_key(id)).chain(of_texts.clone()) {
        names.entry(id).or_default().insert(rank);
    }
    let mut ranks: BTreeMap<RankName, Vec<i64>> = BTreeMap::new();
    for (id, names) in names.into_iter().filter(|(_, names)| names.len() == 1) {
        names.into_iter().for_each(|rank| ranks.entry(rank).or_default().push(id));
    }
    ranks
}

/// The number of a process: that behind its rank if it is a text, and 0 if it has none.
pub(crate) fn own_number(streamed: &Streamed) -> impl Fn(i64) -> i64 + use<> {
    let texts = streamed.scratches.values().flat_map(|scratch| &scratch.processes.named);
    let numbers: FxHashMap<i64, i64> = texts.filter_map(|(id, process)| Some((*id, process.pid?))).collect();
    move |id| numbers.get(&id).copied().unwrap_or(if is_from_text(id) { 0 } else { id })
}
