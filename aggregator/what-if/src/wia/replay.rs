//! Replays the steps of a job with other durations.
//!
//! An operation starts a delay after the operations before it. Computation ends its duration later. Communication ends its transfer
//! time after the last start in its group.

use crate::wia::dependencies::Dependencies;
use crate::wia::operations::Operations;

/// Negative times beyond this, in seconds, are errors of the recording, and count as 0. Smaller ones stay, as do the clocks' errors
/// that they show.
const NEGATIVE_S: f64 = 1e-2;

/// One part of the replay, in an order in which all that it needs is there.
#[derive(Clone, Copy, Debug)]
enum Event {
    /// The operation starts.
    Start(u32),
    /// All operations of the group end.
    Meet(u32),
}

/// The measured times of operations in each lane, and the order in which they are replayed.
#[derive(Debug)]
pub(super) struct Replay<'a> {
    dependencies: &'a Dependencies,
    order: Vec<Event>,
    dp_size: usize,
    lanes: usize,
    /// The measured times.
    pub(super) measured: Times,
}

/// The times of operations that a replay needs, in seconds, by operation and lane.
#[derive(Clone, Debug)]
pub(super) struct Times {
    /// From the end of the operations before to the start; empty if there are no delays.
    pub(super) delay_s: Vec<f64>,
    /// Of computation, the duration; of communication, the time from the last start in the group to the end.
    pub(super) length_s: Vec<f64>,
}

/// The end of each step, by step: the last end of any operation, and of the operations of type `optimizer`.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Ends {
    pub(super) last_s: Vec<f64>,
    pub(super) optimizer_s: Vec<f64>,
}

impl<'a> Replay<'a> {
    pub(super) fn of(operations: &Operations, dependencies: &'a Dependencies) -> Result<Self, String> {
        let order = order(operations, dependencies)?;
        let lanes = operations.lanes();
        let measured =
            Times { delay_s: delays_s(operations, dependencies), length_s: lengths_s(operations, dependencies) };
        Ok(Self { dependencies, order, dp_size: operations.dp_size, lanes, measured })
    }

    /// The ends of the steps. `is_optimizer` is by operation.
    pub(super) fn ends(&self, times: &Times, is_optimizer: &[bool]) -> Ends {
        let lanes = self.lanes;
        let mut end_s = vec![0.0_f64; times.length_s.len()];
        let mut start_s = vec![0.0_f64; times.length_s.len()];
        let mut met_s = vec![0.0_f64; lanes];
        for event in &self.order {
            match *event {
                Event::Start(at) => {
                    let own = at as usize * lanes..(at as usize + 1) * lanes;
                    met_s.fill(f64::NEG_INFINITY);
                    for before in &self.dependencies.before[at as usize] {
                        let ends = &end_s[*before as usize * lanes..(*before as usize + 1) * lanes];
                        met_s.iter_mut().zip(ends).for_each(|(met, end)| *met = met.max(*end));
                    }
                    if self.dependencies.before[at as usize].is_empty() {
                        met_s.fill(0.0);
                    }
                    if let Some(delays_s) = times.delay_s.get(own.clone()) {
                        met_s.iter_mut().zip(delays_s).for_each(|(met, delay)| *met += delay);
                    }
                    match self.dependencies.group_of[at as usize] {
                        Some(_) => start_s[own].copy_from_slice(&met_s),
                        None => {
                            let ends = end_s[own.clone()].iter_mut().zip(&met_s).zip(&times.length_s[own]);
                            ends.for_each(|((end, start), length)| *end = start + length);
                        }
                    }
                }
                Event::Meet(group) => self.meet(group as usize, times, &start_s, &mut end_s, &mut met_s),
            }
        }
        let steps = lanes / self.dp_size;
        let mut ends = Ends { last_s: vec![f64::NEG_INFINITY; steps], optimizer_s: vec![f64::NEG_INFINITY; steps] };
        for (at, ends_s) in end_s.chunks(lanes).enumerate() {
            for (step, ends_s) in ends_s.chunks(self.dp_size).enumerate() {
                let last_s = ends_s.iter().copied().fold(f64::NEG_INFINITY, f64::max);
                ends.last_s[step] = ends.last_s[step].max(last_s);
                if is_optimizer[at] {
                    ends.optimizer_s[step] = ends.optimizer_s[step].max(last_s);
                }
            }
        }
        ends
    }

    fn meet(&self, group: usize, times: &Times, start_s: &[f64], end_s: &mut [f64], met_s: &mut [f64]) {
        met_s.fill(f64::NEG_INFINITY);
        last_starts(&self.dependencies.groups[group], start_s, met_s);
        if self.dependencies.meets_over_dp[group] {
            over_dp(met_s, self.dp_size);
        }
        for at in &self.dependencies.groups[group] {
            let own = *at as usize * self.lanes..(*at as usize + 1) * self.lanes;
            let ends = end_s[own.clone()].iter_mut().zip(met_s.iter()).zip(&times.length_s[own]);
            ends.for_each(|((end, met), length)| *end = met + length);
        }
    }
}

/// Raises each of `met_s` to the last start of the members.
fn last_starts(members: &[u32], start_s: &[f64], met_s: &mut [f64]) {
    let lanes = met_s.len();
    for at in members {
        let starts = &start_s[*at as usize * lanes..(*at as usize + 1) * lanes];
        met_s.iter_mut().zip(starts).for_each(|(met, start)| *met = met.max(*start));
    }
}

/// Raises all lanes of a step to their maximum.
fn over_dp(met_s: &mut [f64], dp_size: usize) {
    for step in met_s.chunks_mut(dp_size) {
        let last_s = step.iter().copied().fold(f64::NEG_INFINITY, f64::max);
        step.fill(last_s);
    }
}

/// An order of the operations in which each comes after those that it needs.
fn order(operations: &Operations, dependencies: &Dependencies) -> Result<Vec<Event>, String> {
    let count = dependencies.before.len();
    let mut after: Vec<Vec<u32>> = vec![Vec::new(); count];
    for (at, before) in dependencies.before.iter().enumerate() {
        before.iter().for_each(|before| after[*before as usize].push(at as u32));
    }
    let mut missing: Vec<usize> = dependencies.before.iter().map(Vec::len).collect();
    let mut to_come: Vec<usize> = dependencies.groups.iter().map(Vec::len).collect();
    let mut ready: Vec<u32> = (0..count as u32).filter(|at| missing[*at as usize] == 0).collect();
    let mut order = Vec::with_capacity(2 * count);
    let mut ended = 0;
    while let Some(at) = ready.pop() {
        order.push(Event::Start(at));
        let done: &[u32] = match dependencies.group_of[at as usize] {
            None => &[at],
            Some(group) => {
                to_come[group as usize] -= 1;
                if to_come[group as usize] > 0 {
                    continue;
                }
                order.push(Event::Meet(group));
                &dependencies.groups[group as usize]
            }
        };
        ended += done.len();
        for next in done.iter().flat_map(|at| &after[*at as usize]) {
            missing[*next as usize] -= 1;
            if missing[*next as usize] == 0 {
                ready.push(*next);
            }
        }
    }
    if ended == count {
        return Ok(order);
    }
    let stuck = missing.iter().position(|missing| *missing > 0).map(|at| operations.keys[at].to_string());
    Err(format!("the operations wait for each other in a circle, among them {}", stuck.unwrap_or_default()))
}

/// The measured delay of each operation: its start, less the last end of the operations before it.
fn delays_s(operations: &Operations, dependencies: &Dependencies) -> Vec<f64> {
    let lanes = operations.lanes();
    let mut first_s = vec![f64::INFINITY; operations.steps.len()];
    for (slot, start_s) in operations.start_s.iter().enumerate() {
        let step = slot % lanes / operations.dp_size;
        first_s[step] = first_s[step].min(*start_s);
    }
    let delay_s = |slot: usize| {
        let (at, lane) = (slot / lanes, slot % lanes);
        let ends_s = dependencies.before[at].iter().map(|before| operations.end_s[*before as usize * lanes + lane]);
        let from_s = ends_s.reduce(f64::max).unwrap_or(first_s[lane / operations.dp_size]);
        not_negative(operations.round(operations.start_s[slot] - from_s))
    };
    (0..operations.start_s.len()).map(delay_s).collect()
}

/// The measured duration of computation, and the transfer time of communication.
fn lengths_s(operations: &Operations, dependencies: &Dependencies) -> Vec<f64> {
    let lanes = operations.lanes();
    let mut length_s = operations.duration_s.clone();
    let mut met_s = vec![0.0; lanes];
    for (group, members) in dependencies.groups.iter().enumerate() {
        met_s.fill(f64::NEG_INFINITY);
        last_starts(members, &operations.start_s, &mut met_s);
        if dependencies.meets_over_dp[group] {
            over_dp(&mut met_s, operations.dp_size);
        }
        for at in members {
            for (lane, met_s) in met_s.iter().enumerate() {
                let slot = *at as usize * lanes + lane;
                length_s[slot] = not_negative(operations.round(operations.end_s[slot] - met_s));
            }
        }
    }
    length_s
}

fn not_negative(seconds: f64) -> f64 {
    if seconds <= -NEGATIVE_S { 0.0 } else { seconds }
}
