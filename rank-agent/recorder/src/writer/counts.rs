//! Numbers of rows recorded and lost by source, since the last `counters` rows that reached the disk.

use std::collections::BTreeMap;

use trace::CounterRow;

#[derive(Debug, Default)]
struct Count {
    recorded: u64,
    dropped: u64,
    omitted: u64,
    before_ns: Option<i64>,
    why: Option<String>,
}

/// Counts by source. Each row or loss is counted once, so that the rows of `counters` can be summed.
#[derive(Debug, Default)]
pub(super) struct Counts(BTreeMap<String, Count>);

impl Counts {
    pub(super) fn record(&mut self, source: &str, rows: u64) {
        if rows > 0 {
            self.of(source).recorded += rows;
        }
    }

    pub(super) fn lose(&mut self, source: &str, rows: u64, why: &str) {
        let count = self.of(source);
        count.dropped += rows;
        count.why = Some(why.into());
    }

    pub(super) fn omit(&mut self, source: &str, rows: u64, why: &str) {
        let count = self.of(source);
        count.omitted += rows;
        count.why = Some(why.into());
    }

    /// Counts rows that were stored and are removed. From `before_ns` on, no row is.
    pub(super) fn leave_out_before(&mut self, source: &str, rows: u64, before_ns: i64, why: &str) {
        self.omit(source, rows, why);
        let count = self.of(source);
        count.before_ns = count.before_ns.max(Some(before_ns));
    }

    fn of(&mut self, source: &str) -> &mut Count {
        if !self.0.contains_key(source) {
            self.0.insert(source.into(), Count::default());
        }
        self.0.entry(source.into()).or_default()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The counts as rows. They stay until [`clear`](Self::clear), because the rows may not reach the disk.
    pub(super) fn rows(&self, rank: i32) -> Vec<CounterRow> {
        let row = |(source, count): (&String, &Count)| CounterRow {
            rank,
            source: source.as_str().into(),
            recorded: count.recorded as i64,
            dropped: count.dropped as i64,
            omitted: count.omitted as i64,
            before_ns: count.before_ns,
            why: count.why.as_deref().map(Into::into),
        };
        self.0.iter().map(row).collect()
    }

    pub(super) fn clear(&mut self) {
        self.0.clear();
    }
}
