//! The reduce: the parts of all ranks become one [`Analysis`](crate::model::analysis::Analysis).

pub(crate) mod buckets;
pub(crate) mod collective_cost;
pub(crate) mod communicators;
pub(crate) mod exposed_waits;
pub(crate) mod findings;
pub(crate) mod headline;
mod identity;
mod rank_groups;
pub mod reduce;
pub(crate) mod reduced;
pub(crate) mod roles;
pub(crate) mod slow_kernels;
pub(crate) mod step_numbers;
pub mod stragglers;
pub(crate) mod unfinished;
