//! `aggregator report`.

use std::io::{BufWriter, Write};
use std::path::{Path, PathBuf};

use clap::Args;

use super::analyze::{regex, value, with_bar};
use super::export::to_file;
use super::input::{Input, open, resolve, source_of};
use super::selection::SelectionArguments;
use super::{Outcome, say_omissions};
use crate::Error;
use crate::options::Options;
use crate::render::html::{Reported, Settings, report, report_with};
use crate::render::text::plural;
use crate::source::Source;

/// Writes one page for a browser: the verdict, what it stands on, and what it does not cover.
///
/// Given two runs, A and B, the page is that of B and has a second tab: what changed since A, as `aggregator diff A B`
/// says it. Two directories of traces are two runs if a rank is in both.
#[derive(Debug, Args)]
pub(super) struct Arguments {
    /// A run, or traces of torch.profiler: .json or .json.gz files, or directories of them. Two runs: before and after.
    #[arg(required = true, value_name = "RUN|TRACES")]
    paths: Vec<PathBuf>,
    /// The page; `-` is stdout. One that exists is replaced.
    #[arg(short, long, value_name = "FILE", default_value = "report.html")]
    out: PathBuf,
    /// The step that is drawn as a timeline of all ranks. If not given: the one of median length.
    #[arg(long, value_name = "STEP")]
    timeline: Option<i32>,
    #[command(flatten)]
    selection: SelectionArguments,
    /// Only while a range of the host runs whose name matches.
    #[arg(long, value_name = "REGEX")]
    range: Option<String>,
}

/// Runs the command.
pub(super) fn run(arguments: Arguments) -> Result<Outcome, Error> {
    let options = Options { range: value("range", &arguments.range, regex)?, ..arguments.selection.resolve()? };
    let settings = Settings { timeline_step: arguments.timeline, ..Settings::default() };
    let write = |out: &mut dyn Write| match sides(arguments.paths.clone())? {
        Sides::One(run) => with_bar(|progress| report(run.as_ref(), &options, &settings, out, progress)),
        Sides::Two(a, b) => {
            whole_runs_only(&options)?;
            with_bar(|progress| report_with(a.as_ref(), b.as_ref(), &options, &settings, out, progress))
        }
    };
    let reported = if arguments.out.as_os_str() == "-" {
        write(&mut BufWriter::new(std::io::stdout().lock()))?
    } else {
        to_file(&arguments.out, write)?
    };
    say(&arguments.out, &reported);
    say_omissions(&reported.omissions);
    Ok(if reported.partial { Outcome::Partial } else { Outcome::Done })
}

/// What is reported.
enum Sides {
    One(Box<dyn Source>),
    /// Before and after.
    Two(Box<dyn Source>, Box<dyn Source>),
}

/// Two runs are compared; traces of one run may lie in two directories.
fn sides(paths: Vec<PathBuf>) -> Result<Sides, Error> {
    if let [a, b] = paths.as_slice()
        && a.is_dir()
        && b.is_dir()
    {
        let (of_a, of_b) = (resolve(vec![a.clone()])?, resolve(vec![b.clone()])?);
        let a_run = matches!(of_a, Input::Run(_)) || matches!(of_b, Input::Run(_));
        let (before, after) = (source_of(of_a)?, source_of(of_b)?);
        let ranks = before.ranks();
        if a_run || after.ranks().iter().any(|rank| ranks.contains(rank)) {
            return Ok(Sides::Two(before, after));
        }
    }
    open(paths).map(Sides::One)
}

/// Parts of two runs by time or range are not the same part of both.
fn whole_runs_only(options: &Options) -> Result<(), Error> {
    let why = "two runs are compared by their steps; leave it out, or choose --steps".to_string();
    if options.selects_by_time() {
        return Err(Error::Option { option: "from/--to", value: "given with two runs".into(), why });
    }
    match &options.range {
        Some(range) => Err(Error::Option { option: "range", value: range.to_string(), why }),
        None => Ok(()),
    }
}

/// Messages; if stderr is gone there is nobody to tell.
fn say(path: &Path, reported: &Reported) {
    let mut stderr = std::io::stderr().lock();
    let _ = writeln!(
        stderr,
        "{}: {}, {:.2} MB; open it in a browser",
        path.display(),
        plural(reported.ranks, "rank"),
        reported.bytes as f64 / 1e6
    );
    for text in &reported.summarised {
        let _ = writeln!(stderr, "summarised: {text}");
    }
}
