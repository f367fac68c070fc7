//! CUPTI's records, read from bytes.
//!
//! Nothing here trusts the bytes: a record that is too short is malformed, a kind that is not known is unknown, and
//! neither is looked at further. Addresses of strings are numbers here; the `ffi` module alone follows them.

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
#[expect(missing_docs, reason = "each is the type that it holds")]
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

/// What some bytes are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Parsed {
    /// A record.
    Record(Record),
    /// A kind that is not read.
    Unknown {
        /// `CUpti_ActivityKind`.
        kind: u32,
    },
    /// Too short for its kind.
    Malformed {
        /// `CUpti_ActivityKind`; 0 if not even that was there.
        kind: u32,
    },
}

/// The layout of a kind.
pub fn layout_of(kind: u32) -> Option<&'static Layout> {
    LAYOUTS.iter().find(|layout| layout.kinds.contains(&kind)).copied()
}

/// Reads the record at the start of `bytes`, which may go on after its end. Fields that came later than the oldest
/// layout are read only if `version` has them and `bytes` reach that far.
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
    /// With a record's end.
    Clean,
    /// Within a record.
    Truncated,
    /// At a record whose size is not known; `rest_bytes` from its start on were not read.
    UnknownSize {
        /// Bytes not read.
        rest_bytes: usize,
    },
}

/// The records of a buffer, stepped through by the sizes of `layout` alone. CUPTI's own iterator knows
/// better and is used where it works; this is for where it does not, and to check the one against the other.
#[derive(Clone, Debug)]
pub struct Walk<'b> {
    bytes: &'b [u8],
    version: Version,
    at: usize,
    end: End,
}

impl<'b> Walk<'b> {
    /// From the start of `bytes`.
    pub fn new(bytes: &'b [u8], version: Version) -> Self {
        Self { bytes, version, at: 0, end: End::Clean }
    }

    /// How it ended, once it has.
    pub fn end(&self) -> End {
        self.end
    }
}

impl<'b> Iterator for Walk<'b> {
    /// Where the record begins, and its bytes.
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

/// The records that begin at `starts`, each up to the next. A start that does not rise, or lies outside, ends it.
pub fn split<'b>(bytes: &'b [u8], starts: &'b [usize]) -> impl Iterator<Item = &'b [u8]> {
    let ends = starts.iter().skip(1).copied().chain([bytes.len()]);
    starts.iter().zip(ends).map_while(|(start, end)| bytes.get(*start..end))
}

/// For fuzzing: reads `bytes` as records of every version in every way there is, and checks what must hold.
///
/// # Panics
/// If it does not.
pub fn check_any_bytes(bytes: &[u8]) {
    for version in [22, 23, 24, 26, 28, 130_001, 130_101, 130_202, 130_301, 130_401, 130_500, 140_000] {
        let version = Version(version);
        let mut walk = Walk::new(bytes, version);
        let (mut read, mut starts) = (0, Vec::new());
        for (at, record) in walk.by_ref() {
            assert_eq!(at, read, "records lie side by side");
            read += record.len();
            starts.push(at);
            assert!(matches!(parse(record, version), Parsed::Record(_)), "a whole record of a known kind is read");
        }
        match walk.end() {
            End::Clean => assert_eq!(read, bytes.len()),
            End::Truncated => assert!(read < bytes.len()),
            End::UnknownSize { rest_bytes } => assert_eq!(read + rest_bytes, bytes.len()),
        }
        if walk.end() == End::Clean {
            assert_eq!(split(bytes, &starts).count(), starts.len());
        }
        for at in 0..bytes.len() {
            // From anywhere and cut anywhere: what is returned does not matter, only that it returns.
            let _ = parse(&bytes[at..], version);
            let _ = parse(&bytes[..at], version);
        }
    }
}
