"""HTA's critical path of a rank: the longest path through a graph of its rows (`_hta_graph`), and what it consists of."""

from __future__ import annotations

import io
import json
import os
import re
import warnings
import zipfile
from collections.abc import Callable
from typing import Any, NamedTuple

from rankscope._errors import RankscopeError, RankscopeWarning
from rankscope._hta_graph import CPEdgeType, Graph, Wait, window_of
from rankscope._hta_rows import Rows
from rankscope._hta_trace import Trace, short_name
from rankscope._numeric import pd

#: The only version of files of graphs.
_VERSION = 1
#: Edges between rows, of which an overlaid trace has the critical ones.
_SHOWN = (CPEdgeType.DEPENDENCY, CPEdgeType.KERNEL_LAUNCH_DELAY, CPEdgeType.SYNC_DEPENDENCY)


class CPNode(NamedTuple):
    """The start or the end of a row."""

    idx: int
    #: Number of the row: its id.
    ev_idx: int
    #: Time in µs, as in `Trace.get_trace`.
    ts: float
    is_start: bool
    #: Whether the row is a call whose length is a wait for the device.
    is_blocking: bool


class CPEdge(NamedTuple):
    """An edge between two nodes."""

    begin: int
    end: int
    #: Time in µs.
    weight: float = 0
    type: CPEdgeType = CPEdgeType.OPERATOR_KERNEL


class Edges(dict[tuple[int, int], dict[str, Any]]):
    """For two nodes an edge: its `weight` in µs, and the `object`, a CPEdge. It may be called as networkx's edges may."""

    def __call__(self, data: bool = False) -> list[tuple[Any, ...]]:
        """Pairs of nodes; with `data`, triples of them and their edge."""
        return [(*pair, edge) for pair, edge in self.items()] if data else list(self)


class CPGraph:
    """The graph and its critical path. HTA's class is a networkx.DiGraph too; here that is
    `networkx.DiGraph(graph.edges(data=True))`. A weight of `edges[u, v]["weight"]` may be changed: `critical_path()` walks again."""

    def __init__(self, trace: Trace, rank: int, data_load_events: list[str] | None) -> None:
        self.rank = rank
        self.data_load_events = data_load_events
        self.symbol_table = trace.symbols
        #: The rows, as in HTA's data frame of a trace.
        self.trace_df = pd.DataFrame()
        self.node_list: list[CPNode] = []
        self.edges = Edges()
        #: The row that an edge is part of.
        self.edge_to_event_map: dict[tuple[int, int], int] = {}
        self.critical_path_nodes: list[int] = []

    @property
    def nodes(self) -> list[int]:
        """The nodes that have edges."""
        return sorted({node for edge in self.edges for node in edge})

    @property
    def critical_path_nodes_set(self) -> set[int]:
        """The nodes of the critical path."""
        return set(self.critical_path_nodes)

    @property
    def critical_path_events_set(self) -> set[int]:
        """The rows of the critical path."""
        return {self.node_list[node].ev_idx for node in self.critical_path_nodes}

    @property
    def critical_path_edges_set(self) -> set[CPEdge]:
        """The edges of the critical path."""
        return set(self._path_edges())

    def _path_edges(self) -> list[CPEdge]:
        return [self.edges[pair]["object"] for pair in zip(self.critical_path_nodes, self.critical_path_nodes[1:])]

    def critical_path(self) -> bool:
        """Finds the longest path. False if there is none, because edges form a circle or there are none."""
        self.critical_path_nodes = _longest_path({pair: data["weight"] for pair, data in self.edges.items()})
        return bool(self.critical_path_nodes)

    def get_critical_path_breakdown(self) -> pd.DataFrame | None:
        """The edges of the critical path in their order, with the rows that they are part of; None without a path.

        `duration` is in µs. `bound_by` is cpu_bound, data_loading, gpu_compute_bound, gpu_communication_bound,
        gpu_kernel_kernel_overhead, gpu_kernel_launch_overhead, or empty for edges without a length.
        """
        if not self.critical_path_nodes:
            return None
        edges = self._path_edges()
        found = pd.DataFrame(
            {
                "event_idx": [self.get_event_attribution_for_edge(edge) for edge in edges],
                "duration": [edge.weight for edge in edges],
                "type": [edge.type.value for edge in edges],
            }
        ).astype({"event_idx": "float64"})
        rows = self.trace_df[["s_name", "cat", "pid", "tid", "stream", "index", "is_comm"]]
        found = found.merge(rows.reset_index(drop=True), left_on="event_idx", right_on="index", how="left")
        columns = zip(found["type"], found["s_name"], found["stream"], found["is_comm"])
        return found.assign(bound_by=[self._bound_by(*row) for row in columns]).drop(columns="is_comm")

    def _bound_by(self, kind: str, name: str, stream: float, is_comm: bool) -> str:
        if kind in (CPEdgeType.DEPENDENCY.value, CPEdgeType.SYNC_DEPENDENCY.value):
            return ""
        if kind == CPEdgeType.KERNEL_KERNEL_DELAY.value:
            return "gpu_kernel_kernel_overhead"
        if kind == CPEdgeType.KERNEL_LAUNCH_DELAY.value:
            return "gpu_kernel_launch_overhead"
        if stream < 0:
            loads = any(re.search(pattern, name) for pattern in self.data_load_events or ())
            return "data_loading" if loads else "cpu_bound"
        return "gpu_communication_bound" if is_comm else "gpu_compute_bound"

    def summary(self) -> pd.Series[float]:
        """The shares of what the critical path is bound by, in percent of its length.

        # Errors
        A RankscopeError if there is no critical path.
        """
        found = self.get_critical_path_breakdown()
        if found is None:
            raise RankscopeError("there is no critical path", None)
        shares: pd.Series[float] = found.groupby("bound_by")["duration"].sum() / found["duration"].sum() * 100
        return shares

    def get_nodes_for_event(self, ev_id: int) -> tuple[CPNode | None, CPNode | None]:
        """The start and the end of a row; None if it is not in the graph."""
        start, end = self._of_events.get(ev_id, (None, None))
        return start, end

    @property
    def _of_events(self) -> dict[int, tuple[CPNode, CPNode]]:
        starts = {node.ev_idx: node for node in self.node_list if node.is_start}
        return {node.ev_idx: (starts[node.ev_idx], node) for node in self.node_list if not node.is_start}

    def get_events_for_edge(self, edge: CPEdge) -> tuple[int, int]:
        """The rows at both ends of an edge."""
        return self.node_list[edge.begin].ev_idx, self.node_list[edge.end].ev_idx

    def get_event_attribution_for_edge(self, edge: CPEdge) -> int | None:
        """The row that an edge is part of; None for edges between rows."""
        return self.edge_to_event_map.get((edge.begin, edge.end))

    def get_edges_attributed_to_event(self, ev_idx: int) -> list[CPEdge]:
        """The edges that are part of a row."""
        return [self.edges[pair]["object"] for pair, event in self.edge_to_event_map.items() if event == ev_idx]

    def shown_edges(self, of_all: bool) -> list[CPEdge]:
        """The edges that an overlaid trace shows: those of the path between rows, or all. Launches that the path does not need
        are shown if the environment has CRITICAL_PATH_SHOW_ZERO_WEIGHT_LAUNCH_EDGE=1."""
        if not of_all:
            return [edge for edge in self._path_edges() if edge.type in _SHOWN]
        hides = os.environ.get("CRITICAL_PATH_SHOW_ZERO_WEIGHT_LAUNCH_EDGE") != "1"
        edges = [data["object"] for data in self.edges.values()]
        return [edge for edge in edges if not (hides and edge.type == CPEdgeType.KERNEL_LAUNCH_DELAY and edge.weight == 0)]

    def _get_node_name(self, ev_id: int) -> str:
        return str(self.symbol_table.get_sym_table()[self.trace_df.at[ev_id, "name"]])

    def save(self, out_dir: str) -> str:
        """Writes the graph into `out_dir`.zip and returns that path; `restore_cpgraph` reads it."""
        path = f"{out_dir}.zip"
        graph = {
            "version": _VERSION,
            "data_load_events": self.data_load_events,
            "nodes": [list(node) for node in self.node_list],
            "edges": [
                (edge["object"].begin, edge["object"].end, edge["object"].weight, edge["object"].type.value, edge["weight"])
                for edge in self.edges.values()
            ],
            "events_of_edges": [[*pair, event] for pair, event in self.edge_to_event_map.items()],
            "path": self.critical_path_nodes,
        }
        try:
            os.makedirs(os.path.dirname(path) or ".", exist_ok=True)
            with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED, compresslevel=1) as file:
                file.writestr("graph.json", json.dumps(graph))
                file.writestr("rows.csv", self.trace_df.to_csv(index=True, index_label="row"))
        except OSError as error:
            raise RankscopeError(f"{path} cannot be written: {error}", path) from error
        return path


def restore_cpgraph(zip_filename: str, t_full: Trace, rank: int) -> CPGraph:
    """The graph that `CPGraph.save` wrote. `t_full` is `TraceAnalysis.t` of the same trace.

    # Errors
    A RankscopeError if the file cannot be read, or is no graph.
    """
    try:
        with zipfile.ZipFile(zip_filename) as file:
            saved, rows = json.loads(file.read("graph.json")), file.read("rows.csv")
        if saved["version"] != _VERSION:
            raise RankscopeError(f"{zip_filename} has version {saved['version']}, and this reads {_VERSION}", zip_filename)
        graph = CPGraph(t_full, rank, saved["data_load_events"])
        graph.trace_df = pd.read_csv(io.BytesIO(rows), index_col="row")
        graph.node_list = [CPNode(*node) for node in saved["nodes"]]
        for begin, end, weight, kind, now in saved["edges"]:
            edge = CPEdge(begin, end, weight, CPEdgeType(kind))
            graph.edges[begin, end] = {"weight": now, "object": edge}
        graph.edge_to_event_map = {(begin, end): event for begin, end, event in saved["events_of_edges"]}
        graph.critical_path_nodes = saved["path"]
    except (OSError, zipfile.BadZipFile, KeyError, TypeError, ValueError) as error:
        raise RankscopeError(f"{zip_filename} is no saved graph: {error}", zip_filename) from error
    return graph


class Wanted(NamedTuple):
    """What `TraceAnalysis.critical_path_analysis` is asked for."""

    rank: int
    annotation: str
    instance: int | tuple[int, int] | None
    data_load_events: list[str] | None


def analyze(
    trace: Trace, rows: Rows, wanted: Wanted, read_waits: Callable[[], dict[int, Wait]]
) -> tuple[CPGraph, bool] | None:
    """The graph of a rank with its critical path, and whether it has one; None, with a warning, if the rows lack the instance.
    `read_waits` is called if rows wait for CUDA events."""
    names, patterns = rows.host["name"], wanted.data_load_events or []
    loads = names.isin([name for name in names.unique() if any(re.search(pattern, name) for pattern in patterns)])
    ties = os.environ.get("CRITICAL_PATH_ADD_ZERO_WEIGHT_LAUNCH_EDGE") == "1"
    try:
        window = window_of(rows, wanted.annotation, wanted.instance)
    except RankscopeError as error:
        warnings.warn(str(error), RankscopeWarning, stacklevel=3)
        return None
    graph = Graph(rows, window, loads, ties)
    if not rows.all["kind"].eq("cuda_sync").any():
        why = f"rank {wanted.rank} has no cuda_sync rows, so its critical path does not see what the host waits for"
        warnings.warn(why, RankscopeWarning, stacklevel=3)
    has_waits = graph.device["name"].isin(("Event Sync", "Stream Wait Event")).any()
    found = _graph_of(trace, rows, wanted, graph.connect(read_waits() if has_waits else {}))
    return found, found.critical_path()


def _graph_of(trace: Trace, rows: Rows, wanted: Wanted, graph: Graph) -> CPGraph:
    """The graph in HTA's form."""
    found = CPGraph(trace, wanted.rank, wanted.data_load_events)
    whole = all(ts % 1000 == 0 for ts in graph.ts)

    def us(ns: int) -> float:
        return ns // 1000 if whole else ns / 1000

    shift = trace.shift_ns(rows)
    found.node_list = [
        CPNode(node, event, us(ts + shift), start, event in graph.blocking)
        for node, (event, ts, start) in enumerate(zip(graph.event_of, graph.ts, graph.is_start))
    ]
    for (begin, end), edge in graph.edges.items():
        # HTA adds lengths below 0 up in its summary, but not along the path.
        weight, length = us(edge.weight_ns), us(max(0, edge.weight_ns))
        kept = CPEdge(begin, end, weight if rows.strict else length, edge.type)
        found.edges[begin, end] = {"weight": length, "object": kept}
        if edge.event is not None:
            found.edge_to_event_map[begin, end] = edge.event
    ids = pd.concat([graph.hosts["id"], graph.device["id"]])
    all_rows = trace.get_trace(wanted.rank)
    found.trace_df = all_rows[all_rows["index"].isin(ids)].copy()
    names = pd.Series(trace.symbols.sym_table, dtype=object)
    found.trace_df["s_name"] = found.trace_df["name"].map(names.map(short_name))
    found.trace_df["is_comm"] = found.trace_df["index"].isin(rows.of_type("COMMUNICATION")["id"])
    return found


def _longest_path(weights: dict[tuple[int, int], float]) -> list[int]:
    """The nodes of the longest path; none if edges form a circle. Of equally long ones it takes the edge that was added first,
    and the end that is the fewest edges away from a start, as HTA does."""
    after: dict[int, list[int]] = {}
    before: dict[int, list[int]] = {}
    for begin, end in weights:
        after.setdefault(begin, []).append(end)
        after.setdefault(end, [])
        before.setdefault(end, []).append(begin)
    missing = {node: len(before.get(node, ())) for node in after}
    ready = [node for node, count in missing.items() if count == 0]
    length: dict[int, float] = {}
    origin: dict[int, int] = {}
    while ready:
        following = []
        for node in ready:
            length[node] = 0
            for at, begin in enumerate(before.get(node, ())):
                if at == 0 or length[begin] + weights[begin, node] > length[node]:
                    length[node], origin[node] = length[begin] + weights[begin, node], begin
            for end in after[node]:
                missing[end] -= 1
                if missing[end] == 0:
                    following.append(end)
        ready = following
    if not length or len(length) < len(after):
        return []
    path = [max(length, key=lambda node: length[node])]
    while path[-1] in origin:
        path.append(origin[path[-1]])
    return path[::-1]
