//! A format of ranks: how its files are recognized, and how they are opened.

use std::cell::OnceCell;
use std::collections::BTreeSet;
use std::io::Read;
use std::path::{Path, PathBuf};

use kineto::WindowChoice;
use model::Error;
use model::source::Source;

/// Opens files of a format.
pub type Open = fn(&[PathBuf], &Beside<'_>) -> Result<Box<dyn Source>, Error>;

/// A format whose files hold ranks.
#[derive(Debug)]
pub struct Format {
    /// One file of it, with an article.
    pub name: &'static str,
    /// Its files, in the plural, for `--help`.
    pub files: &'static str,
    /// The advice on a file of it, where only traces of torch.profiler are read.
    pub instead: &'static str,
    /// Whether a file is of the format.
    pub recognise: fn(&Head<'_>) -> bool,
    /// Opens files of the format. Those of other formats of the job are open.
    ///
    /// Errors: [`Error::Io`]; [`Error::NoInput`] if the files hold no rank, or one twice.
    pub open: Open,
    /// Whether a file is one table of a recording, which is then the directory of the file.
    pub is_table: fn(&Path) -> bool,
    /// Whether a file of this lower-case name repeats a recording of the format that lies beside it.
    pub is_twin: fn(&str) -> bool,
}

impl Format {
    /// No file is a table of a recording.
    pub(crate) const NO_TABLES: fn(&Path) -> bool = |_| false;
    /// No file repeats a recording.
    pub(crate) const NO_TWINS: fn(&str) -> bool = |_| false;
}

/// The part of the files that is read.
#[derive(Clone, Copy, Debug, Default)]
pub struct OpenOptions {
    /// The windows of the profiler.
    pub window: WindowChoice,
    /// Use files together that look like those of different jobs.
    pub force: bool,
    /// The memory that rows may take; `None`: three quarters of the machine's.
    pub max_memory_bytes: Option<u64>,
}

/// The rest of the job, as far as a format must know it.
#[derive(Debug)]
pub struct Beside<'a> {
    /// The part of the files that is read.
    pub options: OpenOptions,
    /// Ranks of other formats. A process or device whose rank is not stated gets none of them.
    pub taken: &'a BTreeSet<i32>,
}

impl Beside<'_> {
    /// For files that are the whole job.
    pub(crate) fn alone() -> Self {
        const NONE: &BTreeSet<i32> = &BTreeSet::new();
        Self { options: OpenOptions::default(), taken: NONE }
    }
}

/// First bytes of a file that decide its format.
pub(crate) const HEAD_BYTES: u64 = 64;

/// The name and the first bytes of a file, which decide its format.
pub struct Head<'a> {
    /// Its name in lower case; empty where only the content counts.
    pub name: String,
    /// Its first bytes.
    pub bytes: &'a [u8],
    /// The file, where it can be read from its beginning.
    pub path: Option<&'a Path>,
    text: OnceCell<Vec<u8>>,
}

impl<'a> Head<'a> {
    pub(crate) fn new(name: &str, bytes: &'a [u8], path: Option<&'a Path>) -> Self {
        Self { name: name.to_ascii_lowercase(), bytes, path, text: OnceCell::new() }
    }

    /// The first bytes of the text, decompressed. A compressed file that is damaged has none; the reader of traces reports it.
    pub fn text(&self) -> &[u8] {
        match self.path.filter(|_| kineto::is_compressed(self.bytes)) {
            Some(path) => self.text.get_or_init(|| first_text(path).unwrap_or_default()),
            None => self.bytes,
        }
    }
}

fn first_text(path: &Path) -> std::io::Result<Vec<u8>> {
    let mut text = Vec::new();
    kineto::open_text(path)?.take(HEAD_BYTES).read_to_end(&mut text)?;
    Ok(text)
}
