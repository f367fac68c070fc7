//! Findings: the problems that an engineer should look at first, as sentences. Each has its evidence, its threshold and
//! the source of the threshold. `docs/method/findings.md` lists them, with the bound of each predicted saving.
//!
//! ```text
//!   NAME.rs            kind! { /// what it is … NAME: "its-id", by the function that finds it }
//!   here               `mod NAME;` and a line in FINDINGS
//!   registry.rs        `Context`: what all of them read: the tables, the options, what the reduction kept of the ranks
//! ```

#[macro_use]
mod registry;

mod clocks;
pub mod communication;
mod devices;
mod exposed_communication;
mod finding;
mod first_steps;
mod full_queue;
pub mod hang;
pub mod headline;
mod idle_causes;
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
mod rank_facts;
mod scattered_waits;
mod slow_device;
pub mod slow_kernels;
pub mod stages;
mod straggler;
mod sync_stalls;
pub mod unmarked_steps;

use std::cmp::Reverse;

use trace::{FindingRow, Severity};

use self::finding::Found;
pub use self::rank_facts::OfRanks;
use self::registry::Context;
pub use self::registry::FindingKind;
use model::analysis::Analysis;
use model::claim::exclusions::settle;
use model::options::Options;

/// All kinds, in the order of findings that are equally important.
pub static FINDINGS: &[&FindingKind] = &[
    &hang::HANG,
    &lost_rows::LOST_ROWS,
    &lost_rows::LOST_LAUNCHES,
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
    &idle_causes::GRAPHS_WITHOUT_ROWS,
    &idle_causes::FIRST_CALLS,
    &idle_causes::HOST_STALLS,
    &idle_causes::HOST_CODE,
    &memory::MEMORY_GROWTH,
    &memory::MEMORY_PEAK,
    &memory::MEMORY_FRAGMENTATION,
    &slow_device::SLOW_DEVICE,
    &kernels::SLOW_KERNEL,
    &occupancy::LOW_OCCUPANCY,
    &idle_devices::IDLE_DEVICES,
    &launch_bound::LAUNCH_BOUND,
    &sync_stalls::SYNC_STALLS,
    &narrow_kernels::NARROW_KERNELS,
    &full_queue::FULL_LAUNCH_QUEUE,
    &first_steps::SLOW_FIRST_STEPS,
    &unmarked_steps::UNMARKED_STEPS,
];

/// Adds the findings to an analysis, and names the one that states its verdict. Those that make numbers invalid come first,
/// then those with a predicted saving, the largest first, then the others by severity. Of two that exclude each other or explain
/// the same time, one is left out of the table, and its claim says to which it yields.
pub fn add_findings(analysis: &mut Analysis, options: &Options, ranks: &OfRanks) {
    let context = Context::new(analysis, options, ranks);
    let mut all: Vec<(bool, Found)> = Vec::new();
    for kind in FINDINGS {
        all.extend(kind.found(&context).into_iter().map(|found| (kind.invalidates, found)));
    }
    all.sort_by_key(|(invalidates, found)| (!invalidates, Reverse(found.row.saving_ns), severity(&found.row)));
    let mut claims = headline::claims(analysis, &options.thresholds);
    let of_verdict = claims.len();
    claims.extend(all.iter().map(|(_, found)| found.claim.clone()));
    settle(&mut claims, analysis.facts.ranks.len());
    let is_shown = claims[of_verdict..].iter().map(|claim| claim.yields_to.is_none());
    let shown = all.into_iter().zip(is_shown).filter(|(_, is_shown)| *is_shown);
    analysis.tables.findings = shown.map(|((_, found), _)| found.row).collect();
    claims.sort_by_key(|claim| claim.yields_to.is_some());
    analysis.claims = claims;
    let is_found = |id: &&str| analysis.tables.findings.iter().any(|row| *row.id == **id);
    let of_verdict = [straggler::STRAGGLER.id, scattered_waits::SCATTERED_WAITS.id].into_iter().find(is_found);
    analysis.verdict.finding = of_verdict.map(Into::into);
}

fn severity(finding: &FindingRow) -> Severity {
    finding.severity.known().unwrap_or(Severity::Info)
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
        let (before, table) = page.split_once("|---|---|---|\n").unwrap();
        let after: String = table.split_inclusive('\n').skip_while(|line| line.starts_with("| `")).collect();
        let wanted = format!("{before}|---|---|---|\n{}\n{after}", wanted.join("\n"));
        fixtures::generated::check_text("docs/method/findings.md", &wanted);
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
        // The short kernels explain the idle time of rank 1, and the waits of its host are less than half of that.
        let wanted = ["lost-rows", "launch-bound", "narrow-kernels", "full-launch-queue"];
        assert_eq!(ids, wanted);
        assert_eq!(analysis.verdict.finding, None);
    }
}
