//! `aggregator ingest`.

use std::path::PathBuf;

use clap::Args;
use trace::terminal::say;
use trace::worst_omission;

use crate::cli::input::InputArguments;
use crate::cli::output::with_bar;
use crate::cli::output::{Outcome, print_omissions};
use formats::input::{Input, resolve};
use formats::kineto::{Ingested, ingest_with};
use model::Error;

/// Write traces of torch.profiler (.json, .json.gz) as a run.
#[derive(Debug, Args)]
pub struct Arguments {
    /// Traces: .json or .json.gz files, or directories of them.
    #[arg(required = true, value_name = "TRACES")]
    paths: Vec<PathBuf>,
    /// Write the run into this directory.
    #[arg(short, long, value_name = "RUN")]
    out: PathBuf,
    #[command(flatten)]
    input: InputArguments,
}

/// Runs the command.
pub(super) fn run(arguments: Arguments) -> Result<Outcome, Error> {
    let Arguments { paths, out, input } = arguments;
    let paths = traces(paths)?;
    let ingested = with_bar(|progress| ingest_with(&paths, input.open_options(), &out, progress))?;
    let Ingested { ranks, rows, read_bytes, written_bytes, omissions } = &ingested;
    say(format_args!(
        "{}: {} ranks, {rows} rows; read {:.1} MB of traces, wrote {:.1} MB",
        out.display(),
        ranks.len(),
        *read_bytes as f64 / 1e6,
        *written_bytes as f64 / 1e6,
    ));
    print_omissions(omissions);
    Ok(input.outcome(worst_omission(omissions)))
}

/// The traces that paths lead to.
///
/// # Errors
/// [`Error::NoInput`] for a run and for snapshots, which have no trace.
pub(super) fn traces(paths: Vec<PathBuf>) -> Result<Vec<PathBuf>, Error> {
    match resolve(paths)? {
        Input::Files(files) => Ok(files.traces()?.to_vec()),
        Input::Run(path) => {
            let why = "it is a run already; analyze it directly".to_string();
            Err(Error::NoInput { path, why })
        }
    }
}
