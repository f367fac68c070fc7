"""The trace files of ranks with something added: counters over time, or the operators and kernels of patterns."""

from __future__ import annotations

import gzip
import json
import os
import re
from typing import Any

from rankscope._errors import RankscopeError
from rankscope._hta_critical import CPEdge, CPGraph
from rankscope._hta_graph import Wait
from rankscope._hta_kernels import Sequences
from rankscope._hta_rows import Rows
from rankscope._numeric import pd

#: The arguments of a row that waits for a CUDA event. They hold no objects.
_WAIT = re.compile(rb'\{[^{}]*"wait_on_cuda_event_record_corr_id"[^{}]*\}')
_BLOCK_BYTES = 16 << 20


def path_of(name: str, paths: list[str], rank: int) -> str:
    """The path of a rank's trace, whose file messages call `name`."""
    for path in paths:
        if os.path.isdir(path):
            path = os.path.join(path, name)
        if name and os.path.isfile(path) and os.path.basename(path) == os.path.basename(name):
            return path
    raise RankscopeError(f"the trace of rank {rank}, {name or 'unknown'}, is no file of its own in {', '.join(paths)}", name)


def read(path: str) -> dict[str, Any]:
    """The content of a trace file, whose keys are those of the Chrome format."""
    try:
        with gzip.open(path, "rt") if path.endswith(".gz") else open(path) as file:
            trace = json.load(file)
    except (OSError, EOFError, ValueError) as error:
        raise RankscopeError(f"{path} cannot be read as JSON: {error}", path) from error
    if not isinstance(trace, dict) or not isinstance(trace.get("traceEvents"), list):
        raise RankscopeError(f"{path} has no traceEvents", path)
    return trace


def write(path: str, trace: dict[str, Any], makes_folder: bool = False) -> None:
    """Writes a trace file, with gzip if its name says so."""
    try:
        if makes_folder:
            os.makedirs(os.path.dirname(path) or ".", exist_ok=True)
        with gzip.open(path, "wt", compresslevel=1) if path.endswith(".gz") else open(path, "w") as file:
            file.write(json.dumps(trace))
    except OSError as error:
        raise RankscopeError(f"{path} cannot be written: {error}", path) from error


def waits(path: str) -> dict[int, Wait]:
    """What synchronisations with CUDA events wait for, by their correlations. Only these arguments of the file are read."""
    found, rest = {}, b""
    try:
        with gzip.open(path, "rb") if path.endswith(".gz") else open(path, "rb") as file:
            while block := file.read(_BLOCK_BYTES):
                text = rest + block
                for arguments in map(json.loads, _WAIT.findall(text)):
                    wait = Wait(arguments["wait_on_stream"], arguments["wait_on_cuda_event_record_corr_id"])
                    found[arguments["correlation"]] = wait
                rest = text[text.rfind(b"{") :]
    except (OSError, EOFError, ValueError, KeyError) as error:
        raise RankscopeError(f"the synchronisations of {path} cannot be read: {error!r}", path) from error
    return found


def zero_ns(trace: dict[str, Any]) -> int:
    """The time that is 0 in a trace, in ns."""
    return int(trace.get("baseTimeNanoseconds") or 0)


def counter_events(series: pd.DataFrame, counter: str, column: str, start_us: float) -> list[dict[str, Any]]:
    """A time series as counters of the Chrome format. `start_us` is the trace's time at which the series counts 0."""
    events = pd.DataFrame({"pid": series["pid"], "ts": series["ts"] + start_us, "ph": "C"})
    events["name"] = series["name"] if "name" in series else counter
    if "stream" in series:
        events["id"] = series["stream"]
    events["args"] = [{counter: value} for value in series[column].tolist()]
    found: list[dict[str, Any]] = events.to_dict("records")
    return found


def mark(trace: dict[str, Any], path: str, rows: Rows, found: Sequences, most: int, drop_others: bool) -> None:
    """Writes into `Patterns` of operators, launches and kernels the most frequent patterns that they are part of. Other rows
    lose their arguments if `drop_others`."""
    counts = dict(zip(found.frame["pattern"][:most], found.frame["count"][:most].tolist()))
    calls = found.calls[found.calls["pattern"].isin(counts)]
    start = rows.base_ns - zero_ns(trace)
    of_calls = {(name, ts + start): pattern for name, ts, pattern in zip(calls["name"], calls["ts"], calls["pattern"])}
    launched = found.launched[found.launched["root"].isin(calls.index)]
    of_launches = dict(zip(launched["correlation"], launched["root"].map(calls["pattern"])))
    open_calls = set(of_calls)
    for row in trace["traceEvents"]:
        if row.get("ph") != "X":
            continue
        key = (row.get("name"), round(row["ts"] * 1000))
        pattern = of_calls.get(key) or of_launches.get(row.get("args", {}).get("correlation"))
        open_calls.discard(key)
        if pattern is not None:
            row.setdefault("args", {})["Patterns"] = {pattern: counts[pattern]}
        elif drop_others:
            row["args"] = {}
    if open_calls:
        raise RankscopeError(f"{path} lacks {len(open_calls)} of {len(of_calls)} calls of the patterns; was it changed?", path)


def rows_by_id(trace: dict[str, Any]) -> dict[int, dict[str, Any]]:
    """The rows of a trace file by their ids, which count them."""
    return dict(enumerate(row for row in trace["traceEvents"] if row.get("ph") == "X" and "dur" in row))


def overlay(trace: dict[str, Any], path: str, graph: CPGraph, only_critical: bool, shown: list[CPEdge]) -> None:
    """Writes the argument `critical` into the rows of a graph's critical path, and draws edges as arrows. Other rows but
    annotations and Python's are left out if `only_critical`."""
    events: list[dict[str, Any]] = trace["traceEvents"]
    rows = rows_by_id(trace)
    critical, edges = graph.critical_path_events_set, graph.critical_path_edges_set
    ends = {graph.node_list[node].ev_idx for edge in shown for node in edge[:2]}
    wrong = [event for event in critical | ends if rows.get(event, {}).get("name") != graph._get_node_name(event)]
    if wrong:
        raise RankscopeError(f"row {wrong[0]} of {path} is not that of the graph; was it changed?", path)
    for event in critical:
        rows[event].setdefault("args", {})["critical"] = 1
    arrows: list[dict[str, Any]] = []
    for number, edge in enumerate(shown):
        args = {"weight": edge.weight, "critical": edge in edges, "type": edge.type.value}
        for node, phase in ((edge.begin, {"ph": "s"}), (edge.end, {"ph": "f", "bp": "e"})):
            row = rows[graph.node_list[node].ev_idx]
            # An arrow at the very end of a row would not be bound to it.
            ts = row["ts"] if graph.node_list[node].is_start else row["ts"] + max(0, row["dur"] - 1)
            place = {"id": number, "pid": row["pid"], "tid": row["tid"], "ts": ts}
            arrows.append({**phase, **place, "cat": edge.type.value, "name": "critical_path", "args": args})
    if only_critical:
        kept = {id(rows[event]) for event in critical}
        shown_always = ("user_annotation", "python_function")
        events = [row for row in events if row.get("ph") != "X" or row.get("cat") in shown_always or id(row) in kept]
    trace["traceEvents"] = events + arrows
