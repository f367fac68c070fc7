//! Errors of starting the recording of a process. The process continues unrecorded.

/// An error of this crate.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub(crate) enum Error {
    /// The recorder could not be started.
    #[error(transparent)]
    Recorder(#[from] recorder::Error),
    /// An environment variable has an invalid value.
    #[error("the environment variable {name} is {value:?}: {why}")]
    Variable {
        /// The variable.
        name: &'static str,
        /// Its value; empty if it is not set.
        value: String,
        /// The rule that the value breaks.
        why: &'static str,
    },
}
