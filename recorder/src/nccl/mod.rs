//! What NCCL did, told by NCCL itself through its profiler plugin interface: communicators, collectives, sends and
//! receives with their bytes, algorithm and channels, the GPU's own times of each channel, the proxy's waits.
//!
//! ```text
//!  NCCL's threads      callback ──► handle, record ──► bounded queue
//!                                                          │
//!  worker                             operations in flight ◄──┘──► collectives, nccl_channels, nccl_proxy, comms
//! ```
//!
//! **Times.** NCCL calls "stop" when a collective is enqueued, after its kernel was launched; that is no end. The end is
//! that of the kernel's last channel, which the GPU stamps with its `globaltimer` (NCCL 2.27 and newer). `nccl_channels`
//! keeps the raw stamps and when the host saw them; `collectives` gets them mapped to the host's clock, with
//! `timing_source = gpu_timer`. See `clock` for the map and its error: where CUPTI runs too, its kernels bound it from both
//! sides (`fit`), else launches and callbacks do. Without a stamp (NCCL 2.26) the times are those at
//! which NCCL's thread noticed (`host`); without channels those of its proxy (`proxy`); else only the hand-over is known
//! (`enqueue`).
//!
//! **Kernels.** Each launch is a row of `events`, `nccl:launch`, on the thread that made it; `collectives.event_id` names it.
//! Where CUPTI runs, the kernel has the launch's id as `external_id`. So the analysis finds the kernel of a collective.
//!
//! **Hangs.** An operation in flight for longer than a part gets a row with state `started` or `enqueued`; it is on disk
//! when the process is killed. At exit every operation in flight gets one. Of one that began before recording was paused
//! or its detail changed the end may never be told: if it is not, it is counted, and does not seem to hang.
//!
//! **Numbers.** `seq` of a collective is NCCL's: it counts per communicator and function. `seq` of a send or receive is
//! counted here, per communicator, peer and direction.
//!
//! No GPU has confirmed this yet: the call sequences and layouts are those of NCCL's source, replayed by tests.

mod clock;
mod core;
#[expect(unsafe_code, reason = "the interface through which NCCL calls")]
pub mod ffi;
mod fit;
mod handles;
#[cfg(test)]
mod handles_model;
#[cfg(test)]
mod handles_tests;
mod model;
#[cfg(test)]
mod model_tests;
mod names;
mod op;
mod recent;
mod record;
mod rows;
mod sync;
mod words;
mod worker;

pub(crate) use self::core::Core;
pub use self::worker::Source;

use self::record::event_type;

/// Environment variable that chooses the detail.
pub const DETAIL_VARIABLE: &str = "RANKSCOPE_NCCL_DETAIL";

/// How much NCCL is asked to tell.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum Detail {
    /// Which operations were enqueued, and when.
    Coll,
    /// Also when their channels ran on the GPU.
    #[default]
    Channels,
    /// Also what the proxy threads waited for, in each step of each operation over a network.
    Proxy,
}

impl Detail {
    /// The word on the command line.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Coll => "coll",
            Self::Channels => "channels",
            Self::Proxy => "proxy",
        }
    }

    /// The detail of a word.
    pub fn from_word(word: &str) -> Option<Self> {
        [Self::Coll, Self::Channels, Self::Proxy].into_iter().find(|detail| detail.as_str() == word)
    }

    pub(crate) fn from_env() -> Result<Self, crate::Error> {
        let Some(value) = std::env::var_os(DETAIL_VARIABLE).filter(|value| !value.is_empty()) else {
            return Ok(Self::default());
        };
        let value = value.to_string_lossy().into_owned();
        let why = "it must be coll, channels or proxy";
        Self::from_word(&value).ok_or(crate::Error::Variable { name: DETAIL_VARIABLE, value, why })
    }

    /// The types of events, as bits of NCCL's activation mask.
    pub(crate) fn mask(self) -> u64 {
        let coll = event_type::COLL
            | event_type::P2P
            | event_type::COLL_API
            | event_type::P2P_API
            | event_type::GROUP_API
            | event_type::KERNEL_LAUNCH
            | event_type::CE_COLL;
        let channels = event_type::KERNEL_CH | event_type::KERNEL_PHASE | event_type::CE_SYNC | event_type::CE_BATCH;
        let proxy = event_type::PROXY_OP | event_type::PROXY_STEP;
        match self {
            Self::Coll => coll,
            Self::Channels => coll | channels,
            Self::Proxy => coll | channels | proxy,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_higher_detail_asks_for_more() {
        let masks = [Detail::Coll, Detail::Channels, Detail::Proxy].map(Detail::mask);
        assert!(masks.windows(2).all(|pair| pair[0] & pair[1] == pair[0] && pair[0] != pair[1]), "{masks:?}");
        assert_eq!(Detail::from_word("proxy"), Some(Detail::Proxy));
        assert_eq!(Detail::from_word("all"), None);
    }
}
