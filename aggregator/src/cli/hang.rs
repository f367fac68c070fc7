//! `aggregator hang`.

use std::io::Write;
use std::path::{Path, PathBuf};

use bytesize::ByteSize;
use clap::Args;
use trace::terminal::{self, Form, say};
use trace::worst_omission;

use crate::cli::input::{outcome, parse_size};
use crate::cli::output::width;
use crate::cli::output::{Outcome, print_omissions};
use crate::cli::output::{refuse_input, text_output, write_file};
use formats::input::{expand_all, run_of};
use formats::run_source::RunSource;
use hang::dumps;
use hang::job::Job;
use hang::report::Hang;
use model::Error;
use report_text::hang::picture::picture;
use report_text::hang::write_hang;

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
    /// Write the waits as a picture (SVG) too, replacing a file that exists.
    #[arg(long, value_name = "FILE")]
    picture: Option<PathBuf>,
    /// Leave out dumps, and shards of a run, that would take more memory than this, as in `8GiB`. [default: three quarters
    /// of the machine's]
    #[arg(long, value_name = "SIZE", value_parser = parse_size)]
    max_memory: Option<ByteSize>,
    /// End with exit code 3 if anything at all was left out, not only if something recorded was lost.
    #[arg(long)]
    strict: bool,
}

/// Runs the command.
pub(super) fn run(arguments: &Arguments) -> Result<Outcome, Error> {
    if let Some(file) = &arguments.picture {
        refuse_input(file, &arguments.paths)?;
    }
    let hang = find(arguments.paths.clone(), arguments.max_memory.map(|size| size.as_u64()))?;
    if let Some(file) = &arguments.picture {
        write_picture(&hang, file)?;
    }
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

fn write_picture(hang: &Hang, file: &Path) -> Result<(), Error> {
    let Some(picture) = picture(hang)? else {
        say(format_args!("{}: not written, because no rank waits", file.display()));
        return Ok(());
    };
    write_file(file, Form::Bytes, |out| Ok(out.write_all(picture.as_bytes())?))
}

/// Finds the ranks that hold up the job of a run or of dumps, which may take `limit_bytes` of memory; `None`: the default.
pub(super) fn find(paths: Vec<PathBuf>, limit_bytes: Option<u64>) -> Result<Hang, Error> {
    let paths = expand_all(paths)?;
    if let Some(run) = run_of(&paths)? {
        return Hang::of_run(&RunSource::open_within(&run, limit_bytes)?);
    }
    let (states, omissions) = dumps::read(&paths, limit_bytes)?;
    Ok(Hang::of(Job::of(states, omissions, None)))
}
