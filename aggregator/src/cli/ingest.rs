//! `aggregator ingest`.

use std::path::PathBuf;

use clap::Args;
use trace::terminal::say;
use trace::worst_omission;

use crate::cli::input::{InputArguments, files_help};
use crate::cli::output::with_bar;
use crate::cli::output::{Outcome, print_omissions};
use formats::ingest::{Ingested, ingest_with};
use model::Error;

/// Write recordings of other tools as a run.
#[derive(Debug, Args)]
pub struct Arguments {
    #[arg(required = true, value_name = "TRACES", help = files_help())]
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
    let ingested = with_bar(|progress| ingest_with(&paths, input.open_options(), &out, progress))?;
    let Ingested { ranks, rows, read_bytes, written_bytes, omissions } = &ingested;
    say(format_args!(
        "{}: {} ranks, {rows} rows; read {:.1} MB, wrote {:.1} MB",
        out.display(),
        ranks.len(),
        *read_bytes as f64 / 1e6,
        *written_bytes as f64 / 1e6,
    ));
    print_omissions(omissions);
    Ok(input.outcome(worst_omission(omissions)))
}
