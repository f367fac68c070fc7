//! The rows of a rank, column by column, and the values that mark a missing one.

use crate::Kind;

/// Missing value in the `i64` columns of [`Events`].
pub const NONE: i64 = i64::MIN;
/// Unknown step, in [`Events::step`]. (−1 is a known value: between steps.)
pub const NO_STEP: i32 = i32::MIN;
/// Missing parent, in [`Events::parent`].
pub const NO_PARENT: u32 = u32::MAX;

/// The rows of one rank, column by column, sorted by `ts_ns`, then longest first. All columns have equal length.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Events {
    /// Kind of the row.
    pub kind: Vec<Kind>,
    /// Index of the name in [`RankData::names`](crate::rank::RankData::names).
    pub name: Vec<u32>,
    /// Start, in the rank's clock.
    pub ts_ns: Vec<i64>,
    /// Duration, never negative.
    pub dur_ns: Vec<i64>,
    /// Id, unique within the rank.
    pub id: Vec<i64>,
    /// Step, or [`NO_STEP`].
    pub step: Vec<i32>,
    /// Host thread, or [`NONE`].
    pub thread: Vec<i64>,
    /// Device, or [`NONE`].
    pub device: Vec<i64>,
    /// Stream, or [`NONE`].
    pub stream: Vec<i64>,
    /// Correlation id, which connects launch and kernel, or [`NONE`].
    pub correlation: Vec<i64>,
    /// External id, which connects operator and launch, or [`NONE`].
    pub external: Vec<i64>,
    /// Index of the enclosing row on the same thread, or [`NO_PARENT`].
    pub parent: Vec<u32>,
    /// Whether the row is communication, or waits for it, by the analysis rules.
    pub is_comm: Vec<bool>,
    /// Bytes moved, or [`NONE`].
    pub bytes: Vec<i64>,
    /// FLOPs computed, or [`NONE`]. Rows inside of a row that counts have none, so the column can be summed.
    pub flops: Vec<i64>,
}

impl Events {
    /// Number of rows.
    #[inline]
    pub fn len(&self) -> usize {
        self.ts_ns.len()
    }

    /// Whether there is no row.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.ts_ns.is_empty()
    }

    /// End of a row.
    #[inline]
    pub fn end_ns(&self, row: usize) -> i64 {
        self.ts_ns[row].saturating_add(self.dur_ns[row])
    }
}
