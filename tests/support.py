"""Shared by the checks and the benches: paths, the environment of MPI, waiting, and the results of the last release."""

import json
import os
import pathlib
import random
import shutil
import statistics
import subprocess
import sys
import tempfile
import time

ROOT = pathlib.Path(__file__).resolve().parents[1]
DATA = pathlib.Path(os.environ.get("RANKSCOPE_DATA", ROOT.parent / "shared/data"))
RELEASE = ROOT / "target/release"
RESULTS = ROOT / "tests/bench/results.json"
# Exit code of a check that cannot run on this machine (automake's convention).
CANNOT_RUN = 77
BROWSERS = ["chromium", "chromium-browser", "google-chrome", "google-chrome-stable"]
# Step times of busy machines vary by a few per cent; results beyond this are worth a look.
TOLERANCE = 0.10


def mpi_environment():
    """The environment for mpirun, which refuses to run as root unless both variables are set."""
    environment = dict(os.environ, NO_COLOR="1")
    if os.geteuid() == 0:
        environment.update(OMPI_ALLOW_RUN_AS_ROOT="1", OMPI_ALLOW_RUN_AS_ROOT_CONFIRM="1")
    return environment


def find_browser():
    """The path of a Chromium or Chrome, or None."""
    return next(filter(None, map(shutil.which, BROWSERS)), None)


def wait_until(condition, limit_s, sleep):
    """Polls the condition. Returns whether it became true within the limit; `sleep` waits for one poll interval."""
    until = time.monotonic() + limit_s
    while not condition():
        if time.monotonic() > until:
            return False
        sleep()
    return True


def measure(command, stdout=subprocess.DEVNULL, cwd=None):
    """Runs a command. Returns its wall time in s, its peak memory in MB and its CPU time in s. A command may end with 3, because
    some inputs have losses; any other error ends this program."""
    command = list(map(str, command))
    with tempfile.TemporaryFile() as said:
        began = time.monotonic()
        process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=stdout, stderr=said, cwd=cwd)
        _, status, usage = os.wait4(process.pid, 0)
        wall_s = time.monotonic() - began
        process.returncode = os.waitstatus_to_exitcode(status)
        if process.returncode not in (0, 3):
            said.seek(0)
            error = said.read().decode(errors="replace")[-2000:]
            sys.exit(f"{' '.join(command)[:500]} ended with {process.returncode}:\n{error}")
    return wall_s, usage.ru_maxrss * 1024 / 1e6, usage.ru_utime + usage.ru_stime


def interval(ratios, level=0.95, draws=10_000):
    """Bootstrap interval of the median over pairs. Both runs of a pair see the same load of the machine."""
    dice = random.Random(1)
    medians = sorted(statistics.median(dice.choices(ratios, k=len(ratios))) for _ in range(draws))
    cut = int(draws * (1 - level) / 2)
    return medians[cut], medians[-cut - 1]


def compare_with_release(bench, found, keep=False):
    """Prints ratios beside those of the last release; with `keep`, writes them as the new ones.

    `found` maps a name to (ratio, better), where better is "higher" or "lower". Only ratios are kept, because times depend on
    the machine. Returns the names that got worse by more than TOLERANCE.
    """
    document = json.loads(RESULTS.read_text()) if RESULTS.exists() else {}
    kept = document.get(bench, {})
    worse = []
    for name, (ratio, better) in found.items():
        if name not in kept:
            print(f"{bench}: {name}: {ratio:.4g} (no result of a release)")
            continue
        change = ratio / kept[name] - 1
        is_worse = change < -TOLERANCE if better == "higher" else change > TOLERANCE
        print(f"{bench}: {name}: {ratio:.4g}, last release {kept[name]:.4g} ({100 * change:+.0f} %){'  WORSE' if is_worse else ''}")
        worse += [name] if is_worse else []
    if keep:
        document[bench] = {**kept, **{name: float(f"{ratio:.4g}") for name, (ratio, _) in found.items()}}
        RESULTS.write_text(json.dumps(document, indent=2, sort_keys=True) + "\n")
    return worse
