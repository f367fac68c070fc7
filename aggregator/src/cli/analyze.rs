//! `aggregator analyze`.

use std::path::{Path, PathBuf};
use std::time::Instant;

use clap::Args;
use launch::Identity;
use trace::{place, terminal};

use crate::cli::analysis_args::{AnalysisArguments, PrintArguments};
use crate::cli::input::{InputArguments, input_help};
use crate::cli::map;
use crate::cli::output::Outcome;
use crate::cli::output::with_bar;
use crate::cli::reduce::write_away;
use formats::input::{Input, resolve};
use measure::reduced::Reduced;
use model::Error;
use model::analysis::Analysis;
use model::ffi::share_one_arena;
use model::options::Options;
use model::source::Source;
use pipeline::analyze;
use pipeline::parts::processes::{Job, Join, Received};

/// Align, match and analyze a run or traces; write `analysis/` and print a summary.
#[derive(Debug, Args)]
#[command(allow_negative_numbers = true)]
pub struct Arguments {
    #[arg(required = true, value_name = "RUN|TRACES", help = input_help())]
    paths: Vec<PathBuf>,
    /// Write `analysis/` into this directory. [default: the run itself; nothing is written for traces, nor for a part
    /// of a run]
    #[arg(short, long, value_name = "DIR")]
    out: Option<PathBuf>,
    #[command(flatten)]
    input: InputArguments,
    #[command(flatten)]
    analysis: AnalysisArguments,
    #[command(flatten)]
    print: PrintArguments,
    /// Keep the parts of ranks in this directory while they are mapped, and take those that an earlier, killed analysis of
    /// the same input and options left there.
    #[arg(long, value_name = "PARTS", help_heading = "Input")]
    resume: Option<PathBuf>,
}

/// Runs the command.
pub(super) fn run(arguments: Arguments, join: Join) -> Result<Outcome, Error> {
    if let Some(job) = Job::enter(join)? {
        return run_together(&job, &arguments);
    }
    say_that_each_analyzes_all();
    let mut options = arguments.analysis.options();
    let (reduced, run) = match (&arguments.resume, resolve(arguments.paths.clone())?) {
        (Some(parts), input) => {
            let run = match &input {
                Input::Run(path) => Some(path.clone()),
                Input::Files(_) => None,
            };
            (map::analyze_by_parts(input, arguments.input, &options, parts)?, run)
        }
        (None, Input::Run(path)) => {
            let source = arguments.input.open_run(&path)?;
            arguments.input.select_steps(&source, &mut options.steps)?;
            (with_progress(&source, &options)?.into(), Some(path))
        }
        (None, Input::Files(files)) => (with_progress(&*arguments.input.open_files(&files)?, &options)?.into(), None),
    };
    finish(reduced, &arguments, run.as_deref())
}

/// A launcher of MPI may start a program without MPI many times. One of its processes then says that they do not divide the
/// ranks. They go on, because each of them may have an input of its own.
fn say_that_each_analyzes_all() {
    let Ok(identity) = Identity::from_env(&|name| std::env::var(name).ok()) else { return };
    if identity.rank == 0 && identity.world_size > 1 && identity.launcher.starts_mpi() {
        terminal::say(format_args!(
            "{} started {} processes, and this program has no MPI: each of them analyzes all that it is given. The processes divide \
             the ranks with an `aggregator` that is built with `--features mpi`, or with `rankscope map`",
            identity.launcher.described(),
            identity.world_size
        ));
    }
}

/// Runs the command in one of the processes of an MPI job. Process 0 prints and writes.
fn run_together(job: &Job, arguments: &Arguments) -> Result<Outcome, Error> {
    let begin = Instant::now();
    share_one_arena();
    let input = resolve(arguments.paths.clone());
    let run = match &input {
        Ok(Input::Run(path)) => Some(path.clone()),
        _ => None,
    };
    let options = arguments.analysis.options();
    let finish = |reduced: Reduced<'_>| finish(reduced, arguments, run.as_deref());
    let parts = arguments.resume.as_deref();
    let Some(outcome) = map::analyze_together(job, input, arguments.input, &options, parts, finish)? else {
        return Ok(Outcome::Done);
    };
    let Received { files, bytes, time } = job.received();
    terminal::say(format_args!(
        "{} processes; messages: {files} files, {:.1} MB, {:.2} s of {:.2} s",
        job.size(),
        bytes as f64 / 1e6,
        time.as_secs_f64(),
        begin.elapsed().as_secs_f64(),
    ));
    Ok(outcome)
}

/// Prints the analysis and saves it.
fn finish(mut reduced: Reduced<'_>, arguments: &Arguments, run: Option<&Path>) -> Result<Outcome, Error> {
    // The result is printed even if it cannot be saved.
    arguments.print.print(&mut reduced, &arguments.paths)?;
    if let Some(note) = save(&mut reduced, arguments, run)? {
        // If stderr is closed, the message is lost.
        terminal::say(note);
    }
    Ok(arguments.input.outcome(reduced.analysis.worst_omission()))
}

/// Writes `analysis/` and returns a line about it. Without --out, only the analysis of a whole run is saved, in the
/// run: a directory of traces belongs to the user, and a selection must not replace the analysis of everything.
fn save(reduced: &mut Reduced<'_>, arguments: &Arguments, run: Option<&Path>) -> Result<Option<String>, Error> {
    let saved = |path: &Path| format!("analysis: {}", path.display());
    if let Some(out) = &arguments.out {
        return Ok(Some(saved(&write_away(reduced, out, run)?)));
    }
    let Some(run) = run else { return Ok(None) };
    if let Some(selection) = &reduced.analysis.facts.selection {
        return Ok(Some(format!("not saved, because {selection} selects a part of the run; --out DIR saves it there")));
    }
    if place::is_url(run) {
        return Ok(Some("not saved, because nothing is written to a URL; --out DIR saves it there".into()));
    }
    match write_away(reduced, run, Some(run)) {
        Ok(path) => Ok(Some(saved(&path))),
        Err(error) if error.is_read_only() => {
            Ok(Some(format!("not saved, because {} is read-only; --out DIR saves it there", run.display())))
        }
        Err(error) => Err(error),
    }
}

fn with_progress(source: &dyn Source, options: &Options) -> Result<Analysis, Error> {
    with_bar(|progress| analyze(source, options, progress))
}
