//! Finds the process group of collectives that name none.
//!
//! torch on gloo writes the groups of a rank, but not the group of a collective. Collectives of one operation and size on a rank are of
//! one group, and the ranks of that group are in each of them at the same time:
//!
//! ```text
//!   groups of rank 0: {0, 1}, {0, 2}, {0, 1, 2, 3}
//!   rank 0   [AAA]  [AA]   [AAAA]        A meets A of rank 1 each time, and not that of ranks 2 and 3
//!   rank 1   [AA]  [AAA]     [AA]
//!   rank 2       [AA]   [AA]      [AA]
//!   rank 3        [A]   [AA]     [AAA]
//! ```
//!
//! The largest group whose ranks always meet is taken, and of equal ones that whose ranks leave most nearly together. Without a group
//! that fits, collectives stay as they are.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};

use trace::{CommOrigin, CommRow, OmissionRow, Op, Text, Word};

use model::stats::lower_median;
use model::{Collective, RankOutline};

/// The least share of the collectives of an operation and size in which the ranks of its group meet, if their clocks differ. By one
/// clock they meet in all.
const LEAST_SHARE: f64 = 0.9;
/// The most collectives of one operation and size that are looked at on a rank.
const MAX_LOOKED_AT: usize = 512;

/// An operation and its size.
type Likeness = (Word<Op>, Option<i64>);
/// Start and end of the collectives of one likeness on a rank, in the order of their starts.
type Times = Vec<(i64, i64)>;

/// A group that a rank is in.
struct Group {
    comm_id: i64,
    name: Text,
    members: Vec<i32>,
}

impl Group {
    /// Makes a collective one of this group. The whole array of an all-gather is as large as the group, and was counted for all ranks.
    fn take(&self, row: &mut Collective) {
        let size = self.members.len() as i64;
        if let Some(was) = row.comm_size.filter(|was| *was > 0 && row.op == Op::AllGather) {
            let of_group = |whole: Option<i64>| whole.map(|whole| whole / i64::from(was) * size);
            (row.count, row.bytes) = (of_group(row.count), of_group(row.bytes));
        }
        row.comm_id = self.comm_id;
        row.comm_name = Some(self.name.clone());
        row.comm_size = i32::try_from(size).ok();
    }
}

/// The collectives of a rank.
struct Recorded {
    /// Communicators that stand for no group.
    unnamed: BTreeSet<i64>,
    /// By group, `None` for those that name none.
    times: BTreeMap<(Option<i64>, Likeness), Times>,
    groups: Vec<Group>,
    clock_domain: String,
}

/// Gives collectives without a group the group whose ranks meet in them. Returns what was found and what was not.
pub fn infer_communicators(ranks: &mut [&mut RankOutline]) -> Vec<OmissionRow> {
    if !ranks.iter().flat_map(|outline| &outline.comms).any(is_unnamed) {
        return Vec::new();
    }
    let recorded: BTreeMap<i32, Recorded> =
        ranks.iter().map(|outline| (outline.info.rank, Recorded::of(outline))).collect();
    let found = found(&recorded);
    let (mut inferred, mut left) = (0, 0);
    let mut inferred_in: BTreeSet<i64> = BTreeSet::new();
    for outline in ranks.iter_mut() {
        let rank = outline.info.rank;
        // With one group there is nothing to choose.
        let Some(own) = recorded.get(&rank).filter(|own| own.groups.len() > 1) else { continue };
        let mut inferred_here: BTreeSet<i64> = BTreeSet::new();
        for row in outline.collectives.iter_mut().filter(|row| own.unnamed.contains(&row.comm_id)) {
            match found.get(&(rank, likeness(row))) {
                Some(group) => {
                    inferred += 1;
                    inferred_here.insert(group.comm_id);
                    group.take(row);
                }
                None => left += 1,
            }
        }
        for comm in outline.comms.iter_mut().filter(|comm| inferred_here.contains(&comm.comm_id)) {
            comm.origin = Some(CommOrigin::Inferred.into());
        }
        inferred_in.extend(inferred_here);
    }
    // Where some ranks have no numbers, the order decides.
    let rows = ranks.iter_mut().flat_map(|outline| &mut outline.collectives);
    for row in rows.filter(|row| inferred_in.contains(&row.comm_id)) {
        row.set_seq(None);
    }
    said(inferred, left)
}

fn said(inferred: i64, left: i64) -> Vec<OmissionRow> {
    let note = OmissionRow::note(
        "collectives with an inferred communicator",
        "the traces name no process group; the ranks of one group meet in them each time",
    );
    let left_out = OmissionRow::left_out(
        "communicators of collectives",
        "the traces name no process group, and the ranks of none of their groups meet in them; dumps of torch's Flight Recorder beside \
         the traces name the group",
    );
    let rows = [(note, inferred), (left_out, left)].into_iter().filter(|(_, amount)| *amount > 0);
    rows.map(|(row, amount)| row.amount(amount)).collect()
}

/// The group of each likeness on each rank, where one fits. Large groups come first, then those whose ranks leave most nearly
/// together.
fn found(recorded: &BTreeMap<i32, Recorded>) -> BTreeMap<(i32, Likeness), &Group> {
    let groups: BTreeMap<i64, &Group> =
        recorded.values().flat_map(|own| &own.groups).map(|group| (group.comm_id, group)).collect();
    let mut fitting: Vec<(Reverse<usize>, i64, &Group, &Likeness)> = Vec::new();
    for group in groups.into_values() {
        let members: Vec<&Recorded> = group.members.iter().filter_map(|rank| recorded.get(rank)).collect();
        let unnamed = members.iter().flat_map(|own| own.times.keys()).filter(|(group, _)| group.is_none());
        for likeness in unnamed.map(|(_, likeness)| likeness).collect::<BTreeSet<_>>() {
            if let Some(apart_ns) = apart_ns(&members, group.comm_id, likeness) {
                fitting.push((Reverse(group.members.len()), apart_ns, group, likeness));
            }
        }
    }
    fitting.sort_by_key(|(size, apart_ns, group, _)| (*size, *apart_ns, group.comm_id));
    let mut found: BTreeMap<(i32, Likeness), &Group> = BTreeMap::new();
    for (_, _, group, likeness) in fitting {
        let keys: Vec<(i32, Likeness)> = group.members.iter().map(|rank| (*rank, likeness.clone())).collect();
        if keys.iter().all(|key| !found.contains_key(key)) {
            found.extend(keys.into_iter().map(|key| (key, group)));
        }
    }
    found
}

/// By how much the ends of the collectives of a group's recorded ranks differ, in the median of the rank that is farthest from the
/// first; `None` if they do not meet.
fn apart_ns(members: &[&Recorded], comm_id: i64, likeness: &Likeness) -> Option<i64> {
    let (first, others) = members.split_first()?;
    let own = first.times_in(comm_id, likeness)?;
    let apart_ns = |other: &&Recorded| {
        let is_same_clock = first.clock_domain == other.clock_domain;
        let meetings = Meetings::of(own, other.times_in(comm_id, likeness)?, is_same_clock)?;
        let least_share = if is_same_clock { 1.0 } else { LEAST_SHARE };
        (meetings.share >= least_share).then_some(meetings.apart_ns)
    };
    others.iter().map(apart_ns).collect::<Option<Vec<i64>>>()?.into_iter().max()
}

fn is_unnamed(comm: &CommRow) -> bool {
    comm.name.is_none() && comm.ranks.is_none()
}

/// The size of an all-gather is that of one rank: that of the whole array depends on the group.
fn likeness(row: &Collective) -> Likeness {
    let ranks = row.comm_size.filter(|size| *size > 0 && row.op == Op::AllGather).unwrap_or(1);
    (row.op.clone(), row.bytes.map(|bytes| bytes / i64::from(ranks)))
}

impl Recorded {
    fn of(outline: &RankOutline) -> Self {
        let rank = outline.info.rank;
        let unnamed: BTreeSet<i64> =
            outline.comms.iter().filter(|comm| is_unnamed(comm)).map(|comm| comm.comm_id).collect();
        let group = |comm: &CommRow| {
            let mut members = comm.ranks.clone().filter(|ranks| ranks.len() > 1 && ranks.contains(&rank))?;
            members.sort_unstable();
            Some(Group { comm_id: comm.comm_id, name: comm.name.clone()?, members })
        };
        let groups: Vec<Group> = outline.comms.iter().filter_map(group).collect();
        let mut times: BTreeMap<(Option<i64>, Likeness), Times> = BTreeMap::new();
        for row in &outline.collectives {
            let group = Some(row.comm_id).filter(|comm_id| !unnamed.contains(comm_id));
            let times = times.entry((group, likeness(row))).or_default();
            if let Some(time) = row.start_ns().zip(row.end_ns()).filter(|_| times.len() < MAX_LOOKED_AT) {
                times.push(time);
            }
        }
        times.values_mut().for_each(|times| times.sort_unstable());
        Self { unnamed, times, groups, clock_domain: outline.info.clock_domain.clone() }
    }

    /// The collectives that may be, or are, those of a group.
    fn times_in(&self, comm_id: i64, likeness: &Likeness) -> Option<&Times> {
        let find = |group: Option<i64>| self.times.get(&(group, likeness.clone()));
        find(None).or_else(|| find(Some(comm_id)))
    }
}

/// The collectives of two ranks that overlap in time, one with one.
struct Meetings {
    /// Of all collectives, on the rank that has more, in the time in which both were recorded.
    share: f64,
    /// The median difference of the ends.
    apart_ns: i64,
}

impl Meetings {
    /// If the clocks differ, they are moved by a constant that makes the ends equal; `None` if the numbers of collectives do not allow
    /// this.
    fn of(a: &Times, b: &Times, is_same_clock: bool) -> Option<Self> {
        let offset_ns = match is_same_clock {
            true => 0,
            false if a.len() != b.len() => return None,
            false => lower_median(a.iter().zip(b).map(|((_, a), (_, b))| a.saturating_sub(*b)))?,
        };
        // One rank may have been recorded longer than the other.
        let from_ns = a.first()?.0.max(b.first()?.0.saturating_add(offset_ns));
        let to_ns = a.last()?.1.min(b.last()?.1.saturating_add(offset_ns));
        let within = |times: &Times, offset_ns: i64| {
            let inside = |(start_ns, end_ns): &&(i64, i64)| {
                end_ns.saturating_add(offset_ns) >= from_ns && start_ns.saturating_add(offset_ns) <= to_ns
            };
            times.iter().filter(inside).count()
        };
        let most = within(a, 0).max(within(b, offset_ns));
        let (mut at_a, mut at_b, mut apart_ns) = (0, 0, Vec::new());
        while let (Some((a_start, a_end)), Some((b_start, b_end))) = (a.get(at_a), b.get(at_b)) {
            let (b_start, b_end) = (b_start.saturating_add(offset_ns), b_end.saturating_add(offset_ns));
            if *a_end < b_start {
                at_a += 1;
            } else if b_end < *a_start {
                at_b += 1;
            } else {
                apart_ns.push(a_end.saturating_sub(b_end).saturating_abs());
                (at_a, at_b) = (at_a + 1, at_b + 1);
            }
        }
        let share = apart_ns.len() as f64 / most.max(1) as f64;
        Some(Self { share, apart_ns: lower_median(apart_ns)? })
    }
}

#[cfg(test)]
mod tests {
    use trace::CollectiveRow;

    use super::*;
    use model::RankInfo;

    /// A rank with the groups 1 = {0, 1}, 2 = {2, 3}, 3 = {0, 2}, 4 = {1, 3}, 9 = all, as far as it is in them, and with all-reduces
    /// at these times that name none.
    fn rank(rank: i32, host: &str, starts_ns: &[i64]) -> RankOutline {
        let all: [(i64, &[i32]); 5] = [(1, &[0, 1]), (2, &[2, 3]), (3, &[0, 2]), (4, &[1, 3]), (9, &[0, 1, 2, 3])];
        let named = all.iter().filter(|(_, ranks)| ranks.contains(&rank)).map(|(comm_id, ranks)| CommRow {
            rank,
            comm_id: *comm_id,
            name: Some(comm_id.to_string().into()),
            ranks: Some(ranks.to_vec()),
            ..CommRow::default()
        });
        let unnamed = CommRow { rank, comm_id: 7, ..CommRow::default() };
        let row = |start_ns: &i64| {
            Collective::from(CollectiveRow {
                rank,
                comm_id: 7,
                op: Op::AllReduce.into(),
                bytes: Some(64),
                start_ns: Some(*start_ns),
                end_ns: Some(*start_ns + 10),
                ..CollectiveRow::default()
            })
        };
        RankOutline {
            info: RankInfo { rank, clock_domain: format!("{host}/utc"), ..RankInfo::default() },
            comms: named.chain([unnamed]).collect(),
            collectives: starts_ns.iter().map(row).collect(),
            ..RankOutline::default()
        }
    }

    fn inferred(mut outlines: Vec<RankOutline>) -> (Vec<i64>, Vec<String>) {
        let omissions = infer_communicators(&mut outlines.iter_mut().collect::<Vec<_>>());
        let said = omissions.iter().map(|row| row.what.to_string()).collect();
        (outlines.iter().map(|outline| outline.collectives[0].comm_id).collect(), said)
    }

    #[test]
    fn the_ranks_of_a_group_meet_each_time() {
        let inferred_only = vec!["collectives with an inferred communicator".to_string()];
        let pairs = [[0, 100, 200], [5, 95, 205], [20, 150, 300], [25, 155, 295]];
        let of = |starts: [[i64; 3]; 4], hosts: [&str; 4]| {
            inferred((0..).zip(starts.iter().zip(hosts)).map(|(r, (starts, host))| rank(r, host, starts)).collect())
        };
        assert_eq!(of(pairs, ["a"; 4]), (vec![1, 1, 2, 2], inferred_only.clone()));
        let [a, b, c, d] = pairs;
        assert_eq!(of([a, c, b, d], ["a"; 4]), (vec![3, 4, 3, 4], inferred_only.clone()));
        let together = [[0, 100, 200], [5, 95, 205], [2, 98, 203], [1, 97, 204]];
        assert_eq!(of(together, ["a"; 4]), (vec![9; 4], inferred_only.clone()), "the largest group");
        // The clock of ranks 1 and 3 is an hour ahead.
        let ahead = |starts: [i64; 3]| starts.map(|ns| ns + 3_600_000_000_000);
        assert_eq!(of([a, ahead(b), c, ahead(d)], ["a", "b", "a", "b"]), (vec![1, 1, 2, 2], inferred_only));
        let apart = [[0, 100, 200], [20, 120, 220], [40, 140, 240], [60, 160, 260]];
        assert_eq!(of(apart, ["a"; 4]), (vec![7; 4], vec!["communicators of collectives".to_string()]));
    }

    #[test]
    fn a_group_whose_other_ranks_were_not_recorded_is_not_taken() {
        let alone = inferred(vec![rank(0, "a", &[0, 100]), rank(3, "a", &[50, 150])]);
        assert_eq!(alone.0, [7, 7]);
    }

    #[test]
    fn ranks_with_and_without_names_meet() {
        let mut named = rank(1, "a", &[5, 95, 205]);
        named.collectives.iter_mut().for_each(|row| row.comm_id = 1);
        named.comms.retain(|comm| !is_unnamed(comm));
        assert_eq!(inferred(vec![rank(0, "a", &[0, 100, 200]), named]).0, [1, 1]);
    }
}
