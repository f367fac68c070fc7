//! Writes a batch of `events` as JSON. Columns without any value are skipped, and strings that rows share, such as
//! their names, are escaped once for each batch.

use std::borrow::Cow;
use std::fmt;

use arrow_array::{Array, BooleanArray, Float64Array, Int32Array, Int64Array, ListArray};
use serde::de::{Deserialize, Deserializer, MapAccess, Visitor};
use serde_json::Value;
use trace::name_rules::{hands_over_collective, step_mark};
use trace::{Cell, EventRow, EventView, RecordBatch, Row, Text, TextColumn};

use crate::write::json_text;

/// An argument of an event: its key, and its value as JSON.
pub(super) type Argument<'a> = (Cow<'a, str>, Cow<'a, [u8]>);

/// An open batch.
pub(super) struct Columns {
    view: EventView,
    kinds: Vec<Box<[u8]>>,
    /// Whether a kind is `user_annotation`.
    ranges: Vec<bool>,
    /// Whether a kind is `gpu_user_annotation`.
    device_ranges: Vec<bool>,
    names: Vec<NameOf>,
    open: Option<BooleanArray>,
    /// Columns with at least one value, by Kineto's name for them, sorted by name.
    fields: Vec<(&'static str, Field)>,
    /// Further arguments of rows, as JSON.
    args: Option<TextColumn>,
}

/// The properties of a name.
struct NameOf {
    json: Box<[u8]>,
    hands_over: bool,
    /// For the name of a step: the step's number, if it can be read.
    step: Option<Option<i32>>,
}

enum Field {
    Long(Int64Array),
    /// Written for device rows only.
    OfDevice(Int64Array),
    /// Written for work of a device only. Kineto draws ranges on the device's lines without these arguments, and HTA
    /// takes every row with a stream for a kernel.
    AtWork(Int64Array),
    Int(Int32Array),
    Double(Float64Array),
    List(ListArray),
    /// The column, and each of its values as JSON.
    Text(TextColumn, Vec<Box<[u8]>>),
}

impl Columns {
    /// Opens a batch.
    ///
    /// # Errors
    /// As [`Row::view`].
    pub(super) fn open(batch: &RecordBatch) -> Result<Self, trace::Error> {
        let view = EventRow::view(batch)?;
        let name = |name: &Text| NameOf {
            json: json_of(quoted, name),
            hands_over: hands_over_collective(name),
            step: step_mark(name),
        };
        Ok(Self {
            kinds: view.kind.values().iter().map(|kind| json_of(quoted, kind)).collect(),
            ranges: view.kind.values().iter().map(|kind| &**kind == "user_annotation").collect(),
            device_ranges: view.kind.values().iter().map(|kind| &**kind == "gpu_user_annotation").collect(),
            names: view.name.values().iter().map(name).collect(),
            open: Some(&view.open).filter(|open| open.true_count() > 0).cloned(),
            fields: fields(&view),
            args: Some(&view.args).filter(|args| args.has_values()).cloned(),
            view,
        })
    }

    /// Whether the row had not ended when its part closed.
    pub(super) fn is_open(&self, row: usize) -> bool {
        self.open.as_ref().is_some_and(|open| open.is_valid(row) && open.value(row))
    }

    /// Copies a row.
    pub(super) fn row(&self, row: usize) -> EventRow {
        EventRow::get(&self.view, row)
    }

    pub(super) fn id(&self, row: usize) -> i64 {
        self.view.id.value(row)
    }

    pub(super) fn ts_ns(&self, row: usize) -> i64 {
        self.view.ts_ns.value(row)
    }

    pub(super) fn dur_ns(&self, row: usize) -> i64 {
        self.view.dur_ns.value(row)
    }

    pub(super) fn thread(&self, row: usize) -> Option<i64> {
        Cell::get(&self.view.thread_id, row)
    }

    /// The row's step.
    pub(super) fn in_step(&self, row: usize) -> Option<i32> {
        Cell::get(&self.view.step, row)
    }

    /// Whether the row hands over a collective.
    pub(super) fn hands_over(&self, row: usize) -> bool {
        self.name(row).is_some_and(|name| name.hands_over)
    }

    /// If the row is a step's range: the step's number, if it can be read.
    pub(super) fn step(&self, row: usize) -> Option<Option<i32>> {
        let step = self.name(row)?.step?;
        self.view.kind.key(row).filter(|key| self.ranges[*key]).map(|_| step)
    }

    fn name(&self, row: usize) -> Option<&NameOf> {
        self.names.get(self.view.name.key(row)?)
    }

    /// Category and name, as JSON.
    pub(super) fn words(&self, row: usize) -> (&[u8], &[u8]) {
        let kind = self.view.kind.key(row).map_or(&b"\"\""[..], |key| &self.kinds[key]);
        (kind, self.name(row).map_or(b"\"\"", |name| &name.json))
    }

    /// The process and thread on which Kineto draws a row: device and stream for device rows.
    pub(super) fn place(&self, row: usize, process: i64) -> (i64, i64) {
        let long = |column: &Int64Array| -> Option<i64> { Cell::get(column, row) };
        match (long(&self.view.thread_id), long(&self.view.device_id)) {
            (None, Some(device)) => (device, long(&self.view.stream_id).unwrap_or(-1)),
            (thread, _) => (long(&self.view.pid).unwrap_or(process), thread.unwrap_or(process)),
        }
    }

    /// Writes the arguments of a row, sorted by key. Of equal keys the last counts: arguments that came with the row
    /// replace its columns, and `more` replaces both.
    pub(super) fn write_arguments(&self, row: usize, more: impl FnOnce(&mut Vec<Argument<'_>>), out: &mut Vec<u8>) {
        let mut arguments: Vec<Argument<'_>> = Vec::new();
        let rest = self.args.as_ref().and_then(|column| column.key(row).map(|key| &column.values()[key]));
        // A value other than an object is left out.
        if let Some(Ok(Members(members))) = rest.map(|rest| serde_json::from_str(rest)) {
            arguments = members;
        }
        more(&mut arguments);
        if arguments.is_empty() {
            return self.write_columns(row, out);
        }
        let mut all = self.columns(row);
        all.append(&mut arguments);
        write_last(all, out);
    }

    fn write_columns(&self, row: usize, out: &mut Vec<u8>) {
        let mut before = b'{';
        for (key, field) in &self.fields {
            if self.has(field, row) {
                out.extend_from_slice(&[before, b'"']);
                out.extend_from_slice(key.as_bytes());
                out.extend_from_slice(b"\":");
                field.write(row, out);
                before = b',';
            }
        }
        if before == b'{' {
            out.push(b'{');
        }
        out.push(b'}');
    }

    fn columns(&self, row: usize) -> Vec<Argument<'_>> {
        let argument = |(key, field): &(&'static str, Field)| {
            let mut json = Vec::new();
            field.write(row, &mut json);
            (Cow::Borrowed(*key), json.into())
        };
        self.fields.iter().filter(|(_, field)| self.has(field, row)).map(argument).collect()
    }

    fn has(&self, field: &Field, row: usize) -> bool {
        match field {
            Field::Long(column) => column.is_valid(row),
            Field::OfDevice(column) => column.is_valid(row) && self.view.device_id.is_valid(row),
            Field::AtWork(column) => {
                column.is_valid(row) && !self.view.kind.key(row).is_some_and(|key| self.device_ranges[key])
            }
            Field::Int(column) => column.is_valid(row),
            Field::Double(column) => column.is_valid(row),
            Field::List(column) => column.is_valid(row),
            Field::Text(column, _) => column.key(row).is_some(),
        }
    }
}

impl Field {
    /// Writes the row's value, which must exist.
    fn write(&self, row: usize, out: &mut Vec<u8>) {
        match self {
            Self::Long(column) | Self::OfDevice(column) | Self::AtWork(column) => {
                json_text::value(out, &column.value(row))
            }
            Self::Int(column) => json_text::value(out, &column.value(row)),
            Self::Double(column) => json_text::value(out, &column.value(row)),
            Self::List(column) => json_text::value(out, &<Option<Vec<i32>> as Cell>::get(column, row)),
            Self::Text(column, json) => {
                if let Some(key) = column.key(row) {
                    out.extend_from_slice(&json[key]);
                }
            }
        }
    }
}

/// The columns with at least one value, by Kineto's names.
fn fields(view: &EventView) -> Vec<(&'static str, Field)> {
    fn any<A: Array + Clone>(column: &A) -> Option<A> {
        (column.null_count() < column.len()).then(|| column.clone())
    }
    let long = |column: &Int64Array| any(column).map(Field::Long);
    let double = |column: &Float64Array| any(column).map(Field::Double);
    let list = |column: &ListArray| any(column).map(Field::List);
    let text = |column: &TextColumn, write: fn(&str, &mut Vec<u8>)| {
        let json = || column.values().iter().map(|value| json_of(write, value)).collect();
        column.has_values().then(|| Field::Text(column.clone(), json()))
    };
    let mut fields = vec![
        ("Call stack", text(&view.stack, innermost_first)),
        ("External id", long(&view.external_id)),
        ("Input Dims", text(&view.input_dims, kept)),
        ("Input type", text(&view.input_types, kept)),
        ("Module Hierarchy", text(&view.module, quoted)),
        ("block", list(&view.block)),
        ("bytes", any(&view.bytes).map(Field::OfDevice)),
        ("context", long(&view.context_id)),
        ("correlation", long(&view.correlation_id)),
        ("cuda_sync_kind", text(&view.sync_kind, quoted)),
        ("device", any(&view.device_id).map(Field::AtWork)),
        ("est. achieved occupancy %", double(&view.occupancy_pct)),
        ("fromDevice", long(&view.src_device)),
        ("graph id", long(&view.graph_id)),
        ("graph node id", long(&view.graph_node_id)),
        ("grid", list(&view.grid)),
        ("memory bandwidth (GB/s)", double(&view.bandwidth_gbs)),
        ("registers per thread", any(&view.registers).map(Field::Int)),
        ("shared memory", long(&view.shared_mem_bytes)),
        ("stream", any(&view.stream_id).map(Field::AtWork)),
        ("toDevice", long(&view.dst_device)),
    ];
    fields.sort_by_key(|(key, _)| *key);
    fields.into_iter().filter_map(|(key, field)| Some((key, field?))).collect()
}

fn json_of(write: fn(&str, &mut Vec<u8>), value: &str) -> Box<[u8]> {
    let mut out = Vec::new();
    write(value, &mut out);
    out.into_boxed_slice()
}

fn quoted(value: &str, out: &mut Vec<u8>) {
    json_text::value(out, value);
}

/// Keeps JSON text as it is; any other text becomes a string.
fn kept(value: &str, out: &mut Vec<u8>) {
    json_text::value(out, &serde_json::from_str(value).unwrap_or_else(|_| Value::from(value)));
}

/// Reverses the stack: Kineto has the innermost frame first.
fn innermost_first(stack: &str, out: &mut Vec<u8>) {
    json_text::value(out, &stack.split(';').rev().collect::<Vec<_>>().join(";"));
}

/// Writes an object. Of equal keys, the last counts.
fn write_last(mut arguments: Vec<Argument<'_>>, out: &mut Vec<u8>) {
    arguments.sort_by(|a, b| a.0.cmp(&b.0));
    let mut before = b'{';
    for of_key in arguments.chunk_by(|a, b| a.0 == b.0) {
        let Some((key, json)) = of_key.last() else { continue };
        out.push(before);
        json_text::value(out, &**key);
        out.push(b':');
        out.extend_from_slice(json);
        before = b',';
    }
    out.push(b'}');
}

/// The members of an object, with values as JSON.
struct Members<'a>(Vec<Argument<'a>>);

impl<'de: 'a, 'a> Deserialize<'de> for Members<'a> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Visit;
        impl<'de> Visitor<'de> for Visit {
            type Value = Members<'de>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
                let mut members = Vec::new();
                while let Some((key, value)) = map.next_entry::<Key<'de>, Value>()? {
                    let mut json = Vec::new();
                    json_text::value(&mut json, &value);
                    members.push((key.0, json.into()));
                }
                Ok(Members(members))
            }
        }
        deserializer.deserialize_map(Visit)
    }
}

/// A key, borrowed where nothing in it is escaped. (serde copies a bare `Cow`.)
#[derive(serde::Deserialize)]
struct Key<'a>(#[serde(borrow)] Cow<'a, str>);
