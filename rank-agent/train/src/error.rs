//! The errors of a training, and their exit codes.

use std::path::PathBuf;

use agent::{Failure, signal_text};

/// An error of this crate. Messages name the rank, the step or the option, and a way out.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// An option's value is invalid, by itself or together with other options.
    #[error("{0}")]
    Usage(String),
    /// An option needs something that this build or machine does not have.
    #[error("{0}")]
    Unavailable(String),
    /// Ranks hold different parameters although they applied the same updates.
    #[error("{0}; an all-reduce gave different sums, or a rank's memory is damaged")]
    Diverged(String),
    /// A transfer delivered other numbers than were sent.
    #[error("{0}: a transfer delivered other numbers than were sent")]
    WrongNumbers(String),
    /// The model could not be allocated, or one of its operations refused its operands.
    #[error(transparent)]
    Kernel(#[from] kernels::Error),
    /// A back end's results lie outside their bounds.
    #[error("selftest: {failed} of {count} checks failed")]
    Selftest {
        /// Number of failed checks.
        failed: usize,
        /// Number of checks.
        count: usize,
    },
    /// A signal stopped the training.
    #[error("signal {} stopped the training in step {step} of {steps}{}", signal_text(*signal), rest_text(run.as_ref(), *last))]
    Interrupted {
        /// The signal.
        signal: i32,
        /// The first step that was not completed.
        step: u32,
        /// Number of steps that were to be trained.
        steps: u32,
        /// The run, if one was recorded.
        run: Option<PathBuf>,
        /// The last recorded step.
        last: Option<u32>,
    },
    /// The ranks could not agree, or a message was lost.
    #[error(transparent)]
    Agent(#[from] agent::Error),
    /// The recorder could not be started.
    #[error(transparent)]
    Recorder(#[from] recorder::Error),
}

/// Communicators of the workload return errors of the fabric.
impl From<Error> for agent::Error {
    fn from(error: Error) -> Self {
        match error {
            Error::Agent(error) => error,
            error => Self::Fabric(Box::new(error)),
        }
    }
}

/// `; the steps until 7 are in RUN; next: …`, for a recording that was stopped.
fn rest_text(run: Option<&PathBuf>, last: Option<u32>) -> String {
    let Some(run) = run.map(|run| run.display()) else { return String::new() };
    match last {
        None => format!("; no step was recorded in {run}"),
        Some(step) => format!("; what was recorded until step {step} is in {run}; next: rankscope analyze {run}"),
    }
}

impl Failure for Error {
    fn exit_code(&self) -> u8 {
        match self {
            Self::Usage(_) => 2,
            Self::Interrupted { signal, .. } => 128_u8.wrapping_add(*signal as u8),
            Self::Agent(error) => error.exit_code(),
            _ => 1,
        }
    }

    fn is_collective(&self) -> bool {
        match self {
            Self::Usage(_) | Self::Unavailable(_) | Self::Diverged(_) => true,
            Self::Agent(error) => error.is_collective(),
            _ => false,
        }
    }

    fn is_aftermath(&self) -> bool {
        match self {
            Self::Interrupted { .. } => true,
            Self::Agent(error) => error.is_aftermath(),
            _ => false,
        }
    }
}
