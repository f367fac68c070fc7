//! The host, the model of device or the communicator that the slow ranks have in common.

use std::collections::BTreeSet;

use trace::{Level, StandsOn, StragglerRow};

use crate::base::units::ranks_named;
use crate::model::analysis::RankIdentity;

/// What slow ranks have in common.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Found {
    pub(super) level: Level,
    /// The host or the model of device.
    pub(super) place: Option<String>,
    /// A sentence if it is a host or a model of device; empty otherwise.
    pub(super) sentence: String,
}

/// The level of causes; `None` without a cause.
pub(super) fn level(causes: &[&StragglerRow], identities: &[RankIdentity]) -> Option<Found> {
    let first = causes.first()?;
    let ranks: BTreeSet<i32> = causes.iter().map(|row| row.rank).collect();
    let ranks: Vec<i32> = ranks.into_iter().collect();
    let found = |level| Found { level, place: None, sentence: String::new() };
    Some(match (first.slow_comm_id, ranks.len()) {
        (Some(_), _) => found(Level::Communicator),
        (None, 1) if first.stands_on.as_ref().is_some_and(|basis| *basis == StandsOn::Transfers) => found(Level::Link),
        (None, 1) => found(Level::Rank),
        _ => all_ranks_of(&ranks, identities).map_or(found(Level::Several), |(level, place, what)| {
            let named = capital(&ranks_named(&ranks));
            let sentence = format!(" {named} are all the ranks {what}, and no other rank is slow.");
            Found { level, place: Some(place), sentence }
        }),
    })
}

/// The host or the model of device all of whose ranks these are, and no others: its level, its name, and `of host node1`. `ranks`
/// ascend.
pub(crate) fn all_ranks_of(ranks: &[i32], identities: &[RankIdentity]) -> Option<(Level, String, String)> {
    let shared = |place: fn(&RankIdentity) -> Option<&String>| {
        let known: Vec<(i32, &String)> = identities.iter().filter_map(|i| Some((i.rank, place(i)?))).collect();
        let (_, of_first) = known.iter().find(|(rank, _)| ranks.first() == Some(rank))?;
        let sharing: Vec<i32> = known.iter().filter(|(_, p)| p == of_first).map(|(rank, _)| *rank).collect();
        (sharing == ranks && sharing.len() < known.len()).then(|| (*of_first).clone())
    };
    match (shared(|i| i.host.as_ref()), shared(|i| i.device_name.as_ref())) {
        // A host that is the only one with its model of device is slow by that.
        (_, Some(model)) => {
            let what = format!("with devices of the model {model}");
            Some((Level::DeviceModel, model, what))
        }
        (Some(host), None) => {
            let what = format!("of host {host}");
            Some((Level::Host, host, what))
        }
        (None, None) => None,
    }
}

fn capital(words: &str) -> String {
    let mut letters = words.chars();
    letters.next().map_or(String::new(), |first| first.to_uppercase().chain(letters).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Ranks 0 to 3 on two hosts; rank 3 has another device.
    fn identities() -> Vec<RankIdentity> {
        let identity = |rank| RankIdentity {
            rank,
            host: Some(if rank < 2 { "a" } else { "b" }.into()),
            device_name: Some(if rank == 3 { "H200" } else { "H100" }.into()),
            ..RankIdentity::default()
        };
        (0..4).map(identity).collect()
    }

    fn found(ranks: &[i32], slow_comm_id: Option<i64>) -> Option<Found> {
        let rows: Vec<StragglerRow> =
            ranks.iter().map(|rank| StragglerRow { rank: *rank, slow_comm_id, ..StragglerRow::default() }).collect();
        level(&rows.iter().collect::<Vec<_>>(), &identities())
    }

    #[test]
    fn the_only_host_with_a_model_is_slow_by_its_model() {
        let mut identities = identities();
        identities[2].device_name = Some("H200".into());
        let rows: Vec<StragglerRow> = [2, 3].map(|rank| StragglerRow { rank, ..StragglerRow::default() }).into();
        let found = level(&rows.iter().collect::<Vec<_>>(), &identities).unwrap();
        assert_eq!((found.level, found.place.as_deref()), (Level::DeviceModel, Some("H200")));
    }

    #[test]
    fn slow_ranks_share_a_host_or_a_model_only_if_they_are_all_of_its_ranks() {
        let host = found(&[3, 2], None).unwrap();
        assert_eq!((host.level, host.place.as_deref()), (Level::Host, Some("b")));
        assert_eq!(host.sentence, " Ranks 2–3 are all the ranks of host b, and no other rank is slow.");
        let model = found(&[0, 2, 1], None).unwrap();
        assert_eq!((model.level, model.place.as_deref()), (Level::DeviceModel, Some("H100")));
        assert_eq!(
            model.sentence,
            " Ranks 0–2 are all the ranks with devices of the model H100, and no other rank is slow."
        );
        assert_eq!(found(&[1, 2], None).unwrap().level, Level::Several);
        assert_eq!(
            found(&[0, 1, 2, 3], None).unwrap().level,
            Level::Several,
            "all ranks have nothing apart from others"
        );
        assert_eq!(found(&[3], None).unwrap().level, Level::Rank, "one rank is a rank");
        let link = StragglerRow { rank: 3, stands_on: Some("transfers".into()), ..StragglerRow::default() };
        assert_eq!(level(&[&link], &identities()).unwrap().level, Level::Link);
        assert_eq!(found(&[2, 3], Some(7)).unwrap().level, Level::Communicator);
        assert_eq!(found(&[], None), None);
    }
}
