//! One process a rank: reference workload, clock sync, recording.
//!
//! A rank learns its place from its launcher, joins the others over a [`fabric::Fabric`], trains a model whose
//! gradients travel in buckets while the backward pass goes on ([`engine::Engine`]), and records what it does.
//! [`job::run`] is the whole of it.
//!
//! A rank that is alone trains the same way, buckets included, but has no collective and records none: a sum over one
//! rank is its own numbers.

pub mod backend;
pub mod bucket_plan;
pub mod checksum;
pub mod cli;
pub mod ctl;
pub mod data;
#[cfg(feature = "cuda")]
pub mod device;
pub mod engine;
mod error;
pub mod exec;
pub mod fabric;
pub mod inject;
pub mod job;
pub mod model;
pub mod observer;
pub mod ping;
pub mod recording;
pub mod report;
pub mod setup;
pub mod trainer;

#[cfg(test)]
mod tests;

use std::io::Write;
use std::process::ExitCode;
use std::sync::Arc;

use clap::Parser;
use launch::{Identity, Launcher};

pub use crate::error::Error;

use crate::cli::{Cli, Collectives, Command, Options};
use crate::fabric::{Solo, Stop};

/// Runs the command and returns its exit code.
pub fn main_impl() -> ExitCode {
    let identity = match Identity::from_env(&|name| std::env::var(name).ok()) {
        Ok(identity) => identity,
        Err(error) => return fail(&error.into(), None),
    };
    // Rank 0 speaks for all, where a launcher has surely started it; a variable may have been left over.
    let speaks = identity.rank == 0 || identity.launcher == Launcher::Env;
    let mut cli = match Cli::try_parse() {
        Ok(cli) => cli,
        Err(error) => {
            if speaks {
                // A closed pipe behind --help is no failure.
                let _ = error.print();
            }
            return ExitCode::from(u8::try_from(error.exit_code()).unwrap_or(2));
        }
    };
    match cli.take_command() {
        Some(Command::Exec(arguments)) => {
            return match exec::exec(&arguments, &identity) {
                Ok(code) => ExitCode::from(code),
                Err(error) => fail(&error, Some(&identity)),
            };
        }
        Some(Command::Ctl(arguments)) => {
            return match ctl::ctl(&arguments) {
                Ok(text) => {
                    // A closed pipe is no failure.
                    let _ = std::io::stdout().write_all(text.as_bytes());
                    ExitCode::SUCCESS
                }
                Err(error) => fail(&error, None),
            };
        }
        #[cfg(feature = "cuda")]
        Some(Command::Selftest(options)) => {
            return match device::selftest(&options) {
                Ok(code) => ExitCode::from(code),
                Err(error) => fail(&error, None),
            };
        }
        None => {}
    }
    match cli.about_itself() {
        Ok(None) => {}
        Ok(Some(text)) => {
            // A closed pipe is no failure.
            let _ = if speaks { std::io::stdout().write_all(&text) } else { Ok(()) };
            return ExitCode::SUCCESS;
        }
        Err(error) => return fail(&error, Some(&identity)),
    }
    match cli.into_options().and_then(|options| start(&options, identity)) {
        Ok(code) => ExitCode::from(code),
        Err(error) => fail(&error, Some(&identity)),
    }
}

/// Says what went wrong, once for all ranks where all have the same to say.
fn fail(error: &Error, identity: Option<&Identity>) -> ExitCode {
    let stderr = &mut std::io::stderr();
    let _ = match identity {
        Some(Identity { rank, launcher, .. })
            if *rank != 0 && *launcher != Launcher::Env && (error.is_collective() || error.is_aftermath()) =>
        {
            Ok(())
        }
        Some(identity) if identity.world_size > 1 && !error.is_collective() => {
            writeln!(stderr, "rank-agent: rank {}: {error}", identity.rank)
        }
        _ => writeln!(stderr, "rank-agent: {error}"),
    };
    ExitCode::from(error.exit_code())
}

/// Finds the other ranks, and runs the job with them.
fn start(options: &Options, identity: Identity) -> Result<u8, Error> {
    // While this is the only thread.
    backend::prepare(options, &identity)?;
    let stop = Stop::on_signals().map_err(Error::Signals)?;
    let alone = identity.launcher == Launcher::None && options.collectives == Collectives::Auto;
    if alone {
        let outcome = job::run(Arc::new(Solo), options, &identity, &stop)?;
        return Ok(outcome.exit_code());
    }
    start_with_mpi(options, identity, stop)
}

#[cfg(feature = "mpi")]
fn start_with_mpi(options: &Options, identity: Identity, stop: Stop) -> Result<u8, Error> {
    use crate::fabric::Control;

    let mpi = Arc::new(fabric::mpi::Mpi::enter(stop.clone())?);
    let library = mpi.version();
    let world = launch::World { rank: mpi.rank() as i32, size: mpi.size() as i32, library: &library };
    let identity = launch::check_world(&identity, &world)?;
    let result = job::run(mpi.clone(), options, &identity, &stop);
    match result {
        Ok(outcome) => {
            mpi.leave();
            Ok(outcome.exit_code())
        }
        // All ranks are here, with the same error.
        Err(error) if error.is_collective() => {
            mpi.leave();
            Err(error)
        }
        // The launcher ends the other ranks when it sees how this one ends.
        Err(error) if error.is_aftermath() => Err(error),
        Err(error) => {
            // Said before the others are ended, and with them perhaps this one.
            let code = error.exit_code();
            fail(&error, Some(&identity));
            mpi.abandon(code);
            Ok(code)
        }
    }
}

#[cfg(not(feature = "mpi"))]
fn start_with_mpi(options: &Options, identity: Identity, stop: Stop) -> Result<u8, Error> {
    if identity.world_size > 1 || options.collectives == Collectives::Mpi {
        return Err(Error::Unavailable(format!(
            "{} ranks were started, but this rank-agent was built without MPI; build it with --features mpi",
            identity.world_size
        )));
    }
    Ok(job::run(Arc::new(Solo), options, &identity, &stop)?.exit_code())
}
