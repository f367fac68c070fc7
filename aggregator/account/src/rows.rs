//! The rows of the tables of stragglers, and what was left out of them.

use trace::{OmissionRow, StandsOn, StragglerRow, StragglerStepRow, Verdict, WaitRow, Word};

use crate::charge::{Charges, PAIRED_MAX};
use crate::classify::{Case, Judged};
use crate::last::Last;
use crate::measured::{Measured, Shown};
use crate::standing::RANK_SIGMA;
use crate::stragglers::{Together, Waited};
use measure::own_time::OwnTime;
use model::stats::median_interval_ns;
use model::thresholds::Thresholds;
use model::units::ns;
use topology::arrivals::{Arrival, Joined};
use topology::excess::Excess;
use topology::join::Join;

/// All that the rows of the ranks show.
pub(super) struct JudgedRanks<'a> {
    pub(super) measured: &'a Measured<'a>,
    pub(super) cases: &'a [Case],
    pub(super) verdicts: &'a [Judged],
    pub(super) shown: &'a Shown<'a>,
    pub(super) charges: &'a Charges,
    pub(super) last: &'a Last,
    /// By how much the delay of each rank that stands out may be off, at 95 %.
    pub(super) errors_ns: Vec<Option<i64>>,
    /// Whether ranks send to each other. What their work waits for is not recorded, so more of an excess may delay the steps.
    pub(super) has_sends: bool,
    /// The length of the run.
    pub(super) length_ns: Option<i64>,
}

impl JudgedRanks<'_> {
    /// The row of the rank at this position.
    pub(super) fn row(&self, rank: usize, thresholds: &Thresholds) -> StragglerRow {
        let Self { measured, shown, charges, .. } = self;
        let excess = measured.excess;
        let own_ns = excess.of_rank(rank);
        let (case, judged) = (&self.cases[rank], self.verdicts[rank]);
        let occasion = case.occasion.as_ref();
        let interval = match occasion {
            Some(occasion) => median_interval_ns(&excess.only(&occasion.at).of_rank(rank)),
            None => median_interval_ns(&own_ns),
        };
        let (delay_ns, error_ns) = (case.delay_ns(judged.1), self.error_ns(rank));
        let transfers = case.transfers.as_ref().filter(|_| judged.1 == Some(StandsOn::Transfers));
        let share_of_steps = occasion
            .map(|o| o.at.len() as f64 / o.steps as f64)
            .or(transfers.map(|t| t.shown as f64 / t.steps.max(1) as f64));
        let period = occasion.and_then(|o| o.period);
        let basis = judged.1.filter(|_| case.own.is_some());
        let range = shown.evidence(rank);
        StragglerRow {
            rank: measured.parts[rank].rank,
            steps: own_ns.len() as i32,
            steps_last: excess.steps_of(rank).filter(|&step| self.last.was_last(rank, step)).count() as i32,
            own_excess_ns: case.own_excess_ns,
            own_excess_low_ns: interval.map(|i| i.0),
            own_excess_high_ns: interval.map(|i| i.1),
            step_delay_ns: delay_ns,
            step_delay_low_ns: error_ns.map(|error| (delay_ns - error).max(0)),
            step_delay_high_ns: error_ns.map(|error| delay_ns.max(self.unseen_ns(rank)).saturating_add(error)),
            caused_wait_ns: measured.per_waited_step_ns(charges.caused_ns[rank]),
            inherited_ns: measured.per_waited_step_ns(charges.inherited_ns[rank]),
            suffered_wait_ns: measured.per_waited_step_ns(charges.suffered_ns[rank]),
            z: case.own.filter(|_| transfers.is_none()).and_then(|d| d.z()),
            persistence: share_of_steps.or(case.own.map(|d| d.persistence)),
            delayed_steps: occasion.map(|o| o.at.len() as i32),
            period_steps: period.map(|p| p.steps),
            period_first_step: period.map(|p| p.first),
            slowdown: self.slowdown(rank),
            verdict: judged.0.into(),
            doubt: (judged.0 == Verdict::Undecided).then(|| case.doubt(thresholds).into()),
            reason: basis.and_then(|_| case.reason(basis)).map(Word::from),
            evidence_range: shown.name(rank),
            evidence_excess_ns: transfers.map(|t| t.excess_ns).or(range.map(|r| r.excess_ns.round() as i64)),
            evidence_z: range.and_then(|r| r.deviation.z()),
            evidence_persistence: range.map(|r| r.deviation.persistence),
            stands_on: basis.map(Word::from),
            slow_comm_id: transfers.and_then(|t| t.comm_id),
            evidence: Some(case.sentence(judged, thresholds).into()),
            // Where the rank ran is added later.
            ..StragglerRow::default()
        }
    }

    /// With sends, no less than ranks usually differ by.
    fn error_ns(&self, rank: usize) -> Option<i64> {
        let least_ns = if self.has_sends { RANK_SIGMA * self.cases[rank].step_ns as f64 } else { 0.0 };
        self.errors_ns[rank].map(|error_ns| error_ns.max(least_ns.round() as i64))
    }

    /// With sends, all of an excess may delay the step.
    fn unseen_ns(&self, rank: usize) -> i64 {
        let case = &self.cases[rank];
        let transfers = case.transfers.as_ref().filter(|_| self.verdicts[rank].1 == Some(StandsOn::Transfers));
        let excess_ns = transfers.map_or(case.own_excess_ns, |transfers| transfers.excess_ns);
        if self.has_sends { excess_ns } else { 0 }
    }

    /// The delay by all causes together, whose errors add up as those of independent measurements.
    pub(super) fn together(&self, ns: i64) -> Together {
        let causes = || (0..self.verdicts.len()).filter(|rank| self.verdicts[*rank].0 == Verdict::Cause);
        let squares: Option<Vec<f64>> = causes().map(|rank| Some((self.error_ns(rank)? as f64).powi(2))).collect();
        let error_ns = squares.map(|squares| squares.iter().sum::<f64>().sqrt().round() as i64);
        let most_ns = causes().map(|rank| self.unseen_ns(rank)).max().unwrap_or(0).max(ns);
        let interval = |error: i64| (ns.saturating_sub(error).max(0), most_ns.saturating_add(error));
        Together { ns, interval_ns: error_ns.map(interval) }
    }

    fn slowdown(&self, rank: usize) -> Option<f64> {
        let (length_ns, saved_ns) = (self.length_ns?, self.measured.alone_ns[rank]?);
        (length_ns > saved_ns).then(|| length_ns as f64 / (length_ns - saved_ns) as f64)
    }
}

/// One row for each rank and compared step.
pub(super) fn step_rows(parts: &[&OwnTime], excess: &Excess, shown: &Shown<'_>) -> Vec<StragglerStepRow> {
    let row = |rank: usize, at: usize| StragglerStepRow {
        rank: parts[rank].rank,
        step: excess.steps[at],
        own_excess_ns: excess.ns[rank][at],
        evidence_range: shown.name(rank),
        evidence_excess_ns: shown.excess_ns(rank, at).map(|ns| ns.round() as i64),
    };
    (0..parts.len())
        .flat_map(|rank| (0..excess.steps.len()).map(move |at| (rank, at)))
        .map(|(r, at)| row(r, at))
        .collect()
}

/// One row for each instance and rank, and its collective.
pub(super) fn wait_rows(join: &Join, ranks: &[i32]) -> (Vec<WaitRow>, Vec<Waited>) {
    let count = join.instances.iter().map(|i| i.arrivals.len()).sum();
    let (mut rows, mut waited) = (Vec::with_capacity(count), Vec::with_capacity(count));
    for instance in &join.instances {
        let shortest_ns = instance.arrivals.iter().filter_map(Arrival::dur_ns).min();
        // The clock-free wait needs all ranks, because a missing rank may have arrived last.
        let comparable = instance.whole && instance.arrivals.iter().all(|a| a.dur_ns().is_some());
        rows.extend(instance.arrivals.iter().map(|a| WaitRow {
            instance: instance.id,
            rank: ranks[a.rank],
            arrival_ns: a.arrival_ns,
            wait_ns: a.wait_end_ns(instance.last_ns) - a.arrival_ns,
            exposed_wait_ns: None,
            wait_clockfree_ns: a.dur_ns().zip(shortest_ns).filter(|_| comparable).map(|(dur, shortest)| dur - shortest),
            own_excess_ns: instance.own_excess_ns(a),
            inherited_ns: instance.inherited_ns(a),
        }));
        let Joined { symmetric, complete, .. } = *instance;
        waited.extend(instance.arrivals.iter().map(|a| Waited { collective: a.stretch, symmetric, complete }));
    }
    (rows, waited)
}

/// Numbers of what was left out.
pub(super) struct LeftOut {
    /// Host ranges that were not compared.
    pub(super) ranges: i64,
    /// Ranks without a slowdown.
    pub(super) not_replayed: i64,
    /// Slow ranks that were not replayed without the other slow ones.
    pub(super) not_beside: i64,
    /// Communicators and late leavers that were not compared, or not replayed.
    pub(super) groups: i64,
    /// Ranks that were not compared by the times at which they leave collectives.
    pub(super) without_clock: i64,
    /// Collectives whose waits were charged by the typical rank.
    pub(super) unpaired: i64,
    /// Difference of the unchanged replay from the recording.
    pub(super) discrepancy_ns: i64,
}

/// The omissions of `join`, and a line for each number of `left_out`.
pub(super) fn omissions(join: &Join, excess: &Excess, parts: &[&OwnTime], left_out: &LeftOut) -> Vec<OmissionRow> {
    let LeftOut { ranges, not_replayed, not_beside, groups, without_clock, unpaired, discrepancy_ns } = *left_out;
    let mut rows = join.omissions.clone();
    if ranges > 0 {
        let why = "the ranks have too many different ranges; those with the most time are compared";
        rows.push(OmissionRow::left_out("host ranges in straggler evidence", why).amount(ranges));
    }
    if not_replayed > 0 {
        let why = "a replay without each rank would take too long; the ranks with the most own work above the median have one";
        rows.push(OmissionRow::left_out("slowdowns of ranks", why).amount(not_replayed));
    }
    if not_beside > 0 {
        let why = "a replay without each of so many slow ranks would take too long; a rank whose delay others hide may be missing as a cause";
        rows.push(OmissionRow::left_out("delays of slow ranks without the other slow ranks", why).amount(not_beside));
    }
    if groups > 0 {
        let why =
            "too many communicators overlap to compare them all, or too many are slow to replay the run without each";
        rows.push(OmissionRow::left_out("communicators in the search for slow communication", why).amount(groups));
    }
    if without_clock > 0 {
        let why = "the error of their clocks is unknown, so the times at which they leave collectives are not compared";
        rows.push(OmissionRow::note("ranks in the search for slow communication", why).amount(without_clock));
    }
    if discrepancy_ns > 0 {
        let why = format!(
            "clocks contradict the order of arrivals, so that the replay of the run without a change differs from the recording by {}",
            ns(discrepancy_ns)
        );
        rows.push(OmissionRow::note("delays of a step", why));
    }
    if unpaired > 0 {
        let why = format!(
            "with more than {PAIRED_MAX} ranks, what a late rank inherited is measured against a typical rank, not against each rank \
             that waited"
        );
        rows.push(OmissionRow::note("collectives in charges for waits", why).amount(unpaired));
    }
    if excess.skipped > 0 {
        rows.push(
            OmissionRow::left_out(
                "collectives ignored for the verdict",
                "a rank that took part in the step recorded no time there",
            )
            .amount(excess.skipped),
        );
    }
    rows.extend(parts.iter().filter(|p| p.ranges_dropped > 0).map(|p| {
        OmissionRow::left_out("host ranges in straggler evidence", "only the largest ranges are kept")
            .rank(p.rank)
            .amount(p.ranges_dropped as i64)
    }));
    rows
}
