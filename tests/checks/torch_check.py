#!/usr/bin/env python3
"""`rankscope.torch` in a job of four gloo processes, in network namespaces with delays and time namespaces with shifted clocks.

    PYTHON tests/checks/torch_check.py [--rounds 3]      PYTHON has torch and the wheel of rankscope

Checks that
  - the guaranteed bound of the clocks holds in all pairs of ranks: the true offsets are those of the time namespaces;
  - times of the profiler, converted to the rank's clock, lie between the clock's readings before and after them;
  - the slow rank is the verdict;
  - `rankscope ctl start` opens one window at the same step of all ranks;
and prints the cost of a step against plain torch.profiler and none, in turns. Needs root, `ip`, `unshare` and /dev/net/tun; exits with 77
where these are missing. Without torch nothing is checked, and it says so.

Invariant (clocks): The bound of the clocks of `rankscope.torch` holds over a network stack with shifted clocks.
"""

import argparse
import contextlib
import importlib.util
import itertools
import json
import os
import pathlib
import shutil
import statistics
import subprocess
import sys
import tempfile
import time

sys.path[:0] = [str(pathlib.Path(__file__).resolve().parent), str(pathlib.Path(__file__).resolve().parents[1])]
from exec_network import CASES, RANKS, network_here  # noqa: E402
from support import CANNOT_RUN  # noqa: E402

SLOW_RANK, SLOW_S = 2, 0.04
# Seconds by which the clock of each rank is shifted.
SHIFTS = [0, 1000, 250_000, 77]
# A clock is read within this of the row whose time it brackets, beyond the two readings.
CONVERSION_NS = 1_000


def train(mode, out, steps, slow_rank):
    """One rank's training; prints what it measured as JSON."""
    import torch
    import torch.distributed as dist
    from torch.profiler import record_function, schedule

    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    weights = torch.randn(256, 256)
    gradient = torch.randn(64 << 10)
    marks, lengths = [], []
    windows = schedule(wait=12, warmup=1, active=4, repeat=3)

    def raw_ns():
        return time.clock_gettime_ns(time.CLOCK_MONOTONIC_RAW)

    def step(number):
        begun = time.perf_counter()
        for _ in range(8):
            weights @ weights
        if rank == slow_rank:
            with record_function("injected_delay"):
                time.sleep(SLOW_S)
        before = raw_ns()
        with record_function(f"mark {number}"):
            inside = raw_ns()
        marks.append((number, before, inside))
        dist.all_reduce(gradient)
        lengths.append(time.perf_counter() - begun)

    if mode in ("rankscope", "ctl"):
        import rankscope.torch

        prof = rankscope.torch.profile(
            run=out,
            schedule=windows if mode == "rankscope" else None,
            activities=[torch.profiler.ProfilerActivity.CPU],
        )
    elif mode == "plain":
        spool = tempfile.mkdtemp()
        prof = torch.profiler.profile(
            schedule=windows,
            activities=[torch.profiler.ProfilerActivity.CPU],
            on_trace_ready=lambda prof: prof.export_chrome_trace(f"{spool}/{prof.step_num}.json"),
        )
    else:
        prof = None
    begun = time.perf_counter()
    between = []
    with prof or contextlib.nullcontext():
        for number in range(steps):
            step(number)
            before = time.perf_counter()
            if prof:
                prof.step()
            between.append(time.perf_counter() - before)
            if mode == "ctl" and number > 100 and prof.recording.ended:
                break
        # Others may still be in a window.
        dist.barrier()
    wall = time.perf_counter() - begun
    dist.barrier()
    print(json.dumps({"rank": rank, "marks": marks, "lengths": lengths, "between": between, "wall": wall}))
    dist.destroy_process_group()


class Job:
    """Starts a training on every rank."""

    def __init__(self, network, mode, out, steps, shifts, slow_rank=SLOW_RANK):
        self.ranks = []
        for rank, name in enumerate(network.names):
            environment = {
                **os.environ, "RANK": str(rank), "WORLD_SIZE": str(RANKS), "MASTER_ADDR": "10.77.0.1", "MASTER_PORT": "29500",
                "GLOO_SOCKET_IFNAME": f"rs{os.getpid() % 100000}x{rank}", "OMP_NUM_THREADS": "1",
            }  # fmt: skip
            shift = ["unshare", "--time", "--fork", "--monotonic", str(shifts[rank]), "--boottime", str(shifts[rank])]
            command = ["ip", "netns", "exec", name, *shift, sys.executable, __file__, "--train", mode, "--out", out]
            command += ["--steps", str(steps), "--slow-rank", str(slow_rank)]
            self.ranks.append(
                subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
            )

    def results(self):
        ended = [rank.communicate(timeout=300) for rank in self.ranks]
        for rank, (process, (_, errors)) in enumerate(zip(self.ranks, ended, strict=True)):
            if process.returncode != 0:
                sys.exit(f"rank {rank} ended with {process.returncode}: {errors}")
            if "rankscope" in errors.lower():
                print(f"rank {rank} said: {errors.strip()}")
        return [json.loads(out.splitlines()[-1]) for out, _ in ended]


def check_clocks(name, analysis, shifts):
    """Checks the bound of every pair of ranks at the middle of the run."""
    fits = {fit["rank"]: fit for fit in analysis.clock_fit.to_arrow().to_pylist() if fit["clock"] == "host"}
    reference = fits[0]["reference_rank"]
    failed = 0
    wrong = {}
    for rank, fit in fits.items():
        wrong[rank] = fit["offset_ns"] - (shifts[reference] - shifts[rank]) * 1_000_000_000
        print(f"{name:26} rank {rank}: shifted by {shifts[rank]:>6} s, wrong by {wrong[rank] / 1e3:9.1f} us, "
              f"bound {(fit['bound_ns'] or 0) / 1e3:9.1f} us, {fit['method']}")
        failed += fit["method"] != "ping" or fit["bound_ns"] is None
    outside = [
        (a, b) for a, b in itertools.combinations(fits, 2)
        if abs(wrong[a] - wrong[b]) > (fits[a]["bound_ns"] or 0) + (fits[b]["bound_ns"] or 0)
    ]  # fmt: skip
    pairs = len(fits) * (len(fits) - 1) // 2
    print(f"{name:26} {pairs - len(outside)} of {pairs} pairs are inside their bound")
    return failed + len(outside) + (len(fits) != RANKS)


def check_conversion(name, run, results):
    """Checks that a row begins between the readings of the rank's clock around its beginning."""
    rows = [row for row in run.events.to_arrow().to_pylist() if row["name"].startswith("mark ")]
    worst, checked = 0, 0
    marks = {(result["rank"], number): (before, inside) for result in results for number, before, inside in result["marks"]}
    for row in rows:
        before, inside = marks[(row["rank"], int(row["name"].split()[1]))]
        worst = max(worst, before - row["ts_ns"], row["ts_ns"] - inside)
        checked += 1
    print(f"{name:26} {checked} rows begin between two readings of their rank's clock, at most {max(worst, 0)} ns outside")
    return int(checked == 0 or worst > CONVERSION_NS)


def check_job(network, name, delays, place):
    import rankscope

    network.delays = delays
    results = Job(network, "rankscope", f"{place}/run", 60, SHIFTS).results()
    analysis = rankscope.analyze(f"{place}/run")
    failed = check_clocks(name, analysis, SHIFTS) + check_conversion(name, rankscope.open(f"{place}/run"), results)
    verdict = analysis.verdict
    right = (verdict.kind, verdict.rank) == ("cause", SLOW_RANK)
    cost = (verdict.cost_ns or 0) / 1e6
    print(f"{name:26} verdict: {verdict.kind}, rank {verdict.rank}, {cost:.1f} ms a step (sleeps {SLOW_S * 1e3:.0f} ms); "
          f"steps {analysis.facts['steps'][0]} to {analysis.facts['steps'][-1]}, complete: {analysis.complete}")
    for row in analysis.omissions.to_arrow().to_pylist():
        if row["kind"] == "lost":
            print(f"{name:26} lost: {row['what']}: {row['why']}")
    return failed + (not right) + (not analysis.complete)


def check_ctl(network, place):
    import rankscope

    network.delays = CASES["no delay"]
    job = Job(network, "ctl", f"{place}/run", 4000, SHIFTS)
    command = [sys.executable, "-m", "rankscope", "ctl", "start", "--out", f"{place}/run"]
    until = time.monotonic() + 60
    while subprocess.run(command, capture_output=True).returncode != 0 and time.monotonic() < until:
        time.sleep(0.5)
    job.results()
    steps = rankscope.open(f"{place}/run").steps.to_arrow().to_pylist()
    by_rank = {rank: sorted(row["step"] for row in steps if row["rank"] == rank) for rank in range(RANKS)}
    same = len(by_rank[0]) > 0 and all(found == by_rank[0] for found in by_rank.values())
    print(f"rankscope ctl start: steps {by_rank[0]} on rank 0, {'the same' if same else by_rank} on all ranks")
    return int(not same)


def measure(network, rounds):
    """Prints the medians of steps of the three ways, in turns."""
    network.delays = CASES["no delay"]
    lengths, walls = {}, {}
    for _ in range(rounds):
        for mode in ("none", "plain", "rankscope"):
            with tempfile.TemporaryDirectory() as place:
                for result in Job(network, mode, f"{place}/run", 60, SHIFTS, -1).results():
                    whole = [a + b for a, b in zip(result["lengths"], result["between"], strict=True)]
                    lengths.setdefault(mode, []).extend(whole)
                    walls.setdefault(mode, []).append(sum(whole))
    medians = {mode: statistics.median(values) * 1e3 for mode, values in lengths.items()}
    total = {mode: statistics.median(values) * 1e3 / 60 for mode, values in walls.items()}
    for mode in medians:
        print(f"cost, {mode:9}: median step {medians[mode]:.2f} ms; all time per step, with exports, {total[mode]:.2f} ms")
    return medians["rankscope"] / medians["plain"], total["rankscope"] / total["plain"]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--train")
    parser.add_argument("--out")
    parser.add_argument("--steps", type=int)
    parser.add_argument("--slow-rank", type=int)
    options = parser.parse_args()
    if options.train:
        train(options.train, options.out, options.steps, options.slow_rank)
        return 0
    missing = [name for name in ("torch", "rankscope", "pyarrow") if importlib.util.find_spec(name) is None]
    if missing:
        print(f"not checked: {', '.join(missing)} not installed in {sys.executable}")
        return 0
    if not shutil.which("unshare"):
        print("skipped: namespaces of time need unshare (util-linux)")
        return CANNOT_RUN
    network = network_here()
    if network is None:
        return CANNOT_RUN
    failed = 0
    try:
        for name, delays in CASES.items():
            with tempfile.TemporaryDirectory() as place:
                failed += check_job(network, name, delays, place)
        with tempfile.TemporaryDirectory() as place:
            failed += check_ctl(network, place)
        step, all_time = measure(network, options.rounds)
    finally:
        network.close()
    print(f"four ranks of torch in {len(CASES)} networks: {failed} failed; against plain torch.profiler a step takes "
          f"{step:.3f} times as long, all time {all_time:.3f}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
