//! The reasons of an object store, in words.
//!
//! A message of the library holds the address of the request and the answer of the server. Both may hold keys and signatures, so
//! only the code of the answer and its status are taken from it.

use std::error::Error as _;
use std::io::{self, ErrorKind};

use object_store::Error;
use object_store::client::{HttpError, HttpErrorKind};

/// The longest code of an answer.
const MAX_CODE_BYTES: usize = 64;

/// The error of a request to the bucket, container or server `host`.
pub(super) fn explain(error: &Error, host: &str) -> io::Error {
    let text = error.to_string();
    let code = code_of(&text).map_or(String::new(), |code| format!(" ({code})"));
    let (kind, why) = match error {
        _ if is_missing_bucket(&text) => (ErrorKind::NotFound, format!("there is no bucket {host}{code}")),
        Error::NotFound { .. } => (ErrorKind::NotFound, format!("there is no such object{code}")),
        Error::PermissionDenied { .. } | Error::Unauthenticated { .. } => {
            let why = format!("{host} refuses the credentials of the environment{code}; check them and their rights");
            (ErrorKind::PermissionDenied, why)
        }
        Error::Precondition { .. } => (ErrorKind::Other, "the object changed while it was read; read it again".into()),
        _ if text.contains("169.254.169.254") || text.contains("metadata.google.internal") => {
            let why = "there are no credentials: set those of the store in the environment, as for its own tools \
                       (AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, GOOGLE_APPLICATION_CREDENTIALS, AZURE_STORAGE_…); \
                       AWS_SKIP_SIGNATURE=true reads a public bucket";
            (ErrorKind::PermissionDenied, why.into())
        }
        _ => {
            (ErrorKind::Other, format!("{host} does not answer as an object store should: {}", cause_of(error, &text)))
        }
    };
    io::Error::new(kind, why)
}

/// Whether the connection failed and not the request.
pub(super) fn may_pass(error: &Error) -> bool {
    let mut next = error.source();
    while let Some(source) = next {
        if let Some(http) = source.downcast_ref::<HttpError>() {
            return !matches!(http.kind(), HttpErrorKind::Connect);
        }
        next = source.source();
    }
    false
}

fn is_missing_bucket(text: &str) -> bool {
    ["NoSuchBucket", "ContainerNotFound", "The specified bucket does not exist"].iter().any(|part| text.contains(part))
}

/// The code in the answer of a server, as in `<Code>NoSuchBucket</Code>`.
fn code_of(text: &str) -> Option<&str> {
    let (code, _) = text.split_once("<Code>")?.1.split_once("</Code>")?;
    let is_word = code.len() <= MAX_CODE_BYTES && code.bytes().all(|byte| byte.is_ascii_alphanumeric());
    is_word.then_some(code)
}

/// The status of the last answer, or the innermost cause.
fn cause_of(error: &Error, text: &str) -> String {
    const STATUS: &str = "non-2xx status code: ";
    if let Some((_, status)) = text.split_once(STATUS) {
        let status = status.split([':', '\n']).next().unwrap_or_default();
        return format!("status {}", status.trim());
    }
    let (mut innermost, mut next) = (None, error.source());
    while let Some(source) = next {
        (innermost, next) = (Some(source.to_string()), source.source());
    }
    match innermost {
        Some(cause) if !cause.contains("://") && !cause.contains('<') => cause,
        _ => "its answer cannot be read".into(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ANSWER: &str = "Error performing GET https://b.s3/a?X-Amz-Signature=secret in 1ms - Server returned non-2xx status \
                          code: 403 Forbidden: <Error><Code>InvalidAccessKeyId</Code><AWSAccessKeyId>AKIA</AWSAccessKeyId></Error>";

    /// Invariant (input): No message repeats the answer of a server, because it may hold keys.
    #[test]
    fn no_answer_of_a_server_is_repeated() {
        let source = || ANSWER.into();
        let errors = [
            Error::PermissionDenied { path: "a".into(), source: source() },
            Error::Unauthenticated { path: "a".into(), source: source() },
            Error::NotFound { path: "a".into(), source: source() },
            Error::Generic { store: "S3", source: source() },
        ];
        for error in errors {
            let text = explain(&error, "b").to_string();
            assert!(!text.contains("secret") && !text.contains("AKIA"), "{text}");
        }
        let denied = explain(&Error::PermissionDenied { path: "a".into(), source: source() }, "b").to_string();
        assert!(denied.starts_with("b refuses the credentials of the environment (InvalidAccessKeyId)"), "{denied}");
        let other = explain(&Error::Generic { store: "S3", source: source() }, "b").to_string();
        assert!(other.ends_with("status 403 Forbidden"), "{other}");
    }
}
