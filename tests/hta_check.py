#!/usr/bin/env python3
"""Does Holistic Trace Analysis (HTA) load our Chrome export, and find in it what we found in the run?

    tests/hta_check.py [--bin AGGREGATOR] [--venv VENV] TRACES…

Each of TRACES is a directory of traces of torch.profiler with GPU rows. They become a run (`aggregator ingest`), the run becomes
Chrome traces again (`aggregator export --format chrome`), and HTA is asked for the overlap of communication and computation
and for its temporal breakdown. Of the export it must say what it says of the original traces, to the last digit, and its overlap
must be that of `aggregator analyze` (its idle times are not always: tests of parity list where HTA errs).

HTA is installed from PyPI into VENV (default target/hta-venv) if it is not there, with what these analyses need and without the
notebook server that it asks for. Exit code 77 where it cannot be installed.
"""

import argparse
import json
import pathlib
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parents[1]

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


HTA = "HolisticTraceAnalysis==0.5.0"
NEEDED = ["pandas", "networkx", "plotly", "PyYAML", "psutil"]
SKIPPED = 77


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
    for wanted in (["--no-deps", HTA], NEEDED):
        done = subprocess.run([*pip, *wanted], capture_output=True, text=True, check=False)
        if done.returncode != 0:
            why = (done.stderr.strip().splitlines() or ["pip says nothing"])[-1]
            print(f"skipped: HTA on the Chrome export: it could not be installed from PyPI: {why}")
            sys.exit(SKIPPED)
    return python


def ask_hta(python, traces):
    said = run(python, "-c", HTA_PROGRAM, traces, codes=(0,))
    return json.loads(next(line for line in said.splitlines() if line.startswith("result ")).removeprefix("result "))


def compare_overlap(hta, tables):
    """The largest difference in percentage points."""
    breakdown = {row["rank"]: row for row in tables["step_breakdown"] if row["step"] is None and row["device_id"] is not None}
    if sorted(row["rank"] for row in hta["overlap"]) != sorted(breakdown):
        sys.exit(f"HTA found ranks {[row['rank'] for row in hta['overlap']]}, the run has {sorted(breakdown)}")
    points = 0.0
    for row in hta["overlap"]:
        ours, theirs = breakdown[row["rank"]]["overlap_pct"], row["comp_comm_overlap_pctg"]
        print(f"rank {row['rank']}: overlap {ours} %, HTA {theirs} %")
        if (ours is None) != (theirs != theirs):
            sys.exit(f"rank {row['rank']}: one has an overlap, the other none")
        points = max(points, abs(ours - theirs) if ours is not None else 0.0)
    return points


def check(python, aggregator, traces, work):
    """What was compared, in a sentence; ends the program where it differs."""
    print(f"{traces.name}:")
    run(aggregator, "ingest", traces, "--out", work / "run")
    run(aggregator, "export", work / "run", "--format", "chrome", "-o", work / "chrome")
    tables = json.loads(run(aggregator, "analyze", work / "run", "--json"))["tables"]
    original, exported = ask_hta(python, traces), ask_hta(python, work / "chrome")
    points = compare_overlap(exported, tables)
    # As text: NaN is not itself.
    if json.dumps(original) != json.dumps(exported):
        sys.exit(f"HTA says another thing of the export of {traces.name} than of the traces:\n{original}\n{exported}")
    # It rounds to 0.01.
    if points > 0.0051:
        sys.exit(f"HTA's overlap of {traces.name} differs from ours by {points:.4f} percentage points")
    return f"{traces.name}: {len(exported['overlap'])} ranks, same as of the traces, overlap as ours"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("traces", type=pathlib.Path, nargs="+")
    parser.add_argument("--bin", type=pathlib.Path, default=ROOT / "target" / "release" / "aggregator")
    parser.add_argument("--venv", type=pathlib.Path, default=ROOT / "target" / "hta-venv")
    options = parser.parse_args()
    python = install(options.venv)
    told = []
    for traces in options.traces:
        with tempfile.TemporaryDirectory(prefix="hta-") as work:
            told.append(check(python, options.bin, traces.resolve(), pathlib.Path(work)))
    print("HTA on the export: " + "; ".join(told))


if __name__ == "__main__":
    main()
