//! Alarms with hysteresis: one verdict alone raises none, and one alone clears none.

use std::collections::BTreeMap;
use std::ops::Range;

/// Verdicts in a row that must name a rank before its alarm is raised.
///
/// The rule itself may name a clean rank in one of a thousand windows. If the rank is late in some steps only, the
/// windows of two of these verdicts must also have no step in common: noise that comes in bursts stays in a window for as
/// long as it is the window of several verdicts, but it rarely names the same rank twice.
pub const RAISE_AFTER: u32 = 2;

/// Verdicts in a row that must not name a rank before its alarm is cleared.
pub const CLEAR_AFTER: u32 = 2;

/// A rank that a verdict names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Cause {
    pub(super) rank: i32,
    /// Whether it is late in most steps, and not in some only.
    pub(super) is_lasting: bool,
}

/// The verdicts on one rank.
#[derive(Clone, Debug, Default)]
struct Alarm {
    /// The number of verdicts in a row that named it, and how many of these as lasting.
    named: u32,
    lasting: u32,
    /// The end of the window of the first of them.
    since: i32,
    /// The number of verdicts in a row that did not name it.
    unnamed: u32,
    is_raised: bool,
}

impl Alarm {
    fn take(&mut self, cause: Option<&Cause>, window: &Range<i32>) {
        let Some(cause) = cause else {
            (self.named, self.lasting, self.unnamed) = (0, 0, self.unnamed + 1);
            return;
        };
        if self.named == 0 {
            self.since = window.end;
        }
        (self.named, self.unnamed) = (self.named + 1, 0);
        self.lasting = if cause.is_lasting { self.lasting + 1 } else { 0 };
    }

    fn is_due(&self, window: &Range<i32>) -> bool {
        let is_apart = window.start >= self.since;
        self.lasting >= RAISE_AFTER || (self.named >= RAISE_AFTER && is_apart)
    }
}

/// The alarms of all ranks that were named lately.
#[derive(Debug, Default)]
pub(super) struct Alarms(BTreeMap<i32, Alarm>);

impl Alarms {
    /// Takes the causes of the verdict on a window. Returns the ranks whose alarm is raised by it, and those whose alarm is
    /// cleared.
    pub(super) fn judge(&mut self, causes: &[Cause], window: &Range<i32>) -> (Vec<i32>, Vec<i32>) {
        let (mut raised, mut cleared) = (Vec::new(), Vec::new());
        for cause in causes {
            self.0.entry(cause.rank).or_default();
        }
        for (rank, alarm) in &mut self.0 {
            alarm.take(causes.iter().find(|cause| cause.rank == *rank), window);
            if !alarm.is_raised && alarm.is_due(window) {
                alarm.is_raised = true;
                raised.push(*rank);
            } else if alarm.is_raised && alarm.unnamed >= CLEAR_AFTER {
                alarm.is_raised = false;
                cleared.push(*rank);
            }
        }
        self.0.retain(|_, alarm| alarm.is_raised || alarm.named > 0);
        (raised, cleared)
    }

    /// The ranks whose alarm is raised.
    pub(super) fn raised(&self) -> Vec<i32> {
        self.0.iter().filter(|(_, alarm)| alarm.is_raised).map(|(rank, _)| *rank).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// `!` where the alarm of rank 5 is raised. Each window has 8 steps, and begins 2 steps after the one before. In
    /// `verdicts`, `L` names rank 5 as lasting, `S` as late in some steps, and a dot does not name it.
    fn alarms(verdicts: &str) -> String {
        let mut alarms = Alarms::default();
        let mut seen = String::new();
        for (at, verdict) in (0..).zip(verdicts.chars()) {
            let cause = Cause { rank: 5, is_lasting: verdict == 'L' };
            let causes = if verdict == '.' { &[][..] } else { &[cause] };
            alarms.judge(causes, &(2 * at..2 * at + 8));
            seen.push(if alarms.raised() == [5] { '!' } else { '.' });
        }
        seen
    }

    /// Invariant (watch): Two verdicts raise an alarm of `watch`, and two clear it.
    #[test]
    fn two_verdicts_raise_an_alarm_and_two_clear_it() {
        assert_eq!(alarms("L.LL.L..."), "...!!!!..");
        assert_eq!(alarms("SSLLLL"), "...!!!", "a fault that begins");
    }

    #[test]
    fn a_rank_that_is_late_in_some_steps_must_be_so_in_steps_apart() {
        assert_eq!(alarms("SSSS.SSSS"), ".........");
        assert_eq!(alarms("SSSSS"), "....!");
    }

    #[test]
    fn a_verdict_that_moves_from_rank_to_rank_raises_nothing() {
        let mut alarms = Alarms::default();
        for at in 0..20 {
            let cause = Cause { rank: at % 4, is_lasting: true };
            assert_eq!(alarms.judge(&[cause], &(2 * at..2 * at + 8)), (vec![], vec![]));
        }
        assert_eq!(alarms.0.len(), 1, "a rank that is not named is forgotten");
    }
}
