//! The result of a recording.

use std::fmt;

/// Rows that a source lost.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Loss {
    /// Source, as in `counters`: `host:main`, `writer:events`, …
    pub source: String,
    /// Number of rows.
    pub rows: u64,
    /// Reason.
    pub why: String,
}

/// The result of a recording, so far or at its end.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Summary {
    /// Number of rows on disk, without rows that were written open and without those of `ranks` and `counters`.
    pub recorded: u64,
    /// Number of rows lost because a queue was full or a part could not be written.
    pub dropped: u64,
    /// Number of rows left out because this process had written [`Options::max_bytes`](crate::Options::max_bytes).
    pub omitted: u64,
    /// Number of bytes on disk.
    pub bytes: u64,
    /// Number of shards on disk.
    pub shards: u64,
    /// Number of failed attempts to write a shard.
    pub failed_parts: u64,
    /// CPU time of the writer thread in ns: the cost of recording beside the hot path. 0 while the thread runs.
    pub writer_cpu_ns: u64,
    /// Whether all recorded rows are on disk, except for [`losses`](Self::losses), and `ranks` says so.
    pub closed_cleanly: bool,
    /// Lost rows, by source.
    pub losses: Vec<Loss>,
    /// Reason why the recording did not end cleanly.
    pub failure: Option<String>,
}

impl Summary {
    pub(crate) fn fail(&mut self, why: String) {
        self.closed_cleanly = false;
        self.failure = Some(why);
    }

    pub(crate) fn lose(&mut self, source: &str, rows: u64, why: &str) {
        self.dropped += rows;
        match self.losses.iter_mut().find(|loss| loss.source == source) {
            Some(loss) => {
                loss.rows += rows;
                loss.why = why.into();
            }
            None => self.losses.push(Loss { source: source.into(), rows, why: why.into() }),
        }
    }
}

impl fmt::Display for Summary {
    /// Prints one line, and one more for each loss.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { recorded, dropped, bytes, shards, failed_parts, .. } = self;
        write!(f, "{recorded} rows recorded in {shards} shards ({bytes} bytes), {dropped} lost")?;
        if self.omitted > 0 {
            write!(f, ", {} left out because of the limit on bytes", self.omitted)?;
        }
        if *failed_parts > 0 {
            write!(f, ", {failed_parts} writes failed")?;
        }
        for Loss { source, rows, why } in &self.losses {
            write!(f, "\n  {source}: {rows} rows lost: {why}")?;
        }
        if let Some(failure) = &self.failure {
            write!(f, "\n  not closed: {failure}")?;
        }
        Ok(())
    }
}
