//! The communicators of the job.

use std::collections::{BTreeMap, BTreeSet};

use trace::{CommOrigin, CommRow, CommunicatorRow, InstanceRow};

use measure::part::RankPart;

/// The communicators of these collectives, the largest first.
pub fn communicators(parts: &[RankPart], instances: &[InstanceRow]) -> Vec<CommunicatorRow> {
    let mut rows: BTreeMap<i64, CommunicatorRow> = BTreeMap::new();
    for instance in instances {
        let row = rows.entry(instance.comm_id).or_insert_with(|| CommunicatorRow {
            comm_id: instance.comm_id,
            origin: CommOrigin::Stated.into(),
            size: instance.ranks_expected,
            ..CommunicatorRow::default()
        });
        row.instances += 1;
        row.incomplete += i64::from(!instance.complete);
    }
    for comm in parts.iter().flat_map(|part| &part.outline.comms) {
        if let Some(row) = rows.get_mut(&comm.comm_id) {
            complete(row, comm);
        }
    }
    for row in rows.values_mut().filter(|row| row.name.is_none()) {
        let mut collectives = parts.iter().flat_map(|part| &part.outline.collectives);
        row.name = collectives.find(|c| c.comm_id == row.comm_id).and_then(|c| c.comm_name.clone());
    }
    let hosts: BTreeMap<i32, &str> =
        parts.iter().map(|part| (part.outline.info.rank, &*part.outline.info.host)).collect();
    for row in rows.values_mut().filter(|row| row.nodes.is_none()) {
        row.nodes = nodes(row, &hosts);
    }
    let mut rows: Vec<CommunicatorRow> = rows.into_values().collect();
    rows.sort_by(|a, b| b.size.cmp(&a.size).then_with(|| (&a.ranks, &a.name).cmp(&(&b.ranks, &b.name))));
    rows
}

/// Adds what one rank knows of a communicator. Of several origins, the least certain one counts.
fn complete(row: &mut CommunicatorRow, comm: &CommRow) {
    row.description = row.description.take().or_else(|| comm.description.clone());
    row.name = row.name.take().or_else(|| comm.name.clone());
    row.size = row.size.or(comm.size);
    row.ranks = row.ranks.take().or_else(|| comm.ranks.clone());
    row.nodes = row.nodes.max(comm.nodes);
    let origins = row.origin.known().into_iter().chain(comm.origin.as_ref().and_then(|origin| origin.known()));
    if let Some(origin) = origins.max() {
        row.origin = origin.into();
    }
}

/// The number of hosts of a communicator; `None` unless all of its ranks and their hosts are known.
fn nodes(row: &CommunicatorRow, hosts: &BTreeMap<i32, &str>) -> Option<i32> {
    let host = |rank: &i32| hosts.get(rank).copied().filter(|host| !host.is_empty());
    let of_all: Option<BTreeSet<&str>> = row.ranks.as_ref()?.iter().map(host).collect();
    of_all.map(|hosts| hosts.len() as i32).filter(|hosts| *hosts > 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_least_certain_origin_of_all_ranks_counts() {
        let instance = |comm_id, complete| InstanceRow { comm_id, complete, ..InstanceRow::default() };
        let comm = |comm_id, size, origin: CommOrigin| CommRow {
            comm_id,
            size: Some(size),
            description: Some("mesh_tp".into()),
            origin: Some(origin.into()),
            ..CommRow::default()
        };
        let mut parts = [RankPart::default(), RankPart::default()];
        parts[0].outline.comms = vec![comm(1, 2, CommOrigin::Inferred), comm(2, 4, CommOrigin::Stated)];
        parts[1].outline.comms = vec![comm(1, 2, CommOrigin::Stated), comm(9, 8, CommOrigin::Stated)];
        let rows = communicators(&parts, &[instance(1, true), instance(1, false), instance(2, true)]);
        let said: Vec<_> = rows.iter().map(|row| (row.comm_id, &*row.origin, row.instances, row.incomplete)).collect();
        assert_eq!(said, [(2, "stated", 1, 0), (1, "inferred", 2, 1)], "9 has no collective");
        assert_eq!(rows[1].description.as_deref(), Some("mesh_tp"));
    }

    #[test]
    fn hosts_are_counted_only_if_all_are_known() {
        let part = |rank: i32, host: &str| {
            let mut part = RankPart::default();
            (part.outline.info.rank, part.outline.info.host) = (rank, host.into());
            part
        };
        let mut parts = [part(0, "a"), part(1, "a"), part(2, "b"), part(3, "")];
        let comm = |comm_id, ranks: &[i32]| CommRow { comm_id, ranks: Some(ranks.to_vec()), ..CommRow::default() };
        let recorded = CommRow { nodes: Some(7), ..comm(5, &[0, 1]) };
        let unlisted = CommRow { comm_id: 6, ..CommRow::default() };
        parts[0].outline.comms =
            vec![comm(1, &[0, 1]), comm(2, &[0, 2]), comm(3, &[0, 3]), comm(4, &[0, 9]), recorded, unlisted];
        let instances: Vec<_> = (1..=6).map(|comm_id| InstanceRow { comm_id, ..InstanceRow::default() }).collect();
        let mut nodes: Vec<_> = communicators(&parts, &instances).iter().map(|row| (row.comm_id, row.nodes)).collect();
        nodes.sort_unstable();
        assert_eq!(nodes, [(1, Some(1)), (2, Some(2)), (3, None), (4, None), (5, Some(7)), (6, None)]);
    }
}
