//! The calls that launched device work: their times, and the scopes that they were made in.

use recorder::NONE;
use rustc_hash::FxHashMap;

/// The most launches that are kept before the older half is discarded.
const MAX_LAUNCHES: usize = 1 << 20;

/// A call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Launch {
    /// Start of the call, in the recorder's clock; `None` until its record arrives.
    pub(crate) start_ns: Option<i64>,
    /// Id of the enclosing scope; [`NONE`] without one.
    pub(crate) external_id: i64,
}

/// Launches by correlation id. Any number of kernels may refer to one, in any order and much later (a graph, a long
/// stream). Launches are therefore discarded by age only: there are two generations, and the older one is dropped when the
/// newer one is full.
#[derive(Debug, Default)]
pub(crate) struct Launches {
    new: FxHashMap<u32, Launch>,
    old: FxHashMap<u32, Launch>,
}

impl Launches {
    /// Stores the start of a call. If a runtime call contains a driver call with the same id, the outer one counts.
    pub(crate) fn called(&mut self, correlation_id: u32, start_ns: i64) {
        let launch = self.entry(correlation_id);
        launch.start_ns = Some(launch.start_ns.map_or(start_ns, |known| known.min(start_ns)));
    }

    /// Stores the scope of a call.
    pub(crate) fn inside(&mut self, correlation_id: u32, external_id: i64) {
        self.entry(correlation_id).external_id = external_id;
    }

    pub(crate) fn get(&self, correlation_id: u32) -> Option<Launch> {
        self.new.get(&correlation_id).or_else(|| self.old.get(&correlation_id)).copied()
    }

    fn entry(&mut self, correlation_id: u32) -> &mut Launch {
        if self.new.len() >= MAX_LAUNCHES / 2 && !self.new.contains_key(&correlation_id) {
            self.old = std::mem::take(&mut self.new);
        }
        let known = self.old.get(&correlation_id).copied();
        let none = Launch { start_ns: None, external_id: NONE };
        self.new.entry(correlation_id).or_insert_with(|| known.unwrap_or(none))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn time_and_scope_of_a_call_arrive_in_any_order() {
        let mut launches = Launches::default();
        launches.inside(7, 70);
        assert_eq!(launches.get(7), Some(Launch { start_ns: None, external_id: 70 }));
        launches.called(7, 500);
        launches.called(7, 400);
        launches.called(7, 450);
        assert_eq!(launches.get(7), Some(Launch { start_ns: Some(400), external_id: 70 }));
        assert_eq!(launches.get(8), None);
    }

    #[test]
    fn only_old_launches_are_discarded() {
        let mut launches = Launches::default();
        let half = (MAX_LAUNCHES / 2) as u32;
        (0..half).for_each(|id| launches.called(id, 1));
        launches.inside(0, 5);
        launches.called(half, 1);
        assert_eq!(launches.get(0), Some(Launch { start_ns: Some(1), external_id: 5 }));
        (half + 1..=3 * half).for_each(|id| launches.called(id, 1));
        assert_eq!(launches.get(0), None);
        assert!(launches.new.len() + launches.old.len() <= MAX_LAUNCHES);
    }
}
