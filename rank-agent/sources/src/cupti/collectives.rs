//! Pairs announced collectives with the kernels that carry them out.

use std::collections::BTreeMap;

use recorder::{Collective, CollectiveState, TimingSource};

/// The most scopes with collectives in flight. More of them are a leak, and the oldest is discarded.
const MAX_GROUPS: usize = 1 << 16;
/// Number of flushes after the first kernel, after which an incomplete group is settled with the kernels that it has.
const PATIENCE: u32 = 3;

/// An announced collective of a scope.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Announced {
    /// Id of the scope.
    pub(crate) external_id: i64,
    /// Its number among the collectives of the scope, and their total.
    pub(crate) index: u32,
    pub(crate) of: u32,
    pub(crate) collective: Collective,
}

/// A piece of device work that was launched in a scope.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Work {
    pub(crate) start_ns: i64,
    pub(crate) end_ns: i64,
    pub(crate) event_id: i64,
    pub(crate) device_id: i64,
    pub(crate) stream_id: i64,
    /// Whether it is a kernel of the communication library; otherwise it is a copy or another kernel.
    pub(crate) is_comm: bool,
}

#[derive(Debug, Default)]
struct Group {
    collectives: Vec<Collective>,
    of: u32,
    work: Vec<Work>,
    age: u32,
}

/// Collectives whose kernels have not arrived yet, by the id of their scope.
#[derive(Debug, Default)]
pub(crate) struct Collectives {
    groups: BTreeMap<i64, Group>,
    /// Number of collectives that got no times.
    pub(crate) untimed: u64,
}

impl Collectives {
    /// Adds a collective that the program is about to launch. They arrive in the order of their numbers.
    pub(crate) fn announce(&mut self, announced: Announced) {
        let Announced { external_id, index, of, collective } = announced;
        if !self.groups.contains_key(&external_id) {
            if self.groups.len() >= MAX_GROUPS
                && let Some((_, oldest)) = self.groups.pop_first()
            {
                self.untimed += oldest.collectives.len() as u64;
            }
            self.groups.insert(external_id, Group { of, ..Group::default() });
        }
        if let Some(group) = self.groups.get_mut(&external_id)
            && group.collectives.len() == index as usize
        {
            group.collectives.push(collective);
        }
    }

    /// Adds work that was launched in the scope `external_id`.
    pub(crate) fn work(&mut self, external_id: i64, work: Work) {
        if let Some(group) = self.groups.get_mut(&external_id) {
            group.work.push(work);
        }
    }

    /// Moves complete groups to `done`: those with one kernel for each collective, in the order of their starts. With
    /// `flushed` it also settles groups that have waited long enough, and with `last` all groups.
    pub(crate) fn settle(&mut self, flushed: bool, last: bool, done: &mut Vec<Collective>) {
        let mut untimed = 0;
        self.groups.retain(|_, group| {
            let kernels = group.work.iter().filter(|work| work.is_comm).count();
            group.age += u32::from(flushed && !group.work.is_empty());
            if !(last || kernels == group.of as usize || group.age > PATIENCE) {
                return true;
            }
            untimed += group.settle(done);
            false
        });
        self.untimed += untimed;
    }
}

impl Group {
    /// Gives the collectives their times. Returns the number of collectives without times.
    ///
    /// NCCL may fuse a group of calls into one kernel; then all of them have its times. One call may run several kernels;
    /// then it lasts from the first start to the last end. Different numbers of several calls and several kernels cannot
    /// be paired. A communicator of one rank copies instead of running a kernel.
    fn settle(&mut self, done: &mut Vec<Collective>) -> u64 {
        if self.collectives.len() != self.of as usize {
            // The announcement failed for some of them, so that the caller times all of them itself.
            return 0;
        }
        if self.work.iter().any(|work| work.is_comm) {
            self.work.retain(|work| work.is_comm);
        }
        self.work.sort_unstable_by_key(|work| (work.start_ns, work.event_id));
        let ends = self.work.iter().map(|work| work.end_ns).max();
        let (Some(first), Some(end_ns)) = (self.work.first().copied(), ends) else {
            return self.collectives.len() as u64;
        };
        let whole = Work { end_ns, ..first };
        let same = self.work.len() == self.collectives.len();
        if !same && self.work.len() > 1 && self.collectives.len() > 1 {
            return self.collectives.len() as u64;
        }
        let work = self.work.iter().copied().chain(std::iter::repeat(whole));
        for (collective, work) in self.collectives.iter().zip(work) {
            let work = if same { work } else { whole };
            done.push(Collective {
                start_ns: Some(work.start_ns),
                end_ns: Some(work.end_ns),
                state: CollectiveState::Done,
                timing_source: TimingSource::Cupti,
                event_id: Some(work.event_id),
                device_id: Some(work.device_id),
                stream_id: Some(work.stream_id),
                ..*collective
            });
        }
        0
    }
}

#[cfg(test)]
mod tests {
    use recorder::CollectiveOp;

    use super::*;

    /// Announces collectives 0.. of scope 9, adds kernels (`n`) and copies (`c`) at (start, end), and settles. Returns
    /// the times of each collective, and the number of collectives without times.
    fn settled(collectives: u32, work: &[(char, i64, i64)], flushes: u32) -> (Vec<(i64, i64, i64)>, u64) {
        let mut all = Collectives::default();
        for index in 0..collectives {
            let collective = Collective::new(1, index.into(), CollectiveOp::AllReduce);
            all.announce(Announced { external_id: 9, index, of: collectives, collective });
        }
        for (event_id, (what, start_ns, end_ns)) in (100..).zip(work) {
            let (start_ns, end_ns, is_comm) = (*start_ns, *end_ns, *what == 'n');
            all.work(9, Work { start_ns, end_ns, event_id, device_id: 0, stream_id: 7, is_comm });
        }
        let mut done = Vec::new();
        all.settle(false, false, &mut done);
        (0..flushes).for_each(|_| all.settle(true, false, &mut done));
        let times = |c: &Collective| {
            assert_eq!((c.state, c.timing_source), (CollectiveState::Done, TimingSource::Cupti));
            (c.start_ns.unwrap(), c.end_ns.unwrap(), c.event_id.unwrap())
        };
        (done.iter().map(times).collect(), all.untimed)
    }

    #[test]
    fn each_kernel_is_paired_with_its_collective() {
        // One kernel and one collective pair at once; a copy in the same scope does not count.
        assert_eq!(settled(1, &[('c', 1, 2), ('n', 5, 9)], 0), (vec![(5, 9, 101)], 0));
        // The kernels of a graph pair in the order of their starts, in any order of their records.
        let expected = vec![(10, 20, 102), (30, 40, 100), (50, 60, 101)];
        assert_eq!(settled(3, &[('n', 30, 40), ('n', 50, 60), ('n', 10, 20)], 0), (expected, 0));
    }

    #[test]
    fn unequal_numbers_are_settled_after_some_flushes() {
        // Fused: one kernel carries out both.
        assert_eq!(settled(2, &[('n', 5, 9)], 3), (vec![], 0));
        assert_eq!(settled(2, &[('n', 5, 9)], 4), (vec![(5, 9, 100), (5, 9, 100)], 0));
        // Split: one collective ran both kernels. (Both arrived before the first settlement.)
        assert_eq!(settled(1, &[('n', 5, 9), ('n', 8, 12)], 4), (vec![(5, 12, 100)], 0));
        // Two kernels and three collectives cannot be paired.
        assert_eq!(settled(3, &[('n', 5, 9), ('n', 9, 12)], 4), (vec![], 3));
        // A communicator of one rank copies.
        assert_eq!(settled(1, &[('c', 5, 9)], 4), (vec![(5, 9, 100)], 0));
        // No kernel has arrived yet: the stream may be long.
        assert_eq!(settled(1, &[], 100), (vec![], 0));
    }

    #[test]
    fn no_group_waits_after_the_end() {
        let mut all = Collectives::default();
        let collective = Collective::new(1, 0, CollectiveOp::AllReduce);
        all.announce(Announced { external_id: 1, index: 0, of: 1, collective });
        // One of two was refused: the caller times both.
        all.announce(Announced { external_id: 2, index: 0, of: 2, collective });
        let mut done = Vec::new();
        all.settle(false, true, &mut done);
        assert_eq!((done.len(), all.untimed, all.groups.len()), (0, 1, 0));
    }
}
