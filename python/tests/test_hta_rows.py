"""HTA's filters of rows and its correlation with execution traces, on real traces (RANKSCOPE_DATA)."""

import gzip
import json
import os
import pathlib

import pandas as pd
import pytest
from conftest import ROOT

from rankscope import RankscopeError
from rankscope.execution_trace import add_et_column, correlate_execution_trace, load_execution_trace
from rankscope.hta import TraceAnalysis
from rankscope.trace_filter import (
    AfterOperatorFilter,
    BeforeOperatorFilter,
    CombinedOperatorFilter,
    CompositeFilter,
    CPUOperatorFilter,
    FirstIterationFilter,
    GPUKernelFilter,
    IterationFilter,
    IterationIndexFilter,
    MemCopyEventFilter,
    NameFilter,
    RankFilter,
    TimeRangeFilter,
    UnderOperatorFilter,
    ZeroDurationFilter,
)

DATA = pathlib.Path(os.environ.get("RANKSCOPE_DATA", ROOT.parent / "shared/data")) / "kineto"
pytestmark = pytest.mark.skipif(not DATA.is_dir(), reason="there are no real traces (RANKSCOPE_DATA)")


def rows_of(folder):
    trace = TraceAnalysis(trace_dir=str(DATA / folder), include_last_profiler_step=True).t
    trace.decode_symbol_ids(use_shorten_name=False)
    return trace


def test_rows_of_the_host_and_of_the_device_are_all_rows():
    """Synchronisations of a whole device have no stream, and are rows of the device where a symbol table names them."""
    trace = rows_of("event_sync")
    frame = trace.get_trace(0)
    device, host = GPUKernelFilter()(frame, trace.symbol_table), CPUOperatorFilter()(frame, trace.symbol_table)
    assert len(device[device["stream"] < 0]) == 3
    assert (host["stream"] == -1).all() and not set(host.index) & set(device.index)
    with pytest.warns(UserWarning, match="without a symbol table"):
        assert len(device) - len(GPUKernelFilter()(frame)) == 3


def test_steps_names_and_times():
    trace = rows_of("neg_queue_r0of16")
    [rank] = trace.get_ranks()
    frame = trace.get_trace(rank)
    steps = sorted(step for step in frame["iteration"].unique() if step >= 0)
    assert len(steps) > 1
    assert IterationFilter(int(steps[1]))(frame).equals(IterationIndexFilter(1)(frame))
    first = FirstIterationFilter()(frame)
    assert set(first["iteration"]) == {steps[0]}
    by_table, by_text = NameFilter("^aten::", trace.symbol_table)(frame), NameFilter("^aten::")(frame)
    assert len(by_table) > 0 and by_table.equals(by_text) and by_text["s_name"].str.startswith("aten::").all()
    start, end = int(first["ts"].min()), int(first["ts"].median())
    both = CompositeFilter([IterationIndexFilter([0]), TimeRangeFilter((start, end))])(frame)
    assert len(both) > 0 and (both["ts"] >= start).all() and (both["ts"] + both["dur"] <= end).all()
    assert (ZeroDurationFilter(frame)["dur"] > 0).all()
    copies = [name for name in frame["s_name"].unique() if name.startswith("Memcpy")]
    assert (MemCopyEventFilter(copies[0], trace.symbol_table)(frame)["s_name"] == copies[0]).all()
    assert len(RankFilter([rank])(frame.assign(rank=rank))) == len(frame)
    with pytest.warns(UserWarning, match="no column 'rank'"):
        assert RankFilter(0)(frame) is frame
    with pytest.raises(ValueError, match="the start first"):
        TimeRangeFilter((2, 1))
    with pytest.raises(TypeError, match="is no filter"):
        CompositeFilter(["aten"])


def test_rows_by_an_operator():
    trace = rows_of("alexnet_cp")
    frame = trace.get_trace(0)
    name = "aten::conv2d"
    operator = frame[frame["s_name"] == name].sort_values("ts").iloc[0]
    under = UnderOperatorFilter(name, 0)(frame)
    assert len(under) > 1 and (under["ts"] >= operator["ts"]).all() and (under["end"] <= operator["end"]).all()
    with_work = UnderOperatorFilter(name, 0, include_gpu_kernels=True)(frame)
    work = with_work[with_work["stream"] >= 0]
    assert len(work) > 0 and set(work["index_correlation"]) <= set(under["index"])
    assert (AfterOperatorFilter(name, 0)(frame)["ts"] >= operator["end"]).all()
    assert (BeforeOperatorFilter(name, -1)(frame)["end"] <= frame[frame["s_name"] == name]["ts"].max()).all()
    combined = CombinedOperatorFilter("no such range", name, "no such operator")(frame)
    first = FirstIterationFilter()(frame)
    assert combined.equals(AfterOperatorFilter(name, -1)(first))
    with pytest.warns(UserWarning, match="nothing is selected"):
        assert UnderOperatorFilter("no such range", 0)(frame).empty
    with pytest.warns(UserWarning, match="decode_symbol_ids"):
        UnderOperatorFilter(name, 0)(frame.drop(columns=["s_name"]))


def execution_trace(path, rows, chakra, shift=0):
    """An execution trace of operators, in the schema 1.0 or 1.1 (Chakra)."""
    nodes = [{"id": 1, "name": "[pytorch|profiler|execution_trace|process]", "rf_id": 0}]
    for at, (external, name) in enumerate(rows, 2):
        schema, number = f"{name}(Tensor self) -> Tensor", int(external) + shift
        if chakra:
            attributes = [{"name": "rf_id", "type": "uint64", "value": number}, {"name": "op_schema", "type": "string", "value": schema}]
            sides = {"values": [], "shapes": [[at]], "types": ["Tensor(float)"]}
            nodes.append({"id": at, "name": name, "attrs": attributes, "inputs": sides, "outputs": sides})
        else:
            lists = {f"{side}_{what}": [[at]] if what == "shapes" else ["Tensor(float)"] for side in ("input", "output") for what in ("shapes", "types")}
            nodes.append({"id": at, "name": name, "rf_id": number, "op_schema": schema, "inputs": [], "outputs": [], **lists})
    with gzip.open(path, "wt") as file:
        json.dump({"schema": "1.1.0-chakra.0.0.4" if chakra else "1.0.1", "nodes": nodes}, file)
    return str(path)


@pytest.mark.parametrize("chakra", [False, True])
def test_operators_get_the_properties_of_their_nodes(tmp_path, chakra):
    trace = rows_of("simple_add")
    frame = trace.get_trace(0)
    operators = frame[frame["s_cat"].eq("cpu_op") & frame["external_id"].gt(0)]
    known = operators.iloc[: len(operators) // 2]
    rows = list(zip(known["external_id"], known["s_name"]))
    et = load_execution_trace(execution_trace(tmp_path / "et.json.gz", rows, chakra))
    correlate_execution_trace(trace, 0, et)
    assert frame["et_node"].notna().sum() == len(known)
    for column in ("et_node_name", "op_schema", "input_shapes", "output_types"):
        add_et_column(frame, et, column)
    found = frame.loc[known.index]
    assert (found["et_node_name"] == known["s_name"]).all()
    assert found["input_shapes"].tolist() == [[[at]] for at in range(2, len(known) + 2)]
    assert frame["op_schema"].notna().sum() == len(known) and found["output_types"].iloc[0] == ["Tensor(float)"]
    with pytest.raises(RankscopeError, match="is no property of nodes"):
        add_et_column(frame, et, "colour")


def test_an_execution_trace_of_another_iteration_is_refused(tmp_path):
    trace = rows_of("simple_add")
    frame = trace.get_trace(0)
    operators = frame[frame["s_cat"].eq("cpu_op") & frame["external_id"].gt(0)]
    rows = list(zip(operators["external_id"], operators["s_name"]))
    for shift in (3, 1_000_000):
        et = load_execution_trace(execution_trace(tmp_path / "et.json.gz", rows, False, shift))
        with pytest.raises(RankscopeError, match="in the same iteration"):
            correlate_execution_trace(trace, 0, et)
    assert "et_node" not in frame
    with pytest.raises(RankscopeError, match="call correlate_execution_trace first"):
        add_et_column(pd.DataFrame({"name": [1]}), et, "op_schema")
    for content in (b"[]", b"{}", b"no JSON"):
        other = tmp_path / "other.json"
        other.write_bytes(content)
        with pytest.raises(RankscopeError, match=r"other\.json: it is no execution trace"):
            load_execution_trace(str(other))
