//! Facts about ranks that findings need and no table has. They are collected before the ranks are dropped.

use std::collections::{BTreeMap, BTreeSet};

use trace::name_rules::is_work_of_profiler;
use trace::{DeviceRow, RecurringRangeRow, StepBreakdownRow, Text};

use crate::finding::share;
use measure::communication::{CommunicationEvidence, Suspect};
use measure::overhead::StepOverhead;
use measure::part::RankPart;

/// The data of the ranks that findings need and no table has. The ranks are dropped before the tables are complete.
#[derive(Debug, Default)]
pub struct OfRanks {
    /// Memory of each device in bytes, by rank and device.
    pub(crate) memory_bytes: BTreeMap<(i32, i64), i64>,
    /// Kernels that may communicate.
    pub(crate) suspects: Suspects,
    /// The cost of profiling, if it matters.
    pub(crate) overhead: Option<Overhead>,
    /// Whether a rank marks steps.
    pub(crate) have_marked_steps: bool,
    /// Regular expressions of ranges that may be the steps, the longest ranges first.
    pub(crate) may_be_steps: Vec<String>,
}

impl OfRanks {
    /// `breakdown` has the steps of all ranks, in the order of ranks.
    pub fn of(parts: &[RankPart], breakdown: &[StepBreakdownRow]) -> Self {
        let device = |d: &DeviceRow| Some(((d.rank, d.device_id), d.memory_bytes?));
        Self {
            memory_bytes: parts.iter().flat_map(|part| &part.devices).filter_map(device).collect(),
            suspects: Suspects::of(parts.iter().map(|part| (part.outline.info.rank, &part.communication))),
            overhead: Overhead::of(parts, breakdown),
            have_marked_steps: parts.iter().any(|part| part.has_marked_steps),
            may_be_steps: may_be_steps(parts),
        }
    }
}

/// Ranges without marked steps that recur equally often on all ranks, the longest first.
fn may_be_steps(parts: &[RankPart]) -> Vec<String> {
    let Some((first, others)) = parts.split_first() else { return Vec::new() };
    let recurs = |row: &&RecurringRangeRow| {
        let same = |other: &RecurringRangeRow| (&other.pattern, other.calls) == (&row.pattern, row.calls);
        others.iter().all(|part| part.recurring.iter().any(same))
    };
    first.recurring.iter().filter(recurs).map(|row| row.pattern.to_string()).collect()
}

/// The kernels of all ranks that may communicate.
#[derive(Debug, Default)]
pub(crate) struct Suspects {
    pub(crate) by_name: BTreeMap<Text, Suspect>,
    pub(crate) on_ranks: Vec<i32>,
}

impl Suspects {
    pub(crate) fn of<'a>(ranks: impl Iterator<Item = (i32, &'a CommunicationEvidence)>) -> Self {
        let Self { mut by_name, mut on_ranks } = Self::default();
        for (rank, (name, suspect)) in ranks.flat_map(|(rank, found)| found.suspects.iter().map(move |s| (rank, s))) {
            on_ranks.push(rank);
            let sum: &mut Suspect = by_name.entry(name.clone()).or_default();
            sum.total_ns = sum.total_ns.saturating_add(suspect.total_ns);
            sum.overlap_ns = sum.overlap_ns.saturating_add(suspect.overlap_ns);
            sum.device_ns = sum.device_ns.saturating_add(suspect.device_ns);
        }
        on_ranks.dedup();
        Self { by_name, on_ranks }
    }
}

/// Smallest share of a step that matters, in percent: a smaller cost has no finding.
pub(crate) const LEAST_PCT: f64 = 1.0;

/// The overhead of a rank in one step.
struct Cost<'a> {
    rank: i32,
    step: i32,
    wall_ns: i64,
    overhead: &'a StepOverhead,
}

impl Cost<'_> {
    fn pct(&self) -> f64 {
        share(&(self.overhead.total_ns, self.wall_ns))
    }
}

/// The overhead in the step where its share is largest, with the steps and the number of ranks where it matters.
#[derive(Debug)]
pub(crate) struct Overhead {
    pub(crate) rank: i32,
    pub(crate) step: i32,
    pub(crate) wall_ns: i64,
    pub(crate) of_step: StepOverhead,
    /// The part of it in idle time of that step.
    pub(crate) idle_ns: i64,
    /// The profiler's own work in a step of that rank.
    pub(crate) own_ns: i64,
    /// The steps of that rank in which it matters.
    pub(crate) steps: Vec<i32>,
    /// The number of ranks on which it matters, and of all ranks.
    pub(crate) on_ranks: usize,
    pub(crate) of_ranks: usize,
}

impl Overhead {
    /// `None` if it takes too little of every step. `breakdown` has the steps of all ranks, in the order of ranks.
    pub(crate) fn of(parts: &[RankPart], breakdown: &[StepBreakdownRow]) -> Option<Self> {
        let costs: Vec<Cost<'_>> = parts.iter().flat_map(|part| costs_of(part, breakdown)).collect();
        let over: Vec<&Cost<'_>> = costs.iter().filter(|cost| cost.pct() >= LEAST_PCT).collect();
        let worst = over.iter().copied().max_by(|a, b| a.pct().total_cmp(&b.pct()))?;
        let of_rank = |cost: &&&Cost<'_>| cost.rank == worst.rank;
        let mut on_ranks: Vec<i32> = over.iter().map(|cost| cost.rank).collect();
        on_ranks.dedup();
        let part = parts.iter().find(|part| part.outline.info.rank == worst.rank)?;
        Some(Self {
            rank: worst.rank,
            step: worst.step,
            wall_ns: worst.wall_ns,
            of_step: worst.overhead.clone(),
            idle_ns: idle_part(steps_of(part, breakdown), worst.step),
            own_ns: own_ns_per_step(part, breakdown),
            steps: over.iter().filter(of_rank).map(|cost| cost.step).collect(),
            on_ranks: on_ranks.len(),
            of_ranks: parts.len(),
        })
    }

    pub(crate) fn pct(&self) -> f64 {
        share(&(self.of_step.total_ns, self.wall_ns))
    }
}

/// The overhead in each step of a rank whose length is known.
fn costs_of<'a>(part: &'a RankPart, breakdown: &[StepBreakdownRow]) -> impl Iterator<Item = Cost<'a>> + use<'a> {
    let mut walls: BTreeMap<i32, i64> = BTreeMap::new();
    for row in steps_of(part, breakdown) {
        let wall = walls.entry(row.step.unwrap_or(-1)).or_default();
        *wall = row.wall_ns.max(*wall);
    }
    let rank = part.outline.info.rank;
    part.overhead.iter().filter_map(move |(step, overhead)| {
        let wall_ns = walls.get(step).copied().filter(|wall| *wall > 0)?;
        Some(Cost { rank, step: *step, wall_ns, overhead })
    })
}

fn steps_of<'a>(part: &RankPart, breakdown: &'a [StepBreakdownRow]) -> &'a [StepBreakdownRow] {
    let rank = part.outline.info.rank;
    let from = breakdown.partition_point(|row| row.rank < rank);
    &breakdown[from..from + breakdown[from..].partition_point(|row| row.rank == rank)]
}

/// The largest idle time of a device in a step that overhead covers.
fn idle_part(rows: &[StepBreakdownRow], step: i32) -> i64 {
    let of_step = |row: &&StepBreakdownRow| row.step == Some(step);
    rows.iter().filter(of_step).map(|row| row.overhead_ns).max().unwrap_or(0)
}

/// The profiler's own work in a step of the rank: the mean over its steps.
fn own_ns_per_step(part: &RankPart, breakdown: &[StepBreakdownRow]) -> i64 {
    let names = part.overhead.values().flat_map(|step| &step.by_name);
    let own = names.filter(|(name, _)| is_work_of_profiler(name)).map(|(_, (_, ns))| *ns).fold(0, i64::saturating_add);
    let steps = steps_of(part, breakdown).iter().filter_map(|row| row.step).filter(|step| *step >= 0);
    own / (steps.collect::<BTreeSet<i32>>().len().max(1) as i64)
}
