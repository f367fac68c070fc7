//! The collectives before which ranks do the same work, although they are those of different communicators.
//!
//! ```text
//!   replica 0   ranks 0, 1   ##[A]##[A]##|B|      A: the ranks that share a layer      B: replicas
//!   replica 1   ranks 2, 3   ##[A]##[A]##|B|      the ranks 0 to 3 do the same before each place of A
//! ```
//!
//! A host that is slow as a whole shows no difference inside of A, because all ranks of one A are on it. Communicators are *replicas*
//! if their ranks do the same work: they are in one stage of the pipeline, have as many ranks, none of them in common, and the same
//! operations and sizes at each place of each step, and other communicators join their ranks.
//!
//! Transfers are compared between more communicators: [`replicas_by_count`] asks for as many ranks and as many collectives, because
//! a transfer does not depend on the work before it.

use std::collections::{BTreeMap, BTreeSet};

use rustc_hash::FxHashMap;
use trace::{Op, Word};

use crate::arrivals::Joined;

/// The collectives that are compared together.
#[derive(Default)]
pub struct Replicas {
    /// The positions of the instances of all replicas, by communicator, step and place. Each instance is in one.
    pub together: Vec<Vec<u32>>,
    /// For each communicator with replicas, the lowest one of them.
    lowest: BTreeMap<i64, i64>,
}

/// What replicas have in common: the ranks that are joined, their number, and the operations and sizes by step.
type Shape = (usize, u32, Vec<(i32, Vec<(Word<Op>, i64)>)>);

/// A communicator of one stage.
#[derive(Default)]
struct Comm {
    ranks: BTreeSet<usize>,
    size: u32,
    by_step: BTreeMap<i32, Vec<u32>>,
}

impl Replicas {
    /// `stages` holds the stage of each rank.
    pub(crate) fn of(instances: &[Joined], stages: &[usize]) -> Self {
        let comms = comms(instances, stages);
        let joined = joined(&comms, stages.len());
        let of_shape =
            |(comm_id, comm): (&i64, &Comm)| Some((shape(instances, comm, &joined)?, comm.ranks.clone(), *comm_id));
        let (families, _) = divide(comms.iter().filter_map(of_shape), usize::MAX);
        let mut replicas = Self::default();
        let mut is_placed = vec![false; instances.len()];
        for family in families {
            let first = family[0];
            replicas.lowest.extend(family.iter().map(|comm_id| (*comm_id, first)));
            for (step, places) in &comms[&first].by_step {
                for place in 0..places.len() {
                    let together: Vec<u32> = family.iter().map(|comm_id| comms[comm_id].by_step[step][place]).collect();
                    together.iter().for_each(|at| is_placed[*at as usize] = true);
                    replicas.together.push(together);
                }
            }
        }
        replicas.together.extend((0..instances.len()).filter(|at| !is_placed[*at]).map(|at| vec![at as u32]));
        let order = |of: &Vec<u32>| {
            let first = &instances[of[0] as usize];
            (first.comm_id, first.step, first.last_ns, of[0])
        };
        replicas.together.sort_by_key(order);
        replicas
    }

    /// The lowest of the replicas of a communicator, or itself.
    pub fn lowest(&self, comm_id: i64) -> i64 {
        self.lowest.get(&comm_id).copied().unwrap_or(comm_id)
    }
}

/// The communicators whose ranks wait for each other and are in one stage.
fn comms(instances: &[Joined], stages: &[usize]) -> BTreeMap<i64, Comm> {
    let mut comms: BTreeMap<i64, Comm> = BTreeMap::new();
    for (at, instance) in (0..).zip(instances) {
        let Some(step) = instance.step.filter(|_| instance.symmetric) else { continue };
        let comm = comms.entry(instance.comm_id).or_default();
        comm.ranks.extend(instance.arrivals.iter().map(|a| a.rank));
        comm.size = comm.size.max(instance.size);
        comm.by_step.entry(step).or_default().push(at);
    }
    comms.retain(|_, comm| {
        let stages: BTreeSet<usize> = comm.ranks.iter().map(|rank| stages[*rank]).collect();
        comm.ranks.len() > 1 && stages.len() == 1
    });
    for comm in comms.values_mut() {
        comm.by_step.values_mut().for_each(|all| all.sort_by_key(|at| instances[*at as usize].last_ns));
    }
    comms
}

/// For each rank, the lowest of the ranks that communicators join with it.
fn joined(comms: &BTreeMap<i64, Comm>, ranks: usize) -> Vec<usize> {
    let mut parent: Vec<usize> = (0..ranks).collect();
    fn root(parent: &mut [usize], mut of: usize) -> usize {
        while parent[of] != of {
            parent[of] = parent[parent[of]];
            of = parent[of];
        }
        of
    }
    for comm in comms.values() {
        let Some(first) = comm.ranks.first() else { continue };
        for rank in &comm.ranks {
            let (a, b) = (root(&mut parent, *first), root(&mut parent, *rank));
            parent[a.max(b)] = a.min(b);
        }
    }
    (0..ranks).map(|rank| root(&mut parent, rank)).collect()
}

/// The shape of a communicator; `None` if a size is unknown.
fn shape(instances: &[Joined], comm: &Comm, joined: &[usize]) -> Option<Shape> {
    let of_instance = |at: &u32| {
        let instance = &instances[*at as usize];
        Some((instance.op.clone(), instance.bytes()?))
    };
    let of_step = |(step, all): (&i32, &Vec<u32>)| Some((*step, all.iter().map(of_instance).collect::<Option<_>>()?));
    Some((joined[*comm.ranks.first()?], comm.size, comm.by_step.iter().map(of_step).collect::<Option<_>>()?))
}

/// Whether the time of the shortest rank inside is that of the transfer.
fn shows_transfer(instance: &Joined) -> bool {
    instance.is_comparable() || instance.op == Op::Send && instance.whole && instance.arrivals.len() == 2
}

/// A communicator: its ranks, and its instances by step, as positions.
#[derive(Debug, Default)]
pub struct Communicator {
    pub comm_id: i64,
    pub ranks: BTreeSet<usize>,
    pub by_step: BTreeMap<i32, Vec<u32>>,
}

/// Communicators whose transfers can be compared: those with as many ranks, none of them in common, and as many collectives in each
/// step; at most `most` dimensions of one shape. Returns also the number of communicators beyond.
pub fn replicas_by_count(instances: &[Joined], most: usize) -> (Vec<Vec<Communicator>>, usize) {
    let mut groups: BTreeMap<i64, Communicator> = BTreeMap::new();
    for (position, instance) in instances.iter().enumerate() {
        let Some(step) = instance.step.filter(|_| shows_transfer(instance)) else { continue };
        let group = groups.entry(instance.comm_id).or_default();
        group.comm_id = instance.comm_id;
        group.ranks.extend(instance.arrivals.iter().map(|arrival| arrival.rank));
        group.by_step.entry(step).or_default().push(position as u32);
    }
    // Communicators of equal shape may belong to different dimensions of the job: those of one dimension have no rank in common.
    let of_shape = |mut group: Communicator| {
        group.by_step.values_mut().for_each(|all| all.sort_by_key(|at| instances[*at as usize].last_ns));
        let collectives: Vec<(i32, usize)> = group.by_step.iter().map(|(step, all)| (*step, all.len())).collect();
        ((group.ranks.len(), collectives), group.ranks.clone(), group)
    };
    divide(groups.into_values().map(of_shape), most)
}

/// The families of one shape, and those that each rank is in.
struct Families<T> {
    members: Vec<Vec<T>>,
    of_rank: FxHashMap<usize, Runs>,
}

impl<T> Default for Families<T> {
    fn default() -> Self {
        Self { members: Vec::new(), of_rank: FxHashMap::default() }
    }
}

impl<T> Families<T> {
    /// The first family, or the next new one, in which none of the ranks is.
    fn first_without(&self, ranks: &BTreeSet<usize>) -> usize {
        let mut at = 0;
        loop {
            let after = |at, rank| self.of_rank.get(rank).map_or(at, |runs: &Runs| runs.first_outside(at));
            let next = ranks.iter().fold(at, after);
            if next == at {
                return at;
            }
            at = next;
        }
    }
}

/// A set of numbers as runs that do not touch: the end of each by its begin. A rank of thousands of communicators is mostly in the first
/// thousands of families, and these are one run.
#[derive(Debug, Default)]
struct Runs(BTreeMap<usize, usize>);

impl Runs {
    /// The first number from `at` on that is not in the set.
    fn first_outside(&self, at: usize) -> usize {
        self.0.range(..=at).next_back().map_or(at, |(_, end)| at.max(*end))
    }

    /// Adds a number that is not in the set.
    fn add(&mut self, number: usize) {
        let end = self.0.remove(&(number + 1)).unwrap_or(number + 1);
        match self.0.range_mut(..number).next_back() {
            Some((_, before)) if *before == number => *before = end,
            _ => {
                self.0.insert(number, end);
            }
        }
    }
}

/// Divides communicators into families, at most `most` of one shape. Each communicator has a shape and its ranks, and belongs to the
/// first family of its shape in which no other has one of its ranks. Returns the families of two members or more, and the number of
/// communicators beyond `most`.
fn divide<S: Ord, T>(
    communicators: impl Iterator<Item = (S, BTreeSet<usize>, T)>,
    most: usize,
) -> (Vec<Vec<T>>, usize) {
    let mut by_shape: BTreeMap<S, Families<T>> = BTreeMap::new();
    let mut left_out = 0;
    for (shape, ranks, member) in communicators {
        let alike = by_shape.entry(shape).or_default();
        let at = alike.first_without(&ranks);
        if at == most {
            left_out += 1;
            continue;
        }
        if at == alike.members.len() {
            alike.members.push(Vec::new());
        }
        alike.members[at].push(member);
        ranks.into_iter().for_each(|rank| alike.of_rank.entry(rank).or_default().add(at));
    }
    let all = by_shape.into_values().flat_map(|alike| alike.members);
    (all.filter(|members| members.len() > 1).collect(), left_out)
}

#[cfg(test)]
mod tests {
    use super::*;
    use trace::random::SplitMix64;

    /// As [`divide`], by looking at all families.
    fn divided_slowly(comms: &[(u8, BTreeSet<usize>)], most: usize) -> (Vec<Vec<usize>>, usize) {
        let mut by_shape: BTreeMap<u8, Vec<Vec<usize>>> = BTreeMap::new();
        let mut left_out = 0;
        for (number, (shape, ranks)) in comms.iter().enumerate() {
            let alike = by_shape.entry(*shape).or_default();
            let is_apart = |family: &Vec<usize>| family.iter().all(|other| comms[*other].1.is_disjoint(ranks));
            match alike.iter().position(is_apart) {
                Some(at) => alike[at].push(number),
                None if alike.len() == most => left_out += 1,
                None => alike.push(vec![number]),
            }
        }
        (by_shape.into_values().flatten().filter(|family| family.len() > 1).collect(), left_out)
    }

    #[test]
    fn each_communicator_is_in_the_first_family_without_its_ranks() {
        let mut random = SplitMix64(3);
        let mut below = |limit: u64| random.next_u64() % limit;
        for case in 0..300 {
            let mut comm = |_| {
                let ranks = (0..1 + below(3)).map(|_| below(8) as usize).collect();
                (below(2) as u8, ranks)
            };
            let comms: Vec<(u8, BTreeSet<usize>)> = (0..case % 60).map(&mut comm).collect();
            let most = [1, 3, usize::MAX][case % 3];
            let given = comms.iter().enumerate().map(|(number, (shape, ranks))| (*shape, ranks.clone(), number));
            assert_eq!(divide(given, most), divided_slowly(&comms, most));
        }
    }
}
