//! The times of each gradient bucket: ready → enqueued → started → ended, and the part that compute does not hide.
//!
//! ```text
//!  backward   ####|ready
//!  bucket         ....|enqueue..|start~~~~~~~|last arrival######|end
//!  compute    #############################
//!             queue = start − enqueue            exposed = |[start, end) \ K|
//! ```

use rustc_hash::FxHashMap;
use trace::{BucketTimingRow, InstanceRow};

use align::clock::Clocks;
use measure::part::RankPart;
use model::Instance;

/// Makes one row for each step, bucket and rank, in that order. `instances` and `rows` must have the same order.
pub fn bucket_timing(
    instances: &[Instance],
    rows: &[InstanceRow],
    parts: &[RankPart],
    clocks: &Clocks,
) -> Vec<BucketTimingRow> {
    let part_by_rank: FxHashMap<i32, &RankPart> = parts.iter().map(|p| (p.outline.info.rank, p)).collect();
    let mut timing = Vec::new();
    for (instance, row) in instances.iter().zip(rows) {
        for member in &instance.members {
            let Some(part) = part_by_rank.get(&member.rank) else { continue };
            let index = member.index as usize;
            let Some(collective) = part.outline.collectives.get(index) else { continue };
            let Some(exposed_ns) = collective.exposed_ns() else { continue };
            let (Some(step), Some(bucket), Some(end)) = (collective.step(), collective.bucket(), member.end_ns) else {
                continue;
            };
            let global = |t: i64| clocks.global(member.rank, member.device_clock, t);
            let host = |t: i64| clocks.global(member.rank, false, t);
            let (start_ns, end_ns) = (global(member.start_ns), global(end));
            let enqueue_ns = collective.enqueue_ns().map(host);
            let dur_ns = end - member.start_ns;
            timing.push(BucketTimingRow {
                step,
                bucket,
                rank: member.rank,
                bytes: collective.bytes,
                ready_ns: collective.ready_ns().map(host),
                enqueue_ns,
                start_ns,
                end_ns,
                queue_ns: enqueue_ns.map(|enqueue| start_ns - enqueue),
                wait_ns: Some(row.last_start_ns.min(end_ns) - start_ns).filter(|_| row.complete),
                transfer_ns: row.transfer_ns,
                exposed_ns,
                hidden_pct: (dur_ns > 0).then(|| 100.0 * (1.0 - exposed_ns as f64 / dur_ns as f64)),
            });
        }
    }
    timing.sort_by_key(|t| (t.step, t.bucket, t.rank, t.start_ns));
    timing
}
