//! A run: its manifest, the readable shards of every table, and the problems with the rest.

pub(crate) mod growing;
mod limit;
mod parts;

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use crate::keys::MANIFEST_FILE;
use crate::place::{self, Kind};
use crate::words::OmissionKind;
use crate::{Error, Manifest, OmissionRow, Row, Shard, ShardMeta, Text, rank_tables, rows_from_batch};

/// A problem of a run that does not prevent reading the rest.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Problem {
    /// Whether recorded data is missing.
    pub kind: OmissionKind,
    /// The file that causes it, where there is one.
    pub path: Option<PathBuf>,
    /// The rank, where known.
    pub rank: Option<i32>,
    /// The item that is left out: `rows of events`, `rank`, `file`.
    pub what: String,
    /// The amount left out; `None` if unknown.
    pub amount: Option<i64>,
    /// The reason.
    pub why: String,
}

impl Problem {
    /// The problem as a row of `omissions`, with the file's path inside `run`.
    pub fn into_omission(self, run: &Path) -> OmissionRow {
        let Self { kind, path, rank, what, amount, why } = self;
        let file = path.map(|path| Text::from(path.strip_prefix(run).unwrap_or(&path).display().to_string()));
        OmissionRow::of(kind, what, why).rank(rank).file(file).amount(amount)
    }
}

/// A run directory, opened.
#[derive(Clone, Debug)]
pub struct Run {
    /// The directory.
    pub path: PathBuf,
    /// The manifest.
    pub manifest: Manifest,
    /// Readable shards by (rank, table), in the order of their parts.
    shards: BTreeMap<(i32, String), Vec<Shard>>,
    /// The problems found.
    pub problems: Vec<Problem>,
    /// Parquet files of its tables that are none of its shards: damaged ones, altered ones and those of other runs.
    pub left_out: Vec<PathBuf>,
    /// Whether these are only the newest shards of a run that is being written. What its counters and its ranks say of
    /// the whole run does not hold for them.
    pub is_excerpt: bool,
}

impl Run {
    /// Opens a run: reads the manifest and every shard's footer.
    ///
    /// A shard that cannot be read or that belongs to another run becomes one of the [`problems`](Self::problems), as does
    /// a shard of a rank that another process or session claims too, a shard that differs from the one in the list of its
    /// process or is missing, and a rank without shards.
    ///
    /// # Errors
    /// [`Error::NotARun`], or the manifest's errors.
    pub fn open(path: &Path) -> Result<Self, Error> {
        Self::open_ranks(path, |_| true)
    }

    /// Opens the shards of some ranks only. What concerns no rank, or a rank without any file, is a problem each time.
    ///
    /// # Errors
    /// As [`open`](Self::open).
    pub fn open_ranks(path: &Path, is_wanted: impl Fn(i32) -> bool) -> Result<Self, Error> {
        let io = |path: &Path| {
            let path = path.to_path_buf();
            move |source| Error::Io { path, source }
        };
        let why = match place::kind_if_there(path).map_err(io(path))? {
            Some(Kind::Directory) => match place::kind_if_there(&path.join(MANIFEST_FILE)).map_err(io(path))? {
                Some(Kind::File { .. }) => None,
                _ => Some(format!("it has no {MANIFEST_FILE}")),
            },
            Some(_) => Some("not a directory".to_string()),
            None => Some("no such directory".to_string()),
        };
        if let Some(why) = why {
            return Err(Error::NotARun { path: path.into(), why });
        }
        let manifest = Manifest::read(path)?;
        let mut run = Self {
            path: path.into(),
            manifest,
            shards: BTreeMap::new(),
            problems: Vec::new(),
            left_out: Vec::new(),
            is_excerpt: false,
        };
        let mut others = BTreeSet::new();
        for table in rank_tables() {
            run.open_table(table.name, &is_wanted, &mut others);
        }
        // By number: beyond part 9999 the names sort differently.
        run.shards.values_mut().for_each(|shards| shards.sort_by_key(|shard| shard.part));
        run.pass_joined_parts();
        run.drop_double_claims();
        run.compare_with_lists();
        run.find_missing_ranks(&others);
        Ok(run)
    }

    /// The ranks that have files in a run, with the size of these files. No file is opened.
    ///
    /// # Errors
    /// [`Error::Io`].
    pub fn list_ranks(path: &Path) -> Result<BTreeMap<i32, u64>, Error> {
        let mut ranks: BTreeMap<i32, u64> = BTreeMap::new();
        for table in rank_tables() {
            for (file, bytes) in Self::list_files(path, table.name)? {
                if let Some(rank) = rank_in_name(&file) {
                    let sum = ranks.entry(rank).or_default();
                    *sum = sum.saturating_add(bytes);
                }
            }
        }
        Ok(ranks)
    }

    /// The files in the directory of a table with their sizes, in the order of names. No file is opened.
    ///
    /// # Errors
    /// [`Error::Io`].
    pub fn list_files(path: &Path, table: &str) -> Result<Vec<(PathBuf, u64)>, Error> {
        let directory = path.join(table);
        let io = |source| Error::Io { path: directory.clone(), source };
        let entries = match place::entries(&directory) {
            // No rank wrote rows of this table.
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(Vec::new()),
            entries => entries.map_err(io)?,
        };
        let mut files = Vec::with_capacity(entries.len());
        for entry in entries {
            let bytes = match place::kind_if_there(&entry.path).map_err(io)? {
                Some(Kind::File { bytes }) => bytes,
                // A part that a recorder closed meanwhile has another name now.
                Some(Kind::Directory | Kind::Other) | None => 0,
            };
            files.push((entry.path, bytes));
        }
        Ok(files)
    }

    /// The ranks with at least one readable shard, ascending.
    pub fn ranks(&self) -> Vec<i32> {
        let ranks: BTreeSet<i32> = self.shards.keys().map(|(rank, _)| *rank).collect();
        ranks.into_iter().collect()
    }

    /// The tables of a rank with their readable shards. A run may have tens of thousands of ranks, so the shards of the
    /// others are not looked at.
    fn of_rank(&self, rank: i32) -> impl Iterator<Item = (&str, &Vec<Shard>)> {
        let from_rank = self.shards.range((rank, String::new())..);
        from_rank.take_while(move |((of, _), _)| *of == rank).map(|((_, table), shards)| (table.as_str(), shards))
    }

    /// The readable shards of one rank's table, in the order of their parts.
    pub fn shards(&self, rank: i32, table: &str) -> &[Shard] {
        self.shards.get(&(rank, table.to_string())).map_or(&[], Vec::as_slice)
    }

    /// Reads all rows of one rank's table, and returns the problems beside the rows. Meant for small tables.
    pub fn rows<R: Row>(&self, rank: i32) -> (Vec<R>, Vec<Problem>) {
        let table = R::table();
        let mut rows = Vec::new();
        let mut problems = Vec::new();
        for shard in self.shards(rank, table.name) {
            let before = rows.len();
            let read = shard.read(&table, None, |batch| -> Result<(), Error> {
                rows.extend(rows_from_batch::<R>(batch)?);
                Ok(())
            });
            if let Err(error) = read {
                problems.push(Problem {
                    kind: OmissionKind::Lost,
                    path: Some(shard.path.clone()),
                    rank: Some(rank),
                    what: format!("rows of {}", table.name),
                    // Texts may be shortened without a row being lost.
                    amount: Some(shard.rows as i64 - (rows.len() - before) as i64).filter(|lost| *lost != 0),
                    why: error.to_string(),
                });
            }
        }
        (rows, problems)
    }

    /// Opens the shards of a table, and adds the ranks that are not wanted to `others`.
    fn open_table(&mut self, table: &str, is_wanted: &impl Fn(i32) -> bool, others: &mut BTreeSet<i32>) {
        let directory = self.path.join(table);
        let entries = match place::entries(&directory) {
            Ok(entries) => entries,
            // No rank wrote rows of this table.
            Err(error) if error.kind() == ErrorKind::NotFound => return,
            Err(error) => return self.problem(&directory, None, format!("rows of {table}"), None, error.to_string()),
        };
        let (wanted, unwanted): (Vec<PathBuf>, Vec<PathBuf>) =
            entries.into_iter().map(|entry| entry.path).partition(|path| rank_in_name(path).is_none_or(is_wanted));
        others.extend(unwanted.iter().filter_map(|path| rank_in_name(path)));
        let opened =
            place::for_all(&wanted, &self.path, |path| (!is_unfinished(path)).then(|| Shard::open(path, table)));
        for (path, opened) in wanted.into_iter().zip(opened) {
            // A temporary file is a part that was open when its rank died. Only the rank's own counters include its rows.
            let Some(opened) = opened else {
                let why = "the part was being written when its rank stopped".to_string();
                self.problem(&path, rank_in_name(&path), format!("unfinished part of {table}"), None, why);
                continue;
            };
            match opened {
                Ok(shard) => self.accept(shard),
                Err(error) => {
                    self.problem(&path, rank_in_name(&path), format!("rows of {table}"), None, error.to_string());
                }
            }
        }
    }

    fn accept(&mut self, mut shard: Shard) {
        let (run_id, rank) = (&shard.meta.run_id, shard.meta.rank);
        let why = if *run_id != self.manifest.run_id {
            format!("it belongs to run {run_id:?}, the manifest says {:?}", self.manifest.run_id)
        } else if rank >= self.manifest.world_size {
            format!("rank {rank} in a run whose manifest says world_size {}", self.manifest.world_size)
        } else {
            // A large run has hundreds of thousands of shards.
            if let Some(other) = self.of_rank(rank).flat_map(|(_, shards)| shards).next()
                && other.meta == shard.meta
            {
                shard.meta = other.meta.clone();
            }
            self.shards.entry((rank, shard.table.clone())).or_default().push(shard);
            return;
        };
        self.problem(&shard.path, Some(rank), format!("rows of {}", shard.table), Some(shard.rows as i64), why);
    }

    /// Passes over parts whose rows a joined one of the same process holds, too: that process was killed while it joined them.
    fn pass_joined_parts(&mut self) {
        for shards in self.shards.values_mut() {
            let joined = shards.iter().filter(|shard| shard.parts.len() > 1);
            let of_joined = joined.flat_map(|shard| shard.parts[1..].iter().map(|(part, _)| (shard.meta.pid, *part)));
            let held: BTreeSet<(i64, u32)> = of_joined.collect();
            shards.retain(|shard| !held.contains(&(shard.meta.pid, shard.part)));
        }
    }

    /// Whether the shards of a rank are still those that were opened. A rank that records joins its parts.
    pub fn is_current(&self, rank: i32) -> bool {
        let is_same = |shard: &Shard| std::fs::metadata(&shard.path).is_ok_and(|found| found.len() == shard.bytes);
        crate::url::is_url(&self.path) || self.of_rank(rank).flat_map(|(_, shards)| shards).all(is_same)
    }

    /// Two processes may claim one rank, and nothing tells which one is right. The claim with more rows stays, the other
    /// becomes a problem. The processes of one session make one claim.
    fn drop_double_claims(&mut self) {
        for rank in self.ranks() {
            let mut claims: BTreeMap<Claim, u64> = BTreeMap::new();
            for shard in self.of_rank(rank).flat_map(|(_, shards)| shards) {
                *claims.entry(Claim::of(&shard.meta)).or_default() += shard.rows;
            }
            if claims.len() < 2 {
                continue;
            }
            let Some(keep) = claims.iter().max_by_key(|(_, rows)| **rows).map(|(claim, _)| claim.clone()) else {
                continue;
            };
            let tables: Vec<String> = self.of_rank(rank).map(|(table, _)| table.to_string()).collect();
            for table in tables {
                let Some(shards) = self.shards.get_mut(&(rank, table.clone())) else { continue };
                let (good, bad): (Vec<Shard>, Vec<Shard>) =
                    std::mem::take(shards).into_iter().partition(|s| Claim::of(&s.meta) == keep);
                *shards = good;
                for shard in bad {
                    let (own, what) = (Claim::of(&shard.meta), format!("rows of {table}"));
                    let why =
                        format!("rank {rank} is claimed by two processes: {keep} is kept (more rows), this is {own}");
                    self.problem(&shard.path, Some(rank), what, Some(shard.rows as i64), why);
                }
            }
        }
        self.shards.retain(|_, shards| !shards.is_empty());
    }

    /// Lists the ranks that have no readable shard. `others` have files, and are not looked at. Ranks that were not put into the run are among
    /// the omissions of its manifest.
    fn find_missing_ranks(&mut self, others: &BTreeSet<i32>) {
        let present: BTreeSet<i32> = self.ranks().into_iter().chain(others.iter().copied()).collect();
        let world_size = self.manifest.world_size;
        let is_missing = |rank: &i32| !present.contains(rank);
        // A manifest may claim any number of ranks, so not all of them are looked at.
        let (missing, named): (i64, Vec<i32>) = match self.manifest.held_ranks() {
            None => {
                let expected = present.iter().filter(|rank| (0..world_size).contains(rank)).count() as i64;
                (i64::from(world_size) - expected, (0..world_size).filter(is_missing).take(MAX_NAMED_RANKS).collect())
            }
            Some(held) => {
                let missing: Vec<i32> = held.range(..world_size).copied().filter(is_missing).collect();
                (missing.len() as i64, missing.into_iter().take(MAX_NAMED_RANKS).collect())
            }
        };
        let unnamed = missing - named.len() as i64;
        for rank in named {
            self.absent(OmissionKind::Lost, Some(rank), 1, "no readable shard of it was found".into());
        }
        if unnamed > 0 {
            let why = format!("no readable shard of them was found, nor of the {MAX_NAMED_RANKS} that are named");
            self.absent(OmissionKind::Lost, None, unnamed, why);
        }
    }

    fn absent(&mut self, kind: OmissionKind, rank: Option<i32>, amount: i64, why: String) {
        let what = if rank.is_some() { "rank" } else { "ranks" }.to_string();
        self.problems.push(Problem { kind, path: None, rank, what, amount: Some(amount), why });
    }

    /// Adds a problem of a file that is left out, or of a directory.
    fn problem(&mut self, path: &Path, rank: Option<i32>, what: String, amount: Option<i64>, why: String) {
        if path.extension().is_some_and(|extension| extension == "parquet") {
            self.left_out.push(path.into());
        }
        self.problems.push(Problem { kind: OmissionKind::Lost, path: Some(path.into()), rank, what, amount, why });
    }
}

fn is_unfinished(path: &Path) -> bool {
    path.extension().is_some_and(|extension| extension == "tmp")
}

/// Missing ranks that become one problem each. All others become one problem with a count, because a manifest may
/// claim any number of ranks.
const MAX_NAMED_RANKS: usize = 4096;

/// The writer that claims a rank: a process, or a session of several processes.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Claim {
    Process { host: String, pid: i64 },
    Session { host: String, id: String },
}

impl Claim {
    fn of(meta: &ShardMeta) -> Self {
        let host = meta.host.clone();
        match meta.session.is_empty() {
            true => Self::Process { host, pid: meta.pid },
            false => Self::Session { host, id: meta.session.clone() },
        }
    }
}

impl fmt::Display for Claim {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Process { host, pid } => write!(f, "{host} pid {pid}"),
            Self::Session { host, id } => write!(f, "{host} session {id}"),
        }
    }
}

/// The rank in the name of a shard, finished or not.
fn rank_in_name(path: &Path) -> Option<i32> {
    const SUFFIX: &str = ".parquet";
    let name = path.file_name()?.to_str()?;
    let shard = &name[..name.find(SUFFIX)? + SUFFIX.len()];
    crate::parse_shard_name(shard).map(|(rank, _)| rank)
}
