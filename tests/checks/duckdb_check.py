#!/usr/bin/env python3
"""Reads a fresh run as users do: runs every example query with DuckDB (the command and the Python module) and reads every
table with pyarrow and Polars. Each query has its own assertions about its rows.

    duckdb_check.py RUN --slow-rank R --slow-ms M --nccl-run RUN --duckdb .venv/bin/duckdb --aggregator target/debug/aggregator

RUN was recorded with `--inject slow:rank=R,ms=M` (phase forward) and analyzed. The second run has replayed calls of NCCL:
104 operations, of which 100 are collectives on 4 channels and 4 are sends and receives on 2. Prints one line for each check,
then a count.
"""

import argparse
import datetime
import json
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile

import duckdb
import polars
import pyarrow.dataset
import pyarrow.parquet

# The shared module is one folder up.
sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))
from support import ROOT  # noqa: E402

QUERIES = ROOT / "examples/duckdb"
# With more ranks than cores and other load, a machine adds time to the injected sleep.
TOLERANCE = 0.15
# The limit in idle_gaps.sql.
GAPS_PER_RANK = 12


class Truth:
    """Facts about the run that need none of the example queries."""

    def __init__(self, run, slow_rank, slow_ms):
        manifest = json.loads((run / "run.json").read_text())
        self.ranks = manifest["world_size"]
        self.created_utc_ns = manifest["created_utc_ns"]
        self.slow_rank = slow_rank
        self.slow_ms = slow_ms
        con = duckdb.connect()
        fetch = lambda sql: con.execute(sql.replace("RUN", str(run))).fetchall()
        self.active = fetch("select count(distinct step) from 'RUN/steps/*.parquet' where phase = 'active'")[0][0]
        self.steps = fetch("select count(distinct step) from 'RUN/steps/*.parquet'")[0][0]
        self.bucket_bytes = dict(fetch("select distinct bucket, bytes from 'RUN/buckets/*.parquet'"))
        assert self.active >= 3, "the run is too short to be checked"


def column(rows, name):
    return [row[name] for row in rows]


def only(rows, **wanted):
    return [row for row in rows if all(row[key] == value for key, value in wanted.items())]


def near(value, wanted, share):
    return abs(value - wanted) <= share * abs(wanted)


def check_slowest_ops(rows, t):
    gemm = [r for r in rows if "gemm" in r["name"]]
    assert gemm and all(r["gflops_per_s"] > 0.1 for r in gemm), "no gemm with a rate"
    assert column(rows, "self_ms") == sorted(column(rows, "self_ms"), reverse=True)
    for where in set(column(rows, "where_")):
        assert sum(column(only(rows, where_=where), "share_pct")) <= 100.0 + 0.05 * len(rows)
    assert all(0 <= r["slowest_rank"] < t.ranks and r["slowest_vs_median"] >= 1 for r in rows)


def check_step_breakdown(rows, t):
    assert len(rows) == t.ranks * t.active, f"{len(rows)} rows for {t.ranks} ranks and {t.active} steps"
    for r in rows:
        parts = r["compute_ms"] + r["overlap_ms"] + r["exposed_comm_ms"] + r["memory_ms"] + r["idle_ms"]
        assert abs(parts - r["wall_ms"]) < 0.004, f"the parts sum to {parts}, not to {r['wall_ms']}"
        assert r["compute_ms"] + r["overlap_ms"] > 0


def check_overlap_per_step(rows, t):
    assert len(rows) == t.active and all(r["ranks"] == t.ranks for r in rows)
    for r in rows:
        assert 0 <= r["lowest_pct"] <= r["overlap_pct"] + 0.1 and r["overlap_pct"] <= r["highest_pct"] + 0.1 <= 100.2
        assert r["exposed_ms"] <= r["comm_ms"] <= r["ranks"] * r["wall_ms"]


def check_exposed_by_bucket(rows, t):
    assert column(rows, "bucket") == sorted(t.bucket_bytes)
    for r in rows:
        assert r["all_reduces"] == t.ranks * t.active
        assert abs(r["mib"] - t.bucket_bytes[r["bucket"]] / 2**20) < 0.01
        assert r["queue_ms"] >= 0 and r["wait_ms"] >= 0 and 0 <= r["hidden_pct"] <= 100


def check_arrival_order(rows, t):
    assert sorted(column(rows, "rank")) == list(range(t.ranks))
    collectives = rows[0]["collectives"]
    assert collectives >= t.active * len(t.bucket_bytes), "some all-reduces of buckets are missing"
    assert all(r["collectives"] == collectives and 1 <= r["mean_place"] <= t.ranks for r in rows)
    assert sum(column(rows, "times_last")) >= collectives
    assert sum(column(rows, "waited_ms")) > 0


def check_wall_clock(rows, t):
    assert len(rows) == t.ranks * t.active, f"{len(rows)} rows for {t.ranks} ranks and {t.active} steps"
    times = [datetime.datetime.fromisoformat(str(r["utc"])[:26]).replace(tzinfo=datetime.timezone.utc) for r in rows]
    began = t.created_utc_ns / 1e9
    assert all(-1 < time.timestamp() - began < 3600 for time in times), f"{times} and a run of {began}"
    assert all(0 <= r["error_us"] < 1e5 for r in rows), "the error of UTC is unknown or too large"
    # The ranks begin a step together, on one host.
    for step in set(column(rows, "step")):
        of_step = [time for time, r in zip(times, rows) if r["step"] == step]
        assert (max(of_step) - min(of_step)).total_seconds() < 1 + t.slow_ms / 1e3, of_step


def check_who_waited_for_whom(rows, t):
    assert all(r["rank"] != r["last_rank"] and r["waited_ms_per_step"] >= 0 for r in rows)
    per_last = {}
    for r in rows:
        per_last[r["last_rank"]] = per_last.get(r["last_rank"], 0) + r["waited_ms_per_step"]
    assert max(per_last, key=per_last.get) == t.slow_rank, f"the others waited most for {per_last}"


def check_bus_bandwidth_by_size(rows, t):
    reduced = {r["bytes"] for r in rows if r["op"] == "allreduce"}
    assert set(t.bucket_bytes.values()) <= reduced, f"{t.bucket_bytes} of {reduced}"
    fast = [r for r in rows if r["with_bandwidth"]]
    assert fast, "no collective has a bandwidth"
    for r in fast:
        factor = {"allreduce": 2 * (r["ranks"] - 1) / r["ranks"], "allgather": (r["ranks"] - 1) / r["ranks"]}[r["op"]]
        assert abs(r["busbw_gbs"] - factor * r["algbw_gbs"]) <= 0.002 + 0.001 * r["busbw_gbs"]
        assert 0 < r["busbw_gbs"] < 1000


def check_idle_gaps(rows, t):
    assert all(r["gap_us"] > 100 and r["ran_before"] and r["ran_after"] for r in rows)
    assert column(rows, "gap_us") == sorted(column(rows, "gap_us"), reverse=True)
    of_rank = {rank: only(rows, rank=rank) for rank in range(t.ranks)}
    assert all(0 < len(gaps) <= GAPS_PER_RANK for gaps in of_rank.values()), [len(gaps) for gaps in of_rank.values()]
    # One gap a step was injected; a gap that displaces one of them is longer.
    slow = of_rank[t.slow_rank]
    assert len(slow) >= min(GAPS_PER_RANK, t.active), f"only {len(slow)} gaps of the slow rank"
    assert all(r["gap_us"] >= 990 * t.slow_ms for r in slow[: t.active]), slow
    injected = [r for r in slow if r["ran_before"] == "make_batch" and r["ran_after"] == "gemm"]
    assert injected, "the injected wait is not among the gaps"


def check_clock_fit(rows, t):
    host = only(rows, clock="host")
    assert column(host, "rank") == list(range(t.ranks))
    assert all(r["violations"] == 0 for r in host)
    assert all(r["method"] in ("ping", "same_host", "collective") for r in host)
    others = [r for r in host if r["rank"] != r["reference_rank"]]
    assert all(0 <= r["error_us"] <= r["bound_us"] for r in others), "an error above its bound"
    # All ranks share one clock, so the true offset is 0.
    assert all(abs(r["offset_ms"]) * 1e3 <= r["bound_us"] + 0.001 for r in others), "the bound does not hold"


def check_step_timeline(rows, t):
    assert set(column(rows, "rank")) == set(range(t.ranks))
    assert rows[0]["at_ms"] == 0 and column(rows, "at_ms") == sorted(column(rows, "at_ms"))
    names = {r["name"] for r in rows}
    assert {"forward", "backward", "optimizer"} <= names, names
    assert any(r["name"].startswith("mpi:") for r in rows), "no collective in the timeline"


def check_loss_and_step_time(rows, t):
    assert len(rows) == t.steps and all(r["ranks"] == t.ranks for r in rows)
    assert rows[-1]["mean_loss"] < rows[0]["mean_loss"], "the loss does not fall"
    assert all(r["spread"] >= 1 and r["slowest_ms"] >= r["median_ms"] > 0 for r in rows)


def check_stragglers(rows, t):
    assert sorted(column(rows, "rank")) == list(range(t.ranks))
    causes = only(rows, verdict="cause")
    assert column(causes, "rank") == [t.slow_rank], f"blamed: {column(causes, 'rank')}"
    cause = causes[0]
    assert cause["evidence_range"] == "forward", cause["evidence_range"]
    assert near(cause["evidence_excess_ms"], t.slow_ms, TOLERANCE), cause["evidence_excess_ms"]
    assert cause["from_ms"] <= cause["own_excess_ms"] <= cause["to_ms"]


def check_lost_time(rows, t):
    assert abs(sum(column(rows, "percent")) - 100) < 0.1 * len(rows), "the parts sum to the step"
    assert all(r["host"] for r in rows if r["rank"] is not None), "ranks of a run have a host"
    lines = only(rows, part="line")
    assert lines and max(lines, key=lambda r: r["ms_per_step"])["rank"] == t.slow_rank, lines


def check_range_excess(rows, t):
    top = rows[0]
    assert (top["name"], top["rank"]) == ("forward", t.slow_rank), top
    assert near(top["excess_ms"], t.slow_ms, TOLERANCE), top["excess_ms"]


def check_gemm_shapes(rows, t):
    assert any("gemm" in r["name"] for r in rows)
    assert all(r["gflops_per_s"] > 0 and r["p95_us"] >= r["median_us"] > 0 and r["ranks"] == t.ranks for r in rows)


def check_memory_peaks(rows, t):
    assert column(rows, "rank") == list(range(t.ranks))
    assert all(r["peak_mib"] > 0 and "=" in r["alive"] for r in rows)


def check_lost_and_left_out(rows, _):
    assert column(rows, "what") == ["nothing"], rows


def check_nccl_proxy_waits(rows, _):
    assert [(r["rank"], r["peer"], r["direction"], r["operations"], r["unfinished"]) for r in rows] == [
        (0, 1, "send", 104, 0)
    ], rows
    waits = sum(rows[0][f"{what}_wait_ms"] for what in ("gpu", "peer", "net", "flush"))
    assert rows[0]["mib"] == 13.0 and 0 < waits <= rows[0]["time_ms"], rows


def check_nccl_channels(rows, _):
    counted = {(r["op"], r["channels"]): r["operations"] for r in rows}
    assert counted == {("allgather", 4): 24, ("allreduce", 4): 76, ("recv", 2): 2, ("send", 2): 2}, rows
    # The replay stamps each channel 1 ns after the previous one.
    assert all(1000 * r["end_spread_us"] == r["channels"] - 1 for r in rows), rows
    assert all(r["clock_error_us"] > 0 and r["median_us"] > 0 for r in rows), rows


def run_command(duckdb_command, run, query):
    """Runs the query with the DuckDB command, as the README shows."""
    done = subprocess.run(
        [duckdb_command, "-json", "-c", f".read {run}/analysis/views.sql", "-c", f".read {query}"],
        capture_output=True, text=True, check=False,
    )
    assert done.returncode == 0 and not done.stderr, done.stderr
    return json.loads(done.stdout or "[]")


def run_module(con, query):
    """Runs the query with the Python module, whose DuckDB version differs from the command's."""
    cursor = con.execute(query.read_text())
    names = [d[0] for d in cursor.description]
    return [dict(zip(names, row)) for row in cursor.fetchall()]


def check_query(query, con, run, options, truth):
    first = query.read_text().splitlines()[0]
    assert first.startswith("-- ") and first.endswith("?"), "the first line must be a question"
    check = globals()[f"check_{query.stem}"]
    by_module = run_module(con, query)
    by_command = run_command(options.duckdb, run, query)
    assert by_module, "no rows"
    check(by_module, truth)
    check(by_command, truth)
    assert len(by_module) == len(by_command), f"module {len(by_module)} rows, command {len(by_command)}"
    return f"{len(by_module)} rows"


def check_tables(con, _options, _truth):
    """Checks that pyarrow, Polars and DuckDB read the same rows and columns from every table."""
    count = 0
    tables = sorted(p for p in pathlib.Path(".").iterdir() if p.is_dir() and p.name != "analysis")
    files = [f"{p}/*.parquet" for p in tables] + sorted(str(p) for p in pathlib.Path("analysis").glob("*.parquet"))
    for pattern in files:
        paths = sorted(str(p) for p in pathlib.Path(".").glob(pattern))
        assert paths, f"{pattern} is empty"
        arrow = pyarrow.dataset.dataset(paths, format="parquet").to_table()
        frame = polars.scan_parquet(paths).collect()
        cursor = con.execute(f"select * from '{pattern}'")
        rows = cursor.fetchall()
        names = [d[0] for d in cursor.description]
        assert arrow.num_rows == frame.height == len(rows), f"{pattern}: {arrow.num_rows}, {frame.height}, {len(rows)}"
        assert arrow.column_names == frame.columns == names, f"{pattern}: columns differ"
        for at, name in enumerate(names):
            if name.endswith("_ns") and not name.startswith(("mean", "std")):
                total = sum(row[at] or 0 for row in rows)
                assert total == sum(v or 0 for v in arrow.column(name).to_pylist()), f"{pattern}: {name}"
                assert total == sum(v or 0 for v in frame[name].to_list()), f"{pattern}: {name}"
        count += len(rows)
    return f"{len(files)} tables, {count} rows"


def check_shard_metadata(con, _options, truth):
    """Checks the metadata of every shard."""
    manifest = json.loads(pathlib.Path("run.json").read_text())
    rows = con.execute(
        "select file_name, decode(key), decode(value) from parquet_kv_metadata('*/rank-*.parquet')"
    ).fetchall()
    by_file = {}
    for file, key, value in rows:
        by_file.setdefault(file, {})[key] = value
    assert by_file
    for file, meta in by_file.items():
        assert meta["rankscope.run_id"] == manifest["run_id"], file
        assert int(meta["rankscope.rank"]) == int(file.split("rank-")[1][:5]) < truth.ranks, file
        for key in ("schema_version", "host", "pid", "boot_id", "clock_domain"):
            assert meta[f"rankscope.{key}"], f"{file}: {key}"
    return f"{len(by_file)} shards"


def check_views(con, _options, _truth):
    """Checks that all views of analysis/views.sql work, that each has all comments, and that rows are counted once."""
    views = [r[0] for r in con.execute("select view_name from duckdb_views() where not internal").fetchall()]
    for name in ("global_events", "launches", "nccl_channels", "nccl_proxy", "unfinished_collectives"):
        assert name in views, views
    for view in views:
        con.execute(f"select * from {view} limit 1").fetchall()
    uncommented = con.execute(
        "select view_name from duckdb_views() where not internal and comment is null "
        "union all select table_name || '.' || column_name from duckdb_columns() where not internal and comment is null"
    ).fetchall()
    assert not uncommented, f"no comment: {uncommented}"
    number = lambda sql: con.execute(sql).fetchone()[0]
    wanted = number("select count(distinct (rank, id)) from 'events/*.parquet'")
    assert number("select count(*) from events") == number("select count(*) from global_events") == wanted
    assert number("select count(*) from events_raw") == number("select count(*) from 'events/*.parquet'")
    assert number("select count(*) from ranks") == number("select count(distinct rank) from ranks_raw")
    early, late = con.execute("select min(global_ts_ns), max(global_ts_ns) from global_events").fetchone()
    assert 0 < late - early < 3600e9, (early, late)
    parts = con.execute("select count(*) from step_breakdown").fetchone()[0], *(
        number(f"select count(*) from step_breakdown_{part}") for part in ("gaps", "total"))
    assert sum(parts) == number("select count(*) from step_breakdown_raw") and min(parts) > 0, parts
    assert number("select min(step) from step_breakdown") >= 0
    return f"{len(views)} views"


def check_open_rows(_con, options, _truth):
    """Checks that an interval that is stored open, open again and complete counts once, and one that never ended, too."""
    with tempfile.TemporaryDirectory() as place:
        run = copy(options.run, pathlib.Path(place) / "cut")
        con = duckdb.connect()
        shard = f"{run}/events/rank-00000-0000.parquet"
        first, last = con.execute(f"select min(id), max(id) from '{run}/events/rank-00000-*.parquet'").fetchone()
        for part, ids, share in ((9000, (first,), 0.2), (9001, (first, last + 1), 0.5), (9002, (last + 1,), 0.7)):
            rows = " union all ".join(
                f"select * replace ({id} as id, true as open, ({share} * 1e9)::bigint as dur_ns) from '{shard}' where id = {first}"
                for id in ids)
            con.execute(f"copy ({rows}) to '{run}/events/rank-00000-{part}.parquet'")
        before, after = connect(options.run), connect(run)
        sums = lambda con: con.execute("select count(*), sum(dur_ns) from events").fetchone()
        # The complete row counts, and the longest of the rows that never ended.
        assert sums(after) == (sums(before)[0] + 1, sums(before)[1] + 700_000_000), (sums(before), sums(after))
        assert after.execute("select count(*) from global_events").fetchone()[0] == sums(after)[0]
        stored = lambda con: con.execute("select count(*) from events_raw").fetchone()[0]
        assert stored(after) == stored(before) + 4
    return "4 open rows"


def copy(run, to):
    """Copies a run, and returns its new place."""
    shutil.copytree(run, to)
    return to


def fails(con, sql, *words):
    """Checks that a statement fails, and that its message has the words."""
    try:
        con.execute(sql).fetchall()
    except duckdb.Error as error:
        missing = [word for word in words if word not in str(error)]
        assert not missing, f"{missing} not in {error}"
        return
    raise AssertionError(f"no error: {sql[:200]}")


def check_copies(_con, options, truth):
    """Checks that a copied or moved run reads itself: beside the original, elsewhere, without it, and by its variable."""
    count = "select count(*) from events_raw"
    with tempfile.TemporaryDirectory() as place:
        place = pathlib.Path(place).resolve()
        original, text = copy(options.run, place / "a/original"), (options.run / "analysis/views.sql").read_text()
        moved = copy(original, place / "b/moved")
        con = duckdb.connect()
        rows = con.execute(f"select count(*) from '{moved}/events/*.parquet'").fetchone()[0]
        # The copy lacks a rank, so that its rows are not those of the original.
        for shard in moved.glob("events/rank-00001-*.parquet"):
            shard.unlink()
        fewer = con.execute(f"select count(*) from '{moved}/events/*.parquet'").fetchone()[0]
        assert fewer < rows
        for directory, views in ((place / "b", "moved/analysis/views.sql"), (moved, "analysis/views.sql"),
                                 (moved / "analysis", "views.sql"), (place, "b/moved/analysis/views.sql")):
            if directory == place:
                shutil.rmtree(original)
            os.chdir(directory)
            con = duckdb.connect()
            con.execute(pathlib.Path(views).read_text())
            assert con.execute(count).fetchone()[0] == fewer, f"{views} in {directory} reads another run"
            for arguments in (["-c", f".read {views}", "-c", count], ["-init", views, "-c", count]):
                done = subprocess.run([options.duckdb, "-json", *arguments], capture_output=True, text=True, check=True)
                assert json.loads(done.stdout) == [{"count_star()": fewer}], (arguments, directory, done)
        # Named by the variable, from anywhere; it holds for one reading.
        os.chdir("/")
        con = duckdb.connect()
        con.execute(f"set variable rankscope_run = '{moved}'")
        con.execute(text)
        assert con.execute(count).fetchone()[0] == fewer
        assert con.execute("select directory from this_run").fetchone()[0] == str(moved)
        assert con.execute("select getvariable('rankscope_run')").fetchone()[0] is None
        fails(con, f"set variable rankscope_run = '{place}'; {text}", "does not hold the analysis", "SET VARIABLE")
        fails(con, "from stragglers", "stragglers")
        # Two of them near the current directory.
        copy(moved, place / "b/again")
        os.chdir(place)
        fails(duckdb.connect(), text, "several directories", "b/again", "b/moved", "SET VARIABLE rankscope_run")
        shutil.rmtree(place / "b/again")
        # A connection that has read the views, and a directory that is replaced by another run.
        os.chdir(place / "b")
        con = duckdb.connect()
        con.execute(text)
        fails(con.cursor(), f'select * from "{options.run.name}".stragglers', "has not read views.sql")
        shutil.rmtree(moved)
        copy(options.nccl_run, moved)
        fails(con, "from stragglers", "Read views.sql again")
        fails(con, count, "Read views.sql again")
    os.chdir(options.run)
    nowhere = text.replace(str(options.run), "/nowhere/run")
    os.chdir("/usr")
    fails(duckdb.connect(), nowhere, "/nowhere/run", "SET VARIABLE rankscope_run")
    os.chdir(options.run)
    return "5 places"


def check_paths(_con, options, _truth):
    """Checks that a directory's name is no pattern: the run is read, and no sibling that a pattern would match."""
    command = options.aggregator
    with tempfile.TemporaryDirectory() as place:
        place = pathlib.Path(place).resolve()
        names = ["exp?", "bs[32]", "st*r", "back\\slash", "quo'te", "{a,b}", "[!x]?*"]
        for name in names:
            run = copy(options.run, place / name)
            for sibling in ("exp2", "bs3", "bs2", "stair", "back"):
                if not (place / sibling).exists():
                    copy(options.nccl_run, place / sibling)
            subprocess.run([command, "analyze", run], capture_output=True, check=True)
            subprocess.run([command, "analyze", run, "--out", place / f"out of {name}"], capture_output=True, check=True)
            for directory, views in ((place / "exp2", run), (run, run), (place / "exp2", place / f"out of {name}")):
                os.chdir(directory)
                con = duckdb.connect()
                con.execute((views / "analysis/views.sql").read_text())
                ids = con.execute("select run_id, (select count(*) from events_raw) from this_run").fetchall()
                expected = sum(pyarrow.parquet.read_metadata(shard).num_rows for shard in (run / "events").iterdir())
                assert ids == [(json.loads((run / "run.json").read_text())["run_id"], expected)], (name, directory, ids)
                assert con.execute("select count(*) from stragglers").fetchone()[0] > 0, name
            shutil.rmtree(run)
    os.chdir(options.run)
    return f"{len(names)} names"


def check_two_runs(_con, options, truth):
    """Checks that two runs in one session answer for themselves, in both orders."""
    names, ids = [], []
    for run in (options.run, options.nccl_run):
        names.append(run.name)
        ids.append(json.loads((run / "run.json").read_text())["run_id"])
    assert names[0] != names[1]
    for order in ((0, 1), (1, 0)):
        con = duckdb.connect()
        con.execute("create table mine as select 7 as number")
        for at in order:
            run = (options.run, options.nccl_run)[at]
            con.execute((run / "analysis/views.sql").read_text())
            assert con.execute("select run_id from this_run").fetchone()[0] == ids[at]
            rows = con.execute(f"select count(*) from '{run}/events/*.parquet'").fetchone()
            assert con.execute("select count(*) from events_raw").fetchone() == rows
            assert con.execute("from mine").fetchone() == (7,), "a table of the session is hidden"
        for name, run_id, run in zip(names, ids, (options.run, options.nccl_run)):
            assert con.execute(f'select run_id from "{name}".this_run').fetchone()[0] == run_id
            rows = con.execute(f"select count(*) from '{run}/events/*.parquet'").fetchone()
            assert con.execute(f'select count(*) from "{name}".events_raw').fetchone() == rows
    return " and ".join(names)


def check_descriptions(_con, options, _truth):
    """Checks that pyarrow finds the description of each field in the analysis and in the first shard of each table."""
    files = sorted(options.run.glob("analysis/*.parquet")) + sorted(options.run.glob("*/rank-00000-0000.parquet"))
    for path in files:
        schema = pyarrow.parquet.read_schema(path)
        assert all((field.metadata or {}).get(b"description") for field in schema), path
    field = pyarrow.dataset.dataset(options.run / "events").schema.field("dur_ns")
    assert field.metadata[b"unit"] == b"ns", field.metadata
    return f"{len(files)} files"


def connect(run):
    """Opens a session with the views of the run, which may be a copy of the one in the current directory."""
    con = duckdb.connect()
    con.execute(f"set variable rankscope_run = '{run}'")
    con.execute((run / "analysis/views.sql").read_text())
    return con


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", type=pathlib.Path)
    parser.add_argument("--slow-rank", type=int, required=True)
    parser.add_argument("--slow-ms", type=float, required=True)
    parser.add_argument("--nccl-run", type=pathlib.Path, required=True, help="a run with rows from NCCL")
    parser.add_argument("--duckdb", required=True, help="the DuckDB command")
    parser.add_argument("--aggregator", required=True, help="the aggregator command")
    options = parser.parse_args()
    options.run, options.nccl_run = options.run.resolve(), options.nccl_run.resolve()
    options.aggregator = str(pathlib.Path(options.aggregator).absolute())
    options.duckdb = str(pathlib.Path(options.duckdb).absolute())
    truth = Truth(options.run, options.slow_rank, options.slow_ms)
    os.chdir(options.run)
    con, nccl_con = (connect(run) for run in (options.run, options.nccl_run))
    command_version = subprocess.run([options.duckdb, "--version"], capture_output=True, text=True, check=True).stdout
    print(f"DuckDB module {duckdb.__version__}, command {command_version.split()[0]}, "
          f"pyarrow {pyarrow.__version__}, Polars {polars.__version__}")
    queries = sorted(QUERIES.glob("*.sql"))
    assert len(queries) >= 8, f"only {len(queries)} queries in {QUERIES}"
    checks = []
    for query in queries:
        of = (nccl_con, options.nccl_run) if query.stem.startswith("nccl_") else (con, options.run)
        checks.append((query.stem, lambda query=query, of=of: check_query(query, *of, options, truth)))
    for check in (check_tables, check_shard_metadata, check_descriptions, check_views, check_open_rows, check_two_runs, check_paths,
                  check_copies):
        checks.append((check.__name__, lambda check=check: check(con, options, truth)))
    failed = 0
    for name, check in checks:
        try:
            print(f"{name} ... ok ({check()})")
        except Exception as error:  # noqa: BLE001 -- a broken query must not hide the others
            failed += 1
            print(f"{name} ... FAILED: {type(error).__name__}: {error}")
    print(f"{len(checks) - failed} passed, {failed} failed")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
