//! The processes of a file. A file that was merged from those of many ranks names the rank of each.
//!
//! ```text
//!  {"pid": "[TP02-EP02] 4711", …}                                              the process itself is a text
//!  {"ph": "M", "name": "process_name", "pid": 7, "args": {"name": "rank 3"}}   a row names it
//! ```

use std::hash::BuildHasher;
use std::sync::Arc;

use rustc_hash::{FxBuildHasher, FxHashMap};
use trace::name_rules::roles::RankName;

/// The processes that one worker has seen as texts, and those that it reads.
#[derive(Debug, Default)]
pub(crate) struct Processes {
    /// The only processes that are read; `None`: all.
    only: Option<Arc<[i64]>>,
    /// The processes that are texts, by the numbers that stand for them.
    pub(crate) named: FxHashMap<i64, TextProcess>,
}

/// A process that is a text.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct TextProcess {
    pub(crate) rank: Option<RankName>,
    /// Its own number, behind the name of the rank.
    pub(crate) pid: Option<i64>,
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

/// Numbers that stand for strings begin here.
const FAR: i64 = 1 << 61;

/// A number for a process or thread that a string names. Equal strings give equal numbers, far from any real id.
pub(crate) fn id_from_text(text: &[u8]) -> i64 {
    FAR | (FxBuildHasher.hash_one(text) >> 4) as i64
}

/// Whether a number stands for a string.
pub(crate) fn is_from_text(id: i64) -> bool {
    id & !(FAR - 1) == FAR
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
