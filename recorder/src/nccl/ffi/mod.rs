//! NCCL's profiler plugin interface, versions 3 to 7: the functions that it calls, and the tables through which it finds
//! them.
//!
//! Every function catches panics, takes no lock (but for `init` and `finalize`), calls neither CUDA nor NCCL, and returns
//! success: only `init` may fail, and a recorder that cannot record says so itself.

mod chain;
pub(crate) mod layout;

use std::cell::Cell;
use std::ffi::{CStr, c_char, c_int, c_void};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicI32, Ordering};
use std::sync::{Mutex, PoisonError};

use self::chain::Chain;
use self::layout::Descriptor;
use super::core::{CHILDREN, CommInfo, Core};
use super::record::{Event, Launch, event_type, state};
use crate::cupti::{pop_scope, push_scope};
use crate::injected;

/// `ncclSuccess`.
const SUCCESS: c_int = 0;

/// NCCL's `ncclProfiler_vN_t`: a name and five functions.
#[derive(Debug)]
#[repr(C)]
pub struct Table<Init> {
    name: *const c_char,
    init: Init,
    start: unsafe extern "C" fn(*mut c_void, *mut *mut c_void, *const c_void) -> c_int,
    stop: unsafe extern "C" fn(*mut c_void) -> c_int,
    record_state: unsafe extern "C" fn(*mut c_void, c_int, *const c_void) -> c_int,
    finalize: unsafe extern "C" fn(*mut c_void) -> c_int,
}

// SAFETY: the table is constant: a pointer to a static string, and functions.
unsafe impl<Init> Sync for Table<Init> {}

/// `init` of v3: context, mask.
pub type InitV3 = unsafe extern "C" fn(*mut *mut c_void, *mut c_int) -> c_int;
/// `init` of v4: context, mask, name, hash, nodes, ranks, rank, logger.
pub type InitV4 =
    unsafe extern "C" fn(*mut *mut c_void, *mut c_int, *const c_char, u64, c_int, c_int, c_int, *const c_void) -> c_int;
/// `init` of v5 to v7: context, hash, mask, name, nodes, ranks, rank, logger.
pub type InitV5 =
    unsafe extern "C" fn(*mut *mut c_void, u64, *mut c_int, *const c_char, c_int, c_int, c_int, *const c_void) -> c_int;

const NAME: *const c_char = c"rankscope".as_ptr();

const fn table<const VERSION: u8, Init>(init: Init) -> Table<Init> {
    Table { name: NAME, init, start: start::<VERSION>, stop, record_state: record_state::<VERSION>, finalize }
}

/// `ncclProfiler_v3`: NCCL 2.26.
pub const V3: Table<InitV3> = table::<3, InitV3>(init_v3);
/// `ncclProfiler_v4`: NCCL 2.27.
pub const V4: Table<InitV4> = table::<4, InitV4>(init_v4);
/// `ncclProfiler_v5`: NCCL 2.28.
pub const V5: Table<InitV5> = table::<5, InitV5>(init_v5::<5>);
/// `ncclProfiler_v6`: NCCL 2.29 and 2.30.
pub const V6: Table<InitV5> = table::<6, InitV5>(init_v5::<6>);
/// `ncclProfiler_v7`: NCCL 2.31 and 2.32.
pub const V7: Table<InitV5> = table::<7, InitV5>(init_v5::<7>);

/// NCCL's own activation mask: one for the process, from the first `init` to the last `finalize`.
#[derive(Clone, Copy, Debug)]
struct MaskAt(*mut c_int);

// SAFETY: it is only used as an atomic, under the lock below, while NCCL is loaded.
unsafe impl Send for MaskAt {}

/// Taken by `init`, `finalize` and the worker, never while an event is recorded.
static MASK: Mutex<Option<MaskAt>> = Mutex::new(None);

fn mask() -> std::sync::MutexGuard<'static, Option<MaskAt>> {
    MASK.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Tells NCCL which events to report, from now on: what the recorder wants and what the second plugin wants.
pub(crate) fn set_mask(wanted: u64) {
    let both = wanted as c_int | chain::mask();
    if let Some(MaskAt(at)) = *mask()
        && !at.is_null()
        && at.is_aligned()
    {
        // SAFETY: NCCL's mask is a global of its library, read there with atomics, and valid until the last finalize,
        // which takes it away from here.
        unsafe { AtomicI32::from_ptr(at) }.store(both, Ordering::Relaxed);
    }
}

/// The body of every callback: whatever happens, NCCL sees success.
fn enter(body: impl FnOnce(&'static Core)) -> c_int {
    let Some(core) = injected::nccl_core() else { return SUCCESS };
    if catch_unwind(AssertUnwindSafe(|| body(core))).is_err() {
        core.counts.panics.fetch_add(1, Ordering::Relaxed);
    }
    SUCCESS
}

/// Writes to where NCCL wants a result, if it wants one.
fn answer<T>(at: *mut T, value: T) {
    if !at.is_null() {
        // SAFETY: NCCL passes the address of a variable of its own for the result.
        unsafe { at.write(value) };
    }
}

fn begin(context: *mut *mut c_void, mask_at: *mut c_int, info: CommInfo, init: impl FnOnce(&Chain) -> usize) -> c_int {
    answer(context, std::ptr::null_mut());
    // The first call starts the recorder: it may take locks, allocate and write files.
    let started = catch_unwind(AssertUnwindSafe(|| {
        // Only then: the mask is one for all communicators, and others may be at work.
        let Some(core) = injected::start_nccl() else { return answer(mask_at, 0) };
        let comm = core.open_comm(info);
        *mask() = Some(MaskAt(mask_at));
        if let Some(second) = chain::plugin(core)
            && comm != 0
        {
            core.comms.set_chained(comm, init(second));
            core.chained.store(true, Ordering::Relaxed);
        }
        answer(context, comm as usize as *mut c_void);
        let by_steps = injected::schedule().is_some() && injected::wanted();
        set_mask(if by_steps || core.is_active() { core.wanted.load(Ordering::Relaxed) } else { 0 });
    }));
    if started.is_err() {
        eprintln!("rankscope: an error inside the recorder; NCCL is not recorded");
    }
    SUCCESS
}

fn text(name: *const c_char) -> Option<String> {
    // SAFETY: NCCL passes null or a string that ends with a zero byte and lives during the call.
    let name = (!name.is_null()).then(|| unsafe { CStr::from_ptr(name) })?;
    Some(name.to_string_lossy().into_owned()).filter(|name| !name.is_empty())
}

unsafe extern "C" fn init_v3(context: *mut *mut c_void, mask_at: *mut c_int) -> c_int {
    let info = CommInfo { version: 3, ..CommInfo::default() };
    begin(context, mask_at, info, |chain| chain.init_v3())
}

unsafe extern "C" fn init_v4(
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
    begin(context, mask_at, info, |chain| chain.init_v4(name, hash, nodes, ranks, rank, log))
}

unsafe extern "C" fn init_v5<const VERSION: u8>(
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
    begin(context, mask_at, info, |chain| chain.init_v5(hash, name, nodes, ranks, rank, log))
}

fn comm_info(version: u8, name: *const c_char, hash: u64, nodes: c_int, ranks: c_int, rank: c_int) -> CommInfo {
    let (nodes, ranks, rank) = (Some(nodes), Some(ranks), Some(rank));
    CommInfo { version, hash, name: text(name), nodes, ranks, rank, ..CommInfo::default() }
}

unsafe extern "C" fn start<const VERSION: u8>(
    context: *mut c_void,
    handle_at: *mut *mut c_void,
    descriptor: *const c_void,
) -> c_int {
    answer(handle_at, std::ptr::null_mut());
    enter(|core| {
        // SAFETY: NCCL passes a descriptor of the version under which it found this function, alive during the call.
        let Some(descriptor) = (unsafe { Descriptor::new(descriptor, VERSION) }) else { return };
        let comm = context as usize as u64;
        let kind = descriptor.event_type();
        let chained = core.chained.load(Ordering::Relaxed);
        // Types of which nothing is kept need no handle, unless the second plugin has one. What an operation does may be
        // kept although nobody wants more of it.
        let below = if descriptor.parent() == 0 { 0 } else { CHILDREN };
        let kept = (core.wanted.load(Ordering::Relaxed) | below) & kind & KEPT != 0;
        if !kept && !chained {
            return;
        }
        let event = match descriptor.event(&core.words) {
            Event::KernelLaunch(_) if kept => Event::KernelLaunch(core.new_launch()),
            other => other,
        };
        let handle = core.start(comm, kind, descriptor.parent(), event);
        if let Event::KernelLaunch(launch) = event {
            enter_launch(core, handle, launch);
        }
        if chained && handle != 0 {
            chain::start(core, comm, handle, descriptor);
        }
        answer(handle_at, handle as usize as *mut c_void);
    })
}

/// Types that become rows, or that rows need.
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
    /// The launch that this thread is in, if CUPTI was told of it. Needs no destructor: the library may be closed.
    static LAUNCH: Cell<u64> = const { Cell::new(0) };
}

/// What this thread launches from now on carries the id of the launch's row, if CUPTI runs: it is the only sure way from
/// a kernel to its collective. CUPTI keeps these ids by thread, and NCCL starts and stops a launch on one.
fn enter_launch(core: &Core, handle: u64, launch: Launch) {
    // A launch whose stop never came must not be left on CUPTI's stack.
    leave_launch(LAUNCH.get());
    if handle != 0 && launch.row != 0 && core.is_linked() && push_scope(launch.row) {
        LAUNCH.set(handle);
    }
}

fn leave_launch(handle: u64) {
    if handle != 0 && LAUNCH.get() == handle {
        LAUNCH.set(0);
        pop_scope();
    }
}

unsafe extern "C" fn stop(handle: *mut c_void) -> c_int {
    enter(|core| {
        let handle = handle as usize as u64;
        if handle == 0 {
            return;
        }
        leave_launch(handle);
        // Before the stop: afterwards the slot may be another event's.
        let chained = core.handles.chained(handle);
        if core.stop(handle) && chained != 0 {
            chain::stop(chained);
        }
    })
}

unsafe extern "C" fn record_state<const VERSION: u8>(
    handle: *mut c_void,
    new_state: c_int,
    arguments: *const c_void,
) -> c_int {
    enter(|core| {
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
        if core.record_state(handle, new_state, value) {
            let chained = core.handles.chained(handle);
            if chained != 0 {
                chain::record_state(chained, new_state, arguments);
            }
        }
    })
}

unsafe extern "C" fn finalize(context: *mut c_void) -> c_int {
    enter(|core| {
        let comm = context as usize as u64;
        if comm == 0 {
            return;
        }
        let chained = core.comms.chained(comm);
        if core.close_comm(comm) && chained != 0 {
            chain::finalize(chained);
        }
        // After the last one NCCL may be unloaded, and its mask with it. Held meanwhile: another may come.
        let mut mask = mask();
        if !core.infos().values().any(|info| info.destroyed_ns.is_none()) {
            *mask = None;
        }
    })
}
