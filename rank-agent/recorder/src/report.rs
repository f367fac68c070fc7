//! Messages for the user of the recorded program.

use std::fmt::Display;

/// Prints `rankscope: message` to stderr.
///
/// Only for rare events that neither the `counters` table nor the summary holds; never on the hot path.
pub fn report(message: impl Display) {
    trace::terminal::say(format_args!("rankscope: {message}"));
}
