//! CUPTI's functions, and functions with which a test simulates the GPU.

use std::cell::RefCell;
use std::ffi::{c_char, c_void};
use std::sync::{Mutex, OnceLock, PoisonError};
use std::time::{SystemTime, UNIX_EPOCH};

use crate::records::{API, ExternalCorrelation, Kernel13, size_of_kind};
use crate::state::{Filling, behaviour, state, version};

type Callback = extern "C" fn(*mut c_void, u32, u32, *const c_void);
type Request = extern "C" fn(*mut *mut u8, *mut usize, *mut usize);
type Complete = extern "C" fn(*mut c_void, u32, *mut u8, usize, usize);
type Timestamp = extern "C" fn() -> u64;

static SUBSCRIBER: OnceLock<Callback> = OnceLock::new();
/// The buffers of the last profiler that registered some.
static BUFFERS: Mutex<Option<(Request, Complete)>> = Mutex::new(None);
static CLOCK: OnceLock<Timestamp> = OnceLock::new();

thread_local! {
    /// External ids of this thread, by kind.
    static EXTERNAL: RefCell<Vec<(u32, u64)>> = const { RefCell::new(Vec::new()) };
}

const SUCCESS: u32 = 0;
const INVALID_PARAMETER: u32 = 1;
const MAX_LIMIT_REACHED: u32 = 12;
const MULTIPLE_SUBSCRIBERS: u32 = 39;
const QUEUE_EMPTY: u32 = 18;
const UNKNOWN: u32 = 999;
const CONTEXT: u32 = 9;
const CONCURRENT_KERNEL: u32 = 10;
/// The domain and the id of the callback for a context that was made.
const CONTEXT_CREATED: (u32, u32) = (3, 1);
/// The first version with right correlation ids of graphs in every session.
const JOINS_GRAPHS: u32 = 130_101;

// POSIX, part of the C library.
unsafe extern "C" {
    fn atexit(function: extern "C" fn()) -> i32;
}

fn buffers() -> Option<(Request, Complete)> {
    *BUFFERS.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Counts a call of another thread than the one on which CUDA initialises.
fn enter() {
    let mut state = state();
    let intrudes = state.initialises.is_some_and(|thread| thread != std::thread::current().id());
    state.intruders += u64::from(intrudes);
}

fn now() -> u64 {
    let utc = || SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |d| d.as_nanos() as u64);
    CLOCK.get().map_or_else(utc, |clock| clock())
}

#[unsafe(no_mangle)]
extern "C" fn cuptiGetVersion(out: *mut u32) -> u32 {
    // SAFETY: the caller passes an address for the result; so in all functions below.
    unsafe { out.write(version()) };
    SUCCESS
}

#[unsafe(no_mangle)]
extern "C" fn cuptiGetTimestamp(out: *mut u64) -> u32 {
    enter();
    // SAFETY: as above.
    unsafe { out.write(now()) };
    SUCCESS
}

#[unsafe(no_mangle)]
extern "C" fn cuptiGetResultString(status: u32, out: *mut *const c_char) -> u32 {
    let text = match status {
        MULTIPLE_SUBSCRIBERS => c"CUPTI_ERROR_MULTIPLE_SUBSCRIBERS_NOT_SUPPORTED",
        UNKNOWN => c"CUPTI_ERROR_UNKNOWN",
        _ => c"CUPTI_ERROR_SOME",
    };
    // SAFETY: as above.
    unsafe { out.write(text.as_ptr()) };
    SUCCESS
}

#[unsafe(no_mangle)]
extern "C" fn cuptiGetCallbackName(domain: u32, id: u32, out: *mut *const c_char) -> u32 {
    let name = match (domain, id) {
        (2, 17) => c"cudaGetDevice_v3020",
        (2, 211) => c"cudaLaunchKernel_v7000",
        (2, 311) => c"cudaGraphLaunch_v10000",
        (2, 41) => c"cudaMemcpyAsync_v3020",
        (2, 131) => c"cudaStreamSynchronize_v3020",
        (1, 307) => c"cuLaunchKernel",
        (1, 652) => c"cuLaunchKernelEx",
        _ => return INVALID_PARAMETER,
    };
    // SAFETY: as above.
    unsafe { out.write(name.as_ptr()) };
    SUCCESS
}

#[unsafe(no_mangle)]
extern "C" fn cuptiSubscribe(out: *mut *mut c_void, callback: Callback, _: *mut c_void) -> u32 {
    if behaviour("busy") || std::mem::replace(&mut state().subscribed, true) {
        return MULTIPLE_SUBSCRIBERS;
    }
    SUBSCRIBER.get_or_init(|| callback);
    // SAFETY: as above.
    unsafe { out.write(std::ptr::dangling_mut::<u64>().cast()) };
    SUCCESS
}

/// The first fields of `CUpti_SubscriberParams`.
#[repr(C)]
struct SubscriberParams {
    struct_size: usize,
    name: *const c_char,
    old_name: *mut c_char,
    old_name_size: usize,
}

#[unsafe(no_mangle)]
extern "C" fn cuptiSubscribe_v2(
    out: *mut *mut c_void,
    callback: Callback,
    data: *mut c_void,
    params: *mut SubscriberParams,
) -> u32 {
    if !behaviour("busy") {
        return cuptiSubscribe(out, callback, data);
    }
    let name = b"CUPTI for somebody\0";
    // SAFETY: the caller owns the params, which hold the size of the name's buffer.
    unsafe {
        let params = &*params;
        if !params.old_name.is_null() && params.old_name_size >= name.len() {
            std::ptr::copy_nonoverlapping(name.as_ptr().cast(), params.old_name, name.len());
        }
    }
    MULTIPLE_SUBSCRIBERS
}

#[unsafe(no_mangle)]
extern "C" fn cuptiUnsubscribe(_: *mut c_void) -> u32 {
    state().subscribed = false;
    SUCCESS
}

#[unsafe(no_mangle)]
extern "C" fn cuptiEnableCallback(_: u32, _: *mut c_void, domain: u32, id: u32) -> u32 {
    state().callbacks.insert((domain, id));
    SUCCESS
}

#[unsafe(no_mangle)]
extern "C" fn cuptiActivityRegisterCallbacks(request: Request, complete: Complete) -> u32 {
    *BUFFERS.lock().unwrap_or_else(PoisonError::into_inner) = Some((request, complete));
    SUCCESS
}

#[unsafe(no_mangle)]
extern "C" fn cuptiActivityRegisterTimestampCallback(clock: Timestamp) -> u32 {
    if behaviour("no_clock") {
        return UNKNOWN;
    }
    // CUPTI requires it before any kind is enabled.
    if !state().enabled.is_empty() {
        return UNKNOWN;
    }
    CLOCK.get_or_init(|| clock);
    SUCCESS
}

#[unsafe(no_mangle)]
extern "C" fn cuptiActivitySetAttribute(_: u32, _: *mut usize, _: *mut c_void) -> u32 {
    SUCCESS
}

#[unsafe(no_mangle)]
extern "C" fn cuptiSetThreadIdType(_: u32) -> u32 {
    SUCCESS
}

#[unsafe(no_mangle)]
extern "C" fn cuptiActivityEnable(kind: u32) -> u32 {
    let mut state = state();
    state.enabled_kernels += u64::from(state.enabled.insert(kind) && kind == CONCURRENT_KERNEL);
    SUCCESS
}

#[unsafe(no_mangle)]
extern "C" fn cuptiActivityDisable(kind: u32) -> u32 {
    let mut state = state();
    state.disabled_kernels += u64::from(state.enabled.remove(&kind) && kind == CONCURRENT_KERNEL);
    SUCCESS
}

#[unsafe(no_mangle)]
extern "C" fn cuptiActivityEnableDriverApi(id: u32, enable: u8) -> u32 {
    if behaviour("no_driver_calls") {
        return UNKNOWN;
    }
    let mut state = state();
    let _ = if enable != 0 { state.driver_calls.insert(id) } else { state.driver_calls.remove(&id) };
    SUCCESS
}

#[unsafe(no_mangle)]
extern "C" fn cuptiActivityEnableRuntimeApi(id: u32, enable: u8) -> u32 {
    if behaviour("no_runtime_calls") {
        return UNKNOWN;
    }
    let mut state = state();
    let _ = if enable != 0 { state.left_out_calls.remove(&id) } else { state.left_out_calls.insert(id) };
    SUCCESS
}

#[unsafe(no_mangle)]
extern "C" fn cuptiActivityPushExternalCorrelationId(kind: u32, id: u64) -> u32 {
    if behaviour("no_external") {
        return UNKNOWN;
    }
    state().pushes += 1;
    EXTERNAL.with_borrow_mut(|ids| ids.push((kind, id)));
    SUCCESS
}

#[unsafe(no_mangle)]
extern "C" fn cuptiActivityPopExternalCorrelationId(kind: u32, last: *mut u64) -> u32 {
    EXTERNAL.with_borrow_mut(|ids| {
        let Some(index) = ids.iter().rposition(|(k, _)| *k == kind) else { return QUEUE_EMPTY };
        let (_, id) = ids.remove(index);
        // SAFETY: as above; a null pointer means that the caller ignores the id.
        if let Some(last) = unsafe { last.as_mut() } {
            *last = id;
        }
        SUCCESS
    })
}

#[unsafe(no_mangle)]
extern "C" fn cuptiActivityGetNumDroppedRecords(_: *mut c_void, _: u32, out: *mut usize) -> u32 {
    enter();
    let dropped = std::mem::take(&mut state().dropped);
    // SAFETY: as above.
    unsafe { out.write(dropped) };
    SUCCESS
}

#[unsafe(no_mangle)]
extern "C" fn cuptiActivityFlushAll(flag: u32) -> u32 {
    const FORCED: u32 = 1;
    enter();
    if state().is_over {
        return UNKNOWN;
    }
    let buffers = {
        let mut state = state();
        state.flushes += 1;
        let mut buffers = std::mem::take(&mut state.held);
        // A buffer is complete when its last kernel has ended, which on a device that is always behind is when it is full.
        if flag == FORCED || !behaviour("behind") {
            buffers.extend(state.filling.take());
        }
        buffers
    };
    buffers.into_iter().for_each(hand_back);
    SUCCESS
}

fn hand_back(Filling { address, bytes, used }: Filling) {
    let valid = if behaviour("truncate") { used.saturating_sub(4) } else { used };
    if let Some((_, complete)) = buffers() {
        complete(std::ptr::null_mut(), 0, address as *mut u8, bytes, valid);
    }
}

#[unsafe(no_mangle)]
extern "C" fn cuptiActivityGetNextRecord(buffer: *mut u8, valid: usize, record: *mut *mut u8) -> u32 {
    if behaviour("no_iterator") {
        return UNKNOWN;
    }
    // SAFETY: the record is null or one that this function returned, within `valid` bytes of `buffer`.
    unsafe {
        let at = if (*record).is_null() {
            0
        } else {
            let kind = record.read().cast::<u32>().read_unaligned();
            let size = size_of_kind(kind, version()).unwrap_or(valid);
            record.read() as usize - buffer as usize + size
        };
        // Like CUPTI, it returns a record that begins within the valid bytes.
        if at + 4 > valid {
            return MAX_LIMIT_REACHED;
        }
        record.write(buffer.add(at));
    }
    SUCCESS
}

// ---- functions with which a test simulates the program and the GPU
// ---------------------------------------------------------------------------------------------------------------------

/// CUPTI's current time.
#[unsafe(no_mangle)]
extern "C" fn stand_in_now() -> u64 {
    now()
}

/// Puts a record into the buffer if its kind is enabled. Returns whether it is.
#[unsafe(no_mangle)]
extern "C" fn stand_in_put(bytes: *const u8, len: usize) -> bool {
    // SAFETY: the test passes a slice.
    put(unsafe { std::slice::from_raw_parts(bytes, len) })
}

fn put(record: &[u8]) -> bool {
    let word = |at: usize| record.get(at..at + 4).map_or(0, |b| u32::from_ne_bytes([b[0], b[1], b[2], b[3]]));
    let kind = word(0);
    let confused = (kind == CONCURRENT_KERNEL && version() < JOINS_GRAPHS && state().enabled_kernels > 1).then(|| {
        let kernel = Kernel13::default();
        let mut record = record.to_vec();
        let (graph, correlation) =
            (std::mem::offset_of!(Kernel13, graph_id), std::mem::offset_of!(Kernel13, correlation_id));
        let is_graph = record[graph..graph + 4] != kernel.graph_id.to_ne_bytes();
        record[correlation] ^= if is_graph { 0x55 } else { 0 };
        record
    });
    let record = confused.as_deref().unwrap_or(record);
    let mut full = None;
    {
        let mut state = state();
        if kind == CONTEXT {
            state.makes_context();
        }
        let chosen = kind == 4 && state.driver_calls.contains(&word(4)) && !state.misses_driver_calls;
        if kind == 5 && state.left_out_calls.contains(&word(4)) {
            return false;
        }
        // Kinds that the source does not enable are recorded anyway.
        if kind < 50 && !chosen && !state.enabled.contains(&kind) {
            return false;
        }
        if state.filling.is_some_and(|filling| filling.used + record.len() > filling.bytes) {
            full = state.filling.take();
        }
    }
    match full {
        Some(full) if behaviour("hold") => state().held.push(full),
        Some(full) => hand_back(full),
        None => {}
    }
    if state().filling.is_none() {
        let Some(filling) = request() else {
            state().dropped += 1;
            return false;
        };
        state().filling = Some(filling);
    }
    if let Some(filling) = &mut state().filling {
        // SAFETY: the buffer is lent, and the check above shows that the record fits.
        unsafe {
            std::ptr::copy_nonoverlapping(record.as_ptr(), (filling.address + filling.used) as *mut u8, record.len());
        }
        filling.used += record.len();
    }
    true
}

fn request() -> Option<Filling> {
    let (mut buffer, mut bytes, mut most) = (std::ptr::null_mut(), 0, 0);
    let (request, _) = buffers()?;
    request(&raw mut buffer, &raw mut bytes, &raw mut most);
    (!buffer.is_null() && bytes > 0).then_some(Filling { address: buffer as usize, bytes, used: 0 })
}

/// A call of the runtime (kind 5) or the driver (4) on this thread at the current time. Returns its correlation id.
#[unsafe(no_mangle)]
extern "C" fn stand_in_call(kind: u32, id: u32, thread_id: u32) -> u32 {
    let correlation_id = {
        let mut state = state();
        state.next_correlation += 1;
        state.next_correlation
    };
    EXTERNAL.with_borrow(|ids| {
        // The innermost id of each kind.
        for (index, (external_kind, external_id)) in ids.iter().enumerate() {
            if ids[index + 1..].iter().all(|(kind, _)| kind != external_kind) {
                let (external_kind, external_id) = (*external_kind, *external_id);
                let record = ExternalCorrelation { external_kind, external_id, correlation_id, ..Default::default() };
                put(&record.bytes(version()));
            }
        }
    });
    let start = now();
    let process_id = std::process::id();
    let end = now().max(start + 1);
    let call = API { kind, callback_id: id, start, end, process_id, thread_id, correlation_id, return_value: 0 };
    put(&call.bytes(version()));
    correlation_id
}

/// Calls the subscriber if it enabled this callback. `site` is 0 at the start of a function.
#[unsafe(no_mangle)]
extern "C" fn stand_in_event(domain: u32, id: u32, site: u32) -> bool {
    if (domain, id) == CONTEXT_CREATED {
        state().makes_context();
    }
    let wanted = state().callbacks.contains(&(domain, id));
    if let Some(callback) = SUBSCRIBER.get().filter(|_| wanted) {
        callback(std::ptr::null_mut(), domain, id, (&raw const site).cast());
    }
    wanted
}

/// Begins or ends the initialisation of CUDA on this thread. At its end the driver registers its handler for the exit.
#[unsafe(no_mangle)]
extern "C" fn stand_in_initialise(begins: bool) {
    extern "C" fn exits() {
        state().is_over = true;
    }
    state().initialises = begins.then(|| std::thread::current().id());
    if !begins {
        // SAFETY: the function lives as long as the process, because the program never closes this library.
        unsafe { atexit(exits) };
    }
}

/// Calls of other threads while CUDA initialised.
#[unsafe(no_mangle)]
extern "C" fn stand_in_intruders() -> u64 {
    state().intruders
}

/// Another profiler of the process registers buffers, into which all further records go.
#[unsafe(no_mangle)]
extern "C" fn stand_in_take() {
    extern "C" fn request(buffer: *mut *mut u8, size: *mut usize, most: *mut usize) {
        let bytes = Box::leak(vec![0_u64; 8192].into_boxed_slice());
        // SAFETY: as above; the buffer is never freed.
        unsafe {
            buffer.write(bytes.as_mut_ptr().cast());
            size.write(8 * bytes.len());
            most.write(0);
        }
    }
    extern "C" fn complete(_: *mut c_void, _: u32, _: *mut u8, _: usize, _: usize) {}
    cuptiActivityRegisterCallbacks(request, complete);
    let held = state().filling.take();
    held.into_iter().for_each(hand_back);
}

/// How often kernels were disabled.
#[unsafe(no_mangle)]
extern "C" fn stand_in_disabled() -> u64 {
    state().disabled_kernels
}

/// Number of flushes.
#[unsafe(no_mangle)]
extern "C" fn stand_in_flushes() -> u64 {
    state().flushes
}

/// Number of external ids pushed.
#[unsafe(no_mangle)]
extern "C" fn stand_in_pushes() -> u64 {
    state().pushes
}
