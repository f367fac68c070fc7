//! Formats of other tools: recognised to say what to do, but not read.

use std::path::Path;

use trace::place;

/// A format that is not read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OtherFormat {
    /// Its name, with an article.
    pub name: &'static str,
    /// What to do instead.
    pub instead: &'static str,
}

/// First bytes of a file that decide its format.
pub const HEAD_BYTES: u64 = 64;
/// The name of SQLite exports.
const SQLITE_EXPORT: &str = "an SQLite export of Nsight Systems";
const XPLANE: &str = "a profile of XLA (XPlane)";
const INSPECTOR: &str = "a dump of NCCL's Inspector";
const ROCPROF: &str = "JSON of rocprofv3";
/// The formats that other sources of ranks read.
pub(crate) const READ_ELSEWHERE: [&str; 4] = [SQLITE_EXPORT, XPLANE, INSPECTOR, ROCPROF];
/// How the names of planes begin.
const PLANES: [&str; 5] = ["/host:", "/device:", "/virtualdevice:", "Task Environment", "#Chip"];
/// How a dump of the Inspector begins, without spaces.
const INSPECTOR_BEGIN: &[u8] = b"{\"header\":{\"id\":\"0x";
const RECORD: &str = "record with torch.profiler or `rankscope exec` instead";

/// The format of a file, by its first bytes, else by its name; `None` if it is none of the known ones. Exports get
/// renamed, so the content comes first. A file that cannot be opened is reported by its reader.
pub fn other_format(path: &Path) -> Option<OtherFormat> {
    // Of a file that cannot be read, the name decides.
    let head = place::first_bytes(path, HEAD_BYTES).unwrap_or_default();
    other_format_of(&path.to_string_lossy(), &head)
}

/// The format of a file with this name and these first bytes.
pub(crate) fn other_format_of(name: &str, head: &[u8]) -> Option<OtherFormat> {
    let name = name.to_ascii_lowercase();
    let ends = |suffix: &str| name.ends_with(suffix);
    let format = |name, instead| Some(OtherFormat { name, instead });
    if is_sqlite(head) || ends(".sqlite") {
        return format(SQLITE_EXPORT, "`rankscope analyze` reads it as a file of this machine");
    }
    if is_xplane(&name, head) {
        return format(XPLANE, "`rankscope analyze` reads it");
    }
    if is_inspector(head) {
        return format(INSPECTOR, "`rankscope analyze` reads it as a file of this machine");
    }
    if is_rocprof(head) {
        return format(ROCPROF, "`rankscope analyze` reads it");
    }
    if head.starts_with(b"PAR1") {
        return format("a Parquet file", "name the directory of its run, the one with run.json");
    }
    if ends(".nsys-rep") {
        return format(
            "a report of Nsight Systems",
            "write it as SQLite, which is read: `nsys export --type sqlite FILE`",
        );
    }
    if ends(".qdrep") {
        return format("a report of an old Nsight Systems", RECORD);
    }
    if ends(".pftrace") || ends(".perfetto-trace") {
        return format("a Perfetto trace", "have torch.profiler export Chrome JSON (export_chrome_trace)");
    }
    None
}

/// Whether a file with these first bytes is an SQLite database.
pub fn is_sqlite(head: &[u8]) -> bool {
    head.starts_with(b"SQLite format 3\0")
}

/// Whether a file with these first bytes is JSON of rocprofv3: it begins with this member.
pub fn is_rocprof(head: &[u8]) -> bool {
    let mut rest = head.trim_ascii_start();
    for part in [&b"{"[..], b"\"rocprofiler-sdk-tool\""] {
        match rest.strip_prefix(part) {
            Some(after) => rest = after.trim_ascii_start(),
            None => return false,
        }
    }
    true
}

/// Whether a file is a profile of XLA: by its name, so that a damaged one is said to be damaged, or by its first bytes, which are the length
/// of a plane, perhaps its id, and a name that planes have.
pub fn is_xplane(name: &str, head: &[u8]) -> bool {
    let varint = |bytes: &[u8]| bytes.iter().take(10).position(|byte| byte & 0x80 == 0).map(|at| at + 1);
    let after = |bytes: &[u8], tag: u8| {
        let rest = bytes.strip_prefix(&[tag])?;
        Some(varint(rest)?).and_then(|end| rest.get(end..)).map(<[u8]>::to_vec)
    };
    let name_of_plane = || {
        let plane = after(head, 0x0a)?;
        let plane = if plane.starts_with(&[0x08]) { after(&plane, 0x08)? } else { plane };
        after(&plane, 0x12)
    };
    let is_plane = |name: Vec<u8>| PLANES.iter().any(|plane| name.starts_with(plane.as_bytes()));
    name.to_ascii_lowercase().ends_with(".xplane.pb") || name_of_plane().is_some_and(is_plane)
}

/// Whether a text with these first bytes is a dump of NCCL's Inspector: an object that begins with its communicator.
pub fn is_inspector(head: &[u8]) -> bool {
    let words = head.iter().copied().filter(|byte| !byte.is_ascii_whitespace());
    words.take(INSPECTOR_BEGIN.len()).eq(INSPECTOR_BEGIN.iter().copied())
}

/// Whether a name is one that torch gives to traces, or users do.
pub(crate) fn is_trace_name(name: &str) -> bool {
    let name = name.to_ascii_lowercase();
    [".json", ".json.gz", ".json.zst"].iter().any(|end| name.ends_with(end))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_content_decides_before_the_name() {
        let name = |name: &str, head: &[u8]| other_format_of(name, head).map(|format| format.name);
        assert_eq!(name("rank0.json", b"SQLite format 3\0 and more"), Some("an SQLite export of Nsight Systems"));
        assert_eq!(name("A.NSYS-REP", b""), Some("a report of Nsight Systems"));
        assert_eq!(name("x.sqlite", b"PAR1"), Some("an SQLite export of Nsight Systems"));
        assert_eq!(name("rank0.json", b"{"), None);
        assert_eq!(name("a-pid7.log", b"{ \"header\": {\n \"id\": \"0x1f\","), Some(INSPECTOR));
        assert_eq!(name("a-pid7.log", b"{\"header\":{\"id\":7"), None);
    }

    #[test]
    fn json_of_rocprofv3_begins_with_its_member() {
        assert!(is_rocprof(b" {\n  \"rocprofiler-sdk-tool\": ["));
        assert!(!is_rocprof(b"{\"traceEvents\": [") && !is_rocprof(b"[\"rocprofiler-sdk-tool\"]"));
    }

    #[test]
    fn a_profile_begins_with_a_plane() {
        let of_bytes = |head: &[u8]| is_xplane("host.pb", head);
        assert!(of_bytes(b"\x0a\xf1\x06\x08\x02\x12\x0d/device:TPU:0"));
        assert!(of_bytes(b"\x0a\x10\x12\x0e/host:metadata"));
        for other in
            [&b""[..], b"\x0a", b"\x0a\x80", b"\n{\"traceEvents\": []}", b"\x0a\x05\x12\x03abc", b"SQLite format 3\0"]
        {
            assert!(!of_bytes(other), "{other:?}");
        }
        assert!(is_xplane("Host.XPlane.pb", b""));
    }
}
