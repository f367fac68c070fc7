//! Where each rank ran: host, process, device and file.

use std::collections::BTreeSet;

use trace::{StepBreakdownRow, StragglerRow, Text};

use measure::part::RankPart;
use model::analysis::RankIdentity;
use model::places::{OfRank, Places};

/// The identity of the rank of a part. Its device is the only one with work of the rank, or else the only one of the process.
/// `breakdown` are the rows of all ranks, in the order of ranks.
pub(super) fn identity(part: &RankPart, breakdown: &[StepBreakdownRow], places: Option<&Places>) -> RankIdentity {
    let info = &part.outline.info;
    let first = breakdown.partition_point(|row| row.rank < info.rank);
    let of_rank = breakdown[first..].iter().take_while(|row| row.rank == info.rank);
    let worked: BTreeSet<i64> = of_rank.filter_map(|row| row.device_id).collect();
    let all: BTreeSet<i64> = part.devices.iter().map(|device| device.device_id).collect();
    let only = |ids: &BTreeSet<i64>| ids.first().copied().filter(|_| ids.len() == 1);
    let device_id = if worked.is_empty() { only(&all) } else { only(&worked) };
    let device = device_id.and_then(|id| part.devices.iter().find(|device| device.device_id == id));
    let text = |text: Option<&Text>| text.map(|text| text.to_string());
    RankIdentity {
        rank: info.rank,
        host: Some(info.host.clone()).filter(|host| !host.is_empty()),
        pid: Some(info.pid).filter(|pid| *pid > 0),
        device_id,
        device_name: text(device.and_then(|device| device.name.as_ref())),
        device_uuid: text(device.and_then(|device| device.uuid.as_ref())),
        roles: text(info.roles.as_ref()),
        places: places.map_or(OfRank::new(), |places| places.of(info.rank, Some(info.host.as_str()))),
        file: Some(info.file.to_string()).filter(|file| !file.is_empty()),
    }
}

/// Adds to each row where its rank ran. `identities` are in the order of ranks.
pub(super) fn identify(rows: &mut [StragglerRow], identities: &[RankIdentity]) {
    for row in rows {
        let Ok(at) = identities.binary_search_by_key(&row.rank, |identity| identity.rank) else { continue };
        let RankIdentity { host, pid, device_id, device_name, device_uuid, file, .. } = &identities[at];
        let text = |text: &Option<String>| text.as_deref().map(Text::from);
        (row.host, row.pid, row.device_id) = (text(host), *pid, *device_id);
        (row.device_name, row.device_uuid, row.file) = (text(device_name), text(device_uuid), text(file));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use trace::DeviceRow;

    fn part(visible: &[i64]) -> RankPart {
        let mut part = RankPart::default();
        part.outline.info.rank = 3;
        let device =
            |id: &i64| DeviceRow { device_id: *id, uuid: Some(format!("GPU-{id}").into()), ..Default::default() };
        part.devices = visible.iter().map(device).collect();
        part
    }

    #[test]
    fn the_device_of_a_rank_is_the_one_that_worked_for_it() {
        let device = |worked: &[i64], visible: &[i64]| {
            let row = |rank, device_id| StepBreakdownRow { rank, device_id: Some(device_id), ..Default::default() };
            let rows = worked.iter().map(|id| row(3, *id));
            let rows: Vec<_> = [row(2, 8)].into_iter().chain(rows).chain([row(4, 9)]).collect();
            let identity = identity(&part(visible), &rows, None);
            (identity.device_id, identity.device_uuid)
        };
        assert_eq!(device(&[2], &[0, 1, 2]), (Some(2), Some("GPU-2".into())), "other devices are only visible");
        assert_eq!(device(&[0, 1], &[0, 1]), (None, None), "two devices worked");
        assert_eq!(device(&[], &[5]), (Some(5), Some("GPU-5".into())), "nothing worked, one is visible");
        assert_eq!(device(&[], &[0, 1]), (None, None));
    }

    #[test]
    fn rows_of_known_ranks_say_where_they_ran() {
        let known = RankIdentity { rank: 3, host: Some("node-a".into()), pid: Some(7), ..RankIdentity::default() };
        let mut rows = [1, 3].map(|rank| StragglerRow { rank, ..StragglerRow::default() });
        identify(&mut rows, &[known]);
        assert_eq!(
            rows.map(|row| (row.host.map(|h| h.to_string()), row.pid)),
            [(None, None), (Some("node-a".into()), Some(7))]
        );
    }
}
