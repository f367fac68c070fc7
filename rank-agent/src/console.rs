//! Messages of a rank on stderr: one for the whole job where all ranks would print the same.

use std::io::Write;
use std::process::ExitCode;

use launch::{Identity, Launcher};

use crate::Error;

/// Whether this process prints what is the same on all ranks, such as help and usage errors.
///
/// Rank 0 does, and so does every process whose rank only `RANK` gives: that variable may be left over from another job.
pub fn speaks_for_the_job() -> bool {
    Identity::from_env(&|name| std::env::var(name).ok()).map_or(true, |identity| speaks(&identity))
}

/// [`speaks_for_the_job`] for a known identity.
pub(crate) fn speaks(identity: &Identity) -> bool {
    identity.rank == 0 || identity.launcher == Launcher::Env
}

/// Prints `text` after the command's name. If stderr is closed, the message is lost and the job goes on.
pub(crate) fn print(command: &str, text: &str) {
    let _ = writeln!(std::io::stderr(), "{command}: {text}");
}

/// Prints an error under the command's name and returns its exit code. Errors that all ranks share are printed by one.
pub(crate) fn fail(command: &str, error: &Error, identity: Option<&Identity>) -> ExitCode {
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
