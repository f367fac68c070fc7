//! The arguments that are read of an event: which ones of each kind of row, and their values.

use trace::rank::{Kind, NONE};

use crate::bytes::json::{Cursor, Fault, Str};
use crate::bytes::layout::Key;
use crate::bytes::number;
use crate::columns::batch::{Interner, Scratch};

/// The parts of events that are kept in addition to those that every analysis needs, or left out.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Wanted {
    /// Shapes of operator inputs.
    pub(crate) shapes: bool,
    /// All arguments, and the category as written in the file.
    pub(crate) args: bool,
    /// Only rows: no allocations and arrows, and no FLOPs and launch parameters.
    pub(crate) rows_only: bool,
}

/// The values that are read from `args`.
pub(super) struct Args {
    pub(super) external: i64,
    pub(super) correlation: i64,
    pub(super) device: i64,
    pub(super) stream: i64,
    pub(super) bytes: i64,
    pub(super) shape: u32,
    pub(super) grid: [u32; 3],
    pub(super) block: [u16; 3],
    pub(super) registers: i64,
    pub(super) shared_mem_bytes: i64,
    pub(super) occupancy_pct: Option<f64>,
    pub(super) bandwidth_gbs: Option<f64>,
    /// They name a collective or its process group.
    pub(super) names_collective: bool,
    /// Integers that cannot be read.
    pub(super) unread: u32,
}

pub(super) const NO_ARGS: Args = Args {
    external: NONE,
    correlation: NONE,
    device: NONE,
    stream: NONE,
    bytes: NONE,
    shape: 0,
    grid: [0; 3],
    block: [0; 3],
    registers: NONE,
    shared_mem_bytes: NONE,
    occupancy_pct: None,
    bandwidth_gbs: None,
    names_collective: false,
    unread: 0,
};
pub(super) const EMPTY: Str<'static> = Str { raw: b"", escaped: false };

/// Bits for the arguments that are read of a kind of row.
const EXTERNAL: u16 = 1;
const CORRELATION: u16 = 2;
const DEVICE: u16 = 4;
const STREAM: u16 = 8;
const BYTES: u16 = 16;
const SHAPE: u16 = 32;
const GRID: u16 = 64;
const OCCUPANCY: u16 = 128;
const BANDWIDTH: u16 = 256;
const BLOCK: u16 = 512;
const REGISTERS: u16 = 1024;
const SHARED_MEMORY: u16 = 2048;
const COLLECTIVE: u16 = 4096;
/// Only kernels have these.
const LAUNCH: u16 = GRID | BLOCK | REGISTERS | SHARED_MEMORY | OCCUPANCY;

/// The members of `args`.
fn args_key(key: &[u8]) -> Key {
    match key {
        b"External id" | b"external id" => Key::External,
        b"correlation" => Key::Correlation,
        b"device" => Key::Device,
        b"stream" => Key::Stream,
        b"bytes" => Key::Bytes,
        b"Input Dims" => Key::Shape,
        b"grid" => Key::Grid,
        b"block" => Key::Block,
        b"registers per thread" => Key::Registers,
        b"shared memory" => Key::SharedMemory,
        b"est. achieved occupancy %" => Key::Occupancy,
        b"memory bandwidth (GB/s)" => Key::Bandwidth,
        b"Collective name" | b"Process Group Name" => Key::Collective,
        _ => Key::Other,
    }
}

/// A member's value as bytes: the inside of a string, or a bare word. Objects and arrays count as empty.
#[inline(always)]
pub(super) fn text_value<'a>(cursor: &mut Cursor<'a>) -> Result<Str<'a>, Fault> {
    match cursor.peek() {
        Some(b'"') => {
            cursor.bump(1);
            cursor.string_rest()
        }
        Some(b'{' | b'[') => cursor.skip().map(|()| EMPTY),
        _ => Ok(Str { raw: cursor.word()?, escaped: false }),
    }
}

/// The arguments that are read of a kind of row, as bits.
pub(super) fn wanted_args(kind: Kind, wanted: Wanted) -> u16 {
    match kind {
        Kind::CpuOp | Kind::UserAnnotation => EXTERNAL | if wanted.shapes { SHAPE } else { 0 },
        Kind::Runtime | Kind::Driver => EXTERNAL | CORRELATION,
        Kind::Kernel if !wanted.rows_only => EXTERNAL | CORRELATION | DEVICE | STREAM | COLLECTIVE | LAUNCH,
        Kind::Kernel => EXTERNAL | CORRELATION | DEVICE | STREAM | COLLECTIVE,
        Kind::GpuUserAnnotation | Kind::Sync => EXTERNAL | CORRELATION | DEVICE | STREAM,
        Kind::GpuMemcpy | Kind::GpuMemset => EXTERNAL | CORRELATION | DEVICE | STREAM | BYTES | BANDWIDTH,
        Kind::PythonFunction | Kind::Overhead | Kind::Other => 0,
    }
}

/// Reads the wanted members of an object and steps to its end. A value other than an object is skipped.
#[inline]
pub(super) fn read_args(
    cursor: &mut Cursor<'_>,
    kind: Kind,
    mut want: u16,
    scratch: &mut Scratch,
    args: &mut Args,
) -> Result<(), Fault> {
    if cursor.peek() != Some(b'{') {
        return cursor.skip();
    }
    cursor.bump(1);
    let Scratch { layouts, shapes, .. } = scratch;
    let layout = layouts.args(kind);
    let mut number = 0;
    loop {
        if want == 0 {
            return cursor.close_object();
        }
        let Some(key) = layout.member(cursor, number, args_key)? else { return Ok(()) };
        number += 1;
        let bit = match key {
            Key::External => EXTERNAL,
            Key::Correlation => CORRELATION,
            Key::Device => DEVICE,
            Key::Stream => STREAM,
            Key::Bytes => BYTES,
            Key::Shape => SHAPE,
            Key::Grid => GRID,
            Key::Block => BLOCK,
            Key::Registers => REGISTERS,
            Key::SharedMemory => SHARED_MEMORY,
            Key::Bandwidth => BANDWIDTH,
            Key::Occupancy => OCCUPANCY,
            Key::Collective => COLLECTIVE,
            _ => 0,
        };
        if want & bit == 0 {
            cursor.skip()?;
            continue;
        }
        want &= !bit;
        let slot = match key {
            Key::External => &mut args.external,
            Key::Correlation => &mut args.correlation,
            Key::Device => &mut args.device,
            Key::Stream => &mut args.stream,
            Key::Bytes => &mut args.bytes,
            _ => {
                read_other(cursor, key, shapes, args)?;
                continue;
            }
        };
        let text = text_value(cursor)?.raw;
        match number::integer(text).or_else(|| number::hexadecimal(text)) {
            Some(integer) => *slot = integer,
            None => args.unread += u32::from(!matches!(text, b"" | b"null")),
        }
    }
}

/// Reads a wanted argument other than a plain integer.
fn read_other(cursor: &mut Cursor<'_>, key: Key, shapes: &mut Interner, args: &mut Args) -> Result<(), Fault> {
    let from = cursor.pos();
    match key {
        Key::Shape => {
            cursor.skip()?;
            args.shape = shapes.id(cursor.since(from)) + 1;
        }
        Key::Grid => {
            cursor.skip()?;
            args.grid = number::sides(cursor.since(from)).unwrap_or_default();
        }
        Key::Block => {
            cursor.skip()?;
            args.block = number::sides(cursor.since(from)).unwrap_or_default();
        }
        Key::Registers => args.registers = number::integer(text_value(cursor)?.raw).unwrap_or(NONE),
        Key::SharedMemory => args.shared_mem_bytes = number::integer(text_value(cursor)?.raw).unwrap_or(NONE),
        Key::Occupancy => args.occupancy_pct = number::decimal(text_value(cursor)?.raw),
        Key::Bandwidth => args.bandwidth_gbs = number::decimal(text_value(cursor)?.raw),
        Key::Collective => {
            cursor.skip()?;
            args.names_collective = true;
        }
        _ => cursor.skip()?,
    }
    Ok(())
}
