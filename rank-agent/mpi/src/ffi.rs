//! Thin wrappers of MPI's C functions: each checks its return code, and an operation in flight owns the memory that MPI may
//! access.
//!
//! rsmpi initializes and finalizes MPI and declares the functions. Its own communicators drop return codes, and its
//! requests end with the scope that started them, which a bucket's all-reduce must outlive.

use std::ffi::{c_char, c_int, c_void};
use std::mem::MaybeUninit;

use mpi::ffi as sys;

use crate::Error;

/// Sets an environment variable, unless it is set, or another thread could read the environment at the same time.
pub(super) fn set_default_environment(name: &str, value: &str) {
    let is_only_thread = std::fs::read_dir("/proc/self/task").is_ok_and(|threads| threads.count() == 1);
    if is_only_thread && std::env::var_os(name).is_none() {
        // SAFETY: this is the process's only thread, so no other thread reads the environment meanwhile.
        unsafe { std::env::set_var(name, value) };
    }
}

/// A communicator that returns errors instead of ending the process.
#[derive(Debug)]
pub(super) struct Communicator(sys::MPI_Comm);

// SAFETY: a handle is an integer or a pointer into the library, valid from every thread until it is freed, which we
// never do. The library was initialized with MPI_THREAD_MULTIPLE, so that calls from several threads need no lock of
// ours.
unsafe impl Send for Communicator {}
// SAFETY: as above.
unsafe impl Sync for Communicator {}

/// A duplicate of MPI_COMM_WORLD. Collective.
pub(super) fn duplicate_world() -> Result<Communicator, Error> {
    let mut comm = MaybeUninit::<sys::MPI_Comm>::uninit();
    // SAFETY: MPI is initialized: `Mpi::enter` holds the universe. The constants are the library's own. MPI_Comm_dup
    // writes the handle if it succeeds, and `check` returns before the handle is read if it does not.
    unsafe {
        check(
            "MPI_Comm_set_errhandler",
            sys::MPI_Comm_set_errhandler(sys::RSMPI_COMM_WORLD, sys::RSMPI_ERRORS_RETURN),
        )?;
        check("MPI_Comm_dup", sys::MPI_Comm_dup(sys::RSMPI_COMM_WORLD, comm.as_mut_ptr()))?;
        // A duplicate inherits the handler of its parent: errors return.
        Ok(Communicator(comm.assume_init()))
    }
}

/// The error of a return code.
fn check(call: &'static str, code: c_int) -> Result<(), Error> {
    // The standard defines MPI_SUCCESS as 0.
    if code == 0 {
        return Ok(());
    }
    // MPI_MAX_ERROR_STRING is at most 1024 (MPICH); Open MPI has 256.
    let mut text = [0_u8; 2048];
    let mut length: c_int = 0;
    // SAFETY: the buffer is longer than any MPI_MAX_ERROR_STRING.
    let described = unsafe { sys::MPI_Error_string(code, text.as_mut_ptr().cast::<c_char>(), &raw mut length) };
    let known = text.get(..usize::try_from(length).unwrap_or(0)).filter(|_| described == 0);
    let message = known.map_or_else(|| format!("error code {code}"), |text| String::from_utf8_lossy(text).into_owned());
    Err(Error::Call { call, message })
}

fn count(call: &'static str, elements: usize) -> Result<c_int, Error> {
    c_int::try_from(elements).map_err(|_| Error::TooLong { call, elements })
}

/// Memory that MPI reads, and memory that it writes.
pub(super) type SendRecv<T> = (Vec<T>, Vec<T>);

impl Communicator {
    pub(super) fn rank(&self) -> Result<usize, Error> {
        let mut rank: c_int = 0;
        // SAFETY: the communicator is valid, and `rank` outlives the call.
        check("MPI_Comm_rank", unsafe { sys::MPI_Comm_rank(self.0, &raw mut rank) })?;
        Ok(usize::try_from(rank).unwrap_or(0))
    }

    pub(super) fn size(&self) -> Result<usize, Error> {
        let mut size: c_int = 0;
        // SAFETY: the communicator is valid, and `size` outlives the call.
        check("MPI_Comm_size", unsafe { sys::MPI_Comm_size(self.0, &raw mut size) })?;
        Ok(usize::try_from(size).unwrap_or(1))
    }

    pub(super) fn start_barrier(&self) -> Result<Operation<()>, Error> {
        Operation::start("MPI_Ibarrier", (), |(), request| {
            // SAFETY: the communicator is valid, and `request` outlives the call.
            unsafe { sys::MPI_Ibarrier(self.0, request) }
        })
    }

    pub(super) fn start_broadcast(&self, bytes: Vec<u8>) -> Result<Operation<Vec<u8>>, Error> {
        let n = count("MPI_Ibcast", bytes.len())?;
        Operation::start("MPI_Ibcast", bytes, |bytes, request| {
            let data = bytes.as_mut_ptr().cast::<c_void>();
            // SAFETY: `data` points to `n` bytes on the heap, which the operation owns and touches no more until it is
            // complete.
            unsafe { sys::MPI_Ibcast(data, n, sys::RSMPI_UINT8_T, 0, self.0, request) }
        })
    }

    /// `all` holds `mine.len()` words per rank.
    pub(super) fn start_all_gather(&self, mine: Vec<u64>, all: Vec<u64>) -> Result<Operation<SendRecv<u64>>, Error> {
        let n = count("MPI_Iallgather", mine.len())?;
        assert_eq!(all.len(), mine.len() * self.size()?, "the result holds every rank's words");
        Operation::start("MPI_Iallgather", (mine, all), |(mine, all), request| {
            let (send, recv) = (mine.as_ptr().cast::<c_void>(), all.as_mut_ptr().cast::<c_void>());

            // SAFETY: `send` points to `n` words and `recv` to `n` words per rank, on the heap and apart from each
            // other; the operation owns both and touches neither until it is complete.
            unsafe { sys::MPI_Iallgather(send, n, sys::RSMPI_UINT64_T, recv, n, sys::RSMPI_UINT64_T, self.0, request) }
        })
    }

    pub(super) fn start_all_reduce(&self, send: Vec<f32>, recv: Vec<f32>) -> Result<Operation<SendRecv<f32>>, Error> {
        let n = count("MPI_Iallreduce", send.len())?;
        assert_eq!(send.len(), recv.len(), "the sum is as long as its operands");
        Operation::start("MPI_Iallreduce", (send, recv), |(send, recv), request| {
            let (from, to) = (send.as_ptr().cast::<c_void>(), recv.as_mut_ptr().cast::<c_void>());
            // SAFETY: both point to `n` floats on the heap, apart from each other; the operation owns both and touches
            // neither until it is complete.
            unsafe { sys::MPI_Iallreduce(from, to, n, sys::RSMPI_FLOAT, sys::RSMPI_SUM, self.0, request) }
        })
    }

    /// `all` holds `mine.len()` numbers per member.
    pub(super) fn start_all_gather_floats(
        &self,
        mine: Vec<f32>,
        all: Vec<f32>,
    ) -> Result<Operation<SendRecv<f32>>, Error> {
        let n = count("MPI_Iallgather", mine.len())?;
        assert_eq!(all.len(), mine.len() * self.size()?, "the result holds every member's numbers");
        Operation::start("MPI_Iallgather", (mine, all), |(mine, all), request| {
            let (send, recv) = (mine.as_ptr().cast::<c_void>(), all.as_mut_ptr().cast::<c_void>());
            // SAFETY: `send` points to `n` floats and `recv` to `n` floats per member, on the heap and apart from each
            // other; the operation owns both and touches neither until it is complete.
            unsafe { sys::MPI_Iallgather(send, n, sys::RSMPI_FLOAT, recv, n, sys::RSMPI_FLOAT, self.0, request) }
        })
    }

    /// `all` holds `mine.len()` numbers per member.
    pub(super) fn start_reduce_scatter(
        &self,
        all: Vec<f32>,
        mine: Vec<f32>,
    ) -> Result<Operation<SendRecv<f32>>, Error> {
        let n = count("MPI_Ireduce_scatter_block", mine.len())?;
        assert_eq!(all.len(), mine.len() * self.size()?, "there are as many numbers for every member");
        Operation::start("MPI_Ireduce_scatter_block", (all, mine), |(all, mine), request| {
            let (send, recv) = (all.as_ptr().cast::<c_void>(), mine.as_mut_ptr().cast::<c_void>());
            // SAFETY: `send` points to `n` floats per member and `recv` to `n` floats, on the heap and apart from each
            // other; the operation owns both and touches neither until it is complete.
            unsafe { sys::MPI_Ireduce_scatter_block(send, recv, n, sys::RSMPI_FLOAT, sys::RSMPI_SUM, self.0, request) }
        })
    }

    pub(super) fn start_send(
        &self,
        peer: usize,
        data: Vec<f32>,
        unused: Vec<f32>,
    ) -> Result<Operation<SendRecv<f32>>, Error> {
        let (n, peer) = (count("MPI_Isend", data.len())?, count("MPI_Isend", peer)?);
        Operation::start("MPI_Isend", (data, unused), |(data, _), request| {
            let from = data.as_ptr().cast::<c_void>();
            // SAFETY: `from` points to `n` floats on the heap, which the operation owns and does not touch until it is
            // complete.
            unsafe { sys::MPI_Isend(from, n, sys::RSMPI_FLOAT, peer, DATA_TAG, self.0, request) }
        })
    }

    pub(super) fn start_receive(
        &self,
        peer: usize,
        unused: Vec<f32>,
        data: Vec<f32>,
    ) -> Result<Operation<SendRecv<f32>>, Error> {
        let (n, peer) = (count("MPI_Irecv", data.len())?, count("MPI_Irecv", peer)?);
        Operation::start("MPI_Irecv", (unused, data), |(_, data), request| {
            let to = data.as_mut_ptr().cast::<c_void>();
            // SAFETY: `to` points to `n` floats on the heap, which the operation owns and does not touch until it is
            // complete.
            unsafe { sys::MPI_Irecv(to, n, sys::RSMPI_FLOAT, peer, DATA_TAG, self.0, request) }
        })
    }

    /// The communicator of the members that pass the same color, in their order. Collective.
    pub(super) fn split(&self, color: usize) -> Result<Self, Error> {
        let color = count("MPI_Comm_split", color)?;
        let mut comm = MaybeUninit::<sys::MPI_Comm>::uninit();
        // SAFETY: this communicator is valid. MPI_Comm_split writes the handle if it succeeds, and `check` returns before
        // the handle is read if it does not. The new communicator inherits the error handler: errors return.
        unsafe {
            check("MPI_Comm_split", sys::MPI_Comm_split(self.0, color, 0, comm.as_mut_ptr()))?;
            Ok(Self(comm.assume_init()))
        }
    }

    /// A word is below every library's eager limit, so this returns without the receiver.
    pub(super) fn send_word(&self, peer: usize, word: i64) -> Result<(), Error> {
        let (peer, word) = (count("MPI_Send", peer)?, [word]);
        let data = word.as_ptr().cast::<c_void>();
        // SAFETY: `data` points to one word that outlives the call, at whose return MPI is done with it.
        check("MPI_Send", unsafe { sys::MPI_Send(data, 1, sys::RSMPI_INT64_T, peer, PING_TAG, self.0) })
    }

    pub(super) fn start_receive_word(&self, peer: usize) -> Result<Operation<Vec<i64>>, Error> {
        let peer = count("MPI_Irecv", peer)?;
        Operation::start("MPI_Irecv", vec![0], |word, request| {
            let data = word.as_mut_ptr().cast::<c_void>();
            // SAFETY: `data` points to one word on the heap, which the operation owns and touches no more until it is
            // complete.
            unsafe { sys::MPI_Irecv(data, 1, sys::RSMPI_INT64_T, peer, PING_TAG, self.0, request) }
        })
    }

    /// Ends all processes of the job.
    pub(super) fn abort(&self, exit_code: u8) {
        // SAFETY: the communicator is valid. The call normally does not return.
        unsafe { sys::MPI_Abort(self.0, c_int::from(exit_code)) };
    }
}

const PING_TAG: c_int = 1;
const DATA_TAG: c_int = 2;

/// A nonblocking operation with its memory. If it is dropped before it is complete, its memory is leaked, because MPI may
/// still access it.
#[derive(Debug)]
pub(super) struct Operation<M> {
    call: &'static str,
    /// `None` when it is complete.
    request: Option<sys::MPI_Request>,
    memory: Option<M>,
}

// SAFETY: a request handle is an integer or a pointer into the library, which was initialized with MPI_THREAD_MULTIPLE;
// one thread at a time has the operation.
unsafe impl<M: Send> Send for Operation<M> {}

impl<M> Operation<M> {
    /// `begin` gets the memory at its final place and writes the request.
    fn start(
        call: &'static str,
        mut memory: M,
        begin: impl FnOnce(&mut M, *mut sys::MPI_Request) -> c_int,
    ) -> Result<Self, Error> {
        let mut request = MaybeUninit::<sys::MPI_Request>::uninit();
        check(call, begin(&mut memory, request.as_mut_ptr()))?;
        // SAFETY: every nonblocking function writes its request when it succeeds.
        let request = unsafe { request.assume_init() };
        Ok(Self { call, request: Some(request), memory: Some(memory) })
    }

    /// Advances MPI and returns whether this operation is complete.
    pub(super) fn test(&mut self) -> Result<bool, Error> {
        let Some(request) = &mut self.request else { return Ok(true) };
        let mut done: c_int = 0;
        // SAFETY: the request is active: it is taken away below when it completes. The status is not needed.
        let code = unsafe { sys::MPI_Test(request, &raw mut done, sys::RSMPI_STATUS_IGNORE) };
        check(self.call, code)?;
        if done != 0 {
            self.request = None;
        }
        Ok(done != 0)
    }

    /// The memory, if the operation is complete.
    pub(super) fn into_memory(mut self) -> Option<M> {
        if self.request.is_some() { None } else { self.memory.take() }
    }
}

impl<M> Drop for Operation<M> {
    fn drop(&mut self) {
        if self.request.is_some() {
            std::mem::forget(self.memory.take());
        }
    }
}
