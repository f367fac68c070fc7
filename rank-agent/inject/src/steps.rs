//! The steps that the program marks, and those of them that a schedule records.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

use recorder::{Phase, Recorder, Schedule};
use trace::CounterRow;
use trace::name_rules::STEP;

/// Marked steps to record.
static SCHEDULE: OnceLock<Schedule> = OnceLock::new();
/// Number of steps that have begun, and of those that were recorded.
static STEPS: AtomicU32 = AtomicU32::new(0);
static RECORDED: AtomicU32 = AtomicU32::new(0);
/// A step is open on some thread. Steps do not nest.
static IN_STEP: AtomicBool = AtomicBool::new(false);

/// Sets the schedule of this process.
pub(crate) fn set_schedule(schedule: Schedule) {
    SCHEDULE.get_or_init(|| schedule);
}

/// The schedule; `None` records all steps, and the time between them.
pub(crate) fn schedule() -> Option<Schedule> {
    SCHEDULE.get().copied()
}

/// Parses the name of a step: `ProfilerStep#7` has number 7. Returns `Some(None)` for a step without a number, which is
/// counted instead.
pub(crate) fn step_of(name: &[u8]) -> Option<Option<i32>> {
    let rest = name.strip_prefix(STEP.as_bytes())?;
    let digits = std::str::from_utf8(rest).ok().and_then(|rest| rest.strip_prefix('#'));
    Some(digits.and_then(|digits| digits.parse().ok()).filter(|step| *step >= 0))
}

/// Begins a step. Returns `false` if one is open: only the first thread that marks a step counts.
pub(crate) fn begin_step(recorder: &Recorder, number: Option<i32>, is_switched_on: bool) -> bool {
    if IN_STEP.swap(true, Ordering::AcqRel) {
        return false;
    }
    let index = STEPS.fetch_add(1, Ordering::Relaxed);
    let number = number.unwrap_or_else(|| i32::try_from(index).unwrap_or(i32::MAX));
    let phase = phase_of(index, is_switched_on, schedule());
    if phase == Phase::Active {
        RECORDED.fetch_add(1, Ordering::Relaxed);
    }
    recorder.begin_step(number, phase);
    true
}

/// Ends the step that [`begin_step`] began.
pub(crate) fn end_step(recorder: &Recorder) {
    recorder.end_step(None);
    IN_STEP.store(false, Ordering::Release);
}

fn phase_of(index: u32, is_switched_on: bool, schedule: Option<Schedule>) -> Phase {
    match schedule {
        _ if !is_switched_on => Phase::Wait,
        None => Phase::Active,
        Some(schedule) => schedule.phase(index),
    }
}

/// The row of `counters` about steps that the schedule left out.
pub(crate) fn left_out(rank: i32) -> Option<CounterRow> {
    let (steps, recorded) = (STEPS.load(Ordering::Relaxed), RECORDED.load(Ordering::Relaxed));
    why_left_out(steps, recorded, schedule()?).map(|why| CounterRow {
        rank,
        source: "schedule".into(),
        why: Some(why.into()),
        ..CounterRow::default()
    })
}

fn why_left_out(steps: u32, recorded: u32, schedule: Schedule) -> Option<String> {
    let option = format!("--schedule {schedule}");
    match (steps, recorded) {
        (0, _) => Some(format!(
            "the program marked no step, by an NVTX range that begins with {STEP}, so that {option} recorded nothing"
        )),
        (steps, recorded) if recorded < steps => {
            Some(format!("{} of {steps} steps were not recorded: {option}", steps - recorded))
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_step_is_recognised_by_its_name() {
        let cases: [(&[u8], Option<Option<i32>>); 7] = [
            (b"ProfilerStep#7", Some(Some(7))),
            (b"ProfilerStep", Some(None)),
            (b"ProfilerStep#-1", Some(None)),
            (b"ProfilerStep#99999999999", Some(None)),
            (b"ProfilerStep#\xff", Some(None)),
            (b"forward", None),
            (b"", None),
        ];
        for (name, step) in cases {
            assert_eq!(step_of(name), step, "{}", String::from_utf8_lossy(name));
        }
    }

    #[test]
    fn switching_recording_off_overrides_the_schedule() {
        let schedule = Schedule { wait: 1, warmup: 1, active: 2, repeat: 1, skip_first: 0 };
        let phases: Vec<Phase> = (0..5).map(|index| phase_of(index, true, Some(schedule))).collect();
        assert_eq!(phases, [Phase::Wait, Phase::Warmup, Phase::Active, Phase::Active, Phase::Wait]);
        assert_eq!((phase_of(2, false, Some(schedule)), phase_of(0, true, None)), (Phase::Wait, Phase::Active));
        let why = why_left_out(5, 2, schedule).unwrap();
        assert!(why.starts_with("3 of 5 steps were not recorded: --schedule wait=1,warmup=1"), "{why}");
        assert!(why_left_out(0, 0, schedule).unwrap().contains("marked no step"));
        assert_eq!(why_left_out(2, 2, Schedule::ALWAYS), None);
    }
}
