#!/usr/bin/env python3
"""Facts of recorded runs, by their Parquet files, for tests/gpu/run. Prints lines `CLAIM <tab> ok|FAILED|skipped <tab> DETAIL`.

    facts.py CLAIM windows RUN N          rows of the device in each of N windows, and their launches
    facts.py CLAIM exits WORD N RUN …     every run has N kernels whose name contains WORD
    facts.py CLAIM channels RUN           NCCL's times of channels beside CUPTI's kernels
    facts.py CLAIM group|alltoall|broadcasts|graph RUN   collectives of nccl_cases.py
    facts.py CLAIM release RUN ANALYSIS LOG VERSION   collectives with the times of their kernels, under an NCCL
    facts.py CLAIM switched RUN           a run that was recorded in part
    facts.py CLAIM delays RUN RANK MS     the kernels of --inject slow
    facts.py CLAIM kernel_counts RUN DIR  kernels a step, and in the traces of torch.profiler

Times are ns. It reads with duckdb or pyarrow.
"""

import collections
import functools
import json
import math
import pathlib
import re
import statistics
import sys
import traceback

DEVICE = ("kernel", "gpu_memcpy", "gpu_memset")
CALLS = ("cuda_runtime", "cuda_driver")
# CUPTI converts times of a device; a start this much before its launch is no contradiction.
ROUNDING_NS = 1000
# Stamps of a device's own timer beside CUPTI's conversion of it.
INSIDE_NS = 5000
# The largest median of the stated errors of such stamps.
USEFUL_NS = 50_000


def table(path, name):
    """The rows of a table, or None where nothing reads Parquet."""
    files = sorted(pathlib.Path(path, name).glob("*.parquet"))
    try:
        import duckdb
        if not files:
            return []
        cursor = duckdb.sql(f"from read_parquet({[str(file) for file in files]}, union_by_name = true)")
        return [dict(zip(cursor.columns, row)) for row in cursor.fetchall()]
    except ImportError:
        pass
    try:
        import pyarrow.parquet
        return [row for file in files for row in pyarrow.parquet.ParquetFile(file).read().to_pylist()]
    except ImportError:
        return None


def verdict(is_right):
    return "ok" if is_right else "FAILED"


def spread(values):
    """Least, median and largest."""
    return f"{min(values)} to {max(values)} ns, median {statistics.median(values):.0f}" if values else "none"


def losses_of(run):
    """What the run says was lost: rows, and a sentence."""
    lost = [row for row in table(run, "counters") if row["dropped"]]
    count = sum(row["dropped"] for row in lost)
    why = "; ".join(f"{row['source']}: {row['why']}" for row in lost)
    return count, f"{count} lost" + (f" ({why})" if why else "")


def calls_of(events):
    found = {}
    for row in events:
        if row["kind"] in CALLS and row["correlation_id"]:
            key = (row["rank"], row["correlation_id"])
            if key not in found or row["ts_ns"] < found[key]["ts_ns"]:
                found[key] = row
    return found


def windows_of(run):
    """The window of each active step, by rank and step: an unbroken run of numbers."""
    found, number, last = {}, 0, None
    for rank, step in sorted((row["rank"], row["step"]) for row in table(run, "steps") if row["phase"] == "active"):
        if last != (rank, step - 1):
            number = number + 1 if last and last[0] == rank else 1
        found[rank, step], last = number, (rank, step)
    return found


def windows(claim, run, expected):
    events = table(run, "events")
    work = [row for row in events if row["kind"] in DEVICE]
    if not work:
        yield claim, "skipped", "no row of a device: see the messages of rank-agent about CUPTI"
        return
    window_of = windows_of(run)
    counts = collections.Counter(window_of.get((row["rank"], row["step"])) for row in work if row["kind"] == "kernel")
    counts.pop(None, None)
    calls = calls_of(events)
    joined = [(row, calls[key]) for row in work if (key := (row["rank"], row["correlation_id"])) in calls]
    lost, said_lost = losses_of(run)
    share = len(joined) / len(work)
    same = len(counts) == int(expected) and max(counts.values()) <= 1.02 * min(counts.values())
    graphs = [(row, call) for row, call in joined if row["graph_id"]]
    by_graph = [row for row, call in graphs if "GraphLaunch" in call["name"]]
    said = f"kernels by window {dict(sorted(counts.items()))}; {100 * share:.2f} % of {len(work)} rows have their launch; {said_lost}"
    if claim == "graph_windows":
        said += f"; {len(by_graph)} of {len(graphs)} rows of graphs have a launch of a graph"
        same = same and len(by_graph) >= 0.99 * len(graphs) > 0
    yield claim, verdict(same and share >= 0.99 and not lost), said
    yield device_times(run, events, joined)


def device_times(run, events, joined):
    lags = [row["ts_ns"] - call["ts_ns"] for row, call in joined]
    before = sum(lag < 0 for lag in lags)
    # A synchronisation of the device returns after the end of all that was launched before it.
    ends = collections.defaultdict(list)
    for row, call in joined:
        ends[row["rank"]].append((call["ts_ns"], row["ts_ns"] + row["dur_ns"]))
    after = []
    for rank, launched in ends.items():
        launched.sort()
        syncs = sorted((row["ts_ns"], row["ts_ns"] + row["dur_ns"]) for row in events if row["rank"] == rank
                       and row["kind"] in CALLS and row["name"].startswith(("cudaDeviceSynchronize", "cuCtxSynchronize")))
        next_one, last_end = 0, None
        for begin, end in syncs:
            while next_one < len(launched) and launched[next_one][0] < begin:
                last_end = max(launched[next_one][1], last_end or launched[next_one][1])
                next_one += 1
            if last_end is not None:
                after.append(end - last_end)
    step = functools.reduce(math.gcd, (row["ts_ns"] for row, _ in joined), 0)
    right = min(lags, default=0) >= -ROUNDING_NS and min(after, default=0) >= -ROUNDING_NS
    said = (f"starts after their launch: {spread(lags)}, {before} before it; synchronisations after the last end: {spread(after)}; "
            f"times are multiples of {step} ns")
    return "device_times", verdict(right), said


def exits(claim, word, count, *runs):
    found = {run: sum(row["kind"] == "kernel" and word in row["name"] for row in table(run, "events")) for run in runs}
    wrong = {pathlib.Path(run).name: n for run, n in found.items() if n != int(count)}
    said = f"{len(runs)} runs, {len(runs) - len(wrong)} with all {count} kernels"
    yield claim, verdict(runs and not wrong), said + (f"; others: {wrong}" if wrong else "")


def operations(run):
    """The newest row of each collective; sends and receives are numbered by peer."""
    newest = {}
    for index, row in enumerate(table(run, "collectives")):
        key = (row["rank"], row["comm_id"], row["op"], row["seq"], row["peer"])
        newest[key if row["seq"] is not None else index] = row
    return list(newest.values())


def outside_kernels(run):
    """How far NCCL's times of channels are outside of the kernels of their operation: ns, of each that has both."""
    kernels = collections.defaultdict(list)
    for row in table(run, "events"):
        if row["kind"] == "kernel" and row["is_comm"]:
            kernels[row["rank"]].append((row["ts_ns"], row["ts_ns"] + row["dur_ns"]))
    found = []
    for row in table(run, "nccl_channels"):
        if row["start_ns"] is None or row["end_ns"] is None or row["suspect"] or not kernels[row["rank"]]:
            continue
        off = min(max(begin - row["start_ns"], row["end_ns"] - end, 0) for begin, end in kernels[row["rank"]])
        found.append((off, row["clock_error_ns"] or 0))
    return found


def channels(claim, run):
    rows = table(run, "nccl_channels")
    if not rows:
        yield claim, "FAILED", "NCCL reported no channel"
        return
    stamps = [row[name] for row in rows for name in ("gpu_start_ns", "gpu_end_ns") if row[name]]
    suspect = sum(row["suspect"] for row in rows)
    seen = [row["seen_start_ns"] - row["start_ns"] for row in rows if row["start_ns"] is not None]
    off = outside_kernels(run)
    beyond = sum(off_ns > max(error_ns, INSIDE_NS) for off_ns, error_ns in off)
    errors = [row["clock_error_ns"] for row in rows if row["clock_error_ns"] is not None]
    said = (f"{len(rows)} channels, {suspect} suspect; timer in steps of {functools.reduce(math.gcd, stamps, 0)} ns; stated error "
            f"{spread(errors)}; outside CUPTI's kernels: "
            f"{spread([off_ns for off_ns, _ in off])}, {beyond} of {len(off)} beyond; NCCL saw starts after {spread(seen)}")
    # An error of milliseconds would say nothing.
    result = "skipped" if not off else verdict(not beyond and suspect == 0 and statistics.median(errors) <= USEFUL_NS)
    yield claim, result, said


def states(run):
    return dict(collections.Counter(f"{row['op']} {row['state']} by {row['timing_source']}" for row in operations(run)))


def case(claim, run, is_right):
    off = outside_kernels(run)
    beyond = sum(off_ns > max(error_ns, INSIDE_NS) for off_ns, error_ns in off)
    channels, (lost, said_lost) = table(run, "nccl_channels"), losses_of(run)
    said = (f"{states(run)}; {sum(row['suspect'] for row in channels)} of {len(channels)} channels suspect, {beyond} of the others outside "
            f"their kernels; {said_lost}")
    yield claim, verdict(is_right and not beyond and not lost), said


def group(claim, run):
    """NCCL gives works of one protocol in a launch to the device as one; those of another protocol run before or after."""
    rows, batches = operations(run), collections.defaultdict(list)
    for row in rows:
        batches[row["rank"], row["event_id"], row["proto"]].append(bool(row["fused"]))
    wrong = sum(any(batch) if len(batch) == 1 else not all(batch) for batch in batches.values())
    fused = sum(sum(batch) for batch in batches.values())
    for _, result, said in case(claim, run, fused and not wrong):
        yield claim, result, f"{fused} of {len(rows)} fused, {wrong} of {len(batches)} batches not as they ran; {said}"


def alltoall(claim, run):
    rows = operations(run)
    stuck = [row for row in rows if row["state"] not in ("done", "unreported")]
    own = [row for row in rows if row["op"] in ("send", "recv") and row["state"] == "unreported"]
    for _, result, said in case(claim, run, rows and own and not stuck):
        yield claim, result, f"{len(own)} unreported, {len(stuck)} without an end; {said}"


def broadcasts(claim, run):
    rows = operations(run)
    stuck = [row for row in rows if row["state"] not in ("done", "unreported")]
    found = sum(row["op"] == "broadcast" for row in rows)
    # The program calls 60 on each of two ranks.
    for _, result, said in case(claim, run, found == 120 and not stuck):
        yield claim, result, f"{found} of 120 broadcasts, {len(stuck)} operations without an end; {said}"


def graph(claim, run):
    stuck = [row for row in operations(run) if row["state"] not in ("done", "unreported")]
    for _, result, said in case(claim, run, not stuck):
        yield claim, result, f"{len(stuck)} without an end; {said}"


def release(claim, run, analysis, log, version):
    rows, events, (lost, said_lost) = operations(run), table(run, "events"), losses_of(run)
    kernels = {(row["rank"], row["ts_ns"]) for row in events if row["kind"] == "kernel" and row["is_comm"]}
    document = json.loads(pathlib.Path(analysis).read_text(encoding="utf-8"))
    # Kernels that no collective has count by their names.
    by_name = document["facts"].get("communication_by_name")
    divided = any(row["exposed_wait_ns"] is not None for row in document["tables"]["step_breakdown"])
    suspect = sum(row["suspect"] for row in table(run, "nccl_channels"))
    used = re.search(r"NCCL ([0-9.]+[0-9])", pathlib.Path(log).read_text(encoding="utf-8"))
    used = used[1] if used else "an unknown release"
    said = (f"NCCL {used} of {version}: {states(run)}; {len(kernels)} kernels, {'some without their collective' if by_name else 'all joined'}; "
            f"waits are {'told' if divided else 'not told'} from transfers; {suspect} channels suspect; {said_lost}")
    right = used == version and rows and len(kernels) == len(rows) and not by_name and divided and not lost
    yield claim, verdict(right), said


def switched(claim, run):
    rows, (lost, said_lost) = operations(run), losses_of(run)
    suspect = sum(row["suspect"] for row in table(run, "nccl_channels"))
    stuck = sum(row["state"] == "started" for row in rows)
    times = [row["enqueue_ns"] for row in rows if row["enqueue_ns"]]
    seconds = (max(times) - min(times)) / 1e9 if times else 0
    said = f"{len(rows)} collectives in {seconds:.1f} s, {stuck} without an end, {suspect} channels suspect, {said_lost}"
    # A collective may run while the recording ends.
    yield claim, verdict(rows and not lost and stuck <= 2), said


def delays(claim, run, rank, ms):
    found = [row for row in table(run, "events") if row["kind"] == "kernel" and row["name"] == "injected_delay"]
    if not found:
        any_kernel = any(row["kind"] == "kernel" for row in table(run, "events"))
        result = "FAILED" if any_kernel else "skipped"
        yield claim, result, "no kernel `injected_delay`" + ("" if any_kernel else ", nor any other: see the messages about CUPTI")
        return
    lengths = [row["dur_ns"] for row in found]
    right = {row["rank"] for row in found} == {int(rank)} and min(lengths) >= 0.99e6 * float(ms)
    yield claim, verdict(right), f"{len(found)} kernels `injected_delay` of {spread(lengths)}"


def kernel_counts(claim, run, directory):
    own = collections.Counter((row["rank"], row["step"]) for row in table(run, "events") if row["kind"] == "kernel")
    own = [count for (_, step), count in own.items() if step is not None and step >= 0]
    document = json.loads(pathlib.Path(directory, "ddp.json").read_text(encoding="utf-8"))
    theirs = []
    for file in sorted(pathlib.Path(directory).glob("kineto_rank*.json")):
        events = json.loads(file.read_text(encoding="utf-8"))["traceEvents"]
        theirs.append(sum(event.get("cat") == "kernel" for event in events) / document["profiled_steps"])
    if not own or not theirs:
        yield claim, "FAILED", f"steps with kernels: {len(own)} here, {len(theirs)} traces of torch.profiler"
        return
    # The first and last steps of a trace may have kernels of others.
    right = abs(statistics.median(own) - statistics.median(theirs)) <= 1
    yield claim, verdict(right), f"{statistics.median(own)} kernels a step; torch.profiler: {statistics.median(theirs):.1f}"


COMMANDS = {f.__name__: f for f in (windows, exits, channels, group, alltoall, broadcasts, graph, release, switched, delays, kernel_counts)}


def main(usage, commands):
    """Prints the lines of a command. A command that fails is a line, too."""
    if len(sys.argv) < 4 or sys.argv[2] not in commands:
        sys.exit(usage)
    claim, command, *arguments = sys.argv[1:]
    if table(".", "none") is None:
        print(f"{claim}\tskipped\tit needs a python3 with duckdb or pyarrow")
        return
    try:
        for line in commands[command](claim, *arguments):
            print("\t".join(line))
    except Exception as error:
        where = traceback.extract_tb(error.__traceback__)[-1]
        print(f"{claim}\tFAILED\t{command}: {type(error).__name__}: {error} ({pathlib.Path(where.filename).name}:{where.lineno})")


if __name__ == "__main__":
    main(__doc__, COMMANDS)
