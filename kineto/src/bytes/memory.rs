//! The memory that readers may take, and what of it is left.

/// The memory that a command may take for what it reads. It is shared by the ranks that are read at a time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MemoryShare {
    /// The memory of all ranks that are read at a time.
    pub all_bytes: u64,
    /// Their number.
    pub ranks_at_once: u64,
}

impl Default for MemoryShare {
    /// No limit.
    fn default() -> Self {
        Self { all_bytes: u64::MAX, ranks_at_once: 1 }
    }
}

impl MemoryShare {
    /// Every thread reads one of some ranks or files, and each may take an equal part.
    pub fn among(all_bytes: u64, ranks: usize) -> Self {
        Self { all_bytes, ranks_at_once: rayon::current_num_threads().min(ranks).max(1) as u64 }
    }

    /// The memory for one rank.
    pub fn rank_bytes(self) -> u64 {
        self.all_bytes / self.ranks_at_once.max(1)
    }

    /// The room that is left for the rows of one rank. Its other windows take `used_bytes`.
    pub(crate) fn room(self, used_bytes: u64) -> Room {
        self.left(used_bytes, "the rows before it fill the memory that those of a rank may take")
    }

    /// The room for one file whose values are all in memory while it is read, a `kind` such as `dump`. What was read of its
    /// rank before takes
    /// `used_bytes`.
    pub fn room_of_file(self, kind: &str, used_bytes: u64) -> Room {
        self.left(used_bytes, &format!("its values take more memory than a {kind} may take"))
    }

    fn left(self, used_bytes: u64, full: &str) -> Room {
        let Self { all_bytes, ranks_at_once } = self;
        let rank_bytes = self.rank_bytes();
        let parts = match ranks_at_once {
            0 | 1 => String::new(),
            _ => format!(" ({all_bytes} bytes for {ranks_at_once} ranks at once)"),
        };
        let full = format!("{full}, {rank_bytes} bytes{parts}; give more with --max-memory");
        Room { bytes: rank_bytes.saturating_sub(used_bytes), full }
    }
}

/// The memory that is left for what is read.
#[derive(Clone, Debug)]
pub struct Room {
    pub(crate) bytes: u64,
    pub(crate) full: String,
}

impl Room {
    /// Room for anything.
    pub fn unlimited() -> Self {
        Self { bytes: u64::MAX, full: String::new() }
    }

    /// The reason to give where something does not fit.
    pub fn full(&self) -> &str {
        &self.full
    }

    /// Takes some of it.
    ///
    /// # Errors
    /// The reason to give if less is left.
    #[inline]
    pub fn take(&mut self, bytes: usize) -> Result<(), String> {
        match self.bytes.checked_sub(bytes as u64) {
            Some(left) => self.bytes = left,
            None => return Err(self.full.clone()),
        }
        Ok(())
    }
}
