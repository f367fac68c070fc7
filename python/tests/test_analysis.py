"""What an analysis gives, and that its tables are Arrow without a copy."""

import json
import pathlib
import re
import subprocess

import duckdb
import polars
import pyarrow
import pyarrow.parquet
import pytest
from conftest import COMMAND

import rankscope


def test_the_verdict_names_the_rank_with_its_place_and_cost(analysis, traces):
    verdict = analysis.verdict
    assert (verdict.kind, verdict.rank, verdict.ranks, verdict.reason) == ("cause", 5, [5], "host")
    assert verdict.host and verdict.pid and pathlib.Path(verdict.file).name in {file.name for file in traces.iterdir()}
    low, high = verdict.interval_ns
    assert 0 < low <= verdict.cost_ns <= high < verdict.step_ns
    assert verdict.gpu is None, "gloo ran on the CPU"
    assert str(verdict) == verdict.sentence and "rank 5" in verdict.sentence
    assert "SLOW RANK 5" in repr(analysis)


def test_the_numbers_are_those_of_the_command(analysis, traces):
    """Invariant (python): Python gets the numbers of the command."""
    done = subprocess.run([COMMAND, "analyze", traces, "--json", "--full"], check=True, capture_output=True)
    printed = json.loads(done.stdout)
    assert analysis.verdict.data == printed["verdict"]
    assert analysis.facts == printed["facts"]
    for name, rows in printed["tables"].items():
        # The view `_raw` has all rows of a table; the other views have parts of them.
        whole = f"{name}_raw" if f"{name}_raw" in analysis.tables else name
        assert analysis.table(whole).to_arrow().to_pylist() == rows, name


def test_every_table_is_an_attribute_with_its_columns(analysis):
    for name in analysis.tables:
        table = getattr(analysis, name)
        arrow = pyarrow.table(table)
        assert (table.name, len(table)) == (name, arrow.num_rows)
        assert table.doc and [column.name for column in table.columns] == arrow.column_names
        assert arrow.schema == pyarrow.schema(table)
        described = {field.name: field.metadata[b"description"].decode() for field in arrow.schema}
        assert described == {column.name: column.doc for column in table.columns}
    assert len(analysis.step_breakdown) > 8
    assert {column.unit for column in analysis.step_breakdown.columns} >= {"ns", "%"}
    with pytest.raises(AttributeError):
        analysis.no_such_table  # noqa: B018
    with pytest.raises(KeyError):
        analysis.table("no_such_table")


def address(chunk):
    return chunk.buffers()[1].address


def test_no_buffer_is_copied(analysis):
    """Invariant (python): Python gets the tables without a copy of their buffers."""
    table = analysis.step_breakdown
    first, second = pyarrow.table(table), pyarrow.table(table)
    numbers = [field.name for field in first.schema if pyarrow.types.is_integer(field.type)]
    assert len(numbers) > 5
    for name in numbers:
        (one,), (other,) = first[name].chunks, second[name].chunks
        assert address(one) == address(other), f"{name} was copied for pyarrow"
        series = polars.DataFrame(table)[name]
        assert address(series.to_arrow()) == address(one), f"{name} was copied for Polars"
    # A column without nulls is numpy's array of the same memory, and so pandas's.
    (wall,) = first["wall_ns"].chunks
    assert wall.to_numpy().__array_interface__["data"][0] == address(wall)


def test_a_table_outlives_its_analysis(traces):
    arrow = rankscope.analyze(traces).step_breakdown.to_arrow()
    assert arrow.num_rows > 8 and arrow.validate(full=True) is None


def test_other_libraries_read_tables(analysis):
    stragglers = analysis.stragglers
    frame = stragglers.to_pandas()
    assert frame.loc[frame.verdict == "cause", "rank"].tolist() == [5]
    assert not any(str(kind) == "category" for kind in frame.dtypes)
    assert stragglers.to_polars().filter(polars.col("verdict") == "cause")["rank"].to_list() == [5]
    stream = pyarrow.table(stragglers)
    assert duckdb.sql("SELECT rank FROM stream WHERE verdict = 'cause'").fetchall() == [(5,)]


def test_options_are_those_of_the_command(traces):
    chosen = rankscope.analyze(traces, steps=range(3, 5), ranks=[1, 5], min_steps=2)
    assert (chosen.facts["ranks"], chosen.facts["steps"]) == ([1, 5], [3, 4])
    assert chosen.facts["selection"] == "--steps 3..5 --ranks 1,5"
    same = rankscope.analyze([str(traces)], steps="3..5", ranks={5, 1}, min_steps=2, force=False, from_=None)
    assert same.verdict == chosen.verdict
    found = rankscope.analyze(traces, comm=re.compile("never"), range=re.compile("forward"), clock="auto")
    assert found.facts["selection"] == "--range forward"
    assert "never" in found.facts["communication"]


def test_wrong_options_are_errors(traces):
    with pytest.raises(TypeError, match="unknown option 'step'; there are .*steps"):
        rankscope.analyze(traces, step=3)
    with pytest.raises(ValueError, match="a step of 2"):
        rankscope.analyze(traces, steps=range(1, 9, 2))
    for options, words in (
        ({"steps": "x"}, "--steps.*expected a..b"),
        ({"clock": "sun"}, "--clock.*possible values"),
        ({"min_persistence": 3}, "--min-persistence.*from 0 to 1"),
        ({"max_memory": "much"}, "--max-memory.*8GiB"),
        ({"steps": 77}, "--steps 77 selects nothing"),
    ):
        with pytest.raises(rankscope.RankscopeError, match=words):
            rankscope.analyze(traces, **options)


def test_the_report_is_a_file_and_a_sandboxed_frame(analysis, tmp_path):
    path = analysis.report(tmp_path / "report.html", step=4)
    page = pathlib.Path(path).read_text()
    assert "SLOW RANK 5" in page and f"rankscope.analyze(" in page
    frame = analysis._repr_html_()
    assert frame.startswith('<iframe sandbox="allow-scripts" ') and "allow-same-origin" not in frame
    assert "SLOW RANK 5" in frame and "<script" not in frame, "the page is an escaped attribute"
    with pytest.raises(rankscope.RankscopeError, match="step was not recorded"):
        analysis.report(tmp_path / "no.html", step=99)
    assert not (tmp_path / "no.html").exists()


def test_the_timeline_has_the_rows_of_a_step_on_one_clock(traces, tmp_path):
    analysis = rankscope.analyze(traces)
    counts = []
    rows = analysis.timeline(4, progress=lambda done, ranks: counts.append((done, ranks))).to_pandas()
    assert counts[-1] == (8, 8)
    assert set(rows["rank"]) == set(range(8)) and set(rows["step"]) == {4}
    assert rows["ts_ns"].is_monotonic_increasing
    # In step 4 the others wait for rank 5, so it is the last to begin its all-reduce.
    breakdown = analysis.step_breakdown.to_pandas()
    longest = breakdown[breakdown.step == 4].wall_ns.max()
    assert rows.ts_ns.max() - rows.ts_ns.min() < 1.5 * longest
    with pytest.raises(rankscope.RankscopeError, match="--steps 99: it was not recorded; recorded: 3"):
        analysis.timeline(99)


def test_the_analysis_is_saved_as_the_command_saves_it(own_run):
    before = rankscope.analyze(own_run)
    assert not (own_run / "analysis").exists(), "nothing is written that is not asked for"
    saved = pathlib.Path(before.save(own_run))
    assert saved == own_run / "analysis"
    read = pyarrow.parquet.read_table(saved / "stragglers.parquet")
    assert read["rank"].to_pylist() == before.stragglers.to_arrow()["rank"].to_pylist()


def test_tables_hold_the_rows_of_the_views(own_run):
    """Invariant (python): A table of Python holds the rows of the view of that name in DuckDB."""
    analysis = rankscope.analyze(own_run)
    views = pathlib.Path(analysis.save(own_run)) / "views.sql"
    with duckdb.connect() as connection:
        connection.execute(views.read_text())
        for name in analysis.tables:
            view = connection.sql(f"FROM {name}")
            assert getattr(analysis, name).to_arrow().column_names == view.columns
            assert connection.sql(f"SELECT count(*) FROM {name}").fetchall() == [(len(getattr(analysis, name)),)], name
        total = connection.sql("SELECT sum(wall_ns) FROM step_breakdown").fetchall()
    assert total == [(analysis.step_breakdown.to_pandas().wall_ns.sum(),)]
    assert analysis.step_breakdown.to_pandas().step.min() >= 0


def test_progress_is_told_in_order(traces):
    told = []
    rankscope.analyze(traces, progress=lambda done, ranks: told.append((done, ranks)))
    assert told == sorted(told) and told[-1] == (8, 8)


def test_progress_is_a_bar_of_tqdm(traces, capsys):
    rankscope.analyze(traces, progress=True)
    assert "8/8" in capsys.readouterr().err
