//! The input of a map: its ranks with the sizes of their files, found without reading them, and a share of it, opened.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use sha2::{Digest, Sha256};
use trace::{Manifest, place, rank_tables};

use crate::parts::contract::InputIdentity;
use crate::parts::division::RankBytes;
use formats::paths::is_run;
use formats::run_source::RunSource;
use model::Error;
use model::options::Options;
use model::source::{RankFile, Source, SourceInfo, no_rank};

/// The input of a map.
pub struct MapInput {
    kind: Kind,
    info: SourceInfo,
    max_memory_bytes: Option<u64>,
    /// The ranks that have files, ascending, with the sizes of these files.
    pub ranks: Vec<RankBytes>,
}

enum Kind {
    Run(PathBuf),
    Files(Box<dyn Source>),
}

impl MapInput {
    /// A run with the ranks of [`trace::Run::list_ranks`].
    ///
    /// # Errors
    /// The errors of [`trace::Run::open`]; [`Error::NoRank`] or [`Error::NothingSelected`] if no rank is left.
    pub fn run(
        path: PathBuf,
        ranks: Vec<RankBytes>,
        options: &Options,
        max_memory_bytes: Option<u64>,
    ) -> Result<Self, Error> {
        let manifest = Manifest::read(&path)?;
        let info = RunSource::info_of(&path, &manifest);
        Self { kind: Kind::Run(path), info, max_memory_bytes, ranks }.checked(options)
    }

    /// Files of ranks. Ranks of one file count its size each.
    ///
    /// # Errors
    /// [`Error::Io`]; [`Error::NothingSelected`] if no rank is left.
    pub fn files(source: Box<dyn Source>, options: &Options) -> Result<Self, Error> {
        let mut ranks: Vec<RankBytes> = Vec::new();
        for RankFile { rank, size_bytes, .. } in source.files()? {
            match ranks.last_mut() {
                Some((last, sum)) if *last == rank => *sum = sum.saturating_add(size_bytes),
                _ => ranks.push((rank, size_bytes)),
            }
        }
        let info = source.info();
        Self { kind: Kind::Files(source), info, max_memory_bytes: None, ranks }.checked(options)
    }

    /// Refuses an input without a rank to map.
    fn checked(self, options: &Options) -> Result<Self, Error> {
        let is_chosen = |rank: &i32| options.ranks.as_ref().is_none_or(|ranks| ranks.contains(rank));
        if self.ranks.iter().any(|(rank, _)| is_chosen(rank)) {
            return Ok(self);
        }
        Err(no_rank(self.open(|_| true)?.source(), options.ranks.as_ref()))
    }

    /// Refuses a directory for parts that is a run or holds files of the input: the tables of both would mix.
    pub(crate) fn refuse(&self, parts: &Path) -> Result<(), Error> {
        let occupied = |why: &str| Err(trace::Error::Occupied { path: parts.into(), why: why.into() }.into());
        if is_run(parts)? {
            return occupied("it is a run; give the parts a directory of their own");
        }
        let Kind::Files(source) = &self.kind else { return Ok(()) };
        let Ok(parts) = parts.canonicalize() else { return Ok(()) };
        let folders: BTreeSet<PathBuf> =
            source.files()?.iter().filter_map(|file| Some(file.path.parent()?.to_path_buf())).collect();
        if folders.iter().any(|folder| folder.canonicalize().is_ok_and(|folder| folder == parts)) {
            return occupied("it holds files of the input; give the parts a directory of their own");
        }
        Ok(())
    }

    /// The identity of the input. `choices` decide what of it is read.
    pub(crate) fn identity(&self, choices: String) -> InputIdentity {
        let mut listing = Sha256::new();
        for (rank, bytes) in &self.ranks {
            listing.update(format!("{rank} {bytes}\n"));
        }
        InputIdentity::of(self.info.clone(), choices, hex(listing))
    }

    /// Opens the input with some ranks at least.
    ///
    /// # Errors
    /// The errors of [`trace::Run::open`].
    pub(crate) fn open(&self, is_wanted: impl Fn(i32) -> bool) -> Result<Opened<'_>, Error> {
        Ok(match &self.kind {
            Kind::Run(path) => Opened::Run(Box::new(RunSource::open_ranks(path, is_wanted, self.max_memory_bytes)?)),
            Kind::Files(source) => Opened::Files(&**source),
        })
    }
}

/// An opened input.
pub(crate) enum Opened<'a> {
    Run(Box<RunSource>),
    Files(&'a dyn Source),
}

impl Opened<'_> {
    /// The ranks.
    pub(crate) fn source(&self) -> &dyn Source {
        match self {
            Self::Run(source) => &**source,
            Self::Files(source) => *source,
        }
    }

    /// SHA-256 of the content of the files of some ranks: of the footers of shards, which hold the checksums of the rows, and
    /// of the ends of other files, where gzip has its checksum.
    ///
    /// # Errors
    /// [`Error::Io`].
    pub(crate) fn content_sha256(&self, ranks: &[RankBytes]) -> Result<String, Error> {
        let wanted: BTreeSet<i32> = ranks.iter().map(|(rank, _)| *rank).collect();
        let mut content = Sha256::new();
        match self {
            Self::Run(source) => {
                let tables = rank_tables();
                for (rank, table) in wanted.iter().flat_map(|rank| tables.iter().map(move |table| (rank, table))) {
                    for shard in source.run().shards(*rank, table.name) {
                        let (part, bytes, footer) = (shard.part, shard.bytes, &shard.footer_xxh3);
                        content.update(format!("{} {rank} {part} {bytes} {footer}\n", table.name));
                    }
                }
            }
            Self::Files(source) => {
                for file in source.files()?.iter().filter(|file| wanted.contains(&file.rank)) {
                    match &file.name {
                        Some(name) => content.update(format!("{} {name}\n", file.rank)),
                        None => content.update(format!("{}\n", file.rank)),
                    }
                    add_ends(&mut content, &file.path)?;
                }
            }
        }
        Ok(hex(content))
    }
}

/// Bytes at each end of a file that identify it, beside its size.
const END_BYTES: u64 = 1 << 16;

fn add_ends(content: &mut Sha256, path: &Path) -> Result<(), Error> {
    let io = |source| Error::Io { path: path.into(), source };
    let file = place::open(path).map_err(io)?;
    let bytes = file.size_bytes().map_err(io)?;
    content.update(bytes.to_le_bytes());
    let mut room = vec![0; bytes.min(END_BYTES) as usize];
    for from in [0, bytes.saturating_sub(END_BYTES)] {
        file.read_exact_at(&mut room, from).map_err(io)?;
        content.update(&room);
    }
    Ok(())
}

fn hex(hash: Sha256) -> String {
    hash.finalize().iter().map(|byte| format!("{byte:02x}")).collect()
}
