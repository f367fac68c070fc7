//! Reads CUPTI's records from bytes.
//!
//! The bytes are not trusted: a record that is too short is malformed, a record of another kind is unknown, and neither is
//! read further. Addresses of strings are plain numbers here; only the `ffi` module follows them.

use super::layout::{self, LAYOUTS, Layout, Number, Version};
pub use super::layout::{
    Api, Context, Device, ExternalCorrelation, Kernel, Marker, MarkerData, Memcpy, Memory, Memset, Name, Overhead,
    PeerMemcpy, Stream, Synchronization,
};

/// `CUPTI_ACTIVITY_KIND_DRIVER`.
pub(crate) const KIND_DRIVER: u32 = 4;
/// `CUPTI_ACTIVITY_KIND_RUNTIME`.
pub(crate) const KIND_RUNTIME: u32 = 5;

/// A record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[expect(missing_docs, reason = "each variant is named like its type")]
pub enum Record {
    Kernel(Kernel),
    Memcpy(Memcpy),
    PeerMemcpy(PeerMemcpy),
    Memset(Memset),
    Api(Api),
    ExternalCorrelation(ExternalCorrelation),
    Overhead(Overhead),
    Synchronization(Synchronization),
    Marker(Marker),
    MarkerData(MarkerData),
    Memory(Memory),
    Device(Device),
    Context(Context),
    Stream(Stream),
    Name(Name),
}

/// The result of reading a record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Parsed {
    /// A record.
    Record(Record),
    /// A record of another kind.
    Unknown {
        /// `CUpti_ActivityKind`.
        kind: u32,
    },
    /// A record that is too short for its kind.
    Malformed {
        /// `CUpti_ActivityKind`; 0 if the bytes end before it.
        kind: u32,
    },
}

/// The layout of a kind.
pub fn layout_of(kind: u32) -> Option<&'static Layout> {
    LAYOUTS.iter().find(|layout| layout.kinds.contains(&kind)).copied()
}

/// Reads the record at the start of `bytes`, which may continue after its end. Fields that the oldest layout lacks are
/// read only if `version` has them and `bytes` are long enough.
pub fn parse(bytes: &[u8], version: Version) -> Parsed {
    let Some(kind) = u32::read(bytes, 0) else { return Parsed::Malformed { kind: 0 } };
    let Some(layout) = layout_of(kind) else { return Parsed::Unknown { kind } };
    if bytes.len() < layout.prefix_bytes() {
        return Parsed::Malformed { kind };
    }
    let record = match kind {
        1 => layout::Memcpy::read(bytes, version).map(Record::Memcpy),
        2 => layout::Memset::read(bytes, version).map(Record::Memset),
        3 | 10 => layout::Kernel::read(bytes, version).map(Record::Kernel),
        KIND_DRIVER | KIND_RUNTIME => layout::Api::read(bytes, version).map(Record::Api),
        8 => layout::Device::read(bytes, version).map(Record::Device),
        9 => layout::Context::read(bytes, version).map(Record::Context),
        11 => layout::Name::read(bytes, version).map(Record::Name),
        12 => layout::Marker::read(bytes, version).map(Record::Marker),
        13 => layout::MarkerData::read(bytes, version).map(Record::MarkerData),
        17 => layout::Overhead::read(bytes, version).map(Record::Overhead),
        22 => layout::PeerMemcpy::read(bytes, version).map(Record::PeerMemcpy),
        37 => layout::Stream::read(bytes, version).map(Record::Stream),
        38 => layout::Synchronization::read(bytes, version).map(Record::Synchronization),
        39 => layout::ExternalCorrelation::read(bytes, version).map(Record::ExternalCorrelation),
        49 => layout::Memory::read(bytes, version).map(Record::Memory),
        _ => return Parsed::Unknown { kind },
    };
    record.map_or(Parsed::Malformed { kind }, Parsed::Record)
}

/// How a buffer ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    /// At the end of a record.
    Clean,
    /// Within a record.
    Truncated,
    /// At a record of unknown size; the bytes from its start on were not read.
    UnknownSize {
        /// Number of bytes that were not read.
        rest_bytes: usize,
    },
}

/// Iterates over the records of a buffer by the sizes of `layout`. CUPTI's own iterator is preferred; this one serves if
/// CUPTI refuses, and to check the one against the other.
#[derive(Clone, Debug)]
pub struct Walk<'b> {
    bytes: &'b [u8],
    version: Version,
    at: usize,
    end: End,
}

impl<'b> Walk<'b> {
    /// Begins at the start of `bytes`.
    pub fn new(bytes: &'b [u8], version: Version) -> Self {
        Self { bytes, version, at: 0, end: End::Clean }
    }

    /// How the buffer ended, after the iteration.
    pub fn end(&self) -> End {
        self.end
    }
}

impl<'b> Iterator for Walk<'b> {
    /// Offset of the record, and its bytes.
    type Item = (usize, &'b [u8]);

    fn next(&mut self) -> Option<Self::Item> {
        let rest = self.bytes.get(self.at..).filter(|rest| !rest.is_empty() && self.end == End::Clean)?;
        let Some(kind) = u32::read(rest, 0) else {
            self.end = End::Truncated;
            return None;
        };
        let Some(size) = layout_of(kind).and_then(|layout| layout.size(self.version)) else {
            self.end = End::UnknownSize { rest_bytes: rest.len() };
            return None;
        };
        let Some(record) = rest.get(..size.bytes) else {
            self.end = End::Truncated;
            return None;
        };
        let at = self.at;
        self.at += size.bytes;
        Some((at, record))
    }
}

/// The records that begin at `starts`, each up to the next start. A start that does not increase, or that lies outside,
/// ends the iteration.
pub fn split<'b>(bytes: &'b [u8], starts: &'b [usize]) -> impl Iterator<Item = &'b [u8]> {
    let ends = starts.iter().skip(1).copied().chain([bytes.len()]);
    starts.iter().zip(ends).map_while(|(start, end)| bytes.get(*start..end))
}
