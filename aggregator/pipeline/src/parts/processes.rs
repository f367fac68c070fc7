//! The processes of an MPI job: each maps a share of the ranks, and process 0 reduces the shares of all.
//!
//! ```text
//! process 0   lists |=== map share 0 ===|        asks for manifests, then for files             reduce |
//! process 1         |=== map share 1 ===|   answers   answers        answers                    end    |
//! process 2         |=== map share 2 =====| answers        answers        answers               end    |
//! ```
//!
//! Process 0 lists the ranks of a run for all: to ask for the sizes of a hundred thousand files takes half a second.
//! A message holds the bytes of a file that `map` would write, so that the results are the same bytes. Process 0 asks for one
//! file after the other: it never holds more than one that it has not read. Each process keeps its files on disk until then.

use std::cell::Cell;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use serde::Serialize;
use serde::de::DeserializeOwned;
use trace::ContentFile;
use trace::place::Opened;

use crate::parts::contract::ShareManifest;
use crate::parts::kept::KeptFiles;
use crate::parts::read::{Found, PartFiles, Shares};
use model::Error;

/// The messages between the processes of a job. Messages of one process arrive in the order in which it sent them.
pub trait Messages {
    /// The number of this process.
    fn rank(&self) -> u32;
    /// The number of processes.
    fn size(&self) -> u32;
    /// Sends bytes to a process.
    fn send(&self, to: u32, bytes: &[u8]);
    /// Waits for bytes of a process, without taking a core.
    fn receive(&self, from: u32) -> Vec<u8>;
}

/// Joins the job of this process. Returns `None` if this process is alone. The error is one sentence.
pub type Join = fn() -> Result<Option<Box<dyn Messages>>, String>;

/// The question that asks for nothing more.
const END: u64 = u64::MAX;
/// The first question, for the result of a process. File number n is asked for by n + 1.
const FIRST: u64 = 0;
/// The longest message: MPI counts elements with 32 bits.
const PIECE_BYTES: usize = 1 << 28;

/// The files that came by messages.
#[derive(Clone, Copy, Debug, Default)]
pub struct Received {
    /// The number of files.
    pub files: u64,
    /// Their bytes.
    pub bytes: u64,
    /// The time from the questions to the answers.
    pub time: Duration,
}

/// The job of this process. When process 0 drops it, the other processes end.
pub struct Job {
    messages: Box<dyn Messages>,
    received: Cell<Received>,
}

impl Job {
    /// Joins a job; `None` if this process is alone.
    ///
    /// # Errors
    /// [`Error::Processes`].
    pub fn enter(join: Join) -> Result<Option<Self>, Error> {
        Ok(join().map_err(Error::Processes)?.map(|messages| Self { messages, received: Cell::default() }))
    }

    /// The number of this process.
    pub fn rank(&self) -> u32 {
        self.messages.rank()
    }

    /// The number of processes.
    pub fn size(&self) -> u32 {
        self.messages.size()
    }

    /// Tells the other processes what process 0 made, and returns it in all of them. Every process calls it once, before anything else.
    ///
    /// # Errors
    /// [`Error::Json`]; in the other processes, [`Error::Processes`] for an error of process 0.
    pub fn tell_all<T: Serialize + DeserializeOwned>(
        &self,
        make: impl FnOnce() -> Result<T, Error>,
    ) -> Result<T, Error> {
        if self.rank() > 0 {
            let told: Result<T, String> = serde_json::from_slice(&self.messages.receive(0))?;
            return told.map_err(|why| Error::Processes(format!("process 0: {why}")));
        }
        let made = make();
        let told = serde_json::to_vec(&made.as_ref().map_err(ToString::to_string))?;
        (1..self.size()).for_each(|process| self.messages.send(process, &told));
        made
    }

    /// Answers the questions of process 0 until it ends the job: `first`, and the contents of files.
    ///
    /// # Errors
    /// [`Error::Json`]; at the end of the job [`Error::Io`], if a file could not be read. Process 0 got an empty one for it.
    pub fn serve(&self, first: &impl Serialize, files: Option<&KeptFiles>) -> Result<(), Error> {
        let first = serde_json::to_vec(first)?;
        let mut failed = Ok(());
        loop {
            let question = self.messages.receive(0);
            let question = question.try_into().map_or(END, u64::from_le_bytes);
            let answer = match (question, files) {
                (END, _) => return failed,
                (FIRST, _) => Ok(Some(first.clone())),
                // Process 0 asks for the files of the manifest only.
                (file, files) => files.map_or(Ok(None), |files| files.read(file - 1)),
            };
            let answer = answer.unwrap_or_else(|error| {
                failed = Err(error);
                None
            });
            let answer = answer.unwrap_or_default();
            self.messages.send(0, &(answer.len() as u64).to_le_bytes());
            answer.chunks(PIECE_BYTES).for_each(|piece| self.messages.send(0, piece));
        }
    }

    /// The files that this process asked for.
    pub fn received(&self) -> Received {
        self.received.get()
    }

    /// Asks a process for a file.
    fn ask_for_file(&self, process: u32, number: u64) -> Vec<u8> {
        let begin = Instant::now();
        let answer = self.ask(process, number + 1);
        let Received { files, bytes, time } = self.received.get();
        let bytes = bytes + answer.len() as u64;
        self.received.set(Received { files: files + 1, bytes, time: time + begin.elapsed() });
        answer
    }

    /// Asks a process.
    fn ask(&self, process: u32, question: u64) -> Vec<u8> {
        self.messages.send(process, &question.to_le_bytes());
        let bytes = self.messages.receive(process).try_into().map_or(0, u64::from_le_bytes);
        let mut answer = Vec::new();
        while (answer.len() as u64) < bytes {
            let piece = self.messages.receive(process);
            if answer.is_empty() {
                answer = piece;
            } else {
                answer.extend(piece);
            }
        }
        answer
    }

    /// The results of the other processes, in their order. Waits for them.
    pub fn answers<T: DeserializeOwned>(&self) -> impl Iterator<Item = Result<T, String>> {
        (1..self.size()).map(|process| {
            serde_json::from_slice(&self.ask(process, FIRST)).unwrap_or_else(|error| Err(error.to_string()))
        })
    }

    /// Collects the shares of all processes. `own` is the share of this process, with its files. Errors name `path`.
    ///
    /// # Errors
    /// The errors of [`Shares::of`].
    pub fn shares(&self, own: (ShareManifest, KeptFiles), path: &Path) -> Result<Shares<'_>, Error> {
        let (own, kept) = own;
        let found: Vec<Found> = std::iter::once(Ok(own)).chain(self.answers()).collect();
        let numbers = found.iter().flatten().flat_map(numbered).collect();
        Shares::of(found, path, Box::new(Files { job: self, kept, numbers }))
    }
}

impl Drop for Job {
    fn drop(&mut self) {
        // The others wait for questions, also if this process has an error.
        if self.rank() == 0 {
            (1..self.size()).for_each(|process| self.messages.send(process, &END.to_le_bytes()));
        }
    }
}

/// A share, and the table and hash of one of its files.
type Key = (u32, String, String);

fn key(share: u32, file: &ContentFile) -> Key {
    (share, file.table.clone(), file.xxh3.clone())
}

/// The number of each file of a share.
fn numbered(manifest: &ShareManifest) -> impl Iterator<Item = (Key, u64)> {
    manifest.chunks.iter().flat_map(|chunk| &chunk.files).map(|file| key(manifest.share, file)).zip(0..)
}

/// The files of all processes.
struct Files<'a> {
    job: &'a Job,
    /// Those of this process.
    kept: KeptFiles,
    numbers: BTreeMap<Key, u64>,
}

impl PartFiles for Files<'_> {
    fn path(&self, share: u32, file: &ContentFile) -> PathBuf {
        PathBuf::from(format!("process {share}: {}", file.table))
    }

    fn check(&self, _: u32, _: &ContentFile) -> Result<(), Error> {
        Ok(())
    }

    fn open(&self, share: u32, file: &ContentFile) -> Result<Opened, Error> {
        let number = self.numbers.get(&key(share, file)).copied();
        let content = match (share, number) {
            (_, None) => None,
            (0, Some(number)) => self.kept.read(number)?,
            (_, Some(number)) => Some(self.job.ask_for_file(share, number)),
        };
        let missing =
            || Error::Processes(format!("{}: its process has no such file", self.path(share, file).display()));
        content.map(Opened::in_memory).ok_or_else(missing)
    }
}
