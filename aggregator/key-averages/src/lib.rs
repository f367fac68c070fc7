//! Counterparts of torch.profiler's outputs: `key_averages()` and folded stacks.

pub mod stacks;
pub mod table;
