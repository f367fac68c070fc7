//! State that the session's callbacks and its worker thread share.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{SyncSender, TrySendError};
use std::sync::{Mutex, MutexGuard};

use recorder::{Recorder, lock};

use super::activities::Activities;
use super::ffi::{Buffer, Library};
use super::layout::Version;
use super::pool::Pool;
use super::record::Walk;
use super::settings::{Settings, Summary};

/// A message to the worker.
#[derive(Debug)]
pub(super) enum Message {
    /// A buffer, and the number of its bytes that hold records.
    Buffer(Buffer, usize),
    /// Read the buffers that have arrived.
    Look,
    /// Ask CUPTI for complete records.
    Flush,
    /// Ask CUPTI for complete records, hand their rows to the recorder, and reply whether this version of CUPTI could be asked.
    Settle(SyncSender<bool>),
    /// Read the buffers that have arrived, reply, and end.
    Finish(SyncSender<()>),
}

/// Counts of the callbacks.
#[derive(Debug, Default)]
pub(super) struct Lost {
    /// Records in buffers that could not be kept.
    pub(super) records: AtomicU64,
    /// Buffers of another profiler, which has replaced the callbacks or passed its own buffers.
    pub(super) foreign_buffers: AtomicU64,
    /// Times in which CUPTI handed over no record although steps went on.
    pub(super) silences: AtomicU64,
    /// Callbacks that panicked.
    pub(super) panics: AtomicU64,
}

#[derive(Debug)]
pub(super) struct Capture {
    pub(super) library: Library,
    pub(super) recorder: Recorder,
    pub(super) settings: Settings,
    pub(super) pool: Pool,
    pub(super) lost: Lost,
    pub(super) activities: Activities,
    pub(super) messages: SyncSender<Message>,
    /// CUDA has initialised. Before that, the worker must not call CUPTI: the thread that initialises holds the driver's
    /// lock while it waits for CUPTI's, and a call of CUPTI may take them in the other order.
    pub(super) ready: AtomicBool,
    /// Number of buffers that CUPTI asked for or handed back.
    pub(super) exchanged: AtomicU64,
    pub(super) summary: Mutex<Summary>,
}

impl Capture {
    pub(super) fn summary(&self) -> MutexGuard<'_, Summary> {
        lock(&self.summary)
    }

    /// Stores the reason why the session does not end cleanly.
    pub(super) fn fail(&self, why: String) {
        self.summary().failure = Some(why);
    }

    /// Asks CUPTI for complete records.
    pub(super) fn flush(&self) {
        // After a refusal the records stay in CUPTI, which returns them with a later flush or counts them as dropped.
        let _ = self.library.flush(false);
        // The worker reads them at once; if its inbox is full, it is reading already.
        let _ = self.messages.try_send(Message::Look);
    }

    /// A buffer for CUPTI. Without one, CUPTI counts the records that it cannot store.
    pub(super) fn lend_buffer(&self) -> Option<(*mut u8, usize)> {
        self.exchanged.fetch_add(1, Ordering::Relaxed);
        let must = self.library.version() < Version::MAY_REFUSE_BUFFERS;
        self.pool.lend(must)
    }

    /// Takes back a buffer from CUPTI and sends it to the worker.
    pub(super) fn take_buffer(&self, address: *mut u8, valid: usize) {
        if address.is_null() {
            return;
        }
        self.exchanged.fetch_add(1, Ordering::Relaxed);
        let Some((buffer, overflow)) = self.pool.take_back(address) else {
            self.lost.foreign_buffers.fetch_add(1, Ordering::Relaxed);
            return;
        };
        if overflow {
            self.lose(&buffer, valid);
            return;
        }
        if valid == 0 {
            return self.pool.give(buffer);
        }
        match self.messages.try_send(Message::Buffer(buffer, valid)) {
            Ok(()) => {}
            Err(
                TrySendError::Full(Message::Buffer(buffer, valid))
                | TrySendError::Disconnected(Message::Buffer(buffer, valid)),
            ) => {
                self.lose(&buffer, valid);
                self.pool.give(buffer);
            }
            Err(_) => {}
        }
    }

    /// Counts the records of a buffer that will not be read.
    fn lose(&self, buffer: &Buffer, valid: usize) {
        let records = Walk::new(buffer.bytes(valid), self.library.version()).count() as u64;
        self.lost.records.fetch_add(records.max(1), Ordering::Relaxed);
    }
}
