//! The processes of an MPI job: each maps a share of the ranks, and process 0 reduces the shares of all.
//!
//! ```text
//! process 0   |=== map share 0 ===|        asks for manifests, then for files             reduce |
//! process 1   |=== map share 1 ===|   answers   answers        answers                    end    |
//! process 2   |=== map share 2 =====| answers        answers        answers               end    |
//! ```
//!
//! A message holds the bytes of a file that `map` would write, so that the results are the same bytes. Process 0 asks for one
//! file after the other: it never holds more than one that it has not read. While a process waits, it sleeps, because ranks
//! of MPI that wait take a whole core.

use std::cell::Cell;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::Duration;

use launch::{Identity, Launcher, World, check_world};
use mpi::environment::Universe;
use mpi::point_to_point::{Destination, MatchedReceiveVec, Source};
use mpi::topology::{Communicator, SimpleCommunicator};
use mpi::{Rank, Tag, Threading};
use serde::Serialize;
use serde::de::DeserializeOwned;
use trace::ContentFile;
use trace::place::Opened;

use crate::Error;
use crate::parts::contract::ShareManifest;
use crate::parts::read::{Found, PartFiles, Shares};

/// Process 0 asks with this tag, and the others answer with the next one.
const QUESTION: Tag = 1;
const ANSWER: Tag = 2;
/// The question that asks for nothing more.
const END: u64 = u64::MAX;
/// The first question, for the result of a process. File number n is asked for by n + 1.
const FIRST: u64 = 0;
/// The longest message: MPI counts elements with 32 bits.
const PIECE_BYTES: usize = 1 << 28;
/// The shortest and the longest sleep of a process that waits.
const SLEEPS: [Duration; 2] = [Duration::from_micros(50), Duration::from_millis(5)];

/// The other processes of this process, until it is dropped. The drop waits for all processes.
pub(crate) struct Job {
    world: SimpleCommunicator,
    rank: Rank,
    size: Rank,
    has_ended: Cell<bool>,
    /// Finalizes MPI when it is dropped.
    _universe: Universe,
}

impl Job {
    /// Enters the MPI job of which this process is a part; `None` if the launcher started one process.
    ///
    /// # Errors
    /// [`Error::Launch`] if the variables of the launcher contradict each other, or its MPI is another one.
    pub(crate) fn enter() -> Result<Option<Self>, Error> {
        let Some(identity) = launched()? else { return Ok(None) };
        let Some((universe, _)) = mpi::initialize_with_threading(Threading::Funneled) else { return Ok(None) };
        let world = universe.world();
        let (rank, size) = (world.rank(), world.size());
        let library = mpi::environment::library_version().unwrap_or_default();
        check_world(&identity, &World { rank, size, library: &library })?;
        Ok(Some(Self { world, rank, size, has_ended: Cell::new(false), _universe: universe }))
    }

    /// The number of this process.
    pub(crate) fn rank(&self) -> u32 {
        self.rank.unsigned_abs()
    }

    /// The number of processes.
    pub(crate) fn size(&self) -> u32 {
        self.size.unsigned_abs()
    }

    /// Answers the questions of process 0 until it ends the job: `first`, and the contents of files.
    ///
    /// # Errors
    /// [`Error::Json`].
    pub(crate) fn serve(&self, first: &impl Serialize, contents: &[Vec<u8>]) -> Result<(), Error> {
        let first = serde_json::to_vec(first)?;
        let process = self.world.process_at_rank(0);
        loop {
            let question = self.receive(0, QUESTION);
            let question = question.try_into().map_or(END, u64::from_le_bytes);
            let answer = match question {
                END => return Ok(()),
                FIRST => &first,
                file => match usize::try_from(file - 1).ok().and_then(|file| contents.get(file)) {
                    Some(content) => content,
                    None => &Vec::new(),
                },
            };
            process.send_with_tag(&(answer.len() as u64).to_le_bytes()[..], ANSWER);
            answer.chunks(PIECE_BYTES).for_each(|piece| process.send_with_tag(piece, ANSWER));
        }
    }

    /// Asks a process.
    fn ask(&self, process: u32, question: u64) -> Vec<u8> {
        let process = process.cast_signed();
        self.world.process_at_rank(process).send_with_tag(&question.to_le_bytes()[..], QUESTION);
        let bytes = self.receive(process, ANSWER).try_into().map_or(0, u64::from_le_bytes);
        let mut answer = Vec::new();
        while (answer.len() as u64) < bytes {
            let piece = self.receive(process, ANSWER);
            if answer.is_empty() {
                answer = piece;
            } else {
                answer.extend(piece);
            }
        }
        answer
    }

    /// Waits for a message.
    fn receive(&self, from: Rank, tag: Tag) -> Vec<u8> {
        let process = self.world.process_at_rank(from);
        let [mut sleep, longest] = SLEEPS;
        loop {
            if let Some(message) = process.immediate_matched_probe_with_tag(tag) {
                return message.matched_receive_vec::<u8>().0;
            }
            std::thread::sleep(sleep);
            sleep = (2 * sleep).min(longest);
        }
    }

    /// The results of the other processes, in their order. Waits for them.
    pub(crate) fn answers<T: DeserializeOwned>(&self) -> impl Iterator<Item = Result<T, String>> {
        (1..self.size()).map(|process| {
            serde_json::from_slice(&self.ask(process, FIRST)).unwrap_or_else(|error| Err(error.to_string()))
        })
    }

    /// The shares of all processes, of which `own` is that of this one. `path` is for errors.
    ///
    /// # Errors
    /// The errors of [`Shares::of`].
    pub(crate) fn shares<'a>(
        &'a self,
        (own, contents): (Found, &'a [Vec<u8>]),
        path: &Path,
    ) -> Result<Shares<'a>, Error> {
        let found: Vec<Found> = std::iter::once(own).chain(self.answers()).collect();
        let numbers = found.iter().flatten().flat_map(numbered).collect();
        Shares::of(found, path, Box::new(Files { job: self, contents, numbers }))
    }

    /// Ends the other processes.
    fn end(&self) {
        if self.rank == 0 && !self.has_ended.replace(true) {
            let others = 1..self.size;
            others.for_each(|rank| self.world.process_at_rank(rank).send_with_tag(&END.to_le_bytes()[..], QUESTION));
        }
    }
}

impl Drop for Job {
    fn drop(&mut self) {
        // The others wait for questions, also if this process has an error.
        self.end();
    }
}

/// The place of this process among several that a launcher of MPI started.
fn launched() -> Result<Option<Identity>, Error> {
    let identity = Identity::from_env(&|name| std::env::var(name).ok())?;
    let is_mpi = matches!(identity.launcher, Launcher::OpenMpi | Launcher::Mpich | Launcher::Slurm);
    Ok((is_mpi && identity.world_size > 1).then_some(identity))
}

/// The number of each file of a share.
fn numbered(manifest: &ShareManifest) -> impl Iterator<Item = ((u32, String), u64)> {
    let files = manifest.chunks.iter().flat_map(|chunk| &chunk.files);
    let key = |file: &ContentFile| (manifest.share, format!("{}/{}", file.table, file.xxh3));
    files.map(key).zip(0..)
}

/// The files of all processes.
struct Files<'a> {
    job: &'a Job,
    /// Those of this process.
    contents: &'a [Vec<u8>],
    numbers: BTreeMap<(u32, String), u64>,
}

impl PartFiles for Files<'_> {
    fn path(&self, share: u32, file: &ContentFile) -> PathBuf {
        PathBuf::from(format!("process {share}: {}", file.table))
    }

    fn check(&self, _: u32, _: &ContentFile) -> Result<(), Error> {
        Ok(())
    }

    fn open(&self, share: u32, file: &ContentFile) -> Result<Opened, Error> {
        let number = self.numbers.get(&(share, format!("{}/{}", file.table, file.xxh3))).copied();
        let content = match (number, share) {
            (None, _) => Vec::new(),
            (Some(number), 0) => self.contents.get(number as usize).cloned().unwrap_or_default(),
            (Some(number), share) => self.job.ask(share, number + 1),
        };
        Ok(Opened::in_memory(content))
    }
}
