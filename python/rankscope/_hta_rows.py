"""The rows of a rank as HTA sees them, and sums over intervals. Times are ns in the rank's own clock, since its first row: so
small that floating point holds them exactly."""

from __future__ import annotations

import json
import re
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd

from rankscope import _rankscope
from rankscope._errors import warn_of_losses
from rankscope._table import Table

#: The kind of a copy or fill, at the beginning of its name.
MEMORY_PREFIX = r"^(Memset|Memcpy .{4})"
#: HTA's names of communication, and of what it does not count as computation.
_HTA_COMMUNICATION = re.compile(r"nccl|hip|hccl|.*ncclKernel")
_HTA_NO_COMPUTATION = re.compile(r"nccl|.*Memcpy|.*Memset|.*dma|.*Sync|Stream Wait Event|hip")
_HTA_LAUNCHES = ("cudaLaunchKernel", "cudaLaunchKernelExC", "cudaMemcpyAsync", "cudaMemsetAsync")
_WORK = ("kernel", "gpu_memcpy", "gpu_memset")
_LAUNCHING = ("cuda_runtime", "cuda_driver")
_STEP = re.compile(r"ProfilerStep\s*#\s*(\d+)")


class Rows:
    """The rows of a rank in HTA's window: up to the start of the last step of several, unless that is included."""

    def __init__(self, rows: pd.DataFrame, include_last: bool, strict: bool) -> None:
        self.strict = strict
        #: The trace's file and process; empty and −1 if unknown.
        self.file = ""
        self.pid = -1
        # The row of the profiler itself spans the trace, and HTA drops it.
        is_profiler = rows["kind"].eq("other") & rows["name"].str.startswith("PyTorch Profiler")
        counted = rows["ts"][~is_profiler]
        #: The time from which the others count.
        self.base_ns = int(counted.min()) if len(counted) else 0
        rows["ts"], rows["end"] = rows["ts"] - self.base_ns, rows["end"] - self.base_ns
        self._rows = rows
        self._on_host = np.asarray(rows["device_id"].lt(0) & rows["stream"].lt(0))
        markers = rows[self._on_host & rows["name"].str.match(_STEP)]
        self.steps: list[int] = sorted({int(number) for number in markers["name"].str.extract(_STEP, expand=False)})
        #: Which rows are in the window; None if all are.
        self._kept: npt.NDArray[np.bool_] | None = None
        if len(self.steps) > 1 and (strict or not include_last):
            end = int(rows["ts"].max()) + 1 if include_last else int(markers["ts"].max())
            self._kept = _until(rows, self._on_host, end, strict)

    def _where(self, wanted: npt.NDArray[np.bool_]) -> pd.DataFrame:
        """The wanted rows of the window."""
        return self._rows[wanted if self._kept is None else wanted & self._kept]

    def _of_kinds(self, *kinds: str) -> npt.NDArray[np.bool_]:
        return np.asarray(self._rows["kind"].isin(kinds))

    @cached_property
    def all(self) -> pd.DataFrame:
        """The rows of the window."""
        return self._rows if self._kept is None else self._rows[self._kept]

    @cached_property
    def host(self) -> pd.DataFrame:
        """Rows of the host."""
        return self._where(self._on_host)

    @cached_property
    def device(self) -> pd.DataFrame:
        """Rows of streams: kernels, copies, fills and synchronisations."""
        return self._where(self._of_kinds(*_WORK, "cuda_sync") & self._rows["stream"].ge(0).to_numpy())

    @cached_property
    def work(self) -> pd.DataFrame:
        """Kernels, copies and fills of streams."""
        return self.device[self.device["kind"].isin(_WORK)]

    @cached_property
    def annotations(self) -> pd.DataFrame:
        """Annotations on the GPU."""
        return self._where(self._of_kinds("gpu_user_annotation"))

    def is_type(self, rows: pd.DataFrame, name: str) -> pd.Series[bool]:
        """Which rows are of a type: `COMPUTATION`, `COMMUNICATION` or `MEMORY`."""
        if self.strict:
            communicates = rows["name"].str.match(_HTA_COMMUNICATION)
            computes = ~rows["name"].str.match(_HTA_NO_COMPUTATION) & ~communicates
        else:
            communicates = rows["is_comm"]
            computes = rows["kind"].eq("kernel") & ~communicates
        moves = rows["kind"].isin(_WORK[1:]) & ~communicates
        return {"COMMUNICATION": communicates, "COMPUTATION": computes & ~moves, "MEMORY": moves}[name]

    def _with_correlation(self) -> npt.NDArray[np.bool_]:
        """Which rows of the host have a correlation."""
        return np.asarray(self._on_host & self._rows["correlation"].ge(0))

    @cached_property
    def launch_starts(self) -> pd.Series[int]:
        """When the row of the host with a correlation begins."""
        return self._where(self._with_correlation()).drop_duplicates("correlation").set_index("correlation")["ts"]

    @cached_property
    def _launched(self) -> pd.DataFrame:
        is_call = self._rows["name"].isin(_HTA_LAUNCHES).to_numpy() if self.strict else self._of_kinds(*_LAUNCHING)
        calls = self._where(self._with_correlation() & is_call)
        return calls.merge(self.work, on="correlation", suffixes=("_host", "_device")).rename(
            columns={"stream_device": "stream", "device_id_device": "device_id", "name_device": "name"}
        )

    def launched(self, with_memory: bool) -> pd.DataFrame:
        """Pieces of work with the calls that launched them."""
        launched = self._launched
        return launched if with_memory else launched[launched["kind_device"].eq("kernel")].reset_index(drop=True)

    @cached_property
    def queue_points(self) -> pd.DataFrame:
        """The points at which the queue of a stream changes, and its length then: a launch adds a piece of work, and the start
        of the work takes it away."""
        launched = self.launched(True)
        # A piece of work that began before its launch, by the trace's clocks, never waits.
        began = launched["ts_device"] if self.strict else launched["ts_device"].clip(lower=launched["ts_host"])
        at = np.concatenate((launched["ts_host"].to_numpy(), began.to_numpy()))
        change = np.repeat((1, -1), len(launched))
        twice = {name: np.tile(launched[name].to_numpy(), 2) for name in ("stream", "device_id", "id_host", "id_device")}
        order = np.lexsort((-change, at, twice["stream"]))
        points = pd.DataFrame({name: column[order] for name, column in (twice | {"at": at, "change": change}).items()})
        return points.assign(queue_length=points.groupby("stream")["change"].cumsum())

    @cached_property
    def by_id(self) -> pd.DataFrame:
        """Rows of the host by their ids."""
        # −1 stands for a missing row.
        return self.host[self.host["id"].ne(-1)].drop_duplicates("id").set_index("id")

    @cached_property
    def depths(self) -> pd.Series[int]:
        """How many rows of the host are around each of them, by id."""
        parents = self.by_id["parent"]
        depths = pd.Series(0, index=parents.index, dtype="int64")
        around = parents
        while (inside := around.isin(parents.index)).any():
            depths += inside
            around = around.where(~inside, around.map(parents).fillna(-1).astype("int64"))
        return depths

    def enclosing(self, ids: pd.Series[int], is_wanted: pd.Series[bool]) -> pd.Series[int]:
        """For each id the innermost wanted row of the host that it is or is in; −1 if there is none."""
        parents = self.by_id["parent"]
        found = pd.Series(-1, index=ids.index, dtype="int64")
        around = ids
        while (open_ := around.isin(parents.index) & found.eq(-1)).any():
            arrived = open_ & around.map(is_wanted).eq(True)
            found[arrived] = around[arrived]
            around = around.where(~open_, around.map(parents).fillna(-1).astype("int64"))
        return found

    def operators_around(self, ids: pd.Series[int]) -> list[list[str]]:
        """For each id the names of the operators around it, the outermost first."""
        is_operator = self.by_id["kind"].eq("cpu_op")
        stacks: list[list[str]] = [[] for _ in range(len(ids))]
        around = self.enclosing(ids.reset_index(drop=True), is_operator)
        while (known := around[around.ge(0)]).size:
            for at, name in zip(known.index, self.by_id["name"].reindex(known)):
                stacks[at].insert(0, name)
            around = self.enclosing(self.by_id["parent"].reindex(known).set_axis(known.index), is_operator)
        return stacks

    def launches_of_operators(self) -> pd.DataFrame:
        """Pieces of work with the innermost `aten::` operator around the calls that launched them."""
        launched = self.launched(True)
        found = self.enclosing(launched["parent_host"], self.by_id["name"].str.startswith("aten::"))
        launched = launched[found.ne(-1)].assign(op_id=found)
        operators = self.by_id[["name", "ts"]].rename(columns={"name": "op_name", "ts": "ts_op"})
        return launched.join(operators, on="op_id")


class Recorded:
    """Traces whose rows are read without an analysis."""

    def __init__(self, paths: list[str]) -> None:
        self._native = _rankscope.NativeRecorded(paths)
        self.ranks = self._native.ranks
        warn_of_losses(json.loads(self._native.problems()), 3)

    def rows(self, rank: int, include_last: bool, strict: bool) -> Rows:
        """Reads the rows of a rank. A RankscopeWarning says that some are lost."""
        rows, file, pid, omissions = self._native.rows(rank)
        warn_of_losses(json.loads(omissions), 4)
        found = Rows(_frame(Table(rows)), include_last, strict)
        found.file, found.pid = file, pid
        return found


def _frame(rows: Table) -> pd.DataFrame:
    """Rows by time; the numbers are those of Arrow, without a copy. Texts are categories, so that there are few to look at."""
    table = rows.to_arrow()
    columns = {
        "ts": "ts_ns",
        "dur": "dur_ns",
        "id": "id",
        "parent": "parent_id",
        "step": "step",
        "tid": "thread_id",
        "device_id": "device_id",
        "stream": "stream_id",
        "correlation": "correlation_id",
        "bandwidth_gbs": "bandwidth_gbs",
        "is_comm": "is_comm",
    }
    found = {name: table[name].to_pandas() for name in ("kind", "name")}
    found |= {name: table[column].to_numpy() for name, column in columns.items()}
    found["end"] = found["ts"] + found["dur"]
    return pd.DataFrame(found, copy=False)


def _until(
    rows: pd.DataFrame, on_host: npt.NDArray[np.bool_], end: int, strict: bool
) -> npt.NDArray[np.bool_]:
    """Which rows are before a time: of the host by their start, of a device by that of their launch."""
    correlation, starts = rows["correlation"].to_numpy(), rows["ts"].to_numpy() < end
    launches = on_host & (correlation >= 0)
    is_kept = np.isin(correlation, correlation[launches & starts])
    if strict:
        is_kept |= rows["kind"].eq("gpu_user_annotation").to_numpy()
    else:
        is_later = np.isin(correlation, correlation[launches & ~starts]) & ~is_kept
        is_kept |= starts & ~is_later
    return np.where(on_host, starts, is_kept)


def microseconds(ns: pd.Series[Any]) -> pd.Series[Any]:
    """Times in µs: integers if all are whole, as HTA has them."""
    if (ns % 1000 == 0).all():
        return (ns // 1000).astype("int64")
    return ns / 1000


def union(rows: pd.DataFrame) -> npt.NDArray[np.int64]:
    """The union of the intervals of rows, as pairs of start and end."""
    if rows.empty:
        return np.empty((0, 2), dtype=np.int64)
    order = np.argsort(rows["ts"].to_numpy(), kind="stable")
    starts, ends = rows["ts"].to_numpy()[order], np.maximum.accumulate(rows["end"].to_numpy()[order])
    first = np.concatenate(([True], starts[1:] > ends[:-1]))
    last = np.concatenate((first[1:], [True]))
    return np.column_stack((starts[first], ends[last]))


def union_length(rows: pd.DataFrame) -> int:
    """The length of the union of the intervals of rows."""
    pairs = union(rows)
    return int((pairs[:, 1] - pairs[:, 0]).sum())


def state_lengths(unions: list[npt.NDArray[np.int64]]) -> dict[int, int]:
    """For each set of unions (bit i: the i-th one) the time in which these and no others run."""
    times = np.concatenate([pairs.ravel(order="F") for pairs in unions])
    bits = [np.repeat((1 << at, -(1 << at)), len(pairs)) for at, pairs in enumerate(unions)]
    order = np.argsort(times, kind="stable")
    times, running = times[order], np.cumsum(np.concatenate(bits)[order])
    lengths = np.diff(times)
    found: dict[int, int] = {}
    for state in np.unique(running[:-1]) if len(times) else ():
        if state > 0 and (length := int(lengths[running[:-1] == state].sum())) > 0:
            found[int(state)] = length
    return found
