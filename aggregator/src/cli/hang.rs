//! `aggregator hang`.

use std::io::Write;
use std::path::PathBuf;

use clap::Args;
use trace::terminal::{self, Form};
use trace::worst_omission;

use crate::Error;
use crate::cli::analyze::width;
use crate::cli::input::{expand_all, outcome, run_of};
use crate::cli::output::text_output;
use crate::cli::{Outcome, print_omissions};
use crate::hang::job::Job;
use crate::hang::report::Hang;
use crate::hang::{dumps, rows};
use crate::ingest::source::{RunSource, Source};
use crate::render::hang::write_hang;

/// Find out which ranks hold a hung job up: those that others wait for and that wait for nobody. Reads dumps of torch's Flight Recorder,
/// or the collectives of a run that have not ended.
#[derive(Debug, Args)]
pub struct Arguments {
    /// Dumps of the Flight Recorder, as pickles or JSON: files, directories or archives of them, with the rank in each name, as in
    /// nccl_trace_rank_3. Or a run.
    #[arg(required = true, value_name = "DUMPS|RUN")]
    paths: Vec<PathBuf>,
    /// Print JSON.
    #[arg(long)]
    json: bool,
    /// End with exit code 3 if anything at all was left out, not only if something recorded was lost.
    #[arg(long)]
    strict: bool,
}

/// Runs the command.
pub(super) fn run(arguments: &Arguments) -> Result<Outcome, Error> {
    let hang = find(arguments.paths.clone())?;
    if arguments.json {
        let mut out = terminal::stdout(Form::Json);
        serde_json::to_writer_pretty(&mut out, &hang)?;
        writeln!(out)?;
        out.flush()?;
    } else {
        let mut out = text_output();
        write_hang(&hang, width(), &mut out)?;
        out.flush()?;
    }
    print_omissions(&hang.omissions);
    Ok(outcome(worst_omission(&hang.omissions), arguments.strict))
}

/// Finds the ranks that hold up the job of a run or of dumps.
pub(super) fn find(paths: Vec<PathBuf>) -> Result<Hang, Error> {
    let paths = expand_all(paths)?;
    let job = match run_of(&paths)? {
        Some(run) => {
            let source = RunSource::open(&run)?;
            let (states, omissions) = rows::read(&source);
            Job::of(states, omissions, source.info().world_size)
        }
        None => {
            let (states, omissions) = dumps::read(&paths)?;
            Job::of(states, omissions, None)
        }
    };
    Ok(Hang::of(job))
}
