//! Merges the parts of a rank: sorts the rows, completes open rows, finds parents.

use rustc_hash::FxHashMap;
use trace::OmissionRow;

use model::sort_rows::{gather, permuted, sorting_order};
use model::{CopyRate, Events, KernelUse, NO_PARENT, NONE};
use trace::rank::FlopsType;
use trace::time_limits::{FAR, LONG, longest_ns, plausible_starts};

/// The rows of all parts in sequence, before merging.
#[derive(Debug, Default)]
pub struct RawColumns {
    /// The columns; `parent` is empty.
    pub events: Events,
    /// `id` of the enclosing row, or [`NONE`].
    pub parent_id: Vec<i64>,
    /// Rows that had not ended when their part closed, ascending.
    pub open: Vec<u32>,
    /// Grid and occupancy of kernels.
    pub kernel_use: Vec<KernelUse>,
    /// As in [`RankData`](model::RankData).
    pub flops_types: Vec<FlopsType>,
    /// Bandwidth of copies.
    pub copy_rates: Vec<CopyRate>,
    /// Processes that made calls, numbered in the order of their first row.
    pub pids: FxHashMap<i64, i64>,
    /// The rank was made of traces.
    pub is_of_trace: bool,
    /// Rows that began before this time are left out, because the recorder removed others of that time.
    pub kept_from_ns: Option<i64>,
}

impl RawColumns {
    /// Empty columns with capacity for `rows`.
    pub fn with_capacity(rows: usize) -> Self {
        let long = || Vec::with_capacity(rows);
        let events = Events {
            kind: Vec::with_capacity(rows),
            name: Vec::with_capacity(rows),
            ts_ns: long(),
            dur_ns: long(),
            id: long(),
            step: Vec::with_capacity(rows),
            thread: long(),
            device: long(),
            stream: long(),
            correlation: long(),
            external: long(),
            parent: Vec::new(),
            is_comm: Vec::with_capacity(rows),
            bytes: long(),
            flops: long(),
        };
        Self { events, parent_id: long(), ..Self::default() }
    }
}

/// Merges the parts of a rank: completes open rows, sorts, and converts parent ids to row numbers.
///
/// An open row that a later row completes is dropped. If no row completes it, it keeps the length that it had reached
/// and is counted in `omissions`, because its true end is unknown.
pub fn merge_parts(raw: RawColumns, rank: i32, omissions: &mut Vec<OmissionRow>) -> Events {
    let RawColumns { mut events, mut parent_id, open, kept_from_ns, .. } = raw;
    if !open.is_empty() {
        let superseded = superseded(&events, &open, rank, omissions);
        if !superseded.is_empty() {
            let keep: Vec<u32> =
                (0..events.len() as u32).filter(|row| superseded.binary_search(row).is_err()).collect();
            parent_id = gather(&parent_id, &keep);
            events = permuted(&events, &keep);
        }
    }
    if let Some(order) = sorting_order(&events) {
        parent_id = gather(&parent_id, &order);
        events = permuted(&events, &order);
    }
    let first = kept_from_ns.map_or(0, |from_ns| events.ts_ns.partition_point(|ts_ns| *ts_ns < from_ns));
    if first > 0 {
        let keep: Vec<u32> = (first as u32..events.len() as u32).collect();
        parent_id = gather(&parent_id, &keep);
        events = permuted(&events, &keep);
    }
    if let Some(keep) = possible_rows(&mut events, rank, omissions) {
        parent_id = gather(&parent_id, &keep);
        events = permuted(&events, &keep);
    }
    events.parent = parents(&events, &parent_id);
    events
}

/// The rows with plausible times, of sorted rows; `None` if all rows are plausible. Negative lengths become zero.
fn possible_rows(events: &mut Events, rank: i32, omissions: &mut Vec<OmissionRow>) -> Option<Vec<u32>> {
    let mut omit = |what: &str, amount: usize, why: &str| {
        if amount > 0 {
            omissions.push(OmissionRow::lost(what, why).rank(rank).amount(amount as i64));
        }
    };
    let (starts, _) = plausible_starts(events.len(), |row| events.ts_ns[row]);
    let (mut least_ns, mut most_ns, mut sum_ns) = (0, 0, 0_i64);
    for dur_ns in events.dur_ns.iter().copied() {
        (least_ns, most_ns) = (dur_ns.min(least_ns), dur_ns.max(most_ns));
        sum_ns = sum_ns.saturating_add(dur_ns.max(0));
    }
    if least_ns < 0 {
        omit("lengths", events.dur_ns.iter().filter(|dur_ns| **dur_ns < 0).count(), "they are negative; taken as zero");
        events.dur_ns.iter_mut().for_each(|dur_ns| *dur_ns = (*dur_ns).max(0));
    }
    let longest_ns = longest_ns(events.len(), sum_ns);
    if starts == (0..events.len()) && most_ns <= longest_ns {
        return None;
    }
    let plausible: Vec<u32> =
        starts.clone().filter(|row| events.dur_ns[*row] <= longest_ns).map(|row| row as u32).collect();
    omit("events", events.len() - starts.len(), FAR);
    omit("events", starts.len() - plausible.len(), LONG);
    Some(plausible)
}

/// Open rows that another row with the same id completes, ascending.
fn superseded(events: &Events, open: &[u32], rank: i32, omissions: &mut Vec<OmissionRow>) -> Vec<u32> {
    let mut last_by_id: FxHashMap<i64, u32> = open.iter().map(|row| (events.id[*row as usize], *row)).collect();
    let opened = last_by_id.clone();
    for (row, id) in events.id.iter().enumerate() {
        if let Some(last) = last_by_id.get_mut(id) {
            *last = (*last).max(row as u32);
        }
    }
    let (superseded, unfinished): (Vec<u32>, Vec<u32>) = open.iter().copied().partition(|row| {
        let id = &events.id[*row as usize];
        last_by_id.get(id).is_some_and(|last| last > row) || opened.get(id).is_some_and(|first| first > row)
    });
    if !unfinished.is_empty() {
        omissions.push(
            OmissionRow::lost(
                "ends of rows of events",
                "the rank stopped before they ended; their lengths are lower bounds",
            )
            .rank(rank)
            .amount(unfinished.len() as i64),
        );
    }
    superseded
}

/// Number of open rows that are searched for a parent before the table of all ids. More than any program nests, and a
/// bound on the cost of rows that overlap without nesting.
const MAX_LOOK_BACK: usize = 256;

/// Row numbers of the parents. A parent is nearly always among the open rows of the same thread; the table of all ids
/// is built only if it is not.
fn parents(events: &Events, parent_id: &[i64]) -> Vec<u32> {
    let mut parents = vec![NO_PARENT; events.len()];
    let mut stacks: Vec<Vec<u32>> = Vec::new();
    let mut stack_of_thread: FxHashMap<i64, usize> = FxHashMap::default();
    // Rows come in bursts of one thread, so look up the thread only when it changes.
    let mut current: Option<(i64, usize)> = None;
    let mut elsewhere: Vec<u32> = Vec::new();
    for row in 0..events.len() {
        let thread = events.thread[row];
        if thread == NONE && parent_id[row] == NONE {
            continue;
        }
        let at = match current {
            Some((last, at)) if last == thread => at,
            _ => *stack_of_thread.entry(thread).or_insert_with(|| {
                stacks.push(Vec::new());
                stacks.len() - 1
            }),
        };
        current = Some((thread, at));
        let stack = &mut stacks[at];
        while stack.last().is_some_and(|top| events.end_ns(*top as usize) < events.ts_ns[row]) {
            stack.pop();
        }
        if parent_id[row] != NONE {
            match stack.iter().rev().take(MAX_LOOK_BACK).find(|open| events.id[**open as usize] == parent_id[row]) {
                Some(parent) => parents[row] = *parent,
                None => elsewhere.push(row as u32),
            }
        }
        stack.push(row as u32);
    }
    if !elsewhere.is_empty() {
        let rows: FxHashMap<i64, u32> = events.id.iter().enumerate().map(|(row, id)| (*id, row as u32)).collect();
        for row in elsewhere {
            // A parent may be missing, because it began before the recording or was dropped. The row is then outermost.
            let parent = rows.get(&parent_id[row as usize]).copied().filter(|parent| *parent != row);
            parents[row as usize] = parent.unwrap_or(NO_PARENT);
        }
    }
    parents
}

#[cfg(test)]
mod tests {
    use super::*;
    use model::{Kind, NO_STEP};

    #[test]
    fn rows_with_impossible_times_are_left_out_and_parents_stay() {
        let now_ns = 1_795_000_000_000_000_000;
        // Start, length, id, parent id.
        let rows = [
            (now_ns, 100, 1, NONE),
            (i64::MIN, 5, 2, NONE),
            (now_ns + 1, i64::MAX, 3, 1),
            (now_ns + 2, -4, 4, 1),
            (now_ns + 3, 50, 5, 3),
            (7, 1, 6, NONE),
            (i64::MAX, 5, 7, 1),
        ];
        let none = vec![NONE; rows.len()];
        let events = Events {
            kind: vec![Kind::CpuOp; rows.len()],
            name: vec![0; rows.len()],
            ts_ns: rows.map(|(ts_ns, ..)| ts_ns).into(),
            dur_ns: rows.map(|(_, dur_ns, ..)| dur_ns).into(),
            id: rows.map(|(_, _, id, _)| id).into(),
            step: vec![NO_STEP; rows.len()],
            thread: vec![1; rows.len()],
            device: none.clone(),
            stream: none.clone(),
            correlation: none.clone(),
            external: none.clone(),
            parent: Vec::new(),
            is_comm: vec![false; rows.len()],
            bytes: none.clone(),
            flops: none,
        };
        let parent_id = rows.map(|(.., parent)| parent).into();
        let raw = RawColumns { events, parent_id, ..RawColumns::default() };
        let mut omissions = Vec::new();
        let events = merge_parts(raw, 0, &mut omissions);
        assert_eq!(
            (&*events.id, &*events.dur_ns, &*events.parent),
            (&[1, 4, 5][..], &[100, 0, 50][..], &[NO_PARENT, 0, NO_PARENT][..])
        );
        let omitted: Vec<_> = omissions.iter().map(|o| (&*o.what, o.amount, &*o.why)).collect();
        let negative = "they are negative; taken as zero";
        assert_eq!(omitted, [("lengths", Some(1), negative), ("events", Some(3), FAR), ("events", Some(1), LONG)]);
    }
}
