//! Joins groups that have the same members under several names.
//!
//! The names of torch's groups are counters of each process, so ranks that made other groups before number one group differently:
//!
//! ```text
//!   rank 0   group 5 = {0, 1}      rank 1   group 7 = {0, 1}      one group, "5 / 7"
//!   rank 2   groups 1 and 2 = {2, 3}, and so has rank 3           two groups: each has its own numbers
//! ```
//!
//! Groups are one if their members are equal, and no rank has two of them. Where a rank has two groups of the same members, their
//! descriptions tell which ones belong together.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use trace::{CommRow, Text};

use model::{CollectiveShape, RankOutline};

/// A group under one name.
struct Group {
    comm_id: i64,
    name: Option<Text>,
    /// The ranks that have the group under this name.
    ranks: BTreeSet<i32>,
}

/// Groups differ by their members, and by what the program says they are for.
type Kind = (Vec<i32>, Option<Text>);

/// Gives each group one id and one name on all ranks. The former ids stay in [`RankOutline::comm_ids`].
pub fn join_same_members(ranks: &mut [&mut RankOutline]) {
    let mut joined: BTreeMap<i64, (i64, Text)> = BTreeMap::new();
    for (_, by_description) in by_members(ranks) {
        let all: Vec<&Group> = by_description.values().flatten().collect();
        if are_apart(&all) {
            join(&all, &mut joined);
        } else {
            by_description
                .iter()
                .filter(|(description, _)| description.is_some())
                .map(|(_, groups)| groups.iter().collect::<Vec<_>>())
                .filter(|groups| are_apart(groups))
                .for_each(|groups| join(&groups, &mut joined));
        }
    }
    if !joined.is_empty() {
        ranks.iter_mut().for_each(|outline| rename(outline, &joined));
    }
}

/// The groups of known members, by members and description.
fn by_members(ranks: &[&mut RankOutline]) -> BTreeMap<Vec<i32>, BTreeMap<Option<Text>, Vec<Group>>> {
    // `None` if ranks disagree about a group.
    let mut kinds: BTreeMap<i64, (Option<Kind>, Group)> = BTreeMap::new();
    for (rank, comm) in ranks.iter().flat_map(|outline| outline.comms.iter().map(|comm| (outline.info.rank, comm))) {
        let kind = kind(rank, comm);
        let group = || Group { comm_id: comm.comm_id, name: comm.name.clone(), ranks: BTreeSet::new() };
        let (known, group) = kinds.entry(comm.comm_id).or_insert_with(|| (kind.clone(), group()));
        if *known != kind {
            *known = None;
        }
        group.ranks.insert(rank);
    }
    let mut found: BTreeMap<Vec<i32>, BTreeMap<Option<Text>, Vec<Group>>> = BTreeMap::new();
    for (kind, group) in kinds.into_values() {
        if let Some((members, description)) = kind {
            found.entry(members).or_default().entry(description).or_default().push(group);
        }
    }
    found
}

fn kind(rank: i32, comm: &CommRow) -> Option<Kind> {
    let mut members = comm.ranks.clone().filter(|members| members.len() > 1 && members.contains(&rank))?;
    members.sort_unstable();
    Some((members, comm.description.clone()))
}

/// Whether no rank has two of the groups.
fn are_apart(groups: &[&Group]) -> bool {
    let mut seen = BTreeSet::new();
    groups.iter().flat_map(|group| &group.ranks).all(|rank| seen.insert(rank))
}

/// Joins groups under the smallest id and all their names.
fn join(groups: &[&Group], joined: &mut BTreeMap<i64, (i64, Text)>) {
    let Some(comm_id) = groups.iter().map(|group| group.comm_id).min().filter(|_| groups.len() > 1) else { return };
    // Names follow the first rank that has them.
    let mut named: Vec<(Option<&i32>, &str)> =
        groups.iter().filter_map(|group| Some((group.ranks.first(), group.name.as_deref()?))).collect();
    named.sort_unstable();
    let mut names: Vec<&str> = named.into_iter().map(|(_, name)| name).collect();
    names.dedup();
    let name: Text = names.join(" / ").into();
    joined.extend(groups.iter().map(|group| (group.comm_id, (comm_id, name.clone()))));
}

fn rename(outline: &mut RankOutline, joined: &BTreeMap<i64, (i64, Text)>) {
    // Collectives share their shapes, and go on to do so.
    let mut shapes: BTreeMap<*const CollectiveShape, (Arc<CollectiveShape>, Arc<CollectiveShape>)> = BTreeMap::new();
    for row in &mut outline.collectives {
        let Some((comm_id, name)) = joined.get(&row.comm_id) else { continue };
        let (_, renamed) = shapes.entry(Arc::as_ptr(&row.shape)).or_insert_with(|| {
            let comm_name = row.comm_name.as_ref().map(|_| name.clone());
            (row.shape.clone(), Arc::new(CollectiveShape { comm_name, ..(*row.shape).clone() }))
        });
        (row.comm_id, row.shape) = (*comm_id, renamed.clone());
    }
    for comm in &mut outline.comms {
        let Some((comm_id, name)) = joined.get(&comm.comm_id) else { continue };
        outline.comm_ids.insert(comm.comm_id, (*comm_id, name.clone()));
        comm.comm_id = *comm_id;
        comm.name = comm.name.as_ref().map(|_| name.clone());
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use trace::CollectiveRow;

    use super::*;
    use model::RankInfo;

    /// A rank with these groups: their id, members and description. It has one collective of each.
    fn rank(rank: i32, groups: &[(i64, &[i32], &str)]) -> RankOutline {
        let comm = |(comm_id, members, description): &(i64, &[i32], &str)| CommRow {
            rank,
            comm_id: *comm_id,
            name: Some(comm_id.to_string().into()),
            description: Some(*description).filter(|text| !text.is_empty()).map(Into::into),
            ranks: Some(members.to_vec()),
            ..CommRow::default()
        };
        let row = |(comm_id, ..): &(i64, &[i32], &str)| CollectiveRow {
            rank,
            comm_id: *comm_id,
            comm_name: Some(comm_id.to_string().into()),
            ..CollectiveRow::default()
        };
        RankOutline {
            info: RankInfo { rank, ..RankInfo::default() },
            comms: groups.iter().map(comm).collect(),
            collectives: groups.iter().map(|group| row(group).into()).collect(),
            ..RankOutline::default()
        }
    }

    /// The ids and names of the collectives of each rank.
    fn joined(mut outlines: Vec<RankOutline>) -> Vec<Vec<(i64, String)>> {
        join_same_members(&mut outlines.iter_mut().collect::<Vec<_>>());
        let named = |row: &model::Collective| (row.comm_id, row.comm_name.as_deref().unwrap_or_default().to_string());
        for outline in &outlines {
            let comms: BTreeSet<i64> = outline.comms.iter().map(|comm| comm.comm_id).collect();
            assert!(outline.collectives.iter().all(|row| comms.contains(&row.comm_id)), "the tables agree");
        }
        outlines.iter().map(|outline| outline.collectives.iter().map(named).collect()).collect()
    }

    fn ids(found: &[Vec<(i64, String)>]) -> Vec<Vec<i64>> {
        found.iter().map(|rank| rank.iter().map(|(id, _)| *id).collect()).collect()
    }

    /// Invariant (numbers): A group is known by its members, whatever number its ranks give it.
    #[test]
    fn one_group_under_two_names_is_one() {
        let pair: &[i32] = &[0, 1];
        let found = joined(vec![rank(0, &[(7, pair, "")]), rank(1, &[(5, &[1, 0], "")])]);
        assert_eq!(found, [[(5, "7 / 5".to_string())], [(5, "7 / 5".to_string())]]);
        assert_eq!(ids(&joined(vec![rank(0, &[(7, pair, "")]), rank(1, &[(5, &[1, 2], "")])])), [[7], [5]]);
    }

    #[test]
    fn two_groups_of_the_same_members_stay_two() {
        let all: &[i32] = &[0, 1];
        let both: &[_] = &[(1, all, ""), (2, all, "")];
        assert_eq!(ids(&joined(vec![rank(0, both), rank(1, both)])), [[1, 2], [1, 2]]);
        let renamed: &[_] = &[(3, all, ""), (4, all, "")];
        assert_eq!(
            ids(&joined(vec![rank(0, both), rank(1, renamed)])),
            [[1, 2], [3, 4]],
            "nothing tells which is which"
        );
        let described = |a, b| [(a, all, "world"), (b, all, "mesh_dp")];
        assert_eq!(ids(&joined(vec![rank(0, &described(1, 2)), rank(1, &described(4, 3))])), [[1, 2], [1, 2]]);
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]

        /// Invariant (numbers): Other numbers of groups on some ranks change no table but their names.
        #[test]
        fn renamed_groups_are_the_same_groups(
            renamed in prop::collection::vec(any::<bool>(), 6),
            order in Just((100..106_i64).collect::<Vec<_>>()).prop_shuffle(),
        ) {
            let all: &[i32] = &[0, 1, 2, 3, 4, 5];
            let (even, odd): (&[i32], &[i32]) = (&[0, 2, 4], &[1, 3, 5]);
            let groups: [(i64, &[i32], &str); 4] =
                [(0, all, "world"), (1, all, "mesh"), (2, even, ""), (3, odd, "")];
            let job = |name: &dyn Fn(usize, i64) -> i64| {
                let of = |at: usize| {
                    let own = groups.iter().filter(|(_, members, _)| members.contains(&(at as i32)));
                    let own: Vec<_> = own.map(|(id, members, text)| (name(at, *id), *members, *text)).collect();
                    rank(at as i32, &own)
                };
                ids(&joined((0..6).map(of).collect()))
            };
            let number = |found: Vec<Vec<i64>>| {
                let mut seen = Vec::new();
                let place = |id: i64, seen: &mut Vec<i64>| {
                    seen.iter().position(|known| *known == id).unwrap_or_else(|| {
                        seen.push(id);
                        seen.len() - 1
                    })
                };
                found.into_iter().map(|rank| rank.into_iter().map(|id| place(id, &mut seen)).collect::<Vec<_>>()).collect::<Vec<_>>()
            };
            let truth = job(&|_, id| id);
            let found = job(&|at, id| if renamed[at] { order[id as usize] } else { id });
            prop_assert_eq!(number(truth), number(found));
        }
    }
}
