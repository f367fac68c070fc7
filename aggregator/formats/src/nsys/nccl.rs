//! Calls of NCCL, which are ranges of NVTX, and what their payloads say.
//!
//! ```text
//!  binaryData   domain u32 | 0 u32 | schema u32 | 0 u32 | bytes of the payload u64 | of all u64 | payload
//! ```
//!
//! `NVTX_PAYLOAD_SCHEMA_ENTRIES` names the fields of a schema, with their types and offsets.

use rustc_hash::FxHashMap;
use trace::OmissionRow;

use crate::nsys::database::Database;
use crate::nsys::wanted::Wanted;

/// Bytes before the payload.
const HEADER_BYTES: usize = 32;
/// Fields of all schemas.
const MAX_FIELDS: usize = 1 << 16;

/// The arguments of a call of NCCL, as far as its payload holds them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Payload {
    /// Hash of the communicator, equal on all its ranks.
    pub(super) comm: Option<u64>,
    /// Size of the caller's part, in bytes.
    pub(super) bytes: Option<i64>,
    /// The other side of a send or receive, by its number in the communicator.
    pub(super) peer: Option<i32>,
    pub(super) root: Option<i32>,
    /// Ranks in the communicator, and the caller's number in it: of a call that makes one.
    pub(super) ranks: Option<i32>,
    pub(super) rank: Option<i32>,
}

/// A call of NCCL.
#[derive(Clone, Copy, Debug)]
pub(super) struct Call {
    /// Its row.
    pub(super) id: i64,
    pub(super) kind: CallKind,
    pub(super) payload: Payload,
}

/// The kinds of calls of NCCL.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum CallKind {
    /// An operation, in the words of `collectives.op`.
    Operation(&'static str),
    GroupStart,
    GroupEnd,
    /// Makes or describes a communicator.
    Other,
}

impl CallKind {
    /// The kind of a call of NCCL, by the name of its range. `None` if the range is no call of NCCL.
    pub(super) fn of(name: &str) -> Option<Self> {
        let call = name.strip_prefix("nccl")?;
        Some(match call {
            "GroupStart" => Self::GroupStart,
            "GroupEnd" => Self::GroupEnd,
            _ if call.starts_with("Comm") => Self::Other,
            _ => kineto::operation(name).map_or(Self::Other, Self::Operation),
        })
    }
}

#[derive(Clone, Copy, Debug)]
enum Field {
    Comm,
    Bytes,
    Peer,
    Root,
    Ranks,
    Rank,
}

impl Field {
    fn of(name: &str) -> Option<Self> {
        Some(match name.to_ascii_lowercase().as_str() {
            "nccl communicator id" => Self::Comm,
            "message size [bytes]" => Self::Bytes,
            "peer rank" => Self::Peer,
            "root" => Self::Root,
            "no. of ranks" => Self::Ranks,
            "rank" => Self::Rank,
            _ => return None,
        })
    }
}

/// The bytes of a type of NVTX; `None` for those that no known field has.
fn width(kind: i64) -> Option<usize> {
    match kind {
        // `int`, `unsigned`, and those of 32 bits.
        5 | 6 | 15 | 16 => Some(4),
        // `long`, `long long`, those of 64 bits, and `size_t`.
        7..=10 | 17 | 18 | 22 => Some(8),
        _ => None,
    }
}

/// A field, its offset in the payload, and its bytes.
type Place = (Field, usize, usize);

/// The schemas of payloads, by domain and id.
#[derive(Debug, Default)]
pub(super) struct Schemas(FxHashMap<(i64, i64), Vec<Place>>);

impl Schemas {
    pub(super) fn read(database: &Database, problems: &mut Vec<OmissionRow>) -> Self {
        let mut schemas = Self::default();
        let table = "NVTX_PAYLOAD_SCHEMA_ENTRIES";
        let columns = ["domainId", "schemaId", "name", "type", "offset"];
        let (mut fields, mut beyond) = (0, 0);
        let why = database.rows(table, &columns, &["schemaId", "name", "type"], Wanted::All, |cells| {
            let field = cells.text(2).and_then(|name| Field::of(&name));
            let bytes = cells.integer(3).and_then(width);
            // The first field's offset is null.
            let offset = usize::try_from(cells.integer(4).unwrap_or(0));
            if let (Some(id), Some(field), Some(bytes), Ok(offset)) = (cells.integer(1), field, bytes, offset) {
                if fields == MAX_FIELDS {
                    beyond += 1;
                    return;
                }
                fields += 1;
                schemas.0.entry((cells.integer(0).unwrap_or(0), id)).or_default().push((field, offset, bytes));
            }
        });
        problems.extend(why.map(|why| OmissionRow::lost(format!("rest of table {table}"), why)));
        if beyond > 0 {
            let why = format!("only the first {MAX_FIELDS} are used");
            problems.push(OmissionRow::left_out(format!("rows of {table}"), why).amount(beyond));
        }
        schemas
    }

    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Reads a payload; `None` if its schema is unknown or it is too short.
    pub(super) fn decode(&self, bytes: &[u8]) -> Option<Payload> {
        let number = |at: usize, width: usize| -> Option<u64> {
            let bytes = bytes.get(at..at.checked_add(width)?)?;
            Some(bytes.iter().rev().fold(0, |number, byte| number << 8 | u64::from(*byte)))
        };
        let id = |at: usize| number(at, 4).and_then(|id| i64::try_from(id).ok());
        let places = self.0.get(&(id(0)?, id(8)?))?;
        let mut payload = Payload::default();
        for (field, offset, width) in places {
            let value = number(HEADER_BYTES.checked_add(*offset)?, *width)?;
            let small = i32::try_from(value).ok();
            match field {
                Field::Comm => payload.comm = Some(value),
                Field::Bytes => payload.bytes = i64::try_from(value).ok(),
                Field::Peer => payload.peer = small,
                Field::Root => payload.root = small,
                Field::Ranks => payload.ranks = small.filter(|ranks| *ranks > 0),
                Field::Rank => payload.rank = small,
            }
        }
        Some(payload)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn calls_are_told_apart_by_their_names() {
        assert_eq!(CallKind::of("ncclAllReduce"), Some(CallKind::Operation("allreduce")));
        assert_eq!(CallKind::of("ncclGroupEnd"), Some(CallKind::GroupEnd));
        assert_eq!(CallKind::of("ncclCommInitRank"), Some(CallKind::Other));
        assert_eq!(CallKind::of("aten::mm"), None);
    }
}
