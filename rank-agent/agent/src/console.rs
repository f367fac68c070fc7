//! Messages of a rank on stderr: one for the whole job where all ranks would print the same. Output on stdout.

use std::io::{ErrorKind, Write};
use std::process::ExitCode;

use launch::{Identity, Launcher};
use trace::terminal::{self, Form};

use crate::{Error, Failure};

/// Whether this process prints what is the same on all ranks, such as help and usage errors.
///
/// Rank 0 does, and so does every process whose rank only `RANK` gives: that variable may be left over from another job.
fn speaks_for_the_job() -> bool {
    Identity::from_env(&|name| std::env::var(name).ok()).map_or(true, |identity| speaks(&identity))
}

/// Whether a process of this identity prints what is the same on all ranks.
pub fn speaks(identity: &Identity) -> bool {
    identity.rank == 0 || identity.launcher == Launcher::Env
}

/// Prints clap's message if this process speaks for the job, and returns the exit code. Under a launcher all ranks
/// have the same arguments, so one message is enough.
pub fn print_usage(error: &clap::Error) -> ExitCode {
    match error.use_stderr() {
        _ if !speaks_for_the_job() => {}
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

/// Prints `text` after the command's name.
pub fn print(command: &str, text: &str) {
    terminal::say(format_args!("{command}: {text}"));
}

/// Prints to stdout. A reader that closed the pipe has read enough.
///
/// # Errors
/// [`Error::Io`].
pub fn print_output(text: &[u8], form: Form) -> Result<(), Error> {
    let mut out = terminal::stdout(form);
    match out.write_all(text).and_then(|()| out.flush()) {
        Err(source) if source.kind() != ErrorKind::BrokenPipe => Err(Error::Io { path: "output".into(), source }),
        _ => Ok(()),
    }
}

/// Prints an error under the command's name and returns its exit code. Errors that all ranks share are printed by one.
pub fn fail(command: &str, error: &impl Failure, identity: Option<&Identity>) -> ExitCode {
    let is_shared = error.is_collective() || error.is_aftermath();
    match identity {
        Some(identity) if is_shared && !speaks(identity) => {}
        Some(identity) if identity.world_size > 1 && !error.is_collective() => {
            print(command, &format!("rank {}: {error}", identity.rank));
        }
        _ => print(command, &error.to_string()),
    }
    ExitCode::from(error.exit_code())
}
