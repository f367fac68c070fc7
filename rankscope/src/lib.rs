//! One command over rankscope's parts: `exec` and `ctl` of the agent, the analysis of aggregator, and simulated jobs.
//!
//! It links no MPI, so that it starts on every machine and in every container.

mod demo;
mod doctor;
mod simulate;

use std::ffi::{OsStr, OsString};
use std::path::Path;
use std::process::ExitCode;

use agent::exec::{self, CtlArguments, ExecArguments, ctl};
use aggregator::cli::{AnalysisCommand, ShellCommand};
use clap::{Parser, Subcommand};

/// The command's name in messages.
const NAME: &str = "rankscope";

/// Record distributed training and find the rank that slows it down
#[derive(Debug, Parser)]
#[command(name = NAME, version, after_help = EXAMPLES)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

const EXAMPLES: &str = "\
Examples:
  rankscope demo                                            see an answer, in seconds
  mpirun -n 8 rankscope exec --out run -- python train.py   record a program on every rank
  rankscope analyze run                                     find out why its steps are slow
  rankscope analyze traces/                                 the same for traces of other tools

Exit codes: 0 done; 1 the input is wrong; 2 usage; 3 done, but something recorded was lost (listed), or with --strict anything was left out; \
4 `diff --fail-over` found a slowdown beyond its limit; 5 `diff --fail-over` cannot tell. `exec` has the program's exit code.";

#[derive(Debug, Subcommand)]
enum Command {
    #[command(flatten)]
    Analysis(AnalysisCommand),
    Exec(ExecArguments),
    Ctl(CtlArguments),
    Demo(demo::Arguments),
    Doctor(doctor::Arguments),
    Simulate(simulate::Arguments),
    #[command(flatten)]
    Shell(ShellCommand),
}

/// Runs the command and returns its exit code.
pub fn main_impl() -> ExitCode {
    let cli = match Cli::try_parse_from(trace::command_line::get()) {
        Ok(cli) => cli,
        Err(error) => return agent::console::print_usage(&error),
    };
    match cli.command {
        Command::Analysis(AnalysisCommand::Watch(arguments)) => watch(arguments),
        Command::Analysis(command) => aggregator::cli::run(command, NAME),
        Command::Exec(arguments) => exec::main(&arguments, NAME),
        Command::Ctl(arguments) => ctl::main(&arguments, NAME),
        Command::Demo(arguments) => demo::main(&arguments, NAME, analyze),
        Command::Doctor(arguments) => doctor::main(&arguments, NAME),
        Command::Simulate(arguments) => simulate::main(arguments, NAME),
        Command::Shell(command) => aggregator::cli::run_shell::<Cli>(&command, NAME),
    }
}

/// Analyses a run with the default options.
fn analyze(run: &Path) -> ExitCode {
    match Cli::try_parse_from([OsStr::new(NAME), OsStr::new("analyze"), OsStr::new("--"), run.as_os_str()]) {
        Ok(Cli { command: Command::Analysis(command) }) => aggregator::cli::run(command, NAME),
        Ok(_) => ExitCode::from(2),
        Err(error) => agent::console::print_usage(&error),
    }
}

/// Runs the command for another program, with its arguments, the command's name first, and returns its exit code. The first
/// call decides the command line of this process; there is no second.
pub fn run_in_process(arguments: Vec<OsString>) -> u8 {
    trace::command_line::set(arguments);
    let code = main_impl();
    // An ExitCode can be compared, but it does not tell its number.
    (0..=u8::MAX).find(|number| ExitCode::from(*number) == code).unwrap_or(1)
}

/// Watches a run, or the run that a process records: a number that is no path is the process id of an `exec`, as for
/// `ctl --pid`.
fn watch(mut arguments: aggregator::cli::watch::Arguments) -> ExitCode {
    let run = arguments.run_mut();
    if let Some(pid) = run.to_str().and_then(|text| text.parse().ok()).filter(|_| !run.exists()) {
        match ctl::run_of_process(pid, NAME) {
            Ok(found) => *run = found,
            Err(code) => return code,
        }
    }
    aggregator::cli::run(AnalysisCommand::Watch(arguments), NAME)
}
