//! One word that `rank-agent exec` shares with the processes of its program: whether to record, and how much of NCCL.
//!
//! ```text
//!  rank-agent exec ──store──► │ word │ ──load, or futex──► process of the program: one thread follows it
//!                             a page of a file that both have mapped
//! ```
//!
//! A mapping rather than a pipe or a socket: programs close descriptors that are not theirs, and open others under the
//! same numbers. Whoever records looks only at its own recorder; the word is read by one thread, which sleeps until it
//! changes.

#[expect(unsafe_code, reason = "memory that another process writes")]
mod ffi;

use std::fs::{File, OpenOptions};
use std::io::{Error as IoError, ErrorKind, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::sync::atomic::Ordering;
use std::time::Duration;

use rustix::thread::futex;

use crate::nccl::Detail;

/// What the page begins with, so that no other file is taken for one.
const MAGIC: [u8; 8] = *b"rnkscp01";
const PAGE_BYTES: usize = 4096;

/// What a process of the program is to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Order {
    /// Whether rows are made.
    pub record: bool,
    /// How much NCCL is asked for.
    pub detail: Detail,
}

impl Order {
    fn word(self) -> u32 {
        u32::from(self.record) | (self.detail as u32) << 1
    }

    fn of(word: u32) -> Self {
        let detail = match (word >> 1) & 3 {
            0 => Detail::Coll,
            1 => Detail::Channels,
            _ => Detail::Proxy,
        };
        Self { record: word & 1 != 0, detail }
    }
}

/// The page. One process stores, any number follow.
#[derive(Debug)]
pub struct ControlPage(ffi::Page);

impl ControlPage {
    /// Makes the page's file, which must not exist; its owner alone may read and write it.
    ///
    /// # Errors
    /// The file system's.
    pub fn create(path: &Path, order: Order) -> std::io::Result<Self> {
        let mut file = OpenOptions::new().read(true).write(true).create_new(true).mode(0o600).open(path)?;
        let mut bytes = [0; PAGE_BYTES];
        bytes[..MAGIC.len()].copy_from_slice(&MAGIC);
        file.write_all(&bytes)?;
        let page = Self(ffi::Page::map(&file)?);
        page.store(order);
        Ok(page)
    }

    /// Maps the page that another process has made.
    ///
    /// # Errors
    /// The file system's, or that it is no such page.
    pub fn open(path: &Path) -> std::io::Result<Self> {
        let file: File = OpenOptions::new().read(true).write(true).open(path)?;
        if file.metadata()?.len() != PAGE_BYTES as u64 {
            return Err(IoError::new(ErrorKind::InvalidData, "it has not the size of a control page"));
        }
        let page = ffi::Page::map(&file)?;
        if page.magic() != MAGIC {
            return Err(IoError::new(ErrorKind::InvalidData, "it does not begin as a control page does"));
        }
        Ok(Self(page))
    }

    /// What is to be done.
    pub fn load(&self) -> Order {
        Order::of(self.0.word().load(Ordering::Acquire))
    }

    /// Tells all who follow.
    pub fn store(&self, order: Order) {
        self.0.word().store(order.word(), Ordering::Release);
        self.wake();
    }

    /// Lets all who [`wait`](Self::wait) look again.
    pub fn wake(&self) {
        // It fails for bad addresses only; whoever sleeps looks again by itself before long.
        let _ = futex::wake(self.0.word(), futex::Flags::empty(), i32::MAX as u32);
    }

    /// Sleeps until the order may have changed, no longer than `timeout`.
    pub fn wait(&self, known: Order, timeout: Duration) {
        let timeout = futex::Timespec {
            tv_sec: i64::try_from(timeout.as_secs()).unwrap_or(i64::MAX),
            tv_nsec: timeout.subsec_nanos().into(),
        };
        if futex::wait(self.0.word(), futex::Flags::empty(), known.word(), Some(&timeout)).is_err()
            && self.load() == known
        {
            // Interrupted, over time, or the kernel has no such call: never spin.
            std::thread::sleep(Duration::from_millis(1));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const DETAILS: [Detail; 3] = [Detail::Coll, Detail::Channels, Detail::Proxy];

    #[test]
    fn every_order_is_read_as_it_was_written() {
        for (record, detail) in DETAILS.iter().flat_map(|detail| [(false, *detail), (true, *detail)]) {
            let order = Order { record, detail };
            assert_eq!(Order::of(order.word()), order);
        }
    }

    #[test]
    fn who_sleeps_is_woken_by_another_mapping() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("page");
        let (off, on) = (Order { record: false, detail: Detail::Coll }, Order { record: true, detail: Detail::Proxy });
        let leader = ControlPage::create(&path, off).unwrap();
        let follower = ControlPage::open(&path).unwrap();
        assert_eq!(follower.load(), off);
        std::thread::scope(|threads| {
            let waits = threads.spawn(|| {
                while follower.load() == off {
                    // Should the wake be missed, the test hangs for an hour.
                    follower.wait(off, Duration::from_secs(3600));
                }
                follower.load()
            });
            leader.store(on);
            assert_eq!(waits.join().unwrap(), on);
        });
        // An order that is not the one that is known does not let it sleep.
        follower.wait(off, Duration::from_secs(3600));
    }

    #[test]
    fn what_is_no_page_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("page");
        assert_eq!(ControlPage::open(&path).unwrap_err().kind(), ErrorKind::NotFound);
        for bytes in [&b"rnkscp01"[..], &[0; PAGE_BYTES], &[b'x'; 2 * PAGE_BYTES]] {
            std::fs::write(&path, bytes).unwrap();
            assert_eq!(ControlPage::open(&path).unwrap_err().kind(), ErrorKind::InvalidData);
        }
        let order = Order { record: true, detail: Detail::Coll };
        assert_eq!(ControlPage::create(&path, order).unwrap_err().kind(), ErrorKind::AlreadyExists);
    }
}
