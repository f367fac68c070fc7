#!/usr/bin/env python3
"""Runs the static command (scripts/static) in a root that holds nothing but the command and some traces.

    tests/checks/static_check.py BINARY [--like OTHER]

Checks that the file is at most 20 MB and needs no library, that `analyze --json`, `ingest`, `report` and `export` work there, and that
the JSON is that of OTHER, a command that was built in the usual way. Exits with 77 where a root cannot be changed.
"""

import argparse
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile

# The shared module is one folder up.
sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))
from support import CANNOT_RUN, ROOT  # noqa: E402

LIMIT_BYTES = 20_000_000
COMMANDS = {
    "ingest": ["ingest", "/traces", "--out", "/run"],
    "analyze": ["analyze", "/traces", "--json"],
    "report": ["report", "/run", "-o", "/report.html"],
    "export": ["export", "/run", "-o", "/run.pftrace"],
}


def inside(root, arguments):
    """Runs the command in the root, without any variable of the environment."""
    return subprocess.run(["/rankscope", *arguments], env={}, stdin=subprocess.DEVNULL, capture_output=True, check=False,
                          preexec_fn=lambda: (os.chroot(root), os.chdir("/")))  # fmt: skip


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("binary", type=pathlib.Path)
    parser.add_argument("--like", type=pathlib.Path)
    options = parser.parse_args()
    if os.geteuid() != 0:
        print("skipped: only root may change the root directory")
        return CANNOT_RUN
    size = options.binary.stat().st_size
    # A program that needs libraries names their loader.
    headers = subprocess.run(["readelf", "--program-headers", options.binary], check=True, capture_output=True, text=True).stdout
    problems = []
    if size > LIMIT_BYTES:
        problems.append(f"{size / 1e6:.1f} MB, above {LIMIT_BYTES / 1e6:.0f}")
    if "INTERP" in headers:
        problems.append("it needs a loader of libraries")
    with tempfile.TemporaryDirectory() as place:
        root = pathlib.Path(place)
        shutil.copy(options.binary, root / "rankscope")
        shutil.copytree(ROOT / "examples/traces/gloo8_slow5", root / "traces")
        done = {name: inside(root, arguments) for name, arguments in COMMANDS.items()}
        for name, result in done.items():
            if result.returncode != 0:
                problems.append(f"{name} ended with {result.returncode}: {result.stderr.decode(errors='replace')[-300:]}")
        for made in ("run/run.json", "report.html", "run.pftrace"):
            if not (root / made).exists():
                problems.append(f"/{made} is missing")
        if options.like:
            traces = ROOT / "examples/traces/gloo8_slow5"
            usual = subprocess.run([options.like, "analyze", traces, "--json"], check=True, capture_output=True).stdout
            if usual.replace(str(traces).encode(), b"/traces") != done["analyze"].stdout:
                problems.append(f"its JSON is not that of {options.like}")
    for problem in problems:
        print(problem)
    print(f"{len(COMMANDS)} commands in an empty root; {size / 1e6:.1f} MB")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
