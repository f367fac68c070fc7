//! The newest shards of a run that is being written.
//!
//! ```text
//!  events/rank-00003-    0000 … 0411 | 0412 0413 0414 0415 | 0416
//!                        forgotten     held                  looked for by each refresh
//! ```
//!
//! A rank numbers the parts of a table without gaps, so a refresh looks for a few names and never lists what is forgotten.
//! Its work and its memory depend on the held shards, not on the length of the run.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::fs;
use std::path::{Path, PathBuf};

use super::{Claim, Problem, Run};
use crate::words::OmissionKind;
use crate::{
    BucketRow, ClockSampleRow, CollectiveRow, CommRow, CounterRow, DeviceRow, Error, EventRow, Manifest, RankRow, Row,
    Shard, StepRow, parse_shard_name, place, shard_path,
};

/// Parts of a table that are read at first of a run that is being written for a while already.
const FIRST_PARTS: u32 = 8;
/// Part numbers beyond the next one that a refresh looks for. A part after a gap counts the parts in the gap as missing.
const AHEAD: u32 = 4;
/// The most new parts of a table that one refresh opens; the next refresh opens the rest.
const AT_ONCE: u32 = 64;
/// Refreshes between two looks for parts that were joined before they were read: each lists whole directories.
const REFRESHES: u32 = 16;
/// Attempts to open a part before it counts as unreadable: a tool that copies a run may write its files in place.
const ATTEMPTS: u32 = 3;
/// Parts that are held of a small table: the first ones and the newest ones.
const SMALL: (u32, u32) = (4, 28);
/// Parts without step numbers that are held of a table.
const WITHOUT_STEPS: usize = 6;
/// The most parts that are held of a table.
const MAX_PARTS: usize = 256;

/// The parts of a table that are held.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Hold {
    /// Those with rows of the steps that are asked for.
    Steps,
    /// The first and the newest ones.
    Ends,
    /// The newest ones. All parts are read, because their counts add up.
    Sums,
}

/// Tables that are followed.
fn tables() -> [(&'static str, Hold); 9] {
    [
        (RankRow::table().name, Hold::Ends),
        (EventRow::table().name, Hold::Steps),
        (CollectiveRow::table().name, Hold::Steps),
        (StepRow::table().name, Hold::Steps),
        (CommRow::table().name, Hold::Ends),
        (DeviceRow::table().name, Hold::Ends),
        (ClockSampleRow::table().name, Hold::Ends),
        (BucketRow::table().name, Hold::Ends),
        (CounterRow::table().name, Hold::Sums),
    ]
}

/// The newest parts of one table of one rank.
#[derive(Clone, Debug)]
struct Tail {
    hold: Hold,
    held: VecDeque<Shard>,
    next: u32,
    /// The part after the first ones that are held, if parts between them are skipped.
    resume: u32,
    /// Failed attempts to open the next part.
    failed: u32,
    /// The parts that joined ones hold, from the next one on.
    joined: BTreeSet<u32>,
    /// Whether the part before the next one was not read.
    after_gap: bool,
    /// The last step of which rows are forgotten or were never read.
    incomplete_to: Option<i32>,
}

impl Tail {
    fn new(hold: Hold, last: Option<u32>) -> Self {
        let from = |newest: u32| last.map_or(0, |last| (last + 1).saturating_sub(newest));
        let (next, resume) = match hold {
            Hold::Steps => (from(FIRST_PARTS), 0),
            Hold::Ends => (0, from(SMALL.1)),
            Hold::Sums => (0, 0),
        };
        let (held, joined) = (VecDeque::new(), BTreeSet::new());
        Self { hold, held, next, resume, failed: 0, joined, after_gap: next > 0, incomplete_to: None }
    }

    /// Takes the next part, or counts it as not read.
    fn take(&mut self, shard: Option<&Shard>) {
        if let Some(shard) = shard {
            if self.after_gap {
                self.incomplete_to = self.incomplete_to.max(shard.last_step);
            }
            self.held.push_back(shard.clone());
            self.joined.extend(shard.parts.iter().map(|(part, _)| *part));
        }
        (self.after_gap, self.failed) = (shard.is_none(), 0);
        self.next += 1;
        if self.hold == Hold::Ends && self.next == SMALL.0 {
            self.next = self.next.max(self.resume);
        }
    }

    fn forget_before(&mut self, first_step: i32, max_rows: u64) {
        let (first, newest) = (SMALL.0 as usize, SMALL.1 as usize);
        match self.hold {
            Hold::Ends if self.held.len() > first + newest => drop(self.held.drain(first..self.held.len() - newest)),
            Hold::Sums if self.held.len() > newest => drop(self.held.drain(..self.held.len() - newest)),
            Hold::Ends | Hold::Sums => {}
            Hold::Steps => {
                let mut rows: u64 = self.held.iter().map(|shard| shard.rows).sum();
                while let Some(front) = self.held.front() {
                    let is_old = match front.last_step {
                        Some(last) if last >= 0 => last < first_step,
                        _ => self.held.len() > WITHOUT_STEPS,
                    };
                    if !is_old && (self.held.len() == 1 || (rows <= max_rows && self.held.len() <= MAX_PARTS)) {
                        break;
                    }
                    rows -= front.rows;
                    self.incomplete_to = self.incomplete_to.max(front.last_step);
                    self.held.pop_front();
                }
            }
        }
    }
}

/// The part that holds the rows of `shard` now, if that was joined with others.
fn joined_with(shard: &Shard, path: impl Fn(u32) -> PathBuf) -> Option<Shard> {
    if fs::metadata(&shard.path).is_ok_and(|found| found.len() == shard.bytes) {
        return None;
    }
    let before = (0..=shard.part).rev().map(path).find(|path| path.exists())?;
    Shard::open(&before, &shard.table).ok().filter(|joined| joined.parts.iter().any(|(part, _)| *part == shard.part))
}

/// A run that is being written.
#[derive(Clone, Debug)]
pub struct Growing {
    path: PathBuf,
    manifest: Manifest,
    tails: BTreeMap<(i32, &'static str), Tail>,
    claims: BTreeMap<i32, Claim>,
    problems: Vec<Problem>,
    /// Number of refreshes.
    refreshes: u32,
}

impl Growing {
    /// Opens a run and its newest shards.
    ///
    /// # Errors
    /// [`Error::NotARun`], or the manifest's errors.
    pub fn open(path: &Path) -> Result<Self, Error> {
        let io = |source| Error::Io { path: path.into(), source };
        if !place::is_file(&path.join(crate::MANIFEST_FILE)).map_err(io)? {
            return Err(Error::NotARun { path: path.into(), why: format!("it has no {}", crate::MANIFEST_FILE) });
        }
        let manifest = Manifest::read(path)?;
        let mut growing = Self {
            path: path.into(),
            manifest,
            tails: BTreeMap::new(),
            claims: BTreeMap::new(),
            problems: Vec::new(),
            refreshes: 0,
        };
        for (table, hold) in tables() {
            for (rank, last) in growing.last_parts(table) {
                growing.tails.insert((rank, table), Tail::new(hold, Some(last)));
            }
        }
        Ok(growing)
    }

    /// The manifest.
    pub fn manifest(&self) -> &Manifest {
        &self.manifest
    }

    /// The number of the last part of each rank. A directory that cannot be listed has none yet.
    fn last_parts(&self, table: &str) -> BTreeMap<i32, u32> {
        let mut last: BTreeMap<i32, u32> = BTreeMap::new();
        for entry in fs::read_dir(self.path.join(table)).into_iter().flatten().flatten() {
            if let Some((rank, part)) = entry.file_name().to_str().and_then(parse_shard_name) {
                let known = last.entry(rank).or_insert(part);
                *known = part.max(*known);
            }
        }
        last
    }

    /// Opens the shards that were closed since the last refresh, and returns them.
    pub fn refresh(&mut self) -> Vec<Shard> {
        // Each rank has a row in `ranks` before any other row.
        let started = self.last_parts(RankRow::table().name);
        for rank in started.keys().filter(|rank| **rank < self.manifest.world_size) {
            for (table, hold) in tables() {
                self.tails.entry((*rank, table)).or_insert_with(|| Tail::new(hold, None));
            }
        }
        self.refreshes += 1;
        if self.refreshes.is_multiple_of(REFRESHES) {
            self.pass_joined();
        }
        let mut found = Vec::new();
        for key in self.tails.keys().copied().collect::<Vec<_>>() {
            for _ in 0..AT_ONCE {
                let Some(shard) = self.advance(key) else { break };
                found.extend(shard);
            }
        }
        found
    }

    /// Goes on with the newest parts of tables whose next part is gone: it was joined with earlier ones before it was read.
    fn pass_joined(&mut self) {
        for (table, _) in tables() {
            for (rank, last) in self.last_parts(table) {
                let is_gone = |part: u32| !shard_path(&self.path, table, rank, part).exists();
                let Some(tail) = self.tails.get_mut(&(rank, table)) else { continue };
                if last <= tail.next + AHEAD || !(0..=AHEAD).all(|ahead| is_gone(tail.next + ahead)) {
                    continue;
                }
                let newest = (last + 1).saturating_sub(FIRST_PARTS);
                let why = format!("parts {} to {} were joined before they were read", tail.next, newest - 1);
                (tail.next, tail.after_gap, tail.failed) = (newest, true, 0);
                let (kind, what) = (OmissionKind::LeftOut, format!("rows of {table}"));
                self.problems.push(Problem { kind, path: None, rank: Some(rank), what, amount: None, why });
            }
        }
    }

    /// Goes one part further: `None` if there is no further part yet, `Some(None)` for a part that cannot be used.
    fn advance(&mut self, (rank, table): (i32, &'static str)) -> Option<Option<Shard>> {
        let tail = self.tails.get_mut(&(rank, table))?;
        let is_there = |part: u32| shard_path(&self.path, table, rank, part).exists();
        while tail.joined.contains(&tail.next) && !is_there(tail.next) {
            tail.next += 1;
        }
        tail.joined = tail.joined.split_off(&tail.next);
        let (next, failed) = (tail.next, tail.failed);
        let path = |part: u32| shard_path(&self.path, table, rank, part);
        let tried = match path(next).exists().then(|| Shard::open(&path(next), table)) {
            Some(opened) => opened.map_err(|error| error.to_string()),
            None if (1..=AHEAD).any(|ahead| path(next + ahead).exists()) => {
                Err("later parts are there, and this one is not".into())
            }
            None => return None,
        };
        if tried.is_err() && failed + 1 < ATTEMPTS {
            self.tails.get_mut(&(rank, table))?.failed += 1;
            return None;
        }
        let path = path(next);
        let usable = tried.and_then(|shard| self.accept(shard));
        let tail = self.tails.get_mut(&(rank, table))?;
        tail.take(usable.as_ref().ok());
        if let Err(why) = &usable {
            let (what, why) = (format!("rows of {table}"), why.clone());
            let lost = OmissionKind::Lost;
            self.problems.push(Problem { kind: lost, path: Some(path), rank: Some(rank), what, amount: None, why });
        }
        Some(usable.ok())
    }

    /// The shard, unless it is of another run or another process has its rank.
    fn accept(&mut self, shard: Shard) -> Result<Shard, String> {
        let (run_id, expected) = (&shard.meta.run_id, &self.manifest.run_id);
        if run_id != expected {
            return Err(format!("it belongs to run {run_id:?}, the manifest says {expected:?}"));
        }
        let own = Claim::of(&shard.meta);
        let first = self.claims.entry(shard.meta.rank).or_insert_with(|| own.clone());
        match *first == own {
            true => Ok(shard),
            false => Err(format!("the rank is claimed by two processes: {first} was first, this is {own}")),
        }
    }

    /// Whether a part that is there could not be opened yet, or is missing before later ones; the next refreshes try again.
    pub fn is_pending(&self) -> bool {
        self.tails.values().any(|tail| tail.failed > 0)
    }

    /// Takes the problems since the last call.
    pub fn take_problems(&mut self) -> Vec<Problem> {
        std::mem::take(&mut self.problems)
    }

    /// The last step that the shards of `steps` of every rank hold; `None` as long as a rank has none.
    pub fn last_common_step(&self) -> Option<i32> {
        let of_steps = self.tails.iter().filter(|((_, table), _)| *table == StepRow::table().name);
        of_steps.map(|(_, tail)| tail.held.back().and_then(|shard| shard.last_step)).min().flatten()
    }

    /// The first step of which every row can be held.
    pub fn first_whole_step(&self) -> i32 {
        let incomplete_to = self.tails.values().filter_map(|tail| tail.incomplete_to).max();
        incomplete_to.map_or(0, |step| step.saturating_add(1).max(0))
    }

    /// Forgets the shards whose rows all belong to steps before `first_step`, and older ones first where a table of a rank
    /// has more than `max_rows`. Of small tables, the first and the newest parts stay.
    pub fn forget_before(&mut self, first_step: i32, max_rows: u64) {
        self.tails.values_mut().for_each(|tail| tail.forget_before(first_step, max_rows));
    }

    /// Holds joined parts in place of those that their process has joined since they were opened.
    fn follow_joined(&mut self) {
        for ((rank, table), tail) in &mut self.tails {
            let mut held: VecDeque<Shard> = VecDeque::with_capacity(tail.held.len());
            for shard in tail.held.drain(..) {
                let is_held = |joined: &Shard| joined.parts.iter().any(|(part, _)| *part == shard.part);
                if !held.back().is_some_and(is_held) {
                    let path = |part: u32| shard_path(&self.path, table, *rank, part);
                    held.push_back(joined_with(&shard, path).unwrap_or(shard));
                }
            }
            tail.held = held;
        }
    }

    /// The held shards as a run.
    pub fn excerpt(&mut self) -> Run {
        self.follow_joined();
        let held = self.tails.iter().filter(|(_, tail)| !tail.held.is_empty());
        let shards = held.map(|((rank, table), tail)| ((*rank, (*table).into()), tail.held.iter().cloned().collect()));
        Run {
            path: self.path.clone(),
            manifest: self.manifest.clone(),
            shards: shards.collect(),
            problems: Vec::new(),
            left_out: Vec::new(),
            is_excerpt: true,
        }
    }
}
