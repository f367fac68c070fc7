//! `aggregator report`.

use std::ffi::OsString;
use std::io::Write;
use std::ops::Range;
use std::path::{Path, PathBuf};

use clap::Args;
use regex::Regex;
use trace::terminal::{Form, say};

use crate::cli::input::{InputArguments, input_help, open, open_one_of_several};
use crate::cli::output::with_bar;
use crate::cli::output::{Outcome, print_omissions};
use crate::cli::output::{refuse_input, write_file};
use crate::cli::scope_args::{CommunicationArguments, PlaceArguments, ScopeArguments};
use crate::render::{report, report_with};
use ::diff::Method;
use formats::input::{Input, expand_all, resolve};
use formats::paths::is_directory;
use model::Error;
use model::options::Options;
use model::source::Source;
use model::units::plural;
use report_html::{Reported, Settings};

/// Write one page for a browser: the verdict, its evidence, and the limits of both.
///
/// Given two runs, A and B, the page opens on what changed from A to B, as `aggregator diff A B` prints it, and has a
/// second tab: the report of B. Two directories of traces are two runs if some rank is in both.
#[derive(Debug, Args)]
pub struct Arguments {
    #[arg(required = true, value_name = "RUN|TRACES", help = input_help() + ". Or two runs: before and after")]
    paths: Vec<PathBuf>,
    /// Write this file, replacing one that exists; `-` is stdout.
    #[arg(short, long, value_name = "FILE", default_value = "report.html")]
    out: PathBuf,
    /// Show this step first in the timeline, in most detail. [default: the step of median length]
    #[arg(long, value_name = "STEP")]
    timeline: Option<i32>,
    #[command(flatten)]
    input: InputArguments,
    #[command(flatten)]
    scope: ScopeArguments,
    #[command(flatten)]
    communication: CommunicationArguments,
    /// Use only the time inside host ranges whose name matches.
    #[arg(long, value_name = "REGEX", help_heading = "Selection")]
    range: Option<Regex>,
    #[command(flatten)]
    places: PlaceArguments,
}

/// Runs the command.
pub(super) fn run(arguments: Arguments) -> Result<Outcome, Error> {
    let mut options = Options {
        range: arguments.range.clone(),
        communication: arguments.communication.rule(),
        places: arguments.places.places.clone(),
        ..arguments.scope.options()
    };
    let settings = Settings {
        timeline_step: arguments.timeline,
        command: quoted(trace::command_line::get().into_iter()),
        ..Settings::default()
    };
    let paths = expand_all(arguments.paths)?;
    refuse_input(&arguments.out, &paths)?;
    let sides = sides(paths, arguments.input, &mut options.steps)?;
    let write = |out: &mut dyn Write| match &sides {
        Sides::One(run) => with_bar(|progress| report(run.as_ref(), &options, &settings, out, progress)),
        Sides::Two(a, b) => {
            whole_runs_only(&options)?;
            let method = Method { unlike_runs: arguments.input.force, ..Method::default() };
            let sides = (a.as_ref(), b.as_ref());
            with_bar(|progress| report_with(sides, &options, (&method, &settings), out, progress))
        }
    };
    let reported = write_file(&arguments.out, Form::Bytes, write)?;
    print_result(&arguments.out, &reported);
    print_omissions(&reported.omissions);
    Ok(arguments.input.outcome(reported.worst))
}

/// A command as text that a shell reads back as the same arguments. The program loses its directory.
fn quoted(arguments: impl Iterator<Item = OsString>) -> String {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "_-./,:=+@%".contains(c);
    let quote = |(at, argument): (usize, OsString)| {
        let text = match Path::new(&argument).file_name().filter(|_| at == 0) {
            Some(name) => name.to_string_lossy().into_owned(),
            None => argument.to_string_lossy().into_owned(),
        };
        let is_plain = !text.is_empty() && text.chars().all(is_plain);
        if is_plain { text } else { format!("'{}'", text.replace('\'', "'\\''")) }
    };
    arguments.enumerate().map(quote).collect::<Vec<_>>().join(" ")
}

/// The runs of a report.
enum Sides {
    One(Box<dyn Source>),
    /// Before and after.
    Two(Box<dyn Source>, Box<dyn Source>),
}

/// Decides whether the paths are one run or two. The traces of one run may lie in two directories.
fn sides(paths: Vec<PathBuf>, arguments: InputArguments, steps: &mut Option<Range<i32>>) -> Result<Sides, Error> {
    if let [a, b] = paths.as_slice()
        && is_directory(a)?
        && is_directory(b)?
    {
        let (of_a, of_b) = (resolve(vec![a.clone()])?, resolve(vec![b.clone()])?);
        let a_run = matches!(of_a, Input::Run(_)) || matches!(of_b, Input::Run(_));
        let of_one = |input| open_one_of_several(input, arguments);
        let (before, after) = (of_one(of_a)?, of_one(of_b)?);
        let ranks = before.ranks();
        if a_run || after.ranks().iter().any(|rank| ranks.contains(rank)) {
            return Ok(Sides::Two(before, after));
        }
    }
    open(paths, arguments, steps).map(Sides::One)
}

/// Refuses selections by time or range: they select different parts of two runs.
fn whole_runs_only(options: &Options) -> Result<(), Error> {
    let why = "two runs are compared step by step; use --steps instead".to_string();
    if options.selects_by_time() {
        return Err(Error::Option { option: "from/--to", value: "given with two runs".into(), why });
    }
    match &options.range {
        Some(range) => Err(Error::Option { option: "range", value: range.to_string(), why }),
        None => Ok(()),
    }
}

/// Prints the size of the page and its shortenings on stderr.
fn print_result(path: &Path, reported: &Reported) {
    say(format_args!(
        "{}: {}, {:.2} MB; open it in a browser",
        path.display(),
        plural(reported.ranks, "rank"),
        reported.bytes as f64 / 1e6
    ));
    for text in &reported.summarised {
        say(format_args!("summarised: {text}"));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_shell_reads_the_command_back() {
        let arguments = ["/opt/bin/rankscope", "report", "my run", "it's", "a$b", "", "x/y.json.gz", "--steps=3..5"];
        assert_eq!(
            quoted(arguments.into_iter().map(OsString::from)),
            r"rankscope report 'my run' 'it'\''s' 'a$b' '' x/y.json.gz --steps=3..5"
        );
    }
}
