//! What-if: how long a step would take if something were different, by replaying what was recorded.

pub mod changes;
pub mod wia;
