//! The errors of operations.

/// Result of an operation.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// An error of an operation, which has written nothing.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
#[non_exhaustive]
pub enum Error {
    /// The back end cannot compute in this type.
    #[error("the {backend} back end computes in {supported} only, not in {dtype}: use --dtype {supported}")]
    UnsupportedDtype {
        /// Name of the back end.
        backend: &'static str,
        /// Name of the requested type.
        dtype: &'static str,
        /// Name of the supported type.
        supported: &'static str,
    },
    /// An unknown name of a data type.
    #[error("unknown data type `{word}`: use f32, tf32 or bf16")]
    UnknownDtype {
        /// The name.
        word: String,
    },
    /// A buffer does not have the length of the operation's shape.
    #[error("{operation}: {operand} holds {found} elements, but the shape needs {expected}")]
    Length {
        /// Name of the operation.
        operation: &'static str,
        /// Name of the buffer.
        operand: &'static str,
        /// Expected number of elements.
        expected: usize,
        /// Actual number of elements.
        found: usize,
    },
    /// The shape cannot be computed.
    #[error("{operation}: shapes {shapes} {reason}")]
    Shape {
        /// Name of the operation.
        operation: &'static str,
        /// The shapes.
        shapes: String,
        /// The problem with them.
        reason: &'static str,
    },
    /// A tensor does not fit into its place in a bucket.
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
        /// Name of the allocation.
        name: String,
        /// Requested size; saturated if it exceeds the address space.
        bytes: usize,
    },
    /// A library is missing, cannot be loaded, or is too old.
    #[error("{name} ({files}) {problem}; searched: {searched}. To get it: {install}")]
    Library {
        /// Name of the library.
        name: &'static str,
        /// Its file names, or the found file.
        files: String,
        /// The problem.
        problem: String,
        /// The searched places.
        searched: String,
        /// Installation hint.
        install: &'static str,
    },
    /// There is no CUDA device.
    #[error("there is no CUDA device to compute on: {why}")]
    NoDevice {
        /// The reason.
        why: String,
    },
    /// A call of a CUDA library failed. The cause may be an operation that was enqueued earlier.
    #[error("{call} failed: {message} ({code})")]
    Cuda {
        /// The function.
        call: &'static str,
        /// Its error number.
        code: i32,
        /// The library's text for it.
        message: String,
    },
    /// A kernel does not compile.
    #[error("{file} does not compile for {target}: {log}")]
    Compile {
        /// The source.
        file: String,
        /// The architecture.
        target: String,
        /// The compiler's log.
        log: String,
    },
}
