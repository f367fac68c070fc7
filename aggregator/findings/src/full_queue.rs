//! Launch queues that are full.

use trace::Severity;

use crate::finding::{Found, finding, place};
use crate::registry::Context;
use measure::device::FULL_QUEUE_LENGTH;
use model::claim::{Claim, Quantity, Relation, Value};
use model::units::ns;

kind! {
    /// A launch queue is full, so that further launches block the host.
    FULL_LAUNCH_QUEUE: "full-launch-queue", by full_queue
}

fn full_queue(context: &Context<'_>) -> Option<Found> {
    let (analysis, limits) = (context.analysis, context.limits());
    let full = analysis.tables.queue_length.iter().filter(|r| r.full_pct > limits.full_queue_pct);
    let worst = full.max_by(|a, b| a.full_pct.total_cmp(&b.full_pct))?;
    let stream = worst.stream_id.map_or("a stream without a number".to_string(), |stream| format!("stream {stream}"));
    // No prediction: while the queue is full, the device sets the pace.
    let claim = Claim::new(Quantity::QueueLength, Relation::Exceeds, "queue_length").of(worst.rank, worst.device_id);
    Some(finding(
        claim.value(Value::Pct(worst.full_pct)),
        Severity::Info,
        format!(
            "the launch queue of {stream} on {} is full for {:.1} % of the time",
            place(worst.rank, worst.device_id),
            worst.full_pct
        ),
        format!(
            "queue_length.full_ns: {} with {FULL_QUEUE_LENGTH} or more launches waiting (HTA's limit); threshold {} % (this \
             program's)",
            ns(worst.full_ns),
            limits.full_queue_pct
        ),
        "the host is far ahead of the device, so launches block; this costs time only if the host has other work to do",
    ))
}
