//! Files that are named by their content: the same rows give the same name, whoever writes them and when.

use std::io::Write;
use std::path::{Path, PathBuf};

use arrow_array::RecordBatch;
use parquet::basic::Compression;
use parquet::errors::ParquetError;
use parquet::file::metadata::KeyValue;
use serde::{Deserialize, Serialize};

use crate::keys::{KEY_RUN_ID, KEY_SCHEMA_VERSION, SCHEMA_VERSION};
use crate::place::Opened;
use crate::shard::read_batches;
use crate::shard::write::{descriptions, encode, one_by_one};
use crate::{Error, Table, checksum, files, place};

/// A file that is named by its content.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ContentFile {
    /// Name of its table.
    pub table: String,
    /// XXH3 of its footer, in hexadecimal digits. The footer holds the checksums of the row groups.
    pub xxh3: String,
    /// Number of rows.
    pub rows: u64,
    /// Size of the file.
    pub bytes: u64,
}

impl ContentFile {
    /// `DIRECTORY/<table>/0123456789abcdef.parquet`.
    pub fn path(&self, directory: &Path) -> PathBuf {
        directory.join(&self.table).join(format!("{}.parquet", self.xxh3))
    }

    /// Whether the file is there and has its size.
    pub fn exists(&self, directory: &Path) -> bool {
        self.is_plain_name() && self.path(directory).metadata().is_ok_and(|file| file.len() == self.bytes)
    }

    /// Whether table and hash are words, so that a list of files cannot name a file elsewhere.
    fn is_plain_name(&self) -> bool {
        let is_word = |text: &str| text.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'_');
        is_word(&self.table) && is_word(&self.xxh3)
    }
}

/// Encodes rows. `described`: with the documentation of the columns.
///
/// # Errors
/// [`Error::Parquet`].
pub fn encode_content(
    table: &Table,
    run_id: &str,
    batch: RecordBatch,
    described: bool,
) -> Result<(ContentFile, Vec<u8>), Error> {
    let pairs = [(KEY_SCHEMA_VERSION, SCHEMA_VERSION.to_string()), (KEY_RUN_ID, run_id.to_string())];
    let pairs = pairs.into_iter().map(|(key, value)| KeyValue::new(key.to_string(), value));
    let pairs: Vec<KeyValue> = pairs.chain(described.then(|| descriptions(table))).collect();
    let (rows, mut bytes) = (batch.num_rows() as u64, Vec::new());
    // Parts have many short columns, which are read once: making a compressor and a decompressor of zstd for each of them takes
    // longer than their bytes do.
    let content = (&[batch][..], Compression::SNAPPY);
    let xxh3 = encode(&mut bytes, Path::new(table.name), table, &pairs, content, &one_by_one)?;
    Ok((ContentFile { table: table.name.into(), xxh3, rows, bytes: bytes.len() as u64 }, bytes))
}

/// Writes what [`encode_content`] encoded below `directory`. A file of the same content is kept.
///
/// # Errors
/// [`Error::Io`].
pub fn write_content(directory: &Path, file: &ContentFile, bytes: &[u8]) -> Result<(), Error> {
    if file.exists(directory) {
        return Ok(());
    }
    let path = file.path(directory);
    files::make_parent(&path)?;
    let io = |source| Error::Io { path: path.clone(), source };
    files::replace(&path, |out| out.write_all(bytes).map_err(io)).map(drop)
}

/// Opens a file that [`write_content`] wrote below `directory`.
///
/// # Errors
/// [`Error::Io`]; [`Error::Parquet`] if it is not the file that was written.
pub fn open_content(directory: &Path, file: &ContentFile) -> Result<Opened, Error> {
    let path = file.path(directory);
    let damaged = |why: &str| Error::Parquet { path: path.clone(), source: ParquetError::General(why.into()) };
    if !file.is_plain_name() {
        return Err(damaged("the list of files is damaged: this is no name of a table or hash"));
    }
    let io = |source| Error::Io { path: path.clone(), source };
    let opened = place::open(&path).map_err(io)?;
    let bytes = opened.size_bytes().map_err(io)?;
    if bytes != file.bytes || checksum::of_footer(&opened, bytes).map_err(io)? != file.xxh3 {
        return Err(damaged("the file is damaged: its footer is not the one by which it was named"));
    }
    Ok(opened)
}

/// Reads all rows of a file, or of its content in memory. `path` is for errors.
///
/// # Errors
/// [`Error::Parquet`] if a byte differs from what was encoded; the error of `visit`.
pub fn read_content<E: From<Error>>(
    opened: Opened,
    path: &Path,
    visit: impl FnMut(&RecordBatch) -> Result<(), E>,
) -> Result<(), E> {
    match read_batches(opened, path, None, visit)? {
        None => Ok(()),
        Some(damage) => Err(damage.into()),
    }
}
