//! `aggregator export`.

use std::fs::File;
use std::io::{BufWriter, Write};
use std::path::{Path, PathBuf};

use clap::{Args, ValueEnum};

use super::analyze::with_bar;
use super::input::{Input, open, resolve};
use super::selection::SelectionArguments;
use super::{Outcome, say_omissions};
use crate::Error;
use crate::options::Options;
use crate::render::chrome;
use crate::render::perfetto::{self, Exported};
use crate::render::text::plural;
use crate::source::RunSource;

/// Writes all ranks as one timeline for another tool.
#[derive(Debug, Args)]
pub(super) struct Arguments {
    /// A run, or traces of torch.profiler: .json or .json.gz files, or directories of them.
    #[arg(required = true, value_name = "RUN|TRACES")]
    paths: Vec<PathBuf>,
    /// What is written.
    #[arg(long, value_enum, default_value_t = Format::Perfetto)]
    format: Format,
    /// The file; `-` is stdout. One that exists is replaced. Chrome traces are a file a rank: a directory, or a name with
    /// `{rank}` in it, compressed if it ends in .gz.
    #[arg(short, long, value_name = "FILE|DIR")]
    out: PathBuf,
    #[command(flatten)]
    selection: SelectionArguments,
}

/// Formats of other tools.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Format {
    /// A trace for <https://ui.perfetto.dev> and trace_processor.
    Perfetto,
    /// Kineto's JSON, as torch.profiler writes it: HTA and Perfetto read it.
    Chrome,
}

/// Runs the command.
pub(super) fn run(arguments: Arguments) -> Result<Outcome, Error> {
    let options = arguments.selection.resolve()?;
    if arguments.format == Format::Chrome {
        return chrome(arguments.paths, &options, &arguments.out);
    }
    let source = open(arguments.paths)?;
    let write = |out: &mut dyn Write| with_bar(|progress| perfetto::export(source.as_ref(), &options, out, progress));
    let exported = if arguments.out.as_os_str() == "-" {
        write(&mut BufWriter::new(std::io::stdout().lock()))?
    } else {
        to_file(&arguments.out, write)?
    };
    say(&arguments.out, &exported);
    say_omissions(&exported.omissions);
    Ok(if exported.omissions.is_empty() { Outcome::Done } else { Outcome::Partial })
}

fn chrome(paths: Vec<PathBuf>, options: &Options, out: &Path) -> Result<Outcome, Error> {
    let Input::Run(run) = resolve(paths.clone())? else {
        let path = paths.into_iter().next().unwrap_or_default();
        let why = "it is a Chrome trace already; for a part of it, make it a run first (aggregator ingest)".into();
        return Err(Error::NoInput { path, why });
    };
    let source = RunSource::open(&run)?;
    let exported = with_bar(|progress| chrome::export(&source, options, out, progress))?;
    let counts = exported.counts;
    // A message; if stderr is gone there is nobody to tell.
    let _ = writeln!(
        std::io::stderr(),
        "{}: {}, {} of events, {} of allocations, {}; {:.1} MB",
        out.display(),
        plural(exported.files.len(), "file"),
        plural(counts.events as usize, "row"),
        counts.allocations,
        plural(counts.flow_ends as usize / 2, "arrow"),
        exported.bytes as f64 / 1e6,
    );
    say_omissions(&exported.omissions);
    Ok(if exported.omissions.is_empty() { Outcome::Done } else { Outcome::Partial })
}

/// Writes beside the file first: what was there stays until the new one is whole. What is no file, as a device or a
/// pipe, is written to as it is: another name in its place would be the end of it.
pub(super) fn to_file<T>(path: &Path, write: impl FnOnce(&mut dyn Write) -> Result<T, Error>) -> Result<T, Error> {
    let into = |file: File, path: &Path| {
        let mut out = BufWriter::new(file);
        let written = write(&mut out)?;
        out.flush().map(|()| written).map_err(|source| Error::Io { path: path.into(), source })
    };
    if std::fs::metadata(path).is_ok_and(|metadata| !metadata.is_file()) {
        let file = File::options().write(true).open(path);
        return file.map_err(|source| Error::Io { path: path.into(), source }).and_then(|file| into(file, path));
    }
    // A link stays one.
    let path = &std::fs::canonicalize(path).unwrap_or_else(|_| path.to_path_buf());
    let mut name = path.as_os_str().to_owned();
    name.push(".part");
    let part = PathBuf::from(name);
    let io = |path: &Path| {
        let path = path.to_path_buf();
        move |source| Error::Io { path, source }
    };
    let written = File::create(&part).map_err(io(&part)).and_then(|file| into(file, &part));
    match written {
        Ok(written) => std::fs::rename(&part, path).map(|()| written).map_err(io(path)),
        Err(error) => {
            // The error matters more than what is left of the attempt.
            let _ = std::fs::remove_file(&part);
            Err(error)
        }
    }
}

/// Messages; if stderr is gone there is nobody to tell.
fn say(path: &Path, exported: &Exported) {
    let mut stderr = std::io::stderr().lock();
    let counts = exported.counts;
    let _ = writeln!(
        stderr,
        "{}: {}, {} of events, {} of collectives, {} of steps, {}; {:.1} MB; open it at https://ui.perfetto.dev",
        path.display(),
        plural(counts.ranks as usize, "rank"),
        plural(counts.events as usize, "slice"),
        counts.collectives,
        counts.marks,
        plural(counts.counter_values as usize, "counter value"),
        exported.bytes as f64 / 1e6,
    );
    if exported.shift_ns != 0 {
        let _ = writeln!(
            stderr,
            "times are global times + {} ns, because a trace has no times before 0",
            exported.shift_ns
        );
    }
    if !exported.unaligned.is_empty() {
        let _ = writeln!(
            stderr,
            "nothing aligns the clocks of ranks {:?}: they are drawn on their own",
            exported.unaligned
        );
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// As `-o /dev/null`, and `-o >(gzip)`: whoever may rename would have put a file there.
    #[test]
    fn what_is_no_file_is_written_to_and_stays() {
        use std::os::unix::fs::FileTypeExt;
        let directory = tempfile::tempdir().unwrap();
        let (pipe, file, link) = (directory.path().join("p"), directory.path().join("f"), directory.path().join("l"));
        assert!(std::process::Command::new("mkfifo").arg(&pipe).status().unwrap().success());
        std::fs::write(&file, "before").unwrap();
        std::os::unix::fs::symlink(&file, &link).unwrap();
        let hello = |out: &mut dyn Write| out.write_all(b"hello").map_err(|_| unreachable!());
        let read = std::thread::scope(|threads| {
            let reader = threads.spawn(|| std::fs::read_to_string(&pipe).unwrap());
            to_file(&pipe, hello).unwrap();
            reader.join().unwrap()
        });
        assert!(read == "hello" && std::fs::metadata(&pipe).unwrap().file_type().is_fifo());
        to_file(&link, hello).unwrap();
        assert!(std::fs::read_to_string(&file).unwrap() == "hello" && link.is_symlink());
        assert_eq!(std::fs::read_dir(directory.path()).unwrap().count(), 3);
    }
}
