//! Analyzes a source and writes what one command or one call of the library asks for.

use std::io::Write;
use std::path::Path;

use align::aligned::{Analyzed, align_source};
use diff::Method;
use formats::run_source::RunSource;
use hang::report::Hang;
use model::Error;
use model::options::Options;
use model::source::Source;
use pipeline::analyze::{analyze_aligned, job_critical_path};
use report_html::{Reported, ReportedRun, Settings};
use report_timeline::{chrome, perfetto};
use trace::OmissionRow;

/// Analyzes the part of `source` that `options` select, and writes the page. Calls `progress` after each rank.
///
/// # Errors
/// The errors of [`analyze`](pipeline::analyze()) and of [`report_html::report`].
pub fn report(
    source: &dyn Source,
    options: &Options,
    settings: &Settings,
    mut out: impl Write,
    progress: &(dyn Fn(usize, usize) + Sync),
) -> Result<Reported, Error> {
    report_analyzed(source, options, settings, &analyze_aligned(source, options, progress)?, &mut out)
}

/// As [`report`], of a source that is analyzed already.
///
/// # Errors
/// The errors of [`report_html::report`].
pub fn report_analyzed(
    source: &dyn Source,
    options: &Options,
    settings: &Settings,
    analyzed: &Analyzed,
    out: &mut impl Write,
) -> Result<Reported, Error> {
    let hang = hang_of(source, analyzed);
    report_html::report(
        &ReportedRun { source, options, analyzed, hang: hang.as_ref().map(Option::as_ref) },
        settings,
        out,
    )
}

/// Writes the page of the run `after` behind a first tab, which has the changes since `before`.
///
/// # Errors
/// The errors of [`report`] and [`diff`](pipeline::diff::diff).
pub fn report_with(
    (before, after): (&dyn Source, &dyn Source),
    options: &Options,
    (method, settings): (&Method, &Settings),
    mut out: impl Write,
    progress: &(dyn Fn(usize, usize) + Sync),
) -> Result<Reported, Error> {
    let in_first_half = |done, total: usize| progress(done, 2 * total);
    let changes = pipeline::diff::diff(&[before], &[after], options, method, &in_first_half)?;
    let analyzed = analyze_aligned(after, options, &|done, total| progress(total + done, 2 * total))?;
    let hang = hang_of(after, &analyzed);
    let run = ReportedRun { source: after, options, analyzed: &analyzed, hang: hang.as_ref().map(Option::as_ref) };
    report_html::report_with(&before.info(), &changes, &run, settings, &mut out)
}

/// The ranks that hold a job up, if it hangs.
fn hang_of(source: &dyn Source, analyzed: &Analyzed) -> Result<Option<Hang>, OmissionRow> {
    Hang::of_source(source, &analyzed.analysis.tables.unfinished_collectives)
        .map_err(|error| OmissionRow::lost("ranks that hold the job up", error.to_string()))
}

/// Writes a timeline of all ranks for Perfetto. Calls `progress` after each rank.
///
/// # Errors
/// The errors of [`analyze`](pipeline::analyze()), and [`Error::Output`].
pub fn perfetto(
    source: &dyn Source,
    options: &Options,
    out: impl Write,
    progress: &(dyn Fn(usize, usize) + Sync),
) -> Result<perfetto::Exported, Error> {
    // Every rank is loaded twice: once to be aligned, once to be written.
    let aligned = align_source(source, options, &|done, total| progress(done / 2, total))?;
    let job_path: perfetto::JobPath<'_> =
        &|parts, instances, clocks| job_critical_path(parts, instances, clocks, &options.thresholds);
    perfetto::export((source, options, aligned), job_path, out, &|done, total| progress((total + done) / 2, total))
}

/// Writes a run as traces of torch.profiler, one file for each rank. Calls `progress` after each rank.
///
/// # Errors
/// The errors of [`chrome::export`], and those of [`align_source`] for a selection that does not take whole ranks.
pub fn chrome(
    source: &RunSource,
    options: &Options,
    out: &Path,
    progress: &(dyn Fn(usize, usize) + Sync),
) -> Result<chrome::Exported, Error> {
    // The span of --from and --to on a rank's clock is known only after all clocks are aligned. A selection that holds nothing is an
    // error before any file is written.
    let aligned = (!options.takes_whole_ranks()).then(|| align_source(source, options, &|_, _| ())).transpose()?;
    chrome::export(source, options, aligned, out, progress)
}
