//! The headline: one sentence from the table of stragglers. It names the slow rank, its cost per step, the reason and
//! the certainty.

mod level;
mod lines;
mod losses;
mod parts;
mod peers;
mod phrases;

use std::collections::BTreeSet;

use trace::{FindingRow, LostPart, OmissionKind, OmissionRow, StragglerRow, Verdict as RankVerdict};

pub(crate) use self::level::Place;
use self::level::level;
pub use self::losses::take_losses;
pub use self::peers::take_missing_peers;
pub use self::phrases::place;
use self::phrases::{HIDING, certainty_of, every, named, stands_on_range, stands_on_transfers, variation, why};
use crate::devices::devices_of;
use crate::finding::place as place_of;
use crate::{
    FindingKind, clocks, communication, first_steps, idle_causes, input, launch_bound, occupancy, overhead,
    partly_recorded, sync_stalls, unmarked_steps,
};
use account::Together;
use account::exposed_waits::Exposed;
use model::analysis::{Analysis, Facts, Tables, Verdict, VerdictKind};
use model::claim::{Claim, Quantity, Relation, Value};
use model::stats::{lower_median, median};
use model::thresholds::Thresholds;
use model::units::{ns, plural, ranks_named, spoken_z};
use topology::same_work::each_rank_is_a_stage;

/// Results on stragglers that no table has.
#[derive(Clone, Debug, Default)]
pub struct Found {
    /// The ranks that show the typical work, where most ranks are slow.
    pub usual: Vec<i32>,
    /// By how much a step would be shorter without all causes, if they are several.
    pub together: Option<Together>,
}

/// The verdict on a run.
pub fn verdict(tables: &Tables, found: &Found, facts: &Facts, t: &Thresholds) -> Verdict {
    let causes = rows_by_delay(tables, &|r| r.verdict == RankVerdict::Cause);
    let suspects = rows_by_delay(tables, &|r| r.verdict == RankVerdict::Undecided && r.stands_on.is_some());
    let most_excess = tables.stragglers.iter().max_by_key(|r| (r.own_excess_ns, std::cmp::Reverse(r.rank)));
    let steps = tables.step_breakdown.iter().filter(|b| b.step.is_some_and(|s| s >= 0));
    // The account divides the mean step; what is late in some steps only is no part of their median.
    let step_ns = parts::mean_step_ns(tables).or_else(|| lower_median(steps.map(|b| b.wall_ns)));
    let part = parts::largest(tables);
    let kind = kind_of((&causes, &suspects), part.as_ref(), (tables, facts), step_ns);
    let row = match kind {
        VerdictKind::Cause => causes.first().copied(),
        VerdictKind::Undecided => suspects.first().copied(),
        VerdictKind::Balanced => most_excess,
        _ => None,
    };
    let names_ranks = matches!(kind, VerdictKind::Cause | VerdictKind::Undecided);
    let ranks = |rows: &[&StragglerRow]| rows.iter().map(|r| r.rank).collect();
    let mut verdict = Verdict {
        kind,
        causes: ranks(&causes),
        suspects: if names_ranks { ranks(&suspects) } else { Vec::new() },
        step_ns,
        together_delay_ns: found.together.map(|all| all.ns),
        together_delay_low_ns: found.together.map(|all| all.interval_ns.0),
        together_delay_high_ns: found.together.map(|all| all.interval_ns.1),
        exposed_wait_ns: longest_wait_ns(tables, facts),
        ..row.map(numbers).unwrap_or_default()
    };
    verdict.within_variation = kind == VerdictKind::Undecided && row.is_some_and(|row| is_within_variation(row, t));
    let with: BTreeSet<i32> = tables.collective_instances.iter().filter_map(|i| i.step).collect();
    let accumulates = facts.steps.iter().any(|step| !with.contains(step));
    let rivals = if causes.is_empty() { &suspects } else { &causes };
    verdict.sentence = match (kind, row) {
        (VerdictKind::Undecided, None) => of_no_rank(tables, facts),
        (VerdictKind::Jitter | VerdictKind::Lost, _) => part.as_ref().map_or(String::new(), |part| part.sentence()),
        (VerdictKind::Nothing, _) | (_, None) => nothing(tables, facts),
        (_, Some(row)) => sentence(&verdict, row, rivals.get(1..).unwrap_or_default(), (facts, accumulates), t),
    };
    if row.is_some() && names_ranks {
        verdict.sentence.push_str(&most_are_slow(&found.usual));
    }
    let level = level(&causes, &facts.identities);
    if let Some(level) = &level {
        verdict.level = Some(level.level.into());
        verdict.sentence.push_str(&level.sentence);
    }
    let names_no_rank = kind == VerdictKind::Undecided && row.is_none();
    if names_no_rank {
        verdict.doubt = Some(verdict.sentence.clone());
    }
    let rivals = rivals.get(1..).unwrap_or_default();
    let about = lines::About {
        row,
        rivals,
        level: level.as_ref(),
        lines: &tables.lost_time_lines,
        facts,
        kernels: &tables.kernel_stats,
    };
    lines::fill(&mut verdict, &about, t);
    if let Some(part) = part.filter(|_| matches!(kind, VerdictKind::Jitter | VerdictKind::Lost)) {
        part.fill(&mut verdict);
    }
    if names_no_rank && verdict.action.is_none() {
        verdict.action =
            Some("record more steps; collective_waits says for each step which rank was waited for".into());
    }
    verdict
}

/// The rows of ranks that were compared and are wanted, the largest delay first.
fn rows_by_delay<'a>(tables: &'a Tables, is_wanted: &dyn Fn(&StragglerRow) -> bool) -> Vec<&'a StragglerRow> {
    let mut rows: Vec<&StragglerRow> = tables.stragglers.iter().filter(|r| r.steps > 0 && is_wanted(r)).collect();
    rows.sort_by_key(|r| (std::cmp::Reverse(r.step_delay_ns), r.rank));
    rows
}

/// The sentence where no rank can be named, nor acquitted.
fn of_no_rank(tables: &Tables, facts: &Facts) -> String {
    let account = tables.omissions.iter().find(|row| &*row.what == account::ACCOUNT);
    match account {
        Some(row) => format!("where the time of the steps goes is unknown, because {}", row.why),
        None => losses::doubt(tables, facts).unwrap_or_else(|| missing(facts)),
    }
}

/// The kind of the verdict.
fn kind_of(
    (causes, suspects): (&[&StragglerRow], &[&StragglerRow]),
    part: Option<&parts::PartOfSteps>,
    (tables, facts): (&Tables, &Facts),
    step_ns: Option<i64>,
) -> VerdictKind {
    let is_whole = facts.missing_ranks.is_empty();
    // A rank that probably costs little is no headline beside what costs much for certain.
    let is_much = |row: &&StragglerRow| parts::is_much(row.step_delay_ns, step_ns.unwrap_or(0));
    match () {
        () if !causes.is_empty() => VerdictKind::Cause,
        () if suspects.iter().any(is_much) => VerdictKind::Undecided,
        () if !suspects.is_empty() && part.is_none() => VerdictKind::Undecided,
        () if !judged(tables, facts) => VerdictKind::Nothing,
        () if !is_whole || tables.lost_time.is_empty() || losses::doubt(tables, facts).is_some() => {
            VerdictKind::Undecided
        }
        () => part.map_or(VerdictKind::Balanced, parts::PartOfSteps::kind),
    }
}

/// The claims of an answer beside its findings: which rows are missing, and whether the job is balanced. The finding `straggler` has the
/// claim about a rank that the verdict suspects.
pub(crate) fn claims(analysis: &Analysis, t: &Thresholds) -> Vec<Claim> {
    let verdict = &analysis.verdict;
    let is_missing = |row: &&OmissionRow| row.kind != OmissionKind::Note;
    let missing = analysis.tables.omissions.iter().filter(is_missing).count();
    let relation = if missing == 0 { Relation::Absent } else { Relation::Exceeds };
    let rows = Claim::new(Quantity::Rows, relation, "omissions").value(Value::Count(missing as i64));
    let rows = Claim { by: "omissions", ..rows };
    if verdict.kind != VerdictKind::Balanced {
        return vec![rows];
    }
    let by_verdict = |claim: Claim| Claim { by: "verdict", ..claim };
    let row = analysis.tables.stragglers.iter().find(|row| Some(row.rank) == verdict.rank);
    let of_rank = row.map(|row| {
        let costs = 100.0 * row.step_delay_ns as f64 >= t.min_delay_pct * verdict.step_ns.unwrap_or(i64::MAX) as f64;
        let is_far = row.steps as usize >= t.min_steps && row.z.is_some_and(|z| z >= 2.0 * t.min_z);
        let relation = if is_far && costs { Relation::Exceeds } else { Relation::Within };
        let claim = Claim::new(Quantity::OwnExcess, relation, "stragglers").of(row.rank, None);
        by_verdict(claim.value(Value::Ns(row.own_excess_ns.max(0))))
    });
    let balanced = by_verdict(Claim::new(Quantity::Balance, Relation::Is, "stragglers"));
    [rows, balanced].into_iter().chain(of_rank).collect()
}

/// Findings that say something about the recording, or are hints: they are no headline.
const NO_HEADLINES: [&FindingKind; 8] = [
    &clocks::UNKNOWN_CLOCK_ERROR,
    &clocks::COARSE_CLOCKS,
    &communication::POSSIBLE_COMMUNICATION,
    &first_steps::SLOW_FIRST_STEPS,
    &occupancy::LOW_OCCUPANCY,
    &overhead::PROFILING_OVERHEAD,
    &partly_recorded::PARTLY_RECORDED,
    &unmarked_steps::UNMARKED_STEPS,
];

/// Makes the first finding the headline if the ranks cannot be compared.
pub fn take_top_finding(analysis: &mut Analysis) {
    if analysis.headlines_finding() {
        let is_headline = |row: &&FindingRow| NO_HEADLINES.iter().all(|kind| kind.id != &*row.id);
        let first = analysis.tables.findings.iter().find(is_headline);
        let finding = first.map_or_else(|| without_finding(analysis), |f| f.title.to_string());
        analysis.verdict.sentence = format!("{finding}. No verdict on ranks: {}", analysis.verdict.sentence);
        analysis.verdict.title = if first.is_some() { "TOP FINDING".into() } else { "NO FINDING".into() };
        analysis.verdict.action = first.map(|finding| finding.suggestion.to_string());
        analysis.verdict.finding = first.map(|finding| finding.id.clone());
    }
}

/// How busy the device with the most idle time is, where no value exceeds a threshold.
fn without_finding(analysis: &Analysis) -> String {
    let devices = devices_of(analysis);
    let Some((key, time)) = devices.iter().max_by_key(|(_, time)| time.own_idle_ns()) else {
        return "no value exceeds a threshold".into();
    };
    let rates: Vec<f64> =
        analysis.tables.step_flops.iter().filter(|row| row.rank == key.0).filter_map(|row| row.mfu_pct).collect();
    let rate = median(rates).map_or(String::new(), |pct| format!(", at {pct:.0} % of its peak rate"));
    format!(
        "{} is busy for {:.0} % of a {} step{rate}, and no value exceeds a threshold",
        place_of(key.0, Some(key.1)),
        100.0 - time.idle_pct(),
        ns(time.wall_ns / time.steps.max(1))
    )
}

/// Where the steps are lost to launches, says what the hosts do meanwhile: the first finding about that is where, and what to do.
pub fn take_idle_cause(analysis: &mut Analysis) {
    let verdict = &analysis.verdict;
    if verdict.kind != VerdictKind::Lost || verdict.part != Some(LostPart::Dependencies) {
        return;
    }
    let is_cause = |row: &&FindingRow| IDLE_CAUSES.iter().any(|kind| kind.id == &*row.id);
    if let Some(cause) = analysis.tables.findings.iter().find(is_cause) {
        let verdict = &mut analysis.verdict;
        verdict.location = Some(format!("{}: {}", verdict.location.take().unwrap_or_default(), cause.title));
        verdict.action = Some(cause.suggestion.to_string());
        verdict.finding = Some(cause.id.clone());
    }
}

/// Findings about what makes devices idle.
const IDLE_CAUSES: [&FindingKind; 8] = [
    &idle_causes::GRAPHS_WITHOUT_ROWS,
    &idle_causes::FIRST_CALLS,
    &idle_causes::HOST_STALLS,
    &idle_causes::HOST_CODE,
    &input::INPUT,
    &input::LIKELY_INPUT,
    &sync_stalls::SYNC_STALLS,
    &launch_bound::LAUNCH_BOUND,
];

/// The rank with the longest exposed waits beyond the clocks' error, per step. Medians over steps miss waits for ranks that change from
/// step to step.
fn longest_wait_ns(tables: &Tables, facts: &Facts) -> Option<i64> {
    let all = Exposed::of(&tables.collective_waits, &tables.collective_instances);
    all.longest().map(|(_, ns)| ns / facts.steps.len().max(1) as i64)
}

/// The sentence that names the ranks which show the typical work; empty where most ranks do.
fn most_are_slow(usual: &[i32]) -> String {
    if usual.is_empty() {
        return String::new();
    }
    format!(" Most ranks that do this work are slow: {} show how long it takes.", ranks_named(usual))
}

/// The share of a step in parentheses; empty if no step is known.
pub(crate) fn share_of_step(delay_ns: i64, step_ns: Option<i64>) -> String {
    let share = step_ns.filter(|step| *step > 0).map(|step| 100.0 * delay_ns as f64 / step as f64);
    share.map_or(String::new(), |share| format!(" ({share:.0} % of a step)"))
}

/// The sentence for ranks that are balanced, but not all ranks of the job.
fn missing(facts: &Facts) -> String {
    let world = facts.world_size.unwrap_or(0).max(0) as usize;
    let other = match facts.has_chosen_ranks() {
        true => "A rank that was left out may be the slow one.",
        false => "A missing rank may be the slow one; its recording would decide.",
    };
    format!(
        "no rank slows the others in most steps, but only {} of {} were analyzed. {other}",
        facts.ranks.len(),
        plural(world, "rank"),
    )
}

/// Whether the tables hold enough to judge: two ranks, a collective, and a rank with a compared step.
fn judged(tables: &Tables, facts: &Facts) -> bool {
    facts.ranks.len() > 1 && !tables.collective_instances.is_empty() && tables.stragglers.iter().any(|s| s.steps > 0)
}

/// Whether a rank differs from the others by no more than ranks and steps usually do, or too few steps show it.
fn is_within_variation(row: &StragglerRow, t: &Thresholds) -> bool {
    let reaches = |z: Option<f64>, least: f64| z.is_some_and(|z| z >= least);
    // A standard error of 0 gives no z. That is certain over several steps only.
    let constant = row.z.is_none() && row.steps as usize >= t.min_steps;
    !constant && !reaches(row.z, t.min_z) && !reaches(row.evidence_z, t.min_range_z)
}

fn numbers(row: &StragglerRow) -> Verdict {
    let (stands_out, (z, persistence)) = (row.stands_on.is_some(), certainty_of(row));
    Verdict {
        rank: Some(row.rank),
        step_delay_ns: Some(row.step_delay_ns),
        step_delay_low_ns: row.step_delay_low_ns,
        step_delay_high_ns: row.step_delay_high_ns,
        doubt: row.doubt.as_deref().map(String::from),
        own_excess_ns: Some(row.own_excess_ns),
        own_excess_low_ns: row.own_excess_low_ns,
        own_excess_high_ns: row.own_excess_high_ns,
        reason: row.reason.clone(),
        evidence_range: row.evidence_range.as_deref().filter(|_| stands_out).map(String::from),
        evidence_excess_ns: row.evidence_excess_ns.filter(|_| stands_out),
        stands_on: row.stands_on.clone(),
        z,
        persistence,
        delayed_steps: row.delayed_steps,
        period_steps: row.period_steps,
        period_first_step: row.period_first_step,
        steps: row.steps,
        ..Verdict::default()
    }
}

/// The sentence about `row`; `rivals` are the other ranks with the same verdict, the largest delay first. The flag of `job` says
/// whether some steps have no collective.
fn sentence(v: &Verdict, row: &StragglerRow, rivals: &[&StragglerRow], job: (&Facts, bool), t: &Thresholds) -> String {
    let (facts, accumulates) = job;
    let rank = row.rank;
    let (why, sure) = (why(row, facts), certainty(row, t));
    let share = share_of_step(row.step_delay_ns, v.step_ns);
    // Steps without a collective have no delay of their own.
    let average = if accumulates { " on average" } else { "" };
    let delay = format!("{}{share}{average}", ns(row.step_delay_ns));
    match v.kind {
        VerdictKind::Cause => {
            let is_member =
                |other: &&&StragglerRow| row.slow_comm_id.is_some() && other.slow_comm_id == row.slow_comm_id;
            let (members, rivals): (Vec<_>, Vec<_>) = rivals.iter().copied().partition(|other| is_member(&other));
            let together = v.together_delay_ns.filter(|_| row.slow_comm_id.is_none());
            let others = format!("{}{}", named("Also slow", &rivals), without_all(v));
            match () {
                () if row.delayed_steps.is_some() => {
                    let (steps, delay) = (some_steps(row), ns(row.step_delay_ns));
                    format!(
                        "rank {rank} slows {steps}, by {delay}{share} on average over all steps: {why}. {sure}.{others}"
                    )
                }
                () if row.slow_comm_id.is_some() => {
                    let mut ranks: Vec<i32> = members.iter().map(|other| other.rank).chain([rank]).collect();
                    ranks.sort_unstable();
                    let ranks = ranks_named(&ranks);
                    format!("the collectives of {ranks} slow every step by {delay}: {why}. {sure}.{others}")
                }
                () if together.is_some_and(|ns| ns > HIDING * row.step_delay_ns) => {
                    format!("{} Rank {rank} alone slows it by {delay}: {why}. {sure}.", hidden(v))
                }
                () => format!("rank {rank} slows every step by {delay}: {why}. {sure}.{others}"),
            }
        }
        VerdictKind::Undecided => {
            let doubt = v.doubt.as_deref().unwrap_or("the evidence is not certain");
            let others = named("Other suspects", rivals);
            let slows = match row.persistence {
                Some(share) if share < 0.5 => format!("slow some of the steps, by {delay} on average over all"),
                _ => format!("slow every step by {delay}"),
            };
            format!("rank {rank} may {slows}: {why}. Undecided, because {doubt}. {sure}.{others}")
        }
        _ => {
            let usual = row.z.map_or(String::new(), |z| format!(", {} the usual variation", variation(z, t)));
            format!(
                "no rank slows the others in most steps. The largest difference is that of rank {rank}: {} more own work \
                 per step{usual}.",
                ns(row.own_excess_ns)
            )
        }
    }
}

/// The sentence about causes that hide each other.
fn hidden(v: &Verdict) -> String {
    let delay_ns = v.together_delay_ns.unwrap_or(0);
    let mut causes = v.causes.clone();
    causes.sort_unstable();
    format!(
        "{} together slow every step by {}{}, and hide each other.",
        ranks_named(&causes),
        ns(delay_ns),
        share_of_step(delay_ns, v.step_ns)
    )
}

/// The delay of several causes together in a sentence: they may hide each other, or delay different parts of a step.
fn without_all(v: &Verdict) -> String {
    let sentence = |ns_per_step| format!(" Without all of them, a step would be {} shorter.", ns(ns_per_step));
    v.together_delay_ns.map_or(String::new(), sentence)
}

/// The steps in which a rank is late, if it is late in some only: `8 of 40 steps (every 5th from step 0)`.
fn some_steps(row: &StragglerRow) -> String {
    let period = row.period_steps.zip(row.period_first_step);
    let period = period.map_or(String::new(), |(steps, first)| format!(" ({})", every(steps, first)));
    format!("{} of {}{period}", row.delayed_steps.unwrap_or(0), plural(row.steps.max(0) as usize, "step"))
}

/// How certain it is that the rank differs from the others.
fn certainty(row: &StragglerRow, t: &Thresholds) -> String {
    let by_range = stands_on_range(row);
    let (z, persistence) = certainty_of(row);
    let steps = plural(row.steps.max(0) as usize, "step");
    let by_transfers = stands_on_transfers(row);
    let what = match () {
        () if by_range => "That range takes longer",
        () if by_transfers => "They take longer",
        () => "Its own work takes longer",
    };
    let mut text = match persistence {
        Some(share) => format!("{what} in {:.0} of {steps}", share * f64::from(row.steps)),
        None => format!("Measured over {steps}"),
    };
    if let Some(z) = z {
        text.push_str(&format!(", {} the usual variation ({})", variation(z, t), spoken_z(z)));
    }
    if let Some(z) = row.evidence_z.filter(|z| !by_range && *z >= t.min_range_z && row.stands_on.is_some()) {
        text.push_str(&format!(", and the named part far outside ({})", spoken_z(z)));
    }
    // This interval covers all own work. It is omitted where the verdict stands on one range, because it does not show
    // how certain that range is.
    if let (Some(low), Some(high), false) = (row.own_excess_low_ns, row.own_excess_high_ns, by_range || by_transfers) {
        text.push_str(&format!(", by {} to {} (95 %)", ns(low), ns(high)));
    }
    if let (Some(low), Some(high)) = (row.step_delay_low_ns, row.step_delay_high_ns) {
        text.push_str(&format!("; the delay is {} to {} (95 %)", ns(low), ns(high)));
    }
    text
}

fn nothing(tables: &Tables, facts: &Facts) -> String {
    if !facts.nothing_because.is_empty() {
        return format!("nothing was recorded: {}.", facts.nothing_because.join("; "));
    }
    if facts.ranks.len() < 2 {
        return match facts.world_size {
            Some(world) if world > 1 => {
                format!("only one of {world} ranks was recorded, so ranks cannot be compared. Record the others too.")
            }
            _ => "only one rank was recorded, so there is no other rank to compare it with.".into(),
        };
    }
    if tables.collective_instances.is_empty() {
        if tables.omissions.iter().any(|row| &*row.what == align::matching::WITHOUT_TIMES) {
            return "no collective was recorded with its times: waits between ranks are unknown.".into();
        }
        let none = match &facts.selection {
            Some(selection) => format!("no collective lies in {selection}"),
            None => "no collective was recorded".into(),
        };
        return format!("{none}: waits between ranks are unknown.");
    }
    if each_rank_is_a_stage(tables) {
        return "each rank is a stage of the pipeline by itself: no other rank does its work, so none can be called slow.".into();
    }
    "no recorded step has a collective of several ranks: stragglers cannot be judged.".into()
}

#[cfg(test)]
mod tests;
