//! The hosts, the models of device or the communicator that the slow ranks have in common.

use std::collections::{BTreeMap, BTreeSet};

use trace::{Level, StandsOn, StragglerRow};

use model::analysis::RankIdentity;
use model::units::ranks_named;

/// What slow ranks have in common.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Found {
    pub(super) level: Level,
    /// The hosts or the models of device.
    pub(super) place: Option<Place>,
    /// Slow ranks that are not of that place.
    pub(super) beside: Vec<i32>,
    /// A sentence about them; empty without them.
    pub(super) sentence: String,
}

/// The level of causes; `None` without a cause.
pub(super) fn level(causes: &[&StragglerRow], identities: &[RankIdentity]) -> Option<Found> {
    let first = causes.first()?;
    let ranks: BTreeSet<i32> = causes.iter().map(|row| row.rank).collect();
    let ranks: Vec<i32> = ranks.into_iter().collect();
    let found = |level| Found { level, place: None, beside: Vec::new(), sentence: String::new() };
    let listed = |ranks: &[i32], place: &Place| format!(" {} are {}", capital(&ranks_named(ranks)), place.all_ranks());
    Some(match (first.slow_comm_id, ranks.len()) {
        (Some(_), _) => found(Level::Communicator),
        (None, 1) if first.stands_on.as_ref().is_some_and(|basis| *basis == StandsOn::Transfers) => found(Level::Link),
        (None, 1) => found(Level::Rank),
        _ => match (Place::of(&ranks, identities), Place::of_most(&ranks, identities)) {
            (Some(place), _) => {
                let sentence = format!("{}, and no other rank is slow.", listed(&ranks, &place));
                Found { level: place.level, place: Some(place), beside: Vec::new(), sentence }
            }
            (None, Some((place, beside))) => {
                let of_place: Vec<i32> = ranks.iter().copied().filter(|rank| !beside.contains(rank)).collect();
                let is = if beside.len() == 1 { "is" } else { "are" };
                let sentence =
                    format!("{}; {} {is} slow beside them.", listed(&of_place, &place), ranks_named(&beside));
                Found { level: Level::Several, place: Some(place), beside, sentence }
            }
            (None, None) => found(Level::Several),
        },
    })
}

/// The name of a rank's place of a kind.
fn name<'a>(identity: &'a RankIdentity, level: Level, kind: &str) -> Option<&'a String> {
    match level {
        Level::Host => identity.host.as_ref(),
        Level::DeviceModel => identity.device_name.as_ref(),
        _ => identity.places.get(kind),
    }
}

/// Hosts, models of device, or what a file says that ranks share.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Place {
    /// [`Level::Host`], [`Level::DeviceModel`] or [`Level::Place`].
    pub(super) level: Level,
    /// `host`, `GPU model`, `rack`.
    kind: String,
    /// In the order of their ranks.
    names: Vec<String>,
}

impl Place {
    /// The place all of whose ranks these are, and no others. `ranks` ascend. Several places are one only if each has several ranks:
    /// else the ranks say as much.
    pub(crate) fn of(ranks: &[i32], identities: &[RankIdentity]) -> Option<Self> {
        let shared = |level: Level, kind: &str| {
            let known = identities.iter().filter_map(|identity| Some((identity.rank, name(identity, level, kind)?)));
            let known: Vec<(i32, &String)> = known.collect();
            let mut names: Vec<&String> = Vec::new();
            for (_, name) in known.iter().filter(|(rank, _)| ranks.binary_search(rank).is_ok()) {
                if !names.contains(name) {
                    names.push(name);
                }
            }
            let sharing: Vec<i32> = known.iter().filter(|(_, name)| names.contains(name)).map(|(r, _)| *r).collect();
            let has_several = |name: &&String| known.iter().filter(|(_, other)| other == name).count() > 1;
            let is_place = names.len() == 1 || names.iter().all(has_several);
            let is_whole = sharing == ranks && sharing.len() < known.len();
            let names = names.into_iter().cloned().collect();
            (is_place && is_whole).then(|| Self { level, kind: kind.into(), names })
        };
        // Hosts that are the only ones with their model of device are slow by that.
        let places = [shared(Level::DeviceModel, "GPU model"), shared(Level::Host, "host")];
        let kinds: BTreeSet<&String> = identities.iter().flat_map(|identity| identity.places.keys()).collect();
        let named = kinds.into_iter().map(|kind| shared(Level::Place, kind));
        places.into_iter().chain(named).flatten().min_by_key(|place| place.names.len() > 1)
    }

    /// The places of one kind all of whose ranks these are, several each, and the ranks that are left: where two causes meet. The kind
    /// with the fewest ranks left is taken. `ranks` ascend.
    pub(super) fn of_most(ranks: &[i32], identities: &[RankIdentity]) -> Option<(Self, Vec<i32>)> {
        let of_kind = |(level, kind): (Level, &str)| {
            let mut members: BTreeMap<&String, Vec<i32>> = BTreeMap::new();
            for identity in identities {
                if let Some(name) = name(identity, level, kind) {
                    members.entry(name).or_default().push(identity.rank);
                }
            }
            let is_slow = |rank: &i32| ranks.binary_search(rank).is_ok();
            let are_slow = |(_, of): &(&String, Vec<i32>)| of.len() > 1 && of.iter().all(is_slow);
            let mut slow: Vec<(&String, Vec<i32>)> = members.into_iter().filter(are_slow).collect();
            slow.sort_by_key(|(_, of)| of[0]);
            let named: BTreeSet<i32> = slow.iter().flat_map(|(_, of)| of.iter().copied()).collect();
            let left: Vec<i32> = ranks.iter().copied().filter(|rank| !named.contains(rank)).collect();
            let names = slow.iter().map(|(name, _)| (*name).clone()).collect();
            (!slow.is_empty() && !left.is_empty()).then(|| (Self { level, kind: kind.into(), names }, left))
        };
        let kinds: BTreeSet<&String> = identities.iter().flat_map(|identity| identity.places.keys()).collect();
        let of_file = kinds.into_iter().map(|kind| (Level::Place, kind.as_str()));
        let all = [(Level::Host, "host"), (Level::DeviceModel, "GPU model")].into_iter().chain(of_file);
        all.filter_map(of_kind).min_by_key(|(_, left)| left.len())
    }

    /// `HOST node1`, `HOSTS node1, node2`.
    pub(super) fn title(&self) -> String {
        format!("{}{} {}", self.kind.to_uppercase(), self.plural().to_uppercase(), self.listed())
    }

    /// `all the ranks of host node1`.
    pub(crate) fn all_ranks(&self) -> String {
        let what =
            if self.level == Level::DeviceModel { "with devices of the model" } else { &format!("of {}", self.kind) };
        format!("all the ranks {what}{} {}", self.plural(), self.listed())
    }

    fn plural(&self) -> &'static str {
        if self.names.len() == 1 { "" } else { "s" }
    }

    /// The first names.
    fn listed(&self) -> String {
        const LISTED: usize = 3;
        let mut listed = self.names.iter().take(LISTED).cloned().collect::<Vec<_>>().join(", ");
        if self.names.len() > LISTED {
            listed.push_str(&format!(" and {} more", self.names.len() - LISTED));
        }
        listed
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

    fn title(found: &Found) -> Option<String> {
        found.place.as_ref().map(Place::title)
    }

    /// Six hosts of two ranks; the last host has one.
    #[test]
    fn several_hosts_are_named_if_each_has_several_ranks() {
        let identity = |rank| RankIdentity { rank, host: Some(format!("n{}", rank / 2)), ..RankIdentity::default() };
        let identities: Vec<RankIdentity> = (0..11).map(identity).collect();
        let of = |ranks: &[i32]| Place::of(ranks, &identities).map(|place| (place.title(), place.all_ranks()));
        assert_eq!(of(&[2, 3, 6, 7]), Some(("HOSTS n1, n3".into(), "all the ranks of hosts n1, n3".into())));
        let most = of(&[0, 1, 2, 3, 4, 5, 6, 7]).unwrap();
        assert_eq!(most.0, "HOSTS n0, n1, n2 and 1 more");
        assert_eq!(of(&[2, 3, 10]), None, "one rank is no host beside others");
        assert_eq!(of(&[2, 3, 6]), None, "rank 7 is not slow");
        assert_eq!(of(&(0..11).collect::<Vec<_>>()), None);
        let mixed = |i: RankIdentity| RankIdentity { device_name: Some(format!("model {}", i.rank / 2)), ..i };
        let one_host = |i: RankIdentity| RankIdentity { host: Some(format!("n{}", i.rank / 4)), ..i };
        let identities: Vec<RankIdentity> = identities.clone().into_iter().map(mixed).map(one_host).collect();
        let place = Place::of(&[4, 5, 6, 7], &identities).unwrap();
        assert_eq!(place.title(), "HOST n1", "its two models are nowhere else");
    }

    /// A host, and a rank of another host: two causes.
    #[test]
    fn a_place_is_named_beside_other_slow_ranks() {
        let found = found(&[0, 2, 3], None).unwrap();
        assert_eq!((found.level, title(&found), &found.beside[..]), (Level::Several, Some("HOST b".into()), &[0][..]));
        assert_eq!(found.sentence, " Ranks 2–3 are all the ranks of host b; rank 0 is slow beside them.");
    }

    #[test]
    fn the_only_host_with_a_model_is_slow_by_its_model() {
        let mut identities = identities();
        identities[2].device_name = Some("H200".into());
        let rows: Vec<StragglerRow> = [2, 3].map(|rank| StragglerRow { rank, ..StragglerRow::default() }).into();
        let found = level(&rows.iter().collect::<Vec<_>>(), &identities).unwrap();
        assert_eq!((found.level, title(&found)), (Level::DeviceModel, Some("GPU MODEL H200".into())));
    }

    #[test]
    fn slow_ranks_share_a_rack_that_a_file_names() {
        let identity = |rank: i32| RankIdentity {
            rank,
            host: Some(format!("n{}", rank / 2)),
            places: [("rack".into(), format!("r{}", rank / 4)), ("rail".into(), format!("{}", rank % 2))].into(),
            ..RankIdentity::default()
        };
        let identities: Vec<RankIdentity> = (0..8).map(identity).collect();
        let of = |ranks: &[i32]| Place::of(ranks, &identities).map(|place| (place.title(), place.all_ranks()));
        assert_eq!(of(&[4, 5, 6, 7]), Some(("RACK r1".into(), "all the ranks of rack r1".into())));
        assert_eq!(of(&[1, 3, 5, 7]), Some(("RAIL 1".into(), "all the ranks of rail 1".into())));
        assert_eq!(of(&[4, 5]).unwrap().0, "HOST n2");
        assert_eq!(of(&[4, 5, 6]), None);
    }

    #[test]
    fn slow_ranks_share_a_host_or_a_model_only_if_they_are_all_of_its_ranks() {
        let host = found(&[3, 2], None).unwrap();
        assert_eq!((host.level, title(&host)), (Level::Host, Some("HOST b".into())));
        assert_eq!(host.sentence, " Ranks 2–3 are all the ranks of host b, and no other rank is slow.");
        let model = found(&[0, 2, 1], None).unwrap();
        assert_eq!((model.level, title(&model)), (Level::DeviceModel, Some("GPU MODEL H100".into())));
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
