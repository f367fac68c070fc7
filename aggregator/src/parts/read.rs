//! Reads the shares in a directory. A share that is missing or damaged is listed, and the others are read.

use std::collections::BTreeSet;
use std::path::Path;

use trace::{OmissionRow, Tables, files, read_content};

use crate::Error;
use crate::base::units::ranks_named;
use crate::measure::part::RankPart;
use crate::model::options::Options;
use crate::parts::contract::{Chunk, Contract, ShareManifest, manifest_path, share_in_name};
use crate::parts::division::Share;
use crate::parts::rows::PartRows;

/// All shares of an analysis.
pub(crate) struct Shares {
    /// The contract, which is the same in all shares.
    pub(crate) contract: Contract,
    /// The options of the contract.
    pub(crate) options: Options,
    /// The parts of all ranks, ascending, without tables.
    pub(crate) parts: Vec<RankPart>,
    /// The tables of all parts, in the order of ranks.
    pub(crate) tables: Tables,
    /// Omissions of the input, and shares that are missing or damaged.
    pub(crate) omissions: Vec<OmissionRow>,
}

/// The longest manifest of a share. One that lists 100 000 ranks and their omissions has about 30 MB.
const MAX_MANIFEST_BYTES: u64 = 256 << 20;

/// Reads the manifest of a share.
///
/// # Errors
/// [`Error::Io`] or [`Error::NoInput`].
pub(crate) fn read_manifest(path: &Path) -> Result<ShareManifest, Error> {
    let io = |source| Error::Io { path: path.into(), source };
    let file = files::open_regular(path).map_err(io)?;
    let no_input = |why: String| Error::NoInput { path: path.into(), why };
    if file.metadata().map_err(io)?.len() > MAX_MANIFEST_BYTES {
        return Err(no_input(format!(
            "it is longer than {MAX_MANIFEST_BYTES} bytes, so it is not the manifest of a share"
        )));
    }
    serde_json::from_reader(std::io::BufReader::new(file)).map_err(|error| {
        no_input(format!("it is damaged, or not the manifest of a share ({error}); map the share again"))
    })
}

/// Reads all shares in `directory`.
///
/// # Errors
/// [`Error::NoInput`] if there is none, or if they are of different inputs, options or versions.
pub(crate) fn read_shares(directory: &Path) -> Result<Shares, Error> {
    let no_input = |path: &Path, why: String| Error::NoInput { path: path.into(), why };
    let found = shares_in(directory)?;
    let Some(of) = found.first().map(|share| share.of) else {
        return Err(no_input(
            directory,
            "there are no parts in it; `map INPUT --part I/N -o PARTS` writes them".into(),
        ));
    };
    if let Some(other) = found.iter().find(|share| share.of != of) {
        let why = format!("it has shares of {of} and of {}; reduce those of one map", other.of);
        return Err(no_input(directory, why));
    }
    let mut omissions = Vec::new();
    let mut manifests: Vec<ShareManifest> = Vec::new();
    for share in (0..of).map(|index| Share { index, of }) {
        let path = manifest_path(directory, share);
        let lost = |why: String| OmissionRow::lost("share", why).amount(1);
        if !found.contains(&share) {
            omissions.push(lost(format!("share {}/{of} was not mapped: its manifest is missing", share.index)));
            continue;
        }
        match read_manifest(&path) {
            Ok(manifest) => {
                if let Some(why) = manifest.contract.unreadable() {
                    return Err(no_input(&path, why));
                }
                if let Some(first) = manifests.first()
                    && let Some(why) = first.contract.difference(&manifest.contract)
                {
                    return Err(no_input(&path, format!("{why} than share {}/{of} has; map again", first.share)));
                }
                manifests.push(manifest);
            }
            Err(error) => omissions.push(lost(format!("share {}/{of}: {error}", share.index))),
        }
    }
    let Some(first) = manifests.first() else {
        return Err(no_input(directory, format!("none of its {of} shares can be read")));
    };
    let contract = first.contract.clone();
    let options = contract.options().map_err(|why| no_input(directory, why))?;
    let mut shares = Shares { contract, options, parts: Vec::new(), tables: Tables::default(), omissions };
    shares.read_all(directory, manifests);
    Ok(shares)
}

/// The shares whose manifests are in a directory.
fn shares_in(directory: &Path) -> Result<BTreeSet<Share>, Error> {
    let io = |source| Error::Io { path: directory.into(), source };
    let mut found = BTreeSet::new();
    for entry in std::fs::read_dir(directory).map_err(io)? {
        found.extend(entry.map_err(io)?.file_name().to_str().and_then(share_in_name));
    }
    Ok(found)
}

impl Shares {
    fn read_all(&mut self, directory: &Path, manifests: Vec<ShareManifest>) {
        for manifest in manifests {
            self.omissions.extend(manifest.omissions);
            for chunk in manifest.chunks {
                match read_chunk(directory, &chunk) {
                    Ok(rows) => {
                        let (parts, tables) = rows.into_parts();
                        self.parts.extend(parts);
                        self.tables.append(tables);
                    }
                    Err(error) => {
                        let why = format!("{} in it cannot be read: {error}", ranks_named(&chunk.ranks));
                        let lost = OmissionRow::lost("parts of ranks", why);
                        self.omissions.push(lost.amount(chunk.ranks.len() as i64));
                    }
                }
            }
        }
    }
}

fn read_chunk(directory: &Path, chunk: &Chunk) -> Result<PartRows, Error> {
    let mut rows = PartRows::default();
    for file in &chunk.files {
        let mut all = rows.all_mut();
        let Some(table) = all.iter_mut().find(|table| table.table().name == file.table) else {
            let why = format!("its manifest names the table {}, which no part has", file.table);
            return Err(Error::NoInput { path: file.path(directory), why });
        };
        read_content(directory, file, |batch| -> Result<(), Error> { Ok(table.add_batch(batch)?) })?;
    }
    Ok(rows)
}
