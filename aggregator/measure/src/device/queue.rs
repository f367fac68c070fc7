//! The queue length of each stream: the number of launched pieces of work that wait, as in HTA's
//! `trace_analysis.get_queue_length_summary`. The table also has the time for which a full queue would block a launch
//! (`get_time_spent_blocked_on_full_queue`, but for every stream).
//!
//! ```text
//!  launches   |   |   |
//!  starts          |      |  |
//!  length     1111 21 22222 11 0        one point at each change
//! ```
//!
//! Work cannot start before its launch. So at the same time launches come first. Work that starts before its launch by
//! the clocks of the trace leaves the queue at its launch. Therefore no length is negative, as lengths in HTA can be.

use std::collections::BTreeMap;

use trace::QueueLengthRow;

use model::intervals::{Interval, IntervalSet};
use model::stats::describe_counts;
use model::{NONE, RankData};
use trace::rank::Launch;

/// HTA's `max_queue_length`: the number of launches that a CUDA stream holds before the next launch blocks.
pub const FULL_QUEUE_LENGTH: i64 = 1024;

#[derive(Debug, Default)]
struct Stream {
    launched_ns: Vec<i64>,
    /// The start of each piece of work, or its launch if that is later.
    started_ns: Vec<i64>,
    before_launch: i64,
}

/// Makes one row for each stream.
pub(super) fn queue_length(data: &RankData, launched: &[Launch], recorded: &IntervalSet) -> Vec<QueueLengthRow> {
    let events = &data.events;
    let mut streams: BTreeMap<(i64, i64), Stream> = BTreeMap::new();
    for launch in launched {
        let (host, device) = (launch.host as usize, launch.device as usize);
        let stream = streams.entry((events.device[device], events.stream[device])).or_default();
        let (launched_ns, started_ns) = (events.ts_ns[host], events.ts_ns[device]);
        stream.before_launch += i64::from(started_ns < launched_ns);
        stream.launched_ns.push(launched_ns);
        stream.started_ns.push(started_ns.max(launched_ns));
    }
    let rank = data.outline.info.rank;
    streams.into_iter().filter_map(|(place, stream)| stream.row(rank, place, recorded)).collect()
}

impl Stream {
    /// All changes of the length in the order of time: the time, and whether work starts. At the same time launches
    /// come first.
    fn changes(&self) -> impl Iterator<Item = (i64, bool)> {
        let (mut launched, mut started) = (self.launched_ns.iter().peekable(), self.started_ns.iter().peekable());
        std::iter::from_fn(move || match (launched.peek(), started.peek()) {
            (Some(launch), Some(start)) if launch <= start => launched.next().map(|ts_ns| (*ts_ns, false)),
            (Some(_), None) => launched.next().map(|ts_ns| (*ts_ns, false)),
            _ => started.next().map(|ts_ns| (*ts_ns, true)),
        })
    }

    fn row(mut self, rank: i32, (device, stream): (i64, i64), recorded: &IntervalSet) -> Option<QueueLengthRow> {
        // Nearly all rows are in order already, and the stable sort is fast on such runs.
        self.launched_ns.sort();
        self.started_ns.sort();
        let (first_ns, last_ns) = (*self.launched_ns.first()?, *self.started_ns.last()?);
        // The number of times that each length was reached. No length exceeds the number of launches; most are far
        // shorter.
        let mut reached: Vec<u64> = Vec::new();
        let (mut length, mut since_ns) = (0_usize, first_ns);
        let (mut full_ns, mut weighted) = (0_i64, 0_f64);
        for (ts_ns, starts) in self.changes() {
            let held_ns = ts_ns.saturating_sub(since_ns);
            full_ns = full_ns.saturating_add(if length as i64 >= FULL_QUEUE_LENGTH { held_ns } else { 0 });
            weighted += length as f64 * held_ns as f64;
            // Work starts after its launch, so the length is at least 1 here.
            length = if starts { length.saturating_sub(1) } else { length + 1 };
            since_ns = ts_ns;
            if reached.len() <= length {
                reached.resize(length + 1, 0);
            }
            reached[length] += 1;
        }
        let points = describe_counts(&reached)?;
        // Nothing is known of the pauses between two windows of the recorder.
        let span_ns = recorded.clip(Interval::new(first_ns, last_ns)).len_ns();
        let recorded_ns = recorded.len_ns();
        Some(QueueLengthRow {
            rank,
            device_id: Some(device).filter(|id| *id != NONE),
            stream_id: Some(stream).filter(|id| *id != NONE),
            launches: self.launched_ns.len() as i64,
            before_launch: self.before_launch,
            points: points.count,
            mean_length: points.mean,
            std_length: points.std.unwrap_or(0.0),
            min_length: points.min as i64,
            p25_length: points.p25,
            p50_length: points.p50,
            p75_length: points.p75,
            max_length: points.max as i64,
            mean_over_time_length: (span_ns > 0).then(|| weighted / span_ns as f64),
            full_ns,
            full_pct: if recorded_ns > 0 { 100.0 * full_ns as f64 / recorded_ns as f64 } else { 0.0 },
        })
    }
}
