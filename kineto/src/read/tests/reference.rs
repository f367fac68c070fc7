//! The same rows by way of serde_json: slow and simple.

use serde_json::Value;

use trace::rank::{Kind, NO_PARENT, NONE, RankData};

/// The values of a row that the reader must get right.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct PlainRow {
    pub(crate) ts_ns: i64,
    pub(crate) neg_dur_ns: i64,
    pub(crate) id: i64,
    pub(crate) kind: Kind,
    pub(crate) name: String,
    pub(crate) thread: i64,
    pub(crate) device: i64,
    pub(crate) stream: i64,
    pub(crate) correlation: i64,
    pub(crate) external: i64,
    pub(crate) bytes: i64,
}

/// The rows of a loaded rank.
pub(crate) fn plain_rows(data: &RankData) -> Vec<PlainRow> {
    let e = &data.events;
    (0..e.len())
        .map(|row| PlainRow {
            ts_ns: e.ts_ns[row],
            neg_dur_ns: -e.dur_ns[row],
            id: e.id[row],
            kind: e.kind[row],
            name: data.names[e.name[row] as usize].to_string(),
            thread: e.thread[row],
            device: e.device[row],
            stream: e.stream[row],
            correlation: e.correlation[row],
            external: e.external[row],
            bytes: e.bytes[row],
        })
        .collect()
}

/// The rows of a document that serde_json reads, in the order that a rank keeps them.
pub(crate) fn reference_rows(document: &Value) -> Vec<PlainRow> {
    let list = document.get("traceEvents").unwrap_or(document).as_array().cloned().unwrap_or_default();
    let base_ns = document.get("baseTimeNanoseconds").and_then(Value::as_i64).unwrap_or(0);
    let mut rows = Vec::new();
    for event in &list {
        if let Some(row) = reference_row(event, base_ns, rows.len() as i64) {
            rows.push(row);
        }
    }
    rows.sort();
    rows
}

fn reference_row(event: &Value, base_ns: i64, id: i64) -> Option<PlainRow> {
    let text = |key: &str| event.get(key).and_then(Value::as_str);
    if text("ph")? != "X" {
        return None;
    }
    let kind = Kind::from_category(text("cat").unwrap_or(""));
    let ts_ns = thousandths(event.get("ts")?)?;
    let dur_ns = thousandths(event.get("dur")?)?.max(0);
    let on_device = kind.is_device_work() || matches!(kind, Kind::GpuUserAnnotation | Kind::Sync);
    let on_host = matches!(kind, Kind::CpuOp | Kind::UserAnnotation | Kind::Runtime | Kind::Driver);
    let top = |key: &str| event.get(key).and_then(Value::as_i64).unwrap_or(NONE);
    let arg = |key: &str, wanted: bool| {
        let value = event.get("args").and_then(|args| args.get(key)).filter(|_| wanted);
        value.and_then(Value::as_i64).unwrap_or(NONE)
    };
    let place = |key: &str, fallback: i64| match (on_device, arg(key, true)) {
        (false, _) => NONE,
        (true, NONE) => fallback,
        (true, value) => value,
    };
    Some(PlainRow {
        ts_ns: ts_ns + base_ns,
        neg_dur_ns: -dur_ns,
        id,
        kind,
        name: text("name").unwrap_or("").to_string(),
        thread: if on_device { NONE } else { top("tid") },
        device: place("device", top("pid")),
        stream: place("stream", top("tid")),
        correlation: arg("correlation", on_device || matches!(kind, Kind::Runtime | Kind::Driver)),
        external: arg("External id", on_device || on_host),
        bytes: arg("bytes", matches!(kind, Kind::GpuMemcpy | Kind::GpuMemset)),
    })
}

/// A number with at most three decimals, by its text.
fn thousandths(value: &Value) -> Option<i64> {
    let text = value.as_number()?.to_string();
    let (whole, part) = text.split_once('.').unwrap_or((&text, ""));
    let sign = if whole.starts_with('-') { -1 } else { 1 };
    let part: i64 = format!("{part:0<3}").parse().ok()?;
    Some(whole.parse::<i64>().ok()? * 1000 + sign * part)
}

/// Checks that the derived columns of a rank are consistent.
#[track_caller]
pub(crate) fn check_rank(data: &RankData) {
    let e = &data.events;
    for row in 0..e.len() {
        assert!(row == 0 || (e.ts_ns[row - 1], -e.dur_ns[row - 1]) <= (e.ts_ns[row], -e.dur_ns[row]), "row {row}");
        assert!(e.dur_ns[row] >= 0);
        if e.parent[row] != NO_PARENT {
            let parent = e.parent[row] as usize;
            assert!(parent < row && e.thread[parent] == e.thread[row], "row {row}");
            assert!(e.ts_ns[parent] <= e.ts_ns[row] && e.end_ns(parent) + 1000 >= e.end_ns(row), "row {row}");
        }
    }
    let lengths =
        [e.kind.len(), e.name.len(), e.dur_ns.len(), e.id.len(), e.step.len(), e.thread.len(), e.device.len()];
    let more = [e.stream.len(), e.correlation.len(), e.external.len(), e.parent.len(), e.is_comm.len(), e.bytes.len()];
    assert!(lengths.iter().chain(&more).all(|n| *n == e.len()) && e.flops.len() == e.len());
    assert!(data.outline.collectives.is_sorted_by_key(|c| c.start_ns()));
    assert!(data.memory.is_sorted_by_key(|m| m.ts_ns));
}
