//! `aggregator what-if`.

use std::io::Write;
use std::path::PathBuf;

use clap::Args;
use trace::terminal::{self, Form};

use crate::cli::input::{InputArguments, input_help, open};
use crate::cli::output::text_output;
use crate::cli::output::{Outcome, print_omissions};
use crate::cli::output::{colour, width, with_bar};
use crate::cli::scope_args::ScopeArguments;
use ::what_if::changes::{Asked, WhatIf, predict};
use ::what_if::wia;
use formats::memory::share;
use model::Error;
use model::analysis::Analysis;
use pipeline::analyze::analyze_replayed;
use report_text::what_if;

/// Replay a job with something changed, and print how long its steps would be. Without an option for a change, the changes are
/// listed that would save most. Several options make one change.
#[derive(Debug, Args)]
#[command(allow_negative_numbers = true)]
pub struct Arguments {
    #[arg(required_unless_present = "wia", value_name = "RUN|TRACES", help = input_help())]
    paths: Vec<PathBuf>,
    /// The rank does no more work than is typical of its role. May be given several times.
    #[arg(long, value_name = "rank=R", value_parser = rank)]
    without: Vec<i32>,
    /// All ranks do the work that is typical of their role.
    #[arg(long)]
    role_median: bool,
    /// Transfers take this share of their time, as in 0.5; 0 is no time.
    #[arg(long, value_name = "X", value_parser = scale)]
    comm_scale: Option<f64>,
    /// Gradient buckets close at this size in MiB, the first one at 1 MiB at most, as in DistributedDataParallel.
    #[arg(long, value_name = "MIB", value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    bucket_mb: Option<u32>,
    /// Every collective blocks its ranks, so that no work overlaps communication.
    #[arg(long)]
    no_overlap: bool,
    /// All ranks do the work that is typical of their role, and transfers take no time.
    #[arg(long, conflicts_with = "comm_scale")]
    perfect: bool,
    /// Print JSON.
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    input: InputArguments,
    #[command(flatten)]
    scope: ScopeArguments,
    /// Operations of a pipelined job in the format of ByteDance's StragglerAnalysis (Parquet): prints how much each type of
    /// operation, data-parallel rank, stage and rank slows the job, by the formulas and names of that program.
    #[arg(long, value_name = "TRACE.parquet", help_heading = "Input", requires = "meta", conflicts_with = "paths")]
    wia: Option<PathBuf>,
    /// The sizes of that job (`dp_size: 4` and so on, one a line).
    #[arg(long, value_name = "META.yaml", help_heading = "Input", requires = "wia")]
    meta: Option<PathBuf>,
}

fn rank(text: &str) -> Result<i32, String> {
    let number = text.strip_prefix("rank=").and_then(|rank| rank.parse().ok());
    number.filter(|rank| *rank >= 0).ok_or_else(|| "expected rank=R, as in rank=5".into())
}

fn scale(text: &str) -> Result<f64, String> {
    let share = text.parse().ok().filter(|scale: &f64| scale.is_finite() && *scale >= 0.0);
    share.ok_or_else(|| "expected a number of at least 0, as in 0.5".into())
}

/// Runs the command.
pub(super) fn run(arguments: Arguments) -> Result<Outcome, Error> {
    if let (Some(wia), Some(meta)) = (&arguments.wia, &arguments.meta) {
        let room = share(arguments.input.max_memory_bytes(), 1).room_of_file("trace", 0);
        let slowdown = wia::analyze(wia, meta, room)?;
        return print(arguments.json, &slowdown, |out| what_if::write_slowdown(&slowdown, width(), colour(), out));
    }
    let (found, analysis) = with_bar(|progress| arguments.predict(arguments.paths.clone(), progress))?;
    print(arguments.json, &found, |out| what_if::write_predictions(&found, width(), colour(), out))?;
    print_omissions(&analysis.tables.omissions);
    Ok(arguments.input.outcome(analysis.worst_omission()))
}

impl Arguments {
    /// Predicts what these arguments ask for, of the input in `paths`.
    pub(super) fn predict(
        &self,
        paths: Vec<PathBuf>,
        progress: &(dyn Fn(usize, usize) + Sync),
    ) -> Result<(WhatIf, Analysis), Error> {
        let mut options = self.scope.options();
        let source = open(paths, self.input, &mut options.steps)?;
        let analyzed = analyze_replayed(source.as_ref(), &options, progress)?;
        let asked = Asked {
            without: self.without.clone(),
            role_median: self.role_median,
            comm_scale: self.comm_scale,
            no_overlap: self.no_overlap,
            perfect: self.perfect,
            bucket_mb: self.bucket_mb,
        };
        let ranks = analyzed.replayed.ranks();
        if let Some(absent) = asked.without.iter().find(|rank| ranks.binary_search(rank).is_err()) {
            let why = "the run has no such rank".to_string();
            return Err(Error::Option { option: "without", value: format!("rank={absent}"), why });
        }
        let path = source.info().path;
        let found = predict(&analyzed, &asked).map_err(|why| Error::NoInput { path, why: why.into() })?;
        Ok((found, analyzed.analysis))
    }
}

fn print(
    as_json: bool,
    result: &impl serde::Serialize,
    text: impl FnOnce(&mut dyn Write) -> Result<(), Error>,
) -> Result<Outcome, Error> {
    if as_json {
        let mut out = terminal::stdout(Form::Json);
        serde_json::to_writer_pretty(&mut out, result)?;
        writeln!(out)?;
        out.flush()?;
    } else {
        let mut out = text_output();
        text(&mut out)?;
        out.flush()?;
    }
    Ok(Outcome::Done)
}
