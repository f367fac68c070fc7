//! Buffers that are lent to CUPTI.

/// Zeroed memory, aligned to 8 bytes as CUPTI requires.
#[derive(Debug)]
pub(crate) struct Buffer(Box<[u64]>);

/// A buffer that CUPTI holds. Dropping it leaks the memory, because CUPTI may still write to it.
#[derive(Debug)]
pub(crate) struct Lent(*mut [u64]);

// SAFETY: no thread of this process touches the memory while CUPTI holds it; the owner of the token owns the memory.
unsafe impl Send for Lent {}

impl Buffer {
    /// A buffer of `bytes`, rounded up to 8.
    pub(crate) fn zeroed(bytes: usize) -> Self {
        Self(vec![0; bytes.div_ceil(8)].into_boxed_slice())
    }

    /// Hands the memory to CUPTI.
    pub(crate) fn lend(self) -> Lent {
        Lent(Box::into_raw(self.0))
    }

    /// The first `valid` bytes.
    pub(crate) fn bytes(&self, valid: usize) -> &[u8] {
        let all = size_of_val(&*self.0);
        // SAFETY: the words are initialised, every byte is a valid u8, and the length is limited to theirs.
        unsafe { std::slice::from_raw_parts(self.0.as_ptr().cast(), valid.min(all)) }
    }

    /// Fills the buffer with zeros.
    pub(crate) fn zero(&mut self) {
        self.0.fill(0);
    }
}

impl Lent {
    /// Address of the memory.
    pub(crate) fn address(&self) -> *mut u8 {
        self.0.cast()
    }

    /// Size in bytes.
    pub(crate) fn len(&self) -> usize {
        self.0.len() * size_of::<u64>()
    }

    /// Takes the memory back, after CUPTI has handed it back.
    pub(crate) fn take_back(self) -> Buffer {
        // SAFETY: `lend` made the only token of this box, and this call consumes it. CUPTI does not touch a buffer after
        // it has handed it back (`cuptiActivityRegisterCallbacks`).
        Buffer(unsafe { Box::from_raw(self.0) })
    }
}
