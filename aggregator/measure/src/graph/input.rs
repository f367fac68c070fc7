//! The input of the graph of a rank.

use super::calls::{Calls, Work};
use super::usual::Usual;

/// The calls and the work that a graph is built from.
pub(super) struct Input {
    pub(super) begin_ns: i64,
    /// When the host did the last that was recorded.
    pub(super) host_end_ns: i64,
    pub(super) collectives: usize,
    /// Begins of the first step and of those that do not follow the one before closely, ascending.
    pub(super) step_starts_ns: Vec<i64>,
    /// Begins of all steps, ascending.
    pub(super) step_begins_ns: Vec<i64>,
    pub(super) calls: Calls,
    /// In the order of launches. Work whose call was not recorded comes first.
    pub(super) works: Vec<Work>,
    /// Device and number of each stream.
    pub(super) streams: Vec<(i64, i64)>,
    pub(super) usual: Usual,
    /// By how much the times of the host were moved to fit those of the device.
    pub(super) early_ns: i64,
    /// Whether the work is that of devices.
    pub(super) has_device: bool,
}
