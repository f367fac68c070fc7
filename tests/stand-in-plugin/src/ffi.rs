//! The tables, and the functions in them.

use std::ffi::{c_char, c_int, c_void};
use std::io::Write;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

/// Group, Coll, P2p, KernelCh, GroupApi, CollApi. The recorder makes no rows of groups.
pub const MASK: c_int = 1 | 2 | 4 | 64 | 256 | 512;
/// Its first handle.
pub const FIRST_HANDLE: usize = 0x7000_0000_0000;

static NEXT: AtomicUsize = AtomicUsize::new(FIRST_HANDLE);
static FILE: Mutex<Option<std::fs::File>> = Mutex::new(None);

fn say(line: &str) {
    let mut file = FILE.lock().unwrap();
    let file = file.get_or_insert_with(|| {
        let path = std::env::var_os("STAND_IN_PLUGIN").expect("STAND_IN_PLUGIN names a file");
        std::fs::OpenOptions::new().create(true).append(true).open(path).unwrap()
    });
    writeln!(file, "{line}").unwrap();
}

/// A table of NCCL's plugin interface.
#[repr(C)]
pub struct Table<Init> {
    name: *const c_char,
    init: Init,
    start: unsafe extern "C" fn(*mut c_void, *mut *mut c_void, *const c_void) -> c_int,
    stop: unsafe extern "C" fn(*mut c_void) -> c_int,
    record_state: unsafe extern "C" fn(*mut c_void, c_int, *const c_void) -> c_int,
    finalize: unsafe extern "C" fn(*mut c_void) -> c_int,
}

// SAFETY: the table is constant.
unsafe impl<Init> Sync for Table<Init> {}

type InitV3 = unsafe extern "C" fn(*mut *mut c_void, *mut c_int) -> c_int;
type InitV4 =
    unsafe extern "C" fn(*mut *mut c_void, *mut c_int, *const c_char, u64, c_int, c_int, c_int, *const c_void) -> c_int;
type InitV5 =
    unsafe extern "C" fn(*mut *mut c_void, u64, *mut c_int, *const c_char, c_int, c_int, c_int, *const c_void) -> c_int;

const fn table<Init>(init: Init, start: StartEvent) -> Table<Init> {
    Table { name: c"stand-in".as_ptr(), init, start, stop, record_state, finalize }
}

type StartEvent = unsafe extern "C" fn(*mut c_void, *mut *mut c_void, *const c_void) -> c_int;

/// NCCL 2.26.
#[unsafe(no_mangle)]
pub static ncclProfiler_v3: Table<InitV3> = table(init_v3, start_u8);
/// NCCL 2.27.
#[unsafe(no_mangle)]
pub static ncclProfiler_v4: Table<InitV4> = table(init_v4, start_u8);
/// NCCL 2.28. There is no table for 2.29 and newer, like in an outdated plugin.
#[unsafe(no_mangle)]
pub static ncclProfiler_v5: Table<InitV5> = table(init_v5, start_u64);

unsafe fn begin(context: *mut *mut c_void, mask: *mut c_int) -> c_int {
    let own = NEXT.fetch_add(16, Ordering::Relaxed);
    // SAFETY: both are addresses for results.
    unsafe {
        context.write(own as *mut c_void);
        mask.write(MASK);
    }
    say(&format!("init {own}"));
    0
}

unsafe extern "C" fn init_v3(context: *mut *mut c_void, mask: *mut c_int) -> c_int {
    // SAFETY: as the caller's.
    unsafe { begin(context, mask) }
}

unsafe extern "C" fn init_v4(
    context: *mut *mut c_void,
    mask: *mut c_int,
    name: *const c_char,
    hash: u64,
    _nodes: c_int,
    ranks: c_int,
    _rank: c_int,
    _log: *const c_void,
) -> c_int {
    assert!(!name.is_null() && hash != 0 && ranks > 0, "the order of the arguments");
    // SAFETY: as the caller's.
    unsafe { begin(context, mask) }
}

unsafe extern "C" fn init_v5(
    context: *mut *mut c_void,
    hash: u64,
    mask: *mut c_int,
    name: *const c_char,
    _nodes: c_int,
    ranks: c_int,
    _rank: c_int,
    _log: *const c_void,
) -> c_int {
    assert!(!name.is_null() && hash != 0 && ranks > 0, "the order of the arguments");
    // SAFETY: as the caller's.
    unsafe { begin(context, mask) }
}

unsafe extern "C" fn start_u8(context: *mut c_void, handle: *mut *mut c_void, descriptor: *const c_void) -> c_int {
    // SAFETY: up to v4, a descriptor begins with a one-byte type.
    let kind = unsafe { descriptor.cast::<u8>().read() };
    // SAFETY: as the caller's.
    unsafe { start(context, handle, descriptor, kind.into()) }
}

unsafe extern "C" fn start_u64(context: *mut c_void, handle: *mut *mut c_void, descriptor: *const c_void) -> c_int {
    // SAFETY: from v5 on, a descriptor begins with an eight-byte type.
    let kind = unsafe { descriptor.cast::<u64>().read_unaligned() };
    // SAFETY: as the caller's.
    unsafe { start(context, handle, descriptor, kind) }
}

unsafe fn start(context: *mut c_void, handle: *mut *mut c_void, descriptor: *const c_void, kind: u64) -> c_int {
    // SAFETY: the parent follows the type in every version.
    let parent = unsafe { descriptor.cast::<usize>().add(1).read_unaligned() };
    let own = NEXT.fetch_add(16, Ordering::Relaxed);
    let refused = (own / 16).is_multiple_of(7);
    // SAFETY: an address for the result.
    unsafe { handle.write(if refused { std::ptr::null_mut() } else { own as *mut c_void }) };
    if refused {
        say(&format!("refuse {kind}"));
    } else {
        say(&format!("start {own} {kind} {parent} {}", context as usize));
    }
    0
}

unsafe extern "C" fn stop(handle: *mut c_void) -> c_int {
    say(&format!("stop {}", handle as usize));
    0
}

unsafe extern "C" fn record_state(handle: *mut c_void, state: c_int, _arguments: *const c_void) -> c_int {
    say(&format!("state {} {state}", handle as usize));
    0
}

unsafe extern "C" fn finalize(context: *mut c_void) -> c_int {
    say(&format!("finalize {}", context as usize));
    0
}
