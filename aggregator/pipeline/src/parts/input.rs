//! The input of a map: its ranks with the sizes of their files, found without reading them, and a share of it, opened.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use sha2::{Digest, Sha256};
use trace::{Manifest, place, rank_tables};

use crate::parts::contract::InputIdentity;
use crate::parts::division::RankBytes;
use formats::kineto::KinetoSource;
use formats::mixed::MixedSource;
use formats::run_source::RunSource;
use formats::snapshot::SnapshotSource;
use model::Error;
use model::options::Options;
use model::source::{Source, SourceInfo, no_rank};

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
    Traces(KinetoSource),
    Snapshots(SnapshotSource),
    Exports(MixedSource),
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

    /// Traces of torch.profiler.
    ///
    /// # Errors
    /// [`Error::NothingSelected`] if no rank is left.
    pub fn traces(source: KinetoSource, options: &Options) -> Result<Self, Error> {
        let mut ranks: Vec<RankBytes> = Vec::new();
        for file in source.files() {
            match ranks.last_mut() {
                Some((rank, bytes)) if *rank == file.rank => *bytes = bytes.saturating_add(file.size_bytes),
                _ => ranks.push((file.rank, file.size_bytes)),
            }
        }
        let info = source.info();
        Self { kind: Kind::Traces(source), info, max_memory_bytes: None, ranks }.checked(options)
    }

    /// Snapshots of torch's allocator.
    ///
    /// # Errors
    /// [`Error::NothingSelected`] if no rank is left.
    pub fn snapshots(source: SnapshotSource, options: &Options) -> Result<Self, Error> {
        let ranks = source.files().map(|(rank, path)| Ok((rank, size(path)?))).collect::<Result<_, Error>>()?;
        let info = source.info();
        Self { kind: Kind::Snapshots(source), info, max_memory_bytes: None, ranks }.checked(options)
    }

    /// Exports of Nsight Systems, profiles of XLA or JSON of rocprofv3, perhaps beside traces. Ranks of one file count its size each.
    ///
    /// # Errors
    /// [`Error::NothingSelected`] if no rank is left.
    pub fn exports(source: MixedSource, options: &Options) -> Result<Self, Error> {
        let mut ranks: Vec<RankBytes> = Vec::new();
        for (rank, path) in source.files() {
            let bytes = size(path)?;
            match ranks.last_mut() {
                Some((last, sum)) if *last == rank => *sum = sum.saturating_add(bytes),
                _ => ranks.push((rank, bytes)),
            }
        }
        let info = source.info();
        Self { kind: Kind::Exports(source), info, max_memory_bytes: None, ranks }.checked(options)
    }

    /// Refuses an input without a rank to map.
    fn checked(self, options: &Options) -> Result<Self, Error> {
        let is_chosen = |rank: &i32| options.ranks.as_ref().is_none_or(|ranks| ranks.contains(rank));
        if self.ranks.iter().any(|(rank, _)| is_chosen(rank)) {
            return Ok(self);
        }
        Err(no_rank(self.open(|_| true)?.source(), options.ranks.as_ref()))
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
            Kind::Traces(source) => Opened::Traces(source),
            Kind::Snapshots(source) => Opened::Snapshots(source),
            Kind::Exports(source) => Opened::Exports(source),
        })
    }
}

/// An opened input.
pub(crate) enum Opened<'a> {
    Run(Box<RunSource>),
    Traces(&'a KinetoSource),
    Snapshots(&'a SnapshotSource),
    Exports(&'a MixedSource),
}

impl Opened<'_> {
    /// The ranks.
    pub(crate) fn source(&self) -> &dyn Source {
        match self {
            Self::Run(source) => &**source,
            Self::Traces(source) => *source,
            Self::Snapshots(source) => *source,
            Self::Exports(source) => *source,
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
            Self::Traces(source) => {
                for file in source.files().iter().filter(|file| wanted.contains(&file.rank)) {
                    content.update(format!("{} {}\n", file.rank, file.name));
                    add_ends(&mut content, &file.path)?;
                }
            }
            Self::Snapshots(source) => {
                for (rank, path) in source.files().filter(|(rank, _)| wanted.contains(rank)) {
                    content.update(format!("{rank}\n"));
                    add_ends(&mut content, path)?;
                }
            }
            Self::Exports(source) => {
                for (rank, path) in source.files().into_iter().filter(|(rank, _)| wanted.contains(rank)) {
                    content.update(format!("{rank}\n"));
                    add_ends(&mut content, path)?;
                }
            }
        }
        Ok(hex(content))
    }
}

fn size(path: &Path) -> Result<u64, Error> {
    match place::kind(path) {
        Ok(place::Kind::File { bytes }) => Ok(bytes),
        Ok(place::Kind::Directory | place::Kind::Other) => Ok(0),
        Err(source) => Err(Error::Io { path: path.into(), source }),
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
