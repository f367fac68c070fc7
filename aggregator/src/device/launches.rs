//! Which call of the host launched which piece of device work: joined by correlation id, within the rank. (A rank is
//! one process; a device row of Kineto does not say which.)

use rustc_hash::{FxBuildHasher, FxHashMap};

use crate::model::{Events, Kind, NO_PARENT, NONE};

/// The host row that launched each piece of device work, by correlation id.
#[derive(Clone, Debug, Default)]
pub struct Launches {
    rows: FxHashMap<i64, u32>,
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
    /// Collects the launches of a rank.
    pub fn collect(events: &Events) -> Self {
        let hosts = events.kind.iter().filter(|kind| matches!(kind, Kind::Runtime | Kind::Driver)).count();
        let mut rows = FxHashMap::with_capacity_and_hasher(hosts, FxBuildHasher);
        for row in 0..events.len() {
            let host = matches!(events.kind[row], Kind::Runtime | Kind::Driver);
            // A runtime call may hold a driver call of the same id; the outer one, which comes first, is the launch.
            if host && events.correlation[row] != NONE {
                rows.entry(events.correlation[row]).or_insert(row as u32);
            }
        }
        Self { rows }
    }

    /// Whether no launch was recorded.
    pub fn is_empty(&self) -> bool {
        self.rows.is_empty()
    }

    /// The row that launched the work with this correlation id.
    pub fn of(&self, correlation: i64) -> Option<u32> {
        if correlation == NONE { None } else { self.rows.get(&correlation).copied() }
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
