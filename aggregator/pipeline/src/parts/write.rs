//! Maps a share, and writes its parts or keeps them for messages. On disk the manifest comes last, so that a map that was killed
//! left no share.

use std::collections::BTreeSet;
use std::fs::File;
use std::io::Write;
use std::path::Path;

use trace::{ContentFile, encode_content, files, write_content};

use crate::parts::contract::{Chunk, Contract, ShareManifest, manifest_path};
use crate::parts::division::{RankBytes, Share, chunks, ranks_of};
use crate::parts::input::{MapInput, Opened};
use crate::parts::kept::KeptFiles;
use crate::parts::read::read_manifest;
use crate::parts::rows::PartRows;
use align::aligned::each_rank;
use measure::map::map_of;
use measure::part::RankPart;
use model::Error;
use model::options::Options;

/// Takes the content of a file of a share.
type Keep<'a> = &'a mut dyn FnMut(&ContentFile, Vec<u8>) -> Result<(), Error>;

/// Maps shares of an input.
pub struct Mapper<'a> {
    input: &'a MapInput,
    options: &'a Options,
    contract: Contract,
}

impl<'a> Mapper<'a> {
    /// Divides an input into shares. `choices` decide what of it is read.
    ///
    /// # Errors
    /// [`Error::Option`] for options that need all ranks before any is mapped.
    pub fn new(input: &'a MapInput, options: &'a Options, choices: String, shares: u32) -> Result<Self, Error> {
        let contract = Contract::new(input.identity(choices), options, shares)?;
        Ok(Self { input, options, contract })
    }

    /// Maps a share and writes its parts below `parts`. Returns the manifest of the share, and whether it was there already:
    /// of the same input and options, with all its files. Calls `progress` after each rank with the number of finished
    /// ranks and the total.
    ///
    /// # Errors
    /// The errors of [`MapInput::open`]; [`Error::Trace`] or [`Error::Io`] if a file cannot be written, or `parts` is a run or holds files
    /// of the input.
    pub fn map(
        &self,
        parts: &Path,
        index: u32,
        progress: &(dyn Fn(usize, usize) + Sync),
    ) -> Result<(ShareManifest, bool), Error> {
        self.input.refuse(parts)?;
        let share = Share { index, of: self.contract.shares };
        let (opened, ranks) = self.open(share)?;
        let new =
            ShareManifest { content_sha256: opened.content_sha256(&ranks)?, ..self.manifest(share, &opened, &ranks) };
        let path = manifest_path(parts, share);
        if let Ok(found) = read_manifest(&path)
            && is_same(&found, &new)
            && !found.lost_rows()
            && found.chunks.iter().flat_map(|chunk| &chunk.files).all(|file| file.exists(parts))
        {
            return Ok((found, true));
        }
        let io = |source| Error::Io { path: path.clone(), source };
        std::fs::create_dir_all(parts).map_err(io)?;
        files::sweep(&path);
        PartRows::default().all().iter().for_each(|table| files::sweep_all(&parts.join(table.table().name)));
        let mut keep = |file: &ContentFile, bytes: Vec<u8>| Ok(write_content(parts, file, &bytes)?);
        let manifest = self.mapped((&opened, &ranks), new, progress, &mut keep)?;
        let text = serde_json::to_string_pretty(&manifest)? + "\n";
        files::replace(&path, |file: &mut File| file.write_all(text.as_bytes()).map_err(io))?;
        Ok((manifest, false))
    }

    /// Maps a share. Returns its manifest, and its files in the order of the manifest.
    ///
    /// # Errors
    /// The errors of [`MapInput::open`]; [`Error::Io`] if the files cannot be kept.
    pub fn map_for_messages(
        &self,
        index: u32,
        progress: &(dyn Fn(usize, usize) + Sync),
    ) -> Result<(ShareManifest, KeptFiles), Error> {
        let share = Share { index, of: self.contract.shares };
        let (opened, ranks) = self.open(share)?;
        let new = self.manifest(share, &opened, &ranks);
        let mut kept = KeptFiles::new()?;
        let mut keep = |_: &ContentFile, bytes: Vec<u8>| kept.add(&bytes);
        let manifest = self.mapped((&opened, &ranks), new, progress, &mut keep)?;
        Ok((manifest, kept))
    }

    /// Opens the ranks of a share.
    fn open(&self, share: Share) -> Result<(Opened<'_>, Vec<RankBytes>), Error> {
        let ranks = ranks_of(share, &self.input.ranks);
        let of_share: BTreeSet<i32> = ranks.iter().map(|(rank, _)| *rank).collect();
        Ok((self.input.open(|rank| of_share.contains(&rank))?, ranks))
    }

    /// The manifest of a share that is not mapped yet.
    fn manifest(&self, share: Share, opened: &Opened<'_>, ranks: &[RankBytes]) -> ShareManifest {
        ShareManifest {
            contract: self.contract.clone(),
            share: share.index,
            content_sha256: String::new(),
            ranks: ranks.iter().map(|(rank, _)| *rank).collect(),
            omissions: opened.source().problems(),
            left_out_files: opened.source().info().left_out_files,
            chunks: Vec::new(),
        }
    }

    fn mapped(
        &self,
        (opened, ranks): (&Opened<'_>, &[RankBytes]),
        mut manifest: ShareManifest,
        progress: &(dyn Fn(usize, usize) + Sync),
        keep: Keep<'_>,
    ) -> Result<ShareManifest, Error> {
        let source = opened.source();
        let readable: BTreeSet<i32> = source.ranks().into_iter().collect();
        let is_chosen = |rank: &i32| self.options.ranks.as_ref().is_none_or(|ranks| ranks.contains(rank));
        let chosen = |(rank, _): &&RankBytes| readable.contains(rank) && is_chosen(rank);
        let ranks: Vec<RankBytes> = ranks.iter().filter(chosen).copied().collect();
        let map = map_of(self.input.ranks.len());
        let mut before = 0;
        for chunk in chunks(&ranks) {
            let done = |done: usize, _| progress(before + done, ranks.len());
            let load = |rank| source.load(rank).map(|data| map(data, self.options, None));
            let mapped = each_rank(&chunk, &done, &mut manifest.omissions, load);
            before += chunk.len();
            if !mapped.is_empty() {
                let described = manifest.share == 0 && manifest.chunks.is_empty();
                manifest.chunks.push(self.encoded(mapped, described, keep)?);
            }
        }
        Ok(manifest)
    }

    fn encoded(&self, mapped: Vec<RankPart>, described: bool, keep: Keep<'_>) -> Result<Chunk, Error> {
        let ranks = mapped.iter().map(|part| part.outline.info.rank).collect();
        let mut rows = PartRows::default();
        mapped.into_iter().for_each(|part| rows.push(part));
        let mut chunk = Chunk::new(ranks, &rows.tables.omissions);
        for table in rows.all().into_iter().filter(|table| table.row_count() > 0) {
            let (declared, batch, run_id) = (table.table(), table.batch()?, &self.contract.input.run_id);
            let (file, bytes) = encode_content(&declared, run_id, batch, described)?;
            keep(&file, bytes)?;
            chunk.files.push(file);
        }
        Ok(chunk)
    }
}

/// Whether a manifest is of the share of a new one, which has no chunks yet. Ranks that failed to load are tried again.
fn is_same(found: &ShareManifest, new: &ShareManifest) -> bool {
    let ShareManifest { contract, share, content_sha256, ranks, omissions, left_out_files, chunks: _ } = found;
    (contract, share, content_sha256, ranks, omissions, left_out_files)
        == (&new.contract, &new.share, &new.content_sha256, &new.ranks, &new.omissions, &new.left_out_files)
}
