//! Ranks by host, by device model, and by their place in the job's parallelism: what a job of many ranks is read by.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};

use trace::name_rules::roles::{WORDS, role};
use trace::{RankGroupRow, StepBreakdownRow, StragglerRow, Verdict};

use crate::same_work::{dimensions, stages_by_rank};
use model::analysis::{Facts, RankIdentity, Tables};
use model::stats::{is_covered, median_in_place};

/// The groups of each kind that has several.
pub fn rank_groups(tables: &Tables, facts: &Facts) -> Vec<RankGroupRow> {
    let mut steps: BTreeMap<i32, Vec<&StepBreakdownRow>> = BTreeMap::new();
    for row in tables.step_breakdown.iter().filter(|row| row.step.is_some_and(|step| step >= 0)) {
        steps.entry(row.rank).or_default().push(row);
    }
    let stragglers: BTreeMap<i32, &StragglerRow> = tables.stragglers.iter().map(|row| (row.rank, row)).collect();
    let mut all = Vec::new();
    for (kind, groups) in kinds(tables, facts).into_iter().filter(|(_, groups)| groups.len() > 1) {
        let row = |(name, ranks): (Name, Vec<i32>)| RankGroupRow {
            kind: kind.as_str().into(),
            name: name.text().into(),
            ..group_row(&ranks, &steps, &stragglers)
        };
        let mut rows: Vec<RankGroupRow> = groups.into_iter().map(row).collect();
        rows.sort_by_key(|row| Reverse((row.worst_delay_ns, row.own_excess_ns)));
        all.append(&mut rows);
    }
    all
}

/// The name of a group. Numbers are in the order of numbers.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Name {
    Number(usize),
    Word(String),
}

impl Name {
    fn text(self) -> String {
        match self {
            Self::Number(number) => number.to_string(),
            Self::Word(word) => word,
        }
    }
}

type Groups = BTreeMap<Name, Vec<i32>>;

/// The ranks of each group, by kind.
fn kinds(tables: &Tables, facts: &Facts) -> Vec<(String, Groups)> {
    let known = |name_of: fn(&RankIdentity) -> Option<&String>| {
        let mut groups = Groups::new();
        for identity in &facts.identities {
            if let Some(name) = name_of(identity) {
                groups.entry(Name::Word(name.clone())).or_default().push(identity.rank);
            }
        }
        groups
    };
    let numbered = |place: &BTreeMap<i32, usize>| {
        let mut groups = Groups::new();
        for (rank, number) in place {
            groups.entry(Name::Number(*number)).or_default().push(*rank);
        }
        groups
    };
    let stages = stages_by_rank(tables, &facts.ranks);
    let mut all = vec![
        ("host".to_string(), known(|identity| identity.host.as_ref())),
        ("device_model".to_string(), known(|identity| identity.device_name.as_ref())),
        ("stage".to_string(), numbered(&stages)),
    ];
    let places = dimensions(&tables.communicators, &facts.ranks, &stages);
    all.extend(places.iter().map(|dimension| (dimension.name.clone(), numbered(&dimension.place))));
    for (kind, place) in in_names(facts) {
        if all.iter().all(|(known, groups)| known != kind || groups.len() < 2) {
            all.push((kind.into(), numbered(&place)));
        }
    }
    all
}

/// The places in the job's parallelism that the names of all ranks' files or processes have, where several ranks share one.
fn in_names(facts: &Facts) -> impl Iterator<Item = (&'static str, BTreeMap<i32, usize>)> {
    let place = |(word, kind): (&'static str, &'static str)| {
        let number = |identity: &RankIdentity| {
            let number = role(identity.roles.as_deref()?, word)?;
            Some((identity.rank, usize::try_from(number).ok()?))
        };
        let place: BTreeMap<i32, usize> = facts.identities.iter().map(number).collect::<Option<_>>()?;
        let different: BTreeSet<usize> = place.values().copied().collect();
        (different.len() < place.len()).then_some((kind, place))
    };
    WORDS.into_iter().filter_map(place)
}

fn group_row(
    ranks: &[i32],
    steps: &BTreeMap<i32, Vec<&StepBreakdownRow>>,
    stragglers: &BTreeMap<i32, &StragglerRow>,
) -> RankGroupRow {
    let rows = || ranks.iter().filter_map(|rank| steps.get(rank)).flatten();
    let mean = |part: fn(&StepBreakdownRow) -> Option<i64>| {
        let (sum, count) =
            rows().filter_map(|row| part(row)).fold((0_i128, 0), |(sum, n), ns| (sum + i128::from(ns), n + 1));
        is_covered(count as f64, rows().count() as f64).then(|| (sum / count) as i64)
    };
    let part = |part: fn(&StepBreakdownRow) -> Option<i64>| mean(part).unwrap_or(0);
    let compared: Vec<&StragglerRow> = ranks.iter().filter_map(|rank| stragglers.get(rank).copied()).collect();
    let mut excess: Vec<f64> = compared.iter().map(|row| row.own_excess_ns as f64).collect();
    let worst = compared.iter().max_by_key(|row| (row.step_delay_ns, row.own_excess_ns, Reverse(row.rank)));
    let [compute_ns, overlap_ns, exposed_comm_ns, memory_ns, idle_ns] = [
        part(|row| Some(row.compute_ns)),
        part(|row| Some(row.overlap_ns)),
        part(|row| Some(row.exposed_comm_ns)),
        part(|row| Some(row.memory_ns)),
        part(|row| Some(row.idle_ns)),
    ];
    RankGroupRow {
        ranks: i32::try_from(ranks.len()).unwrap_or(i32::MAX),
        step_ns: compute_ns + overlap_ns + exposed_comm_ns + memory_ns + idle_ns,
        compute_ns,
        overlap_ns,
        exposed_comm_ns,
        memory_ns,
        idle_ns,
        // A step without exposed communication has no exposed wait.
        exposed_wait_ns: mean(|row| row.exposed_wait_ns.or((row.exposed_comm_ns == 0).then_some(0))),
        own_excess_ns: median_in_place(&mut excess).map(|median| median.round() as i64),
        worst_rank: worst.map(|row| row.rank),
        worst_excess_ns: worst.map(|row| row.own_excess_ns),
        worst_delay_ns: worst.map(|row| row.step_delay_ns),
        causes: compared.iter().filter(|row| row.verdict == Verdict::Cause).count() as i32,
        ..RankGroupRow::default()
    }
}

#[cfg(test)]
mod tests {
    use trace::PipelineRow;

    use super::*;

    #[test]
    fn ranks_are_summed_by_host_and_stage_and_the_worst_is_named() {
        let identity = |(rank, host): (usize, &&str)| RankIdentity {
            rank: rank as i32,
            host: Some((*host).into()),
            device_name: Some("H100".into()),
            ..RankIdentity::default()
        };
        let facts = Facts {
            ranks: vec![0, 1, 2, 3],
            identities: ["a", "a", "b", "b"].iter().enumerate().map(identity).collect(),
            ..Facts::default()
        };
        let step = |rank, step, compute_ns| StepBreakdownRow {
            rank,
            step,
            compute_ns,
            idle_ns: 10,
            wall_ns: compute_ns + 10,
            ..StepBreakdownRow::default()
        };
        let straggler = |rank, own_excess_ns, step_delay_ns, verdict: &str| StragglerRow {
            rank,
            own_excess_ns,
            step_delay_ns,
            verdict: verdict.into(),
            ..StragglerRow::default()
        };
        let tables = Tables {
            // The time of the whole recording is no step.
            step_breakdown: vec![step(0, Some(1), 20), step(0, None, 900), step(1, Some(1), 40), step(3, Some(1), 70)],
            stragglers: vec![straggler(0, 0, 0, "ok"), straggler(1, 2, 0, "ok"), straggler(3, 50, 40, "cause")],
            pipeline: (0..4).map(|rank| PipelineRow { rank, stage: rank % 2, ..PipelineRow::default() }).collect(),
            ..Tables::default()
        };
        let rows = rank_groups(&tables, &facts);
        let seen: Vec<_> = rows
            .iter()
            .map(|r| (&*r.kind, &*r.name, r.ranks, r.step_ns, r.own_excess_ns, r.worst_rank, r.causes))
            .collect();
        assert_eq!(
            seen,
            [
                ("host", "b", 2, 80, Some(50), Some(3), 1),
                ("host", "a", 2, 40, Some(1), Some(1), 0),
                ("stage", "1", 2, 65, Some(26), Some(3), 1),
                ("stage", "0", 2, 30, Some(0), Some(0), 0),
            ]
        );
    }

    #[test]
    fn ranks_have_places() {
        let identity = |(rank, roles): (usize, &&str)| RankIdentity {
            rank: rank as i32,
            roles: Some((*roles).into()),
            ..RankIdentity::default()
        };
        let places = |roles: &[&str]| {
            let facts = Facts { identities: roles.iter().enumerate().map(identity).collect(), ..Facts::default() };
            in_names(&facts).map(|(kind, place)| (kind, place.into_values().collect())).collect::<Vec<(_, Vec<_>)>>()
        };
        let roles = ["DP 0, EP 0, TP 0", "DP 0, EP 1, TP 1", "DP 1, EP 2, TP 0", "DP 1, EP 3, TP 1"];
        assert_eq!(places(&roles), [("tensor", vec![0, 1, 0, 1]), ("data", vec![0, 0, 1, 1])]);
        assert_eq!(places(&["DP 0, TP 0", "DP 0"]), [("data", vec![0, 0])]);
    }
}
