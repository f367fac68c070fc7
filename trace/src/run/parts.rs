//! The shards that the processes of a run closed, compared with those that are there.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;

use crate::run::{Problem, Run};
use crate::{OmissionKind, PartRow, RankRow, Row, Shard, shard_path};

/// Tables whose last shards are written after the list.
const UNLISTED: [&str; 2] = ["parts", "ranks"];
/// The parts that a problem names.
const NAMED: usize = 5;

/// The shards of a table with the same fault.
#[derive(Debug, Default)]
struct Group {
    parts: Vec<u32>,
    rows: i64,
}

/// A difference between the list and the shards.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Fault {
    Missing,
    Altered,
    Unlisted,
}

impl Fault {
    fn why(self) -> &'static str {
        match self {
            Self::Missing => "the rank closed shards that are not there",
            Self::Altered => "the shards are not those that the rank closed: their checksums differ",
            Self::Unlisted => "the shards are none that the rank closed",
        }
    }
}

impl Run {
    /// Compares the shards of every rank with the lists of its processes. Shards that were altered or are not listed
    /// are left out. Each difference becomes a problem. A process that was killed leaves no list or a part of one: its
    /// shards that are not listed stay.
    pub(super) fn compare_with_lists(&mut self) {
        // A shard that is damaged or was refused is a problem already.
        let refused: BTreeSet<PathBuf> = self.problems.iter().filter_map(|problem| problem.path.clone()).collect();
        for rank in self.ranks() {
            let (listed, problems) = self.rows::<PartRow>(rank);
            self.problems.extend(problems);
            let complete = self.complete_lists(rank, &listed);
            let faults = self.faults(rank, (&listed, &complete), &refused);
            for ((table, fault), group) in faults {
                if fault != Fault::Missing
                    && let Some(shards) = self.shards.get_mut(&(rank, table.clone()))
                {
                    let left_out: BTreeSet<u32> = group.parts.iter().copied().collect();
                    self.left_out.extend(shards.extract_if(.., |shard| left_out.contains(&shard.part)).map(|s| s.path));
                }
                self.problems.push(self.fault(rank, &table, fault, group));
            }
        }
        self.shards.retain(|_, shards| !shards.is_empty());
    }

    /// The processes of a rank that closed in order and whose whole list was read. A list that lacks rows is a problem.
    fn complete_lists(&mut self, rank: i32, listed: &[PartRow]) -> BTreeSet<i64> {
        let mut rows: BTreeMap<i64, i64> = BTreeMap::new();
        for row in listed {
            *rows.entry(row.pid).or_default() += 1;
        }
        // A process may record several times. Each time it has a row at its start, and at its end one with its count.
        let mut counts: BTreeMap<i64, (i64, i64)> = BTreeMap::new();
        for row in self.rows::<RankRow>(rank).0 {
            let (closed, open) = counts.entry(row.pid).or_default();
            *closed = closed.saturating_add(row.parts.unwrap_or(0));
            *open += if row.parts.is_some() { -1 } else { 1 };
        }
        let rowless: Vec<i64> = rows.keys().copied().filter(|pid| !counts.contains_key(pid)).collect();
        for pid in rowless {
            let why = format!("process {pid} lists its shards, and no row of it is there");
            self.lost_rows(rank, RankRow::table().name, None, why);
        }
        let mut complete = BTreeSet::new();
        for (pid, (closed, _)) in counts.into_iter().filter(|(_, (_, open))| *open <= 0) {
            let read = rows.get(&pid).copied().unwrap_or(0);
            if read == closed {
                complete.insert(pid);
                continue;
            }
            let why = format!(
                "process {pid} closed {closed} shards, and the list of them has {read}; whether more rows are missing is not known"
            );
            let amount = Some(closed.saturating_sub(read)).filter(|amount| *amount > 0);
            self.lost_rows(rank, PartRow::table().name, amount, why);
        }
        complete
    }

    fn lost_rows(&mut self, rank: i32, table: &str, amount: Option<i64>, why: String) {
        let what = format!("rows of {table}");
        self.problems.push(Problem { kind: OmissionKind::Lost, path: None, rank: Some(rank), what, amount, why });
    }

    fn faults(
        &self,
        rank: i32,
        (listed, complete): (&[PartRow], &BTreeSet<i64>),
        refused: &BTreeSet<PathBuf>,
    ) -> BTreeMap<(String, Fault), Group> {
        let mut faults: BTreeMap<(String, Fault), Group> = BTreeMap::new();
        let mut add = |table: &str, fault: Fault, part: u32, rows: i64| {
            let group = faults.entry((table.to_string(), fault)).or_default();
            group.parts.push(part);
            group.rows = group.rows.saturating_add(rows);
        };
        let mut expected: BTreeSet<(&str, u32)> = BTreeSet::new();
        for row in listed {
            let (table, part) = (&*row.table_name, u32::try_from(row.part).unwrap_or(u32::MAX));
            expected.insert((table, part));
            match self.part(rank, table, part) {
                Some(shard) if shard.footer_xxh3 != *row.footer_xxh3 => add(table, Fault::Altered, part, row.rows),
                None if !refused.contains(&shard_path(&self.path, table, rank, part)) => {
                    add(table, Fault::Missing, part, row.rows);
                }
                _ => {}
            }
        }
        let closed_before = self.of_rank(rank).filter(|(table, _)| !UNLISTED.contains(table));
        for shard in closed_before.flat_map(|(_, shards)| shards) {
            if complete.contains(&shard.meta.pid) && !expected.contains(&(shard.table.as_str(), shard.part)) {
                add(&shard.table, Fault::Unlisted, shard.part, shard.rows as i64);
            }
        }
        faults
    }

    fn part(&self, rank: i32, table: &str, part: u32) -> Option<&Shard> {
        let shards = self.shards(rank, table);
        shards.binary_search_by_key(&part, |shard| shard.part).ok().map(|at| &shards[at])
    }

    fn fault(&self, rank: i32, table: &str, fault: Fault, group: Group) -> Problem {
        let Group { parts, rows } = group;
        let path = match parts.as_slice() {
            [only] => Some(shard_path(&self.path, table, rank, *only)),
            _ => None,
        };
        let named: Vec<String> = parts.iter().take(NAMED).map(u32::to_string).collect();
        let more = parts.len().saturating_sub(NAMED);
        let more = if more > 0 { format!(" and {more} more") } else { String::new() };
        let why = format!("{} (parts {}{more})", fault.why(), named.join(", "));
        let what = format!("rows of {table}");
        Problem { kind: OmissionKind::Lost, path, rank: Some(rank), what, amount: Some(rows), why }
    }
}
