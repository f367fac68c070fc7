//! The command line: parse, resolve, call the library, exit code.

mod analyze;
mod diff;
mod export;
mod ingest;
mod input;
mod report;
mod selection;
mod shell;
mod stacks;
mod table;
mod thresholds;

use std::io::Write;
use std::process::ExitCode;

use clap::{Parser, Subcommand};
use trace::OmissionRow;

use crate::Error;
use crate::render::text::omission;

/// Says why a data-parallel training step is slow: aligns the ranks' clocks, matches their collectives, and divides
/// every nanosecond of every step.
#[derive(Debug, Parser)]
#[command(name = "aggregator", version, after_help = EXIT_CODES)]
struct Arguments {
    #[command(subcommand)]
    command: Command,
}

const EXIT_CODES: &str = "Exit codes: 0 done; 1 the input is wrong; 2 usage; 3 done, but some ranks or rows were left out (listed); \
     4 `diff --fail-over` found a slowdown beyond its limit.";

#[derive(Debug, Subcommand)]
enum Command {
    /// Aligns, matches and analyses a run or traces; writes `analysis/` and prints a summary.
    Analyze(Box<analyze::Arguments>),
    /// Writes one page for a browser: the verdict, what it stands on, and what it does not cover.
    Report(Box<report::Arguments>),
    /// Writes traces of torch.profiler (.json, .json.gz) as a run.
    Ingest(ingest::Arguments),
    /// Prints what torch.profiler's key_averages().table() prints, of a run or of traces.
    Table(table::Arguments),
    /// Writes folded stacks for flame graphs.
    Stacks(stacks::Arguments),
    /// Writes all ranks as one timeline for another tool.
    Export(Box<export::Arguments>),
    /// Compares two runs, or two sets of runs: what got slower or faster, and how sure that is.
    Diff(Box<diff::Arguments>),
    /// Prints completions for a shell.
    Completions(shell::Completions),
    /// Writes man pages.
    Man(shell::Man),
}

/// How a command ended, if it did.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Outcome {
    /// Everything was used.
    Done,
    /// Some ranks or rows were left out; they are listed.
    Partial,
    /// `diff --fail-over` found a slowdown beyond its limit.
    Slower,
}

/// Runs the command and returns its exit code.
pub fn main_impl() -> ExitCode {
    // Clap prints usage errors and exits with 2, help and version with 0.
    let arguments = Arguments::parse();
    let result = match arguments.command {
        Command::Analyze(arguments) => analyze::run(*arguments),
        Command::Ingest(arguments) => ingest::run(arguments),
        Command::Table(arguments) => table::run(arguments),
        Command::Stacks(arguments) => stacks::run(arguments),
        Command::Export(arguments) => export::run(*arguments),
        Command::Diff(arguments) => diff::run(*arguments),
        Command::Completions(arguments) => shell::completions::<Arguments>(&arguments),
        Command::Man(arguments) => shell::man::<Arguments>(&arguments),
        Command::Report(arguments) => report::run(*arguments),
    };
    match result {
        Ok(Outcome::Done) => ExitCode::SUCCESS,
        Ok(Outcome::Partial) => ExitCode::from(3),
        Ok(Outcome::Slower) => ExitCode::from(4),
        Err(error) if error.is_broken_pipe() => ExitCode::SUCCESS,
        Err(error @ Error::Option { .. }) => {
            complain(&error);
            ExitCode::from(2)
        }
        Err(error) => {
            complain(&error);
            ExitCode::from(1)
        }
    }
}

/// Says what was left out of a command that prints no summary.
fn say_omissions(omissions: &[OmissionRow]) {
    let mut stderr = std::io::stderr().lock();
    for o in omissions {
        // Messages; if stderr is gone there is nobody to tell.
        let _ = writeln!(stderr, "left out: {}", omission(o));
    }
}

/// The one place where an error is printed. If stderr is gone there is nobody to tell.
fn complain(error: &Error) {
    let _ = writeln!(std::io::stderr(), "aggregator: {error}");
}
