"""The trace files of ranks with something added: counters over time, or the operators and kernels of patterns."""

from __future__ import annotations

import gzip
import json
import os
from typing import Any

import pandas as pd

from rankscope._analysis import Analysis
from rankscope._errors import RankscopeError
from rankscope._hta_kernels import Sequences
from rankscope._hta_rows import Rows


def file_of(analysis: Analysis, paths: list[str], rank: int) -> str:
    """The file of a rank's trace."""
    name = next((known["file"] for known in analysis.facts["identities"] if known["rank"] == rank), None)
    if name is None:
        raise RankscopeError(f"rank {rank} has no trace file", None)
    for path in paths:
        if os.path.isdir(path):
            path = os.path.join(path, name)
        if os.path.isfile(path) and os.path.basename(path) == os.path.basename(name):
            return path
    raise RankscopeError(f"the trace of rank {rank}, {name}, is no file of its own in {', '.join(paths)}", name)


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


def write(path: str, trace: dict[str, Any]) -> None:
    """Writes a trace file, with gzip if its name says so."""
    try:
        with gzip.open(path, "wt", compresslevel=1) if path.endswith(".gz") else open(path, "w") as file:
            file.write(json.dumps(trace))
    except OSError as error:
        raise RankscopeError(f"{path} cannot be written: {error}", path) from error


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
