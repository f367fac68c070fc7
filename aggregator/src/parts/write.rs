//! Maps a share and writes its parts. The manifest comes last, so that a map that was killed left no share.

use std::collections::BTreeSet;
use std::fs::File;
use std::io::Write;
use std::path::Path;

use trace::{files, write_content};

use crate::Error;
use crate::align::aligned::each_rank;
use crate::measure::map::map_rank;
use crate::measure::part::RankPart;
use crate::model::options::Options;
use crate::parts::contract::{Chunk, Contract, ShareManifest, manifest_path};
use crate::parts::division::{RankBytes, Share, chunks, ranks_of};
use crate::parts::input::{MapInput, Opened};
use crate::parts::read::read_manifest;
use crate::parts::rows::PartRows;

/// Maps shares of an input.
pub(crate) struct Mapper<'a> {
    input: &'a MapInput,
    options: &'a Options,
    contract: Contract,
}

impl<'a> Mapper<'a> {
    /// Divides an input into shares. `choices` decide what of it is read.
    ///
    /// # Errors
    /// [`Error::Option`] for options that need all ranks before any is mapped.
    pub(crate) fn new(input: &'a MapInput, options: &'a Options, choices: String, shares: u32) -> Result<Self, Error> {
        let contract = Contract::new(input.identity(choices), options, shares)?;
        Ok(Self { input, options, contract })
    }

    /// Maps a share and writes its parts below `parts`. Returns the manifest of the share, and whether it was there already:
    /// of the same input and options, with all its files. Calls `progress` after each rank with the number of finished
    /// ranks and the total.
    ///
    /// # Errors
    /// The errors of [`MapInput::open`]; [`Error::Trace`] or [`Error::Io`] if a file cannot be written.
    pub(crate) fn map(
        &self,
        parts: &Path,
        index: u32,
        progress: &(dyn Fn(usize, usize) + Sync),
    ) -> Result<(ShareManifest, bool), Error> {
        let share = Share { index, of: self.contract.shares };
        let ranks = ranks_of(share, &self.input.ranks);
        let of_share: BTreeSet<i32> = ranks.iter().map(|(rank, _)| *rank).collect();
        let opened = self.input.open(|rank| of_share.contains(&rank))?;
        let new = ShareManifest {
            contract: self.contract.clone(),
            share: index,
            content_sha256: opened.content_sha256(&ranks)?,
            ranks: of_share.into_iter().collect(),
            omissions: opened.source().problems(),
            chunks: Vec::new(),
        };
        if let Ok(found) = read_manifest(&manifest_path(parts, share))
            && is_same(&found, &new)
            && !found.lost_rows()
            && found.chunks.iter().flat_map(|chunk| &chunk.files).all(|file| file.exists(parts))
        {
            return Ok((found, true));
        }
        Ok((self.write(parts, share, (&opened, &ranks), new, progress)?, false))
    }

    fn write(
        &self,
        parts: &Path,
        share: Share,
        (opened, ranks): (&Opened<'_>, &[RankBytes]),
        mut manifest: ShareManifest,
        progress: &(dyn Fn(usize, usize) + Sync),
    ) -> Result<ShareManifest, Error> {
        let path = manifest_path(parts, share);
        let io = |source| Error::Io { path: path.clone(), source };
        std::fs::create_dir_all(parts).map_err(io)?;
        files::sweep(&path);
        PartRows::default().all().iter().for_each(|table| files::sweep_all(&parts.join(table.table().name)));
        let source = opened.source();
        let readable: BTreeSet<i32> = source.ranks().into_iter().collect();
        let is_chosen = |rank: &i32| self.options.ranks.as_ref().is_none_or(|ranks| ranks.contains(rank));
        let chosen = |(rank, _): &&RankBytes| readable.contains(rank) && is_chosen(rank);
        let ranks: Vec<RankBytes> = ranks.iter().filter(chosen).copied().collect();
        let mut before = 0;
        for chunk in chunks(&ranks) {
            let done = |done: usize, _| progress(before + done, ranks.len());
            let load = |rank| source.load(rank).map(|data| map_rank(data, self.options, None));
            let mapped = each_rank(&chunk, &done, &mut manifest.omissions, load);
            before += chunk.len();
            if !mapped.is_empty() {
                let described = share.index == 0 && manifest.chunks.is_empty();
                manifest.chunks.push(self.write_chunk(parts, mapped, described)?);
            }
        }
        let text = serde_json::to_string_pretty(&manifest)? + "\n";
        files::replace(&path, |file: &mut File| file.write_all(text.as_bytes()).map_err(io))?;
        Ok(manifest)
    }

    fn write_chunk(&self, parts: &Path, mapped: Vec<RankPart>, described: bool) -> Result<Chunk, Error> {
        let ranks = mapped.iter().map(|part| part.outline.info.rank).collect();
        let mut rows = PartRows::default();
        mapped.into_iter().for_each(|part| rows.push(part));
        let mut chunk = Chunk::new(ranks, &rows.tables.omissions);
        for table in rows.all().into_iter().filter(|table| table.row_count() > 0) {
            let (declared, batch, run_id) = (table.table(), table.batch()?, &self.contract.input.run_id);
            chunk.files.push(write_content(parts, &declared, run_id, batch, described)?);
        }
        Ok(chunk)
    }
}

/// Whether a manifest is of the share of a new one, which has no chunks yet. Ranks that failed to load are tried again.
fn is_same(found: &ShareManifest, new: &ShareManifest) -> bool {
    let ShareManifest { contract, share, content_sha256, ranks, omissions, chunks: _ } = found;
    (contract, share, content_sha256, ranks, omissions)
        == (&new.contract, &new.share, &new.content_sha256, &new.ranks, &new.omissions)
}
