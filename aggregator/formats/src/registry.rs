//! The formats of ranks beside runs, torch.profiler's traces and snapshots: one line in [`FORMATS`] for each.
//!
//! A format recognizes its files by their content and opens them as a [`Source`](model::source::Source). Whatever searches, opens or names formats reads this list.

use std::path::Path;

use kineto::OtherFormat;
use model::Error;
use trace::place;

use crate::format::{Format, HEAD_BYTES, Head};
use crate::{inspector, nsys, rocprof, xplane};

/// The formats, in the order in which a file is compared with them and in which they are opened.
pub const FORMATS: &[&Format] = &[&nsys::FORMAT, &rocprof::FORMAT, &xplane::FORMAT, &inspector::FORMAT];

/// The format of a file, if it is one of [`FORMATS`]. Of objects in a store and of standard input, the name decides, because SQLite reads files
/// of this machine.
///
/// # Errors
/// [`Error::Io`].
pub(crate) fn format_of(path: &Path) -> Result<Option<&'static Format>, Error> {
    let is_here = !place::is_url(path) && path.as_os_str() != "-";
    let bytes = if is_here { place::first_bytes(path, HEAD_BYTES) } else { Ok(Vec::new()) };
    let bytes = bytes.map_err(|source| Error::Io { path: path.into(), source })?;
    let head = Head::new(&path.to_string_lossy(), &bytes, Some(path).filter(|_| is_here));
    Ok(FORMATS.iter().copied().find(|format| (format.recognise)(&head)))
}

const RECORD: &str = "record with torch.profiler or `rankscope exec` instead";

/// Formats that are known and not read: how the names of their files end, the name of the format, and what to do.
const UNREAD: [(&str, &str, &str); 5] = [
    (".sqlite", nsys::FORMAT.name, nsys::FORMAT.instead),
    (".nsys-rep", "a report of Nsight Systems", "write it as SQLite, which is read: `nsys export --type sqlite FILE`"),
    (".qdrep", "a report of an old Nsight Systems", RECORD),
    (".pftrace", PERFETTO.0, PERFETTO.1),
    (".perfetto-trace", PERFETTO.0, PERFETTO.1),
];
const PERFETTO: (&str, &str) = ("a Perfetto trace", "have torch.profiler export Chrome JSON (export_chrome_trace)");

/// The format of a file that is no trace of torch.profiler. Its first bytes decide before its name, because exports get renamed.
pub(crate) fn other_format(name: &str, bytes: &[u8]) -> Option<OtherFormat> {
    other_format_by(Head::new(name, bytes, None))
}

fn other_format_by(head: Head<'_>) -> Option<OtherFormat> {
    let bytes = head.bytes;
    if let Some(format) = FORMATS.iter().find(|format| (format.recognise)(&head)) {
        return Some(OtherFormat { name: format.name, instead: format.instead, is_read: true });
    }
    if nsys::is_rpd(&head) {
        let instead = "record with torch.profiler or rocprofv3, whose JSON is read";
        return Some(OtherFormat { name: "ROCm profile data (rpd)", instead, is_read: false });
    }
    if is_memory_timeline(bytes) {
        let instead = "export the trace (export_chrome_trace) with profile_memory=True, or a snapshot of the allocator";
        return Some(OtherFormat { name: "a memory timeline (export_memory_timeline)", instead, is_read: false });
    }
    if bytes.starts_with(b"PAR1") {
        let instead = "name the directory of its run, the one with run.json; of nsys-jax, name the report of Nsight Systems \
                       (.nsys-rep) that it was made of";
        return Some(OtherFormat { name: "a Parquet file", instead, is_read: false });
    }
    let (_, name, instead) = UNREAD.iter().find(|(ending, ..)| head.name.ends_with(ending))?;
    Some(OtherFormat { name, instead, is_read: false })
}

/// Whether a file begins as the lists of a memory timeline: `[[1700000000, 0, …`.
fn is_memory_timeline(bytes: &[u8]) -> bool {
    let rows = bytes.trim_ascii_start().strip_prefix(b"[").map(<[u8]>::trim_ascii_start);
    let row = rows.and_then(|rows| rows.strip_prefix(b"[")).map(<[u8]>::trim_ascii_start);
    row.is_some_and(|row| row.first().is_some_and(u8::is_ascii_digit))
}

/// As [`other_format`], of a file. Of a file that cannot be read, the name decides; its reader reports it.
pub(crate) fn other_format_of(path: &Path) -> Option<OtherFormat> {
    let bytes = place::first_bytes(path, HEAD_BYTES).unwrap_or_default();
    other_format_by(Head::new(&path.to_string_lossy(), &bytes, Some(path)))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn name(name: &str, head: &[u8]) -> Option<&'static str> {
        other_format(name, head).map(|format| format.name)
    }

    #[test]
    fn the_content_decides_before_the_name() {
        assert_eq!(name("rank0.json", b"SQLite format 3\0 and more"), Some("an SQLite export of Nsight Systems"));
        assert_eq!(name("A.NSYS-REP", b""), Some("a report of Nsight Systems"));
        assert_eq!(name("x.sqlite", b"SQLite format 3\0"), Some("an SQLite export of Nsight Systems"));
        assert_eq!(name("rank0.json", b"{"), None);
        assert_eq!(name("a-pid7.log", b"{ \"header\": {\n \"id\": \"0x1f\","), Some("a dump of NCCL's Inspector"));
        assert_eq!(name("a-pid7.log", b"{\"header\":{\"id\":7"), None);
    }

    #[test]
    fn recordings_of_other_tools_are_named_for_what_they_are() {
        let rpd = Some("ROCm profile data (rpd)");
        assert_eq!(name("trace.rpd", b"SQLite format 3\0"), rpd);
        assert_eq!(name("", b"SQLite format 3\0 ... CREATE TABLE \"rocpd_string\" ("), rpd);
        let timeline = Some("a memory timeline (export_memory_timeline)");
        assert_eq!(name("m.raw.json", b"[[1691523012345, 0, [\"a\", 1], 512], "), timeline);
        assert_eq!(name("m.json", b" [\n [1691523012345, 1691523012346], "), timeline);
        for other in [&b"[{\"ph\": \"X\"}]"[..], b"[1, 2]", b"[[\"a\"]]", b"[[]]", b"["] {
            assert_eq!(name("m.json", other), None);
        }
        let parquet = other_format("thunk.parquet", b"PAR1").unwrap();
        assert!(parquet.instead.contains("nsys-jax") && !parquet.is_read);
    }

    #[test]
    fn a_name_alone_makes_no_file_readable() {
        let is_read = |name: &str, head: &[u8]| other_format(name, head).map(|format| format.is_read);
        assert_eq!(is_read("x.sqlite", b"not SQLite"), Some(false));
        assert_eq!(is_read("x", b"SQLite format 3\0"), Some(true));
    }

    #[test]
    fn json_of_rocprofv3_begins_with_its_member() {
        let rocprof = Some("JSON of rocprofv3");
        assert_eq!(name("a", b" {\n  \"rocprofiler-sdk-tool\": ["), rocprof);
        for other in [&b"{\"traceEvents\": ["[..], b"[\"rocprofiler-sdk-tool\"]"] {
            assert_eq!(name("a", other), None);
        }
    }

    #[test]
    fn a_profile_begins_with_a_plane() {
        let profile = Some("a profile of XLA (XPlane)");
        assert_eq!(name("host.pb", b"\x0a\xf1\x06\x08\x02\x12\x0d/device:TPU:0"), profile);
        assert_eq!(name("host.pb", b"\x0a\x10\x12\x0e/host:metadata"), profile);
        assert_eq!(name("Host.XPlane.pb", b""), profile);
        for other in [&b""[..], b"\x0a", b"\x0a\x80", b"\n{\"traceEvents\": []}", b"\x0a\x05\x12\x03abc"] {
            assert_eq!(name("host.pb", other), None, "{other:?}");
        }
    }
}
