//! What can go wrong in an operation.

use crate::Dtype;

/// Result of an operation.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// Why an operation was not done; nothing was written then.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
#[non_exhaustive]
pub enum Error {
    /// The back end cannot compute in this type.
    #[error("the {backend} back end computes in {supported} only, not in {dtype}: use --dtype {supported}")]
    UnsupportedDtype {
        /// Name of the back end.
        backend: &'static str,
        /// What was asked for.
        dtype: Dtype,
        /// What it can do.
        supported: Dtype,
    },
    /// A word that names no data type.
    #[error("unknown data type `{word}`: use f32, tf32 or bf16")]
    UnknownDtype {
        /// The word.
        word: String,
    },
    /// A buffer does not have the length that the operation's shape asks for.
    #[error("{operation}: {operand} holds {found} elements where the shape needs {expected}")]
    Length {
        /// Name of the operation.
        operation: &'static str,
        /// Which of its buffers.
        operand: &'static str,
        /// Elements needed.
        expected: usize,
        /// Elements there are.
        found: usize,
    },
    /// No such shape can be computed.
    #[error("{operation}: shapes {shapes} {reason}")]
    Shape {
        /// Name of the operation.
        operation: &'static str,
        /// The shapes.
        shapes: String,
        /// What is wrong with them.
        reason: &'static str,
    },
    /// A tensor does not fit where it was to be packed or unpacked.
    #[error("{operation}: elements {offset}..{offset}+{len} lie outside a bucket of {bucket_len}")]
    OutsideBucket {
        /// Name of the operation.
        operation: &'static str,
        /// First element in the bucket.
        offset: usize,
        /// Elements.
        len: usize,
        /// Elements of the bucket.
        bucket_len: usize,
    },
    /// A label names a class that does not exist.
    #[error("row {row} has label {label}, but there are only {classes} classes")]
    Label {
        /// Row of the batch.
        row: usize,
        /// Its label.
        label: u32,
        /// Number of classes.
        classes: usize,
    },
    /// Memory ran out.
    #[error("cannot allocate {bytes} bytes for `{name}`")]
    OutOfMemory {
        /// What it was for.
        name: String,
        /// Size asked for; saturated where it exceeds the address space.
        bytes: usize,
    },
    /// A library is missing, cannot be loaded, or is too old.
    #[error("{name} ({files}) {problem}; looked in: {searched}. To get it: {install}")]
    Library {
        /// What people call it.
        name: &'static str,
        /// Its file names, or the file that was found.
        files: String,
        /// What is wrong.
        problem: String,
        /// Where it was looked for.
        searched: String,
        /// How to get it.
        install: &'static str,
    },
    /// There is nothing to compute on.
    #[error("there is no CUDA device to compute on: {why}")]
    NoDevice {
        /// Why not.
        why: String,
    },
    /// A call of a CUDA library failed. The fault may be that of an operation enqueued before.
    #[error("{call} failed: {message} ({code})")]
    Cuda {
        /// The function.
        call: &'static str,
        /// Its error number.
        code: i32,
        /// What the library calls it.
        message: String,
    },
    /// A kernel does not compile.
    #[error("{file} does not compile for {target}: {log}")]
    Compile {
        /// The source.
        file: String,
        /// What it was compiled for.
        target: String,
        /// The compiler's words.
        log: String,
    },
}
