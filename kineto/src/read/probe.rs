//! The begin of a file: whether it is a trace, its rank and its job.

use std::io;

use trace::place::{self, Opened};
use trace::rank::MAX_RANKS;

use crate::Error;
use crate::bytes::input::Input;
use crate::bytes::json::{Cursor, Fault, FaultKind};
use crate::bytes::value::Value;
use crate::columns::header::{
    Header, HeaderParser, HeaderStep, rank_from_distributed_info, world_size_from_distributed_info,
};
use crate::columns::stream::MAX_VALUE_BYTES;
use crate::read::find::Candidate;
use crate::read::formats::RecognizeOther;
use crate::read::merged::{Merged, merged, name_a_rank};
use crate::read::names::torch_name;

/// Bytes that are read at a time while looking for the header of a file.
const PROBE_BYTES: usize = 64 << 10;
/// The end of a file in which `distributedInfo` and the names of processes are looked for.
const TAIL_BYTES: usize = 256 << 10;
/// First events whose starts are read.
const FIRST_EVENTS: usize = 64;

/// The parts of a file's header and of its first events that decide its rank and job.
#[derive(Clone, Debug)]
pub(crate) struct Probe {
    pub(crate) candidate: Candidate,
    pub(crate) size_bytes: u64,
    pub(crate) rank: Option<i32>,
    pub(crate) world_size: Option<i32>,
    /// Keys of `rank` and `world_size` whose values are impossible.
    pub(crate) refused: Vec<&'static str>,
    /// The file's name has the process id of its first events. So torch chose the name, which begins with the host and
    /// not with a rank.
    pub(crate) is_named_by_torch: bool,
    /// The median start of its first events; `None` if they have no readable start.
    pub(crate) first_ns: Option<i64>,
    /// The ranks whose traces were merged into the file; `None` for the trace of one rank.
    pub(crate) merged: Option<Merged>,
}

/// Reads the header of a file up to its events. With `search_tail`, the end of the file is searched too if the header
/// has no rank.
pub(crate) fn probe(
    candidate: &Candidate,
    search_tail: bool,
    other_format: Option<RecognizeOther>,
) -> Result<Probe, Error> {
    let Candidate { path, name, shown, .. } = candidate;
    let io = |source| Error::Io { path: shown.clone(), source };
    let file = place::open(path).map_err(io)?;
    let size_bytes = file.size_bytes().map_err(io)?;
    let mut input = Input::open(path).map_err(io)?;
    let mut parser = HeaderParser::new();
    let bytes = first_events(candidate, &mut input, &mut parser, other_format)?;
    let is_named_by_torch = torch_name(name).is_some_and(|(_, pid)| mentions_process(&bytes, pid));
    let first_ns = first_start_ns(&bytes, parser.header.base_ns);
    let mut names_ranks = name_a_rank(&bytes);
    if parser.header.distributed.is_none() {
        let last = match (search_tail, input.is_compressed()) {
            (true, _) => last_bytes(bytes, &mut input),
            (false, false) => end_of_file(&file, size_bytes).map_err(io)?,
            (false, true) => Vec::new(),
        };
        names_ranks = names_ranks || name_a_rank(&last);
        parser.header.distributed = info_in(&last).filter(|_| search_tail);
    }
    // Without these bytes, another rank might be taken for that of the file.
    input.file_error.check().map_err(io)?;
    let merged = if names_ranks { merged(candidate)? } else { None };
    let Header { distributed, .. } = parser.header;
    let too_large = |key: &&str| {
        let value = distributed.as_ref().and_then(|info| info.get(key)).and_then(Value::integer);
        // Ranks count from zero.
        value.is_some_and(|n| n > i64::from(MAX_RANKS) - i64::from(*key == "rank"))
    };
    Ok(Probe {
        candidate: candidate.clone(),
        size_bytes,
        rank: rank_from_distributed_info(distributed.as_ref()),
        world_size: world_size_from_distributed_info(distributed.as_ref()),
        refused: ["rank", "world_size"].into_iter().filter(too_large).collect(),
        is_named_by_torch,
        first_ns,
        merged,
    })
}

/// Reads the header of a file. Returns the bytes of its first events.
fn first_events(
    candidate: &Candidate,
    input: &mut Input,
    parser: &mut HeaderParser,
    other_format: Option<RecognizeOther>,
) -> Result<Vec<u8>, Error> {
    let Candidate { name, shown, .. } = candidate;
    let mut bytes = Vec::new();
    let mut done_bytes = 0;
    let not_a_trace = |why: String| Err(Error::not_a_trace(shown, &why));
    let other_json = |why| Error::OtherJson { path: shown.clone(), why };
    let unread = |name: &str, bytes: &[u8]| {
        other_format?(name, bytes).map(|format| Error::UnreadFormat { path: shown.clone(), format })
    };
    loop {
        match parser.step(&bytes) {
            HeaderStep::Events(at) => {
                bytes.drain(..at);
                if parser.is_bare_list() && !begins_with_event(&mut bytes, input) {
                    return Err(other_json("it begins with a bracket, but not with a list of events"));
                }
                return Ok(bytes);
            }
            HeaderStep::Done(_) => return Err(other_json("it is JSON, but has no traceEvents")),
            HeaderStep::Wrong(fault) => {
                if let Some(error) = unread(name, &bytes) {
                    return Err(error);
                }
                return not_a_trace(format!("byte {}: {}", done_bytes + fault.at, fault.what.describe()));
            }
            HeaderStep::More(safe) => {
                bytes.drain(..safe);
                done_bytes += safe;
                let before = bytes.len();
                let got = read_more(&mut bytes, input);
                // Another format may be JSON too, and its single member may be the whole file. The name of a trace may mislead.
                if done_bytes + before == 0
                    && let Some(error) = unread("", &bytes)
                {
                    return Err(error);
                }
                if got == 0 {
                    let why = input.failure.take();
                    let empty = if input.read_bytes == 0 { "it is empty" } else { "it ends before its events" };
                    return not_a_trace(why.unwrap_or_else(|| empty.into()));
                }
                if bytes.len() > 2 * MAX_VALUE_BYTES {
                    return not_a_trace(format!("a value is longer than {MAX_VALUE_BYTES} bytes"));
                }
            }
        }
    }
}

/// Reads a block behind `bytes`, and returns its size. The block doubles each time, so that a long value is not parsed from
/// its start too often.
fn read_more(bytes: &mut Vec<u8>, input: &mut Input) -> usize {
    let before = bytes.len();
    bytes.resize(before + PROBE_BYTES.max(before), 0);
    let got = input.fill(&mut bytes[before..]);
    bytes.truncate(before + got);
    got
}

/// Whether the first item of a list that no `traceEvents` names is an event. Logs, TOML and lists of metrics begin with a
/// bracket too.
fn begins_with_event(bytes: &mut Vec<u8>, input: &mut Input) -> bool {
    loop {
        let mut phase = None;
        match first_item_is_event(&mut Cursor::new(bytes, 0), &mut phase) {
            Ok(is_event) => return is_event,
            Err(fault) if fault.what != FaultKind::Cut => return false,
            // A file that ends inside its first event is a damaged trace.
            Err(_) if bytes.len() > 2 * MAX_VALUE_BYTES || read_more(bytes, input) == 0 => return phase.is_some(),
            Err(_) => {}
        }
    }
}

/// Whether the first item of a list that is no empty object is an event: it has a phase, and a time unless it is metadata.
/// `phase` is the phase that was read, also if the bytes end before the item does.
fn first_item_is_event(cursor: &mut Cursor<'_>, phase: &mut Option<u8>) -> Result<bool, Fault> {
    loop {
        cursor.space();
        match cursor.peek() {
            Some(b'{') => cursor.bump(1),
            Some(_) => return Ok(false),
            None => return cursor.fault(FaultKind::Cut),
        }
        let (mut is_empty, mut has_time) = (true, false);
        while let Some(key) = cursor.member(is_empty)? {
            is_empty = false;
            let start = cursor.pos();
            cursor.skip()?;
            match (key.raw, cursor.since(start)) {
                (b"ph", [b'"', letter, b'"']) => *phase = Some(*letter),
                (b"ts", _) => has_time = true,
                _ => {}
            }
            if has_time && phase.is_some() || *phase == Some(b'M') {
                return Ok(true);
            }
        }
        if !is_empty || !cursor.eat(b',') {
            return if is_empty && cursor.peek().is_none() { cursor.fault(FaultKind::Cut) } else { Ok(false) };
        }
    }
}

/// Whether an event in `bytes` belongs to a process. Devices are written as processes too, so a small number proves
/// nothing.
fn mentions_process(bytes: &[u8], pid: &str) -> bool {
    const KEY: &[u8] = b"\"pid\"";
    if pid.parse().is_ok_and(|number: u32| number < 64) {
        return false;
    }
    memchr::memmem::find_iter(bytes, KEY).any(|at| {
        let value = bytes[at + KEY.len()..].trim_ascii_start();
        let value = value.strip_prefix(b":").map(<[u8]>::trim_ascii_start).unwrap_or_default();
        let value = value.strip_prefix(b"\"").unwrap_or(value);
        value.strip_prefix(pid.as_bytes()).and_then(<[u8]>::first).is_some_and(|next| !next.is_ascii_digit())
    })
}

/// The last bytes of a stream. `last` was read before.
fn last_bytes(mut last: Vec<u8>, input: &mut Input) -> Vec<u8> {
    let mut block = vec![0; 1 << 20];
    loop {
        let got = input.fill(&mut block);
        let keep = last.len().saturating_sub(TAIL_BYTES);
        last.drain(..keep);
        last.extend_from_slice(&block[..got]);
        if got < block.len() {
            return last;
        }
    }
}

/// The last bytes of a file.
fn end_of_file(file: &Opened, size_bytes: u64) -> io::Result<Vec<u8>> {
    let from = size_bytes.saturating_sub(TAIL_BYTES as u64);
    let mut last = vec![0; (size_bytes - from) as usize];
    file.read_exact_at(&mut last, from)?;
    Ok(last)
}

/// The last `distributedInfo` in `bytes`: on-demand traces write it behind their events.
fn info_in(bytes: &[u8]) -> Option<Value> {
    const KEY: &[u8] = b"\"distributedInfo\"";
    let at = memchr::memmem::rfind(bytes, KEY)?;
    let mut cursor = Cursor::new(bytes, at + KEY.len());
    cursor.need(b':', "a colon").ok()?;
    cursor.space();
    Value::read(&mut cursor).ok().filter(|value| value.get("rank").is_some())
}

/// The median start of the first events in `bytes`. Some of them may lie far away: metadata has times too.
fn first_start_ns(bytes: &[u8], base_ns: i64) -> Option<i64> {
    const KEY: &[u8] = b"\"ts\"";
    let start = |at: usize| {
        let value = bytes[at + KEY.len()..].trim_ascii_start().strip_prefix(b":")?.trim_ascii_start();
        let value = value.strip_prefix(b"\"").unwrap_or(value);
        let end = value.iter().position(|byte| !byte.is_ascii_digit() && !b"+-.eE".contains(byte))?;
        let us: f64 = std::str::from_utf8(&value[..end]).ok()?.parse().ok()?;
        Some(((us * 1e3) as i64).saturating_add(base_ns))
    };
    let mut starts: Vec<i64> = memchr::memmem::find_iter(bytes, KEY).filter_map(start).take(FIRST_EVENTS).collect();
    starts.sort_unstable();
    starts.get(starts.len() / 2).copied()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn is_trace(text: &str) -> bool {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("file");
        std::fs::write(&path, text).unwrap();
        let candidate = Candidate { name: "file".into(), path: path.clone(), shown: path, named: true };
        match probe(&candidate, false, None) {
            Ok(_) => true,
            Err(Error::OtherJson { .. } | Error::NotATrace { .. }) => false,
            Err(error) => panic!("{text}: {error}"),
        }
    }

    #[test]
    fn a_list_is_a_trace_if_it_begins_with_an_event() {
        let long = " ".repeat(3 * PROBE_BYTES);
        let nested = format!(r#"[{{"args": {{"ph": 7, "a": [{long}]}}, "ts": 1, "ph": "X"}}]"#);
        for trace in [
            r#"[{"ph": "X", "ts": 1}]"#,
            r#"[{"ts": "0.5", "name": "a\"b", "args": {"x": [1, {"ph": 3}]}, "ph": "B"}, 7]"#,
            r#"[{"name": "process_name", "ph": "M"}]"#,
            "\u{feff} \n[ \n {}, {}, {\"ph\": \"C\", \"ts\": 5}",
            &nested,
            // Ends inside its first event.
            r#"[{"ph": "X", "na"#,
            // The key says what the list is.
            r#"{"traceEvents": []}"#,
            r#"{"traceEvents": [{"name": "no phase"}]}"#,
        ] {
            assert!(is_trace(trace), "{trace:.80}");
        }
        for other in [
            "[2024-06-11 10:00:00] INFO begin",
            "[rank0]: step 1",
            "[tool.black]\nline-length = 100\n",
            "[]\n",
            "[",
            "[{}]",
            "[{}",
            "[[1, 2], [3]]",
            r#"["ph", "ts"]"#,
            r#"[{"step": 1, "loss": 0.5}, {"ph": "X", "ts": 1}]"#,
            r#"[{"id": 1, "model_name": "m", "timestamps": []}]"#,
            r#"[{"ph": 7.2, "ts": 1}]"#,
            r#"[{"ph": "acid", "ts": 1}]"#,
            r#"[{"ph": "X", "time": 1}]"#,
            r#"[{"loss": 1"#,
        ] {
            assert!(!is_trace(other), "{other}");
        }
    }
}
