//! Ranks, hosts and processes in the names of files and of their directories.

use std::cmp::Ordering;
use std::collections::{BTreeMap, BTreeSet};

use trace::Text;
use trace::rank::MAX_RANKS;

/// The name of a file, and what its header says of its rank.
#[derive(Clone, Debug)]
pub(crate) struct Named {
    pub(crate) name: Text,
    pub(crate) rank: Option<i32>,
    /// torch chose the name.
    pub(crate) is_named_by_torch: bool,
}

/// The ranks in the names of files. A number that belongs to a host or a time is not a rank.
pub(crate) fn ranks_from_names(files: &[Named], world_size: i32) -> Vec<Option<i32>> {
    let below = if world_size > 0 { world_size } else { MAX_RANKS };
    let numbered_host = |file: &Named| torch_name(&file.name).is_some_and(|(host, _)| rank_of_text(host).is_some());
    // If several processes share one numbered host, the number is the host's, also in the names of the other hosts.
    let mut processes: BTreeMap<&str, BTreeSet<&str>> = BTreeMap::new();
    for file in files.iter().filter(|file| file.rank.is_none() && numbered_host(file)) {
        if let Some((host, pid)) = torch_name(&file.name) {
            processes.entry(host).or_default().insert(pid);
        }
    }
    let are_hosts = processes.values().any(|pids| pids.len() > 1);
    let of_directories = ranks_of_numbered_directories(files);
    let rank = |(file, of_directory): (&Named, Option<i32>)| {
        let names_host = file.is_named_by_torch || are_hosts && numbered_host(file);
        let (directories, own) = split(&file.name);
        // A directory that names a rank was made for it. The name of the file may be that of its host.
        let named = directories.rev().find_map(rank_of_text);
        let of_file = rank_of_text(own).filter(|_| !names_host);
        of_file.or(named).or(of_directory).filter(|rank| *rank < below)
    };
    files.iter().zip(of_directories).map(rank).collect()
}

/// The rank in the name of a file, or else in those of its directories.
pub fn rank_of_name(name: &str) -> Option<i32> {
    let (directories, own) = split(name);
    rank_of_text(own).or_else(|| directories.rev().find_map(rank_of_text))
}

/// The directories of a name, and its file.
fn split(name: &str) -> (std::str::Split<'_, char>, &str) {
    let (directories, file) = name.rsplit_once('/').unwrap_or(("", name));
    (directories.split('/'), file)
}

/// The rank in names such as `3/trace.json`, if all directories beside `3` are numbers too.
fn ranks_of_numbered_directories(files: &[Named]) -> Vec<Option<i32>> {
    let parent = |file: &Named| -> Option<(String, String)> {
        let (directory, _) = file.name.rsplit_once('/')?;
        let (above, own) = directory.rsplit_once('/').unwrap_or(("", directory));
        Some((above.to_string(), own.to_string()))
    };
    let mut beside: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
    for (above, own) in files.iter().filter_map(parent) {
        beside.entry(above).or_default().insert(own);
    }
    let is_number = |own: &String| !own.is_empty() && own.len() < 8 && own.bytes().all(|b| b.is_ascii_digit());
    beside.retain(|_, names| names.len() > 1 && names.iter().all(is_number));
    let rank = |file: &Named| {
        let (above, own) = parent(file)?;
        beside.contains_key(&above).then(|| own.parse().ok())?
    };
    files.iter().map(rank).collect()
}

/// The number after `rank` or `worker` in a name: `rank-3.….json`, `worker0_step_12.…`, `trace_rank_07.json.gz`.
fn rank_of_text(text: &str) -> Option<i32> {
    let text = text.to_ascii_lowercase();
    ["rank", "worker"].iter().find_map(|word| {
        let after = text.match_indices(word).map(|(at, _)| &text[at + word.len()..]);
        after
            .filter_map(|rest| {
                let rest = rest.strip_prefix(['-', '_', '.', '=']).unwrap_or(rest);
                let end = rest.find(|c: char| !c.is_ascii_digit()).unwrap_or(rest.len());
                rest[..end].parse().ok()
            })
            .next()
    })
}

/// Orders names as people count: `trace_2` comes before `trace_10`, and `01` beside `1`.
pub(crate) fn natural_order(a: &str, b: &str) -> Ordering {
    let (mut parts_of_a, mut parts_of_b) = (parts(a), parts(b));
    loop {
        let (a_part, b_part) = match (parts_of_a.next(), parts_of_b.next()) {
            (None, None) => return a.cmp(b),
            (a_part, b_part) => (a_part.unwrap_or_default(), b_part.unwrap_or_default()),
        };
        let order = match (significant(a_part), significant(b_part)) {
            (Some(a_digits), Some(b_digits)) => (a_digits.len(), a_digits).cmp(&(b_digits.len(), b_digits)),
            _ => a_part.cmp(b_part),
        };
        if order != Ordering::Equal {
            return order;
        }
    }
}

/// The parts of a name that are numbers, and the texts between them.
fn parts(name: &str) -> impl Iterator<Item = &str> {
    let mut rest = name;
    std::iter::from_fn(move || {
        let is_number = rest.as_bytes().first()?.is_ascii_digit();
        let end = rest.bytes().position(|byte| byte.is_ascii_digit() != is_number).unwrap_or(rest.len());
        let (part, after) = rest.split_at(end);
        rest = after;
        Some(part)
    })
}

/// The digits of a number without the zeros before it; `None` if a part of a name is no number.
fn significant(part: &str) -> Option<&str> {
    part.starts_with(|c: char| c.is_ascii_digit()).then(|| part.trim_start_matches('0'))
}

/// The ranks of files whose names differ in one number only, and have all of `0..n` there. The number may stand in a name
/// several times. `None` for other names, and for those that torch chose, whose numbers are processes.
pub(crate) fn ranks_from_numbers(names: &[&str]) -> Option<Vec<i32>> {
    if names.len() < 2 || names.iter().any(|name| torch_name(name).is_some()) {
        return None;
    }
    let split: Vec<Vec<&str>> = names.iter().map(|name| parts(name).collect()).collect();
    if split.iter().any(|parts| parts.len() != split[0].len()) {
        return None;
    }
    let number = |part: &str| significant(part)?.parse().ok().or_else(|| part.ends_with('0').then_some(0));
    let mut ranks: Option<Vec<i32>> = None;
    for at in (0..split[0].len()).filter(|at| split.iter().any(|parts| parts[*at] != split[0][*at])) {
        let numbers: Vec<i32> = split.iter().map(|parts| number(parts[at])).collect::<Option<_>>()?;
        if ranks.get_or_insert_with(|| numbers.clone()) != &numbers {
            return None;
        }
    }
    let mut sorted = ranks.clone()?;
    sorted.sort_unstable();
    sorted.into_iter().eq(0..names.len() as i32).then_some(ranks)?
}

/// Host and process in a name by torch's `tensorboard_trace_handler`: `<host>_<pid>.<time>.pt.trace.json`. Names that
/// users choose may look the same.
pub(crate) fn torch_name(name: &str) -> Option<(&str, &str)> {
    let (_, name) = split(name);
    let name = name.strip_suffix(".gz").or(name.strip_suffix(".zst")).unwrap_or(name);
    let stem = name.strip_suffix(".pt.trace.json")?;
    let (stem, time) = stem.rsplit_once('.')?;
    let (host, pid) = stem.rsplit_once('_')?;
    let is_number = |text: &str| text.bytes().all(|b| b.is_ascii_digit());
    (time.len() >= 12 && is_number(time) && !pid.is_empty() && is_number(pid) && !host.is_empty())
        .then_some((host, pid))
}

/// The host in a name by torch. The process id in the name must be that of the trace.
pub(crate) fn host_from_name(name: &str, pid: i64) -> Option<String> {
    let (host, named) = torch_name(name)?;
    (named.parse() == Ok(pid)).then(|| host.to_string())
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn numbers_in_names_count() {
        let mut names = ["t10/a", "t2/b10", "t02/b9", "t2/a", "t", "u", "2", "t2"];
        names.sort_by(|a, b| natural_order(a, b));
        assert_eq!(names, ["2", "t", "t2", "t2/a", "t02/b9", "t2/b10", "t10/a", "u"]);
    }

    #[test]
    fn one_number_that_differs_is_the_rank() {
        let ranks = |names: &[&str]| ranks_from_numbers(names);
        assert_eq!(ranks(&["t_1.json", "t_0.json", "t_02.json"]), Some(vec![1, 0, 2]));
        assert_eq!(ranks(&["7-TP-1-DP-0-EP-1.json", "7-TP-0-DP-0-EP-0.json"]), Some(vec![1, 0]));
        for other in [
            &["t_0.json"][..],
            &["t_1.json", "t_2.json"],
            &["t_0.json", "t_2.json"],
            &["t_0.json", "t_00.json"],
            &["t_0.json", "u_1.json"],
            &["tp0_pp1.json", "tp1_pp0.json"],
            &["tp0_pp0.json", "tp1_pp0.json", "tp0_pp1.json", "tp1_pp1.json"],
            &["node0_7.1696341258110.pt.trace.json", "node1_7.1696341258110.pt.trace.json"],
        ] {
            assert_eq!(ranks(other), None, "{other:?}");
        }
    }

    proptest! {
        /// The order is that of the numbers, with zeros before them or not, and of the texts around them.
        #[test]
        fn the_order_of_names_is_that_of_their_numbers(
            a in (0..30_u32, 0..30_u32, 1..4_usize), b in (0..30_u32, 0..30_u32, 1..4_usize),
        ) {
            let name = |(rank, step, width): (u32, u32, usize)| format!("rank{rank:0width$}/step_{step:0width$}.json");
            let order = natural_order(&name(a), &name(b));
            prop_assert_eq!(order.reverse(), natural_order(&name(b), &name(a)));
            if (a.0, a.1) != (b.0, b.1) {
                prop_assert_eq!(order, (a.0, a.1).cmp(&(b.0, b.1)));
            }
        }
    }
}
