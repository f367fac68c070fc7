//! Checksums of the row groups of a Parquet file. Parquet has checksums for pages, but the library that writes our files
//! writes none.
//!
//! ```text
//! PAR1 | row group 1 | row group 2 | footer: …, rankscope.xxh3 = LENGTH:HASH,LENGTH:HASH
//! |---- block 1 ----|-- block 2 --|
//! ```

use std::hash::Hasher;
use std::io::{self, Write};

use parquet::errors::ParquetError;
use parquet::file::metadata::{KeyValue, ParquetMetaData};
use twox_hash::XxHash3_64;

use crate::place::Opened;

/// The key in the footer.
const KEY: &str = "rankscope.xxh3";
/// Bytes that are read at once.
const READ_BYTES: usize = 1 << 18;

/// A file, or the bytes of one, whose blocks are hashed while it is written.
pub(crate) struct Hashed<'a, W> {
    file: &'a mut W,
    blocks: Vec<String>,
    length: u64,
    hash: XxHash3_64,
}

impl<'a, W> Hashed<'a, W> {
    pub(crate) fn new(file: &'a mut W) -> Self {
        Self { file, blocks: Vec::new(), length: 0, hash: XxHash3_64::new() }
    }

    /// Ends a block with the last byte that was written.
    pub(crate) fn end_block(&mut self) {
        if self.length > 0 {
            self.blocks.push(text(self.length, &self.hash));
        }
        (self.length, self.hash) = (0, XxHash3_64::new());
    }

    /// The checksum of the bytes since the last ended block: of the footer, once it is written.
    pub(crate) fn last(&self) -> String {
        format!("{:016x}", self.hash.finish())
    }

    /// The checksums of the ended blocks, as metadata of the footer.
    pub(crate) fn checksums(&self) -> KeyValue {
        KeyValue::new(KEY.to_string(), self.blocks.join(","))
    }
}

fn text(length: u64, hash: &XxHash3_64) -> String {
    format!("{length}:{:016x}", hash.finish())
}

impl<W: Write> Write for Hashed<'_, W> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let written = self.file.write(bytes)?;
        Hasher::write(&mut self.hash, &bytes[..written]);
        self.length += written as u64;
        Ok(written)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.file.flush()
    }
}

/// The checksum of the footer of a file of `bytes`: of the metadata, its length and the magic number, by which the file
/// ends.
///
/// # Errors
/// The error of reading.
pub(crate) fn of_footer(file: &Opened, bytes: u64) -> io::Result<String> {
    const ENDING: u64 = 8;
    let mut ending = [0; ENDING as usize];
    file.read_exact_at(&mut ending, bytes.saturating_sub(ENDING))?;
    let [a, b, c, d, ..] = ending;
    let length = u64::from(u32::from_le_bytes([a, b, c, d])).saturating_add(ENDING).min(bytes);
    let mut hash = XxHash3_64::new();
    let mut room = vec![0; READ_BYTES.min(length as usize)];
    let mut at = bytes - length;
    while at < bytes {
        let wanted = (bytes - at).min(room.len() as u64) as usize;
        file.read_exact_at(&mut room[..wanted], at)?;
        Hasher::write(&mut hash, &room[..wanted]);
        at += wanted as u64;
    }
    Ok(format!("{:016x}", hash.finish()))
}

/// The number of sound bytes before the first block that differs from its checksum; `None` if no block does, or if the
/// footer has no checksums.
///
/// # Errors
/// The error of reading.
pub(crate) fn sound_bytes(file: &Opened, footer: &ParquetMetaData) -> Result<Option<u64>, ParquetError> {
    let mut pairs = footer.file_metadata().key_value_metadata().into_iter().flatten();
    let Some(expected) = pairs.find(|pair| pair.key == KEY).and_then(|pair| pair.value.as_deref()) else {
        return Ok(None);
    };
    let (mut room, mut sound) = (vec![0; READ_BYTES], 0);
    for expected in expected.split(',') {
        let claimed = expected.split_once(':').and_then(|(length, _)| length.parse().ok()).unwrap_or(0);
        let (mut hash, mut length) = (XxHash3_64::new(), 0);
        while length < claimed {
            let wanted = usize::try_from(claimed - length).map_or(READ_BYTES, |left| left.min(READ_BYTES));
            let got = file.read_at(&mut room[..wanted], sound + length)?;
            if got == 0 {
                break;
            }
            Hasher::write(&mut hash, &room[..got]);
            length += got as u64;
        }
        if text(length, &hash) != expected {
            return Ok(Some(sound));
        }
        sound += length;
    }
    Ok(None)
}
