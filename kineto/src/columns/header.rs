//! The header of a trace: all members of the document but the list of events, in any order, before or after it.

use std::collections::BTreeMap;

use trace::rank::MAX_RANKS;

use crate::bytes::json::{Cursor, Fault, FaultKind};
use crate::bytes::text;
use crate::bytes::value::{MAX_KEPT_BYTES, Value};
/// Scalars that are kept. A trace has about twenty.
const MAX_SCALARS: usize = 256;
/// Longest scalar that is kept.
const MAX_SCALAR_BYTES: usize = 4096;

/// The members of the document that are kept.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Header {
    /// `distributedInfo`.
    pub(crate) distributed: Option<Value>,
    /// `deviceProperties`.
    pub(crate) devices: Option<Value>,
    /// `baseTimeNanoseconds`; 0 if absent.
    pub(crate) base_ns: i64,
    /// `baseTimeNanoseconds` is there, but cannot be read.
    pub(crate) base_unread: bool,
    /// Members that are too long to be kept.
    pub(crate) too_long: Vec<&'static str>,
    /// Numbers and short strings, by key.
    pub(crate) scalars: BTreeMap<String, String>,
    /// The document has a list of events.
    pub(crate) has_events: bool,
}

/// The parser's position in the document.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Start,
    /// Inside the object; the flag is true before the first member.
    Members(bool),
    /// After a bare list or the closing brace.
    Done,
}

/// The reason why the parser returned.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum HeaderStep {
    /// The list of events begins at this position, after its bracket.
    Events(usize),
    /// The document ended before this position.
    Done(usize),
    /// More bytes are needed, from this position on.
    More(usize),
    /// A byte that is not JSON.
    Wrong(Fault),
}

/// A parser of the header that continues when more bytes are read.
#[derive(Debug)]
pub(crate) struct HeaderParser {
    state: State,
    bare_list: bool,
    pub(crate) header: Header,
}

impl HeaderParser {
    pub(crate) fn new() -> Self {
        Self { state: State::Start, bare_list: false, header: Header::default() }
    }

    /// Whether the document is a list without a key that says of what.
    pub(crate) fn is_bare_list(&self) -> bool {
        self.bare_list
    }

    /// Continues after the closing bracket of the list of events.
    pub(crate) fn events_closed(&mut self) {
        if self.bare_list {
            self.state = State::Done;
        }
    }

    /// Reads members from the start of `bytes` until the list of events, the end, or a need for more.
    pub(crate) fn step(&mut self, bytes: &[u8]) -> HeaderStep {
        let mut cursor = Cursor::new(bytes, 0);
        loop {
            // Drop blanks at once: a file may begin with more of them than memory holds.
            cursor.space();
            let safe = cursor.pos();
            match self.advance(&mut cursor) {
                Ok(Some(step)) => return step,
                Ok(None) => {}
                Err(fault) if fault.what == FaultKind::Cut => return HeaderStep::More(safe),
                Err(fault) => return HeaderStep::Wrong(fault),
            }
        }
    }

    /// Reads the opening bracket, one member, or the end.
    fn advance(&mut self, cursor: &mut Cursor<'_>) -> Result<Option<HeaderStep>, Fault> {
        match self.state {
            State::Start => match cursor.peek() {
                // A byte-order mark.
                Some(0xEF) => {
                    if !cursor.has_bytes(3) {
                        return cursor.fault(FaultKind::Cut);
                    }
                    cursor.bump(3);
                    Ok(None)
                }
                Some(b'{') => {
                    cursor.bump(1);
                    self.state = State::Members(true);
                    Ok(None)
                }
                Some(b'[') => {
                    cursor.bump(1);
                    self.bare_list = true;
                    self.header.has_events = true;
                    Ok(Some(HeaderStep::Events(cursor.pos())))
                }
                _ => cursor.expected("a JSON object or list"),
            },
            State::Members(first) => {
                if !cursor.next_member(first)? {
                    self.state = State::Done;
                    return Ok(None);
                }
                let step = self.member(cursor)?;
                self.state = State::Members(false);
                Ok(step)
            }
            State::Done => Ok(Some(HeaderStep::Done(cursor.pos()))),
        }
    }

    fn member(&mut self, cursor: &mut Cursor<'_>) -> Result<Option<HeaderStep>, Fault> {
        let key = text::decode(cursor.key()?);
        match key.as_str() {
            "traceEvents" if cursor.peek() == Some(b'[') => {
                cursor.bump(1);
                self.header.has_events = true;
                return Ok(Some(HeaderStep::Events(cursor.pos())));
            }
            "distributedInfo" => self.header.distributed = self.kept("distributedInfo", cursor)?,
            "deviceProperties" => self.header.devices = self.kept("deviceProperties", cursor)?,
            "baseTimeNanoseconds" => {
                let base_ns = Value::read(cursor)?.integer();
                self.header.base_unread = base_ns.is_none();
                self.header.base_ns = base_ns.unwrap_or(0);
            }
            _ => self.scalar(key, cursor)?,
        }
        Ok(None)
    }

    /// The value at the cursor, if it is short enough to be kept.
    fn kept(&mut self, key: &'static str, cursor: &mut Cursor<'_>) -> Result<Option<Value>, Fault> {
        let mut end = *cursor;
        end.skip()?;
        if end.pos() - cursor.pos() <= MAX_KEPT_BYTES {
            return Value::read(cursor).map(Some);
        }
        *cursor = end;
        self.header.too_long.push(key);
        Ok(None)
    }

    fn scalar(&mut self, key: String, cursor: &mut Cursor<'_>) -> Result<(), Fault> {
        let start = cursor.pos();
        let nested = matches!(cursor.peek(), Some(b'{' | b'['));
        cursor.skip()?;
        let raw = cursor.since(start);
        if !nested && raw.len() <= MAX_SCALAR_BYTES && self.header.scalars.len() < MAX_SCALARS {
            let value = Value::parse(&[raw, b","].concat());
            if let Some(text) = value.as_ref().and_then(Value::text) {
                self.header.scalars.insert(key, text.to_string());
            }
        }
        Ok(())
    }
}

impl Cursor<'_> {
    /// Whether the slice holds the next `n` bytes.
    fn has_bytes(&self, n: usize) -> bool {
        let mut ahead = *self;
        ahead.bump(n - 1);
        ahead.peek().is_some()
    }
}

/// The rank in `distributedInfo`, if it is possible.
pub(crate) fn rank_from_distributed_info(distributed: Option<&Value>) -> Option<i32> {
    let rank = distributed?.get("rank")?.integer()?;
    i32::try_from(rank).ok().filter(|rank| (0..MAX_RANKS).contains(rank))
}

/// The number of ranks in `distributedInfo`, if a job can have that many.
pub(crate) fn world_size_from_distributed_info(distributed: Option<&Value>) -> Option<i32> {
    let ranks = distributed?.get("world_size")?.integer()?;
    i32::try_from(ranks).ok().filter(|ranks| (1..=MAX_RANKS).contains(ranks))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn members_may_come_in_any_order() {
        let text = br#"{"schemaVersion": 1, "traceEvents": [] , "host_name": "h", "distributedInfo": {"rank": 3}, "baseTimeNanoseconds": 5}  "#;
        let mut parser = HeaderParser::new();
        let HeaderStep::Events(at) = parser.step(text) else { panic!("no list") };
        assert_eq!(&text[at..at + 1], b"]");
        parser.events_closed();
        let rest = &text[at + 1..];
        assert_eq!(parser.step(rest), HeaderStep::Done(rest.len()));
        assert_eq!(parser.header.base_ns, 5);
        assert_eq!(parser.header.distributed.as_ref().unwrap().get("rank").unwrap().integer(), Some(3));
        assert_eq!(parser.header.scalars["host_name"], "h");
        assert_eq!(parser.header.scalars["schemaVersion"], "1");
    }

    /// A header that is cut anywhere and continued gives the same result.
    #[test]
    fn a_header_cut_anywhere_continues() {
        let text = br#"  {"a": "x\"y", "deviceProperties": [{"id": 0}], "w": NaN, "b": {"c": [1]}, "traceEvents": ["#;
        for cut in 0..text.len() {
            let mut parser = HeaderParser::new();
            let HeaderStep::More(safe) = parser.step(&text[..cut]) else { panic!("cut {cut}") };
            let HeaderStep::Events(at) = parser.step(&text[safe..]) else { panic!("cut {cut}") };
            assert_eq!(safe + at, text.len(), "cut {cut}");
            assert_eq!(parser.header.scalars["a"], "x\"y");
            assert!(parser.header.devices.is_some());
        }
    }

    #[test]
    fn other_documents_are_refused() {
        for text in ["hello", "<html>", "42,", "{\"a\" 1}", "{a: 1}", "{,}"] {
            let step = HeaderParser::new().step(text.as_bytes());
            assert!(matches!(step, HeaderStep::Wrong(_)), "{text}: {step:?}");
        }
        assert_eq!(HeaderParser::new().step(b"{\"traceEvents\": {}}"), HeaderStep::Done(19));
        assert_eq!(HeaderParser::new().step(b"\xEF\xBB\xBF[ "), HeaderStep::Events(4));
        assert_eq!(HeaderParser::new().step(b""), HeaderStep::More(0));
    }
}
