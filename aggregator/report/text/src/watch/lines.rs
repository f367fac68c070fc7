//! One line for each change of the state, and a heartbeat.

use trace::terminal;

use super::{extent, phase, slow_rank, step, verdict};
use model::units::{omission, plural, ranks_named};
use model::watch::{Event, Phase, State};

/// The line of a change. `time` is the time of day.
pub fn event(time: &str, state: &State, event: &Event) -> Vec<String> {
    let words: Vec<String> = match event {
        Event::Began => vec![format!("{} of run {} began to record", extent(state), state.run_id)],
        Event::Slow(slow) => slow.iter().map(slow_rank).collect(),
        Event::Cleared(ranks) => vec![format!("cleared: {} {} no longer slow", ranks_named(ranks), is_or_are(ranks))],
        Event::Hang(words) => vec![format!("HANG: {words}")],
        Event::HangOver => vec!["cleared: the job goes on after the hang".into()],
        Event::Lost { rows, why } => {
            let all = plural(state.lost_rows.max(0) as usize, "row");
            vec![format!("LOST {}: {why} ({all} in all)", plural((*rows).max(0) as usize, "row"))]
        }
        Event::Unreadable(row) => vec![format!("LOST {}", omission(row))],
        Event::Silent => vec![format!("{}; the job may hang, pause, or have been killed", phase(state))],
        Event::Resumed => vec!["new data arrives again".into()],
        Event::Ended => vec![ended(state)],
    };
    words.into_iter().map(|words| line(time, state, &words)).collect()
}

/// The line that says that nothing has changed.
pub fn heartbeat(time: &str, state: &State) -> String {
    let words = match &state.phase {
        Phase::Waiting(_) => phase(state),
        Phase::Silent(_) => format!("{}; {}", phase(state), extent(state)),
        _ => format!("{}; {}", verdict(state), extent(state)),
    };
    line(time, state, &words)
}

/// The line after the user ended the watch.
pub fn stopped(time: &str, state: &State) -> String {
    line(time, state, &format!("stopped watching; the run is {}; {}", phase(state), verdict(state)))
}

fn ended(state: &State) -> String {
    let last = if state.recent.is_empty() { "no step was recorded".into() } else { verdict(state) };
    format!("the run has {}; {last}; {}", phase(state), extent(state))
}

fn is_or_are(ranks: &[i32]) -> &'static str {
    if ranks.len() == 1 { "is" } else { "are" }
}

/// One line; controls in names are shown.
fn line(time: &str, state: &State, words: &str) -> String {
    let step = step(state).map_or(String::new(), |step| format!("{step}: "));
    terminal::line(&format!("{time} {step}{words}")).into_owned()
}
