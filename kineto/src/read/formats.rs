//! Which names traces have, and what a caller says of files that are no traces.

use crate::error::OtherFormat;

/// Recognizes a format of another tool by the name of a file, empty where only the content counts, and by its first bytes.
pub type RecognizeOther = fn(&str, &[u8]) -> Option<OtherFormat>;

/// Whether a name is one that torch gives to traces, or users do.
pub(crate) fn is_trace_name(name: &str) -> bool {
    let name = name.to_ascii_lowercase();
    [".json", ".json.gz", ".json.zst"].iter().any(|end| name.ends_with(end))
}
