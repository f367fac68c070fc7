//! `aggregator completions` and `aggregator man`: what a shell and `man` know of the command line.

use std::io::Write;
use std::path::PathBuf;

use clap::{Args, CommandFactory};
use clap_complete::Shell;

use super::Outcome;
use crate::Error;

/// Prints completions for a shell; `aggregator completions bash > /etc/bash_completion.d/aggregator`.
#[derive(Debug, Args)]
pub(super) struct Completions {
    /// The shell.
    #[arg(value_enum)]
    shell: Shell,
}

/// Writes man pages: one for the command and one for each subcommand.
#[derive(Debug, Args)]
pub(super) struct Man {
    /// Directory that gets them; without it the command's own is printed.
    #[arg(value_name = "DIR")]
    directory: Option<PathBuf>,
}

/// Runs `completions`.
pub(super) fn completions<C: CommandFactory>(arguments: &Completions) -> Result<Outcome, Error> {
    let mut text = Vec::new();
    clap_complete::generate(arguments.shell, &mut C::command(), "aggregator", &mut text);
    let mut out = std::io::stdout().lock();
    out.write_all(&text)?;
    out.flush()?;
    Ok(Outcome::Done)
}

/// Runs `man`.
pub(super) fn man<C: CommandFactory>(arguments: &Man) -> Result<Outcome, Error> {
    match &arguments.directory {
        Some(directory) => {
            let io = |source| Error::Io { path: directory.clone(), source };
            std::fs::create_dir_all(directory).map_err(io)?;
            clap_mangen::generate_to(C::command(), directory).map_err(io)?;
        }
        None => {
            let mut out = std::io::stdout().lock();
            clap_mangen::Man::new(C::command()).render(&mut out)?;
            out.flush()?;
        }
    }
    Ok(Outcome::Done)
}
