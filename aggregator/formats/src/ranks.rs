//! Sources whose processes or devices state their ranks, or get the numbers that are left.

use std::collections::BTreeSet;
use std::path::Path;

use model::Error;
use model::MAX_RANKS;

/// The ranks of processes: those that they state, and for the others the numbers that are left, in their order. No number that is
/// `taken` is given away.
pub(super) fn numbered(stated: &[Option<i32>], taken: &BTreeSet<i32>) -> Vec<i32> {
    let used: BTreeSet<i32> = stated.iter().flatten().copied().collect();
    let mut free = (0..MAX_RANKS).filter(|rank| !used.contains(rank) && !taken.contains(rank));
    stated.iter().map(|rank| rank.or_else(|| free.next()).unwrap_or_default()).collect()
}

/// Puts processes into the order of their ranks.
///
/// # Errors
/// [`Error::NoInput`] if two have one rank.
pub(super) fn by_rank<T>(
    mut processes: Vec<T>,
    rank_of: impl Fn(&T) -> i32,
    file_of: impl Fn(&T) -> &Path,
) -> Result<Vec<T>, Error> {
    processes.sort_by_key(&rank_of);
    if let Some([a, b]) = processes.windows(2).find(|pair| rank_of(&pair[0]) == rank_of(&pair[1])) {
        let why = format!("a process of it is of the same rank as one of {}; give one of them", file_of(a).display());
        return Err(Error::NoInput { path: file_of(b).into(), why });
    }
    Ok(processes)
}

/// Finds a rank among processes in the order of their ranks.
///
/// # Errors
/// [`Error::NoRank`] if none has it.
pub(super) fn of_rank<'a, T>(
    processes: &'a [T],
    rank: i32,
    rank_of: impl Fn(&T) -> i32,
    path: &Path,
) -> Result<&'a T, Error> {
    let at = processes.binary_search_by_key(&rank, rank_of);
    let missing = |_| Error::NoRank { path: path.into(), why: format!("there is no process of rank {rank}") };
    Ok(&processes[at.map_err(missing)?])
}
