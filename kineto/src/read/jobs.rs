//! Whether files belong to one job.
//!
//! ```text
//!  a.json  [process 7, steps 3..5]
//!  b.json   [process 8, steps 3..5]                                 the same time: one job
//!  c.json                              …  [process 7, steps 9..11]  later, but a process of that job
//!  d.json                              …  [process 9, no steps]     another job
//! ```

use std::collections::{BTreeMap, BTreeSet};

use trace::Text;

/// Ranks of a job record within this time of each other, or have a step or a process in common.
pub(crate) const NEAR_NS: i64 = 600_000_000_000;
/// Times before 2010 are no times of day: such a clock counts from the boot of its host.
const FIRST_TIME_OF_DAY_NS: i64 = 1_262_304_000_000_000_000;
/// Names that two files must have before their difference says anything.
const MIN_NAMES: usize = 5;

/// A file, as far as its job is concerned.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Traits {
    /// First start and last end.
    pub(crate) span_ns: Option<(i64, i64)>,
    /// Numbers of its steps.
    pub(crate) steps: BTreeSet<i32>,
    /// Process, 0 if unknown.
    pub(crate) pid: i64,
    pub(crate) world_size: Option<i32>,
    /// Names of its operators and ranges.
    pub(crate) names: BTreeSet<Text>,
    /// The error that ended the reading early.
    pub(crate) unread: Option<String>,
}

/// Groups files by job; each group and the groups are in order of their first file.
pub(crate) fn group(files: &[Traits]) -> Vec<Vec<usize>> {
    let mut jobs = Sets::new(files.len());
    join_near(files, &mut jobs);
    for key in [steps_of, process_of] {
        let mut seen: BTreeMap<i64, usize> = BTreeMap::new();
        for (file, traits) in files.iter().enumerate() {
            for value in key(traits) {
                jobs.join(*seen.entry(value).or_insert(file), file);
            }
        }
    }
    let mut groups: BTreeMap<(usize, Option<i32>, bool), Vec<usize>> = BTreeMap::new();
    let usual = usual_world_size(files.iter().map(|traits| traits.world_size));
    for (file, traits) in files.iter().enumerate() {
        let size = traits.world_size.or(usual);
        let other_model = are_other_names(&files[0].names, &traits.names);
        groups.entry((jobs.root(file), size, other_model)).or_default().push(file);
    }
    let mut groups: Vec<Vec<usize>> = groups.into_values().collect();
    groups.sort();
    groups
}

/// The world size of most files; `None` if no file has one.
pub(crate) fn usual_world_size(sizes: impl Iterator<Item = Option<i32>>) -> Option<i32> {
    let mut files: BTreeMap<i32, usize> = BTreeMap::new();
    for size in sizes.flatten() {
        *files.entry(size).or_default() += 1;
    }
    files.into_iter().max_by_key(|(size, files)| (*files, *size)).map(|(size, _)| size)
}

fn steps_of(traits: &Traits) -> Vec<i64> {
    traits.steps.iter().map(|step| i64::from(*step)).collect()
}

fn process_of(traits: &Traits) -> Vec<i64> {
    Some(traits.pid).filter(|pid| *pid != 0).into_iter().collect()
}

fn are_other_names(a: &BTreeSet<Text>, b: &BTreeSet<Text>) -> bool {
    a.len() >= MIN_NAMES && b.len() >= MIN_NAMES && a.is_disjoint(b)
}

/// Joins files that were recorded at about the same time. A time that is no time of day says nothing, so that such
/// files are of one job.
fn join_near(files: &[Traits], jobs: &mut Sets) {
    let mut spans: Vec<(i64, i64, usize)> = Vec::new();
    let mut undated: Option<usize> = None;
    for (file, traits) in files.iter().enumerate() {
        match traits.span_ns.filter(|(start_ns, _)| *start_ns >= FIRST_TIME_OF_DAY_NS) {
            Some((start_ns, end_ns)) => spans.push((start_ns, end_ns, file)),
            None => jobs.join(*undated.get_or_insert(file), file),
        }
    }
    spans.sort_unstable();
    let mut until_ns = i64::MIN;
    for (at, (start_ns, end_ns, file)) in spans.iter().enumerate() {
        if at > 0 && start_ns.saturating_sub(until_ns) <= NEAR_NS {
            jobs.join(spans[at - 1].2, *file);
        }
        until_ns = until_ns.max(*end_ns);
    }
    // One job has one clock for all: files with and without a time of day differ in their tool, not in their job.
    if let (Some(undated), Some((_, _, dated))) = (undated, spans.first()) {
        jobs.join(undated, *dated);
    }
}

/// Disjoint sets.
struct Sets(Vec<usize>);

impl Sets {
    fn new(len: usize) -> Self {
        Self((0..len).collect())
    }

    fn root(&mut self, mut at: usize) -> usize {
        while self.0[at] != at {
            self.0[at] = self.0[self.0[at]];
            at = self.0[at];
        }
        at
    }

    fn join(&mut self, a: usize, b: usize) {
        let (a, b) = (self.root(a), self.root(b));
        self.0[a.max(b)] = a.min(b);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const DAY_NS: i64 = 86_400_000_000_000;

    fn file(day: i64, pid: i64, steps: &[i32]) -> Traits {
        let start_ns = 1_700_000_000_000_000_000 + day * DAY_NS;
        let span_ns = Some((start_ns, start_ns + 1_000_000_000));
        Traits { span_ns, steps: steps.iter().copied().collect(), pid, ..Traits::default() }
    }

    #[test]
    fn time_steps_and_processes_join_files() {
        let files = [file(0, 7, &[3]), file(0, 8, &[]), file(9, 7, &[]), file(20, 9, &[3]), file(30, 10, &[4])];
        assert_eq!(group(&files), [vec![0, 1, 2, 3], vec![4]]);
    }

    #[test]
    fn clocks_without_a_time_of_day_divide_nothing() {
        let boot = |pid| Traits { span_ns: Some((5 * DAY_NS * pid, 5 * DAY_NS * pid + 1)), pid, ..Traits::default() };
        assert_eq!(group(&[boot(1), boot(2), file(0, 3, &[])]), [vec![0, 1, 2]]);
    }

    #[test]
    fn world_sizes_and_models_divide_files_of_one_time() {
        let sized = |world_size| Traits { world_size, ..file(0, 1, &[]) };
        assert_eq!(group(&[sized(Some(8)), sized(None), sized(Some(8)), sized(Some(4))]), [vec![0, 1, 2], vec![3]]);
        assert_eq!(group(&[sized(Some(8)), sized(None)]).len(), 1);
        let named = |letters: &str| Traits {
            names: letters.chars().map(|c| c.to_string().into()).collect(),
            ..file(0, 1, &[])
        };
        assert_eq!(group(&[named("abcdef"), named("fghijk"), named("uvwxyz"), named("u")]), [vec![0, 1, 3], vec![2]]);
    }
}
