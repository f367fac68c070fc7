//! The runtime, the stores and the listings that a process keeps for its requests to object stores.
//!
//! A fork has no thread of its parent but the one that forked. A request to the parent's runtime would never be answered, and a lock
//! that another thread held would never be free. So the child begins with a runtime, stores and listings of its own.

use std::collections::HashMap;
use std::io;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock};

use object_store::{ObjectMeta, ObjectStore};
use tokio::runtime::Runtime;

use crate::lock::lock;

/// Threads that drive the requests of all others.
const RUNTIME_THREADS: usize = 2;

/// The stores that were used, and what their listings said.
#[derive(Default)]
pub(super) struct Known {
    /// By scheme and host.
    pub(super) stores: HashMap<String, Arc<dyn ObjectStore>>,
    /// By scheme, host and key.
    pub(super) objects: HashMap<String, ObjectMeta>,
}

/// The runtime, stores and listings of one process, and those of its fork.
struct Process {
    id: u32,
    runtime: OnceLock<Result<Runtime, String>>,
    known: Mutex<Known>,
    fork: OnceLock<Box<Process>>,
}

impl Process {
    fn new(id: u32) -> Self {
        Self { id, runtime: OnceLock::new(), known: Mutex::default(), fork: OnceLock::new() }
    }

    /// The entry of this process.
    fn current() -> &'static Self {
        static FIRST: OnceLock<Process> = OnceLock::new();
        let id = std::process::id();
        let mut process = FIRST.get_or_init(|| Self::new(id));
        while process.id != id {
            process = process.fork.get_or_init(|| Box::new(Self::new(id)));
        }
        process
    }
}

/// The stores and listings of this process.
pub(super) fn known() -> MutexGuard<'static, Known> {
    lock(&Process::current().known)
}

/// The runtime of all requests of this process.
pub(super) fn runtime() -> io::Result<&'static Runtime> {
    let start = || {
        // A provider that the process has already is as good.
        let _ = rustls::crypto::ring::default_provider().install_default();
        tokio::runtime::Builder::new_multi_thread()
            .worker_threads(RUNTIME_THREADS)
            .enable_all()
            .build()
            .map_err(|error| error.to_string())
    };
    Process::current().runtime.get_or_init(start).as_ref().map_err(|why| io::Error::other(why.clone()))
}
