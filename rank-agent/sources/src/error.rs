//! Errors of starting a source. The recorder continues without its rows.

use std::path::PathBuf;

/// An error of this crate.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The worker thread of a source could not be started.
    #[error("the worker thread of a source could not be started: {0}")]
    Thread(std::io::Error),
    /// No libcupti was found that can be loaded.
    #[error(
        "libcupti was not found; looked for {}; install CUDA 12.4 or newer (or `pip install nvidia-cuda-cupti`), or \
         set {variable} to its path",
        list(searched)
    )]
    CuptiNotFound {
        /// Paths that were tried, in this order.
        searched: Vec<PathBuf>,
        /// The environment variable that names a library.
        variable: &'static str,
    },
    /// The NVIDIA driver is missing, and CUPTI needs it.
    #[error("{} needs the NVIDIA driver, whose {driver} was not found: there is no GPU to record", library.display())]
    CuptiWithoutDriver {
        /// The library.
        library: PathBuf,
        /// The driver's library.
        driver: &'static str,
    },
    /// The record layouts of this version are unknown, or it lacks a required function.
    #[error("{} is too old: {why}; CUPTI of CUDA 12.4 or newer is needed", library.display())]
    CuptiTooOld {
        /// The library.
        library: PathBuf,
        /// Its version, or the missing function.
        why: String,
    },
    /// Another profiler uses CUPTI, which serves only one at a time.
    #[error(
        "another profiler{} holds CUPTI (Nsight, torch.profiler, cuda-gdb, …): the devices are not recorded",
        by.as_ref().map_or(String::new(), |by| format!(" ({by})"))
    )]
    CuptiBusy {
        /// Name of the other profiler, if CUPTI reports it (CUDA 13.0 and later).
        by: Option<String>,
    },
    /// CUPTI refused a call.
    #[error("CUPTI refused {call}: {message} ({code}); the devices are not recorded")]
    CuptiCall {
        /// The function.
        call: &'static str,
        /// Its result code.
        code: u32,
        /// CUPTI's name of the code.
        message: String,
    },
    /// This process has already started a session.
    #[error("this process has already started a CUPTI session; a process can have only one")]
    CuptiTwice,
}

fn list(paths: &[PathBuf]) -> String {
    paths.iter().map(|path| path.display().to_string()).collect::<Vec<_>>().join(", ")
}
