//! Collectives that did not end, as a finding and as the headline.

use trace::{Severity, UnfinishedRow};

use crate::finding::{Found, finding};
use crate::registry::Context;
use hang::stuck::Stuck;
use model::analysis::{Analysis, Verdict, VerdictKind};
use model::claim::{Claim, Quantity, Relation, Value};
use model::units::{plural, ranks, ranks_named};

kind! {
    /// A collective did not end: ranks are missing from it, or all of them wait in it.
    HANG: "hang", makes numbers invalid, by found
}

fn found(context: &Context<'_>) -> Option<Found> {
    hang(context.analysis)
}

fn hang(analysis: &Analysis) -> Option<Found> {
    let rows = &analysis.tables.unfinished_collectives;
    let Stuck { collective: row, missing } = Stuck::of(rows)?;
    let or_empty = |ranks: &Option<Vec<i32>>| ranks.clone().unwrap_or_default();
    let (done, started) = (or_empty(&row.done), or_empty(&row.started));
    let enqueued = or_empty(&row.enqueued);
    let cut = &analysis.facts.recording_was_cut;
    // A job that hung and was killed looks like one that was stopped, so this comes before any blame.
    let cancelled = trace::cancelled(&analysis.tables.omissions, analysis.facts.ranks.len());
    let before = match cancelled {
        Some(why) => format!("the job was cancelled ({why}); "),
        None if cut.is_empty() => String::new(),
        None => format!("the recording was cut on {}; ", ranks_named(cut)),
    };
    let title = before + &unfinished_in_words(row);
    let mut evidence = format!(
        "unfinished_collectives: done on {}, started on {}, enqueued on {}; {} in all",
        list(&done),
        list(&started),
        list(&enqueued),
        plural(rows.len(), "unfinished collective")
    );
    if row.rows_lost {
        evidence.push_str("; rows were lost, so a missing rank may have called it");
    }
    if row.unknown > 0 {
        evidence.push_str(&format!("; {} not read, or only in part", plural(row.unknown as usize, "rank")));
    }
    let (severity, suggestion) = match (missing.is_empty(), row.unknown) {
        (true, _) if !cut.is_empty() => (
            Severity::Info,
            "this is normal for a job that was stopped; if it hung before, look for a link or a device that stopped",
        ),
        (true, 0) => (Severity::Warning, "every rank called it: look for a link or a device that stopped"),
        (true, _) => {
            (Severity::Warning, "analyse all ranks over their whole time: a rank that was not read may be missing")
        }
        (false, _) if !cut.is_empty() => (
            Severity::Critical,
            "if the job was stopped, they may have stopped first; if it hung before, look at what they did instead: an \
             exception, another branch, an endless loop",
        ),
        (false, _) => (
            Severity::Critical,
            "look at what those ranks did instead: an exception, another branch, an endless loop, a dead process",
        ),
    };
    let claim = Claim::new(Quantity::Unfinished, Relation::Exceeds, "unfinished_collectives").of_ranks(missing);
    Some(finding(claim.value(Value::Count(rows.len() as i64)), severity, title, evidence, suggestion))
}

/// Which ranks are missing from a collective that did not end, and which wait in it.
pub fn unfinished_in_words(row: &UnfinishedRow) -> String {
    let or_empty = |ranks: &Option<Vec<i32>>| ranks.clone().unwrap_or_default();
    let (started, enqueued, missing) = (or_empty(&row.started), or_empty(&row.enqueued), or_empty(&row.missing));
    let seq = row.seq.map_or(String::new(), |seq| format!(" {seq}"));
    let comm = row.comm_name.as_deref().map_or_else(|| format!("{:#x}", row.comm_id), |name| format!("{name:?}"));
    let name = format!("{}{seq} of communicator {comm}", row.op);
    let (waiting, verb) = if started.is_empty() { (&enqueued, "called") } else { (&started, "entered") };
    match missing.is_empty() {
        true => format!("{name} did not end: {} {verb} it", ranks_named(waiting)),
        false => {
            let is = if missing.len() == 1 { "is" } else { "are" };
            let (missing, waiting) = (ranks_named(&missing), ranks_named(waiting));
            format!("{missing} {is} missing from {name}: {waiting} {verb} it and did not leave")
        }
    }
}

/// Makes a collective from which ranks are missing the headline, if it [precedes](Stuck::precedes) the verdict. How fast the
/// steps before it were is the lesser question.
pub fn take_headline(analysis: &mut Analysis, min_steps: usize) {
    let verdict = &analysis.verdict;
    let was_cut = !analysis.facts.recording_was_cut.is_empty();
    let stuck = Stuck::of(&analysis.tables.unfinished_collectives);
    let Some(stuck) = stuck.filter(|stuck| stuck.precedes(verdict, was_cut, min_steps)) else { return };
    let missing = stuck.missing.to_vec();
    let Some(Found { row: found, .. }) = hang(analysis) else { return };
    let title = if was_cut { "HUNG OR STOPPED" } else { "HUNG" };
    let before = format!("{}: {}", verdict.title, verdict.sentence);
    analysis.verdict = Verdict {
        kind: VerdictKind::Hung,
        finding: Some(HANG.id.into()),
        step_ns: verdict.step_ns,
        exposed_wait_ns: verdict.exposed_wait_ns,
        sentence: format!("{}. The steps before: {before}", found.title),
        title: format!("{title}: {}", ranks_named(&missing)),
        action: Some(format!("{}; `rankscope hang` says who waits for whom", found.suggestion)),
        causes: missing,
        ..Verdict::default()
    };
}

fn list(numbers: &[i32]) -> String {
    if numbers.is_empty() { "none".into() } else { ranks(numbers) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use model::analysis::{Facts, Tables};

    /// A run in which rank 2 is missing from an all-reduce that ranks 0 and 1 entered.
    fn hung(verdict: Verdict, cut: &[i32]) -> Analysis {
        let row = UnfinishedRow {
            comm_name: Some("dp".into()),
            seq: Some(6),
            op: "allreduce".into(),
            started: Some(vec![0, 1]),
            missing: Some(vec![2]),
            ..UnfinishedRow::default()
        };
        let mut analysis = Analysis {
            facts: Facts { recording_was_cut: cut.to_vec(), ..Facts::default() },
            verdict,
            tables: Tables { unfinished_collectives: vec![row], ..Tables::default() },
            ..Analysis::default()
        };
        take_headline(&mut analysis, 3);
        analysis
    }

    fn verdict(kind: VerdictKind, causes: &[i32], title: &str) -> Verdict {
        Verdict {
            kind,
            causes: causes.to_vec(),
            steps: 20,
            title: title.into(),
            sentence: "…".into(),
            ..Verdict::default()
        }
    }

    #[test]
    fn a_hang_is_the_headline_and_the_steps_before_it_stay_in_the_sentence() {
        let balanced = verdict(VerdictKind::Balanced, &[], "BALANCED");
        let found = hung(balanced.clone(), &[]).verdict;
        assert_eq!((found.kind, &found.causes[..], &*found.title), (VerdictKind::Hung, &[2][..], "HUNG: rank 2"));
        let expected = "rank 2 is missing from allreduce 6 of communicator \"dp\": ranks 0–1 entered it and did not leave. The \
                        steps before: BALANCED: …";
        assert_eq!(found.sentence, expected);
        assert_eq!(hung(balanced, &[0, 1]).verdict.title, "HUNG OR STOPPED: rank 2");
    }

    #[test]
    fn a_recording_that_was_cut_keeps_a_verdict_that_names_a_rank() {
        let cause = verdict(VerdictKind::Cause, &[1], "SLOW RANK 1");
        assert_eq!(hung(cause.clone(), &[0]).verdict.kind, VerdictKind::Cause);
        assert_eq!(hung(cause, &[]).verdict.kind, VerdictKind::Hung);
        let suspect = Verdict { suspects: vec![1], ..verdict(VerdictKind::Undecided, &[], "UNDECIDED: rank 1") };
        assert_eq!(hung(suspect.clone(), &[0]).verdict.kind, VerdictKind::Undecided);
        let of_one_step = Verdict { steps: 1, ..suspect.clone() };
        assert_eq!(hung(of_one_step, &[0]).verdict.title, "HUNG OR STOPPED: rank 2");
        let by_chance = Verdict { within_variation: true, ..suspect };
        assert_eq!(hung(by_chance, &[0]).verdict.title, "HUNG OR STOPPED: rank 2");
    }

    /// Signals stopped all ranks, as a scheduler or Ctrl-C do: it may have hung before.
    #[test]
    fn a_job_that_was_cancelled_is_said_to_be() {
        let mut analysis = hung(Verdict::default(), &[0, 1, 2]);
        analysis.facts.ranks = vec![0, 1, 2];
        let why = "the training stopped in step 6: signal 15 (SIGTERM) stopped this process";
        let of_rank = |rank: i32| trace::OmissionRow::left_out(trace::REST_OF_PROGRAM, why).rank(rank);
        analysis.tables.omissions = (0..3).map(of_rank).collect();
        let title = hang(&analysis).unwrap().row.title;
        assert!(
            title.starts_with("the job was cancelled (signal 15 (SIGTERM) stopped this process); rank 2"),
            "{title}"
        );
        assert_eq!(analysis.verdict.title, "HUNG OR STOPPED: rank 2");
    }
}
