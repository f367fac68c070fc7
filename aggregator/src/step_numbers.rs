//! Which steps ranks have: whether any has the chosen ones, and which ranks lack what the others have.
//!
//! ```text
//!  rank 0  1 2 3 4
//!  rank 1  1 . . 4      lacks 2 and 3: its means are over fewer steps
//!  rank 2  1 2 3 4 9    9 is in no half of the ranks
//! ```

use std::collections::BTreeMap;
use std::path::Path;

use trace::OmissionRow;

use crate::Error;
use crate::map::RankPart;
use crate::options::Options;
use crate::render::text;
use crate::steps::active_numbers;

/// Spans of steps that a sentence lists.
const LISTED: usize = 8;

/// An error if `--steps` chose steps of which no rank has any.
///
/// # Errors
/// [`Error::NoStep`] with the steps that there are.
pub(crate) fn require_chosen(parts: &[RankPart], options: &Options, path: &Path) -> Result<(), Error> {
    let Some(steps) = &options.steps else { return Ok(()) };
    let mut recorded: Vec<i32> = parts.iter().flat_map(|part| part.recorded_steps.iter().copied()).collect();
    // Without any step at all there is another reason to tell.
    if recorded.is_empty() || recorded.iter().any(|step| steps.contains(step)) {
        return Ok(());
    }
    recorded.sort_unstable();
    recorded.dedup();
    let chosen = Options { steps: Some(steps.clone()), ..Options::default() }.selection().unwrap_or_default();
    let why = format!("{chosen} holds none of the recorded steps: {}", list(&recorded));
    Err(Error::NoStep { path: path.into(), why })
}

/// Steps that a rank lacks and at least half of the ranks have, and steps that it has and fewer do. Nothing is said of
/// a part that was chosen by time: its edges cut the ranks' steps as they come.
pub(crate) fn lacking(parts: &[RankPart], options: &Options) -> Vec<OmissionRow> {
    if options.selects_by_time() || options.range.is_some() {
        return Vec::new();
    }
    let of_rank: Vec<(i32, Vec<i32>)> = parts.iter().map(|p| (p.info.rank, active_numbers(&p.steps))).collect();
    let mut ranks_with: BTreeMap<i32, usize> = BTreeMap::new();
    for step in of_rank.iter().flat_map(|(_, steps)| steps) {
        *ranks_with.entry(*step).or_default() += 1;
    }
    let half = |step: i32| ranks_with.get(&step).is_some_and(|ranks| 2 * ranks >= of_rank.len());
    let mut omissions = Vec::new();
    for (rank, steps) in &of_rank {
        let has = |step: i32| steps.binary_search(&step).is_ok();
        let lacks: Vec<i32> = ranks_with.keys().copied().filter(|step| half(*step) && !has(*step)).collect();
        let alone: Vec<i32> = steps.iter().copied().filter(|step| !half(*step)).collect();
        omissions.extend(omission(*rank, "steps", &lacks, |steps| format!("it lacks {steps}, which other ranks have")));
        omissions.extend(omission(*rank, "steps of few ranks", &alone, |steps| format!("most ranks lack {steps}")));
    }
    omissions
}

fn omission(rank: i32, what: &str, steps: &[i32], why: impl Fn(&str) -> String) -> Option<OmissionRow> {
    (!steps.is_empty()).then(|| OmissionRow {
        file: None,
        rank: Some(rank),
        what: what.into(),
        amount: Some(steps.len() as i64),
        why: why(&list(steps)).into(),
    })
}

/// Ascending numbers as spans, the first [`LISTED`] of them.
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
    let listed = text::ranks(&steps[..until]);
    if more == 0 { listed } else { format!("{listed} and {more} more") }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_list_is_bounded() {
        assert_eq!(list(&[1, 2, 3, 7]), "1–3, 7");
        let odd: Vec<i32> = (0..1_000).map(|i| 2 * i + 1).collect();
        assert_eq!(list(&odd), "1, 3, 5, 7, 9, 11, 13, 15 and 992 more");
        assert_eq!(list(&(0..1_000).collect::<Vec<_>>()), "0–999");
        assert_eq!(list(&[i32::MAX - 1, i32::MAX]), "2147483646–2147483647");
    }
}
