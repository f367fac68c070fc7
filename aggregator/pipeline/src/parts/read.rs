//! Reads the shares in a directory. A share that is missing or damaged is listed, and the others are read.

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use trace::place::Opened;
use trace::{ContentFile, OmissionRow, Tables, files, open_content, read_content};

use crate::parts::contract::{Chunk, Contract, ShareManifest, manifest_path, share_in_name};
use crate::parts::division::Share;
use crate::parts::rows::{PartRows, PathsOfRanks};
use measure::own_time::{OwnTime, PathWork};
use measure::part::{OnPaths, RankPart, Waiting};
use model::CollectiveShapes;
use model::Error;
use model::ffi::give_back_freed_memory;
use model::options::Options;
use model::units::ranks_named;

/// The tables of the analysis that the reduction reads first. It reads the others after it dropped the rows of the collectives.
const FIRST_TABLES: [&str; 2] = ["omissions", "step_breakdown"];
/// The tables of the ranks' own time but the stretches. The reduction reads these later, too.
const OWN_TABLES: [&str; 7] =
    ["own_time", "own_steps", "own_ranges", "path_steps", "graph_segments", "graph_nodes", "graph_paths"];
/// The table of the stretches.
const STRETCHES: &str = "own_stretches";
/// The table that the critical path of the job needs. The reduction reads it for the ranks on it.
const PATH_TABLE: &str = "path_cuts";
/// The chunks whose work on critical paths is in memory at a time.
const PATH_CHUNKS: usize = 4;

/// All shares of an analysis.
pub struct Shares<'a> {
    /// The contract, which is the same in all shares.
    pub(crate) contract: Contract,
    /// The options of the contract.
    pub(crate) options: Options,
    /// The parts of all ranks, ascending, without tables and own time.
    pub(crate) parts: Vec<RankPart>,
    /// The first tables of all parts, in the order of ranks.
    pub(crate) tables: Tables,
    /// The own time and the other tables, which are not read yet.
    pub(crate) others: OtherTables<'a>,
    /// Omissions of the input, and shares that are missing or damaged.
    pub(crate) omissions: Vec<OmissionRow>,
    /// Files of the run's tables that were not read.
    pub(crate) left_out_files: BTreeSet<String>,
}

/// Where the files of shares are.
pub(crate) trait PartFiles {
    /// The path of a file, for errors.
    fn path(&self, share: u32, file: &ContentFile) -> PathBuf;
    /// Returns an error if the file is missing, or is not the one that was mapped.
    fn check(&self, share: u32, file: &ContentFile) -> Result<(), Error>;
    /// Opens the file.
    fn open(&self, share: u32, file: &ContentFile) -> Result<Opened, Error>;
}

/// Tables of ranks that are not read yet. Those of damaged chunks are added to the omissions.
pub(crate) struct OtherTables<'a> {
    files: Box<dyn PartFiles + 'a>,
    chunks: Vec<(u32, Chunk)>,
    paths: RefCell<Paths>,
}

/// The work on critical paths of the chunks that were read last, by their positions, and what could not be read.
#[derive(Default)]
struct Paths {
    read: VecDeque<(usize, PathsOfRanks)>,
    omissions: Vec<OmissionRow>,
}

impl Waiting for OtherTables<'_> {
    fn own_time(&mut self, omissions: &mut Vec<OmissionRow>) -> Vec<OwnTime> {
        give_back_freed_memory();
        let mut read = |(share, chunk): &(u32, Chunk), is_wanted: &dyn Fn(&str) -> bool| {
            read_chunk(&*self.files, *share, chunk, is_wanted).unwrap_or_else(|error| {
                omissions.push(unreadable("own time of ranks", chunk, &error));
                PartRows::default()
            })
        };
        let mut own_time = Vec::new();
        for chunk in &self.chunks {
            let rows = read(chunk, &|table| OWN_TABLES.contains(&table));
            own_time.extend(rows.into_own_time(&chunk.1.ranks));
        }
        // Rows that were read and dropped leave gaps between the data that is kept.
        give_back_freed_memory();
        // The stretches are dropped before the rest. Their memory goes back to the system only if it lies together.
        let mut ranks = own_time.iter_mut();
        for chunk in &self.chunks {
            read(chunk, &|table| table == STRETCHES).add_stretches(ranks.by_ref().take(chunk.1.ranks.len()));
        }
        own_time
    }

    fn on_paths(&self) -> Option<&dyn OnPaths> {
        Some(self)
    }

    fn tables(&mut self, is_wanted: &dyn Fn(&str) -> bool, omissions: &mut Vec<OmissionRow>) -> Tables {
        let paths = self.paths.take();
        omissions.extend(paths.omissions);
        drop(paths.read);
        give_back_freed_memory();
        let mut tables = Tables::default();
        let is_wanted = |table: &str| is_late_table(table) && is_wanted(table);
        reserve(&mut tables, self.chunks.iter().map(|(_, chunk)| chunk), is_wanted);
        for (share, chunk) in &self.chunks {
            match read_chunk(&*self.files, *share, chunk, is_wanted) {
                Ok(rows) => tables.append(rows.tables),
                Err(error) => omissions.push(unreadable("tables of ranks", chunk, &error)),
            }
        }
        give_back_freed_memory();
        tables
    }
}

impl OnPaths for OtherTables<'_> {
    fn of(&self, own_time: &OwnTime) -> Arc<PathWork> {
        let mut paths = self.paths.borrow_mut();
        let has_rank = |(_, chunk): &(u32, Chunk)| chunk.ranks.binary_search(&own_time.rank).is_ok();
        let Some(at) = self.chunks.iter().position(has_rank) else { return Arc::default() };
        if !paths.read.iter().any(|(read, _)| *read == at) {
            let (share, chunk) = &self.chunks[at];
            let rows = read_chunk(&*self.files, *share, chunk, |table| table == PATH_TABLE);
            let rows = rows.unwrap_or_else(|error| {
                let omission = unreadable("work of ranks on critical paths", chunk, &error);
                // A chunk may be read again.
                if !paths.omissions.contains(&omission) {
                    paths.omissions.push(omission);
                }
                PartRows::default()
            });
            paths.read.truncate(PATH_CHUNKS - 1);
            paths.read.push_front((at, rows.into_paths()));
        }
        let mut read = paths.read.iter().filter(|(read, _)| *read == at);
        let key = (own_time.rank, own_time.without_waits);
        read.next().and_then(|(_, paths)| paths.get(&key)).cloned().unwrap_or_default()
    }
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

/// The directory of shares.
struct Directory<'a>(&'a Path);

impl PartFiles for Directory<'_> {
    fn path(&self, _: u32, file: &ContentFile) -> PathBuf {
        file.path(self.0)
    }

    fn check(&self, _: u32, file: &ContentFile) -> Result<(), Error> {
        Ok(open_content(self.0, file).map(drop)?)
    }

    fn open(&self, _: u32, file: &ContentFile) -> Result<Opened, Error> {
        Ok(open_content(self.0, file)?)
    }
}

/// Reads all shares in `directory`.
///
/// # Errors
/// [`Error::NoInput`] if there is none, or if they are of different inputs, options or versions.
pub fn read_shares(directory: &Path) -> Result<Shares<'_>, Error> {
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
    let manifest = |index: u32| {
        let share = Share { index, of };
        let path = manifest_path(directory, share);
        if !found.contains(&share) {
            return Ok(Err("it was not mapped: its manifest is missing".into()));
        }
        match read_manifest(&path) {
            Ok(manifest) => match manifest.contract.unreadable() {
                Some(why) => Err(no_input(&path, why)),
                None => Ok(Ok(manifest)),
            },
            Err(error) => Ok(Err(error.to_string())),
        }
    };
    let manifests = (0..of).map(manifest).collect::<Result<Vec<_>, Error>>()?;
    Shares::of(manifests, directory, Box::new(Directory(directory)))
}

/// The manifest of a share, or the reason why there is none.
pub(crate) type Found = Result<ShareManifest, String>;

/// The shares whose manifests are in a directory.
fn shares_in(directory: &Path) -> Result<BTreeSet<Share>, Error> {
    let io = |source| Error::Io { path: directory.into(), source };
    let mut found = BTreeSet::new();
    for entry in std::fs::read_dir(directory).map_err(io)? {
        found.extend(entry.map_err(io)?.file_name().to_str().and_then(share_in_name));
    }
    Ok(found)
}

impl<'a> Shares<'a> {
    /// Reads the parts of all shares, in their order. `path` is for errors.
    ///
    /// # Errors
    /// [`Error::NoInput`] if no share can be read, or if they are of different inputs or options.
    pub(crate) fn of(found: Vec<Found>, path: &Path, files: Box<dyn PartFiles + 'a>) -> Result<Self, Error> {
        let no_input = |why: String| Error::NoInput { path: path.into(), why };
        let of = found.len();
        let mut omissions = Vec::new();
        let mut manifests: Vec<ShareManifest> = Vec::new();
        for (index, found) in found.into_iter().enumerate() {
            match found {
                Ok(manifest) => {
                    if let Some(first) = manifests.first()
                        && let Some(why) = first.contract.difference(&manifest.contract)
                    {
                        let why = format!("share {index}/{of}: {why} than share {}/{of} has; map again", first.share);
                        return Err(no_input(why));
                    }
                    manifests.push(manifest);
                }
                Err(why) => omissions.push(OmissionRow::lost("share", format!("share {index}/{of}: {why}")).amount(1)),
            }
        }
        let Some(first) = manifests.first() else {
            let why = omissions.first().map(|row| row.why.to_string()).unwrap_or_default();
            return Err(no_input(format!("none of its {of} shares can be read; {why}")));
        };
        let contract = first.contract.clone();
        let options = contract.options().map_err(no_input)?;
        let others = OtherTables { files, chunks: Vec::new(), paths: RefCell::default() };
        let mut shares = Shares {
            contract,
            options,
            parts: Vec::new(),
            tables: Tables::default(),
            others,
            omissions,
            left_out_files: BTreeSet::new(),
        };
        reserve(&mut shares.tables, manifests.iter().flat_map(|manifest| &manifest.chunks), |table| !is_other(table));
        let mut shapes = CollectiveShapes::default();
        manifests.into_iter().for_each(|manifest| shares.read(manifest, &mut shapes));
        Ok(shares)
    }

    fn read(&mut self, manifest: ShareManifest, shapes: &mut CollectiveShapes) {
        self.omissions.extend(manifest.omissions);
        self.left_out_files.extend(manifest.left_out_files);
        let share = manifest.share;
        for chunk in manifest.chunks {
            let files = &*self.others.files;
            let mut others = chunk.files.iter().filter(|file| is_other(&file.table));
            let checked = others.try_for_each(|file| files.check(share, file));
            match checked.and_then(|()| read_chunk(files, share, &chunk, |table| !is_other(table))) {
                Ok(rows) => {
                    let (parts, tables) = rows.into_parts(shapes);
                    self.parts.extend(parts);
                    self.tables.append(tables);
                    self.others.chunks.push((share, chunk));
                }
                Err(error) => self.omissions.push(unreadable("parts of ranks", &chunk, &error)),
            }
        }
    }
}

/// Makes room for the rows of some tables of chunks: lists that grow by doubling take up to twice their memory.
fn reserve<'a>(tables: &mut Tables, chunks: impl Iterator<Item = &'a Chunk>, is_wanted: impl Fn(&str) -> bool) {
    let mut rows: BTreeMap<&str, u64> = BTreeMap::new();
    for file in chunks.flat_map(|chunk| &chunk.files).filter(|file| is_wanted(&file.table)) {
        let sum = rows.entry(&file.table).or_default();
        *sum = sum.saturating_add(file.rows);
    }
    for table in tables.all_mut() {
        let rows = rows.get(table.table().name).copied().unwrap_or(0);
        table.reserve_exact(usize::try_from(rows).unwrap_or(usize::MAX));
    }
}

/// The omission of the ranks of a chunk.
fn unreadable(what: &'static str, chunk: &Chunk, error: &Error) -> OmissionRow {
    let why = format!("{} in it cannot be read: {error}", ranks_named(&chunk.ranks));
    OmissionRow::lost(what, why).amount(chunk.ranks.len() as i64)
}

/// Whether a table of the analysis waits.
fn is_late_table(table: &str) -> bool {
    let is_of_analysis = || Tables::default().all().iter().any(|rows| rows.table().name == table);
    !FIRST_TABLES.contains(&table) && is_of_analysis()
}

/// Whether a table is one of [`OtherTables`].
fn is_other(table: &str) -> bool {
    OWN_TABLES.contains(&table) || table == PATH_TABLE || table == STRETCHES || is_late_table(table)
}

/// Reads the wanted tables of a chunk.
fn read_chunk(
    files: &dyn PartFiles,
    share: u32,
    chunk: &Chunk,
    is_wanted: impl Fn(&str) -> bool,
) -> Result<PartRows, Error> {
    let mut rows = PartRows::default();
    for file in chunk.files.iter().filter(|file| is_wanted(&file.table)) {
        let path = files.path(share, file);
        let mut all = rows.all_mut();
        let Some(table) = all.iter_mut().find(|table| table.table().name == file.table) else {
            let why = format!("its manifest names the table {}, which no part has", file.table);
            return Err(Error::NoInput { path, why });
        };
        read_content(files.open(share, file)?, &path, |batch| -> Result<(), Error> { Ok(table.add_batch(batch)?) })?;
    }
    Ok(rows)
}
