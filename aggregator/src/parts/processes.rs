//! The processes of an MPI job: each maps a share of the ranks, and process 0 reduces the shares of all.
//!
//! ```text
//! process 0   |=== map share 0 ===|        asks for manifests, then for files             reduce |
//! process 1   |=== map share 1 ===|   answers   answers        answers                    end    |
//! process 2   |=== map share 2 =====| answers        answers        answers               end    |
//! ```
//!
//! A message holds the bytes of a file that `map` would write, so that the results are the same bytes. Process 0 asks for one
//! file after the other: it never holds more than one that it has not read.

use std::cell::Cell;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use serde::Serialize;
use serde::de::DeserializeOwned;
use trace::ContentFile;
use trace::place::Opened;

use crate::Error;
use crate::parts::contract::ShareManifest;
use crate::parts::read::{Found, PartFiles, Shares};

/// The messages between the processes of a job. They arrive in the order in which they were sent.
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

/// Joins the job of which this process is a part; `None` if it is alone. An error is a sentence.
pub type Join = fn() -> Result<Option<Box<dyn Messages>>, String>;

/// The question that asks for nothing more.
const END: u64 = u64::MAX;
/// The first question, for the result of a process. File number n is asked for by n + 1.
const FIRST: u64 = 0;
/// The longest message: MPI counts elements with 32 bits.
const PIECE_BYTES: usize = 1 << 28;

/// The other processes of this process, until it is dropped. Process 0 ends them then.
pub(crate) struct Job {
    messages: Box<dyn Messages>,
    has_ended: Cell<bool>,
}

impl Job {
    /// Joins a job; `None` if this process is alone.
    ///
    /// # Errors
    /// [`Error::Processes`].
    pub(crate) fn enter(join: Join) -> Result<Option<Self>, Error> {
        let messages = join().map_err(Error::Processes)?;
        Ok(messages.map(|messages| Self { messages, has_ended: Cell::new(false) }))
    }

    /// The number of this process.
    pub(crate) fn rank(&self) -> u32 {
        self.messages.rank()
    }

    /// The number of processes.
    pub(crate) fn size(&self) -> u32 {
        self.messages.size()
    }

    /// Answers the questions of process 0 until it ends the job: `first`, and the contents of files.
    ///
    /// # Errors
    /// [`Error::Json`].
    pub(crate) fn serve(&self, first: &impl Serialize, contents: &[Vec<u8>]) -> Result<(), Error> {
        let first = serde_json::to_vec(first)?;
        loop {
            let question = self.messages.receive(0);
            let question = question.try_into().map_or(END, u64::from_le_bytes);
            let answer = match question {
                END => return Ok(()),
                FIRST => &first,
                file => match usize::try_from(file - 1).ok().and_then(|file| contents.get(file)) {
                    Some(content) => content,
                    None => &Vec::new(),
                },
            };
            self.messages.send(0, &(answer.len() as u64).to_le_bytes());
            answer.chunks(PIECE_BYTES).for_each(|piece| self.messages.send(0, piece));
        }
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
        if self.rank() == 0 && !self.has_ended.replace(true) {
            (1..self.size()).for_each(|process| self.messages.send(process, &END.to_le_bytes()));
        }
    }
}

impl Drop for Job {
    fn drop(&mut self) {
        // The others wait for questions, also if this process has an error.
        self.end();
    }
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
