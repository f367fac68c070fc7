//! Any bytes as records of CUPTI.

use sources::cupti::layout::Version;
use sources::cupti::record::{End, Parsed, Walk, parse, split};

/// Reads `bytes` as records of every version with every function, and checks the results.
///
/// # Panics
/// If a check fails.
pub fn check_any_bytes(bytes: &[u8]) {
    for version in [22, 23, 24, 26, 28, 130_001, 130_101, 130_202, 130_301, 130_401, 130_500, 140_000] {
        let version = Version(version);
        let mut walk = Walk::new(bytes, version);
        let (mut read, mut starts) = (0, Vec::new());
        for (at, record) in walk.by_ref() {
            assert_eq!(at, read, "records lie side by side");
            read += record.len();
            starts.push(at);
            assert!(matches!(parse(record, version), Parsed::Record(_)), "a whole record of a known kind is read");
        }
        match walk.end() {
            End::Clean => assert_eq!(read, bytes.len()),
            End::Truncated => assert!(read < bytes.len()),
            End::UnknownSize { rest_bytes } => assert_eq!(read + rest_bytes, bytes.len()),
        }
        if walk.end() == End::Clean {
            assert_eq!(split(bytes, &starts).count(), starts.len());
        }
        for at in 0..bytes.len() {
            // From every offset and up to every offset: only a panic is an error.
            let _ = parse(&bytes[at..], version);
            let _ = parse(&bytes[..at], version);
        }
    }
}
