"""The graph of HTA's critical path: a start and an end of each operator, call and piece of device work in a window, and edges
between them. Times are ns.

* Threads: each row leads to what it contains and on to the next row. Between rows without a common parent time counts nothing.
* Calls that take the lock of the CUDA runtime: the one that ends first had the lock, and the others that had begun waited for it.
* Streams: work follows its launch (if nothing else was queued), the work before it (if the gap is small), or what it is
  synchronised with. A call that blocks has no length of its own, because it waits for the device.

HTA defines it so (`hta/analyzers/critical_path_analysis.py`, version 0.6.1).
"""

from __future__ import annotations

from collections.abc import Iterator
from enum import Enum
from typing import Any, NamedTuple

from rankscope._errors import RankscopeError
from rankscope._hta_rows import Rows
from rankscope._numeric import np, pd

#: Calls whose length is a wait for the device.
_BLOCKING = {
    "cudaDeviceSynchronize",
    "cudaStreamSynchronize",
    "cudaEventQuery",
    "cudaEventSynchronize",
    "cudaMemcpy",
    "cudaMemcpyAsync",
}
#: Calls that take the lock of the CUDA runtime.
_LOCKING = {"cudaHostAlloc", "cudaLaunchKernel", "cudaMemcpyAsync"}
#: A longer gap between two pieces of work of a stream has a cause that the rows do not show.
_LONGEST_GAP_NS = 1_500_000
_HOST_KINDS = ("cpu_op", "cuda_runtime", "cuda_driver")
_ALL_STREAMS = -1


class CPEdgeType(Enum):
    """What an edge stands for."""

    OPERATOR_KERNEL = "critical_path_operator"
    DEPENDENCY = "critical_path_dependency"
    KERNEL_LAUNCH_DELAY = "critical_path_kernel_launch_delay"
    KERNEL_KERNEL_DELAY = "critical_path_kernel_kernel_delay"
    SYNC_DEPENDENCY = "critical_path_sync_dependency"


class Edge(NamedTuple):
    """An edge that is not in the graph's dictionary: its length, what it stands for, and the row that it is part of."""

    #: Below 0 if the second node is earlier, by the clocks of the trace.
    weight_ns: int
    type: CPEdgeType
    event: int | None


class Wait(NamedTuple):
    """What a synchronisation with a CUDA event waits for, by its correlation."""

    stream: int
    record_correlation: int


def window_of(rows: Rows, annotation: str, instance: int | tuple[int, int] | None) -> tuple[int, int]:
    """Start and end of instances of an annotation, which are counted in the order of the file; of all rows if it is empty."""
    if not annotation:
        return int(rows.all["ts"].min()), int(rows.all["end"].max())
    names = rows.all["name"].unique()
    wanted = [name for name in names if annotation in name]
    found = rows.all[rows.all["name"].isin(wanted)].sort_values("id")
    first, last = instance if isinstance(instance, tuple) else (instance or 0, instance or 0)
    chosen = found.iloc[first : last + 1]
    if chosen.empty:
        raise RankscopeError(f"there is no instance {first} of {annotation!r}: {len(found)} rows have it in their name", None)
    return int(chosen["ts"].min()), int(chosen["end"].max())


class Graph:
    """Nodes, which are sorted by time, and edges, by their nodes and in the order in which they were found."""

    def __init__(self, rows: Rows, window: tuple[int, int], data_loading: pd.Series[bool], ties_launches: bool) -> None:
        self.edges: dict[tuple[int, int], Edge] = {}
        self._rows = rows
        self._ties_launches = ties_launches
        start, end = window
        hosts = rows.host
        self.hosts = hosts[hosts["ts"].between(start, end) & hosts["dur"].gt(0)]
        launches = hosts[hosts["correlation"].ge(0)].drop_duplicates("correlation").set_index("correlation")
        self.device = _device_rows(rows, launches.loc[launches["id"].isin(self.hosts["id"])], window)
        self.device = self.device.join(launches[["id", "ts"]].add_suffix("_launch"), on="correlation")
        has_nodes = self.hosts["kind"].isin(_HOST_KINDS) | data_loading.reindex(self.hosts.index)
        self.events = pd.concat([self.hosts[has_nodes], self.device]).set_index("id", drop=False)
        self._make_nodes()

    def _make_nodes(self) -> None:
        events = self.events[self.events["kind"].ne("cuda_sync") | self.events["name"].ne("Event Sync")]
        ids = np.tile(events["id"].to_numpy(), 2)
        times = np.concatenate([events["ts"].to_numpy(), events["end"].to_numpy()])
        order = np.lexsort((ids, times))
        self.event_of: list[int] = ids[order].tolist()
        self.ts: list[int] = times[order].tolist()
        self.is_start: list[bool] = (order < len(events)).tolist()
        numbers = range(len(order))
        self.start_of = {event: node for event, node, start in zip(self.event_of, numbers, self.is_start) if start}
        self.end_of = {event: node for event, node, start in zip(self.event_of, numbers, self.is_start) if not start}
        names = events["name"]
        self.blocking = set(events.index[names.isin(_BLOCKING)])
        self._locking = set(events.index[names.isin(_LOCKING) & events["device_id"].lt(0)])

    def connect(self, waits: dict[int, Wait]) -> Graph:
        """Adds the edges."""
        self._connect_locking_calls()
        for rows in self._threads():
            self._connect_thread(rows)
        self._connect_streams(waits)
        return self

    def _add(self, begin: int, end: int, kind: CPEdgeType, event: int | None = None, is_empty: bool = False) -> None:
        has_no_length = is_empty or kind in (CPEdgeType.DEPENDENCY, CPEdgeType.SYNC_DEPENDENCY)
        weight = 0 if has_no_length else self.ts[end] - self.ts[begin]
        self.edges[begin, end] = Edge(weight, kind, event)

    def _connect_locking_calls(self) -> None:
        waiting: list[int] = []
        last: int | None = None
        for node, event in enumerate(self.event_of):
            if event not in self._locking:
                continue
            if self.is_start[node]:
                waiting.append(node)
            else:
                for begin in reversed(waiting):
                    is_own = self.event_of[begin] == event
                    kind = CPEdgeType.OPERATOR_KERNEL if is_own else CPEdgeType.DEPENDENCY
                    self._add(begin, node, kind, event if is_own else None)
                waiting.clear()
                if last is not None and not self.is_start[last]:
                    self._add(last, node, CPEdgeType.DEPENDENCY)
            last = node

    def _threads(self) -> Iterator[pd.DataFrame]:
        """The rows of each thread. The backward pass, if it has a thread of its own, is part of the forward pass's."""
        hosts = self.hosts
        named = hosts[hosts["kind"].isin(("cpu_op", "user_annotation"))]
        forward, backward = (set(named["tid"][_contains(named["name"], word)]) for word in ("forward", "autograd"))
        if len(forward) == len(backward) == 1:
            hosts = hosts.assign(tid=hosts["tid"].replace(backward.pop(), forward.pop()))
        for _, rows in hosts.groupby("tid"):
            yield rows

    def _connect_thread(self, rows: pd.DataFrame) -> None:
        # Where rows overlap, the way goes through their ends by time. HTA takes the first end for that of the row that began last.
        begins_first = rows.sort_values(["ts", "dur", "id"], ascending=[True, False, True])
        ends_first = begins_first[::-1].sort_values("end", kind="stable")
        times = np.concatenate([ends_first["end"], begins_first["ts"]])
        order = np.argsort(times, kind="stable")
        is_start = order >= len(rows)
        ids = np.concatenate([ends_first["id"], begins_first["id"]])[order].tolist()
        walk = _Walk(self)
        open_rows: list[int] = []
        for event, starts in zip(ids, is_start.tolist()):
            if starts:
                walk.enter(event, open_rows[-1] if open_rows else None)
                open_rows.append(event)
            else:
                if self._rows.strict:
                    event = open_rows.pop()
                else:
                    open_rows.remove(event)
                walk.leave(event, open_rows[-1] if open_rows else None)

    def shares_lock(self, first: int, second: int) -> bool:
        """Whether two nodes of a thread are of calls that take the lock, and no call follows the other."""
        both_lock = self.event_of[first] in self._locking and self.event_of[second] in self._locking
        return both_lock and (self.is_start[first] or not self.is_start[second])

    # --- Streams ------------------------------------------------------------------------------------------------------

    def _connect_streams(self, waits: dict[int, Wait]) -> None:
        syncs = _Synchronisations(self._rows, waits)
        is_sync = self.device["kind"].eq("cuda_sync")
        # A synchronisation may overlap the work that it waits for.
        order = np.lexsort((self.device["id"], self.device["end"].where(is_sync, self.device["ts"])))
        queue = self._rows.queue_points
        at_launch, at_start = (
            dict(zip(self._rows.launched(True, name)[name].to_numpy()[points["piece"]], points["queue_length"]))
            for name, points in (("id_host", queue[queue["is_launch"]]), ("id_device", queue[~queue["is_launch"]]))
        )
        #: The last node of each stream.
        last: dict[tuple[int, int], int] = {}
        #: For each piece of work the one that it is synchronised with.
        after: dict[int, int] = {}
        for row in self.device.iloc[order].itertuples(index=False):
            if row.kind == "cuda_sync":
                self._synchronise(row, syncs, last, after)
                continue
            start, end = self.start_of[row.id], self.end_of[row.id]
            self._add(start, end, CPEdgeType.OPERATOR_KERNEL, row.id)
            stream = (row.device_id, row.stream)
            has_run_empty = at_launch.get(row.id_launch) == 1 and at_start.get(row.id) == 0
            self._connect_work(row, has_run_empty, last.get(stream), self.end_of.get(after.get(row.id, -1)))
            last[stream] = end

    def _connect_work(self, row: Any, has_run_empty: bool, last: int | None, source: int | None) -> None:
        """Connects a piece of work with its launch, the last one of its stream, and the one that it waited for."""
        start, launch = self.start_of[row.id], self.start_of.get(row.id_launch)
        if source is not None:
            self._add(source, start, CPEdgeType.SYNC_DEPENDENCY)
        is_launched_last = all(node is None or self.ts[node] < row.ts_launch for node in (last, source))
        if has_run_empty and launch is not None and is_launched_last:
            self._add(launch, start, CPEdgeType.KERNEL_LAUNCH_DELAY)
            return
        if last is not None and self.ts[start] - self.ts[last] < _LONGEST_GAP_NS:
            if source is None or self.ts[source] < self.ts[last]:
                self._add(last, start, CPEdgeType.KERNEL_KERNEL_DELAY, self.event_of[last])
        if self._ties_launches and launch is not None:
            self._add(launch, start, CPEdgeType.KERNEL_LAUNCH_DELAY, is_empty=True)

    def _synchronise(
        self, row: Any, syncs: _Synchronisations, last: dict[tuple[int, int], int], after: dict[int, int]
    ) -> None:
        if row.name in ("Stream Wait Event", "Event Sync"):
            source = syncs.source(row.correlation)
            if source is None:
                return
            if row.name == "Stream Wait Event":
                target = syncs.next_work(row.correlation, row.stream)
                if target is not None:
                    after[target] = source
                return
            sources = [self.end_of.get(source)]
        elif row.name == "Stream Sync":
            sources = [last.get((row.device_id, row.stream))]
        else:
            sources = list(last.values())
        call = self.end_of.get(row.id_launch)
        for node in sources:
            if node is not None and call is not None:
                self._add(node, call, CPEdgeType.SYNC_DEPENDENCY)


class _Walk:
    """The way through the rows of a thread."""

    def __init__(self, graph: Graph) -> None:
        self._graph = graph
        self._last: int | None = None
        self._parent_of_last: int | None = None
        self._depth = 0

    def enter(self, event: int, parent: int | None) -> None:
        graph = self._graph
        if (node := graph.start_of.get(event)) is None:
            return
        last = self._last
        if last is not None and not graph.shares_lock(last, node):
            if self._depth == 0:
                graph._add(last, node, CPEdgeType.DEPENDENCY)
            else:
                inside = graph.event_of[last] if graph.is_start[last] else self._parent_of_last
                graph._add(last, node, CPEdgeType.OPERATOR_KERNEL, inside)
        self._last, self._parent_of_last = node, parent
        self._depth += 1

    def leave(self, event: int, parent: int | None) -> None:
        graph = self._graph
        if (node := graph.end_of.get(event)) is None:
            return
        last = self._last
        if last is not None and not graph.shares_lock(last, node):
            inside = graph.event_of[last] if graph.is_start[last] else event
            graph._add(last, node, CPEdgeType.OPERATOR_KERNEL, inside, event in graph.blocking)
        self._last, self._parent_of_last = node, parent
        self._depth -= 1


class _Synchronisations:
    """The work before and after CUDA events."""

    def __init__(self, rows: Rows, waits: dict[int, Wait]) -> None:
        self._waits = waits
        if not waits:
            return
        launched = rows.launched(True).sort_values(["ts_host", "id_host"])
        self._by_stream = dict(list(launched.groupby("stream")))
        self._by_thread = dict(list(launched.groupby(["tid_host", "stream"])))
        calls = rows.host[rows.host["correlation"].ge(0)].drop_duplicates("correlation")
        self._calls = calls.set_index("correlation")[["ts", "tid"]]

    def source(self, correlation: int) -> int | None:
        """The last work that was launched into the stream of an event before that was recorded."""
        wait = self._waits.get(correlation)
        if wait is None or wait.record_correlation not in self._calls.index:
            return None
        launched = self._by_stream.get(wait.stream)
        if launched is None:
            return None
        at = int(np.searchsorted(launched["ts_host"], self._calls.at[wait.record_correlation, "ts"], "right"))
        return int(launched["id_device"].iat[at - 1]) if at else None

    def next_work(self, correlation: int, stream: int) -> int | None:
        """The work that the thread of a call launches next into a stream."""
        if correlation not in self._calls.index:
            return None
        ts, tid = self._calls.loc[correlation]
        launched = self._by_thread.get((tid, stream))
        if launched is None:
            return None
        at = int(np.searchsorted(launched["ts_host"], ts, "left"))
        return int(launched["id_device"].iat[at]) if at < len(launched) else None


def _device_rows(rows: Rows, launches: pd.DataFrame, window: tuple[int, int]) -> pd.DataFrame:
    """Work and synchronisations that calls in the window launched. A stream may wait for an event that is older."""
    device = rows.all[rows.all["device_id"].ge(0) & rows.all["correlation"].ge(0)]
    is_event_sync = device["name"].eq("Event Sync") & device["stream"].eq(_ALL_STREAMS)
    if rows.strict:
        # HTA keeps one piece of work of a launch, also of the launch of a CUDA graph.
        device = device.sort_values("id").drop_duplicates("correlation", keep="last")
    in_window = device["ts"].between(*window) & device["dur"].gt(0)
    is_launched = device["correlation"].isin(launches.index) | device["name"].eq("Stream Wait Event")
    return device[in_window.where(is_event_sync, is_launched)]


def _contains(names: pd.Series[str], word: str) -> pd.Series[bool]:
    return names.isin([name for name in names.unique() if word in name])
