//! Snapshots of the caching allocator of torch's devices (`torch.cuda.memory._dump_snapshot`) as a source of ranks: one
//! pickle for each rank.
//!
//! A snapshot has the segments with their blocks at its moment, and for each device the last allocations and releases
//! before it, if `_record_memory_history` was called. The memory before each of these follows backwards from the
//! segments. The history has the sizes that were requested, but torch's `memory_allocated` counts whole blocks: the
//! size of a block that is in use at the end is known, and of a released one it is at least the requested size rounded
//! up to 512 bytes (c10/cuda/CUDACachingAllocator.cpp: `round_size`, `record_trace`).

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use kineto::pickle::{Id, Pickle};
use kineto::{MemoryShare, Room};
use rustc_hash::FxHashMap;
use trace::place;
use trace::{MemoryRow, OmissionRow, Text};

use crate::memory::share;
use model::Error;
use model::source::{RankFile, Source, SourceInfo};
use model::{MAX_RANKS, RankData};

/// Blocks have a multiple of this size (`kMinBlockSize`).
const BLOCK_BYTES: i64 = 512;
/// Entries and blocks of one snapshot.
const MAX_ROWS: usize = 1 << 25;
/// Fewest bytes of an entry or block in a pickle. A pickle may refer to one of them many times, so its size bounds them.
const MIN_ROW_BYTES: usize = 8;
/// The most memory of an entry or block: a change, a row, and an item of the maps by address. Their lists may have doubled.
const ROW_BYTES: usize = 2 * (size_of::<Change>() + size_of::<MemoryRow>() + 2 * size_of::<(i64, Held)>());
/// Innermost frames of a stack that are kept.
const FRAMES: usize = 24;
/// Longest text of a frame, in characters.
const MAX_FRAME_CHARS: usize = 300;
/// Bytes of a frame's path that are searched for the name of torch: PATH_MAX of Linux.
const MAX_PATH_BYTES: usize = 4096;
/// The largest pickle that is read.
const MAX_BYTES: u64 = 4 << 30;

/// Whether a file is a pickle, by its first bytes: the instruction `PROTO` and a protocol. What is no regular file
/// is none.
///
/// # Errors
/// [`Error::Io`]: whether it is one is unknown.
pub fn is_pickle(path: &Path) -> Result<bool, Error> {
    let head = place::first_bytes(path, 2).map_err(|source| Error::Io { path: path.into(), source })?;
    Ok(matches!(head[..], [0x80, 2..=5]))
}

/// The snapshots of the ranks of one job.
#[derive(Clone, Debug)]
pub struct SnapshotSource {
    path: PathBuf,
    files: BTreeMap<i32, PathBuf>,
    omissions: Vec<OmissionRow>,
    memory: MemoryShare,
}

impl SnapshotSource {
    /// As [`open_within`](Self::open_within), with the default memory.
    ///
    /// # Errors
    /// As [`open_within`](Self::open_within).
    pub fn open(paths: &[PathBuf]) -> Result<Self, Error> {
        Self::open_within(paths, None)
    }

    /// Takes one file for each rank. The rank is read from the names of the file and its directories; a single file
    /// without a rank in its name is rank 0. What is read of the files that are open at a time may take `max_memory_bytes`; `None`: three
    /// quarters of the machine's.
    ///
    /// # Errors
    /// [`Error::NoInput`] if several files are of one rank, or of several files one has no rank in its name.
    pub fn open_within(paths: &[PathBuf], max_memory_bytes: Option<u64>) -> Result<Self, Error> {
        let mut files: BTreeMap<i32, PathBuf> = BTreeMap::new();
        for path in paths {
            let rank = match kineto::rank_of_name(&path.to_string_lossy()) {
                Some(rank) if rank < MAX_RANKS => rank,
                _ if paths.len() == 1 => 0,
                _ => {
                    let why = "its name has no rank; name the files as in rank3.pickle, or give one of them";
                    return Err(Error::NoInput { path: path.clone(), why: why.into() });
                }
            };
            if let Some(other) = files.get(&rank) {
                let why = format!("it is of rank {rank}, and so is {}; give one of them", other.display());
                return Err(Error::NoInput { path: path.clone(), why });
            }
            files.insert(rank, path.clone());
        }
        let memory = share(max_memory_bytes, files.len());
        Ok(Self { path: paths.first().cloned().unwrap_or_default(), files, omissions: Vec::new(), memory })
    }
}

impl Source for SnapshotSource {
    fn info(&self) -> SourceInfo {
        SourceInfo {
            path: self.path.clone(),
            run_id: String::new(),
            tool: "torch.cuda.memory._dump_snapshot".into(),
            ..SourceInfo::default()
        }
    }

    fn ranks(&self) -> Vec<i32> {
        self.files.keys().copied().collect()
    }

    fn files(&self) -> Result<Vec<RankFile>, Error> {
        self.files.iter().map(|(rank, path)| RankFile::of(*rank, path)).collect()
    }

    fn problems(&self) -> Vec<OmissionRow> {
        self.omissions.clone()
    }

    fn lacks(&self) -> &'static [&'static str] {
        &["operators, kernels and steps", "collectives"]
    }

    fn load(&self, rank: i32) -> Result<RankData, Error> {
        let path = self.files.get(&rank).cloned().unwrap_or_default();
        let io = |source| Error::Io { path: path.clone(), source };
        let why = |why: String| Error::NoInput { path: path.clone(), why };
        let size = std::fs::metadata(&path).map_err(io)?.len();
        if size > MAX_BYTES {
            return Err(why("it is larger than 4 GiB, which is not read".into()));
        }
        let mut room = self.memory.room_of_file("snapshot", 0);
        room.take(size as usize).map_err(why)?;
        let bytes = std::fs::read(&path).map_err(io)?;
        let pickle = Pickle::read(&bytes, &mut room).map_err(|fault| why(format!("it cannot be read: {fault}")))?;
        let (memory, omissions) = Snapshot::of(&pickle, rank, bytes.len(), &mut room).read().map_err(why)?;
        let file = |row: OmissionRow| row.rank(rank).file(Text::from(path.to_string_lossy()));
        let mut data = RankData { memory, omissions: omissions.into_iter().map(file).collect(), ..RankData::default() };
        data.outline.info.rank = rank;
        Ok(data)
    }
}

/// A block in use when the snapshot was taken.
#[derive(Clone, Copy, Debug)]
struct Held {
    size: i64,
    frames: Option<Id>,
}

/// A change of the memory of a device.
#[derive(Clone, Copy, Debug, Default)]
struct Change {
    ts_ns: i64,
    address: Option<i64>,
    /// Of the memory in use; 0: the entry changes only the reserved memory.
    delta_bytes: i64,
    reserved_bytes: i64,
    frames: Option<Id>,
}

struct Snapshot<'a> {
    pickle: &'a Pickle<'a>,
    rank: i32,
    /// Entries and blocks that were read.
    rows: usize,
    /// Most of them.
    max_rows: usize,
    room: &'a mut Room,
}

/// The memory that the segments of one device hold.
#[derive(Debug, Default)]
struct Segments {
    reserved_bytes: i64,
    allocated_bytes: i64,
    /// By address.
    held: BTreeMap<i64, Held>,
}

impl<'a> Snapshot<'a> {
    /// A snapshot in a pickle of `bytes`.
    fn of(pickle: &'a Pickle<'a>, rank: i32, bytes: usize, room: &'a mut Room) -> Self {
        Self { pickle, rank, rows: 0, max_rows: (bytes / MIN_ROW_BYTES).min(MAX_ROWS), room }
    }

    fn read(mut self) -> Result<(Vec<MemoryRow>, Vec<OmissionRow>), String> {
        let root = self.pickle.root();
        let segments =
            self.pickle.field(root, "segments").ok_or_else(|| match self.pickle.field(root, "pg_config") {
                Some(_) => "this is a dump of torch's Flight Recorder; put it beside the traces of its job".to_string(),
                None => format!(
                    "this pickle is a {} without `segments`, so it is not a snapshot of torch's allocator",
                    self.pickle.get(root).type_name()
                ),
            })?;
        let traces = self.pickle.field(root, "device_traces");
        let mut devices = self.segments(segments)?;
        let traces: Vec<Id> = traces.map(|traces| self.pickle.items(traces).to_vec()).unwrap_or_default();
        let recorded = (0..).zip(&traces).filter(|(_, trace)| !self.pickle.items(**trace).is_empty());
        for (device, _) in recorded {
            devices.entry(device).or_default();
        }
        let (mut rows, mut omissions) = (Vec::new(), Vec::new());
        let mut stacks = FxHashMap::default();
        for (device, segments) in devices {
            let trace = usize::try_from(device).ok().and_then(|device| traces.get(device)).copied();
            let entries = trace.map(|trace| self.pickle.items(trace)).unwrap_or_default();
            let changes = self.changes(entries, &segments, &mut omissions)?;
            if entries.is_empty() {
                let why = format!(
                    "device {device} has none, so its peak is the memory in use at the snapshot: a lower bound; \
                     call torch.cuda.memory._record_memory_history() first"
                );
                omissions.push(OmissionRow::left_out("allocations before the snapshot", why));
            }
            self.rows_of(device, &changes, &segments, &mut stacks, &mut rows);
        }
        rows.sort_by_key(|row| row.ts_ns);
        Ok((rows, omissions))
    }

    fn count(&mut self) -> Result<(), String> {
        self.room.take(ROW_BYTES)?;
        self.rows += 1;
        if self.rows > self.max_rows {
            return Err(format!(
                "it has more than {} blocks and entries, the most for a pickle of its size",
                self.max_rows
            ));
        }
        Ok(())
    }

    fn integer(&self, of: Id, key: &str) -> Option<i64> {
        self.pickle.integer(self.pickle.field(of, key)?)
    }

    fn text(&self, of: Id, key: &str) -> Option<&str> {
        self.pickle.text(self.pickle.field(of, key)?)
    }

    /// The blocks of each device.
    fn segments(&mut self, segments: Id) -> Result<BTreeMap<i64, Segments>, String> {
        let mut devices: BTreeMap<i64, Segments> = BTreeMap::new();
        for segment in self.pickle.items(segments) {
            self.count()?;
            let of_device = devices.entry(self.integer(*segment, "device").unwrap_or(0)).or_default();
            let total = self.integer(*segment, "total_size").unwrap_or(0);
            of_device.reserved_bytes = of_device.reserved_bytes.saturating_add(total);
            let mut next = self.integer(*segment, "address");
            let blocks = self.pickle.field(*segment, "blocks").map(|blocks| self.pickle.items(blocks));
            for block in blocks.unwrap_or_default() {
                self.count()?;
                let Some(size) = self.integer(*block, "size").filter(|size| *size > 0) else { continue };
                // Old snapshots have no addresses of blocks, but all blocks of the segment in their order.
                let address = self.integer(*block, "address").or(next);
                next = address.map(|address| address.saturating_add(size));
                if self.text(*block, "state") == Some("active_allocated") {
                    of_device.allocated_bytes = of_device.allocated_bytes.saturating_add(size);
                    if let Some(address) = address {
                        of_device.held.insert(address, Held { size, frames: self.pickle.field(*block, "frames") });
                    }
                }
            }
        }
        Ok(devices)
    }

    /// The changes of a device in order of time, the blocks first that it held before the history.
    fn changes(
        &mut self,
        entries: &[Id],
        segments: &Segments,
        omissions: &mut Vec<OmissionRow>,
    ) -> Result<Vec<Change>, String> {
        let mut changes = Vec::with_capacity(entries.len().min(self.max_rows));
        let mut unknown = 0;
        // The allocation of each block in use, by address.
        let mut open: FxHashMap<i64, usize> = FxHashMap::default();
        let mut last_ns = 0;
        for entry in entries {
            self.count()?;
            let size = self.integer(*entry, "size").unwrap_or(0).max(0);
            let rounded = size.saturating_add(BLOCK_BYTES - 1) / BLOCK_BYTES * BLOCK_BYTES;
            let rounded = rounded.max(BLOCK_BYTES);
            // An entry without a time has that of the entry before it.
            last_ns = self.integer(*entry, "time_us").map_or(last_ns, |us| us.saturating_mul(1000)).max(last_ns);
            let address = self.integer(*entry, "addr");
            let frames = self.pickle.field(*entry, "frames");
            let change = Change { ts_ns: last_ns, address, frames, ..Change::default() };
            match self.text(*entry, "action") {
                Some("alloc") => {
                    address.map(|address| open.insert(address, changes.len()));
                    changes.push(Change { delta_bytes: rounded, ..change });
                }
                Some("free_requested") => {
                    address.map(|address| open.remove(&address));
                    changes.push(Change { delta_bytes: -rounded, ..change });
                }
                Some("segment_alloc" | "segment_map") => changes.push(Change { reserved_bytes: size, ..change }),
                Some("segment_free" | "segment_unmap") => changes.push(Change { reserved_bytes: -size, ..change }),
                Some("free_completed" | "oom" | "snapshot" | "annotate") => {}
                _ => unknown += 1,
            }
        }
        if unknown > 0 {
            omissions.push(OmissionRow::left_out("entries", "their action is unknown").amount(unknown));
        }
        let mut before: Vec<Change> = Vec::new();
        let first_ns = changes.first().map_or(0, |change| change.ts_ns);
        for (address, held) in &segments.held {
            match open.get(address).and_then(|at| changes.get_mut(*at)) {
                Some(change) => change.delta_bytes = held.size,
                None => before.push(Change {
                    ts_ns: first_ns,
                    address: Some(*address),
                    delta_bytes: held.size,
                    frames: held.frames,
                    ..Change::default()
                }),
            }
        }
        before.append(&mut changes);
        Ok(before)
    }

    /// The rows of a device. Its memory after the last change is that of the segments.
    fn rows_of(
        &self,
        device: i64,
        changes: &[Change],
        segments: &Segments,
        stacks: &mut FxHashMap<Id, (Option<Text>, Option<Text>)>,
        rows: &mut Vec<MemoryRow>,
    ) {
        let total = |of: fn(&Change) -> i64| changes.iter().fold(0_i64, |sum, change| sum.saturating_add(of(change)));
        let mut allocated = segments.allocated_bytes.saturating_sub(total(|change| change.delta_bytes));
        let mut reserved = segments.reserved_bytes.saturating_sub(total(|change| change.reserved_bytes));
        for change in changes {
            allocated = allocated.saturating_add(change.delta_bytes);
            reserved = reserved.saturating_add(change.reserved_bytes);
            if change.delta_bytes == 0 {
                continue;
            }
            let (name, stack) = match change.frames.filter(|_| change.delta_bytes > 0) {
                Some(frames) => stacks.entry(frames).or_insert_with(|| self.stack(frames)).clone(),
                None => (None, None),
            };
            rows.push(MemoryRow {
                rank: self.rank,
                ts_ns: change.ts_ns,
                device_id: Some(device),
                name,
                delta_bytes: change.delta_bytes,
                allocated_bytes: Some(allocated),
                reserved_bytes: Some(reserved),
                address: change.address,
                stack,
                ..MemoryRow::default()
            });
        }
    }

    /// The function that allocates, and the whole stack, outermost first. Frames of C++ count only if there are no
    /// others.
    fn stack(&self, frames: Id) -> (Option<Text>, Option<Text>) {
        let frames = self.pickle.items(frames);
        let is_python = |frame: &Id| self.text(*frame, "filename").is_some_and(|name| name.ends_with(".py"));
        let has_python = frames.iter().any(is_python);
        let kept: Vec<Id> = frames.iter().copied().filter(|f| !has_python || is_python(f)).take(FRAMES).collect();
        let text = |frame: &Id| {
            let line = self.integer(*frame, "line").unwrap_or(0);
            // Many frames may refer to one long text.
            let start = |key: &str| self.text(*frame, key).unwrap_or("?").chars().take(MAX_FRAME_CHARS).collect();
            let (file, name): (String, String) = (start("filename"), start("name"));
            let text: String = format!("{file}({line}): {name}").chars().take(MAX_FRAME_CHARS).collect();
            text.replace(';', "_")
        };
        let is_of_torch = |frame: &&Id| {
            const TORCH: &[u8] = b"/torch/";
            let path = self.text(**frame, "filename").unwrap_or_default().as_bytes();
            path[..path.len().min(MAX_PATH_BYTES)].windows(TORCH.len()).any(|part| part == TORCH)
        };
        let own = kept.iter().find(|frame| !is_of_torch(frame)).or(kept.first()).map(text);
        let stack: Vec<String> = kept.iter().rev().map(text).collect();
        (own.map(Into::into), (!stack.is_empty()).then(|| stack.join(";").into()))
    }
}
