//! `aggregator reduce`.

use std::path::{Path, PathBuf};

use clap::Args;
use trace::{Manifest, terminal};

use crate::cli::analysis_args::PrintArguments;
use crate::cli::input::outcome;
use crate::cli::output::Outcome;
use formats::paths::is_run;
use measure::reduced::Reduced;
use model::Error;
use model::ffi::return_freed_memory;
use model::units::omission;
use pipeline::analyze::reduce_shares;
use pipeline::parts::read_shares;
use report_tables::parquet;

/// Reduce the parts that `map` wrote: write `analysis/` and print a summary, as `analyze` does.
///
/// A share that is missing or damaged is listed, and the others are analyzed.
#[derive(Debug, Args)]
pub struct Arguments {
    /// Directory of the parts.
    #[arg(value_name = "PARTS")]
    parts: PathBuf,
    /// Write `analysis/` into this directory: the run, or another one.
    #[arg(short, long, value_name = "RUN")]
    out: PathBuf,
    #[command(flatten)]
    print: PrintArguments,
    /// End with exit code 3 if anything at all was left out, not only if something recorded was lost.
    #[arg(long, help_heading = "Input")]
    strict: bool,
}

/// Runs the command.
pub(super) fn run(arguments: &Arguments) -> Result<Outcome, Error> {
    let mut reduced = reduce_parts(&arguments.parts)?;
    // The result is printed even if it cannot be saved.
    arguments.print.print(&mut reduced, std::slice::from_ref(&arguments.parts))?;
    let run = is_mapped(&arguments.out, &reduced.analysis.facts.run_id)?.then_some(arguments.out.as_path());
    let saved = write_away(&mut reduced, &arguments.out, run)?;
    terminal::say(format_args!("analysis: {}", saved.display()));
    Ok(outcome(reduced.analysis.worst_omission(), arguments.strict))
}

/// Reduces the shares in `parts`.
///
/// # Errors
/// As [`read_shares`] and [`reduce_shares`].
pub(super) fn reduce_parts(parts: &Path) -> Result<Reduced<'_>, Error> {
    return_freed_memory();
    reduce_shares(read_shares(parts)?, parts)
}

/// Writes `analysis/`, and says what could not be read for it.
///
/// # Errors
/// The errors of [`parquet::write`].
pub(super) fn write_away(reduced: &mut Reduced<'_>, directory: &Path, run: Option<&Path>) -> Result<PathBuf, Error> {
    let before = reduced.analysis.tables.omissions.len();
    let written = parquet::write_away(reduced, directory, run);
    // The summary, which lists the others, is printed before.
    for row in reduced.analysis.tables.omissions.iter().skip(before) {
        terminal::say(omission(row));
    }
    written
}

/// Whether a directory is the run that was mapped: its shards get views.
fn is_mapped(directory: &Path, run_id: &str) -> Result<bool, Error> {
    if !is_run(directory)? {
        return Ok(false);
    }
    let own = Manifest::read(directory)?.run_id;
    if own != run_id {
        let why = format!("it is the run {own:?}, and the parts are of {run_id:?}; choose another --out");
        return Err(Error::NoInput { path: directory.into(), why });
    }
    Ok(true)
}
