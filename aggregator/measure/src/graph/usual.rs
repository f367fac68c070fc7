//! The usual times of a file between a cause and the start that follows from it.

use super::calls::Work;
use super::nodes::NEAR_NS;

/// Usual times, each measured on the file itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Usual {
    /// From a launching call to the start of a kernel, and of a copy, on a stream that rests.
    pub(super) launch_ns: [i64; 2],
    /// How much later such a start may be and still be explained.
    pub(super) fine_ns: [i64; 2],
    /// The same after the work before it on the stream.
    pub(super) stream_ns: i64,
    /// The same after work on another stream.
    pub(super) across_ns: i64,
}

/// The usual time from launch to start if the file has none: what CUDA needs.
const LAUNCH_NS: i64 = 7_000;
/// So many are needed to know what is usual.
const LEAST: usize = 5;
/// A start this soon after an end may follow from it.
const MAY_FOLLOW_NS: i64 = 30_000;
/// Work that was launched this long before the work before it ended had nothing to wait for but that.
const LAUNCHED_AHEAD_NS: i64 = 30_000;

impl Usual {
    /// `works` are in the order of launches. Returns also by how much the device's clock is early, or 0.
    pub(super) fn of(works: &[Work]) -> (Self, i64) {
        let (mut launched, mut gaps) = ([Vec::new(), Vec::new()], Vec::new());
        let mut by_start: Vec<&Work> = works.iter().collect();
        by_start.sort_by_key(|work| work.start_ns);
        let streams = works.iter().map(|work| work.stream as usize + 1).max().unwrap_or(0);
        let mut last: Vec<Option<&Work>> = vec![None; streams];
        for work in by_start {
            let before = last[work.stream as usize];
            match (work.called_ns, before) {
                (Some(called_ns), before)
                    if before.is_none_or(|before| before.end_ns < called_ns) && !work.is_comm && !work.is_pageable =>
                {
                    launched[usize::from(work.is_copy)].push(work.start_ns - called_ns);
                }
                (Some(called_ns), Some(before))
                    if called_ns < before.end_ns - LAUNCHED_AHEAD_NS
                        && (work.start_ns - before.end_ns).abs() < MAY_FOLLOW_NS =>
                {
                    gaps.push(work.start_ns - before.end_ns);
                }
                _ => {}
            }
            last[work.stream as usize] = before.filter(|before| before.end_ns >= work.end_ns).or(Some(work));
        }
        launched.iter_mut().for_each(|all| all.sort_unstable());
        gaps.sort_unstable();
        let launch_ns = [0, 1].map(|what: usize| quantile(&launched[what], 1, LAUNCH_NS).min(MAY_FOLLOW_NS));
        let fine_ns = [0, 1]
            .map(|what: usize| (quantile(&launched[what], 5, 0) - launch_ns[what] + NEAR_NS).clamp(5_000, 20_000));
        let usual = Self {
            launch_ns,
            fine_ns,
            stream_ns: (quantile(&gaps, 5, 0) + NEAR_NS).max(NEAR_NS),
            across_ns: (quantile(&across(works), 5, 0) + NEAR_NS).max(NEAR_NS),
        };
        // Work cannot begin before its call, so the clock of the device is early.
        let early_ns = LAUNCH_NS - quantile(&launched[0], 1, LAUNCH_NS);
        (usual, if (NEAR_NS..100_000).contains(&early_ns) { early_ns } else { 0 })
    }
}

/// The times from the end of the last computation that was launched before to the start of communication, ascending.
fn across(works: &[Work]) -> Vec<i64> {
    let mut across = Vec::new();
    let mut computed: Option<&Work> = None;
    for work in works {
        let Some(before) = computed.filter(|_| work.is_comm) else {
            computed = if work.is_comm { computed } else { Some(work) };
            continue;
        };
        let is_ahead = work.called_ns.is_some_and(|called_ns| called_ns < before.end_ns - LAUNCHED_AHEAD_NS);
        if is_ahead && (work.start_ns - before.end_ns).abs() < 20_000 {
            across.push(work.start_ns - before.end_ns);
        }
    }
    across.sort_unstable();
    across
}

/// The value below which this many tenths lie; `default` of few values.
fn quantile(sorted: &[i64], tenths: usize, default: i64) -> i64 {
    if sorted.len() < LEAST { default } else { sorted[(sorted.len() - 1) * tenths / 10] }
}
