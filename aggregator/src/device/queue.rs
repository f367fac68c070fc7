//! How many launched pieces of work waited on each stream: HTA, `trace_analysis.get_queue_length_summary`, and the time
//! that a launch would have been blocked by a full queue (`get_time_spent_blocked_on_full_queue`, but for every
//! stream).
//!
//! ```text
//!  launches   |   |   |
//!  starts          |      |  |
//!  length     1111 21 22222 11 0        one point at each change
//! ```
//!
//! Work cannot start before it is launched: at one instant launches come first, and work that starts earlier than its
//! launch by the trace's clocks leaves the queue when it enters it. So no length is ever negative, as HTA's are.

use std::collections::BTreeMap;

use trace::QueueLengthRow;

use super::Launch;
use super::describe::describe_counts;
use crate::model::{NONE, RankData};

/// HTA's `max_queue_length`: launches that a stream of CUDA takes before the next one blocks.
pub const FULL_QUEUE_LENGTH: i64 = 1024;

#[derive(Debug, Default)]
struct Stream {
    launched_ns: Vec<i64>,
    /// Start of each, or its launch where that is later.
    started_ns: Vec<i64>,
    before_launch: i64,
}

/// One row for each stream. The time series of a rank are dropped with its rows.
pub(super) fn queue_length(data: &RankData, launched: &[Launch], recorded_ns: i64) -> Vec<QueueLengthRow> {
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
    let rank = data.info.rank;
    streams.into_iter().filter_map(|(place, stream)| stream.row(rank, place, recorded_ns)).collect()
}

impl Stream {
    /// Every change of the length in order: its time, and whether it is a start. At one instant launches come first.
    fn changes(&self) -> impl Iterator<Item = (i64, bool)> {
        let (mut launched, mut started) = (self.launched_ns.iter().peekable(), self.started_ns.iter().peekable());
        std::iter::from_fn(move || match (launched.peek(), started.peek()) {
            (Some(launch), Some(start)) if launch <= start => launched.next().map(|ts_ns| (*ts_ns, false)),
            (Some(_), None) => launched.next().map(|ts_ns| (*ts_ns, false)),
            _ => started.next().map(|ts_ns| (*ts_ns, true)),
        })
    }

    fn row(mut self, rank: i32, (device, stream): (i64, i64), recorded_ns: i64) -> Option<QueueLengthRow> {
        // A stable sort finds the runs of rows that are in order as they are: nearly all.
        self.launched_ns.sort();
        self.started_ns.sort();
        let (first_ns, last_ns) = (*self.launched_ns.first()?, *self.started_ns.last()?);
        // How often each length was reached: it never is more than the launches, and mostly far less.
        let mut reached: Vec<u64> = Vec::new();
        let (mut length, mut since_ns) = (0_usize, first_ns);
        let (mut full_ns, mut weighted) = (0_i64, 0_f64);
        for (ts_ns, starts) in self.changes() {
            let held_ns = ts_ns.saturating_sub(since_ns);
            full_ns = full_ns.saturating_add(if length as i64 >= FULL_QUEUE_LENGTH { held_ns } else { 0 });
            weighted += length as f64 * held_ns as f64;
            // Nothing starts before it is launched, so there is one to be taken away.
            length = if starts { length.saturating_sub(1) } else { length + 1 };
            since_ns = ts_ns;
            if reached.len() <= length {
                reached.resize(length + 1, 0);
            }
            reached[length] += 1;
        }
        let points = describe_counts(&reached)?;
        let span_ns = last_ns.saturating_sub(first_ns);
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
