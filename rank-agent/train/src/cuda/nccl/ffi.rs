//! NCCL's C interface: the functions that a job needs.
//!
//! cudarc's interface does not fit: it does not search for `libnccl.so.2`, the only name in NCCL's packages, and its result
//! type is a Rust enum, for which a result code newer than its header is undefined behaviour.

use std::ffi::{CStr, c_char, c_int, c_void};

use agent::fabric::Transfer;
use kernels::Error;
use kernels::cuda::libraries::{self, Spec};
use kernels::cuda::{CudaBuffer, Library, Staging, Stream};

/// The search for NCCL. The interface used here has been the same since 2.7; 2.19 is the oldest version that supports
/// CUDA 12 well.
pub(in crate::cuda) const NCCL: Spec = Spec {
    name: "NCCL",
    files: &["libnccl.so.2"],
    is_packaged: true,
    symbols: &[
        "ncclGetVersion",
        "ncclGetErrorString",
        "ncclGetLastError",
        "ncclGetUniqueId",
        "ncclCommInitRank",
        "ncclCommDestroy",
        "ncclCommAbort",
        "ncclCommGetAsyncError",
        "ncclAllReduce",
        "ncclAllGather",
        "ncclReduceScatter",
        "ncclSend",
        "ncclRecv",
    ],
    oldest: "NCCL 2.19",
    install: "install libnccl2, or `pip install nvidia-nccl-cu13` (nvidia-nccl-cu12 for a driver of CUDA 12) and name \
              its directory in LD_LIBRARY_PATH or RANKSCOPE_CUDA_PATH; or use --collectives mpi",
};

/// `ncclFloat32` and `ncclSum` of nccl.h.
const FLOAT32: c_int = 7;
const SUM: c_int = 0;

/// `ncclUniqueId`: the id by which the ranks of a communicator find each other.
#[derive(Clone, Copy)]
#[repr(C)]
pub(in crate::cuda) struct UniqueId([c_char; UNIQUE_ID_BYTES]);

/// `NCCL_UNIQUE_ID_BYTES`.
pub(in crate::cuda) const UNIQUE_ID_BYTES: usize = 128;

type Comm = *mut c_void;

/// The functions, looked up once.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Nccl {
    get_version: unsafe extern "C" fn(*mut c_int) -> c_int,
    get_error_string: unsafe extern "C" fn(c_int) -> *const c_char,
    get_last_error: unsafe extern "C" fn(Comm) -> *const c_char,
    get_unique_id: unsafe extern "C" fn(*mut UniqueId) -> c_int,
    comm_init_rank: unsafe extern "C" fn(*mut Comm, c_int, UniqueId, c_int) -> c_int,
    comm_destroy: unsafe extern "C" fn(Comm) -> c_int,
    comm_abort: unsafe extern "C" fn(Comm) -> c_int,
    comm_get_async_error: unsafe extern "C" fn(Comm, *mut c_int) -> c_int,
    all_reduce: Reducing,
    all_gather: unsafe extern "C" fn(*const c_void, *mut c_void, usize, c_int, Comm, *mut c_void) -> c_int,
    reduce_scatter: Reducing,
    send: unsafe extern "C" fn(*const c_void, usize, c_int, c_int, Comm, *mut c_void) -> c_int,
    recv: unsafe extern "C" fn(*mut c_void, usize, c_int, c_int, Comm, *mut c_void) -> c_int,
}

type Reducing = unsafe extern "C" fn(*const c_void, *mut c_void, usize, c_int, c_int, Comm, *mut c_void) -> c_int;

/// Looks up a function that the library is known to have.
fn function<F: Copy>(library: &Library, name: &str) -> Result<F, Error> {
    // SAFETY: the types above are those of nccl.h.
    match unsafe { library.raw().get::<F>(name.as_bytes()) } {
        Ok(function) => Ok(*function),
        Err(error) => Err(Error::Cuda { call: "dlsym", code: -1, message: error.to_string() }),
    }
}

impl Nccl {
    /// Finds and opens the library.
    pub(in crate::cuda) fn open() -> Result<Self, Error> {
        let library = libraries::open(&NCCL)?;
        Ok(Self {
            get_version: function(&library, "ncclGetVersion")?,
            get_error_string: function(&library, "ncclGetErrorString")?,
            get_last_error: function(&library, "ncclGetLastError")?,
            get_unique_id: function(&library, "ncclGetUniqueId")?,
            comm_init_rank: function(&library, "ncclCommInitRank")?,
            comm_destroy: function(&library, "ncclCommDestroy")?,
            comm_abort: function(&library, "ncclCommAbort")?,
            comm_get_async_error: function(&library, "ncclCommGetAsyncError")?,
            all_reduce: function(&library, "ncclAllReduce")?,
            all_gather: function(&library, "ncclAllGather")?,
            reduce_scatter: function(&library, "ncclReduceScatter")?,
            send: function(&library, "ncclSend")?,
            recv: function(&library, "ncclRecv")?,
        })
    }

    /// Converts NCCL's result code; the error has NCCL's text for the last error on `comm`, or of any communicator.
    fn check(&self, call: &'static str, code: c_int, comm: Comm) -> Result<(), Error> {
        if code == 0 {
            return Ok(());
        }
        // SAFETY: both return a string of NCCL's own, or null; `comm` is alive or null.
        let (what, detail) = unsafe { (text((self.get_error_string)(code)), text((self.get_last_error)(comm))) };
        let message = if detail.is_empty() { what } else { format!("{what}: {}", detail.trim()) };
        Err(Error::Cuda { call, code, message })
    }

    /// NCCL's version: 22809 is 2.28.9.
    pub(in crate::cuda) fn version(&self) -> Result<i32, Error> {
        let mut version = 0;
        // SAFETY: `version` is written.
        self.check("ncclGetVersion", unsafe { (self.get_version)(&mut version) }, std::ptr::null_mut())?;
        Ok(version)
    }

    /// Creates an id on one rank for use by all ranks.
    pub(in crate::cuda) fn unique_id(&self) -> Result<Vec<u8>, Error> {
        let mut id = UniqueId([0; UNIQUE_ID_BYTES]);
        // SAFETY: `id` is written.
        self.check("ncclGetUniqueId", unsafe { (self.get_unique_id)(&mut id) }, std::ptr::null_mut())?;
        Ok(id.0.map(c_char::cast_unsigned).to_vec())
    }
}

/// # Safety
/// `text` is null or a string that lives while this runs.
unsafe fn text(text: *const c_char) -> String {
    if text.is_null() {
        return String::new();
    }
    // SAFETY: the caller's promise.
    unsafe { CStr::from_ptr(text) }.to_string_lossy().into_owned()
}

/// This rank's handle of a communicator.
#[derive(Debug)]
pub(in crate::cuda) struct Communicator {
    nccl: Nccl,
    comm: Comm,
}

// SAFETY: NCCL allows a communicator to be used from any thread, one at a time.
unsafe impl Send for Communicator {}

impl Communicator {
    /// Joins the others; returns when all `size` ranks have. The device's context must be current.
    pub(in crate::cuda) fn join(nccl: Nccl, id: &[u8], rank: usize, size: usize) -> Result<Self, Error> {
        let mut unique = UniqueId([0; UNIQUE_ID_BYTES]);
        if id.len() != UNIQUE_ID_BYTES {
            let message = format!("rank 0 sent an id of {} bytes", id.len());
            return Err(Error::Cuda { call: "ncclCommInitRank", code: -1, message });
        }
        for (to, from) in unique.0.iter_mut().zip(id) {
            *to = from.cast_signed();
        }
        let mut comm = std::ptr::null_mut();
        let (rank, size) = (i32::try_from(rank).unwrap_or(-1), i32::try_from(size).unwrap_or(-1));
        // SAFETY: the id was made by `ncclGetUniqueId` of this version; `comm` is written.
        let code = unsafe { (nccl.comm_init_rank)(&mut comm, size, unique, rank) };
        nccl.check("ncclCommInitRank", code, std::ptr::null_mut())?;
        Ok(Self { nccl, comm })
    }

    /// Enqueues on `stream` the in-place sum of a buffer over all ranks.
    pub(in crate::cuda) fn all_reduce(&self, buffer: &mut CudaBuffer, stream: &Stream) -> Result<(), Error> {
        stream.context().bind()?;
        let address = buffer.address() as *mut c_void;
        // SAFETY: the buffer holds `len` f32; stream and communicator are alive. The buffer must stay so until the
        // stream has passed: it is freed by the driver only then.
        let code = unsafe {
            let (from, to) = (address.cast_const(), address);
            (self.nccl.all_reduce)(from, to, buffer.len(), FLOAT32, SUM, self.comm, stream.handle())
        };
        self.nccl.check("ncclAllReduce", code, self.comm)
    }

    /// Enqueues a transfer on `stream`. `send` and `recv` hold the numbers of this rank and the result; an empty side of a message
    /// is not touched.
    pub(in crate::cuda) fn transfer(
        &self,
        transfer: Transfer,
        (send, recv): ((&Staging, usize), (&Staging, usize)),
        stream: &Stream,
    ) -> Result<(), Error> {
        stream.context().bind()?;
        let from = send.0.address() as *const c_void;
        let to = recv.0.address() as *mut c_void;
        let (nccl, comm, on) = (&self.nccl, self.comm, stream.handle());
        let number = |peer: usize| c_int::try_from(peer).unwrap_or(-1);
        // SAFETY: the memory holds as many f32 as its length says, the larger side those of all ranks; it, the stream and the
        // communicator are alive. The memory must stay so until the stream has passed: the driver frees it only then.
        let (call, code) = unsafe {
            match transfer {
                Transfer::AllReduce => ("ncclAllReduce", (nccl.all_reduce)(from, to, send.1, FLOAT32, SUM, comm, on)),
                Transfer::AllGather => ("ncclAllGather", (nccl.all_gather)(from, to, send.1, FLOAT32, comm, on)),
                Transfer::ReduceScatter => {
                    ("ncclReduceScatter", (nccl.reduce_scatter)(from, to, recv.1, FLOAT32, SUM, comm, on))
                }
                Transfer::Send { peer } => ("ncclSend", (nccl.send)(from, send.1, FLOAT32, number(peer), comm, on)),
                Transfer::Receive { peer } => ("ncclRecv", (nccl.recv)(to, recv.1, FLOAT32, number(peer), comm, on)),
            }
        };
        self.nccl.check(call, code, self.comm)
    }

    /// Returns an asynchronous error of NCCL's threads or of another rank.
    pub(in crate::cuda) fn check(&self) -> Result<(), Error> {
        let mut code = 0;
        // SAFETY: the communicator is alive; `code` is written.
        let query = unsafe { (self.nccl.comm_get_async_error)(self.comm, &mut code) };
        self.nccl.check("ncclCommGetAsyncError", query, self.comm)?;
        self.nccl.check("ncclAllReduce", code, self.comm)
    }

    /// Ends the communicator without the other ranks; enqueued operations do not complete.
    pub(in crate::cuda) fn abort(mut self) {
        let comm = std::mem::replace(&mut self.comm, std::ptr::null_mut());
        // SAFETY: alive until here, and not used again.
        unsafe { (self.nccl.comm_abort)(comm) };
    }
}

impl Drop for Communicator {
    fn drop(&mut self) {
        if !self.comm.is_null() {
            // SAFETY: joined once, destroyed once.
            unsafe { (self.nccl.comm_destroy)(self.comm) };
        }
    }
}

/// Sets an environment variable, unless it is set, or another thread could read the environment at the same time.
/// Returns whether the variable has the value now.
pub(in crate::cuda) fn set_default_environment(name: &str, value: &str) -> bool {
    if let Some(present) = std::env::var_os(name) {
        return present == value;
    }
    let is_only_thread = std::fs::read_dir("/proc/self/task").is_ok_and(|threads| threads.count() == 1);
    if is_only_thread {
        // SAFETY: this is the process's only thread, so no other thread reads the environment meanwhile.
        unsafe { std::env::set_var(name, value) };
    }
    is_only_thread
}
