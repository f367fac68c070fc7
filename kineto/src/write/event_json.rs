//! One event in Kineto's form.

use std::borrow::Cow;

use serde_json::{Value, json};
use trace::rank::MAX_RANKS;
use trace::{CollectiveRow, CommRow, MemoryRow, Text};

use crate::write::event_columns::Argument;
use crate::write::json_text::{us, value};

/// The first members of an event of any phase.
pub(super) struct Head<'a> {
    pub(super) phase: u8,
    /// As JSON.
    pub(super) category: &'a [u8],
    /// As JSON.
    pub(super) name: &'a [u8],
    pub(super) pid: i64,
    pub(super) tid: i64,
    pub(super) ts_ns: i64,
}

impl Head<'_> {
    /// Writes the event up to its time. The caller writes the rest.
    pub(super) fn write(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(b",\n{\"ph\": \"");
        out.push(self.phase);
        out.extend_from_slice(b"\", \"cat\": ");
        out.extend_from_slice(self.category);
        out.extend_from_slice(b", \"name\": ");
        out.extend_from_slice(self.name);
        out.extend_from_slice(b", \"pid\": ");
        value(out, &self.pid);
        out.extend_from_slice(b", \"tid\": ");
        value(out, &self.tid);
        out.extend_from_slice(b", \"ts\": ");
        us(out, self.ts_ns);
    }
}

/// The ranks of a group that each of its collectives lists at most, as torch does. Listing all of them with every
/// collective would take the square of the number of ranks.
const LISTED_RANKS: usize = 30;

/// The group of a collective: its name, and the arguments that name its ranks, as JSON.
pub(super) struct Group {
    name: Option<Text>,
    arguments: Vec<(&'static str, Vec<u8>)>,
}

impl Group {
    pub(super) fn of(comm: &CommRow, world_size: i32) -> Self {
        match &comm.ranks {
            Some(ranks) => Self::new(comm.name.clone(), ranks.iter().copied(), spacing(ranks)),
            None => Self { name: comm.name.clone(), ..Self::world(world_size) },
        }
    }

    /// The group of all ranks.
    pub(super) fn world(world_size: i32) -> Self {
        Self::new(None, 0..world_size, Some((0, 1)))
    }

    /// A group whose ranks have this start and stride, if they are evenly spaced.
    fn new(name: Option<Text>, ranks: impl ExactSizeIterator<Item = i32>, spacing: Option<(i32, i32)>) -> Self {
        let size = ranks.len();
        // A reader can complete a list that is cut by the start and the stride only.
        let cut = spacing.filter(|_| (LISTED_RANKS + 1..=MAX_RANKS as usize).contains(&size));
        let listed: Vec<String> = ranks.take(cut.map_or(size, |_| LISTED_RANKS)).map(|rank| rank.to_string()).collect();
        let list = format!("[{}{}]", listed.join(", "), if cut.is_some() { ", ..." } else { "" });
        let known = [
            ("Process Group Ranks", Some(json!(list))),
            ("Group size", Some(json!(size))),
            ("Global rank start", cut.map(|(start, _)| json!(start))),
            ("Global rank stride", cut.map(|(_, stride)| json!(stride))),
        ];
        Self { name, arguments: known.into_iter().filter_map(|(key, known)| Some((key, as_json(&known?)))).collect() }
    }
}

/// The first rank and the distance to the next one, if it is the same between all ranks.
fn spacing(ranks: &[i32]) -> Option<(i32, i32)> {
    let [first, second, ..] = ranks else { return None };
    let stride = second.checked_sub(*first)?;
    ranks.windows(2).all(|pair| pair[1].checked_sub(pair[0]) == Some(stride)).then_some((*first, stride))
}

fn as_json(known: &Value) -> Vec<u8> {
    let mut json = Vec::new();
    value(&mut json, known);
    json
}

/// Adds the arguments of `record_param_comms`, unless the run was made from a trace that had them.
pub(super) fn put_collective(arguments: &mut Vec<Argument<'_>>, row: &CollectiveRow, group: &Group) {
    if arguments.iter().any(|(key, _)| key == "Collective name") {
        return;
    }
    // A trace that names no group has none of these arguments; with them, a reader would assume a group.
    let Some(name) = group.name.as_deref().or(row.comm_name.as_deref()) else {
        return;
    };
    let known = [
        ("Collective name", Some(json!(*row.op))),
        ("Process Group Name", Some(json!(name))),
        ("Seq", row.seq.map(Value::from)),
        ("In msg nelems", row.count.map(Value::from)),
        ("Out msg nelems", row.count.map(Value::from)),
        ("dtype", row.dtype.as_deref().map(Value::from)),
    ];
    for (key, known) in known.into_iter().filter_map(|(key, known)| Some((key, known?))) {
        arguments.push((Cow::Borrowed(key), as_json(&known).into()));
    }
    arguments.extend(group.arguments.iter().map(|(key, json)| (Cow::Borrowed(*key), json.clone().into())));
}

/// Writes the arguments of a memory event.
pub(super) fn write_memory_arguments(row: &MemoryRow, out: &mut Vec<u8>) {
    let device = row.device_id.filter(|device| *device >= 0);
    let known = [
        ("Addr", row.address),
        ("Bytes", Some(row.delta_bytes)),
        ("Device Id", Some(device.unwrap_or(-1))),
        // torch's DeviceType: 0 is the CPU, 1 CUDA.
        ("Device Type", Some(device.is_some().into())),
        ("Total Allocated", row.allocated_bytes),
        ("Total Reserved", row.reserved_bytes),
    ];
    let mut before = b'{';
    for (key, known) in known.into_iter().filter_map(|(key, known)| Some((key, known?))) {
        out.extend_from_slice(&[before, b'"']);
        out.extend_from_slice(key.as_bytes());
        out.extend_from_slice(b"\":");
        value(out, &known);
        before = b',';
    }
    out.push(b'}');
}

#[cfg(test)]
mod tests {
    use trace::{EventRow, batch_from_rows};

    use super::*;
    use crate::write::event_columns::Columns;

    fn arguments(event: EventRow, more: impl FnOnce(&mut Vec<Argument<'_>>)) -> String {
        let mut out = Vec::new();
        Columns::open(&batch_from_rows(&[event]).unwrap()).unwrap().write_arguments(0, more, &mut out);
        String::from_utf8(out).unwrap()
    }

    #[test]
    fn a_kernel_is_on_its_device_and_has_kinetos_arguments() {
        let event = EventRow {
            kind: "kernel".into(),
            device_id: Some(1),
            stream_id: Some(7),
            correlation_id: Some(42),
            grid: Some(vec![8, 1, 1]),
            args: Some(r#"{"queued":0,"blocks per SM":0.1,"stream":"7\u0041"}"#.into()),
            ..EventRow::default()
        };
        let columns = Columns::open(&batch_from_rows(std::slice::from_ref(&event)).unwrap()).unwrap();
        assert_eq!(columns.place(0, 99), (1, 7));
        let expected = json!({
            "device": 1, "stream": "7A", "correlation": 42, "grid": [8, 1, 1], "queued": 0, "blocks per SM": 0.1
        });
        assert_eq!(
            arguments(event, |_| ()),
            expected.to_string(),
            "sorted; the arguments of the row replace its columns"
        );
    }

    #[test]
    fn a_range_on_a_device_is_drawn_there_without_a_stream_argument() {
        let event = EventRow {
            kind: "gpu_user_annotation".into(),
            device_id: Some(1),
            stream_id: Some(7),
            external_id: Some(3),
            ..EventRow::default()
        };
        let columns = Columns::open(&batch_from_rows(std::slice::from_ref(&event)).unwrap()).unwrap();
        assert_eq!(columns.place(0, 99), (1, 7));
        assert_eq!(arguments(event, |_| ()), r#"{"External id":3}"#);
    }

    #[test]
    fn arguments_may_be_empty_and_must_be_an_object() {
        assert_eq!(arguments(EventRow::default(), |_| ()), "{}");
        for rest in ["[1]", "{\"a\": 1", "", "7"] {
            let event = EventRow { args: Some(rest.into()), external_id: Some(3), ..EventRow::default() };
            assert_eq!(arguments(event, |_| ()), r#"{"External id":3}"#);
        }
    }

    #[test]
    fn a_collective_gets_arguments_unless_its_trace_had_them() {
        let row = CollectiveRow {
            op: "allreduce".into(),
            seq: Some(4),
            comm_name: Some("a\"b".into()),
            ..Default::default()
        };
        let group = Group::world(2);
        let of = |args: Option<&str>| {
            let event = EventRow { args: args.map(Into::into), ..EventRow::default() };
            arguments(event, |arguments| put_collective(arguments, &row, &group))
        };
        let expected = json!({
            "Collective name": "allreduce", "Process Group Name": "a\"b", "Process Group Ranks": "[0, 1]",
            "Group size": 2, "Seq": 4
        });
        assert_eq!(of(None), expected.to_string());
        assert_eq!(of(Some(r#"{"Collective name":"x"}"#)), r#"{"Collective name":"x"}"#);
    }

    #[test]
    fn long_lists_of_ranks_are_cut_if_start_and_stride_name_them() {
        let of = |ranks: Vec<i32>| {
            let group = Group::of(&CommRow { ranks: Some(ranks), ..CommRow::default() }, 9);
            let text = |(key, json): &(&str, Vec<u8>)| (key.to_string(), serde_json::from_slice(json).unwrap());
            Value::Object(group.arguments.iter().map(text).collect())
        };
        let listed = |ranks: &[i32]| json!({"Process Group Ranks": format!("{ranks:?}"), "Group size": ranks.len()});
        let few: Vec<i32> = (0..30).map(|i| 2 * i + 4).collect();
        assert_eq!(of(few.clone()), listed(&few));
        let mut many: Vec<i32> = (0..100_000).map(|i| 2 * i + 4).collect();
        let cut = json!({
            "Process Group Ranks": listed(&few)["Process Group Ranks"].as_str().unwrap().replace(']', ", ...]"),
            "Group size": 100_000, "Global rank start": 4, "Global rank stride": 2
        });
        assert_eq!(of(many.clone()), cut);
        many[77] += 1;
        assert_eq!(of(many.clone()), listed(&many), "nothing else names these ranks");
        assert_eq!(of(vec![]), listed(&[]));
    }

    #[test]
    fn names_are_escaped() {
        let hostile = "a\"</script>\u{1}";
        let event = EventRow { kind: "cpu_op".into(), name: hostile.into(), ..EventRow::default() };
        let columns = Columns::open(&batch_from_rows(&[event]).unwrap()).unwrap();
        let (category, name) = columns.words(0);
        let mut out = Vec::new();
        Head { phase: b'X', category, name, pid: 1, tid: 2, ts_ns: 3 }.write(&mut out);
        out.push(b'}');
        let event: Value = serde_json::from_slice(&out[1..]).unwrap();
        assert_eq!(event, json!({"ph": "X", "cat": "cpu_op", "name": hostile, "pid": 1, "tid": 2, "ts": 0.003}));
    }

    #[test]
    fn an_allocation_names_its_device() {
        let mut out = Vec::new();
        write_memory_arguments(&MemoryRow { delta_bytes: -8, device_id: Some(1), ..Default::default() }, &mut out);
        assert_eq!(out, br#"{"Bytes":-8,"Device Id":1,"Device Type":1}"#);
    }
}
