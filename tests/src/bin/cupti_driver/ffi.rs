//! The stand-in's own functions, and the real library's iterator.

use std::ffi::{CString, c_char, c_int, c_void};
use std::path::Path;
use std::sync::atomic::{AtomicPtr, Ordering};

use libloading::os::unix::{Library, RTLD_LOCAL, RTLD_NOW};

/// The stand-in that the recorder has loaded. The loader returns the same copy.
pub(crate) struct StandIn(Library);

impl StandIn {
    pub(crate) fn open(path: &Path) -> Self {
        // SAFETY: the stand-in has no initialisers.
        Self(unsafe { Library::open(Some(path), RTLD_NOW | RTLD_LOCAL) }.unwrap())
    }

    fn get<T: Copy>(&self, name: &str) -> T {
        // SAFETY: the types below are those in the stand-in's source.
        unsafe { *self.0.get::<T>(name.as_bytes()).unwrap() }
    }

    pub(crate) fn now(&self) -> u64 {
        self.get::<extern "C" fn() -> u64>("stand_in_now")()
    }

    pub(crate) fn put(&self, record: &[u8]) -> bool {
        self.get::<extern "C" fn(*const u8, usize) -> bool>("stand_in_put")(record.as_ptr(), record.len())
    }

    pub(crate) fn call(&self, kind: u32, id: u32) -> u32 {
        // SAFETY: it has no arguments and cannot fail.
        let thread = unsafe { libc::gettid() } as u32;
        self.get::<extern "C" fn(u32, u32, u32) -> u32>("stand_in_call")(kind, id, thread)
    }

    pub(crate) fn event(&self, domain: u32, id: u32, site: u32) -> bool {
        self.get::<extern "C" fn(u32, u32, u32) -> bool>("stand_in_event")(domain, id, site)
    }

    /// Begins or ends the initialisation of CUDA on this thread; the driver registers its handler for the exit in it.
    pub(crate) fn initialise(&self, begins: bool) {
        self.get::<extern "C" fn(bool)>("stand_in_initialise")(begins);
    }

    /// Calls of other threads while CUDA initialised.
    pub(crate) fn intruders(&self) -> u64 {
        self.get::<extern "C" fn() -> u64>("stand_in_intruders")()
    }

    /// Another profiler of this process takes CUPTI's buffers.
    pub(crate) fn take(&self) {
        self.get::<extern "C" fn()>("stand_in_take")();
    }

    /// How often kernels were disabled.
    pub(crate) fn disabled(&self) -> u64 {
        self.get::<extern "C" fn() -> u64>("stand_in_disabled")()
    }

    pub(crate) fn flushes(&self) -> u64 {
        self.get::<extern "C" fn() -> u64>("stand_in_flushes")()
    }

    pub(crate) fn pushes(&self) -> u64 {
        self.get::<extern "C" fn() -> u64>("stand_in_pushes")()
    }
}

/// Runs `child` in a fork of this process, which then exits normally. Returns its exit code.
pub(crate) fn fork(child: impl FnOnce() -> bool) -> i32 {
    // SAFETY: the child uses no lock that another thread could have held at the fork: it opens scopes and exits.
    let pid = unsafe { libc::fork() };
    if pid == 0 {
        std::process::exit(if child() { 0 } else { 1 });
    }
    let mut status = 0;
    // SAFETY: it writes one number.
    unsafe { libc::waitpid(pid, &raw mut status, 0) };
    if libc::WIFEXITED(status) { libc::WEXITSTATUS(status) } else { -1 }
}

/// Iterates with `cuptiActivityGetNextRecord` of a library. Returns its version, the offsets of the records of
/// `bytes(version)`, and the last result.
pub(crate) fn iterate(library: &Path, bytes: impl FnOnce(u32) -> Vec<u8>) -> (u32, Vec<usize>, u32) {
    // SAFETY: the functions have the signatures of `cupti_activity.h` and `cupti_version.h`; the records have the layouts
    // of the library's version.
    unsafe {
        let library = Library::open(Some(library), RTLD_NOW | RTLD_LOCAL).unwrap();
        let version_of = *library.get::<extern "C" fn(*mut u32) -> u32>(b"cuptiGetVersion").unwrap();
        let name = b"cuptiActivityGetNextRecord";
        let next = *library.get::<extern "C" fn(*mut u8, usize, *mut *mut u8) -> u32>(name).unwrap();
        let mut version = 0;
        version_of(&raw mut version);
        let bytes = bytes(version);
        let mut words = vec![0_u64; bytes.len().div_ceil(8)];
        let base = words.as_mut_ptr().cast::<u8>();
        std::ptr::copy_nonoverlapping(bytes.as_ptr(), base, bytes.len());
        let (mut record, mut starts) = (std::ptr::null_mut::<u8>(), Vec::new());
        loop {
            let status = next(base, bytes.len(), &raw mut record);
            if status != 0 {
                std::mem::forget(library);
                return (version, starts, status);
            }
            starts.push(record as usize - base as usize);
        }
    }
}

/// A function of NVTX, which a tool may replace.
type Cell = AtomicPtr<c_void>;
/// `nvtxRangePushA` and `nvtxRangePop` among the functions without a domain.
const PUSH_A: usize = 9;
const POP: usize = 11;

unsafe extern "C" fn nobody_listens_to_a_push(_text: *const c_char) -> c_int {
    -2
}

unsafe extern "C" fn nobody_listens_to_a_pop() -> c_int {
    -2
}

static PUSH: Cell = AtomicPtr::new(nobody_listens_to_a_push as *mut c_void);
static POPS: Cell = AtomicPtr::new(nobody_listens_to_a_pop as *mut c_void);

#[repr(C)]
struct NvtxCallbacks {
    size: usize,
    get_module: unsafe extern "C" fn(u32, *mut *const *const Cell, *mut u32) -> c_int,
}

/// NVTX's table: the addresses of its function pointers, or null.
unsafe extern "C" fn get_module(module: u32, table: *mut *const *const Cell, size: *mut u32) -> c_int {
    if module != 1 {
        return 0;
    }
    let functions: Vec<*const Cell> = (0..17)
        .map(|id| match id {
            PUSH_A => &raw const PUSH,
            POP => &raw const POPS,
            _ => std::ptr::null(),
        })
        .collect();
    // SAFETY: these are two addresses for results; the table lives for ever.
    unsafe {
        size.write(functions.len() as u32);
        table.write(Vec::leak(functions).as_ptr());
    }
    1
}

unsafe extern "C" fn get_export_table(id: u32) -> *const c_void {
    static CALLBACKS: NvtxCallbacks = NvtxCallbacks { size: size_of::<NvtxCallbacks>(), get_module };
    if id == 1 { (&raw const CALLBACKS).cast() } else { std::ptr::null() }
}

/// NVTX with the tool of its environment variable.
pub(crate) struct Nvtx;

/// A range of this thread, until it is dropped.
pub(crate) struct NvtxRange;

impl Nvtx {
    pub(crate) fn initialize(tool: &Path) -> Self {
        type Initialize = unsafe extern "C" fn(unsafe extern "C" fn(u32) -> *const c_void) -> c_int;
        // SAFETY: the function has this signature by NVTX's convention; the library is not unloaded.
        unsafe {
            let library = Library::open(Some(tool), RTLD_NOW | RTLD_LOCAL).unwrap();
            let initialize = *library.get::<Initialize>(b"InitializeInjectionNvtx2").unwrap();
            println!("nvtx {}", initialize(get_export_table));
            std::mem::forget(library);
        }
        Self
    }

    pub(crate) fn range(&self, name: &str) -> NvtxRange {
        let name = CString::new(name).unwrap();
        // SAFETY: a replaced function has the signature of the original one.
        unsafe {
            let push = PUSH.load(Ordering::Relaxed);
            std::mem::transmute::<*mut c_void, unsafe extern "C" fn(*const c_char) -> c_int>(push)(name.as_ptr());
        }
        NvtxRange
    }
}

impl Drop for NvtxRange {
    fn drop(&mut self) {
        // SAFETY: as above.
        unsafe {
            let pop = POPS.load(Ordering::Relaxed);
            std::mem::transmute::<*mut c_void, unsafe extern "C" fn() -> c_int>(pop)();
        }
    }
}
