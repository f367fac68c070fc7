//! Findings: the problems that an engineer should look at first, as sentences. Each has its evidence, its threshold and
//! the source of the threshold. `docs/method/findings.md` lists them, with the bound of each predicted saving.
//!
//! ```text
//!   NAME.rs            kind! { /// what it is … NAME: "its-id", by the function that finds it }
//!   here               `mod NAME;` and a line in FINDINGS
//!   Context            what all of them read: the tables, the options, what the reduction kept of the ranks
//! ```

/// Declares a kind of finding beside the function that finds it: its documentation, its name, its id and that function.
macro_rules! kind {
    ($(#[doc = $doc:literal])+ $name:ident: $id:literal, by $find:path) => {
        kind! { @ $($doc)+ $name: $id, $find, false }
    };
    ($(#[doc = $doc:literal])+ $name:ident: $id:literal, makes numbers invalid, by $find:path) => {
        kind! { @ $($doc)+ $name: $id, $find, true }
    };
    (@ $($doc:literal)+ $name:ident: $id:literal, $find:path, $invalidates:literal) => {
        $(#[doc = $doc])+
        pub(crate) static $name: $crate::FindingKind = $crate::FindingKind {
            id: $id,
            doc: concat!($($doc, "\n"),+),
            invalidates: $invalidates,
            find: |context| Vec::from_iter($find(context)),
        };
    };
}

mod clocks;
pub mod communication;
mod devices;
mod exposed_communication;
mod first_steps;
mod full_queue;
pub mod hang;
pub mod headline;
mod idle_devices;
mod input;
mod kernels;
mod late_gathers;
mod launch_bound;
mod lost_rows;
mod memory;
mod narrow_kernels;
mod occupancy;
pub mod overhead;
mod partly_recorded;
mod scattered_waits;
pub mod slow_kernels;
pub mod stages;
mod straggler;
mod sync_stalls;

use std::cmp::Reverse;
use std::collections::BTreeMap;

use trace::{DeviceRow, FindingRow, Severity, StepBreakdownRow};

use self::communication::Suspects;
use self::devices::{Devices, devices_of};
use self::overhead::Overhead;
use measure::part::RankPart;
use model::analysis::Analysis;
use model::limits::Limits;
use model::options::Options;
use model::units::shorten;

/// A kind of finding.
#[derive(Debug)]
pub struct FindingKind {
    /// Its name in kebab case, which never changes: the column `id`, by which programs know the finding.
    pub id: &'static str,
    /// Its documentation: what it says, and after an empty line the bound of its saving if it predicts one.
    pub doc: &'static str,
    /// Whether it makes other numbers invalid. Such findings come first.
    invalidates: bool,
    /// Looks for it.
    find: fn(&Context<'_>) -> Vec<FindingRow>,
}

/// All kinds, in the order of findings that are equally important.
pub static FINDINGS: &[&FindingKind] = &[
    &hang::HANG,
    &lost_rows::LOST_ROWS,
    &clocks::CONTRADICTING_CLOCKS,
    &clocks::UNKNOWN_CLOCK_ERROR,
    &communication::POSSIBLE_COMMUNICATION,
    &overhead::PROFILING_OVERHEAD,
    &straggler::STRAGGLER,
    &scattered_waits::SCATTERED_WAITS,
    &partly_recorded::PARTLY_RECORDED,
    &clocks::COARSE_CLOCKS,
    &exposed_communication::EXPOSED_COMMUNICATION,
    &late_gathers::LATE_GATHERS,
    &stages::UNEVEN_STAGES,
    &stages::PIPELINE_BUBBLE,
    &input::INPUT,
    &input::LIKELY_INPUT,
    &memory::MEMORY_GROWTH,
    &memory::MEMORY_PEAK,
    &memory::MEMORY_FRAGMENTATION,
    &kernels::SLOW_KERNEL,
    &occupancy::LOW_OCCUPANCY,
    &idle_devices::IDLE_DEVICES,
    &launch_bound::LAUNCH_BOUND,
    &sync_stalls::SYNC_STALLS,
    &narrow_kernels::NARROW_KERNELS,
    &full_queue::FULL_LAUNCH_QUEUE,
    &first_steps::SLOW_FIRST_STEPS,
];

/// The data that every finding reads.
pub(crate) struct Context<'a> {
    analysis: &'a Analysis,
    options: &'a Options,
    ranks: &'a OfRanks,
    /// The time of each device in its steps.
    devices: Devices,
}

impl<'a> Context<'a> {
    fn new(analysis: &'a Analysis, options: &'a Options, ranks: &'a OfRanks) -> Self {
        Self { analysis, options, ranks, devices: devices_of(analysis) }
    }

    fn limits(&self) -> &'a Limits {
        &self.options.limits
    }
}

/// The data of the ranks that findings need and no table has. The ranks are dropped before the tables are complete.
#[derive(Debug, Default)]
pub struct OfRanks {
    /// Memory of each device in bytes, by rank and device.
    memory_bytes: BTreeMap<(i32, i64), i64>,
    /// Kernels that may communicate.
    suspects: Suspects,
    /// The cost of profiling, if it matters.
    overhead: Option<Overhead>,
}

impl OfRanks {
    /// `breakdown` has the steps of all ranks, in the order of ranks.
    pub fn of(parts: &[RankPart], breakdown: &[StepBreakdownRow]) -> Self {
        let device = |d: &DeviceRow| Some(((d.rank, d.device_id), d.memory_bytes?));
        Self {
            memory_bytes: parts.iter().flat_map(|part| &part.devices).filter_map(device).collect(),
            suspects: Suspects::of(parts.iter().map(|part| (part.outline.info.rank, &part.communication))),
            overhead: Overhead::of(parts, breakdown),
        }
    }
}

/// Adds the findings to an analysis, and names the one that states its verdict. Those that make numbers invalid come first,
/// then those with a predicted saving, the largest first, then the others by severity.
pub fn add_findings(analysis: &mut Analysis, options: &Options, ranks: &OfRanks) {
    let context = Context::new(analysis, options, ranks);
    let mut rows: Vec<(bool, FindingRow)> = Vec::new();
    for kind in FINDINGS {
        rows.extend(kind.found(&context).into_iter().map(|row| (kind.invalidates, row)));
    }
    rows.sort_by_key(|(invalidates, row)| (!invalidates, Reverse(row.saving_ns), severity(row)));
    analysis.tables.findings = rows.into_iter().map(|(_, row)| row).collect();
    let is_found = |id: &&str| analysis.tables.findings.iter().any(|row| *row.id == **id);
    let of_verdict = [straggler::STRAGGLER.id, scattered_waits::SCATTERED_WAITS.id].into_iter().find(is_found);
    analysis.verdict.finding = of_verdict.map(Into::into);
}

impl FindingKind {
    /// The findings of this kind.
    fn found(&self, context: &Context<'_>) -> Vec<FindingRow> {
        let mut rows = (self.find)(context);
        for row in &mut rows {
            row.id = self.id.into();
            // The named device may have longer steps than the median one.
            row.saving_ns = row.saving_ns.map(|ns| ns.min(context.analysis.verdict.step_ns.unwrap_or(ns)));
        }
        rows
    }

    /// The findings in tables alone, with the default options.
    #[cfg(test)]
    fn in_tables(&self, analysis: &Analysis) -> Vec<FindingRow> {
        self.within(analysis, &Options::default())
    }

    #[cfg(test)]
    fn within(&self, analysis: &Analysis, options: &Options) -> Vec<FindingRow> {
        self.found(&Context::new(analysis, options, &OfRanks::default()))
    }
}

fn severity(finding: &FindingRow) -> Severity {
    finding.severity.known().unwrap_or(Severity::Info)
}

/// Makes a finding, whose kind adds its id; `table` names the table that holds the numbers in `evidence`.
fn finding(severity: Severity, title: String, (table, evidence): (&str, String), suggestion: &str) -> FindingRow {
    FindingRow {
        id: Default::default(),
        severity: severity.into(),
        saving_ns: None,
        title: title.into(),
        evidence: evidence.into(),
        evidence_table: table.into(),
        suggestion: suggestion.into(),
    }
}

/// Adds the prediction: a step becomes shorter by at most `saving_ns`.
fn saving(saving_ns: i64, finding: FindingRow) -> FindingRow {
    FindingRow { saving_ns: Some(saving_ns.max(0)), ..finding }
}

/// The breakdown rows of single steps. The total over all steps and empty steps are excluded.
fn step_rows(analysis: &Analysis) -> impl Iterator<Item = &StepBreakdownRow> {
    analysis.tables.step_breakdown.iter().filter(|r| r.step.is_some_and(|s| s >= 0) && r.wall_ns > 0)
}

/// The share of `part` in `whole`, in percent.
fn share((part, whole): &(i64, i64)) -> f64 {
    100.0 * *part as f64 / (*whole).max(1) as f64
}

/// `device 0 of rank 3`, or `rank 3` for its CPU.
fn place(rank: i32, device: Option<i64>) -> String {
    device.map_or(format!("rank {rank}"), |device| format!("device {device} of rank {rank}"))
}

/// A kernel's name in a title: names of templates may have thousands of letters.
fn short_name(name: &str) -> String {
    shorten(name, 80)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    /// The row of a kind in the table of the documentation, from its doc comment.
    fn documented(kind: &FindingKind) -> String {
        let mut parts = kind.doc.split("\n\n").map(|part| part.split_whitespace().collect::<Vec<_>>().join(" "));
        let (what, saving) = (parts.next().unwrap(), parts.next());
        assert_eq!(parts.next(), None, "{}: two paragraphs at most", kind.id);
        let what = what.strip_suffix('.').unwrap_or(&what);
        let saving = saving.as_deref().map_or("null", |saving| saving.strip_suffix('.').unwrap_or(saving));
        format!("| `{}` | {what} | {saving} |", kind.id)
    }

    #[test]
    fn the_documentation_has_the_doc_comment_of_each_kind() {
        let wanted: Vec<String> = FINDINGS.iter().map(|kind| documented(kind)).collect();
        let page = include_str!("../../../docs/method/findings.md");
        let rows: Vec<&str> = page.lines().filter(|line| line.starts_with("| `")).collect();
        assert_eq!(rows, wanted, "copy these into docs/method/findings.md:\n{}\n", wanted.join("\n"));
    }

    #[test]
    fn ids_are_unique_and_in_kebab_case() {
        let ids: BTreeSet<&str> = FINDINGS.iter().map(|kind| kind.id).collect();
        assert_eq!(ids.len(), FINDINGS.len());
        let is_word = |word: &str| !word.is_empty() && word.bytes().all(|byte| byte.is_ascii_lowercase());
        assert!(ids.iter().all(|id| id.split('-').all(is_word)), "{ids:?}");
    }

    /// Lost rows first, then the saving, then the severity.
    #[test]
    fn what_makes_numbers_invalid_comes_first_and_then_the_largest_saving() {
        let mut analysis = devices::tests::analysis();
        analysis.facts.dropped = 1;
        add_findings(&mut analysis, &Options::default(), &OfRanks::default());
        let ids: Vec<&str> = analysis.tables.findings.iter().map(|row| &*row.id).collect();
        let wanted =
            ["lost-rows", "idle-devices", "launch-bound", "narrow-kernels", "sync-stalls", "full-launch-queue"];
        assert_eq!(ids, wanted);
        assert_eq!(analysis.verdict.finding, None);
    }
}
