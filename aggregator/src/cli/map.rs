//! `aggregator map`.

use std::path::{Path, PathBuf};

use clap::Args;
use kineto::WindowChoice;
use trace::{OmissionKind, Run, terminal};

use crate::cli::analysis_args::AnalysisArguments;
use crate::cli::input::{InputArguments, input_help};
use crate::cli::output::with_bar;
use crate::cli::output::{Outcome, print_omissions};
use crate::cli::reduce::reduce_parts;
use formats::input::{Input, resolve};
use measure::reduced::Reduced;
use model::Error;
use model::ffi::return_freed_memory;
use model::options::Options;
use model::units::{bytes, plural};
use pipeline::analyze::reduce_shares;
use pipeline::parts::Mapper;
use pipeline::parts::contract::ShareManifest;
use pipeline::parts::division::{RankBytes, Share, usual_shares};
use pipeline::parts::input::MapInput;
use pipeline::parts::processes::Job;

/// Map a share of the ranks: write what the analysis needs of them as Parquet. `reduce` makes the analysis of all shares.
///
/// Ranks are divided by the bytes of their files, in the same way in every process. A share of the same input and options
/// that is in PARTS already is kept, so that a map that failed is simply started again.
#[derive(Debug, Args)]
#[command(allow_negative_numbers = true)]
pub struct Arguments {
    #[arg(required = true, value_name = "RUN|TRACES", help = input_help())]
    paths: Vec<PathBuf>,
    /// Map share I of N, counted from 0. All shares need the same input, options and N.
    #[arg(long, value_name = "I/N", default_value = "0/1")]
    part: Share,
    /// Write into this directory, which all shares have in common.
    #[arg(short, long, value_name = "PARTS")]
    out: PathBuf,
    #[command(flatten)]
    input: InputArguments,
    #[command(flatten)]
    analysis: AnalysisArguments,
}

/// Runs the command.
pub(super) fn run(arguments: &Arguments) -> Result<Outcome, Error> {
    let Share { index, of } = arguments.part;
    let (manifest, was_there) = with_bar(|progress| map_share(arguments, progress))?;
    print_omissions(&manifest.omissions);
    let before = if was_there { ", mapped before" } else { "" };
    let lost = match manifest.worst_omission() {
        Some(OmissionKind::Lost) => "; something recorded was lost, which `reduce` lists",
        _ => "",
    };
    terminal::say(format_args!("share {index}/{of}: {}{before}{lost}", described(&manifest)));
    Ok(arguments.input.outcome(manifest.worst_omission()))
}

/// Maps the share. Returns its manifest, and whether it was there already.
pub(super) fn map_share(
    arguments: &Arguments,
    progress: &(dyn Fn(usize, usize) + Sync),
) -> Result<(ShareManifest, bool), Error> {
    let options = arguments.analysis.options();
    let input = resolve(arguments.paths.clone())?;
    let ranks = ranks_of_run(&input)?;
    let input = open(input, ranks, arguments.input, &options)?;
    let Share { index, of } = arguments.part;
    Mapper::new(&input, &options, arguments.input.choices(), of)?.map(&arguments.out, index, progress)
}

fn described(manifest: &ShareManifest) -> String {
    let files = || manifest.chunks.iter().flat_map(|chunk| &chunk.files);
    let ranks = manifest.chunks.iter().map(|chunk| chunk.ranks.len()).sum();
    let size = files().map(|file| file.bytes).sum::<u64>();
    format!(
        "{} in {} of {}",
        plural(ranks, "rank"),
        plural(files().count(), "file"),
        bytes(i64::try_from(size).unwrap_or(i64::MAX))
    )
}

/// The ranks of a run with the sizes of their files; nothing for other inputs.
fn ranks_of_run(input: &Input) -> Result<Vec<RankBytes>, Error> {
    match input {
        Input::Run(path) => Ok(Run::list_ranks(path)?.into_iter().collect()),
        Input::Files(_) => Ok(Vec::new()),
    }
}

/// Opens the input of a map. `ranks` are those of a run.
fn open(input: Input, ranks: Vec<RankBytes>, arguments: InputArguments, options: &Options) -> Result<MapInput, Error> {
    match input {
        Input::Run(_) if arguments.window() != WindowChoice::All => {
            let why = "a window of a run is found in the steps of all ranks; use --steps".to_string();
            Err(Error::Option { option: "window", value: "given with parts".into(), why })
        }
        Input::Run(path) => MapInput::run(path, ranks, options, arguments.max_memory_bytes()),
        Input::Files(files) => MapInput::files(arguments.open_files(&files)?, options),
    }
}

/// Analyzes an input with the parts in `parts`: maps those that are missing, then reduces.
pub(super) fn analyze_by_parts<'a>(
    input: Input,
    arguments: InputArguments,
    options: &Options,
    parts: &'a Path,
) -> Result<Reduced<'a>, Error> {
    let ranks = ranks_of_run(&input)?;
    let input = open(input, ranks, arguments, options)?;
    let (shares, before) = map_shares(&input, arguments, options, parts, |_| true)?;
    if before > 0 {
        terminal::say(format_args!("{before} of {} mapped before", plural(shares as usize, "share")));
    }
    reduce_parts(parts)
}

/// Maps the usual shares of an input that this process is to map. Returns the number of all shares, and the number of shares that
/// were in `parts` already.
fn map_shares(
    input: &MapInput,
    arguments: InputArguments,
    options: &Options,
    parts: &Path,
    is_own: impl Fn(u32) -> bool,
) -> Result<(u32, usize), Error> {
    let shares = usual_shares(&input.ranks);
    let mapper = Mapper::new(input, options, arguments.choices(), shares)?;
    let mut before = 0;
    for index in (0..shares).filter(|index| is_own(*index)) {
        let (_, was_there) = mapper.map(parts, index, &|_, _| ())?;
        before += usize::from(was_there);
    }
    Ok((shares, before))
}

/// Analyzes an input with all processes of an MPI job. The parts are in the directory `parts`, or in the memory of the processes.
/// Process 0 returns what `finish` made of the analysis, and the other processes return `None`.
///
/// # Errors
/// In process 0, the errors of [`analyze_by_parts`] and of `finish`; an error of another process is an omission.
pub(super) fn analyze_together<T>(
    job: &Job,
    input: Result<Input, Error>,
    arguments: InputArguments,
    options: &Options,
    parts: Option<&Path>,
    finish: impl FnOnce(Reduced<'_>) -> Result<T, Error>,
) -> Result<Option<T>, Error> {
    // A process whose input cannot be opened must take the message too.
    let ranks = job.tell_all(|| input.as_ref().map_or(Ok(Vec::new()), ranks_of_run));
    let input = input.and_then(|input| open(input, ranks?, arguments, options));
    let Some(parts) = parts else {
        let mapped = input.and_then(|input| {
            let mapper = Mapper::new(&input, options, arguments.choices(), job.size())?;
            let map = |progress: &(dyn Fn(usize, usize) + Sync)| mapper.map_for_messages(job.rank(), progress);
            if job.rank() == 0 { with_bar(map) } else { map(&|_, _| ()) }
        });
        if job.rank() > 0 {
            let (found, kept) = match mapped {
                Ok((manifest, kept)) => (Ok(manifest), Some(kept)),
                Err(error) => (Err(error.to_string()), None),
            };
            return job.serve(&found, kept.as_ref()).map(|()| None);
        }
        let path = Path::new("the processes of the job");
        return_freed_memory();
        let shares = job.shares(mapped?, path)?;
        return finish(reduce_shares(shares, path)?).map(Some);
    };
    let is_own = |index: u32| index % job.size() == job.rank();
    let mapped = input.and_then(|input| map_shares(&input, arguments, options, parts, is_own).map(drop));
    if job.rank() > 0 {
        return job.serve(&mapped.map_err(|error| error.to_string()), None).map(|()| None);
    }
    mapped?;
    for (process, mapped) in (1..).zip(job.answers::<()>()) {
        if let Err(why) = mapped {
            // Its shares are missing, which the analysis lists.
            terminal::say(format_args!("process {process}: {why}"));
        }
    }
    finish(reduce_parts(parts)?).map(Some)
}
