//! The schedule of torch.profiler: which steps are skipped, warmed up and recorded.

use std::fmt;
use std::str::FromStr;

/// Phase of a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Phase {
    /// The recorder makes no rows.
    Wait,
    /// The step itself gets a row in `steps`, but no events.
    Warmup,
    /// The recorder makes all rows.
    Active,
}

impl Phase {
    /// The word in the column `phase` of `steps`; `None` for a step that gets no row.
    pub fn as_str(self) -> Option<&'static str> {
        match self {
            Self::Wait => None,
            Self::Warmup => Some("warmup"),
            Self::Active => Some("active"),
        }
    }
}

/// `torch.profiler.schedule(wait, warmup, active, repeat, skip_first)`, all in steps.
///
/// ```text
/// skip_first=1 wait=1 warmup=2 active=3 repeat=2
/// step    0 1 2 3 4 5 6 7 8 9 …
/// phase   . . w w A A A . w w A A A . . . .
/// ```
///
/// ```
/// use recorder::{Phase, Schedule};
/// let schedule = Schedule { wait: 1, warmup: 2, active: 5, repeat: 1, skip_first: 0 };
/// assert_eq!(schedule.phase(0), Phase::Wait);
/// assert_eq!(schedule.phase(2), Phase::Warmup);
/// assert_eq!(schedule.phase(7), Phase::Active);
/// assert_eq!(schedule.phase(8), Phase::Wait);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Schedule {
    /// Number of steps without rows at the start of every cycle.
    pub wait: u32,
    /// Number of steps after them that get only a row in `steps`.
    pub warmup: u32,
    /// Number of recorded steps after them. With zero, no step is recorded.
    pub active: u32,
    /// Number of cycles; 0 repeats until the program ends.
    pub repeat: u32,
    /// Number of steps before the first cycle.
    pub skip_first: u32,
}

impl Default for Schedule {
    /// `wait=1,warmup=2,active=5,repeat=1`.
    fn default() -> Self {
        Self { wait: 1, warmup: 2, active: 5, repeat: 1, skip_first: 0 }
    }
}

impl Schedule {
    /// Every step is active.
    pub const ALWAYS: Self = Self { wait: 0, warmup: 0, active: 1, repeat: 0, skip_first: 0 };

    /// The phase of `step`, counted from 0.
    pub fn phase(&self, step: u32) -> Phase {
        let Self { wait, warmup, active, repeat, skip_first } = *self;
        let (wait, warmup, active) = (u64::from(wait), u64::from(warmup), u64::from(active));
        let cycle = wait + warmup + active;
        let Some(step) = step.checked_sub(skip_first).map(u64::from) else { return Phase::Wait };
        if active == 0 || (repeat > 0 && step / cycle >= u64::from(repeat)) {
            return Phase::Wait;
        }
        match step % cycle {
            position if position < wait => Phase::Wait,
            position if position < wait + warmup => Phase::Warmup,
            _ => Phase::Active,
        }
    }

    /// The last active step; `None` if no step is active or the cycles have no end.
    pub fn last_active(&self) -> Option<u64> {
        let cycle = u64::from(self.wait) + u64::from(self.warmup) + u64::from(self.active);
        (self.active > 0 && self.repeat > 0).then(|| u64::from(self.skip_first) + cycle * u64::from(self.repeat) - 1)
    }
}

impl fmt::Display for Schedule {
    /// `wait=1,warmup=2,active=5,repeat=1,skip_first=0`
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { wait, warmup, active, repeat, skip_first } = self;
        write!(f, "wait={wait},warmup={warmup},active={active},repeat={repeat},skip_first={skip_first}")
    }
}

impl FromStr for Schedule {
    type Err = String;

    /// Parses the form of `Display`. Omitted parts are 0, as in torch.profiler, except for `active`, which is required.
    /// The error describes the problem.
    fn from_str(text: &str) -> Result<Self, String> {
        let problem = |part: &str, problem: &str| format!("{:?} {problem}", part.trim());
        let mut schedule = Self { wait: 0, warmup: 0, active: 0, repeat: 0, skip_first: 0 };
        for part in text.split(',').filter(|part| !part.trim().is_empty()) {
            let (name, value) = part.split_once('=').ok_or_else(|| problem(part, "is not name=number"))?;
            let number = value.trim().parse().map_err(|_| problem(part, "needs a whole number after `=`"))?;
            match name.trim() {
                "wait" => schedule.wait = number,
                "warmup" => schedule.warmup = number,
                "active" => schedule.active = number,
                "repeat" => schedule.repeat = number,
                "skip_first" => schedule.skip_first = number,
                _ => return Err(problem(part, "is not one of wait, warmup, active, repeat, skip_first")),
            }
        }
        if schedule.active == 0 {
            return Err(problem(text, "records nothing: active must be at least 1"));
        }
        Ok(schedule)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn phases(schedule: Schedule, steps: u32) -> String {
        let letter = |step| match schedule.phase(step) {
            Phase::Wait => '.',
            Phase::Warmup => 'w',
            Phase::Active => 'A',
        };
        (0..steps).map(letter).collect()
    }

    #[test]
    fn phases_follow_torch_profiler() {
        let s = |wait, warmup, active, repeat, skip_first| Schedule { wait, warmup, active, repeat, skip_first };
        let cases = [
            (s(1, 2, 5, 1, 0), ".wwAAAAA.......", Some(7)),
            (s(1, 1, 2, 0, 0), ".wAA.wAA.wAA.wA", None),
            (s(1, 1, 2, 2, 3), "....wAA.wAA....", Some(10)),
            (s(0, 0, 1, 0, 0), "AAAAAAAAAAAAAAA", None),
            (s(0, 0, 3, 1, 0), "AAA............", Some(2)),
            (s(0, 1, 1, 0, 1), ".wAwAwAwAwAwAwA", None),
            (s(2, 2, 0, 0, 0), "...............", None),
            (s(0, 0, 0, 0, 0), "...............", None),
        ];
        for (schedule, expected, last_active) in cases {
            assert_eq!(phases(schedule, 15), expected, "{schedule:?}");
            assert_eq!(schedule.last_active(), last_active, "{schedule:?}");
        }
        assert_eq!(Schedule::ALWAYS.phase(u32::MAX), Phase::Active);
        assert_eq!(s(u32::MAX, u32::MAX, u32::MAX, u32::MAX, 0).phase(u32::MAX), Phase::Warmup);
    }

    proptest::proptest! {
        #[test]
        fn a_bounded_schedule_has_active_times_repeat_active_steps(
            wait in 0u32..5, warmup in 0u32..5, active in 0u32..5, repeat in 1u32..4, skip_first in 0u32..5,
        ) {
            let text = phases(Schedule { wait, warmup, active, repeat, skip_first }, 200);
            let count = |letter| text.chars().filter(|c| *c == letter).count() as u32;
            proptest::prop_assert_eq!(count('A'), active * repeat);
            proptest::prop_assert_eq!(count('w'), if active > 0 { warmup * repeat } else { 0 });
        }
    }
}
