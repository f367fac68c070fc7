//! The errors of MPI.

/// An error of this crate.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// MPI cannot be used as a training needs it.
    #[error("{0}")]
    Unavailable(String),
    /// An MPI call failed.
    #[error("{call} failed: {message}")]
    Call {
        /// The function.
        call: &'static str,
        /// The library's message.
        message: String,
    },
    /// A message has more elements than MPI can count.
    #[error("{call}: {elements} elements are more than an MPI count holds")]
    TooLong {
        /// The function.
        call: &'static str,
        /// Number of elements.
        elements: usize,
    },
}

impl From<Error> for agent::Error {
    fn from(error: Error) -> Self {
        match error {
            // The same on all ranks, which have the same library.
            Error::Unavailable(why) => Self::Unavailable(why),
            error => Self::Fabric(Box::new(error)),
        }
    }
}
