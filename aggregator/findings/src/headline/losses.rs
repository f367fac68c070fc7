//! Losses and the verdict. A rank whose recorded rows are lost is not named as the cause, because its rows may show another reason. The
//! job is not called balanced either, because the others may wait for that rank.

use trace::{OmissionKind, OmissionRow, Verdict as RankVerdict};

use model::analysis::{Facts, Tables};
use model::units::count;

/// The items of omissions whose loss matters. Rows after the last part of a rank, or text after the document of a trace, do not change
/// the steps before them. A rank without any row is listed as missing.
const EVIDENCE: [&str; 4] = ["rows", "rows of events", "rows of collectives", "rows of steps"];

/// A loss of less than this share of a rank's rows decides nothing.
const LEAST_SHARE: f64 = 0.01;

/// The losses that leave a verdict open, in words; `None`: there are none.
pub(super) fn doubt(tables: &Tables, facts: &Facts) -> Option<String> {
    let all: Vec<&OmissionRow> = tables.omissions.iter().filter(|row| leaves_open(row, facts)).collect();
    let first = all.iter().min_by_key(|row| (row.rank.is_none(), row.rank))?;
    let which = match (first.rank, first.amount) {
        (Some(rank), Some(amount)) => format!("rank {rank} lost {} {}", count(amount.unsigned_abs()), first.what),
        (Some(rank), None) => format!("{} of rank {rank} are lost", first.what),
        (None, _) => format!("{} are lost ({})", first.what, first.why),
    };
    let more = match all.len() - 1 {
        0 => String::new(),
        more => format!(" (and {more} more losses)"),
    };
    Some(format!("{which}{more}, so what happened there is unknown"))
}

fn leaves_open(row: &OmissionRow, facts: &Facts) -> bool {
    // A word outside the vocabulary comes from a newer version, and may mean a loss.
    let is_lost = row.kind.known().is_none_or(|kind| kind == OmissionKind::Lost);
    let ranks = facts.ranks.len().max(1) as f64;
    let of_rank = match &*row.what {
        "rows of collectives" => facts.collectives as f64 / ranks,
        "rows of steps" => facts.steps.len() as f64,
        _ => facts.events as f64 / ranks,
    };
    let is_small = row.amount.is_some_and(|amount| (amount as f64) < LEAST_SHARE * of_rank);
    is_lost && EVIDENCE.contains(&&*row.what) && !is_small
}

/// Makes causes suspects whose own rows are lost, or may be.
pub fn take_losses(tables: &mut Tables, facts: &Facts) {
    let Some(doubt) = doubt(tables, facts) else { return };
    let lost: Vec<Option<i32>> =
        tables.omissions.iter().filter(|row| leaves_open(row, facts)).map(|row| row.rank).collect();
    let is_open = |rank: Option<i32>| lost.contains(&None) || rank.is_some() && lost.contains(&rank);
    let causes = tables.stragglers.iter_mut().filter(|row| row.verdict == RankVerdict::Cause);
    for row in causes.filter(|row| is_open(Some(row.rank))) {
        row.verdict = RankVerdict::Undecided.into();
        row.doubt = Some(doubt.as_str().into());
    }
    let lines = tables.lost_time_lines.iter_mut().filter(|line| line.verdict == RankVerdict::Cause);
    for line in lines.filter(|line| is_open(line.rank)) {
        line.verdict = RankVerdict::Undecided.into();
    }
}
