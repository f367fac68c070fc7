//! The processes of a file. A file that was merged from those of many ranks names the rank of each.
//!
//! ```text
//!  {"pid": "[TP02-EP02] 4711", …}                                              the process itself is a text
//!  {"ph": "M", "name": "process_name", "pid": 7, "args": {"name": "rank 3"}}   a row names it
//! ```

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use rustc_hash::FxHashMap;
use trace::name_rules::roles::RankName;

use crate::columns::batch::{id_from_text, is_from_text};
use crate::columns::stream::Streamed;

/// The processes that one worker has seen as texts, and those that it reads.
#[derive(Debug, Default)]
pub(crate) struct Processes {
    /// The only processes that are read; `None`: all.
    only: Option<Arc<[i64]>>,
    /// The processes that are texts, by the numbers that stand for them.
    pub(super) named: FxHashMap<i64, TextProcess>,
}

/// A process that is a text.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct TextProcess {
    rank: Option<RankName>,
    /// Its own number, behind the name of the rank.
    pid: Option<i64>,
}

impl TextProcess {
    fn of(text: &[u8]) -> Self {
        let text = String::from_utf8_lossy(text);
        let pid = text.rsplit_once("] ").and_then(|(_, pid)| pid.parse().ok());
        Self { rank: RankName::of(&text), pid }
    }
}

impl Processes {
    /// Reads these processes only; all for `None`.
    pub(crate) fn only(only: Option<Arc<[i64]>>) -> Self {
        Self { only, named: FxHashMap::default() }
    }

    /// The number that stands for a process that is a text.
    pub(crate) fn of_text(&mut self, text: &[u8]) -> i64 {
        let id = id_from_text(text);
        self.named.entry(id).or_insert_with(|| TextProcess::of(text));
        id
    }

    /// Whether events of a process are not read.
    #[inline(always)]
    pub(crate) fn leaves_out(&self, pid: i64) -> bool {
        self.only.as_ref().is_some_and(|only| !only.contains(&pid))
    }
}

/// The rank that the arguments of a `process_name` say.
pub(crate) fn rank_in(args: &[u8]) -> Option<RankName> {
    RankName::of(&String::from_utf8_lossy(args))
}

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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_text_has_a_rank_and_a_number() {
        let process = |text: &str| {
            let TextProcess { rank, pid } = TextProcess::of(text.as_bytes());
            (rank.map(|rank| rank.to_string()), pid)
        };
        assert_eq!(process("[TP02-EP02] 4711"), (Some("EP 2, TP 2".into()), Some(4711)));
        assert_eq!(process("[TP02-EP02] Spans"), (Some("EP 2, TP 2".into()), None));
        assert_eq!(process("rank_3_4711"), (Some("rank 3".into()), None));
        assert_eq!(process("Spans"), (None, None));
    }
}
