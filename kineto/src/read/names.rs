//! Ranks, hosts and processes in the names of files and of their directories.

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
