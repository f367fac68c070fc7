//! A piece of the list of events: where a file may be cut, and the parse of one piece.
//!
//! A file is cut where an event begins: at a brace after a comma or the list's bracket, if the first key behind the
//! brace is that of the list's first event. Quotes inside a string are escaped, so a string cannot look like that; an
//! object nested in an array of arguments can. So the parse of a piece must end exactly where the next piece begins. If
//! it does not, the cut was wrong, and the reader continues from the last whole event (see `stream`).

use crate::bytes::json::{Cursor, Fault, FaultKind};
use crate::columns::batch::{Columns, Scratch};
use crate::columns::event::read_event;
use crate::columns::wanted_args::Wanted;

/// The end of the parse of a piece.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum End {
    /// At the last byte, between two events.
    Exact,
    /// The list's closing bracket is at this position.
    Closed(usize),
    /// The piece ends inside the item that begins at this position.
    Partial(usize),
    /// A byte that is not JSON.
    Wrong(Fault),
}

/// The commas at the start and end of a piece. Where pieces are joined, exactly one comma must stand between items.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Edges {
    /// Position of a comma before the first item.
    pub(crate) comma: Option<usize>,
    /// Position of the first item, whole or not.
    pub(crate) item: Option<usize>,
    /// The piece ends with a whole item.
    pub(crate) ends_with_item: bool,
}

impl Edges {
    /// Checks the start of the piece: `after_item` if the pieces before end with an item, else they end with a comma or
    /// the list's bracket.
    pub(crate) fn check(&self, after_item: bool) -> Result<(), Fault> {
        match (after_item, self.comma, self.item) {
            (false, Some(at), _) => Err(Fault { at, what: FaultKind::Expected("a value") }),
            (true, None, Some(at)) => Err(Fault { at, what: FaultKind::Expected(SEPARATOR) }),
            _ => Ok(()),
        }
    }

    /// The `after_item` of the next piece.
    pub(crate) fn after_item(&self, before: bool) -> bool {
        if self.comma.is_none() && self.item.is_none() { before } else { self.ends_with_item }
    }
}

const SEPARATOR: &str = "a comma or a closing bracket";

/// Reads events until the piece ends. White space and one comma may precede the first.
pub(crate) fn read_piece(bytes: &[u8], wanted: Wanted, scratch: &mut Scratch, columns: &mut Columns) -> (End, Edges) {
    let mut cursor = Cursor::new(bytes, 0);
    let mut edges = Edges::default();
    if cursor.eat(b',') {
        edges.comma = Some(cursor.pos() - 1);
    }
    loop {
        cursor.space();
        let start = cursor.pos();
        edges.item = edges.item.or(Some(start).filter(|_| !matches!(cursor.peek(), Some(b']') | None)));
        let read = match cursor.peek() {
            Some(b'{') => read_event(&mut cursor, wanted, scratch, columns),
            Some(b']') => return (End::Closed(start), edges),
            None => return (End::Exact, edges),
            Some(_) => cursor.skip().map(|()| columns.tally.not_objects += 1),
        };
        edges.ends_with_item = read.is_ok();
        match read {
            Ok(()) => {}
            Err(fault) if fault.what == FaultKind::Cut => return (End::Partial(start), edges),
            Err(fault) => return (End::Wrong(fault), edges),
        }
        if cursor.eat(b',') {
            edges.ends_with_item = false;
        } else if !matches!(cursor.peek(), Some(b']') | None) {
            let what = FaultKind::Expected(SEPARATOR);
            return (End::Wrong(Fault { at: cursor.pos(), what }), edges);
        }
    }
}

/// The first key of the first event, quotes included; `None` if the bytes do not show one.
pub(crate) fn anchor(bytes: &[u8]) -> Option<Vec<u8>> {
    let mut cursor = Cursor::new(bytes, 0);
    cursor.need(b'{', "an event").ok()?;
    let key = cursor.string().ok()?;
    let mut quoted = Vec::with_capacity(key.raw.len() + 2);
    quoted.push(b'"');
    quoted.extend_from_slice(key.raw);
    quoted.push(b'"');
    Some(quoted)
}

/// The start of the last event in `bytes`, found by its anchor; `None` if no event starts after the first byte.
pub(crate) fn last_event_start(bytes: &[u8], anchor: &[u8]) -> Option<usize> {
    let mut end = bytes.len();
    while let Some(at) = memchr::memmem::rfind(&bytes[..end], anchor) {
        if let Some(brace) = brace_before(bytes, at)
            && brace > 0
        {
            return Some(brace);
        }
        end = at;
    }
    None
}

/// The brace before the key at `at`, if it opens an item of a list.
fn brace_before(bytes: &[u8], at: usize) -> Option<usize> {
    let brace = last_solid(&bytes[..at])?;
    let before = last_solid(&bytes[..brace])?;
    (bytes[brace] == b'{' && matches!(bytes[before], b',' | b'[')).then_some(brace)
}

/// The last byte other than white space.
fn last_solid(bytes: &[u8]) -> Option<usize> {
    bytes.iter().rposition(|b| !matches!(b, b' ' | b'\n' | b'\r' | b'\t'))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> (End, Columns) {
        let mut columns = Columns::default();
        let (end, _) = read_piece(text.as_bytes(), Wanted::default(), &mut Scratch::default(), &mut columns);
        (end, columns)
    }

    const EVENT: &str =
        r#"{"ph": "X", "cat": "kernel", "name": "k", "pid": 0, "tid": 7, "ts": 1.5, "dur": 2, "args": {"stream": 9}}"#;

    #[test]
    fn a_piece_ends_where_its_bytes_end() {
        assert_eq!(read("").0, End::Exact);
        assert_eq!(read(&format!(" , {EVENT},\n {EVENT}, ")).0, End::Exact);
        let (end, columns) = read(&format!("{EVENT} , {EVENT} ] }}"));
        assert_eq!(end, End::Closed(2 * EVENT.len() + 4));
        assert_eq!((columns.ts_ns, columns.dur_ns), (vec![1500; 2], vec![2000; 2]));
        assert_eq!((columns.device, columns.stream), (vec![0; 2], vec![9; 2]));
    }

    #[test]
    fn a_cut_event_is_not_kept() {
        for cut in 1..EVENT.len() {
            let (end, columns) = read(&format!("{EVENT}, {}", &EVENT[..cut]));
            assert_eq!((end, columns.len()), (End::Partial(EVENT.len() + 2), 1), "{cut}");
        }
    }

    #[test]
    fn garbage_between_events_is_a_fault() {
        assert!(matches!(read(&format!("{EVENT} {EVENT}")).0, End::Wrong(_)));
        assert!(matches!(read("{\"ph\" \"X\"}").0, End::Wrong(_)));
        let (end, columns) = read(&format!("null, 3, \"x\", [1], {EVENT}]"));
        assert!(matches!(end, End::Closed(_)));
        assert_eq!((columns.len(), columns.tally.not_objects), (1, 4));
    }

    #[test]
    fn pieces_join_with_exactly_one_comma() {
        let edges = |text: &str| {
            read_piece(text.as_bytes(), Wanted::default(), &mut Scratch::default(), &mut Columns::default()).1
        };
        let follows = |text: &str| (edges(text).check(false).is_ok(), edges(text).check(true).is_ok());
        assert_eq!(follows("{}"), (true, false));
        assert_eq!(follows(" , {}"), (false, true));
        assert_eq!(follows("{\"cut"), (true, false));
        assert_eq!((follows("  "), follows(" ] ")), ((true, true), (true, true)));
        assert_eq!((edges("{}").after_item(false), edges("{},").after_item(true)), (true, false));
        assert_eq!((edges(" ").after_item(true), edges(",").after_item(true)), (true, false));
    }

    #[test]
    fn arguments_may_come_first() {
        let text =
            r#"{"args": {"correlation": 5, "External id": 6}, "cat": "cuda_runtime", "dur": 1, "ph": "X", "ts": 2}]"#;
        let (_, columns) = read(text);
        assert_eq!((columns.correlation, columns.external), (vec![5], vec![6]));
    }

    #[test]
    fn cuts_are_found_at_event_starts_only() {
        let anchor = anchor(b" {\"ph\": 1").unwrap();
        assert_eq!(anchor, b"\"ph\"");
        let find = |text: &str| last_event_start(text.as_bytes(), &anchor);
        assert_eq!(find(r#"{"ph":1}, {"ph":2"#), Some(10));
        assert_eq!(find(r#"{"ph":1}, {"a": {"ph":2}"#), None);
        assert_eq!(find(r#"{"ph":1, "x":"\"ph\""}"#), None);
        assert_eq!(find("{\"ph\":1},\n\t {\n \"ph\":2},{\"a\":\"ph\"}"), Some(12));
    }
}
