//! For fuzzing: calls of a hostile NCCL, as far as C allows them. Strings end with a zero byte, descriptors have the size
//! of their version and results have a place; handles, contexts, types, states and all other values are any bytes.

use std::ffi::{CStr, CString, c_char, c_int, c_void};
use std::ptr::{null, null_mut};
use std::sync::atomic::{AtomicI32, AtomicPtr, Ordering};
use std::sync::{Arc, Mutex};

use recorder::{Clock, Shared, lock};
use trace::{Checker, Row, batch_from_rows};

use super::super::callbacks::{Callbacks, Limits};
use super::super::in_flight::InFlight;
use super::super::record::{Event, What, event_mask, event_type};
use super::layout::{at, layout};
use super::{InitV3, InitV4, InitV5, Process, Table, v3, v4, v5, v6, v7};

/// The callbacks of the input that is checked; null between inputs.
static CURRENT: AtomicPtr<Callbacks> = AtomicPtr::new(null_mut());
/// One input at a time.
static ONE: Mutex<()> = Mutex::new(());
/// NCCL's mask.
static MASK: AtomicI32 = AtomicI32::new(0);
const RANK: i32 = 3;
/// Size of the longest descriptor.
const MAX_SIZE: usize = 136;
/// The most handles and contexts to which later calls refer.
const KEPT_HANDLES: usize = 64;

struct Hostile;

impl Process for Hostile {
    fn start() -> Option<&'static Callbacks> {
        Self::callbacks()
    }

    fn callbacks() -> Option<&'static Callbacks> {
        // SAFETY: null, or what `check_any_calls` owns until its last call has returned.
        unsafe { CURRENT.load(Ordering::Acquire).as_ref() }
    }

    fn reports_all() -> bool {
        false
    }

    fn last_comm_ended() {}
}

static V3: Table<InitV3> = v3::<Hostile>();
static V4: Table<InitV4> = v4::<Hostile>();
static V5: Table<InitV5> = v5::<Hostile>();
static V6: Table<InitV5> = v6::<Hostile>();
static V7: Table<InitV5> = v7::<Hostile>();

type Start = unsafe extern "C" fn(*mut c_void, *mut *mut c_void, *const c_void) -> c_int;
type Stop = unsafe extern "C" fn(*mut c_void) -> c_int;
type RecordState = unsafe extern "C" fn(*mut c_void, c_int, *const c_void) -> c_int;

/// The functions of a version, except `init`.
fn functions(version: u8) -> (Start, Stop, RecordState, Stop) {
    match version {
        3 => (V3.start, V3.stop, V3.record_state, V3.finalize),
        4 => (V4.start, V4.stop, V4.record_state, V4.finalize),
        5 => (V5.start, V5.stop, V5.record_state, V5.finalize),
        6 => (V6.start, V6.stop, V6.record_state, V6.finalize),
        _ => (V7.start, V7.stop, V7.record_state, V7.finalize),
    }
}

/// For fuzzing: no sequence of calls makes the callbacks or the worker panic, each call that is refused is counted, and
/// each operation that was recorded becomes one valid row.
///
/// # Panics
/// If a check fails.
pub fn check_any_calls(bytes: &[u8]) {
    let _one = lock(&ONE);
    let shared = Arc::new(Shared::new(Clock::system(), true));
    shared.set_active(true);
    let callbacks = Callbacks::new(shared.clone(), Arc::default(), Limits { handles: 32, comms: 4 });
    let (detail, rest) = bytes.split_first().unwrap_or((&0, bytes));
    let detail = match detail % 3 {
        0 => recorder::CollectiveDetail::Coll,
        1 => recorder::CollectiveDetail::Channels,
        _ => recorder::CollectiveDetail::Proxy,
    };
    callbacks.wanted.store(event_mask(detail), Ordering::Relaxed);
    let current = Box::into_raw(Box::new(callbacks));
    CURRENT.store(current, Ordering::Release);
    // SAFETY: it is alive until the end of this function.
    let mut calls = Calls::new(unsafe { &*current }, rest);
    while calls.one(&shared).is_some() {}
    calls.end();
    drop(calls);
    CURRENT.store(null_mut(), Ordering::Release);
    // SAFETY: `into_raw` above gave it, no call runs any more, and `ONE` keeps others out.
    drop(unsafe { Box::from_raw(current) });
}

struct Calls<'a> {
    callbacks: &'a Callbacks,
    in_flight: InFlight,
    bytes: &'a [u8],
    contexts: Vec<u64>,
    handles: Vec<u64>,
    /// Operations that must each become a row.
    operations: usize,
    rows: usize,
}

impl<'a> Calls<'a> {
    fn new(callbacks: &'a Callbacks, bytes: &'a [u8]) -> Self {
        let in_flight = InFlight::new(RANK);
        Self { callbacks, in_flight, bytes, contexts: vec![0], handles: vec![0], operations: 0, rows: 0 }
    }

    fn byte(&mut self) -> Option<u8> {
        let (byte, rest) = self.bytes.split_first()?;
        self.bytes = rest;
        Some(*byte)
    }

    /// Up to eight bytes as a number.
    fn number(&mut self) -> u64 {
        let (taken, rest) = self.bytes.split_at(self.bytes.len().min(8));
        self.bytes = rest;
        taken.iter().fold(0, |number, byte| number << 8 | u64::from(*byte))
    }

    /// A string of up to 60 bytes.
    fn text(&mut self) -> CString {
        let length = usize::from(self.byte().unwrap_or(0) % 60);
        let (taken, rest) = self.bytes.split_at(self.bytes.len().min(length));
        self.bytes = rest;
        CString::new(taken.split(|byte| *byte == 0).next().unwrap_or_default()).unwrap_or_default()
    }

    /// A handle of `known`, or any number.
    fn handle(&mut self, of_contexts: bool) -> u64 {
        let choice = usize::from(self.byte().unwrap_or(0));
        let known = if of_contexts { &self.contexts } else { &self.handles };
        match known.get(choice % (KEPT_HANDLES + 1)) {
            Some(handle) => *handle,
            None if choice > 200 => self.number(),
            None => known.last().copied().unwrap_or(0),
        }
    }

    /// Makes one call; `None` at the end of the input.
    fn one(&mut self, shared: &Shared) -> Option<()> {
        let call = self.byte()?;
        let version = call / 16 % 5 + 3;
        let (_, stop, record_state, finalize) = functions(version);
        match call % 16 {
            0 => self.init(version),
            1..=7 => self.start(version),
            8 | 9 => {
                let handle = self.handle(false);
                // SAFETY: a handle is a number; the plugin accepts any.
                assert_eq!(unsafe { stop(handle as usize as *mut c_void) }, 0);
            }
            10..=12 => {
                let (handle, state) = (self.handle(false), self.byte().unwrap_or(0));
                let state = if state == u8::MAX { self.number() as i32 } else { i32::from(state) };
                let value = [self.number(), 0xa5a5_a5a5_a5a5_a5a5];
                let at = if call >= 128 && version < 5 { null() } else { value.as_ptr().cast() };
                // SAFETY: as above; the arguments are null or as long as those of any version.
                assert_eq!(unsafe { record_state(handle as usize as *mut c_void, state, at) }, 0);
            }
            13 => {
                let context = self.handle(true);
                // SAFETY: a context is a number; the plugin accepts any.
                assert_eq!(unsafe { finalize(context as usize as *mut c_void) }, 0);
            }
            14 => shared.set_active(call < 192),
            _ => self.drain(false),
        }
        Some(())
    }

    fn init(&mut self, version: u8) {
        let (name, hash, ranks) = (self.text(), self.number(), self.number());
        let name: *const c_char = if name.is_empty() { null() } else { name.as_ptr() };
        let (ranks, rank) = (ranks as i32, (ranks >> 32) as i32);
        let (mut context, mask) = (null_mut(), MASK.as_ptr());
        let at = &raw mut context;
        // SAFETY: all pointers are valid for the call, and the mask for ever.
        let result = unsafe {
            match version {
                3 => (V3.init)(at, mask),
                4 => (V4.init)(at, mask, name, hash, 1, ranks, rank, null()),
                5 => (V5.init)(at, hash, mask, name, 1, ranks, rank, null()),
                6 => (V6.init)(at, hash, mask, name, 1, ranks, rank, null()),
                _ => (V7.init)(at, hash, mask, name, 1, ranks, rank, null()),
            }
        };
        assert_eq!(result, 0);
        keep(&mut self.contexts, context as usize as u64);
    }

    fn start(&mut self, version: u8) {
        let (context, parent) = (self.handle(true), self.handle(false));
        let kind = match self.byte().unwrap_or(0) {
            bit @ 0..=199 => 1 << (bit % 17),
            _ => self.number(),
        };
        let mut descriptor = [0xa5; MAX_SIZE];
        let length = usize::from(self.byte().unwrap_or(0)) % (MAX_SIZE + 1);
        let (taken, rest) = self.bytes.split_at(self.bytes.len().min(length));
        descriptor[..taken.len()].copy_from_slice(taken);
        self.bytes = rest;
        descriptor[8..16].copy_from_slice(&parent.to_ne_bytes());
        match version {
            3 | 4 => descriptor[0] = kind as u8,
            _ => descriptor[..8].copy_from_slice(&kind.to_ne_bytes()),
        }
        let kind = if version < 5 { kind & 0xff } else { kind };
        let own = self.text();
        let texts = [c"AllReduce", c"Send", c"Broadcast", c"ncclFloat32", c"Ring", &*own];
        for (place, offset) in strings(version, kind).into_iter().enumerate() {
            let choice = usize::from(taken.get(24 + place).copied().unwrap_or(place as u8));
            let text = texts.get(choice % (texts.len() + 1)).map_or(null(), |text: &&CStr| text.as_ptr());
            descriptor[offset..offset + 8].copy_from_slice(&text.expose_provenance().to_ne_bytes());
        }
        let mut handle = null_mut();
        // SAFETY: the descriptor is as long as the longest, lives during the call, and its strings end with a zero byte.
        let result = unsafe {
            functions(version).0(context as usize as *mut c_void, &raw mut handle, descriptor.as_ptr().cast())
        };
        assert_eq!(result, 0);
        let handle = handle as usize as u64;
        if handle != 0 {
            assert!(self.callbacks.handles.is_open(handle), "the handle of an event is open");
            keep(&mut self.handles, handle);
        }
    }

    /// One pass of the worker.
    fn drain(&mut self, last: bool) {
        self.in_flight.refresh_comms(self.callbacks);
        while let Some(record) = self.callbacks.pop() {
            if matches!(record.what, What::Start { event: Event::Coll(_) | Event::CeColl(_) | Event::P2p(_), .. }) {
                self.operations += 1;
            }
            self.in_flight.take(self.callbacks, record);
        }
        if last {
            let now_ns = self.callbacks.now_ns();
            self.in_flight.publish(now_ns, now_ns, true);
            let rows = std::mem::take(&mut self.in_flight.rows);
            self.rows += rows.collectives.len();
            check_rows(&rows.collectives);
            check_rows(&rows.channels);
            check_rows(&rows.proxies);
            check_rows(&rows.comms);
        }
    }

    /// The end of the process.
    fn end(&mut self) {
        self.callbacks.close();
        self.drain(true);
        let counted = self.in_flight.given_up + self.in_flight.unknown_ends;
        let calls_only = self.in_flight.unreported_broadcasts - self.in_flight.withdrawn_broadcasts;
        let operations = self.operations + calls_only as usize;
        assert_eq!(self.rows + counted as usize, operations, "each operation is a row or counted");
        assert_eq!(self.callbacks.counts.panics.load(Ordering::Relaxed), 0);
    }
}

/// Keeps a handle for later calls; of too many, the newest.
fn keep(known: &mut Vec<u64>, handle: u64) {
    if known.len() >= KEPT_HANDLES {
        known.remove(1);
    }
    known.push(handle);
}

/// Offsets of the strings that a descriptor of this type has.
fn strings(version: u8, kind: u64) -> Vec<usize> {
    let layout = layout(version);
    match kind {
        event_type::COLL => vec![layout.coll.func, layout.coll.datatype, layout.coll.algo, layout.coll.proto],
        event_type::P2P => vec![layout.p2p.func, layout.p2p.datatype],
        event_type::COLL_API => vec![at::COLL_API.0, at::COLL_API.2],
        event_type::P2P_API => vec![at::P2P_API.0, at::P2P_API.2],
        event_type::CE_COLL => vec![at::CE_FUNC, at::CE_DATATYPE],
        event_type::KERNEL_PHASE => vec![at::PHASE_NAME],
        _ => Vec::new(),
    }
}

fn check_rows<R: Row>(rows: &[R]) {
    // The recorder sorts the rows before it writes them.
    let table = trace::Table { sorted_by: None, ..R::table() };
    let checked = batch_from_rows(rows).and_then(|batch| Checker::new(&table, RANK).check(&batch));
    assert!(checked.is_ok(), "{checked:?}: {rows:?}");
}
