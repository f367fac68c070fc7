//! How a finding is made, and the words that several findings share.

use trace::{FindingRow, Severity, StepBreakdownRow};

use model::analysis::Analysis;
use model::claim::Claim;
use model::units::shorten;

/// A finding: what it claims, and its row, whose words are made from the same numbers.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Found {
    pub(crate) claim: Claim,
    pub(crate) row: FindingRow,
}

/// Makes a finding, whose kind adds its id. The claim names the table that holds the numbers in `evidence`.
pub(crate) fn finding(claim: Claim, severity: Severity, title: String, evidence: String, suggestion: &str) -> Found {
    let row = FindingRow {
        id: Default::default(),
        severity: severity.into(),
        saving_ns: None,
        title: title.into(),
        evidence: evidence.into(),
        evidence_table: claim.evidence.table.into(),
        suggestion: suggestion.into(),
    };
    Found { claim, row }
}

/// Adds the prediction: a step becomes shorter by at most `saving_ns`.
pub(crate) fn saving(saving_ns: i64, found: Found) -> Found {
    Found { row: FindingRow { saving_ns: Some(saving_ns.max(0)), ..found.row }, ..found }
}

/// The breakdown rows of single steps. The total over all steps and empty steps are excluded.
pub(crate) fn step_rows(analysis: &Analysis) -> impl Iterator<Item = &StepBreakdownRow> {
    analysis.tables.step_breakdown.iter().filter(|r| r.step.is_some_and(|s| s >= 0) && r.wall_ns > 0)
}

/// The share of `part` in `whole`, in percent.
pub(crate) fn share((part, whole): &(i64, i64)) -> f64 {
    100.0 * *part as f64 / (*whole).max(1) as f64
}

/// `device 0 of rank 3`, or `rank 3` for its CPU.
pub(crate) fn place(rank: i32, device: Option<i64>) -> String {
    device.map_or(format!("rank {rank}"), |device| format!("device {device} of rank {rank}"))
}

/// A kernel's name in a title: names of templates may have thousands of letters.
pub(crate) fn short_name(name: &str) -> String {
    shorten(name, 80)
}
