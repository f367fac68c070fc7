//! The top level of a trace: everything around the list of events, in any order.

use std::collections::BTreeMap;

use crate::kineto::json::{Cursor, Fault, FaultKind};
use crate::kineto::text;
use crate::kineto::value::Value;

/// Scalars of the top level that are kept; a trace has about twenty.
const MAX_SCALARS: usize = 256;
/// Longest scalar that is kept.
const MAX_SCALAR_BYTES: usize = 4096;

/// What the top level says.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Top {
    /// `distributedInfo`.
    pub(crate) distributed: Option<Value>,
    /// `deviceProperties`.
    pub(crate) devices: Option<Value>,
    /// `baseTimeNanoseconds`; 0 if absent.
    pub(crate) base_ns: i64,
    /// It is there and cannot be read.
    pub(crate) base_unread: bool,
    /// Numbers and short strings, by key.
    pub(crate) scalars: BTreeMap<String, String>,
    /// A list of events was there.
    pub(crate) has_events: bool,
}

/// Where the parser stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Start,
    /// Inside the object; the flag is true before the first member.
    Members(bool),
    /// After a bare list or the closing brace.
    Done,
}

/// What stopped the parser.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Step {
    /// The list of events begins at this position, behind its bracket.
    Events(usize),
    /// The document ended; what follows begins at this position.
    Done(usize),
    /// More bytes are needed, from this position on.
    More(usize),
    /// A byte that is no JSON.
    Wrong(Fault),
}

/// A parser of the top level that can go on when more bytes come.
#[derive(Debug)]
pub(crate) struct TopParser {
    state: State,
    bare_list: bool,
    pub(crate) top: Top,
}

impl TopParser {
    pub(crate) fn new() -> Self {
        Self { state: State::Start, bare_list: false, top: Top::default() }
    }

    /// The list of events was read to its closing bracket.
    pub(crate) fn events_closed(&mut self) {
        if self.bare_list {
            self.state = State::Done;
        }
    }

    /// Reads members from the start of `bytes` until the list of events, the end, or a need for more.
    pub(crate) fn step(&mut self, bytes: &[u8]) -> Step {
        let mut cursor = Cursor::new(bytes, 0);
        loop {
            // Blanks are done with at once: a file may begin with more of them than memory holds.
            cursor.space();
            let safe = cursor.pos();
            match self.advance(&mut cursor) {
                Ok(Some(step)) => return step,
                Ok(None) => {}
                Err(fault) if fault.what == FaultKind::Cut => return Step::More(safe),
                Err(fault) => return Step::Wrong(fault),
            }
        }
    }

    /// One token group: the opening bracket, a member, or the end.
    fn advance(&mut self, cursor: &mut Cursor<'_>) -> Result<Option<Step>, Fault> {
        match self.state {
            State::Start => match cursor.peek() {
                // A byte-order mark.
                Some(0xEF) => {
                    if cursor.since_start(3).is_none() {
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
                    self.top.has_events = true;
                    Ok(Some(Step::Events(cursor.pos())))
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
            State::Done => Ok(Some(Step::Done(cursor.pos()))),
        }
    }

    fn member(&mut self, cursor: &mut Cursor<'_>) -> Result<Option<Step>, Fault> {
        let key = text::decode(cursor.key()?);
        match key.as_str() {
            "traceEvents" if cursor.peek() == Some(b'[') => {
                cursor.bump(1);
                self.top.has_events = true;
                return Ok(Some(Step::Events(cursor.pos())));
            }
            "distributedInfo" => self.top.distributed = Some(Value::read(cursor)?),
            "deviceProperties" => self.top.devices = Some(Value::read(cursor)?),
            "baseTimeNanoseconds" => {
                let base_ns = Value::read(cursor)?.integer();
                self.top.base_unread = base_ns.is_none();
                self.top.base_ns = base_ns.unwrap_or(0);
            }
            _ => self.scalar(key, cursor)?,
        }
        Ok(None)
    }

    fn scalar(&mut self, key: String, cursor: &mut Cursor<'_>) -> Result<(), Fault> {
        let start = cursor.pos();
        let nested = matches!(cursor.peek(), Some(b'{' | b'['));
        cursor.skip()?;
        let raw = cursor.since(start);
        if !nested && raw.len() <= MAX_SCALAR_BYTES && self.top.scalars.len() < MAX_SCALARS {
            let value = Value::parse(&[raw, b","].concat());
            if let Some(text) = value.as_ref().and_then(Value::text) {
                self.top.scalars.insert(key, text.to_string());
            }
        }
        Ok(())
    }
}

impl Cursor<'_> {
    /// The next `n` bytes, if they are there.
    fn since_start(&self, n: usize) -> Option<()> {
        let mut ahead = *self;
        ahead.bump(n - 1);
        ahead.peek().map(|_| ())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_top_level_comes_in_any_order() {
        let text = br#"{"schemaVersion": 1, "traceEvents": [] , "host_name": "h", "distributedInfo": {"rank": 3}, "baseTimeNanoseconds": 5}  "#;
        let mut parser = TopParser::new();
        let Step::Events(at) = parser.step(text) else { panic!("no list") };
        assert_eq!(&text[at..at + 1], b"]");
        parser.events_closed();
        let rest = &text[at + 1..];
        assert_eq!(parser.step(rest), Step::Done(rest.len()));
        assert_eq!(parser.top.base_ns, 5);
        assert_eq!(parser.top.distributed.as_ref().unwrap().get("rank").unwrap().integer(), Some(3));
        assert_eq!(parser.top.scalars["host_name"], "h");
        assert_eq!(parser.top.scalars["schemaVersion"], "1");
    }

    /// Fed byte by byte, the parser comes to the same result as in one go.
    #[test]
    fn any_cut_is_survived() {
        let text = br#"  {"a": "x\"y", "deviceProperties": [{"id": 0}], "w": NaN, "b": {"c": [1]}, "traceEvents": ["#;
        for cut in 0..text.len() {
            let mut parser = TopParser::new();
            let Step::More(safe) = parser.step(&text[..cut]) else { panic!("cut {cut}") };
            let Step::Events(at) = parser.step(&text[safe..]) else { panic!("cut {cut}") };
            assert_eq!(safe + at, text.len(), "cut {cut}");
            assert_eq!(parser.top.scalars["a"], "x\"y");
            assert!(parser.top.devices.is_some());
        }
    }

    #[test]
    fn other_documents_are_refused() {
        for text in ["hello", "<html>", "42,", "{\"a\" 1}", "{a: 1}", "{,}"] {
            let step = TopParser::new().step(text.as_bytes());
            assert!(matches!(step, Step::Wrong(_)), "{text}: {step:?}");
        }
        assert_eq!(TopParser::new().step(b"{\"traceEvents\": {}}"), Step::Done(19));
        assert_eq!(TopParser::new().step(b"\xEF\xBB\xBF[ "), Step::Events(4));
        assert_eq!(TopParser::new().step(b""), Step::More(0));
    }
}
