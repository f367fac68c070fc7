//! NCCL's side of its profiler plugin interface: loads a plugin and calls it as NCCL does.

#![expect(unsafe_code, reason = "this is the C caller")]

use std::ffi::{CStr, CString, c_char, c_int, c_void};
use std::path::Path;
use std::sync::atomic::{AtomicI32, AtomicU64, Ordering};

/// A plugin's table; `init` differs between versions.
#[repr(C)]
struct Table {
    name: *const c_char,
    init: *const c_void,
    start: unsafe extern "C" fn(*mut c_void, *mut *mut c_void, *const c_void) -> c_int,
    stop: unsafe extern "C" fn(*mut c_void) -> c_int,
    record_state: unsafe extern "C" fn(*mut c_void, c_int, *const c_void) -> c_int,
    finalize: unsafe extern "C" fn(*mut c_void) -> c_int,
}

type InitV3 = unsafe extern "C" fn(*mut *mut c_void, *mut c_int) -> c_int;
type InitV4 =
    unsafe extern "C" fn(*mut *mut c_void, *mut c_int, *const c_char, u64, c_int, c_int, c_int, *const c_void) -> c_int;
type InitV5 =
    unsafe extern "C" fn(*mut *mut c_void, u64, *mut c_int, *const c_char, c_int, c_int, c_int, *const c_void) -> c_int;

/// NCCL's mask: a global of the process.
static MASK: AtomicI32 = AtomicI32::new(0);

/// What the plugin wants to be told.
pub(crate) fn mask() -> i32 {
    MASK.load(Ordering::Relaxed)
}

/// A communicator, as NCCL tells of it.
pub(crate) struct Comm<'a> {
    pub(crate) name: &'a str,
    pub(crate) hash: u64,
    pub(crate) nodes: i32,
    pub(crate) ranks: i32,
    pub(crate) rank: i32,
}

/// A loaded plugin of one version.
pub(crate) struct Plugin {
    library: libloading::Library,
    table: *const Table,
    version: u8,
    calls: AtomicU64,
}

// SAFETY: NCCL calls the table's functions from many threads at once; that is what is tested.
unsafe impl Send for Plugin {}
// SAFETY: as above.
unsafe impl Sync for Plugin {}

impl Plugin {
    /// Loads a library and finds its table.
    pub(crate) fn load(path: &Path, version: u8) -> Result<Self, String> {
        // SAFETY: the library is the one under test.
        let library = unsafe { libloading::Library::new(path) }.map_err(|error| error.to_string())?;
        let symbol = format!("ncclProfiler_v{version}\0");
        // SAFETY: by NCCL's convention a symbol of this name is a table of this version.
        let table = unsafe { library.get::<*const Table>(symbol.as_bytes()) }.map_err(|error| error.to_string())?;
        let table: *const Table = *table;
        Ok(Self { library, table, version, calls: AtomicU64::new(0) })
    }

    /// `dlclose`, as NCCL does after the last finalize. Returns the calls made.
    pub(crate) fn close(self) -> u64 {
        let calls = self.calls();
        drop(self.library);
        calls
    }

    pub(crate) fn calls(&self) -> u64 {
        self.calls.load(Ordering::Relaxed)
    }

    fn table(&self) -> &Table {
        self.calls.fetch_add(1, Ordering::Relaxed);
        // SAFETY: the table lives as long as the library, which `self` holds.
        unsafe { &*self.table }
    }

    /// The plugin's own name.
    pub(crate) fn name(&self) -> String {
        // SAFETY: a static string of the library that ends with a zero byte.
        unsafe { CStr::from_ptr(self.table().name) }.to_string_lossy().into_owned()
    }

    /// Returns the context.
    pub(crate) fn init(&self, comm: &Comm<'_>) -> usize {
        let Comm { name, hash, nodes, ranks, rank } = *comm;
        let name = CString::new(name).unwrap_or_default();
        let (mut context, mask, log) = (std::ptr::dangling_mut(), MASK.as_ptr(), std::ptr::null());
        let (at, name) = (&raw mut context, name.as_ptr());
        let init = self.table().init;
        // SAFETY: the table's first function has the signature of its version; all pointers are valid for the call, and
        // the mask for ever.
        let result = unsafe {
            match self.version {
                3 => std::mem::transmute::<*const c_void, InitV3>(init)(at, mask),
                4 => std::mem::transmute::<*const c_void, InitV4>(init)(at, mask, name, hash, nodes, ranks, rank, log),
                _ => std::mem::transmute::<*const c_void, InitV5>(init)(at, hash, mask, name, nodes, ranks, rank, log),
            }
        };
        assert_eq!(result, 0, "init");
        context as usize
    }

    /// Returns the handle.
    pub(crate) fn start(&self, context: usize, descriptor: &[u8]) -> usize {
        let mut handle = std::ptr::dangling_mut();
        // SAFETY: the descriptor is as long as that of its version and alive during the call.
        let result =
            unsafe { (self.table().start)(context as *mut c_void, &raw mut handle, descriptor.as_ptr().cast()) };
        assert_eq!(result, 0, "startEvent");
        handle as usize
    }

    /// A null descriptor, which NCCL never passes.
    pub(crate) fn start_null(&self, context: usize) -> usize {
        let mut handle = std::ptr::dangling_mut();
        // SAFETY: the plugin is to look before it reads.
        let result = unsafe { (self.table().start)(context as *mut c_void, &raw mut handle, std::ptr::null()) };
        assert_eq!(result, 0, "startEvent");
        handle as usize
    }

    pub(crate) fn stop(&self, handle: usize) {
        // SAFETY: a handle is a number; any will do.
        assert_eq!(unsafe { (self.table().stop)(handle as *mut c_void) }, 0, "stopEvent");
    }

    /// `value`: the 64 bits that the state's argument begins with; `None`: a null argument.
    pub(crate) fn record_state(&self, handle: usize, state: i32, value: Option<u64>) {
        let arguments = value.map(|value| [value, 0xa5a5_a5a5_a5a5_a5a5]);
        let at = arguments.as_ref().map_or(std::ptr::null(), |arguments| arguments.as_ptr().cast());
        // SAFETY: as above; the arguments are as long as those of any version.
        let result = unsafe { (self.table().record_state)(handle as *mut c_void, state, at) };
        assert_eq!(result, 0, "recordEventState");
    }

    pub(crate) fn finalize(&self, context: usize) {
        // SAFETY: as above.
        assert_eq!(unsafe { (self.table().finalize)(context as *mut c_void) }, 0, "finalize");
    }
}

/// Calls `InitializeInjection` as CUDA's driver does.
pub(crate) fn initialize_injection(path: &Path) -> Result<i32, String> {
    // SAFETY: the library is the one under test, and the function has this signature by CUDA's convention.
    unsafe {
        let library = libloading::Library::new(path).map_err(|error| error.to_string())?;
        let function = library
            .get::<unsafe extern "C" fn() -> c_int>(b"InitializeInjection\0")
            .map_err(|error| error.to_string())?;
        Ok(function())
    }
}

// POSIX, part of the C library.
unsafe extern "C" {
    fn fork() -> c_int;
    fn waitpid(pid: c_int, status: *mut c_int, options: c_int) -> c_int;
    fn close(descriptor: c_int) -> c_int;
    fn _exit(status: c_int) -> !;
    fn abort() -> !;
}

/// How a forked child ends.
#[derive(Clone, Copy, Debug)]
pub(crate) enum End {
    /// By `exit`, with its handlers.
    Exit,
    /// At once.
    AtOnce,
    /// By a signal.
    Signal,
}

/// Runs `body` in a forked child, and waits for it. Returns `waitpid`'s status.
pub(crate) fn in_fork(end: End, body: impl FnOnce()) -> i32 {
    // SAFETY: the child runs `body`, which calls the plugin only, as a careless program would, and ends.
    unsafe {
        let pid = fork();
        if pid == 0 {
            body();
            match end {
                End::Exit => std::process::exit(7),
                End::AtOnce => _exit(7),
                End::Signal => abort(),
            }
        }
        let mut status = 0;
        waitpid(pid, &raw mut status, 0);
        status
    }
}

/// Closes every descriptor but the standard ones, as a daemon does.
pub(crate) fn close_descriptors() {
    for descriptor in 3..1024 {
        // SAFETY: nothing of this program uses them any more; the plugin must bear it.
        unsafe { close(descriptor) };
    }
}
