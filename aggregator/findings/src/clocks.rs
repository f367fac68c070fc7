//! Clocks that are wrong, whose error is unknown, or that are not as accurate as the ranks are close. At most one of these is
//! found: the first.

use trace::Severity;

use crate::finding::{Found, finding};
use crate::registry::Context;
use model::analysis::Analysis;
use model::claim::{Advice, Claim, Quantity, Relation, Value};
use model::units::{plural, ranks_named};

kind! {
    /// The clocks of ranks contradict the order of events.
    CONTRADICTING_CLOCKS: "contradicting-clocks", makes numbers invalid, by contradicting
}

kind! {
    /// The error of the clocks is unknown for some collectives.
    UNKNOWN_CLOCK_ERROR: "unknown-clock-error", makes numbers invalid, by unknown_error
}

kind! {
    /// In most collectives, the ranks arrive closer together than the clock error.
    COARSE_CLOCKS: "coarse-clocks", by coarse
}

fn contradicting(context: &Context<'_>) -> Option<Found> {
    let fits = &context.analysis.tables.clock_fit;
    let violations = violations(context.analysis);
    (violations > 0).then(|| {
        let mut of_ranks: Vec<i32> = fits.iter().filter(|c| c.violations > 0).map(|c| c.rank).collect();
        of_ranks.dedup();
        let claim = Claim::new(Quantity::ClockError, Relation::Exceeds, "clock_fit").of_ranks(&of_ranks);
        finding(
            claim.value(Value::Count(violations)),
            Severity::Warning,
            format!("the clocks of {} contradict the order of events in {violations} collectives", ranks_named(&of_ranks)),
            "clock_fit.violations: a rank left a collective before another rank entered it, by more than both bounds".into(),
            "do not trust time differences between those ranks; see clock_fit, and check whether a system clock was set",
        )
    })
}

fn violations(analysis: &Analysis) -> i64 {
    analysis.tables.clock_fit.iter().map(|c| c.violations).sum()
}

/// Where the clocks contradict themselves, their error is the lesser question.
fn unknown_error(context: &Context<'_>) -> Option<Found> {
    let unknown = unknown_errors(context.analysis);
    let instances = &context.analysis.tables.collective_instances;
    (unknown > 0 && violations(context.analysis) == 0).then(|| {
        let claim = Claim::new(Quantity::ClockError, Relation::Unknown, "collective_instances");
        finding(
            claim.value(Value::Count(unknown as i64)),
            Severity::Warning,
            format!("the error of the clocks is unknown for {unknown} of {}", plural(instances.len(), "collective")),
            "collective_instances.error_ns is null: the clocks of these ranks were never compared, and no barrier joins them"
                .into(),
            "do not read waits and the order of arrival of these collectives: they may be offsets of clocks; own_excess_ns needs no \
             common clock",
        )
    })
}

/// The number of collectives whose error is unknown.
fn unknown_errors(analysis: &Analysis) -> usize {
    analysis.tables.collective_instances.iter().filter(|i| i.error_ns.is_none()).count()
}

/// The clocks are right, but not as accurate as the ranks are close.
fn coarse(context: &Context<'_>) -> Option<Found> {
    let analysis = context.analysis;
    if violations(analysis) > 0 || unknown_errors(analysis) > 0 {
        return None;
    }
    // One rank arrives neither before nor after another.
    let of_several = analysis.tables.collective_instances.iter().filter(|i| i.ranks_seen > 1);
    let with_error = of_several.filter_map(|i| Some((i.skew_ns, i.error_ns?)));
    let (inside, total) = with_error
        .fold((0_i64, 0_i64), |(inside, total), (skew, error)| (inside + i64::from(skew <= error), total + 1));
    (total > 0 && 2 * inside > total).then(|| {
        let claim = Claim::new(Quantity::Arrival, Relation::Within, "collective_instances");
        finding(
            claim.value(Value::Count(inside)).advises(Advice::CompareRanks),
            Severity::Info,
            format!("in {inside} of {total} collectives, the ranks arrive closer together than the clock error"),
            "skew_ns ≤ error_ns; threshold: half of the collectives".into(),
            "do not read the waits and the order of arrival of those collectives; own_excess_ns needs no common clock",
        )
    })
}
