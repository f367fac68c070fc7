//! Memory that goes to CUPTI and comes back.

/// Zeroed memory, aligned to 8 bytes as CUPTI asks for.
#[derive(Debug)]
pub(crate) struct Buffer(Box<[u64]>);

/// A buffer that CUPTI holds. Dropped, it is leaked: CUPTI may still write to it.
#[derive(Debug)]
pub(crate) struct Lent(*mut [u64]);

// SAFETY: it is the address of memory that no thread of ours touches while it is lent; who has the token owns it.
unsafe impl Send for Lent {}

impl Buffer {
    /// `bytes`, rounded up to 8.
    pub(crate) fn zeroed(bytes: usize) -> Self {
        Self(vec![0; bytes.div_ceil(8)].into_boxed_slice())
    }

    /// Gives it away.
    pub(crate) fn lend(self) -> Lent {
        Lent(Box::into_raw(self.0))
    }

    /// The first `valid` bytes.
    pub(crate) fn bytes(&self, valid: usize) -> &[u8] {
        let all = size_of_val(&*self.0);
        // SAFETY: the words are initialised, and any byte is a u8; no more than they have.
        unsafe { std::slice::from_raw_parts(self.0.as_ptr().cast(), valid.min(all)) }
    }

    /// All zero again.
    pub(crate) fn zero(&mut self) {
        self.0.fill(0);
    }
}

impl Lent {
    /// Where CUPTI writes.
    pub(crate) fn address(&self) -> *mut u8 {
        self.0.cast()
    }

    /// Bytes.
    pub(crate) fn len(&self) -> usize {
        self.0.len() * size_of::<u64>()
    }

    /// Owns the memory again. To be called when CUPTI has handed it back.
    pub(crate) fn take_back(self) -> Buffer {
        // SAFETY: `lend` made the only token of this box, and it is used up here. CUPTI does not touch a buffer after
        // it has called back with it (`cuptiActivityRegisterCallbacks`).
        Buffer(unsafe { Box::from_raw(self.0) })
    }
}
