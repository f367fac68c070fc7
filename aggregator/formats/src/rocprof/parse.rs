//! The JSON of rocprofv3: what its processes state of themselves, and the records of one of them.
//!
//! ```text
//!  {"rocprofiler-sdk-tool": [                          one item for each process
//!    {"metadata": {"node": {"hostname"}, "pid"},
//!     "agents": [{"id": {"handle"}, "type", "node_id"}],
//!     "strings": {"buffer_records": [{"kind", "operations": []}], "marker_api": [{"key", "value"}]},
//!     "kernel_symbols": [{"kernel_id", "formatted_kernel_name"}],
//!     "buffer_records": {"kernel_dispatch": [], "memory_copy": [], "hip_api": [], "rccl_api": [], "marker_api": []}}]}
//! ```
//!
//! Source: the output schema in ROCm/rocprofiler-sdk source/docs/how-to/using-rocprofv3.rst. Members may come in any order.

use std::collections::BTreeMap;
use std::ops::Range;

use kineto::json::{Cursor, Fault, FaultKind, array, integer, object, take, text};
use model::Room;
use rustc_hash::FxHashMap;

/// Processes of one file.
const MAX_PROCESSES: usize = 1 << 12;
/// The most memory of an item of a map by numbers or names, without its text. The map may have doubled.
const NAMED_BYTES: usize = 4 * size_of::<(i64, String)>();
/// The member that makes a file one of rocprofv3.
const TOOL: &[u8] = b"rocprofiler-sdk-tool";

/// A table of records.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Table {
    Kernels,
    Copies,
    /// Calls of HIP.
    Calls,
    /// Calls of RCCL.
    Collectives,
    Markers,
}

impl Table {
    fn of(name: &[u8]) -> Option<Self> {
        Some(match name {
            b"kernel_dispatch" => Self::Kernels,
            b"memory_copy" => Self::Copies,
            b"hip_api" => Self::Calls,
            b"rccl_api" => Self::Collectives,
            b"marker_api" => Self::Markers,
            _ => return None,
        })
    }
}

/// A record. Members that it lacks are `None`.
#[derive(Clone, Copy, Debug)]
pub(super) struct Record {
    pub(super) table: Table,
    pub(super) kind: Option<i64>,
    pub(super) operation: Option<i64>,
    pub(super) thread: Option<i64>,
    pub(super) correlation: Option<i64>,
    pub(super) start_ns: Option<i64>,
    pub(super) end_ns: Option<i64>,
    /// Of a kernel: its agent, its stream or else its queue, its number and its sizes in work-items.
    pub(super) agent: Option<i64>,
    pub(super) queue: Option<i64>,
    pub(super) stream: Option<i64>,
    pub(super) kernel: Option<i64>,
    pub(super) group: [Option<i64>; 3],
    pub(super) grid: [Option<i64>; 3],
    pub(super) shared_bytes: Option<i64>,
    /// Of a copy.
    pub(super) source: Option<i64>,
    pub(super) bytes: Option<i64>,
}

impl Record {
    fn of(table: Table) -> Self {
        let none = None;
        Self {
            table,
            kind: none,
            operation: none,
            thread: none,
            correlation: none,
            start_ns: none,
            end_ns: none,
            agent: none,
            queue: none,
            stream: none,
            kernel: none,
            group: [None; 3],
            grid: [None; 3],
            shared_bytes: none,
            source: none,
            bytes: none,
        }
    }

    fn read(table: Table, cursor: &mut Cursor<'_>) -> Result<Self, Fault> {
        let mut record = Self::of(table);
        object(cursor, |key, cursor| record.member(key, cursor))?;
        Ok(record)
    }

    fn member(&mut self, key: &[u8], cursor: &mut Cursor<'_>) -> Result<(), Fault> {
        match key {
            b"kind" => self.kind = integer(cursor)?,
            b"operation" => self.operation = integer(cursor)?,
            b"thread_id" => self.thread = integer(cursor)?,
            b"start_timestamp" => self.start_ns = integer(cursor)?,
            b"end_timestamp" => self.end_ns = integer(cursor)?,
            b"bytes" => self.bytes = integer(cursor)?,
            b"correlation_id" => self.correlation = member_of(cursor, b"internal")?,
            b"dst_agent_id" => self.agent = member_of(cursor, b"handle")?,
            b"src_agent_id" => self.source = member_of(cursor, b"handle")?,
            b"stream_id" => self.stream = member_of(cursor, b"handle")?,
            b"dispatch_info" => return object(cursor, |key, cursor| self.dispatch(key, cursor)),
            _ => return cursor.skip(),
        }
        Ok(())
    }

    fn dispatch(&mut self, key: &[u8], cursor: &mut Cursor<'_>) -> Result<(), Fault> {
        match key {
            b"agent_id" => self.agent = member_of(cursor, b"handle")?,
            b"queue_id" => self.queue = member_of(cursor, b"handle")?,
            b"kernel_id" => self.kernel = integer(cursor)?,
            b"group_segment_size" => self.shared_bytes = integer(cursor)?,
            b"workgroup_size" => self.group = sides(cursor)?,
            b"grid_size" => self.grid = sides(cursor)?,
            _ => return cursor.skip(),
        }
        Ok(())
    }
}

/// A device or a CPU of a host.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Agent {
    pub(super) handle: i64,
    pub(super) is_gpu: bool,
    pub(super) node: i64,
}

/// What a process states, and its records if they were asked for.
#[derive(Debug, Default)]
pub(super) struct Process {
    pub(super) pid: i64,
    pub(super) host: String,
    pub(super) agents: Vec<Agent>,
    pub(super) kernels: FxHashMap<i64, String>,
    /// Names of operations, by kind of record.
    pub(super) operations: Vec<Vec<String>>,
    /// Texts of markers, by correlation id.
    pub(super) markers: FxHashMap<i64, String>,
    pub(super) records: Vec<Record>,
    /// Records of kernels and copies.
    pub(super) device_records: i64,
    /// Records of other tables, by their names.
    pub(super) others: BTreeMap<String, i64>,
    pub(super) too_many: i64,
    /// The place of its text in the file.
    pub(super) text: Range<usize>,
}

/// A file.
#[derive(Debug, Default)]
pub(super) struct Parsed {
    pub(super) processes: Vec<Process>,
    /// Processes beyond [`MAX_PROCESSES`].
    pub(super) too_many: i64,
    /// The byte at which reading stopped, and why.
    pub(super) end: Option<String>,
    /// It stopped there because what the processes state has no room.
    pub(super) is_full: bool,
}

/// Whether the records of a process are kept, and how many at most.
#[derive(Clone, Copy, Debug)]
struct Keep {
    is_wanted: bool,
    max_records: usize,
}

impl Keep {
    /// Records are only counted.
    const NONE: Self = Self { is_wanted: false, max_records: 0 };
}

/// Reads what the processes of a file state, which is taken of `room`. Their records are counted.
pub(super) fn parse(bytes: &[u8], room: &mut Room) -> Parsed {
    let mut parsed = Parsed::default();
    let mut cursor = Cursor::new(bytes, 0);
    cursor.space();
    let read = object(&mut cursor, |key, cursor| {
        if key != TOOL {
            return cursor.skip();
        }
        array(cursor, |cursor| {
            let at = parsed.processes.len();
            if at >= MAX_PROCESSES {
                parsed.too_many += 1;
                return cursor.skip();
            }
            // After damage, the rest of the file is the last process's.
            parsed.processes.push(Process { text: cursor.pos()..bytes.len(), ..Process::default() });
            let process = &mut parsed.processes[at];
            object(cursor, |key, cursor| process.member(key, cursor, Keep::NONE, room))?;
            process.text.end = cursor.pos();
            Ok(())
        })
    });
    if let Err(fault) = read {
        parsed.is_full = fault.what == FaultKind::Full;
        parsed.end =
            Some(if parsed.is_full { format!("byte {}: {}", fault.at, room.full()) } else { fault.to_string() });
    }
    parsed
}

/// Reads one process, whose text begins at a byte, with at most `max_records` of its records. If what it states finds no room, the
/// reason is returned, too.
pub(super) fn parse_one(bytes: &[u8], from: usize, max_records: usize, room: &mut Room) -> (Process, Option<String>) {
    let mut process = Process::default();
    let keep = Keep { is_wanted: true, max_records };
    let read = object(&mut Cursor::new(bytes, from), |key, cursor| process.member(key, cursor, keep, room));
    // Other damage was found when the file was opened.
    let full = read.err().filter(|fault| fault.what == FaultKind::Full);
    let why = full.map(|fault| format!("byte {}: {}", fault.at, room.full()));
    (process, why)
}

impl Process {
    fn member(&mut self, key: &[u8], cursor: &mut Cursor<'_>, keep: Keep, room: &mut Room) -> Result<(), Fault> {
        match key {
            b"metadata" => object(cursor, |key, cursor| match key {
                b"pid" => integer(cursor).map(|pid| self.pid = pid.unwrap_or_default()),
                b"node" => object(cursor, |key, cursor| match key {
                    b"hostname" => kept(cursor, room, 0).map(|host| self.host = host),
                    _ => cursor.skip(),
                }),
                _ => cursor.skip(),
            }),
            b"agents" => array(cursor, |cursor| self.agent(cursor, room)),
            b"kernel_symbols" => array(cursor, |cursor| self.kernel(cursor, room)),
            b"strings" => object(cursor, |key, cursor| self.strings(key, cursor, room)),
            b"buffer_records" => object(cursor, |key, cursor| self.table(key, cursor, keep, room)),
            _ => cursor.skip(),
        }
    }

    fn agent(&mut self, cursor: &mut Cursor<'_>, room: &mut Room) -> Result<(), Fault> {
        take(cursor, room, 2 * size_of::<Agent>())?;
        let mut agent = Agent::default();
        object(cursor, |key, cursor| {
            match key {
                b"id" => agent.handle = member_of(cursor, b"handle")?.unwrap_or_default(),
                // 1 is a CPU, 2 a GPU.
                b"type" => agent.is_gpu = integer(cursor)? == Some(2),
                b"node_id" => agent.node = integer(cursor)?.unwrap_or_default(),
                _ => return cursor.skip(),
            }
            Ok(())
        })?;
        self.agents.push(agent);
        Ok(())
    }

    fn kernel(&mut self, cursor: &mut Cursor<'_>, room: &mut Room) -> Result<(), Fault> {
        let (mut id, mut name, mut formatted) = (None, String::new(), String::new());
        object(cursor, |key, cursor| {
            match key {
                b"kernel_id" => id = integer(cursor)?,
                b"kernel_name" => name = kept(cursor, room, NAMED_BYTES)?,
                b"formatted_kernel_name" => formatted = kept(cursor, room, NAMED_BYTES)?,
                _ => return cursor.skip(),
            }
            Ok(())
        })?;
        let name = if formatted.is_empty() { name } else { formatted };
        self.kernels.extend(id.map(|id| (id, name)));
        Ok(())
    }

    fn strings(&mut self, key: &[u8], cursor: &mut Cursor<'_>, room: &mut Room) -> Result<(), Fault> {
        match key {
            b"buffer_records" => array(cursor, |cursor| {
                let mut operations = Vec::new();
                take(cursor, room, 4 * size_of::<Vec<String>>())?;
                object(cursor, |key, cursor| match key {
                    b"operations" => array(cursor, |cursor| {
                        kept(cursor, room, 2 * size_of::<String>()).map(|name| operations.push(name))
                    }),
                    _ => cursor.skip(),
                })?;
                self.operations.push(operations);
                Ok(())
            }),
            b"marker_api" => array(cursor, |cursor| {
                let (mut id, mut value) = (None, String::new());
                object(cursor, |key, cursor| {
                    match key {
                        b"key" => id = integer(cursor)?,
                        b"value" => value = kept(cursor, room, NAMED_BYTES)?,
                        _ => return cursor.skip(),
                    }
                    Ok(())
                })?;
                self.markers.extend(id.map(|id| (id, value)));
                Ok(())
            }),
            _ => cursor.skip(),
        }
    }

    fn table(&mut self, key: &[u8], cursor: &mut Cursor<'_>, keep: Keep, room: &mut Room) -> Result<(), Fault> {
        let table = Table::of(key);
        let is_of_device = matches!(table, Some(Table::Kernels | Table::Copies));
        if table.is_none() {
            take(cursor, room, NAMED_BYTES + key.len())?;
        }
        array(cursor, |cursor| {
            self.device_records += i64::from(is_of_device);
            match table {
                Some(table) if keep.is_wanted && self.records.len() < keep.max_records => {
                    self.records.push(Record::read(table, cursor)?);
                }
                Some(_) => {
                    self.too_many += i64::from(keep.is_wanted);
                    cursor.skip()?;
                }
                None => {
                    *self.others.entry(String::from_utf8_lossy(key).into_owned()).or_default() += 1;
                    cursor.skip()?;
                }
            }
            Ok(())
        })
    }
}

/// A text that is kept, at a place of so many bytes.
fn kept(cursor: &mut Cursor<'_>, room: &mut Room, place_bytes: usize) -> Result<String, Fault> {
    let text = text(cursor)?;
    take(cursor, room, place_bytes + text.len())?;
    Ok(text)
}

/// The number of one member of an object.
fn member_of(cursor: &mut Cursor<'_>, wanted: &[u8]) -> Result<Option<i64>, Fault> {
    let mut found = None;
    object(cursor, |key, cursor| {
        if key == wanted {
            found = integer(cursor)?;
            return Ok(());
        }
        cursor.skip()
    })?;
    Ok(found)
}

fn sides(cursor: &mut Cursor<'_>) -> Result<[Option<i64>; 3], Fault> {
    let mut sides = [None; 3];
    object(cursor, |key, cursor| {
        let side = match key {
            b"x" => &mut sides[0],
            b"y" => &mut sides[1],
            b"z" => &mut sides[2],
            _ => return cursor.skip(),
        };
        *side = integer(cursor)?;
        Ok(())
    })?;
    Ok(sides)
}
