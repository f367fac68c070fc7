#!/usr/bin/env python3
"""Reads a fresh run as users do: runs every example query with DuckDB (the command and the Python module) and reads every
table with pyarrow and Polars. Each query has its own assertions about its rows.

    duckdb_check.py RUN --slow-rank R --slow-ms M --nccl-run RUN --duckdb .venv/bin/duckdb

RUN was recorded with `--inject slow:rank=R,ms=M` (phase forward) and analyzed. The second run has replayed calls of NCCL:
104 operations, of which 100 are collectives on 4 channels and 4 are sends and receives on 2. Prints one line for each check,
then a count.
"""

import argparse
import json
import os
import pathlib
import subprocess
import sys

import duckdb
import polars
import pyarrow.dataset

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
    collectives = t.active * len(t.bucket_bytes)
    assert all(r["collectives"] == collectives and 1 <= r["mean_place"] <= t.ranks for r in rows)
    assert sum(column(rows, "times_last")) >= collectives
    assert sum(column(rows, "waited_ms")) > 0


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
    """Checks that all views of analysis/views.sql work, and that global_events has every event once, in global time."""
    views = [r[0] for r in con.execute("select view_name from duckdb_views() where not internal").fetchall()]
    assert "global_events" in views, views
    for view in views:
        con.execute(f"select * from {view} limit 1").fetchall()
    wanted = con.execute("select count(*) from 'events/*.parquet'").fetchone()
    assert con.execute("select count(*) from global_events").fetchone() == wanted
    early, late = con.execute("select min(global_ts_ns), max(global_ts_ns) from global_events").fetchone()
    assert 0 < late - early < 3600e9, (early, late)
    return f"{len(views)} views"


def connect(run):
    """Opens a session with the views of the run."""
    con = duckdb.connect()
    con.execute((run / "analysis/views.sql").read_text())
    return con


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", type=pathlib.Path)
    parser.add_argument("--slow-rank", type=int, required=True)
    parser.add_argument("--slow-ms", type=float, required=True)
    parser.add_argument("--nccl-run", type=pathlib.Path, required=True, help="a run with rows from NCCL")
    parser.add_argument("--duckdb", required=True, help="the DuckDB command")
    options = parser.parse_args()
    options.run, options.nccl_run = options.run.resolve(), options.nccl_run.resolve()
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
    for check in (check_tables, check_shard_metadata, check_views):
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
