//! `run.json`: the description of a run, written once when it starts.

use std::collections::BTreeSet;
use std::fs::File;
use std::io::{Read, Write};
use std::path::Path;

use serde::{Deserialize, Serialize};

use crate::keys::{MANIFEST_FILE, MAX_MANIFEST_BYTES, SCHEMA_VERSION};
use crate::{Error, OmissionRow, files, place};

/// The manifest of a run.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Manifest {
    /// Version of the tables.
    pub schema_version: u32,
    /// Unique id; every shard carries it.
    pub run_id: String,
    /// Number of ranks in the job; a complete run has shards of each, or of those in [`held_ranks`](Self::held_ranks).
    pub world_size: i32,
    /// UTC at the start, in ns since 1970.
    pub created_utc_ns: i64,
    /// Program and version that wrote the run.
    pub tool: String,
    /// The command line.
    pub command: Vec<String>,
    /// Further facts about the job: layers, bucket sizes, schedule.
    #[serde(default)]
    pub config: serde_json::Map<String, serde_json::Value>,
}

/// The key in `config` for the ranks that a run holds, where it holds those of some traces only.
pub const HELD_RANKS: &str = "ranks";

/// Key of [`Manifest::config`] for the traces that a run was made of: the first file of each rank in
/// [`HELD_RANKS`], whose ranks ascend.
pub const TRACE_FILES: &str = "trace_files";

/// Key of [`Manifest::config`] for the omissions of the files that a run was made of. Those of a rank's rows are among its counters.
const OMISSIONS: &str = "omissions";

impl Manifest {
    /// Keeps omissions of the files that the run is made of.
    ///
    /// # Errors
    /// [`Error::Json`] if they cannot be written as JSON.
    pub fn keep_omissions(&mut self, omissions: &[OmissionRow]) -> Result<(), Error> {
        if !omissions.is_empty() {
            let json = |source| Error::Json { path: MANIFEST_FILE.into(), source };
            self.config.insert(OMISSIONS.into(), serde_json::to_value(omissions).map_err(json)?);
        }
        Ok(())
    }

    /// The omissions of the files that the run was made of. Values that are none do not count.
    pub fn omissions(&self) -> Vec<OmissionRow> {
        let rows = self.config.get(OMISSIONS).and_then(serde_json::Value::as_array);
        rows.into_iter().flatten().filter_map(|row| OmissionRow::deserialize(row).ok()).collect()
    }

    /// The ranks that were put into the run; `None` if it has those of the whole job.
    pub fn held_ranks(&self) -> Option<BTreeSet<i32>> {
        let ranks = self.config.get(HELD_RANKS)?.as_array()?;
        let number = |rank: &serde_json::Value| rank.as_i64().and_then(|rank| i32::try_from(rank).ok());
        ranks.iter().map(|rank| number(rank).filter(|rank| *rank >= 0)).collect()
    }

    /// The trace that a rank of the run was made of; `None` for a rank that was recorded.
    pub fn trace_file(&self, rank: i32) -> Option<&str> {
        let ranks = self.config.get(HELD_RANKS)?.as_array()?;
        let at = ranks.binary_search_by_key(&Some(i64::from(rank)), serde_json::Value::as_i64).ok()?;
        self.config.get(TRACE_FILES)?.as_array()?.get(at)?.as_str()
    }

    /// Writes `run.json` of `run`, completely or not at all.
    ///
    /// # Errors
    /// [`Error::Io`]; [`Error::LongManifest`].
    pub fn write(&self, run: &Path) -> Result<(), Error> {
        std::fs::create_dir_all(run).map_err(|source| Error::Io { path: run.into(), source })?;
        let path = run.join(MANIFEST_FILE);
        let text = self.text(&path)?;
        let fill = |file: &mut File| file.write_all(&text).map_err(|source| Error::Io { path: path.clone(), source });
        files::replace(&path, fill).map(drop)
    }

    pub(crate) fn text(&self, path: &Path) -> Result<Vec<u8>, Error> {
        let mut text = serde_json::to_vec_pretty(self).map_err(|source| Error::Json { path: path.into(), source })?;
        text.push(b'\n');
        if text.len() > MAX_MANIFEST_BYTES { Err(Error::LongManifest { path: path.into() }) } else { Ok(text) }
    }

    /// Reads `run.json` of `run`.
    ///
    /// # Errors
    /// [`Error::Io`], [`Error::LongManifest`], [`Error::Json`] or [`Error::NewerSchema`].
    pub fn read(run: &Path) -> Result<Self, Error> {
        let path = run.join(MANIFEST_FILE);
        let io = |source| Error::Io { path: path.clone(), source };
        let file = place::open(&path).map_err(io)?;
        let mut text = Vec::new();
        file.take(MAX_MANIFEST_BYTES as u64 + 1).read_to_end(&mut text).map_err(io)?;
        if text.len() > MAX_MANIFEST_BYTES {
            return Err(Error::LongManifest { path });
        }
        Self::parse(&text, &path)
    }

    fn parse(text: &[u8], path: &Path) -> Result<Self, Error> {
        let manifest: Self =
            serde_json::from_slice(text).map_err(|source| Error::Json { path: path.into(), source })?;
        if manifest.schema_version > SCHEMA_VERSION {
            return Err(Error::NewerSchema {
                path: path.into(),
                found: manifest.schema_version,
                known: SCHEMA_VERSION,
            });
        }
        Ok(manifest)
    }
}
