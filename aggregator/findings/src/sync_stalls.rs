//! Hosts that wait for their device.

use std::collections::BTreeMap;

use trace::{Severity, SyncStallRow, Verdict};

use crate::devices::DeviceTime;
use crate::finding::{Found, finding, saving, share};
use crate::registry::Context;
use model::claim::{Advice, Claim, Part, Quantity, Relation, Value};
use model::units::{ns, plural};

kind! {
    /// The host waits for its device.
    ///
    /// The mean time of these waits in a step, or the device's idle time if that is less.
    SYNC_STALLS: "sync-stalls", by stalls
}

/// The device is idle most of the time, so the host launches late. Victims are excluded: their host waits for another rank.
fn stalls(context: &Context<'_>) -> Option<Found> {
    let (analysis, limits, devices) = (context.analysis, context.limits(), &context.devices);
    // Time in waits, and the device with the longest steps.
    let mut by_rank: BTreeMap<i32, (i64, DeviceTime)> = BTreeMap::new();
    for ((rank, _), time) in devices.iter().filter(|(_, time)| time.compute_pct() < limits.device_busy_pct) {
        let (_, longest) = by_rank.entry(*rank).or_default();
        if time.wall_ns > longest.wall_ns {
            *longest = *time;
        }
    }
    for victim in analysis.tables.stragglers.iter().filter(|s| s.verdict == Verdict::Victim) {
        by_rank.remove(&victim.rank);
    }
    for row in &analysis.tables.sync_stalls {
        if let Some((total, _)) = by_rank.get_mut(&row.rank) {
            *total += row.in_steps_ns;
        }
    }
    let pct = |(stalled, time): &(i64, DeviceTime)| share(&(*stalled, time.wall_ns));
    let (rank, sums) = by_rank.iter().max_by(|(_, a), (_, b)| pct(a).total_cmp(&pct(b)))?;
    let of_rank = || analysis.tables.sync_stalls.iter().filter(|row| row.rank == *rank);
    let longest = of_rank().max_by_key(|row| row.in_steps_ns)?;
    let within = [&longest.outer_operator, &longest.annotation].into_iter().flatten().next();
    let within = within.map_or("outside any operator".to_string(), |name| format!("in `{name}`"));
    let (stalled_ns, time) = *sums;
    let per_step_ns = stalled_ns / time.steps.max(1);
    // The work that the host waits for stays, so a wait costs no more than the idle time of the device.
    let idle_ns = per_step_ns.min(time.own_idle_ns());
    let costs = share(&(idle_ns, time.wall_ns / time.steps.max(1))) > limits.sync_stall_pct;
    (costs && pct(sums) > limits.sync_stall_pct).then(|| {
        let claim = Claim::new(Quantity::HostWait, Relation::Exceeds, "sync_stalls").of(*rank, None).value(Value::Ns(per_step_ns));
        let Words { doing, suggestion } = Words::of(of_rank(), longest);
        let found = finding(
            claim.explains(Part::Idle, idle_ns).advises(Advice::BlockLess),
            Severity::Info,
            format!(
                "the host of rank {rank} {doing} {:.0} % of the time, {} of a {} step, most of it {within}",
                pct(sums),
                ns(per_step_ns),
                ns(time.wall_ns / time.steps.max(1))
            ),
            format!(
                "sync_stalls.in_steps_ns: {} on that rank; {} in {} of {}; threshold {} % (this program's), where compute takes less \
                 than {} % of the time",
                ns(stalled_ns),
                ns(longest.in_steps_ns),
                plural(usize::try_from(longest.calls).unwrap_or(usize::MAX), "call"),
                longest.api_call,
                limits.sync_stall_pct,
                limits.device_busy_pct
            ),
            suggestion,
        );
        saving(idle_ns, found)
    })
}

/// The words for the host's waits, and the advice.
struct Words {
    doing: String,
    suggestion: &'static str,
}

impl Words {
    /// A host whose device does nothing for most of a wait does not wait for its work: the call itself is slow, or work has no row.
    fn of<'a>(rows: impl Iterator<Item = &'a SyncStallRow>, longest: &SyncStallRow) -> Self {
        let add = |(all, busy): (i64, i64), row: &SyncStallRow| {
            (all.saturating_add(row.total_ns), busy.saturating_add(row.device_busy_ns))
        };
        let (all_ns, busy_ns) = rows.fold((0, 0), add);
        if busy_ns >= all_ns - busy_ns {
            return Self {
                doing: "waits for its device".into(),
                suggestion: "copies to the host, .item() and printed tensors block the host: move them out of the step, or copy \
                             asynchronously",
            };
        }
        Self {
            doing: format!("is blocked in calls such as {} while its device does nothing,", longest.api_call),
            suggestion: "look at what that call does: a copy from memory that is not pinned, or the first use of a function or of \
                         memory; if it is neither, rows of the device are missing in the trace",
        }
    }
}
