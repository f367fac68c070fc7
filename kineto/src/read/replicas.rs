//! Replicas of a job that each count their ranks from 0, as those of vLLM with data parallelism do. They are one job here.
//!
//! ```text
//!  dp0_rank0.json  [process 7]      rank 0
//!  dp0_rank1.json  [process 8]      rank 1
//!  dp1_rank0.json   [process 9]     rank 2: replica 1 · 2 ranks + rank 0
//!  dp1_rank1.json   [process 10]    rank 3
//! ```
//!
//! Names tell replicas apart if files of one rank differ in their `dp`. Else processes of one rank that overlap in time are
//! of different replicas, in the order of their files' names. One process has one file for each window, so files of one
//! process that overlap in time are copies.

use std::collections::{BTreeMap, BTreeSet};

use trace::name_rules::roles::role;
use trace::rank::MAX_RANKS;
use trace::{OmissionRow, Text};

use crate::read::jobs::Traits;
use crate::read::names::natural_order;
use crate::read::trace_file::{Replica, TraceFile, listed};

/// A replica: its number by the files' names, and its place among those that the names do not tell apart.
type Key = (i32, usize);

/// A process, and the positions of its files.
type Process = (i64, Vec<usize>);

/// Gives the files of replicas their ranks in the whole job. `world_size` is the number of ranks of one replica. Returns a
/// note; `None` if there is one replica.
pub(crate) fn tell_apart(files: &mut [TraceFile], surveys: &[Traits], world_size: i32) -> Option<OmissionRow> {
    let named = numbers_in_names(files);
    let keys = keys(files, surveys, &named);
    let replicas: BTreeSet<Key> = keys.iter().copied().collect();
    let ranks = i32::try_from(replicas.len()).ok()?.checked_mul(world_size).filter(|ranks| *ranks <= MAX_RANKS)?;
    if replicas.len() < 2 {
        return None;
    }
    let number: BTreeMap<Key, i32> = replicas.into_iter().zip(0..).collect();
    let mut said: BTreeMap<i32, Text> = BTreeMap::new();
    for (file, key) in files.iter_mut().zip(&keys) {
        let first_rank = number[key] * world_size;
        file.rank += first_rank;
        file.replica = Some(Replica { first_rank, world_size: ranks });
        let of = if named.is_empty() { file.name.to_string() } else { format!("dp{}", key.0) };
        let last_rank = first_rank + world_size - 1;
        let shown =
            if world_size == 1 { format!("rank {first_rank}") } else { format!("ranks {first_rank}–{last_rank}") };
        said.entry(first_rank).or_insert_with(|| format!("{shown} ({of})").into());
    }
    let said: Vec<Text> = said.into_values().collect();
    let why = format!("each counts its ranks from 0; here they are {}", listed(&said));
    Some(OmissionRow::note("replicas", why).amount(number.len() as i64))
}

/// The numbers of replicas in the names of files; empty if they tell no two files of one rank apart.
fn numbers_in_names(files: &[TraceFile]) -> Vec<i32> {
    let number = |file: &TraceFile| role(file.roles.as_deref()?, "dp");
    let numbers: Vec<i32> = files.iter().map(|file| number(file).unwrap_or(0)).collect();
    let mut first: BTreeMap<i32, i32> = BTreeMap::new();
    let differs = |(file, number): (&TraceFile, &i32)| first.entry(file.rank).or_insert(*number) != number;
    if files.iter().zip(&numbers).any(differs) { numbers } else { Vec::new() }
}

/// The replica of each file.
fn keys(files: &[TraceFile], surveys: &[Traits], named: &[i32]) -> Vec<Key> {
    let mut order: Vec<usize> = (0..files.len()).collect();
    order.sort_by(|a, b| natural_order(&files[*a].name, &files[*b].name));
    let number = |file: usize| named.get(file).copied().unwrap_or(0);
    // The processes of each rank and number, in the order of their first files.
    let mut processes: BTreeMap<(i32, i32), Vec<Process>> = BTreeMap::new();
    for file in order {
        let of_rank = processes.entry((files[file].rank, number(file))).or_default();
        match of_rank.iter_mut().find(|(pid, _)| *pid == surveys[file].pid) {
            Some((_, its_files)) => its_files.push(file),
            None => of_rank.push((surveys[file].pid, vec![file])),
        }
    }
    let mut keys = vec![(0, 0); files.len()];
    for ((_, number), processes) in processes {
        let mut lanes: Vec<Lane> = Vec::new();
        for (pid, its_files) in processes {
            let spans = Lane::of(its_files.iter().filter_map(|file| surveys[*file].span_ns));
            // An unknown process may be any.
            let free = if pid == 0 { Some(0) } else { lanes.iter().position(|lane| !lane.overlaps(&spans)) };
            let at = free.unwrap_or(lanes.len());
            if at >= lanes.len() {
                lanes.push(Lane::default());
            }
            lanes[at].join(spans);
            its_files.iter().for_each(|file| keys[*file] = (number, at));
        }
    }
    keys
}

/// Times in which files were recorded: the start and end of each, none of which overlap.
#[derive(Debug, Default)]
struct Lane(BTreeMap<i64, i64>);

impl Lane {
    fn of(spans: impl Iterator<Item = (i64, i64)>) -> Self {
        let mut lane = Self::default();
        spans.for_each(|span| lane.add(span));
        lane
    }

    /// Adds a time, and joins it with those that it overlaps.
    fn add(&mut self, (mut start_ns, mut end_ns): (i64, i64)) {
        while let Some((start, end)) = self.overlapping((start_ns, end_ns)) {
            self.0.remove(&start);
            (start_ns, end_ns) = (start_ns.min(start), end_ns.max(end));
        }
        self.0.insert(start_ns, end_ns);
    }

    fn overlapping(&self, (start_ns, end_ns): (i64, i64)) -> Option<(i64, i64)> {
        let before = self.0.range(..end_ns.max(start_ns.saturating_add(1))).next_back();
        before.map(|(start, end)| (*start, *end)).filter(|(start, end)| *end > start_ns || *start == start_ns)
    }

    fn overlaps(&self, other: &Self) -> bool {
        other.0.iter().any(|(start, end)| self.overlapping((*start, *end)).is_some())
    }

    fn join(&mut self, other: Self) {
        other.0.into_iter().for_each(|span| self.add(span));
    }
}

#[cfg(test)]
mod tests {
    use trace::name_rules::roles::roles_in;

    use super::*;
    use crate::bytes::memory::MemoryShare;
    use crate::read::trace_file::RankSource;

    /// The ranks of files in the whole job, by name, rank, process and the time `#` of each.
    fn ranks(world_size: i32, files: &[(&str, i32, i64, &str)]) -> Vec<i32> {
        let file = |(name, rank, ..): &(&str, i32, i64, &str)| TraceFile {
            path: "".into(),
            name: (*name).into(),
            rank: *rank,
            roles: roles_in(name).map(Text::from),
            rank_source: RankSource::DistributedInfo,
            world_size: Some(world_size),
            size_bytes: 1,
            window: None,
            replica: None,
            memory: MemoryShare::default(),
            flight_recorder: None,
            processes: None,
        };
        let traits = |(_, _, pid, line): &(&str, i32, i64, &str)| Traits {
            span_ns: fixtures::timeline::bars(line).first().copied(),
            pid: *pid,
            ..Traits::default()
        };
        let mut planned: Vec<TraceFile> = files.iter().map(file).collect();
        let surveys: Vec<Traits> = files.iter().map(traits).collect();
        let note = tell_apart(&mut planned, &surveys, world_size);
        assert_eq!(note.is_some(), planned.iter().any(|file| file.replica.is_some()));
        planned.iter().map(|file| file.rank).collect()
    }

    #[test]
    fn processes_of_one_rank_at_one_time_are_replicas() {
        let files = [
            ("b/0", 0, 9, ".####"), //
            ("a/0", 0, 7, "####."),
            ("a/1", 1, 8, "####."),
            ("b/1", 1, 6, ".####"),
        ];
        assert_eq!(ranks(2, &files), [2, 0, 1, 3]);
        // Each replica has two windows.
        let files = [
            ("1/a", 0, 7, "###..."), //
            ("1/b", 0, 8, "###..."),
            ("2/a", 0, 7, "...###"),
            ("2/b", 0, 8, "...###"),
        ];
        assert_eq!(ranks(1, &files), [0, 1, 0, 1]);
    }

    #[test]
    fn copies_and_later_recordings_are_no_replicas() {
        let copies = [("a", 0, 7, "####."), ("b", 0, 7, "####."), ("c", 0, 0, "####.")];
        assert_eq!(ranks(1, &copies), [0, 0, 0]);
        let later = [("a", 0, 7, "##..."), ("b", 0, 8, "..##."), ("c", 0, 9, "....#")];
        assert_eq!(ranks(1, &later), [0, 0, 0]);
    }

    #[test]
    fn names_tell_replicas_apart() {
        let replicas = [("dp0_tp0", 0, 7, "##.."), ("dp1_tp0", 0, 8, "..##"), ("dp10_tp0", 0, 9, "..##")];
        assert_eq!(ranks(4, &replicas), [0, 4, 8]);
        // Here `dp` is a part of one job with two recordings.
        let windows = [("1/dp0", 0, 7, "##.."), ("1/dp1", 1, 8, "##.."), ("2/dp0", 0, 7, "..##")];
        assert_eq!(ranks(2, &windows), [0, 1, 0]);
    }
}
