//! Communication that is slow itself: ranks that leave collectives late, and groups whose collectives take long.
//!
//! ```text
//!   rank 0   ##[~AAA]###             group 0, 1   ##[BBBB]
//!   rank 1   ###[AAA]###             group 2, 3   ##[BBBBBBBB]      takes longer than its replica
//!   rank 2   ###[AAAAAA]###          leaves later than the others
//! ```
//!
//! A collective transfers from its last arrival until a rank leaves.
//!
//! * **Late leavers**: ranks of one collective, at least three, are compared by the times at which they leave. Of two ranks,
//!   neither is typical: threads that share two cores leave at different times in every step. An excess counts only beyond the
//!   errors of the clocks. Clocks that are fitted to departures hide a rank that always leaves late: it shows only if clocks are
//!   known otherwise, as on one host.
//! * **Slow groups**: communicators are compared with their *replicas*, which have as many ranks, none of them in common, and
//!   as many collectives in each step. Only collectives of the same operation and size are compared. A group transfers for as
//!   long as its shortest rank is inside the collective, in that rank's own clock: the last rank to arrive waits for no other.
//!   A job with one communicator that is slow as a whole has nothing to be compared with. A message is a collective of two ranks here:
//!   the side that comes later waits for no other.
//! * **A slow link**: a rank is in several communicators, and all that it sends and receives goes through its link. If several groups
//!   are slow, and one rank is in all of them and no other is, the link of that rank is what is slow.

use std::collections::{BTreeMap, BTreeSet};

use crate::standing::{Medians, Standing};
use model::stats::{lower_median, median};
use topology::arrivals::{Arrival, Joined};
use topology::excess::series_of;
use topology::join::Join;
use topology::same_work::{Communicator, replicas_by_count};

/// The most families of groups with equal shapes: dimensions of a job. Groups of further ones are not compared.
const FAMILIES_MAX: usize = 64;

/// A rank or a group that transfers longer than others.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct SlowTransfers {
    /// The rank, or the ranks of the group, as positions among the parts, ascending.
    pub(super) ranks: Vec<usize>,
    /// The communicator of a slow group; `None` for a rank that leaves late, or whose link is slow.
    pub(super) comm_id: Option<i64>,
    /// The median over steps of the excess.
    pub(super) excess_ns: i64,
    /// By how much the excess may be off, at 95 %, with the errors of clocks.
    pub(super) error_ns: i64,
    /// The number of steps that were compared, and of those that show at least half of the excess.
    pub(super) steps: usize,
    pub(super) shown: usize,
    /// By how much each transfer exceeds a typical one: position of the instance, position of the rank, ns.
    pub(super) beyond_ns: Vec<(u32, u32, i64)>,
}

/// What was found, and what could not be compared.
#[derive(Debug, Default)]
pub(super) struct Found {
    pub(super) slow: Vec<SlowTransfers>,
    /// The number of groups beyond [`FAMILIES_MAX`], and of slow transfers that were not replayed.
    pub(super) left_out: usize,
    /// The number of ranks the errors of whose clocks are unknown.
    pub(super) without_clock: usize,
}

/// The least that counts.
#[derive(Clone, Copy, Debug)]
pub(super) struct Least {
    /// The length of a step.
    pub(super) step_ns: i64,
    /// The least excess per step.
    pub(super) excess_ns: f64,
    /// The least compared steps.
    pub(super) steps: usize,
}

/// Finds groups and ranks whose transfers are longer than those of others, by enough and by more than chance. `clock_error_ns` is
/// that of a rank, by its position.
pub(super) fn slow(join: &Join, clock_error_ns: &[Option<i64>], least: Least) -> Found {
    let steps: BTreeSet<i32> = join.instances.iter().filter_map(|instance| instance.step).collect();
    let steps: Vec<i32> = steps.into_iter().collect();
    let (families, left_out) = replicas_by_count(&join.instances, FAMILIES_MAX);
    let of_family = |replicas: &Vec<Communicator>| slow_groups(join, replicas, &steps, least);
    let mut slow = by_link(families.iter().flat_map(of_family).collect());
    slow.extend(late_leavers(join, clock_error_ns, &steps, least));
    Found { slow, left_out, without_clock: clock_error_ns.iter().filter(|error| error.is_none()).count() }
}

/// The slow groups; as those of one rank, if it is the only one that is in all of them.
fn by_link(groups: Vec<SlowTransfers>) -> Vec<SlowTransfers> {
    let Some((first, others)) = groups.split_first().filter(|(_, others)| !others.is_empty()) else { return groups };
    let is_in_all = |rank: &&usize| others.iter().all(|group| group.ranks.binary_search(rank).is_ok());
    let [rank] = first.ranks.iter().filter(is_in_all).copied().collect::<Vec<_>>()[..] else { return groups };
    let errors = groups.iter().map(|group| (group.error_ns as f64).powi(2));
    vec![SlowTransfers {
        ranks: vec![rank],
        comm_id: None,
        excess_ns: groups.iter().map(|group| group.excess_ns).fold(0, i64::saturating_add),
        error_ns: errors.sum::<f64>().sqrt().round() as i64,
        steps: groups.iter().map(|group| group.steps).min().unwrap_or(0),
        shown: groups.iter().map(|group| group.shown).min().unwrap_or(0),
        beyond_ns: groups.into_iter().flat_map(|group| group.beyond_ns).collect(),
    }]
}

/// A collective in which a rank or a group differs from a typical one.
struct Difference {
    /// The rank, or the group among its replicas.
    of: usize,
    step: i32,
    /// Position of the instance.
    instance: u32,
    /// May be negative.
    excess_ns: i64,
    /// What the clocks may add to the excess.
    error_ns: i64,
}

/// The excess of each rank, or of each group, by step.
struct Compared<'a> {
    steps: &'a [i32],
    /// `None` where nothing can be compared.
    excess_ns: Vec<Vec<Option<i64>>>,
    error_ns: Vec<i64>,
}

impl<'a> Compared<'a> {
    fn of(steps: &'a [i32], count: usize, differences: impl Iterator<Item = Difference>) -> Self {
        let mut compared = Self { excess_ns: vec![vec![None; steps.len()]; count], error_ns: vec![0; count], steps };
        for difference in differences {
            let Ok(at) = compared.steps.binary_search(&difference.step) else { continue };
            let sum = &mut compared.excess_ns[difference.of][at];
            *sum = Some(sum.unwrap_or(0).saturating_add(difference.excess_ns));
            let error_ns = &mut compared.error_ns[difference.of];
            *error_ns = error_ns.saturating_add(difference.error_ns);
        }
        compared
    }

    /// Those that certainly exceed the others, by enough beyond the errors of clocks; without what they consist of.
    fn slow(&self, least: Least) -> BTreeMap<usize, SlowTransfers> {
        let medians = Medians::over_steps(&series_of(&self.excess_ns), least.step_ns);
        let standings = medians.standings();
        let is_slow = |of: usize| standings[of] == Standing::Certain;
        let slow = |of: usize| {
            let known: Vec<i64> = self.excess_ns[of].iter().flatten().copied().collect();
            let excess_ns = median(known.iter().map(|ns| *ns as f64))?;
            let clocks_ns = self.error_ns[of] as f64 / known.len().max(1) as f64;
            let error_ns = clocks_ns + medians.error_ns(of, &is_slow)?;
            let shown = known.iter().filter(|ns| **ns as f64 >= excess_ns / 2.0).count();
            let slow = SlowTransfers {
                ranks: Vec::new(),
                comm_id: None,
                excess_ns: excess_ns.round() as i64,
                error_ns: error_ns.round() as i64,
                steps: known.len(),
                shown,
                beyond_ns: Vec::new(),
            };
            (known.len() >= least.steps && excess_ns >= least.excess_ns + clocks_ns).then_some((of, slow))
        };
        (0..standings.len()).filter(|of| is_slow(*of)).filter_map(slow).collect()
    }
}

fn late_leavers(join: &Join, clock_error_ns: &[Option<i64>], steps: &[i32], least: Least) -> Vec<SlowTransfers> {
    let differences = || {
        let instances = join.instances.iter().enumerate();
        instances.flat_map(|(position, instance)| departures(position as u32, instance, clock_error_ns))
    };
    let mut slow = Compared::of(steps, clock_error_ns.len(), differences()).slow(least);
    if slow.is_empty() {
        return Vec::new();
    }
    for late in differences().filter(|difference| difference.excess_ns > 0) {
        if let Some(slow) = slow.get_mut(&late.of) {
            slow.beyond_ns.push((late.instance, late.of as u32, late.excess_ns));
        }
    }
    slow.into_iter().map(|(rank, slow)| SlowTransfers { ranks: vec![rank], ..slow }).collect()
}

/// By how much each rank leaves later than the typical one. Empty for two ranks, and where ranks do not wait for each other, or a
/// rank is missing, has no end or left before the last one arrived, or the error of its clock is unknown.
fn departures(position: u32, instance: &Joined, clock_error_ns: &[Option<i64>]) -> Vec<Difference> {
    let transfer = |end_ns: Option<i64>| end_ns.map(|end| end - instance.last_ns).filter(|ns| *ns >= 0);
    let transfers: Option<Vec<i64>> = instance.arrivals.iter().map(|arrival| transfer(arrival.end_ns())).collect();
    let errors: Option<Vec<i64>> = instance.arrivals.iter().map(|arrival| clock_error_ns[arrival.rank]).collect();
    let has_typical = instance.is_comparable() && instance.arrivals.len() > 2;
    let (Some(step), Some(transfers), Some(errors), true) = (instance.step, transfers, errors, has_typical) else {
        return Vec::new();
    };
    let typical_ns = lower_median(transfers.iter().copied()).unwrap_or(0);
    let typical_error_ns = lower_median(errors.iter().copied()).unwrap_or(0);
    let of_rank = |((arrival, transfer_ns), error_ns): ((&Arrival, i64), i64)| Difference {
        of: arrival.rank,
        step,
        instance: position,
        excess_ns: transfer_ns - typical_ns,
        error_ns: typical_error_ns.saturating_add(error_ns),
    };
    instance.arrivals.iter().zip(transfers).zip(errors).map(of_rank).collect()
}

fn slow_groups(join: &Join, replicas: &[Communicator], steps: &[i32], least: Least) -> Vec<SlowTransfers> {
    let differences = || {
        let shape = replicas.iter().take(1).flat_map(|group| &group.by_step);
        let places = shape.flat_map(|(step, all)| (0..all.len()).map(|place| (*step, place)));
        places.flat_map(|at| between_groups(join, replicas, at))
    };
    let mut slow = Compared::of(steps, replicas.len(), differences()).slow(least);
    if slow.is_empty() {
        return Vec::new();
    }
    for long in differences().filter(|difference| difference.excess_ns > 0) {
        if let Some(slow) = slow.get_mut(&long.of) {
            let arrivals = join.instances[long.instance as usize].arrivals.iter();
            slow.beyond_ns.extend(arrivals.map(|arrival| (long.instance, arrival.rank as u32, long.excess_ns)));
        }
    }
    let of_group = |(at, slow): (usize, SlowTransfers)| {
        let group = &replicas[at];
        SlowTransfers { ranks: group.ranks.iter().copied().collect(), comm_id: Some(group.comm_id), ..slow }
    };
    slow.into_iter().map(of_group).collect()
}

/// By how much each group transfers longer than the typical one, in the collective at this place of a step. Empty if the
/// collectives differ in operation or size, or a size or a duration is unknown.
fn between_groups(join: &Join, replicas: &[Communicator], (step, place): (i32, usize)) -> Vec<Difference> {
    let at: Vec<u32> = replicas.iter().map(|group| group.by_step[&step][place]).collect();
    let instances: Vec<&Joined> = at.iter().map(|at| &join.instances[*at as usize]).collect();
    let first = instances[0];
    let is_equal =
        |other: &&Joined| other.bytes().is_some() && (&other.op, other.bytes()) == (&first.op, first.bytes());
    let transfer_ns =
        |of: &&Joined| of.arrivals.iter().map(Arrival::dur_ns).collect::<Option<Vec<i64>>>()?.into_iter().min();
    let transfers: Option<Vec<i64>> = instances.iter().map(transfer_ns).collect();
    let (Some(transfers), true) = (transfers, instances.iter().all(is_equal)) else { return Vec::new() };
    let typical_ns = lower_median(transfers.iter().copied()).unwrap_or(0);
    let of_group = |(of, (instance, transfer_ns)): (usize, (u32, i64))| Difference {
        of,
        step,
        instance,
        excess_ns: transfer_ns - typical_ns,
        error_ns: 0,
    };
    at.into_iter().zip(transfers).enumerate().map(of_group).collect()
}
