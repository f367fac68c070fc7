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
//!
//! A file joins the window with which it has most in common, of at most [`LOOKED_AT`] windows with each of its steps, or
//! that begin before it ends.

use std::collections::{BTreeMap, BTreeSet};

use rustc_hash::FxHashMap;

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

/// Windows that a file is compared with. Windows of one job do not overlap, so that more of them belong to no real job.
const LOOKED_AT: usize = 64;

/// The windows found so far, and how a file finds those that it may belong to.
struct Windows<'a> {
    pieces: &'a [Piece],
    by_steps: bool,
    /// The files of each window, those of one rank behind each other.
    files: Vec<Vec<usize>>,
    /// From the first start to the last end of each window.
    spans: Vec<(i64, i64)>,
    /// The windows by start.
    by_start: BTreeSet<(i64, usize)>,
    /// The windows with a step.
    with_step: FxHashMap<i32, Vec<usize>>,
}

impl Windows<'_> {
    /// The window with which a file has most in common, the latest of equals; `None` if it has nothing in common with any.
    fn best(&self, file: usize) -> Option<usize> {
        let piece = &self.pieces[file];
        // Files come rank by rank, so that a window ends with the file of this rank if it has one.
        let lacks_rank = |at: &usize| self.files[*at].last().is_none_or(|last| self.pieces[*last].rank != piece.rank);
        if self.by_steps {
            let mut common: BTreeMap<usize, usize> = BTreeMap::new();
            for at in piece.steps.iter().filter_map(|step| self.with_step.get(step)).flatten() {
                *common.entry(*at).or_default() += 1;
            }
            return common
                .into_iter()
                .filter(|(at, _)| lacks_rank(at))
                .map(|(at, steps)| (steps, at))
                .max()
                .map(|best| best.1);
        }
        let overlap_ns =
            |(start_ns, end_ns): (i64, i64)| end_ns.min(piece.end_ns).saturating_sub(start_ns.max(piece.start_ns));
        let earlier = self.by_start.range(..(piece.end_ns, 0)).rev().take(LOOKED_AT).map(|(_, at)| *at);
        let alike = earlier.filter(lacks_rank).map(|at| (overlap_ns(self.spans[at]), at));
        alike.filter(|(overlap_ns, _)| *overlap_ns > 0).max().map(|best| best.1)
    }

    /// Adds a file to a window, or as a window of its own.
    fn add(&mut self, file: usize, window: Option<usize>) {
        let pieces = self.pieces;
        let Piece { start_ns, end_ns, steps, .. } = &pieces[file];
        let at = window.unwrap_or(self.files.len());
        if window.is_none() {
            self.files.push(Vec::new());
            self.spans.push((*start_ns, *end_ns));
        }
        self.files[at].push(file);
        let (start, end) = self.spans[at];
        self.by_start.remove(&(start, at));
        self.spans[at] = (start.min(*start_ns), end.max(*end_ns));
        self.by_start.insert((self.spans[at].0, at));
        for step in steps.iter().filter(|_| self.by_steps) {
            let windows = self.with_step.entry(*step).or_default();
            if !windows.contains(&at) && windows.len() < LOOKED_AT {
                windows.push(at);
            }
        }
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
    let (files, spans) = (Vec::new(), Vec::new());
    let mut found =
        Windows { pieces, by_steps, files, spans, by_start: BTreeSet::new(), with_step: FxHashMap::default() };
    by_rank[&reference].iter().for_each(|file| found.add(*file, None));
    for file in by_rank.iter().filter(|(rank, _)| **rank != reference).flat_map(|(_, files)| files) {
        let best = found.best(*file);
        found.add(*file, best);
    }
    let mut windows = found.files;
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

    /// Comparing each file with all others would take 10¹⁰ comparisons. One rank has a second window, so that windows
    /// matter.
    #[test]
    fn many_files_take_little_time() {
        const FILES: i32 = 100_000;
        let piece = |rank: i32, window: i32, steps: bool| {
            let start_ns = i64::from(window) * 1_000_000 + i64::from(rank);
            let steps = if steps { (3 * window..3 * window + 3).collect() } else { BTreeSet::new() };
            Piece { rank, start_ns, end_ns: start_ns + 500_000, steps, quality: 1 }
        };
        for by_steps in [true, false] {
            let mut of_ranks: Vec<Piece> = (0..FILES).map(|rank| piece(rank, 0, by_steps)).collect();
            of_ranks.push(piece(7, 1, by_steps));
            let sizes: Vec<usize> = group(&of_ranks).windows.iter().map(Vec::len).collect();
            assert_eq!(sizes, [FILES as usize, 1]);
            let of_windows: Vec<Piece> = (0..FILES).map(|file| piece(file % 2, file / 2, by_steps)).collect();
            let sizes: Vec<usize> = group(&of_windows).windows.iter().map(Vec::len).collect();
            assert_eq!(sizes, vec![2; FILES as usize / 2]);
        }
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
