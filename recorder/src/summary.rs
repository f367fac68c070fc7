//! What came of a recording.

use std::fmt;

/// What a source lost.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Loss {
    /// As in `counters`: `host:main`, `writer:events`, …
    pub source: String,
    /// Rows.
    pub rows: u64,
    /// Why.
    pub why: String,
}

/// What came of a recording, so far or in the end.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Summary {
    /// Rows on disk. Rows written open, and those of `ranks` and `counters`, are not counted.
    pub recorded: u64,
    /// Rows lost, because a queue was full or a part could not be written.
    pub dropped: u64,
    /// Rows left out because this process had written [`Options::max_bytes`](crate::Options::max_bytes).
    pub omitted: u64,
    /// Bytes on disk.
    pub bytes: u64,
    /// Shards on disk.
    pub shards: u64,
    /// Attempts to write a shard that failed.
    pub failed_parts: u64,
    /// CPU time that the writer thread took, in ns: what recording costs beside the hot path. 0 while it runs.
    pub writer_cpu_ns: u64,
    /// Everything that was recorded is on disk, less what [`losses`](Self::losses) lists, and `ranks` says so.
    pub closed_cleanly: bool,
    /// What was lost, by source.
    pub losses: Vec<Loss>,
    /// Why the recording did not end as it should.
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
    /// One line, and one more for each loss.
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
