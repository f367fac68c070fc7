//! The headers of Parquet files, checked before the library reads them. The library makes room for as many values of a dictionary as a
//! header states, and counts through lists whose elements take no bytes: a file of a kilobyte would take gigabytes, or hours.
//!
//! ```text
//!  chunk of a column   header | dictionary | header | data page | header | data page
//!  header              structs of Thrift's compact protocol: kind and number of a field, value, …, 0
//! ```
//!
//! Sources: apache/parquet-format src/main/thrift/parquet.thrift, apache/thrift doc/specs/thrift-compact-protocol.md.

use parquet::errors::ParquetError;
use parquet::file::metadata::{ColumnChunkMetaData, ParquetMetaData};
use parquet::file::reader::ChunkReader;

use crate::place::Opened;

/// Values of a dictionary by the size of its page. They differ, so that no compression makes them much smaller than this.
const VALUES_PER_BYTE: u64 = 16;
const VALUES_AT_LEAST: u64 = 1 << 20;
/// Most headers are shorter than this. A longer one is read again with more bytes.
const HEADER_BYTES: u64 = 1 << 10;
/// No header is longer than this: its longest part are the least and the greatest value of the page.
const MAX_HEADER_BYTES: u64 = 1 << 24;
/// Structs in structs. Parquet has at most seven.
const MAX_DEPTH: u32 = 32;
/// The end of a file: the length of its footer, and a mark.
const END_BYTES: u64 = 8;
/// The mark. Files with another one are encrypted, and the library refuses them.
const MAGIC: &[u8] = b"PAR1";

fn damaged(why: &str) -> ParquetError {
    ParquetError::General(format!("the file is damaged: {why}"))
}

/// Checks that no list in the footer of a file is longer than the footer. A file without a footer is left to the library, which refuses it
/// and says why.
pub(super) fn check_footer_lists(file: &impl ChunkReader) -> Result<(), ParquetError> {
    let Some(end_at) = file.len().checked_sub(END_BYTES) else { return Ok(()) };
    let end = file.get_bytes(end_at, END_BYTES as usize)?;
    let length = u32::from_le_bytes([end[0], end[1], end[2], end[3]]);
    let Some(start) = end_at.checked_sub(u64::from(length)).filter(|_| end.ends_with(MAGIC)) else { return Ok(()) };
    let footer = file.get_bytes(start, length as usize)?;
    Thrift::new(&footer).structure(0, MAX_DEPTH, &mut |_| Ok(()))?;
    Ok(())
}

/// Those of the row groups `groups` that precede the first one with a header that cannot be true, and the error of that.
pub(super) fn sound_groups(
    file: &Opened,
    metadata: &ParquetMetaData,
    mut groups: Vec<usize>,
    is_wanted: impl Fn(usize) -> bool,
) -> (Vec<usize>, Option<ParquetError>) {
    let check = |group: &usize| {
        let columns = metadata.row_group(*group).columns().iter().enumerate();
        columns.filter(|(column, _)| is_wanted(*column)).try_for_each(|(_, chunk)| check_pages(file, chunk))
    };
    let failed = groups.iter().enumerate().find_map(|(at, group)| Some((at, check(group).err()?)));
    let Some((at, error)) = failed else { return (groups, None) };
    groups.truncate(at);
    (groups, Some(error))
}

/// Checks the headers of a chunk. The library reads its pages to the end, whatever the number of its values.
fn check_pages(file: &Opened, chunk: &ColumnChunkMetaData) -> Result<(), ParquetError> {
    let (mut at, length) = chunk.byte_range();
    let end = at.saturating_add(length);
    while at < end {
        let (header_bytes, page) = header(file, at, end)?;
        let compressed = u64::try_from(page.compressed_bytes).map_err(|_| damaged("a page has a negative size"))?;
        let most = compressed.saturating_mul(VALUES_PER_BYTE).saturating_add(VALUES_AT_LEAST);
        if !u64::try_from(page.dictionary_values).is_ok_and(|values| values <= most) {
            return Err(damaged("a dictionary has more values than its page has room for"));
        }
        at = at.saturating_add(header_bytes).saturating_add(compressed);
    }
    Ok(())
}

/// The numbers in the header of a page; 0 where the header has none.
#[derive(Default)]
struct Page {
    compressed_bytes: i64,
    dictionary_values: i64,
}

/// The header at a place before `end`, and its length.
fn header(file: &Opened, at: u64, end: u64) -> Result<(u64, Page), ParquetError> {
    let most = MAX_HEADER_BYTES.min(end - at);
    let mut length = HEADER_BYTES.min(most);
    loop {
        let bytes = file.get_bytes(at, length as usize)?;
        let mut page = Page::default();
        let mut thrift = Thrift::new(&bytes);
        let result = thrift.structure(0, MAX_DEPTH, &mut |field| {
            match field {
                Field { depth: 0, number: 3, value, .. } => page.compressed_bytes = *value,
                Field { depth: 1, parent: 7, number: 1, value, .. } => page.dictionary_values = *value,
                _ => {}
            }
            field.check_kind()
        });
        match result {
            Ok(()) => return Ok((thrift.at as u64, page)),
            Err(_) if length < most => length = length.saturating_mul(16).min(most),
            Err(error) => return Err(error),
        }
    }
}

/// A field of a struct.
#[derive(Debug, PartialEq)]
struct Field {
    /// The number of structs around its struct.
    depth: u32,
    /// The number of the field that is its struct.
    parent: i16,
    number: i16,
    kind: u8,
    /// Of an integer; else 0.
    value: i64,
}

const BOOLEANS: [u8; 2] = [1, 2];
const I32: u8 = 5;
/// Those of 16, 32 and 64 bits.
const INTEGERS: [u8; 3] = [4, 5, 6];
const STRUCT: u8 = 12;

impl Field {
    /// Checks that a field of a page's header has its kind. The library reads it as one of that kind whatever the file says, and then reads
    /// its bytes as other fields.
    fn check_kind(&self) -> Result<(), ParquetError> {
        let is_right = match (self.depth, self.parent, self.number) {
            (0, _, 1..=4) | (1, 5, 1..=4) | (1, 7, 1..=2) | (1, 8, 1..=6) => self.kind == I32,
            (0, _, 5..=8) => self.kind == STRUCT,
            (1, 7, 3) | (1, 8, 7) => BOOLEANS.contains(&self.kind),
            _ => true,
        };
        if is_right { Ok(()) } else { Err(damaged("a header has a field of another kind")) }
    }
}

/// A function that gets each field.
type Visit<'a> = &'a mut dyn FnMut(&Field) -> Result<(), ParquetError>;

/// A struct of Thrift's compact protocol.
struct Thrift<'a> {
    bytes: &'a [u8],
    at: usize,
}

impl<'a> Thrift<'a> {
    fn new(bytes: &'a [u8]) -> Self {
        Self { bytes, at: 0 }
    }

    /// Passes a struct, and hands each of its fields to `visit`, and those of the structs in it. `parent` is the field that is the struct.
    fn structure(&mut self, parent: i16, room: u32, visit: Visit<'_>) -> Result<(), ParquetError> {
        let room = room.checked_sub(1).ok_or_else(|| damaged("a header is nested too deeply"))?;
        let mut number = 0_i16;
        loop {
            let [byte] = self.take()?;
            let (step, kind) = (i16::from(byte >> 4), byte & 0xf);
            if kind == 0 {
                return Ok(());
            }
            number = if step == 0 { self.integer()? as i16 } else { number.wrapping_add(step) };
            let value = if INTEGERS.contains(&kind) { self.integer()? } else { 0 };
            visit(&Field { depth: MAX_DEPTH - 1 - room, parent, number, kind, value })?;
            if !INTEGERS.contains(&kind) && !BOOLEANS.contains(&kind) {
                self.value(kind, number, room, visit)?;
            }
        }
    }

    /// Passes a value: of a field, or an element.
    fn value(&mut self, kind: u8, number: i16, room: u32, visit: Visit<'_>) -> Result<(), ParquetError> {
        match kind {
            // The library passes a boolean element without a byte.
            1 | 2 => {}
            3 => self.skip(1)?,
            4..=6 => drop(self.integer()?),
            7 => self.skip(8)?,
            8 => {
                let length = self.varint()?;
                self.skip(length)?;
            }
            9 | 10 => {
                let [byte] = self.take()?;
                let count = if byte >> 4 == 15 { self.varint()? } else { u64::from(byte >> 4) };
                self.elements(count, &[byte & 0xf], number, room, visit)?;
            }
            11 => {
                let count = self.varint()?;
                if count > 0 {
                    let [kinds] = self.take()?;
                    self.elements(count, &[kinds >> 4, kinds & 0xf], number, room, visit)?;
                }
            }
            12 => self.structure(number, room, visit)?,
            13 => self.skip(16)?,
            _ => return Err(damaged("a header has a field of an unknown kind")),
        }
        Ok(())
    }

    /// Passes the elements of a list, a set or a map. Each takes at least a byte in a file that is sound.
    fn elements(
        &mut self,
        count: u64,
        kinds: &[u8],
        number: i16,
        room: u32,
        visit: Visit<'_>,
    ) -> Result<(), ParquetError> {
        if count > (self.bytes.len() - self.at) as u64 {
            return Err(damaged("a list in a header is longer than the header"));
        }
        let room = room.checked_sub(1).ok_or_else(|| damaged("a header is nested too deeply"))?;
        for _ in 0..count {
            kinds.iter().try_for_each(|kind| self.value(*kind, number, room, visit))?;
        }
        Ok(())
    }

    fn take<const N: usize>(&mut self) -> Result<[u8; N], ParquetError> {
        let taken = self.bytes[self.at..].first_chunk().copied().ok_or_else(|| damaged("a header is cut"))?;
        self.at += N;
        Ok(taken)
    }

    fn skip(&mut self, count: u64) -> Result<(), ParquetError> {
        let left = (self.bytes.len() - self.at) as u64;
        if count > left {
            return Err(damaged("a header is cut"));
        }
        self.at += count as usize;
        Ok(())
    }

    fn varint(&mut self) -> Result<u64, ParquetError> {
        let mut value = 0_u64;
        for shift in (0..64).step_by(7) {
            let [byte] = self.take()?;
            value |= u64::from(byte & 0x7f) << shift;
            if byte < 0x80 {
                return Ok(value);
            }
        }
        Err(damaged("a number in a header is too long"))
    }

    fn integer(&mut self) -> Result<i64, ParquetError> {
        let value = self.varint()?;
        Ok((value >> 1).cast_signed() ^ -(value & 1).cast_signed())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn passed(bytes: &[u8]) -> Result<(usize, Vec<Field>), String> {
        let (mut thrift, mut found) = (Thrift::new(bytes), Vec::new());
        let result = thrift.structure(0, MAX_DEPTH, &mut |field| {
            found.push(Field { ..*field });
            field.check_kind()
        });
        result.map(|()| (thrift.at, found)).map_err(|error| error.to_string())
    }

    /// The header of a dictionary: kind 2, 30 bytes, 43 compressed, 3 values in the encoding 0, sorted.
    const HEADER: [u8; 14] = [0x15, 0x04, 0x15, 0x3c, 0x15, 0x56, 0x4c, 0x15, 0x06, 0x15, 0x00, 0x11, 0x00, 0x00];

    /// Invariant (input): The memory and time of a Parquet file do not depend on what its headers claim.
    #[test]
    fn a_header_is_passed_to_its_end() {
        let (length, found) = passed(&[&HEADER[..], b"rest"].concat()).unwrap();
        assert_eq!(length, HEADER.len());
        let found: Vec<_> = found.iter().map(|field| (field.depth, field.parent, field.number, field.value)).collect();
        let expected =
            [(0, 0, 1, 2), (0, 0, 2, 30), (0, 0, 3, 43), (0, 0, 7, 0), (1, 7, 1, 3), (1, 7, 2, 0), (1, 7, 3, 0)];
        assert_eq!(found, expected);
        assert!((0..HEADER.len()).all(|length| passed(&HEADER[..length]).is_err()), "a header that is cut is an error");
    }

    /// Invariant (input): The memory and time of a Parquet file do not depend on what its headers claim.
    #[test]
    fn a_field_of_another_kind_is_an_error() {
        for at in [0, 2, 4, 6, 7, 9, 11] {
            let mut header = HEADER;
            header[at] = header[at] & 0xf0 | 0x6;
            assert!(passed(&header).unwrap_err().ends_with("another kind"), "{at}");
        }
    }

    /// Invariant (input): The memory and time of a Parquet file do not depend on what its headers claim.
    #[test]
    fn no_list_is_longer_than_its_header() {
        // 2^31 booleans, which take no bytes; the same as keys and values of a map. The field 9 is one that Parquet may add.
        let longer =
            Err("Parquet error: the file is damaged: a list in a header is longer than the header".to_string());
        assert_eq!(passed(&[0x99, 0xf1, 0x80, 0x80, 0x80, 0x80, 0x08, 0x00]), longer);
        assert_eq!(passed(&[0x9b, 0x80, 0x80, 0x80, 0x80, 0x08, 0x11, 0x00]), longer);
        assert_eq!(passed(&[0x99, 0x25, 0x02, 0x04, 0x00]).map(|(length, _)| length), Ok(5));
    }

    #[test]
    fn depth_is_bounded() {
        let deep = passed(&[0x9c; 1000]);
        assert!(deep.as_ref().is_err_and(|why| why.ends_with("nested too deeply")), "{deep:?}");
        let lists = passed(&[0x99; 1000]);
        assert!(lists.is_err(), "{lists:?}");
    }
}
