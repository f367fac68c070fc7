"""The calls of HTA's `hta.common.execution_trace`: the operators of a trace get what an execution trace knows of their inputs and outputs.

PyTorch's `ExecutionTraceObserver` writes execution traces. A node of an execution trace has the number of the record function that made it (`rf_id`), and so has a row of a trace, as its
external id, where both were recorded in the same iteration."""

from __future__ import annotations

import gzip
import json
import os
from dataclasses import dataclass, field
from typing import Any

from rankscope._errors import RankscopeError
from rankscope._hta_trace import Trace
from rankscope._numeric import pd

#: The categories of rows that record functions make.
_CATEGORIES = ("cpu_op", "user_annotation")
#: Nodes of the observer itself.
_OWN_NODES = ("execution_trace|thread", "execution_trace|process")


@dataclass
class Node:
    """An operator or a range of an execution trace."""

    id: int
    name: str
    rf_id: int | None = None
    op_schema: str = ""
    input_shapes: list[Any] = field(default_factory=list)
    input_types: list[Any] = field(default_factory=list)
    output_shapes: list[Any] = field(default_factory=list)
    output_types: list[Any] = field(default_factory=list)


@dataclass
class ExecutionTrace:
    """The nodes of an execution trace by their ids."""

    nodes: dict[int, Node]
    schema: str = ""


def _node(given: dict[str, Any]) -> Node:
    """A node of either schema: 1.0 has its properties as members, and 1.1 (Chakra) in lists."""
    attributes = {item["name"]: item.get("value") for item in given.get("attrs", [])}
    known = {**given, **attributes}
    sides: dict[str, list[Any]] = {}
    for side in ("input", "output"):
        lists = given.get(f"{side}s")
        of_side = lists if isinstance(lists, dict) else {}
        for what in ("shapes", "types"):
            sides[f"{side}_{what}"] = of_side.get(what, given.get(f"{side}_{what}", []))
    return Node(given["id"], given.get("name", ""), known.get("rf_id"), known.get("op_schema", ""), **sides)


def load_execution_trace(et_file: str) -> ExecutionTrace:
    """Reads an execution trace, `.json` or `.json.gz`.

    Raises `RankscopeError` if the file is none."""
    path = os.path.expanduser(et_file)
    try:
        with gzip.open(path, "rb") if path.endswith("gz") else open(path, "rb") as file:
            content = json.load(file)
        nodes = [_node(node) for node in content["nodes"]]
    except (OSError, EOFError, ValueError, KeyError, TypeError, AttributeError) as error:
        msg = f"{et_file}: it is no execution trace of PyTorch ({type(error).__name__}: {error})"
        raise RankscopeError(msg) from error
    return ExecutionTrace({node.id: node for node in nodes}, str(content.get("schema", "")))


def correlate_execution_trace(trace: Trace, rank: int, et: ExecutionTrace) -> None:
    """Adds the column `et_node` to the rows of a rank: the id of the node of an operator or range; missing for other rows.

    Raises `RankscopeError` if both were not recorded at the same time: no row has the number of a node, or their numbers are of others."""
    frame = trace.get_trace(rank)
    own = [node for node in et.nodes.values() if node.rf_id is not None and not any(name in node.name for name in _OWN_NODES)]
    numbers = trace.symbols.get_sym_id_map()
    is_made = frame["cat"].isin([numbers[name] for name in _CATEGORIES if name in numbers])
    by_number = pd.Series({node.rf_id: node.id for node in own}, dtype="Int64")
    nodes = frame["external_id"].where(is_made, -1).map(by_number).astype("Int64")
    names = pd.Series({node.id: node.name for node in own}, dtype=object)
    texts = pd.Series(trace.symbols.get_sym_table(), dtype=object)
    found = nodes.dropna()
    same = found.map(names).eq(frame["name"].reindex(found.index).map(texts))
    if found.empty or same.mean() < 0.5:
        msg = (
            f"rank {rank}: {len(found)} of {int(is_made.sum())} operators and ranges have the number of a node, and {int(same.sum())} have its "
            "name, too; record the trace and the execution trace in the same iteration"
        )
        raise RankscopeError(msg)
    frame["et_node"] = nodes


def add_et_column(trace_df: pd.DataFrame, et: ExecutionTrace, column: str) -> None:
    """Adds a property of the nodes to rows that `correlate_execution_trace` gave them: `op_schema`, `input_shapes`, `input_types`,
    `output_shapes`, `output_types` or `et_node_name`."""
    attribute = {"et_node_name": "name"}.get(column, column)
    if attribute == "id" or attribute not in Node.__dataclass_fields__:
        msg = f"{column!r} is no property of nodes"
        raise RankscopeError(msg)
    if "et_node" not in trace_df:
        msg = "the rows have no nodes: call correlate_execution_trace first"
        raise RankscopeError(msg)
    values = {node.id: getattr(node, attribute) for node in et.nodes.values()}
    trace_df[column] = [values.get(node) if pd.notna(node) else None for node in trace_df["et_node"]]
