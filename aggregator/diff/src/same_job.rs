//! Whether two runs of one side are of one job, so that their mean has a meaning.
//!
//! A batch size, a data type or a compiler changes many rows of a run of one model, but not all of: the number of ranks,
//! the operators with their shapes, and the bytes that the ranks reduce in a step. Another model changes the latter two
//! together.

use std::collections::BTreeMap;

use crate::profile::{Group, Key, RunProfile};
use model::Error;

/// Runs share a program if they share this part of the time in operators and kernels.
pub(super) const SHARED_TIME: f64 = 0.5;
/// Runs share a model if their collectives move the same bytes within this part.
const SHARED_BYTES: f64 = 0.1;

/// Checks that a run and the first run of its side have one world size and one program.
///
/// # Errors
/// [`Error::UnlikeRuns`] with the difference.
pub(super) fn require_same_job(first: &(String, RunProfile), other: &(String, RunProfile)) -> Result<(), Error> {
    let why = world_size(&first.1, &other.1).or_else(|| program(&first.1, &other.1));
    match why {
        Some(why) => Err(Error::UnlikeRuns { a: (&first.0).into(), b: (&other.0).into(), why }),
        None => Ok(()),
    }
}

fn world_size(a: &RunProfile, b: &RunProfile) -> Option<String> {
    let size = |run: &RunProfile| run.facts.world_size;
    let (a, b) = (size(a)?, size(b)?);
    (a != b).then(|| format!("their jobs have {a} and {b} ranks"))
}

fn program(a: &RunProfile, b: &RunProfile) -> Option<String> {
    let groups = [Group::Operator, Group::Kernel];
    let (times_a, times_b) = (times(a, &groups), times(b, &groups));
    let shared = share_in(&times_a, &times_b).min(share_in(&times_b, &times_a));
    if shared >= SHARED_TIME || same_bytes(bytes_a_step(a), bytes_a_step(b)) {
        return None;
    }
    Some(format!(
        "only {:.0} % of their time in operators and kernels has the same names and shapes, and their collectives move \
         different numbers of bytes in a step, so they look like different programs",
        100.0 * shared
    ))
}

/// Time in each operator or kernel.
pub(super) fn times<'a>(run: &'a RunProfile, groups: &[Group]) -> BTreeMap<&'a Key, f64> {
    let mut times = BTreeMap::new();
    for (key, series) in run.ranks.iter().flat_map(|rank| &rank.series) {
        if groups.contains(&key.group) {
            *times.entry(key).or_default() += series.values().filter(|ns| ns.is_finite()).sum::<f64>();
        }
    }
    times
}

/// The part of the time in `these` whose keys are also in `those`; 1 without any time.
pub(super) fn share_in(these: &BTreeMap<&Key, f64>, those: &BTreeMap<&Key, f64>) -> f64 {
    let all: f64 = these.values().sum();
    // The sum of nothing is −0, which would be printed.
    let shared = these.iter().filter(|(key, _)| those.contains_key(*key)).fold(0.0, |sum, (_, ns)| sum + ns);
    if all > 0.0 { shared / all } else { 1.0 }
}

/// Bytes of the collectives of a step and rank; `None` if they are not recorded.
pub(super) fn bytes_a_step(run: &RunProfile) -> Option<f64> {
    let steps: usize = run.ranks.iter().map(|rank| rank.steps.len()).sum();
    (run.collective_bytes > 0 && steps > 0).then(|| run.collective_bytes as f64 / steps as f64)
}

pub(super) fn same_bytes(a: Option<f64>, b: Option<f64>) -> bool {
    matches!((a, b), (Some(a), Some(b)) if (a - b).abs() <= SHARED_BYTES * a.max(b))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::profile::Measure;
    use crate::profile::RankProfile;
    use model::analysis::Facts;

    fn run(world_size: i32, bytes: i64, operators: &[(&str, f64)]) -> (String, RunProfile) {
        let key = |name: &str| Key::new(Group::Operator, name, Measure::SelfTime);
        let series = operators.iter().map(|(name, ns)| (key(name), [*ns].into_iter().collect())).collect();
        let rank = RankProfile { rank: 0, steps: vec![0], series, ..RankProfile::default() };
        let facts = Facts { world_size: Some(world_size), ..Facts::default() };
        (String::new(), RunProfile { facts, ranks: vec![rank], collective_bytes: bytes, ..RunProfile::default() })
    }

    #[test]
    fn another_world_size_or_program_is_refused() {
        let first = run(8, 1000, &[("mm", 90.0), ("add", 10.0)]);
        let with = |other| require_same_job(&first, &other);
        assert!(with(run(8, 1000, &[("mm", 50.0)])).is_ok());
        assert!(with(run(6, 1000, &[("mm", 90.0), ("add", 10.0)])).is_err());
        // A compiler gives all operators other names, and the gradients stay.
        assert!(with(run(8, 1050, &[("triton_0", 60.0)])).is_ok());
        // Another data type halves the bytes, and the operators stay.
        assert!(with(run(8, 500, &[("mm", 60.0)])).is_ok());
        assert!(with(run(8, 300, &[("conv", 60.0), ("add", 10.0)])).is_err());
    }
}
