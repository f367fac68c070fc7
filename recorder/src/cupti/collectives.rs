//! Collectives and the kernels that carry them out.

use std::collections::BTreeMap;

use crate::{Collective, CollectiveState, TimingSource};

/// Scopes with collectives in flight that are remembered; more are a leak, and the oldest is given up.
const MAX_GROUPS: usize = 1 << 16;
/// Flushes after its first kernel at which a group that is not complete is settled with what there is.
const PATIENCE: u32 = 3;

/// One collective of a scope, as the program announced it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Announced {
    /// Id of the scope.
    pub(crate) external_id: i64,
    /// Its number among those of the scope, and how many there are.
    pub(crate) index: u32,
    pub(crate) of: u32,
    pub(crate) collective: Collective,
}

/// One piece of device work that was launched in a scope.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Work {
    pub(crate) start_ns: i64,
    pub(crate) end_ns: i64,
    pub(crate) event_id: i64,
    pub(crate) device_id: i64,
    pub(crate) stream_id: i64,
    /// It is a kernel of the communication library; else it is some copy.
    pub(crate) is_comm: bool,
}

#[derive(Debug, Default)]
struct Group {
    collectives: Vec<Collective>,
    of: u32,
    work: Vec<Work>,
    age: u32,
}

/// Collectives whose kernels have not come yet, by the id of their scope.
#[derive(Debug, Default)]
pub(crate) struct Collectives {
    groups: BTreeMap<i64, Group>,
    /// Collectives that were given up.
    pub(crate) untimed: u64,
}

impl Collectives {
    /// The program is about to launch it. They come in the order of their numbers.
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

    /// Something was launched in the scope `external_id`.
    pub(crate) fn work(&mut self, external_id: i64, work: Work) {
        if let Some(group) = self.groups.get_mut(&external_id) {
            group.work.push(work);
        }
    }

    /// Moves what is complete to `done`: as many kernels as collectives, one for each in the order of their starts.
    /// With `last`, everything; else with `flushed`, what has waited long enough as well.
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
    /// Gives its collectives their times. Returns how many get none.
    ///
    /// A group of calls may be fused into one kernel, which then is all of them; one call may take several kernels,
    /// from the first start to the last end. Several of each, but not as many, cannot be told apart. A communicator of
    /// one rank copies instead.
    fn settle(&mut self, done: &mut Vec<Collective>) -> u64 {
        if self.collectives.len() != self.of as usize {
            // The caller was told that not all were taken, and times them itself.
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
    use super::*;
    use crate::CollectiveOp;

    /// Announces collectives 0.. of scope 9, brings kernels (`n`) and copies (`c`) at (start, end), and settles: the
    /// times of each collective, and how many are untimed.
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
    fn every_kernel_finds_its_collective() {
        // One each, at once; a pack kernel or a copy in the same scope is not it.
        assert_eq!(settled(1, &[('c', 1, 2), ('n', 5, 9)], 0), (vec![(5, 9, 101)], 0));
        // As a graph launches them: in the order of their starts, whatever the order of their records.
        let expected = vec![(10, 20, 102), (30, 40, 100), (50, 60, 101)];
        assert_eq!(settled(3, &[('n', 30, 40), ('n', 50, 60), ('n', 10, 20)], 0), (expected, 0));
    }

    #[test]
    fn what_does_not_pair_off_is_settled_after_some_flushes() {
        // Fused: one kernel is both.
        assert_eq!(settled(2, &[('n', 5, 9)], 3), (vec![], 0));
        assert_eq!(settled(2, &[('n', 5, 9)], 4), (vec![(5, 9, 100), (5, 9, 100)], 0));
        // Split: one collective is both. (Both came before the first look.)
        assert_eq!(settled(1, &[('n', 5, 9), ('n', 8, 12)], 4), (vec![(5, 12, 100)], 0));
        // Two kernels, three collectives: which is which?
        assert_eq!(settled(3, &[('n', 5, 9), ('n', 9, 12)], 4), (vec![], 3));
        // One rank copies.
        assert_eq!(settled(1, &[('c', 5, 9)], 4), (vec![(5, 9, 100)], 0));
        // Nothing came yet: the queue may be long.
        assert_eq!(settled(1, &[], 100), (vec![], 0));
    }

    #[test]
    fn at_the_end_nothing_waits() {
        let mut all = Collectives::default();
        let collective = Collective::new(1, 0, CollectiveOp::AllReduce);
        all.announce(Announced { external_id: 1, index: 0, of: 1, collective });
        // Of two, one was refused: the caller times both.
        all.announce(Announced { external_id: 2, index: 0, of: 2, collective });
        let mut done = Vec::new();
        all.settle(false, true, &mut done);
        assert_eq!((done.len(), all.untimed, all.groups.len()), (0, 1, 0));
    }
}
