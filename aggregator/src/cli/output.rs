//! Outputs of a command: standard output or a file, and never a file of the input.

use std::fs::{self, File};
use std::io::{self, ErrorKind, IsTerminal, Read, Write};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use indicatif::{ProgressBar, ProgressStyle};
use model::units::{omission, omission_kind};
use report_text::summary::TerminalStyle;
use trace::files::write_output;
use trace::place;
use trace::terminal::{self, Form};
use trace::{MANIFEST_FILE, OmissionRow};

use model::Error;

/// Beginnings of traces, archives, shards and snapshots: JSON, gzip, zstd, zip, Parquet, pickle.
const INPUT_MAGIC: [&[u8]; 7] = [b"{", b"[", b"\x1f\x8b", b"\x28\xb5\x2f\xfd", b"PK", b"PAR1", b"\x80"];

/// The result of a command without an error.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Outcome {
    /// Everything was used.
    Done,
    /// Something recorded was lost, or with --strict something was left out. It is listed.
    Partial,
    /// `diff --fail-over` found a slowdown beyond its limit.
    Slower,
    /// `diff --fail-over` cannot tell, because the runs cannot show a change of that size.
    CannotTell,
}

/// Lists omissions on stderr, for commands that print no summary.
pub(super) fn print_omissions(omissions: &[OmissionRow]) {
    for o in omissions {
        terminal::say(format_args!("{}: {}", omission_kind(o), omission(o)));
    }
}

/// Runs work that reports the ranks done and the total. A progress bar is drawn only if stderr is a terminal.
pub(super) fn with_bar<T>(work: impl FnOnce(&(dyn Fn(usize, usize) + Sync)) -> T) -> T {
    if !std::io::stderr().is_terminal() {
        return work(&|_, _| ());
    }
    let style =
        ProgressStyle::with_template("{bar:30} {pos}/{len} ranks").unwrap_or_else(|_| ProgressStyle::default_bar());
    let bar = ProgressBar::new(0).with_style(style);
    let result = work(&|done, total| {
        bar.set_length(total as u64);
        bar.set_position(done as u64);
    });
    bar.finish_and_clear();
    result
}

/// The width of the terminal, or the value of `COLUMNS` if stdout is no terminal.
pub(super) fn width() -> usize {
    let columns = std::env::var("COLUMNS").ok().and_then(|c| c.parse().ok());
    let terminal = terminal_size::terminal_size().map(|(width, _)| usize::from(width.0));
    terminal.or(columns).unwrap_or(TerminalStyle::default().width)
}

/// Whether to use colour: only on a terminal, and only if `NO_COLOR` (<https://no-color.org>) does not forbid it.
pub(super) fn colour() -> bool {
    let forbidden = std::env::var_os("NO_COLOR").is_some_and(|v| !v.is_empty());
    std::io::stdout().is_terminal() && !forbidden && std::env::var_os("TERM").is_none_or(|t| t != "dumb")
}

/// Stdout, for text with the colours that it may have.
pub(super) fn text_output() -> impl Write {
    terminal::stdout(if colour() { Form::Coloured } else { Form::Text })
}

/// Writes a file through `fill`, or stdout for `-`, and returns its value.
///
/// # Errors
/// The error of `fill` with the name of the file; [`Error::Io`] or [`Error::Trace`]; [`Error::Option`] if stdout is a
/// terminal and `form` may hold its commands.
pub(super) fn write_file<T>(
    path: &Path,
    form: Form,
    fill: impl FnOnce(&mut dyn Write) -> Result<T, Error>,
) -> Result<T, Error> {
    if path.as_os_str() != "-" {
        return write_output(path, fill).map_err(|error| named(error, path));
    }
    if form == Form::Bytes && std::io::stdout().is_terminal() {
        let why = "stdout is a terminal, which cannot show this format; redirect stdout, or name a file".to_string();
        return Err(Error::Option { option: "out", value: "-".into(), why });
    }
    let mut out = terminal::stdout(form);
    let value = fill(&mut out)?;
    out.flush()?;
    Ok(value)
}

/// Names the file in the error of an output.
fn named(error: Error, path: &Path) -> Error {
    let source = match error {
        Error::Output(source) | Error::Kineto(kineto::Error::Output(source)) => source,
        Error::Json(source) if source.is_io() => source.into(),
        other => return other,
    };
    Error::Io { path: path.into(), source }
}

/// Prints clap's message and returns the exit code.
pub(super) fn print_usage(error: &clap::Error) -> ExitCode {
    match error.use_stderr() {
        true => terminal::usage_error(&error.render().ansi().to_string(), || error.print()),
        // A closed pipe behind --help is not an error.
        false => match error.print() {
            Err(error) if error.kind() != ErrorKind::BrokenPipe => {
                terminal::say(format_args!("output: {error}"));
                return ExitCode::FAILURE;
            }
            _ => {}
        },
    }
    ExitCode::from(u8::try_from(error.exit_code()).unwrap_or(2))
}

/// Refuses an output that would replace a file of the input. `inputs` are the paths on the command line.
///
/// # Errors
/// [`Error::Trace`]; [`Error::Io`] if it cannot be examined.
pub(super) fn refuse_input(path: &Path, inputs: &[PathBuf]) -> Result<(), Error> {
    if path.as_os_str() == "-" {
        return Ok(());
    }
    for input in inputs.iter().filter(|input| input.as_os_str() != "-") {
        if would_destroy(path, input).map_err(|source| Error::Io { path: path.into(), source })? {
            let why = format!("it is a file of the input {}", input.display());
            return Err(trace::Error::Occupied { path: path.into(), why }.into());
        }
    }
    Ok(())
}

/// Whether `path` is the input, or a file inside it that may be read as a part of it.
fn would_destroy(path: &Path, input: &Path) -> io::Result<bool> {
    let Some(target) = if_there(fs::metadata(path))?.filter(fs::Metadata::is_file) else { return Ok(false) };
    if place::is_url(input) {
        return Ok(false);
    }
    let of_input = fs::metadata(input)?;
    if (target.dev(), target.ino()) == (of_input.dev(), of_input.ino()) {
        return Ok(true);
    }
    let directory =
        if input.file_name().is_some_and(|name| name == MANIFEST_FILE) { input.parent() } else { Some(input) };
    let directory = directory.map(|path| if path.as_os_str().is_empty() { Path::new(".") } else { path });
    let (target, Some(directory)) = (path.canonicalize()?, directory) else { return Ok(false) };
    let directory = directory.canonicalize()?;
    Ok(directory.is_dir() && target.starts_with(directory) && looks_like_input(&target))
}

/// `None` if there is no such file.
fn if_there<T>(examined: io::Result<T>) -> io::Result<Option<T>> {
    use ErrorKind::{NotADirectory, NotFound};
    match examined {
        Err(error) if matches!(error.kind(), NotFound | NotADirectory) => Ok(None),
        examined => examined.map(Some),
    }
}

fn looks_like_input(path: &Path) -> bool {
    let mut head = Vec::new();
    // A file that cannot be read may be a part of the input that only other users read.
    let read = trace::files::open_regular(path).and_then(|file: File| file.take(4).read_to_end(&mut head));
    let is_archive = path.extension().is_some_and(|extension| extension == "tar");
    read.is_err() || is_archive || INPUT_MAGIC.iter().any(|magic| head.starts_with(magic))
}

#[cfg(test)]
mod tests {
    use super::*;

    // A run, traces, an archive and a report in one directory. An output may replace the report and no other file.
    #[test]
    fn a_file_of_the_input_is_not_replaced() {
        let directory = tempfile::tempdir().unwrap();
        let at = |name: &str| directory.path().join(name);
        let files: [(&str, &[u8]); 7] = [
            ("run/run.json", b"{}"),
            ("run/events/rank-00000-0000.parquet", b"PAR1"),
            ("run/report.html", b"<!doctype html>"),
            ("traces/rank0.json.gz", b"\x1f\x8b\x08"),
            ("traces/all.zip", b"PK\x03\x04"),
            ("traces/old.folded", b"main;step 7\n"),
            ("other.json", b"{}"),
        ];
        for (name, content) in files {
            fs::create_dir_all(at(name).parent().unwrap()).unwrap();
            fs::write(at(name), content).unwrap();
        }
        std::os::unix::fs::symlink(at("run/run.json"), at("link")).unwrap();
        fs::hard_link(at("traces/rank0.json.gz"), at("same.json.gz")).unwrap();
        let refused = |out: &str, input: &str| refuse_input(&at(out), &[at(input)]).is_err();
        for (out, input) in [
            ("run/run.json", "run"),
            ("run/events/rank-00000-0000.parquet", "run"),
            ("run/events/rank-00000-0000.parquet", "run/run.json"),
            ("link", "run"),
            ("traces/rank0.json.gz", "traces"),
            ("traces/rank0.json.gz", "traces/rank0.json.gz"),
            ("same.json.gz", "traces/rank0.json.gz"),
            ("traces/all.zip", "traces"),
        ] {
            assert!(refused(out, input), "{out} from {input}");
        }
        for (out, input) in [
            ("run/report.html", "run"),
            ("traces/old.folded", "traces"),
            ("traces/new.json", "traces"),
            ("other.json", "traces"),
            ("other.json", "run"),
        ] {
            assert!(!refused(out, input), "{out} from {input}");
        }
    }
}
