//! The signal mask of a thread.

use std::mem::MaybeUninit;

/// All signals are blocked in the current thread as long as this lives.
pub(super) struct BlockedSignals {
    /// The mask before; `None` if it could not be changed.
    before: Option<libc::sigset_t>,
}

impl BlockedSignals {
    pub(super) fn all() -> Self {
        let (mut all, mut before) = (MaybeUninit::uninit(), MaybeUninit::uninit());
        // SAFETY: both pointers are valid for writes of a set; sigfillset initialises the one that is read.
        let status = unsafe {
            libc::sigfillset(all.as_mut_ptr());
            libc::pthread_sigmask(libc::SIG_SETMASK, all.as_ptr(), before.as_mut_ptr())
        };
        // SAFETY: after a success the call has initialised the earlier mask.
        Self { before: (status == 0).then(|| unsafe { before.assume_init() }) }
    }
}

impl Drop for BlockedSignals {
    fn drop(&mut self) {
        if let Some(before) = &self.before {
            // SAFETY: the pointer is valid, and a null pointer asks for no earlier mask.
            unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, before, std::ptr::null_mut()) };
        }
    }
}
