"""HTA's critical path: its numbers on real traces (RANKSCOPE_DATA), and where rankscope is right and HTA is not."""

import gzip
import json
import warnings

import pandas as pd
import pytest
from test_hta import DATA

from rankscope import RankscopeError, RankscopeWarning
from rankscope.hta import CPEdgeType, CPGraph, TraceAnalysis, restore_cpgraph

pytestmark = pytest.mark.skipif(not (DATA / "expected_hta").is_dir(), reason="there are no real traces (RANKSCOPE_DATA)")
#: Whole µs and rows that nest: HTA neither rounds nor counts lengths below 0.
EXACT = ["dlrm8", "event_sync", "neg_queue_r0of16", "sampled_2of128"]


def traces(folder, **options):
    return TraceAnalysis(trace_dir=str(DATA / "kineto" / folder), include_last_profiler_step=True, **options)


def path_of(analysis, rank=0, annotation="ProfilerStep", instance=0, **options):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RankscopeWarning)
        graph, is_found = analysis.critical_path_analysis(rank, annotation, instance, **options)
    assert is_found and isinstance(graph, CPGraph)
    return graph


def differences(analysis, folder):
    """For each rank the largest difference of a share from HTA's, in percentage points."""
    wanted = pd.read_csv(DATA / "expected_hta" / folder / "critical_path_summary.csv", index_col="rank")
    wanted = wanted.rename(columns={"Unnamed: 1": ""}).fillna(0.0)
    assert wanted.index.tolist() == analysis._ranks
    found = {rank: path_of(analysis, rank).summary() for rank in wanted.index}
    frame = pd.DataFrame(found).T.reindex(columns=wanted.columns).fillna(0.0)
    assert frame.sum(axis=1).to_numpy() == pytest.approx(100)
    return (frame - wanted).abs().max(axis=1).tolist()


@pytest.mark.parametrize("folder", EXACT)
def test_summary_is_htas(folder):
    """Invariant (python): HTA's API gives HTA's numbers where HTA is right."""
    assert max(differences(traces(folder), folder)) < 1e-9


def test_strict_summary_is_htas_where_rows_overlap():
    folder = "torchrec4_long_a2a"
    assert max(differences(traces(folder, strict_hta=True), folder)) < 1e-9
    right = traces(folder)
    assert max(differences(right, folder)) > 50
    for rank in (0, 1, 3):
        graph = path_of(right, rank)
        rows = right._of(rank)
        step = rows.all[rows.all["name"].eq("ProfilerStep#4") & rows.all["kind"].eq("user_annotation")].iloc[0]
        # Ranks wait 1.005 s for rank 2 in this step. No path is longer than its window.
        assert 1_005_000 < graph.get_critical_path_breakdown()["duration"].sum() < step["dur"] / 1000
        assert graph.summary()["gpu_communication_bound"] == pytest.approx(97.5, abs=0.1)


@pytest.mark.parametrize(
    "folder, rank, wanted",
    [
        ("megatron_tp2", 1, (9.645068711, 89.001968127, 1.327038906, 0.025924255)),
        ("ns_resolution", 0, (2.345084097, 96.618884299, 1.026814050, 0.009217554)),
    ],
)
def test_summary_is_that_of_hta_without_rounding(folder, rank, wanted):
    # HTA 0.6.1 with HTA_DISABLE_NS_ROUNDING=1. Its times are floats whose last digit is up to 0.25 µs of 0.5 s.
    found = path_of(traces(folder), rank).summary().drop("")
    work = "gpu_communication_bound" if folder == "megatron_tp2" else "gpu_compute_bound"
    overheads = ["gpu_kernel_kernel_overhead", "gpu_kernel_launch_overhead"]
    assert found[["cpu_bound", work, *overheads]].tolist() == pytest.approx(wanted, abs=2e-4)


def test_host_ranges_that_load_data_count():
    analysis = traces("torchrec4_long_a2a")
    # Time of the host outside operators counts nothing, so that the path misses the second in this range of rank 2.
    assert path_of(analysis, 2).get_critical_path_breakdown()["duration"].sum() < 50_000
    found = path_of(analysis, 2, data_load_events=["running sparse arch"])
    assert found.summary()["data_loading"] > 90


def test_edges_are_of_the_rows():
    analysis = traces("event_sync")
    graph = path_of(analysis)
    assert len(graph.edges) == 57 and len(graph.critical_path_nodes) == 40
    [kernel] = graph.trace_df.index[graph.trace_df["s_name"].str.contains("spin_kernel")]
    synchronised = [graph.get_nodes_for_event(kernel)[1].idx]
    calls = {
        graph._get_node_name(graph.node_list[v].ev_idx)
        for (u, v), edge in graph.edges.items()
        if u in synchronised and edge["object"].type == CPEdgeType.SYNC_DEPENDENCY
    }
    assert calls == {"cudaEventSynchronize", "cudaEventQuery", "cudaDeviceSynchronize"}
    for edge in graph.critical_path_edges_set:
        first, second = graph.get_events_for_edge(edge)
        assert {first, second} <= graph.critical_path_events_set and graph.critical_path_nodes_set
        event = graph.get_event_attribution_for_edge(edge)
        assert event is None or edge in graph.get_edges_attributed_to_event(event)
    # What if the kernel took no time?
    start, end = (node.idx for node in graph.get_nodes_for_event(kernel))
    graph.edges[start, end]["weight"] = 0
    before = list(graph.critical_path_nodes)
    assert graph.critical_path() and {start, end} <= set(before) and end not in graph.critical_path_nodes


def test_a_graph_is_saved_and_restored(tmp_path):
    analysis = traces("event_sync")
    graph = path_of(analysis)
    restored = restore_cpgraph(graph.save(str(tmp_path / "graphs" / "of_rank_0")), analysis.t, 0)
    assert restored.node_list == graph.node_list and restored.edges == graph.edges
    pd.testing.assert_series_equal(restored.summary(), graph.summary())
    assert restored.critical_path() and restored.critical_path_nodes == graph.critical_path_nodes
    (tmp_path / "no_graph.zip").write_text("no zip")
    for name in ("no_graph.zip", "not there.zip"):
        with pytest.raises(RankscopeError, match="no saved graph"):
            restore_cpgraph(str(tmp_path / name), analysis.t, 0)


@pytest.mark.parametrize("only_critical", [True, False])
def test_the_path_is_laid_over_the_trace(tmp_path, only_critical):
    analysis = traces("event_sync")
    graph = path_of(analysis)
    path = analysis.overlay_critical_path_analysis(0, graph, str(tmp_path / "new"), only_critical, show_all_edges=True)
    events = json.loads(gzip.open(path).read())["traceEvents"]
    marked = [row for row in events if row.get("ph") == "X" and (row.get("args") or {}).get("critical")]
    assert sorted(row["name"] for row in marked) == sorted(map(graph._get_node_name, graph.critical_path_events_set))
    others = [row for row in events if row.get("ph") == "X" and row not in marked and row["cat"] != "user_annotation"]
    assert bool(others) != only_critical
    arrows = [row for row in events if row.get("name") == "critical_path"]
    shown = graph.shown_edges(not only_critical)
    assert len(arrows) == 2 * len(shown) and len(shown) == (9 if only_critical else 57)
    other = path_of(traces("dlrm8"))
    with pytest.raises(RankscopeError, match="is not that of the graph"):
        analysis.overlay_critical_path_analysis(0, other, str(tmp_path))


def test_wrong_questions_are_errors():
    analysis = traces("event_sync")
    for annotation, instance in (("no such name", 0), ("ProfilerStep", 99)):
        with pytest.warns(RankscopeWarning, match="there is no instance"):
            assert analysis.critical_path_analysis(0, annotation, instance) is None
    with pytest.warns(RankscopeWarning, match="no cuda_sync rows"):
        traces("sampled_2of128").critical_path_analysis(0, "ProfilerStep", 0)
    whole = path_of(analysis, annotation="", instance=None)
    assert len(whole.node_list) >= len(path_of(analysis).node_list)
