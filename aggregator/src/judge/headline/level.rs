//! The host, the model of device or the communicator that the slow ranks have in common.

use std::collections::{BTreeMap, BTreeSet};

use trace::{DeviceRow, Level, StragglerRow};

use crate::base::units::ranks_named;
use crate::model::RankOutline;

/// The host and the model of the devices of each rank, where they are known.
#[derive(Clone, Debug, Default)]
pub(crate) struct Places {
    hosts: BTreeMap<i32, String>,
    models: BTreeMap<i32, String>,
}

impl Places {
    /// Adds a rank. A rank whose devices are of several models has none.
    pub(crate) fn add(&mut self, outline: &RankOutline, devices: &[DeviceRow]) {
        let rank = outline.info.rank;
        if !outline.info.host.is_empty() {
            self.hosts.insert(rank, outline.info.host.clone());
        }
        let models: BTreeSet<&str> = devices.iter().filter_map(|device| device.name.as_deref()).collect();
        if let (Some(model), 1) = (models.first(), models.len()) {
            self.models.insert(rank, (*model).to_owned());
        }
    }
}

/// The level of causes, and a sentence if it is a host or a model of device; `None` without a cause.
pub(super) fn level(causes: &[&StragglerRow], places: &Places) -> Option<(Level, String)> {
    let first = causes.first()?;
    let ranks: BTreeSet<i32> = causes.iter().map(|row| row.rank).collect();
    let shares = |places: &BTreeMap<i32, String>| {
        let place = places.get(&first.rank)?;
        let of_place: BTreeSet<i32> = places.iter().filter(|(_, p)| *p == place).map(|(rank, _)| *rank).collect();
        (of_place == ranks && of_place.len() < places.len()).then(|| place.clone())
    };
    let all: Vec<i32> = ranks.iter().copied().collect();
    let shared =
        |what: String| format!(" {} are all the ranks {what}, and no other rank is slow.", capital(&ranks_named(&all)));
    let (level, sentence) = match (first.slow_comm_id, ranks.len()) {
        (Some(_), _) => (Level::Communicator, String::new()),
        (None, 1) => (Level::Rank, String::new()),
        _ => match (shares(&places.hosts), shares(&places.models)) {
            (Some(host), _) => (Level::Host, shared(format!("of host {host}"))),
            (None, Some(model)) => (Level::DeviceModel, shared(format!("with devices of the model {model}"))),
            (None, None) => (Level::Several, String::new()),
        },
    };
    Some((level, sentence))
}

fn capital(words: &str) -> String {
    let mut letters = words.chars();
    letters.next().map_or(String::new(), |first| first.to_uppercase().chain(letters).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Ranks 0 to 3 on two hosts; rank 3 has another device.
    fn places() -> Places {
        let mut places = Places::default();
        for rank in 0..4 {
            let mut outline = RankOutline::default();
            (outline.info.rank, outline.info.host) = (rank, if rank < 2 { "a" } else { "b" }.into());
            let name = Some(if rank == 3 { "H200" } else { "H100" }.into());
            places.add(&outline, &[DeviceRow { rank, name, ..DeviceRow::default() }]);
        }
        places
    }

    fn found(ranks: &[i32], slow_comm_id: Option<i64>) -> Option<(Level, String)> {
        let rows: Vec<StragglerRow> =
            ranks.iter().map(|rank| StragglerRow { rank: *rank, slow_comm_id, ..StragglerRow::default() }).collect();
        level(&rows.iter().collect::<Vec<_>>(), &places())
    }

    #[test]
    fn slow_ranks_share_a_host_or_a_model_only_if_they_are_all_of_its_ranks() {
        let (host, sentence) = found(&[3, 2], None).unwrap();
        assert_eq!(
            (host, &*sentence),
            (Level::Host, " Ranks 2–3 are all the ranks of host b, and no other rank is slow.")
        );
        let (model, sentence) = found(&[0, 2, 1], None).unwrap();
        assert_eq!(model, Level::DeviceModel);
        assert_eq!(sentence, " Ranks 0–2 are all the ranks with devices of the model H100, and no other rank is slow.");
        assert_eq!(found(&[1, 2], None).unwrap().0, Level::Several);
        assert_eq!(found(&[0, 1, 2, 3], None).unwrap().0, Level::Several, "all ranks have nothing apart from others");
        assert_eq!(found(&[3], None).unwrap(), (Level::Rank, String::new()), "one rank is a rank");
        assert_eq!(found(&[2, 3], Some(7)).unwrap().0, Level::Communicator);
        assert_eq!(found(&[], None), None);
    }
}
