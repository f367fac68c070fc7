//! Which call launched a piece of device work: in which step, and inside which scope of the host.

use rustc_hash::FxHashMap;

use crate::record::NONE;

/// Launches that are remembered before the older half is forgotten.
const MAX_LAUNCHES: usize = 1 << 20;

/// What is known of a call, by its correlation id.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Launch {
    /// When it was made, in the recorder's clock; `None` while its record has not come.
    pub(crate) start_ns: Option<i64>,
    /// Id of the scope that it was made in; [`NONE`] without one.
    pub(crate) external_id: i64,
}

/// Launches by correlation id. Any number of kernels may ask for one, in any order and much later (a graph, a long
/// queue), so that a launch is forgotten by age only: two generations, the older of which goes when the newer is full.
#[derive(Debug, Default)]
pub(crate) struct Launches {
    new: FxHashMap<u32, Launch>,
    old: FxHashMap<u32, Launch>,
}

impl Launches {
    /// The call was made at `start_ns`. Where a runtime call holds a driver call of the same id, the outer one counts.
    pub(crate) fn called(&mut self, correlation_id: u32, start_ns: i64) {
        let launch = self.entry(correlation_id);
        launch.start_ns = Some(launch.start_ns.map_or(start_ns, |known| known.min(start_ns)));
    }

    /// The call was made inside the scope `external_id`.
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
    fn what_is_known_of_a_call_comes_in_any_order() {
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
    fn old_launches_are_forgotten_but_not_soon() {
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
