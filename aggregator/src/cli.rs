//! The command line: parse, resolve, call the library, exit code.

mod analysis_args;
mod analyze;
mod diff;
mod export;
mod hang;
mod ingest;
mod input;
pub mod library;
mod map;
mod output;
mod reduce;
mod report;
mod schema;
mod scope_args;
mod shell;
mod stacks;
mod table;
mod threads;
mod thresholds;
pub mod watch;
mod what_if;

use std::process::ExitCode;

use crate::cli::output::Outcome;
use clap::{CommandFactory, Parser, Subcommand};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::iterator::Signals;
use signal_hook::low_level::emulate_default_handler;
use trace::terminal;

use model::Error;
use model::ffi::keep_freed_memory;
use pipeline::parts::processes::Join;

pub use shell::ShellCommand;
pub use threads::start as start_threads;

/// Find out why a data-parallel training step is slow: align the ranks' clocks, match their collectives, and divide
/// every nanosecond of every step
#[derive(Debug, Parser)]
#[command(name = NAME, version, after_help = EXIT_CODES)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

/// The command's name in messages.
const NAME: &str = "aggregator";

const EXIT_CODES: &str = "Exit codes: 0 done; 1 the input is wrong; 2 usage; 3 done, but something recorded was lost (listed), or with --strict anything was left out; \
     4 `diff --fail-over` found a slowdown beyond its limit; 5 `diff --fail-over` cannot tell.";

#[derive(Debug, Subcommand)]
enum Command {
    #[command(flatten)]
    Analysis(AnalysisCommand),
    #[command(flatten)]
    Shell(ShellCommand),
}

/// The subcommands that read runs and traces.
#[derive(Debug, Subcommand)]
pub enum AnalysisCommand {
    /// Align, match and analyze a run or traces; write `analysis/` and print a summary
    Analyze(Box<analyze::Arguments>),
    /// Map a share of the ranks into parts, for a job of many processes
    Map(Box<map::Arguments>),
    /// Reduce the parts of all shares; write `analysis/` and print a summary
    Reduce(reduce::Arguments),
    /// Write recordings of other tools as a run
    Ingest(ingest::Arguments),
    /// Print the table of torch.profiler's key_averages().table() for a run or for traces
    Table(table::Arguments),
    /// Write folded stacks for flame graphs
    Stacks(stacks::Arguments),
    /// Write one page for a browser: the verdict, its evidence, and the limits of both
    Report(Box<report::Arguments>),
    /// Write all ranks as one timeline for another tool
    Export(Box<export::Arguments>),
    /// Compare two runs, or two sets of runs: slowdowns and speedups with their confidence intervals
    Diff(Box<diff::Arguments>),
    /// Replay a job with something changed: how long would its steps be?
    WhatIf(Box<what_if::Arguments>),
    /// Find out which ranks hold a hung job up, from dumps of torch's Flight Recorder or from a run
    Hang(hang::Arguments),
    /// Watch a run while ranks write it: step time, slow ranks, hangs, losses; as a screen, lines or metrics
    Watch(watch::Arguments),
    /// Print the tables of a run and the views of its analysis, or the columns of one of them
    Schema(schema::Arguments),
}

/// Runs the `aggregator` command and returns its exit code.
pub fn main_impl() -> ExitCode {
    main_with(|| Ok(None))
}

/// Runs the `aggregator` command like [`main_impl`]. The processes that `join` finds analyze together.
pub fn main_with(join: Join) -> ExitCode {
    // A usage error ends with 2, help and version with 0.
    match Cli::try_parse().map(|cli| cli.command) {
        Ok(Command::Analysis(AnalysisCommand::Analyze(arguments))) => {
            start();
            remove_temporaries_on_signals();
            exit_code(analyze::run(*arguments, join), NAME)
        }
        Ok(Command::Analysis(command)) => run(command, NAME),
        Ok(Command::Shell(command)) => run_shell::<Cli>(&command, NAME),
        Err(error) => output::print_usage(&error),
    }
}

/// Runs a subcommand and returns its exit code; prints errors under the name of the program.
pub fn run(command: AnalysisCommand, program: &str) -> ExitCode {
    start();
    // `watch` ends by itself.
    if !matches!(command, AnalysisCommand::Watch(_)) {
        remove_temporaries_on_signals();
    }
    let result = match command {
        AnalysisCommand::Analyze(arguments) => analyze::run(*arguments, || Ok(None)),
        AnalysisCommand::Map(arguments) => map::run(&arguments),
        AnalysisCommand::Reduce(arguments) => reduce::run(&arguments),
        AnalysisCommand::Ingest(arguments) => ingest::run(arguments),
        AnalysisCommand::Table(arguments) => table::run(arguments),
        AnalysisCommand::Stacks(arguments) => stacks::run(arguments),
        AnalysisCommand::Report(arguments) => report::run(*arguments),
        AnalysisCommand::Export(arguments) => export::run(*arguments),
        AnalysisCommand::Diff(arguments) => diff::run(*arguments),
        AnalysisCommand::WhatIf(arguments) => what_if::run(*arguments),
        AnalysisCommand::Hang(arguments) => hang::run(&arguments),
        AnalysisCommand::Watch(arguments) => watch::run(&arguments),
        AnalysisCommand::Schema(arguments) => schema::run(arguments),
    };
    exit_code(result, program)
}

fn start() {
    keep_freed_memory();
    threads::start();
}

/// A command that a signal ends leaves no half-written output. Signals that the caller ignores, as `nohup` does, stay ignored. Without
/// signals it runs all the same.
fn remove_temporaries_on_signals() {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let ignored = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    let ignored = ignored.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok()).unwrap_or(0);
    let ends = [SIGINT, SIGTERM, SIGHUP].into_iter().filter(|signal| ignored >> (signal - 1) & 1 == 0);
    let Ok(mut signals) = Signals::new(ends) else { return };
    trace::files::remember();
    let wait = move || {
        if let Some(signal) = signals.forever().next() {
            trace::files::remove_living();
            let _ = emulate_default_handler(signal);
        }
    };
    let _ = std::thread::Builder::new().name("signals".into()).spawn(wait);
}

/// Prints the completions or man pages of the command line `C` and returns the exit code.
pub fn run_shell<C: CommandFactory>(command: &ShellCommand, program: &str) -> ExitCode {
    remove_temporaries_on_signals();
    exit_code(shell::run::<C>(command, program), program)
}

/// The one place where an error is printed.
fn exit_code(result: Result<Outcome, Error>, program: &str) -> ExitCode {
    let error = match result {
        Ok(Outcome::Done) => return ExitCode::SUCCESS,
        Ok(Outcome::Partial) => return ExitCode::from(3),
        Ok(Outcome::Slower) => return ExitCode::from(4),
        Ok(Outcome::CannotTell) => return ExitCode::from(5),
        Err(error) if error.is_broken_pipe() => return ExitCode::SUCCESS,
        Err(error) => error,
    };
    terminal::say(format_args!("{program}: {error}"));
    ExitCode::from(if matches!(error, Error::Option { .. } | Error::UnknownTable { .. }) { 2 } else { 1 })
}
