//! The words of the columns that records hold, under the recorder's names.

pub use trace::{Kind, Op as CollectiveOp, State as CollectiveState, TimingSource};
