//! Step numbers compared between ranks: an error if `--steps` matches none, and a list of ranks that lack steps.
//!
//! ```text
//!  rank 0  1 2 3 4
//!  rank 1  1 . . 4      lacks 2 and 3, so its means cover fewer steps
//!  rank 2  1 2 3 4 9    fewer than half of the ranks have step 9
//! ```

use std::collections::BTreeMap;
use std::path::Path;

use trace::OmissionRow;

use crate::Error;
use crate::base::units;
use crate::measure::part::RankPart;
use crate::model::options::Options;
use crate::model::steps::active_numbers;

/// The most spans of steps that a message lists.
const LISTED: usize = 8;

/// Checks that at least one rank recorded one of the chosen `--steps`.
///
/// # Errors
/// [`Error::NoStep`] with the recorded steps if no rank did.
pub(crate) fn require_chosen(parts: &[RankPart], options: &Options, path: &Path) -> Result<(), Error> {
    let Some(steps) = &options.steps else { return Ok(()) };
    let mut recorded: Vec<i32> = parts.iter().flat_map(|part| part.recorded_steps.iter().copied()).collect();
    // A run without any step gets its own message elsewhere.
    if recorded.is_empty() || recorded.iter().any(|step| steps.contains(step)) {
        return Ok(());
    }
    recorded.sort_unstable();
    recorded.dedup();
    let chosen = Options { steps: Some(steps.clone()), ..Options::default() }.selection().unwrap_or_default();
    let why = format!("{chosen} holds none of the recorded steps: {}", list(&recorded));
    Err(Error::NoStep { path: path.into(), why })
}

/// Lists, for each rank, the steps that it lacks although at least half of the ranks have them, and the steps that it
/// has although fewer than half do.
///
/// The list is empty if a part was chosen by time, because the edges of that part cut the steps of ranks differently.
pub(crate) fn lacking(parts: &[RankPart], options: &Options) -> Vec<OmissionRow> {
    if options.selects_by_time() || options.range.is_some() {
        return Vec::new();
    }
    let steps_by_rank: Vec<(i32, Vec<i32>)> =
        parts.iter().map(|p| (p.outline.info.rank, active_numbers(&p.outline.steps))).collect();
    let mut ranks_with: BTreeMap<i32, usize> = BTreeMap::new();
    for step in steps_by_rank.iter().flat_map(|(_, steps)| steps) {
        *ranks_with.entry(*step).or_default() += 1;
    }
    let half_have = |step: i32| ranks_with.get(&step).is_some_and(|ranks| 2 * ranks >= steps_by_rank.len());
    let mut omissions = Vec::new();
    for (rank, steps) in &steps_by_rank {
        let has = |step: i32| steps.binary_search(&step).is_ok();
        let lacks: Vec<i32> = ranks_with.keys().copied().filter(|step| half_have(*step) && !has(*step)).collect();
        let alone: Vec<i32> = steps.iter().copied().filter(|step| !half_have(*step)).collect();
        let lacks_why = |steps: &str| format!("other ranks recorded {steps}, this rank did not");
        omissions.extend(omission(*rank, "steps", &lacks, lacks_why));
        let alone_why = |steps: &str| format!("most ranks did not record {steps}");
        omissions.extend(omission(*rank, "steps of few ranks", &alone, alone_why));
    }
    omissions
}

fn omission(rank: i32, what: &str, steps: &[i32], why: impl Fn(&str) -> String) -> Option<OmissionRow> {
    (!steps.is_empty()).then(|| OmissionRow::new(what, why(&list(steps))).rank(rank).amount(steps.len() as i64))
}

/// Formats ascending numbers as spans, at most the first [`LISTED`], followed by the count of the rest.
fn list(steps: &[i32]) -> String {
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
