//! The columns that the arguments of a row go to. Rows with one template differ only in their integers, so all other cells
//! are made once for each template.

use serde::de::IgnoredAny;

use crate::bytes::number;
use crate::bytes::value::Value;
use crate::columns::args::{Argument, Template, take_integer};
use crate::meaning::op_details::outermost_first;
use crate::write::json_text;

/// The number of columns in [`Cells::texts`].
pub(super) const TEXTS: usize = 5;

/// Columns with texts from arguments, as places in [`Cells::texts`].
pub(super) const INPUT_DIMS: usize = 0;
pub(super) const INPUT_TYPES: usize = 1;
pub(super) const SYNC_KIND: usize = 2;
pub(super) const STACK: usize = 3;
pub(super) const MODULE: usize = 4;

/// Cells that all rows of a template have in common.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Cells {
    pub(super) grid: Option<[i32; 3]>,
    pub(super) block: Option<[i32; 3]>,
    pub(super) occupancy_pct: Option<f64>,
    pub(super) bandwidth_gbs: Option<f64>,
    pub(super) texts: [Option<String>; TEXTS],
}

/// Columns of integers that only rows of a device have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Long {
    Context,
    GraphId,
    GraphNodeId,
    SharedMemory,
    SourceDevice,
    TargetDevice,
}

/// The number of variants of [`Long`].
pub(super) const LONGS: usize = 6;

/// The column of an integer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Target {
    /// A cell that was read with the row, if it has the same value: a host row may name a device or a stream too.
    Read(Read),
    Long(Long),
    Registers,
    Occupancy,
    Bandwidth,
    /// None, because a later member with the same key replaces it.
    Replaced,
    /// `args`.
    Rest,
}

/// Cells that were read with a row.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Read {
    External,
    Correlation,
    Device,
    Stream,
    Bytes,
}

/// The values of a row's [`Read`] cells; [`NONE`](trace::rank::NONE) if it has none.
#[derive(Clone, Copy, Debug)]
pub(super) struct ReadCells {
    pub(super) external: i64,
    pub(super) correlation: i64,
    pub(super) device: i64,
    pub(super) stream: i64,
    pub(super) bytes: i64,
}

impl ReadCells {
    fn get(&self, cell: Read) -> i64 {
        match cell {
            Read::External => self.external,
            Read::Correlation => self.correlation,
            Read::Device => self.device,
            Read::Stream => self.stream,
            Read::Bytes => self.bytes,
        }
    }
}

/// The cells that the integers of a row fill.
pub(super) trait Sink {
    fn long(&mut self, column: Long, value: i64);
    fn registers(&mut self, value: Option<i32>);
    fn occupancy_pct(&mut self, value: f64);
    fn bandwidth_gbs(&mut self, value: f64);
}

/// An integer of each row.
#[derive(Debug)]
struct Integer {
    /// JSON of `args` before it.
    before: Box<[u8]>,
    /// Its key in `args`, with the comma before and the colon behind it.
    key: Box<[u8]>,
    target: Target,
}

/// Where the arguments of rows with one template go.
#[derive(Debug)]
pub(super) struct Placement {
    integers: Box<[Integer]>,
    /// JSON of `args` after the last integer.
    after: Box<[u8]>,
}

impl Placement {
    /// Divides the arguments of a template among the columns, for host rows or for device rows.
    pub(super) fn of(template: &Template, on_host: bool) -> (Self, Cells) {
        let mut cells = Cells::default();
        let mut integers: Vec<Integer> = Vec::new();
        let mut text = Vec::new();
        // The integers are those of the rows.
        for (key, value) in template.arguments(&[]) {
            match value {
                Argument::Integer(_) => {
                    let before = std::mem::take(&mut text).into_boxed_slice();
                    let target = target(key, on_host);
                    integers.push(Integer { before, key: member(key).into_boxed_slice(), target });
                }
                Argument::Json(raw) => {
                    replace(&mut integers, key);
                    if !place_json(&mut cells, on_host, key, raw) {
                        text.append(&mut member(key));
                        append_json(&mut text, raw);
                    }
                }
            }
        }
        (Self { integers: integers.into_boxed_slice(), after: text.into_boxed_slice() }, cells)
    }

    /// Places the integers of a row, which begin at the start of `numbers`, and writes `args` into `rest`, with a comma in
    /// place of its opening brace and without the closing one.
    pub(super) fn place(&self, mut numbers: &[u8], read: &ReadCells, sink: &mut impl Sink, rest: &mut Vec<u8>) {
        rest.clear();
        for Integer { before, key, target } in &self.integers {
            rest.extend_from_slice(before);
            let value = take_integer(&mut numbers);
            let placed = match target {
                Target::Read(cell) => read.get(*cell) == value,
                Target::Rest => false,
                Target::Replaced => true,
                Target::Long(column) => {
                    sink.long(*column, value);
                    true
                }
                Target::Registers => {
                    let narrow = i32::try_from(value).ok();
                    sink.registers(narrow);
                    narrow.is_some()
                }
                Target::Occupancy => {
                    sink.occupancy_pct(value as f64);
                    true
                }
                Target::Bandwidth => {
                    sink.bandwidth_gbs(value as f64);
                    true
                }
            };
            if !placed {
                rest.extend_from_slice(key);
                json_text::value(rest, &value);
            }
        }
        rest.extend_from_slice(&self.after);
    }
}

/// The column of an integer.
fn target(key: &str, on_host: bool) -> Target {
    match key {
        "External id" | "external id" => Target::Read(Read::External),
        "correlation" => Target::Read(Read::Correlation),
        "device" => Target::Read(Read::Device),
        "stream" => Target::Read(Read::Stream),
        "bytes" => Target::Read(Read::Bytes),
        _ if on_host => Target::Rest,
        "context" => Target::Long(Long::Context),
        "graph id" => Target::Long(Long::GraphId),
        "graph node id" => Target::Long(Long::GraphNodeId),
        "shared memory" => Target::Long(Long::SharedMemory),
        "fromDevice" => Target::Long(Long::SourceDevice),
        "toDevice" => Target::Long(Long::TargetDevice),
        "est. achieved occupancy %" => Target::Occupancy,
        "memory bandwidth (GB/s)" => Target::Bandwidth,
        "registers per thread" => Target::Registers,
        _ => Target::Rest,
    }
}

/// Of equal keys the last counts. Only these keys occur with integers and with other values.
fn replace(integers: &mut [Integer], key: &str) {
    let target = match key {
        "est. achieved occupancy %" => Target::Occupancy,
        "memory bandwidth (GB/s)" => Target::Bandwidth,
        _ => return,
    };
    integers
        .iter_mut()
        .filter(|integer| integer.target == target)
        .for_each(|integer| integer.target = Target::Replaced);
}

/// Puts a value other than an integer into its column; false if it belongs to `args`.
fn place_json(cells: &mut Cells, on_host: bool, key: &str, raw: &[u8]) -> bool {
    let parse = || Value::parse(&[raw, b","].concat());
    let text = || parse().as_ref().and_then(Value::text).map(str::to_string);
    let decimal = || text().and_then(|t| number::decimal(t.as_bytes()));
    let Cells { grid, block, occupancy_pct, bandwidth_gbs, texts } = cells;
    let is_empty = matches!(raw, b"\"\"");
    match key {
        "grid" | "block" if on_host => false,
        "grid" => {
            *grid = parse().and_then(|v| triple(&v));
            grid.is_some()
        }
        "block" => {
            *block = parse().and_then(|v| triple(&v));
            block.is_some()
        }
        "Input Dims" => {
            texts[INPUT_DIMS] = Some(on_one_line(raw));
            true
        }
        "Input type" => {
            texts[INPUT_TYPES] = Some(on_one_line(raw));
            true
        }
        "cuda_sync_kind" => {
            texts[SYNC_KIND] = text();
            texts[SYNC_KIND].is_some()
        }
        "Module Hierarchy" => {
            texts[MODULE] = text().filter(|t| !t.is_empty());
            texts[MODULE].is_some() || is_empty
        }
        "Call stack" => {
            texts[STACK] = text().map(|t| outermost_first(&t)).filter(|t| !t.is_empty());
            texts[STACK].is_some() || is_empty
        }
        "est. achieved occupancy %" => {
            *occupancy_pct = decimal();
            occupancy_pct.is_some()
        }
        "memory bandwidth (GB/s)" if !on_host => {
            *bandwidth_gbs = decimal();
            bandwidth_gbs.is_some()
        }
        _ => false,
    }
}

fn triple(value: &Value) -> Option<[i32; 3]> {
    let numbers: Option<Vec<i32>> = value.integers()?.into_iter().map(|n| i32::try_from(n).ok()).collect();
    numbers?.try_into().ok()
}

/// A comma, the key and a colon.
fn member(key: &str) -> Vec<u8> {
    let mut out = vec![b','];
    json_text::value(&mut out, key);
    out.push(b':');
    out
}

/// Appends a value. A value that is not JSON (`NaN`, raw control characters) is kept as a string.
fn append_json(out: &mut Vec<u8>, raw: &[u8]) {
    let text = String::from_utf8_lossy(raw);
    match serde_json::from_str::<IgnoredAny>(&text) {
        Ok(_) => out.extend_from_slice(text.as_bytes()),
        Err(_) => json_text::value(out, &*text),
    }
}

/// A list of shapes or types as torch.profiler prints it, however the file was indented.
fn on_one_line(raw: &[u8]) -> String {
    let mut line = String::with_capacity(raw.len());
    let (mut quoted, mut escaped) = (false, false);
    for c in String::from_utf8_lossy(raw).chars() {
        if quoted {
            quoted = escaped || c != '"';
            escaped = !escaped && c == '\\';
            line.push(c);
        } else if !c.is_ascii_whitespace() {
            quoted = c == '"';
            line.push(c);
            if c == ',' {
                line.push(' ');
            }
        }
    }
    line
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bytes::json::Cursor;
    use crate::columns::args::encode;

    /// Cells of integers, by name.
    #[derive(Default)]
    struct Log(Vec<String>);

    impl Sink for Log {
        fn long(&mut self, column: Long, value: i64) {
            self.0.push(format!("{column:?} {value}"));
        }
        fn registers(&mut self, value: Option<i32>) {
            self.0.push(format!("registers {value:?}"));
        }
        fn occupancy_pct(&mut self, value: f64) {
            self.0.push(format!("occupancy {value}"));
        }
        fn bandwidth_gbs(&mut self, value: f64) {
            self.0.push(format!("bandwidth {value}"));
        }
    }

    /// Cells of the template, those of integers, and `args`. The row was read with external id 5 and device 1.
    fn placed(text: &str, on_host: bool) -> (Cells, Vec<String>, String) {
        let (mut template, mut numbers) = (Vec::new(), Vec::new());
        encode(&mut Cursor::new(format!("{text},").as_bytes(), 0), &mut template, &mut numbers, &mut 0).unwrap();
        let none = trace::rank::NONE;
        let read = ReadCells { external: 5, correlation: none, device: 1, stream: none, bytes: none };
        let (placement, cells) = Placement::of(&Template::decode(&template), on_host);
        let (mut log, mut rest) = (Log::default(), vec![b'?']);
        placement.place(&numbers, &read, &mut log, &mut rest);
        (cells, log.0, String::from_utf8(rest).unwrap())
    }

    #[test]
    fn arguments_go_to_their_columns_and_the_others_to_args() {
        let text = r#"{"External id": 5, "device": 2, "stream": 7, "grid": [1, 2, 3], "registers per thread": 32, "x": [1.50, null], "context": 4}"#;
        let (cells, numbers, rest) = placed(text, false);
        assert_eq!(cells, Cells { grid: Some([1, 2, 3]), ..Cells::default() });
        assert_eq!(numbers, ["registers Some(32)", "Context 4"]);
        assert_eq!(rest, r#","device":2,"stream":7,"x":[1.50, null]"#);
        let (cells, numbers, rest) = placed(text, true);
        assert_eq!((cells, numbers.len()), (Cells::default(), 0));
        let all = r#","device":2,"stream":7,"grid":[1, 2, 3],"registers per thread":32,"x":[1.50, null],"context":4"#;
        assert_eq!(rest, all);
        let (_, numbers, rest) = placed(r#"{"registers per thread": 3000000000, "y": NaN}"#, false);
        assert_eq!(
            (numbers, rest.as_str()),
            (vec!["registers None".into()], r#","registers per thread":3000000000,"y":"NaN""#)
        );
    }

    #[test]
    fn of_equal_keys_the_last_counts() {
        let key = r#""est. achieved occupancy %""#;
        let (cells, numbers, rest) = placed(&format!(r#"{{{key}: 40, {key}: "50.5"}}"#), false);
        assert_eq!((cells.occupancy_pct, numbers.len(), rest.as_str()), (Some(50.5), 0, ""));
        let (cells, numbers, rest) = placed(&format!(r#"{{{key}: "50.5", {key}: 40}}"#), false);
        assert_eq!((cells.occupancy_pct, numbers, rest.as_str()), (Some(50.5), vec!["occupancy 40".into()], ""));
    }
}
