//! Tables that other programs wrote as files of Parquet or Arrow.

use std::io::Read;
use std::path::Path;

use arrow_array::RecordBatch;
use arrow_buffer::Buffer;
use arrow_ipc::reader::StreamDecoder;
use arrow_schema::ArrowError;
use parquet::errors::ParquetError;

use crate::Error;
use crate::place::{self, Opened};
use crate::shard::{contain_panic, read_batches, read_footer};

/// What a file of Arrow begins with, before zeros up to some alignment; a stream begins without it.
const ARROW_MAGIC: &[u8] = b"ARROW1";
/// What a stream ends with.
const ARROW_END: [u8; 8] = [0xff, 0xff, 0xff, 0xff, 0, 0, 0, 0];
/// Bytes that are handed to the reader of Arrow at once.
const CHUNK_BYTES: u64 = 1 << 20;
/// Rows of a file by its size. Both formats write equal values in no room at all, but rows of a recording differ in their times.
const ROWS_PER_BYTE: u64 = 16;
const ROWS_AT_LEAST: u64 = 1 << 20;

/// The names of the columns of a file of Parquet or Arrow.
///
/// # Errors
/// [`Error::Io`]; [`Error::Parquet`] if the file is neither, or damaged.
pub fn columns_of_file(path: &Path) -> Result<Vec<String>, Error> {
    let file = place::open(path).map_err(io(path))?;
    let schema = if is_parquet(path)? {
        let bytes = file.size_bytes().map_err(io(path))?;
        read_footer(&file, bytes).map_err(parquet(path))?.schema().clone()
    } else {
        let mut arrow = Arrow::of(file, path)?;
        loop {
            // A batch that is decoded with the schema is not needed.
            let batch = arrow.next()?;
            match arrow.decoder.schema() {
                Some(schema) => break schema,
                None if batch.is_none() => return Err(arrow.damaged("it ends before its schema")),
                None => {}
            }
        }
    };
    Ok(schema.fields().iter().map(|field| field.name().clone()).collect())
}

/// Why the reading of a file ends before its end.
enum End {
    Enough,
    Damaged(Error),
}

impl From<Error> for End {
    fn from(error: Error) -> Self {
        Self::Damaged(error)
    }
}

/// Reads the named columns of a file of Parquet or Arrow, and hands each batch to `visit` until that returns false. Columns that the
/// file lacks are absent from the batch.
///
/// # Errors
/// As [`columns_of_file`]. Batches before the error were visited.
pub fn read_columns(path: &Path, columns: &[&str], visit: impl FnMut(&RecordBatch) -> bool) -> Result<(), Error> {
    match read_until(path, columns, visit) {
        Ok(()) | Err(End::Enough) => Ok(()),
        Err(End::Damaged(error)) => Err(error),
    }
}

fn read_until(path: &Path, columns: &[&str], mut visit: impl FnMut(&RecordBatch) -> bool) -> Result<(), End> {
    let file = place::open(path).map_err(io(path))?;
    let bytes = file.size_bytes().map_err(io(path))?;
    let mut room = bytes.saturating_mul(ROWS_PER_BYTE).saturating_add(ROWS_AT_LEAST);
    let mut visit = |batch: &RecordBatch| {
        let why = || ParquetError::General("it has more rows than the file has room for".into());
        room = room.checked_sub(batch.num_rows() as u64).ok_or_else(|| parquet(path)(why()))?;
        if visit(batch) { Ok(()) } else { Err(End::Enough) }
    };
    if is_parquet(path)? {
        return match read_batches(file, path, Some(columns), visit)? {
            None => Ok(()),
            Some(damage) => Err(damage.into()),
        };
    }
    let mut arrow = Arrow::of(file, path)?;
    while let Some(batch) = arrow.next()? {
        let schema = batch.schema();
        let chosen: Vec<usize> = columns.iter().filter_map(|name| schema.index_of(name).ok()).collect();
        let batch = batch.project(&chosen).map_err(|error| arrow.damaged(&error.to_string()))?;
        visit(&batch)?;
    }
    Ok(())
}

fn parquet(path: &Path) -> impl Fn(ParquetError) -> Error {
    move |source| Error::Parquet { path: path.into(), source }
}

fn io(path: &Path) -> impl Fn(std::io::Error) -> Error {
    move |source| Error::Io { path: path.into(), source }
}

fn is_parquet(path: &Path) -> Result<bool, Error> {
    Ok(place::first_bytes(path, 4).map_err(io(path))? == b"PAR1")
}

/// A file or a stream of Arrow, read from its start to its end. The footer of a file is not used.
struct Arrow<'a> {
    path: &'a Path,
    file: Opened,
    has_footer: bool,
    decoder: StreamDecoder,
    /// Bytes that were read and not decoded.
    rest: Buffer,
    /// The last bytes that were read.
    tail: Vec<u8>,
}

impl<'a> Arrow<'a> {
    fn of(file: Opened, path: &'a Path) -> Result<Self, Error> {
        let (decoder, rest) = (StreamDecoder::new(), Buffer::from(Vec::<u8>::new()));
        let mut arrow = Self { path, file, has_footer: false, decoder, rest, tail: Vec::new() };
        arrow.fill()?;
        if arrow.rest.starts_with(ARROW_MAGIC) {
            arrow.has_footer = true;
            let zeros = arrow.rest[ARROW_MAGIC.len()..].iter().take_while(|byte| **byte == 0).count();
            arrow.rest.advance(ARROW_MAGIC.len() + zeros);
        }
        let bytes = arrow.file.size_bytes().map_err(io(path))?;
        if arrow.first_message_bytes().is_some_and(|first| u64::from(first) > bytes) {
            return Err(arrow.damaged("its first message is longer than the file"));
        }
        Ok(arrow)
    }

    /// The length of the first message, which may have a mark before it. The decoder reserves so much memory; the first
    /// letters of a text would
    /// be a GB.
    fn first_message_bytes(&self) -> Option<u32> {
        let (words, _) = self.rest.as_chunks::<4>();
        words.iter().take(2).map(|word| u32::from_le_bytes(*word)).find(|word| *word != u32::MAX)
    }

    fn damaged(&self, why: &str) -> Error {
        parquet(self.path)(ParquetError::General(format!("it is damaged, or neither of Parquet nor of Arrow: {why}")))
    }

    /// Reads some bytes; false at the end of the file.
    fn fill(&mut self) -> Result<bool, Error> {
        let mut bytes = Vec::new();
        self.file.by_ref().take(CHUNK_BYTES).read_to_end(&mut bytes).map_err(io(self.path))?;
        self.tail.extend_from_slice(&bytes[bytes.len().saturating_sub(ARROW_END.len())..]);
        self.tail.drain(..self.tail.len().saturating_sub(ARROW_END.len()));
        self.rest = Buffer::from(bytes);
        Ok(!self.rest.is_empty())
    }

    /// The next batch; `None` at the end.
    fn next(&mut self) -> Result<Option<RecordBatch>, Error> {
        loop {
            if self.rest.is_empty() && !self.fill()? {
                let is_whole = self.decoder.finish().is_ok() && !self.has_footer && self.tail == ARROW_END;
                return if is_whole {
                    Ok(None)
                } else {
                    Err(self.damaged("it is cut: the mark of its end is missing"))
                };
            }
            let (decoder, rest) = (&mut self.decoder, &mut self.rest);
            let decoded = contain_panic(|| Ok::<_, ParquetError>(decoder.decode(rest)))
                .unwrap_or_else(|panic| Err(ArrowError::IpcError(panic.to_string())));
            match decoded {
                Ok(Some(batch)) => return Ok(Some(batch)),
                Ok(None) => {}
                // Bytes follow the mark of the end.
                Err(_) if self.decoder.finish().is_ok() && self.has_footer => return Ok(None),
                Err(_) if self.decoder.finish().is_ok() => {
                    return Err(self.damaged("it has more than one table; write a directory of tables"));
                }
                Err(error) => return Err(self.damaged(&error.to_string())),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use arrow_array::{ArrayRef, Int64Array, NullArray};
    use arrow_ipc::writer::StreamWriter;
    use parquet::arrow::ArrowWriter;

    use super::*;

    #[test]
    fn names_of_columns_may_contain_dots() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("dots.parquet");
        let column = |value| Arc::new(Int64Array::from(vec![value])) as ArrayRef;
        let columns = [("a", column(1)), ("a.b", column(2)), (".c", column(3))];
        let batch = RecordBatch::try_from_iter(columns).unwrap();
        let mut writer = ArrowWriter::try_new(std::fs::File::create(&path).unwrap(), batch.schema(), None).unwrap();
        writer.write(&batch).unwrap();
        writer.close().unwrap();
        for (names, chosen) in [(&["a.b", ".c"][..], &[1, 2][..]), (&["a", "b"], &[0])] {
            let mut found = Vec::new();
            read_columns(&path, names, |batch| {
                found.push(batch.clone());
                true
            })
            .unwrap();
            assert_eq!(found, [batch.project(chosen).unwrap()]);
        }
    }

    #[test]
    fn rows_that_take_no_room_are_bounded() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("nulls.arrow");
        let read = |rows: usize| {
            let nulls: ArrayRef = Arc::new(NullArray::new(rows));
            let batch = RecordBatch::try_from_iter([("a", nulls)]).unwrap();
            let mut writer = StreamWriter::try_new(std::fs::File::create(&path).unwrap(), &batch.schema()).unwrap();
            writer.write(&batch).unwrap();
            writer.finish().unwrap();
            let mut found = 0;
            let read = read_columns(&path, &["a"], |batch| {
                found += batch.num_rows();
                true
            });
            (found, read.err().map(|error| error.to_string()))
        };
        assert_eq!(read(1 << 20), (1 << 20, None));
        let (found, error) = read(1 << 40);
        assert_eq!(found, 0);
        assert!(error.as_ref().is_some_and(|error| error.contains("more rows than")), "{error:?}");
    }
}
