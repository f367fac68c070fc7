//! Looks for collectives that do not end while no rank finishes a step.

use std::time::Duration;

use trace::{CounterRow, Growing};

use align::communicators::infer_communicators;
use align::p2p_peers::peers_as_ranks;
use findings::hang::unfinished_in_words;
use formats::run_source::RunSource;
use hang::stuck::{Stuck, is_overdue};
use hang::unfinished::unfinished;
use measure::part::RankPart;
use model::RankOutline;
use model::source::Source;

/// A collective that does not end.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Hang {
    /// Which ranks are missing and which wait.
    pub(super) words: String,
    /// The missing ranks.
    pub(super) missing: Vec<i32>,
}

/// The time of the last finished step, and what was found since.
#[derive(Debug, Default)]
pub(super) struct Hangs {
    last_step: Duration,
    found: Option<Hang>,
}

impl Hangs {
    /// All ranks have finished a step.
    pub(super) fn progress(&mut self, now: Duration) {
        self.last_step = now;
        self.found = None;
    }

    /// The collective that does not end, if no step has ended for too long. Rows are read only if some are new.
    pub(super) fn look(&mut self, growing: &mut Growing, is_new: bool, longest_ns: i64, now: Duration) -> Option<Hang> {
        if !is_overdue(now.saturating_sub(self.last_step), longest_ns) {
            return None;
        }
        if is_new || self.found.is_none() {
            self.found = find(&RunSource::of(growing.excerpt()));
        }
        self.found.clone()
    }
}

fn find(source: &RunSource) -> Option<Hang> {
    let part = |rank: i32| {
        let outline = source.outline(rank).unwrap_or_default();
        RankPart { outline, counters: source.rows::<CounterRow>(rank), ..RankPart::default() }
    };
    let mut parts: Vec<RankPart> = source.ranks().into_iter().map(part).collect();
    let mut outlines: Vec<&mut RankOutline> = parts.iter_mut().map(|part| &mut part.outline).collect();
    // What they leave out is listed when the steps are judged.
    peers_as_ranks(&mut outlines);
    infer_communicators(&mut outlines);
    let rows = unfinished(&parts, true);
    let stuck = Stuck::of(&rows)?;
    Some(Hang { words: unfinished_in_words(stuck.collective), missing: stuck.missing.to_vec() })
}
