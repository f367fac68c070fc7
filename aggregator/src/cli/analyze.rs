//! `aggregator analyze`.

use std::io::{IsTerminal, Write};
use std::path::PathBuf;

use clap::Args;
use indicatif::{ProgressBar, ProgressStyle};
use regex::Regex;

use crate::cli::Outcome;
use crate::cli::input::{Input, resolve};
use crate::cli::scope_args::ScopeArguments;
use crate::cli::thresholds::ThresholdArguments;
use crate::ingest::kineto::KinetoSource;
use crate::ingest::source::{RunSource, Source};
use crate::model::options::Options;
use crate::render::summary::{self, TerminalStyle};
use crate::render::{json, parquet};
use crate::{Analysis, Error, analyze};

/// Align, match and analyze a run or traces; write `analysis/` and print a summary.
#[derive(Debug, Args)]
pub struct Arguments {
    /// Run, or traces of torch.profiler: .json or .json.gz files, or directories of them.
    #[arg(required = true, value_name = "RUN|TRACES")]
    paths: Vec<PathBuf>,
    /// Write `analysis/` into this directory. [default: the run itself; nothing is written for traces]
    #[arg(long, value_name = "DIR")]
    out: Option<PathBuf>,
    /// Print the analysis as JSON instead of the summary.
    #[arg(long)]
    json: bool,
    /// Print so many rows of each table of the summary, and count the rest.
    #[arg(long, value_name = "N", default_value_t = 12)]
    top: usize,
    #[command(flatten)]
    scope: ScopeArguments,
    /// Use only the time inside host ranges whose name matches.
    #[arg(long, value_name = "REGEX")]
    range: Option<Regex>,
    /// Look for kernel sequences in operators and ranges whose name matches, instead of in every outermost operator.
    #[arg(long, value_name = "REGEX")]
    sequences_of: Option<Regex>,
    #[command(flatten)]
    thresholds: ThresholdArguments,
}

/// Runs the command.
pub(super) fn run(arguments: Arguments) -> Result<Outcome, Error> {
    let options = options(&arguments);
    match resolve(arguments.paths.clone())? {
        Input::Run(path) => {
            let source = RunSource::open(&path)?;
            let analysis = with_progress(&source, &options)?;
            let directory = arguments.out.clone().unwrap_or(path);
            let written = parquet::write(&analysis, &directory, Some(source.run()))?;
            print_analysis(&analysis, &arguments)?;
            print_path(&written);
            Ok(if analysis.is_partial() { Outcome::Partial } else { Outcome::Done })
        }
        Input::Traces(paths) => {
            let source = KinetoSource::open(&paths)?;
            let analysis = with_progress(&source, &options)?;
            // Directories of traces belong to the user: nothing is written there without --out.
            let written = arguments.out.as_ref().map(|out| parquet::write(&analysis, out, None)).transpose()?;
            print_analysis(&analysis, &arguments)?;
            if let Some(written) = &written {
                print_path(written);
            }
            Ok(if analysis.is_partial() { Outcome::Partial } else { Outcome::Done })
        }
    }
}

fn options(arguments: &Arguments) -> Options {
    Options {
        range: arguments.range.clone(),
        sequences_of: arguments.sequences_of.clone(),
        thresholds: arguments.thresholds.thresholds(),
        ..arguments.scope.options()
    }
}

fn with_progress(source: &dyn Source, options: &Options) -> Result<Analysis, Error> {
    with_bar(|progress| analyze(source, options, progress))
}

/// Runs work that reports the ranks done and the total. A progress bar is drawn only if stderr is a terminal.
pub(super) fn with_bar<T>(work: impl FnOnce(&(dyn Fn(usize, usize) + Sync)) -> T) -> T {
    if !std::io::stderr().is_terminal() {
        return work(&|_, _| ());
    }
    let style =
        ProgressStyle::with_template("{bar:30} {pos}/{len} ranks").unwrap_or_else(|_| ProgressStyle::default_bar());
    let bar = ProgressBar::new(0).with_style(style);
    let result = work(&|done, total| {
        bar.set_length(total as u64);
        bar.set_position(done as u64);
    });
    bar.finish_and_clear();
    result
}

fn print_analysis(analysis: &Analysis, arguments: &Arguments) -> Result<(), Error> {
    let stdout = std::io::stdout().lock();
    if arguments.json {
        return json::render(analysis, std::io::BufWriter::new(stdout));
    }
    let terminal = TerminalStyle { width: width(), colour: colour(), top: arguments.top };
    summary::render(analysis, &terminal, stdout)
}

/// The width of the terminal, or the value of `COLUMNS` if stdout is no terminal.
pub(super) fn width() -> usize {
    let columns = std::env::var("COLUMNS").ok().and_then(|c| c.parse().ok());
    let terminal = terminal_size::terminal_size().map(|(width, _)| usize::from(width.0));
    terminal.or(columns).unwrap_or(TerminalStyle::default().width)
}

/// Whether to use colour: only on a terminal, and only if `NO_COLOR` (<https://no-color.org>) does not forbid it.
pub(super) fn colour() -> bool {
    let forbidden = std::env::var_os("NO_COLOR").is_some_and(|v| !v.is_empty());
    std::io::stdout().is_terminal() && !forbidden && std::env::var_os("TERM").is_none_or(|t| t != "dumb")
}

/// Prints the path of the analysis on stderr. If stderr is closed, the message is lost.
fn print_path(written: &std::path::Path) {
    let _ = writeln!(std::io::stderr(), "analysis: {}", written.display());
}
