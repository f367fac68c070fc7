//! The Parquet files that the plugin's example exporter makes of dumps: a row for each collective, with the members of `header`,
//! `coll_perf` and `metadata` as columns. Source: `perf_summary_exporter.py` of NCCL.

use std::borrow::Cow;
use std::path::Path;

use arrow_array::cast::AsArray;
use arrow_array::types::Int64Type;
use arrow_array::{Array, StructArray};
use trace::{RecordBatch, columns_of_file, read_columns};

use crate::columnar::Column;
use crate::inspector::objects::{Channel, Damage, Header, Metadata, Object, Operation, Times};

/// A row without a value in one of these columns counts as damage.
const NEEDED: [&str; 7] = ["id", "rank", "n_ranks", "hostname", "pid", "coll", "coll_sn"];
const OTHERS: [&str; 5] = ["comm_name", "coll_msg_size_bytes", "coll_algo", "coll_proto", "event_trace_ts"];

/// Whether a file is such a table.
pub(crate) fn is_table(path: &Path) -> bool {
    let has_all = |columns: Vec<String>| NEEDED.iter().all(|name| columns.iter().any(|column| column == name));
    columns_of_file(path).is_ok_and(has_all)
}

/// Reads the rows of a table in their order, until `take` returns false. Rows that lack a value count as damage.
pub(super) fn read(path: &Path, mut take: impl FnMut(Object<'_>) -> bool) -> Damage {
    let mut damage = Damage::default();
    let columns = [&NEEDED[..], &OTHERS].concat();
    let read = read_columns(path, &columns, |batch| {
        let table = Table::of(batch);
        for row in 0..batch.num_rows() {
            let Some((header, metadata, coll_perf)) = table.row(row) else {
                damage.objects += 1;
                continue;
            };
            if !take(Object { header: &header, metadata: &metadata, coll_perf: &coll_perf }) {
                return false;
            }
        }
        true
    });
    damage.cut = read.err().map(|error| error.to_string());
    damage
}

/// The columns of a batch.
struct Table<'a> {
    needed: [Column; 7],
    others: [Column; 4],
    times: Option<&'a StructArray>,
}

impl<'a> Table<'a> {
    fn of(batch: &'a RecordBatch) -> Self {
        let [comm_name, size, algo, proto, times] = OTHERS;
        Self {
            needed: NEEDED.map(|name| Column::of(batch, name)),
            others: [comm_name, size, algo, proto].map(|name| Column::of(batch, name)),
            times: batch.column_by_name(times).and_then(|column| column.as_struct_opt()),
        }
    }

    fn row(&self, row: usize) -> Option<(Header<'_>, Metadata<'_>, Operation<'_>)> {
        fn text(column: &Column, row: usize) -> Option<Cow<'_, str>> {
            column.bytes(row).map(String::from_utf8_lossy)
        }
        let [id, rank, n_ranks, hostname, pid, coll, coll_sn] = &self.needed;
        let [comm_name, size, algo, proto] = &self.others;
        let small = |column: &Column| column.integer(row).and_then(|number| i32::try_from(number).ok());
        let header = Header {
            id: text(id, row)?,
            comm_name: text(comm_name, row),
            rank: small(rank)?,
            n_ranks: small(n_ranks)?,
        };
        let metadata = Metadata { hostname: text(hostname, row)?, pid: pid.integer(row)? };
        let operation = Operation {
            coll: text(coll, row)?,
            coll_sn: coll_sn.integer(row)?,
            coll_msg_size_bytes: size.integer(row),
            coll_algo: text(algo, row),
            coll_proto: text(proto, row),
            p2p_peer: None,
            event_trace_ts: self.times(row),
        };
        Some((header, metadata, operation))
    }

    fn times(&self, row: usize) -> Option<Times> {
        let times = self.times.filter(|times| times.is_valid(row))?;
        let number = |of: &StructArray, name: &str, row: usize| {
            let column = of.column_by_name(name).and_then(|column| column.as_primitive_opt::<Int64Type>());
            column.filter(|column| column.is_valid(row)).map_or(0, |column| column.value(row))
        };
        let events = times.column_by_name("kernel_events")?.as_list_opt::<i32>()?;
        let channels = if events.is_valid(row) { Some(events.value(row)) } else { None };
        let channels = channels.as_ref().and_then(|channels| channels.as_struct_opt());
        let channel = |channels: &StructArray, at: usize| Channel {
            kernel_start_ts: number(channels, "kernel_start_ts", at),
            kernel_stop_ts: number(channels, "kernel_stop_ts", at),
        };
        let kernel_events =
            channels.map(|channels| (0..channels.len()).map(|at| channel(channels, at)).collect()).unwrap_or_default();
        Some(Times { coll_start_ts: number(times, "coll_start_ts", row), kernel_events })
    }
}
