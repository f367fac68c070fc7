//! A recorded run as a source of ranks.

use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::Mutex;

use kineto::MemoryShare;
use trace::{Manifest, OmissionRow, Row, Run, StepRow, lock};

use crate::memory::share;
use crate::run::{load_rank, load_rank_detailed, losses, outline_rank};
use model::source::{Source, SourceInfo};
use model::{Error, RankData, RankOutline, units};
use trace::rank::Details;

/// A recorded run as a source.
#[derive(Debug)]
pub struct RunSource {
    run: Run,
    /// The memory that its shards may take while they are read; `None`: the caller chose the shards.
    memory: Option<MemoryShare>,
    limit_bytes: Option<u64>,
    /// Problems of reads that return no omissions, by rank. The next load of the rank lists them: a disk may fail once.
    unlisted: Mutex<BTreeMap<i32, Vec<OmissionRow>>>,
}

impl RunSource {
    /// Opens a run.
    ///
    /// # Errors
    /// The errors of [`Run::open`].
    pub fn open(path: &Path) -> Result<Self, Error> {
        Self::open_within(path, None)
    }

    /// Opens a run whose shards may take `max_memory_bytes` of memory together while they are read; `None`: three
    /// quarters of the machine's memory. Every thread reads one rank at a time, and each rank may take an equal part.
    /// Larger shards are left out and become problems.
    ///
    /// # Errors
    /// The errors of [`Run::open`].
    pub fn open_within(path: &Path, max_memory_bytes: Option<u64>) -> Result<Self, Error> {
        Ok(Self::within(Run::open(path)?, max_memory_bytes))
    }

    /// As [`open_within`](Self::open_within), for some ranks only.
    ///
    /// # Errors
    /// The errors of [`Run::open`].
    pub fn open_ranks(
        path: &Path,
        is_wanted: impl Fn(i32) -> bool,
        max_memory_bytes: Option<u64>,
    ) -> Result<Self, Error> {
        Ok(Self::within(Run::open_ranks(path, is_wanted)?, max_memory_bytes))
    }

    fn within(mut run: Run, limit_bytes: Option<u64>) -> Self {
        let memory = share(limit_bytes, run.ranks().len());
        keep_within(&mut run, &memory);
        Self { run, memory: Some(memory), limit_bytes, unlisted: Mutex::default() }
    }

    /// The run with the shards that a rank has now. A rank that is recorded joins its parts, so those that were opened may be gone.
    fn now(&self, rank: i32) -> Cow<'_, Run> {
        let is_current = || self.run.is_excerpt || self.run.is_current(rank);
        match (!is_current()).then(|| Run::open_ranks(&self.run.path, |other| other == rank)) {
            Some(Ok(mut run)) => {
                self.memory.iter().for_each(|memory| keep_within(&mut run, memory));
                Cow::Owned(run)
            }
            // Reading the shards then fails, and the reader lists that.
            Some(Err(_)) | None => Cow::Borrowed(&self.run),
        }
    }

    /// A run whose shards are chosen already.
    pub fn of(run: Run) -> Self {
        Self { run, memory: None, limit_bytes: None, unlisted: Mutex::default() }
    }

    /// The memory that readers of the run may take, if it is not the default.
    pub fn limit_bytes(&self) -> Option<u64> {
        self.limit_bytes
    }

    /// Reads the rows of a small table of one rank. Problems are listed with the next load of the rank, or by
    /// [`losses`](Self::losses).
    pub fn rows<R: Row>(&self, rank: i32) -> Vec<R> {
        let (rows, problems) = self.now(rank).rows::<R>(rank);
        self.list_later(rank, problems.into_iter().map(|problem| problem.into_omission(&self.run.path)).collect());
        rows
    }

    /// The rows that were lost before the rank's shards were written, and the problems of reads that listed none, for a
    /// command that reads the shards by itself.
    pub fn losses(&self, rank: i32) -> Vec<OmissionRow> {
        self.with_unlisted(rank, losses(&self.run, rank))
    }

    /// Lists omissions with the next load of the rank, or by [`losses`](Self::losses).
    pub fn list_later(&self, rank: i32, omissions: Vec<OmissionRow>) {
        if !omissions.is_empty() {
            lock(&self.unlisted).entry(rank).or_default().extend(omissions);
        }
    }

    fn with_unlisted(&self, rank: i32, mut omissions: Vec<OmissionRow>) -> Vec<OmissionRow> {
        let unlisted = lock(&self.unlisted).remove(&rank);
        for omission in unlisted.into_iter().flatten() {
            // A damaged shard gives the same problem each time.
            if !omissions.contains(&omission) {
                omissions.push(omission);
            }
        }
        omissions
    }

    /// The steps of each window of the recorder, in order of time, over all ranks; the ends are exclusive.
    pub fn windows(&self) -> Vec<Range<i32>> {
        let rows = self.run.ranks().into_iter().flat_map(|rank| self.rows::<StepRow>(rank));
        let steps: BTreeSet<(Option<i32>, i32)> = rows.map(|row| (row.window, row.step)).collect();
        let mut windows: Vec<(Option<i32>, Range<i32>)> = Vec::new();
        for (window, step) in steps {
            match windows.last_mut() {
                Some((same, steps)) if *same == window && (window.is_some() || step <= steps.end) => {
                    steps.end = step.saturating_add(1);
                }
                _ => windows.push((window, step..step.saturating_add(1))),
            }
        }
        windows.into_iter().map(|(_, steps)| steps).collect()
    }

    /// The properties of a run.
    pub fn info_of(path: &Path, manifest: &Manifest) -> SourceInfo {
        SourceInfo {
            path: path.into(),
            run_id: manifest.run_id.clone(),
            tool: manifest.tool.clone(),
            world_size: Some(manifest.world_size),
            created_utc_ns: Some(manifest.created_utc_ns).filter(|ns| *ns > 0),
            command: manifest.command.clone(),
            left_out_files: BTreeSet::new(),
        }
    }

    /// The underlying run.
    pub fn run(&self) -> &Run {
        &self.run
    }
}

/// Leaves out the largest shards of ranks that take more than their part of the memory.
fn keep_within(run: &mut Run, memory: &MemoryShare) {
    let per_rank = memory.rank_bytes();
    let size = |bytes: u64| units::bytes(i64::try_from(bytes).unwrap_or(i64::MAX));
    run.keep_within(per_rank, |needed| {
        format!(
            "its rows take about {} of memory, and those of a rank may take {} ({} for {} at once); give more with --max-memory",
            size(needed),
            size(per_rank),
            size(memory.all_bytes),
            units::plural(memory.ranks_at_once as usize, "rank"),
        )
    });
}

impl Source for RunSource {
    fn info(&self) -> SourceInfo {
        let name = |file: &PathBuf| file.strip_prefix(&self.run.path).unwrap_or(file).display().to_string();
        let left_out_files = self.run.left_out.iter().map(name).collect();
        SourceInfo { left_out_files, ..Self::info_of(&self.run.path, &self.run.manifest) }
    }

    fn ranks(&self) -> Vec<i32> {
        self.run.ranks()
    }

    fn problems(&self) -> Vec<OmissionRow> {
        let of_shards = self.run.problems.iter().cloned().map(|p| p.into_omission(&self.run.path));
        self.run.manifest.omissions().into_iter().chain(of_shards).collect()
    }

    fn load(&self, rank: i32) -> Result<RankData, Error> {
        let mut data = load_rank(&self.now(rank), rank);
        data.omissions = self.with_unlisted(rank, data.omissions);
        Ok(data)
    }

    fn outline(&self, rank: i32) -> Result<RankOutline, Error> {
        let (outline, omissions) = outline_rank(&self.now(rank), rank);
        self.list_later(rank, omissions);
        Ok(outline)
    }

    fn load_detailed(&self, rank: i32) -> Result<(RankData, Details), Error> {
        let (mut data, details) = load_rank_detailed(&self.now(rank), rank);
        data.omissions = self.with_unlisted(rank, data.omissions);
        Ok((data, details))
    }
}
