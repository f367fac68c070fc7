//! Matches collectives across ranks, and puts all ranks on one clock with a stated error.

pub(crate) mod aligned;
pub mod clock;
pub(crate) mod communicators;
pub mod matching;
pub(crate) mod p2p_peers;
