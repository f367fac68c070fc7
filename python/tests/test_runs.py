"""Runs, comparisons, predictions, and parts of ranks."""

import concurrent.futures
import json
import pathlib
import subprocess

import pyarrow
import pyarrow.parquet
import pytest
from conftest import COMMAND

import rankscope


def test_traces_become_a_run(traces, tmp_path):
    told = []
    done = rankscope.ingest(traces, tmp_path / "run", progress=lambda *counts: told.append(counts))
    assert done.ranks == list(range(8)) and told[-1] == (8, 8)
    assert done.rows == len(done.run.events) > 1000 and done.omissions == []
    assert (tmp_path / "run/run.json").is_file() and done.run.manifest["world_size"] == 8
    with pytest.raises(rankscope.RankscopeError, match="holds a run already") as caught:
        rankscope.ingest(traces, tmp_path / "run")
    assert caught.value.file == str(tmp_path / "run")
    with pytest.raises(rankscope.RankscopeError, match="is a run already"):
        rankscope.ingest(tmp_path / "run", tmp_path / "other")


def test_a_run_streams_what_is_in_its_files(run):
    assert run.recorded_ranks == list(range(8)) and run.problems == []
    for name in run.tables:
        table = getattr(run, name)
        streamed = pyarrow.table(table)
        files = sorted(pathlib.Path(run.path, name).glob("*.parquet"))
        assert len(table) == streamed.num_rows
        assert streamed.column_names == [column.name for column in table.columns]
        if files:
            read = pyarrow.concat_tables(pyarrow.parquet.read_table(file) for file in files)
            assert streamed.select(read.column_names).to_pylist() == read.to_pylist(), name
        else:
            assert streamed.num_rows == 0


def test_a_run_is_analyzed_like_its_traces(run, analysis):
    again = rankscope.open(run.path).analyze()
    assert again.verdict.rank == 5
    assert again.step_breakdown.to_arrow().equals(analysis.step_breakdown.to_arrow())


def test_runs_are_compared(traces):
    same = rankscope.diff(traces, traces)
    assert not same.changed and str(same) == same.sentence
    changes = same.changes.to_pandas()
    assert len(changes) > 10 and (changes.delta_ns == 0).all() and (changes.judgement == "unclear").all()
    assert {"step", "operator"} <= set(changes.group) and set(changes.measure) >= {"total"}
    assert changes["rank"].isna().any() and changes["rank"].notna().any()
    several = rankscope.diff([traces, traces], [traces, traces], smallest=2)
    assert len(several.data["a"]) == 2 and several.data["method"]["smallest_share"] == 0.02
    printed = subprocess.run([COMMAND, "diff", traces, traces, "--json"], check=True, capture_output=True).stdout
    assert {key: value for key, value in json.loads(printed).items() if key not in ("format", "version")} == same.data


def test_changes_are_predicted(traces):
    listed = rankscope.what_if(traces)
    assert listed.step_ns > 0 and len(listed.changes) > 2
    (asked,) = rankscope.what_if(traces, without=[5]).changes
    assert "rank 5" in asked.change and asked.saved_ns > 0
    low, high = asked.saved_interval_ns
    assert low <= asked.saved_ns <= high
    (quick,) = rankscope.what_if(traces, comm_scale=0, role_median=True).changes
    assert quick.step_ns < listed.step_ns
    with pytest.raises(rankscope.RankscopeError, match="no such rank"):
        rankscope.what_if(traces, without=99)


def test_shares_mapped_by_processes_give_the_same_analysis(traces, analysis, tmp_path):
    parts, shares = tmp_path / "parts", 3
    with concurrent.futures.ProcessPoolExecutor(2) as pool:
        tasks = [pool.submit(rankscope.map_rank, traces, parts, f"{share}/{shares}") for share in range(shares)]
        ranks = [rank for task in tasks for rank in task.result()]
    assert sorted(ranks) == list(range(8))
    reduced = rankscope.reduce(parts)
    assert reduced.verdict == analysis.verdict
    for name in analysis.tables:
        assert reduced.table(name).to_arrow().equals(analysis.table(name).to_arrow()), name
    assert reduced._repr_html_() is None
    with pytest.raises(rankscope.RankscopeError, match="parts have no rows"):
        reduced.report(tmp_path / "report.html")
    (parts / f"share-00001-of-0000{shares}.json").unlink()
    with pytest.warns(rankscope.RankscopeWarning, match="was not mapped"):
        assert not rankscope.reduce(parts).complete
