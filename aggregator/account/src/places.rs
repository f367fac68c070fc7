//! Where the times of ranks are compared: the same place of the program on ranks of one stage, in the same step.
//!
//! A place lies between two marks that all ranks of the stage have in that step: the begin of the step, and calls of matched
//! collectives, counted from the end of the step. Sums over a place are compared and not single kernels, because ranks may divide the
//! same work differently.
//!
//! ```text
//!   rank 0   |step   [A]      [B] [A]      |        marks: the step, A 2nd from the end, B, A
//!   rank 1   |step [A]        [B]   [A]    |
//!             -----    --------  ---               places
//! ```
//!
//! Transfers are compared over communicators of the same kind: as many ranks, and the same operation and size at the same place.

use std::collections::{BTreeMap, BTreeSet};

use rustc_hash::FxHashMap;

use crate::graph::{Graph, NONE, Span, SpanKind};
use measure::graph::Condensed;
use model::steps::StepWindow;
use topology::arrivals::Joined;
use topology::join::Join;

/// The time in one place and step.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Slot {
    /// Its place, the same in all steps.
    pub(crate) place: u32,
    /// Its step; −1 outside of all.
    pub(crate) step: i32,
    /// Where the units of its role begin in a list of all slots' units.
    pub(crate) first: usize,
}

/// What is compared with each other: ranks, or communicators.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Units {
    /// Positions of ranks of one stage.
    Ranks(Vec<usize>),
    /// Communicators of the same kind.
    Communicators(Vec<i64>),
}

impl Units {
    pub(crate) fn len(&self) -> usize {
        match self {
            Self::Ranks(ranks) => ranks.len(),
            Self::Communicators(comms) => comms.len(),
        }
    }
}

/// A place: whose it is, and which spans.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Place {
    pub(crate) role: u32,
    pub(crate) kind: SpanKind,
}

/// The places of all spans.
#[derive(Debug, Default)]
pub(crate) struct Places {
    /// What is compared with each other.
    pub(crate) roles: Vec<Units>,
    pub(crate) places: Vec<Place>,
    /// Role by role.
    pub(crate) slots: Vec<Slot>,
    /// For each span, its slot or [`NONE`], and its unit in the role.
    pub(crate) of_span: Vec<(u32, u32)>,
    /// The number of units of all slots.
    pub(crate) units: usize,
    /// For each role and unit, whether it shows how long the work usually takes.
    pub(crate) usual: Vec<Vec<bool>>,
}

/// A mark at the begin of a segment.
#[derive(Clone, Copy, Debug)]
struct Mark {
    step: i32,
    label: Label,
}

/// What a mark is, by which it is found again in other steps and on other ranks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Label {
    /// No mark: the call was not matched.
    None,
    Step,
    /// A call of this kind, as counted from the end of the step.
    Call((i64, u64), u32),
}

/// What a place is, before it has a number: role, kind, and the marks around it with the steps between them.
type Key = (u32, SpanKind, Label, Label, i32);

struct Builder<'a> {
    graph: &'a Graph,
    join: &'a Join,
    ranks: &'a [&'a Condensed],
    /// The instance of each rank's matched collectives.
    matched: FxHashMap<(usize, u32), u32>,
    keys: FxHashMap<Key, u32>,
    slot_of: FxHashMap<(u32, i32), u32>,
    places: Places,
}

impl Places {
    pub(crate) fn of(graph: &Graph, join: &Join, ranks: &[&Condensed]) -> Self {
        let arrivals = (0..).zip(&join.instances).filter(|(_, instance)| instance.arrivals.len() > 1);
        let matched = arrivals.flat_map(|(at, i)| i.arrivals.iter().map(move |a| ((a.rank, a.stretch), at))).collect();
        let places = Self { of_span: vec![(NONE, NONE); graph.spans.len()], ..Self::default() };
        let (keys, slot_of) = (FxHashMap::default(), FxHashMap::default());
        let mut builder = Builder { graph, join, ranks, matched, keys, slot_of, places };
        builder.of_ranks();
        builder.of_transfers();
        builder.places
    }
}

impl Places {
    /// The slots of a role.
    pub(crate) fn slots_of(&self, role: u32) -> &[Slot] {
        let [from, to] = [role, role + 1]
            .map(|role| self.slots.partition_point(|slot| self.places[slot.place as usize].role < role));
        &self.slots[from..to]
    }
}

impl Builder<'_> {
    fn of_ranks(&mut self) {
        let mut spans: Vec<Vec<u32>> = vec![Vec::new(); self.ranks.len()];
        for (at, span) in (0..).zip(&self.graph.spans) {
            if let Some(spans) = spans.get_mut(span.rank as usize) {
                spans.push(at);
            }
        }
        let marks: Vec<Vec<Mark>> = (0..self.ranks.len()).map(|rank| self.marks(rank)).collect();
        let mut roles: FxHashMap<(usize, usize), Vec<usize>> = FxHashMap::default();
        for (rank, (stage, linked)) in self.join.same_work.stages.iter().zip(self.linked()).enumerate() {
            roles.entry((*stage, linked)).or_default().push(rank);
        }
        let mut roles: Vec<Vec<usize>> = roles.into_values().collect();
        roles.sort_unstable();
        for ranks in roles {
            let (role, first) = (self.places.roles.len() as u32, self.places.slots.len());
            let mut have: FxHashMap<(i32, Label), usize> = FxHashMap::default();
            for mark in ranks.iter().flat_map(|rank| &marks[*rank]) {
                *have.entry((mark.step, mark.label)).or_default() += 1;
            }
            for (unit, rank) in ranks.iter().enumerate() {
                let is_common =
                    |mark: &Mark| mark.label != Label::None && have.get(&(mark.step, mark.label)) == Some(&ranks.len());
                let around = around(&marks[*rank], is_common);
                for span in &spans[*rank] {
                    let Span { kind, at, .. } = self.graph.spans[*span as usize];
                    if let Some((from, to)) = around[at as usize] {
                        let key = (role, kind, from.label, to.label, to.step - from.step);
                        self.assign(*span, unit as u32, (key, from.step));
                    }
                }
            }
            let baseline = &self.join.same_work.baseline;
            self.places.usual.push(ranks.iter().map(|rank| baseline.is_member[*rank]).collect());
            self.places.roles.push(Units::Ranks(ranks));
            self.close_role(first);
        }
    }

    /// For each rank, the lowest one that communicators link it with: directly, over other ranks, or as replicas of each other. Others
    /// have no place in common.
    fn linked(&self) -> Vec<usize> {
        let mut links: BTreeMap<i64, BTreeSet<usize>> = BTreeMap::new();
        for instance in &self.join.instances {
            let kind = self.join.same_work.replicas.lowest(instance.comm_id);
            links.entry(kind).or_default().extend(instance.arrivals.iter().map(|a| a.rank));
        }
        let mut of_rank: Vec<Vec<i64>> = vec![Vec::new(); self.ranks.len()];
        links.iter().for_each(|(kind, ranks)| ranks.iter().for_each(|rank| of_rank[*rank].push(*kind)));
        let mut linked = vec![usize::MAX; self.ranks.len()];
        for lowest in 0..linked.len() {
            let mut next = vec![lowest];
            while let Some(rank) = next.pop() {
                if linked[rank] == usize::MAX {
                    linked[rank] = lowest;
                    next.extend(of_rank[rank].iter().filter_map(|kind| links.remove(kind)).flatten());
                }
            }
        }
        linked
    }

    /// The marks at the begins of a rank's segments. The first one begins with none.
    fn marks(&self, rank: usize) -> Vec<Mark> {
        let condensed = self.ranks[rank];
        let steps: Vec<StepWindow> = condensed.steps().collect();
        let step_at = |at_ns: i64| {
            let before = steps.partition_point(|step| step.window.start_ns <= at_ns);
            let step = before.checked_sub(1).map(|at| &steps[at]);
            step.filter(|step| at_ns < step.window.end_ns).map_or(-1, |step| step.step)
        };
        let mut seen: FxHashMap<(i32, (i64, u64)), u32> = FxHashMap::default();
        let mut of_segment = |segment: &measure::graph::condensed::Segment| {
            if let Some(step) = segment.step {
                return Mark { step, label: Label::Step };
            }
            let step = step_at(segment.at_ns);
            let instance = segment.collective.and_then(|collective| self.matched.get(&(rank, collective)));
            let Some(instance) = instance else { return Mark { step, label: Label::None } };
            let kind = self.kind_of(rank, &self.join.instances[*instance as usize]);
            let count = seen.entry((step, kind)).or_default();
            *count += 1;
            Mark { step, label: Label::Call(kind, *count) }
        };
        let mut marks: Vec<Mark> = condensed.segments.iter().skip(1).rev().map(&mut of_segment).collect();
        marks.push(Mark { step: -1, label: Label::None });
        marks.reverse();
        marks
    }

    /// The kind of an instance, equal on all ranks of a role.
    fn kind_of(&self, rank: usize, instance: &Joined) -> (i64, u64) {
        if instance.symmetric {
            return (self.join.same_work.replicas.lowest(instance.comm_id), hash(&instance.op));
        }
        let others = instance.arrivals.iter().map(|a| a.rank).filter(|other| *other != rank);
        let is_below = others.min().is_some_and(|other| other < rank);
        let sends = instance.sender() == Some(rank);
        (i64::MIN, 2 * u64::from(sends) + u64::from(is_below))
    }

    fn assign(&mut self, span: u32, unit: u32, (key, step): (Key, i32)) {
        let places = &mut self.places;
        let place = *self.keys.entry(key).or_insert_with(|| {
            places.places.push(Place { role: key.0, kind: key.1 });
            places.places.len() as u32 - 1
        });
        let slot = *self.slot_of.entry((place, step)).or_insert_with(|| {
            places.slots.push(Slot { place, step, first: 0 });
            places.slots.len() as u32 - 1
        });
        places.of_span[span as usize] = (slot, unit);
    }

    /// Gives room to the units of the slots of the last role, which begin at `first`.
    fn close_role(&mut self, first: usize) {
        let units = self.places.roles.last().map_or(0, Units::len);
        for slot in &mut self.places.slots[first..] {
            slot.first = self.places.units;
            self.places.units += units;
        }
    }

    /// Compares transfers over communicators that have as many ranks and collectives in each step.
    fn of_transfers(&mut self) {
        const MOST: usize = 64;
        let transfers =
            (0..).zip(&self.graph.spans).filter(|(_, span)| (span.kind, span.rank) == (SpanKind::Transfer, NONE));
        let span_of: FxHashMap<u32, u32> = transfers.map(|(at, span)| (span.at, at)).collect();
        let (families, _) = topology::same_work::replicas_by_count(&self.join.instances, MOST);
        for family in families {
            let (role, first) = (self.places.roles.len() as u32, self.places.slots.len());
            for (unit, comm) in (0..).zip(&family) {
                for (step, all) in &comm.by_step {
                    for (count, instance) in (0..).zip(all.iter().rev()) {
                        if let Some(span) = span_of.get(instance) {
                            let label = Label::Call((0, 0), count);
                            self.assign(*span, unit, ((role, SpanKind::Transfer, label, Label::None, 0), *step));
                        }
                    }
                }
            }
            self.places.usual.push(vec![true; family.len()]);
            self.places.roles.push(Units::Communicators(family.iter().map(|comm| comm.comm_id).collect()));
            self.close_role(first);
        }
    }
}

/// For each segment, the marks before and after it that all ranks have.
fn around(marks: &[Mark], is_common: impl Fn(&Mark) -> bool) -> Vec<Option<(Mark, Mark)>> {
    let common: Vec<usize> = (0..marks.len()).filter(|at| is_common(&marks[*at])).collect();
    let of_segment = |at: usize| {
        let after = common.partition_point(|mark| *mark <= at);
        Some((marks[common[after.checked_sub(1)?]], marks[*common.get(after)?]))
    };
    (0..marks.len()).map(of_segment).collect()
}

fn hash(op: &impl std::hash::Hash) -> u64 {
    use std::hash::BuildHasher;
    rustc_hash::FxBuildHasher.hash_one(op)
}
