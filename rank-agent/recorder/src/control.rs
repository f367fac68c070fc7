//! One word that `rank-agent exec` shares with the processes of its program: whether to record, and in which detail.
//!
//! ```text
//!  rank-agent exec ──store──► │ word │ ──load, or futex──► process of the program: one thread follows it
//!                             a page of a file that both have mapped
//! ```
//!
//! A mapping is safer than a pipe or a socket: programs close descriptors that they did not open, and reuse the numbers.
//! Threads that record read only their own recorder; one thread reads the word, and sleeps until it changes. It asks the kernel for the
//! word: if the file was cut, the kernel answers with an error, and a read of the memory would end the program.

#[expect(unsafe_code, reason = "another process writes this memory")]
mod ffi;

use std::fs::{File, OpenOptions};
use std::io::{Error as IoError, ErrorKind, Write};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::Path;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use rustix::io::Errno;
use rustix::thread::futex;

use self::ffi::MAGIC;

const PAGE_BYTES: usize = 4096;

/// How much of each collective the communication library reports.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum CollectiveDetail {
    /// The operations and the times of their calls.
    Coll,
    /// Also the times of their channels on the device.
    #[default]
    Channels,
    /// Also the waits of the proxy threads in every network step.
    Proxy,
}

impl CollectiveDetail {
    /// The word on the command line.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Coll => "coll",
            Self::Channels => "channels",
            Self::Proxy => "proxy",
        }
    }

    /// Parses the word of the command line.
    pub fn from_word(word: &str) -> Option<Self> {
        [Self::Coll, Self::Channels, Self::Proxy].into_iter().find(|detail| detail.as_str() == word)
    }
}

/// A command to the processes of the program.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Order {
    /// Whether to make rows.
    pub record: bool,
    /// How much of each collective to record.
    pub detail: CollectiveDetail,
}

impl Order {
    /// All orders.
    fn all() -> impl Iterator<Item = Self> {
        let details = [CollectiveDetail::Coll, CollectiveDetail::Channels, CollectiveDetail::Proxy];
        details.into_iter().flat_map(|detail| [false, true].map(|record| Self { record, detail }))
    }

    fn word(self) -> u32 {
        u32::from(self.record) | (self.detail as u32) << 1
    }

    fn of(word: u32) -> Self {
        let detail = match (word >> 1) & 3 {
            0 => CollectiveDetail::Coll,
            1 => CollectiveDetail::Channels,
            _ => CollectiveDetail::Proxy,
        };
        Self { record: word & 1 != 0, detail }
    }
}

/// The page. One process stores orders; any number of processes follow them.
#[derive(Debug)]
pub struct ControlPage {
    page: ffi::Page,
    /// The file, in the process that stores orders. Other processes are programs, which close descriptors.
    file: Option<File>,
    /// The word that was read last.
    known: AtomicU32,
}

impl ControlPage {
    /// Creates the page's file, which must not exist yet. Only its owner may read and write it.
    ///
    /// # Errors
    /// Errors of the file system.
    pub fn create(path: &Path, order: Order) -> std::io::Result<Self> {
        let mut file = OpenOptions::new().read(true).write(true).create_new(true).mode(0o600).open(path)?;
        let mut bytes = [0; PAGE_BYTES];
        bytes[..MAGIC.len()].copy_from_slice(&MAGIC);
        file.write_all(&bytes)?;
        let page = Self { page: ffi::Page::map(&file)?, file: Some(file), known: AtomicU32::new(order.word()) };
        page.store(order);
        Ok(page)
    }

    /// Maps the page that another process has created.
    ///
    /// # Errors
    /// Errors of the file system, and `InvalidData` if the file is not a control page.
    pub fn open(path: &Path) -> std::io::Result<Self> {
        let file: File = OpenOptions::new().read(true).write(true).open(path)?;
        if file.metadata()?.len() != PAGE_BYTES as u64 {
            return Err(IoError::new(ErrorKind::InvalidData, "its size is not that of a control page"));
        }
        let (mut magic, mut word) = (MAGIC, [0; 4]);
        file.read_exact_at(&mut magic, 0)?;
        file.read_exact_at(&mut word, MAGIC.len() as u64)?;
        if magic != MAGIC {
            return Err(IoError::new(ErrorKind::InvalidData, "it does not begin like a control page"));
        }
        Ok(Self { page: ffi::Page::map(&file)?, file: None, known: AtomicU32::new(u32::from_ne_bytes(word)) })
    }

    /// The current order. If the page is gone, the last one.
    pub fn load(&self) -> Order {
        let known = self.known.load(Ordering::Relaxed);
        for word in std::iter::once(known).chain(Order::all().map(Order::word)) {
            match futex::wait(self.page.word(), futex::Flags::empty(), word, Some(&futex::Timespec::default())) {
                // The page has another word.
                Err(Errno::AGAIN) => {}
                // It has this word, and no other came within no time.
                Err(Errno::TIMEDOUT) | Ok(()) => {
                    self.known.store(word, Ordering::Relaxed);
                    return Order::of(word);
                }
                Err(_) => break,
            }
        }
        Order::of(known)
    }

    /// Stores an order and wakes the processes that follow. An order that cannot be stored changes nothing for them.
    pub fn store(&self, order: Order) {
        self.known.store(order.word(), Ordering::Relaxed);
        if let Some(file) = &self.file {
            // Only the user who may also stop the program can make the file unwritable.
            let _ = file.write_all_at(&order.word().to_ne_bytes(), MAGIC.len() as u64);
        }
        self.wake();
    }

    /// Wakes all threads in [`wait`](Self::wait).
    pub fn wake(&self) {
        // It fails only for bad addresses; a sleeping thread also looks again after its timeout.
        let _ = futex::wake(self.page.word(), futex::Flags::empty(), i32::MAX as u32);
    }

    /// Sleeps until the order may differ from `known`, but no longer than `timeout`.
    pub fn wait(&self, known: Order, timeout: Duration) {
        let timeout = futex::Timespec {
            tv_sec: i64::try_from(timeout.as_secs()).unwrap_or(i64::MAX),
            tv_nsec: timeout.subsec_nanos().into(),
        };
        if futex::wait(self.page.word(), futex::Flags::empty(), known.word(), Some(&timeout)).is_err()
            && self.load() == known
        {
            // A signal, the timeout, or a page that is gone: never spin.
            std::thread::sleep(Duration::from_millis(10));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_order_survives_the_page() {
        for order in Order::all() {
            assert_eq!(Order::of(order.word()), order);
            assert_eq!(CollectiveDetail::from_word(order.detail.as_str()), Some(order.detail));
        }
        assert_eq!(CollectiveDetail::from_word("all"), None);
    }

    #[test]
    fn a_store_wakes_a_thread_that_waits_on_another_mapping() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("page");
        let off = Order { record: false, detail: CollectiveDetail::Coll };
        let on = Order { record: true, detail: CollectiveDetail::Proxy };
        let leader = ControlPage::create(&path, off).unwrap();
        let follower = ControlPage::open(&path).unwrap();
        assert_eq!(follower.load(), off);
        std::thread::scope(|threads| {
            let waits = threads.spawn(|| {
                while follower.load() == off {
                    // If the wake were missed, the test would hang for an hour.
                    follower.wait(off, Duration::from_secs(3600));
                }
                follower.load()
            });
            leader.store(on);
            assert_eq!(waits.join().unwrap(), on);
        });
        // The order already differs from the known one: no sleep.
        follower.wait(off, Duration::from_secs(3600));
    }

    /// Invariant (recorder): A control page that is cut ends neither the program nor `exec`.
    #[test]
    fn a_page_that_is_cut_keeps_the_last_order() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("page");
        let on = Order { record: true, detail: CollectiveDetail::Channels };
        let leader = ControlPage::create(&path, on).unwrap();
        let follower = ControlPage::open(&path).unwrap();
        File::options().write(true).open(&path).unwrap().set_len(0).unwrap();
        assert_eq!((leader.load(), follower.load()), (on, on));
        follower.wait(on, Duration::from_millis(1));
        let off = Order { record: false, ..on };
        leader.store(off);
        assert_eq!((leader.load(), follower.load()), (off, off), "the page is there again");
    }

    #[test]
    fn other_files_are_refused() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("page");
        assert_eq!(ControlPage::open(&path).unwrap_err().kind(), ErrorKind::NotFound);
        for bytes in [&b"rnkscp01"[..], &[0; PAGE_BYTES], &[b'x'; 2 * PAGE_BYTES]] {
            std::fs::write(&path, bytes).unwrap();
            assert_eq!(ControlPage::open(&path).unwrap_err().kind(), ErrorKind::InvalidData);
        }
        let order = Order { record: true, detail: CollectiveDetail::Coll };
        assert_eq!(ControlPage::create(&path, order).unwrap_err().kind(), ErrorKind::AlreadyExists);
    }
}
