//! Settings of the CUPTI source, and the summary of a session.

use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use crate::comm_kernels::CommKernels;

/// Environment variable that names the libcupti to use. Without it, rankscope searches for the library.
pub const LIBRARY_VARIABLE: &str = "RANKSCOPE_CUPTI";

/// Kinds of records and limits on memory. Start from the default.
#[derive(Clone, Debug)]
pub struct Settings {
    /// The library to use. Default: `$RANKSCOPE_CUPTI`; else the libcupti that the process has already loaded; else the
    /// one that the loader finds; else the usual paths of the CUDA toolkit and of Python's wheels.
    pub library: Option<PathBuf>,
    /// Record CUDA runtime calls. Default: yes.
    pub runtime: bool,
    /// Record CUDA driver calls that launch. Default: yes.
    pub driver: bool,
    /// Record synchronizations. Default: yes.
    pub synchronization: bool,
    /// Record CUPTI's own overhead. Default: yes.
    pub overhead: bool,
    /// Record allocations and releases. Default: yes.
    pub memory: bool,
    /// Record NVTX ranges. CUPTI receives them only if `NVTX_INJECTION64_PATH` named libcupti before the process used
    /// NVTX. Default: whether it does.
    pub nvtx: bool,
    /// The session starts inside of `cuInit`. Default: no.
    pub in_initialisation: bool,
    /// Begin paused: no kind but contexts is enabled until the first `resume`. Default: no.
    pub paused: bool,
    /// The program launches CUDA graphs and pauses in between. Default: no.
    pub graphs: bool,
    /// Size of a buffer in bytes, at least 64 KiB. CUPTI hands a buffer back when all of its records are complete, which on
    /// a device that is always behind is when it is full: a killed process loses up to a buffer. Default: 512 KiB, enough
    /// for about 2000 kernels.
    pub buffer_bytes: usize,
    /// The most buffers; records that need more are dropped and counted. Default: 512.
    pub max_buffers: usize,
    /// Devices for which the program writes the rows itself. CUPTI reports devices when CUDA initialises, so that a later
    /// session may never receive them. Default: none.
    pub devices: Vec<KnownDevice>,
    /// Interval at which the worker asks CUPTI for complete records and compares the clocks. Default: 1 s.
    pub flush_period: Duration,
    /// Longest time that the end of the session waits for the worker. Default: 10 s.
    pub finish_timeout: Duration,
    /// Queue to the NCCL source of this process, if it has one.
    pub comm_kernels: Arc<CommKernels>,
    /// Function that is called before the program captures a CUDA graph. Default: none.
    pub on_capture: Option<fn()>,
    /// Function that ends the recording when the process exits. Default: ends the session, then the recorder.
    pub at_exit: Option<fn()>,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            library: None,
            runtime: true,
            driver: true,
            synchronization: true,
            overhead: true,
            memory: true,
            nvtx: std::env::var_os("NVTX_INJECTION64_PATH")
                .is_some_and(|path| path.to_string_lossy().contains("cupti")),
            in_initialisation: false,
            paused: false,
            graphs: false,
            buffer_bytes: 512 << 10,
            max_buffers: 512,
            devices: Vec::new(),
            flush_period: Duration::from_secs(1),
            finish_timeout: Duration::from_secs(10),
            comm_kernels: Arc::default(),
            on_capture: None,
            at_exit: None,
        }
    }
}

/// Limits of a device from which the occupancy of kernels is estimated, as the CUDA driver reports them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct KnownDevice {
    /// Number among the visible devices.
    pub device_id: u32,
    /// Major part of the compute capability.
    pub capability_major: u32,
    /// Number of streaming multiprocessors.
    pub multiprocessors: u32,
    /// Number of threads in a warp.
    pub threads_per_warp: u32,
    /// The most resident threads of a multiprocessor.
    pub threads_per_multiprocessor: u32,
    /// The most resident blocks of a multiprocessor.
    pub blocks_per_multiprocessor: u32,
    /// Number of registers of a multiprocessor.
    pub registers_per_multiprocessor: u32,
    /// Shared memory of a multiprocessor in bytes.
    pub shared_bytes_per_multiprocessor: u32,
}

/// The result of a session.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Summary {
    /// Number of records that CUPTI delivered.
    pub records: u64,
    /// Number of rows handed to the recorder.
    pub rows: u64,
    /// Number of records lost, because CUPTI had no buffer or a queue was full.
    pub dropped: u64,
    /// Number of records left out on purpose: unknown kinds, and launches outside of active steps.
    pub omitted: u64,
    /// Number of buffers that ended within a record.
    pub truncated_buffers: u64,
    /// Number of collectives whose kernel was not found.
    pub untimed_collectives: u64,
    /// Whether CUPTI stamped its records with the recorder's clock. If not, it used `CLOCK_REALTIME`.
    pub own_clock: bool,
    /// Reason why the session did not end cleanly.
    pub failure: Option<String>,
}

impl fmt::Display for Summary {
    /// Prints one line.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { records, rows, dropped, omitted, truncated_buffers, untimed_collectives, .. } = self;
        write!(f, "CUPTI: {records} records, {rows} rows, {dropped} dropped, {omitted} left out")?;
        if *truncated_buffers > 0 {
            write!(f, ", {truncated_buffers} buffers cut short")?;
        }
        if *untimed_collectives > 0 {
            write!(f, ", {untimed_collectives} collectives not timed")?;
        }
        if let Some(failure) = &self.failure {
            write!(f, "; {failure}")?;
        }
        Ok(())
    }
}
