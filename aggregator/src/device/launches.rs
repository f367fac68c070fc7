//! Which call of the host launched which piece of device work: joined by correlation id, within the rank. (A rank is
//! one process; a device row of Kineto does not say which.)

use rustc_hash::{FxBuildHasher, FxHashMap};

use crate::model::{Events, Kind, NO_PARENT, NONE};

/// The first row of each correlation id.
#[derive(Clone, Debug)]
pub(crate) enum RowsByCorrelation {
    /// `rows[i]` is the row of the id `first + i`, or [`NO_ROW`]: correlation ids are counted up, so that a table has few
    /// holes.
    Dense {
        /// The least id.
        first: i64,
        /// Rows.
        rows: Vec<u32>,
    },
    /// Ids that lie far apart.
    Sparse(FxHashMap<i64, u32>),
}

/// No row has this id.
const NO_ROW: u32 = u32::MAX;
/// Places of the table for each row, beyond which a hash table is smaller.
const MOST_PLACES: u64 = 6;

impl Default for RowsByCorrelation {
    fn default() -> Self {
        Self::Dense { first: 0, rows: Vec::new() }
    }
}

impl RowsByCorrelation {
    /// Collects the rows that `counts`.
    pub(crate) fn collect(events: &Events, counts: impl Fn(Kind) -> bool) -> Self {
        let wanted = || {
            let rows = (0..events.len()).filter(|row| counts(events.kind[*row]));
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

    /// The row of an id.
    pub(crate) fn get(&self, correlation: i64) -> Option<u32> {
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

/// The host row that launched each piece of device work, by correlation id.
#[derive(Clone, Debug, Default)]
pub struct Launches {
    rows: RowsByCorrelation,
}

/// The row that encloses another; rows that enclose begin earlier, so that a damaged run cannot lead in circles.
pub(super) fn enclosing(events: &Events, row: usize) -> Option<usize> {
    let parent = events.parent[row];
    (parent != NO_PARENT && (parent as usize) < row).then_some(parent as usize)
}

/// The outermost row around each row that `counts`, or [`NO_PARENT`].
pub(super) fn outermost(events: &Events, counts: &dyn Fn(usize) -> bool) -> Vec<u32> {
    let mut outermost = vec![NO_PARENT; events.len()];
    for row in 0..events.len() {
        if let Some(parent) = enclosing(events, row) {
            let around = outermost[parent];
            outermost[row] = if around == NO_PARENT && counts(parent) { parent as u32 } else { around };
        }
    }
    outermost
}

/// A launch and what it launched, as rows of [`Events`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Launch {
    /// The call.
    pub host: u32,
    /// The kernel, copy or fill.
    pub device: u32,
}

impl Launches {
    /// Collects the launches of a rank. A runtime call may hold a driver call of the same id; the outer one, which comes
    /// first, is the launch.
    pub fn collect(events: &Events) -> Self {
        Self { rows: RowsByCorrelation::collect(events, |kind| matches!(kind, Kind::Runtime | Kind::Driver)) }
    }

    /// Whether no launch was recorded.
    pub fn is_empty(&self) -> bool {
        self.rows.is_empty()
    }

    /// The row that launched the work with this correlation id.
    pub fn of(&self, correlation: i64) -> Option<u32> {
        self.rows.get(correlation)
    }

    /// Every piece of device work with its launch, by its start, where `keep` keeps the launch.
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
}
