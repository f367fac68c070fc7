//! Files that hold the traces of many ranks: SGLang and many scripts merge those of a job into one. The names of the processes
//! say the rank of each.
//!
//! ```text
//!  merged.json.gz   [TP00] 4711, [TP00] 0, …      rank 0: one trace of the same file
//!                   [TP01] 4712, [TP01] 1, …      rank 1: another one
//! ```
//!
//! The file is read once for its processes, and once for each rank.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use trace::name_rules::roles::{OUTERMOST_FIRST, RankName, WORDS};
use trace::rank::MAX_RANKS;
use trace::{OmissionRow, Text};

use crate::Error;
use crate::bytes::input::Input;
use crate::bytes::memory::Room;
use crate::columns::stream::{BLOCK_BYTES, read_processes};
use crate::columns::wanted_args::Wanted;
use crate::meaning::named_ranks::named_ranks;
use crate::read::find::Candidate;

/// Most ranks of a file, which is read once for each.
const MAX_MERGED: usize = 1 << 12;

/// The ranks of a merged file.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Merged {
    pub(crate) ranks: Vec<MergedRank>,
    /// Rows of processes that are of no rank.
    pub(crate) left_rows: u64,
}

/// A rank of a merged file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct MergedRank {
    pub(crate) rank: i32,
    pub(crate) name: RankName,
    pub(crate) processes: Arc<[i64]>,
}

/// Whether these bytes of a file have a process whose name says a rank. Then the whole file is read for its processes.
pub(crate) fn name_a_rank(bytes: &[u8]) -> bool {
    const LONGEST: usize = 256;
    let says_rank =
        |from: usize, to: usize| RankName::of(&String::from_utf8_lossy(&bytes[from..bytes.len().min(to)])).is_some();
    let is_text = |at: usize| {
        let value = bytes[at + "\"pid\"".len()..].trim_ascii_start();
        let Some(value) = value.strip_prefix(b":") else { return false };
        let Some(text) = value.trim_ascii_start().strip_prefix(b"\"") else { return false };
        let from = bytes.len() - text.len();
        says_rank(from, from + memchr::memchr(b'"', text).unwrap_or(text.len()).min(LONGEST))
    };
    // The arguments of a row may stand before its name.
    let is_named = |at: usize| says_rank(at.saturating_sub(LONGEST), at + LONGEST);
    memchr::memmem::find_iter(bytes, "\"pid\"").any(is_text)
        || memchr::memmem::find_iter(bytes, "\"process_name\"").any(is_named)
}

/// The ranks of a file; `None` if its processes are of fewer than two, or of too many.
///
/// # Errors
/// [`Error::Io`].
pub(crate) fn merged(candidate: &Candidate) -> Result<Option<Merged>, Error> {
    let io = |source| Error::Io { path: candidate.shown.clone(), source };
    let input = Input::open(&candidate.path).map_err(io)?;
    let file_error = input.file_error.clone();
    let wanted = Wanted { rows_only: true, ..Wanted::default() };
    // No process is read, so that only their names are kept.
    let streamed = read_processes(input, wanted, BLOCK_BYTES, Room::unlimited(), Some(Arc::new([])));
    file_error.check().map_err(io)?;
    let named = named_ranks(&streamed);
    if !(2..=MAX_MERGED).contains(&named.len()) {
        return Ok(None);
    }
    let known: BTreeSet<i64> = named.values().flatten().copied().collect();
    let rows = streamed.pieces.iter().flat_map(|(_, piece)| &piece.other_processes);
    let left_rows = rows.filter(|(id, _)| !known.contains(id)).map(|(_, rows)| rows).sum();
    let names: Vec<RankName> = named.keys().copied().collect();
    let of_rank = |(rank, (name, ids)): (i32, (RankName, Vec<i64>))| MergedRank { rank, name, processes: ids.into() };
    let ranks = numbers(&names).into_iter().zip(named).map(of_rank).collect();
    Ok(Some(Merged { ranks, left_rows }))
}

impl Merged {
    /// What is said of the file beside its ranks.
    pub(crate) fn remarks(&self, file: &Text) -> Vec<OmissionRow> {
        let why = format!("taken from the names of the processes in {file}, which holds the traces of all of them");
        let mut remarks = vec![OmissionRow::note("ranks", why).amount(self.ranks.len() as i64)];
        if self.left_rows > 0 {
            let why = "the names of their processes say no rank, or two";
            let rows = self.left_rows.min(i64::MAX as u64) as i64;
            remarks.push(OmissionRow::lost("rows of processes", why).file(file.clone()).amount(rows));
        }
        remarks
    }
}

/// The numbers of ranks, by names that differ: those in the names, else those of their places in the job. If neither tells
/// the ranks apart, they are counted.
fn numbers(names: &[RankName]) -> Vec<i32> {
    let stated: Option<Vec<i32>> = names.iter().map(|name| name.number).collect();
    let usable = |numbers: &Vec<i32>| {
        let different: BTreeSet<&i32> = numbers.iter().collect();
        different.len() == names.len() && numbers.iter().all(|number| (0..MAX_RANKS).contains(number))
    };
    let found = stated.filter(usable).or_else(|| by_places(names).filter(usable));
    found.unwrap_or_else(|| (0..).take(names.len()).collect())
}

/// Counts ranks over the places that differ, the outermost last. A place that follows from others is none of its own: in most
/// jobs, a rank has its experts by its place in the tensors.
fn by_places(names: &[RankName]) -> Option<Vec<i32>> {
    let mut kept: Vec<usize> = OUTERMOST_FIRST.to_vec();
    let place = |name: &RankName, at: usize| name.places[at];
    let distinct = |kept: &[usize]| {
        let seen: BTreeSet<Vec<Option<i32>>> =
            names.iter().map(|name| kept.iter().map(|at| place(name, *at)).collect()).collect();
        seen.len() == names.len()
    };
    for word in ["ep", "dcp", "dp", "cp", "pp", "tp"] {
        let without: Vec<usize> = kept.iter().copied().filter(|at| WORDS[*at].0 != word).collect();
        if distinct(&without) {
            kept = without;
        }
    }
    let size =
        |at: usize| names.iter().map(|name| place(name, at)).max().flatten().map_or(1, |most| i64::from(most) + 1);
    let sizes: BTreeMap<usize, i64> = kept.iter().map(|at| (*at, size(*at))).collect();
    let number = |name: &RankName| {
        let count = |sum: i64, at: &usize| Some(sum.checked_mul(sizes[at])? + i64::from(place(name, *at)?));
        i32::try_from(kept.iter().try_fold(0, count)?).ok()
    };
    names.iter().map(number).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ranks(names: &[&str]) -> Vec<i32> {
        numbers(&names.iter().map(|name| RankName::of(name).unwrap()).collect::<Vec<_>>())
    }

    #[test]
    fn ranks_are_counted_over_their_places() {
        for (names, expected) in [
            (&["[TP00-EP00] 1", "[TP01-EP01] 2", "[TP03-EP03] 4"][..], &[0, 1, 3][..]),
            (&["DP0-TP0", "DP0-TP1", "DP1-TP0", "DP1-TP1"], &[0, 1, 2, 3]),
            (&["TP0-PP1", "TP1-PP1", "TP1-PP0"], &[2, 3, 1]),
            // Attention is data-parallel over the tensors' ranks.
            (&["TP0-DP0-EP0", "TP1-DP0-EP0", "TP2-DP1-EP1", "TP3-DP1-EP1"], &[0, 1, 2, 3]),
            (&["rank 5", "rank 7"], &[5, 7]),
            (&["TP0-rank5", "TP0-rank7"], &[5, 7]),
            // No number tells these apart.
            (&["rank 5", "TP 1"], &[0, 1]),
            (&["TP 0", "TP 2000000000"], &[0, 1]),
        ] {
            assert_eq!(ranks(names), expected, "{names:?}");
        }
    }

    #[test]
    fn names_are_seen_in_any_bytes() {
        for bytes in [
            r#"{"ph": "X", "pid": "[TP00-EP00] 4711", "tid": 1"#,
            r#"{"ph": "X", "pid":"Rank 0"}"#,
            r#"{"name": "process_name", "ph": "M", "pid": 7, "args": {"name": "rank 3"}}"#,
            r#"{"args": {"name": "rank 3"}, "name": "process_name", "ph": "M", "pid": 7}"#,
        ] {
            assert!(name_a_rank(bytes.as_bytes()), "{bytes}");
        }
        for bytes in [
            r#"{"ph": "X", "pid": "Spans", "tid": "TP 0"}"#,
            r#"{"ph": "X", "name": "[TP00] step", "pid": 7, "args": {"rank": 3}}"#,
            r#"{"name": "process_name", "ph": "M", "pid": 7, "args": {"name": "python"}}"#,
            r#"{"pid""#,
        ] {
            assert!(!name_a_rank(bytes.as_bytes()), "{bytes}");
        }
    }
}
