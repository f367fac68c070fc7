#!/usr/bin/env python3
"""Checks that Holistic Trace Analysis (HTA) reads the Chrome export and finds in it what the aggregator found.

    tests/checks/hta_check.py [--bin AGGREGATOR] [--venv VENV] TRACES…

Each of TRACES is a folder of torch.profiler traces with GPU rows. `aggregator ingest` makes a run of them, and `aggregator
export --format chrome` makes Chrome traces of the run. HTA's overlap and temporal breakdown of the export must equal those of
the original traces to the last digit, and the overlap must equal that of `aggregator analyze`. (HTA's idle times may differ:
the parity tests list HTA's errors.)

HTA is installed from PyPI into VENV (default target/hta-venv) with the packages that these analyses need, but without the
notebook server that it requires. Exits with 77 where it cannot be installed.
"""

import argparse
import json
import pathlib
import subprocess
import sys
import tempfile

# The shared module is one folder up.
sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))
from support import CANNOT_RUN, RELEASE, ROOT  # noqa: E402

HTA_PROGRAM = """
import json, logging, sys, warnings
warnings.filterwarnings("ignore")
logging.disable(logging.CRITICAL)
from hta.trace_analysis import TraceAnalysis
try:
    analysis = TraceAnalysis(trace_dir=sys.argv[1], include_last_profiler_step=True)
except TypeError:
    analysis = TraceAnalysis(trace_dir=sys.argv[1])
overlap = analysis.get_comm_comp_overlap(visualize=False)
temporal = analysis.get_temporal_breakdown(visualize=False)
print("result", json.dumps({"overlap": overlap.to_dict("records"), "temporal": temporal.to_dict("records")}, default=float))
"""


CHECKS = pathlib.Path(__file__).resolve().parent
REQUIREMENTS = [CHECKS / "requirements-hta.txt", CHECKS / "requirements-hta-needs.txt"]


def run(*command, codes=(0, 3)):
    done = subprocess.run([str(word) for word in command], capture_output=True, text=True)
    if done.returncode not in codes:
        sys.exit(f"{' '.join(map(str, command))} ended with {done.returncode}:\n{done.stderr[-3000:]}")
    return done.stdout


def install(venv):
    python = venv / "bin" / "python"
    if not python.exists():
        run(sys.executable, "-m", "venv", venv, codes=(0,))
    loads = [python, "-c", "import hta.trace_analysis"]
    if subprocess.run(loads, capture_output=True, check=False).returncode == 0:
        return python
    pip = [python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--retries", "1"]
    pip += ["--no-deps", "--require-hashes", "--only-binary", ":all:"]
    for wanted in REQUIREMENTS:
        done = subprocess.run([*pip, "--requirement", wanted], capture_output=True, text=True, check=False)
        if done.returncode != 0:
            why = (done.stderr.strip().splitlines() or ["pip printed no error"])[-1]
            print(f"skipped: HTA on the Chrome export: it could not be installed from PyPI: {why}")
            sys.exit(CANNOT_RUN)
    return python


def ask_hta(python, traces):
    output = run(python, "-c", HTA_PROGRAM, traces, codes=(0,))
    return json.loads(next(line for line in output.splitlines() if line.startswith("result ")).removeprefix("result "))


def compare_overlap(hta, tables):
    """Returns the largest difference in percentage points."""
    breakdown = {row["rank"]: row for row in tables["step_breakdown"] if row["step"] is None and row["device_id"] is not None}
    if sorted(row["rank"] for row in hta["overlap"]) != sorted(breakdown):
        sys.exit(f"HTA found ranks {[row['rank'] for row in hta['overlap']]}, the run has {sorted(breakdown)}")
    points = 0.0
    for row in hta["overlap"]:
        ours, theirs = breakdown[row["rank"]]["overlap_pct"], row["comp_comm_overlap_pctg"]
        print(f"rank {row['rank']}: overlap {ours} %, HTA {theirs} %")
        if (ours is None) != (theirs != theirs):
            sys.exit(f"rank {row['rank']}: only one of the two has an overlap")
        points = max(points, abs(ours - theirs) if ours is not None else 0.0)
    return points


def check(python, aggregator, traces, work):
    """Compares one folder of traces. Returns a summary; exits on a difference."""
    print(f"{traces.name}:")
    run(aggregator, "ingest", traces, "--out", work / "run")
    run(aggregator, "export", work / "run", "--format", "chrome", "-o", work / "chrome")
    tables = json.loads(run(aggregator, "analyze", work / "run", "--json"))["tables"]
    original, exported = ask_hta(python, traces), ask_hta(python, work / "chrome")
    points = compare_overlap(exported, tables)
    # Compare text, because NaN does not equal NaN.
    if json.dumps(original) != json.dumps(exported):
        sys.exit(f"HTA's results for the export of {traces.name} differ from those for the traces:\n{original}\n{exported}")
    # HTA rounds to 0.01.
    if points > 0.0051:
        sys.exit(f"HTA's overlap of {traces.name} differs from ours by {points:.4f} percentage points")
    return f"{traces.name}: {len(exported['overlap'])} ranks, equal to the traces, overlap equal to ours"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("traces", type=pathlib.Path, nargs="+")
    parser.add_argument("--bin", type=pathlib.Path, default=RELEASE / "aggregator")
    parser.add_argument("--venv", type=pathlib.Path, default=ROOT / "target" / "hta-venv")
    options = parser.parse_args()
    python = install(options.venv)
    compared = []
    for traces in options.traces:
        with tempfile.TemporaryDirectory(prefix="hta-") as work:
            compared.append(check(python, options.bin, traces.resolve(), pathlib.Path(work)))
    print("HTA on the export: " + "; ".join(compared))


if __name__ == "__main__":
    main()
