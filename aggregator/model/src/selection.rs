//! Selections that hold nothing are errors: an empty table would look like a result.

use std::path::Path;

use crate::Error;
use crate::options::Options;
use crate::units;

/// The most spans of steps that a message lists.
const LISTED: usize = 8;

/// The part of a selection that one rank recorded.
pub struct Held<'a> {
    /// Numbers of all active steps of the rank, selected or not.
    pub recorded_steps: &'a [i32],
    /// Whether the selected time has a part of the rank's recording.
    pub has_time: bool,
}

/// Checks that `--steps`, `--step-marker`, `--range`, `--from` and `--to` hold something of at least one rank.
///
/// # Errors
/// [`Error::NothingSelected`], with the recorded steps if `--steps` is the reason.
pub fn require_any<'a>(ranks: impl Iterator<Item = Held<'a>>, options: &Options, path: &Path) -> Result<(), Error> {
    let ranks: Vec<Held<'_>> = ranks.collect();
    let error = |selection: Options, why: String| {
        let selection = selection.selection().unwrap_or_default();
        Err(Error::NothingSelected { path: path.into(), selection, why })
    };
    if !ranks.iter().any(|rank| rank.has_time) {
        let time = Options { steps: None, ranks: None, step_marker: None, ..options.clone() };
        let why =
            if options.range.is_some() { "no host range in that time matches" } else { "nothing was recorded then" };
        return error(time, why.into());
    }
    if options.step_marker.is_some() && ranks.iter().all(|rank| rank.recorded_steps.is_empty()) {
        let marker = Options { step_marker: options.step_marker.clone(), ..Options::default() };
        return error(marker, "no host range matches".into());
    }
    let Some(steps) = &options.steps else { return Ok(()) };
    let mut recorded: Vec<i32> = ranks.iter().flat_map(|rank| rank.recorded_steps.iter().copied()).collect();
    // A run without any step gets its own message elsewhere.
    if recorded.is_empty() || recorded.iter().any(|step| steps.contains(step)) {
        return Ok(());
    }
    recorded.sort_unstable();
    recorded.dedup();
    let chosen = Options { steps: Some(steps.clone()), ..Options::default() };
    error(chosen, format!("the recorded steps are {}", list(&recorded)))
}

/// Formats ascending numbers as spans, at most the first [`LISTED`], followed by the count of the rest.
pub fn list(steps: &[i32]) -> String {
    let mut spans = 0;
    let mut until = steps.len();
    for (at, step) in steps.iter().enumerate() {
        let follows = at > 0 && steps[at - 1].checked_add(1) == Some(*step);
        spans += usize::from(!follows);
        if spans > LISTED {
            until = at;
            break;
        }
    }
    let more = steps.len() - until;
    let listed = units::ranks(&steps[..until]);
    if more == 0 { listed } else { format!("{listed} and {more} more") }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_list_has_at_most_eight_spans() {
        assert_eq!(list(&[1, 2, 3, 7]), "1–3, 7");
        let odd: Vec<i32> = (0..1_000).map(|i| 2 * i + 1).collect();
        assert_eq!(list(&odd), "1, 3, 5, 7, 9, 11, 13, 15 and 992 more");
        assert_eq!(list(&(0..1_000).collect::<Vec<_>>()), "0–999");
        assert_eq!(list(&[i32::MAX - 1, i32::MAX]), "2147483646–2147483647");
    }
}
