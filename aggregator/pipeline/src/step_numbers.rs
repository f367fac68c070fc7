//! Step numbers compared between ranks: a list of ranks that lack steps.
//!
//! ```text
//!  rank 0  1 2 3 4
//!  rank 1  1 . . 4      lacks 2 and 3, so its means cover fewer steps
//!  rank 2  1 2 3 4 9    fewer than half of the ranks have step 9
//! ```

use std::collections::BTreeMap;

use trace::OmissionRow;

use measure::part::RankPart;
use model::options::Options;
use model::selection::list;
use model::steps::active_numbers;

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
    // At most twice as many steps as a rank has on average.
    let usual: Vec<i32> = ranks_with.keys().copied().filter(|step| half_have(*step)).collect();
    let mut omissions = Vec::new();
    for (rank, steps) in &steps_by_rank {
        let has = |step: i32| steps.binary_search(&step).is_ok();
        let lacks: Vec<i32> = usual.iter().copied().filter(|step| !has(*step)).collect();
        let alone: Vec<i32> = steps.iter().copied().filter(|step| !half_have(*step)).collect();
        let lacks_why = |steps: &str| format!("other ranks recorded {steps}, this rank did not");
        omissions.extend(omission(*rank, "steps", &lacks, lacks_why));
        let alone_why = |steps: &str| format!("most ranks did not record {steps}");
        omissions.extend(omission(*rank, "steps of few ranks", &alone, alone_why));
    }
    omissions
}

fn omission(rank: i32, what: &str, steps: &[i32], why: impl Fn(&str) -> String) -> Option<OmissionRow> {
    (!steps.is_empty()).then(|| OmissionRow::left_out(what, why(&list(steps))).rank(rank).amount(steps.len() as i64))
}
