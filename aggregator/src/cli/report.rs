//! `aggregator report`.

use std::io::{BufWriter, Write};
use std::path::{Path, PathBuf};

use clap::Args;

use super::analyze::{regex, value, with_bar};
use super::export::to_file;
use super::input::open;
use super::selection::SelectionArguments;
use super::{Outcome, say_omissions};
use crate::Error;
use crate::options::Options;
use crate::render::html::{Reported, Settings, report};
use crate::render::text::plural;

/// Writes one page for a browser: the verdict, what it stands on, and what it does not cover.
#[derive(Debug, Args)]
pub(super) struct Arguments {
    /// A run, or traces of torch.profiler: .json or .json.gz files, or directories of them.
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
    let source = open(arguments.paths)?;
    let write = |out: &mut dyn Write| with_bar(|progress| report(source.as_ref(), &options, &settings, out, progress));
    let reported = if arguments.out.as_os_str() == "-" {
        write(&mut BufWriter::new(std::io::stdout().lock()))?
    } else {
        to_file(&arguments.out, write)?
    };
    say(&arguments.out, &reported);
    say_omissions(&reported.omissions);
    Ok(if reported.partial { Outcome::Partial } else { Outcome::Done })
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
