//! How dumps of the Flight Recorder are told from other files, by their begin and their name.

/// The begin of a file in which the keys of a dump are looked for.
pub(crate) const BEGIN_BYTES: u64 = 64 << 10;
/// Keys that only dumps have.
const KEYS: [&[u8]; 2] = [b"pg_config", b"collective_seq_id"];

/// Whether bytes hold a key that only dumps have.
pub(crate) fn has_keys(bytes: &[u8]) -> bool {
    KEYS.iter().any(|key| memchr::memmem::find(bytes, key).is_some())
}

/// Whether a file that begins so is read as a dump: it has the keys of one; or its first bytes and its name allow one, as those of a
/// dump that was cut do.
pub(crate) fn may_be_dump(name: &str, begin: &[u8]) -> bool {
    let begin = &begin[..begin.len().min(BEGIN_BYTES as usize)];
    let is_named = ["dump", "trace_rank_", "fr_"].iter().any(|part| name.contains(part));
    may_begin(begin) && (has_keys(begin) || is_named && is_short(begin))
}

/// Whether the first byte is that of a pickle or of JSON, or there is none.
pub(crate) fn may_begin(begin: &[u8]) -> bool {
    matches!(begin.first(), None | Some(0x80 | b'{'))
}

/// Whether a file ends before a dump must have shown its keys, and is no trace.
pub(crate) fn is_short(begin: &[u8]) -> bool {
    (begin.len() as u64) < BEGIN_BYTES && memchr::memmem::find(begin, b"traceEvents").is_none()
}
