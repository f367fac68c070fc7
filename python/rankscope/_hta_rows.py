"""The rows of a rank as HTA sees them, and sums over intervals. Times are ns in the rank's own clock, since its first row: so
small that floating point holds them exactly."""

from __future__ import annotations

import json
import re
from functools import cached_property
from typing import Any

from rankscope import _rankscope
from rankscope._errors import warn_of_losses
from rankscope._numeric import import_pandas, np, npt, pd
from rankscope._table import Table

#: The kind of a copy or fill, at the beginning of its name.
MEMORY_PREFIX = r"^(Memset|Memcpy .{4})"
#: HTA's names of what it counts neither as communication nor as computation.
_HTA_NO_COMPUTATION = re.compile(r"nccl|.*Memcpy|.*Memset|.*dma|.*Sync|Stream Wait Event|hip")
_HTA_LAUNCHES = ("cudaLaunchKernel", "cudaLaunchKernelExC", "cudaMemcpyAsync", "cudaMemsetAsync")
_WORK = ("kernel", "gpu_memcpy", "gpu_memset")
_LAUNCHING = ("cuda_runtime", "cuda_driver")
#: The columns of the rows of a type. Few columns are copied sooner than all.
_OF_TYPE = ["name", "ts", "dur", "end", "id", "device_id", "bandwidth_gbs"]
#: The columns of a launch that belong to its call, and to its work.
_OF_CALLS = {"correlation": "correlation"} | {f"{name}_host": name for name in ("ts", "end", "dur", "id", "parent", "tid")}
_OF_WORK = {name: name for name in ("stream", "device_id", "name")} | {f"{name}_device": name for name in ("ts", "dur", "id", "kind")}


class Rows:
    """The rows of a rank in HTA's window: up to the start of the last step of several, unless that is included."""

    def __init__(
        self, rows: pd.DataFrame, parts: tuple[int, int], base_ns: int, steps: list[int], strict: bool
    ) -> None:
        self.strict = strict
        #: The rows of the window: those of the host first, those of streams last.
        self.all = rows
        #: The time from which `ts`, `end` and `launch` count.
        self.base_ns = base_ns
        #: The steps of the whole trace.
        self.steps = steps
        #: The trace's file and process; empty and −1 if unknown.
        self.file = ""
        self.pid = -1
        self._on_host, self._of_streams = parts
        self._of_types: dict[str, pd.DataFrame] = {}
        self._busy: dict[str, npt.NDArray[np.int64]] = {}

    @cached_property
    def host(self) -> pd.DataFrame:
        """Rows of the host, by time."""
        return self.all.iloc[: self._on_host]

    @cached_property
    def device(self) -> pd.DataFrame:
        """Rows of streams by time: kernels, copies, fills and synchronisations."""
        return self.all.iloc[len(self.all) - self._of_streams :]

    @cached_property
    def work(self) -> pd.DataFrame:
        """Kernels, copies and fills of streams."""
        return self.device[self.device["kind"].isin(_WORK)]

    @cached_property
    def annotations(self) -> pd.DataFrame:
        """Annotations on the GPU."""
        return self.all[_are_of(self.all, "gpu_user_annotation")]

    def of_type(self, name: str) -> pd.DataFrame:
        """The rows of streams of a type, with the columns of `_OF_TYPE`: `COMPUTATION`, `COMMUNICATION` or `MEMORY`."""
        if name not in self._of_types:
            self._of_types[name] = self.device[_OF_TYPE][self._is_type(name)]
        return self._of_types[name]

    def busy(self, name: str) -> npt.NDArray[np.int64]:
        """The union of the rows of streams of a type."""
        if name not in self._busy:
            self._busy[name] = union(self.of_type(name))
        return self._busy[name]

    def _is_type(self, name: str) -> pd.Series[bool]:
        rows = self.device
        if self.strict:
            communicates = rows["is_comm_by_hta"]
            computes = ~rows["name"].str.match(_HTA_NO_COMPUTATION) & ~communicates
        else:
            communicates = rows["is_comm"]
            computes = rows["kind"].eq("kernel") & ~communicates
        moves = rows["kind"].isin(_WORK[1:]) & ~communicates
        return {"COMMUNICATION": communicates, "COMPUTATION": computes & ~moves, "MEMORY": moves}[name]

    @cached_property
    def _launches(self) -> pd.DataFrame:
        """Where each piece of work with its call is in `work`, and the call in `host`."""
        is_call = self.host["name"].isin(_HTA_LAUNCHES) if self.strict else _are_of(self.host, *_LAUNCHING)
        calls = np.flatnonzero(is_call & self.host["correlation"].ge(0))
        of_calls = pd.DataFrame({"correlation": self.host["correlation"].to_numpy()[calls], "call": calls})
        of_work = pd.DataFrame({"correlation": self.work["correlation"].to_numpy(), "work": np.arange(len(self.work))})
        return of_calls.merge(of_work, on="correlation")

    def launched(self, with_memory: bool, *names: str) -> pd.DataFrame:
        """Pieces of work with the calls that launched them: the columns of these names, or all."""
        launches = self._launches
        if not with_memory:
            launches = launches[self.work["kind"].eq("kernel").to_numpy()[launches["work"]]]
        found: dict[str, Any] = {}
        for columns, rows, place in ((_OF_CALLS, self.host, "call"), (_OF_WORK, self.work, "work")):
            wanted = {name: column for name, column in columns.items() if not names or name in names}
            found |= {name: rows[column].array[launches[place].to_numpy()] for name, column in wanted.items()}
        return pd.DataFrame(found, copy=False)

    @cached_property
    def queue_points(self) -> pd.DataFrame:
        """The points at which the queue of a stream changes, and its length then: a launch adds a piece of work, and the start
        of the work takes it away. `piece` is the place of the work in `launched(True)`."""
        launched = self.launched(True, "ts_host", "ts_device", "stream")
        # A piece of work that began before its launch, by the trace's clocks, never waits.
        began = launched["ts_device"] if self.strict else launched["ts_device"].clip(lower=launched["ts_host"])
        at, stream = np.concatenate((launched["ts_host"], began)), launched["stream"].to_numpy()
        # Of the points at one time, the launches come first.
        piece = np.lexsort((at, np.concatenate((stream, stream))))
        at, is_launch = at[piece], piece < len(launched)
        piece[~is_launch] -= len(launched)
        # The changes of each stream sum to 0, so one sum over all streams is that of each.
        change = np.where(is_launch, np.int8(1), np.int8(-1))
        columns = {"at": at, "stream": stream[piece], "queue_length": np.cumsum(change, dtype=np.int64)}
        return pd.DataFrame(columns | {"piece": piece, "is_launch": is_launch}, copy=False)

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
        launched = launched.assign(op_id=found)[found.ne(-1)]
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
        read = self._native.rows(rank, include_last, strict, beside=import_pandas)
        rows, parts, base_ns, steps, (file, pid), omissions = read
        warn_of_losses(json.loads(omissions), 4)
        found = Rows(_frame(Table(rows)), parts, base_ns, steps, strict)
        found.file, found.pid = file, pid
        return found


def _frame(rows: Table) -> pd.DataFrame:
    """Rows with the numbers of Arrow, without a copy. Texts are categories, so that there are few to look at."""
    table = rows.to_arrow()
    columns = {
        "ts": "ts_ns",
        "dur": "dur_ns",
        "id": "id",
        "parent": "parent_id",
        "launch": "launch_ns",
        "end": "end_ns",
        "step": "step",
        "tid": "thread_id",
        "device_id": "device_id",
        "stream": "stream_id",
        "correlation": "correlation_id",
        "external": "external_id",
        "bandwidth_gbs": "bandwidth_gbs",
        "is_comm": "is_comm",
        "is_comm_by_hta": "is_comm_by_hta",
    }
    found = {name: table[name].to_pandas() for name in ("kind", "name")}
    found |= {name: table[column].to_numpy() for name, column in columns.items()}
    return pd.DataFrame(found, copy=False)


def _are_of(rows: pd.DataFrame, *kinds: str) -> npt.NDArray[np.bool_]:
    """Which rows are of one of these kinds."""
    kind = rows["kind"].cat
    return np.asarray(kind.categories.isin(kinds)[kind.codes])


def microseconds(ns: pd.Series[Any]) -> pd.Series[Any]:
    """Times in µs: integers if all are whole, as HTA has them."""
    if (ns % 1000 == 0).all():
        return (ns // 1000).astype("int64")
    return ns / 1000


def union(rows: pd.DataFrame) -> npt.NDArray[np.int64]:
    """The union of the intervals of rows, which are sorted by their start, as pairs of start and end."""
    if rows.empty:
        return np.empty((0, 2), dtype=np.int64)
    starts, ends = rows["ts"].to_numpy(), np.maximum.accumulate(rows["end"].to_numpy())
    first = np.concatenate(([True], starts[1:] > ends[:-1]))
    last = np.concatenate((first[1:], [True]))
    return np.column_stack((starts[first], ends[last]))


def total_length(pairs: npt.NDArray[np.int64]) -> int:
    """The length of disjoint intervals, given as pairs of start and end."""
    return int((pairs[:, 1] - pairs[:, 0]).sum())


def state_lengths(unions: list[npt.NDArray[np.int64]]) -> dict[int, int]:
    """For each set of unions (bit i: the i-th one) the time in which these and no others run."""
    times = np.concatenate([pairs.ravel(order="F") for pairs in unions])
    bits = [np.repeat(np.array((1 << at, -(1 << at)), dtype=np.int8), len(pairs)) for at, pairs in enumerate(unions)]
    order = np.argsort(times, kind="stable")
    times, running = times[order], np.cumsum(np.concatenate(bits)[order], dtype=np.int8)
    lengths = np.diff(times)
    found: dict[int, int] = {}
    for state in np.flatnonzero(np.bincount(running[:-1])) if len(times) else ():
        if state > 0 and (length := int(lengths[running[:-1] == state].sum())) > 0:
            found[int(state)] = length
    return found
