//! A second plugin behind this one. NCCL loads only one plugin, so this one passes its calls on.
//!
//! The second plugin must have the interface version that NCCL uses with this plugin. From v5 on an older version also
//! works, because a descriptor of v6 or v7 begins with that of v5. The second plugin receives every event of its own mask
//! for which this plugin has a handle, with its own handles as parents. It never receives a stop event or a state change of
//! an event that has ended.

use std::ffi::{c_char, c_int, c_void};
use std::mem::MaybeUninit;
use std::path::PathBuf;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicI32, Ordering};

use recorder::report;

use super::layout::{Descriptor, PARENT};
use super::table::{InitV3, InitV4, InitV5, SUCCESS, Table};
use crate::nccl::callbacks::Callbacks;

/// Path of the second plugin.
pub(crate) const VARIABLE: &str = "RANKSCOPE_NCCL_CHAIN";

/// The second plugin. It is never unloaded.
#[derive(Clone, Copy, Debug)]
pub(super) struct Chain {
    table: Tables,
    /// Event types of its interface version.
    types: u64,
}

#[derive(Clone, Copy, Debug)]
enum Tables {
    V3(&'static Table<InitV3>),
    V4(&'static Table<InitV4>),
    V5(&'static Table<InitV5>),
}

static CHAIN: OnceLock<Option<Chain>> = OnceLock::new();
/// The second plugin's event mask, which it may change at any time.
static WANTED: AtomicI32 = AtomicI32::new(0);

/// The second plugin's event mask.
pub(super) fn mask() -> c_int {
    WANTED.load(Ordering::Relaxed)
}

/// The second plugin, loaded at the first call; `None` without one. A failure is reported once.
pub(super) fn plugin(callbacks: &Callbacks) -> Option<&'static Chain> {
    let version = callbacks.infos().values().next_back().map_or(0, |info| info.version);
    CHAIN
        .get_or_init(|| {
            let path = PathBuf::from(std::env::var_os(VARIABLE).filter(|path| !path.is_empty())?);
            load(&path, version).inspect_err(|why| report(format_args!("{VARIABLE}={}: {why}", path.display()))).ok()
        })
        .as_ref()
}

fn load(path: &std::path::Path, version: u8) -> Result<Chain, String> {
    // SAFETY: loading runs the constructors of a library that the user named as an NCCL plugin, as NCCL would.
    let open = |path: &std::path::Path| unsafe { libloading::Library::new(path) };
    // NCCL treats a name without a slash as part of a file name.
    let named = path.to_str().filter(|name| !name.contains('/')).map(|name| format!("libnccl-profiler-{name}.so"));
    let library = open(path).or_else(|error| named.and_then(|named| open(named.as_ref()).ok()).ok_or(error));
    let library = library.map_err(|error| error.to_string())?;
    // Never unloaded, because NCCL keeps handles of it.
    let library: &'static libloading::Library = Box::leak(Box::new(library));
    let candidates: &[u8] = match version {
        7 => &[7, 6, 5],
        6 => &[6, 5],
        5 => &[5],
        4 => &[4],
        3 => &[3],
        _ => &[],
    };
    for candidate in candidates {
        let symbol = format!("ncclProfiler_v{candidate}\0");
        let types = super::layout::layout(*candidate).types;
        // SAFETY: a symbol of this name is a table of this version by NCCL's convention; it lives as long as the
        // library, which is for ever.
        let table = unsafe {
            match candidate {
                3 => library.get::<&'static Table<InitV3>>(symbol.as_bytes()).map(|table| Tables::V3(*table)),
                4 => library.get::<&'static Table<InitV4>>(symbol.as_bytes()).map(|table| Tables::V4(*table)),
                _ => library.get::<&'static Table<InitV5>>(symbol.as_bytes()).map(|table| Tables::V5(*table)),
            }
        };
        if let Ok(table) = table {
            return Ok(Chain { table, types });
        }
    }
    Err(format!("it has neither ncclProfiler_v{version}, which this NCCL uses, nor a compatible version"))
}

impl Chain {
    fn functions(&self) -> Functions {
        match self.table {
            Tables::V3(t) => {
                Functions { start: t.start, stop: t.stop, record_state: t.record_state, finalize: t.finalize }
            }
            Tables::V4(t) => {
                Functions { start: t.start, stop: t.stop, record_state: t.record_state, finalize: t.finalize }
            }
            Tables::V5(t) => {
                Functions { start: t.start, stop: t.stop, record_state: t.record_state, finalize: t.finalize }
            }
        }
    }

    /// The second plugin's context, or 0 if it refused.
    fn context(init: impl FnOnce(*mut *mut c_void, *mut c_int) -> c_int) -> usize {
        let mut context = std::ptr::null_mut();
        match init(&raw mut context, WANTED.as_ptr()) {
            SUCCESS => context as usize,
            code => {
                report(format_args!("{VARIABLE}: its init returned {code}"));
                0
            }
        }
    }

    pub(super) fn init_v3(&self) -> usize {
        let Tables::V3(table) = self.table else { return 0 };
        // SAFETY: a call as NCCL makes it: two addresses for results, of which the mask lives for ever.
        Self::context(|context, mask| unsafe { (table.init)(context, mask) })
    }

    pub(super) fn init_v4(
        &self,
        name: *const c_char,
        hash: u64,
        nodes: c_int,
        ranks: c_int,
        rank: c_int,
        log: *const c_void,
    ) -> usize {
        let Tables::V4(table) = self.table else { return 0 };
        // SAFETY: as above; the other arguments are NCCL's own.
        Self::context(|context, mask| unsafe { (table.init)(context, mask, name, hash, nodes, ranks, rank, log) })
    }

    pub(super) fn init_v5(
        &self,
        hash: u64,
        name: *const c_char,
        nodes: c_int,
        ranks: c_int,
        rank: c_int,
        log: *const c_void,
    ) -> usize {
        let Tables::V5(table) = self.table else { return 0 };
        // SAFETY: as above.
        Self::context(|context, mask| unsafe { (table.init)(context, hash, mask, name, nodes, ranks, rank, log) })
    }
}

struct Functions {
    start: unsafe extern "C" fn(*mut c_void, *mut *mut c_void, *const c_void) -> c_int,
    stop: unsafe extern "C" fn(*mut c_void) -> c_int,
    record_state: unsafe extern "C" fn(*mut c_void, c_int, *const c_void) -> c_int,
    finalize: unsafe extern "C" fn(*mut c_void) -> c_int,
}

fn loaded() -> Option<Chain> {
    CHAIN.get().copied().flatten()
}

/// Longest descriptor, in words of 8 bytes.
const WORDS: usize = 136 / 8;

/// Passes an event on with the second plugin's handles as parents, and stores its handle beside `handle`.
pub(super) fn start(callbacks: &Callbacks, comm: u64, handle: u64, descriptor: Descriptor) {
    let Some(chain) = loaded() else { return };
    let (kind, context) = (descriptor.event_type(), callbacks.comms.chained(comm));
    if context == 0 || kind & chain.types == 0 || kind & mask() as u64 == 0 {
        return;
    }
    let size = descriptor.size();
    let mut copy = [MaybeUninit::<u64>::uninit(); WORDS];
    let bytes = copy.as_mut_ptr().cast::<MaybeUninit<u8>>();
    let parents = [Some(PARENT), descriptor.parent_group_at()];
    // SAFETY: the descriptor has `size` bytes, at most those of the copy, which is made as bytes that need not be
    // initialised. The parents are pointers inside it. The second plugin gets what NCCL would give it.
    let chained = unsafe {
        bytes.copy_from_nonoverlapping(descriptor.as_ptr().cast::<MaybeUninit<u8>>(), size);
        for at in parents.into_iter().flatten() {
            let parent = descriptor.as_ptr().add(at).cast::<usize>().read_unaligned() as u64;
            bytes.add(at).cast::<usize>().write_unaligned(callbacks.handles.chained(parent));
        }
        let mut chained = std::ptr::null_mut();
        (chain.functions().start)(context as *mut c_void, &raw mut chained, bytes.cast::<c_void>());
        chained as usize
    };
    callbacks.handles.set_chained(handle, chained);
}

pub(super) fn stop(chained: usize) {
    if let Some(chain) = loaded() {
        // SAFETY: the second plugin returned this handle for an event that has not stopped, because our handle was open.
        unsafe { (chain.functions().stop)(chained as *mut c_void) };
    }
}

pub(super) fn record_state(chained: usize, state: c_int, arguments: *const c_void) {
    if let Some(chain) = loaded() {
        // SAFETY: as above; the arguments are NCCL's own.
        unsafe { (chain.functions().record_state)(chained as *mut c_void, state, arguments) };
    }
}

pub(super) fn finalize(context: usize) {
    if let Some(chain) = loaded() {
        // SAFETY: the second plugin returned this context, and it is finalized once, because our handle was open.
        unsafe { (chain.functions().finalize)(context as *mut c_void) };
    }
}
