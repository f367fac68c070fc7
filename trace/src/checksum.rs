//! Checksums of the blocks of a Parquet file. Parquet has checksums for pages, but the library that writes our files
//! writes none.
//!
//! ```text
//! PAR1 | pages of all columns                     | footer: …, rankscope.xxh3 = LENGTH:HASH,HASH,…
//! |--- block 1 ---|--- block 2 ---|- the last one -|
//! ```

use std::fs::File;
use std::hash::Hasher;
use std::io::{self, Read, Seek, Write};

use parquet::errors::ParquetError;
use parquet::file::metadata::{KeyValue, ParquetMetaData};
use twox_hash::XxHash3_64;

/// The key in the footer.
const KEY: &str = "rankscope.xxh3";
/// Bytes of a block.
const BLOCK_BYTES: usize = 1 << 18;

/// A file whose blocks are hashed while it is written.
pub(crate) struct Hashed<'a> {
    file: &'a mut File,
    length: u64,
    hashes: Vec<u64>,
    block: XxHash3_64,
}

impl<'a> Hashed<'a> {
    pub(crate) fn new(file: &'a mut File) -> Self {
        Self { file, length: 0, hashes: Vec::new(), block: XxHash3_64::new() }
    }

    /// The checksums of the bytes so far, as metadata of the footer.
    pub(crate) fn checksums(&self) -> KeyValue {
        let open = (self.in_block() > 0).then(|| self.block.finish());
        let hashes: Vec<String> = self.hashes.iter().copied().chain(open).map(text).collect();
        KeyValue::new(KEY.to_string(), format!("{}:{}", self.length, hashes.join(",")))
    }

    fn in_block(&self) -> usize {
        (self.length % BLOCK_BYTES as u64) as usize
    }
}

fn text(hash: u64) -> String {
    format!("{hash:016x}")
}

impl Write for Hashed<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let room = BLOCK_BYTES - self.in_block();
        let written = self.file.write(&bytes[..bytes.len().min(room)])?;
        Hasher::write(&mut self.block, &bytes[..written]);
        self.length += written as u64;
        if written == room {
            self.hashes.push(self.block.finish());
            self.block = XxHash3_64::new();
        }
        Ok(written)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.file.flush()
    }
}

/// The number of sound bytes before the first block that differs from its checksum; `None` if no block does, or if the
/// footer has no checksums.
///
/// # Errors
/// The error of reading.
pub(crate) fn sound_bytes(file: &File, footer: &ParquetMetaData) -> Result<Option<u64>, ParquetError> {
    let mut pairs = footer.file_metadata().key_value_metadata().into_iter().flatten();
    let Some(expected) = pairs.find(|pair| pair.key == KEY).and_then(|pair| pair.value.as_deref()) else {
        return Ok(None);
    };
    let Some((length, hashes)) = expected.split_once(':') else { return Ok(Some(0)) };
    let Ok(length) = length.parse::<u64>() else { return Ok(Some(0)) };
    let mut from = file.try_clone()?;
    from.rewind()?;
    let mut from = from.take(length);
    let (mut block, mut sound) = (Vec::with_capacity(BLOCK_BYTES), 0);
    for expected in hashes.split(',') {
        block.clear();
        from.by_ref().take(BLOCK_BYTES as u64).read_to_end(&mut block)?;
        if text(XxHash3_64::oneshot(&block)) != expected {
            return Ok(Some(sound));
        }
        sound += block.len() as u64;
    }
    Ok((sound != length).then_some(sound))
}
