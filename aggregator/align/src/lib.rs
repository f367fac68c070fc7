//! Matches collectives across ranks, and puts all ranks on one clock with a stated error.

pub mod aligned;
pub mod clock;
pub mod collective_cost;
pub mod communicators;
pub mod matching;
pub mod p2p_peers;
pub mod same_members;
