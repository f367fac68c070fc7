//! `aggregator export`.

use std::io::Write;
use std::path::{Path, PathBuf};

use clap::{Args, ValueEnum};
use trace::terminal::{Form, say};
use trace::worst_omission;

use crate::cli::input::{InputArguments, input_help, open};
use crate::cli::output::with_bar;
use crate::cli::output::{Outcome, print_omissions};
use crate::cli::output::{refuse_input, write_file};
use crate::cli::scope_args::ScopeArguments;
use crate::render;
use formats::input::{Input, expand_all, resolve};
use model::Error;
use model::options::Options;
use model::units::{plural, ranks_named};
use report_timeline::chrome;
use report_timeline::perfetto::Exported;

/// Write all ranks as one timeline for another tool.
#[derive(Debug, Args)]
pub struct Arguments {
    #[arg(required = true, value_name = "RUN|TRACES", help = input_help())]
    paths: Vec<PathBuf>,
    /// Write this format. [default: chrome for a name that ends in .json or .json.gz, else perfetto]
    #[arg(long, value_enum)]
    format: Option<Format>,
    /// Write this file, replacing one that exists; `-` is stdout. Chrome traces are one file per rank: give a
    /// directory, or a name with `{rank}` in it, or choose one rank. They are compressed if the name ends in .gz.
    #[arg(short, long, value_name = "FILE|DIR")]
    out: PathBuf,
    #[command(flatten)]
    input: InputArguments,
    #[command(flatten)]
    scope: ScopeArguments,
}

/// Formats of other tools.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Format {
    /// Trace for <https://ui.perfetto.dev> and trace_processor.
    Perfetto,
    /// Kineto's JSON, as torch.profiler writes it; HTA and Perfetto read it.
    Chrome,
}

/// Runs the command.
pub(super) fn run(arguments: Arguments) -> Result<Outcome, Error> {
    let mut options = arguments.scope.options();
    let format = format(arguments.format, &arguments.out)?;
    let paths = expand_all(arguments.paths)?;
    refuse_input(&arguments.out, &paths)?;
    if format == Format::Chrome {
        return chrome(paths, arguments.input, options, &arguments.out);
    }
    let source = open(paths, arguments.input, &mut options.steps)?;
    let write = |out: &mut dyn Write| with_bar(|progress| render::perfetto(source.as_ref(), &options, out, progress));
    let exported = write_file(&arguments.out, Form::Bytes, write)?;
    print_counts(&arguments.out, &exported);
    print_omissions(&exported.omissions);
    Ok(arguments.input.outcome(worst_omission(&exported.omissions)))
}

/// The format that was chosen, or that the name implies.
///
/// # Errors
/// [`Error::Option`] if the name is that of the other format.
fn format(chosen: Option<Format>, out: &Path) -> Result<Format, Error> {
    const PERFETTO_NAMES: [&str; 3] = ["pftrace", "perfetto-trace", "pb"];
    // Formats that this command does not write: the file would not be what its name says.
    const OTHERS: [&str; 9] = ["csv", "tsv", "xlsx", "parquet", "html", "svg", "png", "sqlite", "nsys-rep"];
    let is_json = chrome::is_json_name(out);
    let is_perfetto = out.extension().is_some_and(|extension| PERFETTO_NAMES.iter().any(|name| extension == *name));
    let wrong = |value: &str, why: &str| {
        Err(Error::Option { option: "format", value: value.into(), why: format!("{}: {why}", out.display()) })
    };
    match chosen {
        None if out.extension().is_some_and(|extension| OTHERS.iter().any(|name| extension == *name)) => {
            let why = "export writes timelines for Perfetto (.pftrace) and in Chrome's format (.json, .json.gz); `analyze \
                       --out` writes tables as Parquet, and `report` writes a page";
            Err(Error::Option { option: "out", value: out.display().to_string(), why: why.into() })
        }
        None => Ok(if is_json { Format::Chrome } else { Format::Perfetto }),
        Some(Format::Perfetto) if is_json => {
            wrong("perfetto", "a Perfetto trace is not JSON; name the file .pftrace, or use --format chrome")
        }
        Some(Format::Chrome) if is_perfetto => wrong("chrome", "Chrome's traces are JSON; name a directory or .json"),
        Some(Format::Chrome) if out.as_os_str() == "-" => {
            wrong("chrome", "Chrome's traces are one file per rank; name a directory")
        }
        Some(chosen) => Ok(chosen),
    }
}

fn chrome(paths: Vec<PathBuf>, input: InputArguments, mut options: Options, out: &Path) -> Result<Outcome, Error> {
    let Input::Run(run) = resolve(paths.clone())? else {
        let path = paths.into_iter().next().unwrap_or_default();
        let why =
            "it is a Chrome trace already; to export a part of it, convert it to a run first (rankscope ingest)".into();
        return Err(Error::NoInput { path, why });
    };
    let source = input.open_run(&run)?;
    input.select_steps(&source, &mut options.steps)?;
    let exported = with_bar(|progress| render::chrome(&source, &options, out, progress))?;
    let counts = exported.counts;
    say(format_args!(
        "{}: {}, {} for events, {} for allocations, {}; {:.1} MB",
        out.display(),
        plural(exported.files.len(), "file"),
        plural(counts.events as usize, "row"),
        counts.allocations,
        plural(counts.flow_ends as usize / 2, "arrow"),
        exported.bytes as f64 / 1e6,
    ));
    print_omissions(&exported.omissions);
    Ok(input.outcome(worst_omission(&exported.omissions)))
}

/// Prints what was exported on stderr.
fn print_counts(path: &Path, exported: &Exported) {
    let counts = exported.counts;
    say(format_args!(
        "{}: {}, {} for events, {} for collectives, {} for steps, {}; {:.1} MB; open it at https://ui.perfetto.dev",
        path.display(),
        plural(counts.ranks as usize, "rank"),
        plural(counts.events as usize, "slice"),
        counts.collectives,
        counts.marks,
        plural(counts.counter_values as usize, "counter value"),
        exported.bytes as f64 / 1e6,
    ));
    if exported.shift_ns != 0 {
        say(format_args!(
            "times in the trace are global times + {} ns, because a trace cannot have negative times",
            exported.shift_ns
        ));
    }
    if !exported.unaligned.is_empty() {
        say(format_args!(
            "no evidence aligns the clocks of {}: these ranks are drawn on their own clocks",
            ranks_named(&exported.unaligned)
        ));
    }
}
