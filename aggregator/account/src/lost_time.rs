//! The account of lost time: where the time of the steps went, in parts that sum to it, and what took it.
//!
//! With o the recorded lengths, m the typical ones of a step, M the typical ones over steps ([`lengths`](crate::lengths)), and T the
//! length of the steps by replay:
//!
//! | part | is |
//! |---|---|
//! | places | T(o) − T(m): each line by its Shapley share, the rest is variation |
//! | longer steps | T(m) − T(M) |
//! | transfer | T(M) − T(M with transfers of no length) |
//! | work | the work of the busiest rank, by M |
//! | dependencies | all else: launches, bubbles, work of other ranks that the busiest one waits for |
//!
//! A part is a difference of two replays, so it may be negative. The parts of a step sum to its length, to the ns.

use std::collections::BTreeMap;

use measure::graph::Condensed;
use measure::own_time::OwnTime;
use rayon::prelude::*;
use topology::join::Join;
use topology::{ClockError, ToGlobal};

use crate::graph::SpanKind;
use crate::lengths::Lengths;
use crate::lines::{Finder, FoundLine};
use crate::occasional::Period;
use crate::patterns::Pattern;
use crate::places::{Places, Units};
use crate::prices::{Cost, Prices};
use crate::scaled::{Scaled, inner};

/// What a part of the time is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Part {
    /// Work of the busiest rank.
    Work,
    /// Launches, bubbles, and work that waits for other ranks.
    Dependencies,
    /// Transfers that nothing hides.
    Transfer,
    /// Steps that take longer on all ranks.
    LongerSteps,
    /// A group of lines, by its position.
    Group(usize),
    /// What ranks lose to each other without that one stands out.
    Variation,
}

/// A line: a rank or a communicator that takes time.
#[derive(Clone, Debug, PartialEq)]
pub struct Line {
    /// Positions of ranks; of a communicator, its members.
    pub ranks: Vec<usize>,
    /// The communicator, if its transfers take long.
    pub comm_id: Option<i64>,
    /// What mending it alone saves of a step; `None` if too many lines hide each other to replay each.
    pub alone: Option<Cost>,
}

/// Lines of the same role and pattern.
#[derive(Clone, Debug, PartialEq)]
pub struct Group {
    pub lines: Vec<Line>,
    /// The numbers of the steps in which they cost; `None`: all.
    pub steps: Option<Vec<i32>>,
    /// Its period, if these steps have one.
    pub period: Option<Period>,
    /// In words of the table.
    pub pattern: &'static str,
    /// Whether transfers, or leaving collectives late, take the time.
    pub by_transfers: bool,
    /// Whether they stand out by enough for so few steps.
    pub is_certain: bool,
    /// What mending all of them saves of a step.
    pub together: Cost,
}

/// The account of a run.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct LostTime {
    /// The numbers of the steps that all ranks have, ascending.
    pub steps: Vec<i32>,
    /// The parts of each step. They sum to its length.
    pub parts: Vec<(Part, Vec<i64>)>,
    pub groups: Vec<Group>,
    /// What mending all named groups saves of a step, if they have several lines.
    pub named: Option<Cost>,
    /// For each rank, what a step would save if all of it took as long as is typical; `None` of ranks that are hardly above that.
    pub alone: Vec<Option<Cost>>,
    /// How much of a step begins later than anything that the graph knows explains.
    pub unexplained_ns: i64,
}

impl LostTime {
    /// Whether a group takes so much of a step, for certain, that its ranks are named.
    pub fn is_named(&self, group: &Group) -> bool {
        group.is_certain && self.is_much(group.together.low_ns)
    }

    /// Whether a group may take so much.
    pub fn is_suspected(&self, group: &Group) -> bool {
        !self.is_named(group) && self.is_much(group.together.high_ns)
    }

    /// Whether ranks lose much to each other of which none stands out.
    pub fn varies(&self) -> bool {
        let variation = self.parts.iter().filter(|(part, _)| *part == Part::Variation);
        let sum_ns: i64 = variation.flat_map(|(_, by_step)| by_step).sum();
        100.0 * sum_ns as f64 >= VARIES_PCT * (self.step_ns() * self.steps.len() as i64) as f64
    }

    /// Whether a time per step is worth a name.
    pub fn is_much(&self, ns: i64) -> bool {
        100.0 * ns as f64 >= NAMED_PCT * self.step_ns() as f64
    }

    /// The mean length of a step.
    pub fn step_ns(&self) -> i64 {
        let sum: i64 = self.parts.iter().flat_map(|(_, by_step)| by_step).sum();
        sum / self.steps.len().max(1) as i64
    }
}

/// A part that takes this share of a step, in percent, is worth a name.
pub(crate) const NAMED_PCT: f64 = 2.0;
/// If ranks vary by this share of a step, in percent, one that is late in most steps may still cost nothing.
const VARIES_PCT: f64 = 25.0;
/// A line is dropped if the run is shorter by less than this share of its steps, alone and beside the others.
const LEAST_OF_LINE: f64 = 0.005;
/// Of the lines of a group, and of all ranks, so many are mended alone.
const MOST_ALONE: usize = 64;

/// The account of a run, with the graph that it was made by.
#[derive(Debug)]
pub(crate) struct Accounted {
    pub(crate) run: Scaled,
    pub(crate) lengths: Lengths,
    pub(crate) lost_time: LostTime,
}

impl Accounted {
    /// `None` if the graph of a rank is not there, or ranks have no step in common, or collectives contradict the order of work.
    /// In fewer than `min_steps` steps, nothing is certain.
    pub(crate) fn of(
        parts: &[&OwnTime],
        join: &Join,
        clocks: (ToGlobal<'_>, ClockError<'_>),
        min_steps: usize,
    ) -> Option<Self> {
        let ranks: Vec<&Condensed> = parts.iter().map(|part| part.graph.as_deref()).collect::<Option<_>>()?;
        let is_joined = join.instances.iter().any(|instance| instance.arrivals.len() > 1);
        let run = Scaled::of(&ranks, parts, join, clocks).filter(|_| is_joined)?;
        let places = Places::of(&run.graph, join, &ranks);
        let lengths = Lengths::of(&run.graph, &places);
        let mut lost_time = lost_time(&run, &lengths, &places, join, ranks.len());
        for group in lost_time.groups.iter_mut().filter(|_| run.steps.len() < min_steps) {
            group.is_certain = false;
        }
        Some(Self { run, lengths, lost_time })
    }
}

fn lost_time(run: &Scaled, lengths: &Lengths, places: &Places, join: &Join, ranks: usize) -> LostTime {
    let steps: BTreeMap<i32, usize> = run.steps.iter().copied().zip(0..).collect();
    let recorded_ns = run.lengths_ns(&lengths.recorded_ns);
    let steps_ns: i64 = recorded_ns.iter().sum();
    let found = Finder::new(&run.graph, places, lengths, (&steps, steps_ns)).lines();
    let lines = pruned(run, lengths, found, steps_ns);
    let groups = groups(&lines);
    let typical_ns = run.lengths_ns(&lengths.typical_ns);
    let steady_ns = run.lengths_ns(&lengths.steady_ns);
    let spans = lengths.steady_ns.iter().zip(&run.graph.spans);
    let without: Vec<i64> = spans.map(|(ns, span)| if span.kind == SpanKind::Transfer { 0 } else { *ns }).collect();
    let bare_ns = run.lengths_ns(&without);
    let work_ns: Vec<i64> = busiest_ns(run, lengths, places, &steps, ranks)
        .into_iter()
        .zip(&bare_ns)
        .map(|(work, bare)| work.min(*bare))
        .collect();
    let mut prices = Prices::new(run, lengths, &lines);
    let shares_ns = prices.shares_ns(&groups);
    let less = |a: &[i64], b: &[i64]| a.iter().zip(b).map(|(a, b)| a - b).collect::<Vec<i64>>();
    let mut variation_ns = less(&recorded_ns, &typical_ns);
    shares_ns.iter().for_each(|share| variation_ns = less(&variation_ns, share));
    let mut parts = vec![
        (Part::Work, work_ns.clone()),
        (Part::Dependencies, less(&bare_ns, &work_ns)),
        (Part::Transfer, less(&steady_ns, &bare_ns)),
        (Part::LongerSteps, less(&typical_ns, &steady_ns)),
    ];
    parts.extend(shares_ns.into_iter().enumerate().map(|(at, share)| (Part::Group(at), share)));
    parts.push((Part::Variation, variation_ns));
    let unexplained_ns = run.unexplained_ns();
    let alone = alone(run, lengths, ranks, unexplained_ns);
    let mut account =
        LostTime { steps: run.steps.clone(), parts, groups: Vec::new(), named: None, alone, unexplained_ns };
    let step_ns = account.step_ns();
    let unexplained = unexplained_ns as f64 / step_ns.max(1) as f64;
    let mut cost = |set: &[usize]| {
        let saved_ns = prices.saved_ns(set);
        let is = |is_pattern: fn(&Pattern) -> bool| set.iter().all(|at| is_pattern(&lines[*at].what.pattern));
        let is_counted = is(|pattern| matches!(pattern, Pattern::Single(_)));
        // What is not the same in all steps may be in the first or the last one.
        let steps = if is(|pattern| *pattern == Pattern::Every) { inner(&saved_ns) } else { &saved_ns };
        Cost::of(steps, is_counted, step_ns, unexplained)
    };
    for group in &groups {
        let line = |(nth, at): (usize, &usize)| {
            let (ranks, comm_id) = units(&lines[*at], places, join);
            Line { ranks, comm_id, alone: (nth < MOST_ALONE).then(|| cost(&[*at])) }
        };
        let of_lines: Vec<Line> = group.iter().enumerate().map(line).collect();
        account.groups.push(described(group, &lines, run, of_lines, cost(group)));
    }
    let named = groups.iter().zip(&account.groups).filter(|(_, group)| account.is_much(group.together.low_ns));
    let mut named: Vec<usize> = named.flat_map(|(lines, _)| lines.iter().copied()).collect();
    named.sort_unstable();
    if named.len() > 1 {
        account.named = Some(cost(&named));
    }
    account
}

/// What a step would save if each of the ranks that are most above what is typical took as long as that.
fn alone(run: &Scaled, lengths: &Lengths, ranks: usize, unexplained_ns: i64) -> Vec<Option<Cost>> {
    let mut above_ns = vec![0_i64; ranks];
    let spans = || run.graph.spans.iter().zip(&lengths.recorded_ns).zip(&lengths.typical_ns);
    for ((span, recorded_ns), typical_ns) in spans() {
        if let Some(above_ns) = above_ns.get_mut(span.rank as usize) {
            *above_ns += recorded_ns - typical_ns;
        }
    }
    let mut most: Vec<usize> = (0..ranks).filter(|rank| above_ns[*rank] > 0).collect();
    most.sort_by_key(|rank| (std::cmp::Reverse(above_ns[*rank]), *rank));
    most.truncate(MOST_ALONE);
    let recorded_ns = run.lengths_ns(&lengths.recorded_ns);
    let step_ns = recorded_ns.iter().sum::<i64>() / recorded_ns.len().max(1) as i64;
    let unexplained = unexplained_ns as f64 / step_ns.max(1) as f64;
    let of_rank = |rank: &usize| {
        let mended =
            spans().map(|((span, recorded), typical)| if span.rank as usize == *rank { *typical } else { *recorded });
        let lengths_ns = run.lengths_ns(&mended.collect::<Vec<i64>>());
        let saved_ns: Vec<i64> = recorded_ns.iter().zip(lengths_ns).map(|(before, after)| before - after).collect();
        (*rank, Cost::of(inner(&saved_ns), false, step_ns, unexplained))
    };
    let mut alone = vec![None; ranks];
    let costs: Vec<(usize, Cost)> = most.par_iter().map(of_rank).collect();
    costs.into_iter().for_each(|(rank, cost)| alone[rank] = Some(cost));
    alone
}

/// Of a few lines, those without which the others save less. A rank may only seem late where it waits for another one.
fn pruned(run: &Scaled, lengths: &Lengths, mut lines: Vec<FoundLine>, steps_ns: i64) -> Vec<FoundLine> {
    if lines.len() < 2 || lines.len() > MOST_ALONE {
        return lines;
    }
    let end_ns = |of: &dyn Fn(usize) -> bool| {
        let mut spans_ns = lengths.recorded_ns.clone();
        let spans = lines.iter().enumerate().filter(|(at, _)| of(*at)).flat_map(|(_, line)| &line.spans);
        spans.for_each(|span| spans_ns[*span as usize] = lengths.typical_ns[*span as usize]);
        run.graph.replay(&spans_ns, &mut Vec::new())
    };
    let least_ns = (LEAST_OF_LINE * steps_ns as f64).round() as i64;
    let mut is_kept = vec![true; lines.len()];
    let all_ns = end_ns(&|_| true);
    // What was found last is tried first.
    for at in (0..lines.len()).rev() {
        let alone_ns = run.graph.end_ns - end_ns(&|line| line == at);
        let more_ns = end_ns(&|line| is_kept[line] && line != at) - all_ns;
        is_kept[at] = alone_ns >= least_ns || more_ns >= least_ns;
    }
    let mut is_kept = is_kept.into_iter();
    lines.retain(|_| is_kept.next().unwrap_or(true));
    lines
}

fn described(group: &[usize], lines: &[FoundLine], run: &Scaled, of_lines: Vec<Line>, together: Cost) -> Group {
    let first = &lines[group[0]];
    let mut at: Vec<usize> = group.iter().flat_map(|line| lines[*line].what.steps.iter().copied()).collect();
    at.sort_unstable();
    at.dedup();
    let pattern = &first.what.pattern;
    let is_every = matches!(pattern, Pattern::Every | Pattern::Ramp(0));
    let period = match pattern {
        Pattern::Single(Some(steps)) => Some(Period { steps: *steps as i32, first: run.steps[at[0]] }),
        _ => None,
    };
    Group {
        lines: of_lines,
        steps: (!is_every).then(|| at.iter().map(|step| run.steps[*step]).collect()),
        period,
        pattern: pattern.word(),
        by_transfers: group.iter().all(|line| matches!(lines[*line].kind, SpanKind::Transfer | SpanKind::Leaving)),
        is_certain: group.iter().all(|line| lines[*line].what.is_certain),
        together,
    }
}

/// The lines of each role with each pattern.
fn groups(lines: &[FoundLine]) -> Vec<Vec<usize>> {
    let mut groups: Vec<Vec<usize>> = Vec::new();
    for (at, line) in lines.iter().enumerate() {
        let is_alike = |group: &&mut Vec<usize>| {
            let first = &lines[group[0]];
            first.role == line.role && first.what.pattern.word() == line.what.pattern.word()
        };
        match groups.iter_mut().find(is_alike) {
            Some(group) => group.push(at),
            None => groups.push(vec![at]),
        }
    }
    groups
}

/// The ranks of a line, and its communicator.
fn units(line: &FoundLine, places: &Places, join: &Join) -> (Vec<usize>, Option<i64>) {
    match &places.roles[line.role as usize] {
        Units::Ranks(ranks) => (vec![ranks[line.what.unit]], None),
        Units::Communicators(comms) => {
            let comm_id = comms[line.what.unit];
            let mut of_comm = join.instances.iter().filter(|instance| instance.comm_id == comm_id);
            let ranks =
                of_comm.next().map_or(Vec::new(), |instance| instance.arrivals.iter().map(|a| a.rank).collect());
            (ranks, Some(comm_id))
        }
    }
}

/// The typical work of the busiest rank in each step: of its devices, without devices of its host.
fn busiest_ns(
    run: &Scaled,
    lengths: &Lengths,
    places: &Places,
    steps: &BTreeMap<i32, usize>,
    ranks: usize,
) -> Vec<i64> {
    let has_device = run.graph.spans.iter().any(|span| span.kind == SpanKind::Device && span.len_ns > 0);
    let kind = if has_device { SpanKind::Device } else { SpanKind::Host };
    let mut work_ns = vec![vec![0; ranks]; steps.len()];
    for ((span, (slot, _)), ns) in run.graph.spans.iter().zip(&places.of_span).zip(&lengths.steady_ns) {
        let step = places.slots.get(*slot as usize).and_then(|slot| steps.get(&slot.step));
        if let Some(step) = step.filter(|_| span.kind == kind) {
            work_ns[*step][span.rank as usize] += ns;
        }
    }
    work_ns.into_iter().map(|of_step| of_step.into_iter().max().unwrap_or(0)).collect()
}
