//! `aggregator ingest`.

use std::io::Write;
use std::path::PathBuf;

use clap::Args;

use super::analyze::with_bar;
use super::input::{Input, resolve};
use super::{Outcome, say_omissions};
use crate::Error;
use crate::kineto::{Ingested, ingest};

/// Writes traces of torch.profiler as a run.
#[derive(Debug, Args)]
pub(super) struct Arguments {
    /// .json or .json.gz files, or directories of them.
    #[arg(required = true, value_name = "TRACES")]
    paths: Vec<PathBuf>,
    /// Directory that becomes the run.
    #[arg(long, value_name = "RUN")]
    out: PathBuf,
}

/// Runs the command.
pub(super) fn run(arguments: Arguments) -> Result<Outcome, Error> {
    let Arguments { paths, out } = arguments;
    let paths = match resolve(paths)? {
        Input::Traces(paths) => paths,
        Input::Run(path) => {
            let why = "it is a run already; analyze it as it is".to_string();
            return Err(Error::NoInput { path, why });
        }
    };
    let ingested = with_bar(|progress| ingest(&paths, &out, progress))?;
    let Ingested { ranks, rows, read_bytes, written_bytes, omissions } = &ingested;
    let mut stderr = std::io::stderr().lock();
    // Messages; if stderr is gone there is nobody to tell.
    let _ = writeln!(
        stderr,
        "{}: {} ranks, {rows} rows; {:.1} MB of traces became {:.1} MB",
        out.display(),
        ranks.len(),
        *read_bytes as f64 / 1e6,
        *written_bytes as f64 / 1e6,
    );
    drop(stderr);
    say_omissions(omissions);
    Ok(if omissions.is_empty() { Outcome::Done } else { Outcome::Partial })
}
