//! Decides whether the paths on the command line are a run or traces, and opens them.

use std::ops::Range;
use std::path::{Path, PathBuf};

use bytesize::ByteSize;
use clap::Args;
use formats::format::OpenOptions;
use formats::input::{Input, resolve};
use formats::job_files::JobFiles;
use formats::registry::FORMATS;
use kineto::WindowChoice;
use trace::OmissionKind;

use crate::cli::output::Outcome;
use formats::run_source::RunSource;
use hang::dumps;
use model::Error;
use model::source::Source;

/// What the input of a command may be.
pub(super) fn input_help() -> String {
    format!("Run, or {}", files_of_ranks())
}

/// The help of an input that is no run.
pub(super) fn files_help() -> String {
    format!("The {}", files_of_ranks())
}

fn files_of_ranks() -> String {
    let others: String = FORMATS.iter().map(|format| format!(", {}", format.files)).collect();
    format!(
        "files of ranks or directories of them: traces of torch.profiler (.json, .json.gz, .json.zst){others}, or snapshots of \
         torch's allocator"
    )
}

/// The part of the input that is used.
#[derive(Clone, Copy, Debug, Args)]
#[command(next_help_heading = "Input")]
pub(super) struct InputArguments {
    /// Use only this window of the profiler: 1, 2, … in order of time, or `last`. A profiler whose schedule repeats
    /// records several.
    #[arg(long, value_name = "N|last|all", default_value = "all", value_parser = parse_window)]
    window: WindowChoice,
    /// Use trace files together, or compare runs, although they look like those of different jobs.
    #[arg(long)]
    pub(super) force: bool,
    /// Leave out shards of a run, and the rest of traces, that would take more memory than this, as in `8GiB`. [default:
    /// three quarters of the machine's]
    #[arg(long, value_name = "SIZE", value_parser = parse_size)]
    max_memory: Option<ByteSize>,
    /// End with exit code 3 if anything at all was left out, not only if something recorded was lost.
    #[arg(long)]
    strict: bool,
}

pub(super) fn parse_size(text: &str) -> Result<ByteSize, String> {
    text.parse().map_err(|_| "expected a number of bytes with a unit, as in 8GiB or 500MB".to_string())
}

fn parse_window(text: &str) -> Result<WindowChoice, String> {
    match text {
        "all" => Ok(WindowChoice::All),
        "last" => Ok(WindowChoice::Last),
        _ => match text.parse() {
            Ok(number) if number > 0 => Ok(WindowChoice::Number(number)),
            _ => Err("expected the number of a window, from 1, or `last` or `all`".into()),
        },
    }
}

impl InputArguments {
    /// What is read of files.
    pub(super) fn open_options(self) -> OpenOptions {
        OpenOptions { window: self.window, force: self.force, max_memory_bytes: self.max_memory_bytes() }
    }

    /// Opens a run.
    ///
    /// # Errors
    /// As [`RunSource::open_within`].
    pub(super) fn open_run(self, path: &Path) -> Result<RunSource, Error> {
        RunSource::open_within(path, self.max_memory_bytes())
    }

    /// Opens files of ranks.
    ///
    /// # Errors
    /// As [`JobFiles::open`]; where the paths hold dumps of the Flight Recorder, the error names the command that reads them.
    pub(super) fn open_files(self, files: &JobFiles) -> Result<Box<dyn Source>, Error> {
        files.open(self.open_options()).map_err(|error| match files.traces() {
            Some(paths @ [first, ..]) if dumps::read(paths, self.max_memory_bytes()).is_ok() => {
                let why = "it holds dumps of torch's Flight Recorder and no trace; `rankscope hang` reads dumps";
                Error::NoInput { path: first.clone(), why: why.into() }
            }
            _ => error,
        })
    }

    /// The chosen window.
    pub(super) fn window(self) -> WindowChoice {
        self.window
    }

    /// The choices that decide what of the input is read, as text.
    pub(super) fn choices(self) -> String {
        let Self { window, force, max_memory, strict: _ } = self;
        format!("window {window:?}, force {force}, max_memory {:?}", max_memory.map(|size| size.as_u64()))
    }

    pub(super) fn max_memory_bytes(self) -> Option<u64> {
        self.max_memory.map(|size| size.as_u64())
    }

    /// The outcome of a command whose worst omission is `worst`.
    pub(super) fn outcome(self, worst: Option<OmissionKind>) -> Outcome {
        outcome(worst, self.strict)
    }

    /// Narrows `steps` to those of the chosen window of a run.
    ///
    /// # Errors
    /// [`Error::Option`] if the run has no such window.
    pub(super) fn select_steps(self, run: &RunSource, steps: &mut Option<Range<i32>>) -> Result<(), Error> {
        if self.window == WindowChoice::All {
            return Ok(());
        }
        let windows = run.windows();
        let (value, chosen) = match self.window {
            WindowChoice::Number(number) => {
                let at = usize::try_from(number).ok().and_then(|number| number.checked_sub(1));
                (number.to_string(), at.and_then(|at| windows.get(at)))
            }
            WindowChoice::Last | WindowChoice::All => ("last".to_string(), windows.last()),
        };
        let Some(window) = chosen else {
            let why = format!("the run has {} windows of steps, counted from 1", windows.len());
            return Err(Error::Option { option: "window", value, why });
        };
        *steps = Some(match steps {
            None => window.clone(),
            Some(steps) => steps.start.max(window.start)..steps.end.min(window.end),
        });
        Ok(())
    }
}

/// The outcome of a command whose worst omission is `worst`.
pub(super) fn outcome(worst: Option<OmissionKind>, strict: bool) -> Outcome {
    match worst {
        Some(OmissionKind::Lost) => Outcome::Partial,
        Some(OmissionKind::LeftOut) if strict => Outcome::Partial,
        Some(OmissionKind::LeftOut | OmissionKind::Note) | None => Outcome::Done,
    }
}

/// Opens a run or traces as a source of ranks. The window of a run narrows `steps`.
pub(super) fn open(
    paths: Vec<PathBuf>,
    arguments: InputArguments,
    steps: &mut Option<Range<i32>>,
) -> Result<Box<dyn Source>, Error> {
    Ok(match resolve(paths)? {
        Input::Run(path) => {
            let run = arguments.open_run(&path)?;
            arguments.select_steps(&run, steps)?;
            Box::new(run)
        }
        Input::Files(files) => arguments.open_files(&files)?,
    })
}

/// Opens one of several inputs that share one selection of steps.
///
/// # Errors
/// As [`resolve`]; [`Error::Option`] for a window of a run, because the windows of two runs may have other steps.
pub(super) fn open_one_of_several(input: Input, arguments: InputArguments) -> Result<Box<dyn Source>, Error> {
    Ok(match input {
        Input::Run(_) if arguments.window != WindowChoice::All => {
            let why = "the window of a run cannot be chosen here; use --steps".to_string();
            return Err(Error::Option { option: "window", value: "given with several runs".into(), why });
        }
        Input::Run(path) => Box::new(arguments.open_run(&path)?),
        Input::Files(files) => arguments.open_files(&files)?,
    })
}
