//! Finds what takes the time of a run: units that stand out, in which steps.
//!
//! For λ between 0 and 1, the spans on the longest path of m + λ (o − m) get (o − m) dλ (Aumann and Shapley). Units stand out by what
//! they take above the reference at places on these paths, weighted alike on all units, so that exchanging units changes nothing but
//! chance. What is hidden behind a line shows once the line is mended, so lines are found up to [`ROUNDS`] times.

use std::collections::{BTreeMap, BTreeSet};

use crate::graph::{Graph, Span, SpanKind};
use crate::lengths::Lengths;
use crate::patterns::{Outstanding, Pattern, Series, outstanding};
use crate::places::{Places, Slot, Units};

/// How often lines are found.
const ROUNDS: usize = 4;
/// Points of λ.
const LAMBDAS: usize = 8;
/// A unit that takes the longest in this share of so many places is no chance, however few the steps.
const NEARLY_ALL: f64 = 0.9;
const MANY_PLACES: usize = 30;
/// The least share of the steps that a line costs.
pub(crate) const LEAST_SHARE: f64 = 0.01;

/// Units that stand out, and their spans.
#[derive(Clone, Debug)]
pub(crate) struct FoundLine {
    pub(crate) role: u32,
    pub(crate) what: Outstanding,
    pub(crate) spans: Vec<u32>,
    /// The kind of span that has most of it.
    pub(crate) kind: SpanKind,
    /// Whether something beside its steps shows that it is late: a range of its host, or so many places that chance has no part in it.
    pub(crate) is_shown: bool,
    /// Whether it saves enough to be named, alone or beside the others.
    pub(crate) is_much: bool,
}

impl FoundLine {
    /// All own work of a rank, in so many steps, which nothing shows to be no chance.
    pub(crate) fn of_rank(
        graph: &Graph,
        places: &Places,
        lengths: &Lengths,
        (rank, steps): (usize, usize),
    ) -> Option<Self> {
        let unit_of = |(role, units): (u32, &Units)| match units {
            Units::Ranks(ranks) => Some((role, ranks.iter().position(|of| *of == rank)?)),
            Units::Communicators(_) => None,
        };
        let (role, unit) = (0..).zip(&places.roles).find_map(unit_of)?;
        let is_own = |span: &Span| span.rank as usize == rank && span.kind.is_own();
        let mut above_ns: BTreeMap<SpanKind, i64> = BTreeMap::new();
        let mut spans: Vec<u32> = Vec::new();
        for (at, span) in (0..).zip(&graph.spans).filter(|(_, span)| is_own(span)) {
            *above_ns.entry(span.kind).or_default() += span.len_ns - lengths.typical_ns[at as usize];
            spans.push(at);
        }
        let kind = above_ns.into_iter().max_by_key(|(_, ns)| *ns)?.0;
        let what = Outstanding { unit, pattern: Pattern::Every, steps: (0..steps).collect(), is_certain: false };
        Some(Self { role, what, spans, kind, is_shown: false, is_much: true })
    }
}

/// The lines of each role with each pattern. Those that are certain stand apart, and those that are worth a name.
pub(crate) fn groups(lines: &[FoundLine]) -> Vec<Vec<usize>> {
    let mut groups: Vec<Vec<usize>> = Vec::new();
    for (at, line) in lines.iter().enumerate() {
        let is_alike = |group: &&mut Vec<usize>| {
            let first = &lines[group[0]];
            let of = |line: &FoundLine| (line.role, line.what.pattern.word(), line.what.is_certain, line.is_much);
            of(first) == of(line)
        };
        match groups.iter_mut().find(is_alike) {
            Some(group) => group.push(at),
            None => groups.push(vec![at]),
        }
    }
    groups
}

pub(crate) struct Finder<'a> {
    pub(crate) graph: &'a Graph,
    pub(crate) places: &'a Places,
    pub(crate) lengths: &'a Lengths,
    /// Positions of the steps.
    pub(crate) steps: &'a BTreeMap<i32, usize>,
    /// The length of all of them.
    steps_ns: i64,
    /// Whether one range of each rank shows in every step that it is late.
    is_shown: &'a [bool],
    mended: BTreeSet<(u32, usize, usize)>,
}

/// The shares of spans and places on the longest paths of a round.
struct Paths {
    /// For each span, its share on the longest paths.
    of_span: Vec<f64>,
    /// For each place, the same, summed over units and per step.
    of_place: Vec<f64>,
    /// For each role, its spans.
    of_role: Vec<Vec<u32>>,
}

impl<'a> Finder<'a> {
    pub(crate) fn new(
        graph: &'a Graph,
        places: &'a Places,
        lengths: &'a Lengths,
        (steps, steps_ns): (&'a BTreeMap<i32, usize>, i64),
        is_shown: &'a [bool],
    ) -> Self {
        Self { graph, places, lengths, steps, steps_ns, is_shown, mended: BTreeSet::new() }
    }

    pub(crate) fn lines(mut self) -> Vec<FoundLine> {
        let typical = &self.lengths.typical_ns;
        let mut ends_ns = Vec::new();
        let typical_ns = self.graph.replay(typical, &mut ends_ns);
        let least_ns = LEAST_SHARE * self.steps_ns as f64;
        let mut now = self.lengths.recorded_ns.clone();
        let mut all: Vec<FoundLine> = Vec::new();
        for _ in 0..ROUNDS {
            let left_ns = self.graph.replay(&now, &mut ends_ns) - typical_ns;
            if (left_ns as f64) < least_ns {
                break;
            }
            let found = self.round(&now);
            if found.is_empty() {
                break;
            }
            for line in &found {
                line.spans.iter().for_each(|span| now[*span as usize] = typical[*span as usize]);
                self.mended.extend(line.what.steps.iter().map(|step| (line.role, line.what.unit, *step)));
            }
            all.extend(found);
        }
        all
    }

    /// Lines by the longest paths between `now` and the typical lengths.
    fn round(&self, now: &[i64]) -> Vec<FoundLine> {
        let typical = &self.lengths.typical_ns;
        let mut of_span = vec![0.0_f64; now.len()];
        let mut ends_ns = Vec::new();
        for k in 0..LAMBDAS {
            let lambda = (k as f64 + 0.5) / LAMBDAS as f64;
            let between: Vec<i64> =
                now.iter().zip(typical).map(|(now, m)| m + (lambda * (now - m) as f64).round() as i64).collect();
            self.graph.replay(&between, &mut ends_ns);
            self.graph.longest_path(&between, &ends_ns, |span, share| of_span[span] += share / LAMBDAS as f64);
        }
        let steps = self.steps.len().max(1) as f64;
        let mut of_place = vec![0.0; self.places.places.len()];
        let mut of_role = vec![Vec::new(); self.places.roles.len()];
        for (span, (slot, _)) in (0..).zip(&self.places.of_span) {
            if let Some(slot) = self.places.slots.get(*slot as usize) {
                of_place[slot.place as usize] += of_span[span as usize] / steps;
                of_role[self.places.places[slot.place as usize].role as usize].push(span);
            }
        }
        let paths = Paths { of_span, of_place, of_role };
        (0..self.places.roles.len() as u32).flat_map(|role| self.of_role(role, now, &paths)).collect()
    }

    /// Whether a unit takes the longest of all in nearly all of many places of a kind.
    fn is_last_most_often(&self, role: u32, kind: SpanKind, (unit, units): (usize, usize)) -> bool {
        let is_of_kind = |slot: &&Slot| self.places.places[slot.place as usize].kind == kind;
        let longest = |slot: &Slot| {
            let above = |unit: usize| self.lengths.above_ns[slot.first + unit].filter(|ns| *ns > 0.0);
            (0..units).filter_map(|unit| Some((above(unit)?, unit))).max_by(|a, b| a.0.total_cmp(&b.0))
        };
        let longest = self.places.slots_of(role).iter().filter(is_of_kind).filter_map(longest);
        let (all, own) = longest.fold((0, 0), |(all, own), (_, last)| (all + 1, own + usize::from(last == unit)));
        all >= MANY_PLACES && own as f64 >= NEARLY_ALL * all as f64
    }

    fn of_role(&self, role: u32, now: &[i64], paths: &Paths) -> Vec<FoundLine> {
        let (units, steps) = (self.places.roles[role as usize].len(), self.steps.len());
        let weight = |place: u32| paths.of_place[place as usize].min(1.0);
        let mut above = vec![vec![0.0; steps]; units];
        let mut credit = vec![vec![0.0; steps]; units];
        let mut work_ns = 0.0;
        let mut of_kind: BTreeMap<(usize, usize, SpanKind), f64> = BTreeMap::new();
        for slot in self.places.slots_of(role) {
            let Some(step) = self.steps.get(&slot.step) else { continue };
            let kind = self.places.places[slot.place as usize].kind;
            for (unit, above) in above.iter_mut().enumerate() {
                if !self.mended.contains(&(role, unit, *step)) {
                    let ns = weight(slot.place) * self.lengths.above_ns[slot.first + unit].unwrap_or(0.0);
                    above[*step] += ns;
                    *of_kind.entry((unit, *step, kind)).or_default() += ns;
                }
            }
        }
        let mut spans: BTreeMap<(usize, usize), Vec<u32>> = BTreeMap::new();
        for span in &paths.of_role[role as usize] {
            let at = *span as usize;
            let (slot, unit) = self.places.of_span[at];
            let slot = self.places.slots[slot as usize];
            let Some(step) = self.steps.get(&slot.step) else { continue };
            let typical_ns = self.lengths.typical_ns[at];
            credit[unit as usize][*step] += paths.of_span[at] * (now[at] - typical_ns) as f64;
            work_ns += weight(slot.place) * typical_ns as f64;
            spans.entry((unit as usize, *step)).or_default().push(*span);
        }
        let step_ns = self.steps_ns as f64 / steps.max(1) as f64;
        let is_shown: Vec<bool> = match &self.places.roles[role as usize] {
            Units::Ranks(ranks) => ranks.iter().map(|rank| self.is_shown[*rank]).collect(),
            Units::Communicators(_) => vec![false; units],
        };
        let series = Series {
            usual: &self.places.usual[role as usize],
            is_shown: &is_shown,
            above_ns: &above,
            credit_ns: &credit,
            step_ns,
            // The work of a unit takes no more than the steps.
            work_ns: (work_ns / units.max(1) as f64 / steps.max(1) as f64).clamp(0.1 * step_ns, step_ns),
            least_ns: LEAST_SHARE * self.steps_ns as f64,
        };
        let with_spans = |mut what: Outstanding| {
            // A mended step costs nothing any more.
            what.steps.retain(|step| !self.mended.contains(&(role, what.unit, *step)));
            let at = |step: &usize| spans.get(&(what.unit, *step)).into_iter().flatten().copied();
            let kinds = [SpanKind::Host, SpanKind::Device, SpanKind::Late, SpanKind::Leaving, SpanKind::Transfer];
            let of = |kind: &SpanKind| {
                what.steps.iter().filter_map(|step| of_kind.get(&(what.unit, *step, *kind))).sum::<f64>()
            };
            let kind = kinds.into_iter().max_by(|a, b| of(a).total_cmp(&of(b))).unwrap_or(SpanKind::Host);
            let is_shown = is_shown[what.unit] || self.is_last_most_often(role, kind, (what.unit, units));
            FoundLine { role, spans: what.steps.iter().flat_map(at).collect(), what, kind, is_shown, is_much: true }
        };
        outstanding(&series).into_iter().map(with_spans).filter(|found| !found.spans.is_empty()).collect()
    }
}
