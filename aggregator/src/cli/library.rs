//! The commands as functions, for programs in other languages: options by name, results as values. Nothing is printed, and
//! nothing is written that is not asked for.

use std::path::{Path, PathBuf};

use clap::{Args, FromArgMatches, Parser};
use rustc_hash::FxHashMap;
use trace::terminal::Form;
use trace::{EventRow, OmissionRow, RecordBatch, batch_from_rows};

use crate::cli::analysis_args::AnalysisArguments;
use crate::cli::input::{InputArguments, open};
use crate::cli::output::{refuse_input, write_file};
use crate::cli::{diff as diff_command, hang as hang_command, map as map_command, what_if as what_if_command};
use crate::render::report_analyzed;
use align::clock::Clocks;
use diff::Diff;
use formats::ingest::{Ingested, ingest_with};
use formats::input::{Input, expand_all, resolve};
use model::Error;
use model::analysis::Analysis;
use model::options::Options;
use model::source::{Source, no_rank};
use model::units;
use model::{NO_STEP, NONE, RankData};
use pipeline::analyze::{Analyzed, analyze_aligned, reduce_shares};
use pipeline::parts::read_shares;
use report_html::{Reported, Settings};
use report_tables::parquet;
use report_timeline::perfetto::prepare;

pub use model::ffi::KeptMemory;

/// Called after each rank with the number of finished ranks and the total. It may unwind, which ends the call.
pub type Progress<'a> = &'a (dyn Fn(usize, usize) + Sync);

/// An option as on the command line without its dashes, and its value; a switch has none.
pub type NamedOption = (String, Option<String>);

/// The options of an analysis.
#[derive(Debug, Parser)]
#[command(no_binary_name = true, allow_negative_numbers = true)]
struct AnalysisOptions {
    #[command(flatten)]
    input: InputArguments,
    #[command(flatten)]
    analysis: AnalysisArguments,
}

/// The options of what is read.
#[derive(Debug, Parser)]
#[command(no_binary_name = true)]
struct InputOptions {
    #[command(flatten)]
    input: InputArguments,
}

/// An analysis, with its input where a report or a timeline reads it again.
pub struct Answer {
    analyzed: Analyzed,
    /// `None` for parts of ranks.
    input: Option<Opened>,
}

/// An input and the options of its analysis.
struct Opened {
    paths: Vec<PathBuf>,
    source: Box<dyn Source>,
    options: Options,
}

impl Answer {
    /// Analyzes a run or traces.
    ///
    /// # Errors
    /// [`Error::Usage`] for an option or a value that does not exist, and the errors of [`analyze`](pipeline::analyze()).
    pub fn of(paths: Vec<PathBuf>, options: &[NamedOption], progress: Progress<'_>) -> Result<Self, Error> {
        let AnalysisOptions { input, analysis } = parse(options, &[])?;
        let mut options = analysis.options();
        let paths = expand_all(paths)?;
        let source = open(paths.clone(), input, &mut options.steps)?;
        let analyzed = analyze_aligned(source.as_ref(), &options, progress)?;
        Ok(Self { analyzed, input: Some(Opened { paths, source, options }) })
    }

    /// Reduces the parts that [`map`] wrote.
    ///
    /// # Errors
    /// [`Error::NoInput`] and the errors of [`analyze`](pipeline::analyze()).
    pub fn of_parts(parts: &Path) -> Result<Self, Error> {
        let analysis = std::mem::take(reduce_shares(read_shares(parts)?, parts)?.whole());
        let (clocks, time, devices) = (Clocks::default(), Default::default(), Vec::new());
        Ok(Self { analyzed: Analyzed { analysis, clocks, time, devices, recorded_ns: None }, input: None })
    }

    /// The analysis.
    pub fn analysis(&self) -> &Analysis {
        &self.analyzed.analysis
    }

    /// Whether it has an input that a report or a timeline reads again.
    pub fn has_input(&self) -> bool {
        self.input.is_some()
    }

    fn input(&self, what: &str) -> Result<&Opened, Error> {
        self.input.as_ref().ok_or_else(|| {
            let why = format!("parts have no rows, which {what} shows; analyze the run or the traces for it");
            Error::NoInput { path: "parts".into(), why }
        })
    }

    /// Writes the report into a file. `command` is shown as what made it; `step` is the one that its timeline shows first.
    ///
    /// # Errors
    /// The errors of [`report`](report_html::report), also if the input was removed or would be replaced.
    pub fn report(&self, path: &Path, step: Option<i32>, command: &str) -> Result<Reported, Error> {
        refuse_input(path, &self.input("a report")?.paths)?;
        write_file(path, Form::Bytes, |mut out| self.page(&mut out, step, command))
    }

    /// Writes the report.
    ///
    /// # Errors
    /// The errors of [`report`](report_html::report), also if the input was removed.
    pub fn page(&self, out: &mut impl std::io::Write, step: Option<i32>, command: &str) -> Result<Reported, Error> {
        let Opened { source, options, .. } = self.input("a report")?;
        self.must_be_there()?;
        let settings = Settings { timeline_step: step, command: command.into(), ..Settings::default() };
        report_analyzed(source.as_ref(), options, &settings, &self.analyzed, out)
    }

    /// An input that was removed is an error, and not a page without a timeline.
    fn must_be_there(&self) -> Result<(), Error> {
        resolve(self.input("a report")?.paths.clone()).map(drop)
    }

    /// The rows of `events` of all ranks or of one, of all steps or of one; in global time, or in the ranks' own clocks.
    ///
    /// # Errors
    /// [`Error::Option`] for a step or rank that is not in the analysis; the errors of [`Source::load`].
    pub fn rows(
        &self,
        step: Option<i32>,
        rank: Option<i32>,
        own_clocks: bool,
        progress: Progress<'_>,
    ) -> Result<RecordBatch, Error> {
        let Opened { source, options, .. } = self.input("a timeline")?;
        self.must_be_there()?;
        let facts = &self.analysis().facts;
        let recorded = |option, value: Option<i32>, all: &[i32]| match value.filter(|value| !all.contains(value)) {
            Some(value) => {
                let why = format!("it was not recorded; recorded: {}", units::ranks(all));
                Err(Error::Option { option, value: value.to_string(), why })
            }
            None => Ok(()),
        };
        recorded("steps", step, &facts.steps)?;
        recorded("ranks", rank, &facts.ranks)?;
        let ranks = rank.map_or_else(|| facts.ranks.clone(), |rank| vec![rank]);
        let global = |rank, device, t_ns| match own_clocks {
            true => t_ns,
            false => self.analyzed.clocks.global(rank, device, t_ns),
        };
        let mut rows = Vec::new();
        for (done, rank) in ranks.iter().enumerate() {
            let mut data = source.load(*rank)?;
            prepare(&mut data, options, self.analyzed.time.get(rank).copied());
            rows.extend(rows_of(&data, step, &global));
            progress(done + 1, ranks.len());
        }
        rows.sort_by_key(|row| (row.ts_ns, row.rank, row.id));
        Ok(batch_from_rows(&rows)?)
    }

    /// Writes `analysis/` into a directory and returns its path.
    ///
    /// # Errors
    /// The errors of [`parquet::write`].
    pub fn save(&self, directory: &Path) -> Result<PathBuf, Error> {
        let run = match &self.input {
            Some(Opened { paths, .. }) => match resolve(paths.clone())? {
                Input::Run(path) => Some(path),
                Input::Files(_) => None,
            },
            None => None,
        };
        parquet::write(self.analysis(), directory, run.as_deref())
    }
}

/// An input whose rows are read without an analysis.
pub struct Recorded {
    source: Box<dyn Source>,
}

impl Recorded {
    /// Opens a run or traces.
    ///
    /// # Errors
    /// The errors of [`Answer::of`] for an input that cannot be opened.
    pub fn of(paths: Vec<PathBuf>) -> Result<Self, Error> {
        let InputOptions { input } = parse(&[], &[])?;
        let source = open(expand_all(paths)?, input, &mut None)?;
        if source.ranks().is_empty() { Err(no_rank(source.as_ref(), None)) } else { Ok(Self { source }) }
    }

    /// The recorded ranks, ascending.
    pub fn ranks(&self) -> Vec<i32> {
        self.source.ranks()
    }

    /// Problems of the whole input.
    pub fn problems(&self) -> Vec<OmissionRow> {
        self.source.problems()
    }

    /// The rows of a rank as an analysis without options sees them, as far as [`Source::load_rows`] loads them.
    ///
    /// # Errors
    /// Those of [`Source::load`].
    pub fn load(&self, rank: i32) -> Result<RankData, Error> {
        let mut data = self.source.load_rows(rank)?;
        prepare(&mut data, &Options::default(), None);
        Ok(data)
    }
}

/// The rows of one rank, of a step or of all. `to_global` turns times of its host or device clock.
fn rows_of<'a>(
    data: &'a RankData,
    step: Option<i32>,
    to_global: &'a impl Fn(i32, bool, i64) -> i64,
) -> impl Iterator<Item = EventRow> + 'a {
    let (events, rank) = (&data.events, data.outline.info.rank);
    let known = |value: i64| (value != NONE).then_some(value);
    let rates: FxHashMap<i64, f64> = data.copy_rates.iter().map(|rate| (rate.id, rate.bandwidth_gbs)).collect();
    let row = move |row: usize| {
        let (device_id, id) = (known(events.device[row]), events.id[row]);
        EventRow {
            rank,
            kind: events.kind[row].into(),
            name: data.names[events.name[row] as usize].clone(),
            ts_ns: to_global(rank, device_id.is_some(), events.ts_ns[row]),
            dur_ns: events.dur_ns[row],
            id,
            step: Some(events.step[row]).filter(|step| *step != NO_STEP),
            thread_id: known(events.thread[row]),
            device_id,
            stream_id: known(events.stream[row]),
            correlation_id: known(events.correlation[row]),
            external_id: known(events.external[row]),
            parent_id: events.id.get(events.parent[row] as usize).copied(),
            is_comm: Some(events.is_comm[row]),
            bytes: known(events.bytes[row]),
            bandwidth_gbs: rates.get(&id).copied(),
            flops: known(events.flops[row]),
            ..EventRow::default()
        }
    };
    (0..events.len()).filter(move |at| step.is_none_or(|step| events.step[*at] == step)).map(row)
}

/// Writes recordings of other tools as a run.
///
/// # Errors
/// [`Error::Usage`] and the errors of [`ingest_with`].
pub fn ingest(
    paths: Vec<PathBuf>,
    out: &Path,
    options: &[NamedOption],
    progress: Progress<'_>,
) -> Result<Ingested, Error> {
    let InputOptions { input } = parse(options, &[])?;
    ingest_with(&paths, input.open_options(), out, progress)
}

/// Compares the runs of two sides.
///
/// # Errors
/// [`Error::Usage`] and the errors of [`diff`](pipeline::diff::diff).
pub fn diff(a: &[String], b: &[String], options: &[NamedOption], progress: Progress<'_>) -> Result<Diff, Error> {
    let arguments: diff_command::Arguments = parse_arguments(options, &["a".into(), "b".into()])?;
    arguments.compare(a, b, progress)
}

/// Predicts how long steps would be if something were different: a JSON document, as `what-if --json` prints it, and what was
/// left out of the input.
///
/// # Errors
/// [`Error::Usage`] and the errors of [`analyze`](pipeline::analyze()).
pub fn what_if(
    paths: Vec<PathBuf>,
    options: &[NamedOption],
    progress: Progress<'_>,
) -> Result<(String, Vec<OmissionRow>), Error> {
    let arguments: what_if_command::Arguments = parse_arguments(options, &["paths".into()])?;
    let (found, analysis) = arguments.predict(paths, progress)?;
    Ok((serde_json::to_string(&found)?, analysis.tables.omissions))
}

/// Finds the ranks that hold the job of a run or of dumps of the Flight Recorder up: a JSON document, as `hang --json` prints it.
///
/// # Errors
/// The errors of `hang`.
pub fn hang(paths: Vec<PathBuf>) -> Result<String, Error> {
    Ok(serde_json::to_string(&hang_command::find(paths, None)?)?)
}

/// Maps a share of the ranks, as in `0/8`, into a directory of parts. Returns the ranks and what of them was left out.
///
/// # Errors
/// [`Error::Usage`] and the errors of `map`.
pub fn map(
    paths: &[PathBuf],
    part: &str,
    parts: &Path,
    options: &[NamedOption],
    progress: Progress<'_>,
) -> Result<(Vec<i32>, Vec<OmissionRow>), Error> {
    let mut options = options.to_vec();
    options.push(("part".into(), Some(part.into())));
    options.push(("out".into(), Some(parts.display().to_string())));
    let paths: Vec<String> = paths.iter().map(|path| path.display().to_string()).collect();
    let arguments: map_command::Arguments = parse_arguments(&options, &paths)?;
    let (manifest, _) = map_command::map_share(&arguments, progress)?;
    Ok((manifest.ranks, manifest.omissions))
}

/// Runs a call with threads of its own, so that calls in several threads do not wait for each other, and a fork of the process
/// lacks no thread.
///
/// # Errors
/// [`Error::Threads`] where the system makes no threads.
pub fn with_threads<T: Send>(work: impl FnOnce() -> Result<T, Error> + Send) -> Result<T, Error> {
    rayon::ThreadPoolBuilder::new().build()?.install(work)
}

fn parse<T: Parser>(options: &[NamedOption], paths: &[String]) -> Result<T, Error> {
    T::try_parse_from(words(options, paths)).map_err(|error| usage(&error))
}

/// Parses the arguments of a subcommand.
fn parse_arguments<T: Args + FromArgMatches>(options: &[NamedOption], paths: &[String]) -> Result<T, Error> {
    let command = T::augment_args(clap::Command::new("rankscope").no_binary_name(true));
    let matches = command.try_get_matches_from(words(options, paths)).map_err(|error| usage(&error))?;
    T::from_arg_matches(&matches).map_err(|error| usage(&error))
}

fn words(options: &[NamedOption], paths: &[String]) -> Vec<String> {
    let word = |(name, value): &NamedOption| match value {
        Some(value) => format!("--{name}={value}"),
        None => format!("--{name}"),
    };
    let mut words: Vec<String> = options.iter().map(word).collect();
    if !paths.is_empty() {
        words.push("--".into());
        words.extend(paths.iter().cloned());
    }
    words
}

/// The first paragraph of clap's message, without the usage of the command.
fn usage(error: &clap::Error) -> Error {
    let text = error.render().to_string();
    let first = text.split("\n\n").next().unwrap_or_default();
    let why = first.strip_prefix("error: ").unwrap_or(first).split_whitespace().collect::<Vec<_>>().join(" ");
    Error::Usage { why }
}
