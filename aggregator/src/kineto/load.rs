//! One trace file to one [`RankData`].

use std::collections::BTreeMap;
use std::path::Path;

use trace::{CounterRow, OmissionRow, Text};

use crate::Error;
use crate::details::Details;
use crate::kineto::collectives::{Collectives, find_collectives};
use crate::kineto::columns::{Columns, Tally};
use crate::kineto::details::details_of;
use crate::kineto::event::Wanted;
use crate::kineto::files::{RankSource, TraceFile, host_from_name, told_rank, told_world_size};
use crate::kineto::groups::Groups;
use crate::kineto::input::Input;
use crate::kineto::not_a_trace;
use crate::kineto::rows::{Extras, Rows, rows_from_pieces};
use crate::kineto::steps::{Launches, Steps, assign_steps, find_steps};
use crate::kineto::stream::{BLOCK_BYTES, Streamed, read_stream};
use crate::kineto::tables::{device_rows, flow_rows, memory_rows};
use crate::kineto::top::Top;
use crate::model::{RankData, RankInfo};
use crate::plausible::{FAR, LONG};

/// Reads a trace whole. What could not be read is in [`RankData::omissions`]; the file's other half stays.
///
/// Times are UTC as the host saw it, in ns since 1970; a row's `id` is its place in the file.
///
/// # Errors
/// [`Error::Io`] if the file cannot be opened; [`Error::NoInput`] if it holds no list of events.
pub fn load(file: &TraceFile) -> Result<RankData, Error> {
    Ok(load_wanted(file, Wanted::default())?.data)
}

/// As [`load`], with shapes, stacks and modules.
///
/// # Errors
/// As [`load`].
pub fn load_detailed(file: &TraceFile) -> Result<(RankData, Details), Error> {
    let Loaded { mut data, extras, .. } = load_wanted(file, Wanted { args: true, shapes: false })?;
    let details = details_of(&mut data, &extras);
    Ok((data, details))
}

/// A trace with what an analysis does not need.
#[derive(Debug, Default)]
pub(crate) struct Loaded {
    pub(crate) data: RankData,
    pub(crate) extras: Extras,
    /// Numbers and short strings of the top level.
    pub(crate) scalars: BTreeMap<String, String>,
    /// The file was read to its end.
    pub(crate) complete: bool,
}

/// As [`load`], keeping what is wanted.
pub(crate) fn load_wanted(file: &TraceFile, wanted: Wanted) -> Result<Loaded, Error> {
    let input = Input::open(&file.path).map_err(|source| Error::Io { path: file.path.clone(), source })?;
    let streamed = read_stream(input, wanted, BLOCK_BYTES);
    if !streamed.top.has_events {
        let why = match &streamed.missing {
            Some(missing) => format!("byte {}: {}", missing.byte, missing.why),
            None => "it has no traceEvents".into(),
        };
        return Err(not_a_trace(&file.path, &why));
    }
    Ok(rank_from_stream(streamed, file))
}

/// Reads `bytes` as a trace in one block and in blocks of the given sizes, and compares: for fuzzing.
///
/// # Panics
/// If the results differ.
#[doc(hidden)]
pub fn check_any_blocks(bytes: &[u8], block_sizes: &[usize]) {
    let file = TraceFile {
        path: "trace".into(),
        rank: 0,
        rank_source: RankSource::Order,
        world_size: None,
        size_bytes: bytes.len() as u64,
    };
    let read = |block_bytes: usize| {
        let streamed = read_stream(Input::from_bytes(bytes.to_vec()), Wanted { args: true, shapes: true }, block_bytes);
        let loaded = rank_from_stream(streamed, &file);
        // Names are numbered as the workers met them; the rest must be equal.
        let names: Vec<Text> =
            loaded.data.events.name.iter().map(|id| loaded.data.names[*id as usize].clone()).collect();
        let mut data = loaded.data;
        data.events.name.clear();
        data.names.clear();
        (data, names)
    };
    let whole = read(bytes.len().max(1) * 2);
    for size in block_sizes {
        let blocks = read(*size);
        let said = |(data, names): &(RankData, Vec<Text>)| (names.len(), data.omissions.clone());
        assert!(
            blocks == whole,
            "blocks of {size} bytes give another result: rows and omissions {:?}, in one block {:?}",
            said(&blocks),
            said(&whole)
        );
    }
}

/// What [`parse_only`] counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Parsed {
    /// Bytes of JSON text.
    pub bytes: u64,
    /// Events of any phase.
    pub events: u64,
    /// Events that are kept as rows.
    pub rows: u64,
}

/// Parses a trace into columns and drops them: the part of [`load`] whose speed is bounded by bytes, for benches.
///
/// # Errors
/// [`Error::Io`] if the file cannot be opened.
pub fn parse_only(path: &Path) -> Result<Parsed, Error> {
    let input = Input::open(path).map_err(|source| Error::Io { path: path.into(), source })?;
    let streamed = read_stream(input, Wanted::default(), BLOCK_BYTES);
    let count = |of: fn(&Columns) -> u64| streamed.pieces.iter().map(|(_, piece)| of(piece)).sum();
    Ok(Parsed { bytes: streamed.bytes, events: count(|p| p.tally.events), rows: count(|p| p.len() as u64) })
}

/// Puts a read file together.
pub(crate) fn rank_from_stream(streamed: Streamed, file: &TraceFile) -> Loaded {
    let Streamed { top, pieces, scratches, missing, trailing, .. } = streamed;
    let told = told_rank(top.distributed.as_ref());
    let rank = told.unwrap_or(file.rank);
    let from = if told.is_some() { RankSource::DistributedInfo } else { file.rank_source };
    let mut rows = rows_from_pieces(pieces, scratches, top.base_ns);
    let mut notes =
        Notes { file: file_name(&file.path), rank, omissions: Vec::new(), remarks: vec![from.remark(rank)] };
    let (launches, Steps { rows: steps, left_out }) =
        rayon::join(|| Launches::collect(&rows.events), || find_steps(&rows.events, &rows.names, rank));
    notes.omit("ProfilerStep marks", left_out, "they repeat a step or begin inside another");
    assign_steps(&mut rows.events, &steps, &launches);
    let mut groups = Groups::from_info(top.distributed.as_ref());
    let collectives = find_collectives(&mut rows, &launches, &mut groups, &steps, rank);
    notes.of_collectives(&collectives);
    notes.of_tally(&rows.tally);
    notes.omit(
        "base time",
        i64::from(top.base_unread),
        "baseTimeNanoseconds is no 64-bit integer; times count from zero",
    );
    let allocations = std::mem::take(&mut rows.allocations);
    let (memory, (flows, torn)) = rayon::join(|| memory_rows(&rows, allocations, rank), || flow_rows(&rows, rank));
    notes.omit("arrows", torn, "one of their ends is not in the trace");
    let complete = missing.is_none();
    for (place, what) in [(missing, "rest of the file"), (trailing, "text after the document")] {
        if let Some(place) = place {
            let why = format!("from byte {} of the JSON text on: {}", place.byte, place.why);
            notes.omissions.push(notes.row(what, None, &why));
        }
    }
    let counters = vec![notes.counter(&rows)];
    let Collectives { rows: collectives, comms_ids, .. } = collectives;
    let Rows { events, names, pids, extras, kernel_use, copy_rates, .. } = rows;
    let data = RankData {
        info: rank_info(rank, &top, file, &pids),
        names,
        events,
        collectives,
        comms_ids,
        steps,
        memory,
        comms: groups.rows(rank),
        devices: device_rows(top.devices.as_ref(), rank),
        kernel_use,
        copy_rates,
        flows,
        counters,
        omissions: notes.omissions,
        ..RankData::default()
    };
    Loaded { data, extras, scalars: top.scalars, complete }
}

fn rank_info(rank: i32, top: &Top, file: &TraceFile, pids: &BTreeMap<i64, u64>) -> RankInfo {
    let told = top.scalars.get("host_name").filter(|host| !host.is_empty()).cloned();
    let pid = pids.iter().max_by_key(|(_, rows)| **rows).map_or(0, |(pid, _)| *pid);
    let host = told.or_else(|| host_from_name(&file.path, pid)).unwrap_or_default();
    let clock_domain = if host.is_empty() { "utc".to_string() } else { format!("{host}/utc") };
    RankInfo {
        rank,
        world_size: told_world_size(top.distributed.as_ref()),
        host,
        pid,
        clock_domain,
        closed_cleanly: None,
    }
}

pub(crate) fn file_name(path: &Path) -> Text {
    path.file_name().unwrap_or(path.as_os_str()).to_string_lossy().into()
}

/// What is to be said of a file.
struct Notes {
    file: Text,
    rank: i32,
    omissions: Vec<OmissionRow>,
    /// What is no loss, but should be known.
    remarks: Vec<String>,
}

impl Notes {
    fn row(&self, what: &str, amount: Option<i64>, why: &str) -> OmissionRow {
        OmissionRow { file: Some(self.file.clone()), rank: Some(self.rank), what: what.into(), amount, why: why.into() }
    }

    fn omit(&mut self, what: &str, amount: i64, why: &str) {
        if amount > 0 {
            self.omissions.push(self.row(what, Some(amount), why));
        }
    }

    fn of_collectives(&mut self, found: &Collectives) {
        let mut remark = |amount: i64, text: &str| {
            if amount > 0 {
                self.remarks.push(format!("{amount} {text}"));
            }
        };
        remark(found.by_name_only, "collectives known by the name of their kernel only");
        remark(found.unnamed, "collectives whose process group the trace does not name");
    }

    fn of_tally(&mut self, tally: &Tally) {
        let count = |n: u64| n.min(i64::MAX as u64) as i64;
        self.omit("events", count(tally.no_start), "they have no readable ts");
        self.omit("events", count(tally.no_length), "they have no readable dur");
        self.omit("events", count(tally.far), FAR);
        self.omit("events", count(tally.too_long), LONG);
        self.omit("lengths", count(tally.negative), "they are negative; taken as zero");
        self.omit("items of traceEvents", count(tally.not_objects), "they are no objects");
        self.omit("begin and end events", count(tally.begin_end), "only complete events are read");
        self.omit("ids", count(tally.no_ids), "they are no 64-bit integers, or streams and devices beyond 32 bits");
        self.omit("memory events", count(tally.bad_memory), "they have no readable or no possible time, or no size");
        if tally.counters > 0 {
            self.remarks.push(format!("{} hardware counter events are not kept", tally.counters));
        }
    }

    fn counter(&self, rows: &Rows) -> CounterRow {
        let omitted = self.omissions.iter().filter(|o| &*o.what == "events").filter_map(|o| o.amount).sum();
        CounterRow {
            rank: self.rank,
            source: "kineto".into(),
            recorded: rows.events.len() as i64,
            dropped: 0,
            omitted,
            why: Some(self.remarks.join("; ").into()),
        }
    }
}
