//! Whether a run hangs by its rows, and who is blamed. Findings, the headline and `watch` ask here and word the answer.
//!
//! `verdict` answers the same from the waits of all ranks, which dumps and the rows of a run show.

use std::time::Duration;

use trace::UnfinishedRow;

use model::analysis::Verdict;

/// Time without a finished step after which collectives in flight count as a hang.
///
/// A recorder writes a collective that is in flight for 2 s, and each rank writes what it did before. After 10 s the state
/// of all ranks is on disk.
const HANG_AFTER: Duration = Duration::from_secs(10);
/// The same in multiples of the longest recent step.
const HANG_AFTER_STEPS: u32 = 3;

/// Whether a job that is still running is looked at for a hang, so long after its last finished step.
pub fn is_overdue(since_last_step: Duration, longest_step_ns: i64) -> bool {
    let longest = Duration::from_nanos(u64::try_from(longest_step_ns).unwrap_or(0));
    since_last_step >= HANG_AFTER.max(longest.saturating_mul(HANG_AFTER_STEPS))
}

/// The collective that stops a job.
#[derive(Clone, Copy, Debug)]
pub struct Stuck<'a> {
    /// The first in which some ranks wait and another rank is missing; without such a collective, the first in which all
    /// ranks wait.
    pub collective: &'a UnfinishedRow,
    /// The ranks that are missing from it, ascending.
    pub missing: &'a [i32],
}

impl<'a> Stuck<'a> {
    /// The collective among those of [`unfinished`](crate::unfinished::unfinished), in its order. `None`: all ended.
    pub fn of(rows: &'a [UnfinishedRow]) -> Option<Self> {
        let collective = rows.first()?;
        Some(Self { collective, missing: collective.missing.as_deref().unwrap_or_default() })
    }

    /// Whether the missing ranks are blamed. If rows were lost, they may have called the collective.
    pub fn blames_missing(&self) -> bool {
        !self.missing.is_empty() && !self.collective.rows_lost
    }

    /// Whether a report says this first, before `verdict` on the steps before. A recording that was cut may show ranks that
    /// were stopped one after the other, so it keeps a verdict that names a rank, unless the difference of that rank may be
    /// chance or fewer than `min_steps` steps show it.
    pub fn precedes(&self, verdict: &Verdict, was_cut: bool, min_steps: usize) -> bool {
        let enough_steps = usize::try_from(verdict.steps).is_ok_and(|steps| steps >= min_steps);
        let suspects_rank = !verdict.suspects.is_empty() && !verdict.within_variation && enough_steps;
        let names_rank = !verdict.causes.is_empty() || suspects_rank;
        self.blames_missing() && !(was_cut && names_rank)
    }
}
