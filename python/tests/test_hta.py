"""HTA's API: its numbers on real traces (RANKSCOPE_DATA), and where rankscope is right and HTA is not."""

import gzip
import json
import os
import pathlib
import shutil
import subprocess
import sys

import numpy as np
import pandas as pd
import pytest
from conftest import ROOT

from rankscope import RankscopeError, RankscopeWarning
from rankscope.hta import (
    CUDA_SASS_INSTRUCTION_COUNTER_FLOPS,
    DeviceType,
    LabeledTrace,
    TimeSeriesTypes,
    TraceAnalysis,
    TraceDiff,
)

DATA = pathlib.Path(os.environ.get("RANKSCOPE_DATA", ROOT.parent / "shared/data"))
pytestmark = pytest.mark.skipif(not (DATA / "expected_hta").is_dir(), reason="there are no real traces (RANKSCOPE_DATA)")
#: Whole µs and one step: HTA neither rounds nor filters, so all its numbers are right but those of its known errors.
EXACT = "dlrm8"


@pytest.fixture(scope="module")
def dlrm8():
    return TraceAnalysis(trace_dir=str(DATA / "kineto" / EXACT), include_last_profiler_step=True)


def expected(name, folder=EXACT, **options):
    return pd.read_csv(DATA / "expected_hta" / folder / f"{name}.csv", **options)


def same(found, wanted, keys, **tolerance):
    wanted = wanted[list(found.columns)].sort_values(keys, ignore_index=True)
    found = found.sort_values(keys, ignore_index=True)
    pd.testing.assert_frame_equal(found, wanted, check_dtype=False, **tolerance)


def test_breakdowns_are_htas(dlrm8):
    """Invariant (python): HTA's API gives HTA's numbers where HTA is right."""
    same(dlrm8.get_temporal_breakdown(visualize=False), expected("temporal_breakdown"), ["rank"])
    same(dlrm8.get_comm_comp_overlap(visualize=False), expected("comm_comp_overlap"), ["rank"])
    by_type, by_name = dlrm8.get_gpu_kernel_breakdown(visualize=False, num_kernels=1_000_000, duration_ratio=1.0)
    same(by_type, expected("kernel_breakdown_full.0"), ["kernel_type"])
    same(by_name, expected("kernel_breakdown_full.1"), ["kernel_type", "name", "rank"])
    idle, stats = dlrm8.get_idle_time_breakdown(ranks=list(range(8)), visualize=False)
    assert stats is None
    # HTA takes the trace's first row for the launch of a kernel whose launch was not recorded.
    orphans = [
        (rank, stream)
        for rank in range(8)
        for stream, work in dlrm8._of(rank).work.groupby("stream")
        if not work["correlation"].isin(dlrm8._of(rank).host["correlation"]).all()
    ]
    assert 0 < len(orphans) < 8

    def without_orphans(frame):
        return frame[~pd.MultiIndex.from_frame(frame[["rank", "stream"]]).isin(orphans)]

    wanted = expected("idle_time.0")
    same(without_orphans(idle), without_orphans(wanted), ["rank", "stream", "idle_category"])
    assert idle.groupby(["rank", "stream"])["idle_time"].sum().equals(
        wanted.groupby(["rank", "stream"])["idle_time"].sum().astype("int64")
    )


def test_annotations_are_htas(dlrm8):
    found = dlrm8.get_gpu_user_annotation_breakdown(use_gpu_annotation=False, visualize=False)
    same(found, expected("user_annotation_breakdown_cpu"), ["rank", "name"])
    assert dlrm8.get_gpu_user_annotation_breakdown(visualize=False) is None


def test_launches_and_queues_are_htas(dlrm8):
    """Invariant (python): HTA's API gives HTA's numbers where HTA is right."""
    wanted = expected("kernel_launch_stats")
    ranks = sorted(wanted["rank"].unique())
    for rank, found in dlrm8.get_cuda_kernel_launch_stats(ranks=ranks, visualize=False).items():
        same(found, wanted[wanted["rank"] == rank], ["correlation"])
    wanted = expected("memory_bw_summary", header=[0, 1], index_col=[0, 1])
    found = dlrm8.get_memory_bw_summary(ranks=list(range(8)))
    pd.testing.assert_frame_equal(found, wanted, check_dtype=False, check_index_type=False, rtol=1e-9)

    wanted = expected("queue_length_summary", header=[0, 1], index_col=[0, 1])["queue_length"]
    series = dlrm8.get_queue_length_time_series(ranks=list(range(8)))
    found = dlrm8.get_queue_length_summary_from_time_series(series)["queue_length"]
    assert found.index.tolist() == wanted.index.tolist()
    ours = dlrm8.analysis.queue_length.to_pandas().set_index(["rank", "stream_id"])
    assert found["mean"].to_numpy() == pytest.approx(ours["mean_length"].to_numpy())
    for (rank, stream), row in found.iterrows():
        points = series[rank][series[rank]["stream"] == stream]
        changes = points.assign(change=points["queue_length"].diff().fillna(points["queue_length"]))
        # The order that HTA gives to a launch and a start at the same time is by chance: between these two.
        extremes = [
            changes.sort_values(["ts", "change"], ascending=[True, starts_first])["change"].cumsum().mean()
            for starts_first in (True, False)
        ]
        theirs = wanted.loc[(rank, stream)]
        assert row["count"] == theirs["count"] and extremes[0] - 1e-9 <= theirs["mean"] <= extremes[1] + 1e-9


@pytest.mark.parametrize(
    "folder", ["event_sync", "gpu_user_anno", "neg_queue_r0of16", "resnet50_2021", "sampled_2of128", "torchrec4_long_a2a"]
)
def test_strict_breakdowns_are_htas(folder):
    # Whole µs. Of several steps, HTA leaves out work whose launch was not recorded, also with the last step.
    strict = TraceAnalysis(trace_dir=str(DATA / "kineto" / folder), include_last_profiler_step=True, strict_hta=True)
    ranks = strict._ranks
    same(strict.get_temporal_breakdown(visualize=False), expected("temporal_breakdown", folder), ["rank"])
    same(strict.get_comm_comp_overlap(visualize=False), expected("comm_comp_overlap", folder), ["rank"])
    by_type, by_name = strict.get_gpu_kernel_breakdown(visualize=False, num_kernels=1_000_000, duration_ratio=1.0)
    same(by_type, expected("kernel_breakdown_full.0", folder), ["kernel_type"])
    same(by_name, expected("kernel_breakdown_full.1", folder), ["kernel_type", "name", "rank"])
    idle, _ = strict.get_idle_time_breakdown(ranks=ranks, visualize=False)
    same(idle, expected("idle_time.0", folder), ["rank", "stream", "idle_category"])
    wanted = expected("kernel_launch_stats", folder)
    for rank, found in strict.get_cuda_kernel_launch_stats(ranks=ranks, visualize=False).items():
        same(found, wanted[wanted["rank"] == rank], ["correlation", "gpu_duration"])


def test_lost_rows_are_a_warning(tmp_path):
    [trace] = (DATA / "kineto/event_sync").glob("*.json.gz")
    text = gzip.open(trace).read()
    (tmp_path / "rank0.json").write_bytes(text[: len(text) * 2 // 3])
    cut = TraceAnalysis(trace_dir=str(tmp_path))
    with pytest.warns(RankscopeWarning, match="the file ends inside an event"):
        assert len(cut.get_temporal_breakdown(visualize=False)) == 1
    with pytest.raises(RankscopeError, match="there is no trace of rank 5"):
        cut.get_idle_time_breakdown(ranks=[5], visualize=False)


def test_stragglers(dlrm8):
    strict = TraceAnalysis(
        trace_dir=str(DATA / "kineto" / EXACT), include_last_profiler_step=True, strict_hta=True
    )
    assert sorted(strict.get_potential_stragglers()) == [2, 7]
    # One step is not enough for a verdict: nobody is blamed without a cause.
    assert dlrm8.analysis.verdict.ranks == []
    torchrec = TraceAnalysis(trace_dir=str(DATA / "kineto/torchrec4_long_a2a"), include_last_profiler_step=True)
    assert torchrec.get_potential_stragglers() == [2]


def test_statistics_of_kernels_are_right_where_htas_are_not(dlrm8):
    _, few = dlrm8.get_gpu_kernel_breakdown(visualize=False, num_kernels=3)
    _, all_names = dlrm8.get_gpu_kernel_breakdown(visualize=False, num_kernels=1_000_000)
    kept = few[few["name"] != "others"].merge(all_names, on=["kernel_type", "name", "rank"], suffixes=("", "_all"))
    assert len(kept) > 8 and (few["name"] == "others").any()
    for column in ("sum (us)", "max (us)", "min (us)", "mean (us)", "stddev"):
        assert (kept[column] == kept[f"{column}_all"]).all()
    rows = dlrm8._of(0).of_type("COMPUTATION")
    other = few[(few["name"] == "others") & (few["kernel_type"] == "COMPUTATION") & (few["rank"] == 0)].iloc[0]
    shown = few[(few["kernel_type"] == "COMPUTATION") & (few["rank"] == 0)]["name"]
    calls = rows[~rows["name"].isin(shown)]["dur"] / 1000
    found = other[["max (us)", "min (us)", "mean (us)", "stddev"]].to_numpy(float)
    assert found == pytest.approx([calls.max(), calls.min(), calls.mean(), calls.std()])
    assert few.groupby("kernel_type")["sum (us)"].sum().equals(all_names.groupby("kernel_type")["sum (us)"].sum())


def test_names_of_two_recordings_are_compared(dlrm8):
    """Against sums over the rows: rank 1 and rank 0 of one job."""
    both = TraceDiff.compare_traces(dlrm8.t, dlrm8.t, control_rank=0, test_rank=1)
    for label, rank in (("Control", 0), ("Test", 1)):
        rows = dlrm8.t.get_trace(rank)
        if steps := LabeledTrace(t=dlrm8.t).iterations():
            rows = rows[rows["iteration"].eq(steps[0])]
        assert both[f"{label}_counts"].sum() == len(rows)
        assert both[f"{label}_total_duration"].sum() == pytest.approx(rows["dur"].sum())
    assert (both["diff_counts"] == both["Test_counts"] - both["Control_counts"]).all()
    assert set(both["counts_change_categories"]) <= {"+", "-", "="}
    changes = TraceDiff.ops_diff(dlrm8.t, dlrm8.t, control_rank=0, test_rank=1)
    assert sorted(name for names in changes.values() for name in names) == sorted(both.index)
    same = TraceDiff.ops_diff(dlrm8.t, dlrm8.t)
    assert [kind for kind, names in same.items() if names] == ["unchanged"]
    gpu = TraceDiff.compare_traces(dlrm8.t, dlrm8.t, device_type=DeviceType.GPU, use_short_name=True)
    assert 0 < len(gpu) < len(both) and (gpu["diff_duration"] == 0).all()
    with pytest.raises(ValueError, match="99 is no rank of Test"):
        TraceDiff.compare_traces(dlrm8.t, dlrm8.t, test_rank=99)


def test_a_plot_without_plotly_is_an_error(dlrm8, monkeypatch):
    monkeypatch.setitem(sys.modules, "plotly", None)
    with pytest.raises(ImportError, match=r"pip install plotly.*visualize=False"):
        dlrm8.get_temporal_breakdown()


def test_the_tables_of_the_analysis_say_the_same(dlrm8):
    temporal = dlrm8.get_temporal_breakdown(visualize=False)
    table = dlrm8.analysis.hta_temporal_breakdown.to_pandas()
    for name in ("idle_time", "compute_time", "non_compute_time", "kernel_time"):
        assert (temporal[f"{name}(us)"] * 1000).tolist() == table[f"{name}_ns"].tolist()
    table = dlrm8.analysis.step_breakdown_total.to_pandas()
    table = table[table["device_id"].notna()]
    overlap = dlrm8.get_comm_comp_overlap(visualize=False)["comp_comm_overlap_pctg"]
    assert overlap.tolist() == table["overlap_pct"].round(2).tolist()
    by_type, by_name = dlrm8.get_gpu_kernel_breakdown(visualize=False, num_kernels=1_000_000)
    table = dlrm8.analysis.kernel_stats.to_pandas().groupby(["rank", "name"])[["total_ns", "max_ns"]].sum()
    found = by_name.set_index(["rank", "name"])[["sum (us)", "max (us)"]].sort_index() * 1000
    assert found.to_numpy().tolist() == table.sort_index().to_numpy().tolist()
    assert by_type["sum"].sum() * 1000 == dlrm8.analysis.kernel_breakdown.to_pandas()["total_ns"].sum()


@pytest.mark.parametrize("folder", sorted(path.name for path in (DATA / "expected_ref").glob("*")))
def test_breakdown_and_overlap_are_those_of_an_independent_sweep(folder):
    """Invariant (python): HTA's API gives HTA's numbers where HTA is right."""
    wanted = pd.read_csv(DATA / "expected_ref" / folder / "temporal_overlap_ref.csv").sort_values("rank", ignore_index=True)
    found = TraceAnalysis(trace_dir=str(DATA / "kineto" / folder), include_last_profiler_step=True)
    temporal = found.get_temporal_breakdown(visualize=False)
    assert temporal["rank"].tolist() == wanted["rank"].tolist()
    # Ours are exact sums. Each time of the sweep is a float of about 10¹² µs, or 10¹⁵ in one trace, whose last digit is so large:
    digit_us = 0.25 if folder == "ns_resolution" else 0.00025
    error = np.maximum(wanted["n"].to_numpy(), 10) * digit_us
    pairs = [("kernel", "kernel_time"), ("idle", "idle"), ("compute", "compute"), ("non_compute", "noncompute")]
    # Here kernels communicate that are not called nccl, which the sweep takes for computation.
    by_names = folder == "b200_r0of8"
    for ours, theirs in pairs[:2] if by_names else pairs:
        assert (np.abs(temporal[f"{ours}_time(us)"].to_numpy() - wanted[theirs].to_numpy()) <= error).all(), theirs
    if by_names:
        return
    overlap = found.get_comm_comp_overlap(visualize=False)["comp_comm_overlap_pctg"].to_numpy()
    assert overlap == pytest.approx(wanted["overlap"].to_numpy(), abs=0.0051, nan_ok=True)


def test_operators_and_delays(dlrm8):
    found = dlrm8.get_aten_op_kernels_and_delay()[0]
    assert list(found.columns) == [
        "aten_op_name", "kernel_sequence", "occurrence_count", "avg_aten_op_launch_delay", "avg_runtime_delay",
    ]
    assert found["occurrence_count"].is_monotonic_decreasing and found["aten_op_name"].str.startswith("aten::").all()
    assert (found["avg_aten_op_launch_delay"] >= 0).all()
    assert dlrm8.get_profiler_steps() == sorted(dlrm8.get_profiler_steps())


def test_annotated_kernels_are_htas():
    traces = TraceAnalysis(trace_dir=str(DATA / "kineto/gpu_user_anno"))
    found = traces.get_gpu_kernels_with_user_annotations(0)
    # HTA before 0.6 spells the argument otherwise.
    whole = traces.get_gpu_kernels_with_user_annotations(0, shorten_names=False)
    assert whole.equals(traces.get_gpu_kernels_with_user_annotations(0, shortern_names=False)) and not whole.equals(found)
    # HTA 0.5.0's numbers.
    sums = found.groupby("s_user_annotation")["dur"].agg(["count", "sum"])
    assert sums.T.to_dict("list") == {
        "": [100, 211], "Optimizer.step#SGD.step": [20, 40], "Optimizer.zero_grad#SGD.zero_grad": [20, 40],
    }
    first, third = found.iloc[0], found.iloc[2]
    assert [first["ts"], first["dur"], first["end"], first["correlation"], first["iteration"]] == [2253, 1, 2254, 224985, -1]
    assert (third["ts"], third["s_name"]) == (2385, "at::native::vectorized_elementwise_kernel")
    assert first["user_annotation"] == -1 and third["s_cat"] == "kernel"


def test_sequences_are_htas(dlrm8, tmp_path):
    # HTA 0.5.0's numbers with pandas 2: kernels, calls, sums of durations on the GPU and of operators.
    wanted = {
        ("aten::linear", 2): [(2, 2, 30, 100), (3, 1, 12, 61)],
        ("Optimizer", 3): [(64, 1, 209, 1375)],
        ("autograd::engine", 3): [(3, 3, 65, 316), (4, 2, 60, 241), (3, 1, 12, 118), (11, 1, 546, 509)],
    }
    for (operator, least), rows in wanted.items():
        found = dlrm8.get_frequent_cuda_kernel_sequences(operator, str(tmp_path), min_pattern_len=least)
        assert list(found.columns) == ["pattern", "count", "GPU kernel duration (us)", "CPU op duration (us)"]
        assert [(text.count("|"), *row) for text, *row in found.head(4).itertuples(index=False)] == rows
    assert len(found) == 8
    [overlaid] = tmp_path.iterdir()
    events = json.loads(gzip.open(overlaid).read())["traceEvents"]
    marked = [row for row in events if "Patterns" in (row.get("args") or {})]
    assert sum(row["name"].startswith("autograd::engine") for row in marked) == found["count"][:5].sum()
    assert dlrm8.get_frequent_cuda_kernel_sequences("no such operator", str(tmp_path)).empty
    with pytest.raises(RankscopeError):
        dlrm8.get_frequent_cuda_kernel_sequences("aten::linear", str(tmp_path / "none"))


def test_a_row_whose_id_stands_for_none_has_no_rows_inside(dlrm8):
    rows = dlrm8._recorded.rows(0, False, False)
    ids = rows.all["id"]
    rows.all = rows.all.assign(id=ids.where(ids.ne(ids.iloc[0]), -1))
    assert -1 in rows.host["id"].to_numpy()
    assert rows.depths.index.min() >= 0
    assert rows.depths.max() > 0


def test_counters_are_added(dlrm8, tmp_path):
    shutil.copytree(DATA / "kineto" / EXACT, tmp_path / EXACT)
    copy = TraceAnalysis(trace_dir=str(tmp_path / EXACT), include_last_profiler_step=True)
    copy.generate_trace_with_counters(TimeSeriesTypes.QUEUE_LENGTH)
    [path] = (tmp_path / EXACT).glob("*_with_counters.json.gz")
    events = json.loads(gzip.open(path).read())["traceEvents"]
    found = [row for row in events if row.get("ph") == "C"]
    assert len(found) == len(copy.get_queue_length_time_series()[0]) and found[0]["args"] == {"Queue Length": 1}
    launches = {row["ts"] for row in events if row.get("name", "").startswith(("cudaLaunch", "cudaMem"))}
    assert found[0]["ts"] in launches
    assert dlrm8.get_cupti_counter_data_with_operators() == []


def test_counters_are_htas(tmp_path):
    folder = "neg_queue_r0of16"
    shutil.copytree(DATA / "kineto" / folder, tmp_path / folder)
    copy = TraceAnalysis(trace_dir=str(tmp_path / folder), include_last_profiler_step=True, strict_hta=True)
    copy.generate_trace_with_counters()
    events = json.loads(gzip.open(tmp_path / folder / "rank0_with_counters.json.gz").read())["traceEvents"]
    rows = [(row["name"], row["ts"], *row["args"].values()) for row in events if row.get("ph") == "C"]
    found = pd.DataFrame(rows, columns=["name", "ts", "value"])
    found["ts"] -= found["ts"].min()
    found = found.groupby("name").agg(count=("ts", "size"), ts=("ts", "sum"), value=("value", "sum")).T.to_dict("list")
    # The counters in HTA 0.6.1's file: how many, and the sums of times (since the first one) and values.
    wanted = {
        "Memcpy DtoD": [2280, 1489647312, 167363.036],
        "Memcpy DtoH": [60, 32158998, 3.761],
        "Memcpy HtoD": [160, 82982995, 386.56],
        "Memset": [500, 333885437, 103.421],
        "Queue Length": [13060, 8276369951, 8028524],
    }
    # Where a launch and a start are at one time, their order is by chance in HTA. 60 times the start comes first there, so that
    # the length is one less than before, and not one more.
    wanted["Queue Length"][2] += 60 * 2
    assert found == {name: pytest.approx(values, rel=0, abs=5.1e-4) for name, values in wanted.items()}


def row(cat, name, ts, dur=1, **args):
    """An event of a trace; times in µs."""
    return {"ph": "X", "cat": cat, "name": name, "pid": 1, "tid": 1, "ts": ts, "dur": dur, "args": args}


def test_counters_of_kernels_have_their_operators(tmp_path):
    assert sorted(CUDA_SASS_INSTRUCTION_COUNTER_FLOPS.values()) == [1, 1, 1, 1, 1, 1, 2, 2, 2]
    [counter, *_] = CUDA_SASS_INSTRUCTION_COUNTER_FLOPS

    rows = [
        row("user_annotation", "ProfilerStep#1", 0, 100),
        row("cpu_op", "aten::linear", 10, 40),
        row("cpu_op", "aten::mm", 15, 20),
        row("cuda_runtime", "cudaLaunchKernel", 20, 5, correlation=1),
        row("cuda_runtime", "cudaLaunchKernel", 60, 5, correlation=2),
        row("cuda_profiler_range", "gemm", 70, 10, **{counter: 7}),
        row("cuda_profiler_range", "relu", 90, 5, **{counter: 9}),
    ]
    trace = tmp_path / "rank0.json"
    trace.write_text(json.dumps({"distributedInfo": {"rank": 0, "world_size": 1}, "traceEvents": rows}))
    [found] = TraceAnalysis(trace_dir=str(tmp_path)).get_cupti_counter_data_with_operators()
    assert found["op_stack"].tolist() == [["aten::linear", "aten::mm"], []] and found[counter].tolist() == [7, 9]
    assert found["top_level_op"].tolist() == ["aten::linear", ""] and found["bottom_level_op"].tolist() == ["aten::mm", ""]
    trace.write_text(json.dumps({"distributedInfo": {"rank": 0, "world_size": 1}, "traceEvents": rows[:-1]}))
    with pytest.raises(RankscopeError, match="1 rows of counters and 2 launches"):
        TraceAnalysis(trace_dir=str(tmp_path)).get_cupti_counter_data_with_operators()


def test_the_window_ends_where_the_last_step_begins(tmp_path):
    """Kernels count with their launches; d, e and f have none.

    step      1─────────2─────────
    launch      a    b    c
    kernel        a  f d b     c   e
    """

    def kernel(name, ts, **args):
        return row("kernel", name, ts, device=0, stream=7, **args)

    def launch(ts, correlation):
        return row("cuda_runtime", "cudaLaunchKernel", ts, correlation=correlation)

    rows = [
        row("Trace", "PyTorch Profiler (0)", 50, 500),
        row("user_annotation", "ProfilerStep#1", 100, 100),
        row("user_annotation", "ProfilerStep # 2", 200, 100),
        *(launch(ts, at) for at, ts in enumerate((130, 180, 240))),
        *(kernel(name, ts, correlation=at) for at, (name, ts) in enumerate(zip("abc", (160, 220, 290)))),
        kernel("d", 210),
        kernel("e", 350),
        kernel("f", 190),
        row("gpu_user_annotation", "mark", 300, device=0, stream=7),
    ]
    (tmp_path / "rank0.json").write_text(json.dumps({"traceEvents": rows}))

    def names(**options):
        found = TraceAnalysis(trace_dir=str(tmp_path), **options)._of(0)
        assert (found.base_ns, found.steps) == (100_000, [1, 2])
        assert found.device["launch"].isin((-1, 30_000, 80_000, 140_000)).all()
        on_host = found.all["device_id"].lt(0) & found.all["stream"].lt(0)
        assert found.host.equals(found.all[on_host]) and found.host["ts"].is_monotonic_increasing
        assert found.device.equals(found.all[found.all["kind"].eq("kernel")]) and found.device["ts"].is_monotonic_increasing
        return set(found.all["name"]) - {"PyTorch Profiler (0)", "ProfilerStep#1", "cudaLaunchKernel"}

    assert names() == {"a", "b", "f"}
    assert names(strict_hta=True) == {"a", "b", "mark"}
    everything = {*"abcdef", "mark", "ProfilerStep # 2"}
    assert names(include_last_profiler_step=True) == everything
    assert names(include_last_profiler_step=True, strict_hta=True) == everything - {"d", "e", "f"}


def test_a_trace_without_work_or_operators_has_empty_frames(tmp_path):
    rows = [
        row("cuda_runtime", "cudaLaunchKernel", 10, correlation=1),
        row("cuda_runtime", "cudaLaunchKernel", 20, correlation=2),
    ]
    (tmp_path / "rank0.json").write_text(json.dumps({"traceEvents": rows}))
    assert all(frame.empty for frame in TraceAnalysis(trace_dir=str(tmp_path)).get_gpu_kernel_breakdown(visualize=False))
    rows.append(row("kernel", "gemm", 40, device=0, stream=7, correlation=1))
    (tmp_path / "rank0.json").write_text(json.dumps({"traceEvents": rows}))
    analysis = TraceAnalysis(trace_dir=str(tmp_path))
    assert len(analysis.get_cuda_kernel_launch_stats(visualize=False)[0]) == 1
    assert analysis.get_aten_op_kernels_and_delay()[0].empty


def test_pandas_is_imported_while_the_first_rows_are_read():
    program = """
import sys
from rankscope import _hta_rows, _numeric, hta

class Reading(Exception):
    pass

class Native:
    ranks = [0]

    def __init__(self, paths):
        pass

    def problems(self):
        return "[]"

    def rows(self, *_, beside):
        assert beside is _numeric.import_pandas and "pandas" not in sys.modules
        raise Reading

_hta_rows._rankscope.NativeRecorded = Native
for method in sys.argv[1:]:
    try:
        getattr(hta.TraceAnalysis(trace_dir="any"), method)()
    except Reading:
        continue
    raise AssertionError(f"{method} reads no rows")
"""
    methods = [
        "get_temporal_breakdown",
        "get_comm_comp_overlap",
        "get_gpu_kernel_breakdown",
        "get_gpu_user_annotation_breakdown",
        "get_idle_time_breakdown",
        "get_cuda_kernel_launch_stats",
        "get_queue_length_time_series",
        "get_queue_length_summary",
        "get_memory_bw_summary",
        "get_aten_op_kernels_and_delay",
        "get_profiler_steps",
    ]
    subprocess.run([sys.executable, "-c", program, *methods], check=True)
