#!/usr/bin/env python3
"""Reads analyses and the programs' own results for tests/gpu/run. Prints lines `CLAIM <tab> ok|FAILED|skipped <tab> DETAIL`.

    read_results.py CLAIM summary ANALYSIS.json          what a run is
    read_results.py CLAIM same_kernels EAGER.json GRAPH.json   a CUDA graph must have the kernels of the step without one
    read_results.py CLAIM same_gemms RUN.json TORCH.json       number and time of products, compared with PyTorch's
    read_results.py CLAIM losses RUN_A RUN_B BOUND "FIRST LAST" "FIRST LAST"
    read_results.py CLAIM overhead RUN.json ON:OFF …           ms a step, with and without recording, in pairs
    read_results.py CLAIM profiled DIR                         kernels in the traces of torch.profiler under exec
    read_results.py CLAIM ddp RUN RUN.json DDP.json            a recorded DistributedDataParallel compared with its own facts
    read_results.py CLAIM ddp_cost OFF.json ON.json PROFILED.json
    read_results.py CLAIM bandwidth RUN.json OWN.json          bus bandwidth, compared with that by CUDA's events
    read_results.py CLAIM straggler RUN.json RANK MS           the rank that --inject slow makes slow
    read_results.py CLAIM hang RUN.json RANK                   the rank that a hung collective lacks
"""

import json
import pathlib
import statistics

from facts import main, table, verdict

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


def summary(claim, path):
    document = load(path)
    total = sum(calls for calls, _ in kernels(document).values())
    per_step = total / max(len(steps(document)), 1) / max(len(document["facts"]["ranks"]), 1)
    overlaps = [row["overlap_pct"] for row in document["tables"]["step_breakdown"]
                if row["step"] is None and row["overlap_pct"] is not None]
    overlap = f", {statistics.mean(overlaps):.1f} % of communication hidden" if overlaps else ""
    left_out = len(document["tables"].get("omissions", []))
    omitted = f"; {left_out} omissions" if left_out else ""
    yield claim, "ok", f"{per_step:.0f} kernels a step and rank{overlap}; {document['verdict']['kind']}{omitted}"


def same_kernels(claim, eager, graph):
    a, b = load(eager), load(graph)
    count = lambda d: sum(calls for calls, _ in kernels(d).values()) / max(len(steps(d)), 1)
    same = abs(count(a) - count(b)) < 0.5
    result = verdict(same) if kernels(a) else "skipped"
    yield claim, result, f"{count(a):.1f} kernels a step without a graph, {count(b):.1f} with"


def same_gemms(claim, run, torch):
    a, b = load(run), load(torch)

    def of(document):
        found, n = gemms(document), max(len(steps(document)), 1)
        calls = sum(calls for name, (calls, _) in found.items() if is_product(name))
        return calls / n, sum(t for _, t in found.values()) / n / 1e6

    (count, ms), (torch_count, torch_ms) = of(a), of(b)
    # PyTorch writes bf16 where this backend writes f32, so PyTorch's products move fewer bytes.
    same = torch_count > 0 and abs(count - torch_count) <= 0.02 * torch_count and ms <= torch_ms / 0.9
    yield claim, verdict(same), f"{count:.1f} products of {ms:.2f} ms a step; PyTorch: {torch_count:.1f} of {torch_ms:.2f} ms"


def losses(claim, run_a, run_b, bound, ends_a, ends_b):
    a, b = table(run_a, "steps"), table(run_b, "steps")
    if a and b:
        kind, by_step = "steps", {(row["rank"], row["step"]): row["loss"] for row in a}
        pairs = [(by_step[row["rank"], row["step"]], row["loss"]) for row in b if (row["rank"], row["step"]) in by_step]
    else:
        kind = "first and last step only, because nothing reads Parquet here"
        pairs = list(zip(map(float, ends_a.split()), map(float, ends_b.split())))
    names = f"{pathlib.Path(run_b).name} and {pathlib.Path(run_a).name}"
    if not pairs or any(x is None or y is None for x, y in pairs):
        yield claim, "FAILED", f"{names}: losses are missing ({len(pairs)} pairs)"
        return
    # Rounding grows from step to step, while the losses become small.
    worst = max(abs(x - y) for x, y in pairs) / max(max(abs(x), abs(y)) for x, y in pairs)
    yield claim, verdict(worst <= float(bound)), f"{names}: losses differ by {worst:.2e} of the largest at most, bound {bound} ({len(pairs)} {kind})"


def overhead(claim, run, *times):
    pairs = [tuple(float(ms) for ms in pair.split(":")) for pair in times]
    ratios = [on / off for on, off in pairs]
    extra_ns = statistics.median(on - off for on, off in pairs) * 1e6
    document = load(run)
    per_step = sum(calls for calls, _ in kernels(document).values()) / max(len(steps(document)), 1)
    each = f", {extra_ns / per_step:.0f} ns a kernel" if per_step else ", no kernels recorded"
    yield claim, "ok", (f"reference workload: {100 * (statistics.median(ratios) - 1):+.2f} % of a step (pairs {100 * (min(ratios) - 1):+.2f} to "
                  f"{100 * (max(ratios) - 1):+.2f}){each}")


def profiled(claim, directory):
    """Whether torch.profiler, under exec, has the kernels that it has alone."""
    files = sorted(pathlib.Path(directory).glob("kineto_rank*.json"))
    counts = [sum(event.get("cat") == "kernel" for event in load(file)["traceEvents"]) for file in files]
    if not counts:
        yield claim, "FAILED", "torch.profiler wrote no trace"
        return
    said = ", ".join(map(str, counts))
    holds = "" if all(counts) else "; exec holds CUPTI"
    yield claim, "ok", f"kernels in torch.profiler's own traces, by rank: {said}{holds}"


def ddp(claim, run, analysis, own):
    own, document = load(own), load(analysis)
    instances = [row for row in document["tables"]["collective_instances"] if row["op"] == "allreduce"]
    buckets = len(own["bucket_bytes"])
    expected = own["steps"] * buckets
    # PyTorch rebuilds its buckets after the first step.
    same = buckets > 0 and abs(len(instances) - expected) <= buckets + 2
    whole = sum(1 for row in instances if row["complete"])
    sentence = (f"NCCL {own['nccl']}: {len(instances)} all-reduces, {whole} seen by all ranks; PyTorch: {buckets} buckets in "
                f"{own['steps']} steps, {own['ms_per_step']:.2f} ms each, {own['cpu_ms_per_step']:.2f} ms of CPU time")
    rows = table(run, "collectives")
    if rows:
        joined = sum(1 for row in rows if row["event_id"] is not None)
        sources = sorted({row["timing_source"] for row in rows})
        sentence += f"; {100 * joined / len(rows):.1f} % joined to kernels, times by {', '.join(map(str, sources))}"
    yield claim, verdict(same and whole == len(instances)), sentence


def ddp_cost(claim, off, on, profiled):
    off, on, profiled = (load(path) for path in (off, on, profiled))
    more = [100 * (run["ms_per_step"] / off["ms_per_step"] - 1) for run in (on, profiled)]
    yield claim, verdict(more[0] <= more[1]), (f"DDP: {more[0]:+.2f} % of a step of {off['ms_per_step']:.2f} ms, torch.profiler "
                                                f"{more[1]:+.2f} %; CPU time {off['cpu_ms_per_step']:.2f} ms a step, recorded "
                                                f"{on['cpu_ms_per_step']:.2f}")


def bandwidth(claim, analysis, own):
    """CUDA's events around a call count the wait for the other rank."""
    own = {int(size): gbs for size, gbs in load(own)["busbw_gbs"].items()}
    found = {size: [] for size in own}
    for row in load(analysis)["tables"]["collective_instances"]:
        if row["op"] == "allreduce" and row["bytes"] in found and row["busbw_incl_wait_gbs"] is not None:
            found[row["bytes"]].append(row["busbw_incl_wait_gbs"])
    ratios = {size: statistics.median(gbs) / own[size] for size, gbs in found.items() if gbs}
    said = ", ".join(f"{size >> 20} MiB: {statistics.median(found[size]):.2f} of {own[size]:.2f} GB/s" for size in ratios)
    right = len(ratios) == len(own) and all(0.8 <= ratio <= 1.25 for ratio in ratios.values())
    yield claim, verdict(right), said or "no all-reduce of these sizes has a bandwidth"


def straggler(claim, analysis, rank, ms):
    document = load(analysis)
    found = document["verdict"]
    result = verdict(found["causes"] == [int(rank)])
    # Without rows of a device, the delay is in no row: the verdict is about the steps of the host.
    if result != "ok" and not kernels(document):
        result = "skipped"
    yield claim, result, f"{found['kind']}: {found['sentence']} (planted: {ms} ms)"


def hang(claim, analysis, rank):
    document = load(analysis)
    rows = document["tables"]["unfinished_collectives"]
    missing = [row["missing"] for row in rows if row["missing"]]
    yield claim, verdict([int(rank)] in missing), f"{len(rows)} collectives without an end; ranks that did not call them: {missing}"


COMMANDS = {f.__name__: f for f in (summary, same_kernels, same_gemms, losses, overhead, profiled, ddp, ddp_cost, bandwidth,
                                    straggler, hang)}

if __name__ == "__main__":
    main(__doc__, COMMANDS)
