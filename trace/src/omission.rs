//! Rows of `omissions`, built from the parts that are known.

use crate::tables::{CounterRow, OmissionRow};
use crate::words::OmissionKind;
use crate::{Text, Word};

/// Prefixes of the `source` of counters, before the item: such a counter keeps an omission of a recording of another tool that became a run.
const KEPT_OMISSIONS: [(OmissionKind, &str); 3] =
    [(OmissionKind::Lost, "lost: "), (OmissionKind::LeftOut, "left_out: "), (OmissionKind::Note, "note: ")];

/// The `source` of a counter that states why the clocks of some ranks were not compared.
pub const CLOCK_SOURCE: &str = "clock_sync";

/// Error of a profiler's times in the rank's clock that the clock samples of its run allow for, in ns. Their round trips are longer by
/// it at each reading of a clock. A window with a larger error is listed.
pub const PROFILER_ERROR_NS: i64 = 1_000;

/// The `source` of a counter that states why a program was stopped before its end.
pub const CUT_SOURCE: &str = "interrupted";
/// A counter with this prefix in `source`, before the table, counts rows that were stored and are removed.
pub const KEEP_SOURCE: &str = "keep:";
/// The item of the omission that says so.
pub const BEFORE_KEPT: &str = "rows before those that are kept";
/// The item of the omission that says why a program was stopped.
pub const REST_OF_PROGRAM: &str = "rest of the program";

impl OmissionRow {
    /// States that `what` was recorded, but is lost or cannot be read, and why. Its amount, rank and file are unknown.
    pub fn lost(what: impl Into<Text>, why: impl Into<Text>) -> Self {
        Self::of(OmissionKind::Lost, what, why)
    }

    /// States that `what` was not used or never was in the input, and why. Nothing recorded was lost.
    pub fn left_out(what: impl Into<Text>, why: impl Into<Text>) -> Self {
        Self::of(OmissionKind::LeftOut, what, why)
    }

    /// States how the input was read. Nothing is missing.
    pub fn note(what: impl Into<Text>, why: impl Into<Text>) -> Self {
        Self::of(OmissionKind::Note, what, why)
    }

    /// An omission of any kind.
    pub fn of(kind: OmissionKind, what: impl Into<Text>, why: impl Into<Text>) -> Self {
        Self { kind: Word::from(kind), what: what.into(), why: why.into(), ..Self::default() }
    }

    /// Names the rank.
    #[must_use]
    pub fn rank(self, rank: impl Into<Option<i32>>) -> Self {
        Self { rank: rank.into(), ..self }
    }

    /// Names the file.
    #[must_use]
    pub fn file(self, file: impl Into<Option<Text>>) -> Self {
        Self { file: file.into(), ..self }
    }

    /// States the amount, in the unit that `what` names.
    #[must_use]
    pub fn amount(self, amount: impl Into<Option<i64>>) -> Self {
        Self { amount: amount.into(), ..self }
    }
}

impl CounterRow {
    /// The counter of a rank that keeps an omission in a run. An unknown amount is 0 there.
    pub fn of_omission(rank: i32, omission: &OmissionRow) -> Self {
        // A word outside the vocabulary comes from a newer version, and may mean a loss.
        let kind = omission.kind.known().unwrap_or(OmissionKind::Lost);
        let prefix = KEPT_OMISSIONS.iter().find(|(of, _)| *of == kind).map_or("", |(_, prefix)| prefix);
        let (amount, is_lost) = (omission.amount.unwrap_or_default(), kind == OmissionKind::Lost);
        Self {
            rank,
            source: format!("{prefix}{}", omission.what).into(),
            dropped: if is_lost { amount } else { 0 },
            omitted: if is_lost { 0 } else { amount },
            why: Some(omission.why.clone()),
            ..Self::default()
        }
    }

    /// The kind and the item of the omission that the counter keeps; `None` for a counter of a recorder.
    pub fn kept_omission(&self) -> Option<(OmissionKind, &str)> {
        KEPT_OMISSIONS.iter().find_map(|(kind, prefix)| Some((*kind, self.source.strip_prefix(prefix)?)))
    }
}

/// The worst kind of some omissions; `None` without any.
pub fn worst_omission(omissions: &[OmissionRow]) -> Option<OmissionKind> {
    // A word outside the vocabulary comes from a newer version, and may mean a loss.
    omissions.iter().map(|omission| omission.kind.known().unwrap_or(OmissionKind::Lost)).min()
}

/// Signals by which launchers and users stop a job. Others are faults of the program, or of the machine.
const OF_USERS: [&str; 3] = ["(SIGTERM)", "(SIGINT)", "(SIGHUP)"];

/// Why all of so many ranks were stopped before their end, if users' signals stopped them: a job that was cancelled need not hang.
pub fn cancelled(omissions: &[OmissionRow], ranks: usize) -> Option<&str> {
    let is_of_user = |why: &str| OF_USERS.iter().any(|signal| why.contains(signal));
    let stopped = || omissions.iter().filter(|row| &*row.what == REST_OF_PROGRAM && is_of_user(&row.why));
    let of: std::collections::BTreeSet<Option<i32>> = stopped().map(|row| row.rank).collect();
    let why = &*stopped().next()?.why;
    (of.len() >= ranks).then(|| why.split_once(": ").map_or(why, |(_, signal)| signal))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_run_keeps_the_omissions_of_what_it_was_made_of() {
        for (kind, amount) in
            [(OmissionKind::Lost, Some(3)), (OmissionKind::LeftOut, None), (OmissionKind::Note, Some(1))]
        {
            let omission = OmissionRow::of(kind, "marks", "they have no length").rank(2).amount(amount);
            let counter = CounterRow::of_omission(2, &omission);
            assert_eq!(counter.kept_omission(), Some((kind, "marks")));
            let (lost, others) = if kind == OmissionKind::Lost { (3, 0) } else { (0, amount.unwrap_or(0)) };
            assert_eq!((counter.rank, counter.dropped, counter.omitted), (2, lost, others));
        }
        let of_recorder = CounterRow { source: "cupti:KERNEL".into(), dropped: 2, ..CounterRow::default() };
        assert_eq!(of_recorder.kept_omission(), None);
    }

    #[test]
    fn a_job_is_cancelled_if_signals_stopped_all_of_its_ranks() {
        let stopped = |rank: i32, why: &str| OmissionRow::left_out(REST_OF_PROGRAM, why.to_string()).rank(rank);
        let signal = "the training stopped in step 7: signal 15 (SIGTERM) stopped this process";
        let both = [stopped(0, signal), stopped(1, signal)];
        assert_eq!(cancelled(&both, 2), Some("signal 15 (SIGTERM) stopped this process"));
        assert_eq!(cancelled(&both, 3), None, "rank 2 may have died first");
        let by_user =
            [stopped(0, "signal 2 (SIGINT) ended the program"), stopped(1, "signal 15 (SIGTERM) ended the program")];
        assert_eq!(cancelled(&by_user, 2), Some("signal 2 (SIGINT) ended the program"));
        let crashed =
            [stopped(0, "signal 11 (SIGSEGV) ended the program"), stopped(1, "signal 9 (SIGKILL) ended the program")];
        assert_eq!(cancelled(&crashed, 2), None);
        let failed = [stopped(0, signal), stopped(1, "the training stopped in step 7: out of memory")];
        assert_eq!(cancelled(&failed, 2), None);
    }

    #[test]
    fn an_omission_is_built_from_the_parts_that_are_known() {
        let known = OmissionRow::lost("rows", "the file is damaged").rank(3).file(Text::from("a.json")).amount(7);
        let literal = OmissionRow {
            kind: "lost".into(),
            file: Some("a.json".into()),
            rank: Some(3),
            what: "rows".into(),
            amount: Some(7),
            why: "the file is damaged".into(),
        };
        assert_eq!(known, literal);
        let unknown = OmissionRow::left_out("rank", "why").rank(None).amount(None);
        assert_eq!((unknown.file, unknown.rank, unknown.amount), (None, None, None));
    }

    #[test]
    fn a_loss_is_worse_than_what_was_left_out() {
        let (lost, left_out, note) = ("lost", "left_out", "note");
        let worst = |kinds: &[&'static str]| {
            let row = |kind: &&'static str| OmissionRow { kind: (*kind).into(), ..OmissionRow::default() };
            worst_omission(&kinds.iter().map(row).collect::<Vec<_>>())
        };
        assert_eq!(worst(&[]), None);
        assert_eq!(worst(&[note]), Some(OmissionKind::Note));
        assert_eq!(worst(&[note, left_out]), Some(OmissionKind::LeftOut));
        assert_eq!(worst(&[left_out, lost, note]), Some(OmissionKind::Lost));
        assert_eq!(worst(&[note, "of a later version"]), Some(OmissionKind::Lost));
    }
}
