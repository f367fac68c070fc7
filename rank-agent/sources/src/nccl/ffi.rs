//! NCCL's profiler plugin interface, versions 3 to 7: the functions that NCCL calls, and the tables in which it finds them.
//!
//! Every function catches panics, takes no lock (except `init`, `finalize`, and the call after which NCCL is asked for no channels), calls
//! neither CUDA nor NCCL, and returns success. The `finalize` of the last communicator waits until the rows are written, but no longer
//! than seconds. If the process cannot be recorded, the recorder itself reports that.

mod chain;
#[cfg(feature = "fuzzing")]
pub mod fuzz;
pub(crate) mod layout;
mod library;
mod table;

use std::cell::Cell;
use std::ffi::{CStr, c_char, c_int, c_void};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicU8, Ordering};
use std::sync::{Mutex, MutexGuard};

use recorder::{lock, report};

use self::chain::Chain;
use self::layout::Descriptor;
pub use self::library::{Found, find};
use self::table::SUCCESS;
pub use self::table::{InitV3, InitV4, InitV5, Table};
use super::callbacks::{CHILDREN, Callbacks, CommInfo, Confusion};
use super::record::{CALLS_OF_BROADCASTS, COUNTS_ALL_WORK, Event, Launch, event_type, state};

/// With 0, NCCL 2.29 and later does not combine broadcasts (enqueue.cc: `ncclParamAllgathervEnable`).
const COMBINING: &str = "NCCL_ALLGATHERV_ENABLE";

/// The process that NCCL has loaded the plugin into.
pub trait Process {
    /// Starts the recorder and the NCCL source, if the process is to be recorded.
    fn start() -> Option<&'static Callbacks>;
    /// The running NCCL source; `None` before the first communicator and in a fork.
    fn callbacks() -> Option<&'static Callbacks>;
    /// Whether NCCL reports all events now, even while recording is inactive.
    fn reports_all() -> bool;
    /// The last communicator has ended: the process may end soon, and without its handlers.
    fn last_comm_ended();
}

const NAME: *const c_char = c"rankscope".as_ptr();

const fn table<P: Process, const VERSION: u8, Init: Copy>(init: Init) -> Table<Init> {
    Table {
        name: NAME,
        init,
        start: start::<P, VERSION>,
        stop: stop::<P>,
        record_state: record_state::<P, VERSION>,
        finalize: finalize::<P>,
    }
}

/// `ncclProfiler_v3`: NCCL 2.26.
pub const fn v3<P: Process>() -> Table<InitV3> {
    table::<P, 3, InitV3>(init_v3::<P>)
}

/// `ncclProfiler_v4`: NCCL 2.27.
pub const fn v4<P: Process>() -> Table<InitV4> {
    table::<P, 4, InitV4>(init_v4::<P>)
}

/// `ncclProfiler_v5`: NCCL 2.28.
pub const fn v5<P: Process>() -> Table<InitV5> {
    table::<P, 5, InitV5>(init_v5::<P, 5>)
}

/// `ncclProfiler_v6`: NCCL 2.29 and 2.30.
pub const fn v6<P: Process>() -> Table<InitV5> {
    table::<P, 6, InitV5>(init_v5::<P, 6>)
}

/// `ncclProfiler_v7`: NCCL 2.31 and 2.32.
pub const fn v7<P: Process>() -> Table<InitV5> {
    table::<P, 7, InitV5>(init_v5::<P, 7>)
}

/// NCCL's own activation mask: one for the process, from the first `init` to the last `finalize`.
#[derive(Clone, Copy, Debug)]
struct MaskAt(*mut c_int);

// SAFETY: the pointer is only used as an atomic, under the lock below, while NCCL is loaded.
unsafe impl Send for MaskAt {}

/// Locked by `init`, `finalize`, the worker and the event after which NCCL is asked for no channels, never by another event.
static MASK: Mutex<Option<MaskAt>> = Mutex::new(None);
/// A CUDA graph was captured in this process.
static CAPTURED: AtomicBool = AtomicBool::new(false);
/// The version of the interface that NCCL uses; 0 before its first communicator.
static VERSION_IN_USE: AtomicU8 = AtomicU8::new(0);
/// Whether NCCL combines broadcasts.
static COMBINES: AtomicBool = AtomicBool::new(false);

fn mask() -> MutexGuard<'static, Option<MaskAt>> {
    lock(&MASK)
}

/// Sets the events that NCCL reports from now on: those of the recorder and those of the second plugin. The events of the
/// GPU's channels stay as the first communicator has decided, because NCCL would confuse their times.
pub(crate) fn set_mask(wanted: u64, callbacks: &Callbacks) {
    store_mask(&mask(), wanted, callbacks);
}

fn store_mask(mask: &Option<MaskAt>, wanted: u64, callbacks: &Callbacks) {
    let both = (wanted | chain::mask() as u64) & !event_type::KERNEL | callbacks.kernel_events().unwrap_or(0);
    if let Some(mask) = atomic_mask(mask) {
        mask.store(both as c_int, Ordering::Relaxed);
    }
}

/// NCCL's mask, while it exists. Its lock must be held.
fn atomic_mask(mask: &Option<MaskAt>) -> Option<&AtomicI32> {
    let MaskAt(at) = (*mask).filter(|MaskAt(at)| !at.is_null() && at.is_aligned())?;
    // SAFETY: NCCL's mask is a global variable of its library, which reads it with atomics. It is valid until the last
    // finalize, which removes the pointer from `MASK` under the lock.
    Some(unsafe { AtomicI32::from_ptr(at) })
}

/// Call it before the program captures a CUDA graph. NCCL 2.26 to 2.30 counts captured work on the device at every launch
/// of the graph, but not on the host: its times would belong to other operations, and the proxy thread could wait for ever
/// at the end of a communicator. With NCCL 2.31 and later, combined broadcasts have this effect (see `in_flight::unreported`), and a graph
/// keeps its channels after them. So NCCL is asked for no times of channels from here on.
pub fn capture_begins(callbacks: Option<&Callbacks>) {
    CAPTURED.store(true, Ordering::SeqCst);
    if let Some(callbacks) = callbacks
        && confuses_captures()
    {
        give_up_channels(callbacks, Confusion::Capture);
    }
}

/// Whether NCCL can confuse times after a capture. Before its first communicator it was asked for nothing yet.
fn confuses_captures() -> bool {
    let version = VERSION_IN_USE.load(Ordering::Relaxed);
    version != 0 && (version < COUNTS_ALL_WORK || COMBINES.load(Ordering::Relaxed))
}

/// Asks NCCL for no times of channels from here on.
fn give_up_channels(callbacks: &Callbacks, why: Confusion) {
    let mask = mask();
    // Other threads do not wait for the lock once `kernel_events` is 0, so NCCL's mask changes first.
    atomic_mask(&mask).map(|mask| mask.fetch_and(!(event_type::KERNEL as c_int), Ordering::Release));
    callbacks.give_up_kernel_events(why);
}

/// Runs the body of a callback. NCCL always receives success.
fn enter<P: Process>(body: impl FnOnce(&'static Callbacks)) -> c_int {
    let Some(callbacks) = P::callbacks() else { return SUCCESS };
    if catch_unwind(AssertUnwindSafe(|| body(callbacks))).is_err() {
        callbacks.counts.panics.fetch_add(1, Ordering::Relaxed);
    }
    SUCCESS
}

/// Writes a result, if NCCL passed an address for it.
fn answer<T>(at: *mut T, value: T) {
    if !at.is_null() {
        // SAFETY: NCCL passes the address of its own variable for the result.
        unsafe { at.write(value) };
    }
}

fn begin<P: Process>(
    context: *mut *mut c_void,
    mask_at: *mut c_int,
    info: CommInfo,
    init: impl FnOnce(&Chain) -> usize,
) -> c_int {
    answer(context, std::ptr::null_mut());
    // The first call starts the recorder: it may take locks, allocate and write files.
    let started = catch_unwind(AssertUnwindSafe(|| {
        // Set the mask to 0 only if nothing is recorded: all communicators share it, and others may be running.
        let Some(callbacks) = P::start() else { return answer(mask_at, 0) };
        let combines =
            info.version >= CALLS_OF_BROADCASTS && std::env::var_os(COMBINING).is_none_or(|value| value != "0");
        // NCCL reads the variable once.
        COMBINES.fetch_or(combines, Ordering::Relaxed);
        VERSION_IN_USE.store(info.version, Ordering::Relaxed);
        let comm = callbacks.open_comm(info);
        *mask() = Some(MaskAt(mask_at));
        if let Some(second) = chain::plugin(callbacks)
            && comm != 0
        {
            callbacks.comms.set_chained(comm, init(second));
            callbacks.chained.store(true, Ordering::Relaxed);
        }
        answer(context, comm as usize as *mut c_void);
        let wanted = callbacks.wanted.load(Ordering::Relaxed);
        let mask = mask();
        // Even while recording is inactive: these events cannot be asked for later.
        callbacks.ask_kernel_events(wanted | chain::mask() as u64);
        if CAPTURED.load(Ordering::SeqCst) && confuses_captures() {
            callbacks.give_up_kernel_events(Confusion::Capture);
        }
        let is_active = P::reports_all() || callbacks.is_active();
        store_mask(&mask, if is_active { wanted } else { event_type::API }, callbacks);
    }));
    if started.is_err() {
        report("an error inside the recorder; NCCL is not recorded");
    }
    SUCCESS
}

fn text(name: *const c_char) -> Option<String> {
    // SAFETY: NCCL passes null or a string that ends with a zero byte and lives during the call.
    let name = (!name.is_null()).then(|| unsafe { CStr::from_ptr(name) })?;
    Some(name.to_string_lossy().into_owned()).filter(|name| !name.is_empty())
}

unsafe extern "C" fn init_v3<P: Process>(context: *mut *mut c_void, mask_at: *mut c_int) -> c_int {
    let info = CommInfo { version: 3, ..CommInfo::default() };
    begin::<P>(context, mask_at, info, |chain| chain.init_v3())
}

unsafe extern "C" fn init_v4<P: Process>(
    context: *mut *mut c_void,
    mask_at: *mut c_int,
    name: *const c_char,
    hash: u64,
    nodes: c_int,
    ranks: c_int,
    rank: c_int,
    log: *const c_void,
) -> c_int {
    let info = comm_info(4, name, hash, nodes, ranks, rank);
    begin::<P>(context, mask_at, info, |chain| chain.init_v4(name, hash, nodes, ranks, rank, log))
}

unsafe extern "C" fn init_v5<P: Process, const VERSION: u8>(
    context: *mut *mut c_void,
    hash: u64,
    mask_at: *mut c_int,
    name: *const c_char,
    nodes: c_int,
    ranks: c_int,
    rank: c_int,
    log: *const c_void,
) -> c_int {
    let info = comm_info(VERSION, name, hash, nodes, ranks, rank);
    begin::<P>(context, mask_at, info, |chain| chain.init_v5(hash, name, nodes, ranks, rank, log))
}

fn comm_info(version: u8, name: *const c_char, hash: u64, nodes: c_int, ranks: c_int, rank: c_int) -> CommInfo {
    let (nodes, ranks, rank) = (Some(nodes), Some(ranks), Some(rank));
    CommInfo { version, hash, name: text(name), nodes, ranks, rank, ..CommInfo::default() }
}

unsafe extern "C" fn start<P: Process, const VERSION: u8>(
    context: *mut c_void,
    handle_at: *mut *mut c_void,
    descriptor: *const c_void,
) -> c_int {
    answer(handle_at, std::ptr::null_mut());
    enter::<P>(|callbacks| {
        // SAFETY: NCCL passes a descriptor of the version under which it found this function, alive during the call.
        let Some(descriptor) = (unsafe { Descriptor::new(descriptor, VERSION) }) else { return };
        let comm = context as usize as u64;
        let kind = descriptor.event_type();
        let chained = callbacks.chained.load(Ordering::Relaxed);
        let types = if VERSION < 5 { KEPT | event_type::GROUP } else { KEPT };
        // Types without rows need no handle, unless the second plugin has one. Child events may be recorded although the
        // current mask excludes them.
        let below = if descriptor.parent() == 0 { 0 } else { CHILDREN };
        let kept = (callbacks.wanted.load(Ordering::Relaxed) | below) & kind & types != 0;
        if !kept && !chained {
            return;
        }
        let event = match descriptor.event(&callbacks.strings) {
            Event::KernelLaunch(_) if kept => Event::KernelLaunch(callbacks.new_launch()),
            Event::GroupApi(_) if kept && VERSION >= CALLS_OF_BROADCASTS && callbacks.is_active() => {
                Event::GroupApi(callbacks.new_launch())
            }
            _ if kept && kind == event_type::GROUP => Event::Group(callbacks.new_launch()),
            other => other,
        };
        // If CUPTI runs, it has seen the begin of the capture already.
        if event.is_captured() && !CAPTURED.load(Ordering::Relaxed) {
            capture_begins(Some(callbacks));
        }
        if callbacks.kernel_events() != Some(0) && combines_broadcasts(callbacks, VERSION, &event) {
            give_up_channels(callbacks, Confusion::Broadcasts);
        }
        let handle = callbacks.start(comm, kind, descriptor.parent(), event);
        if let Event::KernelLaunch(launch) = event {
            enter_launch(callbacks, handle, launch);
        }
        if chained && handle != 0 {
            chain::start(callbacks, comm, handle, descriptor);
        }
        answer(handle_at, handle as usize as *mut c_void);
    })
}

/// Types that become rows, or that rows need. Before version 5, groups stand for the launches that NCCL does not report: NCCL
/// begins them when their kernel has been launched (`hostStreamPlanTask` in enqueue.cc), on the launching thread or, if it works by
/// callbacks of the stream, as for captured work, on a thread that launches nothing.
const KEPT: u64 = event_type::COLL
    | event_type::P2P
    | event_type::PROXY_OP
    | event_type::PROXY_STEP
    | event_type::KERNEL_CH
    | event_type::GROUP_API
    | event_type::COLL_API
    | event_type::P2P_API
    | event_type::KERNEL_LAUNCH
    | event_type::CE_COLL
    | event_type::CE_SYNC
    | event_type::CE_BATCH
    | event_type::KERNEL_PHASE;

thread_local! {
    /// The launch whose id this thread has pushed to CUPTI. It needs no destructor: the library may be closed.
    static LAUNCH: Cell<u64> = const { Cell::new(0) };
}

thread_local! {
    /// The root of the last broadcast in the group of calls that this thread makes.
    static ROOT: Cell<Option<i32>> = const { Cell::new(None) };
}

/// Whether NCCL combines the broadcast that is called, so that its counters of the device and of the host differ from here on (see
/// `in_flight::unreported`). Broadcasts of two communicators in a group count as those of one.
fn combines_broadcasts(callbacks: &Callbacks, version: u8, event: &Event) -> bool {
    match event {
        Event::GroupApi(_) => {
            ROOT.set(None);
            false
        }
        Event::CollApi(api) if COMBINES.load(Ordering::Relaxed) && callbacks.is_broadcast(api.func) => {
            let before = ROOT.replace(Some(api.root));
            version >= COUNTS_ALL_WORK || before.is_some_and(|root| root != api.root)
        }
        _ => false,
    }
}

/// Kernels that this thread launches from now on carry the id of the launch's row, if CUPTI runs. Only this id reliably
/// links a kernel to its collective. CUPTI keeps these ids by thread, and NCCL starts and stops a launch on one thread.
fn enter_launch(callbacks: &Callbacks, handle: u64, launch: Launch) {
    // Remove a launch without a stop event from CUPTI's stack.
    leave_launch(callbacks, LAUNCH.get());
    if handle != 0 && launch.row != 0 && callbacks.push_scope(launch.row) {
        LAUNCH.set(handle);
    }
}

fn leave_launch(callbacks: &Callbacks, handle: u64) {
    if handle != 0 && LAUNCH.get() == handle {
        LAUNCH.set(0);
        callbacks.pop_scope();
    }
}

unsafe extern "C" fn stop<P: Process>(handle: *mut c_void) -> c_int {
    enter::<P>(|callbacks| {
        let handle = handle as usize as u64;
        if handle == 0 {
            return;
        }
        leave_launch(callbacks, handle);
        // Read it before the stop: afterwards another event may have the slot.
        let chained = callbacks.handles.chained(handle);
        if callbacks.stop(handle) && chained != 0 {
            chain::stop(chained);
        }
    })
}

unsafe extern "C" fn record_state<P: Process, const VERSION: u8>(
    handle: *mut c_void,
    new_state: c_int,
    arguments: *const c_void,
) -> c_int {
    enter::<P>(|callbacks| {
        let handle = handle as usize as u64;
        if handle == 0 {
            return;
        }
        let has_value = match new_state {
            state::KERNEL_CH_STOP | state::KERNEL_PHASE_STOP => true,
            // `proxyStep.transSize`.
            state::SEND_WAIT | state::RECV_FLUSH_WAIT => VERSION >= 4,
            _ => false,
        };
        let value = match has_value && !arguments.is_null() {
            // SAFETY: the arguments of these states begin with 64 bits (pTimer, transSize), in every version from 4 on.
            true => unsafe { arguments.cast::<u64>().read_unaligned() },
            false => 0,
        };
        if callbacks.record_state(handle, new_state, value) {
            let chained = callbacks.handles.chained(handle);
            if chained != 0 {
                chain::record_state(chained, new_state, arguments);
            }
        }
    })
}

unsafe extern "C" fn finalize<P: Process>(context: *mut c_void) -> c_int {
    enter::<P>(|callbacks| {
        let comm = context as usize as u64;
        if comm == 0 {
            return;
        }
        let chained = callbacks.comms.chained(comm);
        if callbacks.close_comm(comm) && chained != 0 {
            chain::finalize(chained);
        }
        // After the last communicator NCCL and its mask may be unloaded. Keep the lock: another one may begin.
        let mut mask = mask();
        if !callbacks.infos().values().any(|info| info.destroyed_ns.is_none()) {
            *mask = None;
            // The worker takes the lock too.
            drop(mask);
            P::last_comm_ended();
        }
    })
}
