//! Completions for shells, and man pages.

use std::io::Write;
use std::path::PathBuf;

use clap::{CommandFactory, Subcommand};
use clap_complete::Shell;
use trace::terminal::{self, Form};

use crate::cli::output::Outcome;
use model::Error;

/// The subcommands that describe the command line itself.
#[derive(Debug, Subcommand)]
pub enum ShellCommand {
    /// Print completions for a shell
    Completions {
        /// Shell
        #[arg(value_enum)]
        shell: Shell,
    },
    /// Write man pages: one for the command and one for each subcommand
    Man {
        /// Write the pages into this directory [default: print the command's own page]
        #[arg(value_name = "DIR")]
        directory: Option<PathBuf>,
    },
}

/// Runs `completions` or `man` for the command line `C` of `program`.
pub(super) fn run<C: CommandFactory>(command: &ShellCommand, program: &str) -> Result<Outcome, Error> {
    let mut text = Vec::new();
    match command {
        ShellCommand::Completions { shell } => {
            clap_complete::generate(*shell, &mut C::command(), program, &mut text);
        }
        ShellCommand::Man { directory: Some(directory) } => {
            trace::files::replace_files(directory, |fresh| {
                let generated = clap_mangen::generate_to(C::command(), fresh);
                generated.map_err(|source| Error::Io { path: directory.clone(), source })
            })?;
        }
        ShellCommand::Man { directory: None } => clap_mangen::Man::new(C::command()).render(&mut text)?,
    }
    let mut out = terminal::stdout(Form::Bytes);
    out.write_all(&text)?;
    out.flush()?;
    Ok(Outcome::Done)
}
