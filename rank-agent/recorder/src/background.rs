//! Threads beside the threads of the recorded program.

#[expect(unsafe_code, reason = "the signal mask has a C interface only")]
mod ffi;

use std::thread::{Builder, JoinHandle};

/// Starts a thread that receives no signals. A program may block a signal in all of its threads and wait for it with
/// sigwait(3); a thread that does not block it would take it, and its default action would end the program. A write
/// beyond the file size limit then fails with EFBIG instead of ending the program by SIGXFSZ.
///
/// # Errors
/// The error of the operating system if it has no thread left.
pub fn spawn<T: Send + 'static>(
    name: &str,
    body: impl FnOnce() -> T + Send + 'static,
) -> std::io::Result<JoinHandle<T>> {
    // A thread inherits the mask of its creator, so the mask holds from the thread's first instruction.
    let _blocked = ffi::BlockedSignals::all();
    Builder::new().name(name.into()).spawn(body)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn blocked() -> String {
        let status = std::fs::read_to_string("/proc/thread-self/status").unwrap();
        let mask = status.lines().find_map(|line| line.strip_prefix("SigBlk:")).unwrap();
        mask.trim().to_string()
    }

    #[test]
    fn a_thread_blocks_every_signal_that_can_be_blocked_and_its_creator_stays_as_it_was() {
        let before = blocked();
        let of_thread = spawn("test", blocked).unwrap().join().unwrap();
        // Bits 8 and 18 are SIGKILL and SIGSTOP, bits 31 and 32 belong to the C library.
        let all = !(1u64 << 8 | 1 << 18 | 0b11 << 31);
        assert_eq!(u64::from_str_radix(&of_thread, 16).unwrap() & all, all, "{of_thread}");
        assert_eq!(blocked(), before);
    }
}
