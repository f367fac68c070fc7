//! The collectives before which ranks do the same work, although they are those of different communicators.
//!
//! ```text
//!   replica 0   ranks 0, 1   ##[A]##[A]##|B|      A: the ranks that share a layer      B: replicas
//!   replica 1   ranks 2, 3   ##[A]##[A]##|B|      the ranks 0 to 3 do the same before each place of A
//! ```
//!
//! A host that is slow as a whole shows no difference inside of A, because all ranks of one A are on it. Communicators are *kin* if
//! their ranks do the same work: they are in one stage of the pipeline, have as many ranks, none of them in common, and the same
//! operations and sizes at each place of each step, and other communicators join their ranks.

use std::collections::{BTreeMap, BTreeSet};

use trace::{Op, Word};

use crate::arrivals::Joined;
use crate::families::families;

/// The collectives that are compared together.
#[derive(Default)]
pub struct Kin {
    /// The positions of the instances of each kinship, by communicator, step and place. Each instance is in one.
    pub together: Vec<Vec<u32>>,
    /// For each communicator with kin, the lowest one of them.
    family: BTreeMap<i64, i64>,
}

/// What kin have in common: the ranks that are joined, their number, and the operations and sizes by step.
type Shape = (usize, u32, Vec<(i32, Vec<(Word<Op>, i64)>)>);

/// A communicator of one stage.
#[derive(Default)]
struct Comm {
    ranks: BTreeSet<usize>,
    size: u32,
    by_step: BTreeMap<i32, Vec<u32>>,
}

impl Kin {
    /// `stages` holds the stage of each rank.
    pub fn of(instances: &[Joined], stages: &[usize]) -> Self {
        let comms = comms(instances, stages);
        let joined = joined(&comms, stages.len());
        let of_shape =
            |(comm_id, comm): (&i64, &Comm)| Some((shape(instances, comm, &joined)?, comm.ranks.clone(), *comm_id));
        let (families, _) = families(comms.iter().filter_map(of_shape), usize::MAX);
        let mut kin = Self::default();
        let mut is_placed = vec![false; instances.len()];
        for family in families {
            let first = family[0];
            kin.family.extend(family.iter().map(|comm_id| (*comm_id, first)));
            for (step, places) in &comms[&first].by_step {
                for place in 0..places.len() {
                    let together: Vec<u32> = family.iter().map(|comm_id| comms[comm_id].by_step[step][place]).collect();
                    together.iter().for_each(|at| is_placed[*at as usize] = true);
                    kin.together.push(together);
                }
            }
        }
        kin.together.extend((0..instances.len()).filter(|at| !is_placed[*at]).map(|at| vec![at as u32]));
        let order = |of: &Vec<u32>| {
            let first = &instances[of[0] as usize];
            (first.comm_id, first.step, first.last_ns, of[0])
        };
        kin.together.sort_by_key(order);
        kin
    }

    /// The lowest of the communicators that are kin of this one.
    pub fn family(&self, comm_id: i64) -> i64 {
        self.family.get(&comm_id).copied().unwrap_or(comm_id)
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
