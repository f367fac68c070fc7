"""HTA's frames of single kernels: annotations around them, sequences of operators, counters of CUPTI's range profiler."""

from __future__ import annotations

import re
from typing import Any, NamedTuple

from rankscope._errors import RankscopeError
from rankscope._hta_rows import Rows, microseconds
from rankscope._hta_trace import short_name
from rankscope._numeric import np, pd

#: HTA's category of rows with counters.
_RANGE = "cuda_profiler_range"
_LAUNCH = re.compile(r"cudaLaunchKernel")


def annotated(rows: Rows, first_ns: int, with_names: bool, short_names: bool) -> pd.DataFrame | None:
    """Work on the GPU with the innermost annotation of its stream that overlaps it; None without annotations. Times are µs
    since `first_ns`."""
    if rows.annotations.empty:
        return None
    # Where annotations nest, the shorter one is inside: the last one that is written stays.
    annotations = rows.annotations.sort_values("dur", ascending=False, kind="stable")
    work = rows.work.sort_values("ts", kind="stable", ignore_index=True)
    around = pd.Series("", index=work.index, dtype=object)
    for place, inside in work.groupby(["device_id", "stream"]):
        same = annotations[annotations["device_id"].eq(place[0]) & annotations["stream"].eq(place[1])]
        kernel, annotation = _overlaps(inside, same)
        around.iloc[inside.index.to_numpy()[kernel]] = same["name"].to_numpy()[annotation]
    launches = rows.host[rows.host["correlation"].ge(0)].drop_duplicates("correlation").set_index("correlation")["id"]
    codes, symbols = pd.factorize(pd.concat([work["name"], work["kind"], around[around.ne("")]]))
    name, kind, of_annotation = np.split(codes, [len(work), 2 * len(work)])
    shift = rows.base_ns - first_ns
    found = pd.DataFrame(
        {
            "index": work["id"],
            "cat": kind,
            "name": name,
            "pid": work["device_id"],
            "tid": work["stream"],
            "ts": microseconds(work["ts"] + shift),
            "dur": microseconds(work["dur"]),
            "stream": work["stream"],
            "correlation": work["correlation"],
            "memory_bw_gbps": work["bandwidth_gbs"].fillna(0.0),
            "index_correlation": work["correlation"].map(launches).fillna(-1).astype("int64"),
            "iteration": work["step"] if rows.steps else -1,
            "end": microseconds(work["end"] + shift),
            "user_annotation": -1,
        }
    )
    found.loc[around.ne(""), "user_annotation"] = of_annotation
    if with_names:
        shown = pd.Series([short_name(text) if short_names else text for text in symbols], dtype=object)
        found["s_name"], found["s_cat"] = shown.to_numpy()[name], shown.to_numpy()[kind]
        found["s_user_annotation"] = found["user_annotation"].map(shown).fillna("")
    return found


def _overlaps(work: pd.DataFrame, annotations: pd.DataFrame) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    """The pairs of positions of work (sorted by start) and annotations that overlap, annotation by annotation."""
    ends = np.maximum.accumulate(work["end"].to_numpy())
    low = np.searchsorted(ends, annotations["ts"].to_numpy(), "right")
    high = np.maximum(np.searchsorted(work["ts"].to_numpy(), annotations["end"].to_numpy(), "left"), low)
    annotation = np.repeat(np.arange(len(annotations)), high - low)
    before = np.repeat(np.cumsum(high - low) - (high - low), high - low)
    kernel = np.arange(len(annotation)) - before + np.repeat(low, high - low)
    real = work["end"].to_numpy()[kernel] > annotations["ts"].to_numpy()[annotation]
    return kernel[real], annotation[real]


class Sequences(NamedTuple):
    """The sequences of kernels of an operator."""

    #: HTA's frame, the most frequent first.
    frame: pd.DataFrame
    #: The calls of the operator, by id, with `pattern`, `name` and `ts`.
    calls: pd.DataFrame
    #: Launches and kernels, with `root` (a call) and `correlation`.
    launched: pd.DataFrame


def sequences(rows: Rows, operator: str, least: int) -> Sequences | None:
    """The kernels that the outermost rows of the host with `operator` in their name launch, in the order of their starts, if
    they are at least `least`. Durations are sums over all calls, in µs. None if there are none."""
    depths = rows.depths
    hosts = rows.by_id
    depths = depths[hosts["name"].str.contains(operator, regex=False)]
    if depths.empty:
        return None
    roots = depths.index[depths.eq(depths.min())]
    launched = rows.launched(True)
    launched = launched.assign(root=rows.enclosing(launched["id_host"], pd.Series(hosts.index.isin(roots), hosts.index)))
    launched = launched[launched["root"].ge(0)].sort_values(["root", "ts_device"], kind="stable")
    calls = launched.groupby("root").agg(kernels=("name", "|".join), count=("name", "size"), gpu=("dur_device", "sum"))
    calls = calls[calls["count"].ge(least)].join(hosts[["name", "ts", "dur"]].astype({"name": object}))
    if calls.empty:
        return None
    calls["pattern"] = calls["name"] + "|" + calls["kernels"]
    found = calls.groupby("pattern", as_index=False).agg(count=("dur", "size"), gpu=("gpu", "sum"), cpu=("dur", "sum"))
    found = found.sort_values(["count", "pattern"], ascending=[False, True], ignore_index=True)
    found["gpu"], found["cpu"] = microseconds(found["gpu"]), microseconds(found["cpu"])
    frame = found.rename(columns={"gpu": "GPU kernel duration (us)", "cpu": "CPU op duration (us)"})
    return Sequences(frame, calls, launched[launched["root"].isin(calls.index)])


def counters(rows: Rows, trace: dict[str, Any], rank: int) -> pd.DataFrame | None:
    """The rows of CUPTI's range profiler with their counters and the operators around their launches; None if there are none.
    The profiler runs one kernel after the other, so the k-th row belongs to the k-th launch."""
    ranges = [row for row in trace["traceEvents"] if row.get("cat") == _RANGE and row.get("ph") == "X"]
    if not ranges:
        return None
    ranges.sort(key=lambda row: row["ts"])
    launches = rows.host[rows.host["kind"].eq("cuda_runtime") & rows.host["name"].str.match(_LAUNCH)].sort_values("ts")
    if len(launches) != len(ranges):
        why = f"rank {rank} has {len(ranges)} rows of counters and {len(launches)} launches, so they cannot be matched"
        raise RankscopeError(why, None)
    stacks = rows.operators_around(launches["id"])
    found = pd.DataFrame([{key: row[key] for key in ("cat", "name", "pid", "tid", "ts", "dur")} for row in ranges])
    found = pd.concat([found, pd.DataFrame([row.get("args", {}) for row in ranges])], axis=1)
    found["op_stack"] = stacks
    found["top_level_op"] = [stack[0] if stack else "" for stack in stacks]
    found["bottom_level_op"] = [stack[-1] if stack else "" for stack in stacks]
    return found
