//! The work of one rank as a graph: what each piece of work had to wait for.
//!
//! ```text
//!   host      |--a--|--b--|---c---|------------wait|      a, b, c: the host, from one call to the next
//!   stream 7        |   k1   |  k2  |              |      k1 waits for the call at the end of a
//!   stream 20             |~~~~~~R~~~~~~~~|        |      k2 waits for k1: they are on one stream
//!                                                         the host waits for R, a collective
//! ```
//!
//! A node begins when all that it waits for has ended. Its length is its own. The sum along the longest path is the length of the
//! recording, and with other lengths it is the length that the rank would have had.
//!
//! * Host: one node from each call that launches or waits to the next one. Threads that are never busy together are one chain.
//! * Device: a kernel or copy begins after its launch and after the work before it on its stream. What else it waited for is
//!   inferred, see [`build`].
//! * A collective has two nodes: its arrival, and when the rank leaves it. What is between them depends on other ranks.
//! * Without devices, the threads of communication take the place of streams: see [`host_only`].
//!
//! Each rule that infers from times alone is tested on the rank: it is not used if it does not find `BETTER_THAN_CHANCE` times as
//! many as by chance, for example when it is asked again at times that are shifted by `SHIFTED_NS`.

mod build;
mod calls;
mod collectives_only;
pub mod condensed;
mod contention;
mod device;
mod host_only;
mod input;
mod nodes;
mod order;
mod paths;
#[cfg(test)]
mod tests;
mod usual;

use model::RankData;
use model::steps::host_windows;
use trace::rank::Launches;

pub use self::condensed::Condensed;
use self::contention::Contention;
pub use self::device::follows;
pub use self::nodes::{Edge, NO_ROW, Node, NodeKind, RankGraph, Starts};
pub use self::paths::{Path, Paths};

impl RankGraph {
    /// The graph of a rank; `None` if no rows were recorded.
    pub fn of(rank: &RankData, launches: &Launches) -> Option<Self> {
        // Without rows nothing says what the host waited for.
        if rank.events.is_empty() {
            return None;
        }
        let input = if rank.outline.has_device_rows { device::input(rank, launches) } else { host_only::input(rank) };
        let mut graph = build::build(&input?);
        graph.steps = host_windows(&rank.outline.steps);
        graph.contention = Contention::of(rank);
        Some(graph)
    }
}
