//! Which files are one window of the profiler: torch.profiler with `repeat` above 1 writes a file for each rank and
//! window.
//!
//! ```text
//!  rank 0   [steps 3..5]          [steps 9..11]
//!  rank 1    [steps 3..5]          [steps 9..11]        two windows
//!  rank 2                         [steps 9..11]         rank 2 lacks the first
//! ```
//!
//! Numbers of steps decide, if they tell the files of every rank apart. Clocks of hosts may differ by more than a
//! window. Without such numbers (no step marks, or a second job that counts from 0 again), overlap in time decides.

use std::collections::{BTreeMap, BTreeSet};

/// A file, as far as windows are concerned.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Piece {
    pub(crate) rank: i32,
    pub(crate) start_ns: i64,
    pub(crate) end_ns: i64,
    /// Numbers of its steps.
    pub(crate) steps: BTreeSet<i32>,
    /// Of two files of one rank and window, the one with the larger value is used.
    pub(crate) quality: u64,
}

impl Piece {
    fn overlap_ns(&self, other: &Self) -> i64 {
        self.end_ns.min(other.end_ns).saturating_sub(self.start_ns.max(other.start_ns))
    }
}

/// Files of the same rank and window: used, and ignored.
type Doubles = Vec<(usize, usize)>;

/// The result of [`group`]. Files are positions in its argument.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Grouped {
    /// The files of each window, one for each rank, sorted by rank. Windows are in order of time.
    pub(crate) windows: Vec<Vec<usize>>,
    /// Files of the same rank and window: used, and ignored.
    pub(crate) doubles: Doubles,
}

/// Groups files by window.
pub(crate) fn group(pieces: &[Piece]) -> Grouped {
    let (by_rank, doubles) = without_doubles(pieces);
    let by_steps = by_rank.values().all(|files| steps_differ(pieces, files));
    // The rank with the most files has seen the most windows.
    let Some(reference) = by_rank.iter().max_by_key(|(rank, files)| (files.len(), -**rank)).map(|(rank, _)| *rank)
    else {
        return Grouped { windows: Vec::new(), doubles };
    };
    let mut windows: Vec<Vec<usize>> = by_rank[&reference].iter().map(|file| vec![*file]).collect();
    for file in by_rank.iter().filter(|(rank, _)| **rank != reference).flat_map(|(_, files)| files) {
        let alike = |window: &[usize]| -> i64 {
            let like = |other: &usize| match by_steps {
                true => pieces[*file].steps.intersection(&pieces[*other].steps).count() as i64,
                false => pieces[*file].overlap_ns(&pieces[*other]),
            };
            window.iter().map(like).max().unwrap_or(0)
        };
        // Files come rank by rank, so that a window ends with the file of this rank if it has one.
        let lacks_rank = |window: &[usize]| window.last().is_none_or(|last| pieces[*last].rank != pieces[*file].rank);
        let candidates = windows.iter().enumerate().filter(|(_, window)| lacks_rank(window));
        let best = candidates.map(|(at, window)| (alike(window), at)).filter(|(alike, _)| *alike > 0).max();
        match best {
            Some((_, at)) => windows[at].push(*file),
            None => windows.push(vec![*file]),
        }
    }
    windows.sort_by_key(|window| pieces[window[0]].start_ns);
    windows.iter_mut().for_each(|window| window.sort_by_key(|file| pieces[*file].rank));
    Grouped { windows, doubles }
}

/// The files of each rank in order of time. A profiler writes one window after the other, so files of one rank that
/// overlap in time are copies of one window.
fn without_doubles(pieces: &[Piece]) -> (BTreeMap<i32, Vec<usize>>, Doubles) {
    let mut order: Vec<usize> = (0..pieces.len()).collect();
    order.sort_by_key(|file| (pieces[*file].rank, pieces[*file].start_ns, *file));
    let mut by_rank: BTreeMap<i32, Vec<usize>> = BTreeMap::new();
    let mut doubles = Vec::new();
    for file in order {
        let files = by_rank.entry(pieces[file].rank).or_default();
        let double = files.last().copied().filter(|last| {
            let same = pieces[file].start_ns == pieces[*last].start_ns;
            same || pieces[file].start_ns < pieces[*last].end_ns
        });
        match double {
            None => files.push(file),
            Some(last) if pieces[file].quality > pieces[last].quality => {
                files.pop();
                files.push(file);
                doubles.push((file, last));
            }
            Some(last) => doubles.push((last, file)),
        }
    }
    (by_rank, doubles)
}

/// Whether each file of a rank has steps, and no two have one in common.
fn steps_differ(pieces: &[Piece], files: &[usize]) -> bool {
    let mut seen = BTreeSet::new();
    files.iter().all(|file| {
        let steps = &pieces[*file].steps;
        !steps.is_empty() && steps.iter().all(|step| seen.insert(*step))
    })
}

/// What is added to the numbers of each window's steps, so that no two windows share a number: 0 as long as the numbers
/// ascend. A window without steps becomes one step, whose number is the second value.
pub(crate) fn step_numbers(steps: &[BTreeSet<i32>]) -> Vec<(i32, i32)> {
    let mut next = 0_i32;
    let mut numbers = Vec::with_capacity(steps.len());
    for steps in steps {
        let (first, last) = (steps.first().copied().unwrap_or(next), steps.last().copied().unwrap_or(next));
        let shift = next.saturating_sub(first).max(0);
        numbers.push((shift, first.saturating_add(shift)));
        next = last.saturating_add(shift).saturating_add(1);
    }
    numbers
}

#[cfg(test)]
mod tests {
    use super::*;

    /// One line for each rank; one column is one ns. `#` with the number of the first step of each file behind `|`.
    fn drawn(lines: &[(&str, &[i32])]) -> Vec<Piece> {
        let mut pieces = Vec::new();
        for (rank, (line, firsts)) in (0..).zip(lines) {
            for (at, (start_ns, end_ns)) in fixtures::timeline::bars(line).into_iter().enumerate() {
                let steps = firsts.get(at).map(|first| (*first..*first + 3).collect()).unwrap_or_default();
                pieces.push(Piece { rank, start_ns, end_ns, steps, quality: (end_ns - start_ns) as u64 });
            }
        }
        pieces
    }

    /// The windows as rank and start of each file.
    fn windows(lines: &[(&str, &[i32])]) -> Vec<Vec<(i32, i64)>> {
        let pieces = drawn(lines);
        let place = |file: &usize| (pieces[*file].rank, pieces[*file].start_ns);
        group(&pieces).windows.iter().map(|window| window.iter().map(place).collect()).collect()
    }

    #[test]
    fn files_that_overlap_in_time_are_a_window() {
        let lines: [(&str, &[i32]); 3] = [
            ("####......####", &[]), //
            (".####.....###.", &[]),
            ("..........####", &[]),
        ];
        assert_eq!(windows(&lines), [vec![(0, 0), (1, 1)], vec![(0, 10), (1, 10), (2, 10)]]);
    }

    #[test]
    fn numbers_of_steps_decide_before_the_clocks() {
        // The clock of rank 1 is a window late.
        let lines: [(&str, &[i32]); 2] = [
            ("####..####......", &[3, 9]), //
            ("......####..####", &[3, 9]),
        ];
        assert_eq!(windows(&lines), [vec![(0, 0), (1, 6)], vec![(0, 6), (1, 12)]]);
        // Numbers that begin again say nothing.
        let lines: [(&str, &[i32]); 2] = [
            ("####..####......", &[3, 3]), //
            (".###...###......", &[3, 3]),
        ];
        assert_eq!(windows(&lines), [vec![(0, 0), (1, 1)], vec![(0, 6), (1, 7)]]);
    }

    #[test]
    fn a_window_of_one_rank_is_a_window() {
        let lines: [(&str, &[i32]); 2] = [
            ("###............", &[0]), //
            ("......###...###", &[5, 8]),
        ];
        assert_eq!(windows(&lines), [vec![(0, 0)], vec![(1, 6)], vec![(1, 12)]]);
    }

    #[test]
    fn of_two_files_of_one_window_the_better_is_used() {
        let mut pieces = drawn(&[("####..", &[3]), ("####..", &[3])]);
        pieces.push(Piece { quality: 9, start_ns: 1, ..pieces[0].clone() });
        pieces.push(Piece { quality: 1, ..pieces[1].clone() });
        let grouped = group(&pieces);
        assert_eq!((grouped.windows, grouped.doubles), (vec![vec![2, 1]], vec![(2, 0), (1, 3)]));
        assert_eq!(group(&[]), Grouped::default());
    }

    #[test]
    fn steps_keep_their_numbers_unless_a_window_repeats_them() {
        let numbers = |steps: &[&[i32]]| {
            step_numbers(&steps.iter().map(|steps| steps.iter().copied().collect()).collect::<Vec<_>>())
        };
        assert_eq!(numbers(&[&[3, 4, 5], &[9, 10, 11]]), [(0, 3), (0, 9)]);
        assert_eq!(numbers(&[&[3, 4, 5], &[3, 4, 5], &[9]]), [(0, 3), (3, 6), (0, 9)]);
        assert_eq!(numbers(&[&[], &[]]), [(0, 0), (0, 1)]);
    }
}
