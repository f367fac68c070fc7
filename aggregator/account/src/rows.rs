//! The rows of the tables of stragglers, and what was left out of them.

use trace::{
    LostPart, LostTimeLineRow, LostTimeRow, OmissionRow, StandsOn, StragglerRow, StragglerStepRow, Verdict, WaitRow,
    Word,
};

use crate::charge::{Charges, PAIRED_MAX};
use crate::foreseen::Foreseen;
use crate::judgement::Judgement;
use crate::last::Last;
use crate::lost_time::{Group, Line, LostTime, Part};
use crate::measured::{Measured, Shown};
use crate::scaled::{ACCOUNT, Unaccounted};
use crate::stragglers::Waited;
use measure::own_time::OwnTime;
use model::stats::median_interval_ns;
use model::units::ns;
use topology::arrivals::{Arrival, Joined};
use topology::excess::Excess;
use topology::join::Join;

/// All that the rows of the ranks show.
pub(super) struct JudgedRanks<'a> {
    pub(super) measured: &'a Measured<'a>,
    pub(super) judgement: &'a Judgement,
    pub(super) shown: &'a Shown<'a>,
    pub(super) charges: &'a Charges,
    pub(super) last: &'a Last,
    pub(super) lost_time: Option<&'a LostTime>,
}

impl JudgedRanks<'_> {
    /// The row of the rank at this position.
    pub(super) fn row(&self, rank: usize) -> StragglerRow {
        let Self { measured, shown, charges, .. } = self;
        let excess = measured.excess;
        let own_ns = excess.of_rank(rank);
        let (case, judged) = (&self.judgement.cases[rank], self.judgement.verdicts[rank]);
        let occasion = case.occasion.as_ref();
        let interval = match occasion {
            Some(occasion) => median_interval_ns(&excess.only(&occasion.at).of_rank(rank)),
            None => median_interval_ns(&own_ns),
        };
        let delay_ns = case.delay_ns();
        let bounds_ns = case.cost.zip(judged.1).map(|(cost, _)| (cost.low_ns.max(0), cost.high_ns.max(0)));
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
            step_delay_low_ns: bounds_ns.map(|bounds| bounds.0),
            step_delay_high_ns: bounds_ns.map(|bounds| bounds.1),
            caused_wait_ns: measured.per_waited_step_ns(charges.caused_ns[rank]),
            inherited_ns: measured.per_waited_step_ns(charges.inherited_ns[rank]),
            suffered_wait_ns: measured.per_waited_step_ns(charges.suffered_ns[rank]),
            z: case.own.filter(|_| transfers.is_none()).and_then(|d| d.z()),
            persistence: share_of_steps.or(case.own.map(|d| d.persistence)),
            delayed_steps: occasion.map(|o| o.at.len() as i32),
            period_steps: period.map(|p| p.steps),
            period_first_step: period.map(|p| p.first),
            slowdown: self.lost_time.map(|lost_time| lost_time.slowdown[rank]),
            verdict: judged.0.into(),
            doubt: (judged.0 == Verdict::Undecided).then(|| case.doubt().into()),
            reason: basis.and_then(|_| case.reason(basis)).map(Word::from),
            evidence_range: shown.name(rank),
            evidence_code: shown.code(rank),
            evidence_excess_ns: transfers.map(|t| t.excess_ns).or(range.map(|r| r.excess_ns.round() as i64)),
            evidence_z: range.and_then(|r| r.deviation.z()),
            evidence_persistence: range.map(|r| r.deviation.persistence),
            stands_on: basis.map(Word::from),
            slow_comm_id: transfers.and_then(|t| t.comm_id),
            evidence: Some(case.sentence(judged).into()),
            // Where the rank ran is added later.
            ..StragglerRow::default()
        }
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

/// The parts of the account, step by step, and its lines.
pub(super) fn lost_time_rows(lost_time: &LostTime, parts: &[&OwnTime]) -> (Vec<LostTimeRow>, Vec<LostTimeLineRow>) {
    let (mut rows, mut lines) = (Vec::new(), Vec::new());
    for (part, by_step) in &lost_time.parts {
        let (word, line) = match part {
            Part::Work => (LostPart::Work, None),
            Part::Dependencies => (LostPart::Dependencies, None),
            Part::Transfer => (LostPart::Transfer, None),
            Part::Stages => (LostPart::Stages, None),
            Part::LongerSteps => (LostPart::LongerSteps, None),
            Part::Variation => (LostPart::Variation, None),
            Part::Group(at) => (LostPart::Line, Some(*at)),
        };
        let of_line = line.map_or(Vec::new(), |at| owners(&lost_time.groups[at], parts));
        let count = of_line.len().max(1) as i64;
        let row = LostTimeRow { part: word.into(), line: line.map(|at| at as i32), ..LostTimeRow::default() };
        for (nth, (rank, comm_id)) in (0..count).zip(of_line.into_iter().chain([(None, None)])) {
            let shared = |ns: i64| ns * (nth + 1) / count - ns * nth / count;
            let of_step =
                |(step, ns): (&i32, &i64)| LostTimeRow { rank, comm_id, step: *step, ns: shared(*ns), ..row.clone() };
            rows.extend(lost_time.steps.iter().zip(by_step).map(of_step));
        }
    }
    for (line, group) in (0..).zip(&lost_time.groups) {
        let verdict = match () {
            () if lost_time.is_named(group) => Verdict::Cause,
            () if lost_time.is_suspected(group) => Verdict::Undecided,
            () => Verdict::Ok,
        };
        let of_group = owners(group, parts).into_iter().zip(&group.lines);
        lines.extend(of_group.map(|((rank, comm_id), of_rank)| LostTimeLineRow {
            line,
            rank,
            comm_id,
            pattern: group.pattern.into(),
            steps: group.steps.as_ref().map_or(lost_time.steps.len(), Vec::len) as i32,
            period_steps: group.period.map(|period| period.steps),
            first_step: group.steps.as_ref().and_then(|steps| steps.first().copied()),
            alone_ns: of_rank.alone.map(|cost| cost.ns),
            together_ns: group.together.ns,
            together_low_ns: group.together.low_ns,
            together_high_ns: group.together.high_ns,
            verdict: verdict.into(),
        }));
    }
    (rows, lines)
}

/// The rank, or the communicator, of each line of a group.
fn owners(group: &Group, parts: &[&OwnTime]) -> Vec<(Option<i32>, Option<i64>)> {
    let owner = |line: &Line| match line.comm_id {
        Some(comm_id) => (None, Some(comm_id)),
        None => (line.ranks.first().map(|rank| parts[*rank].rank), None),
    };
    group.lines.iter().map(owner).collect()
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
    /// Collectives whose waits were charged by the typical rank.
    pub(super) unpaired: i64,
    /// Why there is no account.
    pub(super) unaccounted: Option<Unaccounted>,
    /// The steps by the lengths of others, if they are not what was recorded.
    pub(super) unforeseen: Option<Foreseen>,
    /// How much of a step begins later than anything that the graph knows explains, and the step, if that is much.
    pub(super) unexplained_ns: Option<(i64, i64)>,
}

/// The omissions of `join`, and a line for each number of `left_out`.
pub(super) fn omissions(join: &Join, excess: &Excess, parts: &[&OwnTime], left_out: &LeftOut) -> Vec<OmissionRow> {
    let LeftOut { ranges, unpaired, unaccounted, unforeseen, unexplained_ns } = *left_out;
    let mut rows = join.omissions.clone();
    if ranges > 0 {
        let why = "the ranks have too many different ranges; those with the most time are compared";
        rows.push(OmissionRow::left_out("host ranges in straggler evidence", why).amount(ranges));
    }
    if let Some(unaccounted) = unaccounted {
        rows.push(OmissionRow::left_out(ACCOUNT, unaccounted.why()));
    }
    if let Some(foreseen) = unforeseen {
        let why = format!(
            "cannot replay: with the lengths of the steps after them, half of the steps take {} by the graph, and {} by the recording; \
             costs may be off by that share",
            ns(foreseen.replayed_ns),
            ns(foreseen.recorded_ns)
        );
        rows.push(OmissionRow::note("costs in the account of lost time", why));
    }
    if let Some((late_ns, step_ns)) = unexplained_ns {
        let why = format!(
            "{} of each {} step begins later than anything that was recorded explains; costs may be off by that share",
            ns(late_ns),
            ns(step_ns)
        );
        rows.push(OmissionRow::note("starts in the account of lost time", why));
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
