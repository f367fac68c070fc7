//! Finds the host call that launched each piece of device work, by correlation id within the rank. (A rank is one
//! process; a device row of Kineto does not record its process.)

use rustc_hash::{FxBuildHasher, FxHashMap};

use crate::rank::{Events, Kind, NO_PARENT, NONE};

/// Maps each correlation id to its first row.
#[derive(Clone, Debug)]
pub enum RowsByCorrelation {
    /// `rows[i]` is the row of the id `first + i`, or `NO_ROW`. Correlation ids are consecutive, so the table has few
    /// holes.
    Dense {
        /// The smallest id.
        first: i64,
        /// Rows by id − `first`.
        rows: Vec<u32>,
    },
    /// For ids that lie far apart.
    Sparse(FxHashMap<i64, u32>),
}

/// Marks an id without a row.
const NO_ROW: u32 = u32::MAX;
/// Table places per row above which a hash table is smaller.
const MOST_PLACES: u64 = 6;

impl Default for RowsByCorrelation {
    fn default() -> Self {
        Self::Dense { first: 0, rows: Vec::new() }
    }
}

impl RowsByCorrelation {
    /// Collects the rows that pass `counts`.
    pub fn collect(events: &Events, counts: impl Fn(usize) -> bool) -> Self {
        let wanted = || {
            let rows = (0..events.len()).filter(|row| counts(*row));
            rows.map(|row| (events.correlation[row], row as u32)).filter(|(id, _)| *id != NONE)
        };
        let (mut count, mut first, mut last) = (0_u64, i64::MAX, i64::MIN);
        wanted().for_each(|(id, _)| (count, first, last) = (count + 1, first.min(id), last.max(id)));
        if count == 0 {
            return Self::default();
        }
        if last.abs_diff(first) / MOST_PLACES < count {
            let mut rows = vec![NO_ROW; last.abs_diff(first) as usize + 1];
            for (id, row) in wanted() {
                let place = &mut rows[id.abs_diff(first) as usize];
                *place = if *place == NO_ROW { row } else { *place };
            }
            return Self::Dense { first, rows };
        }
        let mut rows = FxHashMap::with_capacity_and_hasher(count as usize, FxBuildHasher);
        for (id, row) in wanted() {
            rows.entry(id).or_insert(row);
        }
        Self::Sparse(rows)
    }

    fn is_empty(&self) -> bool {
        match self {
            Self::Dense { rows, .. } => rows.is_empty(),
            Self::Sparse(rows) => rows.is_empty(),
        }
    }

    /// The row with this correlation id.
    pub fn get(&self, correlation: i64) -> Option<u32> {
        match self {
            _ if correlation == NONE => None,
            Self::Dense { first, rows } => {
                let place = usize::try_from(correlation.checked_sub(*first)?).ok()?;
                rows.get(place).copied().filter(|row| *row != NO_ROW)
            }
            Self::Sparse(rows) => rows.get(&correlation).copied(),
        }
    }
}

/// Maps each piece of device work to the host row that launched it, by correlation id.
#[derive(Clone, Debug, Default)]
pub struct Launches {
    rows: RowsByCorrelation,
}

/// The row that encloses `row`. An enclosing row has a smaller index; checking this prevents endless loops in damaged
/// runs.
pub fn enclosing(events: &Events, row: usize) -> Option<usize> {
    let parent = events.parent[row];
    (parent != NO_PARENT && (parent as usize) < row).then_some(parent as usize)
}

/// For each row, the innermost row that passes `counts`, or [`NO_PARENT`]: the row itself, or one around it.
pub fn innermost(events: &Events, counts: &dyn Fn(usize) -> bool) -> Vec<u32> {
    let mut innermost = vec![NO_PARENT; events.len()];
    for row in 0..events.len() {
        innermost[row] = match enclosing(events, row) {
            _ if counts(row) => row as u32,
            Some(parent) => innermost[parent],
            None => NO_PARENT,
        };
    }
    innermost
}

/// For each row, the outermost row around it that passes `counts`, or [`NO_PARENT`].
pub fn outermost(events: &Events, counts: &dyn Fn(usize) -> bool) -> Vec<u32> {
    let mut outermost = vec![NO_PARENT; events.len()];
    for row in 0..events.len() {
        if let Some(parent) = enclosing(events, row) {
            let around = outermost[parent];
            outermost[row] = if around == NO_PARENT && counts(parent) { parent as u32 } else { around };
        }
    }
    outermost
}

/// The innermost row on a thread at a time, or [`NO_PARENT`], for places (time, thread) sorted by time.
///
/// ```text
/// rows        linear ───────────       copy ──
///                addmm ────
/// places            x      y       z
///                addmm   linear  none
/// ```
pub fn innermost_at(events: &Events, places: impl Iterator<Item = (i64, i64)>) -> Vec<u32> {
    let mut last: FxHashMap<i64, u32> = FxHashMap::default();
    let mut next = 0;
    let mut rows = Vec::with_capacity(places.size_hint().0);
    for (ts_ns, thread) in places {
        while next < events.len() && events.ts_ns[next] <= ts_ns {
            if events.thread[next] != NONE {
                last.insert(events.thread[next], next as u32);
            }
            next += 1;
        }
        let Some(last) = last.get_mut(&thread) else {
            rows.push(NO_PARENT);
            continue;
        };
        // A row that has ended encloses no later place, so each is passed once.
        while *last != NO_PARENT && events.end_ns(*last as usize) < ts_ns {
            *last = enclosing(events, *last as usize).map_or(NO_PARENT, |row| row as u32);
        }
        rows.push(*last);
    }
    rows
}

/// A launch and the device work that it launched, as rows of [`Events`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Launch {
    /// Row of the host call.
    pub host: u32,
    /// Row of the kernel, copy or fill.
    pub device: u32,
}

impl Launches {
    /// Collects the launches of a rank. A runtime call may contain a driver call with the same id. The outer call comes
    /// first and counts as the launch.
    pub fn collect(events: &Events) -> Self {
        let is_call = |row: usize| matches!(events.kind[row], Kind::Runtime | Kind::Driver);
        Self { rows: RowsByCorrelation::collect(events, is_call) }
    }

    /// Whether no launch was recorded.
    pub fn is_empty(&self) -> bool {
        self.rows.is_empty()
    }

    /// The host row that launched the work with this correlation id.
    #[inline]
    pub fn of(&self, correlation: i64) -> Option<u32> {
        self.rows.get(correlation)
    }

    /// All device work with its launch, sorted by start of the work. `keep` selects launches.
    pub fn joined(&self, events: &Events, keep: &dyn Fn(usize) -> bool) -> Vec<Launch> {
        if self.is_empty() {
            return Vec::new();
        }
        let work = (0..events.len()).filter(|row| events.kind[*row].is_device_work());
        work.filter_map(|row| Some(Launch { host: self.of(events.correlation[row])?, device: row as u32 }))
            .filter(|launch| keep(launch.host as usize))
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn launched(ids: &[i64]) -> Launches {
        let n = ids.len();
        let events =
            Events { kind: vec![Kind::Runtime; n], ts_ns: vec![0; n], correlation: ids.to_vec(), ..Events::default() };
        Launches::collect(&events)
    }

    #[test]
    fn dense_and_sparse_ids_find_their_first_row() {
        for ids in [vec![7, 9, 7, NONE, 8], vec![i64::MAX, -1, i64::MAX, NONE, 0], vec![i64::MAX - 1, i64::MAX]] {
            let launches = launched(&ids);
            for id in [7, 8, 9, 6, 10, -1, 0, i64::MAX - 1, i64::MAX, i64::MIN + 1] {
                let first = ids.iter().position(|other| *other == id).map(|row| row as u32);
                assert_eq!(launches.of(id), first, "{id} in {ids:?}");
            }
            assert_eq!(launches.of(NONE), None);
        }
        assert!(launched(&[NONE]).is_empty());
        assert!(matches!(launched(&[5, 6, 9]).rows, RowsByCorrelation::Dense { .. }));
        assert!(matches!(launched(&[5, 6, 900]).rows, RowsByCorrelation::Sparse(_)));
    }

    #[test]
    fn the_innermost_and_the_outermost_row_that_count_are_found() {
        // a counts, b in a, c in b counts, d in c, e alone
        let parent = vec![NO_PARENT, 0, 1, 2, NO_PARENT];
        let events = Events { kind: vec![Kind::CpuOp; 5], ts_ns: vec![0; 5], parent, ..Events::default() };
        let counts = |row: usize| row == 0 || row == 2;
        assert_eq!(innermost(&events, &counts), [0, 0, 2, 2, NO_PARENT]);
        assert_eq!(outermost(&events, &counts), [NO_PARENT, 0, 0, 0, NO_PARENT]);
    }
}
