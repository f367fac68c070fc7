//! Loads and analyzes the runs of two sides, and compares them.

use align::aligned::load_chosen;
use diff::{Diff, Method, RankProfile, RunProfile, compare, profile_rank};
use measure::map::map_of;
use measure::part::RankPart;
use model::Error;
use model::options::Options;
use model::selection::require_any;
use model::source::Source;
use model::steps::{mark_steps, one_step_if_none};

use crate::reduce;

/// Compares the runs of two sides. Calls `progress` after each rank of each run, with the number of finished ranks and
/// the total.
///
/// # Errors
/// The errors of [`analyze`](crate::analyze()); [`Error::NoInput`] if the runs of a side have no common rank, or a run has no
/// step; [`Error::UnlikeRuns`] if the runs of a side have different world sizes or programs, unless
/// [`Method::unlike_runs`] allows that.
pub fn diff(
    a: &[&dyn Source],
    b: &[&dyn Source],
    options: &Options,
    method: &Method,
    progress: &(dyn Fn(usize, usize) + Sync),
) -> Result<Diff, Error> {
    let total = a.iter().chain(b).map(|s| s.ranks().len()).sum();
    let done = std::sync::atomic::AtomicUsize::new(0);
    let tick = || progress(done.fetch_add(1, std::sync::atomic::Ordering::Relaxed) + 1, total);
    let mut omissions = Vec::new();
    let mut side = |sources: &[&dyn Source]| -> Result<Vec<(String, RunProfile)>, Error> {
        let mut runs = Vec::new();
        for source in sources {
            let path = source.info().path.display().to_string();
            let mut run = profile_run(*source, options, &tick)?;
            for mut omission in run.omissions.drain(..) {
                // File names repeat between runs, so add the run.
                omission.file = Some(match &omission.file {
                    Some(file) => format!("{path}: {file}").into(),
                    None => path.as_str().into(),
                });
                omissions.push(omission);
            }
            runs.push((path, run));
        }
        Ok(runs)
    };
    let (a, b) = (side(a)?, side(b)?);
    compare(&a, &b, method, omissions)
}

/// Loads, maps and reduces a run. Needs memory for as many ranks as there are threads, plus the series.
///
/// # Errors
/// The errors of [`analyze`](crate::analyze()).
pub fn profile_run(source: &dyn Source, options: &Options, progress: &(dyn Fn() + Sync)) -> Result<RunProfile, Error> {
    let map = map_of(source.ranks().len());
    let one = |rank: i32| {
        let (mut data, details) = source.load_detailed(rank)?;
        if let Some(marker) = &options.step_marker {
            mark_steps(&mut data, marker);
        }
        one_step_if_none(&mut data);
        options.communication.decide(&mut data);
        let profile = profile_rank(&data, &details, options);
        // Loading has already marked the steps.
        Ok((map(data, &Options { step_marker: None, ..options.clone() }, None), profile))
    };
    let (loaded, omissions) =
        load_chosen(source, options, &|_, _| progress(), one, |(part, _): &mut (RankPart, _)| &mut part.outline)?;
    let (parts, profiles): (Vec<RankPart>, Vec<RankProfile>) = loaded.into_iter().unzip();
    require_any(parts.iter().map(RankPart::held), options, &source.info().path)?;
    let profile = RunProfile::of_parts(profiles, &parts);
    Ok(profile.with_analysis(reduce(parts, &source.info(), options, omissions)?))
}
