//! The account of lost time: where the time of the steps went, in parts that sum to it, and what took it.
//!
//! With o the recorded lengths, m the typical ones of a step, M the typical ones over steps ([`lengths`](crate::lengths)), and T the
//! length of the steps by replay:
//!
//! | part | is |
//! |---|---|
//! | places | T(o) − T(m): each line by its Shapley share, the rest is variation |
//! | longer steps | T(m) − T(M) |
//! | stages | T(M) − T(N): N is M with the same work in each stage of a pipeline |
//! | transfer | T(N) − T(N with transfers of no length) |
//! | work | the work of the busiest rank, by N |
//! | dependencies | all else: launches, bubbles, work of other ranks that the busiest one waits for |
//!
//! A part is a difference of two replays, so it may be negative. The parts of a step sum to its length, to the ns.

use std::collections::BTreeMap;
use std::sync::Arc;

use measure::graph::Condensed;
use measure::own_time::OwnTime;
use model::ffi::give_back_freed_memory;
use model::stats::{at_least, student_quantile};
use rayon::prelude::*;
use topology::join::Join;
use topology::{ClockError, ToGlobal};
use trace::Op;

use crate::foreseen::Foreseen;
use crate::graph::{Span, SpanKind};
use crate::lengths::Lengths;
use crate::lines::{Finder, FoundLine, groups};
use crate::patterns::{Pattern, SHAPED_STEPS};
use crate::places::{Places, Units};
use crate::prices::{Cost, Prices};
use crate::scaled::{Scaled, Unaccounted, inner};
use crate::work::Work;

/// The kind of a part of the time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Part {
    /// Work of the busiest rank.
    Work,
    /// Launches, bubbles, and work that waits for other ranks.
    Dependencies,
    /// Transfers that nothing hides.
    Transfer,
    /// Stages of a pipeline that work longer than others.
    Stages,
    /// Steps that take longer on all ranks.
    LongerSteps,
    /// A group of lines, by its position.
    Group(usize),
    /// The time that ranks lose to each other while none of them stands out.
    Variation,
}

/// Steps that come every so often.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Period {
    /// The number of steps from one to the next.
    pub steps: i32,
    /// The number of the first one.
    pub first: i32,
}

/// A line: a rank or a communicator that takes time.
#[derive(Clone, Debug, PartialEq)]
pub struct Line {
    /// Positions of ranks; of a communicator, its members.
    pub ranks: Vec<usize>,
    /// The communicator, if its transfers take long.
    pub comm_id: Option<i64>,
    /// By how much a step is shorter if this line alone is mended; `None` if too many lines hide each other to replay each.
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
    /// By how much a step is shorter if all of them are mended.
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
    /// By how much a step is shorter if all named groups are mended, if they have several lines.
    pub named: Option<Cost>,
    /// For each rank with several lines that are named, or suspected if none is, what mending these saves of a step.
    pub of_lines: BTreeMap<usize, Cost>,
    /// For each rank, what a step would save if its own work took as long as is typical; `None` of ranks that are hardly above that.
    pub alone: Vec<Option<Cost>>,
    /// For each rank, the recorded length of the steps over that length; 1 of ranks that are hardly above what is typical.
    pub slowdown: Vec<f64>,
    /// How much of a step begins later than anything that the graph knows explains.
    pub unexplained_ns: i64,
    /// A half of the steps by the lengths of the other half.
    pub foreseen: Option<Foreseen>,
    /// By how much a step is shorter if each all-gather is called with the one before it; `None` without such.
    pub early_gathers: Option<Cost>,
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
/// A line is dropped if the run is shorter by less than this share of its steps, alone and beside the others.
const LEAST_OF_LINE: f64 = 0.01;
/// A rank is mended alone if it is above what is typical by this share of the run.
const LEAST_ALONE: f64 = 0.005;
/// A communicator is as slow as another one if it is above what is typical by this share of what that one is.
const AS_SLOW: f64 = 0.5;
/// If ranks vary by this share of a step, one that is late in most steps may still cost nothing.
const VARIES: f64 = 0.25;
/// Ranks save the most by chance with at most this probability, and so many times as much as the next one.
const SAVES_MOST_BY_CHANCE: f64 = 0.0035;
const CLEARLY: f64 = 2.0;
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
    /// Whether no rank is named although ranks lose no more to each other by turns than usual. Rows may not say what a host waited for,
    /// and make it busy: then only the collectives show who was late.
    pub(crate) fn may_miss_a_rank(&self) -> bool {
        let account = &self.lost_time;
        let is_found = |group: &Group| account.is_named(group) || account.is_suspected(group);
        let variation = account.parts.iter().filter(|(part, _)| *part == Part::Variation);
        let variation_ns: i64 = variation.flat_map(|(_, by_step)| by_step).sum();
        let steps_ns = account.step_ns() * account.steps.len() as i64;
        !account.groups.iter().any(is_found) && (variation_ns as f64) < VARIES * steps_ns as f64
    }

    /// Whether ranks are named in every step, and only such as stand out by themselves.
    pub(crate) fn names_only(&self, stands_out: impl Fn(usize) -> bool) -> bool {
        let named =
            self.lost_time.groups.iter().filter(|group| self.lost_time.is_named(group) && group.steps.is_none());
        let mut ranks = named.flat_map(|group| &group.lines).flat_map(|line| &line.ranks).peekable();
        ranks.peek().is_some() && ranks.all(|rank| stands_out(*rank))
    }

    /// `is_shown` says of each rank whether one range of its host shows in every step that it is late. In fewer than `min_steps` steps,
    /// nothing else is certain. The graphs of the ranks are dropped as soon as the graph of the run holds their work: together they
    /// take most of the memory of a job of many ranks.
    pub(crate) fn of(
        ranks: Option<Vec<Arc<Condensed>>>,
        parts: &[&OwnTime],
        join: &Join,
        clocks: (ToGlobal<'_>, ClockError<'_>),
        (is_shown, min_steps): (&[bool], usize),
    ) -> Result<Self, Unaccounted> {
        let is_joined = join.instances.iter().any(|instance| instance.arrivals.len() > 1);
        let ranks = ranks.filter(|_| is_joined).ok_or(Unaccounted::NotJoined)?;
        let (run, places) = {
            let of_ranks: Vec<&Condensed> = ranks.iter().map(|rank| &**rank).collect();
            let run = Scaled::of(&of_ranks, parts, join, clocks)?;
            let places = Places::of(&run.graph, join, &of_ranks);
            (run, places)
        };
        drop(ranks);
        give_back_freed_memory();
        let lengths = Lengths::of(&run.graph, &places);
        let lost_time = lost_time(&run, &lengths, &places, (join, is_shown, min_steps));
        Ok(Self { run, lengths, lost_time })
    }
}

fn lost_time(
    run: &Scaled,
    lengths: &Lengths,
    places: &Places,
    (join, is_shown, min_steps): (&Join, &[bool], usize),
) -> LostTime {
    let ranks = is_shown.len();
    let steps: BTreeMap<i32, usize> = run.steps.iter().copied().zip(0..).collect();
    let recorded_ns = run.lengths_ns(&lengths.recorded_ns);
    let steps_ns: i64 = recorded_ns.iter().sum();
    let alone = Alone::of(run, lengths, ranks, steps_ns);
    let save_most = alone.save_most(steps_ns);
    let is_shown: Vec<bool> = (0..ranks).map(|rank| is_shown[rank] || save_most.contains(&rank)).collect();
    let mut found = Finder::new(&run.graph, places, lengths, (&steps, steps_ns), &is_shown).lines();
    if found.is_empty() {
        let of_rank = |rank| FoundLine::of_rank(&run.graph, places, lengths, (rank, run.steps.len()));
        found.extend(alone.suspect(steps_ns).and_then(of_rank));
    }
    let mut lines = pruned(run, lengths, found, steps_ns);
    let slow = SlowTransfers::of(lengths, places, join);
    lines.iter_mut().for_each(|line| complete(line, (run, min_steps), places, &slow));
    let groups = groups(&lines);
    let typical_ns = run.lengths_ns(&lengths.typical_ns);
    let steady_ns = run.lengths_ns(&lengths.steady_ns);
    let work_of = |spans_ns: &[i64]| Work::of(run, spans_ns, ranks);
    let stages = &join.same_work.stages;
    let has_stages = stages.windows(2).any(|pair| pair[0] != pair[1]);
    let even = match has_stages {
        true => work_of(&lengths.steady_ns).spread_over_stages(&run.graph, &lengths.steady_ns, stages),
        false => lengths.steady_ns.clone(),
    };
    let even_ns = run.lengths_ns(&even);
    let spans = even.iter().zip(&run.graph.spans);
    let without: Vec<i64> = spans.map(|(ns, span)| if span.kind == SpanKind::Transfer { 0 } else { *ns }).collect();
    let bare_ns = run.lengths_ns(&without);
    let work_ns = work_of(&even).busiest_ns();
    let work_ns: Vec<i64> = work_ns.into_iter().zip(&bare_ns).map(|(work, bare)| work.min(*bare)).collect();
    let mut prices = Prices::new(run, lengths, &lines);
    let shares_ns = prices.shares_ns(&groups);
    let less = |a: &[i64], b: &[i64]| a.iter().zip(b).map(|(a, b)| a - b).collect::<Vec<i64>>();
    let mut variation_ns = less(&recorded_ns, &typical_ns);
    shares_ns.iter().for_each(|share| variation_ns = less(&variation_ns, share));
    let mut parts = vec![
        (Part::Work, work_ns.clone()),
        (Part::Dependencies, less(&bare_ns, &work_ns)),
        (Part::Transfer, less(&even_ns, &bare_ns)),
    ];
    parts.extend(has_stages.then(|| (Part::Stages, less(&steady_ns, &even_ns))));
    parts.push((Part::LongerSteps, less(&typical_ns, &steady_ns)));
    parts.extend(shares_ns.into_iter().enumerate().map(|(at, share)| (Part::Group(at), share)));
    parts.push((Part::Variation, variation_ns));
    let unexplained_ns = run.unexplained_ns();
    let foreseen = Foreseen::of(run, places, &steps, &recorded_ns);
    let mut account = LostTime { steps: run.steps.clone(), parts, unexplained_ns, foreseen, ..LostTime::default() };
    alone.fill(&mut account, &recorded_ns);
    let gathers = |instance: u32| join.instances[instance as usize].op == Op::AllGather;
    account.early_gathers = run.with_early_gathers(&gathers, ranks).map(|early| {
        let early_ns = early.lengths_ns(&lengths.recorded_ns);
        Cost::of_inner(&less(&recorded_ns, &early_ns), account.step_ns(), 0.0)
    });
    add_groups(&mut account, (&lines, &groups), &mut prices, &|line| units(line, places, &slow));
    account
}

/// Says whether a line is certain, and adds the other transfers of a slow link.
fn complete(line: &mut FoundLine, (run, min_steps): (&Scaled, usize), places: &Places, slow: &SlowTransfers) {
    line.what.is_certain &= run.steps.len() >= min_steps;
    line.what.is_certain |= line.is_shown;
    if let Units::Communicators(comms) = &places.roles[line.role as usize]
        && let Some((rank, spans)) = slow.link(comms[line.what.unit])
    {
        let of_rank = |span: &Span| span.rank as usize == rank && span.kind == SpanKind::Transfer;
        let own = (0..).zip(&run.graph.spans).filter(|(_, span)| of_rank(span)).map(|(at, _)| at);
        line.spans = spans.into_iter().chain(own).collect();
    }
}

/// Adds what mending each group and each of its lines saves.
fn add_groups(
    account: &mut LostTime,
    (lines, groups): (&[FoundLine], &[Vec<usize>]),
    prices: &mut Prices<'_>,
    units: &dyn Fn(&FoundLine) -> Owner,
) {
    let step_ns = account.step_ns();
    let unexplained = account.unexplained_ns as f64 / step_ns.max(1) as f64;
    let mut cost = |set: &[usize]| {
        let saved_ns = prices.saved_ns(set);
        let is = |is_pattern: fn(&Pattern) -> bool| set.iter().all(|at| is_pattern(&lines[*at].what.pattern));
        let is_counted = is(|pattern| matches!(pattern, Pattern::Single(_)));
        // A pattern of some steps may be in the first or the last one.
        let cost = match is(|pattern| *pattern == Pattern::Every) {
            true => Cost::of_inner(&saved_ns, step_ns, unexplained),
            false => Cost::of(&saved_ns, is_counted, step_ns, unexplained),
        };
        // The graph does not hold all that waits for a slow transfer, so all of its excess may delay the steps.
        let transfers_ns = set.iter().map(|at| prices.excess_of_transfers_ns(*at)).sum::<i64>();
        let high_ns = transfers_ns / saved_ns.len().max(1) as i64;
        Cost { high_ns: cost.high_ns.max(high_ns), ..cost }
    };
    for group in groups {
        let line = |(nth, at): (usize, &usize)| {
            let (ranks, comm_id) = units(&lines[*at]);
            Line { ranks, comm_id, alone: (nth < MOST_ALONE).then(|| cost(&[*at])) }
        };
        let of_lines: Vec<Line> = group.iter().enumerate().map(line).collect();
        let group = described(group, lines, &account.steps, of_lines, cost(group));
        account.groups.push(group);
    }
    let named = groups.iter().zip(&account.groups).filter(|(_, group)| account.is_named(group));
    let mut named: Vec<usize> = named.flat_map(|(lines, _)| lines.iter().copied()).collect();
    named.sort_unstable();
    if named.len() > 1 {
        account.named = Some(cost(&named));
    }
    for (rank, mut lines) in lines_of_ranks(account, groups) {
        lines.sort_unstable();
        account.of_lines.insert(rank, cost(&lines));
    }
}

/// The positions of the lines of each rank that has several ones: of those that are named, or of those that are suspected if none is.
fn lines_of_ranks(account: &LostTime, groups: &[Vec<usize>]) -> BTreeMap<usize, Vec<usize>> {
    let mut of_ranks: BTreeMap<(usize, bool), Vec<usize>> = BTreeMap::new();
    for (group, positions) in account.groups.iter().zip(groups) {
        let is_named = account.is_named(group);
        if is_named || account.is_suspected(group) {
            for (line, at) in group.lines.iter().zip(positions).filter(|(line, _)| line.comm_id.is_none()) {
                line.ranks.iter().for_each(|rank| of_ranks.entry((*rank, is_named)).or_default().push(*at));
            }
        }
    }
    let named: Vec<usize> = of_ranks.keys().filter(|(_, is_named)| *is_named).map(|(rank, _)| *rank).collect();
    of_ranks.retain(|(rank, is_named), lines| lines.len() > 1 && (*is_named || !named.contains(rank)));
    of_ranks.into_iter().take(MOST_ALONE).map(|((rank, _), lines)| (rank, lines)).collect()
}

/// The savings of single ranks: how much shorter each step is if the own work of one rank takes its typical time. Only ranks far above
/// that time are replayed.
struct Alone {
    /// Positions of these ranks, each with what it saves.
    saved_ns: Vec<(usize, Vec<i64>)>,
    ranks: usize,
}

impl Alone {
    fn of(run: &Scaled, lengths: &Lengths, ranks: usize, steps_ns: i64) -> Self {
        let mut above_ns = vec![0_i64; ranks];
        let spans = || run.graph.spans.iter().zip(&lengths.recorded_ns).zip(&lengths.typical_ns);
        for ((span, recorded_ns), typical_ns) in spans().filter(|((span, _), _)| span.kind.is_own()) {
            if let Some(above_ns) = above_ns.get_mut(span.rank as usize) {
                *above_ns += recorded_ns - typical_ns;
            }
        }
        // A rank saves no more than it is above what is typical. Of a recording, only the steps count: a run may begin long before them.
        let least_ns = (LEAST_ALONE * steps_ns as f64).round().max(1.0) as i64;
        let mut most: Vec<usize> = (0..ranks).filter(|rank| above_ns[*rank] >= least_ns).collect();
        most.sort_by_key(|rank| (std::cmp::Reverse(above_ns[*rank]), *rank));
        most.truncate(MOST_ALONE);
        let recorded_ns = run.lengths_ns(&lengths.recorded_ns);
        let of_rank = |rank: &usize| {
            let mended =
                spans().map(
                    |((span, recorded), typical)| {
                        if span.rank as usize == *rank && span.kind.is_own() { *typical } else { *recorded }
                    },
                );
            let lengths_ns = run.lengths_ns(&mended.collect::<Vec<i64>>());
            (*rank, recorded_ns.iter().zip(lengths_ns).map(|(before, after)| before - after).collect())
        };
        Self { saved_ns: most.par_iter().map(of_rank).collect(), ranks }
    }

    /// The ranks that clearly save more than all others, in more steps than chance explains, or by more than steps vary. They are asked
    /// for in few steps only, where the noise of sums over places may hide them. In more steps, these sums show them, and whether ranks
    /// drift.
    fn save_most(&self, steps_ns: i64) -> Vec<usize> {
        let ranks = self.by_saving();
        let steps = ranks.first().map_or(0, |first| first.1.len());
        let is_clear = |count: &usize| {
            let next_ns = ranks.get(*count).map_or(0.0, |next| sum_ns(next)).max(0.0);
            sum_ns(ranks[count - 1]) >= (CLEARLY * next_ns).max(LEAST_OF_LINE * steps_ns as f64)
        };
        let most = ranks.len().min(self.ranks / 2);
        let Some(count) = (1..=most).rev().find(is_clear).filter(|_| steps < SHAPED_STEPS) else { return Vec::new() };
        let (first, others) = ranks.split_at(count);
        let apart_ns = |of: &[i64]| -> Vec<f64> {
            let other_ns = |step: usize| others.iter().map(|other| other.1[step]).max().unwrap_or(0).max(0);
            (0..steps).map(|step| (of[step] - other_ns(step)) as f64).collect()
        };
        let is_no_chance = |of: &&&(usize, Vec<i64>)| {
            let apart_ns = apart_ns(&of.1);
            let above = apart_ns.iter().filter(|ns| **ns > 0.0).count();
            let by_chance = self.ranks as f64 * at_least(above, steps, 1.0 / (self.ranks - count + 1) as f64);
            by_chance < SAVES_MOST_BY_CHANCE || self.is_far_from_zero(&apart_ns)
        };
        first.iter().filter(is_no_chance).map(|of| of.0).collect()
    }

    /// The ranks, those first that save the most.
    fn by_saving(&self) -> Vec<&(usize, Vec<i64>)> {
        let mut ranks: Vec<&(usize, Vec<i64>)> = self.saved_ns.iter().collect();
        ranks.sort_by(|a, b| sum_ns(b).total_cmp(&sum_ns(a)));
        ranks
    }

    /// The rank that saves clearly more than each other one, and as much as is worth a name, in so few steps that it may be chance.
    fn suspect(&self, steps_ns: i64) -> Option<usize> {
        let ranks = self.by_saving();
        let first = ranks.first().filter(|first| first.1.len() < SHAPED_STEPS)?;
        let next_ns = ranks.get(1).map_or(0.0, |next| sum_ns(next)).max(0.0);
        let least_ns = (CLEARLY * next_ns).max(NAMED_PCT / 100.0 * steps_ns as f64);
        (sum_ns(first) >= least_ns).then_some(first.0)
    }

    /// Whether all steps are alike, and their mean is above zero, by Student's t for the best of all ranks. Two or three ranks do not show
    /// whether ranks usually differ by as much.
    fn is_far_from_zero(&self, by_step: &[f64]) -> bool {
        let n = by_step.len() as f64;
        let mean = by_step.iter().sum::<f64>() / n;
        let variance = by_step.iter().map(|ns| (ns - mean).powi(2)).sum::<f64>() / (n - 1.0).max(1.0);
        let t = student_quantile(SAVES_MOST_BY_CHANCE / self.ranks as f64, n - 1.0);
        let are_alike = by_step.iter().all(|ns| 2.0 * ns >= mean);
        self.ranks > 3 && n >= 3.0 && are_alike && mean > t * (variance / n).sqrt()
    }

    /// Costs and slowdowns of the ranks.
    fn fill(self, account: &mut LostTime, recorded_ns: &[i64]) {
        let step_ns = account.step_ns();
        let inner_ns: i64 = inner(recorded_ns).iter().sum();
        let unexplained = account.unexplained_ns as f64 / step_ns.max(1) as f64;
        (account.alone, account.slowdown) = (vec![None; self.ranks], vec![1.0; self.ranks]);
        for (rank, saved_ns) in self.saved_ns {
            let left_ns = inner_ns - inner(&saved_ns).iter().sum::<i64>();
            account.alone[rank] = Some(Cost::of_inner(&saved_ns, step_ns, unexplained));
            account.slowdown[rank] = inner_ns as f64 / left_ns.max(1) as f64;
        }
    }
}

/// The sum of what mending a rank saves in each step.
fn sum_ns(of: &(usize, Vec<i64>)) -> f64 {
    of.1.iter().sum::<i64>() as f64
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
    let (mut is_kept, mut is_much) = (vec![true; lines.len()], vec![true; lines.len()]);
    let all_ns = end_ns(&|_| true);
    // The lines that were found last are tried first.
    for at in (0..lines.len()).rev() {
        let alone_ns = run.graph.end_ns - end_ns(&|line| line == at);
        let more_ns = end_ns(&|line| is_kept[line] && line != at) - all_ns;
        let saves_ns = alone_ns.max(more_ns);
        is_kept[at] = saves_ns >= least_ns;
        is_much[at] = 100.0 * saves_ns as f64 >= NAMED_PCT * steps_ns as f64;
    }
    lines.iter_mut().zip(is_much).for_each(|(line, is_much)| line.is_much = is_much);
    let mut is_kept = is_kept.into_iter();
    lines.retain(|_| is_kept.next().unwrap_or(true));
    lines
}

fn described(group: &[usize], lines: &[FoundLine], steps: &[i32], of_lines: Vec<Line>, together: Cost) -> Group {
    let first = &lines[group[0]];
    let mut at: Vec<usize> = group.iter().flat_map(|line| lines[*line].what.steps.iter().copied()).collect();
    at.sort_unstable();
    at.dedup();
    let pattern = &first.what.pattern;
    let is_every = matches!(pattern, Pattern::Every | Pattern::Ramp(0));
    let period = match pattern {
        Pattern::Single(Some(every)) => Some(Period { steps: *every as i32, first: steps[at[0]] }),
        _ => None,
    };
    Group {
        lines: of_lines,
        steps: (!is_every).then(|| at.iter().map(|step| steps[*step]).collect()),
        period,
        pattern: pattern.word(),
        by_transfers: group.iter().all(|line| matches!(lines[*line].kind, SpanKind::Transfer | SpanKind::Leaving)),
        is_certain: first.what.is_certain,
        together,
    }
}

/// Ranks, and a communicator if its transfers take long.
type Owner = (Vec<usize>, Option<i64>);

/// The ranks of a line, and its communicator. If one of its ranks is in another communicator that is slow, and no other rank is, the link of
/// that rank is what is slow.
fn units(line: &FoundLine, places: &Places, slow: &SlowTransfers) -> Owner {
    match &places.roles[line.role as usize] {
        Units::Ranks(ranks) => (vec![ranks[line.what.unit]], None),
        Units::Communicators(comms) => {
            let comm_id = comms[line.what.unit];
            match slow.link(comm_id) {
                Some((rank, _)) => (vec![rank], None),
                None => (slow.ranks.get(&comm_id).cloned().unwrap_or_default(), Some(comm_id)),
            }
        }
    }
}

/// By how much the transfers of each communicator are above those of its kind, also where work hides them.
struct SlowTransfers {
    ranks: BTreeMap<i64, Vec<usize>>,
    /// The share of the typical length by which they are longer; only of communicators that are compared.
    above: BTreeMap<i64, f64>,
    spans: BTreeMap<i64, Vec<u32>>,
}

impl SlowTransfers {
    fn of(lengths: &Lengths, places: &Places, join: &Join) -> Self {
        let mut spans: BTreeMap<i64, Vec<u32>> = BTreeMap::new();
        for (span, (slot, unit)) in (0..).zip(&places.of_span) {
            let Some(slot) = places.slots.get(*slot as usize) else { continue };
            if let Units::Communicators(comms) = &places.roles[places.places[slot.place as usize].role as usize] {
                spans.entry(comms[*unit as usize]).or_default().push(span);
            }
        }
        let sum_ns = |spans: &[u32], of: &[i64]| spans.iter().map(|span| of[*span as usize]).sum::<i64>() as f64;
        let above =
            |spans: &[u32]| sum_ns(spans, &lengths.recorded_ns) / sum_ns(spans, &lengths.typical_ns).max(1.0) - 1.0;
        let mut ranks: BTreeMap<i64, Vec<usize>> = BTreeMap::new();
        for instance in &join.instances {
            let of_instance = || instance.arrivals.iter().map(|a| a.rank).collect();
            ranks.entry(instance.comm_id).or_insert_with(of_instance);
        }
        Self { ranks, above: spans.iter().map(|(comm_id, spans)| (*comm_id, above(spans))).collect(), spans }
    }

    /// The only rank of a communicator that is in another one which is as slow, and the spans of all of its slow ones.
    fn link(&self, comm_id: i64) -> Option<(usize, Vec<u32>)> {
        let least = AS_SLOW * self.above.get(&comm_id)?;
        let slow_of = |rank: usize| {
            let is_slow = move |(other, above): &(&i64, &f64)| {
                **above >= least && self.ranks.get(other).is_some_and(|ranks| ranks.contains(&rank))
            };
            self.above.iter().filter(is_slow).map(|(other, _)| *other)
        };
        let mut linked = self.ranks.get(&comm_id)?.iter().filter(|rank| slow_of(**rank).any(|other| other != comm_id));
        let rank = linked.next().copied().filter(|_| linked.next().is_none())?;
        Some((rank, slow_of(rank).flat_map(|other| self.spans[&other].iter().copied()).collect()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranks_that_save_the_most_in_every_step_are_no_chance() {
        let of = |third_ns: [i64; 4]| {
            let saved_ns = vec![(0, vec![5, 0, 8, 0]), (3, third_ns.to_vec()), (6, vec![4, 9, 7, 4])];
            Alone { saved_ns, ranks: 8 }.save_most(2_000)
        };
        assert_eq!(of([30, 25, 40, 20]), [3]);
        assert_eq!(of([30, 25, 40, 2]), [0; 0], "in three steps of four, it may be chance");
        assert_eq!(of([6, 10, 9, 5]), [0; 0], "others save nearly as much");
        let long_steps = Alone { saved_ns: vec![(3, vec![30, 25, 40, 20])], ranks: 8 };
        assert_eq!(long_steps.save_most(20_000), [0; 0], "it is too little");
        let few = |second_ns: [i64; 3]| {
            Alone { saved_ns: vec![(0, vec![90, 95, 80]), (2, second_ns.to_vec())], ranks: 4 }.save_most(2_000)
        };
        assert_eq!(few([40, 41, 40]), [2], "the steps hardly vary");
        assert_eq!(few([30, 41, 50]), [0; 0]);
    }
}
