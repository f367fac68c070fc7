//! One event: an object of `traceEvents`, read into columns.
//!
//! Every member is read once. Kineto writes `ph`, `cat` and `name` before `args`, so the reader knows which arguments
//! it wants when it reaches them. Where `args` comes first (sorted keys), it is skipped and read after the other
//! members. Keys are predicted from the event before (see `layout`).

use trace::MAX_TEXT_BYTES;
use trace::name_rules::MTIA_CATEGORY;
use trace::rank::{CopyRate, FlopsType, KernelUse, Kind, NONE};
use trace::time_limits::MAX_LENGTH_NS;

use crate::bytes::json::{Cursor, Fault, Str};
use crate::bytes::layout::Key;
use crate::bytes::number;
use crate::bytes::text::shortened;
use crate::bytes::value::MAX_KEPT_BYTES;
use crate::columns::args::encode;
use crate::columns::batch::{Allocation, AscendProcess, Columns, FlowEnd, NONE_32, Row, Scratch, Tally, narrow};
use crate::columns::by_text::{Call, RawInputs};
use crate::columns::processes::{id_from_text, is_from_text, rank_in};
use crate::columns::wanted_args::{Args, EMPTY, NO_ARGS, Wanted, read_args, text_value, wanted_args};

/// The stream of a synchronisation that concerns all streams: CUPTI_SYNCHRONIZATION_INVALID_VALUE in
/// cupti_activity.h.
const ALL_STREAMS: i64 = u32::MAX as i64;

/// The category of the profiler's own spans.
const OF_PROFILER: &[u8] = b"Trace";

/// A later time in µs since 1970 is one in ns: 10¹⁷ µs are 3 000 years.
const MOST_US: i64 = 100_000_000_000_000_000;

/// Members of an event outside `args`.
struct Head<'a> {
    phase: u8,
    category: &'a [u8],
    name: Str<'a>,
    ts: &'a [u8],
    dur: &'a [u8],
    pid: i64,
    tid: i64,
    id: i64,
    /// Start and end of the arguments.
    args: Option<(usize, usize)>,
    /// The arguments were read when they were reached.
    args_read: bool,
}

/// Reads the event at the cursor, which stands on its opening brace, into `columns`.
pub(crate) fn read_event(
    cursor: &mut Cursor<'_>,
    wanted: Wanted,
    scratch: &mut Scratch,
    columns: &mut Columns,
) -> Result<(), Fault> {
    let mut head = Head {
        phase: 0,
        category: b"",
        name: EMPTY,
        ts: b"",
        dur: b"",
        pid: NONE,
        tid: NONE,
        id: NONE,
        args: None,
        args_read: false,
    };
    let mut args = NO_ARGS;
    let start = *cursor;
    cursor.bump(1);
    let mut number = 0;
    // Complete events have other members than arrows and counters. All begin with their phase.
    while let Some(key) = scratch.layouts.event(head.phase == b'X').member(cursor, number, event_key)? {
        number += 1;
        match key {
            Key::Phase => {
                head.phase = text_value(cursor)?.raw.first().copied().unwrap_or(0);
                // Arrows and instants, such as allocations, are as many as rows.
                if wanted.rows_only && matches!(head.phase, b's' | b'f' | b'i' | b'I') {
                    columns.tally.events += 1;
                    columns.tally.unused += 1;
                    return cursor.close_object();
                }
            }
            Key::Category => head.category = text_value(cursor)?.raw,
            Key::Name => head.name = text_value(cursor)?,
            Key::Start => head.ts = text_value(cursor)?.raw,
            Key::Length => head.dur = text_value(cursor)?.raw,
            Key::Process => head.pid = process_value(cursor, scratch)?,
            Key::Thread => head.tid = id_value(cursor)?,
            Key::Id => head.id = id_value(cursor)?,
            Key::Args => read_args_member(cursor, wanted, scratch, &mut head, &mut args)?,
            _ => cursor.skip()?,
        }
    }
    // Names of processes are read of all of them.
    if scratch.processes.leaves_out(head.pid) && head.phase != b'M' {
        if head.phase == b'X' && head.category != OF_PROFILER {
            columns.count_other_process(head.pid);
        }
        return Ok(());
    }
    columns.tally.events += 1;
    let whole = start;
    if let (Some((from, _)), false, b'X') = (head.args, head.args_read, head.phase) {
        // The arguments came before `ph` or `cat`. They were skipped once, so they are well-formed.
        let mut again = whole;
        again.bump(from - whole.pos());
        let kind = scratch.kind(head.category);
        read_args(&mut again, kind, wanted_args(kind, wanted), scratch, &mut args)?;
    }
    keep(&whole, &head, args, wanted, scratch, columns);
    Ok(())
}

/// The members of an event.
fn event_key(key: &[u8]) -> Key {
    match key {
        b"ph" => Key::Phase,
        b"cat" => Key::Category,
        b"name" => Key::Name,
        b"ts" => Key::Start,
        b"dur" => Key::Length,
        b"pid" => Key::Process,
        b"tid" => Key::Thread,
        b"id" => Key::Id,
        b"args" => Key::Args,
        _ => Key::Other,
    }
}

/// A process, thread or flow id: an integer, a string that holds one, or any string.
#[inline(always)]
fn id_value(cursor: &mut Cursor<'_>) -> Result<i64, Fault> {
    let text = text_value(cursor)?.raw;
    Ok(number_of(text).unwrap_or_else(|| id_from_text(text)))
}

/// As [`id_value`], for a process: a text may say its rank.
#[inline(always)]
fn process_value(cursor: &mut Cursor<'_>, scratch: &mut Scratch) -> Result<i64, Fault> {
    let text = text_value(cursor)?.raw;
    Ok(number_of(text).unwrap_or_else(|| scratch.processes.of_text(text)))
}

#[inline(always)]
fn number_of(text: &[u8]) -> Option<i64> {
    number::integer(text).or_else(|| number::hexadecimal(text))
}

fn read_args_member(
    cursor: &mut Cursor<'_>,
    wanted: Wanted,
    scratch: &mut Scratch,
    head: &mut Head<'_>,
    args: &mut Args,
) -> Result<(), Fault> {
    let from = cursor.pos();
    if head.phase == b'X' && !head.category.is_empty() {
        let kind = scratch.kind(head.category);
        head.args_read = true;
        read_args(cursor, kind, wanted_args(kind, wanted), scratch, args)?;
    } else {
        cursor.skip()?;
    }
    head.args = Some((from, cursor.pos()));
    Ok(())
}

/// Adds an event to the columns for its phase.
fn keep(whole: &Cursor<'_>, head: &Head<'_>, args: Args, wanted: Wanted, scratch: &mut Scratch, columns: &mut Columns) {
    match head.phase {
        b'X' => keep_complete(whole, head, args, wanted, scratch, columns),
        b's' | b'f' => keep_flow(head, scratch, columns),
        b'i' | b'I' | b'C' if head.name.raw == b"[memory]" && !wanted.rows_only => {
            keep_allocation(whole, head, scratch, columns);
        }
        b'C' if head.name.raw != b"[memory]" => columns.tally.counters += 1,
        b'B' | b'E' => columns.tally.begin_end += 1,
        // `S`, `T`, `p` and `F` are those of old traces.
        b'b' | b'n' | b'e' | b'S' | b'T' | b'p' | b'F' => columns.tally.asynchronous += 1,
        b'M' if head.name.raw == b"process_name" => {
            columns.tally.unused += 1;
            let args = head.args.map(|(from, to)| {
                let mut end = *whole;
                end.bump(to - whole.pos());
                end.since(from)
            });
            columns.ascend.extend(args.and_then(AscendProcess::named_in).map(|process| (head.pid, process)));
            columns.ranks.extend(args.and_then(rank_in).map(|rank| (head.pid, rank)));
        }
        b'M' | b't' | b'i' | b'I' | b'C' => columns.tally.unused += 1,
        _ => columns.tally.other_phases += 1,
    }
}

/// The start and the length of a complete event in ns; `None` if one cannot be used, which is counted.
#[inline(always)]
fn start_and_length(head: &Head<'_>, tally: &mut Tally) -> Option<(i64, i64)> {
    let Some(ts_ns) = number::scaled(head.ts, 3) else {
        let in_ns = number::scaled(head.ts, 0).is_some_and(|ts| ts > MOST_US);
        let count = if in_ns { &mut tally.in_ns } else { &mut tally.no_start };
        *count += 1;
        return None;
    };
    let Some(dur_ns) = number::scaled(head.dur, 3) else {
        tally.no_length += 1;
        return None;
    };
    if dur_ns > MAX_LENGTH_NS {
        tally.too_long += 1;
        return None;
    }
    tally.negative += u64::from(dur_ns < 0);
    let dur_ns = dur_ns.max(0);
    tally.length_ns = tally.length_ns.saturating_add(dur_ns);
    Some((ts_ns, dur_ns))
}

fn keep_complete(
    whole: &Cursor<'_>,
    head: &Head<'_>,
    args: Args,
    wanted: Wanted,
    scratch: &mut Scratch,
    columns: &mut Columns,
) {
    let Some((ts_ns, dur_ns)) = start_and_length(head, &mut columns.tally) else { return };
    let row = columns.len() as u32;
    let (name, rules) = scratch.name(head.name, &mut columns.tally);
    // Some copies of MTIA are in no stream.
    let is_mtia = head.category == MTIA_CATEGORY.as_bytes();
    let kind = match scratch.kind(head.category) {
        Kind::Kernel if is_mtia => rules.on_mtia,
        Kind::Kernel => rules.as_kernel_kind,
        kind => kind,
    };
    if kind == Kind::Other && !is_mtia {
        count_other(head, scratch, columns);
    }
    let on_device = is_device_row(kind);
    // Where the arguments name no device or stream, a device row's process and thread are its device and stream.
    let place = |arg: i64, fallback: i64| match (on_device, arg) {
        (false, _) => NONE,
        (true, NONE) => fallback,
        (true, arg) => arg,
    };
    let device = narrow(place(args.device, head.pid));
    let is_stream = !is_mtia && !is_from_text(head.tid);
    let stream = match place(args.stream, if is_stream { head.tid } else { NONE }) {
        ALL_STREAMS => NONE_32,
        id => scratch.streams.narrow(id),
    };
    let far = |arg: i64, place: i32| on_device && arg != NONE && arg != ALL_STREAMS && place == NONE_32;
    let unread = args.unread + u32::from(far(args.device, device)) + u32::from(far(args.stream, stream));
    columns.tally.no_ids += u64::from(unread);
    columns.push(Row {
        kind,
        name,
        ts_ns,
        dur_ns,
        track: scratch.tracks.id(head.pid, head.tid),
        device,
        stream,
        correlation: args.correlation,
        external: args.external,
    });
    if wanted.shapes {
        columns.shape.push(args.shape);
    }
    if wanted.args {
        keep_args(whole, head, name, scratch, columns);
    }
    if args.bytes != NONE {
        columns.bytes.push((row, args.bytes));
    }
    keep_device_use(row, kind, &args, columns);
    if kind == Kind::CpuOp && rules.has_formula && !wanted.rows_only {
        keep_flops(whole, head, row, scratch, columns);
    }
    if (args.names_collective && kind == Kind::Kernel || rules.may_be_collective(kind))
        && let Some(range) = head.args
    {
        keep_comm_args(whole, range, row, columns);
    }
}

/// Counts a row of no known kind by its category.
fn count_other(head: &Head<'_>, scratch: &mut Scratch, columns: &mut Columns) {
    match head.category {
        b"cuda_profiler_range" => columns.tally.profiler_ranges += 1,
        OF_PROFILER => {}
        category => {
            let row = columns.len() as u32;
            columns.unknown.push((row, scratch.categories.id(shortened(category))));
        }
    }
}

/// Keeps the arguments of a row that may belong to a collective.
fn keep_comm_args(whole: &Cursor<'_>, (from, to): (usize, usize), row: u32, columns: &mut Columns) {
    if to - from > MAX_KEPT_BYTES {
        columns.tally.long_args += 1;
        return;
    }
    let mut end = *whole;
    end.bump(to - whole.pos());
    columns.comm_args.push((row, end.since(from).into()));
}

/// Keeps the FLOPs of an operator.
fn keep_flops(whole: &Cursor<'_>, head: &Head<'_>, row: u32, scratch: &mut Scratch, columns: &mut Columns) {
    let Some((from, _)) = head.args else { return };
    let mut args = *whole;
    args.bump(from - whole.pos());
    // The object was skipped before, which does not check all of it. On an error, the FLOPs are unknown.
    if let Ok(inputs) = read_inputs(&mut args)
        && let Some(Call { flops, dtype, min_bytes }) = scratch.flops.of(head.name.raw, inputs)
    {
        columns.flops.push((row, flops));
        let id = i64::from(row);
        columns.flops_types.extend(dtype.map(|dtype| FlopsType { id, dtype, min_bytes }));
    }
}

/// The arguments of an operator that its FLOPs and bytes follow from.
fn read_inputs<'a>(cursor: &mut Cursor<'a>) -> Result<RawInputs<'a>, Fault> {
    if cursor.peek() != Some(b'{') {
        return Ok(RawInputs::default());
    }
    cursor.bump(1);
    let mut inputs = RawInputs::default();
    let mut first = true;
    while let Some(key) = cursor.member(first)? {
        first = false;
        let from = cursor.pos();
        cursor.skip()?;
        match key.raw {
            b"Input Dims" | b"Input dims" => inputs.dims = Some(cursor.since(from)),
            b"Concrete Inputs" => inputs.concrete = Some(cursor.since(from)),
            b"Input type" => inputs.types = Some(cursor.since(from)),
            b"Input Strides" => inputs.strides = Some(cursor.since(from)),
            _ => {}
        }
    }
    Ok(inputs)
}

/// Keeps the launch parameters and occupancy of a kernel, and the bandwidth of a copy.
fn keep_device_use(row: u32, kind: Kind, args: &Args, columns: &mut Columns) {
    let id = i64::from(row);
    let used = KernelUse {
        id,
        grid: args.grid,
        block: args.block,
        registers: args.registers.try_into().ok(),
        shared_mem_bytes: args.shared_mem_bytes.try_into().ok(),
        occupancy_pct: args.occupancy_pct.map(|pct| pct as f32),
    };
    if kind == Kind::Kernel && used != KernelUse::unknown(id) {
        columns.kernel_use.push(used);
    }
    if let Some(bandwidth_gbs) = args.bandwidth_gbs {
        columns.copy_rates.push(CopyRate { id, bandwidth_gbs });
    }
}

fn keep_args(whole: &Cursor<'_>, head: &Head<'_>, name: u32, scratch: &mut Scratch, columns: &mut Columns) {
    columns.category.push(scratch.categories.id(shortened(head.category)));
    columns.tally.long_texts += u64::from(head.category.len() > MAX_TEXT_BYTES);
    columns.first_number.push(columns.numbers.len() as u32);
    let Some((from, to)) = head.args else { return columns.template.push(0) };
    let Scratch { templates, guess, draft, .. } = scratch;
    let numbers = &mut columns.numbers;
    let mut end = *whole;
    end.bump(to - whole.pos());
    let raw = end.since(from);
    let template = match guess.read(name, raw, numbers) {
        Some((template, _)) => template,
        None => {
            let mut cursor = *whole;
            cursor.bump(from - whole.pos());
            draft.clear();
            // The object was skipped before, which does not check all of it. On an error, the members before it are kept.
            let encoded = encode(&mut cursor, draft, numbers, &mut columns.tally.long_texts);
            let template = templates.id(draft);
            if encoded.is_ok() {
                guess.learn_shape(template, raw);
            }
            template
        }
    };
    guess.learn(name, template);
    columns.template.push(template + 1);
}

/// Whether rows of this kind lie on a device's stream.
pub(crate) fn is_device_row(kind: Kind) -> bool {
    kind.is_device_work() || matches!(kind, Kind::GpuUserAnnotation | Kind::Sync)
}

/// Keeps arrows from forward to backward operators. Arrows from launch to kernel only repeat the correlation id.
fn keep_flow(head: &Head<'_>, scratch: &mut Scratch, columns: &mut Columns) {
    let wanted = matches!(head.category, b"fwdbwd" | b"forward_backward");
    if wanted
        && head.id != NONE
        && let Some(ts_ns) = number::scaled(head.ts, 3)
    {
        let track = scratch.tracks.id(head.pid, head.tid);
        columns.flows.push(FlowEnd { id: head.id, ts_ns, track, start: head.phase == b's' });
    } else {
        columns.tally.unused += 1;
    }
}

fn keep_allocation(whole: &Cursor<'_>, head: &Head<'_>, scratch: &mut Scratch, columns: &mut Columns) {
    let mut read = Allocation {
        ts_ns: NONE,
        track: scratch.tracks.id(head.pid, head.tid),
        bytes: NONE,
        address: NONE,
        allocated: NONE,
        reserved: NONE,
        device_type: NONE,
        device_id: NONE,
    };
    read.ts_ns = number::scaled(head.ts, 3).unwrap_or(NONE);
    if let Some((from, _)) = head.args {
        let mut cursor = *whole;
        cursor.bump(from - whole.pos());
        // The object was skipped before, which does not check all of it. On an error, the members after it are left
        // out.
        let _ = read_allocation(&mut cursor, &mut read);
    }
    if read.ts_ns == NONE || read.bytes == NONE {
        columns.tally.bad_memory += 1;
    } else {
        columns.allocations.push(read);
    }
}

fn read_allocation(cursor: &mut Cursor<'_>, read: &mut Allocation) -> Result<(), Fault> {
    cursor.need(b'{', "an object")?;
    let mut first = true;
    while let Some(key) = cursor.member(first)? {
        first = false;
        let slot = match key.raw {
            b"Bytes" => &mut read.bytes,
            b"Addr" => &mut read.address,
            b"Total Allocated" => &mut read.allocated,
            b"Total Reserved" => &mut read.reserved,
            b"Device Type" => &mut read.device_type,
            b"Device Id" => &mut read.device_id,
            _ => {
                cursor.skip()?;
                continue;
            }
        };
        *slot = number::integer(text_value(cursor)?.raw).unwrap_or(NONE);
    }
    Ok(())
}
