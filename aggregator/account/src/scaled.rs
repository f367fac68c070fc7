//! The lengths of the steps of a run, with spans of other lengths, by the graph of the run.
//!
//! A step ends when all is done that its ranks launched before the next step began, or before its own end if no step follows:
//!
//! ```text
//!   rank 0   host    |step 1 a b |step 2 c d |            the lengths of step 1 and 2 sum to the run,
//!            stream      |#a#|##b##|#c#|#d#|              although their work overlaps
//!                    |---- 1 ------|-- 2 --|
//! ```

use std::collections::{BTreeMap, BTreeSet};

use crate::contention::Contention;
use crate::graph::{Graph, Node, SpanKind};
use measure::graph::{Condensed, NodeKind, follows};
use measure::own_time::OwnTime;
use model::intervals::Interval;
use topology::join::Join;
use topology::{ClockError, ToGlobal};

/// From so many steps on, the first and the last one do not count: the recording cuts what they wait for.
const INNER_STEPS: usize = 4;

/// What [`omissions`](trace::OmissionRow) call the account where there is none.
pub const ACCOUNT: &str = "the account of lost time";

/// Why a run has no account.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Unaccounted {
    /// No collective of two ranks was matched.
    NotJoined,
    /// The ranks have no step in common.
    NoCommonStep,
    /// Ranks leave collectives before others arrive at them.
    Contradicted,
}

impl Unaccounted {
    /// In words.
    pub(crate) fn why(self) -> &'static str {
        match self {
            Self::NotJoined => {
                "no collective was matched on two ranks: give the traces of all ranks, of steps in which they recorded the same collectives"
            }
            Self::NoCommonStep => "the ranks have no step in common",
            Self::Contradicted => {
                "ranks leave collectives before others arrive at them: a clock jumped, or collectives were not matched rightly"
            }
        }
    }
}

/// The graph of a run, and the steps that its ranks have in common.
#[derive(Debug)]
pub(crate) struct Scaled {
    pub(crate) graph: Graph,
    /// For each instance, its communicator.
    pub(crate) comm_of: Vec<i64>,
    /// For each node, how many bounds its host had passed.
    pub(crate) passed: Vec<u32>,
    /// The numbers of these steps, ascending.
    pub(crate) steps: Vec<i32>,
    /// For each bound, whether a step begins there: where the next step is not in common, the end of a step is a bound, too.
    pub(crate) begins_step: Vec<bool>,
    pub(crate) contention: Option<Contention>,
}

impl Scaled {
    /// An error if ranks have no step in common, or collectives contradict the order of work.
    pub(crate) fn of(
        ranks: &[&Condensed],
        parts: &[&OwnTime],
        join: &Join,
        (to_global, clock_error_ns): (ToGlobal<'_>, ClockError<'_>),
    ) -> Result<Self, Unaccounted> {
        // Of several steps with the same number, only the first one is used.
        let windows = |rank: &&Condensed| rank.steps().map(|step| (step.step, step.window)).rev().collect();
        let windows: Vec<BTreeMap<i32, Interval>> = ranks.iter().map(windows).collect();
        let common = windows
            .iter()
            .map(|of_rank| of_rank.keys().copied().collect::<BTreeSet<i32>>())
            .reduce(|a, b| &a & &b)
            .filter(|common| !common.is_empty());
        let common = common.ok_or(Unaccounted::NoCommonStep)?;
        let is_close = |of_rank: &BTreeMap<i32, Interval>, step: i32| {
            of_rank.get(&step).zip(of_rank.get(&(step + 1))).is_some_and(|(this, next)| follows(*this, *next))
        };
        // Between the steps of two recordings lies no step.
        let is_followed =
            |step: i32| common.contains(&(step + 1)) && windows.iter().all(|of_rank| is_close(of_rank, step));
        let followed: BTreeSet<i32> = common.iter().copied().filter(|step| is_followed(*step)).collect();
        let is_followed = |step: i32| followed.contains(&step);
        let begins_step: Vec<bool> = common
            .iter()
            .flat_map(|step| std::iter::once(true).chain((!is_followed(*step)).then_some(false)))
            .collect();
        let bounds = |of_rank: &BTreeMap<i32, Interval>| -> Vec<i64> {
            let of_step = |(step, window): (&i32, &Interval)| {
                std::iter::once(window.start_ns).chain((!is_followed(*step)).then_some(window.end_ns))
            };
            of_rank.iter().filter(|(step, _)| common.contains(step)).flat_map(of_step).collect()
        };
        let bounds: Vec<Vec<i64>> = windows.iter().map(bounds).collect();
        let global = |rank: usize, ns: i64| to_global(parts[rank].rank, parts[rank].has_device, ns);
        let error_ns = |rank: usize| clock_error_ns(parts[rank].rank, parts[rank].has_device);
        let graph = Graph::of(ranks, &join.instances, (&global, &error_ns)).ok_or(Unaccounted::Contradicted)?;
        let passed = |node: &Node| {
            // A transfer belongs to the ranks that wait for it.
            let of_rank = bounds.get(node.rank as usize).filter(|_| node.kind.is_some());
            // The host before a bound has not passed it, nor has the begin of a recording that begins with a step.
            let is_before = matches!(node.kind, Some(NodeKind::Host | NodeKind::Begin));
            let has_passed = |bound_ns: &i64| *bound_ns < node.at_ns || *bound_ns == node.at_ns && !is_before;
            of_rank.map_or(0, |bounds| bounds.partition_point(has_passed) as u32)
        };
        let passed: Vec<u32> = graph.nodes.iter().map(passed).collect();
        Ok(Self {
            contention: Contention::of(&graph, ranks.len(), &passed, begins_step.len()),
            passed,
            comm_of: join.instances.iter().map(|instance| instance.comm_id).collect(),
            steps: common.into_iter().collect(),
            begins_step,
            graph,
        })
    }

    /// Multiplies the transfers of each communicator in `spans_ns`.
    pub(crate) fn scale_transfers(&self, spans_ns: &mut [i64], scale_of: &dyn Fn(i64) -> f64) {
        let mut instance_of = vec![None; spans_ns.len()];
        for node in self.graph.nodes.iter().filter(|node| matches!(node.kind, None | Some(NodeKind::Leave))) {
            if let Some(instance_of) = instance_of.get_mut(node.own as usize) {
                *instance_of = self.comm_of.get(node.instance as usize);
            }
        }
        for (ns, comm_id) in spans_ns.iter_mut().zip(instance_of) {
            if let Some(comm_id) = comm_id {
                *ns = (*ns as f64 * scale_of(*comm_id)).round() as i64;
            }
        }
    }

    /// The lengths of the steps with spans of these lengths.
    pub(crate) fn lengths_ns(&self, spans_ns: &[i64]) -> Vec<i64> {
        self.lengths_between(&self.bounds_ns(spans_ns))
    }

    /// For each number of passed bounds, the position of the step that begins at the last of them; `None` before and between steps.
    pub(crate) fn steps_after(&self) -> Vec<Option<usize>> {
        let mut begun = 0;
        let step = |begins: &bool| {
            begun += usize::from(*begins);
            begins.then(|| begun - 1)
        };
        std::iter::once(None).chain(self.begins_step.iter().map(step)).collect()
    }

    /// The lengths of the steps that begin and end at these bounds.
    pub(crate) fn lengths_between(&self, bounds_ns: &[i64]) -> Vec<i64> {
        let between = bounds_ns.windows(2).map(|pair| pair[1] - pair[0]).zip(&self.begins_step);
        between.filter(|(_, begins)| **begins).map(|(length_ns, _)| length_ns).collect()
    }

    /// How much of a step begins later than anything that the graph knows explains.
    pub(crate) fn unexplained_ns(&self) -> i64 {
        let prompt = self.graph.spans.iter().map(|span| if span.kind == SpanKind::Late { 0 } else { span.len_ns });
        let saved_ns = self.graph.end_ns - self.graph.replay(&prompt.collect::<Vec<_>>(), &mut Vec::new());
        saved_ns / self.steps.len().max(1) as i64
    }

    /// When all is done that was launched before each bound, with spans of these lengths.
    pub(crate) fn bounds_ns(&self, spans_ns: &[i64]) -> Vec<i64> {
        let mut ends_ns = Vec::new();
        self.graph.replay(spans_ns, &mut ends_ns);
        if let Some(contention) = &self.contention {
            let relieved_ns = contention.relieved_ns(&self.graph, spans_ns, &ends_ns);
            self.graph.replay(&relieved_ns, &mut ends_ns);
        }
        let mut bounds_ns = vec![0; self.begins_step.len() + 1];
        for ((node, passed), node_end_ns) in self.graph.nodes.iter().zip(&self.passed).zip(ends_ns) {
            if node.kind.is_some() {
                bounds_ns[*passed as usize] = node_end_ns.max(bounds_ns[*passed as usize]);
            }
        }
        bounds_of(bounds_ns)
    }
}

/// When all is done that was launched before each bound. `last_ends_ns` has the last end of the work between two bounds. Work that was
/// launched after the last bound belongs to no step.
pub(crate) fn bounds_of(mut last_ends_ns: Vec<i64>) -> Vec<i64> {
    last_ends_ns.pop();
    (1..last_ends_ns.len()).for_each(|at| last_ends_ns[at] = last_ends_ns[at].max(last_ends_ns[at - 1]));
    last_ends_ns
}

/// The steps whose begin and end the recording has.
pub(crate) fn inner<T>(of_steps: &[T]) -> &[T] {
    match of_steps.len() {
        INNER_STEPS.. => &of_steps[1..of_steps.len() - 1],
        _ => of_steps,
    }
}
