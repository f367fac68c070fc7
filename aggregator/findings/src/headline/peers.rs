//! Ranks whose own work takes longer, and whose communicators lack ranks that were not recorded: what they cost is unknown.

use std::collections::{BTreeMap, BTreeSet};

use trace::{StandsOn, Verdict as RankVerdict, Word};

use super::parts::mean_step_ns;
use model::analysis::{Facts, Tables};
use model::thresholds::Thresholds;
use model::units::{ns, ranks_named};

/// Such ranks are suspects: a collective without all of its ranks does not show who waited for whom, so the account has no cost for them.
pub fn take_missing_peers(tables: &mut Tables, facts: &Facts, t: &Thresholds) {
    let all_missing: BTreeSet<i32> = facts.missing_ranks.iter().copied().collect();
    let mut missing_of: BTreeMap<i32, Vec<i32>> = BTreeMap::new();
    for communicator in tables.communicators.iter().filter(|row| row.incomplete > 0) {
        let ranks = communicator.ranks.as_deref().unwrap_or_default();
        let missing: Vec<i32> = ranks.iter().copied().filter(|rank| all_missing.contains(rank)).collect();
        for rank in ranks.iter().filter(|_| !missing.is_empty() && missing.len() < ranks.len()) {
            // Of several communicators, the one with the fewest missing ranks says the most.
            let known = missing_of.entry(*rank).or_insert_with(|| missing.clone());
            if missing.len() < known.len() {
                *known = missing.clone();
            }
        }
    }
    let least_ns = mean_step_ns(tables).map_or(i64::MAX, |step_ns| (t.min_effect_pct / 100.0 * step_ns as f64) as i64);
    for row in tables.stragglers.iter_mut().filter(|row| row.verdict == RankVerdict::Ok) {
        let Some(missing) = missing_of.get(&row.rank) else { continue };
        let is_far =
            row.z.is_some_and(|z| z >= 2.0 * t.min_z) && row.persistence.is_some_and(|p| p >= t.min_persistence);
        let is_much = row.own_excess_low_ns.is_some_and(|low_ns| low_ns >= least_ns);
        if row.steps.max(0) as usize >= t.min_steps && is_far && is_much {
            row.verdict = RankVerdict::Undecided.into();
            row.stands_on = Some(Word::from(StandsOn::Stretch));
            row.step_delay_low_ns = Some(0);
            row.step_delay_high_ns = row.own_excess_high_ns;
            let was = if missing.len() == 1 { "was" } else { "were" };
            let why = format!(
                "{} of its communicator {was} not recorded, so it is unknown whether the {} that its own work takes longer delay the others",
                ranks_named(missing),
                ns(row.own_excess_ns)
            );
            row.doubt = Some(why.into());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use trace::{CommunicatorRow, LostTimeRow, StragglerRow};

    fn judged(excess_ns: i64, missing: &[i32]) -> (String, Option<String>) {
        let row = StragglerRow {
            rank: 5,
            steps: 10,
            own_excess_ns: excess_ns,
            own_excess_low_ns: Some(excess_ns - 1),
            own_excess_high_ns: Some(excess_ns + 1),
            z: Some(100.0),
            persistence: Some(1.0),
            verdict: RankVerdict::Ok.into(),
            ..StragglerRow::default()
        };
        let mut tables = Tables { stragglers: vec![row], ..Tables::default() };
        tables.lost_time = vec![LostTimeRow { ns: 1_000, ..LostTimeRow::default() }];
        let of = |ranks: Vec<i32>| CommunicatorRow { ranks: Some(ranks), incomplete: 1, ..CommunicatorRow::default() };
        tables.communicators = vec![of(vec![1, 5, 9, 13, 17]), of(vec![4, 5, 6, 7])];
        let facts = Facts { missing_ranks: missing.to_vec(), ..Facts::default() };
        take_missing_peers(&mut tables, &facts, &Thresholds::default());
        let row = &tables.stragglers[0];
        (row.verdict.text().to_string(), row.doubt.as_ref().map(ToString::to_string))
    }

    #[test]
    fn own_work_is_suspect_beside_a_peer_that_was_not_recorded() {
        let why = "rank 6 of its communicator was not recorded, so it is unknown whether the 300 ns that its own work takes longer \
                   delay the others";
        assert_eq!(judged(300, &[6, 9, 13]), ("undecided".into(), Some(why.into())));
        assert_eq!(judged(15, &[6]), ("ok".into(), None), "less than 2 % of a step");
        assert_eq!(judged(300, &[2]), ("ok".into(), None), "all of its peers were recorded");
    }
}
