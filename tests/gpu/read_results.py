#!/usr/bin/env python3
"""Reads runs and analyses for tests/gpu/run. Prints `ok`, `FAILED` or `skipped`, a tab, and a sentence.

    read_results.py summary ANALYSIS.json                one sentence about a run (no verdict)
    read_results.py same_kernels EAGER.json GRAPH.json   a CUDA graph must have the kernels of the step without one
    read_results.py same_gemms RUN.json TORCH.json       number and time of products, compared with PyTorch's
    read_results.py losses RUN_A RUN_B BOUND "FIRST LAST" "FIRST LAST"
    read_results.py overhead RUN.json ON:OFF ...         ms a step, with and without recording, in pairs
    read_results.py clocks RUN                           starts of kernels compared with their launches
    read_results.py profiled DIR                         kernels in the traces of torch.profiler under exec
    read_results.py ddp RUN RUN.json DDP.json            a recorded DistributedDataParallel compared with its own facts
"""

import json
import pathlib
import statistics
import sys

GEMM = ("gemm", "cutlass", "xmma", "cublas", "nvjet", "sgemm", "ampere_", "sm80_", "sm90_")


def load(path):
    with open(path, encoding="utf-8") as file:
        return json.load(file)


def kernels(document):
    """Kernels of devices by name: calls and total time."""
    found = {}
    for row in document["tables"].get("kernel_stats", []):
        if row.get("device_id") is not None:
            calls, total = found.get(row["name"], (0, 0))
            found[row["name"]] = (calls + row["calls"], total + row["total_ns"])
    return found


def steps(document):
    return sorted({row["step"] for row in document["tables"]["step_breakdown"] if (row["step"] or 0) >= 1})


def gemms(document):
    return {name: value for name, value in kernels(document).items() if any(word in name.lower() for word in GEMM)}


def is_product(name):
    """Whether a kernel is a product. A split-K product may have a second kernel, which sums the parts and does not count:
    `splitKreduce_kernel`. Hopper's `nvjet_…_splitK_…` are products."""
    return "reduce" not in name.lower()


def table(path, name):
    """The rows of a table, or None where nothing reads Parquet."""
    pattern = str(pathlib.Path(path) / name / "*.parquet")
    try:
        import duckdb
        cursor = duckdb.sql(f"from '{pattern}'")
        return [dict(zip(cursor.columns, row)) for row in cursor.fetchall()]
    except ImportError:
        pass
    try:
        import pyarrow.parquet
        return [row for file in sorted(pathlib.Path(path, name).glob("*.parquet"))
                for row in pyarrow.parquet.ParquetFile(file).read().to_pylist()]
    except ImportError:
        return None


def summary(path):
    document = load(path)
    total = sum(calls for calls, _ in kernels(document).values())
    per_step = total / max(len(steps(document)), 1) / max(len(document["facts"]["ranks"]), 1)
    overlaps = [row["overlap_pct"] for row in document["tables"]["step_breakdown"]
                if row["step"] is None and row["overlap_pct"] is not None]
    overlap = f", {statistics.mean(overlaps):.1f} % of communication hidden" if overlaps else ""
    left_out = len(document["tables"].get("omissions", []))
    omitted = f"; {left_out} omissions" if left_out else ""
    print(f"{per_step:.0f} kernels a step and rank{overlap}; {document['verdict']['kind']}{omitted}")


def same_kernels(eager, graph):
    a, b = load(eager), load(graph)
    count = lambda d: sum(calls for calls, _ in kernels(d).values()) / max(len(steps(d)), 1)
    if not kernels(a):
        return "skipped", "no kernel was recorded: see the messages of rank-agent about CUPTI"
    same = abs(count(a) - count(b)) < 0.5
    return "ok" if same else "FAILED", f"{count(a):.1f} kernels a step without a graph, {count(b):.1f} with"


def same_gemms(run, torch):
    a, b = load(run), load(torch)
    if not kernels(a):
        return "skipped", "no kernel was recorded: see the messages of rank-agent about CUPTI"

    def of(document):
        found, n = gemms(document), max(len(steps(document)), 1)
        calls = sum(calls for name, (calls, _) in found.items() if is_product(name))
        return calls / n, sum(t for _, t in found.values()) / n / 1e6

    (count, ms), (torch_count, torch_ms) = of(a), of(b)
    # PyTorch writes bf16 where this backend writes f32, so PyTorch's products move fewer bytes.
    same = torch_count > 0 and abs(count - torch_count) <= 0.02 * torch_count and ms <= torch_ms / 0.9
    return ("ok" if same else "FAILED",
            f"{count:.1f} products of {ms:.2f} ms a step; PyTorch: {torch_count:.1f} of {torch_ms:.2f} ms")


def losses(run_a, run_b, bound, ends_a, ends_b):
    bound, kind = float(bound), "steps"
    a, b = table(run_a, "steps"), table(run_b, "steps")
    if a is None or b is None:
        pairs = list(zip(map(float, ends_a.split()), map(float, ends_b.split())))
        kind = "first and last step only, because no Parquet reader is installed"
    else:
        by_step = {row["step"]: row["loss"] for row in a}
        pairs = [(by_step[row["step"]], row["loss"]) for row in b if row["step"] in by_step]
    if not pairs or any(x is None or y is None for x, y in pairs):
        return "FAILED", f"losses are missing ({len(pairs)} pairs)"
    worst = max(abs(x - y) / max(abs(x), 1e-12) for x, y in pairs)
    verdict = "ok" if worst <= bound else "FAILED"
    return verdict, f"within {worst:.2e} of the CPU's loss, bound {bound:g} ({len(pairs)} {kind})"


def overhead(run, *times):
    pairs = [tuple(float(ms) for ms in pair.split(":")) for pair in times]
    ratios = [on / off for on, off in pairs]
    extra_ns = statistics.median(on - off for on, off in pairs) * 1e6
    document = load(run)
    per_step = sum(calls for calls, _ in kernels(document).values()) / max(len(steps(document)), 1)
    each = f", {extra_ns / per_step:.0f} ns a kernel" if per_step else ", no kernels recorded"
    return "ok", (f"{100 * (statistics.median(ratios) - 1):+.2f} % of a step (pairs {100 * (min(ratios) - 1):+.2f} to "
                  f"{100 * (max(ratios) - 1):+.2f}){each}")


def clocks(run):
    """No kernel starts before its launch. CUPTI reads the recorder's clock, so only such pairs say anything of the device's."""
    events = table(run, "events")
    if events is None:
        return "skipped", "no Parquet reader is installed (duckdb or pyarrow for python3)"
    launches = {}
    for row in events:
        if row["kind"] in ("cuda_runtime", "cuda_driver") and row["correlation_id"]:
            key = (row["rank"], row["correlation_id"])
            launches[key] = min(row["ts_ns"], launches.get(key, row["ts_ns"]))
    work = [row for row in events if row["kind"] in ("kernel", "gpu_memcpy", "gpu_memset")]
    if not work:
        return "skipped", "no row of a device: see the messages of rank-agent"
    pairs = [(row["rank"], row["correlation_id"]) for row in work]
    lags = sorted(row["ts_ns"] - launches[pair] for row, pair in zip(work, pairs) if pair in launches)
    if len(lags) < 0.99 * len(work):
        return "FAILED", f"{len(lags)} of {len(work)} rows of the device have the row of their launch"
    sentence = f"{len(lags)} starts after their launch: at least {lags[0]} ns, median {statistics.median(lags):.0f} ns"
    return "ok" if lags[0] >= -1000 else "FAILED", sentence


def profiled(directory):
    """Whether torch.profiler, under exec, has the kernels that it has alone."""
    files = sorted(pathlib.Path(directory).glob("kineto_rank*.json"))
    counts = [sum(event.get("cat") == "kernel" for event in load(file)["traceEvents"]) for file in files]
    if not counts:
        return "FAILED", "torch.profiler wrote no trace"
    said = ", ".join(map(str, counts))
    return "ok", f"kernels in torch.profiler's own traces, by rank: {said}" + ("" if all(counts) else "; exec holds CUPTI")


def ddp(run, analysis, own):
    own, document = load(own), load(analysis)
    instances = [row for row in document["tables"].get("collective_instances", []) if row["op"] == "allreduce"]
    buckets = len(own["bucket_bytes"])
    expected = own["steps"] * buckets
    # PyTorch rebuilds its buckets after the first step.
    same = buckets > 0 and abs(len(instances) - expected) <= buckets + 2
    whole = sum(1 for row in instances if row["complete"])
    sentence = (f"NCCL {own['nccl']}: {len(instances)} all-reduces, {whole} seen by all ranks; PyTorch: {buckets} buckets in "
            f"{own['steps']} steps, {own['ms_per_step']:.2f} ms each")
    rows = table(run, "collectives")
    if rows:
        joined = sum(1 for row in rows if row["event_id"] is not None)
        sources = sorted({row["timing_source"] for row in rows})
        sentence += f"; {100 * joined / len(rows):.1f} % joined to kernels, times by {', '.join(map(str, sources))}"
    return "ok" if same and whole == len(instances) else "FAILED", sentence


COMMANDS = {f.__name__: f for f in (summary, same_kernels, same_gemms, losses, overhead, clocks, profiled, ddp)}

if __name__ == "__main__":
    if len(sys.argv) < 3 or sys.argv[1] not in COMMANDS:
        sys.exit(__doc__)
    result = COMMANDS[sys.argv[1]](*sys.argv[2:])
    if result:
        print("\t".join(result))
